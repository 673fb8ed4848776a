//! What Apple's systems say of memory.

use std::ffi::{CStr, c_void};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::ptr;

use crate::seam::Budget;

/// Bytes of a value of `sysctl`; `None` where it is not there or does not fit.
fn sysctl(name: &CStr, value: &mut [u8]) -> Option<usize> {
    let mut len = value.len();
    let start = value.as_mut_ptr().cast::<c_void>();
    // SAFETY: the name ends with a zero; at most `len` bytes are written, and `len` is then how many.
    let result = unsafe { libc::sysctlbyname(name.as_ptr(), start, &mut len, ptr::null_mut(), 0) };
    (result == 0).then_some(len)
}

/// Pages that are free or that the system takes back without writing them.
fn available_pages() -> Option<u64> {
    // SAFETY: a structure of numbers.
    let mut statistics: libc::vm_statistics64 = unsafe { std::mem::zeroed() };
    let mut count = (size_of_val(&statistics) / size_of::<libc::integer_t>()) as u32;
    // SAFETY: the port of this host, which stays.
    #[allow(deprecated)]
    let host = unsafe { libc::mach_host_self() };
    // SAFETY: at most `count` numbers are written, which is how many the structure has.
    let result = unsafe {
        libc::host_statistics64(
            host,
            libc::HOST_VM_INFO64,
            ptr::from_mut(&mut statistics).cast(),
            &mut count,
        )
    };
    // What is read ahead counts as free, what may be purged is in the other counts.
    let pages = u64::from(statistics.free_count) + u64::from(statistics.inactive_count);
    (result == libc::KERN_SUCCESS).then_some(pages)
}

/// Memory now.
pub(super) fn budget() -> Option<Budget> {
    let mut bytes = [0; 8];
    sysctl(c"hw.memsize", &mut bytes).filter(|&len| len == bytes.len())?;
    let total = u64::from_ne_bytes(bytes);
    let page = rustix::param::page_size() as u64;
    let available = available_pages().map_or(total / 2, |pages| pages.saturating_mul(page));
    Some(Budget { working_set: available.min(total), total })
}

/// The user at the other end of a socket.
pub(super) fn peer(stream: &UnixStream) -> Option<u32> {
    let (mut user, mut group) = (0, 0);
    // SAFETY: a socket that is open, and two numbers that are written.
    let result = unsafe { libc::getpeereid(stream.as_raw_fd(), &mut user, &mut group) };
    (result == 0).then_some(user)
}

/// The processor's name.
pub(super) fn processor() -> Option<String> {
    let mut text = [0; 256];
    let len = sysctl(c"machdep.cpu.brand_string", &mut text)?;
    let name = CStr::from_bytes_until_nul(text.get(..len)?).ok()?;
    Some(name.to_string_lossy().into_owned())
}
