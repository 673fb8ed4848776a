//! Autorelease pools.

use std::ffi::c_void;
use std::marker::PhantomData;

use objc2::ffi::{objc_autoreleasePoolPop, objc_autoreleasePoolPush};

/// A pool that is drained when it is dropped, on the thread that made it.
struct Pool(*mut c_void, PhantomData<*mut ()>);

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the innermost pool of this thread: those made inside its scope are gone.
        unsafe { objc_autoreleasePoolPop(self.0) };
    }
}

/// Runs an entry point inside a pool of its own. Unlike objc2's, it may be called while a thread's
/// own values are dropped: a thread that ends submits what it had recorded.
pub(super) fn pooled<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: it is popped once, by its guard, on this thread.
    let _pool = Pool(unsafe { objc_autoreleasePoolPush() }, PhantomData);
    work()
}
