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
    /// Stacks that have not been resolved yet: that takes milliseconds, and can wait.
    unresolved: Vec<(u32, Vec<usize>)>,
}

impl Stacks {
    /// The number of the calling thread's stack, from 1.
    pub(crate) fn current(&mut self) -> u32 {
        let mut frames = Vec::with_capacity(MOST_LOOKED_AT);
        backtrace::trace(|frame| {
            frames.push(frame.ip() as usize);
            frames.len() < MOST_LOOKED_AT
        });
        if let Some(&id) = self.known.get(&frames) {
            return id;
        }
        let id = self.known.len() as u32 + 1;
        self.unresolved.push((id, frames.clone()));
        self.known.insert(frames, id);
        id
    }

    /// Takes the stacks that are new.
    pub(crate) fn take_unresolved(&mut self) -> Vec<(u32, Vec<usize>)> {
        std::mem::take(&mut self.unresolved)
    }
}

/// The program's frames, a line each: what is below the last of this library's.
pub(crate) fn resolve(frames: &[usize]) -> String {
    let mut lines: Vec<(Whose, String)> = Vec::new();
    for &address in frames {
        backtrace::resolve(address as *mut c_void, |symbol| {
            let name = symbol.name().map(|name| format!("{name:#}")).unwrap_or_default();
            let file = symbol.filename().unwrap_or(Path::new(""));
            let mut line = if name.is_empty() { format!("{address:#x}") } else { name.clone() };
            if let (Some(file), Some(number)) = (file.file_name(), symbol.lineno()) {
                let _ = write!(line, " ({}:{number})", file.to_string_lossy());
            }
            lines.push((whose(&name, file), line));
        });
    }
    let ours = lines.iter().position(|line| line.0 == Whose::Ours).unwrap_or(0);
    let program = lines[ours..].iter().skip_while(|line| line.0 != Whose::Program);
    let program = program.filter(|line| line.0 == Whose::Program);
    let text: Vec<&str> = program.map(|(_, line)| line.as_str()).take(MOST_FRAMES).collect();
    text.join("\n")
}

/// Whose a frame is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// This library's.
    Ours,
    /// The standard library's: it only passes calls on.
    Standard,
    Program,
}

fn whose(name: &str, file: &Path) -> Whose {
    // By files: names of what was inlined have no path, and the command's crate has our name.
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    if [here, aquifer_core::SOURCES, aquifer_backend::SOURCES].iter().any(|of| file.starts_with(of))
    {
        return Whose::Ours;
    }
    // Without debug information there are only names.
    let ours = ["aquifer", "<aquifer", "backtrace::", "<backtrace"];
    if file.as_os_str().is_empty() && ours.iter().any(|start| name.starts_with(start)) {
        return Whose::Ours;
    }
    let standard =
        ["core::", "<core::", "alloc::", "<alloc::", "std::", "<std::", "__rust", "<fn("];
    if file.starts_with("/rustc") || standard.iter().any(|start| name.starts_with(start)) {
        return Whose::Standard;
    }
    Whose::Program
}
