//! The memory behind arrays: one buffer, shared by all handles and views of it.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aquifer_backend::{Binding, Dtype, ImportError};
use smallvec::SmallVec;

use aquifer_core::{
    Access, Allocation, Block, BlockId, BorrowError, ByteRange, QueueId, Stamps, Storage, Tracker,
    Uses,
};

use crate::device::Device;
use crate::error::{Error, ErrorKind, Inner, Result};

/// Where an array's memory came from (rule H.2).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// From the device's pool.
    Allocated,
    /// Memory of the caller's, used in place.
    Wrapped,
    /// A file, used in place.
    Mapped,
    /// Copied from memory or a file that could not be used in place, and why.
    Copied(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allocated => f.pad("allocated"),
            Self::Wrapped => f.pad("wrapped"),
            Self::Mapped => f.pad("mapped"),
            Self::Copied(reason) => f.pad(&format!("copied: {reason}")),
        }
    }
}

/// Bytes that memory which is not coherent is flushed in at most; the pool's ranges are multiples.
const ATOM: u64 = aquifer_core::size::SMALL;

/// What a buffer holds until it is freed.
pub(crate) enum Hold {
    Nothing,
    Pool(Allocation),
    /// Memory that exists, named as a block; the owner keeps it valid.
    Import {
        block: Block,
        owner: Box<dyn Any + Send>,
        size: u64,
    },
    /// A part of a mapped file.
    Mapped(Arc<dyn Any + Send + Sync>),
}

pub(crate) struct Buffer {
    pub(crate) device: Device,
    pub(crate) tracker: Tracker,
    /// Arrays and views that the program holds; commands in flight hold the `Arc` alone.
    pub(crate) handles: AtomicUsize,
    hold: Mutex<Hold>,
    imported: bool,
    /// The CPU's accesses must be flushed and invalidated.
    pub(crate) incoherent: bool,
    block: BlockId,
    offset: u64,
    address: u64,
    /// Bytes that arrays may use.
    pub(crate) size: u64,
    pub(crate) storage: Storage,
    pub(crate) origin: Origin,
    pub(crate) read_only: bool,
}

impl Buffer {
    /// Allocates `size` bytes: for the CPU to write first, or for work on `queue`.
    pub(crate) fn allocate(
        device: &Device,
        size: u64,
        storage: Storage,
        queue: Option<QueueId>,
    ) -> Result<Arc<Self>> {
        let allocation = device.allocate(size, storage, queue)?;
        let uses = match allocation.inherited() {
            Some(stamp) => Uses::inherited(stamp, allocation.size()),
            None => Uses::default(),
        };
        let incoherent = storage == Storage::Shared && !device.caps().coherent;
        let (block, offset) = (allocation.block(), allocation.offset());
        let poisons = device.poisons() && uses.is_empty() && storage == Storage::Shared && size > 0;
        if poisons {
            // SAFETY: the range was just allocated from shared memory, `size` is at most what it
            // holds, and no work uses it (nothing is inherited).
            unsafe {
                std::ptr::write_bytes(allocation.address() as *mut u8, 0xA5, size as usize);
            }
            if incoherent && let Err(error) = device.0.backend.flush(block, offset, size) {
                device.free(allocation, Stamps::default());
                return Err(error.into());
            }
        }
        Ok(Arc::new(Self {
            device: device.clone(),
            tracker: Tracker::new(uses),
            handles: AtomicUsize::new(0),
            imported: false,
            incoherent,
            block,
            offset,
            address: allocation.address(),
            size,
            storage,
            origin: Origin::Allocated,
            read_only: false,
            hold: Mutex::new(Hold::Pool(allocation)),
        }))
    }

    /// The same with another origin: what was copied says why.
    pub(crate) fn with_origin(mut self: Arc<Self>, origin: Origin, read_only: bool) -> Arc<Self> {
        if let Some(buffer) = Arc::get_mut(&mut self) {
            buffer.origin = origin;
            buffer.read_only = read_only;
        }
        self
    }

    /// Names `size` bytes at `address` as a buffer; `owner` keeps them valid.
    ///
    /// # Safety
    /// The bytes are valid, and (unless `Access::Read`) exclusively the owner's, for as long as
    /// `owner` lives.
    pub(crate) unsafe fn import(
        device: &Device,
        address: *mut u8,
        size: u64,
        owner: Box<dyn Any + Send>,
    ) -> std::result::Result<Arc<Self>, (ImportError, Box<dyn Any + Send>)> {
        // SAFETY: the caller's contract; the buffer keeps `owner` until no work uses the block.
        let block = match unsafe { device.0.backend.import(address, size) } {
            Ok(block) => block,
            Err(error) => return Err((error, owner)),
        };
        device.pool().wrap(size);
        Ok(Arc::new(Self {
            device: device.clone(),
            tracker: Tracker::default(),
            handles: AtomicUsize::new(0),
            imported: true,
            incoherent: false,
            block: block.id,
            offset: 0,
            address: block.address,
            size,
            storage: Storage::Shared,
            origin: Origin::Wrapped,
            read_only: false,
            hold: Mutex::new(Hold::Import { block, owner, size }),
        }))
    }

