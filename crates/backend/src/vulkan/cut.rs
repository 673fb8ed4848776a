//! Which calls a dispatch becomes (rule G.2): a kernel is bound to limited ranges, and a block may
//! be several buffers, so long work is cut. Plain arithmetic: no driver, no memory.

use crate::dtype::Dtype;
use crate::ir::{Kernel, Output};
use crate::seam::{Binding, Dispatch};
use crate::wgsl::{self, Shape, Variant};

/// Places of one call: its numbers are 32 bits wide, with room for sums.
const MOST_PLACES: u64 = 1 << 30;
/// Workgroups of one call.
const MOST_GROUPS: u64 = 1 << 22;
/// Fewest places for which vectors are worth a call of their own.
const WIDE: u64 = 1 << 12;
/// Places of a row that one invocation folds alone.
const SHORT_ROW: u64 = 64;
/// Fewest places of a piece; most pieces of a row.
const PIECE: u64 = 4096;

/// What the arithmetic needs to know of a device.
pub(super) trait Rooms {
    /// Bytes from `offset` of a binding on that one range can have, and whether its first byte is
    /// aligned for one; `None` where there is no such byte.
    fn room(&self, binding: &Binding, offset: u64) -> Option<(u64, bool)>;
}

/// One call of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) variant: Variant,
    /// The first place.
    pub(super) start: u64,
    /// Places.
    pub(super) places: u64,
    /// Folds: the first row, and rows.
    pub(super) first_row: u64,
    pub(super) rows: u64,
    /// Places of a row that lie in this call.
    pub(super) row_len: u64,
    pub(super) piece_len: u64,
    /// Pieces of a row that lie in this call.
    pub(super) pieces: u64,
    /// The first place's place in its row.
    pub(super) in_row: u64,
    /// Pieces' results before the first of this call.
    pub(super) first_record: u64,
    /// Pieces' results are stored.
    pub(super) parted: bool,
}

/// A dispatch that no cut makes fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unfit;

/// Elements of a binding.
fn count(binding: &Binding) -> u64 {
    binding.len / binding.dtype.size() as u64
}

/// Byte of an input at a place, where it does not repeat within the call.
pub(super) fn input_byte(binding: &Binding, place: u64) -> u64 {
    place % count(binding).max(1) * binding.dtype.size() as u64
}

/// A kernel as the cuts see it.
pub(super) struct Cutter<'c, R: Rooms> {
    pub(super) kernel: &'c Kernel,
    /// Which inputs are read.
    pub(super) used: &'c [bool],
    pub(super) dispatch: &'c Dispatch,
    pub(super) rooms: &'c R,
}

/// How pieces cut rows of a length: places of a piece, pieces of a row.
pub(super) fn pieces(row: u64) -> (u64, u64) {
    let piece = row.div_ceil(PIECE).next_multiple_of(256).max(PIECE);
    (piece, row.div_ceil(piece).max(1))
}

/// Rows of a dispatch of folds.
pub(super) fn rows(dispatch: &Dispatch) -> u64 {
    match dispatch.len.checked_div(dispatch.row) {
        Some(rows) if rows > 0 => rows,
        // Folds of nothing still have their neutral results.
        _ => dispatch.outputs.first().map_or(0, count),
    }
}

/// Pieces' results that a dispatch of folds stores; 0 where no row is in pieces.
pub(super) fn records(dispatch: &Dispatch) -> u64 {
    if dispatch.row <= SHORT_ROW {
        return 0;
    }
    let (_, per_row) = pieces(dispatch.row);
    if per_row > 1 { rows(dispatch) * per_row } else { 0 }
}

