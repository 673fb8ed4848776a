//! The CPU's access and wrapped memory (rules E.3, F, H; peer cases 4, 8, 9, 27).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::*;

/// A kernel that runs until it is told to stop, or on a device that takes no closures for a good
/// while, writing `busy` with what it holds.
///
/// A device that does all work when it is submitted is never busy: the second is false.
fn endless(device: &Device, busy: &Array<f32>) -> Result<(Arc<AtomicBool>, bool)> {
    let stop = Arc::new(AtomicBool::new(false));
    if !device.caps().host_kernels {
        super::kernels::busy(device, busy, Duration::from_millis(400))?;
        device.submit()?;
        let runs = device.synchronize_timeout(Duration::ZERO).is_err();
        return Ok((stop, runs));
    }
    let flag = Arc::clone(&stop);
    let kernel = device.kernel(KernelSource::cpu(move |_| {
        while !flag.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }))?;
    kernel.run(&[kernel::write(busy)], busy.len())?;
    device.submit()?;
    Ok((stop, true))
}

/// F.1, F.2: a read waits for work that writes the array, from whatever thread, and for no other.
pub fn reads_wait_for_writes_only(device: &Device) -> Result<()> {
    let (busy, free) = (Array::<f32>::zeros(device, [64])?, Array::<f32>::ones(device, [64])?);
    device.synchronize()?;
    let (stop, runs) = endless(device, &busy)?;
    // While the kernel runs: another array is read at once, and worked on where the device has a
    // queue for that.
    assert_eq!(free.get(3)?, 1.0);
    if device.caps().queues > 1 {
        let queue = device.queue()?;
        let doubled = queue.run(|| free.map(|x| x * 2.0))?;
        assert_eq!(doubled.read()?[3], 2.0);
    }
    let late = busy.read_timeout(Duration::from_millis(20)).map(drop);
    assert_eq!(late.map_err(|error| error.kind()).err(), runs.then_some(ErrorKind::Timeout));
    stop.store(true, Ordering::SeqCst);
    assert_eq!(busy.read()?[0], 0.0);
    // Recorded by another thread and not submitted: submitted first.
    std::thread::scope(|scope| scope.spawn(|| busy.fill(5.0)).join().unwrap())?;
    assert_eq!(busy.read()?[63], 5.0);
    Ok(())
}

/// F.4: work, guards and elements that conflict with a guard are refused, whichever handle asks.
pub fn guards_refuse_what_conflicts(device: &Device) -> Result<()> {
    let a = Array::<f32>::zeros(device, [8])?;
    let b = a.share();
    {
        let guard = a.read()?;
        assert_eq!(b.assign(|x| x + 1.0).unwrap_err().kind(), ErrorKind::Borrowed);
        assert_eq!(b.write().err().unwrap().kind(), ErrorKind::Borrowed);
        assert_eq!(b.set(0, 1.0).unwrap_err().kind(), ErrorKind::Borrowed);
        assert_eq!((b.read()?[0], b.get(1)?, b.map(|x| x + 1.0)?.get(0)?), (0.0, 0.0, 1.0));
        assert_eq!(guard[7], 0.0);
    }
    {
        let mut guard = b.write()?;
        guard[3] = 4.0;
        let refused = std::thread::scope(|scope| {
            scope.spawn(|| a.map(|x| x + 1.0).unwrap_err().kind()).join().unwrap()
        });
        assert_eq!(refused, ErrorKind::Borrowed);
        assert_eq!(a.get(0).unwrap_err().kind(), ErrorKind::Borrowed);
        assert_eq!(a.to_vec().unwrap_err().kind(), ErrorKind::Borrowed);
    }
    assert_eq!(a.map(|x| x + 1.0)?.get(3)?, 5.0);
    Ok(())
}

/// F.4: elements are bounds-checked, by index and by place.
pub fn elements_are_bounds_checked(device: &Device) -> Result<()> {
    let a = Array::<i64>::zeros(device, [2, 3])?;
    a.set([1, 2], 5)?;
    assert_eq!((a.get([1, 2])?, a.get(5)?), (5, 5));
    for index in [&[2, 0][..], &[0, 3], &[6], &[0, 0, 0], &[usize::MAX, 1]] {
        assert_eq!(a.get(index).unwrap_err().kind(), ErrorKind::OutOfRange, "{index:?}");
        assert_eq!(a.set(index, 1).unwrap_err().kind(), ErrorKind::OutOfRange);
    }
    Ok(())
}

