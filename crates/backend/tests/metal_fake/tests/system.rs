//! What follows from what the system is: limits, wiring, splits, queues, and kernels in MSL.
#![allow(clippy::unwrap_used)]

use aquifer::prelude::*;
use metal_fake::{ORDINARY, System, alone, calls, left_behind, memory, residency, system};

fn metal() -> Device {
    Device::named("metal").unwrap()
}

const MIB: u64 = 1 << 20;

/// C.1: a working set of 40 GB and 48 GB of memory give exactly 45,600,000,000.
#[test]
fn the_default_limit_is_that_of_the_rule() {
    let _alone = alone();
    for (working_set, ram, want) in [
        (40_000_000_000, 48_000_000_000, 45_600_000_000),
        (10_000_000_000, 48_000_000_000, 15_000_000_000),
        (60_000_000_000, 48_000_000_000, 45_600_000_000),
    ] {
        memory(working_set, ram, 1 << 34);
        let device = metal();
        let stats = device.memory();
        assert_eq!((stats.memory_limit, stats.cache_limit), (want, want));
        assert_eq!(stats.working_set, working_set.min(ram));
    }
    assert_eq!(left_behind(), Vec::<String>::new());
}

/// M.1: what is wired is what residency sets hold, by whole blocks; sets stay small, commits are
/// batched, and nothing stays requested.
#[test]
fn wiring_is_by_residency_sets() {
    let _alone = alone();
    memory(8 << 30, 16 << 30, 1 << 30);
    let device = metal();
    let before = residency();
    assert_eq!((before.bytes, before.sets), (0, 0));
    device.set_wired_limit(6 << 30).unwrap();
    let make = |bytes: u64| device.allocate_raw(bytes, Storage::Private).unwrap();
    let mut arrays: Vec<_> = (0..200).map(|_| make(400_000)).collect();
    arrays.extend((0..5).map(|_| make(400 * MIB)));
    let used = Array::<f32>::ones(&device, [10]).unwrap();
    device.synchronize().unwrap();
    let (now, stats) = (residency(), device.memory());
    assert_eq!(now.bytes, stats.wired, "{stats}");
    assert!(stats.wired >= stats.active && stats.wired <= stats.reserved);
    assert!(now.largest <= 1 << 30, "a set of {} bytes", now.largest);
    assert!(now.sets >= 3, "{now:?}");
    let commits = now.commits - before.commits;
    assert!(commits < 100, "{commits} commits for {} arrays", arrays.len());
    // Lowering the limit unwires at once; what is freed is not wired.
    device.set_wired_limit(700 * MIB).unwrap();
    assert!(residency().bytes <= 700 * MIB);
    assert_eq!(residency().bytes, device.memory().wired);
    drop((arrays, used));
    device.clear_cache();
    assert_eq!((residency().bytes, residency().sets, device.memory().wired), (0, 0, 0));
    drop(device);
    assert_eq!(left_behind(), Vec::<String>::new());
}

/// M.1: before macOS 15 nothing is wired, and the device says so.
#[test]
fn an_older_system_wires_nothing() {
    let _alone = alone();
    system(System { macos15: false, ..ORDINARY });
    let device = metal();
    assert!(!device.caps().can_wire);
    device.set_wired_limit(64 * MIB).unwrap();
    let a = Array::<f32>::ones(&device, [100_000]).unwrap();
    assert_eq!((a.sum().unwrap().item().unwrap(), device.memory().wired), (100_000.0, 0));
    drop((a, device));
    assert_eq!(left_behind(), Vec::<String>::new());
}

