//! Traces from files: our own, and those that other systems record.

mod csv;
mod events;
mod pickle;
mod pytorch;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use aquifer::core::trace::{Trace, format};

use crate::Failure;

/// Bytes that a file may have, unpacked: above that it is an error, not the end of memory.
const MOST_BYTES: u64 = 1 << 30;

/// A trace that was read.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) trace: Trace,
    /// What the file is, for people.
    pub(crate) format: &'static str,
    /// What is to be said about it.
    pub(crate) notes: Vec<String>,
}

/// Reads a trace of any known kind; which one is seen by its first bytes.
pub(crate) fn load(path: &Path, gpu: Option<usize>) -> Result<Loaded, Failure> {
    let wrong = |reason: String| Failure::File(format!("{}: {reason}", path.display()));
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
    file.take(MOST_BYTES).read_to_end(&mut bytes).map_err(|error| wrong(error.to_string()))?;
    if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut unpacked = Vec::new();
        let unpacker = flate2::read::MultiGzDecoder::new(&bytes[..]);
        let read = unpacker.take(MOST_BYTES).read_to_end(&mut unpacked);
        read.map_err(|error| wrong(format!("as gzip: {error}")))?;
        bytes = unpacked;
    }
    if bytes.len() as u64 >= MOST_BYTES {
        return Err(wrong("more than 1 GiB unpacked: record a shorter part".to_owned()));
    }
    parse(&bytes, gpu).map_err(wrong)
}

/// The same from bytes.
pub(crate) fn parse(bytes: &[u8], gpu: Option<usize>) -> Result<Loaded, String> {
    let loaded = |trace, format| Loaded { trace, format, notes: Vec::new() };
    if bytes.starts_with(&format::MAGIC) {
        return own(bytes);
    }
    // Pickles from protocol 2 on begin with its number; older ones with a dictionary's first byte.
    if let Some(0x80 | b'(' | b'}') = bytes.first() {
        let (trace, notes) = pytorch::read(bytes, gpu)?;
        return Ok(Loaded { trace, format: "PyTorch memory snapshot", notes });
    }
    let text = std::str::from_utf8(bytes).map_err(|_| unknown())?;
    let header = text.lines().next().unwrap_or_default().trim().to_ascii_lowercase();
    let header: Vec<&str> = header.split(',').map(str::trim).collect();
    match header[..] {
        ["time_us", "action", "id", "size", "stream"] => {
            csv::recorded(text).map(|trace| loaded(trace, "recorded CSV"))
        }
        ["thread", "time", "action", "pointer", "size", "stream"] => {
            csv::rmm(text).map(|trace| loaded(trace, "RMM log"))
        }
        ["id", "lower", "upper", "size"] | ["id", "lower", "upper", "size", "offset"] => {
            csv::minimalloc(text).map(|trace| loaded(trace, "MiniMalloc CSV"))
        }
        _ => Err(unknown()),
    }
}

fn own(bytes: &[u8]) -> Result<Loaded, String> {
    let decoded = format::decode(bytes).map_err(|error| error.to_string())?;
    let mut notes = Vec::new();
    if decoded.torn > 0 {
        notes.push(format!(
            "the last {} bytes are not a whole event: the program ended while it wrote",
            decoded.torn
        ));
    }
    if decoded.unknown > 0 {
        notes.push(format!(
            "{} events are of kinds that only a newer version knows",
            decoded.unknown
        ));
    }
    Ok(Loaded { trace: decoded.trace, format: "aquifer trace", notes })
}

fn unknown() -> String {
    "not a trace: known are aquifer's own (AQUIFER_TRACE=path), PyTorch memory snapshots (.pickle), \
     RMM logs, MiniMalloc's CSV, and recorded CSV; any of them may be packed with gzip"
        .to_owned()
}

#[cfg(test)]
#[path = "import_tests.rs"]
mod tests;
