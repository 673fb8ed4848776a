//! Queues and order (rules N.1, N.2, J.1; peer cases 11, 12, 23, 25).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::*;

/// N.2, peer case 23: a chain of 100 dependent commands has 99 barriers and the right value; a
/// write after a read has one.
pub fn a_chain_has_a_barrier_each(device: &Device) -> Result<()> {
    let a = Array::<f32>::zeros(device, [64])?;
    device.synchronize()?;
    let before = device.barriers();
    for _ in 0..100 {
        a.assign(|x| x + 1.0)?;
    }
    // The first follows the zeros, whose barrier is one more.
    assert_eq!(device.barriers() - before, 100);
    assert_eq!(a.get(0)?, 100.0);
    let b = a.map(|x| x + 1.0)?;
    let before = device.barriers();
    a.fill(0.0)?;
    assert_eq!(device.barriers() - before, 1, "a write after a read");
    assert_eq!(b.get(0)?, 101.0);
    Ok(())
}

/// N.2: independent commands have no barrier, views of one array included.
pub fn independent_work_has_none(device: &Device) -> Result<()> {
    let whole = Array::<f32>::zeros(device, [6400])?;
    device.synchronize()?;
    whole.assign(|x| x + 0.0)?;
    whole.slice(..1)?.assign(|x| x + 0.0)?;
    let before = device.barriers();
    for part in 1..100 {
        whole.slice(part * 64..part * 64 + 64)?.assign(|x| x + 1.0)?;
    }
    assert_eq!(device.barriers(), before);
    let reads: Vec<_> =
        (0..50).map(|_| whole.slice(..10)?.map(|x| x + 1.0)).collect::<Result<_>>()?;
    assert!(device.barriers() - before <= 1, "reads share one barrier");
    assert_eq!((reads.len(), whole.sum()?.item()?), (50, 99.0 * 64.0));
    Ok(())
}

/// N.1, peer cases 11 and 12: 8 launches stay open; submit closes; never more than the bound in
/// flight.
pub fn batches_stay_open_until_full(device: &Device) -> Result<()> {
    let queue = device.queue()?;
    let a = queue.run(|| Array::<f32>::zeros(device, [16]))?;
    queue.synchronize()?;
    assert_eq!((queue.recorded(), queue.in_flight()), (0, 0));
    let kept: Vec<_> = queue.run(|| (0..8).map(|_| a.map(|x| x + 1.0)).collect::<Result<_>>())?;
    assert!(queue.recorded() >= 8, "{}", queue.recorded());
    queue.submit()?;
    assert_eq!(queue.recorded(), 0);
    drop(kept);
    let short = std::time::Duration::from_micros(300);
    let slow = super::kernels::Busy::new(device, short)?;
    for _ in 0..64 * 10 {
        queue.run(|| slow.run(&a))?;
        assert!(queue.in_flight() <= 4, "{} batches in flight", queue.in_flight());
    }
    queue.synchronize()?;
    assert_eq!((queue.recorded(), queue.in_flight()), (0, 0));
    Ok(())
}

/// N.1, N.2: what two queues touch is ordered by the library, in both directions.
pub fn queues_order_by_use(device: &Device) -> Result<()> {
    let (first, second) = (device.queue()?, device.queue()?);
    let a = Array::<f32>::zeros(device, [50_000])?;
    for turn in 0..50 {
        let b = first.run(|| a.map(|x| x + 1.0))?;
        second.run(|| a.assign_with(&b, |_, y| y))?;
        assert!(turn % 7 != 0 || a.get(49_999)? == turn as f32 + 1.0);
    }
    assert!(a.read()?.iter().all(|&x| x == 50.0));
    Ok(())
}

/// Peer case 25: two threads alternate 2,000 steps through results in flight.
pub fn two_threads_alternate(device: &Device) -> Result<()> {
    const STEPS: u32 = 2000;
    let a = Array::<u32>::zeros(device, [33])?;
    let turn = AtomicU32::new(0);
    let work = |parity: u32| -> Result<()> {
        loop {
            let now = turn.load(Ordering::Acquire);
            if now >= STEPS {
                return Ok(());
            }
            if now % 2 == parity {
                a.assign(|x| x * 3 + now)?;
                turn.store(now + 1, Ordering::Release);
            } else {
                std::thread::yield_now();
            }
        }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| work(1));
        work(0)?;
        other.join().unwrap()
    })?;
    let want = (0..STEPS).fold(0u32, |x, step| x.wrapping_mul(3).wrapping_add(step));
    assert_eq!(a.get(32)?, want);
    Ok(())
}

