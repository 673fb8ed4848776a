//! The pool beside a naive model, under a seeded generator of operations, and the rules one by
//! one.

use super::*;
use crate::caps::VirtualMemory;
use crate::hazard::Ticket;
use crate::model::HostModel;
use crate::stats::MemoryStats;

const MIB: u64 = 1 << 20;

fn pool_with(caps: &Caps, reuse: Reuse, limit: u64) -> Pool {
    let mut settings = Settings::for_working_set(1 << 36, 1 << 37).with_reuse(reuse);
    settings.limits.memory = limit;
    settings.limits.cache = limit;
    Pool::new(caps, settings)
}

fn plain() -> (HostModel, Pool) {
    (HostModel::with_virtual_memory(), pool_with(&Caps::model(), Reuse::Ranges, 1 << 36))
}

/// The devices and policies that every randomised test covers.
fn kinds() -> Vec<(&'static str, Caps, Reuse)> {
    let mut coarse = Caps::model();
    coarse.virtual_memory = Some(VirtualMemory { span: 1 << 40, granule: 2 * MIB });
    let mut narrow = Caps::model();
    narrow.virtual_memory = Some(VirtualMemory { span: 32 * MIB, granule: PAGE });
    let blocks = Caps::model_with_blocks(64 * MIB);
    vec![
        ("pages", Caps::model(), Reuse::Ranges),
        ("2 MiB granules", coarse, Reuse::Ranges),
        ("short spans", narrow, Reuse::Ranges),
        ("blocks of 64 MiB", blocks.clone(), Reuse::Ranges),
        ("blocks wired as wholes", Caps { wires_blocks: true, ..blocks }, Reuse::Ranges),
        ("whole blocks", Caps::model(), Reuse::Blocks),
    ]
}

/// A range that freed work still uses.
struct Busy {
    block: BlockId,
    start: u64,
    end: u64,
    stamps: Vec<Stamp>,
}

/// The naive model: lists that are searched from end to end.
#[derive(Default)]
struct Model {
    live: Vec<Allocation>,
    busy: Vec<Busy>,
    reached: [Ticket; 3],
    mapped: Vec<(crate::limits::MappingId, u64)>,
    peak: u64,
    peak_with_mapped: u64,
}

impl Model {
    fn active(&self) -> u64 {
        self.live.iter().map(Allocation::size).sum()
    }

    fn mapped(&self) -> u64 {
        self.mapped.iter().map(|(_, size)| size).sum()
    }

    fn raise_peaks(&mut self) {
        self.peak = self.peak.max(self.active());
        self.peak_with_mapped = self.peak_with_mapped.max(self.active() + self.mapped());
    }

    fn is_done(&self, stamp: &Stamp) -> bool {
        stamp.ticket <= self.reached[stamp.queue.0 as usize]
    }

    /// What must hold of a range that was just handed out.
    fn accept(&mut self, new: Allocation, queue: Option<QueueId>) {
        let (start, end) = (new.offset(), new.offset() + new.size());
        for old in &self.live {
            let apart = old.block() != new.block()
                || old.offset() + old.size() <= start
                || end <= old.offset();
            assert!(apart, "{new:?} overlaps {old:?}");
        }
        for busy in &self.busy {
            let apart = busy.block != new.block() || busy.end <= start || end <= busy.start;
            let pending: Vec<_> = busy.stamps.iter().filter(|stamp| !self.is_done(stamp)).collect();
            if apart || pending.is_empty() {
                continue;
            }
            // B.5: only the queue that still uses it, and then the stamp says so.
            for stamp in pending {
                assert_eq!(Some(stamp.queue), queue, "{new:?} is used by {stamp:?}");
                let inherited = new.inherited().expect("pending work is inherited");
                assert!(inherited.queue == stamp.queue && inherited.ticket >= stamp.ticket);
                assert!(inherited.epoch >= stamp.epoch);
            }
        }
        self.live.push(new);
        self.raise_peaks();
    }

    fn forget_done(&mut self) {
        let reached = self.reached;
        let pending = |stamp: &Stamp| stamp.ticket > reached[stamp.queue.0 as usize];
        self.busy.retain(|busy| busy.stamps.iter().any(pending));
    }

