//! Blocks: buffers of Metal's, over memory of their own or of the caller's.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use aquifer_core::{Block, BlockId, DriverError, Storage};
use block2::RcBlock;
use objc2_metal::{MTLBuffer, MTLDevice};
use smallvec::SmallVec;

use super::device::{Gpu, Object, nothing};
use super::wiring::Wiring;
use crate::gpu::{Compiler, Held, Place, Segment, Segments, Table, overlapping};
use crate::seam::ImportError;

/// A buffer, which any thread may use.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Buffer(pub(super) Object<dyn MTLBuffer>);

// SAFETY: Metal's resources may be used and released on any thread; what a buffer says of itself
// (length, address) never changes, and its bytes are reached through the core's order alone.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

/// A block that is held.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) segments: Segments<Buffer>,
    /// It is the device's own memory.
    local: bool,
    /// The caller's memory, until Metal has let go of it.
    lent: Option<Arc<Lent>>,
}

impl Region {
    /// The buffer that has a byte of the block, with the most room after it.
    pub(super) fn place(&self, offset: u64) -> Option<Place<Buffer>> {
        let (segment, offset) = self.segments.find(offset)?;
        let room = segment.len - offset;
        Some(Place { buffer: segment.buffer.clone(), offset, room, local: self.local })
    }
}

/// Buffers over the caller's memory that are still there.
#[derive(Debug, Default)]
pub(super) struct Lent {
    buffers: Mutex<usize>,
    none: Condvar,
}

impl Lent {
    fn add(&self, change: isize) {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        *buffers = buffers.saturating_add_signed(change);
        if *buffers == 0 {
            self.none.notify_all();
        }
    }

    /// Returns when the last buffer is gone: its deallocator says so, and whoever owns the memory
    /// keeps it until then. Metal holds none of them longer than we do, so that this does not wait;
    /// a tool that captures what it does may.
    pub(super) fn returned(&self) {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        while *buffers > 0 {
            buffers = self.none.wait(buffers).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Every block that is held.
#[derive(Debug)]
pub(super) struct Regions {
    gpu: Arc<Gpu>,
    table: Table<Region>,
    pub(super) wiring: Wiring,
}

impl Regions {
    pub(super) fn new(gpu: Arc<Gpu>) -> Self {
        Self { wiring: Wiring::new(Arc::clone(&gpu)), gpu, table: Table::default() }
    }

    /// The regions while a batch is written.
    pub(super) fn held(&self) -> Held<'_, Region> {
        self.table.held()
    }

    /// One block, one buffer.
    pub(super) fn obtain(&self, size: u64, mode: Storage) -> Result<Block, DriverError> {
        const CALL: &str = "newBufferWithLength:options:";
        let len = usize::try_from(size).map_err(|_| nothing(CALL))?;
        let buffer = self.gpu.raw.newBufferWithLength_options(len, Gpu::options(mode));
        let buffer = Buffer(buffer.ok_or_else(|| nothing(CALL))?);
        let address = match mode {
            Storage::Shared => buffer.0.contents().as_ptr() as u64,
            Storage::Private => 0,
        };
        let all = smallvec::smallvec![Segment { start: 0, len: size, buffer }];
        let local = mode == Storage::Private;
        let region = Region { segments: Segments { all, lead: 0 }, local, lent: None };
        Ok(self.table.add(region, size, address))
    }

    /// Names the caller's memory as a block: the pages that it lies in, in as many buffers as their
    /// largest length asks for.
    ///
    /// # Errors
    /// Why not, and what must then be waited for as after [`remove`](Self::remove).
    pub(super) fn import(
        &self,
        address: u64,
        size: u64,
    ) -> Result<Block, (ImportError, Option<Arc<Lent>>)> {
        let page = self.gpu.caps().system_page;
        let lead = address % page;
        let total = size.checked_add(lead).and_then(|size| size.checked_next_multiple_of(page));
        let Some(total) = total.filter(|total| (address - lead).checked_add(*total).is_some())
        else {
            let error = ImportError::Unsupported("its end overflows the address range");
            return Err((error, None));
        };
        let (lent, mut all) = (Arc::new(Lent::default()), SmallVec::new());
        for (start, len) in overlapping(total, self.gpu.caps().largest_block, page) {
            match self.lend(&lent, address - lead + start, len) {
                Ok(buffer) => all.push(Segment { start, len, buffer }),
                Err(error) => {
                    drop(all);
                    return Err((ImportError::Driver(error), Some(lent)));
                }
            }
        }
        let (segments, lent) = (Segments { all, lead }, Some(lent));
        Ok(self.table.add(Region { segments, local: false, lent }, size, address))
    }

    /// One buffer over memory that lives until its deallocator is called.
    fn lend(&self, lent: &Arc<Lent>, address: u64, len: u64) -> Result<Buffer, DriverError> {
        const CALL: &str = "newBufferWithBytesNoCopy:length:options:deallocator:";
        let pointer = NonNull::new(address as *mut c_void).ok_or_else(|| nothing(CALL))?;
        let len = usize::try_from(len).map_err(|_| nothing(CALL))?;
        let counted = Arc::clone(lent);
        let deallocator = RcBlock::new(move |_: NonNull<c_void>, _: usize| counted.add(-1));
        lent.add(1);
        // SAFETY: whole pages that hold memory of the caller's, who keeps it until `forget` has
        // returned, which waits for the deallocator; the block touches only what it owns.
        let buffer = unsafe {
            self.gpu.raw.newBufferWithBytesNoCopy_length_options_deallocator(
                pointer,
                len,
                Gpu::options(Storage::Shared),
                Some(&deallocator),
            )
        };
        // Without a buffer nothing will call it.
        buffer.map(Buffer).ok_or_else(|| {
            lent.add(-1);
            nothing(CALL)
        })
    }

    /// Gives a block back, or ends an import: then what is returned must be waited for, outside of the
    /// pool, which may hold the last reference.
    #[must_use]
    pub(super) fn remove(&self, block: &Block) -> Option<Arc<Lent>> {
        let Region { segments, lent, .. } = self.table.remove(block)?;
        self.wiring.forget(block.id);
        drop(segments);
        lent
    }

    /// Keeps a whole block resident.
    pub(super) fn wire(&self, block: BlockId) -> Result<(), DriverError> {
        let held = self.table.held();
        let region = held.get(block).ok_or_else(|| nothing("addAllocation:"))?;
        let buffers = region.segments.all.iter().map(|segment| segment.buffer.clone());
        self.wiring.add(block, buffers.collect())
    }
}
