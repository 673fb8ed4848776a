//! Traces of other systems come in with their sizes, streams and times; broken ones are errors.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use aquifer::core::trace::{Event, Lifetimes, Trace};

use super::{load, parse};

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces").join(name)
}

/// The most that is asked and live at once.
fn peak(trace: &Trace) -> u64 {
    let lifetimes = Lifetimes::of(trace);
    let (mut now, mut most) = (0, 0);
    for (index, record) in trace.records.iter().enumerate() {
        match &record.event {
            Event::Allocate { asked, .. } => now += asked,
            Event::Free { .. } => now -= lifetimes.all[lifetimes.of_record[index] as usize].asked,
            _ => {}
        }
        most = most.max(now);
    }
    most
}

/// The part of a trace that two formats of one recording share.
fn requests(trace: &Trace) -> Vec<(u64, Option<u32>, u64)> {
    let start = trace.records.iter().find(|record| record.event.name() == "obtain");
    let start = start.map_or(0, |record| record.time_ns);
    let pick = |record: &aquifer::core::trace::Record| match &record.event {
        Event::Allocate { asked, queue, .. } => {
            Some(((record.time_ns - start) / 1000, queue.map(|queue| queue.0), *asked))
        }
        _ => None,
    };
    trace.records.iter().filter_map(pick).collect()
}

/// PyTorch's real snapshot has the sizes, streams and times of the recording that was made of the
/// same run by other means, and PyTorch's own segments.
#[test]
fn the_real_snapshot_is_the_recorded_run() {
    let snapshot = load(&testdata("two_streams_snapshot.pickle"), None).unwrap();
    let recorded = load(&testdata("two_streams.csv.gz"), None).unwrap();
    assert_eq!(snapshot.format, "PyTorch memory snapshot");
    let pairs = requests(&snapshot.trace).into_iter().zip(requests(&recorded.trace));
    for (index, (snapshot, recorded)) in pairs.enumerate() {
        // The other recording rounded some of its times up.
        assert!(recorded.0 - snapshot.0 <= 1, "request {index}: {} us", snapshot.0);
        let rest = |request: (u64, Option<u32>, u64)| (request.1, request.2);
        assert_eq!(rest(snapshot), rest(recorded), "request {index}");
    }
    assert_eq!(requests(&snapshot.trace).len(), 2386);
    assert_eq!(peak(&snapshot.trace), peak(&recorded.trace));
    let places = Lifetimes::of(&snapshot.trace);
    assert!(places.all.iter().all(|lifetime| lifetime.place.is_known()), "in segments");
    let obtained = snapshot.trace.records.iter().filter_map(|record| match record.event {
        Event::Obtain { size, .. } => Some(size),
        _ => None,
    });
    // Held over asked is 1.189 in the table of the recordings.
    let held: u64 = obtained.sum();
    assert_eq!(format!("{:.3}", held as f64 / peak(&snapshot.trace) as f64), "1.189");
}

/// A pickle of protocol 0, as text: numbers, strings and what holds them.
enum Data<'d> {
    Number(u64),
    Text(&'d str),
    List(Vec<Data<'d>>),
    Dict(Vec<(&'d str, Data<'d>)>),
}

impl Data<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Number(number) => out.extend(format!("L{number}L\n").bytes()),
            Self::Text(text) => out.extend(format!("V{text}\n").bytes()),
            Self::List(items) => {
                out.push(b'(');
                items.iter().for_each(|item| item.write(out));
                out.push(b'l');
            }
            Self::Dict(pairs) => {
                out.push(b'(');
                for (key, value) in pairs {
                    Data::Text(key).write(out);
                    value.write(out);
                }
                out.push(b'd');
            }
        }
    }

    fn pickle(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write(&mut bytes);
        bytes.push(b'.');
        bytes
    }
}

fn entry<'d>(action: &'d str, addr: u64, size: u64, time_us: u64) -> Vec<(&'d str, Data<'d>)> {
    vec![
        ("action", Data::Text(action)),
        ("addr", Data::Number(addr)),
        ("size", Data::Number(size)),
        ("stream", Data::Number(0)),
        ("time_us", Data::Number(time_us)),
    ]
}