    fn check(&self, pool: &Pool, device: &HostModel, name: &str, step: usize) {
        pool.check();
        let stats = pool.stats();
        let context = format!("{name}, step {step}: {stats:?}");
        assert_eq!(stats.active, self.active(), "{context}");
        assert_eq!(stats.mapped, self.mapped(), "{context}");
        assert_eq!(stats.active_with_mapped, stats.active + stats.mapped, "{context}");
        assert_eq!(stats.peak, self.peak, "{context}");
        assert_eq!(stats.peak_with_mapped, self.peak_with_mapped, "{context}");
        assert_eq!(stats.allocations, self.live.len() as u64, "{context}");
        let asked: u64 = self.live.iter().map(Allocation::asked).sum();
        assert_eq!(stats.padding, stats.active - asked, "{context}");
        // D.3: the device's own count.
        assert_eq!(stats.reserved, device.held(), "{context}");
        // B.3: what could be given back is within the limit.
        assert!(stats.cache <= stats.cache_limit + stats.pending, "{context}");
    }
}

fn random_size(random: &mut fastrand::Rng) -> u64 {
    match random.u32(0..10) {
        0..4 => random.u64(1..=PAGE),
        4..7 => random.u64(PAGE..64 * PAGE),
        7..9 => random.u64(MIB..8 * MIB),
        _ => [1, 256, 257, PAGE, PAGE + 1, 0][random.usize(0..6)],
    }
}

fn random_stamps(random: &mut fastrand::Rng, clock: u64) -> Stamps {
    let mut stamps = Stamps::default();
    for _ in 0..random.u32(0..3) {
        let queue = QueueId(random.u32(0..3));
        stamps.add(Stamp { queue, ticket: clock + random.u64(1..20), epoch: clock });
    }
    stamps
}

fn run_allocate(
    random: &mut fastrand::Rng,
    (model, pool, device): (&mut Model, &mut Pool, &HostModel),
    ranges: bool,
) {
    let len = random_size(random);
    let queue = random.bool().then(|| QueueId(random.u32(0..3)));
    let mut request = Request::new(len, Storage::ALL[random.usize(0..2)]);
    if let Some(queue) = queue {
        request = request.on(queue);
    }
    let before = pool.stats();
    let failing = random.u32(0..20) == 0;
    if failing {
        device.fail_after(0);
    }
    let size = allocation_size(len).unwrap();
    let fits = len == 0 || before.active_with_mapped + size <= before.memory_limit;
    match pool.allocate(device, request) {
        Ok(allocation) => {
            assert!(fits && allocation.size() >= size && allocation.asked() == len);
            assert!(!ranges || allocation.size() == size);
            if len > 0 {
                model.accept(allocation, queue);
            }
        }
        Err(refusal) => {
            // C.3, O.1: a refused request leaves the account as it was.
            let after = pool.stats();
            let kept = |stats: &MemoryStats| {
                (stats.active, stats.peak, stats.peak_with_mapped, stats.allocations, stats.padding)
            };
            assert_eq!(kept(&before), kept(&after));
            match refusal.kind {
                RefusalKind::Limit => assert!(!fits || !ranges, "{refusal}"),
                RefusalKind::Driver(..) => assert!(failing, "{refusal}"),
                other => panic!("{other:?}"),
            }
        }
    }
    if failing {
        // What did not come to a call of the driver does not fail later.
        device.fail_after(u64::MAX / 2);
    }
}

