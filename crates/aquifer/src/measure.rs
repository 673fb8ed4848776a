//! Measuring a piece of work (rule K.1).

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use aquifer_core::format_bytes;

use crate::device::Device;
use crate::error::Result;

static COUNT: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// A global allocator that counts, so that [`measure`] sees the CPU's allocations too.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: aquifer::CountingAllocator = aquifer::CountingAllocator;
/// # fn main() {}
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingAllocator;

impl CountingAllocator {
    fn count(size: usize) {
        COUNT.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(size as u64, Ordering::Relaxed);
        INSTALLED.store(true, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator with its own arguments; counting touches only
// atomics and allocates nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count(layout.size());
        // SAFETY: the caller's contract, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract, passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::count(layout.size());
        // SAFETY: the caller's contract, passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::count(size);
        // SAFETY: the caller's contract, passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// What a piece of work took. `Display` prints it in one line, `{:#}` a table.
#[derive(Debug)]
pub struct Measured<R> {
    /// What the work returned.
    pub value: R,
    /// From one synchronize to the other.
    pub elapsed: Duration,
    /// Allocations of the whole program on the CPU, and their bytes; `None` without
    /// [`CountingAllocator`].
    pub cpu: Option<(u64, u64)>,
    /// Allocations on the device.
    pub allocations: u64,
    /// Bytes that they asked for.
    pub allocated: u64,
    /// Times that the driver was asked for memory; the other allocations came from the cache.
    pub system_allocations: u64,
    /// Time spent managing device memory, over all threads.
    pub managing: Duration,
}

/// Runs `work` and tells what it took. Synchronizes the device before and after.
///
/// ```
/// use aquifer::prelude::*;
/// let device = Device::cpu()?;
/// let used = measure(&device, || Array::<f32>::zeros(&device, [1024]))?;
/// assert_eq!((used.allocations, used.allocated), (1, 4096));
/// assert!(used.to_string().contains("1 device allocation: 4.00 KiB"));
/// assert!(format!("{used:#}").contains("from the driver"));
/// # Ok::<(), aquifer::Error>(())
/// ```
///
/// # Errors
/// Those of `work`, and what failed on the device.
pub fn measure<R>(device: &Device, work: impl FnOnce() -> Result<R>) -> Result<Measured<R>> {
    device.synchronize()?;
    let counts = || (COUNT.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed));
    let (cpu, before) = (counts(), device.pool().totals());
    let calls = device.memory().system_allocations;
    let managing = device.managing(Some(true));
    let start = Instant::now();
    let result = work().and_then(|value| device.synchronize().map(|()| value));
    let elapsed = start.elapsed();
    let managing = device.managing(Some(false)).saturating_sub(managing);
    let (after, cpu_after) = (device.pool().totals(), counts());
    let installed = INSTALLED.load(Ordering::Relaxed);
    Ok(Measured {
        value: result?,
        elapsed,
        cpu: installed.then(|| (cpu_after.0 - cpu.0, cpu_after.1 - cpu.1)),
        allocations: after.0 - before.0,
        allocated: after.1 - before.1,
        system_allocations: device.memory().system_allocations - calls,
        managing,
    })
}

impl<R> Measured<R> {
    /// The part of the time that went into managing device memory.
    fn managing_share(&self) -> f64 {
        self.managing.as_secs_f64() / self.elapsed.as_secs_f64().max(1e-9)
    }

    fn table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<20}{:>14}{:>12}", "", "count", "bytes")?;
        if let Some((count, bytes)) = self.cpu {
            writeln!(f, "{:<20}{count:>14}{:>12}", "CPU allocations", format_bytes(bytes))?;
        }
        let (count, bytes) = (self.allocations, format_bytes(self.allocated));
        writeln!(f, "{:<20}{count:>14}{bytes:>12}", "device allocations")?;
        writeln!(f, "{:<20}{:>14}", "  from the driver", self.system_allocations)?;
        let (elapsed, managing) = (self.elapsed.as_secs_f64(), self.managing.as_secs_f64());
        writeln!(f, "{:<20}{elapsed:>12.6} s", "elapsed")?;
        let share = self.managing_share() * 100.0;
        write!(f, "{:<20}{managing:>12.6} s{share:>10.2} %", "managing memory")
    }
}

impl<R> fmt::Display for Measured<R> {
    /// One line; with `{:#}` a table.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return self.table(f);
        }
        let plural = |count: u64| if count == 1 { "" } else { "s" };
        write!(f, "{:.6} s", self.elapsed.as_secs_f64())?;
        if let Some((count, bytes)) = self.cpu {
            write!(f, ", {count} CPU allocation{}: {}", plural(count), format_bytes(bytes))?;
        }
        let count = self.allocations;
        write!(
            f,
            ", {count} device allocation{}: {}",
            plural(count),
            format_bytes(self.allocated)
        )?;
        write!(f, ", {:.2} % managing memory", self.managing_share() * 100.0)
    }
}
