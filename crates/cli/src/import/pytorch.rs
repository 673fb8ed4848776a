//! PyTorch's memory snapshots: the pickle of `torch.cuda.memory._snapshot()`.
//!
//! A dictionary with `segments` (what is held at the end: addresses, sizes, blocks) and
//! `device_traces` (for each device what happened, oldest first, as far back as PyTorch kept it).

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use aquifer::core::trace::Trace;

use super::events::{Builder, Foreign, Ranges, UNIT, What};
use super::pickle::{Id, Pickle, Value};

/// Frames that are kept of a stack.
const MOST_FRAMES: usize = 24;
/// Characters that are kept of a name or a path.
const MOST_NAME: usize = 256;
/// Bytes of all stacks; call sites after that are not told.
const MOST_STACKS: usize = 64 << 20;

/// Reads a snapshot: the events of one device, with what is to be said about it.
pub(crate) fn read(bytes: &[u8], gpu: Option<usize>) -> Result<(Trace, Vec<String>), String> {
    let pickle = Pickle::read(bytes)?;
    let traces = pickle
        .get(pickle.root(), "device_traces")
        .and_then(|id| pickle.list(id))
        .ok_or("not a memory snapshot: it has no 'device_traces'")?;
    let events_of = |index: usize| pickle.list(traces[index]).unwrap_or_default();
    let recorded: Vec<usize> =
        (0..traces.len()).filter(|&index| !events_of(index).is_empty()).collect();
    let mut notes = Vec::new();
    let device = match (gpu, recorded.as_slice()) {
        (Some(gpu), _) if gpu < traces.len() => gpu,
        (Some(gpu), _) => {
            return Err(format!("--gpu {gpu}: the snapshot has {} devices", traces.len()));
        }
        (None, []) => {
            return Err(
                "the snapshot has no events: call torch.cuda.memory._record_memory_history() \
                        before what is to be recorded"
                    .to_owned(),
            );
        }
        (None, [one]) => *one,
        (None, [first, ..]) => {
            notes.push(format!(
                "devices {recorded:?} have events; this is device {first} (choose with --gpu)"
            ));
            *first
        }
    };
    let mut reader = Reader {
        pickle: &pickle,
        builder: Builder::new("PyTorch", UNIT),
        stacks: HashMap::new(),
        stack_bytes: 0,
        labels: HashMap::new(),
        streams: HashMap::new(),
        start_us: 0,
    };
    let events = reader.events(events_of(device))?;
    let before = reader.before(device, &events);
    reader.builder.add(&events, &before);
    Ok((reader.builder.finish(), notes))
}

struct Reader<'p, 'f> {
    pickle: &'p Pickle<'f>,
    builder: Builder,
    /// Call sites by the value of their frames, which PyTorch shares.
    stacks: HashMap<Id, u32>,
    stack_bytes: usize,
    labels: HashMap<&'f str, u32>,
    /// Streams are addresses; they are numbered as they appear, the default one first.
    streams: HashMap<u64, u32>,
    start_us: u64,
}

