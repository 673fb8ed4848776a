//! Running a program over all places, in pieces, on all cores.

use std::cell::RefCell;

use bytemuck::{cast_slice, cast_slice_mut};
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;
use smallvec::SmallVec;

use crate::cpu::fold::{Accumulator, fold_chunk};
use crate::cpu::program::{Action, FoldStep, Program, Source, Step, Target};
use crate::cpu::{ops, philox, threads};
use crate::dtype::Dtype;
use crate::ir::Output;
use crate::seam::Dispatch;

/// Places that go through all steps together: a register of f32 is 4 KiB, so that those of a
/// usual expression share the first-level cache with the memory that streams by.
const CHUNK: usize = 1024;
/// Places of one task. Fixed, so that folds join the same pieces whatever the number of cores.
const PIECE: u64 = 64 << 10;
/// Bytes below which one core is faster than waking a second one (a fork and join costs 26 to
/// 42 µs, a core moves about 10 GB/s).
const PARALLEL_BYTES: u64 = 512 << 10;

/// Memory of an input.
#[derive(Clone, Copy)]
struct Input {
    address: *const u8,
    /// Elements; fewer than the places repeat.
    len: u64,
    size: usize,
    /// The same memory is written by an output: read through a copy.
    aliased: bool,
}

#[derive(Clone, Copy)]
struct OutputMemory {
    address: *mut u8,
    size: usize,
}

/// What all tasks of one dispatch share.
struct Shared<'a> {
    program: &'a Program,
    inputs: SmallVec<[Input; 4]>,
    outputs: SmallVec<[OutputMemory; 2]>,
    params: &'a [u64],
    row: u64,
    /// The processor has the vectors of the wide loops.
    wide: bool,
}

/// Addresses that cross to rayon's threads.
struct Sendable<'a>(Shared<'a>);

// SAFETY: the addresses are valid and exclusively this dispatch's until its ticket is reached
// (contract of `Backend::submit`, 1 and 2), whatever thread uses them; tasks write disjoint ranges.
unsafe impl Send for Sendable<'_> {}
// SAFETY: as above; shared references only read the addresses themselves.
unsafe impl Sync for Sendable<'_> {}

type Partial = SmallVec<[Accumulator; 4]>;

thread_local! {
    /// Registers of this thread, kept between dispatches so that small work allocates nothing.
    static REGISTERS: RefCell<Vec<Box<[u64]>>> = const { RefCell::new(Vec::new()) };
}

/// Runs a compiled expression.
///
/// # Safety
/// The contract of [`Backend::submit`](crate::Backend::submit) for this dispatch.
pub(super) unsafe fn run(program: &Program, dispatch: &Dispatch) {
    let kernel = &program.kernel;
    let bytes: u64 = dispatch.inputs.iter().chain(&dispatch.outputs).map(|b| b.len).sum();
    let overlaps = |binding| dispatch.outputs.iter().any(|output| output.overlaps(binding));
    let shared = Shared {
        program,
        inputs: dispatch
            .inputs
            .iter()
            .zip(&kernel.inputs)
            .map(|(binding, dtype)| Input {
                address: binding.address as *const u8,
                len: binding.len / dtype.size() as u64,
                size: dtype.size(),
                aliased: overlaps(binding),
            })
            .collect(),
        outputs: dispatch
            .outputs
            .iter()
            .enumerate()
            .map(|(index, binding)| OutputMemory {
                address: binding.address as *mut u8,
                size: kernel.output_dtype(index).size(),
            })
            .collect(),
        params: &dispatch.params,
        row: if program.folds.is_empty() { dispatch.len } else { dispatch.row },
        wide: ops::wide_vectors(),
    };
    let rows = dispatch.len.checked_div(shared.row).unwrap_or(0);
    let shared = Sendable(shared);
    if program.folds.is_empty() {
        run_places(&shared, dispatch.len, (PIECE, bytes));
    } else if shared.0.row > PIECE {
        run_long_rows(&shared, rows, bytes);
    } else {
        // Tasks of whole rows.
        let group = PIECE.checked_div(shared.0.row).unwrap_or(1).max(1) * shared.0.row;
        if group > 0 {
            run_places(&shared, dispatch.len, (group, bytes));
        }
    }
    if rows == 0 || dispatch.len == 0 {
        store_empty(&shared.0, dispatch);
    }
}

