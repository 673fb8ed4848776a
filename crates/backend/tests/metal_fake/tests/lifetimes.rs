//! What lives how long, what grows, and what a failure leaves: seen from the stand-in's side.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use aquifer::prelude::*;
use metal_fake::{alone, calls, delay, fail_after, fail_all, fail_commands, fail_none, hold};
use metal_fake::{left_behind, live, live_objects, selectors};

fn metal() -> Device {
    Device::named("metal").unwrap()
}

/// Waits until completion handlers have returned: what they hold goes a moment after a wait.
fn settled() -> i64 {
    let mut before = live();
    loop {
        std::thread::sleep(Duration::from_millis(20));
        let now = live();
        if now == before {
            return now;
        }
        before = now;
    }
}

/// B.7: a loop of 100,000 dispatches makes no object that stays, and takes no memory.
#[test]
fn a_long_loop_does_not_grow() {
    let _alone = alone();
    let device = metal();
    let a = Array::<f32>::zeros(&device, [8]).unwrap();
    let turn = || {
        for _ in 0..1000 {
            a.assign(|x| x + 1.0).unwrap();
        }
        device.synchronize().unwrap();
        (settled(), device.memory().reserved, device.compiled())
    };
    let after_first = turn();
    let buffers = calls(Some("newBufferWithLength:options:"));
    for _ in 1..100 {
        for _ in 0..1000 {
            a.assign(|x| x + 1.0).unwrap();
        }
        device.synchronize().unwrap();
    }
    assert_eq!(a.to_vec().unwrap(), [100_000.0; 8]);
    device.synchronize().unwrap();
    assert_eq!(
        (settled(), device.memory().reserved, device.compiled()),
        after_first,
        "{}",
        live_objects()
    );
    assert_eq!(calls(Some("newBufferWithLength:options:")), buffers);
    drop((a, device));
    assert_eq!(left_behind(), Vec::<String>::new());
}