fn run_step(
    random: &mut fastrand::Rng,
    (model, pool, device): (&mut Model, &mut Pool, &HostModel),
    ranges: bool,
    clock: u64,
) {
    match random.u32(0..100) {
        0..45 => run_allocate(random, (model, pool, device), ranges),
        45..85 => {
            if !model.live.is_empty() {
                let allocation = model.live.swap_remove(random.usize(0..model.live.len()));
                let stamps = random_stamps(random, clock);
                model.busy.push(Busy {
                    block: allocation.block(),
                    start: allocation.offset(),
                    end: allocation.offset() + allocation.size(),
                    stamps: stamps.iter().copied().chain(allocation.inherited()).collect(),
                });
                pool.free(device, allocation, stamps);
            }
        }
        85..92 => {
            let queue = random.usize(0..3);
            model.reached[queue] = model.reached[queue].max(clock + random.u64(0..10));
            device.reach(QueueId(queue as u32), model.reached[queue]);
            model.forget_done();
            if random.bool() {
                pool.poll(device);
            }
        }
        92 => pool.clear_cache(device),
        93 => {
            let _ = pool.set_cache_limit(device, random.u64(0..64) * MIB);
        }
        94 => {
            let _ = pool.set_memory_limit(random.u64(16..256) * MIB);
        }
        95 => {
            let size = random.u64(1..100) * 4096;
            let fits = model.active() + model.mapped() + size <= pool.stats().memory_limit;
            match pool.map(device, size, None) {
                Ok(mapping) => {
                    assert!(fits);
                    model.mapped.push((mapping, size));
                    model.raise_peaks();
                }
                Err(refusal) => assert!(!fits && refusal.kind == RefusalKind::Limit),
            }
        }
        96 => {
            if let Some((mapping, _)) = model.mapped.pop() {
                pool.unmap(device, mapping);
            }
        }
        97 => {
            pool.reset_peak();
            model.peak = model.active();
            model.peak_with_mapped = model.active() + model.mapped();
        }
        98 => pool.relieve(device, 50),
        _ => {
            let _ = pool.set_wired_limit(device, random.u64(0..8) * MIB);
        }
    }
}

/// B, C, D: 10,000 random operations on each kind of device, every invariant after each.
#[test]
fn the_pool_agrees_with_a_naive_model() {
    for (seed, (name, caps, reuse)) in kinds().into_iter().enumerate() {
        let mut random = fastrand::Rng::with_seed(0xA0 + seed as u64);
        let device = HostModel::with_virtual_memory();
        device.fail_after(u64::MAX / 2);
        let mut pool = pool_with(&caps, reuse, 128 * MIB);
        let mut model = Model::default();
        for step in 0..10_000 {
            let parts = (&mut model, &mut pool, &device);
            run_step(&mut random, parts, reuse == Reuse::Ranges, step as u64);
            model.check(&pool, &device, name, step);
        }
        for queue in 0..3 {
            device.reach(QueueId(queue), u64::MAX);
        }
        for allocation in model.live.drain(..) {
            pool.free(&device, allocation, Stamps::default());
        }
        for (mapping, _) in model.mapped.drain(..) {
            pool.unmap(&device, mapping);
        }
        // J.2: everything goes back.
        assert_eq!(pool.close(&device), 0, "{name}");
        assert_eq!((device.held(), pool.stats().wired), (0, 0), "{name}");
    }
}

/// A.3: nothing is held or counted for nothing.
#[test]
fn zero_bytes_cost_nothing() {
    let (device, mut pool) = plain();
    let empty = pool.allocate(&device, Request::new(0, Storage::Shared)).unwrap();
    assert_eq!((pool.stats().active, pool.stats().allocations, device.calls()), (0, 0, 0));
    pool.free(&device, empty, Stamps::default());
    assert_eq!(pool.stats().cache, 0);
}

/// A.4: sizes near the top are out of memory; above the largest buffer the driver is not asked.
#[test]
fn absurd_sizes_are_refused_before_the_driver() {
    let (device, mut pool) = plain();
    for limit in [1 << 36, u64::MAX] {
        pool.set_memory_limit(limit);
        for len in [u64::MAX, u64::MAX - PAGE, u64::MAX / 2, 1 << 41] {
            let refusal = pool.allocate(&device, Request::new(len, Storage::Shared)).unwrap_err();
            assert!(
                matches!(refusal.kind, RefusalKind::TooLarge(_) | RefusalKind::Overflow),
                "{refusal}"
            );
            assert!(refusal.to_string().contains(&len.to_string()));
        }
    }
    assert_eq!(device.calls(), 0);
}

