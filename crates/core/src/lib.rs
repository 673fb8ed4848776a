//! The policy of aquifer, in safe code and without a device.
//!
//! A back end gives memory in large pieces and says how far its queues have come (the
//! [`Memory`] trait). Everything that decides lives here, once for all of them: size classes
//! ([`size`]), the pool that cuts ranges out of those pieces and reuses them ([`Pool`]), limits
//! and the account ([`Ledger`], [`MemoryStats`]), and the order of work by what it touches
//! ([`Tracker`]).
//!
//! The core hands out *ranges*, never pointers. It performs no I/O, reads no clock and has no
//! random order, so the same calls give the same result on every machine.
//!
//! ```
//! use aquifer_core::{Caps, HostModel, Pool, Request, Settings, Storage};
//!
//! let device = HostModel::with_virtual_memory();
//! let caps = Caps::model();
//! let mut pool = Pool::new(&caps, Settings::for_working_set(1 << 30, 2 << 30));
//! let range = pool.allocate(&device, Request::new(1000, Storage::Shared))?;
//! assert_eq!(range.size(), 1024);
//! assert_eq!(pool.stats().active, 1024);
//! pool.free(&device, range, Default::default());
//! assert_eq!(pool.stats().active, 0);
//! # Ok::<(), aquifer_core::Refusal>(())
//! ```
#![forbid(unsafe_code)]

/// Where this crate's files are, as debug information names them.
#[doc(hidden)]
pub const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src");

mod bins;
mod blocks;
mod caps;
mod growth;
mod hazard;
mod heap;
mod ledger;
mod limits;
mod memory;
mod model;
mod pending;
mod pool;
mod refusal;
pub mod replay;
pub mod size;
mod slab;
mod stats;
mod sync;
pub mod trace;
mod tracker;

pub use caps::{Caps, Storage, VirtualMemory};
pub use hazard::{
    Access, ByteRange, Dependencies, Epoch, QueueId, Stamp, Stamps, Ticket, Use, Uses,
};
pub use ledger::{LabelId, LabelRow, Ledger};
pub use limits::MappingId;
pub use memory::{Block, BlockId, DriverError, Memory};
pub use model::HostModel;
pub use pool::{Allocation, Limits, Pool, Request, Reuse, Settings};
pub use refusal::{Leak, Refusal, RefusalKind};
pub use stats::{MemoryStats, format_bytes};
pub use trace::csv::{Action, CsvError, TraceEvent, parse_csv};
pub use trace::{Observer, Trace};
pub use tracker::{Borrow, BorrowError, Borrowed, Tracker};
