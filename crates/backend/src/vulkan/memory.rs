//! Blocks: buffers over memory of their own, or of the caller's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aquifer_core::{Block, BlockId, DriverError, Storage};
use ash::vk;
use smallvec::SmallVec;

use super::calls::{Call, failed};
use super::driver::Driver;
use super::types::MemoryType;
use crate::gpu::{Held, Place, Segment, Segments, Table, overlapping};
use crate::seam::ImportError;

/// A buffer over one allocation.
#[derive(Clone, Copy, Debug)]
struct Allocated {
    buffer: vk::Buffer,
    memory: vk::DeviceMemory,
}

/// A block that is held.
#[derive(Debug)]
pub(super) struct Region {
    segments: Segments<Allocated>,
    /// Bytes of the heap that it takes.
    taken: Option<(u32, u64)>,
    /// Host memory that was mapped for it.
    host: Option<(u64, u64)>,
    local: bool,
}

impl Region {
    /// The buffer that has a byte of the block, with the most room after it.
    pub(super) fn place(&self, offset: u64) -> Option<Place<vk::Buffer>> {
        let (segment, offset) = self.segments.find(offset)?;
        let room = segment.len - offset;
        Some(Place { buffer: segment.buffer.buffer, offset, room, local: self.local })
    }
}

/// Every block that is held.
#[derive(Debug)]
pub(super) struct Regions {
    driver: Arc<Driver>,
    table: Table<Region>,
    /// Bytes taken of each heap.
    taken: Vec<AtomicU64>,
}

impl Regions {
    pub(super) fn new(driver: Arc<Driver>) -> Self {
        let taken = driver.facts.limits.heaps.iter().map(|_| AtomicU64::new(0)).collect();
        Self { driver, table: Table::default(), taken }
    }

