//! What the tests of the command share.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

pub fn aquifer(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_aquifer"))
        .args(arguments)
        .env("AQUIFER_DEVICE", "cpu")
        .output()
        .unwrap()
}

pub fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Whether a thing that tests need must be there.
pub fn required(name: &str) -> bool {
    let names = std::env::var("AQUIFER_REQUIRE").unwrap_or_default();
    names.split(',').any(|required| required == name)
}

pub fn cache() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache")
}

pub struct Temporary(pub PathBuf);

impl Temporary {
    pub fn new(name: &str, bytes: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("aquifer-cli-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        Self(path)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Temporary {
    /// A path that nothing is at yet.
    pub fn path(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("aquifer-cli-{}-{name}", std::process::id())))
    }

    pub fn text(&self) -> &str {
        self.0.to_str().unwrap()
    }
}