/// G.2: memory of the caller's above the largest buffer is several buffers; work over it is cut, and
/// its values are the same. An array above it is refused by name.
#[test]
fn long_imports_are_split() {
    let _alone = alone();
    memory(2 << 30, 4 << 30, MIB);
    let device = metal();
    let len = 3 << 20;
    let values: Vec<f32> = (0..len).map(|k| (k % 1000) as f32).collect();
    let want: f64 = values.iter().map(|&x| f64::from(x)).sum();
    let wrapped = device.wrap(values.clone()).unwrap();
    assert_eq!(wrapped.origin(), Origin::Wrapped);
    let sum = f64::from(wrapped.sum().unwrap().item().unwrap());
    assert!((sum - want).abs() <= 1e-6 * want, "{sum}, not {want}");
    wrapped.assign(|x| x + 1.0).unwrap();
    assert_eq!(wrapped.argmax().unwrap().item().unwrap(), 999);
    let part = wrapped.slice(1_234_567..1_300_001).unwrap().copy().unwrap().to_vec().unwrap();
    assert!(part.iter().zip(&values[1_234_567..]).all(|(got, x)| *got == x + 1.0));
    let back = wrapped.into_vec().unwrap();
    assert!(back.iter().zip(&values).all(|(got, x)| *got == x + 1.0));
    let error = Array::<f32>::zeros(&device, [len]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    drop(device);
    assert_eq!(left_behind(), Vec::<String>::new());
}

/// N.1: more queues than Metal has are spread over its own; each has an order of its own.
#[test]
fn queues_share_what_there_is() {
    let _alone = alone();
    let device = metal();
    let before = calls(Some("newCommandQueueWithMaxCommandBufferCount:"));
    let queues: Vec<_> = (0..40).map(|_| device.queue().unwrap()).collect();
    let a = Array::<u32>::zeros(&device, [1000]).unwrap();
    let mut parts = Vec::new();
    for queue in &queues {
        queue.run(|| a.assign(|x| x + 1)).unwrap();
        parts.push(queue.run(|| a.map(|x| x * 1)).unwrap());
    }
    let made = calls(Some("newCommandQueueWithMaxCommandBufferCount:")) - before;
    assert!((2..=16).contains(&made), "{made} of Metal's queues");
    for (number, part) in parts.iter().enumerate() {
        assert_eq!(part.get(999).unwrap(), number as u32 + 1);
    }
    drop((a, parts, queues, device));
    assert_eq!(left_behind(), Vec::<String>::new());
}

/// A pipeline that may have few invocations is printed anew for so many; a user's own says so.
#[test]
fn small_workgroups_are_enough() {
    let _alone = alone();
    let work = |device: &Device| -> Result<_> {
        let values: Vec<f32> = (0..100_003).map(|k| (k % 97) as f32 * 0.25).collect();
        let a = device.array(&values)?;
        let b = a.map(|x| x * 0.5 + 1.0)?;
        let (sum, greatest, at, count) =
            b.reduce(|x| (x.sum(), x.greatest(), x.arg_greatest(), x.gt(6.0).count()))?;
        Ok((b.to_vec()?, sum.item()?, greatest.item()?, at.item()?, count.item()?))
    };
    let want = work(&Device::cpu().unwrap()).unwrap();
    for most_threads in [32, 100, 256] {
        system(System { most_threads, ..ORDINARY });
        let device = metal();
        assert_eq!(work(&device).unwrap(), want, "of {most_threads}");
        if most_threads < 128 {
            // SAFETY: the kernel writes nothing.
            let source = unsafe { KernelSource::msl("kernel void f() {}") };
            for sizes in [[128, 1, 1], [0, 1, 1], [1 << 31, 1 << 31, 4], [1, 1, 2000]] {
                let error = device.kernel(source.clone().workgroup(sizes)).unwrap_err().to_string();
                let named = error.contains(&format!("{sizes:?}")) && error.contains("workgroup()");
                assert!(named, "{error}");
            }
        }
    }
    assert_eq!(left_behind(), Vec::<String>::new());
}

const SAXPY: &str = "#include <metal_stdlib>
using namespace metal;

kernel void saxpy(
    device const float* x [[buffer(0)]],
    device float* y [[buffer(1)]],
    constant float& factor [[buffer(2)]],
    constant uint& count [[buffer(3)]],
    uint at [[thread_position_in_grid]],
    uint in_group [[thread_index_in_threadgroup]])
{
    threadgroup float tile[64];
    tile[in_group] = at < count ? x[at] : 0.0;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (at < count) {
        y[at] += factor * tile[in_group];
    }
}
";

/// N.4: a kernel in MSL: access and order are those of its text, scalars are passed by their numbers,
/// a fault shows its line, and a text is compiled once.
#[test]
fn kernels_may_be_in_msl() {
    let _alone = alone();
    let device = metal();
    // SAFETY: the kernel keeps to `count`, which is given as the arrays' length.
    let source = unsafe { KernelSource::msl(SAXPY) }.workgroup([64, 1, 1]).named("saxpy");
    let saxpy = device.kernel(source.clone()).unwrap();
    let compiled = device.compiled();
    device.kernel(source).unwrap();
    assert_eq!(device.compiled(), compiled, "cached by its source");
    let x = Array::<f32, Private>::full(&device, [1000], 3.0).unwrap();
    let y = Array::<f32>::ones(&device, [1000]).unwrap();
    let scalars = || [kernel::scalar(2.0f32), kernel::scalar(1000u32)];
    for turn in 1..=3 {
        let [factor, count] = scalars();
        saxpy.run(&[kernel::array(&x), kernel::array(&y), factor, count], 1000).unwrap();
        assert_eq!(y.get(999).unwrap(), 1.0 + 6.0 * turn as f32, "each run sees the one before");
    }
    let halves = Array::<f16>::ones(&device, [1000]).unwrap();
    let [factor, count] = scalars();
    let error = saxpy.run(&[kernel::array(&halves), kernel::array(&y), factor, count], 1000);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("f16") && error.contains("f32"), "{error}");
    let [factor, _] = scalars();
    assert!(saxpy.run(&[kernel::array(&x), kernel::array(&y), factor], 1000).is_err());
    // SAFETY: what does not compile does not run.
    let faulty = unsafe { KernelSource::msl(&SAXPY.replace("factor *", "factor +*")) };
    let error = device.kernel(faulty).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Kernel);
    assert!(error.to_string().contains("program_source:16:"), "{error}");
    drop((x, y, halves, saxpy, device));
    assert_eq!(left_behind(), Vec::<String>::new());
}

