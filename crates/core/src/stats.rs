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
    /// Every figure with its name, in a fixed order: what JSON prints.
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
}

impl fmt::Display for MemoryStats {
    /// A table: what is so now, the most that it was, and the limit on it; then counts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<24}{:>12}{:>12}{:>12}", "", "now", "at most", "limit")?;
        let bytes = |value: Option<u64>| value.map_or_else(String::new, format_bytes);
        let row = |f: &mut fmt::Formatter<'_>, name: &str, values: [Option<u64>; 3]| {
            let [now, most, limit] = values.map(bytes);
            let line = format!("{name:<24}{now:>12}{most:>12}{limit:>12}");
            writeln!(f, "{}", line.trim_end())
        };
        row(f, "active", [Some(self.active), Some(self.peak), None])?;
        row(f, "  padding", [Some(self.padding), None, None])?;
        row(f, "mapped", [Some(self.mapped), None, None])?;
        let sum = [self.active_with_mapped, self.peak_with_mapped, self.memory_limit];
        row(f, "active + mapped", sum.map(Some))?;
        row(f, "cache", [Some(self.cache), None, Some(self.cache_limit)])?;
        row(f, "  pending", [Some(self.pending), None, None])?;
        row(f, "slack", [Some(self.slack), None, None])?;
        let reserved = [Some(self.reserved), Some(self.peak_reserved), Some(self.working_set)];
        row(f, "reserved", reserved)?;
        row(f, "wired", [Some(self.wired), None, Some(self.wired_limit)])?;
        row(f, "  of mapped files", [Some(self.wired_mapped), None, None])?;
        row(f, "wrapped", [Some(self.wrapped), None, None])?;
        write!(
            f,
            "{} allocations in {} blocks; the driver was asked {} times, for {} in all",
            self.allocations,
            self.blocks,
            self.system_allocations,
            format_bytes(self.committed_ever)
        )
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