    /// The regions while a batch is written.
    pub(super) fn held(&self) -> Held<'_, Region> {
        self.table.held()
    }

    fn kind(&self, mode: Storage) -> MemoryType {
        match mode {
            Storage::Shared => self.driver.facts.types.shared,
            Storage::Private => self.driver.facts.types.private,
        }
    }

    /// Takes bytes of a heap: not every driver refuses what it has not.
    fn take(&self, heap: u32, size: u64) -> Result<(), DriverError> {
        let limit = self.driver.facts.limits.heaps[heap as usize];
        let add = |taken: u64| taken.checked_add(size).filter(|&sum| sum <= limit);
        let taken = &self.taken[heap as usize];
        match taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            Ok(_) => Ok(()),
            Err(_) => Err(failed(Call::AllocateMemory, vk::Result::ERROR_OUT_OF_DEVICE_MEMORY)),
        }
    }

    /// Bytes taken of all heaps.
    pub(super) fn taken(&self) -> u64 {
        self.taken.iter().map(|taken| taken.load(Ordering::Relaxed)).sum()
    }

    fn put(&self, heap: u32, size: u64) {
        self.taken[heap as usize].fetch_sub(size, Ordering::Relaxed);
    }

    /// One block; shared ones are mapped.
    pub(super) fn obtain(&self, size: u64, mode: Storage) -> Result<Block, DriverError> {
        let (kind, most) = (self.kind(mode), self.driver.facts.limits.block);
        if mode == Storage::Shared && size > most {
            return self.obtain_host(size);
        }
        self.take(kind.heap, size)?;
        let mut region = Region {
            segments: Segments { all: SmallVec::new(), lead: 0 },
            taken: Some((kind.heap, size)),
            host: None,
            local: kind.flags.contains(vk::MemoryPropertyFlags::DEVICE_LOCAL),
        };
        let made = (0..size.div_ceil(most)).try_for_each(|index| {
            let start = index * most;
            let segment = self.segment(kind, start, most.min(size - start))?;
            region.segments.all.push(segment);
            Ok(())
        });
        let address = made.and_then(|()| match (mode, region.segments.all.first()) {
            (Storage::Shared, Some(segment)) => self.driver.map(segment.buffer.memory),
            _ => Ok(0),
        });
        match address {
            Ok(address) => Ok(self.table.add(region, size, address)),
            Err(error) => {
                self.destroy(&region);
                Err(error)
            }
        }
    }

    fn segment(
        &self,
        kind: MemoryType,
        start: u64,
        len: u64,
    ) -> Result<Segment<Allocated>, DriverError> {
        let driver = &self.driver;
        let buffer = driver.create_buffer(len, false)?;
        let needs = driver.requirements(buffer);
        let memory = driver
            .allocate(needs.size.max(len), kind.index)
            .inspect_err(|_| driver.destroy_buffer(buffer))?;
        driver.bind(buffer, memory).inspect_err(|_| {
            driver.destroy_buffer(buffer);
            driver.free(memory);
        })?;
        Ok(Segment { start, len, buffer: Allocated { buffer, memory } })
    }

    /// A shared block above the largest allocation: the CPU sees it as one, the device by segments.
    fn obtain_host(&self, size: u64) -> Result<Block, DriverError> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let refused = failed(Call::AllocateMemory, vk::Result::ERROR_OUT_OF_DEVICE_MEMORY);
        if self.driver.facts.limits.import_alignment.is_none() {
            return Err(refused);
        }
        let len = usize::try_from(size).map_err(|_| refused.clone())?;
        let heap = self.driver.facts.types.shared.heap;
        self.take(heap, size)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: no address is asked for, so no existing mapping is touched; it is unmapped once,
        // with its region.
        let mapped =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE) };
        let address = match mapped {
            Ok(address) => address as u64,
            Err(_) => {
                self.put(heap, size);
                return Err(refused);
            }
        };
        let imported = self.import_region(address, size);
        match imported {
            Ok(mut region) => {
                (region.host, region.taken) = (Some((address, size)), Some((heap, size)));
                Ok(self.table.add(region, size, address))
            }
            Err(error) => {
                unmap(address, size);
                self.put(heap, size);
                Err(match error {
                    ImportError::Driver(error) => error,
                    _ => refused,
                })
            }
        }
    }

    /// Names the caller's memory as a block.
    pub(super) fn import(&self, address: u64, size: u64) -> Result<Block, ImportError> {
        let region = self.import_region(address, size)?;
        Ok(self.table.add(region, size, address))
    }

    fn import_region(&self, address: u64, size: u64) -> Result<Region, ImportError> {
        let limits = &self.driver.facts.limits;
        let Some(align) = limits.import_alignment else {
            return Err(ImportError::Unsupported("the driver cannot import host memory"));
        };
        // Beyond the system's page the memory around may not be there.
        if align > self.driver.facts.caps.system_page {
            return Err(ImportError::Unsupported("the driver imports only units above a page"));
        }
        let lead = address % align;
        let Some(total) =
            size.checked_add(lead).and_then(|size| size.checked_next_multiple_of(align))
        else {
            return Err(ImportError::Unsupported("its end overflows the address range"));
        };
        let first = address - lead;
        let segments = Segments { all: SmallVec::new(), lead };
        let mut region = Region { segments, taken: None, host: None, local: false };
        for (start, len) in overlapping(total, limits.block, align) {
            match self.import_segment(first, start, len) {
                Ok(segment) => region.segments.all.push(segment),
                Err(error) => {
                    self.destroy(&region);
                    return Err(error);
                }
            }
        }
        Ok(region)
    }

    fn import_segment(
        &self,
        first: u64,
        start: u64,
        len: u64,
    ) -> Result<Segment<Allocated>, ImportError> {
        let driver = &self.driver;
        let driver_error = ImportError::Driver;
        let offered = driver.host_types(first + start).map_err(driver_error)?;
        let buffer = driver.create_buffer(len, true).map_err(driver_error)?;
        let allowed = offered & driver.requirements(buffer).memory_type_bits;
        // Coherent, since the owner's writes are not ours to flush.
        let table = &driver.facts.host_visible;
        let kind = table.iter().find(|kind| allowed >> kind.index & 1 == 1 && kind.coherent());
        let Some(kind) = kind else {
            driver.destroy_buffer(buffer);
            return Err(ImportError::Unsupported("the driver offers no coherent memory for it"));
        };
        let memory = driver.import(first + start, len, kind.index).inspect_err(|_| {
            driver.destroy_buffer(buffer);
        });
        let memory = memory.map_err(driver_error)?;
        driver
            .bind(buffer, memory)
            .inspect_err(|_| {
                driver.destroy_buffer(buffer);
                driver.free(memory);
            })
            .map_err(driver_error)?;
        Ok(Segment { start, len, buffer: Allocated { buffer, memory } })
    }

    /// Gives a block back, or ends an import.
    pub(super) fn remove(&self, block: Block) {
        if let Some(region) = self.table.remove(&block) {
            self.destroy(&region);
        }
    }

    fn destroy(&self, region: &Region) {
        for segment in &region.segments.all {
            self.driver.destroy_buffer(segment.buffer.buffer);
            self.driver.free(segment.buffer.memory);
        }
        if let Some((heap, size)) = region.taken {
            self.put(heap, size);
        }
        if let Some((address, size)) = region.host {
            unmap(address, size);
        }
    }

    /// Flushes or invalidates a range of a shared block.
    pub(super) fn sync(
        &self,
        block: BlockId,
        (mut offset, mut len): (u64, u64),
        flush: bool,
    ) -> Result<(), DriverError> {
        let held = self.table.held();
        // Imported memory is coherent.
        let own = |region: &&Region| region.taken.is_some() && region.host.is_none();
        let Some(region) = held.get(block).filter(own) else {
            return Ok(());
        };
        let atom = self.driver.facts.limits.atom;
        while len > 0 {
            let Some((segment, at)) = region.segments.find(offset) else { return Ok(()) };
            let part = len.min(segment.len - at);
            let start = at / atom * atom;
            let end = (at + part).next_multiple_of(atom).min(segment.len);
            self.driver.sync(segment.buffer.memory, (start, end - start), flush)?;
            (offset, len) = (offset + part, len - part);
        }
        Ok(())
    }
}

fn unmap(address: u64, size: u64) {
    // SAFETY: the mapping was made by `obtain_host` with this size, and its region is gone.
    let _ = unsafe { rustix::mm::munmap(address as *mut std::ffi::c_void, size as usize) };
}

impl Drop for Regions {
    fn drop(&mut self) {
        // The last owner of the device is gone, and with it every array.
        self.table.take().for_each(|region| self.destroy(&region));
    }
}
