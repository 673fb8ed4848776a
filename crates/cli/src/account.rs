//! What is held at each event of a trace, from the events alone.

use std::collections::HashMap;

use aquifer::core::BlockId;
use aquifer::core::trace::Event;

/// Figures as they are after the events that have been applied.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// Charged to live allocations.
    pub(crate) active: u64,
    /// Mapped files.
    pub(crate) mapped: u64,
    /// What the driver has given.
    pub(crate) reserved: u64,
    blocks: HashMap<BlockId, u64>,
    mappings: HashMap<u32, u64>,
}

impl Account {
    /// Applies an event; whether a figure changed.
    pub(crate) fn apply(&mut self, event: &Event) -> bool {
        let before = (self.active, self.mapped, self.reserved);
        match event {
            // They know what was there when the trace began, too.
            Event::Figures(stats) => {
                (self.active, self.mapped) = (stats.active, stats.mapped);
                self.reserved = stats.reserved;
            }
            Event::Allocate { size, .. } => self.active = self.active.saturating_add(*size),
            Event::Free { size, .. } => self.active = self.active.saturating_sub(*size),
            Event::Obtain { block, size, .. } => {
                self.blocks.insert(*block, *size);
                self.reserved = self.reserved.saturating_add(*size);
            }
            Event::GiveBack { block } => {
                let size = self.blocks.remove(block).unwrap_or(0);
                self.reserved = self.reserved.saturating_sub(size);
            }
            Event::Commit(extent) => self.reserved = self.reserved.saturating_add(extent.len),
            Event::Decommit(extent) => self.reserved = self.reserved.saturating_sub(extent.len),
            Event::Map { id: Some(id), size, .. } => {
                self.mappings.insert(*id, *size);
                self.mapped = self.mapped.saturating_add(*size);
            }
            Event::Unmap { id } => {
                let size = self.mappings.remove(id).unwrap_or(0);
                self.mapped = self.mapped.saturating_sub(size);
            }
            _ => {}
        }
        before != (self.active, self.mapped, self.reserved)
    }
}