/// A snapshot as the documentation describes it: labels, call sites, several streams, a refusal, and
/// blocks and segments from before the history began.
fn snapshot() -> Vec<u8> {
    let frame = Data::Dict(vec![
        ("filename", Data::Text("model.py")),
        ("line", Data::Number(7)),
        ("name", Data::Text("forward")),
    ]);
    let mut labelled = entry("alloc", 0x1000_0200, 1000, 50);
    labelled.push(("frames", Data::List(vec![frame])));
    labelled.push(("user_metadata", Data::Text("kv cache")));
    let mut side = entry("alloc", 0x1000_0800, 600, 60);
    side[3] = ("stream", Data::Number(0xdead_beef));
    let oom = vec![
        ("action", Data::Text("oom")),
        ("size", Data::Number(1 << 40)),
        ("stream", Data::Number(0)),
        ("time_us", Data::Number(70)),
    ];
    let old = Data::Dict(vec![
        ("address", Data::Number(0x1000_0000)),
        ("size", Data::Number(512)),
        ("requested_size", Data::Number(300)),
        ("state", Data::Text("active_allocated")),
    ]);
    let segment = Data::Dict(vec![
        ("device", Data::Number(1)),
        ("address", Data::Number(0x1000_0000)),
        ("total_size", Data::Number(2 << 20)),
        ("stream", Data::Number(0)),
        ("blocks", Data::List(vec![old])),
    ]);
    let events = vec![
        Data::Dict(labelled),
        Data::Dict(side),
        Data::Dict(oom),
        Data::Dict(entry("free_requested", 0x1000_0200, 1000, 80)),
        Data::Dict(entry("free_completed", 0x1000_0200, 1000, 90)),
        Data::Dict(entry("free_completed", 0x1000_0c00, 77, 95)),
    ];
    let snapshot = Data::Dict(vec![
        ("segments", Data::List(vec![segment])),
        ("device_traces", Data::List(vec![Data::List(vec![]), Data::List(events)])),
    ]);
    snapshot.pickle()
}

#[test]
fn a_snapshot_says_who_asked_and_what_came_before() {
    let trace = parse(&snapshot(), None).unwrap().trace;
    let lifetimes = Lifetimes::of(&trace);
    let seen: Vec<_> = lifetimes
        .all
        .iter()
        .map(|life| {
            let record = &trace.records[life.start];
            let end = life.end.map(|end| trace.records[end].time_ns);
            (record.time_ns, life.asked, life.place.offset, life.queue.unwrap().0, end)
        })
        .collect();
    assert_eq!(
        seen,
        [
            (0, 300, 0, 0, None),
            (0, 77, 0xc00, 0, Some(45_000)),
            (0, 1000, 0x200, 0, Some(40_000)),
            (10_000, 600, 0x800, 1, None),
        ]
    );
    let labelled = &lifetimes.all[2];
    assert_eq!(trace.labels()[labelled.label.index()], "kv cache");
    let site = trace.records[labelled.start].site as usize;
    assert_eq!(trace.sites()[site], "forward (model.py:7)");
    assert!(
        trace
            .records
            .iter()
            .any(|record| matches!(record.event, Event::Refuse { asked, .. } if asked == 1 << 40))
    );
    let error = parse(&snapshot(), Some(5)).unwrap_err();
    assert!(error.contains("2 devices"), "{error}");
}

