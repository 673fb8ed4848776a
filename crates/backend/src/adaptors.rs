//! Wrappers that make any back end misbehave in one way, so that what is built on it can be
//! tested: [`Failing`], [`Slow`], [`Tiny`], [`Poisoned`],
//! [`Incoherent`]; and [`Planned`], which notes what is submitted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use aquifer_core::{Block, BlockId, Caps, DriverError, Memory, QueueId, Storage, Ticket};

use crate::dtype::Dtype;
use crate::ir::Kernel;
use crate::seam::{
    Backend, Batch, Budget, Command, CompileError, Dispatch, Failure, ImportError, Pipeline,
    Signature, Source, WaitError,
};

/// The methods of both traits that an adaptor passes on as they are.
macro_rules! pass_on {
    (memory: $($name:ident($($arg:ident: $type:ty),*) $(-> $ret:ty)?;)*) => {
        $(fn $name(&self, $($arg: $type),*) $(-> $ret)? { self.inner.$name($($arg),*) })*
    };
    (spans) => {
        pass_on! { memory:
            reserve(size: u64, mode: Storage) -> Result<Block, DriverError>;
            release(span: Block);
            commit(span: BlockId, offset: u64, len: u64) -> Result<(), DriverError>;
            decommit(span: BlockId, offset: u64, len: u64);
            wire(block: BlockId, offset: u64, len: u64) -> Result<(), DriverError>;
            unwire(block: BlockId, offset: u64, len: u64);
        }
    };
    (backend) => {
        pass_on! { memory:
            api() -> &'static str;
            supports(dtype: Dtype) -> bool;
            forget(block: Block);
            close_queue(queue: QueueId);
            kick(queue: QueueId);
            submitted(queue: QueueId) -> Ticket;
            take_failure(queue: QueueId) -> Option<Failure>;
            compile_source(source: &Source) -> Result<(Pipeline, Signature), CompileError>;
            prepare(dispatch: &Dispatch) -> Result<u64, CompileError>;
            flush(block: BlockId, offset: u64, len: u64) -> Result<(), DriverError>;
            invalidate(block: BlockId, offset: u64, len: u64) -> Result<(), DriverError>;
        }
    };
    (calls) => {
        pass_on! { memory:
            open_queue() -> Result<QueueId, DriverError>;
            compile(kernel: &Kernel) -> Result<Pipeline, CompileError>;
        }

        unsafe fn import(&self, address: *mut u8, len: u64) -> Result<Block, ImportError> {
            // SAFETY: the same contract, passed on.
            unsafe { self.inner.import(address, len) }
        }

        unsafe fn submit(&self, queue: QueueId, batch: &mut Batch) -> Result<Ticket, DriverError> {
            // SAFETY: the same contract, passed on.
            unsafe { self.inner.submit(queue, batch) }
        }
    };
    (wait) => {
        pass_on! { memory: lost() -> Option<DriverError>; }

        fn wait(
            &self,
            queue: QueueId,
            ticket: Ticket,
            timeout: Option<Duration>,
        ) -> Result<(), WaitError> {
            self.inner.wait(queue, ticket, timeout)
        }
    };
}

/// Lets calls of the driver fail: the `n`-th from now, or all from one on.
#[derive(Debug)]
pub struct Failing {
    inner: Arc<dyn Backend>,
    calls: AtomicU64,
    fail_at: AtomicU64,
    lost: AtomicBool,
}

impl Failing {
    /// The code that its refusals carry.
    pub const CODE: i64 = -4242;

    /// A wrapper that does not fail yet.
    pub fn new(inner: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            calls: AtomicU64::new(0),
            fail_at: AtomicU64::new(u64::MAX),
            lost: AtomicBool::new(false),
        })
    }

    /// Calls made so far that may fail.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Lets the `n`-th call from now fail; 0 is the next one.
    pub fn fail_after(&self, n: u64) {
        self.fail_at.store(self.calls() + n, Ordering::Relaxed);
    }

    /// From now on every wait finds the device lost.
    pub fn lose(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    fn call(&self, call: &'static str) -> Result<(), DriverError> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        if number == self.fail_at.load(Ordering::Relaxed) {
            return Err(DriverError { call, code: Self::CODE });
        }
        Ok(())
    }
}

impl Memory for Failing {
    fn obtain(&self, size: u64, mode: Storage) -> Result<Block, DriverError> {
        self.call("obtain")?;
        self.inner.obtain(size, mode)
    }

