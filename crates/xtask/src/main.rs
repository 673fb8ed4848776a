//! The project's own chores: `cargo xtask check` is what CI runs.
#![forbid(unsafe_code)]

mod metal;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

const HELP: &str = "cargo xtask COMMAND

  check   format, clippy, tidy, all tests, doc tests, examples, model checks, rustdoc
  metal   lints for Apple's target, and Metal on a stand-in
  tidy    the rules of style that a program can see
  test    all tests, doc tests and model checks
";

/// One step of a check: a name, arguments of cargo, and variables of its environment.
type Step = (&'static str, &'static [&'static str], &'static [(&'static str, &'static str)]);

const LINT: &[Step] = &[
    ("format", &["fmt", "--all", "--check"], &[]),
    (
        "clippy",
        &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"],
        &[],
    ),
];

const TEST: &[Step] = &[
    ("tests", &["test", "--workspace", "--locked", "--lib", "--bins", "--tests"], &[]),
    (
        // Work that is under way when its submitter goes on: the driver's own threads do it.
        "order on Vulkan, with threads of the driver's",
        &["test", "--workspace", "--locked", "--test", "vulkan", "--", "access::", "order::"],
        &[("LP_NUM_THREADS", "2")],
    ),
    ("doc tests", &["test", "--workspace", "--locked", "--doc"], &[]),
    (
        "model checks",
        &["test", "--package", "aquifer-core", "--lib", "--release", "--locked", "model_checked"],
        &[
            ("RUSTFLAGS", "--cfg loom"),
            ("CARGO_TARGET_DIR", "target/loom"),
            ("LOOM_MAX_PREEMPTIONS", "3"),
        ],
    ),
    (
        "speed and reuse, optimised",
        &[
            "test",
            "--release",
            "--locked",
            "--package",
            "aquifer-core",
            "--test",
            "traces",
            "--",
            "--nocapture",
        ],
        &[],
    ),
];

const DOCS: &[Step] = &[(
    "rustdoc",
    &["doc", "--workspace", "--no-deps", "--locked"],
    &[("RUSTDOCFLAGS", "-D warnings")],
)];

/// Examples with the package that each is of.
const EXAMPLES: &[(&str, &str)] = &[
    ("aquifer-core", "own_device"),
    ("aquifer", "01_inspect"),
    ("aquifer", "02_arrays"),
    ("aquifer", "03_memory"),
    ("aquifer", "04_queues"),
    ("aquifer", "05_kernel"),
    ("aquifer", "06_trace"),
];

fn main() -> ExitCode {
    let command = std::env::args().nth(1);
    let done = match command.as_deref() {
        Some("check") => run(LINT) && tidy() && metal() && run(TEST) && examples() && run(DOCS),
        Some("metal") => metal(),
        Some("tidy") => tidy(),
        Some("test") => run(TEST),
        _ => {
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
    };
    if done { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn run(steps: &[Step]) -> bool {
    steps.iter().all(|(name, arguments, variables)| step(name, arguments, variables))
}

fn metal() -> bool {
    let root = root();
    metal::absent_elsewhere(&root) && metal::lint(&root) && metal::stand_in(&root)
}

fn step(name: &str, arguments: &[&str], variables: &[(&str, &str)]) -> bool {
    println!("== {name}");
    let start = Instant::now();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(arguments)
        .envs(variables.iter().copied())
        .current_dir(root())
        .status();
    let passed = status.is_ok_and(|status| status.success());
    let word = if passed { "passed" } else { "FAILED" };
    println!("== {name}: {word} in {:.0} s", start.elapsed().as_secs_f64());
    passed
}

fn examples() -> bool {
    EXAMPLES.iter().all(|(package, name)| {
        let arguments = ["run", "--quiet", "--locked", "--package", package, "--example", name];
        let mut devices = vec!["cpu"];
        if *package == "aquifer" && std::env::var_os("VK_ICD_FILENAMES").is_some() {
            devices.push("vulkan");
        }
        if *package == "aquifer" && cfg!(target_os = "macos") {
            devices.push("metal");
        }
        devices.iter().all(|device| step(name, &arguments, &[("AQUIFER_DEVICE", device)]))
    })
}

fn tidy() -> bool {
    println!("== tidy");
    let faults = tidy::faults(&root());
    for fault in &faults {
        println!("{fault}");
    }
    println!("== tidy: {}", if faults.is_empty() { "passed" } else { "FAILED" });
    faults.is_empty()
}