/// Folds of nothing: their neutral values.
fn store_empty(shared: &Shared<'_>, dispatch: &Dispatch) {
    for fold in &shared.program.folds {
        let count = dispatch.outputs[fold.output].len / shared.outputs[fold.output].size as u64;
        for row in 0..count {
            store(shared, fold.output, row, Accumulator::start(fold.fold, fold.dtype));
        }
    }
}

/// Tasks of `group` places, which end where rows do; what they fold they have stored.
fn run_places(shared: &Sendable<'_>, len: u64, (group, bytes): (u64, u64)) {
    let task = |index: u64| {
        let (start, end) = (index * group, ((index + 1) * group).min(len));
        run_task(&shared.0, start, end);
    };
    let tasks = len.div_ceil(group);
    if bytes > PARALLEL_BYTES && tasks > 1 {
        threads::install(|| (0..tasks).into_par_iter().for_each(task));
    } else {
        (0..tasks).for_each(task);
    }
}

/// Rows of more than a piece: pieces of each row, joined in order.
fn run_long_rows(shared: &Sendable<'_>, rows: u64, bytes: u64) {
    let row = shared.0.row;
    let pieces = row.div_ceil(PIECE);
    for index in 0..rows {
        let task = |piece: u64| {
            let start = index * row + piece * PIECE;
            let end = (start + PIECE).min((index + 1) * row);
            run_task(&shared.0, start, end)
        };
        let partials: Vec<Partial> = if bytes > PARALLEL_BYTES && pieces > 1 {
            threads::install(|| (0..pieces).into_par_iter().map(task).collect())
        } else {
            (0..pieces).map(task).collect()
        };
        for (at, fold) in shared.0.program.folds.iter().enumerate() {
            let start = Accumulator::start(fold.fold, fold.dtype);
            let result = partials.iter().fold(start, |sum, part| sum.join(fold.fold, part[at]));
            store(&shared.0, fold.output, index, result);
        }
    }
}

fn store(shared: &Shared<'_>, output: usize, row: u64, value: Accumulator) {
    let memory = shared.outputs[output];
    // SAFETY: `row` is one of the output's elements (contract of `submit`, 4), and only the task
    // or the join that owns the row writes it.
    let out = unsafe {
        std::slice::from_raw_parts_mut(
            memory.address.wrapping_add(row as usize * memory.size),
            memory.size,
        )
    };
    let Output::Fold(fold, node) = shared.program.kernel.outputs[output] else { return };
    let dtype = shared.program.kernel.nodes[node as usize].dtype;
    value.store(fold, dtype, out);
}

/// Runs the places `[start, end)`: whole rows whose folds are stored, or a piece of one row
/// whose folds are returned.
fn run_task(shared: &Shared<'_>, start: u64, end: u64) -> Partial {
    let run = |registers: &mut Vec<Box<[u64]>>| {
        let count = shared.program.registers + shared.inputs.len();
        while registers.len() < count {
            registers.push(vec![0; CHUNK].into_boxed_slice());
        }
        run_chunks(shared, registers, start, end)
    };
    // A thread that ends submits what it has recorded, when its registers may be gone already.
    let kept = REGISTERS.try_with(|registers| run(&mut registers.borrow_mut()));
    kept.unwrap_or_else(|_| run(&mut Vec::new()))
}

fn run_chunks(shared: &Shared<'_>, registers: &mut [Box<[u64]>], start: u64, end: u64) -> Partial {
    let mut sums = fresh(shared);
    let mut place = start;
    while place < end {
        let count = ((end - place) as usize).min(CHUNK);
        load(shared, registers, place, count);
        let next = (place + count as u64, ((end - place) as usize - count).min(CHUNK));
        for (index, step) in shared.program.steps.iter().enumerate() {
            prefetch::part(shared, next, index);
            run_step(shared, registers, step, (place, count));
        }
        if !shared.program.folds.is_empty() {
            fold(shared, registers, (place, count), &mut sums);
        }
        place += count as u64;
    }
    sums
}

/// Fetching the next chunk's memory while this one is computed.
///
/// The one idea: steps that work in the first-level cache leave the memory bus idle, and the
/// processor's own prefetcher stops at the end of a chunk. Each step therefore asks for its share
/// of the lines of the next chunk, those of the outputs for writing.
mod prefetch {
    use super::Shared;
    #[cfg(target_arch = "x86_64")]
    use super::in_place;

    #[cfg(target_arch = "x86_64")]
    const LINE: usize = 64;

