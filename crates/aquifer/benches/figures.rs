//! The figures that the project promises, each measured against its bound in one run.
//!
//! `cargo bench -p aquifer --bench figures` prints a table: what, the median, the bound. Rivals and
//! plain loops run in turn with ours, so that noise of the machine meets both.

use std::fs::File;
use std::hint::black_box;
use std::io::Write as _;
use std::time::{Duration, Instant};

use aquifer::core::{Caps, HostModel, Pool, Request, Settings, Storage as Mode};
use aquifer::prelude::*;
use aquifer::trace::TraceOptions;
use rayon::prelude::*;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Median nanoseconds of one call, over rounds of `count` calls.
fn per_call(rounds: usize, count: usize, mut call: impl FnMut()) -> f64 {
    let round = |_| {
        let start = Instant::now();
        for _ in 0..count {
            call();
        }
        start.elapsed().as_nanos() as f64 / count as f64
    };
    median((0..rounds).map(round).collect())
}

fn print(what: &str, value: f64, unit: &str, bound: f64) {
    let verdict = if value <= bound { "ok" } else { "ABOVE THE BOUND" };
    println!("{what:<58}{value:>10.2} {unit:<8} at most {bound:>7.2}  {verdict}");
}

fn main() -> aquifer::Result<()> {
    let device = Device::cpu()?;
    // Figures by name on the command line; all of them without one.
    let names: Vec<String> =
        std::env::args().skip(1).filter(|name| !name.starts_with('-')).collect();
    let wanted = |name: &str| names.is_empty() || names.iter().any(|wanted| wanted == name);
    if wanted("pool") {
        pool_pairs();
    }
    type Figure = fn(&Device) -> aquifer::Result<()>;
    let figures: [(&str, Figure); 9] = [
        ("device", array_pairs),
        ("threads", two_threads),
        ("get", elements),
        ("small", small_work),
        ("map", fused_map),
        ("read", unrelated_read),
        ("checkpoint", checkpoint),
        ("live", many_live),
        ("trace", tracing),
    ];
    for (name, figure) in figures {
        if wanted(name) {
            figure(&device)?;
        }
    }
    Ok(())
}

/// Allocate and free of a cached size, from the pool alone.
fn pool_pairs() {
    let host = HostModel::quick();
    let mut pool = Pool::new(&Caps::model(), Settings::for_working_set(1 << 34, 1 << 35));
    for size in [256u64, 4096, 1 << 20] {
        let kept = pool.allocate(&host, Request::new(size, Mode::Shared));
        let ns = per_call(21, 20_000, || {
            if let Ok(range) = pool.allocate(&host, Request::new(size, Mode::Shared)) {
                pool.free(&host, black_box(range), Default::default());
            }
        });
        print(&format!("pool: allocate + free of a cached {size} B"), ns, "ns", 60.0);
        if let Ok(kept) = kept {
            pool.free(&host, kept, Default::default());
        }
    }
}

/// The same through the device's lock, from any thread: memory without an array around it.
fn array_pairs(device: &Device) -> aquifer::Result<()> {
    for size in [256u64, 4096, 1 << 20] {
        drop(device.allocate_raw(size, Mode::Private)?);
        let ns = per_call(21, 20_000, || {
            drop(black_box(device.allocate_raw(size, Mode::Private)));
        });
        print(&format!("device: allocate + free of a cached {size} B"), ns, "ns", 60.0);
    }
    Ok(())
}

fn two_threads(device: &Device) -> aquifer::Result<()> {
    const COUNT: usize = 400_000;
    for size in [256u64, 1 << 20] {
        let pairs = |count: usize| {
            for _ in 0..count {
                drop(black_box(device.allocate_raw(size, Mode::Private)));
            }
        };
        pairs(1000);
        let mut ratios = Vec::new();
        let mut throughput = Vec::new();
        for _ in 0..9 {
            let start = Instant::now();
            pairs(COUNT);
            let one = start.elapsed().as_nanos() as f64 / COUNT as f64;
            let start = Instant::now();
            std::thread::scope(|scope| {
                scope.spawn(|| pairs(COUNT));
                scope.spawn(|| pairs(COUNT));
            });
            let two = start.elapsed().as_nanos() as f64 / COUNT as f64;
            ratios.push(two / one);
            throughput.push(two);
        }
        println!("  2 threads, {size} B: {:.1} ns a pair on each thread", median(throughput));
        let what = format!("2 threads / 1 thread, a pair of {size} B, each thread");
        print(&what, median(ratios), "x", 3.0);
    }
    Ok(())
}

