//! `aquifer replay`: a trace played again, as it was, with other limits, or by other rules.

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use aquifer::core::Pool;
use aquifer::core::replay::{self, Outcome, WhatIf};
use aquifer::core::trace::{Begin, Event, Lifetimes, LimitKind, Trace};
use aquifer::{Reuse, format_bytes};
use serde_json::{Value, json};

use crate::import::{Loaded, load};
use crate::policies::{BySize, Driver, NoCache, Policy, PyTorch};
use crate::table::{Side, Table, bold, excerpt};
use crate::{Failure, threads};

/// Points of the curve of held over live memory that JSON has.
const SAMPLES: usize = 200;

/// The policies that can be compared with, as the command line names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PolicyName {
    /// aquifer's own allocator
    Aquifer,
    /// The founding rules: every freed allocation is kept whole
    WholeBlocks,
    /// Every allocation is one of the driver's
    NoCache,
    /// Freed allocations wait for their size, in units of 512 bytes
    ExactSize,
    /// The same with sizes rounded up to powers of two
    PowerOfTwo,
    /// PyTorch's segments, split and merged within themselves
    Pytorch,
}

/// What a request becomes before it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sizes {
    /// What was asked
    AsAsked,
    /// Rounded up to 512 bytes
    Units,
    /// Rounded up to the next power of two
    PowerOfTwo,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// A trace: aquifer's own, a PyTorch snapshot, an RMM log, MiniMalloc's or recorded CSV
    pub(crate) trace: PathBuf,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// The device of a PyTorch snapshot that has several
    #[arg(long, value_name = "N")]
    pub(crate) gpu: Option<usize>,
    /// What if the memory limit were this (bytes, or 8GiB, 512MiB, ...)
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory_limit: Option<u64>,
    /// What if the cache limit were this
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    cache_limit: Option<u64>,
    /// What if the device recommended this much: pressure and collection are measured against it
    /// (the limits stay)
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    working_set: Option<u64>,
    /// What if cached memory went back from this part of the working set on (percent; default 75)
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
    pressure: Option<u8>,
    /// What if requests were rounded before they are made
    #[arg(long, value_enum, value_name = "RULE")]
    sizes: Option<Sizes>,
    /// What if freed memory were kept whole (whole-blocks) or as ranges (ranges)
    #[arg(long, value_name = "RULE", value_parser = parse_reuse)]
    reuse: Option<Reuse>,
    /// Events for which freed memory is still in use, where the trace does not say
    #[arg(long, value_name = "EVENTS", default_value_t = IN_FLIGHT)]
    in_flight: u64,
    /// Play each thread's allocations and frees on a thread of its own: what contention costs
    #[arg(long, conflicts_with = "compare")]
    threads: bool,
    /// Compare with other policies: all of them, or those named behind an equals sign
    #[arg(
        long,
        value_enum,
        value_name = "POLICY",
        num_args = 0..,
        value_delimiter = ',',
        require_equals = true
    )]
    compare: Option<Vec<PolicyName>>,
}

/// `1073741824`, `1GiB`, `1.5 GB`, `512M`: bytes.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_lowercase();
    let power = |letter: &str| "kmgt".find(letter).map(|place| place as i32 + 1);
    let scale = match unit.as_str() {
        "" | "b" => Some(1.0),
        unit if unit.len() == 2 && unit.ends_with('b') => {
            power(&unit[..1]).map(|power| 1000f64.powi(power))
        }
        unit if unit.len() == 1 || unit.len() == 3 && unit.ends_with("ib") => {
            power(&unit[..1]).map(|power| 1024f64.powi(power))
        }
        _ => None,
    };
    let parsed = match (number.parse::<u64>(), number.parse::<f64>(), scale) {
        (Ok(whole), _, Some(1.0)) => Some(whole),
        (_, Ok(number), Some(scale)) if number * scale < 1.8e19 => Some((number * scale) as u64),
        _ => None,
    };
    parsed.ok_or_else(|| "not a size: use bytes, or a unit such as 512MiB, 8GiB or 2GB".to_owned())
}

