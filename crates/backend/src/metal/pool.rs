//! Autorelease pools.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

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

/// What is dropped inside a pool of its own, on whatever thread that is.
pub(super) struct Pooled<T>(ManuallyDrop<T>);

impl<T> Pooled<T> {
    pub(super) fn new(value: T) -> Self {
        Self(ManuallyDrop::new(value))
    }
}

impl<T> Deref for Pooled<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Pooled<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: fmt::Debug> fmt::Debug for Pooled<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T> Drop for Pooled<T> {
    fn drop(&mut self) {
        // SAFETY: it is dropped here alone, once, and not used again.
        pooled(|| unsafe { ManuallyDrop::drop(&mut self.0) });
    }
}
