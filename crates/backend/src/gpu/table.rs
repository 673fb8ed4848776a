//! What a device holds, by the names of the blocks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use aquifer_core::{Block, BlockId};

/// Every region by the name of its block.
#[derive(Debug)]
pub(crate) struct Table<R> {
    map: RwLock<BTreeMap<u64, R>>,
    next: AtomicU64,
}

/// The regions while they are looked at: none is removed meanwhile.
pub(crate) struct Held<'t, R>(RwLockReadGuard<'t, BTreeMap<u64, R>>);

impl<R> Held<'_, R> {
    pub(crate) fn get(&self, block: BlockId) -> Option<&R> {
        self.0.get(&block.0)
    }
}

impl<R> Default for Table<R> {
    fn default() -> Self {
        Self { map: RwLock::default(), next: AtomicU64::new(1) }
    }
}

impl<R> Table<R> {
    pub(crate) fn held(&self) -> Held<'_, R> {
        Held(self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<u64, R>> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names a region.
    pub(crate) fn add(&self, region: R, size: u64, address: u64) -> Block {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.write().insert(id, region);
        Block { id: BlockId(id), size, address }
    }

    pub(crate) fn remove(&self, block: &Block) -> Option<R> {
        self.write().remove(&block.id.0)
    }

    /// All that is left.
    pub(crate) fn take(&self) -> impl Iterator<Item = R> + use<R> {
        std::mem::take(&mut *self.write()).into_values()
    }
}
