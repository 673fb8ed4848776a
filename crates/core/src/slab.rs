//! Slabs: requests of up to a page are slots of one class in a few pages (rule B.1).
//!
//! The one idea: a slab's free slots are the bits of one word, so taking and giving back a slot
//! is a handful of instructions however many slabs there are. A class keeps at most one empty
//! slab; a second one goes back to the range heap at once.
//!
//! Invariant: a slab is in its class's list just when it has a free slot.

use std::collections::VecDeque;

use crate::heap::NONE;
use crate::size::{PAGE, SMALL};

/// Classes: every multiple of [`SMALL`] up to a page.
const CLASSES: usize = (PAGE / SMALL) as usize;

/// Pages of a slab of `size`-byte slots: the fewest that waste at most an eighth.
const fn pages_of(size: u64) -> u64 {
    let mut pages = 1;
    while (pages * PAGE) % size > pages * PAGE / 8 {
        pages += 1;
    }
    pages
}

#[inline]
fn class_of(size: u64) -> usize {
    (size / SMALL) as usize - 1
}

/// Bytes of a slab for slots of `size` bytes, after the first of their class.
fn slab_size(size: u64) -> u64 {
    SLAB_PAGES[class_of(size)] as u64 * PAGE
}

static SLAB_PAGES: [u8; CLASSES] = {
    let mut pages = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        pages[class] = pages_of((class as u64 + 1) * SMALL) as u8;
        class += 1;
    }
    pages
};

#[derive(Debug)]
pub(crate) struct Slab {
    /// The heap's node under it; [`NONE`] while this place is spare.
    pub(crate) node: u32,
    class: u8,
    pages: u8,
    live: u8,
    pending: u8,
    /// Slots that are free and idle.
    free: u64,
    previous: u32,
    next: u32,
    /// When it last became empty.
    age: u64,
}

/// All slabs of one storage mode.
#[derive(Debug)]
pub(crate) struct Slabs {
    slabs: Vec<Slab>,
    spare: Vec<u32>,
    partial: [u32; CLASSES],
    empty: [u32; CLASSES],
    /// Slabs of each class.
    counts: [u32; CLASSES],
    /// Empty slabs in the order in which they became so, with notes that are out of date.
    empties: VecDeque<(u32, u64)>,
    /// Bytes of empty slabs.
    pub(crate) empty_bytes: u64,
    /// Bytes of pending slots.
    pub(crate) pending_bytes: u64,
}

/// What freeing a slot leads to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    Kept,
    /// The slab is empty and not wanted: its node goes back to the heap.
    Release(u32),
}

impl Slabs {
    pub(crate) fn new() -> Self {
        Self {
            slabs: Vec::new(),
            spare: Vec::new(),
            partial: [NONE; CLASSES],
            empty: [NONE; CLASSES],
            counts: [0; CLASSES],
            empties: VecDeque::new(),
            empty_bytes: 0,
            pending_bytes: 0,
        }
    }

    fn bytes(&self, slab: u32) -> u64 {
        u64::from(self.slabs[slab as usize].pages) * PAGE
    }

    /// Bytes of the next slab for slots of `size` bytes. The first of a class is one page, whatever
    /// that wastes: a program that asks for a size once shall not hold many slots of it.
    pub(crate) fn next_bytes(&self, size: u64) -> u64 {
        if self.counts[class_of(size)] == 0 { PAGE } else { slab_size(size) }
    }

    /// The heap's node under a slab, and the offset of a slot in it.
    #[inline]
    pub(crate) fn locate(&self, slab: u32, slot: u8) -> (u32, u64) {
        let slab = &self.slabs[slab as usize];
        (slab.node, u64::from(slot) * (u64::from(slab.class) + 1) * SMALL)
    }