    fn reserve(&self, size: u64, mode: Storage) -> Result<Block, DriverError> {
        self.call("reserve")?;
        self.inner.reserve(size, mode)
    }

    fn commit(&self, span: BlockId, offset: u64, len: u64) -> Result<(), DriverError> {
        self.call("commit")?;
        self.inner.commit(span, offset, len)
    }

    fn wire(&self, block: BlockId, offset: u64, len: u64) -> Result<(), DriverError> {
        self.call("wire")?;
        self.inner.wire(block, offset, len)
    }

    pass_on! { memory:
        give_back(block: Block);
        release(span: Block);
        decommit(span: BlockId, offset: u64, len: u64);
        unwire(block: BlockId, offset: u64, len: u64);
        reached(queue: QueueId) -> Ticket;
    }
}

// SAFETY: all is passed on to a back end that keeps the contract.
unsafe impl Backend for Failing {
    pass_on!(backend);
    pass_on! { memory: caps() -> &Caps; budget() -> Budget; }

    unsafe fn import(&self, address: *mut u8, len: u64) -> Result<Block, ImportError> {
        self.call("import").map_err(ImportError::Driver)?;
        // SAFETY: the same contract, passed on.
        unsafe { self.inner.import(address, len) }
    }

    fn open_queue(&self) -> Result<QueueId, DriverError> {
        self.call("open_queue")?;
        self.inner.open_queue()
    }

    unsafe fn submit(&self, queue: QueueId, batch: &mut Batch) -> Result<Ticket, DriverError> {
        self.call("submit")?;
        // SAFETY: the same contract, passed on.
        unsafe { self.inner.submit(queue, batch) }
    }

    fn compile(&self, kernel: &Kernel) -> Result<Pipeline, CompileError> {
        self.call("compile")
            .map_err(|error| CompileError { reason: error.to_string(), driver: Some(error) })?;
        self.inner.compile(kernel)
    }

    fn wait(
        &self,
        queue: QueueId,
        ticket: Ticket,
        timeout: Option<Duration>,
    ) -> Result<(), WaitError> {
        if self.lost.load(Ordering::Relaxed) {
            // A device is lost once it touches no memory any more.
            let _ = self.inner.wait(queue, ticket, None);
            return Err(WaitError::Lost(DriverError { call: "wait", code: Self::CODE }));
        }
        self.inner.wait(queue, ticket, timeout)
    }

    fn lost(&self) -> Option<DriverError> {
        let lost = self.lost.load(Ordering::Relaxed);
        lost.then_some(DriverError { call: "wait", code: Self::CODE })
    }
}

/// Shows every queue's progress only when it is let: tickets are reached in truth, and seen late.
#[derive(Debug)]
pub struct Slow {
    inner: Arc<dyn Backend>,
    held: AtomicBool,
}

impl Slow {
    /// A wrapper that holds progress back until [`release`](Self::release) or a wait.
    pub fn new(inner: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self { inner, held: AtomicBool::new(true) })
    }

    /// Shows all progress from now on.
    pub fn release(&self) {
        self.held.store(false, Ordering::SeqCst);
    }

    /// Hides it again.
    pub fn hold(&self) {
        self.held.store(true, Ordering::SeqCst);
    }
}

impl Memory for Slow {
    pass_on!(spans);
    pass_on! { memory:
        obtain(size: u64, mode: Storage) -> Result<Block, DriverError>;
        give_back(block: Block);
    }

    fn reached(&self, queue: QueueId) -> Ticket {
        if self.held.load(Ordering::SeqCst) { 0 } else { self.inner.reached(queue) }
    }
}

// SAFETY: all is passed on to a back end that keeps the contract.
unsafe impl Backend for Slow {
    pass_on!(backend);
    pass_on!(calls);
    pass_on! { memory: caps() -> &Caps; budget() -> Budget; }

    pass_on! { memory: lost() -> Option<DriverError>; }

    fn wait(
        &self,
        queue: QueueId,
        ticket: Ticket,
        timeout: Option<Duration>,
    ) -> Result<(), WaitError> {
        if let (Some(limit), true) = (timeout, self.held.load(Ordering::SeqCst)) {
            std::thread::sleep(limit);
            return Err(WaitError::Timeout);
        }
        self.inner.wait(queue, ticket, timeout)?;
        self.release();
        Ok(())
    }
}

