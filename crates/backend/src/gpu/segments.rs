//! Blocks that may be several buffers.
//!
//! The one idea: a block is one or more segments, each a buffer. One is the rule. A block above the
//! driver's largest allocation has several, end to end; imported memory above it has several that
//! overlap by halves, so that any range of up to half a segment lies in one.

use smallvec::SmallVec;

/// A buffer of a block.
#[derive(Clone, Debug)]
pub(crate) struct Segment<B> {
    /// Bytes from the start of the first.
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) buffer: B,
}

/// The buffers of a block.
#[derive(Clone, Debug)]
pub(crate) struct Segments<B> {
    pub(crate) all: SmallVec<[Segment<B>; 1]>,
    /// Bytes from the start of the first to the block's first byte: imports begin at a boundary.
    pub(crate) lead: u64,
}

impl<B> Segments<B> {
    /// The segment that has a byte of the block, with the most room after it, and the byte's
    /// offset there.
    pub(crate) fn find(&self, offset: u64) -> Option<(&Segment<B>, u64)> {
        let at = offset.checked_add(self.lead)?;
        let holds = |segment: &&Segment<B>| segment.start <= at && at < segment.start + segment.len;
        let segment = self.all.iter().rfind(holds)?;
        Some((segment, at - segment.start))
    }
}

/// Start and length of each segment of `total` bytes of at most `most`, overlapping by halves in
/// multiples of `unit`.
pub(crate) fn overlapping(total: u64, most: u64, unit: u64) -> impl Iterator<Item = (u64, u64)> {
    let half = (most / 2 / unit * unit).max(unit);
    let (count, len) = match total <= most {
        true => (1, total),
        false => (total.saturating_sub(2 * half).div_ceil(half) + 1, 2 * half),
    };
    (0..count).map(move |index| (index * half, len.min(total - index * half)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// G.2: whatever the sizes, every range of up to half a segment lies in one segment, and all
    /// begin at units.
    #[test]
    fn ranges_of_half_a_segment_lie_in_one() {
        let random = &mut fastrand::Rng::with_seed(0x5E6);
        for _ in 0..2000 {
            let (unit, total) = (1u64 << random.u32(0..4), random.u64(1..5000));
            let (total, most) = (total.next_multiple_of(unit), random.u64(2..600).max(2 * unit));
            let segments = Segments {
                all: overlapping(total, most, unit)
                    .map(|(start, len)| Segment { start, len, buffer: () })
                    .collect(),
                lead: 0,
            };
            let inside =
                |s: &Segment<()>| s.len <= most && s.start.is_multiple_of(unit) && s.len > 0;
            assert!(segments.all.iter().all(inside), "{total} {most} {unit}");
            let half = most / 2 / unit * unit;
            for at in 0..total {
                let (segment, offset) = segments.find(at).expect("every byte is in a segment");
                assert!(segment.len - offset >= half.min(total - at), "{at}: {segments:?}");
            }
            assert!(segments.find(total).is_none());
        }
    }
}
