//! The lock around a device's pool, and what is told when it ends.

use std::ops::{Deref, DerefMut};

use aquifer_core::Pool;
use parking_lot::MutexGuard;

/// The pool, locked. When it is let go, subscribers of `tracing` are told what the driver was asked:
/// where the lock ends anyway, so that nothing is moved for it on the way.
pub(crate) struct PoolGuard<'d>(MutexGuard<'d, Pool>);

impl<'d> PoolGuard<'d> {
    #[inline(always)]
    pub(crate) fn new(guard: MutexGuard<'d, Pool>) -> Self {
        Self(guard)
    }
}

impl Deref for PoolGuard<'_> {
    type Target = Pool;

    #[inline(always)]
    fn deref(&self) -> &Pool {
        &self.0
    }
}

impl DerefMut for PoolGuard<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Pool {
        &mut self.0
    }
}

impl Drop for PoolGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.0.driver_called() {
            tell_driver(&mut self.0);
        }
    }
}

#[cold]
fn tell_driver(pool: &mut MutexGuard<'_, Pool>) {
    let (obtained, gone) = pool.take_driver_calls();
    let reserved = pool.stats().reserved;
    // Without the lock: a subscriber may ask the device something.
    MutexGuard::unlocked(pool, || {
        if gone > 0 {
            tracing::debug!(bytes = gone, reserved, "pressure: cached memory went back");
        }
        if obtained > 0 {
            tracing::debug!(bytes = obtained, reserved, "obtained memory from the driver");
        }
    });
}
