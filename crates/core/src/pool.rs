//! The pool: allocations out of a device's memory (rules A to D).
//!
//! The one idea: a request goes down a ladder and stops at the first rung that has memory, a
//! free slot, an idle range, a range that only the same queue still uses, and last the driver.
//! Only the last rung calls the device, and there limits, pressure and the bound on what is held
//! are applied ([`limits`](crate::limits)).
//!
//! A pool is plain data behind `&mut`: whoever shares it puts it behind one lock.

use std::collections::BTreeMap;

use crate::blocks::Blocks;
use crate::caps::{Caps, Storage};
use crate::hazard::{QueueId, Stamp, Stamps, Ticket};
use crate::heap::Heap;
use crate::ledger::{LabelId, LabelRow, Ledger};
use crate::limits::wiring::WiredBlock;
use crate::memory::{BlockId, DriverError, Memory};
use crate::pending::{Note, Pending, Target};
use crate::refusal::{Leak, MOST_HOLDERS, Refusal, RefusalKind};
use crate::size::{PAGE, allocation_size};
use crate::slab::{Freed, Slabs};
use crate::trace::observe::{Tell, Watch};
use crate::trace::{self, Event};

/// How freed memory is reused (rule B.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reuse {
    /// Ranges of larger memory, split on demand and merged when freed.
    #[default]
    Ranges,
    /// Whole blocks, as the founding documents describe.
    Blocks,
}

/// The limits of a pool, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Hard limit on `active + mapped`.
    pub memory: u64,
    /// Limit on the cache.
    pub cache: u64,
    /// Limit on what is kept resident.
    pub wired: u64,
}

/// What a pool is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The policy of reuse.
    pub reuse: Reuse,
    /// The limits to start with.
    pub limits: Limits,
    /// The device's own recommendation of how much to use.
    pub working_set: u64,
    /// The part of the working set, in percent, above which cached memory goes back before more is
    /// taken (rule C.5); default 75.
    pub pressure: u64,
}

/// Rule C.5.
const PRESSURE_PERCENT: u64 = 75;

impl Settings {
    /// The defaults of rule C.1: memory limit min(1.5 · working set, 0.95 · RAM), cache limit the
    /// same, nothing wired.
    ///
    /// ```
    /// use aquifer_core::Settings;
    /// let settings = Settings::for_working_set(40_000_000_000, 48_000_000_000);
    /// assert_eq!(settings.limits.memory, 45_600_000_000);
    /// ```
    pub fn for_working_set(working_set: u64, ram: u64) -> Self {
        // In 128 bits and by fractions, so that the result is exact and cannot overflow.
        let part = |value: u64, numerator: u128, denominator: u128| {
            u64::try_from(u128::from(value) * numerator / denominator).unwrap_or(u64::MAX)
        };
        let memory = part(working_set, 3, 2).min(part(ram, 95, 100));
        Self {
            reuse: Reuse::default(),
            limits: Limits { memory, cache: memory, wired: 0 },
            working_set,
            pressure: PRESSURE_PERCENT,
        }
    }

    /// The same with another policy of reuse.
    pub fn with_reuse(self, reuse: Reuse) -> Self {
        Self { reuse, ..self }
    }
}

/// What is asked of a pool.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    len: u64,
    mode: Storage,
    queue: Option<QueueId>,
    label: LabelId,
}

impl Request {
    /// `len` bytes in a mode, for the CPU or for any queue.
    #[inline]
    pub fn new(len: u64, mode: Storage) -> Self {
        Self { len, mode, queue: None, label: LabelId::default() }
    }

    /// For work on `queue`: it may take what only that queue still uses (rule B.5).
    #[inline]
    #[must_use]
    pub fn on(mut self, queue: QueueId) -> Self {
        self.queue = Some(queue);
        self
    }

    /// Counted under a label.
    #[inline]
    #[must_use]
    pub fn labelled(mut self, label: LabelId) -> Self {
        self.label = label;
        self
    }
}

/// Where an allocation lies in the pool's own books.
#[derive(Debug)]
enum Place {
    Empty,
    Slot { slab: u32, slot: u8 },
    Node(u32),
    Whole(u32),
}

/// A range that belongs to the caller until it goes back by [`Pool::free`].
#[derive(Debug)]
#[must_use = "an allocation that is dropped is never free again"]
pub struct Allocation {
    place: Place,
    mode: Storage,
    block: BlockId,
    offset: u64,
    size: u64,
    asked: u64,
    address: u64,
    label: LabelId,
    inherited: Option<Stamp>,
}

