//! What traces of other systems have in common, made into a trace of ours.

use std::collections::{BTreeMap, HashMap, HashSet};

use aquifer::core::trace::{Begin, Event, Extent, Place, Record, Trace, UNKNOWN_BLOCK};
use aquifer::core::{BlockId, Caps, QueueId, RefusalKind, Settings, Storage};

/// Something that another system's allocator did. Addresses are its own; where it has none, any
/// number that tells live allocations apart.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    Allocate {
        address: u64,
        size: u64,
        site: u32,
        label: u32,
    },
    Free {
        address: u64,
        size: u64,
    },
    Obtain {
        address: u64,
        size: u64,
    },
    GiveBack {
        address: u64,
        size: u64,
    },
    /// Memory behind a range of the span.
    Commit {
        address: u64,
        size: u64,
    },
    Decommit {
        address: u64,
        size: u64,
    },
    Refuse {
        size: u64,
    },
}

/// When and where it did so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Foreign {
    pub(crate) time_ns: u64,
    pub(crate) thread: u32,
    pub(crate) stream: u32,
    pub(crate) what: What,
}

/// The unit that CUDA's allocators round to.
pub(crate) const UNIT: u64 = 512;

/// A trace under construction.
#[derive(Debug)]
pub(crate) struct Builder {
    trace: Trace,
    /// Unit that sizes are charged in.
    unit: u64,
    /// Places and charges of live allocations by address.
    live: HashMap<u64, (Place, u64)>,
    /// Segments by address: block and size.
    segments: BTreeMap<u64, (BlockId, u64)>,
    blocks: u64,
    /// Address space whose memory comes and goes by ranges: block, address, size.
    span: Option<(BlockId, u64, u64)>,
    /// Offsets of allocations without a known place.
    spare: u64,
}

impl Builder {
    /// A trace that `source` recorded, which charges sizes in multiples of `unit`.
    pub(crate) fn new(source: &str, unit: u64) -> Self {
        // Limits far above whatever a program had: a replay sets its own.
        let settings = Settings::for_working_set(1 << 40, 1 << 41);
        let begin = Begin::new(source, &Caps::model(), settings);
        let mut builder = Self {
            trace: Trace::default(),
            unit,
            live: HashMap::new(),
            segments: BTreeMap::new(),
            blocks: 0,
            span: None,
            spare: 0,
        };
        builder.record(0, 0, 0, Event::Begin(Box::new(begin)));
        builder
    }

    fn record(&mut self, time_ns: u64, thread: u32, site: u32, event: Event) {
        // What is out of order in the file happened in the order of the file.
        let time_ns = time_ns.max(self.trace.records.last().map_or(0, |record| record.time_ns));
        self.trace.records.push(Record { time_ns, thread, site, event });
    }

    /// Names a label; their numbers count from 1.
    pub(crate) fn label(&mut self, id: u32, name: &str) {
        // The core numbers labels in the order in which they are named.
        let id = aquifer::core::LabelId::from_index(id as usize);
        self.record(0, 0, 0, Event::Label { id, name: name.into() });
    }

    /// Says where the address space is that [`What::Commit`] is of.
    pub(crate) fn span(&mut self, address: u64, size: u64) {
        self.blocks += 1;
        let block = BlockId(self.blocks);
        self.span = Some((block, address, size));
        self.record(0, 0, 0, Event::Reserve { block, mode: Storage::Private, size });
    }

    /// Names a call site; their numbers count from 1.
    pub(crate) fn site(&mut self, id: u32, stack: String) {
        self.record(0, 0, 0, Event::Site { id, stack: stack.into() });
    }

    /// Adds what happened, in order, after what must have been there before: allocations and
    /// segments that go without having come.
    pub(crate) fn add(&mut self, events: &[Foreign], before: &[Foreign]) {
        let (mut known, mut segments) = (HashSet::new(), HashSet::new());
        let (mut held, mut earlier) = (Vec::new(), Vec::new());
        let mut mapped = Ranges::default();
        for event in events {
            let before = |what| Foreign { time_ns: 0, what, ..*event };
            match event.what {
                What::Allocate { address, .. } => drop(known.insert(address)),
                What::Free { address, size } if !known.remove(&address) => {
                    earlier.push(before(What::Allocate { address, size, site: 0, label: 0 }));
                }
                What::Obtain { address, .. } => drop(segments.insert(address)),
                What::GiveBack { address, size } if !segments.remove(&address) => {
                    held.push(before(What::Obtain { address, size }));
                }
                What::Commit { address, size } => mapped.add(address, size),
                What::Decommit { address, size } => {
                    for (address, size) in mapped.remove(address, size) {
                        held.push(before(What::Commit { address, size }));
                    }
                }
                What::Free { .. } | What::GiveBack { .. } | What::Refuse { .. } => {}
            }
        }
        for event in held.iter().chain(before).chain(&earlier).chain(events) {
            self.one(event);
        }
    }

