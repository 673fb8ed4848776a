//! Traces of a device replay exactly. [`run`](super::run) checks it of every other case too.

use aquifer::core::replay;
use aquifer::core::trace::{Event, Lifetimes};
use aquifer::prelude::*;
use aquifer::trace::TraceOptions;

/// A loop that decodes tokens: its cache grows by copying, and work is in flight all the time.
fn decode(device: &Device, tokens: usize) -> Result<()> {
    const WIDTH: usize = 256;
    let weights = {
        let _label = device.label("weights");
        Array::<f32, Private>::rand(device, [WIDTH, WIDTH])?
    };
    let _label = device.label("decode");
    let grow = |old: Option<&Array<f32, Private>>, rows: usize| {
        let _label = device.label("kv cache");
        let new = Array::<f32, Private>::zeros(device, [rows, WIDTH])?;
        if let Some(old) = old {
            new.slice(..old.len())?.copy_from(old)?;
        }
        Ok::<_, Error>(new)
    };
    let mut cache = grow(None, 1)?;
    for token in 1..tokens {
        let hidden = weights.map(|x| x * 0.5 + 1.0)?;
        let row = hidden.slice(..WIDTH)?;
        cache = grow(Some(&cache), token + 1)?;
        cache.slice(token * WIDTH..(token + 1) * WIDTH)?.copy_from(&row)?;
        if token % 16 == 0 {
            assert!(cache.sum()?.item()?.is_finite());
        }
    }
    device.synchronize()
}

/// A growing cache, labels, copies and waits are in the trace, and it replays exactly.
pub fn a_decode_loop_replays_exactly(device: &Device) -> Result<()> {
    decode(device, 120)?;
    let stats = device.memory();
    let trace = device.trace().take()?.unwrap().decode()?.trace;
    let verified = replay::verify(&trace).unwrap();
    assert_eq!(verified.stats, stats, "every figure, peaks included");
    let count = |name| trace.records.iter().filter(|record| record.event.name() == name).count();
    for name in ["allocate", "free", "submit", "copy", "complete"] {
        assert!(count(name) > 0, "no {name} in the trace");
    }
    let (labels, lifetimes) = (trace.labels(), Lifetimes::of(&trace));
    let cache: Vec<_> = lifetimes
        .all
        .iter()
        .filter(|lifetime| labels[lifetime.label.index()] == "decode/kv cache")
        .collect();
    assert_eq!(cache.len(), 120);
    assert_eq!(cache.iter().map(|lifetime| lifetime.asked).max(), Some(120 * 1024));
    assert!(trace.records.windows(2).all(|pair| pair[0].time_ns <= pair[1].time_ns));
    Ok(())
}

/// Several threads, queues of their own, refusals and limits: the order in the trace is that in
/// which it happened.
pub fn threads_and_refusals_replay_exactly(device: &Device) -> Result<()> {
    device.set_memory_limit(4 << 20);
    std::thread::scope(|scope| {
        for worker in 0..3 {
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(worker);
                let mut live = Vec::new();
                for step in 0..200 {
                    let len = random.usize(1..200_000);
                    match Array::<f32>::zeros(device, [len]) {
                        Ok(array) => live.push(array),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::OutOfMemory),
                    }
                    if (live.len() > 6 || step % 5 == 0) && !live.is_empty() {
                        live.swap_remove(random.usize(..live.len()));
                    }
                }
                drop(live);
                device.synchronize().unwrap();
            });
        }
    });
    device.set_cache_limit(1 << 20);
    let trace = device.trace().take()?.unwrap().decode()?.trace;
    replay::verify(&trace).unwrap();
    let threads: std::collections::BTreeSet<_> =
        trace.records.iter().map(|record| record.thread).collect();
    assert!(threads.len() >= 4, "each thread has its number: {threads:?}");
    assert!(trace.records.iter().any(|record| matches!(record.event, Event::Refuse { .. })));
    Ok(())
}

/// A trace that begins in the middle says what was held, goes to a file, and can be followed by
/// another.
pub fn a_trace_may_begin_in_the_middle(device: &Device) -> Result<()> {
    device.trace().take()?;
    let kept = Array::<f32>::zeros(device, [1000])?;
    let path = std::env::temp_dir().join(format!(
        "aquifer-trace-{}-{:?}.aqt",
        std::process::id(),
        std::thread::current().id()
    ));
    device.trace().start_with(TraceOptions::new().file(&path).with_stacks())?;
    let error = device.trace().start().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
    drop(Array::<f32>::zeros(device, [5000])?);
    assert!(device.trace().take()?.is_none(), "a file has it");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let trace = aquifer::core::trace::format::decode(&bytes).unwrap().trace;
    let held = trace.records.iter().find_map(|record| match record.event {
        Event::Held { size, count, .. } => Some((size, count)),
        _ => None,
    });
    assert_eq!(held, Some((4096, 1)));
    let error = replay::verify(&trace).unwrap_err();
    assert!(error.to_string().contains("in use already"), "{error}");
    let site = trace.records.iter().find(|record| record.site > 0).unwrap().site;
    let stack = trace.sites()[site as usize].to_owned();
    let first = stack.lines().next().unwrap();
    assert!(
        first.contains("a_trace_may_begin_in_the_middle") && first.contains("traces.rs:"),
        "the call site is the program's own: {stack}"
    );
    drop(kept);
    Ok(())
}
