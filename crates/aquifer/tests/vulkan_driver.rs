//! The Vulkan driver's calls: each made to fail, a lost device, steady loops, and the validation
//! layer itself (rules B.7, D.3, F.7, N.5, O.1).
#![allow(clippy::unwrap_used)]

mod conformance;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aquifer::backend::{Backend, Batch, Binding, Command, Vulkan, VulkanOptions};
use aquifer::core::Memory;
use aquifer::prelude::*;
use conformance::Opened;

const DEVICE_LOST: i32 = -4;
const UNKNOWN: i32 = -13;

/// A device under the validation layer where it is installed; `None` where there is no Vulkan.
fn vulkan(options: &VulkanOptions) -> Option<Arc<Vulkan>> {
    let validation = std::env::var("AQUIFER_VULKAN_VALIDATION").is_ok_and(|on| on == "1");
    match Vulkan::open_with(&VulkanOptions { validation, ..options.clone() }) {
        Ok(vulkan) => Some(vulkan),
        Err(error) => {
            let _ = Opened::missing("vulkan", &error.to_string());
            None
        }
    }
}

fn device(vulkan: &Arc<Vulkan>) -> Device {
    Device::builder().backend(Arc::clone(vulkan) as _).open().unwrap()
}

const SCALE: &str = "
@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(32)
fn scale(@builtin(global_invocation_id) id: vec3<u32>) {
    y[id.x] *= 2.0;
}";

/// A piece of work that makes every call of the driver that can fail.
fn work(device: &Device) -> Result<f32> {
    let a = Array::<f32>::full(device, [100_000], 2.0)?;
    let b = device.array_in(Private, &[1.0f32; 1000])?;
    let wrapped = device.wrap(vec![1.0f32; 100])?;
    let scale = device.kernel(KernelSource::wgsl(SCALE))?;
    let c = a.map(|x| x * 3.0)?;
    scale.run(&[kernel::array(&c)], c.len())?;
    wrapped.assign(|x| x + 1.0)?;
    let queue = device.queue()?;
    let d = queue.run(|| c.zip(&a)?.map(|(x, y)| x - y))?;
    Ok(d.sum()?.item()? + b.sum()?.item()? + wrapped.sum()?.item()?)
}

/// Every array is gone; what batches kept alive goes a moment after its ticket.
fn settled(device: &Device) -> aquifer::MemoryStats {
    device.synchronize().unwrap();
    let start = Instant::now();
    while device.memory().wrapped > 0 && start.elapsed() < Duration::from_secs(5) {
        std::thread::yield_now();
    }
    device.memory()
}

