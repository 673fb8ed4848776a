//! Traces: what a pool tells replays exactly; what is broken is told, and never panics.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use aquifer_core::replay::{self, WhatIf};
use aquifer_core::trace::{Begin, Event, Lifetimes, LimitKind, Observer, Record, Trace, format};
use aquifer_core::{
    Allocation, Caps, HostModel, Pool, QueueId, Request, Reuse, Settings, Stamp, Stamps, Storage,
};

#[derive(Clone, Debug, Default)]
struct Kept(Arc<Mutex<Vec<Record>>>);

impl Observer for Kept {
    fn record(&mut self, event: &Event) {
        let mut records = self.0.lock().unwrap();
        let time_ns = records.len() as u64 * 100;
        // Threads come and go, so that the file has to say so.
        let thread = (records.len() / 7 % 3) as u32;
        records.push(Record { time_ns, thread, site: 0, event: event.clone() });
    }
}

fn begin(caps: &Caps, settings: Settings) -> Begin {
    Begin::new("aquifer test", caps, settings)
}

/// A pool that random calls are made of, refusals, failures and every other event among them.
struct Exercise {
    pool: Pool,
    device: HostModel,
    live: Vec<(Allocation, Stamps)>,
    maps: Vec<aquifer_core::MappingId>,
    wraps: Vec<u64>,
    random: fastrand::Rng,
    tickets: [u64; 3],
}

impl Exercise {
    fn new(caps: &Caps, settings: Settings, seed: u64) -> Self {
        Self {
            pool: Pool::new(caps, settings),
            device: HostModel::with_virtual_memory(),
            live: Vec::new(),
            maps: Vec::new(),
            wraps: Vec::new(),
            random: fastrand::Rng::with_seed(seed),
            tickets: [0; 3],
        }
    }

    fn stamps(&mut self) -> Stamps {
        let mut stamps = Stamps::default();
        for queue in 0..self.random.u32(0..3) {
            let ticket = self.tickets[queue as usize] + 1;
            self.tickets[queue as usize] = ticket;
            stamps.add(Stamp { queue: QueueId(queue), ticket, epoch: ticket });
        }
        stamps
    }

    fn allocate(&mut self) {
        let len = match self.random.u32(0..10) {
            0 => 0,
            1..5 => self.random.u64(1..16_384),
            5..9 => self.random.u64(16_384..3_000_000),
            _ => self.random.u64(..),
        };
        let mode = if self.random.bool() { Storage::Shared } else { Storage::Private };
        let outer = self.pool.label(Default::default(), ["a", "b", ""][self.random.usize(0..3)]);
        let label = self.pool.label(outer, ["x", ""][self.random.usize(0..2)]);
        let mut request = Request::new(len, mode).labelled(label);
        if self.random.bool() {
            request = request.on(QueueId(self.random.u32(0..3)));
        }
        if let Ok(allocation) = self.pool.allocate(&self.device, request) {
            let stamps = self.stamps();
            self.live.push((allocation, stamps));
        }
    }

    fn free(&mut self) {
        if !self.live.is_empty() {
            let index = self.random.usize(..self.live.len());
            let (allocation, mut stamps) = self.live.swap_remove(index);
            if self.random.bool() {
                stamps = Stamps::default();
            }
            self.pool.free(&self.device, allocation, stamps);
        }
    }

    fn rare(&mut self) {
        match self.random.u32(0..12) {
            0 => drop(self.pool.set_memory_limit(self.random.u64(10 << 20..200 << 20))),
            1 => drop(self.pool.set_cache_limit(&self.device, self.random.u64(..64 << 20))),
            2 => drop(self.pool.set_wired_limit(&self.device, self.random.u64(..80 << 20))),
            3 => self.pool.clear_cache(&self.device),
            4 => self.pool.relieve(&self.device, 50),
            5 => self.pool.reset_peak(),
            6 => self.device.fail_after(self.random.u64(0..4)),
            7 => {
                let size = self.random.u64(1..20 << 20);
                let map = self.pool.map(&self.device, size, Some(aquifer_core::BlockId(900)));
                self.maps.extend(map);
            }
            8 => {
                if let Some(map) = self.maps.pop() {
                    self.pool.unmap(&self.device, map);
                }
            }
            9 => {
                let size = self.random.u64(1..1 << 20);
                self.pool.wrap(size);
                self.wraps.push(size);
            }
            10 => {
                if let Some(size) = self.wraps.pop() {
                    self.pool.unwrap_memory(size);
                }
            }
            _ => self.pool.poll(&self.device),
        }
    }

