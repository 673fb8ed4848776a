//! Kernels of the user's own in WGSL (rule N.4; peer case 24), with the same in Rust for the CPU.

use std::time::{Duration, Instant};

use aquifer::{HostArgs, Kernel};

use super::*;

/// Copies the first array to the second.
pub const COPY: &str = "
@group(0) @binding(0) var<storage, read> source: array<f32>;
@group(0) @binding(1) var<storage, read_write> sink: array<f32>;
@compute @workgroup_size(64)
fn copy(@builtin(global_invocation_id) id: vec3<u32>) {
    sink[id.x] = source[id.x];
}";

/// Workgroups and turns that take a while; the array stays as it is. (llvmpipe ends all loops of an
/// invocation after 65,535 steps: there the workgroups do it.)
const BUSY: &str = "
@group(0) @binding(0) var<storage, read_write> y: array<f32>;
var<immediate> turns: u32;
@compute @workgroup_size(1)
fn busy() {
    var x = turns;
    for (var i = 0u; i < turns; i += 1u) {
        for (var k = 0u; k < 1000u; k += 1u) {
            x = (x ^ (x >> 13u)) * 1664525u + 1013904223u;
        }
    }
    if x == 1u {
        y[0] = 1.0;
    }
}";

/// A kernel that takes a while.
pub struct Busy {
    kernel: Kernel,
    turns: u32,
}

impl Busy {
    /// One that takes about so long, at least half of it.
    pub fn new(device: &Device, time: Duration) -> Result<Self> {
        let source = KernelSource::wgsl(BUSY).named("busy");
        let kernel = device.kernel(source.with_cpu(move |_| {
            std::thread::sleep(time);
            Ok(())
        }))?;
        let mut busy = Self { kernel, turns: 1 };
        if device.caps().host_kernels {
            return Ok(busy);
        }
        let array = Array::<f32>::zeros(device, [1])?;
        loop {
            device.synchronize()?;
            let start = Instant::now();
            busy.run(&array)?;
            device.synchronize()?;
            let took = start.elapsed();
            if took >= time || busy.turns > 1 << 15 {
                return Ok(busy);
            }
            busy.turns *= 2;
        }
    }

    pub fn run(&self, array: &Array<f32>) -> Result<()> {
        let args = [kernel::array(array), kernel::scalar(self.turns)];
        self.kernel.run_grid(&args, [self.turns.min(1 << 15), 1, 1])
    }
}

/// Keeps a device busy with an array for about so long.
pub fn busy(device: &Device, array: &Array<f32>, time: Duration) -> Result<()> {
    Busy::new(device, time)?.run(array)
}

const SAXPY: &str = "
struct Values { factor: f32, add: f32 }
var<immediate> values: Values;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;
@compute @workgroup_size(128)
fn saxpy(@builtin(global_invocation_id) id: vec3<u32>) {
    y[id.x] += values.factor * x[id.x] + values.add;
}";

fn saxpy(k: &mut HostArgs<'_>) -> std::result::Result<(), String> {
    let (x, range) = (k.input::<f32>(0)?, k.range());
    let (factor, add) = (k.scalar::<f32>(0)?, k.scalar::<f32>(1)?);
    for (y, x) in k.output::<f32>(0)?.iter_mut().zip(&x[range]) {
        *y += factor * x + add;
    }
    Ok(())
}

/// A device takes the source that is for it, and says which it lacks.
pub fn sources_are_chosen_by_device(device: &Device) -> Result<()> {
    let kernel = device.kernel(KernelSource::wgsl(SAXPY).with_cpu(saxpy).named("saxpy"))?;
    for len in [1, 1000, 100_000] {
        let x = Array::<f32, Private>::full(device, [len], 3.0)?;
        let y = Array::<f32>::ones(device, [len])?;
        let scalars = [kernel::scalar(2.0f32), kernel::scalar(0.5f32)];
        let [factor, add] = scalars;
        kernel.run(&[kernel::array(&x), kernel::array(&y), factor, add], len)?;
        assert!(y.read()?.iter().all(|&y| y == 7.5));
    }
    let (own, other) = (KernelSource::wgsl(SAXPY), KernelSource::cpu(saxpy));
    let other = if device.caps().host_kernels { own } else { other };
    let error = device.kernel(other).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Kernel);
    assert!(error.to_string().contains("no source for the device"), "{error}");
    Ok(())
}

