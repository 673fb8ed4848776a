//! A batch as single calls.

use std::borrow::Cow;

use aquifer_core::{Access, DriverError, QueueId, Ticket};
use smallvec::SmallVec;

use super::cut::{self, Cutter, Step};
use super::program::{Compiled, Copiers, Expression, Program, User};
use super::{Compiler, Copies, Place, Range, Recorder};
use crate::dtype::Dtype;
use crate::seam::{self, Binding, Command, Dispatch};
use crate::wgsl::{self, Shape, Slot, Word};

/// How commands are written, beside what they are.
#[derive(Clone, Copy)]
pub(crate) struct How<'h> {
    /// Barriers are written; only a test leaves them out.
    pub(crate) barriers: bool,
    /// The kernels that copy; there wherever the device's copies need them.
    pub(crate) copiers: Option<&'h Copiers>,
}

/// A range as a kernel is bound to it.
struct Bound<B> {
    range: Range<B>,
    /// Elements from its start to the first that is meant.
    first: u32,
}

/// An expression's program and what it runs on.
type What<'w, R> = (&'w Expression<<R as Recorder>::Compiler>, &'w Dispatch);

/// A compiled text of the recorder's device.
type CompiledFor<R> = Compiled<<<R as Recorder>::Compiler as Compiler>::Pipeline>;

/// Other queues' tickets that a batch waits for, the latest of each.
///
/// They come before the whole batch: what comes before the wait in it may run later than it could,
/// never wrongly, and nothing that is waited for can wait for this batch.
pub(crate) fn waits(commands: &[Command]) -> SmallVec<[(QueueId, Ticket); 4]> {
    let mut waits = SmallVec::<[(QueueId, Ticket); 4]>::new();
    for command in commands {
        if let Command::Wait { queue, ticket } = command {
            match waits.iter_mut().find(|(known, _)| known == queue) {
                Some((_, known)) => *known = (*known).max(*ticket),
                None => waits.push((*queue, *ticket)),
            }
        }
    }
    waits
}

/// Writes a batch's commands.
pub(crate) struct Encoder<'e, R: Recorder> {
    pub(crate) recorder: R,
    how: How<'e>,
    /// Parameters of the expression at hand that are too many for the immediates.
    params: Option<Range<R::Buffer>>,
}

impl<'e, R: Recorder> Encoder<'e, R> {
    pub(crate) fn new(recorder: R, how: How<'e>) -> Self {
        Self { recorder, how, params: None }
    }

    pub(crate) fn batch(&mut self, commands: &[Command]) -> Result<(), DriverError> {
        for command in commands {
            match command {
                Command::Dispatch(dispatch) => self.dispatch(dispatch)?,
                Command::Copy { from, to } => self.copy(from, to)?,
                Command::Barrier => self.barrier()?,
                // See `waits`.
                Command::Wait { .. } => {}
            }
        }
        Ok(())
    }

    fn barrier(&mut self) -> Result<(), DriverError> {
        if self.how.barriers { self.recorder.barrier() } else { Ok(()) }
    }

    /// `len` bytes from `offset` of a binding, bound at the aligned offset below.
    fn bound_at(&self, binding: &Binding, offset: u64, len: u64) -> Option<Bound<R::Buffer>> {
        let (place, size) = (self.recorder.place(binding, offset)?, binding.dtype.size() as u64);
        if place.room < len {
            return None;
        }
        let before = place.offset % self.recorder.limits().align;
        // Whole words: what is packed is read and written by them. Buffers end at whole pages.
        let len = (before + len).next_multiple_of(4);
        let range = Range { buffer: place.buffer, offset: place.offset - before, len };
        Some(Bound { range, first: u32::try_from(before / size).ok()? })
    }

    /// Copies by a kernel, where that is how the device copies these; how many bytes.
    fn copy_by_kernel(&mut self, from: &Binding, to: &Binding) -> Result<u64, DriverError> {
        let (Some(copiers), Some(source), Some(target)) =
            (self.how.copiers, self.recorder.place(from, 0), self.recorder.place(to, 0))
        else {
            return Ok(0);
        };
        let limits = self.recorder.limits();
        let both = |unit: u64| [source.offset, target.offset].iter().all(|at| at % unit == 0);
        let (copier, dtype) = match limits.copies {
            Copies::LongByKernel(least)
                if from.len >= least && source.local && target.local && both(limits.align) =>
            {
                (&copiers.words, Dtype::U32)
            }
            Copies::Kernel if both(4) && from.len.is_multiple_of(4) => (&copiers.words, Dtype::U32),
            Copies::Kernel => (copiers.bytes.as_ref().ok_or_else(R::misfit)?, Dtype::U8),
            _ => return Ok(0),
        };
        let size = dtype.size() as u64;
        let len = from.len / size * size;
        let elements = |binding: &Binding| Binding { len, dtype, ..*binding };
        let dispatch = Dispatch {
            program: seam::Program::Compiled(copier.clone()),
            label: Cow::Borrowed("copy"),
            inputs: smallvec::smallvec![elements(from)],
            outputs: smallvec::smallvec![elements(to)],
            params: SmallVec::new(),
            len: len / size,
            row: 0,
            scratch: None,
            grid: None,
        };
        self.dispatch(&dispatch)?;
        Ok(len)
    }