impl Allocation {
    /// The block or span that it is a range of.
    pub fn block(&self) -> BlockId {
        self.block
    }

    /// Bytes from the start of the block.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes charged.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes asked.
    pub fn asked(&self) -> u64 {
        self.asked
    }

    /// The block's address plus the offset.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The storage mode.
    pub fn mode(&self) -> Storage {
        self.mode
    }

    /// Where it lies, as traces name it.
    pub fn trace_place(&self) -> trace::Place {
        trace::Place { mode: self.mode, block: self.block, offset: self.offset }
    }

    /// Work of an earlier owner that may still use the range: another queue, and the CPU, must
    /// wait for it first. It is work of the queue that the request named.
    pub fn inherited(&self) -> Option<Stamp> {
        self.inherited
    }
}

/// Why growth stopped, before the message is made.
pub(crate) enum Stop {
    Limit,
    Driver(DriverError),
}

impl From<Stop> for RefusalKind {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Limit => Self::Limit,
            Stop::Driver(error) => Self::Driver(error.call, error.code),
        }
    }
}

impl From<DriverError> for Stop {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}

/// The memory of one storage mode.
#[derive(Debug)]
pub(crate) struct Arena {
    pub(crate) heap: Heap,
    pub(crate) slabs: Slabs,
    pub(crate) blocks: Blocks,
}

/// All of a device's memory, both storage modes, with one account and one set of limits.
#[derive(Debug)]
pub struct Pool {
    pub(crate) caps: Caps,
    pub(crate) reuse: Reuse,
    pub(crate) limits: Limits,
    pub(crate) working_set: u64,
    pub(crate) pressure: u64,
    pub(crate) arenas: [Arena; 2],
    pub(crate) pending: Pending,
    pub(crate) ledger: Ledger,
    /// The highest `active` there ever was: what the bound on held memory is measured by.
    pub(crate) high_water: u64,
    pub(crate) wired: u64,
    pub(crate) wired_mapped: u64,
    /// Blocks that are wired whole.
    pub(crate) wired_blocks: BTreeMap<BlockId, WiredBlock>,
    pub(crate) mappings: Vec<Option<crate::limits::Mapping>>,
    pub(crate) watch: Option<Box<Watch>>,
    clock: u64,
}

impl Pool {
    /// A pool that holds nothing.
    pub fn new(caps: &Caps, settings: Settings) -> Self {
        let granule = match settings.reuse {
            Reuse::Ranges => caps.virtual_memory.map(|memory| memory.granule),
            Reuse::Blocks => None,
        };
        let arena =
            || Arena { heap: Heap::new(granule), slabs: Slabs::new(), blocks: Blocks::default() };
        Self {
            caps: caps.clone(),
            reuse: settings.reuse,
            limits: settings.limits,
            working_set: settings.working_set,
            pressure: settings.pressure.min(100),
            arenas: [arena(), arena()],
            pending: Pending::default(),
            ledger: Ledger::default(),
            high_water: 0,
            wired: 0,
            wired_mapped: 0,
            wired_blocks: BTreeMap::new(),
            mappings: Vec::new(),
            watch: None,
            clock: 0,
        }
    }

    pub(crate) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// A range of at least the bytes asked, with unspecified contents. Constant time and no
    /// driver call when free memory fits.
    ///
    /// # Errors
    /// A [`Refusal`]; every figure is then as it was, `peak` included.
    // Inlined to where the allocation is kept: it is a dozen words, and each move of it waits for
    // its own stores.
    #[inline(always)]
    pub fn allocate<M: Memory + ?Sized>(
        &mut self,
        device: &M,
        mut request: Request,
    ) -> Result<Allocation, Refusal> {
        request.label = self.ledger.known(request.label);
        if request.len == 0 {
            return Ok(self.empty(&request));
        }
        if self.watch.is_some() {
            return self.allocate_observed(device, request);
        }
        let Some(size) = allocation_size(request.len) else {
            return Err(self.refusal(request.len, RefusalKind::Overflow));
        };
        if size > self.caps.largest_buffer {
            let kind = RefusalKind::TooLarge(self.caps.largest_buffer);
            return Err(self.refusal(request.len, kind));
        }
        if !self.pending.is_empty() {
            self.poll(device);
        }
        let found = match self.reuse {
            Reuse::Ranges if size <= PAGE => self.allocate_slot(device, &request, size),
            Reuse::Ranges => self.allocate_range(device, &request, size),
            Reuse::Blocks => self.allocate_whole(device, &request, size),
        };
        let allocation = match found {
            Ok(allocation) => allocation,
            Err(stop) => return Err(self.refusal(request.len, stop.into())),
        };
        self.ledger.allocated(request.label, allocation.size, request.len);
        self.high_water = self.high_water.max(self.ledger.active);
        Ok(allocation)
    }

