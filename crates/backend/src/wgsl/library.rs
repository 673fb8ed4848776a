//! The functions that printed kernels call, and which of them a text needs.

use std::collections::BTreeMap;
use std::sync::OnceLock;

const TEXTS: [&str; 2] = [include_str!("library.wgsl"), include_str!("library64.wgsl")];

/// Every function and struct of the library by name, with what each names itself.
struct Library {
    items: BTreeMap<&'static str, (&'static str, Vec<&'static str>)>,
}

/// The identifiers of a text.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).filter(|word| !word.is_empty())
}

fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let mut texts = BTreeMap::new();
        for text in TEXTS {
            let mut rest = text;
            while let Some(start) =
                ["\nfn ", "\nstruct "].iter().filter_map(|keyword| rest.find(keyword)).min()
            {
                let item = &rest[start + 1..];
                // An item ends with a brace at the start of a line, or is one line.
                let line = item.find('\n').unwrap_or(item.len());
                let end = match item[..line].ends_with('}') {
                    true => line,
                    false => item.find("\n}").map_or(item.len(), |end| end + 2),
                };
                let item = &item[..end];
                if let Some(name) = words(item).nth(1) {
                    texts.insert(name, item);
                }
                rest = &rest[start + 1 + end..];
            }
        }
        let names: Vec<&str> = texts.keys().copied().collect();
        let items = texts
            .into_iter()
            .map(|(name, text)| {
                let calls = words(text).filter(|word| *word != name && names.contains(word));
                let mut calls: Vec<&'static str> = calls.collect();
                calls.sort_unstable();
                calls.dedup();
                (name, (text, calls))
            })
            .collect();
        Library { items }
    })
}

/// `mul_wide` where there is u64.
const MUL_WIDE: &str = "fn mul_wide(a: u32, b: u32) -> vec2<u32> {
    let p = u64(a) * u64(b);
    return vec2<u32>(u32(p & 0xfffffffflu), u32(p >> 32u));
}";

/// A text with what it needs of the library after it.
pub(super) fn link(mut text: String, int64: bool) -> String {
    let library = library();
    let mut todo: Vec<&str> = words(&text)
        .filter_map(|word| library.items.get_key_value(word).map(|(name, _)| *name))
        .collect();
    let mut seen = std::collections::BTreeSet::new();
    while let Some(name) = todo.pop() {
        if let Some((item, calls)) = library.items.get(name)
            && seen.insert(name)
        {
            text.push('\n');
            text.push_str(if int64 && name == "mul_wide" { MUL_WIDE } else { item });
            text.push('\n');
            todo.extend(calls);
        }
    }
    text
}