    fn copy(&mut self, from: &Binding, to: &Binding) -> Result<(), DriverError> {
        let mut done = self.copy_by_kernel(from, to)?;
        while done < from.len {
            let source = self.recorder.place(from, done).ok_or_else(R::misfit)?;
            let target = self.recorder.place(to, done).ok_or_else(R::misfit)?;
            let len = (from.len - done).min(source.room).min(target.room);
            let range =
                |place: Place<R::Buffer>| Range { buffer: place.buffer, offset: place.offset, len };
            self.recorder.copy(&range(source), &range(target))?;
            done += len;
        }
        Ok(())
    }

    fn dispatch(&mut self, dispatch: &Dispatch) -> Result<(), DriverError> {
        let seam::Program::Compiled(pipeline) = &dispatch.program else { return Err(R::misfit()) };
        match pipeline.0.downcast_ref::<Program<R::Compiler>>() {
            Some(Program::Expression(expression)) => self.expression(expression, dispatch),
            Some(Program::User(user)) => self.user(user, dispatch),
            None => Err(R::misfit()),
        }
    }

    fn expression(
        &mut self,
        expression: &Expression<R::Compiler>,
        dispatch: &Dispatch,
    ) -> Result<(), DriverError> {
        let mut steps = SmallVec::<[Step; 2]>::new();
        let (kernel, used) = (&expression.kernel, &expression.used[..]);
        let cutter = Cutter { kernel, used, dispatch, rooms: &self.recorder };
        cutter.cut(|step| steps.push(step)).map_err(|_| R::misfit())?;
        self.params = None;
        let mut joined = false;
        for step in &steps {
            let compiled = expression.find(step.variant).ok_or_else(R::misfit)?;
            if compiled.slots.contains(&Slot::Params) && self.params.is_none() {
                let params = &dispatch.params;
                let bytes: Vec<u8> = params.iter().flat_map(|bits| bits.to_le_bytes()).collect();
                let range = self.recorder.constants(&bytes, dispatch.scratch.as_ref())?;
                self.params = Some(range);
            }
            if step.variant.shape == Shape::Join && !joined {
                joined = true;
                self.barrier()?;
            }
            self.step(&compiled, (expression, dispatch), step)?;
        }
        Ok(())
    }

    fn bound(
        &self,
        slot: Slot,
        (expression, dispatch): What<'_, R>,
        step: &Step,
    ) -> Option<Bound<R::Buffer>> {
        let folds = wgsl::folds(&expression.kernel);
        let nothing =
            |slot: usize| dispatch.inputs.get(slot).is_some_and(|binding| binding.len == 0);
        match slot {
            // Folds of nothing read nothing: any buffer will do.
            Slot::Input(slot) if nothing(slot) => {
                let binding = dispatch.outputs.first()?;
                self.bound_at(binding, 0, binding.dtype.size() as u64)
            }
            Slot::Input(slot) if step.variant.repeats >> slot & 1 == 1 => {
                let binding = dispatch.inputs.get(slot)?;
                self.bound_at(binding, 0, binding.len)
            }
            Slot::Input(slot) => {
                let binding = dispatch.inputs.get(slot)?;
                let (size, byte) =
                    (binding.dtype.size() as u64, cut::input_byte(binding, step.start));
                self.bound_at(binding, byte, step.places.max(1) * size)
            }
            Slot::Output(slot) | Slot::Edges(slot) => {
                let binding = dispatch.outputs.get(slot)?;
                let size = binding.dtype.size() as u64;
                let (start, count) =
                    if folds { (step.first_row, step.rows) } else { (step.start, step.places) };
                self.bound_at(binding, start * size, count * size)
            }
            Slot::Partials => {
                // A fold of one piece binds its first output where no results are stored.
                let Some(scratch) = dispatch.scratch.as_ref().filter(|_| step.parted) else {
                    let binding = dispatch.outputs.first()?;
                    return self.bound_at(binding, 0, binding.dtype.size() as u64);
                };
                let record = wgsl::partial_words(&expression.kernel) * 4;
                let start = cut::records_start(&expression.kernel) + step.first_record * record;
                let mut bound = self.bound_at(scratch, start, step.rows * step.pieces * record)?;
                // In words.
                bound.first = bound.first * scratch.dtype.size() as u32 / 4;
                Some(bound)
            }
            Slot::Params => Some(Bound { range: self.params.clone()?, first: 0 }),
        }
    }