/// A fault of the text is told with its line, also where the closure would run.
pub fn faults_show_their_line(device: &Device) -> Result<()> {
    let make = |text: &str| device.kernel(KernelSource::wgsl(text).with_cpu(saxpy)).unwrap_err();
    let error = make(&SAXPY.replace("values.factor *", "values.factor +* "));
    assert_eq!(error.kind(), ErrorKind::Kernel);
    assert!(error.to_string().contains("kernel.wgsl:8"), "{error}");
    let error = make(&SAXPY.replace("y[id.x] +=", "y[id.x] += z +")).to_string();
    assert!(error.contains("kernel.wgsl:8") && error.contains('z'), "{error}");
    let error = make(&SAXPY.replace("values.factor", "id")).to_string();
    assert!(error.contains("kernel.wgsl:8"), "{error}");
    let error = make("fn f() {}").to_string();
    assert!(error.contains("no @compute function"), "{error}");
    let texture = "@group(0) @binding(0) var t: texture_2d<f32>;
        @compute @workgroup_size(1) fn f() { _ = textureDimensions(t); }";
    assert!(make(texture).to_string().contains("takes arrays"), "{}", make(texture));
    let long = "struct Long { a: array<u32, 65> }
        var<immediate> values: Long;
        @group(0) @binding(0) var<storage, read_write> y: array<u32>;
        @compute @workgroup_size(1) fn f() { y[0] = values.a[0]; }";
    assert!(make(long).to_string().contains("260 bytes of immediates"), "{}", make(long));
    let two = SAXPY.replace("@compute", "@compute @workgroup_size(1) fn other() {}\n@compute");
    assert!(make(&two).to_string().contains("saxpy"), "{}", make(&two));
    let named = KernelSource::wgsl(&two).with_cpu(saxpy);
    device.kernel(named.clone().entry("saxpy"))?;
    let error = device.kernel(named.entry("third")).unwrap_err().to_string();
    assert!(error.contains("'third'") && error.contains("other"), "{error}");
    Ok(())
}

/// What a kernel does with an array is in its text: `x` is `read_write` above and only read.
pub fn access_is_read_from_the_text(device: &Device) -> Result<()> {
    let kernel = device.kernel(KernelSource::wgsl(SAXPY).with_cpu(saxpy))?;
    let x = Array::<f32>::ones(device, [8])?;
    let ys = [Array::<f32>::zeros(device, [8])?, Array::<f32>::zeros(device, [8])?];
    let run = |from: &Array<f32>, to: &Array<f32>, factor: f32| {
        let scalars = [kernel::scalar(factor), kernel::scalar(0.0f32)];
        let [factor, add] = scalars;
        kernel.run(&[kernel::array(from), kernel::array(to), factor, add], 8)
    };
    // Follows what filled the arrays.
    run(&x, &ys[0], 1.0)?;
    let before = device.barriers();
    run(&x, &ys[1], 1.0)?;
    assert_eq!(device.barriers(), before, "two readers of one array are independent");
    run(&ys[0], &ys[1], 1.0)?;
    assert_eq!(device.barriers(), before + 1, "what was written is read");
    assert_eq!(ys[1].to_vec()?, [2.0; 8]);
    let wrong = kernel.run(
        &[
            kernel::array(&ys[0]),
            kernel::read(&ys[1]),
            kernel::scalar(1.0f32),
            kernel::scalar(0.0f32),
        ],
        8,
    );
    assert!(wrong.unwrap_err().to_string().contains("written by its source"));
    let guard = ys[0].read()?;
    run(&ys[0], &ys[1], 0.0)?;
    assert_eq!(guard[0], 1.0, "a guard that reads lets a kernel read");
    Ok(())
}

/// Out-of-range indices read 0 and write nothing, whatever memory is beside the array.
pub fn indices_stay_inside(device: &Device) -> Result<()> {
    if device.caps().host_kernels {
        return Ok(());
    }
    let wild = device.kernel(KernelSource::wgsl(
        "@group(0) @binding(0) var<storage, read> source: array<u32>;
         @group(0) @binding(1) var<storage, read_write> sink: array<u32>;
         @compute @workgroup_size(64)
         fn wild(@builtin(global_invocation_id) id: vec3<u32>) {
             sink[id.x] = source[id.x + 4u] + source[id.x * 65536u + 1048576u];
             sink[id.x + 1073741824u] = 9u;
         }",
    ))?;
    let whole = Array::<u32>::full(device, [64], 7)?;
    let (from, to) = (whole.slice(16..24)?, whole.slice(32..40)?);
    wild.run(&[kernel::array(&from), kernel::array(&to)], 64)?;
    let got = whole.to_vec()?;
    assert_eq!(got[32..40], [7, 7, 7, 7, 0, 0, 0, 0], "beyond the source is 0");
    assert!(got[..32].iter().chain(&got[40..]).all(|&x| x == 7), "nothing beside is touched");
    Ok(())
}

/// A view at any element is bound; one that lies where the device cannot bind it is copied.
pub fn views_are_bound_where_they_lie(device: &Device) -> Result<()> {
    let kernel = device.kernel(KernelSource::wgsl(SAXPY).with_cpu(saxpy))?;
    let x = device.array(&(0..100).map(|x| x as f32).collect::<Vec<_>>())?;
    for (at, to) in [(0, 0), (1, 3), (5, 64), (17, 32), (31, 1)] {
        let y = Array::<f32>::zeros(device, [100])?;
        let (view, target) = (x.slice(at..at + 30)?, y.slice(to..to + 30)?);
        let args = [kernel::array(&view), kernel::array(&target), kernel::scalar(2.0f32)];
        let [view, target, factor] = args;
        kernel.run(&[view, target, factor, kernel::scalar(0.0f32)], 30)?;
        let got = y.to_vec()?;
        for (place, got) in got.iter().enumerate() {
            let inside = (to..to + 30).contains(&place);
            let want = if inside { 2.0 * (place - to + at) as f32 } else { 0.0 };
            assert_eq!(*got, want, "{at} to {to}: {place}");
        }
    }
    Ok(())
}

