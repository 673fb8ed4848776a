//! Growth of the range heap: a request that no idle node holds.
//!
//! The one idea: a run of free neighbours (idle, bare, or pending on the asking queue) is as
//! good as one node, and costs only the memory that is missing under it. The run that needs the
//! fewest new bytes is claimed first, then committed, so that eviction in between cannot touch
//! it, and put back as it was if the driver refuses.

use smallvec::SmallVec;

use crate::bins::{Bins, bin_of};
use crate::hazard::{QueueId, Stamp};
use crate::heap::{Heap, NONE, State, block_cost};

/// Runs looked at before the cheapest is taken: from the largest idle nodes, and from the
/// newest pending ones.
const SEEDS: usize = 64;
/// Neighbours that a run may take in on either side of its seed.
const REACH: usize = 32;
/// Requests of at least this many bytes that find no memory to build on are placed apart ...
const APART: u64 = 1 << 20;
/// ... by this many times their size, at most ...
const APART_TIMES: u64 = 8;
/// ... this many bytes. When such a range is freed but still in use, a larger request of the
/// same queue can then take it and commit only the difference; without room beside it, it would
/// have to be held beside its successor. Address space costs nothing.
const APART_MOST: u64 = 8 << 30;

/// A part of a claim as it was.
#[derive(Debug)]
struct Part {
    offset: u64,
    size: u64,
    state: State,
    stamp: Option<Stamp>,
    age: u64,
}

/// A run of free nodes made one live node, to be committed or put back.
#[derive(Debug)]
pub(crate) struct Claim {
    node: u32,
    /// What was asked for; the claim may be larger by parts of granules.
    offset: u64,
    size: u64,
    parts: SmallVec<[Part; 3]>,
    /// What was cut off a pending node behind the claim: a new node that needs a note.
    cut_off: Option<(u32, u32, Stamp)>,
}

impl Claim {
    pub(crate) fn node(&self) -> u32 {
        self.node
    }

    /// Node, serial and stamp of what was cut off a pending node.
    pub(crate) fn cut_off(&self) -> Option<(u32, u32, Stamp)> {
        self.cut_off
    }

    /// The ranges that have no memory yet.
    pub(crate) fn bare(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        self.parts
            .iter()
            .filter(|part| part.state == State::Bare)
            .map(|part| (part.offset, part.size))
    }

    /// The last work that used what is claimed, all of it on the asking queue.
    pub(crate) fn stamp(&self) -> Option<Stamp> {
        self.parts.iter().filter_map(|part| part.stamp).reduce(Stamp::later)
    }
}

/// A place for a request inside a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Window {
    /// Bytes to commit.
    missing: u64,
    /// Bytes of the whole run: of equally cheap ones the tightest is taken.
    run: u64,
    first: u32,
    offset: u64,
}

impl Heap {
    /// Claims the start of the tightest run that is backed by memory all through.
    pub(crate) fn claim_committed(
        &mut self,
        queue: QueueId,
        size: u64,
        pending: impl Iterator<Item = u32>,
    ) -> Option<Claim> {
        let mut best: Option<Window> = None;
        self.visit = self.visit.wrapping_add(1);
        for seed in pending.chain(self.find_idle(size)) {
            if let Some(window) = self.committed_at(seed, queue, size)
                && best.is_none_or(|known| window.run < known.run)
            {
                best = Some(window);
                if window.run == size {
                    break;
                }
            }
        }
        best.map(|window| self.claim_window(window, size))
    }

    /// Whether a node may be part of a run that is backed by memory; marks it as looked at.
    fn joins(&mut self, id: u32, queue: QueueId) -> bool {
        let visit = self.visit;
        let node = self.node_mut(id);
        node.visit = visit;
        node.state != State::Bare && node.usable(Some(queue))
    }

    /// The run of idle and usable pending nodes around `seed`, if it holds `size` and has not been
    /// looked at in this visit.
    fn committed_at(&mut self, seed: u32, queue: QueueId, size: u64) -> Option<Window> {
        if self.node(seed).visit == self.visit || !self.joins(seed, queue) {
            return None;
        }
        let (mut first, mut last) = (seed, seed);
        loop {
            let before = self.node(first).before;
            if before == NONE || !self.joins(before, queue) {
                break;
            }
            first = before;
        }
        loop {
            let after = self.node(last).after;
            if after == NONE || !self.joins(after, queue) {
                break;
            }
            last = after;
        }
        let start = self.node(first).offset;
        let run = self.node(last).end() - start;
        let whole = self.granule.is_none()
            && self.node(first).before == NONE
            && self.node(last).after == NONE;
        let cost = block_cost(run, size, whole);
        (run >= size).then_some(Window { missing: 0, run: cost, first, offset: start })
    }

    /// Claims the run that needs the fewest new bytes for `size`, if address space allows.
    pub(crate) fn claim(
        &mut self,
        queue: Option<QueueId>,
        size: u64,
        pending: impl Iterator<Item = u32>,
    ) -> Option<Claim> {
        let mut best: Option<Window> = None;
        let mut consider = |window: Option<Window>| {
            if let Some(window) = window {
                best = Some(best.map_or(window, |known| known.min(window)));
            }
        };
        for seed in pending.take(SEEDS) {
            consider(self.window_at(seed, queue, size));
        }
        for seed in self.largest_idle(SEEDS) {
            consider(self.window_at(seed, queue, size));
        }
        let bare = self.bare_fit(size);
        if let Some(seed) = bare {
            consider(self.window_at(seed, queue, size));
        }
        let mut window = best?;
        if window.missing == size && size >= APART {
            window = self.apart(size).unwrap_or(window);
        }
        Some(self.claim_window(window, size))
    }

