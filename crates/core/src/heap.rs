//! The range heap: ranges of larger memory, split on demand and merged when free (rule B.1).
//!
//! The one idea: a region (a span of address space, or a block) is a row of nodes that touch
//! one another, each in one state. *Live* belongs to an allocation, *idle* is free and backed by
//! memory, *pending* is free but still used by queued work, *bare* is address space with nothing
//! behind it. Idle neighbours and bare neighbours always merge. A request takes an idle node by
//! good fit; growth (`growth.rs`) joins a run of free nodes of any state and commits only what
//! is bare in it.
//!
//! Invariants, checked by [`Heap::check`]: nodes cover their region without a gap; no two idle
//! and no two bare neighbours; bare nodes lie on granule bounds; the counters equal the sums.

use crate::bins::{Bins, bin_of};
use crate::hazard::{QueueId, Stamp, Stamps};
use crate::memory::{Block, BlockId};

/// No node.
pub(crate) const NONE: u32 = u32::MAX;

/// Filled bins that are looked through where memory comes in blocks.
const BLOCK_BINS: usize = 8;

/// What a free run of a block costs a request: its bytes, and more where the block is whole and
/// much larger.
pub(crate) fn block_cost(run: u64, size: u64, whole: bool) -> u64 {
    if whole && run > size + size / 4 { run.saturating_mul(4) } else { run }
}

/// Nodes of one bin that are compared before the smallest of them is taken.
const FIT_SCAN: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Spare,
    Live,
    Idle,
    Pending,
    Bare,
}

#[derive(Clone, Copy, Debug)]
struct Links {
    previous: u32,
    next: u32,
}

const UNLINKED: Links = Links { previous: NONE, next: NONE };

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) offset: u64,
    pub(crate) size: u64,
    /// When it was freed, on the pool's clock of calls.
    pub(crate) age: u64,
    /// Who still uses it, while pending; `None` also when that is more than one queue, and then
    /// nobody may take it before all of them are done.
    pub(crate) stamp: Option<Stamp>,
    pub(crate) before: u32,
    pub(crate) after: u32,
    bin: Links,
    aged: Links,
    pub(crate) region: u32,
    /// Counts the times that it became pending, so that a note of an earlier time is told apart.
    pub(crate) serial: u32,
    /// The search that looked at it last.
    pub(crate) visit: u32,
    pub(crate) state: State,
    pub(crate) wired: bool,
}

impl Node {
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.size
    }

    /// Whether a request of `queue` may build on it.
    pub(crate) fn usable(&self, queue: Option<QueueId>) -> bool {
        match self.state {
            State::Idle | State::Bare => true,
            State::Pending => self.stamp.is_some_and(|stamp| Some(stamp.queue) == queue),
            State::Live | State::Spare => false,
        }
    }
}

#[derive(Debug)]
struct Region {
    /// `None` once it has been given back and its place is spare.
    block: Option<Block>,
    first: u32,
}

/// What eviction takes from the heap.
#[derive(Debug)]
pub(crate) enum Evicted {
    /// Memory behind a part of a span.
    Pages { span: BlockId, offset: u64, len: u64 },
    /// A whole block.
    Block(Block),
}

#[derive(Debug)]
pub(crate) struct Heap {
    pub(crate) nodes: Vec<Node>,
    spare: Vec<u32>,
    pub(crate) idle: Bins,
    pub(crate) bare: Bins,
    aged_first: u32,
    aged_last: u32,
    regions: Vec<Region>,
    /// Bytes committed as one; `None` where memory comes in blocks.
    pub(crate) granule: Option<u64>,
    /// Bytes of idle and pending nodes that could be given back.
    pub(crate) returnable: u64,
    /// Bytes of pending nodes.
    pub(crate) pending: u64,
    /// Counts searches over runs.
    pub(crate) visit: u32,
}

impl Heap {
    pub(crate) fn new(granule: Option<u64>) -> Self {
        Self {
            nodes: Vec::new(),
            spare: Vec::new(),
            idle: Bins::new(),
            bare: Bins::new(),
            aged_first: NONE,
            aged_last: NONE,
            regions: Vec::new(),
            granule,
            returnable: 0,
            pending: 0,
            visit: 0,
        }
    }

