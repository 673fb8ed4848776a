use super::*;

/// A.1: the examples of the rule.
#[test]
fn the_examples_of_the_rule_hold() {
    for (len, want) in
        [(0, 0), (1, 256), (256, 256), (257, 512), (16_384, 16_384), (16_385, 32_768)]
    {
        assert_eq!(allocation_size(len), Some(want), "allocation_size({len})");
    }
}

/// A.1, exhaustively over four pages: the least multiple of the right step that holds `len`.
#[test]
fn every_size_up_to_four_pages_is_the_least_multiple_of_its_step() {
    for len in 1..=4 * PAGE {
        let size = allocation_size(len).unwrap();
        let step = if len <= PAGE { SMALL } else { PAGE };
        assert!(size >= len && size - len < step && size.is_multiple_of(step), "{len} -> {size}");
    }
}

/// A.4: sizes near the top of the range are `None`, never a wrap.
#[test]
fn sizes_near_the_top_do_not_wrap() {
    let top = u64::MAX - u64::MAX % PAGE;
    assert_eq!(allocation_size(top), Some(top));
    for len in [top + 1, u64::MAX - 1, u64::MAX] {
        assert_eq!(allocation_size(len), None);
    }
    for len in [u64::MAX - 4094, u64::MAX] {
        assert_eq!(mapping_size(len, 4096), None);
    }
    assert_eq!(mapping_size(u64::MAX - 4095, 4096), Some(u64::MAX - 4095));
}

/// A.2: a mapping counts whole system pages.
#[test]
fn mappings_count_in_system_pages() {
    assert_eq!(mapping_size(1, 4096), Some(4096));
    assert_eq!(mapping_size(90_868_376, 4096), Some(90_869_760));
    assert_eq!(mapping_size(16_385, 65_536), Some(65_536));
    assert_eq!(mapping_size(5, 0), None);
}