    #[cold]
    fn allocate_observed<M: Memory + ?Sized>(
        &mut self,
        device: &M,
        request: Request,
    ) -> Result<Allocation, Refusal> {
        let Request { len, mode, queue, label } = request;
        let event = |result: &Result<Allocation, Refusal>| {
            Some(match result {
                Ok(allocation) => Event::Allocate {
                    place: allocation.trace_place(),
                    asked: len,
                    size: allocation.size,
                    queue,
                    label,
                    inherited: allocation.inherited.map(|stamp| stamp.ticket),
                },
                Err(refusal) => {
                    Event::Refuse { mode, asked: len, queue, label, reason: refusal.kind }
                }
            })
        };
        self.observe(device, Tell::Always, |pool, device| pool.allocate(device, request), event)
    }

    fn empty(&self, request: &Request) -> Allocation {
        Allocation {
            place: Place::Empty,
            mode: request.mode,
            block: BlockId(0),
            offset: 0,
            size: 0,
            asked: 0,
            address: 0,
            label: request.label,
            inherited: None,
        }
    }

    #[cold]
    pub(crate) fn refusal(&self, asked: u64, kind: RefusalKind) -> Refusal {
        let holders = self.ledger.holders(MOST_HOLDERS);
        Refusal { kind, asked, stats: Box::new(self.stats()), holders }
    }

    /// Whether the limits would let a request of `len` bytes through.
    pub(crate) fn allows(&self, len: u64) -> bool {
        allocation_size(len)
            .is_some_and(|size| size <= self.caps.largest_buffer && self.within_limit(size).is_ok())
    }

    #[inline]
    fn within_limit(&self, size: u64) -> Result<(), Stop> {
        let used = self.ledger.active.saturating_add(self.ledger.mapped);
        if used.checked_add(size).is_none_or(|sum| sum > self.limits.memory) {
            return Err(Stop::Limit);
        }
        Ok(())
    }

    #[inline(always)]
    fn allocate_slot<M: Memory + ?Sized>(
        &mut self,
        device: &M,
        request: &Request,
        size: u64,
    ) -> Result<Allocation, Stop> {
        self.within_limit(size)?;
        let mode = request.mode.index();
        let (mut found, mut inherited) = (self.arenas[mode].slabs.take(size), None);
        if found.is_none() {
            let arena = &mut self.arenas[mode];
            let revived = request.queue.and_then(|queue| {
                self.pending.take_slot(queue, mode, |slab| arena.slabs.slot_size(slab) == size)
            });
            if let Some((slab, slot, stamp)) = revived {
                arena.slabs.revive(slab);
                (found, inherited) = (Some((slab, slot)), Some(stamp));
            } else {
                let bytes = self.arenas[mode].slabs.next_bytes(size);
                let (node, stamp) = self.node(device, request, bytes)?;
                debug_assert!(stamp.is_none(), "slabs are cut from idle memory");
                let age = self.tick();
                let slabs = &mut self.arenas[mode].slabs;
                slabs.add(size, (node, bytes), age);
                found = slabs.take(size);
            }
        }
        let (slab, slot) = found.expect("a slab that was just added has a free slot");
        let (node, within) = self.arenas[mode].slabs.locate(slab, slot);
        let heap = &self.arenas[mode].heap;
        let ((block, base), offset) = (heap.place(node), heap.node(node).offset + within);
        Ok(Allocation {
            place: Place::Slot { slab, slot },
            mode: request.mode,
            block,
            offset,
            size,
            asked: request.len,
            address: base + offset,
            label: request.label,
            inherited,
        })
    }

