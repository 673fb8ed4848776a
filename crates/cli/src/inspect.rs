//! `aquifer inspect`: what is in a checkpoint.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use aquifer::{Checkpoint, Device, format_bytes};
use indicatif::{ProgressBar, ProgressStyle};

use crate::json::{DeviceName, Inspection, TensorRow, Totals};
use crate::stats::{self, Number};
use crate::table::{Side, Table, bold, printable};
use crate::{Failure, OutputOptions};

pub(crate) fn run(file: &Path, options: &OutputOptions) -> Result<(), Failure> {
    let device = options.open()?;
    let inspection = inspect(&device, file)?;
    let mut out = std::io::stdout().lock();
    if options.json {
        serde_json::to_writer_pretty(&mut out, &inspection)?;
        writeln!(out)?;
    } else {
        print(&inspection, &device, &mut out)?;
    }
    out.flush()?;
    Ok(())
}

/// Maps the file, computes the statistics of every tensor, and takes the figures while the file
/// is still mapped.
pub(crate) fn inspect(device: &Device, file: &Path) -> Result<Inspection, Failure> {
    let start = Instant::now();
    let checkpoint = Checkpoint::open(device, file)?;
    let bytes: u64 = checkpoint.tensors().map(|tensor| tensor.size()).sum();
    // Hidden where standard error is not a terminal.
    let style = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {wide_msg}");
    let progress =
        ProgressBar::new(bytes).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    progress.enable_steady_tick(Duration::from_millis(200));
    let mut tensors = Vec::with_capacity(checkpoint.tensors().len());
    let mut parameters = 0;
    for tensor in checkpoint.tensors() {
        progress.set_message(printable(tensor.name()));
        let stats = stats::of(&tensor).inspect_err(|_| progress.finish_and_clear())?;
        tensors.push(TensorRow {
            name: tensor.name().to_owned(),
            dtype: tensor.dtype().name(),
            shape: tensor.shape().to_vec(),
            bytes: tensor.size(),
            origin: tensor.origin().to_string(),
            stats,
        });
        parameters += tensor.len() as u64;
        progress.inc(tensor.size());
    }
    progress.finish_and_clear();
    let totals = Totals {
        tensors: tensors.len(),
        parameters,
        bytes,
        seconds: start.elapsed().as_secs_f64(),
    };
    let memory = device.memory();
    Ok(Inspection { device: DeviceName::of(device), tensors, totals, memory })
}

pub(crate) fn print(
    inspection: &Inspection,
    device: &Device,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let mut table = Table::new(&[
        ("tensor", Side::Left),
        ("dtype", Side::Left),
        ("shape", Side::Left),
        ("size", Side::Right),
        ("min", Side::Right),
        ("max", Side::Right),
        ("mean", Side::Right),
        ("std", Side::Right),
        ("nan", Side::Right),
        ("inf", Side::Right),
        ("zero", Side::Right),
        ("origin", Side::Left),
    ]);
    for tensor in &inspection.tensors {
        let stats = &tensor.stats;
        let count = |value: Option<u64>| value.map_or("-".to_owned(), |value| value.to_string());
        let float = |value: Option<f64>| value.map_or("-".to_owned(), significant);
        let number = |value: Option<Number>| match value {
            Some(Number::Float(value)) => significant(value),
            Some(Number::Signed(value)) => value.to_string(),
            Some(Number::Unsigned(value)) => value.to_string(),
            None => "-".to_owned(),
        };
        table.row(vec![
            printable(&tensor.name),
            tensor.dtype.to_owned(),
            format!("{:?}", tensor.shape),
            format_bytes(tensor.bytes),
            number(stats.min),
            number(stats.max),
            float(stats.mean),
            float(stats.std),
            count(stats.nan),
            count(stats.inf),
            count(stats.zero),
            tensor.origin.clone(),
        ]);
    }
    table.print(out)?;
    let totals = &inspection.totals;
    writeln!(
        out,
        "\n{} tensors, {} parameters, {} in {:.2} s on {device}\n",
        totals.tensors,
        totals.parameters,
        format_bytes(totals.bytes),
        totals.seconds
    )?;
    writeln!(out, "{}\n{}", bold("memory"), inspection.memory)?;
    Ok(())
}

/// Six significant digits, without needless zeros.
fn significant(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let size = value.abs();
    if !(1e-4..1e6).contains(&size) {
        return format!("{value:.4e}");
    }
    let digits = (5 - size.log10().floor() as i32).max(0) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::significant;

    #[test]
    fn numbers_have_six_significant_digits() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (-0.123_456_789, "-0.123457"),
            (123_456.7, "123457"),
            (100_000.0, "100000"),
            (1.5e-7, "1.5000e-7"),
            (3e38, "3.0000e38"),
        ] {
            assert_eq!(significant(value), text);
        }
    }
}
