//! Who may touch an allocation now: pending device work and the CPU's guards (rules F.1–F.4).
//!
//! The one idea: one word is zero exactly when nothing is pending and no guard lives. A single
//! element is read under a count in that word, taken and released with one atomic step each;
//! everything else goes through the lock, announces itself in the word first, and waits until
//! the counted readers (each a few nanoseconds long) are gone.
//!
//! Invariants: [`BUSY`] is set while the lists are not empty; no element access is under way
//! while a list changes.

use smallvec::SmallVec;

use crate::hazard::{Access, ByteRange, Dependencies, Epoch, QueueId, Stamps, Ticket, Use, Uses};
use crate::sync::{AtomicU32, Mutex, MutexGuard, Ordering, lock, spin_loop};

/// Something is pending or borrowed, or the lists are being changed.
const BUSY: u32 = 1 << 31;
/// A single element is being written.
const WRITING: u32 = 1 << 30;

/// A guard of the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Guard {
    id: u64,
    range: ByteRange,
    access: Access,
}

#[derive(Debug, Default)]
struct Lists {
    uses: Uses,
    guards: SmallVec<[Guard; 1]>,
    next_guard: u64,
    /// Set by `release`: no further use of any kind.
    released: bool,
}

impl Lists {
    fn is_quiet(&self) -> bool {
        self.uses.is_empty() && self.guards.is_empty() && !self.released
    }

    fn borrowed(&self, range: ByteRange, access: Access) -> Result<(), Borrowed> {
        let conflict =
            |guard: &&Guard| guard.access.conflicts(access) && guard.range.overlaps(range);
        match self.guards.iter().find(conflict) {
            Some(guard) => Err(Borrowed { by: guard.access }),
            None => Ok(()),
        }
    }
}

/// A guard of the CPU is in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Borrowed {
    /// What the guard is for.
    pub by: Access,
}

/// Why the CPU cannot have a range now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BorrowError {
    /// Work in flight is in the way: wait for these, then try again.
    Pending(Stamps),
    /// A guard is in the way.
    Borrowed(Borrowed),
    /// The allocation has been released.
    Released,
}

/// The state of one allocation between the CPU and the queues.
#[derive(Debug)]
pub struct Tracker {
    word: AtomicU32,
    lists: Mutex<Lists>,
}

impl Default for Tracker {
    fn default() -> Self {
        Self::new(Uses::default())
    }
}

/// Access to single elements while it lives.
#[derive(Debug)]
pub struct Borrow<'a> {
    tracker: &'a Tracker,
    count: u32,
}

impl Drop for Borrow<'_> {
    #[inline]
    fn drop(&mut self) {
        self.tracker.word.fetch_sub(self.count, Ordering::Release);
    }
}

/// The lists under their lock; writes the word when it goes.
struct Locked<'a> {
    lists: MutexGuard<'a, Lists>,
    word: &'a AtomicU32,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if self.lists.is_quiet() {
            self.word.fetch_and(!BUSY, Ordering::Release);
        }
    }
}

impl Tracker {
    /// A tracker with the uses that a reused range inherits.
    pub fn new(uses: Uses) -> Self {
        let word = if uses.is_empty() { 0 } else { BUSY };
        Self { word: AtomicU32::new(word), lists: Mutex::new(Lists { uses, ..Lists::default() }) }
    }

