//! Ours beside others, in one run: `cargo run --release -p aquifer-rivals -- traces|gpu`.
//!
//! `traces` replays the recorded allocation traces on a Vulkan device with real blocks, through
//! aquifer's pool, gpu-allocator and vk-mem. `gpu` measures kernels, small dispatches and cached
//! allocations of the Vulkan device against copies, plain Vulkan, and the CPU device.

mod gpu;
mod plain;
mod traces;

use std::process::ExitCode;

/// Any error, for the end of the program.
type Fault = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let index = std::env::args().nth(2).and_then(|index| index.parse().ok()).unwrap_or(0);
    let done = match std::env::args().nth(1).as_deref() {
        Some("traces") => traces::run(index),
        Some("gpu") => gpu::run(index),
        _ => {
            eprintln!("usage: aquifer-rivals traces|gpu [the place of the Vulkan device]");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("aquifer-rivals: {error}");
            ExitCode::FAILURE
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