/// B.5 and peer case 19: the same queue takes what is freed in flight; others do not; after it is
/// done everyone does.
#[test]
fn memory_freed_in_flight_is_for_its_own_queue_until_it_is_done() {
    for (name, caps, reuse) in kinds() {
        for size in [200u64, 3 * PAGE, 2 * MIB] {
            let device = HostModel::with_virtual_memory();
            let mut pool = pool_with(&caps, reuse, 1 << 36);
            let stamp = Stamp { queue: QueueId(1), ticket: 5, epoch: 2 };
            let place = |range: &Allocation| (range.block(), range.offset());
            let ask = |pool: &mut Pool, queue: Option<u32>| {
                let mut request = Request::new(size, Storage::Shared);
                if let Some(queue) = queue {
                    request = request.on(QueueId(queue));
                }
                pool.allocate(&device, request).unwrap()
            };
            // Fill what a slab or a block has besides, so that no idle memory is preferred.
            let mut rest = Vec::new();
            let first = ask(&mut pool, None);
            while pool.stats().slack + pool.stats().cache >= size && rest.len() < 500 {
                rest.push(ask(&mut pool, None));
            }
            let freed = place(&first);
            pool.free(&device, first, stamp.into());
            assert!(pool.stats().pending >= size, "{name}");
            let other = ask(&mut pool, Some(0));
            let cpu = ask(&mut pool, None);
            assert!(place(&other) != freed && place(&cpu) != freed, "{name}, {size}");
            pool.free(&device, other, Stamps::default());
            pool.free(&device, cpu, Stamps::default());
            device.reach(QueueId(1), 5);
            pool.poll(&device);
            assert_eq!(pool.stats().pending, 0, "{name}");
        }
    }
}

/// B.5: with nothing idle, the same queue takes its own pending memory, and is told of the work.
#[test]
fn the_same_queue_takes_its_pending_memory_without_a_wait() {
    let (device, mut pool) = plain();
    for size in [2 * PAGE, MIB] {
        let request = Request::new(size, Storage::Shared).on(QueueId(1));
        let first = pool.allocate(&device, request).unwrap();
        let (block, offset) = (first.block(), first.offset());
        let stamp = Stamp { queue: QueueId(1), ticket: 100, epoch: 3 };
        pool.free(&device, first, stamp.into());
        pool.clear_cache(&device);
        let again = pool.allocate(&device, request).unwrap();
        assert_eq!((again.block(), again.offset()), (block, offset));
        assert_eq!(again.inherited(), Some(stamp));
        pool.free(&device, again, stamp.into());
    }
}

/// B.7 and peer case 14: a steady loop asks the driver once; figures are exact through it.
#[test]
fn a_steady_loop_asks_the_driver_once() {
    for (name, caps, reuse) in kinds() {
        for size in [100u64, PAGE + 1] {
            let device = HostModel::with_virtual_memory();
            let mut pool = pool_with(&caps, reuse, 1 << 36);
            for _ in 0..10_000 {
                let request = Request::new(size, Storage::Shared);
                let range = pool.allocate(&device, request).unwrap();
                assert_eq!(pool.stats().active, allocation_size(size).unwrap());
                pool.free(&device, range, Stamps::default());
            }
            assert_eq!(pool.stats().system_allocations, 1, "{name}");
            assert_eq!(pool.stats().peak, allocation_size(size).unwrap());
            pool.reset_peak();
            assert_eq!((pool.stats().peak, pool.stats().active), (0, 0));
            pool.clear_cache(&device);
            assert_eq!((pool.stats().cache, pool.stats().reserved), (0, 0), "{name}");
        }
    }
}

/// B.7: a cache that grows by copying, one page more each time, holds at most 1.25 × what lives
/// plus 64 MiB.
#[test]
fn a_growing_loop_holds_little_more_than_lives() {
    for (name, caps, reuse) in kinds().into_iter().filter(|kind| kind.2 == Reuse::Ranges) {
        let device = HostModel::quick();
        let mut pool = pool_with(&caps, reuse, 1 << 36);
        let ask = |pool: &mut Pool, size| {
            pool.allocate(&device, Request::new(size, Storage::Private)).unwrap()
        };
        let mut layers: Vec<_> = (0..16).map(|_| ask(&mut pool, MIB)).collect();
        for token in 1..400 {
            for layer in &mut layers {
                let larger = ask(&mut pool, MIB + token * 3 * PAGE);
                let old = std::mem::replace(layer, larger);
                pool.free(&device, old, Stamps::default());
                let stats = pool.stats();
                let bound = stats.active * 5 / 4 + 64 * MIB;
                assert!(stats.reserved <= bound, "{name}, token {token}: {stats:?}");
            }
        }
    }
}