/// N.2: random commands over four arrays, three queues and two threads equal the same commands
/// one after another on plain `Vec`s.
pub fn random_work_equals_sequential(device: &Device) -> Result<()> {
    const LEN: usize = 700;
    let mut random = fastrand::Rng::with_seed(77);
    let queues = [device.queue()?, device.queue()?, device.queue()?];
    for _ in 0..8 {
        let arrays: Vec<Array<u32, Private>> =
            (0..4).map(|_| Array::zeros(device, [LEN])).collect::<Result<_>>()?;
        let mut model = vec![vec![0u32; LEN]; 4];
        for step in 0..200u32 {
            let (from, to) = (random.usize(0..4), random.usize(0..4));
            let len = random.usize(1..LEN);
            let (at, target) = (random.usize(0..=LEN - len), random.usize(0..=LEN - len));
            let source = arrays[from].slice(at..at + len)?;
            let sink = arrays[to].slice(target..target + len)?;
            let queue = &queues[random.usize(0..3)];
            let copies = random.bool();
            let run = || {
                queue.run(|| {
                    if copies {
                        sink.copy_from(&source)
                    } else {
                        sink.assign_with(&source, |x, y| x * 5 + y + step)
                    }
                })
            };
            if random.u32(0..10) == 0 {
                std::thread::scope(|scope| scope.spawn(run).join().unwrap())?;
            } else {
                run()?;
            }
            let before = model[from][at..at + len].to_vec();
            for (x, y) in model[to][target..target + len].iter_mut().zip(before) {
                *x = if copies { y } else { x.wrapping_mul(5).wrapping_add(y).wrapping_add(step) };
            }
            if random.u32(0..40) == 0 {
                assert_eq!(arrays[to].to_vec()?, model[to], "after step {step}");
            }
        }
        for (array, want) in arrays.iter().zip(&model) {
            assert_eq!(array.to_vec()?, *want);
        }
    }
    Ok(())
}

/// F.4 and N.1: guards of one thread come between the records of another; whatever is refused,
/// nothing waits for ever and nothing is lost.
pub fn guards_and_records_race_safely(device: &Device) -> Result<()> {
    let (a, b) = (Array::<u32>::zeros(device, [64])?, Array::<u32>::zeros(device, [64])?);
    let done = AtomicU32::new(0);
    let recorded = std::thread::scope(|scope| {
        let recorder = scope.spawn(|| {
            let mut recorded = 0;
            for _ in 0..5000 {
                recorded += u32::from(a.assign_with(&b, |x, y| x + y + 1).is_ok());
            }
            done.store(1, Ordering::Release);
            recorded
        });
        while done.load(Ordering::Acquire) == 0 {
            drop(b.write().map(|mut guard| guard[0] = 0));
            drop(a.read().map(|guard| guard[63]));
        }
        recorder.join().unwrap()
    });
    assert_eq!(a.get(63)?, recorded);
    Ok(())
}

/// N.1: threads of rayon's that wait for their own queues do not wait for one another.
pub fn threads_of_a_pool_wait_safely(device: &Device) -> Result<()> {
    use rayon::prelude::*;
    let a = Array::<f32>::ones(device, [1 << 20])?;
    let sums: Vec<f32> = (0..32)
        .into_par_iter()
        .map(|turn| a.map(|x| x + turn as f32)?.sum()?.item())
        .collect::<Result<_>>()?;
    for (turn, sum) in sums.into_iter().enumerate() {
        assert_eq!(sum, (turn + 1) as f32 * (1 << 20) as f32);
    }
    Ok(())
}

/// I.1, J.1: a view that outlives its parent keeps the memory, with work in flight.
pub fn views_outlive_parents_in_flight(device: &Device) -> Result<()> {
    for turn in 0..50 {
        let parent = Array::<f32>::full(device, [10_000], turn as f32)?;
        let view = parent.slice(5000..5010)?;
        let doubled = parent.map(|x| x * 2.0)?;
        drop(parent);
        let noise = Array::<f32>::full(device, [10_000], -1.0)?;
        assert_eq!(
            (view.get(9)?, doubled.get(9999)?, noise.get(0)?),
            (turn as f32, 2.0 * turn as f32, -1.0)
        );
    }
    Ok(())
}

