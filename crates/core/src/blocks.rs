//! The founding policy: every freed allocation is kept whole (rule B.1, *Blocks*).
//!
//! A request takes the smallest cached block of at least its size and strictly below
//! `min(2 · size, size + 2 · PAGE)`; of equal sizes the most recently freed.

use std::collections::BTreeMap;

use crate::hazard::{QueueId, Stamp, Stamps};
use crate::memory::{Block, BlockId};
use crate::size::PAGE;

/// Smallest first; of equal sizes the most recently freed first.
type Key = (u64, std::cmp::Reverse<u64>);

/// The cache of whole blocks of one storage mode, and the blocks that are in use.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    live: Vec<Option<Block>>,
    spare: Vec<u32>,
    idle: BTreeMap<Key, Block>,
    by_age: BTreeMap<u64, u64>,
    pending: BTreeMap<Key, (Block, Stamps)>,
    /// Bytes of idle and pending blocks.
    pub(crate) cached: u64,
    /// The pending part of it.
    pub(crate) pending_bytes: u64,
}

impl Blocks {
    /// The sizes that serve a request of `size`: half-open.
    fn window(size: u64) -> std::ops::Range<Key> {
        let end = size.saturating_mul(2).min(size.saturating_add(2 * PAGE));
        (size, std::cmp::Reverse(u64::MAX))..(end, std::cmp::Reverse(u64::MAX))
    }

    /// Takes a cached block for `size`: an idle one, or one that only `queue` still uses.
    pub(crate) fn take(
        &mut self,
        size: u64,
        queue: Option<QueueId>,
    ) -> Option<(u32, Option<Stamp>)> {
        if let Some((&key, _)) = self.idle.range(Self::window(size)).next() {
            let block = self.idle.remove(&key)?;
            self.by_age.remove(&key.1.0);
            self.cached -= block.size;
            return Some((self.hold(block), None));
        }
        let queue = queue?;
        let (&key, _) = self
            .pending
            .range(Self::window(size))
            .find(|(_, (_, stamps))| stamps.only_queue() == Some(queue))?;
        let (block, stamps) = self.pending.remove(&key)?;
        self.cached -= block.size;
        self.pending_bytes -= block.size;
        Some((self.hold(block), stamps.only()))
    }

    /// Keeps a block as live; its place.
    pub(crate) fn hold(&mut self, block: Block) -> u32 {
        match self.spare.pop() {
            Some(place) => {
                self.live[place as usize] = Some(block);
                place
            }
            None => {
                self.live.push(Some(block));
                (self.live.len() - 1) as u32
            }
        }
    }

    pub(crate) fn live(&self, place: u32) -> Option<&Block> {
        self.live.get(place as usize)?.as_ref()
    }

    /// Names and sizes of the live blocks.
    pub(crate) fn live_blocks(&self) -> impl Iterator<Item = (BlockId, u64)> + '_ {
        self.live.iter().flatten().map(|block| (block.id, block.size))
    }

    /// Frees a live block; `age` names it while it is cached, and must be new.
    pub(crate) fn free(&mut self, place: u32, stamps: Stamps, age: u64) {
        let Some(block) = self.live[place as usize].take() else { return };
        self.spare.push(place);
        self.cached += block.size;
        let key = (block.size, std::cmp::Reverse(age));
        if stamps.is_empty() {
            self.by_age.insert(age, block.size);
            self.idle.insert(key, block);
        } else {
            self.pending_bytes += block.size;
            self.pending.insert(key, (block, stamps));
        }
    }

    /// Whether the block freed at `age` is still pending.
    pub(crate) fn is_pending(&self, size: u64, age: u64) -> bool {
        self.pending.contains_key(&(size, std::cmp::Reverse(age)))
    }

    /// The work on a pending block is done.
    pub(crate) fn complete(&mut self, size: u64, age: u64) {
        let key = (size, std::cmp::Reverse(age));
        if let Some((block, _)) = self.pending.remove(&key) {
            self.pending_bytes -= block.size;
            self.by_age.insert(age, size);
            self.idle.insert(key, block);
        }
    }

    pub(crate) fn oldest(&self) -> Option<u64> {
        self.by_age.keys().next().copied()
    }

    /// Takes the least recently freed idle block out of the cache.
    pub(crate) fn evict(&mut self) -> Option<Block> {
        let (age, size) = self.by_age.pop_first()?;
        let block = self.idle.remove(&(size, std::cmp::Reverse(age)))?;
        self.cached -= block.size;
        Some(block)
    }

    pub(crate) fn count(&self) -> u64 {
        (self.live.len() - self.spare.len() + self.idle.len() + self.pending.len()) as u64
    }

    /// Panics unless the maps and the counters agree; returns the bytes of live blocks.
    pub(crate) fn check(&self) -> u64 {
        let idle: u64 = self.idle.values().map(|block| block.size).sum();
        let pending: u64 = self.pending.values().map(|(block, _)| block.size).sum();
        assert_eq!((idle + pending, pending), (self.cached, self.pending_bytes));
        assert_eq!(self.idle.len(), self.by_age.len());
        self.live.iter().flatten().map(|block| block.size).sum()
    }
}
