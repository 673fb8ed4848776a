//! Devices that misbehave: failing calls, late tickets, a small memory, a lost device (rules C.3,
//! F.7, N.5, O.1), and figures against the operating system's own (rule D.3).
#![allow(clippy::unwrap_used)]

use aquifer::backend::adaptors::{Failing, Slow, Tiny};
use aquifer::backend::{Backend, Cpu};
use aquifer::prelude::*;
use std::sync::Arc;
use std::time::Duration;

fn device(backend: Arc<dyn Backend>) -> Device {
    Device::builder().backend(backend).open().unwrap()
}

/// A piece of work that makes every kind of call that can fail.
fn work(device: &Device) -> Result<f32> {
    let a = Array::<f32>::full(device, [100_000], 2.0)?;
    let b = device.array_in(Private, &[1.0f32; 1000])?;
    let wrapped = device.wrap(vec![1.0f32; 100])?;
    let c = a.map(|x| x * 3.0)?;
    wrapped.assign(|x| x + 1.0)?;
    let queue = device.queue()?;
    let d = queue.run(|| c.zip(&a)?.map(|(x, y)| x - y))?;
    Ok(d.sum()?.item()? + b.sum()?.item()? + wrapped.sum()?.item()?)
}

/// N.5, O.1: each failing call of the driver is an error with the call's name and code, or is
/// made good (C.3); figures and arrays stay as they were, and the device works on.
#[test]
fn every_failing_call_is_an_error_and_changes_nothing() {
    let probe = Failing::new(Cpu::open());
    let want = work(&device(Arc::clone(&probe) as _)).unwrap();
    let calls = probe.calls();
    assert!(calls > 8, "{calls} calls");
    let mut errors = 0;
    for failing in 0..calls {
        let backend = Failing::new(Cpu::open());
        let device = device(Arc::clone(&backend) as _);
        let kept = Array::<f32>::full(&device, [1000], 7.0).unwrap();
        device.synchronize().unwrap();
        let before = device.memory();
        backend.fail_after(failing);
        match work(&device) {
            Ok(got) => assert_eq!(got, want),
            Err(error) => {
                errors += 1;
                let text = error.to_string();
                assert!(text.contains("-4242"), "call {failing}: {text}");
            }
        }
        backend.fail_after(u64::MAX / 2);
        device.synchronize().unwrap();
        // What a batch kept alive is dropped a moment after its ticket is reached.
        let start = std::time::Instant::now();
        while device.memory().wrapped > 0 && start.elapsed() < Duration::from_secs(5) {
            std::thread::yield_now();
        }
        let after = device.memory();
        assert_eq!((before.active, before.allocations), (after.active, after.allocations));
        assert_eq!((after.wrapped, after.mapped), (0, 0), "call {failing}");
        assert_eq!(kept.get(999).unwrap(), 7.0);
        assert_eq!(work(&device).unwrap(), want, "the device works on after call {failing}");
    }
    assert!(errors > 3, "only {errors} of {calls} failing calls were seen");
}

/// F.7: a lost device ends waits with an error, and dropping it does not hang.
#[test]
fn a_lost_device_ends_waits() {
    let backend = Failing::new(Cpu::open());
    let device = device(Arc::clone(&backend) as _);
    let a = Array::<f32>::ones(&device, [1 << 20]).unwrap();
    backend.lose();
    let error = a.map(|x| x.sin()).and_then(|b| b.to_vec()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Lost), "{error}");
    let _again = a.map(|x| x.cos()).unwrap();
    assert!(device.synchronize().is_err());
    // Also where the work was over before anybody asked.
    let b = Array::<f32>::ones(&device, [10]).unwrap();
    device.submit().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(matches!(b.get(3).unwrap_err().kind(), ErrorKind::Lost));
}

