use super::*;

/// Bins are ordered: a larger size never has a smaller bin, and sizes of one bin differ by at
/// most 1/32. Exhaustive to 64 Ki pages, then around each power of two.
#[test]
fn bins_grow_with_size_and_hold_near_sizes() {
    let mut last = 0;
    let mut first_of_bin = 1;
    for pages in 1..65_536 {
        let bin = bin_of(pages * PAGE);
        assert!(bin == last || bin == last + 1, "{pages} pages jump from bin {last} to {bin}");
        if bin != last {
            first_of_bin = pages;
        }
        assert!(
            (pages - first_of_bin) * 32 <= first_of_bin,
            "bin {bin} holds {first_of_bin} and {pages}"
        );
        last = bin;
    }
    for shift in 16..49 {
        let pages = 1u64 << shift;
        assert_eq!(bin_of(pages * PAGE), bin_of((pages - 1) * PAGE) + 1);
        assert!(bin_of(pages * PAGE) <= Bins::last());
    }
}

/// `next_filled` and `previous_filled` agree with a linear search.
#[test]
fn the_bitmaps_agree_with_a_linear_search() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut bins = Bins::new();
    let mut filled = std::collections::BTreeSet::new();
    for _ in 0..5_000 {
        let bin = random.usize(0..=Bins::last());
        if filled.remove(&bin) {
            bins.set_head(bin, NONE);
        } else {
            filled.insert(bin);
            bins.set_head(bin, 1);
        }
        let probe = random.usize(0..=Bins::last());
        assert_eq!(bins.next_filled(probe), filled.range(probe..).next().copied());
        assert_eq!(bins.previous_filled(probe), filled.range(..=probe).next_back().copied());
    }
}