    /// The share of step `index`.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn part(shared: &Shared<'_>, (place, count): (u64, usize), index: usize) {
        use std::arch::x86_64::{_MM_HINT_ET0, _MM_HINT_T0, _mm_prefetch};
        let steps = shared.program.steps.len();
        let share = |bytes: usize| {
            let lines = bytes.div_ceil(LINE).div_ceil(steps);
            (index * lines * LINE..((index + 1) * lines * LINE).min(bytes)).step_by(LINE)
        };
        for (slot, input) in shared.inputs.iter().enumerate() {
            if count > 0 && shared.program.uses_input[slot] && in_place(input, place, count) {
                let start = input.address.wrapping_add((place % input.len) as usize * input.size);
                for offset in share(count * input.size) {
                    // SAFETY: a prefetch reads nothing and faults at no address.
                    unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(offset).cast()) };
                }
            }
        }
        if !shared.program.folds.is_empty() {
            return;
        }
        for output in &shared.outputs {
            let start = output.address.wrapping_add(place as usize * output.size);
            for offset in share(count * output.size) {
                // SAFETY: as above.
                unsafe { _mm_prefetch::<_MM_HINT_ET0>(start.wrapping_add(offset).cast()) };
            }
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn part(_shared: &Shared<'_>, _next: (u64, usize), _index: usize) {}
}

fn fresh(shared: &Shared<'_>) -> Partial {
    let start = |fold: &FoldStep| Accumulator::start(fold.fold, fold.dtype);
    shared.program.folds.iter().map(start).collect()
}

/// Folds a chunk, row by row; short rows are stored as they end.
fn fold(
    shared: &Shared<'_>,
    registers: &[Box<[u64]>],
    (place, count): (u64, usize),
    sums: &mut Partial,
) {
    let (row, folds) = (shared.row, &shared.program.folds);
    let mut done = 0;
    while done < count {
        let within = (place + done as u64) % row;
        let part = ((row - within).min((count - done) as u64)) as usize;
        for (sum, fold) in sums.iter_mut().zip(folds) {
            let size = fold.dtype.compute().size();
            let values = operand(shared, registers, fold.source, (place, count, size));
            let long;
            let values = if values.len() < count * size {
                long = values[..size].repeat(part);
                &long[..]
            } else {
                &values[done * size..(done + part) * size]
            };
            let next = fold_chunk(shared.wide, (fold.fold, fold.dtype), values, within);
            *sum = sum.join(fold.fold, next);
        }
        done += part;
        if within + part as u64 == row && row <= PIECE {
            let index = (place + done as u64) / row - 1;
            for (sum, fold) in sums.iter().zip(folds) {
                store(shared, fold.output, index, *sum);
            }
            *sums = fresh(shared);
        }
    }
}

/// Copies the inputs that cannot be read in place into registers: those that an output
/// overwrites, and those that repeat within the chunk.
fn load(shared: &Shared<'_>, registers: &mut [Box<[u64]>], place: u64, count: usize) {
    for (index, input) in shared.inputs.iter().enumerate() {
        let used = shared.program.uses_input[index];
        if !used || in_place(input, place, count) {
            continue;
        }
        let register = &mut registers[shared.program.registers + index];
        let bytes: &mut [u8] = cast_slice_mut(register);
        let (mut at, mut done) = ((place % input.len) as usize, 0);
        while done < count {
            let part = (input.len as usize - at).min(count - done);
            // SAFETY: `at + part` is at most the input's length, whose memory is readable
            // (contract of `submit`, 1); the register is memory of this thread.
            let from = unsafe {
                std::slice::from_raw_parts(
                    input.address.wrapping_add(at * input.size),
                    part * input.size,
                )
            };
            bytes[done * input.size..(done + part) * input.size].copy_from_slice(from);
            (at, done) = (0, done + part);
        }
    }
}

fn in_place(input: &Input, place: u64, count: usize) -> bool {
    let whole = input.len == 1 || place % input.len + count as u64 <= input.len;
    whole && !input.aliased
}

/// An operand's `count` values of `size` bytes for the chunk; of what is the same at every place
/// one.
fn operand<'a>(
    shared: &'a Shared<'_>,
    registers: &'a [Box<[u64]>],
    source: Source,
    (place, count, size): (u64, usize, usize),
) -> &'a [u8] {
    let register = match source {
        Source::Register(index) => index,
        // The low bytes of the bits, which come first (`Cpu` is for little-endian machines).
        Source::Param(index) => return &cast_slice(&shared.params[index..=index])[..size],
        Source::Input(index) => {
            let input = &shared.inputs[index];
            if in_place(input, place, count) {
                let one = input.len == 1;
                let (at, count) = if one { (0, 1) } else { ((place % input.len) as usize, count) };
                // SAFETY: the places lie within the input, whose memory is readable and not
                // written meanwhile (contract of `submit`, 1 and 2; outputs that overlap are
                // copied).
                return unsafe {
                    std::slice::from_raw_parts(
                        input.address.wrapping_add(at * input.size),
                        count * input.size,
                    )
                };
            }
            shared.program.registers + index
        }
    };
    let bytes: &[u8] = cast_slice(&registers[register]);
    &bytes[..count * size]
}

