//! The threads that kernels run on.
//!
//! They are this device's own, not rayon's global ones: a program's rayon jobs may wait for work
//! of the device, and if that work needed the very threads that wait, it would never be done.

use std::sync::OnceLock;

use rayon::{ThreadPool, ThreadPoolBuilder};

/// Runs `work`, whose parallel iterators use this device's threads. Without threads (the system
/// gives no more) it runs where rayon puts it.
pub(super) fn install<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    static THREADS: OnceLock<Option<ThreadPool>> = OnceLock::new();
    let threads = THREADS.get_or_init(|| {
        let name = |index| format!("aquifer-cpu-{index}");
        ThreadPoolBuilder::new().thread_name(name).build().ok()
    });
    match threads {
        Some(threads) => threads.install(work),
        None => work(),
    }
}
