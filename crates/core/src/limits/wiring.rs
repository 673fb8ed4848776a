//! Keeping live memory resident up to a limit (rule M.1).
//!
//! Wiring is by node of the heap (a slab counts whole), by block, and by mapped file. A device
//! that refuses leaves the memory unwired, and the figure says so.

use crate::heap::State;
use crate::memory::{BlockId, Memory};
use crate::pool::Pool;

use super::Mapping;

/// A block that is wired as a whole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WiredBlock {
    pub(crate) size: u64,
    /// Live parts of it that want it so.
    pub(crate) parts: u32,
}

impl Pool {
    fn room_to_wire(&self, size: u64) -> bool {
        self.caps.can_wire && self.wired.saturating_add(size) <= self.limits.wired
    }

    #[inline]
    pub(crate) fn wire_node<M: Memory + ?Sized>(&mut self, device: &M, mode: usize, id: u32) {
        if self.limits.wired == 0 {
            return;
        }
        let heap = &mut self.arenas[mode].heap;
        let (size, offset, block) = (heap.node(id).size, heap.node(id).offset, heap.place(id).0);
        let wired = if self.caps.wires_blocks {
            let whole = heap.block_size(id);
            self.wire_block(device, block, whole)
        } else {
            let wired = self.room_to_wire(size) && device.wire(block, offset, size).is_ok();
            self.wired += if wired { size } else { 0 };
            wired
        };
        self.arenas[mode].heap.node_mut(id).wired = wired;
    }

    #[inline]
    pub(crate) fn unwire_node<M: Memory + ?Sized>(&mut self, device: &M, mode: usize, id: u32) {
        let heap = &mut self.arenas[mode].heap;
        if !heap.node(id).wired {
            return;
        }
        let (block, node) = (heap.place(id).0, heap.node_mut(id));
        node.wired = false;
        let (offset, size) = (node.offset, node.size);
        if self.caps.wires_blocks {
            self.unwire_block(device, block);
        } else {
            self.wired -= size;
            device.unwire(block, offset, size);
        }
    }

    /// Wires a block as a whole, or counts one more part of it that wants it; whether it is wired.
    /// The founding policy always does: its blocks are few and whole.
    pub(crate) fn wire_block<M: Memory + ?Sized>(
        &mut self,
        device: &M,
        id: BlockId,
        size: u64,
    ) -> bool {
        if let Some(block) = self.wired_blocks.get_mut(&id) {
            block.parts += 1;
            return true;
        }
        let wired =
            self.limits.wired > 0 && self.room_to_wire(size) && device.wire(id, 0, size).is_ok();
        if wired {
            self.wired += size;
            self.wired_blocks.insert(id, WiredBlock { size, parts: 1 });
        }
        wired
    }

    /// Undoes one [`wire_block`](Self::wire_block), if the block is wired.
    pub(crate) fn unwire_block<M: Memory + ?Sized>(&mut self, device: &M, id: BlockId) {
        let Some(block) = self.wired_blocks.get_mut(&id) else { return };
        block.parts -= 1;
        if block.parts == 0 {
            let size = block.size;
            self.wired_blocks.remove(&id);
            self.wired -= size;
            device.unwire(id, 0, size);
        }
    }

    pub(super) fn wire_mapping<M: Memory + ?Sized>(&mut self, device: &M, mapping: &mut Mapping) {
        if let Some(block) = mapping.block
            && mapping.size > 0
            && self.room_to_wire(mapping.size)
            && device.wire(block, 0, mapping.size).is_ok()
        {
            mapping.wired = true;
            self.wired += mapping.size;
            self.wired_mapped += mapping.size;
        }
    }

    pub(super) fn unwire_mapping<M: Memory + ?Sized>(&mut self, device: &M, mapping: &mut Mapping) {
        if let (true, Some(block)) = (mapping.wired, mapping.block) {
            mapping.wired = false;
            self.wired -= mapping.size;
            self.wired_mapped -= mapping.size;
            device.unwire(block, 0, mapping.size);
        }
    }

    /// After the limit has changed: unwires the most recent first, or wires what is live.
    pub(super) fn rewire<M: Memory + ?Sized>(&mut self, device: &M) {
        for mode in (0..self.arenas.len()).rev() {
            for id in (0..self.arenas[mode].heap.nodes.len() as u32).rev() {
                if self.wired <= self.limits.wired {
                    break;
                }
                self.unwire_node(device, mode, id);
            }
        }
        while self.wired > self.limits.wired
            && let Some((&id, _)) = self.wired_blocks.last_key_value()
        {
            self.unwire_block(device, id);
        }
        let mut mappings = std::mem::take(&mut self.mappings);
        for mapping in mappings.iter_mut().rev().flatten() {
            if self.wired > self.limits.wired {
                self.unwire_mapping(device, mapping);
            }
        }
        for mapping in mappings.iter_mut().flatten().filter(|mapping| !mapping.wired) {
            self.wire_mapping(device, mapping);
        }
        self.mappings = mappings;
        for mode in 0..self.arenas.len() {
            for id in 0..self.arenas[mode].heap.nodes.len() as u32 {
                let node = self.arenas[mode].heap.node(id);
                if node.state == State::Live && !node.wired {
                    self.wire_node(device, mode, id);
                }
            }
        }
        let live: Vec<_> =
            self.arenas.iter().flat_map(|arena| arena.blocks.live_blocks()).collect();
        for (id, size) in live {
            if !self.wired_blocks.contains_key(&id) {
                self.wire_block(device, id, size);
            }
        }
    }
}
