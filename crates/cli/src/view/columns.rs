//! A trace as columns of numbers: what the page draws from.
//!
//! Every column is little-endian and begins at a multiple of eight bytes; `meta` says where.

use std::collections::{BTreeMap, HashMap};

use aquifer::core::trace::{Event, Extent, Lifetimes, Record, Trace};
use aquifer::core::{BlockId, Storage};
use serde_json::{Map, Value, json};

use crate::account::Account;

/// Labels with a colour of their own; the rest share one.
const MOST_BANDS: usize = 11;

/// An event that the page does not draw by itself, or an allocation that has no end.
const NONE: u32 = u32::MAX;

/// A value that changes at some events.
#[derive(Default)]
struct Series {
    events: Vec<u32>,
    values: Vec<f64>,
}

impl Series {
    fn push(&mut self, event: u32, value: u64) {
        if self.values.last() == Some(&(value as f64)) {
            return;
        }
        if self.events.last() == Some(&event) {
            self.values.pop();
            self.events.pop();
        }
        self.events.push(event);
        self.values.push(value as f64);
    }
}

/// A block or span while it is held.
struct Held {
    block: BlockId,
    mode: Storage,
    size: u64,
    is_span: bool,
    start: u32,
    end: u32,
}

/// A trace, ready for a page.
pub(crate) struct Columns {
    /// When each event was.
    times: Vec<f64>,
    /// The allocation that it makes (even) or frees (odd), doubled; `NONE` for neither.
    changes: Vec<u32>,
    lifetimes: Lifetimes,
    threads: Vec<u32>,
    sites: Vec<u32>,
    stacks: Vec<String>,
    labels: Vec<String>,
    /// For each label the band that it is drawn in.
    bands: Vec<u32>,
    band_names: Vec<String>,
    blocks: Vec<Held>,
    /// Events, blocks, offsets and lengths (negative where it is taken away) of what backs spans.
    commits: Vec<(u32, u32, u64, f64)>,
    reserved: Series,
    mapped: Series,
    memory_limit: Series,
    /// What was live when the trace began, and has not been freed yet.
    before: Series,
    begin: Value,
    peak: u64,
}

impl Columns {
    pub(crate) fn of(trace: &Trace) -> Self {
        let lifetimes = Lifetimes::of(trace);
        let labels = trace.labels();
        let (bands, band_names) = bands(&lifetimes, trace, &labels);
        let mut columns = Self {
            times: Vec::with_capacity(trace.records.len()),
            changes: Vec::with_capacity(trace.records.len()),
            threads: Vec::with_capacity(lifetimes.all.len()),
            sites: Vec::with_capacity(lifetimes.all.len()),
            stacks: trace.sites().into_iter().map(str::to_owned).collect(),
            labels,
            bands,
            band_names,
            blocks: Vec::new(),
            commits: Vec::new(),
            reserved: Series::default(),
            mapped: Series::default(),
            memory_limit: Series::default(),
            before: Series::default(),
            begin: describe(trace),
            lifetimes,
            peak: 0,
        };
        columns.fill(trace);
        columns
    }

    fn fill(&mut self, trace: &Trace) {
        let mut account = Account::default();
        let mut open: HashMap<BlockId, u32> = HashMap::new();
        let mut before = 0u64;
        let mut call = 0;
        for (index, record) in trace.records.iter().enumerate() {
            // What the driver answered belongs to the call that it is the answer to: at no moment is
            // an allocation there and its memory not.
            if record.event.is_call() {
                call = index as u32;
            }
            let event = if record.event.is_effect() { call } else { index as u32 };
            let number = self.lifetimes.of_record[index];
            self.times.push(record.time_ns as f64);
            account.apply(&record.event);
            let change = match &record.event {
                Event::Allocate { .. } => {
                    self.threads.push(record.thread);
                    self.sites.push(record.site.min(self.stacks.len() as u32 - 1));
                    number * 2
                }
                Event::Free { .. } if number != Lifetimes::NONE => number * 2 + 1,
                Event::Free { size, .. } => {
                    before = before.saturating_sub(*size);
                    self.before.push(event, before);
                    NONE
                }
                Event::Figures(stats) if self.before.events.is_empty() && self.peak == 0 => {
                    before = stats.active;
                    self.before.push(event, before);
                    NONE
                }
                _ => NONE,
            };
            self.changes.push(change);
            self.driver(event, record, &mut open);
            self.reserved.push(event, account.reserved);
            self.mapped.push(event, account.mapped);
            self.peak = self.peak.max(account.active);
        }
    }

