//! `aquifer view`: a trace as one page that needs nothing else.
//!
//! The one idea: the page gets the trace as columns of numbers, packed, and draws what is on its
//! screen from them: aggregates while much is in sight, every event when little is.

mod columns;

use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use aquifer::core::trace::{Event, Lifetimes, Observer, Record, Trace};
use aquifer::format_bytes;
use base64::Engine;
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::Failure;
use crate::import::load;
use crate::replay::as_played;
use columns::Columns;

const PAGE: &str = include_str!("view/page.html");
const STYLE: &str = include_str!("view/page.css");
const SCRIPT: &str = include_str!("view/page.js");
const DRAWING: &str = include_str!("view/draw.js");

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// A trace of any kind that `replay` reads
    trace: PathBuf,
    /// The page to write (default: the trace's name with .html)
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Show where aquifer would have put everything, not where the trace's own allocator did
    #[arg(long)]
    replayed: bool,
    /// The device of a PyTorch snapshot that has several
    #[arg(long, value_name = "N")]
    gpu: Option<usize>,
}

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut loaded = load(&options.trace, options.gpu)?;
    if options.replayed {
        loaded.trace = replayed(&loaded.trace);
    }
    let columns = Columns::of(&loaded.trace);
    let name = options.trace.file_name().unwrap_or_default().to_string_lossy();
    let page = page(&columns, &name, loaded.format, &loaded.notes)?;
    let output = options.output.clone().unwrap_or_else(|| options.trace.with_extension("html"));
    if output == options.trace {
        let path = output.display();
        return Err(Failure::File(format!("{path}: the page would replace the trace: use -o")));
    }
    std::fs::write(&output, &page)
        .map_err(|error| Failure::File(format!("{}: {error}", output.display())))?;
    for note in &loaded.notes {
        eprintln!("aquifer: note: {note}");
    }
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{}: {} events, {} allocations, peak {}; {}",
        output.display(),
        loaded.trace.records.len(),
        columns.allocations(),
        format_bytes(columns.peak()),
        format_bytes(page.len() as u64),
    )?;
    Ok(())
}

/// Puts the parts of a page together.
fn page(columns: &Columns, name: &str, format: &str, notes: &[String]) -> Result<String, Failure> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    let (bytes, layout) = columns.laid_out();
    packer.write_all(&bytes)?;
    let packed = base64::engine::general_purpose::STANDARD.encode(packer.finish()?);
    let meta = serde_json::to_string(&columns.meta(layout, name, format, notes))?;
    // Within a script element nothing may look like its end.
    let meta = meta.replace('<', "\\u003c");
    let mut page = String::with_capacity(packed.len() + meta.len() + (1 << 16));
    let mut rest = PAGE;
    let parts = [
        ("@STYLE@", STYLE),
        ("@META@", &meta),
        ("@DATA@", &packed),
        ("@DRAWING@", DRAWING),
        ("@SCRIPT@", SCRIPT),
    ];
    for (mark, text) in parts {
        let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
        page.push_str(before);
        page.push_str(text);
        rest = after;
    }
    page.push_str(rest);
    Ok(page)
}

/// Keeps what a pool tells until it is fetched.
#[derive(Clone, Debug, Default)]
struct Told(Arc<Mutex<Vec<Event>>>);

impl Observer for Told {
    fn record(&mut self, event: &Event) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(event.clone());
    }
}

/// The trace that this library's allocator would have made of the same requests.
pub(crate) fn replayed(trace: &Trace) -> Trace {
    let Some(begin) = trace.begin() else { return trace.clone() };
    let lifetimes = Lifetimes::of(trace);
    let told = Told::default();
    let mut records: Vec<Record> = Vec::new();
    let names = trace.records.iter().filter(|record| matches!(record.event, Event::Site { .. }));
    // Names are not something that happened: they come first.
    let names = names.map(|record| Record { time_ns: 0, ..record.clone() });
    let names: Vec<Record> = names.collect();
    as_played(trace, begin).play(
        trace,
        &lifetimes,
        Some((Box::new(told.clone()), begin.clone())),
        |index, _| {
            let Record { time_ns, thread, site, .. } = trace.records[index];
            let mut events = told.0.lock().unwrap_or_else(PoisonError::into_inner);
            records.extend(events.drain(..).map(|event| Record { time_ns, thread, site, event }));
        },
    );
    let last = trace.records.last().map_or(0, |record| record.time_ns);
    let rest = told.0.lock().unwrap_or_else(PoisonError::into_inner).split_off(0);
    records.extend(rest.into_iter().map(|event| Record {
        time_ns: last,
        thread: 0,
        site: 0,
        event,
    }));
    records.splice(1.min(records.len())..1.min(records.len()), names);
    Trace { records }
}