/// A device with a small memory: what it gives out never passes `capacity` bytes.
#[derive(Debug)]
pub struct Tiny {
    inner: Arc<dyn Backend>,
    capacity: u64,
    used: AtomicU64,
}

impl Tiny {
    /// A wrapper with `capacity` bytes.
    pub fn new(inner: Arc<dyn Backend>, capacity: u64) -> Arc<Self> {
        Arc::new(Self { inner, capacity, used: AtomicU64::new(0) })
    }

    /// Bytes given out.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::SeqCst)
    }

    fn take(&self, call: &'static str, size: u64) -> Result<(), DriverError> {
        let add = |used: u64| used.checked_add(size).filter(|&sum| sum <= self.capacity);
        match self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add) {
            Ok(_) => Ok(()),
            Err(_) => Err(DriverError { call, code: -2 }),
        }
    }

    fn put(&self, size: u64) {
        self.used.fetch_sub(size, Ordering::SeqCst);
    }
}

impl Memory for Tiny {
    fn obtain(&self, size: u64, mode: Storage) -> Result<Block, DriverError> {
        self.take("obtain", size)?;
        self.inner.obtain(size, mode).inspect_err(|_| self.put(size))
    }

    fn give_back(&self, block: Block) {
        self.put(block.size);
        self.inner.give_back(block);
    }

    fn commit(&self, span: BlockId, offset: u64, len: u64) -> Result<(), DriverError> {
        self.take("commit", len)?;
        self.inner.commit(span, offset, len).inspect_err(|_| self.put(len))
    }

    fn decommit(&self, span: BlockId, offset: u64, len: u64) {
        self.put(len);
        self.inner.decommit(span, offset, len);
    }

    pass_on! { memory:
        reserve(size: u64, mode: Storage) -> Result<Block, DriverError>;
        release(span: Block);
        wire(block: BlockId, offset: u64, len: u64) -> Result<(), DriverError>;
        unwire(block: BlockId, offset: u64, len: u64);
        reached(queue: QueueId) -> Ticket;
    }
}

// SAFETY: all is passed on to a back end that keeps the contract.
unsafe impl Backend for Tiny {
    pass_on!(backend);
    pass_on!(calls);
    pass_on!(wait);
    pass_on! { memory: caps() -> &Caps; budget() -> Budget; }
}

/// Fills what the driver gives out, and what goes back to it, with bytes that are no one's data:
/// code that counts on zeros, or on what was there, is caught.
#[derive(Debug)]
pub struct Poisoned {
    inner: Arc<dyn Backend>,
    addresses: std::sync::Mutex<std::collections::BTreeMap<BlockId, u64>>,
}

impl Poisoned {
    /// The byte; as f32 it is −2.3e-16, as an index it is out of range.
    pub const BYTE: u8 = 0xA5;

    /// A wrapper over a back end whose addresses the CPU can write (both modes).
    pub fn new(inner: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self { inner, addresses: std::sync::Mutex::default() })
    }

    fn addresses(&self) -> std::sync::MutexGuard<'_, std::collections::BTreeMap<BlockId, u64>> {
        self.addresses.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn fill(&self, block: BlockId, offset: u64, len: u64) {
        // What the CPU cannot write has no address.
        if let Some(address) = self.addresses().get(&block).filter(|&&address| address != 0) {
            // SAFETY: the range is memory of the device that no one uses: it was just given out,
            // or goes back now (precondition 3 of `Memory`), at an address the CPU can write.
            unsafe {
                std::ptr::write_bytes((address + offset) as *mut u8, Self::BYTE, len as usize)
            }
        }
    }
}

impl Memory for Poisoned {
    fn obtain(&self, size: u64, mode: Storage) -> Result<Block, DriverError> {
        let block = self.inner.obtain(size, mode)?;
        self.addresses().insert(block.id, block.address);
        self.fill(block.id, 0, size);
        Ok(block)
    }

    fn give_back(&self, block: Block) {
        self.fill(block.id, 0, block.size);
        self.addresses().remove(&block.id);
        self.inner.give_back(block);
    }

    fn reserve(&self, size: u64, mode: Storage) -> Result<Block, DriverError> {
        let span = self.inner.reserve(size, mode)?;
        self.addresses().insert(span.id, span.address);
        Ok(span)
    }