    /// What the driver gave and took.
    fn driver(&mut self, event: u32, record: &Record, open: &mut HashMap<BlockId, u32>) {
        match &record.event {
            Event::Obtain { block, mode, size } | Event::Reserve { block, mode, size } => {
                open.insert(*block, self.blocks.len() as u32);
                let is_span = matches!(record.event, Event::Reserve { .. });
                let (block, mode, size) = (*block, *mode, *size);
                self.blocks.push(Held { block, mode, size, is_span, start: event, end: NONE });
            }
            Event::GiveBack { block } | Event::Release { block } => {
                if let Some(place) = open.remove(block) {
                    self.blocks[place as usize].end = event;
                }
            }
            Event::Commit(extent) => self.commit(event, extent, open, 1.0),
            Event::Decommit(extent) => self.commit(event, extent, open, -1.0),
            Event::Begin(begin) => self.memory_limit.push(event, begin.settings.limits.memory),
            Event::Limit { kind: aquifer::core::trace::LimitKind::Memory, bytes } => {
                self.memory_limit.push(event, *bytes);
            }
            _ => {}
        }
    }

    fn commit(&mut self, event: u32, extent: &Extent, open: &HashMap<BlockId, u32>, sign: f64) {
        if let Some(&place) = open.get(&extent.block) {
            self.commits.push((event, place, extent.offset, sign * extent.len as f64));
        }
    }

    /// How many allocations there are.
    pub(crate) fn allocations(&self) -> usize {
        self.lifetimes.all.len()
    }

    /// The highest that was charged at once.
    pub(crate) fn peak(&self) -> u64 {
        self.peak
    }

    /// All columns, one behind the other, with where each lies.
    pub(crate) fn laid_out(&self) -> (Vec<u8>, Map<String, Value>) {
        let mut layout = Layout::default();
        let all = &self.lifetimes.all;
        let places = self.places();
        layout.floats("time", self.times.iter().copied());
        layout.words("change", self.changes.iter().copied());
        layout.words("start", all.iter().map(|life| life.start as u32));
        layout.words("end", all.iter().map(|life| life.end.map_or(NONE, |end| end as u32)));
        layout.floats("size", all.iter().map(|life| life.size as f64));
        layout.floats("asked", all.iter().map(|life| life.asked as f64));
        layout.words("label", all.iter().map(|life| life.label.index() as u32));
        layout.words("queue", all.iter().map(|life| life.queue.map_or(NONE, |queue| queue.0)));
        layout.words("thread", self.threads.iter().copied());
        layout.words("site", self.sites.iter().copied());
        layout.words("block", places.iter().copied());
        layout.floats("offset", all.iter().map(|life| life.place.offset as f64));
        for (name, series) in [
            ("reserved", &self.reserved),
            ("mapped", &self.mapped),
            ("limit", &self.memory_limit),
            ("before", &self.before),
        ] {
            layout.words(&format!("{name}At"), series.events.iter().copied());
            layout.floats(&format!("{name}Value"), series.values.iter().copied());
        }
        layout.words("blockStart", self.blocks.iter().map(|block| block.start));
        layout.words("blockEnd", self.blocks.iter().map(|block| block.end));
        layout.floats("blockSize", self.blocks.iter().map(|block| block.size as f64));
        layout.words("blockSpan", self.blocks.iter().map(|block| u32::from(block.is_span)));
        layout.words("commitAt", self.commits.iter().map(|commit| commit.0));
        layout.words("commitBlock", self.commits.iter().map(|commit| commit.1));
        layout.floats("commitOffset", self.commits.iter().map(|commit| commit.2 as f64));
        layout.floats("commitLen", self.commits.iter().map(|commit| commit.3));
        (layout.bytes, layout.columns)
    }

