//! The command as a person uses it.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use common::{Temporary, aquifer, cache, json, required};

fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

/// Exit status 2 for usage, 1 for a bad file; the reason on standard error and nothing on
/// standard output.
#[test]
fn errors_are_told_and_exit_statuses_tell_them_apart() {
    let html = Temporary::new("page.safetensors", b"<!DOCTYPE html><html></html>");
    let short = r#"{"w":{"dtype":"F32","shape":[8],"data_offsets":[0,32]}}"#;
    let truncated = Temporary::new("short.safetensors", &safetensors(short, &[0; 16]));
    let (html, truncated) = (html.0.to_str().unwrap(), truncated.0.to_str().unwrap());
    let cases: [(&[&str], i32, &[&str]); 10] = [
        (&[], 2, &["Usage"]),
        (&["inspect"], 2, &["FILE"]),
        (&["frobnicate"], 2, &["frobnicate"]),
        (&["inspect", html, "--device", "warp"], 2, &["'warp'", "no such device"]),
        (&["inspect", html, "--device", "vulkan:99"], 2, &["'vulkan:99'", "Vulkan"]),
        (&["inspect", html, "--device", "cuda"], 2, &["cuda", "no CUDA back end"]),
        (&["inspect", html, "--device", "cpu:x"], 2, &["not a number"]),
        (
            &["inspect", "/no/such/file.safetensors"],
            1,
            &["/no/such/file.safetensors", "No such file"],
        ),
        (&["inspect", html], 1, &[html, "HTML page"]),
        (&["inspect", truncated, "--json"], 1, &[truncated, "tensor 'w'", "truncated"]),
    ];
    for (arguments, status, parts) in cases {
        let output = aquifer(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {error}");
        assert!(output.stdout.is_empty(), "{arguments:?} printed something");
        for part in parts {
            assert!(error.contains(part), "{arguments:?}: {error} lacks {part}");
        }
    }
}

/// The statistics of every type, special values and shapes, against values worked out by hand.
#[test]
fn statistics_are_right_for_every_type() {
    let mut data = Vec::new();
    let mut entries = Vec::new();
    let mut add = |name: &str, dtype: &str, shape: &str, bytes: Vec<u8>| {
        let start = data.len();
        data.extend(bytes);
        let end = data.len();
        entries.push(format!(
            r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#
        ));
    };
    let f32s = [1.0f32, -3.0, 0.0, f32::NAN, f32::INFINITY, 6.0, -0.0, f32::NEG_INFINITY];
    add("f32", "F32", "[2,4]", f32s.iter().flat_map(|x| x.to_le_bytes()).collect());
    add("nan", "F64", "[2]", [f64::NAN; 2].iter().flat_map(|x| x.to_le_bytes()).collect());
    add("i64", "I64", "[3]", [i64::MAX, 0, -5].iter().flat_map(|x| x.to_le_bytes()).collect());
    add("u64", "U64", "[2]", [u64::MAX, 1].iter().flat_map(|x| x.to_le_bytes()).collect());
    add("bool", "BOOL", "[4]", vec![1, 0, 1, 1]);
    add("f8", "F8_E4M3", "[3]", vec![1, 2, 3]);
    add("empty", "F16", "[0,3]", vec![]);
    add("odd", "I16", "[2]", [7i16, 9].iter().flat_map(|x| x.to_le_bytes()).collect());
    let header = format!("{{{}}}", entries.join(","));
    let file = Temporary::new("types.safetensors", &safetensors(&header, &data));
    check_statistics(&json(&aquifer(&["inspect", file.0.to_str().unwrap(), "--json"])));
    let table = aquifer(&["inspect", file.0.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&table.stdout);
    assert!(text.contains("9223372036854775807") && text.contains("8 tensors, 24 parameters"));
    assert!(!text.contains('\u{1b}'), "colours only on a terminal");
}

fn check_statistics(document: &Value) {
    let tensor = |name: &str| {
        let rows = document["tensors"].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).unwrap().clone()
    };
    let f32 = tensor("f32");
    assert_eq!((f32["min"].as_f64(), f32["max"].as_f64()), (Some(-3.0), Some(6.0)));
    assert_eq!((f32["mean"].as_f64(), f32["nan"].as_u64()), (Some(0.8), Some(1)));
    assert_eq!((f32["inf"].as_u64(), f32["zero"].as_u64()), (Some(2), Some(2)));
    assert!((f32["std"].as_f64().unwrap() - 8.56f64.sqrt()).abs() < 1e-12);
    assert_eq!((f32["dtype"].as_str(), f32["bytes"].as_u64()), (Some("F32"), Some(32)));
    let nan = tensor("nan");
    assert!(nan["min"].is_null() && nan["mean"].is_null() && nan["std"].is_null());
    assert_eq!(nan["nan"], 2);
    assert_eq!((&tensor("i64")["max"], &tensor("i64")["min"]), (&i64::MAX.into(), &(-5).into()));
    assert_eq!(tensor("u64")["max"], u64::MAX);
    assert_eq!((&tensor("bool")["mean"], &tensor("bool")["zero"]), (&0.75.into(), &1.into()));
    assert!(tensor("f8")["min"].is_null() && tensor("f8")["nan"].is_null());
    assert_eq!(
        (&tensor("f8")["bytes"], tensor("f8")["origin"].as_str()),
        (&3.into(), Some("mapped"))
    );
    assert!(tensor("empty")["min"].is_null() && tensor("empty")["zero"] == 0);
    assert_eq!((&tensor("odd")["min"], &tensor("odd")["max"]), (&7.into(), &9.into()));
    let totals = &document["totals"];
    assert_eq!((&totals["tensors"], &totals["parameters"]), (&8.into(), &24.into()));
    for figure in [
        "active",
        "peak",
        "cache",
        "mapped",
        "active_with_mapped",
        "peak_with_mapped",
        "memory_limit",
        "cache_limit",
        "system_allocations",
        "wired_limit",
        "wired",
        "wired_mapped",
        "wrapped",
        "pending",
        "padding",
        "reserved",
        "peak_reserved",
        "allocations",
        "blocks",
    ] {
        assert!(document["memory"][figure].is_u64(), "memory lacks {figure}");
    }
    assert_eq!(document["device"]["backend"], "cpu");
}

/// The demo and the list of devices.
#[test]
fn demo_and_devices_print_what_they_did() {
    let demo = json(&aquifer(&["demo", "--json"]));
    assert_eq!(
        (&demo["alternate"]["first"], &demo["alternate"]["second"]),
        (&43.0.into(), &1.0.into())
    );
    assert_eq!(demo["alternate"]["origin"], "wrapped");
    assert!(demo["inspect"]["totals"]["bytes"].as_u64().unwrap() > 64 << 20);
    assert_eq!(demo["memory"]["active"], 0);
    let plain = aquifer(&["demo"]);
    assert!(plain.status.success() && String::from_utf8_lossy(&plain.stdout).contains("[0] = 43"));
    let devices = json(&aquifer(&["devices", "--json"]));
    let rows = devices["devices"].as_array().unwrap();
    assert!(rows[0]["available"] == true && rows[0]["backend"] == "cpu");
    for row in &rows[1..] {
        let here = row["available"] == true && row["driver"].is_string() && row["kind"].is_string();
        assert!(here || row["reason"].is_string(), "{row}");
    }
}

/// MiniLM's real file: 104 tensors, statistics equal to NumPy's, mapped whole, nothing copied,
/// and little memory beside it.
#[test]
fn a_real_checkpoint_is_inspected_in_place() {
    let file = cache().join("models/minilm/model.safetensors");
    if !file.exists() {
        assert!(!required("model"), "AQUIFER_REQUIRE=model, but {} is missing", file.display());
        eprintln!("skipped: {} is not there (./check fetches it)", file.display());
        return;
    }
    let document = json(&aquifer(&["inspect", file.to_str().unwrap(), "--json"]));
    let tensors = document["tensors"].as_array().unwrap();
    assert_eq!(tensors.len(), 104);
    assert!(tensors.iter().all(|tensor| tensor["origin"] == "mapped"), "nothing is copied");
    let size = std::fs::metadata(&file).unwrap().len();
    assert_eq!(document["memory"]["mapped"], size.next_multiple_of(4096));
    assert!(document["memory"]["peak"].as_u64().unwrap() < 16 << 20);
    let script = r#"
import json, sys, numpy
name = sys.argv[1]
raw = open(name, 'rb').read()
length = int.from_bytes(raw[:8], 'little')
header = json.loads(raw[8:8 + length])
kinds = {'F32': 'f4', 'I64': 'i8'}
out = {}
for key, entry in header.items():
    if key == '__metadata__':
        continue
    begin, end = entry['data_offsets']
    kind = kinds[entry['dtype']]
    values = numpy.frombuffer(raw[8 + length + begin:8 + length + end], kind)
    wide = values.astype('f8')
    figures = [wide.min(), wide.max(), wide.mean(), wide.std()]
    out[key] = [float(figure) for figure in figures] + [int((values == 0).sum())]
json.dump(out, sys.stdout)
"#;
    let numpy = Command::new("python3")
        .args(["-c", script, file.to_str().unwrap()])
        .env("PYTHONPATH", cache().join("python"))
        .output();
    let Some(numpy) = numpy.ok().filter(|output| output.status.success()) else {
        assert!(!required("numpy"), "AQUIFER_REQUIRE=numpy, but NumPy does not run");
        eprintln!("skipped: NumPy is not there (./check fetches it)");
        return;
    };
    let want: Value = serde_json::from_slice(&numpy.stdout).unwrap();
    for tensor in tensors {
        let values = &want[tensor["name"].as_str().unwrap()];
        for (place, name) in ["min", "max", "mean", "std"].into_iter().enumerate() {
            let (got, want) = (tensor[name].as_f64().unwrap(), values[place].as_f64().unwrap());
            let off = (got - want).abs() / want.abs().max(f64::MIN_POSITIVE);
            assert!(off <= 1e-5 || got == want, "{}: {name} {got} and {want}", tensor["name"]);
        }
        assert_eq!(tensor["zero"], values[4]);
    }
}

/// MiniLM on a Vulkan device: the CPU's statistics, counts exactly.
#[test]
fn a_real_checkpoint_is_the_same_on_vulkan() {
    let file = cache().join("models/minilm/model.safetensors");
    let vulkan = aquifer(&["inspect", file.to_str().unwrap(), "--device", "vulkan", "--json"]);
    if !file.exists() || vulkan.status.code() == Some(2) {
        let missing = if file.exists() { "vulkan" } else { "model" };
        assert!(!required(missing), "{}", String::from_utf8_lossy(&vulkan.stderr));
        eprintln!("skipped: {missing} is not there");
        return;
    }
    let vulkan = json(&vulkan);
    let cpu = json(&aquifer(&["inspect", file.to_str().unwrap(), "--json"]));
    assert_eq!(vulkan["device"]["backend"], "vulkan");
    let rows = |document: &Value| document["tensors"].as_array().unwrap().clone();
    let (vulkan, cpu) = (rows(&vulkan), rows(&cpu));
    assert_eq!((vulkan.len(), cpu.len()), (104, 104));
    let mut worst: f64 = 0.0;
    for (got, want) in vulkan.iter().zip(&cpu) {
        for name in ["name", "dtype", "shape", "bytes", "nan", "inf", "zero"] {
            assert_eq!(got[name], want[name], "{}: {name}", want["name"]);
        }
        for name in ["min", "max", "mean", "std"] {
            let (got, want) = (got[name].as_f64().unwrap(), want[name].as_f64().unwrap());
            worst = worst.max((got - want).abs() / want.abs().max(f64::MIN_POSITIVE));
        }
    }
    println!("at most {worst:e} apart");
    assert!(worst <= 1e-5, "{worst}");
}

/// The process that inspects holds little more than the file.
#[test]
fn inspecting_needs_little_more_than_the_file() {
    let file = cache().join("models/minilm/model.safetensors");
    if !file.exists() || !Path::new("/proc/self/status").exists() {
        assert!(!required("model"), "AQUIFER_REQUIRE=model, but {} is missing", file.display());
        eprintln!("skipped: {} is not there (./check fetches it)", file.display());
        return;
    }
    let script = r#"
import os, resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"#;
    let output = Command::new("python3")
        .args(["-c", script, env!("CARGO_BIN_EXE_aquifer"), "inspect", file.to_str().unwrap()])
        .env("AQUIFER_DEVICE", "cpu")
        .output();
    let Some(output) = output.ok().filter(|output| output.status.success()) else {
        assert!(!required("numpy"), "python3 does not run");
        eprintln!("skipped: python3 is not there");
        return;
    };
    let peak: f64 = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap();
    let size = std::fs::metadata(&file).unwrap().len() as f64;
    println!("peak resident {:.3} x the file", peak / size);
    assert!(peak < 1.2 * size, "{peak} bytes resident for {size} of file");
}
