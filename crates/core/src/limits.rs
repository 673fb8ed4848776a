//! Limits, pressure, giving back, and wiring (rules B.3, B.4, C, M).
//!
//! The one idea: memory leaves the cache in one place ([`Pool::evict`]), oldest first over both
//! storage modes; every rule that wants less held only says how much less.

use smallvec::SmallVec;

use crate::caps::Storage;
use crate::growth::Claim;
use crate::hazard::{QueueId, Stamp, Ticket};
use crate::heap::Evicted;
use crate::ledger::Ledger;
use crate::memory::{Block, BlockId, Memory};
use crate::pending::{Note, Target};
use crate::pool::{Pool, Reuse, Settings, Stop};
use crate::refusal::{Refusal, RefusalKind};
use crate::size::PAGE;
use crate::stats::MemoryStats;
use crate::trace::observe::Tell;
use crate::trace::{Event, LimitKind};

/// Held memory may pass the most that was ever active by this much before free memory is given
/// back instead of more being taken (rule B.1 allows 5 %; sizes are charged in pages, so a part
/// of that is left for padding) ...
const HEADROOM_PERCENT: u64 = 2;
/// ... or by this many bytes, so that small programs do not give back what they soon need.
const HEADROOM_BYTES: u64 = 4 << 20;
/// What those bytes are at most where memory comes in blocks.
const MOST_HEADROOM_PERCENT: u64 = 5;
/// The least and the most that a device without virtual memory is asked for at once, and the part
/// of what is held between them. A larger request gets a block of its own size: it is free as a
/// whole when the request is.
const BLOCK_STEP: (u64, u64) = (64 << 10, 32 << 20);
const BLOCK_PART: u64 = 256;

/// Bytes of address space below which a span is not halved further: it would soon be full.
const MOST_HALVED: u64 = 64 << 20;

/// A file that counts in `mapped`.
#[derive(Debug)]
pub(crate) struct Mapping {
    size: u64,
    block: Option<BlockId>,
    wired: bool,
}

/// Names a mapping of a pool; goes back by [`Pool::unmap`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a mapping that is dropped is counted for ever"]
pub struct MappingId(usize);

impl Pool {
    /// Free bytes that could be given back, now or when pending work is done.
    pub(crate) fn cache(&self) -> u64 {
        self.arenas
            .iter()
            .map(|arena| arena.heap.returnable + arena.slabs.empty_bytes + arena.blocks.cached)
            .sum()
    }

    /// What pressure is measured by: active, mapped and cached.
    fn in_use(&self) -> u64 {
        let Ledger { active, mapped, .. } = self.ledger;
        active.saturating_add(mapped).saturating_add(self.cache())
    }

    /// One snapshot of every figure.
    pub fn stats(&self) -> MemoryStats {
        let (ledger, cache) = (&self.ledger, self.cache());
        let pending = |arena: &crate::pool::Arena| {
            arena.heap.pending + arena.slabs.pending_bytes + arena.blocks.pending_bytes
        };
        let blocks = |arena: &crate::pool::Arena| arena.heap.region_count() + arena.blocks.count();
        MemoryStats {
            active: ledger.active,
            peak: ledger.peak,
            cache,
            mapped: ledger.mapped,
            active_with_mapped: ledger.active.saturating_add(ledger.mapped),
            peak_with_mapped: ledger.peak_with_mapped,
            memory_limit: self.limits.memory,
            cache_limit: self.limits.cache,
            system_allocations: ledger.system_allocations,
            wired_limit: self.limits.wired,
            wired: self.wired,
            wired_mapped: self.wired_mapped,
            wrapped: ledger.wrapped,
            pending: self.arenas.iter().map(pending).sum(),
            padding: ledger.active - ledger.asked,
            slack: ledger.reserved - ledger.active - cache,
            reserved: ledger.reserved,
            peak_reserved: ledger.peak_reserved,
            committed_ever: ledger.committed_ever,
            working_set: self.working_set,
            allocations: ledger.allocations,
            blocks: self.arenas.iter().map(blocks).sum(),
        }
    }

    /// Allocations made so far, and the bytes that they asked for.
    pub fn totals(&self) -> (u64, u64) {
        (self.ledger.allocations_ever, self.ledger.asked_ever)
    }

    /// The policy and the limits as they are now.
    pub fn settings(&self) -> Settings {
        Settings {
            reuse: self.reuse,
            limits: self.limits,
            working_set: self.working_set,
            pressure: self.pressure,
        }
    }