impl<'f> Reader<'_, 'f> {
    fn number(&self, event: Id, key: &str) -> Option<u64> {
        self.pickle.get(event, key).and_then(|id| self.pickle.number(id))
    }

    fn stream(&mut self, event: Id) -> u32 {
        let stream = self.number(event, "stream").unwrap_or(0);
        if self.streams.is_empty() {
            self.streams.insert(0, 0);
        }
        let next = self.streams.len() as u32;
        // More streams than queues there can be: the last one stands for the rest.
        *self.streams.entry(stream).or_insert(next.min(u32::from(u16::MAX)))
    }

    fn events(&mut self, entries: &[Id]) -> Result<Vec<Foreign>, String> {
        let times = entries.iter().filter_map(|&entry| self.number(entry, "time_us"));
        self.start_us = times.min().unwrap_or(0);
        let mut events = Vec::with_capacity(entries.len());
        for (index, &entry) in entries.iter().enumerate() {
            let missing = |key: &str| format!("event {index}: no number '{key}'");
            let action = self.pickle.get(entry, "action").and_then(|id| self.pickle.text(id));
            let action = action.ok_or_else(|| format!("event {index}: no 'action'"))?;
            let size = self.number(entry, "size");
            let size = || size.ok_or_else(|| missing("size"));
            let address = self.number(entry, "addr");
            let address = || address.ok_or_else(|| missing("addr"));
            let what = match action {
                "alloc" => What::Allocate {
                    address: address()?,
                    size: size()?,
                    site: self.site(entry),
                    label: self.label(entry),
                },
                "free_completed" => What::Free { address: address()?, size: size()? },
                "segment_alloc" => What::Obtain { address: address()?, size: size()? },
                "segment_free" => What::GiveBack { address: address()?, size: size()? },
                "segment_map" => What::Commit { address: address()?, size: size()? },
                "segment_unmap" => What::Decommit { address: address()?, size: size()? },
                "oom" => What::Refuse { size: size()? },
                // Requested frees are completed by an event of their own.
                _ => continue,
            };
            let time_us = self.number(entry, "time_us").unwrap_or(self.start_us);
            let time_ns = (time_us - self.start_us).saturating_mul(1000);
            events.push(Foreign { time_ns, thread: 0, stream: self.stream(entry), what });
        }
        Ok(events)
    }

    /// Segments and blocks that are there at the end and came before the first event.
    fn before(&mut self, device: usize, events: &[Foreign]) -> Vec<Foreign> {
        let (mut obtained, mut allocated) = (HashSet::new(), HashSet::new());
        let mut mapped = Ranges::default();
        let mut span: Option<(u64, u64)> = None;
        for event in events {
            match event.what {
                What::Obtain { address, .. } => drop(obtained.insert(address)),
                What::Allocate { address, .. } => drop(allocated.insert(address)),
                What::GiveBack { address, .. } => drop(obtained.remove(&address)),
                What::Free { address, .. } => drop(allocated.remove(&address)),
                What::Commit { address, size } | What::Decommit { address, size } => {
                    let end = address.saturating_add(size);
                    let (low, high) = span.unwrap_or((address, end));
                    span = Some((low.min(address), high.max(end)));
                    match event.what {
                        What::Commit { .. } => mapped.add(address, size),
                        _ => drop(mapped.remove(address, size)),
                    }
                }
                What::Refuse { .. } => {}
            }
        }
        let (mut segments, mut blocks) = (Vec::new(), Vec::new());
        let pickle = self.pickle;
        let known = pickle.get(pickle.root(), "segments").and_then(|id| pickle.list(id));
        for &segment in known.unwrap_or_default() {
            if self.number(segment, "device").is_some_and(|of| of != device as u64) {
                continue;
            }
            let stream = self.stream(segment);
            let first = |what| Foreign { time_ns: 0, thread: 0, stream, what };
            let expandable = pickle.get(segment, "is_expandable");
            let expandable = expandable.is_some_and(|id| *pickle.value(id) == Value::Bool(true));
            match (self.number(segment, "address"), self.number(segment, "total_size")) {
                (Some(address), Some(size)) if expandable => {
                    let end = address.saturating_add(size);
                    let (low, high) = span.unwrap_or((address, end));
                    span = Some((low.min(address), high.max(end)));
                    for (address, size) in mapped.remove(address, size) {
                        segments.push(first(What::Commit { address, size }));
                    }
                }
                (Some(address), Some(size)) if !obtained.contains(&address) => {
                    segments.push(first(What::Obtain { address, size }));
                }
                _ => {}
            }
            let parts = pickle.get(segment, "blocks").and_then(|id| pickle.list(id));
            for &block in parts.unwrap_or_default() {
                let state = pickle.get(block, "state").and_then(|id| pickle.text(id));
                let size = self.number(block, "requested_size");
                let size = size.or_else(|| self.number(block, "size"));
                if let (Some("active_allocated" | "active_pending_free"), Some(address), Some(size)) =
                    (state, self.number(block, "address"), size)
                    && !allocated.contains(&address)
                {
                    let site = self.site(block);
                    blocks.push(first(What::Allocate { address, size, site, label: 0 }));
                }
            }
        }
        if let Some((low, high)) = span {
            self.builder.span(low, high - low);
        }
        segments.append(&mut blocks);
        segments
    }

    /// The number of an event's call site; 0 where PyTorch recorded none.
    fn site(&mut self, event: Id) -> u32 {
        let pickle = self.pickle;
        let Some(frames) = pickle.get(event, "frames") else { return 0 };
        let Some(list) = pickle.list(frames).filter(|list| !list.is_empty()) else { return 0 };
        if let Some(&known) = self.stacks.get(&frames) {
            return known;
        }
        if self.stack_bytes > MOST_STACKS {
            return 0;
        }
        let mut stack = String::new();
        for &frame in list.iter().take(MOST_FRAMES) {
            let text = |key| pickle.get(frame, key).and_then(|id| pickle.text(id));
            let cut = |text: &str| text.chars().take(MOST_NAME).collect::<String>();
            let name = cut(text("name").unwrap_or("?"));
            let file = cut(text("filename").unwrap_or("?"));
            let line = self.number(frame, "line").unwrap_or(0);
            let _ = writeln!(stack, "{name} ({file}:{line})");
        }
        self.stack_bytes += stack.len();
        let id = self.stacks.len() as u32 + 1;
        self.stacks.insert(frames, id);
        self.builder.site(id, stack.trim_end().to_owned());
        id
    }

    /// The number of an event's label: what the program set as the allocator's metadata.
    fn label(&mut self, event: Id) -> u32 {
        let pickle = self.pickle;
        let name = pickle.get(event, "user_metadata").and_then(|id| pickle.text(id));
        let Some(name) = name.filter(|name| !name.is_empty()) else { return 0 };
        let next = self.labels.len() as u32 + 1;
        let builder = &mut self.builder;
        *self.labels.entry(name).or_insert_with(|| {
            builder.label(next, name);
            next
        })
    }
}
