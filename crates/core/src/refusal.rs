//! Why a request is refused, and what is left when a pool closes: tables for people (rules C.4, J.2).

use std::fmt;

use crate::ledger::LabelRow;
use crate::stats::{MemoryStats, format_bytes};

/// Labels that a message names: those that hold most.
pub(crate) const MOST_HOLDERS: usize = 5;

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusalKind {
    /// It would pass the memory limit.
    Limit,
    /// It is larger than the device's largest buffer, given in bytes.
    TooLarge(u64),
    /// Its size overflows when rounded up.
    Overflow,
    /// The driver refused: call and code.
    Driver(&'static str, i64),
}

/// A request that was refused: everything the message of rule C.4 needs.
///
/// `Display` is a table: what was asked, the figures and the limit, and who holds most.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Why.
    pub kind: RefusalKind,
    /// Bytes asked.
    pub asked: u64,
    /// The figures at that moment.
    pub stats: Box<MemoryStats>,
    /// The labels that hold most, at most five.
    pub holders: Vec<LabelRow>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (asked, stats) = (self.asked, &self.stats);
        match self.kind {
            RefusalKind::TooLarge(limit) => {
                return write!(
                    f,
                    "{asked} bytes asked, but the device's largest buffer is {limit} bytes"
                );
            }
            RefusalKind::Overflow => {
                return write!(f, "{asked} bytes asked: no device can address that");
            }
            RefusalKind::Limit => {
                let room = stats.memory_limit.saturating_sub(stats.active_with_mapped);
                writeln!(
                    f,
                    "out of memory: {asked} bytes asked ({}), but {} are left below the memory limit",
                    format_bytes(asked),
                    format_bytes(room)
                )?;
            }
            RefusalKind::Driver(call, code) => writeln!(
                f,
                "out of memory: {asked} bytes asked ({}), but {call} failed with code {code}",
                format_bytes(asked)
            )?,
        }
        for (name, value) in [
            ("active", stats.active),
            ("mapped", stats.mapped),
            ("cached", stats.cache),
            ("memory limit", stats.memory_limit),
        ] {
            writeln!(f, "  {name:<14}{:>10}", format_bytes(value))?;
        }
        if !self.holders.is_empty() {
            writeln!(f, "held by")?;
            write_holders(f, &self.holders, stats.active)?;
        }
        match self.kind {
            RefusalKind::Driver(..) => write!(f, "free arrays, or other programs' memory"),
            _ => write!(f, "free arrays, or raise the limit with set_memory_limit"),
        }
    }
}

impl std::error::Error for Refusal {}

/// A line for each label: its bytes, their share of `active`, and how many allocations they are.
fn write_holders(f: &mut fmt::Formatter<'_>, rows: &[LabelRow], active: u64) -> fmt::Result {
    let name = |row: &LabelRow| match row.name.as_str() {
        "" => "(unlabelled)".to_owned(),
        name => name.to_owned(),
    };
    let width = rows.iter().map(|row| name(row).chars().count()).max().unwrap_or(0).max(14);
    for row in rows {
        let (size, count) = (format_bytes(row.active), row.count);
        let share = row.active as f64 / active.max(1) as f64 * 100.0;
        let plural = if count == 1 { "" } else { "s" };
        let name = name(row);
        writeln!(f, "  {name:<width$}{size:>10}{share:>7.1} %  {count} allocation{plural}")?;
    }
    Ok(())
}

/// What is still held when a pool is closed (rule J.2).
#[derive(Clone, Debug)]
pub struct Leak {
    /// Bytes that the driver has not got back.
    pub reserved: u64,
    /// Bytes of allocations that were never freed.
    pub active: u64,
    /// How many they are.
    pub allocations: u64,
    /// The labels that hold them, most first.
    pub holders: Vec<LabelRow>,
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.allocations == 1 { "" } else { "s" };
        writeln!(
            f,
            "{} are still held at the close of a device: {} allocation{plural} of {} were never freed",
            format_bytes(self.reserved),
            self.allocations,
            format_bytes(self.active)
        )?;
        write_holders(f, &self.holders, self.active)?;
        write!(f, "AQUIFER_TRACE=path with AQUIFER_TRACE_STACKS=1 tells where they were made")
    }
}
