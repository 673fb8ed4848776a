//! The memory half of the seam: what a device must do so that the pool can work on it.

use std::fmt;

use crate::caps::Storage;
use crate::hazard::{QueueId, Ticket};

/// Names a block or a span of the device that gave it; unique while it is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u64);

/// One piece of memory, or of address space, got from a driver.
///
/// It is given back by value, so that it cannot be given back twice.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    /// The device's own name for it.
    pub id: BlockId,
    /// Bytes.
    pub size: u64,
    /// Address of its first byte as the CPU (for shared memory) or the device sees it; the core
    /// only adds offsets to it. 0 where the device has no addresses.
    pub address: u64,
}

/// A driver's refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverError {
    /// The call that failed, as the driver's documentation names it.
    pub call: &'static str,
    /// The driver's code for it.
    pub code: i64,
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed with code {}", self.call, self.code)
    }
}

impl std::error::Error for DriverError {}

/// A device's memory and timeline, as the pool needs them.
///
/// An engine with driver objects of its own implements this and gets the pool, the limits and
/// the account. The pool calls it on slow paths only, with its own state consistent before and
/// after a failing call; [`reached`](Self::reached) is the exception, and must be cheap (an
/// atomic load).
///
/// Preconditions, which the pool keeps and an implementation need not check:
/// 1. `size` and ranges are multiples of the granule (spans) or of `PAGE` (blocks), not zero.
/// 2. [`commit`](Self::commit) gets only ranges that are not committed, and
///    [`decommit`](Self::decommit) only ranges that are, each inside its span.
/// 3. What is given back or decommitted is used by no work in flight.
/// 4. [`reserve`](Self::reserve), `commit`, `decommit` and `release` are called only where
///    `Caps::virtual_memory` is present.
///
/// # Errors
/// Each call returns the driver's own refusal and then has changed nothing.
pub trait Memory {
    /// One block of `size` bytes.
    fn obtain(&self, size: u64, mode: Storage) -> Result<Block, DriverError>;
    /// Gives a block back. A driver that fails here has lost memory; it logs.
    fn give_back(&self, block: Block);
    /// Address space of `size` bytes with no memory behind it.
    fn reserve(&self, size: u64, mode: Storage) -> Result<Block, DriverError>;
    /// Gives a whole span back, with nothing committed in it.
    fn release(&self, span: Block);
    /// Puts memory behind `len` bytes at `offset` of a span. Its contents are unspecified.
    fn commit(&self, span: BlockId, offset: u64, len: u64) -> Result<(), DriverError>;
    /// Takes the memory behind `len` bytes at `offset` away.
    fn decommit(&self, span: BlockId, offset: u64, len: u64);
    /// Keeps `len` bytes at `offset` resident.
    fn wire(&self, block: BlockId, offset: u64, len: u64) -> Result<(), DriverError>;
    /// Undoes [`wire`](Self::wire).
    fn unwire(&self, block: BlockId, offset: u64, len: u64);
    /// The ticket up to which work on `queue` is done.
    fn reached(&self, queue: QueueId) -> Ticket;
}