    /// Takes a free slot of `size` bytes, if there is one. Constant time.
    #[inline]
    pub(crate) fn take(&mut self, size: u64) -> Option<(u32, u8)> {
        let class = class_of(size);
        let id = self.partial[class];
        if id == NONE {
            return None;
        }
        let slab = &mut self.slabs[id as usize];
        let slot = slab.free.trailing_zeros() as u8;
        let was_empty = slab.live == 0 && slab.pending == 0;
        slab.free &= slab.free - 1;
        slab.live += 1;
        if slab.free == 0 {
            self.unlink(id);
        }
        if was_empty {
            self.empty[class] = NONE;
            self.empty_bytes -= self.bytes(id);
        }
        Some((id, slot))
    }

    /// Adds a slab for slots of `size` bytes over a live node of the heap.
    pub(crate) fn add(&mut self, size: u64, (node, bytes): (u32, u64), age: u64) {
        let class = class_of(size);
        let slots = bytes / size;
        self.counts[class] += 1;
        let slab = Slab {
            node,
            class: class as u8,
            pages: (bytes / PAGE) as u8,
            live: 0,
            pending: 0,
            free: u64::MAX >> (64 - slots),
            previous: NONE,
            next: NONE,
            age,
        };
        let id = match self.spare.pop() {
            Some(id) => {
                self.slabs[id as usize] = slab;
                id
            }
            None => {
                self.slabs.push(slab);
                (self.slabs.len() - 1) as u32
            }
        };
        self.link(id);
        self.note_empty(id, age);
    }

    /// Frees a live slot that no work uses.
    #[inline]
    pub(crate) fn free(&mut self, slab: u32, slot: u8, age: u64) -> Freed {
        self.slabs[slab as usize].live -= 1;
        self.make_free(slab, slot, age)
    }

    /// A live slot is freed, but work still uses it.
    pub(crate) fn pend(&mut self, slab: u32) {
        self.pending_bytes += self.slot_size(slab);
        let slab = &mut self.slabs[slab as usize];
        slab.live -= 1;
        slab.pending += 1;
    }

    /// The work on a pending slot is done.
    pub(crate) fn complete(&mut self, slab: u32, slot: u8, age: u64) -> Freed {
        self.pending_bytes -= self.slot_size(slab);
        self.slabs[slab as usize].pending -= 1;
        self.make_free(slab, slot, age)
    }

    /// A pending slot is taken again by the queue that uses it.
    pub(crate) fn revive(&mut self, slab: u32) {
        self.pending_bytes -= self.slot_size(slab);
        let slab = &mut self.slabs[slab as usize];
        slab.pending -= 1;
        slab.live += 1;
    }

    /// Bytes of a slot.
    pub(crate) fn slot_size(&self, slab: u32) -> u64 {
        (u64::from(self.slabs[slab as usize].class) + 1) * SMALL
    }

    #[inline]
    fn make_free(&mut self, id: u32, slot: u8, age: u64) -> Freed {
        let slab = &mut self.slabs[id as usize];
        debug_assert_eq!(slab.free & (1 << slot), 0, "a slot freed twice");
        let was_full = slab.free == 0;
        slab.free |= 1 << slot;
        let (empty, class) = (slab.live == 0 && slab.pending == 0, slab.class as usize);
        if was_full {
            self.link(id);
        }
        if !empty {
            return Freed::Kept;
        }
        if self.empty[class] != NONE {
            return Freed::Release(self.remove(id));
        }
        self.note_empty(id, age);
        Freed::Kept
    }

    fn note_empty(&mut self, id: u32, age: u64) {
        let slab = &mut self.slabs[id as usize];
        slab.age = age;
        self.empty[slab.class as usize] = id;
        self.empty_bytes += self.bytes(id);
        // A slab that is emptied and taken again and again has one note, renewed.
        if let Some(last) = self.empties.back_mut()
            && last.0 == id
        {
            last.1 = age;
            return;
        }
        // Notes of slabs that were taken again are out of date; the queue is swept when they
        // outnumber what it can hold, so that it does not grow with the length of the program.
        if self.empties.len() > 4 * CLASSES {
            let (slabs, empty) = (&self.slabs, &self.empty);
            self.empties.retain(|&(id, age)| {
                let slab = &slabs[id as usize];
                empty[slab.class as usize] == id && slab.age == age
            });
        }
        self.empties.push_back((id, age));
    }

