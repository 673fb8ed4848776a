//! `aquifer watch`: the figures of a program that runs.

use std::fs;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aquifer::format_bytes;
use serde_json::Value;

use crate::Failure;
use crate::table::{Side, Table, bold, printable};

/// Labels that are shown.
const MOST_LABELS: usize = 20;
/// Columns of a bar.
const BAR: usize = 40;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// The program: the number of its process, or the socket that its AQUIFER_WATCH names
    program: String,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = parse_interval)]
    interval: f64,
    /// Look once
    #[arg(long)]
    once: bool,
    /// Print each look as a line of JSON
    #[arg(long)]
    json: bool,
}

fn parse_interval(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.05..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("use seconds between 0.05 and 3600".to_owned()),
    }
}

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let path = socket(&options.program).map_err(Failure::File)?;
    let failed = |error: std::io::Error| {
        let hint = match error.kind() {
            std::io::ErrorKind::PermissionDenied => "; only the program's own user may watch it",
            std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
                "; is the program running, with AQUIFER_WATCH set to this path?"
            }
            _ => "",
        };
        Failure::File(format!("{}: {error}{hint}", path.display()))
    };
    let mut stream = UnixStream::connect(&path).map_err(failed)?;
    let mut answers = BufReader::new(stream.try_clone()?);
    let mut out = std::io::stdout().lock();
    let redraw = out.is_terminal() && !options.once && !options.json;
    let mut looks = 0;
    loop {
        let mut line = String::new();
        let asked = stream.write_all(b"\n").and_then(|()| answers.read_line(&mut line));
        if asked.is_err() || line.is_empty() {
            if looks == 0 {
                let path = path.display();
                return Err(Failure::File(format!(
                    "{path}: refused: only the program's own user may watch it, at most eight at once"
                )));
            }
            if !options.json {
                writeln!(out, "the program has closed its devices")?;
            }
            return Ok(());
        }
        looks += 1;
        if options.json {
            out.write_all(line.as_bytes())?;
        } else {
            let told: Value = serde_json::from_str(&line)?;
            if redraw {
                // Home, and clear what is below.
                write!(out, "\u{1b}[H\u{1b}[J")?;
            } else if looks > 1 {
                writeln!(out)?;
            }
            print(&told, &mut out)?;
        }
        out.flush()?;
        if options.once {
            return Ok(());
        }
        std::thread::sleep(Duration::from_secs_f64(options.interval));
    }
}

/// The socket of a program: a path, or what the environment of a process says.
fn socket(program: &str) -> Result<PathBuf, String> {
    let Ok(pid) = program.parse::<u32>() else { return Ok(PathBuf::from(program)) };
    let folder = PathBuf::from(format!("/proc/{pid}"));
    let environment = fs::read(folder.join("environ")).map_err(|error| {
        let hint = match error.kind() {
            std::io::ErrorKind::PermissionDenied => "it is another user's",
            _ => "there is no such process, or no /proc here: name its socket instead",
        };
        format!("process {pid}: {hint}")
    })?;
    let variable = environment.split(|&byte| byte == 0);
    let path = variable.filter_map(|entry| entry.strip_prefix(b"AQUIFER_WATCH=")).next_back();
    let path = path.map(|path| String::from_utf8_lossy(path).replace("%p", &pid.to_string()));
    let path = path.filter(|path| !path.is_empty()).ok_or_else(|| {
        format!("process {pid} was not started with AQUIFER_WATCH=path: it cannot be watched")
    })?;
    // Relative to where that program is, not to here.
    Ok(match fs::read_link(folder.join("cwd")) {
        Ok(cwd) if Path::new(&path).is_relative() => cwd.join(path),
        _ => PathBuf::from(path),
    })
}

fn print(told: &Value, out: &mut impl Write) -> Result<(), Failure> {
    let devices = told["devices"].as_array().map_or(&[][..], Vec::as_slice);
    for (index, device) in devices.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        let text = |name: &str| printable(device[name].as_str().unwrap_or_default());
        let (pid, backend, name) = (&told["pid"], text("backend"), text("name"));
        writeln!(out, "{}", bold(&format!("process {pid} on {backend} ({name})")))?;
        print_device(device, out)?;
    }
    if devices.is_empty() {
        writeln!(out, "process {} has no device open", told["pid"])?;
    }
    Ok(())
}

fn print_device(device: &Value, out: &mut impl Write) -> Result<(), Failure> {
    let figure = |name: &str| device["memory"][name].as_u64().unwrap_or(0);
    let most = figure("peak_reserved").max(figure("peak_with_mapped")).max(1);
    for name in ["active", "mapped", "cache", "pending", "slack", "reserved", "wired"] {
        let value = figure(name);
        let filled = (u128::from(value) * BAR as u128 / u128::from(most)).min(BAR as u128) as usize;
        let bar = format!("{}{}", "█".repeat(filled), "·".repeat(BAR - filled));
        writeln!(out, "{name:<10}{:>10}  {bar}", format_bytes(value))?;
    }
    writeln!(
        out,
        "peak {}, reserved at most {}, memory limit {}, {} allocations, {} asked of the driver\n",
        format_bytes(figure("peak")),
        format_bytes(figure("peak_reserved")),
        format_bytes(figure("memory_limit")),
        figure("allocations"),
        figure("system_allocations"),
    )?;
    let mut table = Table::new(&[
        ("label", Side::Left),
        ("active", Side::Right),
        ("share", Side::Right),
        ("peak", Side::Right),
        ("live", Side::Right),
    ]);
    let rows = device["labels"].as_array().map_or(&[][..], Vec::as_slice);
    let active = figure("active").max(1) as f64;
    for row in rows.iter().take(MOST_LABELS) {
        let number = |name: &str| row[name].as_u64().unwrap_or(0);
        let name = match row["name"].as_str().unwrap_or_default() {
            "" => "(unlabelled)".to_owned(),
            name => printable(name),
        };
        table.row(vec![
            name,
            format_bytes(number("active")),
            format!("{:.1} %", number("active") as f64 / active * 100.0),
            format_bytes(number("peak")),
            number("count").to_string(),
        ]);
    }
    table.print(out)?;
    if rows.len() > MOST_LABELS {
        writeln!(out, "and {} more labels", rows.len() - MOST_LABELS)?;
    }
    Ok(())
}
