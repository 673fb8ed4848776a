//! Order from use (rules F.1–F.3, N.2): which work touches which bytes, and what therefore has
//! to wait for what.
//!
//! The one idea: every command records a [`Use`] on each allocation it touches. From that one
//! record follow the barrier inside a queue, the wait between queues, the CPU's wait, and when
//! a freed range may be handed out again.

use smallvec::SmallVec;

/// Names a queue of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueId(pub u32);

/// A number on a queue's timeline; work up to ticket `t` is done once the timeline reached `t`.
pub type Ticket = u64;

/// Counts the barriers of a queue: two commands of one queue with different epochs have a
/// barrier between them.
pub type Epoch = u64;

/// A place on a queue's timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The queue.
    pub queue: QueueId,
    /// The batch: done when the queue's timeline reaches it.
    pub ticket: Ticket,
    /// The stretch between two barriers in which the command runs.
    pub epoch: Epoch,
}

/// Stamps of the work that still uses something; at most one a queue, the latest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamps(SmallVec<[Stamp; 1]>);

impl Stamps {
    /// Whether no work is pending.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The stamps, in the order in which their queues were first added.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &Stamp> {
        self.0.iter()
    }

    /// Adds a stamp; of one queue the later ticket and the later epoch are kept.
    pub fn add(&mut self, stamp: Stamp) {
        match self.0.iter_mut().find(|known| known.queue == stamp.queue) {
            Some(known) => *known = known.later(stamp),
            None => self.0.push(stamp),
        }
    }

    /// Adds all of another set.
    pub fn merge(&mut self, other: &Self) {
        for stamp in &other.0 {
            self.add(*stamp);
        }
    }

    /// Forgets what is done by `reached`.
    pub fn prune(&mut self, mut reached: impl FnMut(QueueId) -> Ticket) {
        self.0.retain(|stamp| stamp.ticket > reached(stamp.queue));
    }

    /// The stamp, if all pending work is on one queue.
    pub(crate) fn only(&self) -> Option<Stamp> {
        if let [stamp] = self.0.as_slice() { Some(*stamp) } else { None }
    }

    /// The single queue that all pending work is on, if there is just one.
    pub(crate) fn only_queue(&self) -> Option<QueueId> {
        self.only().map(|stamp| stamp.queue)
    }

    pub(crate) fn first(&self) -> Option<&Stamp> {
        self.0.first()
    }
}

impl From<Stamp> for Stamps {
    fn from(stamp: Stamp) -> Self {
        Self(SmallVec::from_buf([stamp]))
    }
}

impl Stamp {
    /// The later of two stamps of one queue.
    pub(crate) fn later(self, other: Self) -> Self {
        debug_assert_eq!(self.queue, other.queue);
        Self {
            queue: self.queue,
            ticket: self.ticket.max(other.ticket),
            epoch: self.epoch.max(other.epoch),
        }
    }
}

/// What a command or the CPU does with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Only reads it.
    Read,
    /// Writes it, and may read it.
    Write,
}

impl Access {
    /// Whether two accesses to the same bytes need an order.
    #[inline]
    pub fn conflicts(self, other: Self) -> bool {
        self == Self::Write || other == Self::Write
    }
}

/// A half-open range of bytes inside an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByteRange {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

impl ByteRange {
    /// Whether the two share a byte. An empty range shares none.
    #[inline]
    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.end
            && other.start < self.end
            && self.start < self.end
            && other.start < other.end
    }

    fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }
}

/// One pending use of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// When it is done.
    pub stamp: Stamp,
    /// Which bytes.
    pub range: ByteRange,
    /// What it does.
    pub access: Access,
}

/// What a new command has to respect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dependencies {
    /// A barrier must precede the command on its own queue.
    pub barrier: bool,
    /// The command's queue must wait for these stamps of other queues.
    pub waits: Stamps,
}

/// The pending uses of one allocation.
///
/// A plain list: it is nearly always empty or one long, and [`record`](Self::record) drops what
/// a newer use of the same queue covers, so a loop over one array does not let it grow.
#[derive(Clone, Debug, Default)]
pub struct Uses(SmallVec<[Use; 1]>);

impl Uses {
    /// Uses that a reused range inherits from its earlier owner: all of it, as written.
    pub fn inherited(stamp: Stamp, size: u64) -> Self {
        let range = ByteRange { start: 0, end: size };
        Self(SmallVec::from_buf([Use { stamp, range, access: Access::Write }]))
    }

    /// Whether no use is pending.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of uses kept.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Forgets what is done by `reached`.
    pub fn prune(&mut self, mut reached: impl FnMut(QueueId) -> Ticket) {
        self.0.retain(|pending| pending.stamp.ticket > reached(pending.stamp.queue));
    }

    /// Stamps that an access of `range` has to wait for.
    pub fn conflicts(&self, range: ByteRange, access: Access) -> Stamps {
        let mut stamps = Stamps::default();
        for pending in &self.0 {
            if pending.access.conflicts(access) && pending.range.overlaps(range) {
                stamps.add(pending.stamp);
            }
        }
        stamps
    }

    /// Adds to `needs` what a command in `epoch` of `queue` must respect before it makes this
    /// access.
    pub fn depend(
        &self,
        queue: QueueId,
        epoch: Epoch,
        (range, access): (ByteRange, Access),
        needs: &mut Dependencies,
    ) {
        for stamp in self.conflicts(range, access).iter() {
            if stamp.queue != queue {
                needs.waits.add(*stamp);
            } else if stamp.epoch >= epoch {
                needs.barrier = true;
            }
        }
    }

    /// Records a use, after [`depend`](Self::depend) has been respected.
    ///
    /// A use is dropped when the new one stands for it, so that what waits for the new one has
    /// waited for the old: a write that covers it (it was ordered after it, on whatever queue),
    /// or a read of the same queue that covers a read.
    pub fn record(&mut self, new: Use) {
        self.0.retain(|old| {
            let same_read = old.access == Access::Read && old.stamp.queue == new.stamp.queue;
            !(new.range.contains(old.range) && (new.access == Access::Write || same_read))
        });
        self.0.push(new);
    }

    /// All stamps of pending work.
    pub fn stamps(&self) -> Stamps {
        let mut stamps = Stamps::default();
        for pending in &self.0 {
            stamps.add(pending.stamp);
        }
        stamps
    }
}

#[cfg(test)]
#[path = "hazard_tests.rs"]
mod tests;