    /// The bare node that holds `size` best.
    fn bare_fit(&self, size: u64) -> Option<u32> {
        let bin = bin_of(size);
        self.smallest_in(&self.bare, bin, size).or_else(|| {
            let next = self.bare.next_filled(bin + 1)?;
            self.smallest_in(&self.bare, next, size)
        })
    }

    /// A place in the largest bare node with room before it and after it.
    fn apart(&self, size: u64) -> Option<Window> {
        let first = self.bare.head(self.bare.previous_filled(Bins::last())?);
        let node = self.node(first);
        let gap = size.saturating_mul(APART_TIMES).min(APART_MOST);
        let gap = gap.next_multiple_of(self.granule?);
        let room = gap.checked_mul(2)?.checked_add(size)?;
        (node.size >= room).then_some(Window {
            missing: size,
            run: node.size,
            first,
            offset: node.offset + gap,
        })
    }

    fn largest_idle(&self, count: usize) -> SmallVec<[u32; SEEDS]> {
        let mut found = SmallVec::new();
        let mut bin = self.idle.previous_filled(Bins::last());
        while let Some(at) = bin {
            let mut id = self.idle.head(at);
            while id != NONE {
                if found.len() == count {
                    return found;
                }
                found.push(id);
                id = self.next_in_bin(id);
            }
            bin = at.checked_sub(1).and_then(|below| self.idle.previous_filled(below));
        }
        found
    }

    /// The cheapest place for `size` bytes in the run of usable nodes around `seed`.
    fn window_at(&self, seed: u32, queue: Option<QueueId>, size: u64) -> Option<Window> {
        if !self.node(seed).usable(queue) {
            return None;
        }
        let mut first = seed;
        for _ in 0..REACH {
            let before = self.node(first).before;
            if before == NONE || !self.node(before).usable(queue) {
                break;
            }
            first = before;
        }
        let start = self.node(first).offset;
        let mut run: SmallVec<[(u64, u64, bool); 32]> = SmallVec::new();
        let mut id = first;
        while id != NONE && self.node(id).usable(queue) && run.len() <= 2 * REACH {
            let node = self.node(id);
            run.push((node.offset, node.end(), node.state == State::Bare));
            id = node.after;
        }
        let end = run.last()?.1;
        if end - start < size {
            return None;
        }
        let missing = |offset: u64| -> u64 {
            let stop = offset + size;
            run.iter()
                .filter(|part| part.2)
                .map(|part| part.1.min(stop).saturating_sub(part.0.max(offset)))
                .sum()
        };
        run.iter()
            .flat_map(|part| [Some(part.0), part.1.checked_sub(size)])
            .flatten()
            .filter(|&offset| offset >= start && offset + size <= end)
            .map(|offset| Window { missing: missing(offset), run: end - start, first, offset })
            .min()
    }

    /// Makes the nodes under a window one live node. Bare nodes at its ends are cut at granule
    /// bounds, so the claim may be larger than what was asked.
    fn claim_window(&mut self, window: Window, size: u64) -> Claim {
        let granule = self.granule.unwrap_or(1);
        let (start, end) = (window.offset, window.offset + size);
        let mut id = window.first;
        while self.node(id).end() <= start {
            id = self.node(id).after;
        }
        let (mut claimed, mut cut_off) = (NONE, None);
        let mut parts = SmallVec::new();
        loop {
            let node = self.node(id);
            let (mut from, mut to) = (node.offset.max(start), node.end().min(end));
            if node.state == State::Bare {
                from -= from % granule;
                to = to.next_multiple_of(granule);
            }
            let (stamp, whole_end) = (node.stamp, node.end());
            self.detach(id);
            let cut = self.cut_out(id, from, to - from);
            if let Some(stamp) = stamp
                && to < whole_end
            {
                let rest = self.node(cut).after;
                self.detach(rest);
                let age = self.node(rest).age;
                cut_off = Some((rest, self.pend(rest, &stamp.into(), age), stamp));
            }
            let node = self.node_mut(cut);
            parts.push(Part {
                offset: from,
                size: to - from,
                state: node.state,
                stamp: node.stamp.take(),
                age: node.age,
            });
            node.state = State::Live;
            if claimed == NONE {
                claimed = cut;
            } else {
                self.absorb_next(claimed);
            }
            let after = self.node(claimed).after;
            if to >= end {
                break;
            }
            id = after;
        }
        Claim { node: claimed, offset: start, size, parts, cut_off }
    }

    /// The claim is backed by memory: what it has too much becomes idle.
    pub(crate) fn finish(&mut self, claim: &Claim, age: u64) -> u32 {
        let mut id = claim.node;
        let (start, end) = (self.node(id).offset, self.node(id).end());
        if end > claim.offset + claim.size {
            let rest = self.split(id, claim.offset + claim.size - start);
            self.free(rest, age);
        }
        if claim.offset > start {
            let middle = self.split(id, claim.offset - start);
            self.free(id, age);
            id = middle;
        }
        id
    }

    /// The driver refused: every part is again what it was. Returns the parts that were pending,
    /// whose notes must be written anew.
    pub(crate) fn put_back(&mut self, claim: Claim) -> SmallVec<[(u32, u32, Stamp); 2]> {
        let mut pending = SmallVec::new();
        let mut id = claim.node;
        let last = claim.parts.len() - 1;
        for (index, part) in claim.parts.into_iter().enumerate() {
            let rest = if index < last { self.split(id, part.size) } else { NONE };
            let node = self.node_mut(id);
            (node.state, node.age) = (part.state, part.age);
            match part.stamp {
                Some(stamp) => {
                    let serial = self.pend(id, &stamp.into(), part.age);
                    pending.push((id, serial, stamp));
                }
                None => self.settle(id),
            }
            id = rest;
        }
        pending
    }
}