/// B.1 and peer case 15: the founding window.
#[test]
fn whole_blocks_serve_what_is_little_smaller() {
    let device = HostModel::with_virtual_memory();
    let mut pool = pool_with(&Caps::model(), Reuse::Blocks, 1 << 36);
    let ask = |pool: &mut Pool, size| {
        pool.allocate(&device, Request::new(size, Storage::Shared)).unwrap()
    };
    let block = ask(&mut pool, MIB);
    pool.free(&device, block, Stamps::default());
    let small = ask(&mut pool, 256);
    assert_eq!(pool.stats().system_allocations, 2, "1 MiB is not given for 256 B");
    let near = ask(&mut pool, MIB - PAGE);
    assert_eq!(pool.stats().system_allocations, 2, "it is given for a page less");
    // B.6: the charge is the block's, what was asked is what was asked.
    assert_eq!((near.size(), near.asked()), (MIB, MIB - PAGE));
    pool.free(&device, near, Stamps::default());
    let two_pages_less = ask(&mut pool, MIB - 2 * PAGE);
    assert_eq!(pool.stats().system_allocations, 3, "strictly below size + 2 pages");
    pool.free(&device, small, Stamps::default());
    pool.free(&device, two_pages_less, Stamps::default());
}

/// B.3 and peer case 16: the oldest goes first; lowering trims at once and tells the old limit.
#[test]
fn the_cache_limit_trims_the_oldest_first() {
    let (device, mut pool) = plain();
    let ask =
        |pool: &mut Pool| pool.allocate(&device, Request::new(2 * PAGE, Storage::Shared)).unwrap();
    // Live ranges between keep the freed ones apart.
    let ranges: Vec<_> = (0..8).map(|_| ask(&mut pool)).collect();
    let mut places = Vec::new();
    let mut kept = Vec::new();
    for (index, range) in ranges.into_iter().enumerate() {
        if index % 2 == 0 {
            places.push(range.offset());
            pool.free(&device, range, Stamps::default());
        } else {
            kept.push(range);
        }
    }
    assert_eq!(pool.stats().cache, 8 * PAGE);
    assert_eq!(pool.set_cache_limit(&device, 4 * PAGE), 1 << 36);
    assert_eq!((pool.stats().cache, device.held()), (4 * PAGE, 12 * PAGE));
    let reused: Vec<_> = (0..2).map(|_| ask(&mut pool).offset()).collect();
    assert!(reused.iter().all(|offset| places[2..].contains(offset)), "the newest two are left");
    assert_eq!(pool.set_cache_limit(&device, 0), 4 * PAGE);
    let range = ask(&mut pool);
    pool.free(&device, range, Stamps::default());
    assert_eq!(pool.stats().cache, 0, "nothing is cached under a limit of 0");
}

/// B.4 and peer case 17: with a limit of 4 pages and 2 cached, a request of 3 ends with an empty
/// cache; mapped bytes count.
#[test]
fn the_collection_threshold_counts_what_is_mapped() {
    for (name, caps, reuse) in kinds().into_iter().filter(|kind| kind.0 != "2 MiB granules") {
        let device = HostModel::with_virtual_memory();
        let mut pool = pool_with(&caps, reuse, 4 * PAGE);
        let two = pool.allocate(&device, Request::new(2 * PAGE, Storage::Shared)).unwrap();
        pool.free(&device, two, Stamps::default());
        let three = pool.allocate(&device, Request::new(3 * PAGE, Storage::Shared)).unwrap();
        assert_eq!(pool.stats().cache, 0, "{name}");
        pool.free(&device, three, Stamps::default());
        let mapping = pool.map(&device, 2 * PAGE, None).unwrap();
        let refused = pool.allocate(&device, Request::new(3 * PAGE, Storage::Shared));
        assert_eq!(refused.unwrap_err().kind, RefusalKind::Limit);
        pool.unmap(&device, mapping);
    }
}

/// C.1: the defaults, exactly.
#[test]
fn the_default_limits_are_those_of_the_rule() {
    let settings = Settings::for_working_set(40_000_000_000, 48_000_000_000);
    assert_eq!(settings.limits.memory, 45_600_000_000);
    assert_eq!(settings.limits.cache, 45_600_000_000);
    assert_eq!(Settings::for_working_set(10_000, 48_000).limits.memory, 15_000);
    assert!(Settings::for_working_set(u64::MAX, u64::MAX).limits.memory > u64::MAX / 2);
}