impl<R: Rooms> Cutter<'_, R> {
    /// Calls `emit` for each call of the dispatch, in order.
    pub(super) fn cut(&self, mut emit: impl FnMut(Step)) -> Result<(), Unfit> {
        if !wgsl::folds(self.kernel) {
            return self.cut_places(&mut emit);
        }
        if self.dispatch.row <= SHORT_ROW {
            return self.cut_rows(&mut emit);
        }
        self.cut_pieces(&mut emit)
    }

    fn straight_inputs(&self, repeats: u8) -> impl Iterator<Item = &Binding> {
        let inputs = self.dispatch.inputs.iter().zip(self.used).enumerate();
        inputs
            .filter(move |(slot, (_, used))| **used && repeats >> slot & 1 == 0)
            .map(|(_, (binding, _))| binding)
    }

    /// How many of `most` places from `at` on the inputs let one call have, and which of them
    /// repeat.
    fn reach(&self, at: u64, most: u64) -> (u64, u8) {
        let (mut places, mut repeats) = (most.min(MOST_PLACES), 0u8);
        for (slot, (binding, used)) in self.dispatch.inputs.iter().zip(self.used).enumerate() {
            if !used {
                continue;
            }
            let count = count(binding);
            let room = |byte: u64| self.rooms.room(binding, byte).map_or(0, |(room, _)| room);
            if count < self.dispatch.len {
                if count <= MOST_PLACES && room(0) >= binding.len {
                    repeats |= 1 << slot;
                    continue;
                }
                // Too long to be bound whole: the call ends where it begins again.
                places = places.min(count - at % count.max(1));
            }
            places = places.min(room(input_byte(binding, at)) / binding.dtype.size() as u64);
        }
        (places, repeats)
    }

    /// How many of `most` elements from `at` on one call may write.
    fn output_reach(&self, at: u64, most: u64) -> u64 {
        self.dispatch.outputs.iter().fold(most, |most, binding| {
            let size = binding.dtype.size() as u64;
            most.min(self.rooms.room(binding, at * size).map_or(0, |(room, _)| room) / size)
        })
    }

    fn cut_places(&self, emit: &mut impl FnMut(Step)) -> Result<(), Unfit> {
        let len = self.dispatch.len;
        let packed = self.dispatch.outputs.iter().any(|out| wgsl::is_packed(out.dtype));
        let mut at = 0;
        while at < len {
            let left = len - at;
            let (reach, repeats) = self.reach(at, left);
            let mut places = self.output_reach(at, reach);
            if places < left && places > WIDE {
                places = places / WIDE * WIDE;
            }
            if places == 0 {
                return Err(Unfit);
            }
            let step = |shape: Shape, start: u64, places: u64| Step {
                variant: Variant { shape, repeats },
                start,
                places,
                ..NOTHING
            };
            if packed {
                emit(step(Shape::Packed, at, places));
            } else if places >= WIDE && self.is_wide(at, repeats) {
                let wide = places / 4 * 4;
                emit(step(Shape::Wide, at, wide));
                if wide < places {
                    emit(step(Shape::One, at + wide, places - wide));
                }
            } else {
                emit(step(Shape::One, at, places));
            }
            at += places;
        }
        Ok(())
    }

    /// Whether all that is read or written in order is 4 bytes wide and aligned.
    fn is_wide(&self, at: u64, repeats: u8) -> bool {
        let aligned = |binding: &Binding, byte: u64| {
            let wide = binding.dtype.size() == 4;
            wide && self.rooms.room(binding, byte).is_some_and(|(_, aligned)| aligned)
        };
        at.is_multiple_of(4)
            && self.straight_inputs(repeats).all(|input| aligned(input, input_byte(input, at)))
            && self.dispatch.outputs.iter().all(|output| aligned(output, at * 4))
    }

    /// Rows from `first` on of one call, and which inputs repeat.
    fn whole_rows(&self, first: u64, left: u64, most: u64) -> (u64, u8) {
        let row = self.dispatch.row;
        let (places, repeats) = self.reach(first * row, left * row);
        let rows = places.checked_div(row).unwrap_or(left);
        (self.output_reach(first, rows.min(left).min(most)), repeats)
    }

    fn cut_rows(&self, emit: &mut impl FnMut(Step)) -> Result<(), Unfit> {
        let (all, row) = (rows(self.dispatch), self.dispatch.row);
        let mut at = 0;
        while at < all {
            let (rows, repeats) = self.whole_rows(at, all - at, MOST_PLACES);
            if rows == 0 {
                return Err(Unfit);
            }
            emit(Step {
                variant: Variant { shape: Shape::Rows, repeats },
                start: at * row,
                places: rows * row,
                first_row: at,
                rows,
                row_len: row,
                ..NOTHING
            });
            at += rows;
        }
        Ok(())
    }

    fn cut_pieces(&self, emit: &mut impl FnMut(Step)) -> Result<(), Unfit> {
        let (all, row) = (rows(self.dispatch), self.dispatch.row);
        let (piece_len, per_row) = pieces(row);
        let parted = per_row > 1;
        let mut at = 0;
        while at < all {
            let (rows, repeats) = self.whole_rows(at, all - at, MOST_GROUPS / per_row);
            let step = Step {
                variant: Variant { shape: Shape::Pieces, repeats },
                start: at * row,
                places: rows * row,
                first_row: at,
                rows,
                row_len: row,
                piece_len,
                pieces: per_row,
                in_row: 0,
                first_record: at * per_row,
                parted,
            };
            if rows > 0 {
                emit(step);
                at += rows;
                continue;
            }
            self.cut_row(at, step, emit)?;
            at += 1;
        }
        if parted { self.cut_joins(per_row, emit) } else { Ok(()) }
    }

    /// A row that does not fit one call: as many pieces as do.
    fn cut_row(&self, row: u64, step: Step, emit: &mut impl FnMut(Step)) -> Result<(), Unfit> {
        let mut piece = 0;
        while piece < step.pieces {
            let in_row = piece * step.piece_len;
            let left = step.row_len - in_row;
            let (reach, repeats) = self.reach(row * step.row_len + in_row, left);
            let pieces = if reach == left { step.pieces - piece } else { reach / step.piece_len };
            if pieces == 0 || self.output_reach(row, 1) == 0 {
                return Err(Unfit);
            }
            let places = left.min(pieces * step.piece_len);
            emit(Step {
                variant: Variant { repeats, ..step.variant },
                start: row * step.row_len + in_row,
                places,
                rows: 1,
                row_len: places,
                pieces,
                in_row,
                first_record: step.first_record + piece,
                ..step
            });
            piece += pieces;
        }
        Ok(())
    }

    fn cut_joins(&self, per_row: u64, emit: &mut impl FnMut(Step)) -> Result<(), Unfit> {
        let all = rows(self.dispatch);
        let record = wgsl::partial_words(self.kernel) * 4;
        let scratch = self.dispatch.scratch.as_ref();
        let mut at = 0;
        while at < all {
            let room = scratch.map_or(u64::MAX, |scratch| {
                let start = records_start(self.kernel) + at * per_row * record;
                self.rooms.room(scratch, start).map_or(0, |(room, _)| room)
            });
            let most = (room / (per_row * record)).min(all - at).min(MOST_GROUPS);
            let rows = self.output_reach(at, most);
            if rows == 0 {
                return Err(Unfit);
            }
            emit(Step {
                variant: Variant { shape: Shape::Join, repeats: 0 },
                first_row: at,
                rows,
                pieces: per_row,
                first_record: at * per_row,
                ..NOTHING
            });
            at += rows;
        }
        Ok(())
    }
}

const NOTHING: Step = Step {
    variant: Variant { shape: Shape::One, repeats: 0 },
    start: 0,
    places: 0,
    first_row: 0,
    rows: 0,
    row_len: 0,
    piece_len: 0,
    pieces: 0,
    in_row: 0,
    first_record: 0,
    parted: false,
};

/// Bytes of the scratch memory before the pieces' results: the parameters, which may have to be
/// there.
pub(super) fn records_start(kernel: &Kernel) -> u64 {
    (kernel.params.len() as u64 * 8).next_multiple_of(256)
}

/// Bytes of scratch memory of a dispatch.
pub(super) fn scratch(kernel: &Kernel, dispatch: &Dispatch, params: bool) -> u64 {
    let folds = matches!(kernel.outputs.first(), Some(Output::Fold(..)));
    let records = if folds { records(dispatch) } else { 0 };
    match (records, params) {
        (0, false) => 0,
        (0, true) => records_start(kernel),
        _ => records_start(kernel) + records * wgsl::partial_words(kernel) * 4,
    }
}

/// Elements of a word that a packed output shares.
pub(super) fn per_word(dtype: Dtype) -> u64 {
    4 / dtype.size().min(4) as u64
}
