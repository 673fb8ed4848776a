//! What is freed but still used by queued work: notes in the order of each queue's timeline.
//!
//! The one idea: a note is written once, when memory is freed, and read once, when its queue has
//! come that far. Memory that the same queue takes back before that leaves its note behind, and
//! the note no longer matches.

use std::collections::VecDeque;

use smallvec::SmallVec;

use crate::hazard::{QueueId, Stamp, Stamps, Ticket};

/// What a note is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A node of the heap, pending for the `serial`-th time.
    Node { id: u32, serial: u32 },
    /// A slot of a slab.
    Slot { slab: u32, slot: u8 },
    /// A whole block, named by its size and when it was freed.
    Block { size: u64, age: u64 },
    /// Taken back before its work was done.
    Dead,
}

#[derive(Clone, Debug)]
pub(crate) struct Note {
    pub(crate) target: Target,
    pub(crate) mode: usize,
    pub(crate) stamps: Stamps,
}

/// Notes by queue.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    queues: SmallVec<[VecDeque<Note>; 4]>,
    count: usize,
}

impl Pending {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All notes, also those that are out of date.
    pub(crate) fn notes(&self) -> impl Iterator<Item = &Note> {
        self.queues.iter().flatten()
    }

    /// Adds a note under the first of its stamps.
    pub(crate) fn add(&mut self, note: Note) {
        let Some(first) = note.stamps.first() else { return };
        let index = first.queue.0 as usize;
        while self.queues.len() <= index {
            self.queues.push(VecDeque::new());
        }
        self.queues[index].push_back(note);
        self.count += 1;
    }

    /// The next note whose queue has come far enough. A note that names further queues is filed
    /// under the next of them instead.
    pub(crate) fn next_done(
        &mut self,
        mut reached: impl FnMut(QueueId) -> Ticket,
    ) -> Option<(Target, usize)> {
        for index in 0..self.queues.len() {
            if self.queues[index].is_empty() {
                continue;
            }
            let now = reached(QueueId(index as u32));
            while let Some(note) = self.queues[index].front() {
                let due = note.stamps.first().map_or(0, |stamp| stamp.ticket);
                if note.target != Target::Dead && due > now {
                    break;
                }
                let Some(mut note) = self.queues[index].pop_front() else { break };
                self.count -= 1;
                if note.target == Target::Dead {
                    continue;
                }
                note.stamps.prune(&mut reached);
                if note.stamps.is_empty() {
                    return Some((note.target, note.mode));
                }
                self.add(note);
            }
        }
        None
    }

    /// Nodes of a mode that are pending on `queue` alone, newest first.
    pub(crate) fn nodes(
        &self,
        queue: Option<QueueId>,
        mode: usize,
    ) -> impl Iterator<Item = (u32, u32)> + '_ {
        let notes = queue.and_then(|queue| self.queues.get(queue.0 as usize));
        notes.into_iter().flat_map(|notes| notes.iter().rev()).filter_map(move |note| {
            match note.target {
                Target::Node { id, serial } if note.mode == mode => Some((id, serial)),
                _ => None,
            }
        })
    }

    /// Takes a slot that `fits` back for `queue`, from the newest few notes.
    pub(crate) fn take_slot(
        &mut self,
        queue: QueueId,
        mode: usize,
        mut fits: impl FnMut(u32) -> bool,
    ) -> Option<(u32, u8, Stamp)> {
        /// Notes looked at: what a queue has freed this long ago is soon idle.
        const RECENT: usize = 32;
        let notes = self.queues.get_mut(queue.0 as usize)?;
        for note in notes.iter_mut().rev().take(RECENT) {
            if let Target::Slot { slab, slot } = note.target
                && note.mode == mode
                && let Some(stamp) = note.stamps.only()
                && stamp.queue == queue
                && fits(slab)
            {
                note.target = Target::Dead;
                return Some((slab, slot, stamp));
            }
        }
        None
    }
}
