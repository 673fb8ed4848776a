//! Which memory a storage mode lives in, from the driver's own table.
//!
//! One physical memory (integrated processors, software): both modes share the type that the CPU
//! sees and reads well. Otherwise shared arrays live in the host's memory, cached, and private ones
//! in the device's. A small part of the device's memory that the CPU sees is never picked for
//! everything.

use ash::vk::{MemoryPropertyFlags as Flags, PhysicalDeviceMemoryProperties};

/// A memory type and its heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryType {
    pub(super) index: u32,
    pub(super) heap: u32,
    pub(super) flags: Flags,
}

impl MemoryType {
    pub(super) fn coherent(self) -> bool {
        self.flags.contains(Flags::HOST_COHERENT)
    }
}

/// The memory of both modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Types {
    pub(super) shared: MemoryType,
    pub(super) private: MemoryType,
    pub(super) unified: bool,
}

/// Types that are for other things.
fn is_odd(flags: Flags) -> bool {
    flags.intersects(
        Flags::PROTECTED
            | Flags::LAZILY_ALLOCATED
            | Flags::DEVICE_COHERENT_AMD
            | Flags::DEVICE_UNCACHED_AMD,
    )
}

/// The types that the CPU sees, those that it reads well first.
pub(super) fn host_visible(table: &PhysicalDeviceMemoryProperties) -> Vec<MemoryType> {
    let types = table.memory_types[..table.memory_type_count as usize].iter().enumerate();
    let mut visible: Vec<MemoryType> = types
        .map(|(index, kind)| MemoryType {
            index: index as u32,
            heap: kind.heap_index,
            flags: kind.property_flags,
        })
        .filter(|kind| kind.flags.contains(Flags::HOST_VISIBLE) && !is_odd(kind.flags))
        .collect();
    visible.sort_by_key(|kind| !kind.flags.contains(Flags::HOST_CACHED));
    visible
}

/// Chooses among the types that buffers may have (`allowed`, by bit). `integrated`: the processor
/// has no memory of its own. `None` where no memory is visible to the CPU.
pub(super) fn choose(
    table: &PhysicalDeviceMemoryProperties,
    allowed: u32,
    integrated: bool,
) -> Option<Types> {
    let heaps = &table.memory_heaps[..table.memory_heap_count as usize];
    let size = |kind: &MemoryType| heaps[kind.heap as usize].size;
    let types: Vec<MemoryType> = table.memory_types[..table.memory_type_count as usize]
        .iter()
        .enumerate()
        .map(|(index, kind)| MemoryType {
            index: index as u32,
            heap: kind.heap_index,
            flags: kind.property_flags,
        })
        .filter(|kind| allowed >> kind.index & 1 == 1 && !is_odd(kind.flags))
        .collect();
    let largest = types.iter().map(size).max()?;
    // What matters most comes first; of equals the first type, as the specification orders them.
    let best = |score: &dyn Fn(&MemoryType) -> [u64; 4]| {
        types.iter().copied().rev().max_by_key(|kind| score(kind))
    };
    let has = |kind: &MemoryType, flag: Flags| u64::from(kind.flags.contains(flag));
    let unified = integrated || types.iter().all(|kind| kind.flags.contains(Flags::DEVICE_LOCAL));
    let shared = best(&|kind| {
        let roomy = u64::from(size(kind) >= largest / 2);
        let local = has(kind, Flags::DEVICE_LOCAL);
        let first = if unified { 2 * roomy + local } else { 1 - local };
        [
            has(kind, Flags::HOST_VISIBLE),
            first,
            has(kind, Flags::HOST_CACHED),
            has(kind, Flags::HOST_COHERENT),
        ]
    })?;
    if !shared.flags.contains(Flags::HOST_VISIBLE) {
        return None;
    }
    if unified {
        return Some(Types { shared, private: shared, unified });
    }
    let private = best(&|kind| {
        [
            has(kind, Flags::DEVICE_LOCAL),
            size(kind),
            1 - has(kind, Flags::HOST_VISIBLE),
            1 - has(kind, Flags::HOST_CACHED),
        ]
    })?;
    Some(Types { shared, private, unified })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ash::vk::{MemoryHeap, MemoryType as RawType};

    const LOCAL: Flags = Flags::DEVICE_LOCAL;
    const VISIBLE: Flags =
        Flags::from_raw(Flags::HOST_VISIBLE.as_raw() | Flags::HOST_COHERENT.as_raw());
    const GIB: u64 = 1 << 30;

    fn pick(heaps: &[u64], types: &[(u32, Flags)], integrated: bool) -> Option<(u32, u32)> {
        let mut table = PhysicalDeviceMemoryProperties {
            memory_heap_count: heaps.len() as u32,
            memory_type_count: types.len() as u32,
            ..PhysicalDeviceMemoryProperties::default()
        };
        for (heap, &size) in table.memory_heaps.iter_mut().zip(heaps) {
            *heap = MemoryHeap { size, ..MemoryHeap::default() };
        }
        for (raw, &(heap_index, property_flags)) in table.memory_types.iter_mut().zip(types) {
            *raw = RawType { property_flags, heap_index };
        }
        choose(&table, u32::MAX, integrated).map(|types| (types.shared.index, types.private.index))
    }

    /// E.1 on the kinds of devices there are: which type each mode gets.
    #[test]
    fn modes_get_the_memory_that_suits_them() {
        let cached = VISIBLE | Flags::HOST_CACHED;
        // Software: one heap, one type.
        assert_eq!(pick(&[2 * GIB], &[(0, LOCAL | cached)], true), Some((0, 0)));
        // A discrete card whose whole memory the CPU sees: shared arrays stay in the host's.
        let card = [(0, LOCAL), (1, VISIBLE), (1, cached), (0, LOCAL | VISIBLE)];
        assert_eq!(pick(&[140 * GIB, 94 * GIB], &card, false), Some((2, 0)));
        // One with a window of 256 MiB.
        let window = [(0, LOCAL), (1, VISIBLE), (2, LOCAL | VISIBLE), (1, cached)];
        assert_eq!(pick(&[8 * GIB, 16 * GIB, GIB / 4], &window, false), Some((3, 0)));
        // Integrated, one heap: the cached type for both.
        let igpu = [(0, LOCAL | VISIBLE), (0, LOCAL | cached)];
        assert_eq!(pick(&[12 * GIB], &igpu, true), Some((1, 1)));
        // Integrated with a small carve-out: not that, but the large heap, for both.
        let carved = [(1, LOCAL), (0, VISIBLE), (1, LOCAL | VISIBLE), (0, cached)];
        assert_eq!(pick(&[16 * GIB, GIB / 2], &carved, true), Some((3, 3)));
        // A phone: cached memory is not coherent; reading well is worth the flushes.
        let phone = [(0, LOCAL | VISIBLE), (0, LOCAL | Flags::HOST_VISIBLE | Flags::HOST_CACHED)];
        assert_eq!(pick(&[6 * GIB], &phone, true), Some((1, 1)));
        // Nothing that the CPU sees.
        assert_eq!(pick(&[GIB], &[(0, LOCAL)], false), None);
        // Types for other things are passed over.
        let odd = [(0, LOCAL | cached | Flags::DEVICE_COHERENT_AMD), (0, LOCAL | cached)];
        assert_eq!(pick(&[GIB], &odd, true), Some((1, 1)));
    }
}
