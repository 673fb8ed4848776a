//! Traces played again, on the real pool and no device.
//!
//! [`verify`] plays a trace just as it was: the driver's answers are those that were recorded, and
//! every placement, refusal, driver's call and figure must come out the same. [`WhatIf`] plays it
//! with other limits, sizes or reuse, on a device that only counts.

mod script;
mod what_if;

use std::collections::HashMap;
use std::fmt;

use crate::limits::MappingId;
use crate::memory::Memory;
use crate::pool::{Allocation, Pool, Request};
use crate::refusal::RefusalKind;
use crate::stats::MemoryStats;
use crate::trace::{self, Event, Lifetimes, LimitKind, Place, Trace};

pub use what_if::{Outcome, WhatIf};

/// A replay that came out as the trace says.
#[derive(Clone, Debug)]
pub struct Verified {
    /// The figures at the end; of a file that ends between a call and the driver's answers to it,
    /// those before that call.
    pub stats: MemoryStats,
    /// Calls of the pool that were played.
    pub events: usize,
    /// Times that all figures were compared.
    pub compared: usize,
}

/// Why a trace cannot be verified, or where the replay came out otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The record, counted from 0; `None` where the trace as a whole cannot be verified.
    pub record: Option<usize>,
    /// What the trace has and what the replay has.
    pub reason: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.record {
            Some(record) => write!(f, "event {record}: {}", self.reason),
            None => f.write_str(&self.reason),
        }
    }
}

impl std::error::Error for Mismatch {}

impl Mismatch {
    fn at(record: usize, reason: impl Into<String>) -> Self {
        Self { record: Some(record), reason: reason.into() }
    }
}

/// Whether a trace has what an exact replay needs; else why not.
///
/// # Errors
/// It was not recorded by this library, or began with a pool that had been used.
pub fn is_exact(trace: &Trace) -> Result<(), Mismatch> {
    let no = |reason: &str| Err(Mismatch { record: None, reason: reason.to_owned() });
    let Some(begin) = trace.begin() else {
        return no("the trace does not say what device it is of");
    };
    if !begin.source.starts_with("aquifer ") {
        return no("the trace was recorded by another system, which places memory by other rules");
    }
    let used = trace.first_figures().is_none_or(|stats| {
        let held = stats.blocks > 0 || stats.wrapped > 0;
        held || stats.committed_ever > 0 || stats.peak_with_mapped > 0
    });
    if used {
        return no("the trace began when the pool was in use already: what it held is not known");
    }
    Ok(())
}

/// Plays a trace just as it was recorded.
///
/// # Errors
/// Where it cannot be played exactly ([`is_exact`]), and at the first event that comes out
/// otherwise: an allocation in another place, a call of the driver that was not made or made
/// otherwise, a figure that differs.
///
/// ```
/// use aquifer_core::trace::{Begin, Event, Observer, Record, Trace};
/// use aquifer_core::{Caps, HostModel, Pool, Request, Settings, Storage, replay};
/// use std::sync::{Arc, Mutex};
///
/// #[derive(Debug, Default, Clone)]
/// struct Kept(Arc<Mutex<Vec<Record>>>);
/// impl Observer for Kept {
///     fn record(&mut self, event: &Event) {
///         let event = event.clone();
///         self.0.lock().unwrap().push(Record { time_ns: 0, thread: 0, site: 0, event });
///     }
/// }
///
/// let (device, caps) = (HostModel::with_virtual_memory(), Caps::model());
/// let settings = Settings::for_working_set(1 << 30, 2 << 30);
/// let mut pool = Pool::new(&caps, settings);
/// let kept = Kept::default();
/// pool.start_observing(Box::new(kept.clone()), Begin::new("aquifer example", &caps, settings));
/// let range = pool.allocate(&device, Request::new(100_000, Storage::Shared))?;
/// pool.free(&device, range, Default::default());
/// pool.stop_observing();
/// let trace = Trace { records: kept.0.lock().unwrap().clone() };
/// assert_eq!(replay::verify(&trace).unwrap().stats, pool.stats());
/// # Ok::<(), aquifer_core::Refusal>(())
/// ```
pub fn verify(trace: &Trace) -> Result<Verified, Mismatch> {
    is_exact(trace)?;
    script::verify(trace, &Lifetimes::of(trace))
}

