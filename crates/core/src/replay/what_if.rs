//! Replay with other limits, sizes or reuse.

use std::collections::HashMap;

use crate::caps::Caps;
use crate::hazard::{QueueId, Stamp, Stamps, Ticket};
use crate::ledger::LabelId;
use crate::model::HostModel;
use crate::pool::{Pool, Request, Settings};
use crate::refusal::RefusalKind;
use crate::replay::{Player, Step};
use crate::stats::MemoryStats;
use crate::trace::{self, Begin, Event, Lifetimes, LimitKind, Observer, Trace};

/// How a trace is played that is not played as it was.
#[derive(Clone, Debug)]
pub struct WhatIf {
    /// The device.
    pub caps: Caps,
    /// Reuse, limits, working set; those that were set while the trace was recorded are set again
    /// unless they are `fixed`.
    pub settings: Settings,
    /// Limits of `settings` that hold whatever the trace says.
    pub fixed: Vec<LimitKind>,
    /// Events between a free and the end of the work that uses the memory, for traces that do not
    /// say what work does. `None`: as the trace says, and none where it says nothing.
    pub in_flight: Option<u64>,
    /// What is asked in place of what was.
    pub size: fn(u64) -> u64,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Outcome {
    /// The figures at the end.
    pub stats: MemoryStats,
    /// The most bytes that were asked and live at once.
    pub peak_asked: u64,
    /// The highest `active`, whatever the trace did to the peak.
    pub peak_active: u64,
    /// The highest `reserved`, likewise.
    pub peak_reserved: u64,
    /// Padding when `active` was highest.
    pub padding_at_peak: u64,
    /// Requests that were refused for good, here or already when the trace was recorded.
    pub refusals: u64,
    /// Bytes that they asked.
    pub refused_bytes: u64,
    /// Requests that the trace has as refused and that are given now.
    pub would_fit: u64,
    /// Calls of the driver, and returns to it.
    pub driver_calls: u64,
    /// Calls of the pool that were played.
    pub events: u64,
}

impl WhatIf {
    /// As the trace was recorded.
    pub fn as_recorded(begin: &Begin) -> Self {
        Self {
            caps: begin.caps.clone(),
            settings: begin.settings,
            fixed: Vec::new(),
            in_flight: None,
            size: |asked| asked,
        }
    }

    /// Plays a trace. `see` is called after every record with the pool as it then is.
    pub fn play(
        &self,
        trace: &Trace,
        lifetimes: &Lifetimes,
        observer: Option<(Box<dyn Observer>, Begin)>,
        mut see: impl FnMut(usize, &Pool),
    ) -> Outcome {
        let device = HostModel::quick();
        let mut pool = Pool::new(&self.caps, self.settings);
        // What was there before counts against the limits, whatever it was.
        let held = trace.first_figures().map_or(0, |stats| stats.active_with_mapped);
        if held > 0 {
            // A limit below that refuses everything anyway.
            let _held_to_the_end = pool.map(&device, held, None);
        }
        if let Some((observer, begin)) = observer {
            pool.start_observing(observer, begin);
        }
        let mut run = Run {
            rules: self,
            lifetimes,
            player: Player::new(pool, lifetimes),
            device,
            last: Vec::new(),
            retried: retried(trace),
            outcome: Outcome::default(),
        };
        for (index, record) in trace.records.iter().enumerate() {
            run.step(index, &record.event, lifetimes.of_record[index]);
            see(index, &run.player.pool);
        }
        run.player.pool.stop_observing();
        run.outcome.stats = run.player.pool.stats();
        run.outcome.driver_calls = run.device.calls() + run.device.returns();
        run.outcome
    }
}

struct Run<'r> {
    rules: &'r WhatIf,
    lifetimes: &'r Lifetimes,
    player: Player,
    device: HostModel,
    /// The last ticket of each queue that something was freed with.
    last: Vec<Ticket>,
    /// Records of refusals that were tried once more.
    retried: Vec<usize>,
    outcome: Outcome,
}