/// Counts how often it was dropped.
struct Owner(Vec<f32>, Arc<AtomicUsize>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.fill(f32::NAN);
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

fn wrapped(device: &Device, dropped: &Arc<AtomicUsize>, len: usize) -> Array<f32> {
    let mut owner = Owner(vec![1.0; len], Arc::clone(dropped));
    let address = owner.0.as_mut_ptr();
    // SAFETY: the owner keeps the elements in place until it is dropped, and no one else has them.
    unsafe { device.wrap_raw(address, len, Box::new(owner)) }.unwrap()
}

/// H.1, H.2: wrapped memory is released exactly once, after its last command, whatever its size and
/// alignment; a `Vec` comes back as the same allocation.
#[test]
fn wrapped_memory_is_released_once_after_its_last_command() {
    let _alone = alone();
    let device = metal();
    for len in [1, 1000, 300_000] {
        let dropped = Arc::new(AtomicUsize::new(0));
        let array = wrapped(&device, &dropped, len);
        device.synchronize().unwrap();
        hold(true);
        let sum = array.map(|x| x * 2.0).unwrap().sum().unwrap();
        drop(array);
        device.submit().unwrap();
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(dropped.load(Ordering::SeqCst), 0, "its work has not run");
        hold(false);
        assert_eq!(sum.item().unwrap(), 2.0 * len as f32);
        device.synchronize().unwrap();
        assert_eq!(dropped.load(Ordering::SeqCst), 1, "released once");
        let vec = vec![1.0f32; len];
        let address = vec.as_ptr();
        let array = device.wrap(vec).unwrap();
        assert_eq!(array.origin(), Origin::Wrapped);
        array.assign(|x| x + 1.0).unwrap();
        let back = array.into_vec().unwrap();
        assert_eq!((back.as_ptr(), back[len - 1]), (address, 2.0));
    }
    drop(device);
    assert_eq!(left_behind(), Vec::<String>::new());
}

/// N.5: a value that panics when its work is done does not unwind into Objective-C; the panic is an
/// error of the next wait.
#[test]
fn a_panicking_owner_is_told() {
    struct Panics(Vec<f32>);
    impl Drop for Panics {
        fn drop(&mut self) {
            self.0.clear();
            panic!("the owner's own");
        }
    }
    let _alone = alone();
    let device = metal();
    let mut owner = Panics(vec![1.0; 100]);
    let address = owner.0.as_mut_ptr();
    // SAFETY: the owner keeps the elements in place until it is dropped, and no one else has them.
    let array = unsafe { device.wrap_raw(address, 100, Box::new(owner)) }.unwrap();
    hold(true);
    array.assign(|x| x + 1.0).unwrap();
    drop(array);
    device.submit().unwrap();
    hold(false);
    let error = device.synchronize().unwrap_err();
    assert!(error.to_string().contains("panicked when dropped"), "{error}");
    device.synchronize().unwrap();
    drop(device);
    assert_eq!(left_behind(), Vec::<String>::new());
}

/// A safetensors file with one tensor of ones.
fn checkpoint(name: &str, len: usize) -> std::path::PathBuf {
    let header =
        format!(r#"{{"ones":{{"dtype":"F32","shape":[{len}],"data_offsets":[0,{}]}}}}"#, len * 4);
    let header = format!("{header:width$}", width = header.len().next_multiple_of(8));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend((0..len).flat_map(|_| 1.0f32.to_le_bytes()));
    let path = std::env::temp_dir().join(format!("metal-fake-{name}-{}", std::process::id()));
    std::fs::write(&path, bytes).unwrap();
    path
}

fn is_mapped(path: &std::path::Path) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.contains(path.to_str().unwrap())
}

/// L.1: a mapped file is used where it lies, and unmapped after its last array and its last command.
#[test]
fn a_mapped_file_is_unmapped_after_its_last_array() {
    let _alone = alone();
    let path = checkpoint("mapped", 100_000);
    let device = metal();
    let opened = Checkpoint::open(&device, &path).unwrap();
    let ones = opened.array::<f32>("ones").unwrap();
    drop(opened);
    assert_eq!(ones.origin(), Origin::Mapped);
    assert!(is_mapped(&path));
    hold(true);
    let sum = ones.sum().unwrap();
    drop(ones);
    device.submit().unwrap();
    std::thread::sleep(Duration::from_millis(10));
    assert!(is_mapped(&path), "its work has not run");
    hold(false);
    assert_eq!(sum.item().unwrap(), 100_000.0);
    device.synchronize().unwrap();
    assert!(!is_mapped(&path));
    drop((sum, device));
    assert_eq!(left_behind(), Vec::<String>::new());
    std::fs::remove_file(path).unwrap();
}

/// B.5: a buffer that is freed in flight lives until its event; the stand-in ends the process where
/// a command uses one that is gone.
#[test]
fn a_buffer_freed_in_flight_lives_until_its_event() {
    let _alone = alone();
    let device = metal();
    let b = Array::<f32>::zeros(&device, [1_000_000]).unwrap();
    device.synchronize().unwrap();
    hold(true);
    {
        let a = Array::<f32, Private>::full(&device, [1_000_000], 3.0).unwrap();
        b.copy_from(&a).unwrap();
    }
    device.submit().unwrap();
    device.clear_cache();
    let stats = device.memory();
    assert!(stats.pending >= 4_000_000 && stats.reserved >= 8_000_000, "{stats}");
    hold(false);
    assert_eq!(b.get(999_999).unwrap(), 3.0);
    device.clear_cache();
    assert!(device.memory().reserved < 8_000_000);
    drop((b, device));
    assert_eq!(left_behind(), Vec::<String>::new());
}

/// N.5, peer case 24: a command buffer that fails is told once, at the next wait, by the label of its
/// work, with Metal's code and text; the device works on, and no wait hangs.
#[test]
fn a_failing_command_buffer_is_told_once_by_label() {
    let _alone = alone();
    let device = metal();
    let scale = KernelSource::wgsl(
        "@group(0) @binding(0) var<storage, read_write> y: array<f32>;
        @compute @workgroup_size(64) fn scale(@builtin(global_invocation_id) id: vec3<u32>) {
            y[id.x] *= 2.0;
        }",
    );
    let scale = device.kernel(scale.named("scale")).unwrap();
    let a = Array::<f32>::ones(&device, [64]).unwrap();
    device.synchronize().unwrap();
    fail_commands(0, 3);
    scale.run(&[kernel::array(&a)], 64).unwrap();
    let other = device.queue().unwrap();
    let b = other.run(|| a.map(|x| x + 1.0)).unwrap();
    // Another queue waited for it: it goes on.
    assert_eq!(b.to_vec().unwrap(), [2.0; 64]);
    let error = device.synchronize().unwrap_err();
    let text = error.to_string();
    assert!(text.contains("scale") && text.contains("code 3"), "{text}");
    assert!(text.contains("told to fail"), "{text}");
    device.synchronize().unwrap();
    scale.run(&[kernel::array(&a)], 64).unwrap();
    assert_eq!(a.to_vec().unwrap(), [2.0; 64]);
    drop((a, b, scale, other, device));
    assert_eq!(left_behind(), Vec::<String>::new());
}

/// N.5: also the first command buffer of a queue may fail, and what is under way when one does: every
/// failure is told, and a new fence orders what comes after.
#[test]
fn work_goes_on_after_a_failure() {
    let _alone = alone();
    let device = metal();
    let a = Array::<u32>::zeros(&device, [5000]).unwrap();
    device.synchronize().unwrap();
    for failing in [0, 1, 3] {
        let queue = device.queue().unwrap();
        a.fill(0).unwrap();
        device.synchronize().unwrap();
        fail_commands(failing, 1);
        for _ in 0..5 {
            queue.run(|| a.assign(|x| x + 1)).unwrap();
            queue.submit().unwrap();
        }
        // What is behind a fence that nothing updates any more fails too, and is told.
        let errors = (0..6).filter(|_| device.synchronize().is_err()).count();
        assert!((1..=5).contains(&errors), "{errors} errors");
        device.synchronize().unwrap();
        a.fill(0).unwrap();
        for _ in 0..3 {
            queue.run(|| a.assign(|x| x + 1)).unwrap();
            queue.submit().unwrap();
        }
        assert!(a.to_vec().unwrap().iter().all(|&x| x == 3), "failing {failing}");
    }
    drop((a, device));
    assert_eq!(left_behind(), Vec::<String>::new());
}

/// F.7, N.5: a device that is removed ends every wait with an error; dropping everything is fine.
#[test]
fn a_lost_device_ends_every_wait() {
    let _alone = alone();
    for code in [4, 11] {
        let device = metal();
        let a = Array::<f32>::ones(&device, [64]).unwrap();
        device.synchronize().unwrap();
        fail_commands(0, code);
        for _ in 0..3 {
            let outcome = a.assign(|x| x + 1.0).and_then(|()| device.synchronize());
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains(&format!("code {code}")), "{error}");
        }
        drop((a, device));
        assert_eq!(left_behind(), Vec::<String>::new());
    }
}