    /// Sets both peaks (and that of `reserved`) to what is in use now.
    pub fn reset_peak(&mut self) {
        self.ledger.reset_peak();
        self.tell(Event::ResetPeak);
    }

    /// Sets the hard limit on `active + mapped`; returns the old one. A limit below what is in
    /// use is accepted, and the next request is refused.
    pub fn set_memory_limit(&mut self, bytes: u64) -> u64 {
        self.tell(Event::Limit { kind: LimitKind::Memory, bytes });
        std::mem::replace(&mut self.limits.memory, bytes)
    }

    /// Sets the limit on the cache, trims to it at once, and returns the old one.
    pub fn set_cache_limit<M: Memory + ?Sized>(&mut self, device: &M, bytes: u64) -> u64 {
        if self.watch.is_some() {
            let call = |pool: &mut Self, device: &dyn Memory| pool.set_cache_limit(device, bytes);
            let event = Event::Limit { kind: LimitKind::Cache, bytes };
            return self.observe(device, Tell::Always, call, |_| Some(event));
        }
        let old = std::mem::replace(&mut self.limits.cache, bytes);
        self.poll(device);
        self.trim(device);
        old
    }

    /// Gives back all free memory that no work uses.
    pub fn clear_cache<M: Memory + ?Sized>(&mut self, device: &M) {
        if self.watch.is_some() {
            let call = |pool: &mut Self, device: &dyn Memory| pool.clear_cache(device);
            return self.observe(device, Tell::Always, call, |()| Some(Event::ClearCache));
        }
        self.poll(device);
        self.evict(device, u64::MAX);
    }

    /// Gives back the oldest free memory until use is below `percent` of the working set (rule
    /// C.5); called with 50 by a caller that is about to wait anyway.
    pub fn relieve<M: Memory + ?Sized>(&mut self, device: &M, percent: u64) {
        let used = self.in_use();
        let bound = self.working_set / 100 * percent.min(100);
        if used > bound {
            if self.watch.is_some() {
                let call = |pool: &mut Self, device: &dyn Memory| pool.relieve(device, percent);
                let event = Event::Relieve { percent };
                return self.observe(device, Tell::Always, call, |()| Some(event));
            }
            self.poll(device);
            self.evict(device, self.in_use().saturating_sub(bound));
        }
    }

    /// Rule B.3: what is free but held stays within the cache limit. What work still uses cannot
    /// be given back; it goes when that work is done.
    #[inline]
    pub(crate) fn trim<M: Memory + ?Sized>(&mut self, device: &M) {
        while let Some(excess) = self.cache().checked_sub(self.limits.cache)
            && excess > 0
        {
            // Again, since what is given up may complete a granule that was only partly free.
            if !self.evict(device, excess) {
                return;
            }
        }
    }

    /// Gives back at least `bytes` of the oldest idle memory; whether there was so much.
    #[cold]
    pub(crate) fn evict<M: Memory + ?Sized>(&mut self, device: &M, bytes: u64) -> bool {
        let before = self.ledger.reserved;
        loop {
            let gone = before - self.ledger.reserved;
            if gone >= bytes {
                return true;
            }
            if !self.evict_one(device, bytes - gone) {
                return false;
            }
        }
    }

    fn evict_one<M: Memory + ?Sized>(&mut self, device: &M, want: u64) -> bool {
        let mut oldest: Option<(u64, usize, usize)> = None;
        for (index, arena) in self.arenas.iter_mut().enumerate() {
            let ages = [arena.heap.oldest(), arena.slabs.oldest_empty(), arena.blocks.oldest()];
            for (source, age) in ages.into_iter().enumerate() {
                if let Some(age) = age
                    && oldest.is_none_or(|known| age < known.0)
                {
                    oldest = Some((age, index, source));
                }
            }
        }
        let Some((age, index, source)) = oldest else { return false };
        let arena = &mut self.arenas[index];
        match source {
            0 => match arena.heap.evict(want) {
                Some(Evicted::Pages { span, offset, len }) => {
                    device.decommit(span, offset, len);
                    self.ledger.given_back(len);
                }
                Some(Evicted::Block(block)) => {
                    self.ledger.given_back(block.size);
                    device.give_back(block);
                }
                None => return false,
            },
            1 => {
                // Into the heap with its own age: the next turn finds it there.
                if let Some(node) = arena.slabs.release_oldest_empty() {
                    self.release_slab_node(device, index, node, age);
                }
            }
            _ => {
                if let Some(block) = arena.blocks.evict() {
                    self.ledger.given_back(block.size);
                    device.give_back(block);
                }
            }
        }
        true
    }

