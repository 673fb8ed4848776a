//! Pages of an own mapping, as the system at hand wants to hear of them.

use std::ffi::c_void;

use rustix::io::Result;

/// Gives the pages of a range back to the system; they are zeros when they are touched again.
///
/// # Safety
/// The range is whole pages of a private anonymous mapping, and no one uses its contents.
#[cfg(target_os = "linux")]
pub(super) unsafe fn give_back(address: *mut c_void, len: usize) -> Result<()> {
    // SAFETY: the caller's contract.
    unsafe { rustix::mm::madvise(address, len, rustix::mm::Advice::LinuxDontNeed) }
}

/// The same: fresh pages take the place of the old ones, since advice elsewhere may leave the old
/// contents or keep counting them.
///
/// # Safety
/// As above.
#[cfg(not(target_os = "linux"))]
pub(super) unsafe fn give_back(address: *mut c_void, len: usize) -> Result<()> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: the caller's contract: what is mapped over is the range's own.
    unsafe { mmap_anonymous(address, len, protection, flags) }.map(|_| ())
}

/// Asks for huge pages in a range, or for small ones again. Advice only: without it all else is the
/// same.
///
/// # Safety
/// The range is whole pages of a mapping.
#[cfg(target_os = "linux")]
pub(super) unsafe fn prefer_huge(address: *mut c_void, len: usize, huge: bool) {
    use rustix::mm::Advice;
    let advice = if huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
    // SAFETY: the caller's contract; this advice changes no contents.
    let _ = unsafe { rustix::mm::madvise(address, len, advice) };
}

/// Elsewhere the system decides.
///
/// # Safety
/// As above.
#[cfg(not(target_os = "linux"))]
pub(super) unsafe fn prefer_huge(_address: *mut c_void, _len: usize, _huge: bool) {}