/// C.2 and peer case 18: a hard refusal that reserves nothing; freeing makes room; a limit below
/// what is in use is accepted.
#[test]
fn the_memory_limit_is_a_hard_refusal() {
    let (device, mut pool) = plain();
    assert_eq!(pool.set_memory_limit(10 * PAGE), 1 << 36);
    let held = pool.allocate(&device, Request::new(8 * PAGE, Storage::Shared)).unwrap();
    let before = pool.stats();
    let refusal = pool.allocate(&device, Request::new(3 * PAGE, Storage::Private)).unwrap_err();
    assert_eq!((refusal.kind, refusal.asked), (RefusalKind::Limit, 3 * PAGE));
    assert_eq!(pool.stats(), before);
    pool.set_memory_limit(PAGE);
    assert!(pool.allocate(&device, Request::new(1, Storage::Shared)).is_err());
    pool.free(&device, held, Stamps::default());
    assert!(pool.allocate(&device, Request::new(1, Storage::Shared)).is_ok());
    pool.set_memory_limit(0);
    assert!(pool.allocate(&device, Request::new(1, Storage::Shared)).is_err());
}

/// C.4: the message names what was asked, the figures, the limit and who holds the memory.
#[test]
fn the_refusal_names_figures_and_holders() {
    let (device, mut pool) = plain();
    pool.set_memory_limit(64 * MIB);
    let mut held = Vec::new();
    for (index, name) in ["a", "b", "c", "d", "e", "f"].into_iter().enumerate() {
        let label = pool.label(LabelId::default(), name);
        let request = Request::new((index as u64 + 1) * MIB, Storage::Shared).labelled(label);
        held.push(pool.allocate(&device, request).unwrap());
    }
    let mapping = pool.map(&device, 2 * MIB, None).unwrap();
    let refusal = pool.allocate(&device, Request::new(100 * MIB, Storage::Shared)).unwrap_err();
    let text = refusal.to_string();
    let lines: Vec<Vec<&str>> =
        text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(lines[0].contains(&"104857600") && text.contains("41.0 MiB are left below"), "{text}");
    for line in [
        &["active", "21.0", "MiB"][..],
        &["mapped", "2.00", "MiB"],
        &["cached", "0", "B"],
        &["memory", "limit", "64.0", "MiB"],
        &["f", "6.00", "MiB", "28.6", "%", "1", "allocation"],
    ] {
        assert!(lines.iter().any(|known| known == line), "{text} lacks {line:?}");
    }
    let first = lines.iter().position(|line| line == &["held", "by"]).unwrap() + 1;
    let holders: Vec<&str> = lines[first..first + 5].iter().map(|line| line[0]).collect();
    assert_eq!(holders, ["f", "e", "d", "c", "b"], "the five that hold most");
    assert!(lines[first + 5].contains(&"set_memory_limit"));
    pool.unmap(&device, mapping);
}

/// J.2: what is still held at the close is told, by label.
#[test]
fn what_is_never_freed_is_told_at_the_close() {
    let (device, mut pool) = plain();
    let label = pool.label(LabelId::default(), "forgotten");
    let request = Request::new(3 * MIB, Storage::Shared).labelled(label);
    let _never_freed = pool.allocate(&device, request).unwrap();
    let freed = pool.allocate(&device, Request::new(MIB, Storage::Private)).unwrap();
    pool.free(&device, freed, Stamps::default());
    assert_eq!(pool.close(&device), 3 * MIB);
    let leak = pool.leak().unwrap();
    assert_eq!((leak.reserved, leak.active, leak.allocations), (3 * MIB, 3 * MIB, 1));
    let text = leak.to_string();
    for part in ["3.00 MiB are still held", "1 allocation of", "forgotten", "AQUIFER_TRACE"] {
        assert!(text.contains(part), "{text} lacks {part}");
    }
    let (device, mut pool) = plain();
    pool.close(&device);
    assert!(pool.leak().is_none());
}

/// D: the table has every figure in it.
#[test]
fn the_table_of_figures_lacks_none() {
    let mut stats = MemoryStats::default();
    for (place, figure) in stats.figures_mut().into_iter().enumerate() {
        // Each figure has a number of its own, in bytes and as a count.
        *figure = 100 + place as u64;
    }
    let text = stats.to_string();
    for (name, value) in stats.figures() {
        assert!(text.contains(&value.to_string()), "{text} lacks {name} ({value})");
    }
}