/// H.1, J.1: wrapped memory lives until its last command, and no longer.
pub fn wrapped_memory_lives_to_its_last_command(device: &Device) -> Result<()> {
    struct Owner(Vec<f32>, Arc<AtomicUsize>);
    impl Drop for Owner {
        fn drop(&mut self) {
            self.0.fill(f32::NAN);
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    for turn in 1..=20 {
        let mut owner = Owner(vec![1.0; 30_000], Arc::clone(&dropped));
        let (address, len) = (owner.0.as_mut_ptr(), owner.0.len());
        // SAFETY: the owner keeps the elements in place until it is dropped, and no one else has
        // them.
        let wrapped = unsafe { device.wrap_raw(address, len, Box::new(owner)) }?;
        let sum = wrapped.map(|x| x * 2.0)?.sum()?;
        drop(wrapped);
        assert_eq!(sum.item()?, 60_000.0);
        device.synchronize()?;
        // The batch that kept it may be dropped a moment after its ticket is reached.
        while dropped.load(Ordering::SeqCst) < turn {
            std::thread::yield_now();
        }
        assert_eq!(dropped.load(Ordering::SeqCst), turn, "released just once");
    }
    Ok(())
}

/// J.2: a device that is dropped with arrays alive, or with work recorded, closes with the last
/// of them.
pub fn a_device_drops_with_work_in_flight(device: &Device) -> Result<()> {
    for wrapped in [false, true] {
        let own = another(device)?;
        let a = if wrapped { own.wrap(vec![1.0f32; 1000])? } else { Array::ones(&own, [1000])? };
        let b = a.map(|x| x + 1.0)?;
        drop(own);
        drop(a);
        assert_eq!(b.get(999)?, 2.0);
        b.assign(|x| x + 1.0)?;
        drop(b);
    }
    Ok(())
}

/// N.4: a user's closure sees its inputs whole and its outputs by ranges that cover the grid once.
pub fn user_kernels_see_ranges(device: &Device) -> Result<()> {
    if !device.caps().host_kernels {
        return Ok(());
    }
    let saxpy = device.kernel(
        KernelSource::cpu(|k| {
            let (x, factor, range) = (k.input::<f32>(0)?, k.scalar::<f32>(0)?, k.range());
            for (y, x) in k.output::<f32>(0)?.iter_mut().zip(&x[range]) {
                *y += factor * x;
            }
            Ok(())
        })
        .named("saxpy"),
    )?;
    for len in [1, 1000, 100_000] {
        let x = Array::<f32, Private>::full(device, [len], 3.0)?;
        let y = Array::<f32>::ones(device, [len])?;
        saxpy.run(&[kernel::read(&x), kernel::write(&y), kernel::scalar(2.0f32)], len)?;
        assert!(y.read()?.iter().all(|&y| y == 7.0));
    }
    // An output that is not as long as the grid is seen whole, however long the grid is.
    let halves = device.kernel(KernelSource::cpu(|k| {
        let (x, range) = (k.input::<f32>(0)?, k.range());
        let y = k.output::<f32>(0)?;
        if range != (0..x.len()) || y.len() * 2 != x.len() {
            return Err(format!("{range:?} and {} outputs", y.len()));
        }
        y.iter_mut().enumerate().for_each(|(i, y)| *y = x[2 * i] + x[2 * i + 1]);
        Ok(())
    }))?;
    let x = Array::<f32>::ones(device, [65_536])?;
    let y = Array::<f32>::zeros(device, [32_768])?;
    halves.run(&[kernel::read(&x), kernel::write(&y)], x.len())?;
    assert_eq!(y.sum()?.item()?, 65_536.0);
    let histogram = device.kernel(KernelSource::cpu(|k| {
        let (x, _) = (k.input::<u8>(0)?, k.range());
        for &x in x {
            k.output::<u32>(0)?[x as usize] += 1;
        }
        Ok(())
    }))?;
    let bytes = device.array(&(0..100_000).map(|i| (i % 256) as u8).collect::<Vec<_>>())?;
    let counts = Array::<u32>::zeros(device, [256])?;
    histogram.run(&[kernel::read(&bytes), kernel::write(&counts)], bytes.len())?;
    assert_eq!(counts.sum()?.item()?, 100_000);
    Ok(())
}
