//! Rules of style that a program can see: lengths of files and functions, where `cfg` may stand,
//! which way dependencies point, proofs beside `unsafe`, no bare TODO.

use std::fs;
use std::path::{Path, PathBuf};

/// Lines that a source file may have.
const MOST_LINES: usize = 800;
/// Columns that a line may have.
const MOST_COLUMNS: usize = 100;

/// What each crate may depend on: dependencies point one way.
const LAYERS: [(&str, &[&str]); 4] = [
    ("core", &[]),
    ("backend", &["aquifer-core"]),
    ("aquifer", &["aquifer-core", "aquifer-backend"]),
    ("cli", &["aquifer"]),
];

/// Crates that have no `unsafe` at all.
const SAFE: [&str; 3] = ["core/src/lib.rs", "cli/src/main.rs", "xtask/src/main.rs"];

/// Everything that is against the rules, a line each.
pub(crate) fn faults(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let crates = root.join("crates");
    for path in sources(&crates) {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let name = path.strip_prefix(&crates).unwrap_or(&path).display().to_string();
        check_source(&name, &text, &mut found);
    }
    for (layer, allowed) in LAYERS {
        let manifest = crates.join(layer).join("Cargo.toml");
        check_manifest(
            layer,
            allowed,
            &fs::read_to_string(manifest).unwrap_or_default(),
            &mut found,
        );
    }
    for file in SAFE {
        let text = fs::read_to_string(crates.join(file)).unwrap_or_default();
        if !text.contains("#![forbid(unsafe_code)]") {
            found.push(format!("{file}: must forbid unsafe code"));
        }
    }
    found
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(folder) else { return found };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn check_source(name: &str, text: &str, found: &mut Vec<String>) {
    let lines: Vec<&str> = text.lines().collect();
    if lines.len() > MOST_LINES {
        found.push(format!("{name}: {} lines, more than {MOST_LINES}", lines.len()));
    }
    let own = name.starts_with("xtask");
    for (index, line) in lines.iter().enumerate() {
        let mut fault = |what: &str| found.push(format!("{name}:{}: {what}", index + 1));
        let code = line.trim_start();
        if line.chars().count() > MOST_COLUMNS && !line.contains('"') && !code.starts_with("//") {
            fault("longer than 100 columns");
        }
        if own {
            continue;
        }
        if ["TODO", "FIXME", "XXX"].iter().any(|word| line.contains(word)) {
            fault("a bare TODO: file an issue, or do it");
        }
        let platform = ["cfg(target", "cfg(unix", "cfg(windows", "cfg(feature"];
        let back_end = name.starts_with("backend/src/");
        if platform.iter().any(|cfg| code.contains(cfg)) && !back_end && !code.starts_with("//") {
            fault("a cfg of the platform outside the back ends");
        }
        let metal = name.starts_with("backend/src/metal/") && code.starts_with("#[cfg");
        let stand_in = code.contains("metal_stand_in") && name != "backend/src/lib.rs";
        if (metal && !code.contains("cfg(test)")) || stand_in {
            fault("a cfg of the Metal back end outside backend/src/lib.rs");
        }
        let unsafe_code = code.contains("unsafe {") || code.contains("unsafe impl");
        if unsafe_code && !code.starts_with("//") && !has_proof(&lines, index) {
            fault("unsafe without a SAFETY proof above it");
        }
    }
}

/// Whether a SAFETY comment stands above a line, over the lines of the same statement.
fn has_proof(lines: &[&str], index: usize) -> bool {
    let start = index.saturating_sub(12);
    lines[start..index].iter().any(|line| line.trim_start().starts_with("// SAFETY:"))
}

fn check_manifest(layer: &str, allowed: &[&str], text: &str, found: &mut Vec<String>) {
    let mut section = "";
    let mut last = "";
    for line in text.lines() {
        if line.starts_with('[') {
            section = line;
        }
        let dependency =
            section.contains("dependencies") && line.contains('=') && !line.starts_with('[');
        let own = line.starts_with("aquifer");
        if dependency && own {
            let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
            if !allowed.contains(&name) && section != "[dev-dependencies]" {
                found.push(format!("{layer}/Cargo.toml: must not depend on {name}"));
            }
        } else if dependency && !last.starts_with('#') && !line.starts_with('#') {
            found.push(format!("{layer}/Cargo.toml: no reason above `{line}`"));
        }
        last = line;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_tidy() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let found = faults(&root);
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    #[test]
    fn each_rule_finds_what_it_is_for() {
        let mut found = Vec::new();
        check_source("core/src/a.rs", "let x = unsafe { f() };\n", &mut found);
        check_source("core/src/a.rs", "// TODO later\n", &mut found);
        check_source("core/src/a.rs", "#[cfg(unix)]\n", &mut found);
        check_source("backend/src/a.rs", "#[cfg(metal_stand_in)]\n", &mut found);
        check_source("backend/src/metal/a.rs", "#[cfg_attr(debug, inline)]\n", &mut found);
        check_source("core/src/a.rs", &"\n".repeat(MOST_LINES + 1), &mut found);
        check_manifest("core", &[], "[dependencies]\naquifer.workspace = true\n", &mut found);
        check_manifest("core", &[], "[dependencies]\nserde = \"1\"\n", &mut found);
        assert_eq!(found.len(), 8, "{found:?}");
    }
}
