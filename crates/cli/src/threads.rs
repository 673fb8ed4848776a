//! A trace played by as many threads as recorded it, each its own allocations and frees in order:
//! what contention costs. Limits and mappings that changed on the way are left out.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aquifer::MemoryStats;
use aquifer::core::replay::WhatIf;
use aquifer::core::trace::{self, Event, Lifetimes, Trace};
use aquifer::core::{Allocation, HostModel, Pool, Request};

/// Threads that are played at once.
const MOST_THREADS: usize = 256;

/// What came of it.
pub(crate) struct Played {
    pub(crate) threads: usize,
    pub(crate) events: u64,
    pub(crate) refusals: u64,
    pub(crate) elapsed: Duration,
    pub(crate) stats: MemoryStats,
}

/// An allocation on its way from the thread that makes it to the one that frees it.
#[derive(Default)]
enum Slot {
    #[default]
    Ahead,
    Live(Allocation),
    Gone,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Plays a trace. A thread that frees what another makes waits for it; it always comes, since
/// the trace has it earlier.
///
/// # Errors
/// More threads than there may be.
pub(crate) fn play(trace: &Trace, lifetimes: &Lifetimes, rules: &WhatIf) -> Result<Played, String> {
    let mut by_thread: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (index, record) in trace.records.iter().enumerate() {
        if record.event.is_call() || matches!(record.event, Event::Complete { .. }) {
            by_thread.entry(record.thread).or_default().push(index);
        }
    }
    if by_thread.len() > MOST_THREADS {
        let count = by_thread.len();
        return Err(format!(
            "{count} threads recorded the trace: at most {MOST_THREADS} are played"
        ));
    }
    let device = HostModel::quick();
    let pool = Mutex::new(Pool::new(&rules.caps, rules.settings));
    let slots: Vec<Mutex<Slot>> = lifetimes.all.iter().map(|_| Mutex::default()).collect();
    let shared = Shared { trace, lifetimes, rules, device, pool, slots };
    let start = Instant::now();
    let counts: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let spawn = |events: &Vec<usize>| {
            let (events, shared) = (events.clone(), &shared);
            scope.spawn(move || shared.run(&events))
        };
        let running: Vec<_> = by_thread.values().map(spawn).collect();
        running.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
    });
    Ok(Played {
        threads: by_thread.len(),
        events: counts.iter().map(|count| count.0).sum(),
        refusals: counts.iter().map(|count| count.1).sum(),
        elapsed: start.elapsed(),
        stats: lock(&shared.pool).stats(),
    })
}

struct Shared<'t> {
    trace: &'t Trace,
    lifetimes: &'t Lifetimes,
    rules: &'t WhatIf,
    device: HostModel,
    pool: Mutex<Pool>,
    slots: Vec<Mutex<Slot>>,
}

impl Shared<'_> {
    /// One thread's events; how many were calls of the pool, and how many of them were refused.
    fn run(&self, events: &[usize]) -> (u64, u64) {
        let (mut count, mut refusals) = (0, 0);
        for &index in events {
            let number = self.lifetimes.of_record[index] as usize;
            match &self.trace.records[index].event {
                Event::Complete { queue, ticket } => self.device.reach(*queue, *ticket),
                &Event::Allocate { place, asked, queue, .. } => {
                    let mut request = Request::new((self.rules.size)(asked), place.mode);
                    if let Some(queue) = queue {
                        request = request.on(queue);
                    }
                    let allocated = lock(&self.pool).allocate(&self.device, request);
                    refusals += u64::from(allocated.is_err());
                    *lock(&self.slots[number]) = allocated.map_or(Slot::Gone, Slot::Live);
                    count += 1;
                }
                Event::Free { stamps, .. } => {
                    let Some(slot) = self.slots.get(number) else { continue };
                    if let Slot::Live(allocation) = take(slot) {
                        let stamps = trace::stamps(stamps);
                        lock(&self.pool).free(&self.device, allocation, stamps);
                    }
                    count += 1;
                }
                Event::ClearCache => lock(&self.pool).clear_cache(&self.device),
                Event::Poll => lock(&self.pool).poll(&self.device),
                _ => {}
            }
        }
        (count, refusals)
    }
}

fn take(slot: &Mutex<Slot>) -> Slot {
    loop {
        let mut found = lock(slot);
        if !matches!(*found, Slot::Ahead) {
            return std::mem::replace(&mut *found, Slot::Gone);
        }
        drop(found);
        std::thread::yield_now();
    }
}