/// A piece of work that makes every call that can fail.
fn work(device: &Device) -> Result<f32> {
    let a = Array::<f32>::full(device, [100_000], 2.0)?;
    let b = device.array_in(Private, &[1.0f32; 1000])?;
    let wrapped = device.wrap(vec![1.0f32; 100])?;
    let text = "@group(0) @binding(0) var<storage, read_write> y: array<f32>;
        @compute @workgroup_size(32) fn scale(@builtin(global_invocation_id) id: vec3<u32>) {
            y[id.x] *= 2.0;
        }";
    let scale = device.kernel(KernelSource::wgsl(text))?;
    let c = a.map(|x| x * 3.0)?;
    scale.run(&[kernel::array(&c)], c.len())?;
    wrapped.assign(|x| x + 1.0)?;
    let queue = device.queue()?;
    let d = queue.run(|| c.zip(&a)?.map(|(x, y)| x - y))?;
    // More constants than the arguments of a kernel hold.
    let long = b.map(|x| (0..200).fold(x, |sum, k| sum + k as f32))?;
    device.set_wired_limit(1 << 30)?;
    Ok(d.sum()?.item()? + long.sum()?.item()? + wrapped.sum()?.item()?)
}

/// N.5, O.1: each call that fails, at every place where it is made, is an error that names it or is
/// made good (C.3); figures and arrays stay as they were, nothing is left, and the device works on.
#[test]
fn every_failing_call_is_an_error_and_changes_nothing() {
    let _alone = alone();
    let device = metal();
    let before = calls(None);
    let want = work(&device).unwrap();
    let count = calls(None) - before;
    drop(device);
    let (mut told, mut good) = (BTreeSet::new(), 0);
    for failing in 0..count {
        let device = metal();
        let kept = Array::<f32>::full(&device, [1000], 7.0).unwrap();
        device.synchronize().unwrap();
        let before = device.memory();
        fail_after(failing);
        let outcome = work(&device);
        fail_none();
        match outcome {
            Ok(got) => {
                assert_eq!(got, want, "call {failing}");
                good += 1;
            }
            Err(error) => {
                let text = error.to_string();
                let name = selectors().into_iter().find(|name| text.contains(name.as_str()));
                told.insert(name.unwrap_or_else(|| panic!("call {failing}: {text}")));
            }
        }
        device.synchronize().unwrap();
        let after = device.memory();
        assert_eq!((before.active, before.allocations), (after.active, after.allocations));
        assert_eq!((after.wrapped, after.mapped), (0, 0), "call {failing}");
        assert_eq!(kept.get(999).unwrap(), 7.0);
        assert_eq!(work(&device).unwrap(), want, "the device works on after call {failing}");
        drop((kept, device));
        assert_eq!(left_behind(), Vec::<String>::new(), "call {failing}");
    }
    println!("{count} calls failed, {good} made good; told: {told:?}");
    // What is made good: a block that is refused is asked for again, a copy stands in for an import,
    // what is not wired is counted so.
    let silent = [
        "newBufferWithLength:options:",
        "newBufferWithBytesNoCopy:length:options:deallocator:",
        "newResidencySetWithDescriptor:error:",
    ];
    for name in selectors() {
        assert!(told.contains(&name) || silent.contains(&name.as_str()), "{name} was never told");
    }
}

