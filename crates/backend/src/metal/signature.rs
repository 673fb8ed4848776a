//! What a kernel in MSL takes, read from its text.

use aquifer_core::Access;

use crate::dtype::Dtype;
use crate::seam::{Argument, CompileError, Signature};

/// Invocations of a workgroup where the caller names none.
const GROUP: u32 = 256;

/// A kernel's arguments, and where each is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Signed {
    pub(super) entry: String,
    pub(super) signature: Signature,
    /// Buffer numbers of the arrays, in the signature's order.
    pub(super) arrays: Vec<u32>,
    /// Those of the scalars, and their types.
    pub(super) scalars: Vec<(u32, Dtype)>,
}

fn wrong(text: impl Into<String>) -> CompileError {
    CompileError::new(text)
}

/// The text without its comments, as long as it was.
fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = ["//", "/*"].iter().filter_map(|mark| rest.find(mark)).min() {
        out.push_str(&rest[..at]);
        let end = match rest[at..].starts_with("//") {
            true => rest[at..].find('\n').map_or(rest.len(), |end| at + end),
            false => rest[at + 2..].find("*/").map_or(rest.len(), |end| at + 2 + end + 2),
        };
        out.push(' ');
        rest = &rest[end..];
    }
    out + rest
}

/// Every kernel: its name and the text of its parameters.
fn kernels(text: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for (at, _) in text.match_indices("kernel") {
        let rest = &text[at + "kernel".len()..];
        if text[..at].ends_with(word) || rest.starts_with(word) {
            continue;
        }
        // `kernel void name(` or `[[kernel]] void name(`, with other attributes between.
        let mut rest = rest.trim_start_matches([']', ' ', '\t', '\n', '\r']);
        while let Some((_, after)) =
            rest.strip_prefix("[[").and_then(|attribute| attribute.split_once("]]"))
        {
            rest = after.trim_start();
        }
        let Some(rest) = rest.strip_prefix("void") else { continue };
        let Some((name, rest)) = rest.split_once('(') else { continue };
        let mut depth = 1;
        let end = rest.find(|c: char| {
            depth += match c {
                '(' => 1,
                ')' => -1,
                _ => 0,
            };
            depth == 0
        });
        if let Some(end) = end {
            found.push((name.trim(), &rest[..end]));
        }
    }
    found
}

