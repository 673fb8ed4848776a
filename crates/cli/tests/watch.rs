//! A running program is watched by its own user, and by nobody else.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Output, Stdio};

use aquifer::prelude::*;
use common::{Temporary, aquifer, json};

/// What the child of the tests below does: it holds memory until its input ends.
#[test]
fn holder() {
    if std::env::var_os("AQUIFER_TEST_HOLD").is_none() {
        return;
    }
    let device = Device::cpu().unwrap();
    let _weights = {
        let _label = device.label("weights");
        Array::<f32>::zeros(&device, [1 << 20]).unwrap()
    };
    let _cache = {
        let _label = device.label("kv cache");
        Array::<f32>::zeros(&device, [100]).unwrap()
    };
    device.synchronize().unwrap();
    println!("\nholding");
    std::io::stdin().lines().for_each(drop);
}

/// A program that holds memory while it lives.
struct Holder {
    child: Child,
    input: Option<ChildStdin>,
}

impl Holder {
    fn start(socket: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["holder", "--exact", "--nocapture"])
            .env("AQUIFER_TEST_HOLD", "1")
            .env("AQUIFER_WATCH", socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "holding"), "the program did not start");
        // What it still prints must have somewhere to go.
        std::thread::spawn(move || lines.for_each(drop));
        let input = child.stdin.take();
        Self { child, input }
    }

    fn end(mut self) {
        drop(self.input.take());
        assert!(self.child.wait().unwrap().success());
    }
}

fn fails(output: &Output, part: &str) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains(part), "{error} lacks {part}");
}

#[test]
fn the_figures_of_a_running_program_are_shown() {
    let socket = Temporary::path("watch-%p.socket");
    let holder = Holder::start(&socket.0);
    let pid = holder.child.id().to_string();
    let path = socket.text().replace("%p", &pid);
    let look = json(&aquifer(&["watch", &path, "--once", "--json"]));
    let memory = &look["devices"][0]["memory"];
    assert_eq!(memory["active"], (4 << 20) + 512);
    assert_eq!(memory["reserved"].as_u64().unwrap() % 16_384, 0);
    let rows: Vec<_> = look["devices"][0]["labels"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["name"].as_str().unwrap(), row["active"].as_u64().unwrap()))
        .collect();
    assert_eq!(rows, [("weights", 4 << 20), ("kv cache", 512)]);
    // Where the system tells the environment of a process, its number is enough.
    let by_number = Path::new("/proc/self/environ").exists();
    let name = if by_number { &pid } else { &path };
    let by_pid = aquifer(&["watch", name, "--once"]);
    let text = String::from_utf8_lossy(&by_pid.stdout);
    let all = ["active      4.00 MiB", "weights", "kv cache", "cpu", "mapped"];
    assert!(all.iter().all(|part| text.contains(part)), "{text}");
    assert!(!text.contains('\u{1b}'), "colours only on a terminal");
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "the user's alone");
    // Several looks end when the program does.
    let mut looks = Command::new(env!("CARGO_BIN_EXE_aquifer"))
        .args(["watch", &path, "--interval", "0.05"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(looks.stdout.take().unwrap()).lines().map(Result::unwrap);
    let seen = lines.by_ref().filter(|line| line.starts_with("weights")).take(2).count();
    assert_eq!(seen, 2, "it looks again and again");
    holder.end();
    assert!(lines.any(|line| line.contains("has closed its devices")));
    assert!(looks.wait().unwrap().success());
    assert!(!Path::new(&path).exists(), "the socket goes with the program");
    fails(&aquifer(&["watch", &path, "--once"]), "is the program running");
    let own = std::process::id().to_string();
    let why = if by_number { "was not started with AQUIFER_WATCH" } else { "no /proc here" };
    fails(&aquifer(&["watch", &own, "--once"]), why);
}

/// Other users are refused: by the socket's mode, and by whose they are where the mode lets them in.
#[test]
fn other_users_are_refused() {
    let socket = Temporary::path("guarded.socket");
    let holder = Holder::start(&socket.0);
    let other = |arguments: &[&str]| {
        // A place where another user may run it.
        let copy = Temporary::path("copy-of-the-command");
        std::fs::copy(env!("CARGO_BIN_EXE_aquifer"), &copy.0).unwrap();
        let _ = std::fs::set_permissions(&copy.0, std::fs::Permissions::from_mode(0o755));
        Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&copy.0)
            .args(arguments)
            .output()
    };
    match other(&["devices"]) {
        Ok(output) if output.status.success() => {}
        _ => {
            println!("skipped: this user may not become another (it takes root and setpriv)");
            return holder.end();
        }
    }
    let watch = ["watch", socket.text(), "--once"];
    fails(&other(&watch).unwrap(), "only the program's own user");
    std::fs::set_permissions(&socket.0, std::fs::Permissions::from_mode(0o666)).unwrap();
    fails(&other(&watch).unwrap(), "refused");
    assert!(aquifer(&watch).status.success(), "its own user is not");
    holder.end();
}
