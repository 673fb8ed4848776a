//! `aquifer export`: a trace for other tools.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use aquifer::core::trace::{Event, Extent, Lifetimes, Place, Record, Trace};
use serde_json::{Map, Value, json};

use crate::Failure;
use crate::account::Account;
use crate::import::load;

/// What a trace is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum To {
    /// Chrome's trace events, which Perfetto opens
    Chrome,
    /// A JSON object for each event, a line each
    Jsonl,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// A trace of any kind that `replay` reads
    trace: PathBuf,
    /// The format
    #[arg(long, value_enum, default_value = "chrome")]
    to: To,
    /// The file to write (default: standard output)
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The device of a PyTorch snapshot that has several
    #[arg(long, value_name = "N")]
    gpu: Option<usize>,
}

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let loaded = load(&options.trace, options.gpu)?;
    for note in &loaded.notes {
        eprintln!("aquifer: note: {note}");
    }
    let out: Box<dyn Write> = match &options.output {
        Some(path) => {
            let file = File::create(path);
            Box::new(file.map_err(|error| Failure::File(format!("{}: {error}", path.display())))?)
        }
        None => Box::new(std::io::stdout().lock()),
    };
    let mut out = BufWriter::new(out);
    match options.to {
        To::Chrome => chrome(&loaded.trace, &mut out)?,
        To::Jsonl => lines(&loaded.trace, &mut out)?,
    }
    out.flush()?;
    Ok(())
}

/// Writes the elements of `traceEvents`, with commas between them.
struct Elements<'o> {
    out: &'o mut dyn Write,
    first: bool,
}

impl Elements<'_> {
    fn push(&mut self, element: &Value) -> std::io::Result<()> {
        if !std::mem::replace(&mut self.first, false) {
            self.out.write_all(b",\n")?;
        }
        serde_json::to_writer(&mut *self.out, element)?;
        Ok(())
    }
}

fn microseconds(record: &Record) -> f64 {
    record.time_ns as f64 / 1000.0
}

/// Counters of what is held, an asynchronous span for each allocation, a slice for each wait.
fn chrome(trace: &Trace, out: &mut dyn Write) -> Result<(), Failure> {
    let (lifetimes, labels, sites) = (Lifetimes::of(trace), trace.labels(), trace.sites());
    let pid = trace.begin().map_or(0, |begin| begin.pid);
    out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")?;
    let mut elements = Elements { out: &mut *out, first: true };
    if let Some(begin) = trace.begin() {
        let name = if begin.program.is_empty() { &begin.source } else { &begin.program };
        elements.push(&json!({
            "ph": "M", "name": "process_name", "pid": pid, "args": { "name": name },
        }))?;
    }
    let mut account = Account::default();
    for (index, record) in trace.records.iter().enumerate() {
        let (ts, tid) = (microseconds(record), record.thread);
        let changed = account.apply(&record.event);
        let number = lifetimes.of_record[index];
        let lifetime = lifetimes.all.get(number as usize);
        match (&record.event, lifetime) {
            (Event::Allocate { .. } | Event::Free { .. }, Some(life)) => {
                let label = labels.get(life.label.index()).map_or("", String::as_str);
                let name = if label.is_empty() { "allocation" } else { label };
                let begins = life.start == index;
                let mut element = json!({
                    "ph": if begins { "b" } else { "e" }, "cat": "memory", "id": number,
                    "name": name, "pid": pid, "tid": tid, "ts": ts,
                });
                if begins {
                    element["args"] = json!({
                        "asked": life.asked, "charged": life.size,
                        "queue": life.queue.map(|queue| queue.0),
                        "site": sites.get(record.site as usize).copied().unwrap_or_default(),
                    });
                }
                elements.push(&element)?;
            }
            (Event::Wait { queue, ticket, ns }, _) => {
                let dur = *ns as f64 / 1000.0;
                elements.push(&json!({
                    "ph": "X", "name": "wait", "cat": "queue", "pid": pid, "tid": tid,
                    "ts": ts - dur, "dur": dur, "args": { "queue": queue.0, "ticket": ticket },
                }))?;
            }
            (Event::Submit { .. } | Event::Refuse { .. }, _) => {
                let args = Value::Object(fields(&record.event, &labels));
                elements.push(&json!({
                    "ph": "i", "s": "t", "name": record.event.name(), "cat": "queue", "pid": pid,
                    "tid": tid, "ts": ts, "args": args,
                }))?;
            }
            _ => {}
        }
        if changed {
            elements.push(&json!({
                "ph": "C", "name": "memory", "pid": pid, "ts": ts,
                "args": {
                    "active": account.active, "mapped": account.mapped,
                    "reserved": account.reserved,
                },
            }))?;
        }
    }
    out.write_all(b"\n]}\n")?;
    Ok(())
}

