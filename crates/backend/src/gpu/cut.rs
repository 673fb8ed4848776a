//! Which calls a dispatch becomes (rule G.2): a kernel is bound to limited ranges, and a block may
//! be several buffers, so long work is cut. Plain arithmetic: no driver, no memory.

use smallvec::SmallVec;

use crate::dtype::Dtype;
use crate::ir::Kernel;
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
pub(crate) trait Rooms {
    /// Bytes from `offset` of a binding on that one range can have, and whether its first byte is
    /// aligned for one; `None` where there is no such byte.
    fn room(&self, binding: &Binding, offset: u64) -> Option<(u64, bool)>;
}

/// One call of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) variant: Variant,
    /// The first place.
    pub(crate) start: u64,
    /// Places.
    pub(crate) places: u64,
    /// Folds: the first row, and rows.
    pub(crate) first_row: u64,
    pub(crate) rows: u64,
    /// Places of a row that lie in this call.
    pub(crate) row_len: u64,
    pub(crate) piece_len: u64,
    /// Pieces of a row that lie in this call.
    pub(crate) pieces: u64,
    /// The first place's place in its row.
    pub(crate) in_row: u64,
    /// Pieces' results before the first of this call.
    pub(crate) first_record: u64,
    /// Pieces' results are stored.
    pub(crate) parted: bool,
}

/// A dispatch that no cut makes fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unfit;

/// Elements of a binding.
fn count(binding: &Binding) -> u64 {
    binding.len / binding.dtype.size() as u64
}

/// Byte of an input at a place, where it does not repeat within the call.
pub(crate) fn input_byte(binding: &Binding, place: u64) -> u64 {
    place % count(binding).max(1) * binding.dtype.size() as u64
}

/// A kernel as the cuts see it.
pub(crate) struct Cutter<'c, R: Rooms> {
    pub(crate) kernel: &'c Kernel,
    /// Which inputs are read.
    pub(crate) used: &'c [bool],
    pub(crate) dispatch: &'c Dispatch,
    pub(crate) rooms: &'c R,
}

/// How pieces cut rows of a length: places of a piece, pieces of a row.
pub(crate) fn pieces(row: u64) -> (u64, u64) {
    let piece = row.div_ceil(PIECE).next_multiple_of(256).max(PIECE);
    (piece, row.div_ceil(piece).max(1))
}

/// Rows of a dispatch of folds.
pub(crate) fn rows(dispatch: &Dispatch) -> u64 {
    match dispatch.len.checked_div(dispatch.row) {
        Some(rows) if rows > 0 => rows,
        // Folds of nothing still have their neutral results.
        _ => dispatch.outputs.first().map_or(0, count),
    }
}

impl<R: Rooms> Cutter<'_, R> {
    /// Calls `emit` for each call of the dispatch, in order.
    pub(crate) fn cut(&self, mut emit: impl FnMut(Step)) -> Result<(), Unfit> {
        // Scratch memory is bound as it is.
        if let Some(scratch) = &self.dispatch.scratch
            && self.rooms.room(scratch, 0).is_none_or(|(room, _)| room < scratch.len)
        {
            return Err(Unfit);
        }
        if !wgsl::folds(self.kernel) {
            return self.cut_places(&mut emit);
        }
        self.cut_folds(&mut emit)
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

    /// Folds: short rows an invocation each, long ones in pieces. A row that crosses from one range
    /// into the next is always in pieces, which end there.
    fn cut_folds(&self, emit: &mut impl FnMut(Step)) -> Result<(), Unfit> {
        let (all, row) = (rows(self.dispatch), self.dispatch.row);
        let (piece_len, per_row) = pieces(row);
        let short = row <= SHORT_ROW;
        let most = if short { MOST_PLACES } else { MOST_GROUPS / per_row };
        let mut runs = SmallVec::<[Run; 4]>::new();
        let (mut at, mut record) = (0, 0);
        while at < all {
            let (rows, repeats) = self.whole_rows(at, all - at, most);
            if rows == 0 {
                let pieces = self.cut_row(at, record, emit)?;
                runs.push(Run { first_row: at, rows: 1, pieces, first_record: record });
                (at, record) = (at + 1, record + pieces);
                continue;
            }
            let shape = if short { Shape::Rows } else { Shape::Pieces };
            let parted = !short && per_row > 1;
            emit(Step {
                variant: Variant { shape, repeats },
                start: at * row,
                places: rows * row,
                first_row: at,
                rows,
                row_len: row,
                piece_len,
                pieces: per_row,
                in_row: 0,
                first_record: record,
                parted,
            });
            if parted {
                runs.push(Run { first_row: at, rows, pieces: per_row, first_record: record });
                record += rows * per_row;
            }
            at += rows;
        }
        runs.iter().try_for_each(|run| self.cut_joins(run, emit))
    }

    /// A row that does not fit one call: as much of it as does, and so on. Returns its pieces.
    fn cut_row(
        &self,
        row: u64,
        first_record: u64,
        emit: &mut impl FnMut(Step),
    ) -> Result<u64, Unfit> {
        let len = self.dispatch.row;
        let (piece_len, _) = pieces(len);
        let (mut done, mut count) = (0, 0);
        while done < len {
            let start = row * len + done;
            let (places, repeats) = self.reach(start, len - done);
            if places == 0 || self.output_reach(row, 1) == 0 {
                return Err(Unfit);
            }
            let pieces = places.div_ceil(piece_len);
            emit(Step {
                variant: Variant { shape: Shape::Pieces, repeats },
                start,
                places,
                first_row: row,
                rows: 1,
                row_len: places,
                piece_len,
                pieces,
                in_row: done,
                first_record: first_record + count,
                parted: true,
            });
            (done, count) = (done + places, count + pieces);
        }
        Ok(count)
    }

    fn cut_joins(&self, run: &Run, emit: &mut impl FnMut(Step)) -> Result<(), Unfit> {
        let mut done = 0;
        while done < run.rows {
            let at = run.first_row + done;
            let rows = self.output_reach(at, (run.rows - done).min(MOST_GROUPS));
            if rows == 0 {
                return Err(Unfit);
            }
            emit(Step {
                variant: Variant { shape: Shape::Join, repeats: 0 },
                first_row: at,
                rows,
                pieces: run.pieces,
                first_record: run.first_record + done * run.pieces,
                parted: true,
                ..NOTHING
            });
            done += rows;
        }
        Ok(())
    }
}

/// Rows whose pieces' results are joined.
struct Run {
    first_row: u64,
    rows: u64,
    /// Results of each row.
    pieces: u64,
    first_record: u64,
}

impl Step {
    /// Pieces' results up to the last of this call.
    pub(crate) fn records(&self) -> u64 {
        if self.parted { self.first_record + self.rows * self.pieces } else { 0 }
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
pub(crate) fn records_start(kernel: &Kernel) -> u64 {
    (kernel.params.len() as u64 * 8).next_multiple_of(256)
}

/// Bytes of scratch memory for so many pieces' results, and for the parameters where they must be
/// there.
pub(crate) fn scratch(kernel: &Kernel, records: u64, params: bool) -> u64 {
    match (records, params) {
        (0, false) => 0,
        (0, true) => records_start(kernel),
        _ => records_start(kernel) + records * wgsl::partial_words(kernel) * 4,
    }
}

/// Elements of a word that a packed output shares.
pub(crate) fn per_word(dtype: Dtype) -> u64 {
    4 / dtype.size().min(4) as u64
}