    /// A part of a mapped file, read-only.
    pub(crate) fn mapped(
        device: &Device,
        (block, offset, address): (BlockId, u64, u64),
        size: u64,
        mapping: Arc<dyn Any + Send + Sync>,
    ) -> Arc<Self> {
        Arc::new(Self {
            device: device.clone(),
            tracker: Tracker::default(),
            handles: AtomicUsize::new(0),
            imported: true,
            incoherent: false,
            block,
            offset,
            address: address + offset,
            size,
            storage: Storage::Shared,
            origin: Origin::Mapped,
            read_only: true,
            hold: Mutex::new(Hold::Mapped(mapping)),
        })
    }

    /// Whether a batch must keep the buffer alive: its memory is not the pool's to defer.
    pub(crate) fn is_imported(&self) -> bool {
        self.imported
    }

    /// The bytes by which an access is tracked: where memory is not coherent, those that are flushed
    /// and invalidated together.
    pub(crate) fn tracked(&self, range: ByteRange) -> ByteRange {
        if !self.incoherent || range.start == range.end {
            return range;
        }
        ByteRange { start: range.start / ATOM * ATOM, end: range.end.next_multiple_of(ATOM) }
    }

    pub(crate) fn binding(&self, range: ByteRange, dtype: Dtype) -> Binding {
        Binding {
            block: self.block,
            offset: self.offset + range.start,
            len: range.end - range.start,
            address: self.address + range.start,
            dtype,
        }
    }

    /// Address of a byte, for the CPU. Only of shared buffers.
    #[inline]
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    fn hold(&self) -> MutexGuard<'_, Hold> {
        self.hold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses writes to read-only memory.
    pub(crate) fn check_access(&self, access: Access) -> Result<()> {
        if access == Access::Write && self.read_only {
            return Err(Error::message(
                ErrorKind::ReadOnly,
                "the array is part of a mapped file and read-only: write to a copy()",
            ));
        }
        Ok(())
    }

    /// Borrows a range for the CPU, after the work that it must wait for (rules F.1 to F.4).
    pub(crate) fn borrow(
        &self,
        range: ByteRange,
        access: Access,
        limit: Option<Duration>,
    ) -> Result<u64> {
        self.check_access(access)?;
        let range = self.tracked(range);
        let backend = &self.device.0.backend;
        loop {
            let mut seen = SmallVec::<[QueueId; 2]>::new();
            let borrowed = self.tracker.borrow(range, access, |queue| {
                seen.push(queue);
                backend.reached(queue)
            });
            match borrowed {
                Ok(id) => {
                    // Work that is done already may have failed all the same: whoever sees its
                    // result is told.
                    for queue in seen {
                        self.device.check_failure(queue).inspect_err(|_| self.unborrow(id))?;
                    }
                    if self.incoherent {
                        let (offset, len) = (self.offset + range.start, range.end - range.start);
                        backend
                            .invalidate(self.block, offset, len)
                            .inspect_err(|_| self.unborrow(id))?;
                    }
                    return Ok(id);
                }
                Err(BorrowError::Pending(stamps)) => self.device.wait_stamps(&stamps, limit)?,
                Err(other) => return Err(other.into()),
            }
        }
    }

    /// Makes what the CPU wrote to a range visible to the device.
    pub(crate) fn flush(&self, range: ByteRange) -> Result<()> {
        if self.incoherent {
            let (offset, len) = (self.offset + range.start, range.end - range.start);
            self.device.0.backend.flush(self.block, offset, len)?;
        }
        Ok(())
    }

    /// Ends a borrow for writing.
    pub(crate) fn unborrow_written(&self, id: u64, range: ByteRange) {
        // A guard's end has no result: the next wait tells it.
        if let Err(error) = self.flush(range) {
            self.device.tell_later(error);
        }
        self.unborrow(id);
    }

    pub(crate) fn unborrow(&self, id: u64) {
        if let Some(stamps) = self.tracker.unborrow(id) {
            self.give_up(stamps);
        }
    }

    /// Frees now, for all handles; with guards alive, when the last of them ends.
    pub(crate) fn release(&self) {
        if let Some(stamps) = self.tracker.release() {
            self.give_up(stamps);
        }
    }

    /// Gives the memory back to where it came from. Memory that is not the pool's goes only once
    /// its work is done; where the driver refuses to take that work, it goes with the last handle.
    fn give_up(&self, mut stamps: Stamps) {
        let backend = &self.device.0.backend;
        if self.imported && !self.settle(&stamps) {
            return;
        }
        let hold = std::mem::replace(&mut *self.hold(), Hold::Nothing);
        match hold {
            Hold::Nothing => {}
            Hold::Pool(allocation) => {
                stamps.prune(|queue| backend.reached(queue));
                self.device.free(allocation, stamps);
            }
            other => self.give_back(other),
        }
    }