/// N.5: a selector that always fails is an error that names it, on opening too.
#[test]
fn a_device_that_fails_to_open_says_why() {
    let _alone = alone();
    fail_all("newLibraryWithSource:options:error:");
    let error = Device::named("metal").unwrap_err().to_string();
    assert!(error.contains("newLibraryWithSource:options:error: was told to fail"), "{error}");
    fail_none();
    assert_eq!(left_behind(), Vec::<String>::new());
}

/// F.3, N.1: work and handlers that finish late change no value.
#[test]
fn late_work_is_waited_for() {
    let _alone = alone();
    let device = metal();
    delay(Duration::from_micros(300), Duration::from_micros(300));
    let queues = [device.queue().unwrap(), device.queue().unwrap()];
    let a = Array::<f32>::zeros(&device, [4096]).unwrap();
    for turn in 0..40 {
        queues[turn % 2].run(|| a.assign(|x| x + 1.0)).unwrap();
        if turn % 7 == 0 {
            assert_eq!(a.get(17).unwrap(), turn as f32 + 1.0);
        }
        device.submit().unwrap();
        drop(Array::<f32>::full(&device, [5000], 3.0).unwrap());
    }
    assert_eq!(a.to_vec().unwrap(), [40.0; 4096]);
    let error = {
        a.assign(|x| x + 1.0).unwrap();
        hold(true);
        device.synchronize_timeout(Duration::from_millis(5)).unwrap_err()
    };
    assert_eq!(error.kind(), ErrorKind::Timeout);
    hold(false);
    device.synchronize().unwrap();
    drop((a, queues, device));
    assert_eq!(left_behind(), Vec::<String>::new());
}