fn elements(device: &Device) -> aquifer::Result<()> {
    let array = device.array(&[1.0f32; 1024])?;
    let mut sum = 0.0;
    let mut place = 0;
    let ns = per_call(21, 100_000, || {
        place = (place + 7) & 1023;
        sum += array.get(place).unwrap_or(0.0);
    });
    black_box(sum);
    print("get() on an idle array", ns, "ns", 15.0);
    let ns = per_call(21, 100_000, || {
        place = (place + 7) & 1023;
        let _ = array.set(place, 2.0);
    });
    println!("  set() on an idle array: {ns:.1} ns");
    Ok(())
}

fn small_work(device: &Device) -> aquifer::Result<()> {
    let a = device.array(&[1.0f32; 16])?;
    let mut out = [0.0; 16];
    let ns = per_call(21, 5_000, || {
        let sum = a.zip(&a).and_then(|pair| pair.map(|(x, y)| x + y));
        let _ = sum.and_then(|sum| sum.read_into(&mut out));
    });
    assert_eq!(out, [2.0; 16]);
    print("a + a of 16 elements, submitted and read back", ns / 1000.0, "us", 1.0);
    Ok(())
}

/// A fused 6-operation map over 64 Mi f32 against the same loop by hand, on rayon; both write
/// memory that has been written before.
fn fused_map(device: &Device) -> aquifer::Result<()> {
    const LEN: usize = 64 << 20;
    let a = Array::<f32>::rand(device, [LEN])?;
    let out = Array::<f32>::zeros(device, [LEN])?;
    device.synchronize()?;
    let guard = a.read()?;
    let input: &[f32] = &guard;
    let mut plain = vec![0.0f32; LEN];
    let (mut ours, mut theirs, mut fresh) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..9 {
        let start = Instant::now();
        plain.par_chunks_mut(64 << 10).zip(input.par_chunks(64 << 10)).for_each(|(out, input)| {
            for (out, x) in out.iter_mut().zip(input) {
                *out = ((x * 2.0 + 1.0).abs().sqrt() - 0.5).min(1.25);
            }
        });
        theirs.push(start.elapsed().as_secs_f64());
        let start = Instant::now();
        out.assign_with(&a, |_, x| ((x * 2.0 + 1.0).abs().sqrt() - 0.5).min(1.25f32))?;
        device.synchronize()?;
        ours.push(start.elapsed().as_secs_f64());
        let start = Instant::now();
        let new = a.map(|x| ((x * 2.0 + 1.0).abs().sqrt() - 0.5).min(1.25f32))?;
        device.synchronize()?;
        fresh.push(start.elapsed().as_secs_f64());
        drop(new);
    }
    assert_eq!(out.read()?[..], plain[..]);
    let (ours, theirs) = (median(ours), median(theirs));
    println!(
        "  6 operations over 64 Mi f32: {:.1} ms, by hand {:.1} ms, into a new array {:.1} ms",
        ours * 1e3,
        theirs * 1e3,
        median(fresh) * 1e3
    );
    print("fused map / the loop by hand", ours / theirs, "x", 1.3);
    Ok(())
}

fn unrelated_read(device: &Device) -> aquifer::Result<()> {
    let other = device.array(&[1.0f32; 1024])?;
    let busy = device.array(&[0.0f32; 64])?;
    let slow = device.kernel(KernelSource::cpu(|_| {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(100) {
            std::hint::spin_loop();
        }
        Ok(())
    }))?;
    let mut times = Vec::new();
    for _ in 0..9 {
        slow.run(&[kernel::write(&busy)], 64)?;
        device.submit()?;
        std::thread::sleep(Duration::from_millis(5));
        let start = Instant::now();
        black_box(other.read()?[0]);
        times.push(start.elapsed().as_secs_f64() * 1e6);
        device.synchronize()?;
    }
    print("read of another array during a 100 ms kernel", median(times), "us", 50.0);
    Ok(())
}

