//! Call stacks of allocations, each resolved once.

use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt::Write;
use std::path::Path;

/// Frames of the program's that are kept of a stack, the innermost first.
const MOST_FRAMES: usize = 24;
/// Frames that are looked at: those of this library come first.
const MOST_LOOKED_AT: usize = 64;

/// Stacks by the addresses of their frames.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    known: HashMap<Vec<usize>, u32>,
}

impl Stacks {
    /// The number of the calling thread's stack, from 1; its text, if it is new.
    pub(crate) fn current(&mut self) -> (u32, Option<String>) {
        let mut frames = Vec::with_capacity(MOST_LOOKED_AT);
        backtrace::trace(|frame| {
            frames.push(frame.ip() as usize);
            frames.len() < MOST_LOOKED_AT
        });
        if let Some(&id) = self.known.get(&frames) {
            return (id, None);
        }
        let id = self.known.len() as u32 + 1;
        let text = resolve(&frames);
        self.known.insert(frames, id);
        (id, Some(text))
    }
}

/// The program's frames, a line each: what is below the last of this library's.
fn resolve(frames: &[usize]) -> String {
    let mut lines: Vec<(bool, String)> = Vec::new();
    for &address in frames {
        backtrace::resolve(address as *mut c_void, |symbol| {
            let name = symbol.name().map(|name| format!("{name:#}")).unwrap_or_default();
            let file = symbol.filename().unwrap_or(Path::new(""));
            let mut line = if name.is_empty() { format!("{address:#x}") } else { name.clone() };
            if let (Some(file), Some(number)) = (file.file_name(), symbol.lineno()) {
                let _ = write!(line, " ({}:{number})", file.to_string_lossy());
            }
            lines.push((is_ours(&name, file), line));
        });
    }
    let program = lines.iter().position(|(ours, _)| *ours).map_or(0, |first_of_ours| {
        let run = lines[first_of_ours..].iter().take_while(|(ours, line)| *ours || is_glue(line));
        first_of_ours + run.count()
    });
    let program = lines.iter().skip(program).filter(|(_, line)| !is_glue(line));
    let text: Vec<&str> = program.map(|(_, line)| line.as_str()).take(MOST_FRAMES).collect();
    text.join("\n")
}

/// Whether a frame is of this library.
fn is_ours(name: &str, file: &Path) -> bool {
    let of = |krate: &str| name.starts_with(krate) || name.starts_with(&format!("<{krate}"));
    // The command's crate has the library's name: files tell the two apart.
    let here = file.starts_with(concat!(env!("CARGO_MANIFEST_DIR"), "/src"));
    here || of("aquifer_core::") || of("aquifer_backend::")
}

/// Whether a frame only passes a call on.
fn is_glue(line: &str) -> bool {
    [
        "core::",
        "<core::",
        "alloc::",
        "<alloc::",
        "std::",
        "<std::",
        "backtrace::",
        "__rust",
        "<fn(",
        "<F ",
    ]
    .iter()
    .any(|start| line.starts_with(start))
}
