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

/// Nodes of a queue that a request may take back: the newest this many.
const RECENT: usize = 64;

/// What one queue still uses.
#[derive(Debug, Default)]
struct Line {
    notes: VecDeque<Note>,
    /// The newest notes that are about nodes, apart, so that a search touches little memory:
    /// node, serial, storage mode.
    nodes: VecDeque<(u32, u32, u8)>,
}

/// Notes by queue.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    queues: SmallVec<[Line; 4]>,
    count: usize,
}

impl Pending {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All notes, also those that are out of date.
    pub(crate) fn notes(&self) -> impl Iterator<Item = &Note> {
        self.queues.iter().flat_map(|line| &line.notes)
    }

    /// Adds a note under the first of its stamps.
    pub(crate) fn add(&mut self, note: Note) {
        let Some(first) = note.stamps.first() else { return };
        let index = first.queue.0 as usize;
        while self.queues.len() <= index {
            self.queues.push(Line::default());
        }
        let line = &mut self.queues[index];
        if let Target::Node { id, serial } = note.target {
            if line.nodes.len() == RECENT {
                line.nodes.pop_front();
            }
            line.nodes.push_back((id, serial, note.mode as u8));
        }
        line.notes.push_back(note);
        self.count += 1;
    }

    /// The next note whose queue has come far enough. A note that names further queues is filed
    /// under the next of them instead.
    pub(crate) fn next_done(
        &mut self,
        mut reached: impl FnMut(QueueId) -> Ticket,
    ) -> Option<(Target, usize)> {
        for index in 0..self.queues.len() {
            if self.queues[index].notes.is_empty() {
                continue;
            }
            let now = reached(QueueId(index as u32));
            while let Some(note) = self.queues[index].notes.front() {
                let due = note.stamps.first().map_or(0, |stamp| stamp.ticket);
                if note.target != Target::Dead && due > now {
                    break;
                }
                let Some(mut note) = self.queues[index].notes.pop_front() else { break };
                self.count -= 1;
                if note.target == Target::Dead {
                    continue;
                }
                let alone = note.stamps.only().is_some();
                if !alone {
                    note.stamps.prune(&mut reached);
                }
                if alone || note.stamps.is_empty() {
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
        let line = queue.and_then(|queue| self.queues.get(queue.0 as usize));
        let nodes = line.into_iter().flat_map(|line| line.nodes.iter().rev());
        nodes.filter(move |note| note.2 as usize == mode).map(|note| (note.0, note.1))
    }

    /// Takes a slot that `fits` back for `queue`, from the newest few notes.
    pub(crate) fn take_slot(
        &mut self,
        queue: QueueId,
        mode: usize,
        mut fits: impl FnMut(u32) -> bool,
    ) -> Option<(u32, u8, Stamp)> {
        /// Notes looked at: what a queue has freed longer ago is soon idle.
        const LOOKED_AT: usize = 32;
        let line = self.queues.get_mut(queue.0 as usize)?;
        for note in line.notes.iter_mut().rev().take(LOOKED_AT) {
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
