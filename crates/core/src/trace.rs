//! Traces: every change of state of a device's memory, as events that can be kept, replayed and
//! drawn.
//!
//! The one idea: an event is a *call of the pool* with its arguments and its result, preceded by
//! what the pool saw of the queues' timelines and followed by what it asked of the driver. The
//! pool is deterministic, so the same calls with the same answers give the same figures: a trace
//! replays exactly, on any machine, without the device.
//!
//! [`Observer`] is told events while a pool works; [`mod@format`] writes them down and reads them;
//! [`Trace`] is what was read.

pub mod csv;
pub mod format;
mod lifetimes;
pub(crate) mod observe;

use std::fmt;

use smallvec::SmallVec;

use crate::caps::{Caps, Storage};
use crate::hazard::{QueueId, Stamp, Stamps, Ticket};
use crate::ledger::LabelId;
use crate::memory::BlockId;
use crate::pool::Settings;
use crate::refusal::RefusalKind;
use crate::stats::MemoryStats;

pub use lifetimes::{Lifetime, Lifetimes};

/// Is told every change of state of a pool, in order, by the thread that makes it.
///
/// A pool without one pays a single branch for each call.
pub trait Observer: Send + fmt::Debug {
    /// Something happened. It is called with the pool's lock held: it must be quick, and must not
    /// call the pool.
    fn record(&mut self, event: &Event);
}

/// Where an allocation lies; no two live allocations lie in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The storage mode.
    pub mode: Storage,
    /// The block or span; [`UNKNOWN_BLOCK`] where the trace does not say.
    pub block: BlockId,
    /// Bytes from its start; where the block is unknown, any number that tells it apart.
    pub offset: u64,
}

/// The block of an allocation whose place is not known, as in traces of other systems.
pub const UNKNOWN_BLOCK: BlockId = BlockId(u64::MAX);

/// A limit that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitKind {
    /// On `active + mapped`.
    Memory,
    /// On the cache.
    Cache,
    /// On what is kept resident.
    Wired,
}

/// A call of the driver that may be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriverCall {
    /// One block.
    Obtain,
    /// Address space.
    Reserve,
    /// Memory behind a range of a span.
    Commit,
    /// Residency.
    Wire,
}

/// The pool that a trace is of, as it was when the trace began.
#[derive(Clone, Debug, PartialEq)]
pub struct Begin {
    /// What recorded the trace: a name and a version.
    pub source: String,
    /// The program.
    pub program: String,
    /// Its process.
    pub pid: u32,
    /// Nanoseconds since 1970 at time 0 of the trace; 0 where it is not known.
    pub unix_ns: u64,
    /// The API of the device.
    pub api: String,
    /// Facts of the device; those that a pool does not use are the model's.
    pub caps: Caps,
    /// How the pool was made, with the limits at this moment.
    pub settings: Settings,
}

impl Begin {
    /// A pool with these settings, and nothing known of the program.
    pub fn new(source: &str, caps: &Caps, settings: Settings) -> Self {
        Self {
            source: source.to_owned(),
            program: String::new(),
            pid: 0,
            unix_ns: 0,
            api: String::new(),
            caps: caps.clone(),
            settings,
        }
    }
}