    /// Gives memory back that no work uses.
    fn give_back(&self, hold: Hold) {
        match hold {
            Hold::Nothing | Hold::Pool(_) => {}
            Hold::Import { block, owner, size } => {
                self.device.0.backend.forget(block);
                self.device.pool().unwrap_memory(size);
                drop(owner);
            }
            Hold::Mapped(mapping) => drop(mapping),
        }
    }

    /// Waits for work on memory that is not the pool's; whether it is done. Failures stay for the
    /// next wait.
    fn settle(&self, stamps: &Stamps) -> bool {
        let backend = &self.device.0.backend;
        for stamp in stamps.iter() {
            if backend.submitted(stamp.queue) < stamp.ticket
                && self.device.flush(stamp.queue).is_err()
            {
                return false;
            }
            self.device.wait_over(stamp.queue, stamp.ticket);
        }
        true
    }

    /// Ends all use of memory that is only borrowed: later uses are refused; guards and work under
    /// way are waited for. Work that the driver refuses to take is dropped, and that is the error.
    pub(crate) fn end_borrow(&self) -> Result<()> {
        self.release();
        while self.tracker.is_borrowed() {
            std::thread::sleep(Duration::from_micros(50));
        }
        let stamps = self.tracker.stamps();
        let (backend, mut refused) = (&self.device.0.backend, Ok(()));
        for stamp in stamps.iter() {
            if backend.submitted(stamp.queue) < stamp.ticket
                && let Err(error) = self.device.flush(stamp.queue)
            {
                // It must never run: the memory is no longer ours to use.
                let batch = self.device.recorder().discard(stamp.queue);
                drop(batch);
                refused = Err(error);
                continue;
            }
            self.device.wait_over(stamp.queue, stamp.ticket);
        }
        let hold = std::mem::replace(&mut *self.hold(), Hold::Nothing);
        self.give_back(hold);
        refused?;
        for stamp in stamps.iter() {
            self.device.check_failure(stamp.queue)?;
        }
        Ok(())
    }

    /// Takes the owner of wrapped memory out, if it is an `O`, once all work is done. Only for the
    /// last handle.
    pub(crate) fn take_owner<O: Any>(&self) -> Option<O> {
        let wanted = |hold: &Hold| matches!(hold, Hold::Import { owner, .. } if owner.is::<O>());
        if !wanted(&self.hold()) || !self.settle(&self.tracker.stamps()) {
            return None;
        }
        let _ = self.tracker.release();
        let hold = std::mem::replace(&mut *self.hold(), Hold::Nothing);
        match hold {
            Hold::Import { block, owner, size } => {
                self.device.0.backend.forget(block);
                self.device.pool().unwrap_memory(size);
                owner.downcast::<O>().ok().map(|owner| *owner)
            }
            _ => None,
        }
    }

    /// The program's last handle is gone. Work that is recorded and not submitted would keep
    /// imported memory for ever: it is submitted.
    pub(crate) fn last_handle_gone(&self) {
        if self.imported {
            for stamp in self.tracker.stamps().iter() {
                if self.device.0.backend.submitted(stamp.queue) < stamp.ticket {
                    // A refusal is reported by the next wait on that queue.
                    let _ = self.device.flush(stamp.queue);
                }
            }
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let hold = self.hold.get_mut().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(hold, Hold::Nothing) {
            // A release has done this already.
            Hold::Nothing => {}
            Hold::Pool(allocation) => {
                let mut stamps = self.tracker.stamps();
                stamps.prune(|queue| self.device.0.backend.reached(queue));
                self.device.free(allocation, stamps);
            }
            // Batches keep imported memory alive: none that uses it is left.
            other => self.give_back(other),
        }
    }
}

impl From<BorrowError> for Error {
    fn from(error: BorrowError) -> Self {
        match error {
            BorrowError::Borrowed(borrowed) => Self::new(Inner::Guard { by: borrowed.by }),
            BorrowError::Released => Self::new(Inner::Freed),
            BorrowError::Pending(_) => {
                Self::message(ErrorKind::Borrowed, "the array is used by work in flight")
            }
        }
    }
}

/// Counts the handles of a buffer.
pub(crate) struct Handle(pub(crate) Arc<Buffer>);

impl Handle {
    pub(crate) fn new(buffer: Arc<Buffer>) -> Self {
        buffer.handles.fetch_add(1, Ordering::Relaxed);
        Self(buffer)
    }

    /// Whether no other handle shares the buffer.
    pub(crate) fn is_only(&self) -> bool {
        self.0.handles.load(Ordering::Acquire) == 1
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.0))
    }
}

impl Drop for Handle {
    #[inline]
    fn drop(&mut self) {
        if self.0.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.last_handle_gone();
        }
    }
}