/// N.5, O.1: each failing call of the driver, at every place where it is made, is an error with
/// the call's name and code, or is made good (C.3); figures and arrays stay as they were, and the
/// device works on.
#[test]
fn every_failing_call_is_an_error_and_changes_nothing() {
    let Some(probe) = vulkan(&VulkanOptions::default()) else { return };
    let first = device(&probe);
    let before = probe.calls().total();
    let want = work(&first).unwrap();
    let calls = probe.calls().total() - before;
    drop(first);
    let (mut seen, mut told) = (BTreeSet::new(), BTreeSet::new());
    for failing in 0..calls {
        let vulkan = vulkan(&VulkanOptions::default()).unwrap();
        let device = device(&vulkan);
        let kept = Array::<f32>::full(&device, [1000], 7.0).unwrap();
        device.synchronize().unwrap();
        let (before, counts) = (settled(&device), vulkan.calls().counts());
        vulkan.calls().fail_after(failing, UNKNOWN);
        let outcome = work(&device);
        vulkan.calls().fail_after(u64::MAX / 2, UNKNOWN);
        let made = vulkan.calls().counts();
        seen.extend(made.iter().zip(&counts).filter(|(a, b)| a.1 > b.1).map(|(a, _)| a.0));
        match outcome {
            Ok(got) => assert_eq!(got, want),
            Err(error) => {
                let text = error.to_string();
                let call = made.iter().find(|(name, _)| text.contains(name));
                assert!(text.contains("-13") && call.is_some(), "call {failing}: {text}");
                told.insert(call.unwrap().0);
            }
        }
        let after = settled(&device);
        assert_eq!((before.active, before.allocations), (after.active, after.allocations));
        assert_eq!((after.wrapped, after.mapped), (0, 0), "call {failing}");
        assert_eq!(kept.get(999).unwrap(), 7.0);
        assert_eq!(work(&device).unwrap(), want, "the device works on after call {failing}");
        drop(kept);
        settled(&device);
        device.clear_cache();
        assert_eq!(device.memory().reserved, 0);
        drop(device);
        assert_eq!(vulkan.messages(), Vec::<String>::new(), "call {failing}");
    }
    println!("{calls} calls failed, {} kinds; told as errors: {told:?}", seen.len());
    // What is never called here: flushes of memory that is not coherent.
    let all: BTreeSet<&str> = probe.calls().counts().iter().map(|(name, _)| *name).collect();
    let flushes = BTreeSet::from(["vkFlushMappedMemoryRanges", "vkInvalidateMappedMemoryRanges"]);
    let unseen: BTreeSet<&str> = all.difference(&seen).copied().collect();
    assert!(unseen.is_subset(&flushes), "never called: {unseen:?}");
    // What may be made good: a block that is refused is asked for again (C.3), a copy stands in for
    // an import, and a batch that was full when it was refused goes with the next.
    let good = ["vkAllocateMemory", "vkBindBufferMemory", "vkCreateBuffer", "vkMapMemory"];
    let import = ["vkGetMemoryHostPointerPropertiesEXT"];
    let batch =
        ["vkAllocateCommandBuffers", "vkBeginCommandBuffer", "vkEndCommandBuffer", "vkQueueSubmit"];
    let waits = ["vkGetSemaphoreCounterValue", "vkWaitSemaphores"];
    for name in seen.difference(&told) {
        let mut known = good.iter().chain(&import).chain(&batch).chain(&waits);
        assert!(known.any(|known| known == name), "{name} was never told");
    }
}

/// N.5: a driver that does not answer one who only asks how far it is tells nobody else: the next
/// wait, which finds the work done, succeeds.
#[test]
fn a_failed_question_is_not_the_next_waits_error() {
    let Some(vulkan) = vulkan(&VulkanOptions::default()) else { return };
    let queue = vulkan.open_queue().unwrap();
    let mut ticket = 0;
    // Many, so that some are still under way when the question is asked.
    for _ in 0..300 {
        let mut batch = Batch { commands: vec![Command::Barrier], ..Batch::default() };
        // SAFETY: a barrier touches no memory.
        ticket = unsafe { vulkan.submit(queue, &mut batch) }.unwrap();
    }
    vulkan.calls().fail_after(0, UNKNOWN);
    assert!(vulkan.reached(queue) <= ticket);
    assert_eq!(vulkan.wait(queue, ticket, None), Ok(()));
    assert_eq!(vulkan.reached(queue), ticket);
}

/// F.7, N.5: a device that is lost ends every wait with an error that names the call; nothing
/// hangs, and dropping everything is fine. Whatever call finds out.
#[test]
fn a_lost_device_ends_every_wait() {
    for lost_at in [0, 1, 2, 3, 5, 8] {
        let Some(vulkan) = vulkan(&VulkanOptions::default()) else { return };
        let device = device(&vulkan);
        let a = Array::<f32>::ones(&device, [1000]).unwrap();
        device.synchronize().unwrap();
        vulkan.calls().fail_after(lost_at, DEVICE_LOST);
        let mut errors = Vec::new();
        for _ in 0..20 {
            let outcome = a.map(|x| x + 1.0).and_then(|b| b.to_vec());
            errors.extend(outcome.err());
        }
        assert!(errors.len() >= 15, "lost at {lost_at}: {} errors", errors.len());
        for error in errors {
            assert!(error.to_string().contains("code -4"), "{error}");
        }
        let again = a.read_timeout(Duration::from_secs(5));
        assert!(!again.is_err_and(|error| error.kind() == ErrorKind::Timeout));
        drop(device);
        drop(a);
    }
}