/// What became of one event.
enum Step {
    Done,
    Allocated {
        place: Place,
        size: u64,
        inherited: Option<u64>,
    },
    Refused(RefusalKind),
    Mapped(Option<MappingId>),
    /// It frees or ends what is not there.
    Missing,
}

/// A pool that plays the calls of a trace.
struct Player {
    pool: Pool,
    /// Live allocations by the number of their lifetime.
    live: Vec<Option<Allocation>>,
    mappings: HashMap<u32, MappingId>,
    wrapped: u64,
}

impl Player {
    fn new(pool: Pool, lifetimes: &Lifetimes) -> Self {
        let live = (0..lifetimes.all.len()).map(|_| None).collect();
        Self { pool, live, mappings: HashMap::new(), wrapped: 0 }
    }

    fn request(&mut self, device: &dyn Memory, request: Request, number: u32) -> Step {
        match self.pool.allocate(device, request) {
            Ok(allocation) => {
                let step = Step::Allocated {
                    place: allocation.trace_place(),
                    size: allocation.size(),
                    inherited: allocation.inherited().map(|stamp| stamp.ticket),
                };
                match self.live.get_mut(number as usize) {
                    Some(slot) => *slot = Some(allocation),
                    None => self.pool.free(device, allocation, Default::default()),
                }
                step
            }
            Err(refusal) => Step::Refused(refusal.kind),
        }
    }

    /// Makes the call that an event is; those that are no calls are done.
    fn play(&mut self, device: &dyn Memory, event: &Event, number: u32) -> Step {
        match event {
            &Event::Allocate { place, asked, queue, label, .. } => {
                let mut request = Request::new(asked, place.mode).labelled(label);
                if let Some(queue) = queue {
                    request = request.on(queue);
                }
                return self.request(device, request, number);
            }
            &Event::Refuse { mode, asked, queue, label, .. } => {
                let mut request = Request::new(asked, mode).labelled(label);
                if let Some(queue) = queue {
                    request = request.on(queue);
                }
                return self.request(device, request, Lifetimes::NONE);
            }
            Event::Free { stamps, .. } => {
                let slot = self.live.get_mut(number as usize);
                let Some(allocation) = slot.and_then(Option::take) else { return Step::Missing };
                self.pool.free(device, allocation, trace::stamps(stamps));
            }
            Event::Label { name, .. } => {
                self.pool.label(Default::default(), name);
            }
            Event::Map { size, block, .. } => {
                return Step::Mapped(self.pool.map(device, *size, *block).ok());
            }
            Event::Unmap { id } => match self.mappings.remove(id) {
                Some(mapping) => self.pool.unmap(device, mapping),
                None => return Step::Missing,
            },
            Event::Wrap { size } => match self.wrapped.checked_add(*size) {
                Some(sum) => {
                    self.wrapped = sum;
                    self.pool.wrap(*size);
                }
                None => return Step::Missing,
            },
            Event::Unwrap { size } => match self.wrapped.checked_sub(*size) {
                Some(rest) => {
                    self.wrapped = rest;
                    self.pool.unwrap_memory(*size);
                }
                None => return Step::Missing,
            },
            Event::Limit { kind: LimitKind::Memory, bytes } => {
                self.pool.set_memory_limit(*bytes);
            }
            Event::Limit { kind: LimitKind::Cache, bytes } => {
                self.pool.set_cache_limit(device, *bytes);
            }
            Event::Limit { kind: LimitKind::Wired, bytes } => {
                // Above the working set it was refused when it was recorded, and no event.
                let _ = self.pool.set_wired_limit(device, *bytes);
            }
            Event::ClearCache => self.pool.clear_cache(device),
            Event::Relieve { percent } => self.pool.relieve(device, *percent),
            Event::Poll => self.pool.poll(device),
            Event::ResetPeak => self.pool.reset_peak(),
            Event::Close => {
                self.pool.close(device);
            }
            _ => {}
        }
        Step::Done
    }
}