    fn step(
        &mut self,
        compiled: &CompiledFor<R>,
        what: What<'_, R>,
        step: &Step,
    ) -> Result<(), DriverError> {
        let dispatch = what.1;
        let mut ranges = SmallVec::<[Range<R::Buffer>; 8]>::new();
        let mut first = SmallVec::<[u32; 16]>::new();
        for slot in &compiled.slots {
            let bound = self.bound(*slot, what, step).ok_or_else(R::misfit)?;
            ranges.push(bound.range);
            first.push(bound.first);
        }
        let phase = phase(&compiled.slots, &first, dispatch);
        let words: SmallVec<[u32; 32]> = compiled
            .words
            .iter()
            .map(|word| match *word {
                Word::Phase => phase,
                Word::Offset(slot) => first[slot],
                other => word_of(other, step, dispatch),
            })
            .collect();
        let group = u64::from(compiled.group);
        let groups = match step.variant.shape {
            Shape::One => step.places.div_ceil(group),
            Shape::Wide => (step.places / 4).div_ceil(group),
            Shape::Packed => (step.places + u64::from(phase)).div_ceil(4).div_ceil(group),
            Shape::Rows => step.rows.div_ceil(group),
            Shape::Pieces => step.rows * step.pieces,
            Shape::Join => step.rows,
        };
        let most = u64::from(self.recorder.limits().groups[0].min(1 << 16));
        let x = groups.clamp(1, most - 1);
        let grid = [x as u32, groups.div_ceil(x) as u32, 1];
        self.recorder.call(&compiled.pipeline, &ranges, bytemuck::cast_slice(&words), grid)
    }

    fn user(&mut self, user: &User<R::Compiler>, dispatch: &Dispatch) -> Result<(), DriverError> {
        let (mut inputs, mut outputs) = (dispatch.inputs.iter(), dispatch.outputs.iter());
        let mut ranges = SmallVec::<[Range<R::Buffer>; 8]>::new();
        for access in &user.accesses {
            let binding = match access {
                Access::Read => inputs.next(),
                Access::Write => outputs.next(),
            };
            let binding = binding.ok_or_else(R::misfit)?;
            let place = self.recorder.place(binding, 0).filter(|place| place.room >= binding.len);
            let place = place.ok_or_else(R::misfit)?;
            if !place.offset.is_multiple_of(self.recorder.limits().align) {
                return Err(R::misfit());
            }
            ranges.push(Range { buffer: place.buffer, offset: place.offset, len: binding.len });
        }
        let mut bytes = vec![0u8; user.immediates as usize];
        for (scalar, bits) in user.scalars.iter().zip(&dispatch.params) {
            let (start, size) = (scalar.offset as usize, scalar.dtype.size());
            let target = bytes.get_mut(start..start + size).ok_or_else(R::misfit)?;
            target.copy_from_slice(&bits.to_le_bytes()[..size]);
        }
        let grid = user.grid(dispatch).map(|groups| groups as u32);
        self.recorder.call(&user.pipeline, &ranges, &bytes, grid)
    }
}

/// Places by which the first group of four begins before the first place: where the words of the
/// first packed output do.
fn phase(slots: &[Slot], first: &[u32], dispatch: &Dispatch) -> u32 {
    let packed = slots.iter().zip(first).find_map(|(slot, first)| match slot {
        Slot::Edges(output) => {
            let per_word = cut::per_word(dispatch.outputs.get(*output)?.dtype);
            Some(*first % per_word as u32)
        }
        _ => None,
    });
    packed.unwrap_or(0)
}

fn word_of(word: Word, step: &Step, dispatch: &Dispatch) -> u32 {
    let param = |slot: usize| dispatch.params.get(slot).copied().unwrap_or(0);
    let count = |slot: usize| {
        let binding = dispatch.inputs.get(slot);
        binding.map_or(1, |binding| binding.len / binding.dtype.size() as u64).max(1)
    };
    let value = match word {
        Word::Len if step.variant.shape == Shape::Wide => step.places / 4,
        Word::Len => step.places,
        Word::PlaceLow => step.start & 0xFFFF_FFFF,
        Word::PlaceHigh => step.start >> 32,
        Word::Modulus(slot) => count(slot),
        Word::Start(slot) => step.start % count(slot),
        Word::Param(slot, false) => param(slot) & 0xFFFF_FFFF,
        Word::Param(slot, true) => param(slot) >> 32,
        Word::Rows => step.rows,
        Word::RowLen => step.row_len,
        Word::PieceLen => step.piece_len,
        Word::Pieces => step.pieces,
        Word::InRowLow => step.in_row & 0xFFFF_FFFF,
        Word::InRowHigh => step.in_row >> 32,
        Word::Parted => u64::from(step.parted),
        Word::Phase | Word::Offset(_) => 0,
    };
    value as u32
}
