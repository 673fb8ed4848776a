//! A batch as the driver's commands.

use aquifer_core::{DriverError, QueueId, Ticket};
use ash::vk;
use smallvec::SmallVec;

use super::calls::{Call, failed};
use super::cut::{self, Cutter, Rooms, Step};
use super::driver::{Bindings, Driver, RawPipeline};
use super::kernel::{Compiled, Expression, Program, User};
use super::memory::{Held, Place};
use crate::dtype::Dtype;
use crate::seam::{self, Binding, Command, Dispatch, Pipeline};
use crate::wgsl::{self, Shape, Slot, Word};

/// Bytes that one update may write.
const UPDATE: usize = 64 << 10;
/// Bytes from which on a copy inside a discrete device's memory is a kernel: the copy commands of
/// an H200's driver reach 0.84 TB/s, a kernel 3.7.
const COPY_BY_KERNEL: u64 = 1 << 18;

/// How commands are written, beside what they are.
#[derive(Clone, Copy)]
pub(super) struct How<'h> {
    /// Barriers are written; only a test leaves them out.
    pub(super) barriers: bool,
    /// The kernel that copies words, where one is faster.
    pub(super) copier: Option<&'h Pipeline>,
}

/// A range as a kernel is bound to it.
struct Bound {
    info: vk::DescriptorBufferInfo,
    /// Elements from its start to the first that is meant.
    first: u32,
}

/// Where bindings lie, by the regions that are held.
pub(super) struct Ranges<'r> {
    pub(super) held: Held<'r>,
    pub(super) driver: &'r Driver,
}

impl Ranges<'_> {
    fn place(&self, binding: &Binding, offset: u64) -> Option<Place> {
        self.held.place(binding.block, binding.offset.checked_add(offset)?)
    }

    /// `len` bytes from `offset` of a binding, bound at the aligned offset below.
    fn bound(&self, binding: &Binding, offset: u64, len: u64) -> Option<Bound> {
        let (place, size) = (self.place(binding, offset)?, binding.dtype.size() as u64);
        if place.room < len {
            return None;
        }
        let before = place.offset % self.driver.facts.limits.align;
        // Whole words: what is packed is read and written by them. Buffers end at whole pages.
        let range = (before + len).next_multiple_of(4);
        let info =
            vk::DescriptorBufferInfo { buffer: place.buffer, offset: place.offset - before, range };
        Some(Bound { info, first: u32::try_from(before / size).ok()? })
    }
}

impl Rooms for Ranges<'_> {
    fn room(&self, binding: &Binding, offset: u64) -> Option<(u64, bool)> {
        let (place, limits) = (self.place(binding, offset)?, &self.driver.facts.limits);
        let room = place.room.min(limits.range.saturating_sub(limits.align));
        Some((room, place.offset.is_multiple_of(limits.align)))
    }
}

/// What is wrong with a batch that should not have come here.
fn misfit() -> DriverError {
    failed(Call::QueueSubmit, vk::Result::ERROR_VALIDATION_FAILED_EXT)
}

/// Writes a batch's commands; what it waits for is collected.
pub(super) struct Encoder<'e> {
    pub(super) ranges: Ranges<'e>,
    pub(super) commands: vk::CommandBuffer,
    pub(super) how: How<'e>,
    /// Other queues' tickets, the latest of each.
    pub(super) waits: SmallVec<[(QueueId, Ticket); 4]>,
    pipeline: vk::Pipeline,
}

impl<'e> Encoder<'e> {
    pub(super) fn new(ranges: Ranges<'e>, commands: vk::CommandBuffer, how: How<'e>) -> Self {
        let pipeline = vk::Pipeline::null();
        Self { ranges, commands, how, waits: SmallVec::new(), pipeline }
    }

    pub(super) fn batch(&mut self, commands: &[Command]) -> Result<(), DriverError> {
        for command in commands {
            match command {
                Command::Dispatch(dispatch) => self.dispatch(dispatch)?,
                Command::Copy { from, to } => self.copy(from, to)?,
                Command::Barrier => self.barrier(),
                // Before the whole batch: what comes before the wait in it may run later than it
                // could, never wrongly, and nothing that is waited for can wait for this batch.
                Command::Wait { queue, ticket } => {
                    match self.waits.iter_mut().find(|(known, _)| known == queue) {
                        Some((_, known)) => *known = (*known).max(*ticket),
                        None => self.waits.push((*queue, *ticket)),
                    }
                }
            }
        }
        self.ranges.driver.host_barrier(self.commands);
        Ok(())
    }

    fn barrier(&self) {
        if self.how.barriers {
            self.ranges.driver.barrier(self.commands);
        }
    }

