//! Residency (rule M.1): sets of limited size, so that a change commits little; what is added is
//! committed in batches, before the next work.
//!
//! Nothing is asked to stay resident beyond what is wired: a set goes when its last block does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aquifer_core::{BlockId, DriverError};
use objc2::runtime::ProtocolObject;
use objc2_metal::{
    MTLAllocation, MTLBuffer, MTLDevice, MTLResidencySet, MTLResidencySetDescriptor,
};
use smallvec::SmallVec;

use super::device::{Gpu, Object, nothing, refused};
use super::memory::Buffer;
use crate::gpu::Compiler;

/// Bytes and buffers of one set: one that is full is not committed again until it loses some.
const MOST_BYTES: u64 = 1 << 30;
const MOST_BUFFERS: usize = 64;

/// A residency set and what is in it.
struct Set {
    raw: Object<dyn MTLResidencySet>,
    bytes: u64,
    buffers: usize,
    /// It was asked to be resident.
    requested: bool,
    /// It has changes that are not committed.
    changed: bool,
}

// SAFETY: a set is reached only under the lock of its `Wiring`; retain counts are atomic.
unsafe impl Send for Set {}

/// What of a block is in which set.
type Members = SmallVec<[(u64, Buffer); 1]>;

#[derive(Default)]
struct State {
    sets: BTreeMap<u64, Set>,
    next: u64,
    blocks: BTreeMap<BlockId, Members>,
    /// Some set has changes.
    changed: bool,
}

fn allocation(buffer: &Buffer) -> &ProtocolObject<dyn MTLAllocation> {
    ProtocolObject::from_ref(&*buffer.0)
}

/// What is kept resident.
pub(super) struct Wiring {
    gpu: Arc<Gpu>,
    state: Mutex<State>,
}

impl std::fmt::Debug for Wiring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wiring").field("blocks", &self.lock().blocks.len()).finish_non_exhaustive()
    }
}

impl Wiring {
    pub(super) fn new(gpu: Arc<Gpu>) -> Self {
        Self { gpu, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a block's buffers, each to the first set that has room.
    pub(super) fn add(
        &self,
        block: BlockId,
        buffers: SmallVec<[Buffer; 1]>,
    ) -> Result<(), DriverError> {
        if !self.gpu.caps().can_wire {
            return Err(nothing("newResidencySetWithDescriptor:error:"));
        }
        let mut state = self.lock();
        let mut members = Members::new();
        for buffer in buffers {
            match self.place(&mut state, &buffer) {
                Ok(set) => members.push((set, buffer)),
                Err(error) => {
                    state.remove(members);
                    return Err(error);
                }
            }
        }
        // The core wires no block twice.
        state.blocks.insert(block, members);
        Ok(())
    }

    fn place(&self, state: &mut State, buffer: &Buffer) -> Result<u64, DriverError> {
        let len = buffer.0.length() as u64;
        let room = |set: &Set| set.buffers < MOST_BUFFERS && set.bytes + len <= MOST_BYTES;
        let found = state.sets.iter().find(|(_, set)| room(set)).map(|(id, _)| *id);
        let id = match found {
            Some(id) => id,
            None => {
                let descriptor = MTLResidencySetDescriptor::new();
                let raw = self.gpu.raw.newResidencySetWithDescriptor_error(&descriptor);
                let raw =
                    raw.map_err(|error| refused("newResidencySetWithDescriptor:error:", &error))?;
                let set = Set { raw, bytes: 0, buffers: 0, requested: false, changed: false };
                state.next += 1;
                state.sets.insert(state.next, set);
                state.next
            }
        };
        if let Some(set) = state.sets.get_mut(&id) {
            set.raw.addAllocation(allocation(buffer));
            (set.bytes, set.buffers, set.changed) = (set.bytes + len, set.buffers + 1, true);
            state.changed = true;
        }
        Ok(id)
    }

    /// Takes a block's buffers out, and lets go of them before its memory goes.
    pub(super) fn forget(&self, block: BlockId) {
        let mut state = self.lock();
        if let Some(members) = state.blocks.remove(&block) {
            state.remove(members);
            state.commit();
        }
    }

    /// Makes what has changed true. Called before work is handed to the device.
    pub(super) fn commit(&self) {
        let mut state = self.lock();
        if state.changed {
            state.commit();
        }
    }
}

impl State {
    fn remove(&mut self, members: Members) {
        for (id, buffer) in members {
            if let Some(set) = self.sets.get_mut(&id) {
                set.raw.removeAllocation(allocation(&buffer));
                set.bytes = set.bytes.saturating_sub(buffer.0.length() as u64);
                (set.buffers, set.changed) = (set.buffers.saturating_sub(1), true);
                self.changed = true;
            }
        }
    }

    fn commit(&mut self) {
        self.changed = false;
        for set in self.sets.values_mut().filter(|set| set.changed) {
            set.changed = false;
            set.raw.commit();
            if set.buffers > 0 && !set.requested {
                set.requested = true;
                set.raw.requestResidency();
            } else if set.buffers == 0 && set.requested {
                set.raw.endResidency();
            }
        }
        self.sets.retain(|_, set| set.buffers > 0);
    }
}

impl Drop for State {
    fn drop(&mut self) {
        for set in self.sets.values().filter(|set| set.requested) {
            set.raw.endResidency();
        }
    }
}