/// The parameters, which commas part outside of brackets.
fn parameters(text: &str) -> Vec<&str> {
    let (mut depth, mut parts, mut start) = (0, Vec::new(), 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' | '<' => depth += 1,
            ')' | ']' | '>' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

/// The type of a name of MSL's, or of its elements where it is a vector.
fn dtype(name: &str) -> Option<(Dtype, u64)> {
    let name = name.strip_prefix("metal::").unwrap_or(name);
    let name = name.strip_prefix("packed_").unwrap_or(name);
    let name = name.strip_prefix("atomic_").unwrap_or(name);
    let (scalar, count) = match name.as_bytes().last() {
        Some(digit @ b'2'..=b'4') => (&name[..name.len() - 1], u64::from(digit - b'0')),
        _ => (name, 1),
    };
    let dtype = match scalar {
        "bool" => Dtype::Bool,
        "uchar" | "uint8_t" => Dtype::U8,
        "char" | "int8_t" => Dtype::I8,
        "ushort" | "uint16_t" => Dtype::U16,
        "short" | "int16_t" => Dtype::I16,
        "uint" | "uint32_t" => Dtype::U32,
        "int" | "int32_t" => Dtype::I32,
        "ulong" | "uint64_t" => Dtype::U64,
        "long" | "int64_t" => Dtype::I64,
        "half" => Dtype::F16,
        "bfloat" => Dtype::Bf16,
        "float" => Dtype::F32,
        _ => return None,
    };
    Some((dtype, count))
}

/// What the names of a thread's places begin with.
const PLACES: [&str; 7] = [
    "thread_",
    "threads_",
    "threadgroup_",
    "threadgroups_",
    "simdgroup_",
    "simdgroups_",
    "dispatch_",
];

enum Parameter {
    Array(u32, Argument),
    Scalar(u32, Dtype),
    /// A place in the grid or the like.
    BuiltIn,
}

fn parameter(text: &str) -> Result<Parameter, CompileError> {
    let (declared, attribute) = text.split_once("[[").unwrap_or((text, ""));
    let attribute = attribute.trim();
    let words: Vec<&str> =
        declared.split([' ', '\t', '\n', '\r', '*', '&']).filter(|word| !word.is_empty()).collect();
    let has = |name: &str| words.contains(&name);
    let name = words.last().copied().unwrap_or("?");
    if has("threadgroup") {
        return Err(wrong(format!(
            "argument '{name}': declare threadgroup memory inside the kernel, with its size"
        )));
    }
    if !has("device") && !has("constant") {
        return match PLACES.iter().any(|place| attribute.starts_with(place)) {
            true => Ok(Parameter::BuiltIn),
            false => Err(wrong(format!(
                "argument '{text}' is neither device nor constant memory, nor a place in the grid"
            ))),
        };
    }
    if declared.contains(['(', '[']) {
        return Err(wrong(format!(
            "argument '{text}': arrays are pointers, scalars references to one"
        )));
    }
    let index = attribute.strip_prefix("buffer").map(str::trim_start);
    let index = index.and_then(|index| index.strip_prefix('(')?.split(')').next());
    let Some(index) = index.and_then(|index| index.trim().parse::<u32>().ok()) else {
        return Err(wrong(format!("argument '{name}': give its number as [[buffer(n)]]")));
    };
    let element = words.iter().find_map(|word| dtype(word));
    if has("constant") && declared.contains('&') {
        return match element {
            Some((dtype, 1)) => Ok(Parameter::Scalar(index, dtype)),
            _ => Err(wrong(format!("argument '{name}': constant references are scalars"))),
        };
    }
    // What is pointed to is constant, not the pointer.
    let pointee = declared.split(['*', '&']).next().unwrap_or_default();
    let constant = pointee.split_whitespace().any(|word| word == "const" || word == "constant");
    let access = if constant { Access::Read } else { Access::Write };
    let least = element.map_or(1, |(dtype, count)| dtype.size() as u64 * count);
    let element = element.map(|(dtype, _)| dtype);
    Ok(Parameter::Array(index, Argument::Array { access, element, least }))
}

/// Reads what a text's kernel takes: arrays in the order of their numbers, then scalars in that of
/// theirs.
pub(super) fn read(
    text: &str,
    entry: Option<&str>,
    workgroup: Option<[u32; 3]>,
) -> Result<Signed, CompileError> {
    let text = without_comments(text);
    let all = kernels(&text);
    let named: Vec<_> =
        all.iter().filter(|(name, _)| entry.is_none_or(|entry| entry == *name)).collect();
    let [(name, list)] = named[..] else {
        let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        return Err(wrong(match entry {
            Some(entry) if names.contains(&entry) => {
                format!("the kernel '{entry}' is in the text more than once")
            }
            Some(entry) => format!("no kernel '{entry}'; there are: {names:?}"),
            None if names.is_empty() => "there is no `kernel void` function".to_owned(),
            None => format!("name the kernel with entry(): there are {names:?}"),
        }));
    };
    let (mut arrays, mut scalars) = (Vec::new(), Vec::new());
    for part in parameters(list) {
        match parameter(part)? {
            Parameter::Array(index, argument) => arrays.push((index, argument)),
            Parameter::Scalar(index, dtype) => scalars.push((index, dtype)),
            Parameter::BuiltIn => {}
        }
    }
    arrays.sort_by_key(|(index, _)| *index);
    scalars.sort_by_key(|(index, _)| *index);
    let mut numbers: Vec<u32> = arrays.iter().map(|(index, _)| *index).collect();
    numbers.extend(scalars.iter().map(|(index, _)| *index));
    numbers.sort_unstable();
    if let Some(pair) = numbers.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(wrong(format!("two arguments have [[buffer({})]]", pair[0])));
    }
    let mut arguments: Vec<Argument> = arrays.iter().map(|(_, argument)| *argument).collect();
    arguments.extend(scalars.iter().map(|(_, dtype)| Argument::Scalar(*dtype)));
    Ok(Signed {
        entry: (*name).to_owned(),
        signature: Signature { arguments, workgroup: workgroup.unwrap_or([GROUP, 1, 1]) },
        arrays: arrays.into_iter().map(|(index, _)| index).collect(),
        scalars,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
        #include <metal_stdlib>
        // kernel void not_this(device float* x [[buffer(0)]])
        /* kernel void nor_this() */
        void kernel_helper(device float* x);
        kernel [[max_total_threads_per_threadgroup(64)]] void scale(
            device const float4* x [[buffer(0)]], device atomic_uint *const hits [[ buffer(3) ]],
            constant metal::half& by [[buffer(2)]], const device short* y [[buffer(1)]],
            uint3 at [[thread_position_in_grid]], constant ulong& n [[buffer(4)]]) {
        }";

    /// N.4: order, access, types and least sizes are those of the text.
    #[test]
    fn arguments_are_read_from_the_text() {
        let signed = read(TEXT, None, Some([8, 1, 1])).expect("it has no fault");
        let array =
            |access, element, least| Argument::Array { access, element: Some(element), least };
        assert_eq!(signed.entry, "scale");
        assert_eq!(
            signed.signature.arguments,
            [
                array(Access::Read, Dtype::F32, 16),
                array(Access::Read, Dtype::I16, 2),
                array(Access::Write, Dtype::U32, 4),
                Argument::Scalar(Dtype::F16),
                Argument::Scalar(Dtype::U64),
            ]
        );
        assert_eq!(signed.arrays, [0, 1, 3]);
        assert_eq!(signed.scalars, [(2, Dtype::F16), (4, Dtype::U64)]);
        assert_eq!(signed.signature.workgroup, [8, 1, 1]);
    }

    /// N.4, O.1: what is wrong with a text names the argument and says what to do.
    #[test]
    fn faults_name_the_argument() {
        let fault = |parameters: &str| {
            let text = format!("kernel void f({parameters}) {{}}");
            read(&text, None, None).expect_err("it has a fault").reason
        };
        for (parameters, part) in [
            ("device float* x", "'x': give its number"),
            ("threadgroup float* t [[threadgroup(0)]]", "'t': declare threadgroup memory"),
            ("float x", "'float x' is neither device nor constant"),
            ("P x [[buffer(0)]]", "'P x [[buffer(0)]]' is neither"),
            ("texture2d<float> t [[texture(0)]]", "neither device nor constant"),
            ("[[maybe_unused]] device float* x [[buffer(0)]]", "neither device nor constant"),
            ("constant float (&w)[4] [[buffer(1)]]", "arrays are pointers"),
            ("constant float4& x [[buffer(0)]]", "'x': constant references are scalars"),
            ("device int* x [[buffer(1)]], device int* y [[buffer(1)]]", "[[buffer(1)]]"),
        ] {
            assert!(fault(parameters).contains(part), "{}", fault(parameters));
        }
        assert!(read("", None, None).expect_err("none").reason.contains("no `kernel void`"));
        let two = "kernel void f() {} kernel void g() {}";
        assert!(read(two, None, None).expect_err("two").reason.contains("entry()"));
        assert_eq!(read(two, Some("g"), None).expect("named").entry, "g");
        assert!(read(two, Some("h"), None).expect_err("none").reason.contains("'h'"));
    }

    /// Whatever the text, reading ends.
    #[test]
    fn mutilated_texts_are_errors_or_read() {
        let random = &mut fastrand::Rng::with_seed(0x51C);
        for _ in 0..2000 {
            let (from, to) = (random.usize(..TEXT.len()), random.usize(..TEXT.len()));
            let (from, to) = (from.min(to), from.max(to));
            let text = format!("{}{}", &TEXT[..from], &TEXT[to..]);
            let _ = read(&text, None, None);
        }
    }
}