    /// Before `need` bytes are taken from the driver for a request of `size`: gives back what
    /// the collection threshold (B.4), pressure (C.5) and the bound on held memory (B.1) ask.
    pub(crate) fn make_room<M: Memory + ?Sized>(&mut self, device: &M, need: u64, size: u64) {
        let cache = self.cache();
        let used = self.ledger.active.saturating_add(self.ledger.mapped).saturating_add(cache);
        let after = used.saturating_add(need);
        let percent = |value: u64, part: u64| (u128::from(value) * u128::from(part) / 100) as u64;
        let threshold = percent(self.working_set, 95).min(self.limits.memory);
        let mut excess = after.saturating_add(1).saturating_sub(threshold);
        excess = excess.max(after.saturating_sub(percent(self.working_set, self.pressure)));
        if self.reuse == Reuse::Ranges {
            let most = self.high_water.max(self.ledger.active.saturating_add(size));
            let headroom = self.headroom(most);
            let held = self.ledger.reserved.saturating_add(need);
            excess = excess.max(held.saturating_sub(most.saturating_add(headroom)));
        }
        if excess > 0 {
            self.evict(device, excess);
        }
    }

    fn headroom(&self, most: u64) -> u64 {
        // Blocks go back as wholes and at a driver call each: a small program's share is bounded.
        let bytes = match self.caps.virtual_memory {
            Some(_) => HEADROOM_BYTES,
            None => HEADROOM_BYTES.min(most / 100 * MOST_HEADROOM_PERCENT),
        };
        (most / 100 * HEADROOM_PERCENT).max(bytes)
    }

    /// A node that needs memory from the driver.
    #[cold]
    pub(crate) fn grow<M: Memory + ?Sized>(
        &mut self,
        device: &M,
        mode: Storage,
        queue: Option<QueueId>,
        size: u64,
    ) -> Result<(u32, Option<Stamp>), Stop> {
        match self.caps.virtual_memory {
            Some(memory) => self.grow_span(device, (mode, queue, size), memory.span),
            None => self.grow_block(device, (mode, queue, size)),
        }
    }

    fn grow_span<M: Memory + ?Sized>(
        &mut self,
        device: &M,
        (mode, queue, size): (Storage, Option<QueueId>, u64),
        span: u64,
    ) -> Result<(u32, Option<Stamp>), Stop> {
        let index = mode.index();
        let claim = match self.claim(index, queue, size) {
            Some(claim) => claim,
            None => {
                let block = self.reserve(device, (mode, size), span)?;
                let age = self.tick();
                self.arenas[index].heap.add_region(block, age);
                self.claim(index, queue, size).expect("a new span holds the request")
            }
        };
        let need: u64 = claim.bare().map(|(_, len)| len).sum();
        self.make_room(device, need, size);
        let block = self.arenas[index].heap.place(claim.node()).0;
        let committed = claim.bare().enumerate().try_for_each(|(done, (offset, len))| {
            device.commit(block, offset, len).inspect_err(|_| {
                for (offset, len) in claim.bare().take(done) {
                    device.decommit(block, offset, len);
                }
            })
        });
        if let Err(error) = committed {
            for (id, serial, stamp) in self.arenas[index].heap.put_back(claim) {
                let target = Target::Node { id, serial };
                self.pending.add(Note { target, mode: index, stamps: stamp.into() });
            }
            return Err(error.into());
        }
        if need > 0 {
            self.ledger.obtained(need);
        }
        let (stamp, age) = (claim.stamp(), self.tick());
        Ok((self.arenas[index].heap.finish(&claim, age), stamp))
    }