    #[inline]
    pub(crate) fn node(&self, id: u32) -> &Node {
        &self.nodes[id as usize]
    }

    #[inline]
    pub(crate) fn node_mut(&mut self, id: u32) -> &mut Node {
        &mut self.nodes[id as usize]
    }

    /// The block that a node lies in: its name and address.
    #[inline]
    pub(crate) fn place(&self, id: u32) -> (BlockId, u64) {
        let block = self.regions[self.node(id).region as usize].block.as_ref();
        let block = block.expect("a node's region is held");
        (block.id, block.address)
    }

    /// Bytes of the block that a node lies in.
    #[inline]
    pub(crate) fn block_size(&self, id: u32) -> u64 {
        self.regions[self.node(id).region as usize].block.as_ref().map_or(0, |block| block.size)
    }

    /// Adds a span (bare) or a block (idle) as one node.
    pub(crate) fn add_region(&mut self, block: Block, age: u64) -> u32 {
        let (size, state) =
            (block.size, if self.granule.is_some() { State::Bare } else { State::Idle });
        let region = match self.regions.iter().position(|region| region.block.is_none()) {
            Some(spare) => spare,
            None => {
                self.regions.push(Region { block: None, first: NONE });
                self.regions.len() - 1
            }
        };
        let id = self.make(region as u32, 0, size);
        self.regions[region] = Region { block: Some(block), first: id };
        let node = self.node_mut(id);
        (node.state, node.age) = (state, age);
        self.attach(id);
        id
    }

