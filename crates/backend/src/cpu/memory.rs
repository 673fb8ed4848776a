//! Memory of the CPU device: reserved address space whose pages come and go.
//!
//! The one idea: a span is mapped once, readable and writable, without being counted against
//! the system's overcommit; a page exists once it is touched, and `MADV_DONTNEED` takes it
//! away. Committing therefore costs nothing but the advice to use huge pages, which is given for
//! whole huge pages that are committed at once, and taken back with them: a huge page under a
//! range that is only partly committed would hold more than the account says.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use aquifer_core::{Block, BlockId, DriverError};
use rustix::mm::{MapFlags, ProtFlags};

use super::pages;

/// Bytes of a huge page.
const HUGE: u64 = 2 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Address space or a block that this device mapped.
    Own,
    /// The caller's.
    Imported,
}

#[derive(Debug)]
struct Region {
    address: u64,
    size: u64,
    kind: Kind,
}

/// Every block and span that is held, by name.
#[derive(Debug, Default)]
pub(super) struct Regions {
    map: Mutex<BTreeMap<u64, Region>>,
    next: AtomicU64,
}

fn failed(call: &'static str) -> impl Fn(rustix::io::Errno) -> DriverError {
    move |error| DriverError { call, code: i64::from(error.raw_os_error()) }
}

impl Regions {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Region>> {
        self.map.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn add(&self, address: u64, size: u64, kind: Kind) -> Block {
        // From 1: 0 is the block of empty arrays.
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        self.lock().insert(id, Region { address, size, kind });
        Block { id: BlockId(id), size, address }
    }

    /// Maps `size` bytes of zeros that cost nothing until they are touched.
    pub(super) fn map(&self, size: u64) -> Result<Block, DriverError> {
        let len = usize::try_from(size)
            .map_err(|_| DriverError { call: "mmap", code: i64::from(libc_enomem()) })?;
        // SAFETY: no address is asked for, so no existing mapping is touched; the new one is
        // unmapped once, in `unmap`.
        let address = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(failed("mmap"))?;
        Ok(self.add(address as u64, size, Kind::Own))
    }

    /// Unmaps what is still mapped, when the device closes.
    fn unmap(region: &Region) {
        if region.kind == Kind::Own {
            // SAFETY: the region was mapped by `map` with this size; it was taken out of the map of
            // regions, and nothing uses it any more (precondition 3 of `Memory`).
            let result =
                unsafe { rustix::mm::munmap(region.address as *mut c_void, region.size as usize) };
            debug_assert!(result.is_ok(), "munmap of an own mapping cannot fail");
        }
    }

    /// Names memory of the caller's.
    pub(super) fn import(&self, address: u64, size: u64) -> Block {
        self.add(address, size, Kind::Imported)
    }

    /// Forgets a region, and unmaps it if it was mapped here.
    pub(super) fn remove(&self, block: Block) {
        if let Some(region) = self.lock().remove(&block.id.0) {
            Self::unmap(&region);
        }
    }

    /// The address of a range, if it lies in a region of this name and kind.
    fn locate(&self, block: BlockId, (offset, len): (u64, u64), own: bool) -> Option<u64> {
        let regions = self.lock();
        let region = regions.get(&block.0)?;
        // Mapped files are imported with their length in bytes, and wired by whole pages.
        let size = region.size.next_multiple_of(rustix::param::page_size() as u64);
        let inside = offset.checked_add(len).is_some_and(|end| end <= size);
        (inside && (!own || region.kind == Kind::Own)).then(|| region.address + offset)
    }

    /// The whole huge pages inside a range of addresses.
    fn huge_pages(address: u64, len: u64) -> Option<(u64, u64)> {
        let start = address.next_multiple_of(HUGE);
        let end = (address + len) / HUGE * HUGE;
        (start < end).then(|| (start, end - start))
    }

    /// Advises huge pages where whole ones are committed at once.
    pub(super) fn commit(&self, span: BlockId, offset: u64, len: u64) {
        let Some(address) = self.locate(span, (offset, len), true) else { return };
        if let Some((start, len)) = Self::huge_pages(address, len) {
            // SAFETY: the range lies in a region mapped here (preconditions 1 and 2 of `Memory`).
            unsafe { pages::prefer_huge(start as *mut c_void, len as usize, true) };
        }
    }

    /// Gives the pages of a range back to the system.
    pub(super) fn decommit(&self, span: BlockId, offset: u64, len: u64) {
        let Some(address) = self.locate(span, (offset, len), true) else { return };
        // SAFETY: the range lies in a region mapped here (preconditions 1 and 2 of `Memory`), and no
        // one uses its contents any more (precondition 3).
        let given = unsafe { pages::give_back(address as *mut c_void, len as usize) };
        // Pages locked by the caller's own mlock stay; nothing else refuses.
        debug_assert!(given.is_ok(), "the pages of an own range do not go: {given:?}");
        if let Some((start, len)) = Self::huge_pages(address, len) {
            // SAFETY: as in `commit`.
            unsafe { pages::prefer_huge(start as *mut c_void, len as usize, false) };
        }
    }

    /// Keeps a range resident.
    pub(super) fn wire(&self, block: BlockId, offset: u64, len: u64) -> Result<(), DriverError> {
        let Some(address) = self.locate(block, (offset, len), false) else {
            return Err(failed("mlock")(rustix::io::Errno::INVAL));
        };
        // SAFETY: locking a mapped range changes no contents; an unmapped one is an error.
        unsafe { rustix::mm::mlock(address as *mut c_void, len as usize) }.map_err(failed("mlock"))
    }

    /// Undoes `wire`.
    pub(super) fn unwire(&self, block: BlockId, offset: u64, len: u64) {
        let Some(address) = self.locate(block, (offset, len), false) else { return };
        // SAFETY: as for `wire`.
        let _ = unsafe { rustix::mm::munlock(address as *mut c_void, len as usize) };
    }
}

impl Drop for Regions {
    fn drop(&mut self) {
        // The last owner of the device is gone, and with it every array; what a program gave to
        // `Cpu` alone goes here too.
        let regions = std::mem::take(&mut *self.lock());
        regions.values().for_each(Self::unmap);
    }
}

fn libc_enomem() -> i32 {
    rustix::io::Errno::NOMEM.raw_os_error()
}