    /// A new span: of the usual size or as large as the request needs; where the system gives less
    /// address space than usual (a limit on it, a tool that watches memory), the half, and so on.
    fn reserve<M: Memory + ?Sized>(
        &mut self,
        device: &M,
        (mode, size): (Storage, u64),
        span: u64,
    ) -> Result<Block, Stop> {
        let granule = self.caps.virtual_memory.map_or(PAGE, |memory| memory.granule);
        let least = size.next_multiple_of(granule);
        let mut len = span.max(least);
        loop {
            match device.reserve(len, mode) {
                Ok(block) => return Ok(block),
                Err(_) if len / 2 >= least.max(MOST_HALVED) => len /= 2,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Memory for `queue` in the tightest run of idle nodes and of pending ones that only it still
    /// uses.
    pub(crate) fn fit_run(
        &mut self,
        mode: usize,
        queue: QueueId,
        size: u64,
    ) -> Option<(u32, Option<Stamp>)> {
        let seeds = self.seeds(mode, Some(queue));
        let claim = self.arenas[mode].heap.claim_committed(queue, size, seeds.into_iter())?;
        self.note_cut_off(mode, &claim);
        let (stamp, age) = (claim.stamp(), self.tick());
        Some((self.arenas[mode].heap.finish(&claim, age), stamp))
    }

    fn claim(&mut self, mode: usize, queue: Option<QueueId>, size: u64) -> Option<Claim> {
        let seeds = self.seeds(mode, queue);
        let claim = self.arenas[mode].heap.claim(queue, size, seeds.into_iter())?;
        self.note_cut_off(mode, &claim);
        Some(claim)
    }

    /// The newest nodes that only `queue` still uses: where a search for a run begins.
    fn seeds(&self, mode: usize, queue: Option<QueueId>) -> SmallVec<[u32; 64]> {
        let heap = &self.arenas[mode].heap;
        let nodes = self.pending.nodes(queue, mode);
        nodes.filter(|&(id, serial)| heap.is_pending(id, serial)).map(|(id, _)| id).collect()
    }

    /// What a claim cut off a pending node is pending too, under a note of its own.
    fn note_cut_off(&mut self, mode: usize, claim: &Claim) {
        if let Some((id, serial, stamp)) = claim.cut_off() {
            let target = Target::Node { id, serial };
            self.pending.add(Note { target, mode, stamps: stamp.into() });
        }
    }

    fn grow_block<M: Memory + ?Sized>(
        &mut self,
        device: &M,
        (mode, queue, size): (Storage, Option<QueueId>, u64),
    ) -> Result<(u32, Option<Stamp>), Stop> {
        let index = mode.index();
        // A run of idle and pending neighbours of one block may hold it without a new one.
        if queue.is_some()
            && !self.pending.is_empty()
            && let Some(claim) = self.claim(index, queue, size)
        {
            let (stamp, age) = (claim.stamp(), self.tick());
            return Ok((self.arenas[index].heap.finish(&claim, age), stamp));
        }
        let len = self.block_len(size);
        self.make_room(device, len, size);
        let block = match device.obtain(len, mode) {
            Err(_) if len > size => {
                // A driver that is short gives perhaps what is needed without what is not.
                device.obtain(size, mode)?
            }
            result => result?,
        };
        self.ledger.obtained(block.size);
        let age = self.tick();
        let heap = &mut self.arenas[index].heap;
        let id = heap.add_region(block, age);
        heap.detach(id);
        heap.carve(id, size);
        Ok((id, None))
    }

    /// Bytes of the next block for a request: a step that grows with what is held, unless the
    /// request is larger.
    fn block_len(&self, size: u64) -> u64 {
        let (least, most) = BLOCK_STEP;
        let step = (self.ledger.reserved / BLOCK_PART).clamp(least, most) / PAGE * PAGE;
        if size >= step { size } else { step.min(self.caps.largest_block).max(size) }
    }

    /// Counts a file of `size` bytes (a `mapping_size`) as mapped; `block` is what can be wired.
    ///
    /// # Errors
    /// [`RefusalKind::Limit`] where it would pass the memory limit; nothing has changed then.
    pub fn map<M: Memory + ?Sized>(
        &mut self,
        device: &M,
        size: u64,
        block: Option<BlockId>,
    ) -> Result<MappingId, Refusal> {
        if self.watch.is_some() {
            let call = |pool: &mut Self, device: &dyn Memory| pool.map(device, size, block);
            return self.observe(device, Tell::Always, call, |result| {
                let id = result.as_ref().ok().map(|mapping| mapping.0 as u32);
                Some(Event::Map { id, size, block })
            });
        }
        let used = self.ledger.active.saturating_add(self.ledger.mapped);
        if used.checked_add(size).is_none_or(|sum| sum > self.limits.memory) {
            return Err(self.refusal(size, RefusalKind::Limit));
        }
        self.ledger.map(size);
        let mut mapping = Mapping { size, block, wired: false };
        self.wire_mapping(device, &mut mapping);
        let place = match self.mappings.iter().position(Option::is_none) {
            Some(place) => place,
            None => {
                self.mappings.push(None);
                self.mappings.len() - 1
            }
        };
        self.mappings[place] = Some(mapping);
        Ok(MappingId(place))
    }

    /// A mapped file is mapped no longer.
    pub fn unmap<M: Memory + ?Sized>(&mut self, device: &M, mapping: MappingId) {
        if self.watch.is_some() {
            let event = Event::Unmap { id: mapping.0 as u32 };
            let call = |pool: &mut Self, device: &dyn Memory| pool.unmap(device, mapping);
            return self.observe(device, Tell::Always, call, |()| Some(event));
        }
        if let Some(mut mapping) = self.mappings[mapping.0].take() {
            self.unwire_mapping(device, &mut mapping);
            self.ledger.mapped -= mapping.size;
        }
    }

    /// Counts `size` bytes of the caller's own memory as wrapped.
    pub fn wrap(&mut self, size: u64) {
        self.ledger.wrapped += size;
        self.tell(Event::Wrap { size });
    }

    /// Undoes [`wrap`](Self::wrap).
    pub fn unwrap_memory(&mut self, size: u64) {
        self.ledger.wrapped -= size;
        self.tell(Event::Unwrap { size });
    }

    /// Sets how much is kept resident; returns the old limit. Live memory is wired until the
    /// limit is full, or unwired until it holds.
    ///
    /// # Errors
    /// The working set, where `bytes` is above it.
    pub fn set_wired_limit<M: Memory + ?Sized>(
        &mut self,
        device: &M,
        bytes: u64,
    ) -> Result<u64, u64> {
        if bytes > self.working_set {
            return Err(self.working_set);
        }
        if self.watch.is_some() {
            let call = |pool: &mut Self, device: &dyn Memory| pool.set_wired_limit(device, bytes);
            let event = Event::Limit { kind: LimitKind::Wired, bytes };
            return self.observe(device, Tell::Always, call, |_| Some(event));
        }
        let old = std::mem::replace(&mut self.limits.wired, bytes);
        self.rewire(device);
        Ok(old)
    }

    /// Closes the pool, after all submitted work is done: gives back what is free, also what work
    /// that was never submitted would have used. Returns the bytes that are still held, 0 if
    /// nothing leaks.
    pub fn close<M: Memory + ?Sized>(&mut self, device: &M) -> u64 {
        if self.watch.is_some() {
            let call = |pool: &mut Self, device: &dyn Memory| pool.close(device);
            return self.observe(device, Tell::Always, call, |_| Some(Event::Close));
        }
        self.complete_pending(device, |_| Ticket::MAX);
        self.evict(device, u64::MAX);
        for arena in &mut self.arenas {
            if arena.heap.granule.is_some() {
                for span in arena.heap.remove_bare_spans() {
                    device.release(span);
                }
            }
        }
        self.ledger.reserved
    }

    fn noted_bytes(&self, note: &Note) -> u64 {
        let arena = &self.arenas[note.mode];
        match note.target {
            Target::Node { id, serial } if arena.heap.is_pending(id, serial) => {
                arena.heap.node(id).size
            }
            Target::Slot { slab, .. } => arena.slabs.slot_size(slab),
            Target::Block { size, age } if arena.blocks.is_pending(size, age) => size,
            Target::Node { .. } | Target::Block { .. } | Target::Dead => 0,
        }
    }

    /// Panics unless every invariant holds: heaps, slabs, ledger, and the sums between them.
    /// Linear in what is held; for tests.
    pub fn check(&self) {
        self.ledger.check();
        let (mut held, mut live, mut wired, mut parts) = (0, 0, 0, 0);
        for arena in &self.arenas {
            let sums = arena.heap.check();
            let (slots, slabs) = arena.slabs.check();
            let whole = arena.blocks.check();
            held += sums.space - sums.bare + whole + arena.blocks.cached;
            live += sums.live - slabs + slots + whole;
            wired += sums.wired;
            parts += sums.wired_nodes;
        }
        assert_eq!(live, self.ledger.active, "what is live is what is charged");
        assert_eq!(held, self.ledger.reserved, "what is held is what the driver gave");
        let stats = self.stats();
        assert_eq!(stats.reserved, stats.active + stats.cache + stats.slack);
        assert!(self.wired <= self.limits.wired && self.wired_mapped <= self.wired);
        if self.caps.wires_blocks || self.reuse == Reuse::Blocks {
            wired = self.wired_blocks.values().map(|block| block.size).sum();
            let counted: u64 = self.wired_blocks.values().map(|block| u64::from(block.parts)).sum();
            assert!(self.reuse == Reuse::Blocks || counted == parts, "every part is counted");
        }
        assert_eq!(wired + self.wired_mapped, self.wired);
        assert!(stats.pending <= stats.cache + stats.slack);
        let noted = self.pending.notes().map(|note| self.noted_bytes(note)).sum::<u64>();
        assert_eq!(noted, stats.pending, "every pending range has its note");
        assert!(self.high_water >= self.ledger.active);
    }
}

pub(crate) mod wiring;