fn lines(trace: &Trace, out: &mut dyn Write) -> Result<(), Failure> {
    let (labels, sites) = (trace.labels(), trace.sites());
    for record in &trace.records {
        let mut line = Map::new();
        line.insert("time_ns".into(), record.time_ns.into());
        line.insert("thread".into(), record.thread.into());
        line.insert("event".into(), record.event.name().into());
        line.extend(fields(&record.event, &labels));
        if let Some(site) = sites.get(record.site as usize).filter(|site| !site.is_empty()) {
            line.insert("site".into(), (*site).into());
        }
        serde_json::to_writer(&mut *out, &line)?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

fn put_place(into: &mut Map<String, Value>, place: Place) {
    into.insert("mode".into(), place.mode.to_string().into());
    if place.is_known() {
        into.insert("block".into(), place.block.0.into());
        into.insert("offset".into(), place.offset.into());
    }
}

/// The fields of an event, by the names that `docs/trace.md` gives them.
fn fields(event: &Event, labels: &[String]) -> Map<String, Value> {
    let mut into = Map::new();
    let mut put = |name: &str, value: Value| drop(into.insert(name.to_owned(), value));
    let label = |id: &aquifer::core::LabelId| -> Value {
        labels.get(id.index()).map_or("", String::as_str).into()
    };
    match event {
        Event::Begin(begin) => {
            put("source", begin.source.clone().into());
            put("program", begin.program.clone().into());
            put("pid", begin.pid.into());
            put("api", begin.api.clone().into());
            put("device", begin.caps.name.clone().into());
            put("unix_ns", begin.unix_ns.into());
            let memory = begin.caps.virtual_memory;
            put("span", memory.map_or(0, |memory| memory.span).into());
            put("granule", memory.map_or(0, |memory| memory.granule).into());
            put("largest_buffer", begin.caps.largest_buffer.into());
            put("largest_block", begin.caps.largest_block.into());
            put("can_wire", begin.caps.can_wire.into());
            put("wires_blocks", begin.caps.wires_blocks.into());
            put("reuse", format!("{:?}", begin.settings.reuse).to_lowercase().into());
            put("memory_limit", begin.settings.limits.memory.into());
            put("cache_limit", begin.settings.limits.cache.into());
            put("wired_limit", begin.settings.limits.wired.into());
            put("working_set", begin.settings.working_set.into());
            put("pressure", begin.settings.pressure.into());
        }
        Event::Figures(stats) => return crate::json::memory(stats),
        Event::Held { label: id, size, count } => {
            put("label", label(id));
            put("charged", (*size).into());
            put("count", (*count).into());
        }
        Event::Label { id, name } => {
            put("number", id.index().into());
            put("label", (**name).into());
        }
        Event::Site { id, stack } => {
            put("number", (*id).into());
            put("site", (**stack).into());
        }
        Event::Allocate { place, asked, size, queue, label: id, inherited } => {
            put("asked", (*asked).into());
            put("charged", (*size).into());
            put("label", label(id));
            put("queue", queue.map(|queue| queue.0).into());
            put("inherited", (*inherited).into());
            put_place(&mut into, *place);
        }
        Event::Refuse { mode, asked, queue, label: id, reason } => {
            put("mode", mode.to_string().into());
            put("asked", (*asked).into());
            put("label", label(id));
            put("queue", queue.map(|queue| queue.0).into());
            put("reason", format!("{reason:?}").into());
        }
        Event::Free { place, size, stamps } => {
            put("charged", (*size).into());
            let stamps = stamps.iter().map(|stamp| json!([stamp.0.0, stamp.1]));
            put("stamps", stamps.collect());
            put_place(&mut into, *place);
        }
        event => return more_fields(event),
    }
    into
}

fn more_fields(event: &Event) -> Map<String, Value> {
    let value = match event {
        Event::Complete { queue, ticket } => json!({ "queue": queue.0, "ticket": ticket }),
        Event::Obtain { block, mode, size } | Event::Reserve { block, mode, size } => {
            json!({ "block": block.0, "mode": mode.to_string(), "size": size })
        }
        Event::GiveBack { block } | Event::Release { block } => json!({ "block": block.0 }),
        Event::Commit(extent)
        | Event::Decommit(extent)
        | Event::Wire(extent)
        | Event::Unwire(extent) => {
            let Extent { block, offset, len } = extent;
            json!({ "block": block.0, "offset": offset, "len": len })
        }
        Event::Fail { call, size, code } => {
            json!({ "call": format!("{call:?}").to_lowercase(), "size": size, "code": code })
        }
        Event::Map { id, size, block } => {
            json!({ "mapping": id, "size": size, "block": block.map(|block| block.0) })
        }
        Event::Unmap { id } => json!({ "mapping": id }),
        Event::Wrap { size } | Event::Unwrap { size } => json!({ "size": size }),
        Event::Limit { kind, bytes } => {
            json!({ "limit": format!("{kind:?}").to_lowercase(), "bytes": bytes })
        }
        Event::Relieve { percent } => json!({ "percent": percent }),
        Event::Submit { queue, ticket, commands } => {
            json!({ "queue": queue.0, "ticket": ticket, "commands": commands })
        }
        Event::Copy { queue, size } => json!({ "queue": queue.0, "size": size }),
        Event::Wait { queue, ticket, ns } => {
            json!({ "queue": queue.0, "ticket": ticket, "ns": ns })
        }
        _ => Value::Null,
    };
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}