    fn one(&mut self, foreign: &Foreign) {
        let queue = Some(QueueId(foreign.stream));
        let (event, site) = match foreign.what {
            What::Allocate { address, size, site, label } => {
                let place = self.place(address);
                let charged = size.checked_next_multiple_of(self.unit).unwrap_or(size);
                if let Some((place, size)) = self.live.insert(address, (place, charged)) {
                    // Freed while nobody recorded: it cannot lie there twice.
                    let freed = Event::Free { place, size, stamps: Default::default() };
                    self.record(foreign.time_ns, foreign.thread, 0, freed);
                }
                let label = aquifer::core::LabelId::from_index(label as usize);
                let event = Event::Allocate {
                    place,
                    asked: size,
                    size: charged,
                    queue,
                    label,
                    inherited: None,
                };
                (event, site)
            }
            What::Free { address, .. } => match self.live.remove(&address) {
                Some((place, size)) => (Event::Free { place, size, stamps: Default::default() }, 0),
                None => return,
            },
            What::Obtain { address, size } => {
                self.blocks += 1;
                let block = BlockId(self.blocks);
                self.segments.insert(address, (block, size));
                (Event::Obtain { block, mode: Storage::Private, size }, 0)
            }
            What::GiveBack { address, .. } => match self.segments.remove(&address) {
                Some((block, _)) => (Event::GiveBack { block }, 0),
                None => return,
            },
            What::Commit { address, size } | What::Decommit { address, size } => {
                let Some((block, start, _)) = self.span else { return };
                let extent = Extent { block, offset: address.saturating_sub(start), len: size };
                let commits = matches!(foreign.what, What::Commit { .. });
                (if commits { Event::Commit(extent) } else { Event::Decommit(extent) }, 0)
            }
            What::Refuse { size } => {
                let (mode, label) = (Storage::Private, Default::default());
                let reason = RefusalKind::Limit;
                (Event::Refuse { mode, asked: size, queue, label, reason }, 0)
            }
        };
        self.record(foreign.time_ns, foreign.thread, site, event);
    }

    /// Where an address lies: in a segment, or nowhere that is known.
    fn place(&mut self, address: u64) -> Place {
        let segment = self.segments.range(..=address).next_back();
        let known = segment.filter(|(start, (_, size))| address - **start < *size);
        let known = known.map(|(start, (block, _))| (*block, *start));
        let in_span = |span: &(BlockId, u64, u64)| address >= span.1 && address - span.1 < span.2;
        let span = self.span.filter(in_span).map(|(block, start, _)| (block, start));
        match known.or(span) {
            Some((block, start)) => {
                Place { mode: Storage::Private, block, offset: address - start }
            }
            None => {
                self.spare += 1;
                Place { mode: Storage::Private, block: UNKNOWN_BLOCK, offset: self.spare }
            }
        }
    }

    pub(crate) fn finish(self) -> Trace {
        self.trace
    }
}

/// Stretches of address space that do not overlap, by where they begin.
#[derive(Debug, Default)]
pub(crate) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds a stretch.
    pub(crate) fn add(&mut self, start: u64, size: u64) {
        self.remove(start, size);
        self.0.insert(start, start.saturating_add(size));
    }

    /// Takes a stretch out; what of it was not there.
    pub(crate) fn remove(&mut self, start: u64, size: u64) -> Vec<(u64, u64)> {
        let end = start.saturating_add(size);
        let below = self.0.range(..start).next_back().map(|(&from, &to)| (from, to));
        let first = below.filter(|range| range.1 > start).map_or(start, |range| range.0);
        let touched: Vec<_> = self.0.range(first..end).map(|(&from, &to)| (from, to)).collect();
        let (mut missing, mut at) = (Vec::new(), start);
        for (from, to) in touched {
            self.0.remove(&from);
            if from < start {
                self.0.insert(from, start);
            }
            if to > end {
                self.0.insert(end, to);
            }
            if from > at {
                missing.push((at, from - at));
            }
            at = at.max(to);
        }
        if at < end {
            missing.push((at, end - at));
        }
        missing
    }
}