fn parse_reuse(text: &str) -> Result<Reuse, String> {
    match text {
        "ranges" => Ok(Reuse::Ranges),
        "whole-blocks" => Ok(Reuse::Blocks),
        _ => Err("use ranges or whole-blocks".to_owned()),
    }
}

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let loaded = load(&options.trace, options.gpu)?;
    let trace = &loaded.trace;
    let Some(begin) = trace.begin() else {
        let path = options.trace.display();
        return Err(Failure::File(format!("{path}: the trace does not say what device it is of")));
    };
    let lifetimes = Lifetimes::of(trace);
    let mut notes = loaded.notes.clone();
    let held = trace.first_figures().map_or(0, |stats| stats.active_with_mapped);
    if held > 0 {
        let held = format_bytes(held);
        notes.push(format!(
            "{held} were in use when the trace began: they count against limits, and in no other figure"
        ));
    }
    let mut report = Report { options, loaded: &loaded, begin, verified: None, play: None, notes };
    // Without a what-if a trace of our own comes out as it was, or we say where not.
    if !options.is_what_if() && options.compare.is_none() && !options.threads {
        match replay::verify(trace) {
            Ok(verified) => report.verified = Some(Ok(verified)),
            Err(mismatch) => report.verified = Some(Err(mismatch)),
        }
    }
    let rules = options.rules(trace, begin);
    if options.threads {
        let played = threads::play(trace, &lifetimes, &rules).map_err(Failure::File)?;
        return report.print_threads(&played);
    }
    if let Some(names) = &options.compare {
        let rows = compare(&rules, trace, &lifetimes, names);
        return report.print_comparison(&rows);
    }
    report.play = Some(Play::of(&rules, trace, &lifetimes));
    report.print()
}

/// Events for which freed memory is still in use where the trace does not say (rule B.1).
const IN_FLIGHT: u64 = 64;

/// How a trace is played where nothing else is asked for.
pub(crate) fn as_played(trace: &Trace, begin: &Begin) -> WhatIf {
    let mut rules = WhatIf::as_recorded(begin);
    let says = |event: &Event| matches!(event, Event::Free { stamps, .. } if !stamps.is_empty());
    let says = trace.records.iter().any(|record| says(&record.event));
    let own = begin.source.starts_with("aquifer ");
    rules.in_flight = (!says && !own).then_some(IN_FLIGHT);
    rules
}

impl Options {
    fn is_what_if(&self) -> bool {
        self.memory_limit.is_some()
            || self.cache_limit.is_some()
            || self.working_set.is_some()
            || self.pressure.is_some()
            || self.sizes.is_some()
            || self.reuse.is_some()
    }

    /// How the trace is to be played.
    fn rules(&self, trace: &Trace, begin: &Begin) -> WhatIf {
        let mut rules = as_played(trace, begin);
        rules.settings.working_set = self.working_set.unwrap_or(rules.settings.working_set);
        if let Some(bytes) = self.memory_limit {
            rules.settings.limits.memory = bytes;
            rules.fixed.push(LimitKind::Memory);
        }
        if let Some(bytes) = self.cache_limit {
            rules.settings.limits.cache = bytes;
            rules.fixed.push(LimitKind::Cache);
        }
        rules.settings.pressure = self.pressure.map_or(rules.settings.pressure, u64::from);
        rules.settings.reuse = self.reuse.unwrap_or(rules.settings.reuse);
        rules.size = match self.sizes {
            None | Some(Sizes::AsAsked) => |asked| asked,
            Some(Sizes::Units) => |asked| asked.checked_next_multiple_of(512).unwrap_or(asked),
            Some(Sizes::PowerOfTwo) => |asked| asked.checked_next_power_of_two().unwrap_or(asked),
        };
        if rules.in_flight.is_some() {
            rules.in_flight = Some(self.in_flight);
        }
        rules
    }
}

/// One play of a trace.
struct Play {
    outcome: Outcome,
    ns_per_event: f64,
    /// Time, live (asked) and held bytes.
    samples: Vec<(u64, u64, u64)>,
}

impl Play {
    fn of(rules: &WhatIf, trace: &Trace, lifetimes: &Lifetimes) -> Self {
        let step = trace.records.len().div_ceil(SAMPLES).max(1);
        let mut samples = Vec::new();
        rules.play(trace, lifetimes, None, |index, pool: &Pool| {
            if index % step == 0 || index + 1 == trace.records.len() {
                let stats = pool.stats();
                let time = trace.records[index].time_ns;
                samples.push((time, stats.active - stats.padding, stats.reserved));
            }
        });
        // Timed apart, so that taking samples costs the events nothing; the best of three.
        let mut best = f64::INFINITY;
        let mut outcome = Outcome::default();
        for _ in 0..3 {
            let start = Instant::now();
            outcome = rules.play(trace, lifetimes, None, |_, _| {});
            best = best.min(start.elapsed().as_nanos() as f64);
        }
        let ns_per_event = best / outcome.events.max(1) as f64;
        Self { outcome, ns_per_event, samples }
    }
}