    /// Permission to read single elements, if nothing is pending or borrowed. One atomic step;
    /// `None` sends the caller to [`borrow`](Self::borrow).
    #[inline]
    pub fn peek(&self) -> Option<Borrow<'_>> {
        // The count cannot reach WRITING: it would take 2^30 threads inside `get` at once.
        let before = self.word.fetch_add(1, Ordering::Acquire);
        let borrow = Borrow { tracker: self, count: 1 };
        (before & (BUSY | WRITING) == 0).then_some(borrow)
    }

    /// Permission to write single elements, if nothing at all is under way.
    #[inline]
    pub fn poke(&self) -> Option<Borrow<'_>> {
        self.word
            .compare_exchange(0, WRITING, Ordering::Acquire, Ordering::Relaxed)
            .ok()
            .map(|_| Borrow { tracker: self, count: WRITING })
    }

    /// The lists, with every element access over.
    fn locked(&self) -> Locked<'_> {
        let lists = lock(&self.lists);
        self.word.fetch_or(BUSY, Ordering::AcqRel);
        while self.word.load(Ordering::Acquire) != BUSY {
            spin_loop();
            #[cfg(loom)]
            loom::thread::yield_now();
        }
        Locked { lists, word: &self.word }
    }

    /// Borrows a range for the CPU; the number goes back by [`unborrow`](Self::unborrow).
    ///
    /// # Errors
    /// Conflicting work that `reached` does not cover, a conflicting guard, or a release.
    pub fn borrow(
        &self,
        range: ByteRange,
        access: Access,
        reached: impl FnMut(QueueId) -> Ticket,
    ) -> Result<u64, BorrowError> {
        let mut locked = self.locked();
        let lists = &mut *locked.lists;
        if lists.released {
            return Err(BorrowError::Released);
        }
        lists.borrowed(range, access).map_err(BorrowError::Borrowed)?;
        lists.uses.prune(reached);
        let stamps = lists.uses.conflicts(range, access);
        if !stamps.is_empty() {
            return Err(BorrowError::Pending(stamps));
        }
        let id = lists.next_guard;
        lists.next_guard += 1;
        lists.guards.push(Guard { id, range, access });
        Ok(id)
    }

    /// Ends a borrow. Returns the pending work if the allocation was released meanwhile and this
    /// was its last guard: its memory can be freed now.
    pub fn unborrow(&self, id: u64) -> Option<Stamps> {
        let mut locked = self.locked();
        locked.lists.guards.retain(|guard| guard.id != id);
        (locked.lists.released && locked.lists.guards.is_empty())
            .then(|| locked.lists.uses.stamps())
    }

    /// What a command in `epoch` of `queue` must respect before it makes this access; added to
    /// `needs`.
    ///
    /// # Errors
    /// A conflicting guard, or a release. Nothing is recorded either way.
    pub fn depend(
        &self,
        queue: QueueId,
        epoch: Epoch,
        (range, access): (ByteRange, Access),
        needs: &mut Dependencies,
    ) -> Result<(), BorrowError> {
        let locked = self.locked();
        if locked.lists.released {
            return Err(BorrowError::Released);
        }
        locked.lists.borrowed(range, access).map_err(BorrowError::Borrowed)?;
        locked.lists.uses.depend(queue, epoch, (range, access), needs);
        Ok(())
    }

    /// Records a use whose dependencies are respected. Between [`depend`](Self::depend) and this
    /// call the recorder must let no other command, and no guard, come in between.
    ///
    /// # Errors
    /// A guard that came in between after all, or a release; nothing is recorded then.
    pub fn record(
        &self,
        new: Use,
        reached: impl FnMut(QueueId) -> Ticket,
    ) -> Result<(), BorrowError> {
        let mut locked = self.locked();
        if locked.lists.released {
            return Err(BorrowError::Released);
        }
        locked.lists.borrowed(new.range, new.access).map_err(BorrowError::Borrowed)?;
        if locked.lists.uses.len() > 4 {
            locked.lists.uses.prune(reached);
        }
        locked.lists.uses.record(new);
        Ok(())
    }

    /// Stamps of the work that an access would wait for.
    pub fn conflicts(&self, range: ByteRange, access: Access) -> Stamps {
        self.locked().lists.uses.conflicts(range, access)
    }

    /// Ends all use: later calls find it released. Returns the pending work if the memory can be
    /// freed now, `None` if a guard still lives (its end tells) or it was released before.
    pub fn release(&self) -> Option<Stamps> {
        let mut locked = self.locked();
        let first = !std::mem::replace(&mut locked.lists.released, true);
        (first && locked.lists.guards.is_empty()).then(|| locked.lists.uses.stamps())
    }

    /// Whether it has been released.
    pub fn is_released(&self) -> bool {
        !self.is_idle() && self.locked().lists.released
    }

    /// Whether a guard lives.
    pub fn is_borrowed(&self) -> bool {
        !self.is_idle() && !self.locked().lists.guards.is_empty()
    }

    /// Stamps of all pending work, for the last owner.
    pub fn stamps(&self) -> Stamps {
        if self.is_idle() {
            return Stamps::default();
        }
        self.locked().lists.uses.stamps()
    }

    /// Whether nothing is pending, borrowed or released. One atomic load.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.word.load(Ordering::Acquire) == 0
    }
}

#[cfg(test)]
#[path = "tracker_tests.rs"]
mod tests;