    /// The age of the empty slab that has been so for longest.
    pub(crate) fn oldest_empty(&mut self) -> Option<u64> {
        while let Some(&(id, age)) = self.empties.front() {
            let slab = &self.slabs[id as usize];
            if slab.node != NONE && self.empty[slab.class as usize] == id && slab.age == age {
                return Some(age);
            }
            self.empties.pop_front();
        }
        None
    }

    /// Gives up the slab that [`oldest_empty`](Self::oldest_empty) speaks of: its node.
    pub(crate) fn release_oldest_empty(&mut self) -> Option<u32> {
        self.oldest_empty()?;
        let (id, _) = self.empties.pop_front()?;
        self.empty[self.slabs[id as usize].class as usize] = NONE;
        self.empty_bytes -= self.bytes(id);
        Some(self.remove(id))
    }

    fn remove(&mut self, id: u32) -> u32 {
        self.unlink(id);
        self.spare.push(id);
        self.counts[self.slabs[id as usize].class as usize] -= 1;
        std::mem::replace(&mut self.slabs[id as usize].node, NONE)
    }

    fn link(&mut self, id: u32) {
        let class = self.slabs[id as usize].class as usize;
        let next = std::mem::replace(&mut self.partial[class], id);
        if next != NONE {
            self.slabs[next as usize].previous = id;
        }
        let slab = &mut self.slabs[id as usize];
        (slab.previous, slab.next) = (NONE, next);
    }

    fn unlink(&mut self, id: u32) {
        let slab = &self.slabs[id as usize];
        let (previous, next, class) = (slab.previous, slab.next, slab.class as usize);
        match previous {
            NONE => self.partial[class] = next,
            _ => self.slabs[previous as usize].next = next,
        }
        if next != NONE {
            self.slabs[next as usize].previous = previous;
        }
    }

    /// Panics unless lists, words and counters agree; returns bytes of live slots and
    /// of all slabs.
    pub(crate) fn check(&self) -> (u64, u64) {
        let (mut live, mut pending, mut total, mut empty) = (0, 0, 0, 0);
        for (id, slab) in self.slabs.iter().enumerate().filter(|(_, slab)| slab.node != NONE) {
            let (id, size) = (id as u32, self.slot_size(id as u32));
            let slots = self.bytes(id) / size;
            let free = u64::from(slab.free.count_ones());
            assert_eq!(free + u64::from(slab.live) + u64::from(slab.pending), slots);
            assert!(slots == 64 || slab.free >> slots == 0);
            live += u64::from(slab.live) * size;
            pending += u64::from(slab.pending) * size;
            total += self.bytes(id);
            let is_empty = slab.live == 0 && slab.pending == 0;
            assert_eq!(is_empty, self.empty[slab.class as usize] == id, "one empty slab a class");
            empty += if is_empty { self.bytes(id) } else { 0 };
        }
        for (class, &first) in self.partial.iter().enumerate() {
            let (mut id, mut previous, mut listed) = (first, NONE, 0);
            while id != NONE {
                let slab = &self.slabs[id as usize];
                assert!(slab.free != 0 && slab.class as usize == class);
                assert_eq!(slab.previous, previous);
                (previous, id, listed) = (id, slab.next, listed + 1);
            }
            let with_room =
                |slab: &&Slab| slab.node != NONE && slab.free != 0 && slab.class as usize == class;
            assert_eq!(listed, self.slabs.iter().filter(with_room).count());
        }
        assert_eq!((empty, pending), (self.empty_bytes, self.pending_bytes));
        (live, total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Exhaustive over the classes: at least one slot, at most 64, at most an eighth wasted.
    #[test]
    fn every_class_fits_its_slab() {
        for size in (SMALL..=PAGE).step_by(SMALL as usize) {
            let slots = slab_size(size) / size;
            assert!((1..=64).contains(&slots), "{size}: {slots} slots");
            assert!(slab_size(size) - slots * size <= slab_size(size) / 8, "{size}");
        }
    }
}
