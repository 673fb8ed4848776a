//! The figures of a device's memory, one snapshot consistent with itself (rules D.1, D.2).

use std::fmt;

/// Every figure of a device's memory, in bytes unless it says otherwise.
///
/// `reserved = active + cache + slack` holds in every snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Charged to live allocations.
    pub active: u64,
    /// The highest `active`.
    pub peak: u64,
    /// Free but held, and could be given back: now, or once the work in flight on it is done.
    pub cache: u64,
    /// Mapped files.
    pub mapped: u64,
    /// `active` + `mapped`: what the memory limit applies to.
    pub active_with_mapped: u64,
    /// The highest value of that sum.
    pub peak_with_mapped: u64,
    /// The limit on `active_with_mapped`.
    pub memory_limit: u64,
    /// The limit on `cache`.
    pub cache_limit: u64,
    /// Times that the driver was asked for memory (a count).
    pub system_allocations: u64,
    /// The limit on `wired`.
    pub wired_limit: u64,
    /// Kept resident.
    pub wired: u64,
    /// The part of `wired` that is mapped files.
    pub wired_mapped: u64,
    /// The caller's own memory, wrapped; in no other figure.
    pub wrapped: u64,
    /// Freed, but still used by work in flight; part of `cache` or `slack`.
    pub pending: u64,
    /// Charged minus asked, over live allocations.
    pub padding: u64,
    /// Free, but in a unit that also holds live allocations (a slab, a granule, a block): it is
    /// reused, and cannot be given back alone.
    pub slack: u64,
    /// What the driver has given out.
    pub reserved: u64,
    /// The highest `reserved`.
    pub peak_reserved: u64,
    /// All that the driver ever gave, given back or not.
    pub committed_ever: u64,
    /// The working set that limits and pressure are measured against.
    pub working_set: u64,
    /// Live allocations (a count).
    pub allocations: u64,
    /// Blocks and spans held (a count).
    pub blocks: u64,
}

impl MemoryStats {
    /// Every figure with its name, in a fixed order: what `Display` and JSON print.
    pub fn figures(&self) -> [(&'static str, u64); 22] {
        [
            ("active", self.active),
            ("peak", self.peak),
            ("cache", self.cache),
            ("mapped", self.mapped),
            ("active_with_mapped", self.active_with_mapped),
            ("peak_with_mapped", self.peak_with_mapped),
            ("memory_limit", self.memory_limit),
            ("cache_limit", self.cache_limit),
            ("system_allocations", self.system_allocations),
            ("wired_limit", self.wired_limit),
            ("wired", self.wired),
            ("wired_mapped", self.wired_mapped),
            ("wrapped", self.wrapped),
            ("pending", self.pending),
            ("padding", self.padding),
            ("slack", self.slack),
            ("reserved", self.reserved),
            ("peak_reserved", self.peak_reserved),
            ("committed_ever", self.committed_ever),
            ("working_set", self.working_set),
            ("allocations", self.allocations),
            ("blocks", self.blocks),
        ]
    }

    /// The same figures to be set, in the same order.
    pub(crate) fn figures_mut(&mut self) -> [&mut u64; 22] {
        [
            &mut self.active,
            &mut self.peak,
            &mut self.cache,
            &mut self.mapped,
            &mut self.active_with_mapped,
            &mut self.peak_with_mapped,
            &mut self.memory_limit,
            &mut self.cache_limit,
            &mut self.system_allocations,
            &mut self.wired_limit,
            &mut self.wired,
            &mut self.wired_mapped,
            &mut self.wrapped,
            &mut self.pending,
            &mut self.padding,
            &mut self.slack,
            &mut self.reserved,
            &mut self.peak_reserved,
            &mut self.committed_ever,
            &mut self.working_set,
            &mut self.allocations,
            &mut self.blocks,
        ]
    }

    /// Whether a figure of that name is a count, not bytes.
    pub fn is_count(name: &str) -> bool {
        matches!(name, "system_allocations" | "allocations" | "blocks")
    }
}

impl fmt::Display for MemoryStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figures = self.figures();
        for (place, (name, value)) in figures.iter().enumerate() {
            let text = if Self::is_count(name) { value.to_string() } else { format_bytes(*value) };
            write!(f, "{name:<20}{text:>14}")?;
            if place + 1 < figures.len() {
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

/// `bytes` for people: three digits and a binary unit.
///
/// ```
/// use aquifer_core::format_bytes;
/// assert_eq!(format_bytes(100), "100 B");
/// assert_eq!(format_bytes(1536), "1.50 KiB");
/// assert_eq!(format_bytes(45_600_000_000), "42.5 GiB");
/// ```
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    // 1023.5 and not 1024: what would print as 1024 of a unit prints as 1.00 of the next.
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let unit = UNITS[unit];
    match value {
        _ if bytes < 1024 => format!("{bytes} B"),
        v if v < 9.995 => format!("{v:.2} {unit}"),
        v if v < 99.95 => format!("{v:.1} {unit}"),
        v => format!("{v:.0} {unit}"),
    }
}
