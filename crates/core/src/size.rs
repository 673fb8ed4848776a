//! Sizes (rules A.1–A.4): what a request is charged, and what a mapped file counts.

/// Bytes of an allocation page: requests above it are charged in whole pages.
///
/// Source: rule A.1.
pub const PAGE: u64 = 16_384;

/// Bytes of the smallest step: requests up to one page are charged in multiples of it.
///
/// Source: rule A.1.
pub const SMALL: u64 = 256;

/// Bytes that a request of `len` bytes is charged: 0 for 0, up to [`PAGE`] rounded up to
/// [`SMALL`], beyond that rounded up to whole pages. `None` where that overflows.
///
/// ```
/// use aquifer_core::size::allocation_size;
/// assert_eq!(allocation_size(0), Some(0));
/// assert_eq!(allocation_size(257), Some(512));
/// assert_eq!(allocation_size(16_385), Some(32_768));
/// assert_eq!(allocation_size(u64::MAX), None);
/// ```
/// Source: rule A.1.
#[inline]
pub const fn allocation_size(len: u64) -> Option<u64> {
    if len <= PAGE {
        len.checked_next_multiple_of(SMALL)
    } else {
        len.checked_next_multiple_of(PAGE)
    }
}

/// Bytes that mapping a file of `len` bytes counts: the whole file in the *system's* pages.
/// `None` where that overflows or `system_page` is 0.
///
/// ```
/// use aquifer_core::size::mapping_size;
/// assert_eq!(mapping_size(4097, 4096), Some(8192));
/// assert_eq!(mapping_size(0, 4096), Some(0));
/// ```
/// Source: rule A.2.
#[inline]
pub const fn mapping_size(len: u64, system_page: u64) -> Option<u64> {
    if system_page == 0 { None } else { len.checked_next_multiple_of(system_page) }
}

#[cfg(test)]
#[path = "size_tests.rs"]
mod tests;