fn run_step(
    shared: &Shared<'_>,
    registers: &mut [Box<[u64]>],
    step: &Step,
    (place, count): (u64, usize),
) {
    match step.target {
        Target::Register(index) => {
            // Taken out for the time of the step; no operand is the target.
            let mut register = std::mem::take(&mut registers[index]);
            let bytes: &mut [u8] = cast_slice_mut(&mut register);
            let size = step.result.compute().size();
            compute(shared, registers, (step, place, count), &mut bytes[..count * size]);
            registers[index] = register;
        }
        Target::Output(index) => {
            let memory = shared.outputs[index];
            // SAFETY: the places lie within the output (contract of `submit`, 4); this task alone
            // writes them, and inputs that overlap were copied before.
            let out = unsafe {
                std::slice::from_raw_parts_mut(
                    memory.address.wrapping_add(place as usize * memory.size),
                    count * memory.size,
                )
            };
            compute(shared, registers, (step, place, count), out);
        }
    }
}

fn compute(
    shared: &Shared<'_>,
    registers: &[Box<[u64]>],
    (step, place, count): (&Step, u64, usize),
    out: &mut [u8],
) {
    let size = step.operand.compute().size();
    let values =
        |source: Source, size: usize| operand(shared, registers, source, (place, count, size));
    let (wide, dtype) = (shared.wide, step.operand);
    match step.action {
        Action::Index => {
            for (at, out) in cast_slice_mut::<u8, u64>(out).iter_mut().enumerate() {
                *out = place + at as u64;
            }
        }
        Action::Random { key, stream } => {
            let key = shared.params[key];
            philox::fill(cast_slice_mut(out), place, key, stream);
        }
        Action::Unary(op, a) => ops::unary(wide, op, dtype, values(a, size), out),
        Action::Binary(op, a, b) => {
            ops::binary(wide, op, dtype, [values(a, size), values(b, size)], out);
        }
        Action::Pair(both, a, params) => {
            let params = params.map(|index| shared.params[index]);
            ops::pair(wide, (both, dtype), params, values(a, size), out);
        }
        Action::Select(c, a, b) => {
            ops::select_by(wide, dtype, values(c, 1), [values(a, size), values(b, size)], out);
        }
        Action::Cast(a) => ops::cast(wide, dtype, step.result, values(a, size), out),
        Action::Widen(a) => {
            let from = values(a, 2);
            for out in out.chunks_mut(from.len() * 2) {
                widen(dtype, &from[..out.len() / 2], out);
            }
        }
        Action::Narrow(a) => {
            let from = values(a, 4);
            for out in out.chunks_mut(from.len() / 2) {
                narrow(step.result, &from[..out.len() * 2], out);
            }
        }
        Action::Copy(a) => {
            let from = values(a, size);
            for out in out.chunks_mut(from.len()) {
                out.copy_from_slice(&from[..out.len()]);
            }
        }
    }
}

fn widen(dtype: Dtype, from: &[u8], out: &mut [u8]) {
    let out: &mut [f32] = cast_slice_mut(out);
    if dtype == Dtype::F16 {
        cast_slice::<u8, half::f16>(from).convert_to_f32_slice(out);
        return;
    }
    for (out, from) in out.iter_mut().zip(cast_slice::<u8, u16>(from)) {
        *out = f32::from_bits(u32::from(*from) << 16);
    }
}

fn narrow(dtype: Dtype, from: &[u8], out: &mut [u8]) {
    let from: &[f32] = cast_slice(from);
    if dtype == Dtype::F16 {
        cast_slice_mut::<u8, half::f16>(out).convert_from_f32_slice(from);
        return;
    }
    for (out, from) in cast_slice_mut::<u8, half::bf16>(out).iter_mut().zip(from) {
        *out = half::bf16::from_f32(*from);
    }
}