/// A row of a comparison.
struct Row {
    name: &'static str,
    held: u64,
    calls: u64,
    refusals: u64,
    refused_bytes: u64,
    ns_per_event: f64,
}

fn compare(
    rules: &WhatIf,
    trace: &Trace,
    lifetimes: &Lifetimes,
    names: &[PolicyName],
) -> Comparison {
    use clap::ValueEnum;
    let names = if names.is_empty() { PolicyName::value_variants() } else { names };
    let mut comparison = Comparison { rows: Vec::new(), asked: 0, events: 0 };
    for &name in names {
        // For ours what is in use is limited, for the others what they hold: they know no other.
        let limit = rules.settings.limits.memory;
        let row = match name {
            PolicyName::Aquifer | PolicyName::WholeBlocks => {
                let mut rules = rules.clone();
                if name == PolicyName::WholeBlocks {
                    rules.settings.reuse = Reuse::Blocks;
                }
                let Play { outcome, ns_per_event, .. } = Play::of(&rules, trace, lifetimes);
                Row {
                    name: if name == PolicyName::Aquifer { "aquifer" } else { "whole-blocks" },
                    held: outcome.peak_reserved,
                    calls: outcome.driver_calls,
                    refusals: outcome.refusals,
                    refused_bytes: outcome.refused_bytes,
                    ns_per_event,
                }
            }
            PolicyName::NoCache => simulate(NoCache::new(Driver::new(limit)), trace, lifetimes),
            PolicyName::ExactSize => simulate(BySize::exact(Driver::new(limit)), trace, lifetimes),
            PolicyName::PowerOfTwo => {
                simulate(BySize::powers_of_two(Driver::new(limit)), trace, lifetimes)
            }
            PolicyName::Pytorch => simulate(PyTorch::new(Driver::new(limit)), trace, lifetimes),
        };
        comparison.rows.push(row);
    }
    (comparison.asked, comparison.events) = asked(trace, lifetimes);
    comparison
}

/// The most that was asked and live at once, and how many requests and frees there are.
fn asked(trace: &Trace, lifetimes: &Lifetimes) -> (u64, u64) {
    let (mut now, mut most, mut events) = (0u64, 0u64, 0);
    for (index, record) in trace.records.iter().enumerate() {
        let lifetime = lifetimes.all.get(lifetimes.of_record[index] as usize);
        match (&record.event, lifetime) {
            (Event::Allocate { asked, .. }, _) => now = now.saturating_add(*asked),
            (Event::Free { .. }, Some(lifetime)) => now = now.saturating_sub(lifetime.asked),
            _ => continue,
        }
        events += 1;
        most = most.max(now);
    }
    (most, events)
}

fn simulate(mut policy: impl Policy, trace: &Trace, lifetimes: &Lifetimes) -> Row {
    let (mut refusals, mut refused_bytes, mut events) = (0, 0u64, 0u64);
    let start = Instant::now();
    for (index, record) in trace.records.iter().enumerate() {
        let number = lifetimes.of_record[index];
        match &record.event {
            Event::Allocate { asked, queue, .. } => {
                let stream = queue.map_or(0, |queue| queue.0);
                if !policy.allocate(number, *asked, stream) {
                    refusals += 1;
                    refused_bytes = refused_bytes.saturating_add(*asked);
                }
            }
            Event::Free { .. } if number != Lifetimes::NONE => policy.free(number),
            _ => continue,
        }
        events += 1;
    }
    let ns_per_event = start.elapsed().as_nanos() as f64 / events.max(1) as f64;
    let driver = policy.driver();
    Row {
        name: policy.name(),
        held: driver.most(),
        calls: driver.calls(),
        refusals,
        refused_bytes,
        ns_per_event,
    }
}

/// The rows of a comparison, with what they are measured by.
struct Comparison {
    rows: Vec<Row>,
    /// The most that was asked and live at once.
    asked: u64,
    /// Requests and frees.
    events: u64,
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 1.0 } else { part as f64 / whole as f64 }
}

/// What there is to be printed.
struct Report<'r> {
    options: &'r Options,
    loaded: &'r Loaded,
    begin: &'r Begin,
    verified: Option<Result<replay::Verified, replay::Mismatch>>,
    play: Option<Play>,
    notes: Vec<String>,
}

