//! Compiles the stand-in with clang as a library that stands beside GCC's Objective-C runtime.

use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCES: [&str; 6] =
    ["foundation.m", "controls.m", "metal.m", "commands.m", "compile.c", "runtime.c"];

/// The newest of Debian's clangs, or the one that `CLANG` names.
fn clang() -> String {
    println!("cargo:rerun-if-env-changed=CLANG");
    let works = |name: &String| {
        Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    let names = std::env::var("CLANG").into_iter();
    let names = names.chain((14..=25).rev().map(|version| format!("clang-{version}")));
    names.chain(["clang".to_owned()]).find(works).expect("clang is not here: install clang-19")
}

/// Where GCC keeps libobjc and its headers.
fn gcc() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib/gcc/x86_64-linux-gnu");
    let folders = folders.expect("GCC is not here: install libobjc-12-dev");
    let mut with_objc: Vec<PathBuf> = folders
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.join("include/objc/objc.h").exists())
        .collect();
    with_objc.sort();
    with_objc.pop().expect("libobjc is not here: install libobjc-12-dev")
}

fn main() {
    let here = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where"));
    let out = PathBuf::from(std::env::var("OUT_DIR").expect("cargo says where"));
    let (clang, gcc) = (clang(), gcc());
    for folder in ["objc", "msl"] {
        println!("cargo:rerun-if-changed={}", here.join(folder).display());
    }
    let features = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    // Kernels may fuse products and sums only where the processor can.
    let machine = if features.contains(" fma ") { "-mavx2 -mfma -mf16c" } else { "" };
    let text = |name: &str, value: &str| format!("-D{name}=\"{value}\"");
    let library = out.join("libmetal_fake.so");
    let status = Command::new(&clang)
        .args(["-fobjc-runtime=gcc", "-fblocks", "-std=gnu11", "-O1", "-g", "-fPIC", "-shared"])
        .args(["-Wall", "-Werror", "-Wno-deprecated-objc-isa-usage", "-Wno-objc-root-class"])
        .arg(text("METAL_FAKE_CLANG", &clang))
        .arg(text("METAL_FAKE_MSL", &here.join("msl").display().to_string()))
        .arg(text("METAL_FAKE_MACHINE", machine))
        .arg("-I")
        .arg(gcc.join("include"))
        .args(SOURCES.map(|source| here.join("objc").join(source)))
        .arg("-o")
        .arg(&library)
        .arg("-L")
        .arg(&gcc)
        .args(["-lobjc", "-lBlocksRuntime", "-lpthread", "-ldl"])
        .status();
    assert!(status.is_ok_and(|status| status.success()), "the stand-in does not compile");
    let search = |folder: &Path| println!("cargo:rustc-link-search=native={}", folder.display());
    search(&out);
    search(&gcc);
    println!("cargo:rustc-link-lib=dylib=metal_fake");
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", out.display());
}