/// F.3: two disjoint views of one allocation do not wait for each other.
pub fn disjoint_views_do_not_wait(device: &Device) -> Result<()> {
    let whole = Array::<f32>::zeros(device, [128])?;
    device.synchronize()?;
    let (left, right) = (whole.slice(..64)?, whole.slice(64..)?);
    let (stop, runs) = endless(device, &left)?;
    right.write()?[0] = 3.0;
    assert_eq!(right.get(0)?, 3.0);
    assert_eq!(whole.read_timeout(Duration::from_millis(10)).is_err(), runs);
    stop.store(true, Ordering::SeqCst);
    assert_eq!(whole.read()?[64], 3.0);
    Ok(())
}

/// F.5: printing works on both modes, waits, and elides beyond 1,000 elements.
pub fn printing_shows_both_modes(device: &Device) -> Result<()> {
    let a = device.array(&[1.5f32, -2.0, 0.0, 4.0])?.reshape([2, 2])?;
    assert_eq!(a.map(|x| x * 2.0)?.to_string(), "[[3, -4], [0, 8]]");
    assert_eq!(a.copy_in(Private)?.to_string(), "[[1.5, -2], [0, 4]]");
    let long = Array::<u8, Private>::ones(device, [1500])?.to_string();
    assert!(long.contains("...") && long.contains("1000 of 1500"), "{long}");
    assert_eq!(long.matches('1').count() - "1000 of 1500".matches('1').count(), 1000);
    assert_eq!(format!("{:?}", a), "Array<f32, shared>([2, 2], allocated)");
    Ok(())
}

/// F.6, F.7: waits have a limit of time; synchronize waits for all.
pub fn waits_end_in_time(device: &Device) -> Result<()> {
    let busy = Array::<f32>::zeros(device, [8])?;
    device.synchronize()?;
    let (stop, runs) = endless(device, &busy)?;
    let start = Instant::now();
    let timeout = device.synchronize_timeout(Duration::from_millis(30));
    assert_eq!(timeout.map_err(|error| error.kind()).err(), runs.then_some(ErrorKind::Timeout));
    assert!(!runs || start.elapsed() >= Duration::from_millis(30));
    stop.store(true, Ordering::SeqCst);
    device.synchronize()?;
    assert!(busy.read_timeout(Duration::ZERO).is_ok());
    Ok(())
}

/// H.3, H.5: the rule's example, and peer case 8: both always see the other's change, through
/// slices of the same memory.
pub fn device_and_cpu_alternate(device: &Device) -> Result<()> {
    let a = Array::<f32>::zeros(device, [100])?;
    a.set(7, 42.0)?;
    a.assign(|x| x + 1.0)?;
    assert_eq!((a.get(7)?, a.get(8)?), (43.0, 1.0));
    let address = a.read()?.as_ptr();
    assert_eq!(a.write()?.as_ptr(), address);
    assert_eq!(a.share().read()?.as_ptr(), address);
    let wrapped = device.wrap(vec![0.5f32; 100])?;
    wrapped.assign(|x| x.sin())?;
    device.synchronize()?;
    let vec = wrapped.into_vec()?;
    assert!(vec.iter().all(|x| (x - 0.5f32.sin()).abs() < 1e-6));
    for looks_first in [false, true] {
        let arrays = [device.wrap(vec![1.0f32; 32])?, Array::<f32>::ones(device, [32])?];
        for array in arrays {
            if looks_first {
                assert_eq!((array.read()?[0], array.sum()?.item()?), (1.0, 32.0));
            }
            array.write()?[0] = 5.0;
            assert_eq!(array.sum()?.item()?, 36.0, "the device sees the CPU's write");
            array.assign(|x| x * 2.0)?;
            assert_eq!(array.read()?[0], 10.0, "the CPU sees the device's write");
        }
    }
    Ok(())
}

/// H.1, H.2: a `Vec` is used in place and comes back as the same allocation.
pub fn wrapped_memory_is_the_callers(device: &Device) -> Result<()> {
    if device.caps().import_alignment.is_none() {
        let error = device.wrap_exact(vec![1.0f32]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Import);
        return Ok(());
    }
    for len in [1usize, 4096, 4097, 100_000] {
        let vec = vec![1.0f32; len];
        let address = vec.as_ptr();
        let before = device.memory().system_allocations;
        let wrapped = device.wrap_exact(vec)?;
        assert_eq!(wrapped.origin(), Origin::Wrapped);
        assert_eq!(device.memory().wrapped, (len * 4) as u64);
        assert_eq!(device.memory().active, 0, "the caller's memory is in no other figure");
        wrapped.assign(|x| x + 1.0)?;
        let back = wrapped.into_vec()?;
        assert_eq!((back.as_ptr(), back[len - 1]), (address, 2.0));
        assert_eq!(device.memory().system_allocations, before);
    }
    let shared = device.wrap(vec![1u8, 2, 3])?;
    let other = shared.share();
    assert_eq!(shared.into_vec().unwrap_err().kind(), ErrorKind::Shared);
    assert_eq!(other.into_vec()?, [1, 2, 3], "nothing is lost on the error");
    let private = device.wrap_in(Storage::Private, vec![1.0f32]).unwrap_err();
    assert_eq!(private.kind(), ErrorKind::PrivateAccess);
    assert_eq!(device.wrap_in(Storage::Shared, vec![1.0f32])?.get(0)?, 1.0);
    Ok(())
}