/// RMM's columns: threads, times over midnight, pointers, sizes and streams.
#[test]
fn an_rmm_log_keeps_its_threads_times_and_streams() {
    let log = "Thread,Time,Action,Pointer,Size,Stream\n\
               7001,23:59:59.999000,allocate,0x7f0000000000,1024,0x0\n\
               7002,23:59:59:999500,allocate,0x7f0000000400,300,0x2\n\
               7001,00:00:00.000100,free,0x7f0000000000,1024,0x0\n\
               7002,00:00:00.000200,allocate failure,(nil),99999,0x2\n\
               7001,00:00:01.000000,allocate,0x7f0000000000,64,0x2\n\
               7002,00:00:02.000000,deallocate,0x7f0000000400,300,0x2\n\
               7001,00:00:03.000000,free,0x7fffffff0000,4096,0x0\n";
    let trace = parse(log.as_bytes(), None).unwrap().trace;
    let lifetimes = Lifetimes::of(&trace);
    let seen: Vec<_> = lifetimes
        .all
        .iter()
        .map(|life| {
            let record = &trace.records[life.start];
            let end = life.end.map(|end| trace.records[end].time_ns / 1000);
            let queue = life.queue.unwrap().0;
            (record.thread, record.time_ns / 1000, life.asked, life.size, queue, end)
        })
        .collect();
    assert_eq!(
        seen,
        [
            // Freed without having been seen: it was there before.
            (0, 0, 4096, 4096, 0, Some(3_001_000)),
            (0, 0, 1024, 1024, 0, Some(1_100)),
            (1, 500, 300, 512, 1, Some(2_001_000)),
            (0, 1_001_000, 64, 256, 1, None),
        ]
    );
    let refused = |event: &Event| matches!(event, Event::Refuse { asked: 99_999, .. });
    assert!(trace.records.iter().any(|record| refused(&record.event)));
}

/// A log that crosses midnight hours after it began, and times in seconds, keep their distances.
#[test]
fn rmm_times_go_on_over_midnight() {
    let header = "Thread,Time,Action,Pointer,Size,Stream";
    let times = |rows: &[&str]| {
        let lines = rows.iter().enumerate();
        let lines = lines.map(|(at, time)| format!("1,{time},allocate,{:#x},64,0x0", at + 1));
        let log = format!("{header}\n{}\n", lines.collect::<Vec<_>>().join("\n"));
        let trace = parse(log.as_bytes(), None).unwrap().trace;
        let made = trace.records.iter().filter(|record| record.event.name() == "allocate");
        made.map(|record| record.time_ns / 1_000_000_000).collect::<Vec<_>>()
    };
    let day = ["08:00:00.0", "23:00:00.0", "00:30:00.0", "02:00:00.0", "23:30:00.0", "00:10:00.0"];
    let hours: Vec<f64> = times(&day).iter().map(|&time| time as f64 / 3600.0).collect();
    assert_eq!(hours, [0.0, 15.0, 16.5, 18.0, 39.5, 40.0 + 1.0 / 6.0]);
    assert_eq!(times(&["1000000.5", "0.25", "1000003.5"]), [0, 0, 3], "never backwards");
}

/// Allocations from before a recording share the number 0: each of them is one.
#[test]
fn allocations_before_a_recording_are_told_apart() {
    let text = "time_us,action,id,size,stream\n5,free_completed,0,1024,0\n\
                6,free_completed,0,2048,0\n7,alloc,1,512,0\n";
    assert_eq!(peak(&parse(text.as_bytes(), None).unwrap().trace), 3072);
}

/// Expandable segments: ranges that are mapped and unmapped in other pieces than they came in.
#[test]
fn expandable_segments_hold_what_is_mapped() {
    const MIB: u64 = 1 << 20;
    let at = |mib: u64| 0x7000_0000 + mib * MIB;
    let events = vec![
        Data::Dict(entry("segment_map", at(0), 20 * MIB, 1)),
        Data::Dict(entry("segment_map", at(20), 20 * MIB, 2)),
        Data::Dict(entry("alloc", at(15), 10 * MIB, 3)),
        Data::Dict(entry("segment_unmap", at(30), 10 * MIB, 4)),
        // Mapped before the history began.
        Data::Dict(entry("segment_unmap", at(60), 5 * MIB, 5)),
        Data::Dict(entry("free_completed", at(15), 10 * MIB, 6)),
        Data::Dict(entry("segment_unmap", at(0), 30 * MIB, 7)),
    ];
    let snapshot = Data::Dict(vec![("device_traces", Data::List(vec![Data::List(events)]))]);
    let trace = parse(&snapshot.pickle(), None).unwrap().trace;
    let mut account = crate::account::Account::default();
    let held = trace.records.iter().filter_map(|record| {
        account.apply(&record.event).then_some((record.time_ns / 1000, account.reserved / MIB))
    });
    let held: Vec<_> = held.collect();
    // Times count from the first event; the allocation and its end change `active` alone.
    assert_eq!(
        held,
        [(0, 5), (0, 25), (1, 45), (2, 45), (3, 35), (4, 30), (5, 30), (6, 0)],
        "what is mapped, in MiB"
    );
    let lifetime = Lifetimes::of(&trace).all[0];
    assert_eq!((lifetime.place.is_known(), lifetime.place.offset), (true, 15 * MIB));
}

