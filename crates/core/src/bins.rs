//! Size bins: which lists of free ranges may hold one of a given size (two-level segregated
//! fit).
//!
//! The one idea: sizes are counted in pages; below [`LINEAR`] pages every count has a bin of its
//! own, above it each power of two is cut into [`LINEAR`] equal bins, so a bin's sizes differ by
//! at most 1/32. Two words of bitmap find the next bin that is not empty in constant time.

use crate::heap::NONE;
use crate::size::PAGE;

const LINEAR_BITS: u32 = 5;
const LINEAR: u64 = 1 << LINEAR_BITS;
/// Rows of bins: one for the linear sizes, one for each power of two above, up to 2^63 bytes.
const ROWS: usize = 64 - LINEAR_BITS as usize - PAGE.trailing_zeros() as usize;

/// Heads of the lists of free ranges, by size.
#[derive(Debug)]
pub(crate) struct Bins {
    rows: u64,
    columns: [u32; ROWS],
    heads: Vec<u32>,
}

/// The bin that a size of at least one page belongs to.
#[inline]
pub(crate) fn bin_of(size: u64) -> usize {
    let pages = size / PAGE;
    if pages < LINEAR {
        return pages as usize;
    }
    let row = pages.ilog2() - LINEAR_BITS;
    let column = (pages >> row) & (LINEAR - 1);
    ((row as usize + 1) << LINEAR_BITS) + column as usize
}

impl Bins {
    pub(crate) fn new() -> Self {
        Self { rows: 0, columns: [0; ROWS], heads: vec![NONE; ROWS << LINEAR_BITS] }
    }

    #[inline]
    pub(crate) fn head(&self, bin: usize) -> u32 {
        self.heads[bin]
    }

    /// Sets the head of a bin's list; [`NONE`] empties it.
    #[inline]
    pub(crate) fn set_head(&mut self, bin: usize, node: u32) {
        self.heads[bin] = node;
        let (row, column) = (bin >> LINEAR_BITS, bin & (LINEAR as usize - 1));
        if node == NONE {
            self.columns[row] &= !(1 << column);
            if self.columns[row] == 0 {
                self.rows &= !(1 << row);
            }
        } else {
            self.columns[row] |= 1 << column;
            self.rows |= 1 << row;
        }
    }

    /// The first bin at or above `bin` that is not empty.
    #[inline]
    pub(crate) fn next_filled(&self, bin: usize) -> Option<usize> {
        let (row, column) = (bin >> LINEAR_BITS, bin & (LINEAR as usize - 1));
        if row >= ROWS {
            return None;
        }
        let here = self.columns[row] & (u32::MAX << column);
        if here != 0 {
            return Some((row << LINEAR_BITS) + here.trailing_zeros() as usize);
        }
        let above = self.rows & (u64::MAX.checked_shl(row as u32 + 1).unwrap_or(0));
        if above == 0 {
            return None;
        }
        let row = above.trailing_zeros() as usize;
        Some((row << LINEAR_BITS) + self.columns[row].trailing_zeros() as usize)
    }

    /// The last bin at or below `bin` that is not empty.
    pub(crate) fn previous_filled(&self, bin: usize) -> Option<usize> {
        let (row, column) = (bin >> LINEAR_BITS, bin & (LINEAR as usize - 1));
        let here = self.columns[row] & (u32::MAX >> (LINEAR as usize - 1 - column));
        if here != 0 {
            return Some((row << LINEAR_BITS) + here.ilog2() as usize);
        }
        let below = self.rows & ((1 << row) - 1);
        if below == 0 {
            return None;
        }
        let row = below.ilog2() as usize;
        Some((row << LINEAR_BITS) + self.columns[row].ilog2() as usize)
    }

    /// The last bin.
    pub(crate) const fn last() -> usize {
        (ROWS << LINEAR_BITS) - 1
    }
}

#[cfg(test)]
#[path = "bins_tests.rs"]
mod tests;
