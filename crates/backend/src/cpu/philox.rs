//! Philox 4x32-10: random bits from a counter and a key, the same on every device.
//!
//! Source: Salmon, Moraes, Dror, Shaw, *Parallel random numbers: as easy as 1, 2, 3* (2011).

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Four words of random bits for a counter and a key.
#[inline(always)]
pub(super) fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let first = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let second = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

/// Random bits for the places from `start` on: place `i` is word `i % 4` of counter `i / 4`;
/// `stream` is the counter's third word.
#[inline(always)]
pub(super) fn fill(out: &mut [u32], start: u64, key: u64, stream: u8) {
    let key = [key as u32, (key >> 32) as u32];
    let block =
        |index: u64| philox([index as u32, (index >> 32) as u32, u32::from(stream), 0], key);
    let mut place = start;
    let mut rest = out;
    while !rest.is_empty() {
        let words = block(place / 4);
        let skip = (place % 4) as usize;
        let count = (4 - skip).min(rest.len());
        let (now, later) = rest.split_at_mut(count);
        now.copy_from_slice(&words[skip..skip + count]);
        (rest, place) = (later, place + count as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that the generator's authors publish with it.
    #[test]
    fn the_known_answers_come_out() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    /// A place's bits do not depend on where the run that computes them starts.
    #[test]
    fn bits_depend_on_the_place_alone() {
        let mut whole = [0; 64];
        fill(&mut whole, 0, 7, 1);
        for start in 0..60 {
            let mut part = [0; 4];
            fill(&mut part, start as u64, 7, 1);
            assert_eq!(part, whole[start..start + 4]);
        }
    }
}