#[test]
fn minimalloc_buffers_live_from_lower_to_upper() {
    let text = "id,lower,upper,size,offset\nb1,0,3,4,8\nb2,3,9,4,8\nb3,0,9,8,0\n";
    let trace = parse(text.as_bytes(), None).unwrap().trace;
    assert_eq!(peak(&trace), 12);
    let lifetimes = Lifetimes::of(&trace);
    let offsets: Vec<_> = lifetimes.all.iter().map(|life| life.place.offset).collect();
    assert_eq!(offsets, [8, 0, 8], "the first has gone when the second comes");
    let plain = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\n";
    assert_eq!(peak(&parse(plain.as_bytes(), None).unwrap().trace), 4);
}

#[test]
fn errors_name_the_line_and_the_field() {
    let cases: [(&str, &[&str]); 7] = [
        ("hello\n", &["not a trace", "AQUIFER_TRACE"]),
        ("time_us,action,id,size,stream\n1,alloc,x,4,0\n", &["line 2", "number"]),
        ("Thread,Time,Action,Pointer,Size,Stream\n1,2,allocate,0x5\n", &["line 2", "4 fields"]),
        ("Thread,Time,Action,Pointer,Size,Stream\n1,9,grab,0x5,4,0\n", &["'grab'"]),
        ("Thread,Time,Action,Pointer,Size,Stream\n1,noon,free,0x5,4,0\n", &["'noon'", "time"]),
        ("id,lower,upper,size\na,5,5,1\n", &["line 2", "no time"]),
        ("aqtrace\u{9}", &["newer version"]),
    ];
    for (text, parts) in cases {
        let error = parse(text.as_bytes(), None).unwrap_err();
        assert!(parts.iter().all(|part| error.contains(part)), "{text:?}: {error}");
    }
}

/// 300 broken files of every kind: errors or other traces, no panic, and memory in proportion.
#[test]
fn mutated_files_never_panic() {
    let mut random = fastrand::Rng::with_seed(5);
    let pickle = std::fs::read(testdata("two_streams_snapshot.pickle")).unwrap();
    let mut csv = Vec::new();
    let packed = std::fs::File::open(testdata("two_streams.csv.gz")).unwrap();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(packed), &mut csv).unwrap();
    let rmm = b"Thread,Time,Action,Pointer,Size,Stream\n1,1:2:3.5,allocate,0x5,64,0x0\n\
                1,1:2:4.5,free,0x5,64,0x0\n"
        .to_vec();
    let minimalloc = b"id,lower,upper,size,offset\na,0,3,4,8\nb,3,9,4,8\n".to_vec();
    let mut errors = 0;
    for round in 0..300 {
        let mut bytes = match round % 4 {
            0 | 1 => pickle.clone(),
            2 => csv[..20_000].to_vec(),
            _ if round % 8 == 3 => rmm.clone(),
            _ => minimalloc.clone(),
        };
        for _ in 0..random.usize(1..8) {
            let at = random.usize(..bytes.len());
            match random.u32(0..4) {
                0 => bytes[at] = random.u8(..),
                1 => bytes[at] = b"0123456789,x-\n"[random.usize(..14)],
                2 => bytes.truncate(at.max(1)),
                _ => drop(bytes.splice(at..at, (0..random.usize(1..20)).map(|_| b'9'))),
            }
        }
        match parse(&bytes, None) {
            Err(reason) => {
                errors += 1;
                assert!(!reason.is_empty());
            }
            Ok(loaded) => {
                let lifetimes = Lifetimes::of(&loaded.trace);
                assert!(loaded.trace.records.len() <= bytes.len());
                if let Some(begin) = loaded.trace.begin() {
                    let rules = aquifer::core::replay::WhatIf {
                        in_flight: Some(8),
                        ..aquifer::core::replay::WhatIf::as_recorded(begin)
                    };
                    rules.play(&loaded.trace, &lifetimes, None, |_, _| {});
                }
            }
        }
    }
    assert!(errors > 100, "{errors} of 300 are errors");
}
