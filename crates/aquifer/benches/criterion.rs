//! Benchmarks with statistics: `cargo bench -p aquifer --bench criterion`. The figures that are
//! promised, with their bounds, are in `figures.rs`.
#![allow(missing_docs)]

use std::hint::black_box;
use std::io::Read;
use std::path::Path;

use aquifer::core::{
    Action, Allocation, Caps, HostModel, Pool, QueueId, Request, Settings, Stamp, Storage as Mode,
    TraceEvent, parse_csv,
};
use aquifer::prelude::*;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

fn device() -> Device {
    Device::cpu().expect("the CPU always opens")
}

fn pairs(c: &mut Criterion) {
    let mut group = c.benchmark_group("allocate + free");
    for size in [256u64, 16_384, 1 << 20, 64 << 20] {
        let device = device();
        group.bench_with_input(BenchmarkId::new("1 thread", size), &size, |b, &size| {
            b.iter(|| black_box(device.allocate_raw(size, Mode::Private)));
        });
        group.bench_with_input(BenchmarkId::new("2 threads", size), &size, |b, &size| {
            b.iter_custom(|count| {
                let start = std::time::Instant::now();
                std::thread::scope(|scope| {
                    for _ in 0..2 {
                        scope.spawn(|| {
                            for _ in 0..count {
                                drop(black_box(device.allocate_raw(size, Mode::Private)));
                            }
                        });
                    }
                });
                start.elapsed()
            });
        });
    }
    group.finish();
}

fn load(name: &str) -> Vec<TraceEvent> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../testdata/traces")
        .join(format!("{name}.csv.gz"));
    let file = std::fs::File::open(path).expect("the traces are committed");
    let mut text = String::new();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).expect("a gzip file");
    let mut events = parse_csv(&text).expect("a trace");
    events.retain(|event| event.action.is_request());
    events
}

fn replay(events: &[TraceEvent], live: &mut [Option<Allocation>]) -> u64 {
    let (device, caps) = (HostModel::quick(), Caps::model());
    let mut pool = Pool::new(&caps, Settings::for_working_set(1 << 40, 1 << 41));
    for (index, event) in events.iter().enumerate() {
        let (now, queue, id) = (index as u64 + 1, QueueId(event.stream), event.id as usize);
        device.reach(queue, now.saturating_sub(64));
        match event.action {
            Action::Allocate => {
                let request = Request::new(event.size, Mode::Private).on(queue);
                live[id] = pool.allocate(&device, request).ok();
            }
            Action::Free => {
                if let Some(allocation) = live[id].take() {
                    pool.free(&device, allocation, Stamp { queue, ticket: now, epoch: now }.into());
                }
            }
            Action::Obtain | Action::GiveBack => {}
        }
    }
    live.iter_mut().for_each(|slot| *slot = None);
    pool.stats().peak_reserved
}

fn traces(c: &mut Criterion) {
    let mut group = c.benchmark_group("trace replay");
    group.sample_size(20);
    for name in [
        "gpt2_train",
        "resnet_train",
        "decode_growing_kv",
        "bert_varlen",
        "two_streams",
        "moe_infer",
    ] {
        let events = load(name);
        let most = events.iter().map(|event| event.id).max().unwrap_or(0) as usize;
        let mut live: Vec<Option<Allocation>> = (0..=most).map(|_| None).collect();
        group.throughput(Throughput::Elements(events.len() as u64));
        group.bench_function(name, |b| b.iter(|| replay(&events, &mut live)));
    }
    group.finish();
}

fn random_replace(c: &mut Criterion) {
    let mut group = c.benchmark_group("random replace among live");
    for live in [256usize, 100_000] {
        let device = device();
        let mut random = fastrand::Rng::with_seed(1);
        let ask = |random: &mut fastrand::Rng| {
            device.allocate_raw(1 << random.u32(8..20), Mode::Private).ok()
        };
        let mut held: Vec<_> = (0..live).map(|_| ask(&mut random)).collect();
        group.bench_function(BenchmarkId::from_parameter(live), |b| {
            b.iter(|| {
                let at = random.usize(0..live);
                held[at] = None;
                held[at] = ask(&mut random);
            });
        });
    }
    group.finish();
}

fn elements_and_small_work(c: &mut Criterion) {
    let device = device();
    let a = device.array(&[1.0f32; 16]).expect("64 bytes");
    c.bench_function("get on an idle array", |b| b.iter(|| a.get(black_box(7))));
    c.bench_function("a + a of 16 elements, submitted and read", |b| {
        b.iter(|| a.zip(&a).and_then(|pair| pair.map(|(x, y)| x + y)).and_then(|sum| sum.to_vec()));
    });
    let large = Array::<f32>::rand(&device, [1 << 20]).expect("4 MiB");
    let mut group = c.benchmark_group("1 Mi f32");
    group.throughput(Throughput::Bytes(8 << 20));
    group.bench_function("sin", |b| {
        b.iter(|| large.map(|x| x.sin()).and_then(|_| device.synchronize()));
    });
    group.bench_function("sum", |b| b.iter(|| large.sum().and_then(|sum| sum.item())));
    group.finish();
}

criterion_group!(benches, pairs, traces, random_replace, elements_and_small_work);
criterion_main!(benches);
