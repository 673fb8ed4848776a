//! Kernels, dispatches and allocations of the Vulkan device.

use std::hint::black_box;
use std::time::Instant;

use aquifer::prelude::*;

use crate::plain::Dispatches;
use crate::{Fault, median};

const ROUNDS: usize = 15;

pub(crate) fn run(index: usize) -> Result<(), Fault> {
    let device = Device::named(&format!("vulkan:{index}"))?;
    println!("{device}");
    kernels(&device)?;
    dispatches(&device, index)?;
    drop(device);
    // Both devices fresh, so that the pools are in one state.
    allocations(&Device::named(&format!("vulkan:{index}"))?)
}

fn verdict(what: &str, value: f64, bound: f64, at_most: bool) {
    let holds = if at_most { value <= bound } else { value >= bound };
    let (word, sign) =
        (if holds { "ok" } else { "NOT REACHED" }, if at_most { "at most" } else { "at least" });
    println!("{what:<58}{value:>9.3}  {sign} {bound:.2}  {word}");
}

/// Seconds of one turn, of `turns` that are waited for together.
fn seconds(device: &Device, turns: usize, turn: &mut impl FnMut() -> Result<()>) -> Result<f64> {
    device.synchronize()?;
    let start = Instant::now();
    for _ in 0..turns {
        turn()?;
    }
    device.synchronize()?;
    Ok(start.elapsed().as_secs_f64() / turns as f64)
}

/// Kernels over private arrays against a copy of as many bytes.
fn kernels(device: &Device) -> Result<(), Fault> {
    // 1 GiB of f32, or what a small device holds well.
    let bytes = (1u64 << 30).min(device.memory().memory_limit / 8) as usize / 4 * 4;
    let turns = if bytes < 1 << 29 { 1 } else { 10 };
    let a = Array::<f32, Private>::rand(device, [bytes / 4])?;
    let target = a.copy()?;
    let halves = Array::<f16, Private>::rand(device, [bytes / 4])?;
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); 6];
    for _ in 0..if turns == 1 { 3 } else { ROUNDS } {
        let mut works: [&mut dyn FnMut() -> Result<()>; 6] = [
            &mut || target.copy_from(&a),
            &mut || a.map(|x| x.sin()).map(drop),
            &mut || a.map(|x| x * 2.0).map(drop),
            &mut || a.sum().map(drop),
            &mut || halves.map(|x| x * f16::from_f32(2.0)).map(drop),
            &mut || Array::<f32, Private>::rand(device, [bytes / 4]).map(drop),
        ];
        for (work, times) in works.iter_mut().zip(&mut times) {
            times.push(seconds(device, turns, work)?);
        }
    }
    let times: Vec<f64> = times.into_iter().map(median).collect();
    let rate = |bytes: f64, seconds: f64| bytes / seconds / 1e12;
    let gib = bytes as f64;
    println!("{:<58}{:>9.3} TB/s", "copy, read + write", rate(2.0 * gib, times[0]));
    println!("{:<58}{:>9.3} TB/s", "map sin, read + write", rate(2.0 * gib, times[1]));
    verdict("map sin / copy, over 1 GiB", times[0] / times[1], 0.85, false);
    verdict("map * 2 / copy", times[0] / times[2], 0.85, false);
    println!("{:<58}{:>9.3} TB/s", "sum, read", rate(gib, times[3]));
    println!("{:<58}{:>9.3} TB/s", "map * 2 of f16, read + write", rate(gib, times[4]));
    println!("{:<58}{:>9.3} TB/s", "rand, written", rate(gib, times[5]));
    Ok(())
}

/// Dependent dispatches, ours and plain Vulkan's, in turn.
fn dispatches(device: &Device, index: usize) -> Result<(), Fault> {
    const COUNT: u32 = 1000;
    let plain = Dispatches::new(index, 1024)?;
    let a = Array::<f32, Private>::zeros(device, [1024])?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..2 * ROUNDS {
        device.synchronize()?;
        let start = Instant::now();
        for _ in 0..COUNT {
            a.assign(|x| x + 1.0)?;
        }
        device.synchronize()?;
        ours.push(start.elapsed().as_secs_f64());
        theirs.push(plain.run(COUNT, 4)?.as_secs_f64());
    }
    let (ours, theirs) = (median(ours), median(theirs));
    println!("{:<58}{:>9.3} ms", "1,000 small dependent dispatches", ours * 1e3);
    println!("{:<58}{:>9.3} ms", "the same in plain Vulkan", theirs * 1e3);
    verdict("ours / plain", ours / theirs, 1.3, true);
    Ok(())
}

/// Allocate and free of a cached size, here and on the CPU device, in turn.
fn allocations(device: &Device) -> Result<(), Fault> {
    const COUNT: u32 = 20_000;
    let cpu = Device::cpu()?;
    for size in [256u64, 4096, 1 << 20] {
        let kept = (
            device.allocate_raw(size, Storage::Private)?,
            cpu.allocate_raw(size, Storage::Private)?,
        );
        let nanoseconds = |device: &Device| -> Result<f64> {
            let start = Instant::now();
            for _ in 0..COUNT {
                drop(black_box(device.allocate_raw(size, Storage::Private)?));
            }
            Ok(start.elapsed().as_nanos() as f64 / f64::from(COUNT))
        };
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..2 * ROUNDS {
            ours.push(nanoseconds(device)?);
            theirs.push(nanoseconds(&cpu)?);
        }
        let (ours, theirs) = (median(ours), median(theirs));
        println!("allocate + free of {size} B: {ours:.1} ns, on the CPU device {theirs:.1} ns");
        verdict("Vulkan / CPU", ours / theirs, 1.1, true);
        drop(kept);
    }
    Ok(())
}