impl Run<'_> {
    fn step(&mut self, index: usize, event: &Event, number: u32) {
        let now = self.outcome.events + 1;
        match event {
            Event::Complete { queue, ticket } => self.device.reach(*queue, *ticket),
            Event::Limit { kind, .. } if self.rules.fixed.contains(kind) => {}
            Event::Map { size, id: Some(id), .. } => self.map(*size, *id),
            Event::Map { size, id: None, .. } => {
                let fits = self.player.pool.allows(*size);
                self.refused_then(*size, fits);
            }
            Event::Refuse { .. } if self.retried.binary_search(&index).is_ok() => {}
            &Event::Refuse { asked, .. } => {
                // Who asked did without: it is not given now either, only told.
                let fits = self.player.pool.allows((self.rules.size)(asked));
                self.refused_then(asked, fits);
            }
            Event::Allocate { .. } => self.ask(now, event, number),
            Event::Free { stamps, .. } => self.free(now, stamps, number),
            event if event.is_call() || matches!(event, Event::Label { .. }) => {
                self.player.play(&self.device, event, number);
            }
            _ => {}
        }
        self.outcome.events += u64::from(event.is_call());
        let ledger = &self.player.pool.ledger;
        self.outcome.peak_asked = self.outcome.peak_asked.max(ledger.asked);
        self.outcome.peak_reserved = self.outcome.peak_reserved.max(ledger.reserved);
        if ledger.active > self.outcome.peak_active {
            self.outcome.peak_active = ledger.active;
            self.outcome.padding_at_peak = ledger.active - ledger.asked;
        }
    }

    /// The device that the trace is of is not this one: a mapping is only counted.
    fn map(&mut self, size: u64, id: u32) {
        let Ok(mapping) = self.player.pool.map(&self.device, size, None) else {
            self.refused(size);
            return;
        };
        if let Some(old) = self.player.mappings.insert(id, mapping) {
            self.player.pool.unmap(&self.device, old);
        }
    }

    fn refused(&mut self, bytes: u64) {
        self.outcome.refusals += 1;
        self.outcome.refused_bytes = self.outcome.refused_bytes.saturating_add(bytes);
    }

    /// What the trace has as refused.
    fn refused_then(&mut self, bytes: u64, fits: bool) {
        if fits {
            self.outcome.would_fit += 1;
        } else {
            self.refused(bytes);
        }
    }

    fn ask(&mut self, now: u64, event: &Event, number: u32) {
        let &Event::Allocate { place, asked, queue, label, .. } = event else { return };
        self.pass(now);
        let len = (self.rules.size)(asked);
        let mut request = Request::new(len, place.mode).labelled(label);
        if let Some(queue) = queue {
            request = request.on(queue);
        }
        let mut step = self.player.request(&self.device, request, number);
        if let Step::Refused(RefusalKind::Limit | RefusalKind::Driver(..)) = step {
            // Rule C.3: what is in flight is waited for, and the request is tried once more.
            for (queue, &ticket) in self.last.iter().enumerate() {
                self.device.reach(QueueId(queue as u32), ticket);
            }
            self.player.pool.clear_cache(&self.device);
            step = self.player.request(&self.device, request, number);
        }
        if let Step::Refused(_) = step {
            self.refused(asked);
        }
    }

    /// Time goes on where the trace does not say what work does: the events are the tickets.
    fn pass(&mut self, now: u64) {
        if let Some(lag) = self.rules.in_flight {
            for queue in 0..self.last.len() {
                self.device.reach(QueueId(queue as u32), now.saturating_sub(lag));
            }
        }
    }

    fn free(&mut self, now: u64, noted: &[(QueueId, Ticket)], number: u32) {
        self.pass(now);
        let slot = self.player.live.get_mut(number as usize);
        // It was refused, or was made before the trace began.
        let Some(allocation) = slot.and_then(Option::take) else { return };
        let mut stamps = trace::stamps(noted);
        if self.rules.in_flight.is_some() && stamps.is_empty() {
            let lifetime = self.lifetimes.all.get(number as usize);
            let queue = lifetime.and_then(|lifetime| lifetime.queue).unwrap_or(QueueId(0));
            stamps = Stamps::from(Stamp { queue, ticket: now, epoch: now });
        }
        for stamp in stamps.iter() {
            let index = stamp.queue.0 as usize;
            if self.last.len() <= index {
                self.last.resize(index + 1, 0);
            }
            self.last[index] = self.last[index].max(stamp.ticket);
        }
        self.player.pool.free(&self.device, allocation, stamps);
    }
}

/// Records of refusals that the same thread followed by the same request, with the cache cleared
/// between: the first half of rule C.3.
fn retried(trace: &Trace) -> Vec<usize> {
    /// What a thread asks next, and whether it clears the cache before.
    type Next = (u64, Option<QueueId>, LabelId, bool);
    let mut next: HashMap<u32, Next> = HashMap::new();
    let mut found = Vec::new();
    for (index, record) in trace.records.iter().enumerate().rev() {
        let (asked, queue, label) = match record.event {
            Event::Allocate { asked, queue, label, .. } => (asked, queue, label),
            Event::Refuse { asked, queue, label, .. } => (asked, queue, label),
            Event::ClearCache => {
                if let Some(next) = next.get_mut(&record.thread) {
                    next.3 = true;
                }
                continue;
            }
            _ => continue,
        };
        let refused = matches!(record.event, Event::Refuse { .. });
        if refused && next.get(&record.thread) == Some(&(asked, queue, label, true)) {
            found.push(index);
        }
        next.insert(record.thread, (asked, queue, label, false));
    }
    found.reverse();
    found
}
