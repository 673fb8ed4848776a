//! The account and reuse through arrays (rules B, D, J, K; peer cases 13, 14, 19, 22).

use super::*;

/// D.1, D.2: the figures follow arrays exactly, padding, reserved, wrapped and counts included.
pub fn figures_follow_the_arrays(device: &Device) -> Result<()> {
    let small = Array::<u8>::zeros(device, [100])?;
    let large = Array::<f32, Private>::zeros(device, [5000])?;
    let stats = device.memory();
    assert_eq!((stats.active, stats.allocations), (256 + 32_768, 2));
    assert_eq!(stats.padding, 256 - 100 + 32_768 - 20_000);
    assert_eq!(stats.reserved, stats.active + stats.cache + stats.slack);
    assert!(stats.peak_reserved >= stats.reserved && stats.blocks > 0);
    let wrapped = device.wrap(vec![0u8; 1000])?;
    assert_eq!((device.memory().wrapped, device.memory().active), (1000, stats.active));
    drop(wrapped);
    assert_eq!(device.memory().wrapped, 0);
    drop(large);
    device.synchronize()?;
    assert_eq!((device.memory().active, device.memory().peak), (256, 33_024));
    device.reset_peak();
    assert_eq!(device.memory().peak, 256);
    let view = small.slice(..10)?;
    drop(small);
    assert_eq!(device.memory().active, 256, "a view keeps the memory");
    drop(view);
    assert_eq!(device.memory().active, 0);
    let wired = device.set_wired_limit(u64::MAX).unwrap_err();
    assert_eq!(wired.kind(), ErrorKind::Limit);
    assert!(device.memory().to_string().contains("active + mapped"));
    Ok(())
}

/// B.7: a steady loop leaves `system_allocations` as it is after its first turn.
pub fn steady_loops_do_not_allocate(device: &Device) -> Result<()> {
    let a = Array::<f32>::ones(device, [50_000])?;
    let mut after_first = 0;
    for turn in 0..200 {
        let b = a.map(|x| x * 2.0)?;
        let c = b.zip(&a)?.map(|(x, y)| x + y)?;
        assert_eq!(c.sum()?.item()?, 150_000.0);
        if turn == 10 {
            after_first = device.memory().system_allocations;
        }
    }
    assert_eq!(device.memory().system_allocations, after_first);
    Ok(())
}

/// D.4: what a thread allocates under a label is counted there, nested labels joined by `/`.
pub fn labels_count_what_is_theirs(device: &Device) -> Result<()> {
    let free = Array::<f32>::zeros(device, [64])?;
    let (kv, inner, thread) = {
        let _outer = device.label("model");
        let kv = Array::<f32>::zeros(device, [64])?;
        let thread = std::thread::scope(|s| s.spawn(|| Array::<f32>::zeros(device, [64])).join());
        let _inner = device.label("kv cache");
        (kv, Array::<f32, Private>::zeros(device, [5000])?, thread.unwrap()?)
    };
    let late = Array::<f32>::zeros(device, [64])?;
    let rows = device.labels();
    let active = |name: &str| rows.iter().find(|row| row.name == name).map_or(0, |row| row.active);
    assert_eq!((active("model"), active("model/kv cache"), active("")), (256, 32_768, 3 * 256));
    let total: u64 = rows.iter().map(|row| row.active).sum();
    assert_eq!(total, device.memory().active);
    drop((free, kv, inner, thread, late));
    Ok(())
}

/// K.1, peer case 13: one element of i32 is one device allocation of 4 bytes.
pub fn measuring_counts_one_allocation(device: &Device) -> Result<()> {
    let used = measure(device, || Array::<i32>::zeros(device, [1]))?;
    assert_eq!((used.allocations, used.allocated), (1, 4));
    let text = used.to_string();
    assert!(text.contains(", 1 device allocation: 4 B, ") && text.ends_with("% managing memory"));
    let none = measure(device, || Ok(()))?;
    assert_eq!((none.allocations, none.system_allocations), (0, 0));
    Ok(())
}

/// B.5, J.1, peer case 19: memory freed in flight is reused by the same queue in order, and work
/// on it is never disturbed.
pub fn freed_in_flight_is_reused_safely(device: &Device) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(5);
    let mut sums = Vec::new();
    for turn in 0..300 {
        let len = random.usize(1..20_000);
        let a = Array::<f32>::full(device, [len], turn as f32)?;
        let b = a.map(|x| x + 1.0)?;
        drop(a);
        // Takes what `a` had, while `b` is perhaps not yet computed.
        let noise = Array::<f32>::full(device, [len], -1e9)?;
        sums.push((b.map(|x| x.eq(turn as f32 + 1.0))?.all()?, noise.slice(..1)?));
    }
    for (right, noise) in sums {
        assert!(right.item()? && noise.item()? == -1e9);
    }
    Ok(())
}

/// Peer case 22: 8 threads × 500 mixed sizes end with nothing active.
pub fn many_threads_leave_nothing(device: &Device) -> Result<()> {
    let work = |seed: u64| -> Result<()> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut live = Vec::new();
        for turn in 0..500 {
            let len = random.usize(0..30_000);
            let value = (turn % 100) as f32;
            let array = Array::<f32>::full(device, [len], value)?;
            live.push((array.map(|x| x + 1.0)?, value));
            if live.len() > 8 {
                let (array, value) = live.swap_remove(random.usize(0..live.len()));
                assert!(array.read()?.iter().all(|&x| x == value + 1.0));
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|seed| scope.spawn(move || work(seed))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })?;
    let stats = device.memory();
    assert_eq!((stats.active, stats.allocations), (0, 0));
    Ok(())
}

/// B.2: reused memory holds stale contents, so `zeros` and `fill` always write.
pub fn fresh_memory_is_not_zero_by_luck(device: &Device) -> Result<()> {
    for len in [10, 1000, 100_000] {
        let stale = Array::<u32>::full(device, [len], 0xDEAD_BEEF)?;
        device.synchronize()?;
        drop(stale);
        let zeros = Array::<u32>::zeros(device, [len])?;
        assert!(zeros.read()?.iter().all(|&x| x == 0));
        zeros.fill(7)?;
        assert!(zeros.read()?.iter().all(|&x| x == 7));
    }
    Ok(())
}
