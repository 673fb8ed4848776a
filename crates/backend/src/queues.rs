//! The queues of a back end by number, and what failed on one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use aquifer_core::{DriverError, QueueId};

use crate::seam::Failure;

/// Queues that a device can have; threads that end give theirs back.
pub(crate) const MOST_QUEUES: usize = 4096;

/// Queues are only added, so that looking one up is one atomic load.
pub(crate) struct Queues<Q> {
    slots: Box<[OnceLock<Arc<Q>>]>,
    count: AtomicUsize,
}

impl<Q: std::fmt::Debug> std::fmt::Debug for Queues<Q> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<Q> Default for Queues<Q> {
    fn default() -> Self {
        let slots = (0..MOST_QUEUES).map(|_| OnceLock::new()).collect();
        Self { slots, count: AtomicUsize::new(0) }
    }
}

impl<Q> Queues<Q> {
    #[inline]
    pub(crate) fn get(&self, id: QueueId) -> Option<&Arc<Q>> {
        self.slots.get(id.0 as usize)?.get()
    }

    /// Every queue there is.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Q>> {
        let count = self.count.load(Ordering::Acquire).min(self.slots.len());
        self.slots[..count].iter().filter_map(OnceLock::get)
    }

    /// Adds the queue that `open` makes of its number.
    pub(crate) fn add(
        &self,
        open: impl FnOnce(usize) -> Result<Q, DriverError>,
    ) -> Result<QueueId, DriverError> {
        let full = DriverError { call: "open_queue", code: MOST_QUEUES as i64 };
        let index = self.count.load(Ordering::Relaxed);
        if index >= self.slots.len() {
            return Err(full);
        }
        // A queue that does not open takes no number.
        let queue = Arc::new(open(index)?);
        let index = self.count.fetch_add(1, Ordering::AcqRel);
        match self.slots.get(index).map(|slot| slot.set(queue)) {
            Some(Ok(())) => Ok(QueueId(index as u32)),
            _ => Err(full),
        }
    }
}

/// Work that failed on a queue and has not been told; looking is one atomic load.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    any: AtomicBool,
    list: Mutex<VecDeque<Failure>>,
}

impl Failures {
    pub(crate) fn push(&self, label: &str, reason: String) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.push_back(Failure { label: label.to_owned(), reason });
        self.any.store(true, Ordering::Release);
    }

    /// The oldest.
    pub(crate) fn take(&self) -> Option<Failure> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let failure = list.pop_front();
        self.any.store(!list.is_empty(), Ordering::Release);
        failure
    }
}