    fn step(&mut self) {
        match self.random.u32(0..100) {
            0..45 => self.allocate(),
            45..85 => self.free(),
            85..95 => {
                let queue = self.random.u32(0..3);
                let ticket = self.random.u64(..=self.tickets[queue as usize]);
                self.device.reach(QueueId(queue), ticket);
            }
            _ => self.rare(),
        }
    }

    fn run(mut self, steps: usize, kept: &Kept) -> aquifer_core::MemoryStats {
        let (caps, settings) = (Caps::model(), self.pool.settings());
        self.pool.start_observing(Box::new(kept.clone()), begin(&caps, settings));
        for _ in 0..steps {
            self.step();
        }
        for (allocation, stamps) in std::mem::take(&mut self.live) {
            self.pool.free(&self.device, allocation, stamps);
        }
        let stats = self.pool.stats();
        self.pool.close(&self.device);
        self.pool.stop_observing();
        stats
    }
}

fn kinds() -> Vec<(Caps, Settings)> {
    let settings = Settings::for_working_set(100 << 20, 200 << 20);
    let whole = Caps { wires_blocks: true, ..Caps::model_with_blocks(64 << 20) };
    vec![
        (Caps::model(), settings),
        (Caps::model_with_blocks(64 << 20), settings),
        (whole, settings),
        (Caps::model(), settings.with_reuse(Reuse::Blocks)),
    ]
}

fn encoded(records: &[Record]) -> Vec<u8> {
    let mut encoder = format::Encoder::new();
    records.iter().for_each(|record| encoder.push(record));
    encoder.take()
}

fn exercised(seed: u64, kind: usize, steps: usize) -> Trace {
    let (caps, settings) = kinds().swap_remove(kind);
    let kept = Kept::default();
    Exercise::new(&caps, settings, seed).run(steps, &kept);
    Trace { records: std::mem::take(&mut *kept.0.lock().unwrap()) }
}

/// What was told, written, read and played gives every placement, driver's call and figure again;
/// refusals, failures of the driver, labels, limits, wiring, mappings and reuse in flight included.
#[test]
fn random_use_replays_exactly_from_its_file() {
    for seed in 0..40 {
        for kind in 0..kinds().len() {
            let trace = exercised(seed, kind, 3000);
            let decoded = format::decode(&encoded(&trace.records)).unwrap();
            assert_eq!((decoded.torn, decoded.unknown), (0, 0));
            let same = decoded.trace.records.len() == trace.records.len();
            assert!(same, "as many events are read as were written");
            let verified = replay::verify(&decoded.trace);
            let verified = verified.unwrap_or_else(|e| panic!("seed {seed}, kind {kind}: {e}"));
            assert_eq!(Some(&verified.stats), trace.last_figures());
            assert!(verified.compared >= 2);
        }
    }
}

/// Every kind of event comes back from the file as it was.
#[test]
fn every_event_is_read_as_it_was_written() {
    let mut seen = std::collections::BTreeSet::new();
    for kind in 0..kinds().len() {
        let trace = exercised(7, kind, 20_000);
        let decoded = format::decode(&encoded(&trace.records)).unwrap();
        for (written, read) in trace.records.iter().zip(&decoded.trace.records) {
            seen.insert(written.event.name());
            match (&written.event, &read.event) {
                // Facts that a pool does not use, and the name of the driver's call, are not kept.
                (Event::Begin(a), Event::Begin(b)) => assert_eq!(a.settings, b.settings),
                (Event::Refuse { asked: a, .. }, Event::Refuse { asked: b, .. }) => {
                    assert_eq!(a, b);
                }
                _ => assert_eq!(written, read),
            }
        }
    }
    let queue = QueueId(3);
    let others = [
        Event::Submit { queue, ticket: 9, commands: 4 },
        Event::Copy { queue, size: 1 << 40 },
        Event::Wait { queue, ticket: u64::MAX, ns: 5 },
        Event::Site { id: 1, stack: "main\nf".into() },
        Event::Held { label: Default::default(), size: 5, count: 1 },
    ];
    for event in others {
        seen.insert(event.name());
        let record = Record { time_ns: 3, thread: 2, site: 0, event };
        let read = format::decode(&encoded(std::slice::from_ref(&record))).unwrap();
        assert_eq!(read.trace.records, [record]);
    }
    assert_eq!(seen.len(), 31, "all kinds were seen: {seen:?}");
}