/// H.1, H.4, peer case 9: offsets are kept; null, misaligned and overflowing are errors by name.
pub fn wrapped_views_and_offsets(device: &Device) -> Result<()> {
    let mut values: Vec<f32> = (0..5000).map(|x| x as f32).collect();
    device.scope(|s| {
        let part = s.wrap(&mut values[1..4097])?;
        assert_eq!((part.get(0)?, part.slice(10..)?.get(0)?), (1.0, 11.0));
        part.assign(|x| -x)
    })?;
    assert_eq!((values[0], values[1], values[4096], values[4097]), (0.0, -1.0, -4096.0, 4097.0));
    let mut bytes = [0u8; 16];
    let odd = bytes.as_mut_ptr().wrapping_add(1).cast::<f32>();
    for (address, len, kind) in [
        (std::ptr::null_mut(), 1, ErrorKind::Import),
        (odd, 1, ErrorKind::Import),
        (bytes.as_mut_ptr().cast::<f32>(), usize::MAX / 2, ErrorKind::OutOfRange),
    ] {
        // SAFETY: none of these is wrapped: each is refused for the reason tested.
        let error = unsafe { device.wrap_raw(address, len, Box::new(())) }.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
    Ok(())
}

/// H.1: a scope ends only when its work has; what escapes it is freed; a panic ends it too.
pub fn scopes_end_with_their_work(device: &Device) -> Result<()> {
    let mut mine = vec![1.0f32; 100_000];
    let escaped = device.scope(|s| {
        let array = s.wrap(&mut mine)?;
        for _ in 0..20 {
            array.assign(|x| x + 1.0)?;
        }
        Ok(array)
    })?;
    assert!(mine.iter().all(|&x| x == 21.0));
    assert_eq!(escaped.read().unwrap_err().kind(), ErrorKind::Freed);
    assert_eq!(escaped.get(0).unwrap_err().kind(), ErrorKind::Freed);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        device.scope(|s| {
            s.wrap(&mut mine)?.assign(|x| x * 2.0)?;
            if true {
                panic!("as planned");
            }
            Ok(())
        })
    }));
    assert!(panicked.is_err() && mine[5] == 42.0);
    let error = device.scope(|s| {
        s.wrap(&mut mine)?.assign(|x| x * 0.0)?;
        Array::<f32>::zeros(device, [usize::MAX]).map(drop)
    });
    assert!(error.is_err() && mine[5] == 0.0);
    Ok(())
}

/// E.3, peer case 4: single elements of private arrays only inside the permission's scope, also
/// after a panic in it.
pub fn private_elements_need_permission(device: &Device) -> Result<()> {
    let a = Array::<f32, Private>::ones(device, [4])?;
    assert_eq!(a.get_scalar(0).unwrap_err().kind(), ErrorKind::PrivateAccess);
    {
        let _permission = aquifer::allow_scalar();
        a.set_scalar(2, 9.0)?;
        assert_eq!((a.get_scalar(2)?, a.get_scalar([1])?), (9.0, 1.0));
        assert_eq!(a.get_scalar(4).unwrap_err().kind(), ErrorKind::OutOfRange);
    }
    assert_eq!(a.set_scalar(0, 1.0).unwrap_err().kind(), ErrorKind::PrivateAccess);
    let panicked = std::panic::catch_unwind(|| {
        let _permission = aquifer::allow_scalar();
        panic!("as planned");
    });
    assert!(panicked.is_err() && a.get_scalar(0).is_err());
    let unknown = Array::<f32, Storage>::zeros_in(device, Storage::Private, [2])?;
    for error in [unknown.read().err(), unknown.write().err(), unknown.get(0).err()] {
        assert_eq!(error.unwrap().kind(), ErrorKind::PrivateAccess);
    }
    Ok(())
}