    #[inline(always)]
    fn allocate_range<M: Memory + ?Sized>(
        &mut self,
        device: &M,
        request: &Request,
        size: u64,
    ) -> Result<Allocation, Stop> {
        self.within_limit(size)?;
        let (node, inherited) = self.node(device, request, size)?;
        let heap = &self.arenas[request.mode.index()].heap;
        let ((block, base), offset) = (heap.place(node), heap.node(node).offset);
        Ok(Allocation {
            place: Place::Node(node),
            mode: request.mode,
            block,
            offset,
            size,
            asked: request.len,
            address: base + offset,
            label: request.label,
            inherited,
        })
    }

    fn allocate_whole<M: Memory + ?Sized>(
        &mut self,
        device: &M,
        request: &Request,
        size: u64,
    ) -> Result<Allocation, Stop> {
        let mode = request.mode.index();
        let (place, inherited) = match self.arenas[mode].blocks.take(size, request.queue) {
            Some(found) => found,
            None => {
                self.within_limit(size)?;
                self.make_room(device, size, size);
                let block = device.obtain(size, request.mode)?;
                self.ledger.obtained(size);
                (self.arenas[mode].blocks.hold(block), None)
            }
        };
        let block = self.arenas[mode].blocks.live(place).expect("it was just taken");
        let (id, address, size) = (block.id, block.address, block.size);
        // B.6: the charge is the block's, so a cached block may pass a limit that the request
        // itself would not.
        if let Err(stop) = self.within_limit(size) {
            let age = self.tick();
            self.free_whole((mode, place), inherited.map(Stamps::from).unwrap_or_default(), age);
            return Err(stop);
        }
        self.wire_block(device, id, size);
        Ok(Allocation {
            place: Place::Whole(place),
            mode: request.mode,
            block: id,
            offset: 0,
            size,
            asked: request.len,
            address,
            label: request.label,
            inherited,
        })
    }

    /// A live node of `size` bytes, whole pages. For a slab it is asked without a queue, so that
    /// its slots are idle.
    fn node<M: Memory + ?Sized>(
        &mut self,
        device: &M,
        request: &Request,
        size: u64,
    ) -> Result<(u32, Option<Stamp>), Stop> {
        let mode = request.mode.index();
        let queue = request.queue.filter(|_| request.len > PAGE);
        let found = match queue {
            Some(queue) if !self.pending.is_empty() => self.fit_run(mode, queue, size),
            _ => {
                let heap = &mut self.arenas[mode].heap;
                heap.find_idle(size).map(|id| {
                    heap.take_idle(id, size);
                    (id, None)
                })
            }
        };
        let found = match found {
            Some(found) => found,
            None => {
                let grown = self.grow(device, request.mode, queue, size);
                // Growth leaves parts of granules behind, which may complete free ones.
                self.trim(device);
                grown?
            }
        };
        self.wire_node(device, mode, found.0);
        Ok(found)
    }

    /// Gives an allocation back. `stamps` is the work that still uses it: the memory is free at
    /// once for the same queue, and for everyone when that work is done (rule B.5).
    #[inline(always)]
    pub fn free<M: Memory + ?Sized>(
        &mut self,
        device: &M,
        allocation: Allocation,
        mut stamps: Stamps,
    ) {
        if self.watch.is_some() && allocation.size > 0 {
            let place = allocation.trace_place();
            let (size, noted) = (allocation.size, trace::noted(&stamps));
            let event = move |_: &()| Some(Event::Free { place, size, stamps: noted });
            let call = |pool: &mut Self, device: &dyn Memory| pool.free(device, allocation, stamps);
            return self.observe(device, Tell::Always, call, event);
        }
        let Allocation { place, mode, block, size, asked, label, inherited, .. } = allocation;
        if matches!(place, Place::Empty) {
            return;
        }
        // Work of an earlier owner counts too, whether or not the caller still knows of it.
        if let Some(stamp) = inherited
            && device.reached(stamp.queue) < stamp.ticket
        {
            stamps.add(stamp);
        }
        self.ledger.freed(label, size, asked);
        let (mode, age) = (mode.index(), self.tick());
        match place {
            Place::Empty => {}
            Place::Slot { slab, slot } => self.free_slot(device, (mode, slab, slot), stamps, age),
            Place::Node(node) => {
                self.unwire_node(device, mode, node);
                self.free_node((mode, node), stamps, age);
            }
            Place::Whole(place) => {
                self.unwire_block(device, block);
                self.free_whole((mode, place), stamps, age);
            }
        }
        if !self.pending.is_empty() {
            self.poll(device);
        }
        self.trim(device);
    }