/// Open a 1 GiB checkpoint, and open and sum it, against memmap2 and a plain parallel loop.
fn checkpoint(device: &Device) -> aquifer::Result<()> {
    const LEN: usize = 256 << 20;
    let path =
        std::env::temp_dir().join(format!("aquifer-bench-{}.safetensors", std::process::id()));
    write_checkpoint(&path, LEN).expect("room for 1 GiB in the folder for temporary files");
    let (mut opens, mut ours, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..7 {
        let start = Instant::now();
        let model = Checkpoint::open(device, &path)?;
        opens.push(start.elapsed().as_secs_f64() * 1e3);
        let sum = model.array::<f32>("w")?.sum()?.item()?;
        drop(model);
        ours.push(start.elapsed().as_secs_f64());
        let start = Instant::now();
        let plain = plain_sum(&path);
        theirs.push(start.elapsed().as_secs_f64());
        assert!((sum - plain).abs() <= plain.abs() * 1e-3, "{sum} {plain}");
    }
    let _ = std::fs::remove_file(&path);
    print("open a 1 GiB checkpoint", median(opens), "ms", 5.0);
    let (ours, theirs) = (median(ours), median(theirs));
    println!(
        "  open and sum 1 GiB: {:.1} ms, memmap2 and a loop {:.1} ms",
        ours * 1e3,
        theirs * 1e3
    );
    print("open and sum / memmap2 and a loop", ours / theirs, "x", 1.3);
    Ok(())
}

fn write_checkpoint(path: &std::path::Path, len: usize) -> std::io::Result<()> {
    let header =
        format!(r#"{{"w":{{"dtype":"F32","shape":[{len}],"data_offsets":[0,{}]}}}}"#, len * 4);
    let header = format!("{header:<width$}", width = header.len().next_multiple_of(8));
    let mut out = std::io::BufWriter::with_capacity(1 << 20, File::create(path)?);
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    let row: Vec<u8> = (0..1 << 18).flat_map(|i| ((i % 101) as f32 * 0.01).to_le_bytes()).collect();
    for _ in 0..len * 4 / row.len() {
        out.write_all(&row)?;
    }
    out.flush()
}

#[allow(unsafe_code)]
fn plain_sum(path: &std::path::Path) -> f32 {
    let file = File::open(path).expect("it was just written");
    // SAFETY: no one writes the file meanwhile.
    let map = unsafe { memmap2::Mmap::map(&file) }.expect("a readable file");
    let header = u64::from_le_bytes(map[..8].try_into().expect("eight bytes")) as usize;
    // SAFETY: the data starts at a multiple of 8 bytes and every pattern is an f32.
    let (_, values, _) = unsafe { map[8 + header..].align_to::<f32>() };
    let sums = values.par_chunks(64 << 10).map(|chunk| {
        let mut lanes = [0.0f32; 16];
        for group in chunk.chunks_exact(16) {
            for (lane, x) in lanes.iter_mut().zip(group) {
                *lane += x;
            }
        }
        f64::from(lanes.iter().sum::<f32>())
    });
    sums.sum::<f64>() as f32
}

/// Time to allocate an array when a million live, against a thousand.
fn many_live(device: &Device) -> aquifer::Result<()> {
    let time = |count: usize| -> aquifer::Result<f64> {
        let mut live = Vec::with_capacity(count);
        let start = Instant::now();
        for _ in 0..count {
            live.push(device.allocate_raw(64, Mode::Shared)?);
        }
        Ok(start.elapsed().as_nanos() as f64 / count as f64)
    };
    let (mut few, mut many) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        few.push(median((0..99).map(|_| time(1000)).collect::<aquifer::Result<_>>()?));
        many.push(time(1_000_000)?);
    }
    let (few, many) = (median(few), median(many));
    println!("  an allocation among 1,000 live: {few:.1} ns, among 1,000,000: {many:.1} ns");
    print("an allocation among 1,000,000 / among 1,000", many / few, "x", 2.0);
    Ok(())
}

/// What recording costs an event: an allocate and a free, beside the same without a trace, in turn.
fn tracing(_device: &Device) -> aquifer::Result<()> {
    const COUNT: usize = 100_000;
    let path = std::env::temp_dir().join(format!("aquifer-figures-{}.aqt", std::process::id()));
    let device = Device::cpu()?;
    for size in [256u64, 1 << 20] {
        drop(device.allocate_raw(size, Mode::Private)?);
        let pairs = || {
            let start = Instant::now();
            for _ in 0..COUNT {
                drop(black_box(device.allocate_raw(size, Mode::Private)));
            }
            start.elapsed().as_nanos() as f64 / COUNT as f64
        };
        let (mut plain, mut traced) = (Vec::new(), Vec::new());
        for _ in 0..21 {
            plain.push(pairs());
            device.trace().start_with(TraceOptions::new().file(&path))?;
            traced.push(pairs());
            device.trace().stop()?;
        }
        let (plain, traced) = (median(plain), median(traced));
        print(&format!("an event of {size} B in a trace"), (traced - plain) / 2.0, "ns", 50.0);
    }
    std::fs::remove_file(&path).ok();
    Ok(())
}
