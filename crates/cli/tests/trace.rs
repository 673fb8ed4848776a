//! Traces as a person uses them: recorded by a variable, replayed, compared.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use aquifer::core::replay;
use aquifer::core::trace::{Event, Trace, format};
use aquifer::prelude::*;
use aquifer::trace::TraceOptions;
use serde_json::Value;

use common::{Temporary, aquifer, cache, json, required};

fn recorded(arguments: &[&str], device: &str, path: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_aquifer"))
        .args(arguments)
        .env("AQUIFER_DEVICE", device)
        .env("AQUIFER_TRACE", path)
        .output()
        .unwrap()
}

fn read(path: &Path) -> Trace {
    format::decode(&std::fs::read(path).unwrap()).unwrap().trace
}

/// Devices that this machine has, of those that the command can be run on.
fn devices() -> Vec<&'static str> {
    let listed = json(&aquifer(&["devices", "--json"]));
    let here = |api: &str| {
        let rows = listed["devices"].as_array().unwrap();
        rows.iter().any(|row| row["backend"] == api && row["available"] == true)
    };
    if !here("vulkan") {
        assert!(!required("vulkan"), "AQUIFER_REQUIRE=vulkan, but there is no device");
        println!("skipped: no vulkan device");
        return vec!["cpu"];
    }
    vec!["cpu", "vulkan"]
}

/// Runs a command under a trace: the trace replays exactly, and among the figures that it came to
/// are those that the command printed.
fn replays_what_was_printed(arguments: &[&str], memory: &str) {
    for device in devices() {
        let file = Temporary::path(&format!("{}-{device}.aqt", arguments[0]));
        let printed = json(&recorded(arguments, device, &file.0));
        let trace = read(&file.0);
        let verified = replay::verify(&trace).unwrap();
        assert!(verified.events > 100 && verified.compared >= 3, "{verified:?}");
        let printed = printed.pointer(memory).unwrap();
        let same = |event: &Event| match event {
            Event::Figures(stats) => {
                stats.figures().iter().all(|(name, value)| printed[*name] == *value)
            }
            _ => false,
        };
        assert!(
            trace.records.iter().any(|record| same(&record.event)),
            "{device}: the printed figures are not those of the trace: {printed}"
        );
        let replayed = json(&aquifer(&["replay", file.text(), "--json"]));
        assert_eq!(replayed["verified"]["exact"], true);
        assert_eq!(replayed["verified"]["calls"], verified.events);
        let peak = &replayed["replay"]["memory"];
        assert_eq!(peak["peak"], verified.stats.peak, "the free play comes to the same");
    }
}

#[test]
fn the_demo_replays_exactly() {
    replays_what_was_printed(&["demo", "--json"], "/memory");
}

/// MiniLM's `inspect`, with its mapped file.
#[test]
fn inspecting_a_real_checkpoint_replays_exactly() {
    let file = cache().join("models/minilm/model.safetensors");
    if !file.exists() {
        assert!(!required("model"), "AQUIFER_REQUIRE=model, but {} is missing", file.display());
        println!("skipped: {} is not there (./check fetches it)", file.display());
        return;
    }
    replays_what_was_printed(&["inspect", file.to_str().unwrap(), "--json"], "/memory");
}

/// The cache of a decoder that grows by copying: 32 layers, 256 tokens of 64 KiB each.
fn growing_loop(path: &Path) {
    let device =
        Device::builder().named("cpu").trace(TraceOptions::new().file(path)).open().unwrap();
    let mut caches = Vec::new();
    for token in 1..=256u64 {
        for layer in 0..32 {
            let _label = device.label(&format!("layer {layer}"));
            let grown = device.allocate_raw(token << 16, Storage::Private).unwrap();
            match caches.get_mut(layer) {
                Some(old) => *old = grown,
                None => caches.push(grown),
            }
        }
    }
}

/// B.7: a loop whose sizes grow by a little holds at most 1.25 times its live bytes plus 64 MiB at
/// every moment; the other policies are beside it in one table.
#[test]
fn a_growing_loop_holds_little_more_than_it_uses() {
    let file = Temporary::path("growing.aqt");
    growing_loop(&file.0);
    let replayed = json(&aquifer(&["replay", file.text(), "--json"]));
    assert_eq!(replayed["verified"]["exact"], true);
    let points = replayed["replay"]["over_time"].as_array().unwrap();
    assert!(points.len() > 100);
    for point in points {
        let (live, held) = (point["live"].as_f64().unwrap(), point["reserved"].as_f64().unwrap());
        assert!(held <= 1.25 * live + f64::from(64 << 20), "{point}");
    }
    let compared = json(&aquifer(&["replay", "--compare", file.text(), "--json"]));
    let rows = compared["policies"].as_array().unwrap();
    assert_eq!(rows.len(), 6);
    for row in rows {
        println!("{} {:.3}", row["policy"], row["held_over_asked"].as_f64().unwrap());
    }
    let held = |name: &str| {
        let row = rows.iter().find(|row| row["policy"] == name).unwrap();
        row["held_over_asked"].as_f64().unwrap()
    };
    assert!(held("aquifer") < 1.25 && held("exact-size") > 2.0);
}

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces").join(name)
}

