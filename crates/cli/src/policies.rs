//! Other systems' rules of reuse, to be compared with on one trace.
//!
//! Each knows sizes and streams, and takes memory from a driver that only counts. None of them
//! knows of work in flight: memory is free for its own stream at once.

mod caches;
mod pytorch;

pub(crate) use caches::{BySize, NoCache};
pub(crate) use pytorch::PyTorch;

/// A driver that counts what it has given, up to a limit.
#[derive(Debug)]
pub(crate) struct Driver {
    held: u64,
    most: u64,
    calls: u64,
    limit: u64,
}

impl Driver {
    pub(crate) fn new(limit: u64) -> Self {
        Self { held: 0, most: 0, calls: 0, limit }
    }

    /// Gives `size` bytes, if there are so many.
    fn obtain(&mut self, size: u64) -> bool {
        let fits = self.held.checked_add(size).is_some_and(|held| held <= self.limit);
        if fits {
            self.held += size;
            self.most = self.most.max(self.held);
            self.calls += 1;
        }
        fits
    }

    fn give_back(&mut self, size: u64) {
        self.held -= size;
        self.calls += 1;
    }

    /// The most that was given out at once.
    pub(crate) fn most(&self) -> u64 {
        self.most
    }

    /// Times that it was asked, or given back to.
    pub(crate) fn calls(&self) -> u64 {
        self.calls
    }
}

/// Rules of reuse. Allocations are named by small numbers of the caller's.
pub(crate) trait Policy {
    /// The name on the command line and in tables.
    fn name(&self) -> &'static str;
    /// Hands out `size` bytes to a stream; whether there were so many.
    fn allocate(&mut self, number: u32, size: u64, stream: u32) -> bool;
    /// Takes an allocation back; one that was refused is none.
    fn free(&mut self, number: u32);
    /// What the driver has given.
    fn driver(&self) -> &Driver;
}