/// B.7: a steady loop makes no driver allocation and no object: the counts after 10 and after
/// 1,000 turns are equal, but for what each turn is.
#[test]
fn steady_loops_make_nothing() {
    let Some(vulkan) = vulkan(&VulkanOptions::default()) else { return };
    let device = device(&vulkan);
    let a = Array::<f32>::ones(&device, [20_000]).unwrap();
    let scale = device.kernel(KernelSource::wgsl(SCALE)).unwrap();
    let other = device.queue().unwrap();
    let each_turn = [
        "vkBeginCommandBuffer",
        "vkEndCommandBuffer",
        "vkQueueSubmit",
        "vkWaitSemaphores",
        "vkGetSemaphoreCounterValue",
    ];
    let made = || -> Vec<(&str, u64)> {
        let counts = vulkan.calls().counts();
        counts.into_iter().filter(|(name, _)| !each_turn.contains(name)).collect()
    };
    let mut after_ten = Vec::new();
    for turn in 1..=1000 {
        let b = a.map(|x| x * 2.0).unwrap();
        scale.run(&[kernel::array(&b)], 128).unwrap();
        let c = other.run(|| b.zip(&a)?.map(|(x, y)| x + y)).unwrap();
        assert_eq!(c.sum().unwrap().item().unwrap(), 60_256.0);
        if turn == 10 {
            after_ten = made();
        }
    }
    assert_eq!(made(), after_ten);
}

/// D.3: what is reserved is what the driver gave: every block, and nothing after it went back.
#[test]
fn reserved_is_what_the_driver_gave() {
    let Some(vulkan) = vulkan(&VulkanOptions::default()) else { return };
    let device = device(&vulkan);
    let mut live = Vec::new();
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..200 {
        live.push(Array::<u8, Private>::zeros(&device, [random.usize(1..300_000)]).unwrap());
        if live.len() > 20 {
            live.swap_remove(random.usize(0..live.len()));
        }
        assert_eq!(device.memory().reserved, vulkan.held());
    }
    drop(live);
    device.synchronize().unwrap();
    device.clear_cache();
    assert_eq!((device.memory().reserved, vulkan.held()), (0, 0));
}

/// The layer is there and is heard: a copy onto itself is a mistake that it knows.
#[test]
fn the_validation_layer_is_heard() {
    if !std::env::var("AQUIFER_VULKAN_VALIDATION").is_ok_and(|on| on == "1") {
        println!("skipped: AQUIFER_VULKAN_VALIDATION=1 is not set");
        return;
    }
    let Some(vulkan) = vulkan(&VulkanOptions::default()) else { return };
    let block = vulkan.obtain(1 << 20, Storage::Private).unwrap();
    let queue = vulkan.open_queue().unwrap();
    let bytes = |offset: u64| Binding {
        block: block.id,
        offset,
        len: 256,
        address: offset,
        dtype: Dtype::U8,
    };
    let mut batch = Batch::default();
    batch.commands.push(Command::Copy { from: bytes(0), to: bytes(16) });
    // SAFETY: the ranges lie in the block, which lives until the wait; that they overlap is the
    // mistake, and of bytes that nobody reads.
    let ticket = unsafe { vulkan.submit(queue, &mut batch) }.unwrap();
    vulkan.wait(queue, ticket, None).unwrap();
    vulkan.give_back(block);
    assert!(vulkan.messages().iter().any(|text| text.contains("vkCmdCopyBuffer")));
}