/// PyTorch's policy comes to PyTorch's own peaks, and to as many segments as it took; aquifer's row
/// is its real allocator, within rule B.1.
#[test]
fn the_table_of_policies_agrees_with_what_was_recorded() {
    let recorded = [
        ("gpt2_train", 1.213, 92),
        ("resnet_train", 1.365, 119),
        ("decode_growing_kv", 1.050, 52),
        ("bert_varlen", 1.282, 21),
        ("two_streams", 1.189, 18),
        ("moe_infer", 1.319, 19),
    ];
    for (name, held, segments) in recorded {
        let path = testdata(&format!("{name}.csv.gz"));
        let names = "--compare=aquifer,whole-blocks,pytorch";
        let table = json(&aquifer(&["replay", path.to_str().unwrap(), names, "--json"]));
        let rows = table["policies"].as_array().unwrap();
        let of = |row: &Value| row["held_over_asked"].as_f64().unwrap();
        println!("{name}: {:.3} {:.3} {:.3}", of(&rows[0]), of(&rows[1]), of(&rows[2]));
        let pytorch = format!("{:.3}", of(&rows[2]));
        assert_eq!(pytorch, format!("{held:.3}"), "{name}: {}", rows[2]);
        assert_eq!(rows[2]["driver_calls"], segments, "{name}");
        assert!(of(&rows[0]) < 1.06, "{name}: aquifer {}", rows[0]);
    }
}

/// What-if switches change what they say, and usage errors are told.
#[test]
fn what_if_switches_change_the_replay() {
    let path = testdata("two_streams.csv.gz");
    let path = path.to_str().unwrap();
    let play = |more: &[&str]| {
        let arguments = [&["replay", path, "--json"], more].concat();
        json(&aquifer(&arguments))["replay"].clone()
    };
    let number = |play: &Value, name: &str| play[name].as_u64().unwrap();
    let plain = play(&[]);
    assert_eq!(number(&plain, "refusals"), 0);
    assert!(number(&play(&["--memory-limit", "200MiB"]), "refusals") > 0);
    assert!(
        number(&play(&["--cache-limit", "0"]), "driver_calls") > number(&plain, "driver_calls")
    );
    let rounded = play(&["--sizes", "power-of-two"]);
    assert!(number(&rounded, "peak_asked") > number(&plain, "peak_asked"));
    let whole = play(&["--reuse", "whole-blocks"]);
    assert!(number(&whole, "peak_reserved") > number(&plain, "peak_reserved") * 3 / 2);
    let other = testdata("bert_varlen.csv.gz");
    let calls = |percent: &str| {
        let limits = ["--working-set", "300MiB", "--memory-limit", "1GiB", "--pressure", percent];
        let arguments = [&["replay", other.to_str().unwrap(), "--json"][..], &limits].concat();
        number(&json(&aquifer(&arguments))["replay"], "driver_calls")
    };
    assert!(calls("1") > calls("100"), "under pressure more goes back, and is taken again");
    let threads = json(&aquifer(&["replay", path, "--threads", "--json"]));
    assert_eq!(threads["threads"]["events"], number(&plain, "events"));
    let cases: [(&[&str], i32, &str); 5] = [
        (&["replay", "/no/such/trace"], 1, "/no/such/trace"),
        (&["replay", path, "--memory-limit", "lots"], 2, "512MiB"),
        (&["replay", path, "--pressure", "0"], 2, "0 is not in 1..=100"),
        (&["replay", path, "--compare=jemalloc"], 2, "whole-blocks"),
        (&["replay", env!("CARGO_BIN_EXE_aquifer")], 1, "not a trace"),
    ];
    for (arguments, status, part) in cases {
        let output = aquifer(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {error}");
        assert!(error.contains(part), "{arguments:?}: {error}");
    }
}

/// A program that is killed leaves a trace that is whole up to its last event.
#[test]
fn a_killed_program_leaves_a_readable_trace() {
    let file = Temporary::path("killed.aqt");
    let mut child = Command::new(env!("CARGO_BIN_EXE_aquifer"))
        .args(["demo"])
        .env("AQUIFER_DEVICE", "cpu")
        .env("AQUIFER_TRACE", &file.0)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // Whenever it is: what is there is a prefix.
    let some = || std::fs::metadata(&file.0).is_ok_and(|file| file.len() > 100);
    while !some() && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    let _ = child.kill();
    child.wait().unwrap();
    let trace = read(&file.0);
    replay::verify(&trace).unwrap();
    let output = aquifer(&["replay", file.text()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// What other tools are given: a span for each allocation, counters that reach the peak, and a line
/// for each event.
#[test]
fn exports_have_every_allocation_and_event() {
    let file = Temporary::path("export.aqt");
    growing_loop(&file.0);
    let trace = read(&file.0);
    let verified = replay::verify(&trace).unwrap();
    let chrome = json(&aquifer(&["export", file.text()]));
    let events = chrome["traceEvents"].as_array().unwrap();
    let count = |kind: &str| events.iter().filter(|event| event["ph"] == kind).count();
    let made = trace.records.iter().filter(|record| record.event.name() == "allocate").count();
    assert_eq!((count("b"), count("e")), (made, made), "all of them begin and end");
    let highest = |name: &str| {
        let values = events.iter().filter(|event| event["ph"] == "C");
        values.map(|event| event["args"][name].as_u64().unwrap()).max()
    };
    assert_eq!(highest("reserved"), Some(verified.stats.peak_reserved));
    assert_eq!(highest("active"), Some(verified.stats.peak));
    let named = events.iter().any(|event| event["ph"] == "b" && event["name"] == "layer 7");
    assert!(named, "labels are the names");
    let lines = Temporary::path("export.jsonl");
    let output = aquifer(&["export", file.text(), "--to", "jsonl", "-o", lines.text()]);
    assert!(output.status.success() && output.stdout.is_empty());
    let text = std::fs::read_to_string(&lines.0).unwrap();
    let parsed: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(parsed.len(), trace.records.len());
    for (line, record) in parsed.iter().zip(&trace.records) {
        assert_eq!(line["event"], record.event.name());
        assert_eq!(line["time_ns"], record.time_ns);
    }
    let asked: u64 = parsed.iter().filter_map(|line| line["asked"].as_u64()).sum();
    assert!(asked > 0);
}
