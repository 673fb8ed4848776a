//! Keeping live memory resident up to a limit (rule M.1).
//!
//! Wiring is by node of the heap (a slab counts whole), by block, and by mapped file. A device
//! that refuses leaves the memory unwired, and the figure says so.

use crate::heap::State;
use crate::memory::{BlockId, Memory};
use crate::pool::Pool;

use super::Mapping;

impl Pool {
    fn room_to_wire(&self, size: u64) -> bool {
        self.caps.can_wire && self.wired + size <= self.limits.wired
    }

    #[inline]
    pub(crate) fn wire_node<M: Memory + ?Sized>(&mut self, device: &M, mode: usize, id: u32) {
        if self.limits.wired == 0 {
            return;
        }
        let heap = &mut self.arenas[mode].heap;
        let (size, offset, block) = (heap.node(id).size, heap.node(id).offset, heap.place(id).0);
        if self.room_to_wire(size) && device.wire(block, offset, size).is_ok() {
            self.arenas[mode].heap.node_mut(id).wired = true;
            self.wired += size;
        }
    }

    #[inline]
    pub(crate) fn unwire_node<M: Memory + ?Sized>(&mut self, device: &M, mode: usize, id: u32) {
        let heap = &mut self.arenas[mode].heap;
        if heap.node(id).wired {
            let (block, node) = (heap.place(id).0, heap.node_mut(id));
            node.wired = false;
            self.wired -= node.size;
            device.unwire(block, node.offset, node.size);
        }
    }

    /// The founding policy wires blocks while they are live: its blocks are few and whole.
    pub(crate) fn wire_block<M: Memory + ?Sized>(&mut self, device: &M, id: BlockId, size: u64) {
        if self.limits.wired > 0 && self.room_to_wire(size) && device.wire(id, 0, size).is_ok() {
            self.wired += size;
            self.wired_blocks.insert(id, size);
        }
    }

    pub(crate) fn unwire_block<M: Memory + ?Sized>(&mut self, device: &M, id: BlockId, size: u64) {
        if self.wired_blocks.remove(&id).is_some() {
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
            && let Some((&id, &size)) = self.wired_blocks.last_key_value()
        {
            self.unwire_block(device, id, size);
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