/// N.4: 64-bit divisions of a user's WGSL, which naga's own MSL gets wrong, compile and follow WGSL's
/// rules.
#[test]
fn wide_divisions_compile() {
    let _alone = alone();
    let device = metal();
    let text = "
        @group(0) @binding(0) var<storage, read_write> u: array<u64>;
        @group(0) @binding(1) var<storage, read_write> s: array<i64>;
        @group(0) @binding(2) var<storage, read_write> w: array<u32>;
        @compute @workgroup_size(1) fn divide() {
            u[2] = u[0] / u[1];
            u[3] = u[0] % u[1];
            s[2] = s[0] / s[1];
            s[3] = s[0] % s[1];
            w[2] = w[0] / w[1] + w[0] % w[1];
            let pair = vec2<u64>(u[0], 7lu) / vec2<u64>(3lu, u[1]);
            u[4] = pair.x;
            u[5] = pair.y;
        }";
    let divide = device.kernel(KernelSource::wgsl(text)).unwrap();
    let u = device.array(&[1u64 << 40, 0, 9, 9, 9, 9]).unwrap();
    let s = device.array(&[i64::MIN, -1, 9, 9]).unwrap();
    let w = device.array(&[7u32, 0, 9]).unwrap();
    divide.run(&[kernel::array(&u), kernel::array(&s), kernel::array(&w)], 1).unwrap();
    assert_eq!(u.to_vec().unwrap()[2..], [1 << 40, 0, (1 << 40) / 3, 7]);
    assert_eq!(s.to_vec().unwrap()[2..], [i64::MIN, 0]);
    assert_eq!(w.to_vec().unwrap()[2], 7);
    drop((u, s, w, divide, device));
    assert_eq!(left_behind(), Vec::<String>::new());
}

/// The device is listed with what it is; one that is not there is refused by name.
#[test]
fn devices_are_listed() {
    let _alone = alone();
    memory(40_000_000_000, 48_000_000_000, 1 << 34);
    let list = Device::list();
    let entry = list.iter().find(|entry| entry.api == "metal").unwrap();
    assert_eq!(entry.selector, "metal:0");
    assert_eq!(entry.name.as_deref(), Some("Apple stand-in"));
    assert_eq!((entry.kind, entry.memory), (Some("integrated"), Some(48_000_000_000)));
    assert!(entry.driver.as_deref().unwrap().contains("15.1"));
    assert_eq!(Device::named("metal:0").unwrap().name(), "Apple stand-in");
    // The best there is, unasked.
    assert_eq!(Device::open().unwrap().backend(), "metal");
    let error = Device::named("metal:3").unwrap_err().to_string();
    assert!(error.contains("no Metal device 3") && error.contains("there are 1"), "{error}");
    system(System { devices: false, ..ORDINARY });
    let error = Device::named("metal").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoDevice);
    assert!(error.to_string().contains("no Metal device"), "{error}");
    let list = Device::list();
    let entry = list.iter().find(|entry| entry.api == "metal").unwrap();
    assert!(entry.name.is_none() && entry.reason.is_some());
    assert_eq!(left_behind(), Vec::<String>::new());
}