impl Report<'_> {
    /// The lines above every table.
    fn head(&self, out: &mut impl Write) -> std::io::Result<()> {
        let records = &self.loaded.trace.records;
        let seconds = records.last().map_or(0, |record| record.time_ns) as f64 / 1e9;
        let (begin, count) = (self.begin, records.len());
        let path = self.options.trace.display();
        writeln!(out, "{path}: {}, {count} events over {seconds:.3} s", self.loaded.format)?;
        if !begin.program.is_empty() {
            let (name, api) = (excerpt(&begin.caps.name), excerpt(&begin.api));
            let (program, pid) = (excerpt(&begin.program), begin.pid);
            writeln!(out, "of {program} (process {pid}) on {api} ({name})")?;
        }
        for note in &self.notes {
            writeln!(out, "note: {note}")?;
        }
        Ok(())
    }

    fn json_head(&self) -> serde_json::Map<String, Value> {
        let mut head = serde_json::Map::new();
        head.insert("trace".into(), self.options.trace.display().to_string().into());
        head.insert("format".into(), self.loaded.format.into());
        head.insert("source".into(), self.begin.source.clone().into());
        head.insert("program".into(), self.begin.program.clone().into());
        head.insert("records".into(), self.loaded.trace.records.len().into());
        head.insert("notes".into(), self.notes.clone().into());
        head
    }

    fn print(&self) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        if self.options.json {
            self.print_json(&mut out)?;
        } else {
            self.print_text(&mut out)?;
        }
        out.flush()?;
        match &self.verified {
            Some(Err(mismatch)) if mismatch.record.is_some() => {
                Err(Failure::File(format!("the replay differs at {mismatch}")))
            }
            _ => Ok(()),
        }
    }

    fn print_text(&self, out: &mut impl Write) -> Result<(), Failure> {
        self.head(out)?;
        match &self.verified {
            Some(Ok(verified)) => writeln!(
                out,
                "exact: every placement, driver call and figure came out as recorded ({} calls, all \
                 figures compared {} times)",
                verified.events, verified.compared
            )?,
            Some(Err(mismatch)) if mismatch.record.is_none() => {
                writeln!(out, "not compared with the recording: {mismatch}")?;
            }
            _ => {}
        }
        let Some(Play { outcome, ns_per_event, samples }) = &self.play else { return Ok(()) };
        writeln!(out)?;
        let mut table = Table::new(&[("", Side::Left), ("", Side::Right), ("bytes", Side::Right)]);
        let mut row = |name: &str, value: u64| {
            table.row(vec![name.into(), format_bytes(value), value.to_string()]);
        };
        row("peak asked", outcome.peak_asked);
        row("peak active", outcome.peak_active);
        row("  of it padding", outcome.padding_at_peak);
        row("peak reserved", outcome.peak_reserved);
        row("ever taken from the driver", outcome.stats.committed_ever);
        row("live at the end", outcome.stats.active);
        table.print(out)?;
        let held = ratio(outcome.peak_reserved, outcome.peak_asked);
        writeln!(out, "\nreserved / asked at their peaks  {held:.3}")?;
        writeln!(out, "driver calls                     {}", outcome.driver_calls)?;
        let (refusals, bytes) = (outcome.refusals, format_bytes(outcome.refused_bytes));
        writeln!(out, "refused                          {refusals} ({bytes})")?;
        if outcome.would_fit > 0 {
            writeln!(out, "refused then, given now          {}", outcome.would_fit)?;
        }
        writeln!(out, "ns an event                      {ns_per_event:.0}")?;
        let curve = |pick: fn(&(u64, u64, u64)) -> u64| sparkline(samples, pick, outcome);
        writeln!(out, "\nlive      {}", curve(|sample| sample.1))?;
        writeln!(out, "reserved  {}", curve(|sample| sample.2))?;
        Ok(())
    }

    fn print_json(&self, out: &mut impl Write) -> Result<(), Failure> {
        let mut document = self.json_head();
        let exact = match &self.verified {
            Some(Ok(verified)) => json!({
                "exact": true, "calls": verified.events, "compared": verified.compared,
            }),
            Some(Err(mismatch)) => json!({
                "exact": false, "event": mismatch.record, "reason": mismatch.reason,
            }),
            None => Value::Null,
        };
        document.insert("verified".into(), exact);
        if let Some(Play { outcome, ns_per_event, samples }) = &self.play {
            let samples: Vec<Value> = samples
                .iter()
                .map(|&(time_ns, live, reserved)| {
                    json!({
                        "time_ns": time_ns,
                        "live": live,
                        "reserved": reserved,
                        "ratio": ratio(reserved, live),
                    })
                })
                .collect();
            document.insert(
                "replay".into(),
                json!({
                    "events": outcome.events,
                    "peak_asked": outcome.peak_asked,
                    "peak_active": outcome.peak_active,
                    "padding_at_peak": outcome.padding_at_peak,
                    "peak_reserved": outcome.peak_reserved,
                    "driver_calls": outcome.driver_calls,
                    "refusals": outcome.refusals,
                    "refused_bytes": outcome.refused_bytes,
                    "would_fit": outcome.would_fit,
                    "ns_per_event": ns_per_event,
                    "memory": crate::json::memory(&outcome.stats),
                    "over_time": samples,
                }),
            );
        }
        serde_json::to_writer_pretty(&mut *out, &document)?;
        writeln!(out)?;
        Ok(())
    }

    fn print_comparison(&self, comparison: &Comparison) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        let Comparison { rows, asked, events } = comparison;
        if self.options.json {
            let mut document = self.json_head();
            let list: Vec<Value> = rows
                .iter()
                .map(|row| {
                    json!({
                        "policy": row.name,
                        "peak_held": row.held,
                        "held_over_asked": ratio(row.held, *asked),
                        "driver_calls": row.calls,
                        "refusals": row.refusals,
                        "refused_bytes": row.refused_bytes,
                        "ns_per_event": row.ns_per_event,
                    })
                })
                .collect();
            document.insert("peak_asked".into(), (*asked).into());
            document.insert("policies".into(), list.into());
            serde_json::to_writer_pretty(&mut out, &document)?;
            writeln!(out)?;
            return Ok(());
        }
        self.head(&mut out)?;
        let most = format_bytes(*asked);
        writeln!(out, "{events} requests and frees, at most {most} asked at once\n")?;
        let mut table = Table::new(&[
            ("policy", Side::Left),
            ("held", Side::Right),
            ("held / asked", Side::Right),
            ("driver calls", Side::Right),
            ("refused", Side::Right),
            ("ns an event", Side::Right),
        ]);
        for row in rows {
            table.row(vec![
                row.name.to_owned(),
                format_bytes(row.held),
                format!("{:.3}", ratio(row.held, *asked)),
                row.calls.to_string(),
                row.refusals.to_string(),
                format!("{:.0}", row.ns_per_event),
            ]);
        }
        table.print(&mut out)?;
        Ok(())
    }

    fn print_threads(&self, played: &threads::Played) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        let ns = played.elapsed.as_nanos() as f64 / played.events.max(1) as f64;
        if self.options.json {
            let mut document = self.json_head();
            document.insert(
                "threads".into(),
                json!({
                    "threads": played.threads,
                    "events": played.events,
                    "refusals": played.refusals,
                    "seconds": played.elapsed.as_secs_f64(),
                    "ns_per_event": ns,
                    "memory": crate::json::memory(&played.stats),
                }),
            );
            serde_json::to_writer_pretty(&mut out, &document)?;
            writeln!(out)?;
            return Ok(());
        }
        self.head(&mut out)?;
        let (threads, events) = (played.threads, played.events);
        writeln!(out, "\n{}", bold(&format!("{events} events by {threads} threads at once")))?;
        writeln!(out, "peak active    {}", format_bytes(played.stats.peak))?;
        writeln!(out, "peak reserved  {}", format_bytes(played.stats.peak_reserved))?;
        writeln!(out, "refused        {}", played.refusals)?;
        writeln!(out, "ns an event    {ns:.0}")?;
        Ok(())
    }
}

/// A line of bars, against the highest that is reserved.
fn sparkline(
    samples: &[(u64, u64, u64)],
    pick: fn(&(u64, u64, u64)) -> u64,
    outcome: &Outcome,
) -> String {
    const WIDTH: usize = 60;
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = outcome.peak_reserved.max(1);
    let part = samples.len().div_ceil(WIDTH).max(1);
    let bar = |chunk: &[(u64, u64, u64)]| {
        let value = chunk.iter().map(pick).max().unwrap_or(0);
        let level = u128::from(value) * 7 / u128::from(most);
        BARS[level.min(7) as usize]
    };
    samples.chunks(part).map(bar).collect()
}