/// One thing that happened. Sizes are bytes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A trace begins.
    Begin(Box<Begin>),
    /// Every figure at this moment: at the beginning, now and then, and at the end.
    Figures(Box<MemoryStats>),
    /// What a label held when the trace began: live allocations that it does not name.
    Held {
        /// The label.
        label: LabelId,
        /// Bytes charged.
        size: u64,
        /// How many.
        count: u64,
    },
    /// A label was named for the first time.
    Label {
        /// Its number.
        id: LabelId,
        /// Its whole name, nested ones joined with `/`.
        name: Box<str>,
    },
    /// A call site was seen for the first time.
    Site {
        /// Its number, from 1.
        id: u32,
        /// The frames, innermost first, a line each. It may come after allocations from there.
        stack: Box<str>,
    },
    /// Memory was handed out. It was reused unless a driver's call follows.
    Allocate {
        /// Where it lies.
        place: Place,
        /// What was asked.
        asked: u64,
        /// What was charged.
        size: u64,
        /// The queue that it is for, if for one.
        queue: Option<QueueId>,
        /// Whom it is counted under.
        label: LabelId,
        /// Work of an earlier owner that still uses it.
        inherited: Option<Ticket>,
    },
    /// A request was refused.
    Refuse {
        /// The storage mode.
        mode: Storage,
        /// What was asked.
        asked: u64,
        /// The queue that it was for, if for one.
        queue: Option<QueueId>,
        /// Whom it would have been counted under.
        label: LabelId,
        /// Why.
        reason: RefusalKind,
    },
    /// Memory went back to the pool; `stamps` is the work that still used it.
    Free {
        /// Where it lay.
        place: Place,
        /// What was charged.
        size: u64,
        /// Queues and tickets.
        stamps: SmallVec<[(QueueId, Ticket); 1]>,
    },
    /// The pool saw that a queue had come so far.
    Complete {
        /// The queue.
        queue: QueueId,
        /// Its ticket.
        ticket: Ticket,
    },
    /// The driver gave a block.
    Obtain {
        /// The block.
        block: BlockId,
        /// Its storage mode.
        mode: Storage,
        /// Its size.
        size: u64,
    },
    /// A block went back to the driver.
    GiveBack {
        /// The block.
        block: BlockId,
    },
    /// The driver gave address space.
    Reserve {
        /// The span.
        block: BlockId,
        /// Its storage mode.
        mode: Storage,
        /// Its size.
        size: u64,
    },
    /// A span went back to the driver.
    Release {
        /// The span.
        block: BlockId,
    },
    /// The driver put memory behind a range of a span.
    Commit(Extent),
    /// The memory behind a range of a span went back to the driver.
    Decommit(Extent),
    /// A range is kept resident.
    Wire(Extent),
    /// A range is kept resident no longer.
    Unwire(Extent),
    /// The driver refused.
    Fail {
        /// What was asked of it.
        call: DriverCall,
        /// How much.
        size: u64,
        /// Its code.
        code: i64,
    },
    /// A file was mapped; `None` where that was refused.
    Map {
        /// Names the mapping while it lasts.
        id: Option<u32>,
        /// Bytes counted.
        size: u64,
        /// What can be kept resident.
        block: Option<BlockId>,
    },
    /// A file is mapped no longer.
    Unmap {
        /// The mapping.
        id: u32,
    },
    /// Memory of the caller's is used in place.
    Wrap {
        /// Bytes.
        size: u64,
    },
    /// Memory of the caller's is used no longer.
    Unwrap {
        /// Bytes.
        size: u64,
    },
    /// A limit was set.
    Limit {
        /// Which.
        kind: LimitKind,
        /// To how much.
        bytes: u64,
    },
    /// The cache was cleared.
    ClearCache,
    /// Use was to be brought below a part of the working set, because of pressure.
    Relieve {
        /// The part.
        percent: u64,
    },
    /// What was done was made free, outside other calls.
    Poll,
    /// Peaks were set to what was in use.
    ResetPeak,
    /// The pool was closed.
    Close,
    /// A batch was submitted.
    Submit {
        /// The queue.
        queue: QueueId,
        /// The ticket of the batch.
        ticket: Ticket,
        /// Commands in it.
        commands: u32,
    },
    /// A copy was recorded.
    Copy {
        /// The queue.
        queue: QueueId,
        /// Bytes.
        size: u64,
    },
    /// A thread waited.
    Wait {
        /// For this queue.
        queue: QueueId,
        /// To come so far.
        ticket: Ticket,
        /// Nanoseconds that it took.
        ns: u64,
    },
}

/// A range of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The block or span.
    pub block: BlockId,
    /// Bytes from its start.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

impl Event {
    /// Whether it is an answer of the driver to the call of the pool before it.
    pub fn is_effect(&self) -> bool {
        matches!(
            self,
            Self::Obtain { .. }
                | Self::GiveBack { .. }
                | Self::Reserve { .. }
                | Self::Release { .. }
                | Self::Commit(_)
                | Self::Decommit(_)
                | Self::Wire(_)
                | Self::Unwire(_)
                | Self::Fail { .. }
        )
    }

    /// Whether it is a call of the pool that a program's doing came to.
    pub fn is_call(&self) -> bool {
        matches!(
            self,
            Self::Allocate { .. }
                | Self::Refuse { .. }
                | Self::Free { .. }
                | Self::Map { .. }
                | Self::Unmap { .. }
                | Self::Wrap { .. }
                | Self::Unwrap { .. }
                | Self::Limit { .. }
                | Self::ClearCache
                | Self::Relieve { .. }
                | Self::Poll
                | Self::ResetPeak
                | Self::Close
        )
    }