/// C.3, peer list "what none of them tests": on a refusal recorded work is submitted, the cache
/// released, work in flight awaited, and the request tried once more.
#[test]
fn a_full_device_makes_room_before_it_refuses() {
    let tiny = Tiny::new(Cpu::open(), 8 << 20);
    let device = device(Arc::clone(&tiny) as _);
    let half = 5 << 18;
    for turn in 0..20 {
        // 5 MiB each: the second fits only once the first, freed in flight, is done.
        let a = Array::<f32>::full(&device, [half], turn as f32).unwrap();
        let b = a.map(|x| x + 1.0);
        assert_eq!(b.as_ref().err().map(Error::kind), Some(ErrorKind::OutOfMemory));
        drop(a);
        let queue = device.queue().unwrap();
        let c = queue.run(|| Array::<f32>::ones(&device, [half])).unwrap();
        assert_eq!(c.sum().unwrap().item().unwrap(), half as f32);
    }
    assert!(tiny.used() <= 8 << 20);
    let error = Array::<u8>::zeros(&device, [9 << 20]).unwrap_err();
    assert!(error.to_string().contains("commit failed with code -2"), "{error}");
}

/// Peer case 19 with tickets that are seen late: what is freed in flight is pending, is not given
/// to the CPU, and comes back once the tickets are seen.
#[test]
fn late_tickets_keep_memory_pending() {
    let slow = Slow::new(Cpu::open());
    let device = device(Arc::clone(&slow) as _);
    let a = Array::<f32>::full(&device, [50_000], 1.0).unwrap();
    let b = a.map(|x| x + 1.0).unwrap();
    device.submit().unwrap();
    drop(a);
    let stats = device.memory();
    assert!(stats.pending >= 200_000, "{stats:?}");
    assert!(stats.pending <= stats.cache + stats.slack);
    let timeout = b.read_timeout(Duration::from_millis(5)).unwrap_err();
    assert_eq!(timeout.kind(), ErrorKind::Timeout);
    // Memory for the CPU is idle memory: not what is pending.
    let host = device.array(&vec![9.0f32; 50_000]).unwrap();
    slow.release();
    assert_eq!((b.get(0).unwrap(), host.get(0).unwrap()), (2.0, 9.0));
    device.synchronize().unwrap();
    assert_eq!(device.memory().pending, 0);
    device.clear_cache();
    let left = device.memory();
    assert_eq!(left.reserved, left.active + left.slack);
}

/// Sets a flag when it is dropped.
struct Flag(Vec<f32>, Arc<std::sync::atomic::AtomicBool>);

impl Drop for Flag {
    fn drop(&mut self) {
        self.1.store(true, std::sync::atomic::Ordering::SeqCst);
    }
}

/// H.1, J.1: memory that work still uses is not given back because the driver refuses that work for
/// now: a release waits for the last handle, a scope for the work.
#[test]
fn refused_work_never_touches_memory_that_is_gone() {
    let backend = Failing::new(Cpu::open());
    let device = device(Arc::clone(&backend) as _);
    let dropped = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut owner = Flag(vec![1.0; 1000], Arc::clone(&dropped));
    let address = owner.0.as_mut_ptr();
    // SAFETY: the owner keeps the elements in place, and no one else has them.
    let wrapped = unsafe { device.wrap_raw(address, 1000, Box::new(owner)) }.unwrap();
    wrapped.assign(|x| x + 1.0).unwrap();
    backend.fail_after(0);
    wrapped.release();
    let is_dropped = || dropped.load(std::sync::atomic::Ordering::SeqCst);
    assert!(!is_dropped(), "the work is still recorded");
    device.synchronize().unwrap();
    assert_eq!(wrapped.get(0).unwrap_err().kind(), ErrorKind::Freed);
    drop(wrapped);
    while !is_dropped() {
        std::thread::yield_now();
    }
    // A scope tries once more, and ends only when the work has.
    let mut mine = vec![1.0f32; 1000];
    let escaped = device.scope(|s| {
        let array = s.wrap(&mut mine)?;
        array.assign(|x| x + 1.0)?;
        backend.fail_after(0);
        Ok(array)
    });
    assert!(mine.iter().all(|&x| x == 2.0));
    assert_eq!(escaped.unwrap().get(0).unwrap_err().kind(), ErrorKind::Freed);
}

