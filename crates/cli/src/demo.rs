//! `aquifer demo`: the main job without a file at hand.

use std::io::Write;
use std::path::PathBuf;

use aquifer::format_bytes;
use aquifer::prelude::*;

use crate::inspect::{inspect, print};
use crate::json::memory;
use crate::table::bold;
use crate::{Failure, OutputOptions, sample};

/// A file that goes when the demo ends.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // A file that is left in the system's folder for such files does no harm.
        let _ = std::fs::remove_file(&self.0);
    }
}

pub(crate) fn run(options: &OutputOptions) -> Result<(), Failure> {
    let device = options.open()?;
    let name = format!("aquifer-demo-{}.safetensors", std::process::id());
    let file = Temporary(std::env::temp_dir().join(name));
    sample::write(&device, &file.0)?;
    device.synchronize()?;
    device.clear_cache();
    device.reset_peak();
    let mut out = std::io::stdout().lock();
    if !options.json {
        let size = std::fs::metadata(&file.0)?.len();
        writeln!(out, "{}: {} written\n", file.0.display(), format_bytes(size))?;
    }
    let inspection = inspect(&device, &file.0)?;
    if options.json {
        let steps = alternate(&device, &mut std::io::sink())?;
        let document = serde_json::json!({
            "inspect": inspection,
            "alternate": steps,
            "memory": memory(&device.memory()),
        });
        serde_json::to_writer_pretty(&mut out, &document)?;
        writeln!(out)?;
        return Ok(());
    }
    print(&inspection, &device, &mut out)?;
    writeln!(out, "\n{}", bold("CPU and device in turn on one array"))?;
    alternate(&device, &mut out)?;
    writeln!(out, "\n{}\n{}", bold("memory"), device.memory())?;
    Ok(())
}

/// Rule H.5: zeros; one element written through the CPU's view; the device computes; a wrapped
/// `Vec` is changed by the device and read where it is.
fn alternate(device: &Device, out: &mut impl Write) -> Result<serde_json::Value, Failure> {
    let _label = device.label("demo");
    let used = measure(device, || {
        let array = Array::<f32>::zeros(device, [1 << 20])?;
        array.set(0, 42.0)?;
        array.assign(|x| x + 1.0)?;
        let seen = (array.get(0)?, array.get(1)?);
        let wrapped = device.wrap(vec![0.5f32; 1 << 20])?;
        let origin = wrapped.origin().to_string();
        wrapped.assign(|x| x.sin())?;
        device.synchronize()?;
        let vec = wrapped.into_vec()?;
        Ok((seen, origin, vec[0]))
    })?;
    let ((first, second), origin, sine) = &used.value;
    writeln!(out, "zeros, [0] = 42 by the CPU, + 1 by the device: [0] = {first}, [1] = {second}")?;
    writeln!(out, "a Vec of 0.5 ({origin}), sin by the device: the Vec holds {sine}")?;
    writeln!(out, "{used}")?;
    Ok(serde_json::json!({
        "first": first,
        "second": second,
        "origin": origin,
        "sine": sine,
        "seconds": used.elapsed.as_secs_f64(),
        "allocations": used.allocations,
        "allocated": used.allocated,
    }))
}
