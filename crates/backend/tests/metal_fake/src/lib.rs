//! What tests say to the stand-in for Metal, and ask it.
//!
//! All of it is of the whole process: tests that use it run one at a time ([`alone`]).

use std::ffi::{CStr, CString, c_char, c_ulong};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

// Their features are what the back end needs of them here.
use {block2 as _, objc2 as _};

mod raw {
    use super::{c_char, c_ulong};

    unsafe extern "C" {
        pub(crate) safe fn metal_fake_live() -> i64;
        pub(crate) fn metal_fake_describe(out: *mut c_char, size: c_ulong);
        pub(crate) safe fn metal_fake_orphans() -> i64;
        pub(crate) safe fn metal_fake_fail_after(n: u64);
        pub(crate) fn metal_fake_fail_all(name: *const c_char);
        pub(crate) fn metal_fake_calls(name: *const c_char) -> u64;
        pub(crate) safe fn metal_fake_call_name(n: u32) -> *const c_char;
        pub(crate) safe fn metal_fake_memory(working_set: u64, memory: u64, largest_buffer: u64);
        pub(crate) safe fn metal_fake_system(macos15: bool, unified: bool, any: bool, threads: u64);
        pub(crate) safe fn metal_fake_reset();
        pub(crate) safe fn metal_fake_fail_commands(n: u64, code: i64);
        pub(crate) safe fn metal_fake_delay(work: u32, handlers: u32);
        pub(crate) safe fn metal_fake_hold(held: bool);
        pub(crate) safe fn metal_fake_buffer_bytes() -> u64;
        pub(crate) safe fn metal_fake_resident() -> u64;
        pub(crate) safe fn metal_fake_resident_sets() -> u64;
        pub(crate) safe fn metal_fake_residency_commits() -> u64;
        pub(crate) safe fn metal_fake_largest_set() -> u64;
        pub(crate) safe fn metal_fake_checked() -> u64;
    }
}

/// The only test that runs; when it is dropped, the stand-in is as it was at the start.
#[derive(Debug)]
pub struct Alone(#[allow(dead_code)] MutexGuard<'static, ()>);

/// Waits until no other test runs.
pub fn alone() -> Alone {
    static ONE: Mutex<()> = Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    raw::metal_fake_reset();
    Alone(guard)
}

impl Drop for Alone {
    fn drop(&mut self) {
        raw::metal_fake_reset();
    }
}

/// What is left: nothing, once every handler has run. Objects that were autoreleased where there was
/// no pool are among it.
pub fn left_behind() -> Vec<String> {
    let start = Instant::now();
    while raw::metal_fake_live() != 0 && start.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_micros(200));
    }
    let mut left = Vec::new();
    if raw::metal_fake_live() != 0 {
        left.push(format!("live objects: {}", live_objects()));
    }
    if raw::metal_fake_orphans() != 0 {
        left.push(format!("{} autoreleased without a pool", raw::metal_fake_orphans()));
    }
    if raw::metal_fake_buffer_bytes() != 0 {
        left.push(format!("{} bytes of buffers", raw::metal_fake_buffer_bytes()));
    }
    left
}

/// Every live object, by class.
pub fn live_objects() -> String {
    let mut text = [0 as c_char; 1024];
    // SAFETY: at most so many bytes are written, the last of them a zero.
    unsafe { raw::metal_fake_describe(text.as_mut_ptr(), text.len() as c_ulong) };
    // SAFETY: it ends with a zero.
    unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned()
}

/// How many objects live.
pub fn live() -> i64 {
    raw::metal_fake_live()
}

/// Lets the `n`-th call from now that can fail do so; 0 is the next.
pub fn fail_after(n: u64) {
    raw::metal_fake_fail_after(n);
}

/// Lets no call fail any more.
pub fn fail_none() {
    raw::metal_fake_fail_after(u64::MAX);
    // SAFETY: null ends it.
    unsafe { raw::metal_fake_fail_all(std::ptr::null()) };
}

/// Lets every call of a selector fail.
pub fn fail_all(selector: &str) {
    let name = CString::new(selector).unwrap_or_default();
    // SAFETY: the text ends with a zero and is copied.
    unsafe { raw::metal_fake_fail_all(name.as_ptr()) };
}

/// Calls that can fail, made so far: of a selector, or all.
pub fn calls(selector: Option<&str>) -> u64 {
    let name = selector.map(|name| CString::new(name).unwrap_or_default());
    let name = name.as_ref().map_or(std::ptr::null(), |name| name.as_ptr());
    // SAFETY: null, or a text that ends with a zero and lives meanwhile.
    unsafe { raw::metal_fake_calls(name) }
}

/// The selectors that can fail and were called so far.
pub fn selectors() -> Vec<String> {
    let name = |n: u32| {
        let name = raw::metal_fake_call_name(n);
        // SAFETY: not null, so a literal of the stand-in's.
        (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
    };
    (0..).map_while(name).collect()
}

/// What the system says of memory, in bytes.
pub fn memory(working_set: u64, memory: u64, largest_buffer: u64) {
    raw::metal_fake_memory(working_set, memory, largest_buffer);
}

/// What the system is.
#[derive(Clone, Copy, Debug)]
pub struct System {
    /// Residency sets are there.
    pub macos15: bool,
    /// The CPU and the device share one memory.
    pub unified: bool,
    /// There is a device.
    pub devices: bool,
    /// Invocations that a workgroup may have.
    pub most_threads: u64,
}

/// What it is at the start.
pub const ORDINARY: System =
    System { macos15: true, unified: true, devices: true, most_threads: 1024 };

/// Makes the system another.
pub fn system(system: System) {
    let System { macos15, unified, devices, most_threads } = system;
    raw::metal_fake_system(macos15, unified, devices, most_threads);
}

/// Lets the `n`-th command buffer from now fail with a code.
pub fn fail_commands(n: u64, code: i64) {
    raw::metal_fake_fail_commands(n, code);
}

/// Finishes late: so much before the work, and between it and its handlers.
pub fn delay(work: Duration, handlers: Duration) {
    let micros = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    raw::metal_fake_delay(micros(work), micros(handlers));
}

/// While it is held, no work runs.
pub fn hold(held: bool) {
    raw::metal_fake_hold(held);
}

/// What residency sets hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residency {
    /// Bytes that are resident.
    pub bytes: u64,
    /// Sets with a standing request.
    pub sets: u64,
    /// Commits so far.
    pub commits: u64,
    /// Bytes of the largest set there was.
    pub largest: u64,
}

/// What is resident now.
pub fn residency() -> Residency {
    Residency {
        bytes: raw::metal_fake_resident(),
        sets: raw::metal_fake_resident_sets(),
        commits: raw::metal_fake_residency_commits(),
        largest: raw::metal_fake_largest_set(),
    }
}

/// Texts that passed the syntax check so far.
pub fn texts_checked() -> u64 {
    raw::metal_fake_checked()
}