/// O.1: a command that is recorded is not an error, though the batch that it fills is refused.
#[test]
fn a_recorded_command_is_not_an_error() {
    let backend = Failing::new(Cpu::open());
    let device = device(Arc::clone(&backend) as _);
    let a = Array::<f32>::zeros(&device, [16]).unwrap();
    a.assign(|x| x + 1.0).unwrap();
    a.fill(0.0).unwrap();
    device.synchronize().unwrap();
    for turn in 0..200 {
        if turn % 10 == 0 {
            backend.fail_after(0);
        }
        a.assign(|x| x + 1.0).unwrap();
    }
    backend.fail_after(u64::MAX / 2);
    assert_eq!(a.get(0).unwrap(), 200.0);
}

/// J.2: work that was recorded and never submitted leaves nothing behind.
#[test]
fn a_device_with_recorded_work_gives_all_back() {
    for wrapped in [false, true] {
        let tiny = Tiny::new(Cpu::open(), 1 << 30);
        {
            let device = device(Arc::clone(&tiny) as _);
            let a = device.array(&vec![1.0f32; 1 << 18]).unwrap();
            let b = if wrapped { device.wrap(vec![1.0f32; 1 << 18]).unwrap() } else { a.share() };
            let c = b.zip(&a).unwrap().map(|(x, y)| x + y).unwrap();
            drop((a, b));
            assert!(tiny.used() > 0 && c.len() == 1 << 18);
        }
        // A wrapped array's batch is dropped by whoever ran it.
        let start = std::time::Instant::now();
        while tiny.used() > 0 && start.elapsed() < Duration::from_secs(5) {
            std::thread::yield_now();
        }
        assert_eq!(tiny.used(), 0);
    }
}

/// Resident bytes of this process that no file backs.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// D.3: `reserved` against the operating system's count, within 1 % or 4 MiB, through growth,
/// reuse, giving back in part and in whole.
#[test]
fn reserved_is_what_the_operating_system_counts() {
    if resident() == 0 {
        eprintln!("skipped: the system does not tell the resident size");
        return;
    }
    // A process of its own, so that no other test's memory is counted.
    if std::env::var_os("AQUIFER_CHILD").is_none() {
        let name = "reserved_is_what_the_operating_system_counts";
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture"])
            .env("AQUIFER_CHILD", "1")
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    let device = Device::cpu().unwrap();
    // Threads and their registers first.
    drop(Array::<f32>::ones(&device, [4 << 20]).unwrap().map(|x| x.sin()).unwrap());
    device.synchronize().unwrap();
    device.clear_cache();
    let start = resident();
    let check = |when: &str| {
        let (reserved, seen) = (device.memory().reserved, resident().saturating_sub(start));
        let off = reserved.abs_diff(seen);
        println!("{when:<24} reserved {reserved:>11}, resident {seen:>11}");
        assert!(off <= (4 << 20).max(reserved / 100), "{when}: {reserved} and {seen}");
    };
    let mut live: Vec<_> =
        (0..40).map(|i| Array::<u8>::ones(&device, [(i % 7 + 1) << 20]).unwrap()).collect();
    device.synchronize().unwrap();
    check("grown");
    let mut index = 0;
    live.retain(|_| {
        index += 1;
        index % 3 != 0
    });
    check("a third freed");
    device.clear_cache();
    check("and given back");
    let small: Vec<_> =
        (0..4000).map(|i| Array::<u8>::ones(&device, [i % 9000 + 1]).unwrap()).collect();
    device.synchronize().unwrap();
    // A handle and its books are some 400 bytes of the heap, which are not the device's.
    check("4,000 small ones");
    drop((live, small));
    device.clear_cache();
    check("all given back");
    assert_eq!(device.memory().reserved, 0);
}
