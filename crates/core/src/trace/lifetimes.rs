//! Which allocation each event is about.

use std::collections::HashMap;

use crate::hazard::QueueId;
use crate::ledger::LabelId;
use crate::trace::{Event, Place, Trace};

/// One allocation, from the event that made it to the one that freed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// The record that made it.
    pub start: usize,
    /// The record that freed it; `None` where it lived to the end.
    pub end: Option<usize>,
    /// Where it lay.
    pub place: Place,
    /// Bytes asked.
    pub asked: u64,
    /// Bytes charged.
    pub size: u64,
    /// The queue that it was for.
    pub queue: Option<QueueId>,
    /// Whom it was counted under.
    pub label: LabelId,
}

/// The allocations of a trace.
#[derive(Clone, Debug, Default)]
pub struct Lifetimes {
    /// Every allocation, in the order in which they were made.
    pub all: Vec<Lifetime>,
    /// For each record the allocation that it makes or frees; [`NONE`](Self::NONE) where it does
    /// neither, or frees one that was made before the trace began.
    pub of_record: Vec<u32>,
}

impl Lifetimes {
    /// No allocation.
    pub const NONE: u32 = u32::MAX;

    /// Pairs the events of a trace by the places that they name.
    pub fn of(trace: &Trace) -> Self {
        let mut found = Self { all: Vec::new(), of_record: vec![Self::NONE; trace.records.len()] };
        let mut live: HashMap<Place, u32> = HashMap::new();
        for (index, record) in trace.records.iter().enumerate() {
            match &record.event {
                &Event::Allocate { place, asked, size, queue, label, .. } => {
                    let number = found.all.len() as u32;
                    found.of_record[index] = number;
                    let whole =
                        Lifetime { start: index, end: None, place, asked, size, queue, label };
                    found.all.push(whole);
                    // Two live allocations in one place: a broken trace. The older one ends here.
                    if let Some(older) = live.insert(place, number) {
                        found.all[older as usize].end = Some(index);
                    }
                }
                Event::Free { place, .. } => {
                    if let Some(number) = live.remove(place) {
                        found.of_record[index] = number;
                        found.all[number as usize].end = Some(index);
                    }
                }
                _ => {}
            }
        }
        found
    }
}
