use super::*;

fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

fn reason(bytes: &[u8]) -> String {
    let fault = parse(bytes).unwrap_err();
    format!("{:?} {}", fault.tensor, fault.reason)
}

/// L.4: each kind of hostile header is an error that names the tensor and the reason.
#[test]
fn hostile_headers_are_named_errors() {
    let one = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"t":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    let cases = [
        (file(&one("F32", "[2]", "[0,8]"), 4), "truncated"),
        (file(&one("F32", "[2]", "[8,0]"), 8), "before they begin"),
        (file(&one("F32", "[3]", "[0,8]"), 8), "needs 12 bytes"),
        (file(&one("F99", "[2]", "[0,8]"), 8), "'F99' is not known"),
        (file(&one("F32", "[4294967296,4294967296]", "[0,8]"), 8), "overflows"),
        (file(&one("F32", "[-1]", "[0,8]"), 8), "tensor 't'"),
        (file(&one("F32", "[0,18446744073709551615,2]", "[0,0]"), 8), ""),
        (
            file(
                r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}}"#,
                8,
            ),
            "inside tensor 'a'",
        ),
        (
            file(
                r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#,
                8,
            ),
            "stands twice",
        ),
        (file("[1,2]", 0), "not valid"),
        (file(&"[".repeat(100_000), 0), "not valid"),
        (vec![], "too few"),
        (vec![1, 2, 3], "too few"),
        (u64::MAX.to_le_bytes().to_vec(), "claims"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:".to_vec(), "git-lfs pointer"),
        (b"<!DOCTYPE html><html>".to_vec(), "HTML page"),
    ];
    for (bytes, want) in cases {
        if want.is_empty() {
            let _ = parse(&bytes);
            continue;
        }
        let got = reason(&bytes);
        assert!(got.contains(want), "{got} does not tell of {want}");
    }
}

/// Peer case 29: 20,000 tensors, and names of any script.
#[test]
fn many_tensors_and_any_names_are_read() {
    let mut header = String::from("{");
    for index in 0..20_000 {
        if index > 0 {
            header.push(',');
        }
        header += &format!(
            r#""层.{index}.вес":{{"dtype":"U8","shape":[1],"data_offsets":[{index},{}]}}"#,
            index + 1
        );
    }
    header.push('}');
    let entries = parse(&file(&header, 20_000)).unwrap();
    assert_eq!(entries.len(), 20_000);
    assert_eq!(entries[19_999].name, "层.19999.вес");
}

/// Metadata is not a tensor; empty tensors need no bytes.
#[test]
fn metadata_and_empty_tensors_are_no_trouble() {
    let header = r#"{"__metadata__":{"format":"pt"},"e":{"dtype":"F64","shape":[0,7],"data_offsets":[0,0]}}"#;
    let entries = parse(&file(header, 0)).unwrap();
    assert_eq!((entries.len(), entries[0].len, entries[0].size), (1, 0, 0));
}
