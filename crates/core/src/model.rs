//! A device that only counts: for the core's tests, its examples, and replays of traces.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::caps::Storage;
use crate::hazard::{QueueId, Ticket};
use crate::memory::{Block, BlockId, DriverError, Memory};
use crate::size::PAGE;

/// A [`Memory`] without memory: it checks the preconditions that the pool must keep, counts
/// what is held, and fails on demand.
#[derive(Debug, Default)]
pub struct HostModel {
    /// Only counts, page states are not kept.
    quick: bool,
    next: AtomicU64,
    /// Committed pages by span; a block is a span with all of its pages committed.
    pages: Mutex<BTreeMap<u64, Vec<bool>>>,
    held: AtomicU64,
    calls: AtomicU64,
    returns: AtomicU64,
    fail_at: Mutex<Option<u64>>,
    reached: Mutex<Vec<Ticket>>,
}

/// A poisoned lock is no reason to stop: whoever panicked has failed the test already.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Spans of the model are checked page by page up to this many bytes of address space; beyond
/// that only the byte count is kept.
const CHECKED: u64 = 4 << 30;

impl HostModel {
    /// A device with an empty memory.
    pub fn with_virtual_memory() -> Self {
        Self::default()
    }

    /// The same without the state of each page: for measuring the pool, not the model.
    pub fn quick() -> Self {
        Self { quick: true, ..Self::default() }
    }

    /// Bytes that the pool holds of this device: the independent count behind rule D.3.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Calls made so far that may fail.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Times that something was given back.
    pub fn returns(&self) -> u64 {
        self.returns.load(Ordering::Relaxed)
    }

    /// Lets the `n`-th call from now fail (0 is the next one).
    pub fn fail_after(&self, n: u64) {
        *lock(&self.fail_at) = Some(self.calls() + n);
    }

    /// Moves the timeline of `queue` on to `ticket`.
    pub fn reach(&self, queue: QueueId, ticket: Ticket) {
        let mut reached = lock(&self.reached);
        let index = queue.0 as usize;
        if reached.len() <= index {
            reached.resize(index + 1, 0);
        }
        reached[index] = reached[index].max(ticket);
    }

    fn call(&self, name: &'static str) -> Result<(), DriverError> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let mut fail_at = lock(&self.fail_at);
        if *fail_at == Some(number) {
            *fail_at = None;
            return Err(DriverError { call: name, code: -2 });
        }
        Ok(())
    }

    fn add(&self, size: u64, committed: bool) -> Block {
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let pages = if self.quick { 0 } else { (size.min(CHECKED) / PAGE) as usize };
        lock(&self.pages).insert(id, vec![committed; pages]);
        Block { id: BlockId(id), size, address: 0 }
    }

    fn remove(&self, block: &Block, committed: bool) {
        let pages = lock(&self.pages).remove(&block.id.0);
        let pages = pages.expect("given back what is held");
        assert!(pages.iter().all(|&page| page == committed), "{block:?} in the wrong state");
    }

    fn turn(&self, span: BlockId, (offset, len): (u64, u64), to: bool) {
        if self.quick {
            return;
        }
        let mut spans = lock(&self.pages);
        let pages = spans.get_mut(&span.0).expect("a span that is held");
        let end = ((offset + len).min(CHECKED) / PAGE) as usize;
        let start = ((offset.min(CHECKED)) / PAGE) as usize;
        for page in &mut pages[start..end] {
            assert_ne!(*page, to, "a page committed or given back twice");
            *page = to;
        }
    }
}

impl Memory for HostModel {
    fn obtain(&self, size: u64, _mode: Storage) -> Result<Block, DriverError> {
        self.call("obtain")?;
        self.held.fetch_add(size, Ordering::Relaxed);
        Ok(self.add(size, true))
    }

    fn give_back(&self, block: Block) {
        self.returns.fetch_add(1, Ordering::Relaxed);
        self.held.fetch_sub(block.size, Ordering::Relaxed);
        self.remove(&block, true);
    }

    fn reserve(&self, size: u64, _mode: Storage) -> Result<Block, DriverError> {
        self.call("reserve")?;
        Ok(self.add(size, false))
    }

    fn release(&self, span: Block) {
        self.returns.fetch_add(1, Ordering::Relaxed);
        self.remove(&span, false);
    }

    fn commit(&self, span: BlockId, offset: u64, len: u64) -> Result<(), DriverError> {
        self.call("commit")?;
        self.turn(span, (offset, len), true);
        self.held.fetch_add(len, Ordering::Relaxed);
        Ok(())
    }

    fn decommit(&self, span: BlockId, offset: u64, len: u64) {
        self.returns.fetch_add(1, Ordering::Relaxed);
        self.turn(span, (offset, len), false);
        self.held.fetch_sub(len, Ordering::Relaxed);
    }

    fn wire(&self, _block: BlockId, _offset: u64, _len: u64) -> Result<(), DriverError> {
        self.call("wire")
    }

    fn unwire(&self, _block: BlockId, _offset: u64, _len: u64) {}

    fn reached(&self, queue: QueueId) -> Ticket {
        lock(&self.reached).get(queue.0 as usize).copied().unwrap_or(0)
    }
}