    #[inline]
    fn free_slot<M: Memory + ?Sized>(
        &mut self,
        device: &M,
        (mode, slab, slot): (usize, u32, u8),
        stamps: Stamps,
        age: u64,
    ) {
        let arena = &mut self.arenas[mode];
        if stamps.is_empty() {
            if let Freed::Release(node) = arena.slabs.free(slab, slot, age) {
                self.release_slab_node(device, mode, node, age);
            }
            return;
        }
        arena.slabs.pend(slab);
        self.pending.add(Note { target: Target::Slot { slab, slot }, mode, stamps });
    }

    pub(crate) fn release_slab_node<M: Memory + ?Sized>(
        &mut self,
        device: &M,
        mode: usize,
        node: u32,
        age: u64,
    ) {
        self.unwire_node(device, mode, node);
        self.arenas[mode].heap.free(node, age);
    }

    #[inline]
    fn free_node(&mut self, (mode, node): (usize, u32), stamps: Stamps, age: u64) {
        let heap = &mut self.arenas[mode].heap;
        if stamps.is_empty() {
            heap.free(node, age);
            return;
        }
        let serial = heap.pend(node, &stamps, age);
        self.pending.add(Note { target: Target::Node { id: node, serial }, mode, stamps });
    }

    fn free_whole(&mut self, (mode, place): (usize, u32), stamps: Stamps, age: u64) {
        let blocks = &mut self.arenas[mode].blocks;
        let size = blocks.live(place).map_or(0, |block| block.size);
        blocks.free(place, stamps.clone(), age);
        if !stamps.is_empty() {
            self.pending.add(Note { target: Target::Block { size, age }, mode, stamps });
        }
    }

    /// Makes idle what was freed while work used it and is now done, and trims the cache to its
    /// limit. The pool does so on its own calls; a device calls it when a batch is done.
    pub fn poll<M: Memory + ?Sized>(&mut self, device: &M) {
        if self.watch.is_some() {
            let call = |pool: &mut Self, device: &dyn Memory| pool.poll(device);
            return self.observe(device, Tell::IfChanged, call, |()| Some(Event::Poll));
        }
        if self.complete_pending(device, |queue| device.reached(queue)) {
            self.trim(device);
        }
    }

    /// Makes idle what is done by `reached`; whether there was something.
    pub(crate) fn complete_pending<M: Memory + ?Sized>(
        &mut self,
        device: &M,
        reached: impl Fn(QueueId) -> Ticket,
    ) -> bool {
        let mut changed = false;
        while let Some((target, mode)) = self.pending.next_done(&reached) {
            changed = true;
            let age = self.tick();
            let arena = &mut self.arenas[mode];
            match target {
                Target::Node { id, serial } if arena.heap.is_pending(id, serial) => {
                    arena.heap.complete(id, age);
                }
                Target::Slot { slab, slot } => {
                    if let Freed::Release(node) = arena.slabs.complete(slab, slot, age) {
                        self.release_slab_node(device, mode, node, age);
                    }
                }
                Target::Block { size, age } if arena.blocks.is_pending(size, age) => {
                    arena.blocks.complete(size, age);
                }
                Target::Node { .. } | Target::Block { .. } | Target::Dead => {}
            }
        }
        changed
    }

    /// The row of label `name` inside `parent`.
    pub fn label(&mut self, parent: LabelId, name: &str) -> LabelId {
        let id = self.ledger.intern(parent, name);
        self.tell_labels();
        id
    }

    /// What is held after [`close`](Self::close), if anything is.
    pub fn leak(&self) -> Option<Leak> {
        let Ledger { reserved, active, allocations, .. } = self.ledger;
        let holders = self.ledger.holders(usize::MAX);
        (reserved > 0).then_some(Leak { reserved, active, allocations, holders })
    }

    /// Whether the driver has given or taken memory since
    /// [`take_driver_calls`](Self::take_driver_calls).
    #[inline(always)]
    pub fn driver_called(&self) -> bool {
        self.ledger.driver_called
    }

    /// Bytes obtained and given back since the last time that this was asked.
    pub fn take_driver_calls(&mut self) -> (u64, u64) {
        self.ledger.driver_called = false;
        std::mem::take(&mut self.ledger.driver_bytes)
    }

    /// What is allocated by label.
    pub fn labels(&self) -> Vec<LabelRow> {
        self.ledger.rows()
    }
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