/// H.2: where memory cannot be imported, what is wrapped or mapped is copied and says why.
#[test]
fn without_imports_copies_say_why() {
    let options = VulkanOptions { no_import: true, ..VulkanOptions::default() };
    let Some(vulkan) = vulkan(&options) else { return };
    let device = device(&vulkan);
    let wrapped = device.wrap(vec![1.0f32, 2.0]).unwrap();
    assert_eq!(wrapped.origin().to_string(), "copied: the driver cannot import host memory");
    assert_eq!(device.memory().wrapped, 0);
    assert_eq!(device.wrap_exact(vec![1.0f32]).unwrap_err().kind(), ErrorKind::Import);
    let header = r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  "#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend([1.5f32, 2.5].iter().flat_map(|x| x.to_le_bytes()));
    let path = std::env::temp_dir().join(format!("aquifer-copied-{}", std::process::id()));
    std::fs::write(&path, &bytes).unwrap();
    let model = Checkpoint::open(&device, &path).unwrap();
    let array = model.array::<f32>("w").unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(array.origin().to_string().contains("cannot use mapped files in place"));
    assert_eq!(
        array.zip(&wrapped).unwrap().map(|(x, y)| x * y).unwrap().to_vec().unwrap(),
        [1.5, 5.0]
    );
    assert!(array.is_read_only() && array.fill(0.0).is_err());
}

/// E.5, and the errors of opening: each says why.
#[test]
fn devices_that_are_not_here_say_why() {
    let Some(vulkan) = vulkan(&VulkanOptions::default()) else { return };
    println!("{vulkan:?}");
    let error = Device::named("vulkan:99").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoDevice);
    assert!(error.to_string().contains("no Vulkan device 99"), "{error}");
    let listed = Device::list();
    let first = listed.iter().find(|entry| entry.selector == "vulkan:0").unwrap();
    assert!(first.name.is_some() && first.memory > Some(0) && first.driver.is_some());
    let opened = Device::named("vulkan:0").unwrap();
    assert_eq!(Some(opened.name()), first.name.as_deref());
    // A software driver is taken only by name.
    if first.kind == Some("software") && std::env::var_os("AQUIFER_DEVICE").is_none() {
        assert_eq!(Device::open().unwrap().backend(), "cpu");
    }
}

/// Which device a child process opens, and with what file.
const CHILD: &str = "AQUIFER_TEST_SHRINKING";

/// L.4: a file that becomes shorter while work on it is under way ends the process that did so (no
/// library can prevent that), at once and by the signal for it; nothing hangs. In a child process.
#[test]
fn a_file_that_shrinks_under_work_ends_the_process() {
    if let Ok(what) = std::env::var(CHILD) {
        let (api, path) = what.split_once('=').unwrap();
        return shrink_under_work(api, std::path::Path::new(path));
    }
    for api in ["cpu", "vulkan"] {
        if api == "vulkan" && vulkan(&VulkanOptions::default()).is_none() {
            continue;
        }
        let name = format!("aquifer-shrinking-{}-{api}.safetensors", std::process::id());
        let path = std::env::temp_dir().join(name);
        let name = "a_file_that_shrinks_under_work_ends_the_process";
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(CHILD, format!("{api}={}", path.display()))
            .output()
            .unwrap();
        let _ = std::fs::remove_file(&path);
        use std::os::unix::process::ExitStatusExt;
        let text = String::from_utf8_lossy(&child.stdout);
        assert!(text.contains("mapped") || text.contains("copied"), "{text}");
        // Copied tensors are looked at before: then it is an error, and the child ends well.
        let ended = child.status.signal() == Some(7) || child.status.success();
        assert!(ended, "{api}: {:?} {text}", child.status);
        println!("{api}: {:?}", child.status);
    }
}

fn shrink_under_work(api: &str, path: &std::path::Path) {
    let header = r#"{"w":{"dtype":"F32","shape":[1048576],"data_offsets":[0,4194304]}}      "#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + (4 << 20), 0);
    std::fs::write(path, &bytes).unwrap();
    let device = Device::named(api).unwrap();
    let model = Checkpoint::open(&device, path).unwrap();
    let array = model.array::<f32>("w").unwrap();
    println!("{}", array.origin());
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(4096).unwrap();
    let sum = array.sum().and_then(|sum| sum.item());
    println!("{sum:?}");
    assert!(model.array::<f32>("w").is_err(), "a file that is shorter is noticed when asked");
}
