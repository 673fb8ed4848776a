//! Traces as lines of text.

use std::collections::HashMap;
use std::str::FromStr;

use aquifer::core::trace::Trace;
use aquifer::core::{Action, parse_csv};

use super::events::{Builder, Foreign, UNIT, What};
use crate::table::excerpt;

/// How far below the numbers of segments those of allocations without one lie.
const BELOW_SEGMENTS: u64 = 1 << 62;

/// The project's own recordings of PyTorch programs: `time_us,action,id,size,stream`.
pub(crate) fn recorded(text: &str) -> Result<Trace, String> {
    let events = parse_csv(text).map_err(|error| error.to_string())?;
    // Their segments have no addresses: numbers above those of allocations stand for them, so that
    // no allocation lies in one.
    let mut segments: HashMap<(u64, u32), Vec<u64>> = HashMap::new();
    let mut next = 1 << 63;
    let mut foreign = Vec::with_capacity(events.len());
    for event in events {
        let (size, stream) = (event.size, event.stream);
        next += 1;
        // Several may have been made before the recording began; all of them have number 0.
        let address = if event.id == 0 { next - BELOW_SEGMENTS } else { event.id };
        let what = match event.action {
            Action::Allocate => What::Allocate { address, size, site: 0, label: 0 },
            Action::Free => What::Free { address, size },
            Action::Obtain => {
                segments.entry((size, stream)).or_default().push(next);
                What::Obtain { address: next, size }
            }
            Action::GiveBack => {
                let known = segments.get_mut(&(size, stream)).and_then(Vec::pop);
                What::GiveBack { address: known.unwrap_or(next), size }
            }
        };
        let time_ns = event.time_us.saturating_mul(1000);
        foreign.push(Foreign { time_ns, thread: 0, stream: small_stream(stream)?, what });
    }
    let mut builder = Builder::new("recorded CSV", UNIT);
    builder.add(&foreign, &[]);
    Ok(builder.finish())
}

/// Queues are numbered from 0, and a replay keeps memory for each.
fn small_stream(stream: u32) -> Result<u32, String> {
    if stream < 1 << 16 { Ok(stream) } else { Err(format!("stream {stream} is above 65,535")) }
}

/// Numbers in place of names, in the order in which they appear.
#[derive(Default)]
struct Numbers<'t>(HashMap<&'t str, u32>);

impl<'t> Numbers<'t> {
    fn of(&mut self, name: &'t str) -> u32 {
        let next = self.0.len() as u32;
        *self.0.entry(name).or_insert(next)
    }
}

/// The fields of every line but the first, with its number.
fn rows(text: &str) -> impl Iterator<Item = (usize, Vec<&str>)> {
    let lines = text.lines().enumerate().skip(1);
    lines
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(index, line)| (index + 1, line.split(',').map(str::trim).collect()))
}

fn number<T: FromStr>(line: usize, what: &str, field: &str) -> Result<T, String> {
    field.parse().map_err(|_| format!("line {line}: {what} '{}' is not a number", excerpt(field)))
}

/// A number in hexadecimal with `0x`, or in decimal.
fn address(line: usize, field: &str) -> Result<u64, String> {
    let parsed = match field.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None if field == "(nil)" => Some(0),
        None => field.parse().ok(),
    };
    parsed.ok_or_else(|| format!("line {line}: pointer '{}' is not an address", excerpt(field)))
}

/// The log of RMM's logging adaptor: `Thread,Time,Action,Pointer,Size,Stream`.
pub(crate) fn rmm(text: &str) -> Result<Trace, String> {
    let (mut threads, mut streams) = (Numbers::default(), Numbers::default());
    let mut clock = Clock::default();
    let mut foreign = Vec::new();
    for (line, fields) in rows(text) {
        let [thread, time, action, pointer, size, stream] = fields[..] else {
            return Err(format!("line {line}: {} fields, not six", fields.len()));
        };
        let (address, size) = (address(line, pointer)?, number(line, "size", size)?);
        let what = match action {
            "allocate" => What::Allocate { address, size, site: 0, label: 0 },
            "free" | "deallocate" => What::Free { address, size },
            "allocate failure" => What::Refuse { size },
            _ => {
                let action = excerpt(action);
                return Err(format!("line {line}: action '{action}' is not known"));
            }
        };
        let stream = small_stream(streams.of(stream))?;
        let time_ns = clock.since_start(line, time)?;
        foreign.push(Foreign { time_ns, thread: threads.of(thread), stream, what });
    }
    // RMM aligns to 256 bytes before it logs.
    let mut builder = Builder::new("RMM", 256);
    builder.add(&foreign, &[]);
    Ok(builder.finish())
}