/// C.5: above 0.75 of the working set cached memory goes before more is taken; a caller that
/// waits relieves at 0.50.
#[test]
fn pressure_gives_back_what_is_cached() {
    let device = HostModel::with_virtual_memory();
    let mut settings = Settings::for_working_set(100 * PAGE, 1 << 40);
    settings.limits.memory = 1000 * PAGE;
    let mut pool = Pool::new(&Caps::model(), settings);
    let ask = |pool: &mut Pool, pages: u64| {
        pool.allocate(&device, Request::new(pages * PAGE, Storage::Shared)).unwrap()
    };
    let (a, gap, b) = (ask(&mut pool, 30), ask(&mut pool, 2), ask(&mut pool, 20));
    pool.free(&device, a, Stamps::default());
    // 52 held; 31 more is 83 > 75: the cache of 30 makes room (30 are reused, or go).
    let c = ask(&mut pool, 31);
    assert!(pool.stats().active + pool.stats().cache <= 75 * PAGE, "{:?}", pool.stats());
    pool.free(&device, b, Stamps::default());
    pool.relieve(&device, 50);
    let stats = pool.stats();
    assert!(stats.active + stats.cache <= 50 * PAGE, "{stats:?}");
    pool.free(&device, c, Stamps::default());
    pool.free(&device, gap, Stamps::default());
}

/// D.1 and peer case 20: the peak of the sum is not the sum of two peaks.
#[test]
fn the_peak_of_the_sum_is_its_own_figure() {
    let (device, mut pool) = plain();
    let mapping = pool.map(&device, 8 * PAGE, None).unwrap();
    pool.unmap(&device, mapping);
    let range = pool.allocate(&device, Request::new(5 * PAGE, Storage::Shared)).unwrap();
    let stats = pool.stats();
    assert_eq!((stats.peak, stats.peak_with_mapped, stats.mapped), (5 * PAGE, 8 * PAGE, 0));
    pool.reset_peak();
    assert_eq!(pool.stats().peak_with_mapped, 5 * PAGE);
    pool.set_memory_limit(6 * PAGE);
    let before = pool.stats();
    assert!(pool.map(&device, 2 * PAGE, None).is_err());
    assert_eq!(pool.stats(), before, "a refused mapping changes nothing");
    pool.free(&device, range, Stamps::default());
}

/// D.4: labels nest, and rows add up.
#[test]
fn labels_nest_and_add_up() {
    let (device, mut pool) = plain();
    let outer = pool.label(LabelId::default(), "model");
    let inner = pool.label(outer, "kv cache");
    assert_eq!(pool.label(outer, "kv cache"), inner);
    let ask = |pool: &mut Pool, label| {
        let request = Request::new(PAGE, Storage::Shared).labelled(label);
        pool.allocate(&device, request).unwrap()
    };
    let (a, b) = (ask(&mut pool, inner), ask(&mut pool, inner));
    let c = ask(&mut pool, LabelId::default());
    let rows = pool.labels();
    let total: u64 = rows.iter().map(|row| row.active).sum();
    assert_eq!(total, pool.stats().active);
    assert_eq!(
        (rows[0].name.as_str(), rows[0].active, rows[0].count),
        ("model/kv cache", 2 * PAGE, 2)
    );
    pool.free(&device, a, Stamps::default());
    let rows = pool.labels();
    let row = rows.iter().find(|row| row.name == "model/kv cache").unwrap();
    assert_eq!((row.peak, row.active, row.count), (2 * PAGE, PAGE, 1));
    pool.free(&device, b, Stamps::default());
    pool.free(&device, c, Stamps::default());
}