    /// Its name, as exports and messages print it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Begin(_) => "begin",
            Self::Figures(_) => "figures",
            Self::Held { .. } => "held",
            Self::Label { .. } => "label",
            Self::Site { .. } => "site",
            Self::Allocate { .. } => "allocate",
            Self::Refuse { .. } => "refuse",
            Self::Free { .. } => "free",
            Self::Complete { .. } => "complete",
            Self::Obtain { .. } => "obtain",
            Self::GiveBack { .. } => "give_back",
            Self::Reserve { .. } => "reserve",
            Self::Release { .. } => "release",
            Self::Commit(_) => "commit",
            Self::Decommit(_) => "decommit",
            Self::Wire(_) => "wire",
            Self::Unwire(_) => "unwire",
            Self::Fail { .. } => "fail",
            Self::Map { .. } => "map",
            Self::Unmap { .. } => "unmap",
            Self::Wrap { .. } => "wrap",
            Self::Unwrap { .. } => "unwrap",
            Self::Limit { .. } => "limit",
            Self::ClearCache => "clear_cache",
            Self::Relieve { .. } => "relieve",
            Self::Poll => "poll",
            Self::ResetPeak => "reset_peak",
            Self::Close => "close",
            Self::Submit { .. } => "submit",
            Self::Copy { .. } => "copy",
            Self::Wait { .. } => "wait",
        }
    }
}

/// An event with when and by whom.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Nanoseconds since the trace began.
    pub time_ns: u64,
    /// The thread, numbered from 0 as they appear.
    pub thread: u32,
    /// The call site of an allocation; 0 where it was not recorded.
    pub site: u32,
    /// What happened.
    pub event: Event,
}

/// A trace that was read, or is being made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// What happened, in order.
    pub records: Vec<Record>,
}

impl Trace {
    /// The pool that it is of.
    pub fn begin(&self) -> Option<&Begin> {
        self.records.iter().find_map(|record| match &record.event {
            Event::Begin(begin) => Some(&**begin),
            _ => None,
        })
    }

    /// The figures when it began; all 0 where it began with an empty pool.
    pub fn first_figures(&self) -> Option<&MemoryStats> {
        self.records.iter().find_map(|record| match &record.event {
            Event::Figures(stats) => Some(&**stats),
            _ => None,
        })
    }

    /// The figures when they were last written.
    pub fn last_figures(&self) -> Option<&MemoryStats> {
        self.records.iter().rev().find_map(|record| match &record.event {
            Event::Figures(stats) => Some(&**stats),
            _ => None,
        })
    }

    /// Names of the labels by number; the first is that of what has none.
    pub fn labels(&self) -> Vec<String> {
        let mut names = vec![String::new()];
        for record in &self.records {
            if let Event::Label { id, name } = &record.event {
                let index = id.0 as usize;
                // A number out of order is a broken file's; it names nothing.
                if index <= names.len() {
                    names.resize(names.len().max(index + 1), String::new());
                    names[index] = name.to_string();
                }
            }
        }
        names
    }

    /// Stacks of the call sites by number; the first is that of what has none.
    pub fn sites(&self) -> Vec<&str> {
        let mut stacks = vec![""];
        for record in &self.records {
            // A number out of order is a broken file's; it names nothing.
            if let Event::Site { id, stack } = &record.event
                && *id as usize == stacks.len()
            {
                stacks.push(stack);
            }
        }
        stacks
    }
}

/// Stamps as a trace has them: queues and tickets.
pub(crate) fn noted(stamps: &Stamps) -> SmallVec<[(QueueId, Ticket); 1]> {
    stamps.iter().map(|stamp| (stamp.queue, stamp.ticket)).collect()
}

/// The stamps that a `free` of a trace names, for a replay; the epoch orders commands within a batch
/// and decides nothing here.
pub fn stamps(noted: &[(QueueId, Ticket)]) -> Stamps {
    let mut stamps = Stamps::default();
    for &(queue, ticket) in noted {
        stamps.add(Stamp { queue, ticket, epoch: 0 });
    }
    stamps
}
