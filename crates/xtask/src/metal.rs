//! Metal without a Mac: lints for the real target, and the back end run against a stand-in.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The stand-in's own workspace.
const STAND_IN: &str = "crates/backend/tests/metal_fake";
/// The one line of objc2-metal that does not build on Linux, and what it is there.
const LINK: &str = "#[link(name = \"Metal\", kind = \"framework\")]";
const LINK_ON_APPLE: &str =
    "#[cfg_attr(target_vendor = \"apple\", link(name = \"Metal\", kind = \"framework\"))]";

/// A step that this machine may lack something for.
fn step(name: &str, kind: &str, lacks: Option<&str>, run: impl FnOnce() -> bool) -> bool {
    println!("== {name}");
    let required = std::env::var("AQUIFER_REQUIRE").unwrap_or_default();
    if let Some(what) = lacks {
        let required = required.split(',').any(|required| required == kind);
        println!("== {name}: {}: {what}", if required { "FAILED" } else { "skipped" });
        return !required;
    }
    let start = Instant::now();
    let passed = run();
    let word = if passed { "passed" } else { "FAILED" };
    println!("== {name}: {word} in {:.0} s", start.elapsed().as_secs_f64());
    passed
}

fn succeeds(command: &mut Command) -> bool {
    command.status().is_ok_and(|status| status.success())
}

/// Whether Debian's compiler is recent enough, with its own library's source.
fn has_recent_source() -> bool {
    let Ok(output) = Command::new("/usr/bin/rustc").arg("--version").output() else { return false };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split(' ').nth(1).unwrap_or_default();
    let minor = version.split('.').nth(1).and_then(|minor| minor.parse::<u32>().ok());
    let source = Path::new("/usr/src").join(format!("rustc-{version}")).join("library");
    minor.is_some_and(|minor| minor >= 90) && source.exists()
}

/// Lints every crate of the library for Apple's own target, with the compiler that Debian has with
/// its standard library's source: rustup's has no such library for a target that it cannot link.
pub(crate) fn lint(root: &Path) -> bool {
    let clippy = Path::new("/usr/bin/cargo-clippy");
    let lacks = (!clippy.exists() || !has_recent_source())
        .then_some("Debian's rustc-web, rust-web-src, rust-web-clippy and cargo-web are not here");
    step("clippy for aarch64-apple-darwin", "apple", lacks, || {
        let mut command = Command::new(clippy);
        command
            .args(["clippy", "-Zbuild-std=std,test", "--target", "aarch64-apple-darwin"])
            .args(["-p", "aquifer-core", "-p", "aquifer-backend", "-p", "aquifer"])
            .args(["-p", "aquifer-cli", "--all-targets", "--locked", "--", "-D", "warnings"])
            .env("PATH", "/usr/bin:/bin")
            .env("CARGO", "/usr/bin/cargo")
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_TARGET_DIR", root.join("target/apple"))
            .env_remove("RUSTUP_TOOLCHAIN")
            .env_remove("RUSTFLAGS")
            .current_dir(root);
        succeeds(&mut command)
    })
}

/// A build for Linux has none of Objective-C's crates.
pub(crate) fn absent_elsewhere(root: &Path) -> bool {
    step("no Objective-C in a build for Linux", "tree", None, || {
        let output = Command::new(cargo())
            .args(["tree", "--workspace", "--locked", "--prefix", "none", "--edges", "all"])
            .args(["--target", "x86_64-unknown-linux-gnu"])
            .current_dir(root)
            .output();
        let Ok(output) = output else { return false };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let foreign = |line: &&str| ["objc2", "block2"].iter().any(|name| line.starts_with(name));
        let found: Vec<&str> = text.lines().filter(foreign).collect();
        found.iter().for_each(|line| println!("{line}"));
        output.status.success() && text.contains("naga") && found.is_empty()
    })
}

/// Runs the back end against the stand-in: every case of the conformance suite, and what only it can
/// show.
pub(crate) fn stand_in(root: &Path) -> bool {
    let linux = cfg!(all(target_os = "linux", target_arch = "x86_64"));
    let objc = fs::read_dir("/usr/lib/gcc/x86_64-linux-gnu").into_iter().flatten().flatten();
    let has_objc = objc.into_iter().any(|entry| entry.path().join("include/objc/objc.h").exists());
    let blocks = Path::new("/usr/include/Block.h").exists();
    let lacks = (!linux || !has_objc || !blocks || !has_clang())
        .then_some("clang, libobjc-12-dev and libblocksruntime-dev are not here");
    step("Metal on a stand-in", "metal-fake", lacks, || {
        if let Err(error) = patch(root) {
            println!("objc2-metal could not be patched: {error}");
            return false;
        }
        let run = |arguments: &[&str]| {
            let mut command = Command::new(cargo());
            command
                .args(arguments)
                .current_dir(root.join(STAND_IN))
                .env("RUSTFLAGS", "--cfg metal_stand_in")
                .env("CARGO_TARGET_DIR", root.join("target/metal-fake/build"));
            succeeds(&mut command)
        };
        run(&["fmt", "--check"])
            && run(&["clippy", "--all-targets", "--locked", "--", "-D", "warnings"])
            && run(&["test", "--locked", "--all-targets"])
    })
}

fn cargo() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

fn has_clang() -> bool {
    let names = (14..=25).rev().map(|version| format!("clang-{version}"));
    let mut names = names.chain(["clang".to_owned()]);
    names.any(|name| Command::new(name).arg("--version").output().is_ok())
}

/// Copies the registry's own source of objc2-metal, with the one line changed.
fn patch(root: &Path) -> io::Result<()> {
    let target = root.join("target/metal-fake/objc2-metal");
    let source = registry_source(root)?;
    let mark = target.join("patched-from");
    let from = source.display().to_string();
    if fs::read_to_string(&mark).is_ok_and(|known| known == from) {
        // What is newer than what was built from it is built again.
        return Ok(());
    }
    let _ = fs::remove_dir_all(&target);
    copy(&source, &target)?;
    let file = target.join("src/generated/mod.rs");
    let text = fs::read_to_string(&file)?;
    if text.matches(LINK).count() != 1 {
        return Err(io::Error::other(format!("{from} does not link Metal as it did")));
    }
    fs::write(&file, text.replace(LINK, LINK_ON_APPLE))?;
    fs::write(mark, from)
}

/// Where cargo keeps the version of objc2-metal that is locked.
fn registry_source(root: &Path) -> io::Result<PathBuf> {
    let output = Command::new(cargo())
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(root)
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let manifests = text.split("\"manifest_path\":\"").skip(1);
    let mut paths = manifests.filter_map(|rest| rest.split('"').next());
    let found = paths.find(|path| path.contains("/objc2-metal-") && path.ends_with("/Cargo.toml"));
    let folder = found.and_then(|path| Path::new(path).parent());
    folder
        .map(Path::to_path_buf)
        .ok_or_else(|| io::Error::other("cargo metadata does not name objc2-metal"))
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy(&entry.path(), &target)?,
            false => fs::copy(entry.path(), &target).map(|_| ())?,
        }
    }
    Ok(())
}
