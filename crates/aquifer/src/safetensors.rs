//! The header of safetensors files, checked before anything of it is used (rule L.4).
//!
//! Eight bytes of length (little-endian), that many bytes of JSON, then the elements. Every
//! extent is checked against the file's length; names are unique; extents do not overlap.

use std::collections::BTreeSet;
use std::fmt;

use aquifer_backend::Dtype;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};

/// The longest header that is read, in bytes; the format's reference implementation has the same.
const MOST_HEADER: u64 = 100_000_000;

/// An element type in the file's own spelling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileDtype {
    name: &'static str,
    size: usize,
    dtype: Option<Dtype>,
}

impl FileDtype {
    const ALL: [Self; 17] = [
        Self::of("BOOL", 1, Some(Dtype::Bool)),
        Self::of("U8", 1, Some(Dtype::U8)),
        Self::of("I8", 1, Some(Dtype::I8)),
        Self::of("U16", 2, Some(Dtype::U16)),
        Self::of("I16", 2, Some(Dtype::I16)),
        Self::of("U32", 4, Some(Dtype::U32)),
        Self::of("I32", 4, Some(Dtype::I32)),
        Self::of("U64", 8, Some(Dtype::U64)),
        Self::of("I64", 8, Some(Dtype::I64)),
        Self::of("F16", 2, Some(Dtype::F16)),
        Self::of("BF16", 2, Some(Dtype::Bf16)),
        Self::of("F32", 4, Some(Dtype::F32)),
        Self::of("F64", 8, Some(Dtype::F64)),
        Self::of("F8_E4M3", 1, None),
        Self::of("F8_E5M2", 1, None),
        Self::of("F8_E8M0", 1, None),
        Self::of("C64", 8, None),
    ];

    const fn of(name: &'static str, size: usize, dtype: Option<Dtype>) -> Self {
        Self { name, size, dtype }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name == name)
    }

    /// The file's spelling.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Bytes of one element.
    pub fn size(self) -> usize {
        self.size
    }

    /// The type of arrays of such elements; `None` where there is none (the 8-bit floats).
    pub fn dtype(self) -> Option<Dtype> {
        self.dtype
    }
}

impl fmt::Display for FileDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

/// One tensor of the header; its extent lies within the file.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) dtype: FileDtype,
    pub(crate) shape: Vec<usize>,
    /// Elements.
    pub(crate) len: usize,
    /// Bytes from the start of the file.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) size: u64,
}

/// What is wrong with a file, and with which tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) tensor: Option<String>,
    pub(crate) reason: String,
}

fn fault(reason: impl Into<String>) -> Fault {
    Fault { tensor: None, reason: reason.into() }
}

#[derive(serde::Deserialize)]
struct RawEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

enum Item {
    Tensor(RawEntry),
    Metadata,
}

/// The header as it stands: names in order, duplicates found.
struct RawHeader(Vec<(String, RawEntry)>);

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Header;
        impl<'de> Visitor<'de> for Header {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let (mut entries, mut names) = (Vec::new(), BTreeSet::new());
                while let Some(name) = map.next_key::<String>()? {
                    if !names.insert(name.clone()) {
                        return Err(de::Error::custom(format!("the name '{name}' stands twice")));
                    }
                    let item = if name == "__metadata__" {
                        map.next_value::<std::collections::BTreeMap<String, String>>()?;
                        Item::Metadata
                    } else {
                        let entry = map.next_value::<RawEntry>();
                        Item::Tensor(entry.map_err(|error| {
                            de::Error::custom(format!("tensor '{name}': {error}"))
                        })?)
                    };
                    if let Item::Tensor(entry) = item {
                        entries.push((name, entry));
                    }
                }
                Ok(RawHeader(entries))
            }
        }
        deserializer.deserialize_map(Header)
    }
}

/// What a file that does not start like one probably is.
fn guess(bytes: &[u8]) -> &'static str {
    let start = bytes.get(..64.min(bytes.len())).unwrap_or_default().trim_ascii_start();
    let starts = |text: &str| {
        start.get(..text.len()).is_some_and(|head| head.eq_ignore_ascii_case(text.as_bytes()))
    };
    if starts("version https://git-lfs") {
        "; it is a git-lfs pointer: fetch the file itself with `git lfs pull`"
    } else if starts("<!doctype") || starts("<html") {
        "; it is an HTML page, not the file that was to be downloaded"
    } else if starts("GGUF") {
        "; it is a GGUF file"
    } else if starts("PK") {
        "; it is a zip archive, perhaps a PyTorch checkpoint"
    } else {
        ""
    }
}

/// Reads and checks the header of a file's bytes. Tensors come in the order of the header.
pub(crate) fn parse(bytes: &[u8]) -> Result<Vec<Entry>, Fault> {
    let total = bytes.len() as u64;
    let Some(length) = bytes.first_chunk::<8>().map(|head| u64::from_le_bytes(*head)) else {
        return Err(fault(format!("{total} bytes are too few for a safetensors file")));
    };
    if length > MOST_HEADER || length > total - 8 {
        return Err(fault(format!(
            "the header claims {length} bytes, but the file has {total} (at most {MOST_HEADER} are read){}",
            guess(bytes)
        )));
    }
    let start = 8 + length;
    let header = &bytes[8..start as usize];
    let RawHeader(raw) = serde_json::from_slice(header)
        .map_err(|error| fault(format!("the header is not valid: {error}{}", guess(bytes))))?;
    let entries: Vec<Entry> = raw
        .into_iter()
        .map(|(name, entry)| check(name, entry, start, total))
        .collect::<Result<_, _>>()?;
    let mut by_place: Vec<&Entry> = entries.iter().filter(|entry| entry.size > 0).collect();
    by_place.sort_by_key(|entry| entry.offset);
    for pair in by_place.windows(2) {
        if pair[0].offset + pair[0].size > pair[1].offset {
            return Err(Fault {
                tensor: Some(pair[1].name.clone()),
                reason: format!(
                    "its bytes start at {}, inside tensor '{}'",
                    pair[1].offset, pair[0].name
                ),
            });
        }
    }
    Ok(entries)
}

fn check(name: String, raw: RawEntry, start: u64, total: u64) -> Result<Entry, Fault> {
    let wrong = |reason: String| Fault { tensor: Some(name.clone()), reason };
    let Some(dtype) = FileDtype::named(&raw.dtype) else {
        return Err(wrong(format!("dtype '{}' is not known", raw.dtype)));
    };
    let (begin, end) = raw.data_offsets;
    if begin > end {
        return Err(wrong(format!("its bytes end at {end}, before they begin at {begin}")));
    }
    let room = total - start;
    if end > room {
        return Err(wrong(format!(
            "its bytes {begin}..{end} go beyond the {room} bytes of the file: it is truncated"
        )));
    }
    let overflow = || wrong(format!("shape {:?} overflows", raw.shape));
    let mut shape = Vec::with_capacity(raw.shape.len());
    let mut len = 1u64;
    for &dim in &raw.shape {
        len = len.checked_mul(dim).ok_or_else(overflow)?;
        shape.push(usize::try_from(dim).map_err(|_| overflow())?);
    }
    let size = len.checked_mul(dtype.size as u64).ok_or_else(overflow)?;
    if size != end - begin {
        return Err(wrong(format!(
            "shape {:?} of {dtype} needs {size} bytes, but {} are given",
            raw.shape,
            end - begin
        )));
    }
    let len = usize::try_from(len).map_err(|_| overflow())?;
    Ok(Entry { dtype, shape, len, offset: start + begin, size, name })
}

#[cfg(test)]
#[path = "safetensors_tests.rs"]
mod tests;