/// Bytes seen as words: what a kernel writes beyond a view's last byte goes nowhere.
pub fn bytes_are_seen_as_words(device: &Device) -> Result<()> {
    let fill = device.kernel(
        KernelSource::wgsl(
            "@group(0) @binding(7) var<storage, read_write> words: array<u32>;
             @compute @workgroup_size(8)
             fn fill(@builtin(global_invocation_id) id: vec3<u32>) {
                 words[id.x] = 0x02020202u;
             }",
        )
        .with_cpu(|k| {
            k.output::<u8>(0)?.fill(2);
            Ok(())
        }),
    )?;
    for (start, end) in [(0, 16), (1, 6), (1, 9), (3, 16), (5, 16), (16, 32)] {
        let bytes = device.array(&[1u8; 41])?;
        let view = bytes.slice(start..end)?;
        fill.run(&[kernel::array(&view)], 16)?;
        for (place, &byte) in bytes.read()?.iter().enumerate() {
            assert_eq!(byte == 2, (start..end).contains(&place), "{start}..{end}: {place}");
        }
    }
    let short = device.array(&[1u8; 16])?.slice(2..5)?;
    let error = fill.run(&[kernel::array(&short)], 8).unwrap_err().to_string();
    assert!(error.contains("has 3 bytes; its source needs 4"), "{error}");
    let empty = Array::<u8>::zeros(device, [0])?;
    fill.run(&[kernel::array(&empty)], 0)?;
    assert!(fill.run(&[kernel::array(&empty)], 8).is_err());
    Ok(())
}

/// Counts, types and devices of arguments are checked by name, and nothing is recorded.
pub fn arguments_are_checked(device: &Device) -> Result<()> {
    let kernel = device.kernel(KernelSource::wgsl(SAXPY).with_cpu(saxpy).named("saxpy"))?;
    let (x, y) = (Array::<f32>::ones(device, [8])?, Array::<f32>::ones(device, [8])?);
    let whole = Array::<i32>::ones(device, [8])?;
    let flags = Array::<bool>::ones(device, [8])?;
    let recorded = device.recorded()?;
    let one = || kernel::scalar(1.0f32);
    let refused = |args: &[kernel::Arg<'_>], text: &str| {
        let error = kernel.run(args, 8).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Kernel);
        assert!(
            error.to_string().contains(text) && error.to_string().contains("'saxpy'"),
            "{error}"
        );
    };
    refused(&[kernel::array(&x), kernel::array(&y)], "2 arrays and 2 scalars");
    refused(&[kernel::array(&whole), kernel::array(&y), one(), one()], "elements of i32");
    refused(&[kernel::array(&flags), kernel::array(&y), one(), one()], "elements of bool");
    refused(
        &[kernel::array(&x), kernel::array(&y), one(), kernel::scalar(1u32)],
        "f32 in its source",
    );
    refused(&[kernel::array(&x), kernel::array(&x), one(), one()], "overlaps");
    assert_eq!(device.recorded()?, recorded);
    let plain = KernelSource::cpu(saxpy);
    if device.caps().host_kernels {
        let error = device.kernel(plain)?.run(&[kernel::array(&x)], 8).unwrap_err();
        assert!(error.to_string().contains("read() or write()"), "{error}");
    }
    Ok(())
}

/// The grid covers the length, or is given; one that is too large is an error with the limit.
pub fn grids_are_chosen_or_given(device: &Device) -> Result<()> {
    let count = "@group(0) @binding(0) var<storage, read_write> seen: array<atomic<u32>>;
        @compute @workgroup_size(4, 2)
        fn count(@builtin(workgroup_id) w: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>) {
            atomicAdd(&seen[0], 1u);
            atomicMax(&seen[1], w.x + w.y + w.z);
        }";
    let seen = Array::<u32>::zeros(device, [2])?;
    let kernel = device.kernel(KernelSource::wgsl(count).with_cpu(|_| Ok(())))?;
    kernel.run(&[kernel::array(&seen)], 0)?;
    kernel.run_grid(&[kernel::array(&seen)], [5, 0, 1])?;
    assert_eq!(seen.to_vec()?, [0, 0]);
    kernel.run(&[kernel::array(&seen)], 9)?;
    kernel.run_grid(&[kernel::array(&seen)], [5, 3, 2])?;
    if device.caps().host_kernels {
        device.synchronize()?;
        return Ok(());
    }
    assert_eq!(seen.to_vec()?, [3 * 8 + 30 * 8, 4 + 2 + 1]);
    let error = kernel.run_grid(&[kernel::array(&seen)], [1, u32::MAX, 1]).unwrap_err();
    assert!(error.to_string().contains("above the device's"), "{error}");
    Ok(())
}