/// The last call of the pool in a trace.
fn last_call(trace: &Trace) -> usize {
    trace.records.iter().rposition(|record| !record.event.is_effect()).unwrap()
}

/// A trace that says something else than what happened is told, with the event.
#[test]
fn a_trace_that_differs_says_at_which_event() {
    let trace = exercised(3, 0, 2000);
    let mut told = 0;
    for index in 0..trace.records.len() {
        let mut changed = trace.clone();
        let differs = match &mut changed.records[index].event {
            Event::Allocate { asked, .. } => {
                *asked += 1 << 20;
                true
            }
            Event::Commit(extent) | Event::Decommit(extent) => {
                extent.offset += 16_384;
                true
            }
            Event::Figures(stats) => {
                stats.active += 256;
                true
            }
            _ => false,
        };
        if differs {
            let error = replay::verify(&changed).unwrap_err();
            let at = error.record.unwrap();
            // A driver's answer that differs may be seen at the call that it answers.
            let prefix = Trace { records: trace.records[..=index].to_vec() };
            let from = last_call(&prefix);
            assert!(at >= from && at <= index + 70, "{error} after a change at {index}");
            told += 1;
        }
    }
    assert!(told > 500);
}

/// A trace that was cut anywhere is read up to its last whole event.
#[test]
fn a_torn_file_is_whole_up_to_its_last_event() {
    let trace = exercised(5, 0, 400);
    let bytes = encoded(&trace.records);
    let mut read = 0;
    for cut in 8..bytes.len() {
        let decoded = format::decode(&bytes[..cut]).unwrap();
        let count = decoded.trace.records.len();
        assert!(count >= read && decoded.torn < cut);
        read = count;
        let prefix = Trace { records: trace.records[..count].to_vec() };
        if cut % 13 == 0 && count > 2 {
            // Also where what was cut off are the driver's answers to the last call.
            let verified = replay::verify(&prefix);
            verified.unwrap_or_else(|error| panic!("{error}, of {count} events"));
        }
    }
}

/// Broken bytes are an error or another trace, never a panic; also when they are played.
#[test]
fn mutated_traces_never_panic() {
    let mut random = fastrand::Rng::with_seed(11);
    let (mut errors, mut mismatches) = (0, 0);
    for round in 0..400 {
        let trace = exercised(round % 5, (round % 4) as usize, 300);
        let mut bytes = encoded(&trace.records);
        for _ in 0..random.usize(1..6) {
            let at = random.usize(..bytes.len());
            match random.u32(0..4) {
                0 => bytes[at] = random.u8(..),
                1 => bytes[at] ^= 1 << random.u32(..8),
                2 => drop(bytes.splice(at..at, (0..random.usize(1..9)).map(|_| 0xff))),
                _ => drop(bytes.drain(at..(at + random.usize(1..20)).min(bytes.len()))),
            }
        }
        match format::decode(&bytes) {
            Err(_) => errors += 1,
            Ok(decoded) => {
                mismatches += u32::from(replay::verify(&decoded.trace).is_err());
                let lifetimes = Lifetimes::of(&decoded.trace);
                if let Some(begin) = decoded.trace.begin() {
                    let what_if = WhatIf { in_flight: Some(8), ..WhatIf::as_recorded(begin) };
                    what_if.play(&decoded.trace, &lifetimes, None, |_, _| {});
                }
                let _ = (decoded.trace.labels(), decoded.trace.sites());
            }
        }
    }
    assert!(errors > 50 && mismatches > 50, "{errors} errors, {mismatches} mismatches");
}

/// A trace that began in the middle says that it cannot be verified, and what was held.
#[test]
fn a_trace_that_began_in_use_says_so() {
    let (caps, settings) = kinds().swap_remove(0);
    let mut exercise = Exercise::new(&caps, settings, 1);
    (0..500).for_each(|_| exercise.step());
    let active = exercise.pool.stats().active;
    assert!(active > 0);
    let kept = Kept::default();
    exercise.run(100, &kept);
    let trace = Trace { records: kept.0.lock().unwrap().clone() };
    let held = trace.records.iter().map(|record| match record.event {
        Event::Held { size, .. } => size,
        _ => 0,
    });
    assert_eq!(held.sum::<u64>(), active, "labels say what was held");
    let error = replay::verify(&trace).unwrap_err();
    assert!(error.record.is_none() && error.to_string().contains("in use already"), "{error}");
}