    /// Copies within the device's own memory by a kernel, where that is faster and alignment
    /// allows it; how many bytes.
    fn copy_by_kernel(&mut self, from: &Binding, to: &Binding) -> Result<u64, DriverError> {
        let aligned = |binding: &Binding| {
            let place = self.ranges.place(binding, 0);
            place.is_some_and(|place| {
                place.local && place.offset.is_multiple_of(self.ranges.driver.facts.limits.align)
            })
        };
        let Some(copier) =
            self.how.copier.filter(|_| from.len >= COPY_BY_KERNEL && aligned(from) && aligned(to))
        else {
            return Ok(0);
        };
        let len = from.len / 4 * 4;
        let words = |binding: &Binding| Binding { len, dtype: Dtype::U32, ..*binding };
        let dispatch = Dispatch {
            program: seam::Program::Compiled(copier.clone()),
            label: std::borrow::Cow::Borrowed("copy"),
            inputs: smallvec::smallvec![words(from)],
            outputs: smallvec::smallvec![words(to)],
            params: SmallVec::new(),
            len: len / 4,
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
            let source = self.ranges.place(from, done).ok_or_else(misfit)?;
            let target = self.ranges.place(to, done).ok_or_else(misfit)?;
            let size = (from.len - done).min(source.room).min(target.room);
            self.ranges.driver.copy(
                self.commands,
                (source.buffer, source.offset),
                (target.buffer, target.offset),
                size,
            );
            done += size;
        }
        Ok(())
    }

    fn dispatch(&mut self, dispatch: &Dispatch) -> Result<(), DriverError> {
        let seam::Program::Compiled(pipeline) = &dispatch.program else { return Err(misfit()) };
        match pipeline.0.downcast_ref::<Program>() {
            Some(Program::Expression(expression)) => self.expression(expression, dispatch),
            Some(Program::User(user)) => self.user(user, dispatch),
            None => Err(misfit()),
        }
    }

    fn bind(&mut self, raw: &RawPipeline) {
        if self.pipeline != raw.pipeline {
            self.pipeline = raw.pipeline;
            self.ranges.driver.bind_pipeline(self.commands, raw);
        }
    }

    fn expression(
        &mut self,
        expression: &Expression,
        dispatch: &Dispatch,
    ) -> Result<(), DriverError> {
        let mut steps = SmallVec::<[Step; 2]>::new();
        let (kernel, used) = (&expression.kernel, &expression.used[..]);
        let cutter = Cutter { kernel, used, dispatch, rooms: &self.ranges };
        cutter.cut(|step| steps.push(step)).map_err(|_| misfit())?;
        let (mut params, mut joined) = (false, false);
        for step in &steps {
            let compiled = expression.find(step.variant).ok_or_else(misfit)?;
            if compiled.slots.contains(&Slot::Params) && !params {
                params = true;
                self.write_params(dispatch)?;
            }
            if step.variant.shape == Shape::Join && !joined {
                joined = true;
                self.barrier();
            }
            self.step(&compiled, (expression, dispatch), step)?;
        }
        Ok(())
    }

    /// Writes parameters that are too many for the immediates to the scratch memory.
    fn write_params(&self, dispatch: &Dispatch) -> Result<(), DriverError> {
        let scratch = dispatch.scratch.as_ref().ok_or_else(misfit)?;
        let bytes: Vec<u8> = dispatch.params.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        for (index, part) in bytes.chunks(UPDATE).enumerate() {
            let offset = (index * UPDATE) as u64;
            let place = self.ranges.place(scratch, offset).ok_or_else(misfit)?;
            self.ranges.driver.update(self.commands, place.buffer, place.offset, part);
        }
        // The scratch memory is this command's alone: the order inside it is not the core's.
        self.ranges.driver.barrier(self.commands);
        Ok(())
    }

    fn bound(
        &self,
        slot: Slot,
        (expression, dispatch): (&Expression, &Dispatch),
        step: &Step,
    ) -> Option<Bound> {
        let folds = wgsl::folds(&expression.kernel);
        let nothing =
            |slot: usize| dispatch.inputs.get(slot).is_some_and(|binding| binding.len == 0);
        match slot {
            // Folds of nothing read nothing: any buffer will do.
            Slot::Input(slot) if nothing(slot) => {
                let binding = dispatch.outputs.first()?;
                self.ranges.bound(binding, 0, binding.dtype.size() as u64)
            }
            Slot::Input(slot) if step.variant.repeats >> slot & 1 == 1 => {
                let binding = dispatch.inputs.get(slot)?;
                self.ranges.bound(binding, 0, binding.len)
            }
            Slot::Input(slot) => {
                let binding = dispatch.inputs.get(slot)?;
                let (size, byte) =
                    (binding.dtype.size() as u64, cut::input_byte(binding, step.start));
                self.ranges.bound(binding, byte, step.places.max(1) * size)
            }
            Slot::Output(slot) | Slot::Edges(slot) => {
                let binding = dispatch.outputs.get(slot)?;
                let size = binding.dtype.size() as u64;
                let (start, count) =
                    if folds { (step.first_row, step.rows) } else { (step.start, step.places) };
                self.ranges.bound(binding, start * size, count * size)
            }
            Slot::Partials => {
                // A fold of one piece binds its first output where no results are stored.
                let Some(scratch) = dispatch.scratch.as_ref().filter(|_| step.parted) else {
                    let binding = dispatch.outputs.first()?;
                    return self.ranges.bound(binding, 0, binding.dtype.size() as u64);
                };
                let record = wgsl::partial_words(&expression.kernel) * 4;
                let start = cut::records_start(&expression.kernel) + step.first_record * record;
                let mut bound =
                    self.ranges.bound(scratch, start, step.rows * step.pieces * record)?;
                // In words.
                bound.first = bound.first * scratch.dtype.size() as u32 / 4;
                Some(bound)
            }
            Slot::Params => {
                let scratch = dispatch.scratch.as_ref()?;
                self.ranges.bound(scratch, 0, dispatch.params.len() as u64 * 8)
            }
        }
    }