    fn commit(&self, span: BlockId, offset: u64, len: u64) -> Result<(), DriverError> {
        self.inner.commit(span, offset, len)?;
        self.fill(span, offset, len);
        Ok(())
    }

    fn decommit(&self, span: BlockId, offset: u64, len: u64) {
        self.fill(span, offset, len);
        self.inner.decommit(span, offset, len);
    }

    pass_on! { memory:
        release(span: Block);
        wire(block: BlockId, offset: u64, len: u64) -> Result<(), DriverError>;
        unwire(block: BlockId, offset: u64, len: u64);
        reached(queue: QueueId) -> Ticket;
    }
}

// SAFETY: all is passed on to a back end that keeps the contract.
unsafe impl Backend for Poisoned {
    pass_on!(backend);
    pass_on!(calls);
    pass_on!(wait);
    pass_on! { memory: caps() -> &Caps; budget() -> Budget; }
}

/// A device whose memory the CPU sees only through what it flushes and invalidates: shared blocks
/// have a second copy, which is what the CPU is given.
#[derive(Debug)]
pub struct Incoherent {
    inner: Arc<dyn Backend>,
    caps: Caps,
    copies: std::sync::Mutex<Copies>,
}

/// The device's own address of each shared block, and the CPU's copy of it.
type Copies = std::collections::BTreeMap<BlockId, (u64, Box<[u64]>)>;

impl Incoherent {
    /// A wrapper over a back end whose addresses the CPU can use.
    pub fn new(inner: Arc<dyn Backend>) -> Arc<Self> {
        // Blocks, not spans: there is a copy of each.
        let caps = Caps { coherent: false, virtual_memory: None, ..inner.caps().clone() };
        let caps = Caps { can_wire: false, largest_block: 1 << 30, ..caps };
        Arc::new(Self { inner, caps, copies: std::sync::Mutex::default() })
    }

    fn copies(&self) -> std::sync::MutexGuard<'_, Copies> {
        self.copies.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Copies a range from the CPU's copy to the device's memory, or back.
    fn sync(&self, block: BlockId, (offset, len): (u64, u64), flush: bool) {
        let mut copies = self.copies();
        let Some((real, copy)) = copies.get_mut(&block) else { return };
        let own = (*real + offset) as *mut u8;
        let copy = copy.as_mut_ptr().cast::<u8>().wrapping_add(offset as usize);
        let (from, to) = if flush { (copy, own) } else { (own, copy) };
        // SAFETY: the range lies in the block, whose copy is as large; neither work nor another guard
        // touches it: the caller holds a borrow of it.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len as usize) };
    }

    /// The device's own addresses instead of the copies'.
    fn own(&self, binding: &mut crate::seam::Binding) {
        if let Some((real, _)) = self.copies().get(&binding.block) {
            binding.address = real + binding.offset;
        }
    }
}

impl Memory for Incoherent {
    fn obtain(&self, size: u64, mode: Storage) -> Result<Block, DriverError> {
        let block = self.inner.obtain(size, mode)?;
        if mode == Storage::Private {
            return Ok(block);
        }
        // What is never flushed or invalidated is no one's data.
        let pattern = u64::from_ne_bytes([Poisoned::BYTE; 8]);
        let mut copy = vec![pattern; (size / 8) as usize].into_boxed_slice();
        let address = copy.as_mut_ptr() as u64;
        self.copies().insert(block.id, (block.address, copy));
        Ok(Block { address, ..block })
    }

    fn give_back(&self, block: Block) {
        let copy = self.copies().remove(&block.id);
        let address = copy.map_or(block.address, |(real, _)| real);
        self.inner.give_back(Block { address, ..block });
    }

    pass_on!(spans);
    pass_on! { memory:
        reached(queue: QueueId) -> Ticket;
    }
}

// SAFETY: addresses are those of copies that live as long as their blocks; all else is passed on to
// a back end that keeps the contract.
unsafe impl Backend for Incoherent {
    pass_on! { memory:
        api() -> &'static str;
        supports(dtype: Dtype) -> bool;
        forget(block: Block);
        close_queue(queue: QueueId);
        kick(queue: QueueId);
        submitted(queue: QueueId) -> Ticket;
        take_failure(queue: QueueId) -> Option<Failure>;
        compile_source(source: &Source) -> Result<(Pipeline, Signature), CompileError>;
        prepare(dispatch: &Dispatch) -> Result<u64, CompileError>;
        budget() -> Budget;
        open_queue() -> Result<QueueId, DriverError>;
        compile(kernel: &Kernel) -> Result<Pipeline, CompileError>;
    }
    pass_on!(wait);