/// With another limit other requests are refused; without a change nothing is.
#[test]
fn what_if_counts_what_another_limit_would_refuse() {
    let (caps, settings) = kinds().swap_remove(0);
    let (device, kept) = (HostModel::quick(), Kept::default());
    let mut pool = Pool::new(&caps, settings);
    pool.start_observing(Box::new(kept.clone()), begin(&caps, settings));
    let request = || Request::new(1 << 20, Storage::Private);
    let live: Vec<_> = (0..32).map(|_| pool.allocate(&device, request()).unwrap()).collect();
    live.into_iter().for_each(|range| pool.free(&device, range, Stamps::default()));
    pool.stop_observing();
    let trace = Trace { records: kept.0.lock().unwrap().clone() };
    let lifetimes = Lifetimes::of(&trace);
    let mut what_if = WhatIf::as_recorded(trace.begin().unwrap());
    let same = what_if.play(&trace, &lifetimes, None, |_, _| {});
    assert_eq!((same.refusals, same.peak_active), (0, 32 << 20));
    assert_eq!(same.stats, pool.stats());
    what_if.settings.limits.memory = 10 << 20;
    what_if.fixed = vec![LimitKind::Memory];
    let less = what_if.play(&trace, &lifetimes, None, |_, _| {});
    assert_eq!((less.refusals, less.refused_bytes, less.peak_active), (22, 22 << 20, 10 << 20));
}

/// Requests that were refused: counted once though they were tried twice (C.3), told as fitting under
/// a limit that they fit under, and never given.
#[test]
fn refusals_are_counted_once_and_would_fit_elsewhere() {
    let (caps, mut settings) = kinds().swap_remove(0);
    settings.limits.memory = 8 << 20;
    let (device, kept) = (HostModel::quick(), Kept::default());
    let mut pool = Pool::new(&caps, settings);
    pool.start_observing(Box::new(kept.clone()), begin(&caps, settings));
    let request = |mib: u64| Request::new(mib << 20, Storage::Private);
    let held = pool.allocate(&device, request(4)).unwrap();
    for _ in 0..3 {
        // As a device does: refused, the cache cleared, and once more.
        pool.allocate(&device, request(6)).unwrap_err();
        pool.clear_cache(&device);
        pool.allocate(&device, request(6)).unwrap_err();
    }
    pool.free(&device, held, Stamps::default());
    pool.stop_observing();
    let mut records = kept.0.lock().unwrap().clone();
    records.iter_mut().for_each(|record| record.thread = 0);
    let trace = Trace { records };
    let lifetimes = Lifetimes::of(&trace);
    let mut what_if = WhatIf::as_recorded(trace.begin().unwrap());
    let same = what_if.play(&trace, &lifetimes, None, |_, _| {});
    assert_eq!((same.refusals, same.refused_bytes, same.would_fit), (3, 18 << 20, 0));
    what_if.settings.limits.memory = 16 << 20;
    let more = what_if.play(&trace, &lifetimes, None, |_, _| {});
    assert_eq!((more.refusals, more.would_fit), (0, 3));
    assert_eq!((more.peak_active, more.peak_reserved), (4 << 20, 4 << 20), "nobody is given more");
}

/// What was live when a trace began counts against another limit.
#[test]
fn what_was_held_before_counts_against_the_limit() {
    let (caps, settings) = kinds().swap_remove(0);
    let (device, kept) = (HostModel::quick(), Kept::default());
    let mut pool = Pool::new(&caps, settings);
    let request = |mib: u64| Request::new(mib << 20, Storage::Private);
    let before = pool.allocate(&device, request(30)).unwrap();
    pool.start_observing(Box::new(kept.clone()), begin(&caps, settings));
    let after = pool.allocate(&device, request(4)).unwrap();
    pool.free(&device, after, Stamps::default());
    pool.free(&device, before, Stamps::default());
    pool.stop_observing();
    let trace = Trace { records: kept.0.lock().unwrap().clone() };
    let mut what_if = WhatIf::as_recorded(trace.begin().unwrap());
    what_if.fixed = vec![LimitKind::Memory];
    for (limit, refusals) in [(33, 1), (34, 0)] {
        what_if.settings.limits.memory = limit << 20;
        let outcome = what_if.play(&trace, &Lifetimes::of(&trace), None, |_, _| {});
        assert_eq!(outcome.refusals, refusals, "under {limit} MiB");
    }
}
