//! PyTorch's caching allocator for CUDA, as its documentation and messages describe it.
//!
//! Requests are rounded up to 512 bytes. Those of up to 1 MiB are cut from segments of 2 MiB,
//! larger ones below 10 MiB from segments of 20 MiB, the rest get a segment of their own in steps
//! of 2 MiB. A request takes the smallest free block of its stream and pool that holds it; what is
//! left of a block stays free if it is at least 512 bytes (small) or above 1 MiB (large). Freed
//! blocks merge with free neighbours of their segment, never across segments; segments go back only
//! when the driver has no more.

use std::collections::{BTreeMap, BTreeSet};

use super::{Driver, Policy};

const UNIT: u64 = 512;
const SMALL: u64 = 1 << 20;
const SMALL_SEGMENT: u64 = 2 << 20;
const LARGE_SEGMENT: u64 = 20 << 20;
const OWN_SEGMENT: u64 = 10 << 20;
const STEP: u64 = 2 << 20;

/// A stretch of a segment.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// Where it begins, in an address space of the policy's own: later segments lie higher.
    address: u64,
    size: u64,
    stream: u32,
    small: bool,
    free: bool,
    before: Option<usize>,
    after: Option<usize>,
}

/// The allocator with one pool for small and one for large requests of each stream.
#[derive(Debug)]
pub(crate) struct PyTorch {
    driver: Driver,
    blocks: Vec<Block>,
    spare: Vec<usize>,
    /// Free blocks: pool, stream, size, address.
    free: BTreeSet<(bool, u32, u64, u64, usize)>,
    live: BTreeMap<u32, usize>,
    next_address: u64,
}

impl PyTorch {
    pub(crate) fn new(driver: Driver) -> Self {
        Self {
            driver,
            blocks: Vec::new(),
            spare: Vec::new(),
            free: BTreeSet::new(),
            live: BTreeMap::new(),
            next_address: 0,
        }
    }

    fn add(&mut self, block: Block) -> usize {
        match self.spare.pop() {
            Some(place) => {
                self.blocks[place] = block;
                place
            }
            None => {
                self.blocks.push(block);
                self.blocks.len() - 1
            }
        }
    }

    fn key(&self, place: usize) -> (bool, u32, u64, u64, usize) {
        let block = &self.blocks[place];
        (block.small, block.stream, block.size, block.address, place)
    }

    /// The smallest free block of the stream that holds `size`.
    fn find(&self, size: u64, stream: u32, small: bool) -> Option<usize> {
        let from = (small, stream, size, 0, 0);
        let found = self.free.range(from..).next()?;
        (found.0 == small && found.1 == stream).then_some(found.4)
    }

    /// A new segment, free as a whole.
    fn segment(&mut self, size: u64, stream: u32, small: bool) -> Option<usize> {
        let len = match size {
            _ if small => SMALL_SEGMENT,
            _ if size < OWN_SEGMENT => LARGE_SEGMENT,
            _ => size.checked_next_multiple_of(STEP)?,
        };
        if !self.driver.obtain(len) {
            self.release_segments();
            if !self.driver.obtain(len) {
                return None;
            }
        }
        let address = self.next_address;
        self.next_address = self.next_address.saturating_add(len);
        let whole =
            Block { address, size: len, stream, small, free: true, before: None, after: None };
        let place = self.add(whole);
        self.free.insert(self.key(place));
        Some(place)
    }

    /// Gives back every segment that is free as a whole.
    fn release_segments(&mut self) {
        let whole = |block: &Block| block.before.is_none() && block.after.is_none();
        let gone: Vec<_> =
            self.free.iter().copied().filter(|key| whole(&self.blocks[key.4])).collect();
        for key in gone {
            self.free.remove(&key);
            self.spare.push(key.4);
            self.driver.give_back(key.2);
        }
    }

    /// Cuts what is left of a block off, if it is large enough to be of use.
    fn split(&mut self, place: usize, size: u64) {
        let block = self.blocks[place];
        let left = block.size - size;
        let keeps = if block.small { left >= UNIT } else { left > SMALL };
        if !keeps {
            return;
        }
        let rest = Block {
            address: block.address + size,
            size: left,
            free: true,
            before: Some(place),
            ..block
        };
        let rest = self.add(rest);
        self.blocks[place].size = size;
        self.blocks[place].after = Some(rest);
        if let Some(after) = self.blocks[rest].after {
            self.blocks[after].before = Some(rest);
        }
        self.free.insert(self.key(rest));
    }

    /// Makes a block and the free one behind it one.
    fn absorb_next(&mut self, place: usize) {
        let Some(next) = self.blocks[place].after.filter(|&next| self.blocks[next].free) else {
            return;
        };
        self.free.remove(&self.key(next));
        let gone = self.blocks[next];
        self.blocks[place].size += gone.size;
        self.blocks[place].after = gone.after;
        if let Some(after) = gone.after {
            self.blocks[after].before = Some(place);
        }
        self.spare.push(next);
    }
}

impl Policy for PyTorch {
    fn name(&self) -> &'static str {
        "pytorch"
    }

    fn allocate(&mut self, number: u32, size: u64, stream: u32) -> bool {
        let Some(size) = size.max(1).checked_next_multiple_of(UNIT) else { return false };
        let small = size <= SMALL;
        let found = self.find(size, stream, small);
        let Some(place) = found.or_else(|| self.segment(size, stream, small)) else {
            return false;
        };
        self.free.remove(&self.key(place));
        self.blocks[place].free = false;
        self.split(place, size);
        self.live.insert(number, place);
        true
    }

    fn free(&mut self, number: u32) {
        let Some(mut place) = self.live.remove(&number) else { return };
        self.blocks[place].free = true;
        self.absorb_next(place);
        if let Some(before) = self.blocks[place].before.filter(|&at| self.blocks[at].free) {
            self.free.remove(&self.key(before));
            // It is in no list, so that the one before it can take it in.
            self.absorb_next(before);
            place = before;
        }
        self.free.insert(self.key(place));
    }

    fn driver(&self) -> &Driver {
        &self.driver
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_cut_and_merge_within_themselves() {
        let mut policy = PyTorch::new(Driver::new(1 << 30));
        assert!(policy.allocate(0, 1, 0));
        assert_eq!(policy.driver().held, 2 << 20);
        policy.allocate(1, 3 << 20, 0);
        assert_eq!(policy.driver().held, 22 << 20);
        policy.allocate(2, 10 << 20, 0);
        assert_eq!(policy.driver().held, 22 << 20, "it fits behind the 3 MiB");
        policy.allocate(3, 11 << 20, 0);
        assert_eq!(policy.driver().held, 34 << 20, "a segment of its own, in steps of 2 MiB");
        (0..4).for_each(|number| policy.free(number));
        assert_eq!(policy.free.len(), 3, "every segment is one free block again");
        policy.allocate(4, 1 << 10, 1);
        assert_eq!(policy.driver().held, 36 << 20, "another stream has segments of its own");
    }

    #[test]
    fn a_full_driver_gets_free_segments_back() {
        let mut policy = PyTorch::new(Driver::new(40 << 20));
        assert!(policy.allocate(0, 30 << 20, 0));
        policy.free(0);
        assert!(policy.allocate(1, 38 << 20, 0));
        assert_eq!(policy.driver().held, 38 << 20);
        assert!(!policy.allocate(2, 38 << 20, 0));
    }
}