    /// For each allocation the block it lies in; `NONE` where the trace does not say.
    fn places(&self) -> Vec<u32> {
        let mut by_id: BTreeMap<BlockId, Vec<u32>> = BTreeMap::new();
        for (place, held) in self.blocks.iter().enumerate() {
            by_id.entry(held.block).or_default().push(place as u32);
        }
        let place = |life: &aquifer::core::trace::Lifetime| {
            let held = by_id.get(&life.place.block)?;
            let start = life.start as u32;
            // A number may be given again once the block is gone.
            let within = |place: &&u32| {
                let held = &self.blocks[**place as usize];
                held.start <= start && start < held.end
            };
            held.iter().rfind(within).copied()
        };
        self.lifetimes.all.iter().map(|life| place(life).unwrap_or(NONE)).collect()
    }

    /// What the page needs to know beside the numbers.
    pub(crate) fn meta(
        &self,
        layout: Map<String, Value>,
        name: &str,
        format: &str,
        notes: &[String],
    ) -> Value {
        let blocks = self.blocks.iter().map(|held| json!([held.block.0, held.mode.to_string()]));
        json!({
            "name": name,
            "format": format,
            "notes": notes,
            "begin": self.begin,
            "columns": layout,
            "labels": self.labels,
            "bands": self.bands,
            "bandNames": self.band_names,
            "stacks": self.stacks,
            "blocks": blocks.collect::<Vec<_>>(),
        })
    }
}

/// Columns that are written one behind the other.
#[derive(Default)]
struct Layout {
    bytes: Vec<u8>,
    columns: Map<String, Value>,
}

impl Layout {
    fn begin(&mut self, name: &str, kind: &str, count: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        self.columns.insert(name.to_owned(), json!([kind, self.bytes.len(), count]));
    }

    fn words(&mut self, name: &str, values: impl ExactSizeIterator<Item = u32>) {
        self.begin(name, "u32", values.len());
        values.for_each(|value| self.bytes.extend(value.to_le_bytes()));
    }

    fn floats(&mut self, name: &str, values: impl ExactSizeIterator<Item = f64>) {
        self.begin(name, "f64", values.len());
        values.for_each(|value| self.bytes.extend(value.to_le_bytes()));
    }
}

/// The device and the program, for the head of the page.
fn describe(trace: &Trace) -> Value {
    match trace.begin() {
        Some(begin) => json!({
            "source": begin.source,
            "program": begin.program,
            "pid": begin.pid,
            "api": begin.api,
            "device": begin.caps.name,
            "own": begin.source.starts_with("aquifer "),
            "workingSet": begin.settings.working_set,
        }),
        None => Value::Null,
    }
}

/// The band of each label, and the bands' names: the labels with the highest peaks have one of
/// their own.
fn bands(lifetimes: &Lifetimes, trace: &Trace, labels: &[String]) -> (Vec<u32>, Vec<String>) {
    let (mut now, mut most) = (vec![0u64; labels.len()], vec![0u64; labels.len()]);
    let of = |index: usize| index.min(labels.len() - 1);
    for (index, record) in trace.records.iter().enumerate() {
        let Some(life) = lifetimes.all.get(lifetimes.of_record[index] as usize) else { continue };
        let label = of(life.label.index());
        match record.event {
            Event::Allocate { .. } => now[label] = now[label].saturating_add(life.size),
            _ => now[label] = now[label].saturating_sub(life.size),
        }
        most[label] = most[label].max(now[label]);
    }
    let mut order: Vec<usize> = (0..labels.len()).filter(|&label| most[label] > 0).collect();
    order.sort_by_key(|&label| std::cmp::Reverse(most[label]));
    let own = if order.len() > MOST_BANDS { MOST_BANDS - 1 } else { order.len() };
    let name = |label: &usize| match labels[*label].as_str() {
        "" => "(unlabelled)".to_owned(),
        name => name.to_owned(),
    };
    let mut names: Vec<String> = order[..own].iter().map(name).collect();
    if order.len() > own {
        names.push(format!("({} other labels)", order.len() - own));
    }
    let mut bands = vec![names.len().saturating_sub(1) as u32; labels.len()];
    for (band, &label) in order[..own].iter().enumerate() {
        bands[label] = band as u32;
    }
    (bands, names)
}