    fn step(
        &mut self,
        compiled: &Compiled,
        what: (&Expression, &Dispatch),
        step: &Step,
    ) -> Result<(), DriverError> {
        let dispatch = what.1;
        let (mut infos, mut first) = (Bindings::new(), SmallVec::<[u32; 16]>::new());
        for slot in &compiled.slots {
            let bound = self.bound(*slot, what, step).ok_or_else(misfit)?;
            infos.push(bound.info);
            first.push(bound.first);
        }
        let phase = phase(compiled, &first, dispatch);
        let words: SmallVec<[u32; 32]> = compiled
            .words
            .iter()
            .map(|word| match *word {
                Word::Phase => phase,
                Word::Offset(slot) => first[slot],
                other => word_of(other, step, dispatch),
            })
            .collect();
        let driver = self.ranges.driver;
        self.bind(&compiled.raw);
        driver.bind_buffers(self.commands, &compiled.raw, (&compiled.places, &infos));
        driver.immediates(self.commands, &compiled.raw, bytemuck::cast_slice(&words));
        let group = u64::from(compiled.group);
        let groups = match step.variant.shape {
            Shape::One => step.places.div_ceil(group),
            Shape::Wide => (step.places / 4).div_ceil(group),
            Shape::Packed => (step.places + u64::from(phase)).div_ceil(4).div_ceil(group),
            Shape::Rows => step.rows.div_ceil(group),
            Shape::Pieces => step.rows * step.pieces,
            Shape::Join => step.rows,
        };
        let most = u64::from(driver.facts.limits.groups[0].min(1 << 16));
        let x = groups.clamp(1, most - 1);
        driver.dispatch(self.commands, [x as u32, groups.div_ceil(x) as u32, 1]);
        Ok(())
    }

    fn user(&mut self, user: &User, dispatch: &Dispatch) -> Result<(), DriverError> {
        let (mut inputs, mut outputs) = (dispatch.inputs.iter(), dispatch.outputs.iter());
        let mut infos = Bindings::new();
        for access in &user.accesses {
            let binding = match access {
                aquifer_core::Access::Read => inputs.next(),
                aquifer_core::Access::Write => outputs.next(),
            };
            let binding = binding.ok_or_else(misfit)?;
            let place = self.ranges.place(binding, 0).filter(|place| place.room >= binding.len);
            let place = place.ok_or_else(misfit)?;
            if !place.offset.is_multiple_of(self.ranges.driver.facts.limits.align) {
                return Err(misfit());
            }
            infos.push(vk::DescriptorBufferInfo {
                buffer: place.buffer,
                offset: place.offset,
                range: binding.len,
            });
        }
        let mut bytes = vec![0u8; user.immediates.next_multiple_of(4) as usize];
        for (scalar, bits) in user.scalars.iter().zip(&dispatch.params) {
            let (start, size) = (scalar.offset as usize, scalar.dtype.size());
            let target = bytes.get_mut(start..start + size).ok_or_else(misfit)?;
            target.copy_from_slice(&bits.to_le_bytes()[..size]);
        }
        let driver = self.ranges.driver;
        let grid = user.grid(dispatch).map(|groups| groups as u32);
        self.bind(&user.compiled.raw);
        driver.bind_buffers(self.commands, &user.compiled.raw, (&user.compiled.places, &infos));
        driver.immediates(self.commands, &user.compiled.raw, &bytes);
        driver.dispatch(self.commands, grid);
        Ok(())
    }
}

/// Places by which the first group of four begins before the first place: where the words of the
/// first packed output do.
fn phase(compiled: &Compiled, first: &[u32], dispatch: &Dispatch) -> u32 {
    let packed = compiled.slots.iter().zip(first).find_map(|(slot, first)| match slot {
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