/// Times of day, or seconds, as nanoseconds since the first.
#[derive(Default)]
struct Clock {
    first: Option<u64>,
    /// The last time as it was written.
    last: u64,
    /// Days that have passed since.
    days: u64,
    since: u64,
}

impl Clock {
    fn since_start(&mut self, line: usize, text: &str) -> Result<u64, String> {
        const DAY: u64 = 24 * 3600 * 1_000_000_000;
        let time = time_ns(text).ok_or_else(|| {
            let text = excerpt(text);
            format!("line {line}: '{text}' is not a time (HH:MM:SS.microseconds)")
        })?;
        // Past midnight a time of day begins again; a little back is another thread's.
        if text.contains(':') && self.last.saturating_sub(time) > DAY / 2 {
            self.days = self.days.saturating_add(DAY);
        }
        self.last = time;
        let time = time.saturating_add(self.days);
        let first = *self.first.get_or_insert(time);
        self.since = self.since.max(time.saturating_sub(first));
        Ok(self.since)
    }
}

/// `HH:MM:SS.ffffff`, `HH:MM:SS:ffffff` or seconds, in nanoseconds.
fn time_ns(text: &str) -> Option<u64> {
    let nanoseconds = |digits: &str| -> Option<u64> {
        let digits = digits.get(..digits.len().min(9))?;
        let value: u64 = if digits.is_empty() { 0 } else { digits.parse().ok()? };
        Some(value * 10u64.pow(9 - digits.len() as u32))
    };
    let parts: Vec<&str> = text.split(':').collect();
    let (seconds, fraction) = match parts[..] {
        [hours, minutes, seconds] | [hours, minutes, seconds, _] => {
            let (whole, point) = seconds.split_once('.').unwrap_or((seconds, ""));
            let fraction = if parts.len() == 4 { parts[3] } else { point };
            let hours: u64 = hours.parse().ok()?;
            let minutes: u64 = minutes.parse().ok()?;
            let whole: u64 = whole.parse().ok()?;
            if hours > 23 || minutes > 59 || whole > 60 {
                return None;
            }
            (hours * 3600 + minutes * 60 + whole, fraction)
        }
        [seconds] => {
            let (whole, fraction) = seconds.split_once('.').unwrap_or((seconds, ""));
            (whole.parse().ok()?, fraction)
        }
        _ => return None,
    };
    seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds(fraction)?)
}

/// MiniMalloc's problems: each buffer lives from `lower` to before `upper`.
pub(crate) fn minimalloc(text: &str) -> Result<Trace, String> {
    let mut foreign = Vec::new();
    let mut end = 0u64;
    for (line, fields) in rows(text) {
        let (lower, upper, size, offset) = match fields[..] {
            [_, lower, upper, size] => (lower, upper, size, None),
            [_, lower, upper, size, offset] => (lower, upper, size, Some(offset)),
            _ => return Err(format!("line {line}: {} fields, not four or five", fields.len())),
        };
        let (lower, upper): (u64, u64) =
            (number(line, "lower", lower)?, number(line, "upper", upper)?);
        let size: u64 = number(line, "size", size)?;
        if lower >= upper {
            return Err(format!("line {line}: lives from {lower} to {upper}, which is no time"));
        }
        // Without offsets the lines number the buffers; with them they lie in one block.
        let address = match offset {
            Some(offset) => {
                let offset: u64 = number(line, "offset", offset)?;
                end = end.max(offset.saturating_add(size));
                offset
            }
            None => line as u64,
        };
        let event = |time: u64, what| Foreign {
            time_ns: time.saturating_mul(1000),
            thread: 0,
            stream: 0,
            what,
        };
        foreign.push(event(lower, What::Allocate { address, size, site: 0, label: 0 }));
        foreign.push(event(upper, What::Free { address, size }));
    }
    // What ends at a time makes room for what begins then.
    foreign.sort_by_key(|event| (event.time_ns, matches!(event.what, What::Allocate { .. })));
    let mut builder = Builder::new("MiniMalloc", 1);
    let block = What::Obtain { address: 0, size: end };
    let block = Foreign { time_ns: 0, thread: 0, stream: 0, what: block };
    let before = if end > 0 { vec![block] } else { Vec::new() };
    builder.add(&foreign, &before);
    Ok(builder.finish())
}