    fn caps(&self) -> &Caps {
        &self.caps
    }

    unsafe fn import(&self, address: *mut u8, len: u64) -> Result<Block, ImportError> {
        // SAFETY: the same contract, passed on.
        unsafe { self.inner.import(address, len) }
    }

    unsafe fn submit(&self, queue: QueueId, batch: &mut Batch) -> Result<Ticket, DriverError> {
        let mut commands = batch.commands.clone();
        for command in &mut commands {
            match command {
                Command::Dispatch(dispatch) => {
                    let bindings = dispatch.inputs.iter_mut().chain(&mut dispatch.outputs);
                    bindings.chain(&mut dispatch.scratch).for_each(|binding| self.own(binding));
                }
                Command::Copy { from, to } => {
                    self.own(from);
                    self.own(to);
                }
                Command::Barrier | Command::Wait { .. } => {}
            }
        }
        let given = std::mem::replace(&mut batch.commands, commands);
        // SAFETY: the same contract, passed on: the bindings name the same ranges.
        let submitted = unsafe { self.inner.submit(queue, batch) };
        if submitted.is_err() {
            batch.commands = given;
        }
        submitted
    }

    fn flush(&self, block: BlockId, offset: u64, len: u64) -> Result<(), DriverError> {
        self.sync(block, (offset, len), true);
        Ok(())
    }

    fn invalidate(&self, block: BlockId, offset: u64, len: u64) -> Result<(), DriverError> {
        self.sync(block, (offset, len), false);
        Ok(())
    }
}

/// A batch as it was submitted.
#[derive(Clone, Debug)]
pub struct Submitted {
    /// Its queue.
    pub queue: QueueId,
    /// Its place on the queue's timeline.
    pub ticket: Ticket,
    /// Its commands, in order.
    pub commands: Vec<Command>,
    /// How far each queue had come by then, as the submitter could see.
    pub reached: Vec<(QueueId, Ticket)>,
}

/// Notes every batch: the plan by which a device was told to work can be checked apart from what the
/// device made of it.
#[derive(Debug)]
pub struct Planned {
    inner: Arc<dyn Backend>,
    plan: std::sync::Mutex<Vec<Submitted>>,
    queues: AtomicU64,
}

impl Planned {
    /// A wrapper that has noted nothing yet.
    pub fn new(inner: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self { inner, plan: std::sync::Mutex::default(), queues: AtomicU64::new(0) })
    }

    /// The batches so far, in the order in which they were submitted; from now on anew.
    pub fn take(&self) -> Vec<Submitted> {
        std::mem::take(&mut *self.plan.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

impl Memory for Planned {
    pass_on!(spans);
    pass_on! { memory:
        obtain(size: u64, mode: Storage) -> Result<Block, DriverError>;
        give_back(block: Block);
        reached(queue: QueueId) -> Ticket;
    }
}

// SAFETY: all is passed on to a back end that keeps the contract.
unsafe impl Backend for Planned {
    pass_on!(backend);
    pass_on!(wait);
    pass_on! { memory:
        caps() -> &Caps;
        budget() -> Budget;
        compile(kernel: &Kernel) -> Result<Pipeline, CompileError>;
    }

    unsafe fn import(&self, address: *mut u8, len: u64) -> Result<Block, ImportError> {
        // SAFETY: the same contract, passed on.
        unsafe { self.inner.import(address, len) }
    }

    fn open_queue(&self) -> Result<QueueId, DriverError> {
        let queue = self.inner.open_queue()?;
        self.queues.fetch_max(u64::from(queue.0) + 1, Ordering::Relaxed);
        Ok(queue)
    }

    unsafe fn submit(&self, queue: QueueId, batch: &mut Batch) -> Result<Ticket, DriverError> {
        let commands = batch.commands.clone();
        let queues = (0..self.queues.load(Ordering::Relaxed)).map(|queue| QueueId(queue as u32));
        let reached = queues.map(|queue| (queue, self.inner.reached(queue))).collect();
        // SAFETY: the same contract, passed on.
        let ticket = unsafe { self.inner.submit(queue, batch) }?;
        let mut plan = self.plan.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        plan.push(Submitted { queue, ticket, commands, reached });
        Ok(ticket)
    }
}