/// M.1 and peer case 21: wiring fills to its limit and no further, and comes back with it.
#[test]
fn wiring_stays_within_its_limit() {
    for (name, caps, reuse) in kinds() {
        let device = HostModel::with_virtual_memory();
        let mut pool = pool_with(&caps, reuse, 1 << 36);
        assert_eq!((pool.stats().wired_limit, pool.stats().wired), (0, 0));
        assert_eq!(pool.set_wired_limit(&device, (1 << 36) + 1), Err(1 << 36));
        let ask = |pool: &mut Pool| {
            pool.allocate(&device, Request::new(4 * PAGE, Storage::Shared)).unwrap()
        };
        let ranges: Vec<_> = (0..8).map(|_| ask(&mut pool)).collect();
        let mapping = pool.map(&device, 4 * PAGE, Some(BlockId(99))).unwrap();
        for limit in (0..=40).chain((0..=40).rev()) {
            pool.set_wired_limit(&device, limit * PAGE).unwrap();
            let stats = pool.stats();
            if caps.wires_blocks {
                // Blocks with what is live in them, each whole or not at all.
                assert!(stats.wired <= limit * PAGE, "{name} at {limit}");
            } else {
                assert_eq!(stats.wired, (limit / 4 * 4).min(36) * PAGE, "{name} at {limit}");
            }
            assert!(stats.wired_mapped <= stats.wired);
            pool.check();
        }
        pool.set_wired_limit(&device, 1 << 36).unwrap();
        let stats = pool.stats();
        assert_eq!(stats.wired_mapped, 4 * PAGE);
        if caps.wires_blocks {
            assert_eq!(stats.wired, stats.reserved + stats.mapped, "{name}: every block");
        }
        pool.unmap(&device, mapping);
        for range in ranges {
            pool.free(&device, range, Stamps::default());
        }
        assert_eq!(pool.stats().wired, 0, "{name}: what is cached is not wired");
    }
}

/// B.5 with two queues: memory that both still use is nobody's until both are done.
#[test]
fn memory_used_by_two_queues_waits_for_both() {
    let (device, mut pool) = plain();
    let first = pool.allocate(&device, Request::new(MIB, Storage::Shared)).unwrap();
    let place = first.offset();
    let mut stamps = Stamps::default();
    stamps.add(Stamp { queue: QueueId(0), ticket: 3, epoch: 0 });
    stamps.add(Stamp { queue: QueueId(1), ticket: 4, epoch: 0 });
    pool.free(&device, first, stamps);
    let request = Request::new(MIB, Storage::Shared);
    for (queue, ticket) in [(0, 3), (1, 4)] {
        let other = pool.allocate(&device, request.on(QueueId(0))).unwrap();
        assert_ne!(other.offset(), place);
        pool.free(&device, other, Stamps::default());
        pool.clear_cache(&device);
        device.reach(QueueId(queue), ticket);
    }
    pool.poll(&device);
    assert_eq!((pool.stats().pending, pool.stats().cache), (0, MIB));
    assert_eq!(pool.allocate(&device, request).unwrap().offset(), place);
}

/// C.3 at each call: a driver that fails leaves every figure of the account as it was.
#[test]
fn every_failing_call_leaves_the_account_as_it_was() {
    for (name, caps, reuse) in kinds() {
        for failing in 0..6 {
            let device = HostModel::with_virtual_memory();
            let mut pool = pool_with(&caps, reuse, 1 << 36);
            device.fail_after(failing);
            let mut live = Vec::new();
            for size in [100, 3 * PAGE, 5 * MIB, 64 * PAGE, 9 * MIB] {
                let before = pool.stats();
                match pool.allocate(&device, Request::new(size, Storage::Shared)) {
                    Ok(range) => live.push(range),
                    Err(refusal) => {
                        assert!(matches!(refusal.kind, RefusalKind::Driver(_, -2)), "{name}");
                        let after = pool.stats();
                        assert_eq!(
                            (before.active, before.peak, before.reserved, before.allocations),
                            (after.active, after.peak, after.reserved, after.allocations),
                            "{name}, call {failing}"
                        );
                    }
                }
                pool.check();
                assert_eq!(pool.stats().reserved, device.held());
            }
            for range in live {
                pool.free(&device, range, Stamps::default());
            }
            assert_eq!(pool.close(&device), 0);
            assert_eq!(device.held(), 0, "{name}");
        }
    }
}

/// A system that gives little address space (a limit on it, a tool that watches memory) gets
/// smaller spans.
#[test]
fn short_address_space_gets_smaller_spans() {
    let (device, mut pool) = plain();
    device.fail_after(0);
    let range = pool.allocate(&device, Request::new(MIB, Storage::Shared)).unwrap();
    pool.check();
    pool.free(&device, range, Stamps::default());
    assert_eq!(pool.close(&device), 0);
}