    fn make(&mut self, region: u32, offset: u64, size: u64) -> u32 {
        let node = Node {
            offset,
            size,
            age: 0,
            stamp: None,
            before: NONE,
            after: NONE,
            bin: UNLINKED,
            aged: UNLINKED,
            region,
            serial: 0,
            visit: 0,
            state: State::Live,
            wired: false,
        };
        match self.spare.pop() {
            Some(id) => {
                // The serial goes on counting, so that a note of the place's earlier life fails.
                let serial = self.node(id).serial;
                self.nodes[id as usize] = Node { serial, ..node };
                id
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        }
    }

    /// Bytes of a free node that could be given back without its neighbours.
    #[inline]
    pub(crate) fn returnable_of(&self, id: u32) -> u64 {
        let node = self.node(id);
        match self.granule {
            // Granules are powers of two; a division here would be a third of a free's time.
            Some(granule) => {
                let start = (node.offset + (granule - 1)) & !(granule - 1);
                (node.end() & !(granule - 1)).saturating_sub(start)
            }
            None if node.before == NONE && node.after == NONE => node.size,
            None => 0,
        }
    }

    /// Takes a node out of the lists and counters of its state, before it changes.
    pub(crate) fn detach(&mut self, id: u32) {
        match self.node(id).state {
            State::Idle => {
                let returnable = self.returnable_of(id);
                self.returnable -= returnable;
                self.unbin(id, true);
                if returnable > 0 {
                    self.unage(id);
                }
            }
            State::Pending => {
                self.returnable -= self.returnable_of(id);
                self.pending -= self.node(id).size;
            }
            State::Bare => self.unbin(id, false),
            State::Live | State::Spare => {}
        }
    }

    /// Puts a node into the lists and counters of its state, after it has changed.
    pub(crate) fn attach(&mut self, id: u32) {
        match self.node(id).state {
            State::Idle => {
                let returnable = self.returnable_of(id);
                self.returnable += returnable;
                self.enbin(id, true);
                if returnable > 0 {
                    self.enage(id);
                }
            }
            State::Pending => {
                self.returnable += self.returnable_of(id);
                self.pending += self.node(id).size;
            }
            State::Bare => self.enbin(id, false),
            State::Live | State::Spare => {}
        }
    }

    #[inline]
    fn enbin(&mut self, id: u32, idle: bool) {
        let bin = bin_of(self.node(id).size);
        let bins = if idle { &mut self.idle } else { &mut self.bare };
        let next = bins.head(bin);
        bins.set_head(bin, id);
        if next != NONE {
            self.node_mut(next).bin.previous = id;
        }
        self.node_mut(id).bin = Links { previous: NONE, next };
    }

    #[inline]
    fn unbin(&mut self, id: u32, idle: bool) {
        let Links { previous, next } = self.node(id).bin;
        if next != NONE {
            self.node_mut(next).bin.previous = previous;
        }
        if previous != NONE {
            self.node_mut(previous).bin.next = next;
        } else {
            let bin = bin_of(self.node(id).size);
            let bins = if idle { &mut self.idle } else { &mut self.bare };
            bins.set_head(bin, next);
        }
    }

    /// Into the list by age, oldest first. A node is nearly always the newest, or (a slab that
    /// is given up, a remainder) goes back to where it just was: the walk is short.
    #[inline]
    fn enage(&mut self, id: u32) {
        let age = self.node(id).age;
        let (mut previous, mut next) = (self.aged_last, NONE);
        if self.aged_first != NONE && self.node(self.aged_first).age >= age {
            (previous, next) = (NONE, self.aged_first);
        }
        while previous != NONE && self.node(previous).age > age {
            next = previous;
            previous = self.node(previous).aged.previous;
        }
        self.node_mut(id).aged = Links { previous, next };
        match previous {
            NONE => self.aged_first = id,
            _ => self.node_mut(previous).aged.next = id,
        }
        match next {
            NONE => self.aged_last = id,
            _ => self.node_mut(next).aged.previous = id,
        }
    }

    #[inline]
    fn unage(&mut self, id: u32) {
        let Links { previous, next } = self.node(id).aged;
        match previous {
            NONE => self.aged_first = next,
            _ => self.node_mut(previous).aged.next = next,
        }
        match next {
            NONE => self.aged_last = previous,
            _ => self.node_mut(next).aged.previous = previous,
        }
    }

    /// Cuts a detached node at `size` bytes; the rest is a new detached node of the same state.
    pub(crate) fn split(&mut self, id: u32, size: u64) -> u32 {
        let (region, offset, whole) = {
            let node = self.node(id);
            (node.region, node.offset, node.size)
        };
        debug_assert!(0 < size && size < whole);
        let rest = self.make(region, offset + size, whole - size);
        let node = self.node_mut(id);
        node.size = size;
        let (after, state, age, stamp) = (node.after, node.state, node.age, node.stamp);
        node.after = rest;
        if after != NONE {
            self.node_mut(after).before = rest;
        }
        let node = self.node_mut(rest);
        (node.before, node.after, node.state, node.age, node.stamp) =
            (id, after, state, age, stamp);
        rest
    }

    /// Joins a detached node with its detached right neighbour, which ceases to be.
    pub(crate) fn absorb_next(&mut self, id: u32) {
        let gone = self.node(id).after;
        let (size, after, age) = {
            let node = self.node_mut(gone);
            node.state = State::Spare;
            (node.size, node.after, node.age)
        };
        self.spare.push(gone);
        let node = self.node_mut(id);
        node.size += size;
        node.after = after;
        node.age = node.age.max(age);
        if after != NONE {
            self.node_mut(after).before = id;
        }
    }

    /// Attaches a detached idle or bare node, joined with neighbours of the same state.
    #[inline]
    pub(crate) fn settle(&mut self, mut id: u32) {
        let state = self.node(id).state;
        let (before, after) = (self.node(id).before, self.node(id).after);
        if after != NONE && self.node(after).state == state {
            self.detach(after);
            self.absorb_next(id);
        }
        if before != NONE && self.node(before).state == state {
            self.detach(before);
            self.absorb_next(before);
            id = before;
        }
        self.attach(id);
    }

    /// The idle node that holds `size` best: the smallest of the first few of the first bin that
    /// can hold it. Constant time.
    #[inline]
    pub(crate) fn find_idle(&self, size: u64) -> Option<u32> {
        if self.granule.is_none() {
            return self.find_in_blocks(size);
        }
        let bin = bin_of(size);
        self.smallest_in(&self.idle, bin, size).or_else(|| {
            let next = self.idle.next_filled(bin + 1)?;
            self.smallest_in(&self.idle, next, size)
        })
    }

    /// The same where memory comes in blocks: a block that is free as a whole could be given back,
    /// so a part of one is taken for a much smaller request only where nothing else holds it.
    fn find_in_blocks(&self, size: u64) -> Option<u32> {
        let mut best: Option<(u64, u32)> = None;
        let mut bin = Some(bin_of(size));
        for _ in 0..BLOCK_BINS {
            let Some(at) = bin.and_then(|bin| self.idle.next_filled(bin)) else { break };
            let mut id = self.idle.head(at);
            for _ in 0..FIT_SCAN {
                if id == NONE {
                    break;
                }
                let node = self.node(id);
                if node.size >= size {
                    let whole = node.before == NONE && node.after == NONE;
                    if node.size == size {
                        return Some(id);
                    }
                    let cost = block_cost(node.size, size, whole);
                    if best.is_none_or(|(known, _)| cost < known) {
                        best = Some((cost, id));
                    }
                }
                id = node.bin.next;
            }
            bin = Some(at + 1);
        }
        best.map(|(_, id)| id)
    }

    /// Takes the first `size` bytes of an idle node.
    #[inline]
    pub(crate) fn take_idle(&mut self, id: u32, size: u64) {
        self.detach(id);
        self.carve(id, size);
    }

    /// The smallest of the first few nodes of a bin that hold `size`.
    #[inline]
    pub(crate) fn smallest_in(&self, bins: &Bins, bin: usize, size: u64) -> Option<u32> {
        let mut best = None;
        let mut best_size = u64::MAX;
        let mut id = bins.head(bin);
        for _ in 0..FIT_SCAN {
            if id == NONE || best_size == size {
                break;
            }
            let node = self.node(id);
            if node.size >= size && node.size < best_size {
                (best, best_size) = (Some(id), node.size);
            }
            id = node.bin.next;
        }
        best
    }

    /// Makes a detached node live with `size` bytes; the rest keeps its state.
    #[inline]
    pub(crate) fn carve(&mut self, id: u32, size: u64) {
        if self.node(id).size > size {
            let rest = self.split(id, size);
            self.attach(rest);
        }
        self.node_mut(id).state = State::Live;
    }

    /// Frees a live node that no work uses.
    #[inline]
    pub(crate) fn free(&mut self, id: u32, age: u64) {
        let node = self.node_mut(id);
        (node.state, node.age) = (State::Idle, age);
        self.settle(id);
    }

    /// Frees a live node that work still uses; returns the serial that names this time.
    pub(crate) fn pend(&mut self, id: u32, stamps: &Stamps, age: u64) -> u32 {
        let node = self.node_mut(id);
        (node.state, node.age, node.stamp) = (State::Pending, age, stamps.only());
        node.serial = node.serial.wrapping_add(1);
        let serial = node.serial;
        self.attach(id);
        serial
    }

    pub(crate) fn next_in_bin(&self, id: u32) -> u32 {
        self.node(id).bin.next
    }

    /// Whether `id` is still pending since the time that `serial` names.
    pub(crate) fn is_pending(&self, id: u32, serial: u32) -> bool {
        self.nodes
            .get(id as usize)
            .is_some_and(|node| node.state == State::Pending && node.serial == serial)
    }

    /// The work that used a pending node is done.
    pub(crate) fn complete(&mut self, id: u32, age: u64) {
        self.detach(id);
        self.node_mut(id).stamp = None;
        self.free(id, age);
    }

    /// The oldest free memory that could be given back: its age.
    pub(crate) fn oldest(&self) -> Option<u64> {
        (self.aged_first != NONE).then(|| self.node(self.aged_first).age)
    }

    /// Takes about `want` bytes of the oldest free memory out of the heap: whole granules of one
    /// node, or one block.
    pub(crate) fn evict(&mut self, want: u64) -> Option<Evicted> {
        let id = self.aged_first;
        if id == NONE {
            return None;
        }
        let Some(granule) = self.granule else {
            self.detach(id);
            let node = self.node_mut(id);
            node.state = State::Spare;
            let region = node.region as usize;
            self.spare.push(id);
            self.regions[region].first = NONE;
            return self.regions[region].block.take().map(Evicted::Block);
        };
        self.detach(id);
        let node = self.node(id);
        let start = node.offset.next_multiple_of(granule);
        let end = node.end() - node.end() % granule;
        let len = want.clamp(granule, end - start).next_multiple_of(granule);
        // From the high end, so that what stays is compact at low addresses; but beside bare
        // space on the left when there is some, so that bare space stays whole too.
        let left_bare = node.before != NONE && self.node(node.before).state == State::Bare;
        let offset = if left_bare && start == node.offset { start } else { end - len };
        let gone = self.cut_out(id, offset, len);
        self.node_mut(gone).state = State::Bare;
        let span = self.place(gone).0;
        self.settle(gone);
        Some(Evicted::Pages { span, offset, len })
    }

    /// Cuts `[offset, offset + len)` out of a detached node; what is left of it on either side is
    /// attached in its old state, the middle is returned detached.
    pub(crate) fn cut_out(&mut self, mut id: u32, offset: u64, len: u64) -> u32 {
        let (start, end) = (self.node(id).offset, self.node(id).end());
        if end > offset + len {
            let rest = self.split(id, offset + len - start);
            self.attach(rest);
        }
        if offset > start {
            let middle = self.split(id, offset - start);
            self.attach(id);
            id = middle;
        }
        id
    }

    /// Blocks or spans held.
    pub(crate) fn region_count(&self) -> u64 {
        self.regions.iter().filter(|region| region.block.is_some()).count() as u64
    }

    /// Takes the spans with nothing in them out of the heap, at close.
    pub(crate) fn remove_bare_spans(&mut self) -> Vec<Block> {
        let mut spans = Vec::new();
        for index in 0..self.regions.len() {
            let first = self.regions[index].first;
            if first == NONE {
                continue;
            }
            let node = self.node(first);
            if node.state == State::Bare && node.after == NONE {
                self.detach(first);
                self.node_mut(first).state = State::Spare;
                self.spare.push(first);
                self.regions[index].first = NONE;
                spans.extend(self.regions[index].block.take());
            }
        }
        spans
    }

    /// Panics unless every invariant of the module's head holds.
    pub(crate) fn check(&self) -> HeapSums {
        let mut sums = HeapSums::default();
        let (mut returnable, mut pending, mut seen) = (0, 0, 0);
        for (index, region) in self.regions.iter().enumerate() {
            let Some(block) = &region.block else { continue };
            let (mut id, mut offset, mut before) = (region.first, 0, NONE);
            while id != NONE {
                let node = self.node(id);
                seen += 1;
                assert_eq!((node.offset, node.before), (offset, before), "a gap before {node:?}");
                assert_eq!(node.region as usize, index);
                assert!(node.size > 0 && node.state != State::Spare);
                if before != NONE && matches!(node.state, State::Idle | State::Bare) {
                    assert_ne!(node.state, self.node(before).state, "unmerged {node:?}");
                }
                match node.state {
                    State::Idle => returnable += self.returnable_of(id),
                    State::Pending => {
                        returnable += self.returnable_of(id);
                        pending += node.size;
                    }
                    State::Bare => {
                        let granule = self.granule.expect("bare only with virtual memory");
                        assert!(
                            node.offset.is_multiple_of(granule)
                                && node.size.is_multiple_of(granule)
                        );
                        sums.bare += node.size;
                    }
                    State::Live => sums.live += node.size,
                    State::Spare => unreachable!(),
                }
                sums.wired += if node.wired { node.size } else { 0 };
                sums.wired_nodes += u64::from(node.wired);
                assert!(!node.wired || node.state == State::Live);
                (offset, before, id) = (node.end(), id, node.after);
            }
            assert_eq!(offset, block.size, "nodes cover the region");
            sums.space += block.size;
        }
        assert_eq!(seen + self.spare.len(), self.nodes.len(), "no node is lost");
        assert_eq!((returnable, pending), (self.returnable, self.pending));
        sums
    }
}

/// Bytes by state, for the pool's own check.
#[derive(Debug, Default)]
pub(crate) struct HeapSums {
    pub(crate) space: u64,
    pub(crate) bare: u64,
    pub(crate) live: u64,
    pub(crate) wired: u64,
    pub(crate) wired_nodes: u64,
}
