//! Checkpoints (rules L.1, L.2, L.4; peer cases 28 to 30).
#![allow(clippy::unwrap_used)]

use aquifer::prelude::*;
use aquifer::{Element, core::size::mapping_size};
use std::path::PathBuf;

/// A file that goes with the test.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("aquifer-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        Self(path)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A file with a header padded to `length` modulo 8, and one tensor of each type.
fn sample(length: usize) -> (Vec<u8>, Vec<u8>) {
    let kinds = [
        ("BOOL", 1),
        ("U8", 1),
        ("I8", 1),
        ("U16", 2),
        ("I16", 2),
        ("U32", 4),
        ("I32", 4),
        ("U64", 8),
        ("I64", 8),
        ("F16", 2),
        ("BF16", 2),
        ("F32", 4),
        ("F64", 8),
        ("F8_E4M3", 1),
        ("F8_E5M2", 1),
    ];
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    let mut random = fastrand::Rng::with_seed(9);
    for (name, size) in kinds {
        let start = data.len();
        let bytes =
            (0..6 * size).map(|_| if name == "BOOL" { random.u8(0..2) } else { random.u8(..) });
        data.extend(bytes);
        entries.push(format!(
            r#""{name}":{{"dtype":"{name}","shape":[2,3],"data_offsets":[{start},{}]}}"#,
            data.len()
        ));
    }
    let mut header = format!("{{{}}}", entries.join(","));
    while header.len() % 8 != length {
        header.push(' ');
    }
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(&data);
    (file, data)
}

fn same_bits<T: Element>(model: &Checkpoint, name: &str, data: &[u8]) {
    let array = model.array::<T>(name).unwrap();
    assert_eq!(array.shape(), [2, 3]);
    let values = array.to_vec().unwrap();
    let size = size_of::<T>();
    for (value, bytes) in values.iter().zip(data.chunks(size)) {
        assert_eq!(value.to_bits().to_le_bytes()[..size], *bytes, "{name}");
    }
    let sum = array.map(|x| x.cast::<f64>()).unwrap().sum().unwrap().item().unwrap();
    assert!(sum.is_finite() || T::DTYPE.is_float());
}

/// Peer case 28, L.2: every type with every header length modulo 8 loads bit for bit; only what is
/// misaligned is copied, and says so.
#[test]
fn every_type_at_every_alignment_loads_bit_for_bit() {
    let device = Device::cpu().unwrap();
    for length in 0..8 {
        let (bytes, data) = sample(length);
        let file = Temporary::new(&format!("align-{length}"), &bytes);
        let model = Checkpoint::open(&device, &file.0).unwrap();
        let mut at = 0;
        for tensor in model.tensors() {
            let size = tensor.size() as usize;
            let part = &data[at..at + size];
            let offset = bytes.len() - data.len() + at;
            let aligned = offset % tensor.dtype().size() == 0;
            assert_eq!(tensor.origin() == Origin::Mapped, aligned, "{tensor:?} at {offset}");
            if !aligned {
                assert!(tensor.origin().to_string().contains("not aligned"));
            }
            match tensor.name() {
                "BOOL" => same_bits::<bool>(&model, "BOOL", part),
                "U8" => same_bits::<u8>(&model, "U8", part),
                "I8" => same_bits::<i8>(&model, "I8", part),
                "U16" => same_bits::<u16>(&model, "U16", part),
                "I16" => same_bits::<i16>(&model, "I16", part),
                "U32" => same_bits::<u32>(&model, "U32", part),
                "I32" => same_bits::<i32>(&model, "I32", part),
                "U64" => same_bits::<u64>(&model, "U64", part),
                "I64" => same_bits::<i64>(&model, "I64", part),
                "F16" => same_bits::<f16>(&model, "F16", part),
                "BF16" => same_bits::<bf16>(&model, "BF16", part),
                "F32" => same_bits::<f32>(&model, "F32", part),
                "F64" => same_bits::<f64>(&model, "F64", part),
                name => {
                    assert!(name.starts_with("F8_") && tensor.dtype().dtype().is_none());
                    assert_eq!(tensor.array::<u8>().unwrap_err().kind(), ErrorKind::Dtype);
                }
            }
            at += size;
        }
        let stats = device.memory();
        let whole = mapping_size(bytes.len() as u64, device.caps().system_page).unwrap();
        assert_eq!(
            (stats.mapped, stats.active),
            (whole, 0),
            "L.1: counted whole, and nowhere else"
        );
        assert!(matches!(model.array::<f32>("I32").unwrap_err().kind(), ErrorKind::Dtype));
        let near = model.tensor("F31").unwrap_err();
        assert!(near.to_string().contains("the nearest is 'F3"), "{near}");
    }
    assert_eq!(device.memory().mapped, 0);
}

/// L.1: a refused mapping changes nothing; the limit and the threshold see what is mapped.
#[test]
fn a_refused_mapping_changes_nothing() {
    let device = Device::cpu().unwrap();
    let (bytes, _) = sample(0);
    let file = Temporary::new("refused", &bytes);
    device.set_memory_limit(100);
    let before = device.memory();
    let error = Checkpoint::open(&device, &file.0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert_eq!(device.memory(), before);
    device.set_memory_limit(1 << 30);
    let model = Checkpoint::open(&device, &file.0).unwrap();
    let mapped = device.memory().mapped;
    device.set_memory_limit(mapped + 100);
    assert!(Array::<f32>::zeros(&device, [1000]).is_err());
    drop(model);
    assert!(device.set_memory_limit(1 << 30) == mapped + 100);
}

/// L.4: 300 mutations of a good file are read or refused by name; none ends the process, and
/// nothing stays mapped.
#[test]
fn mutated_files_are_read_or_refused() {
    let device = Device::cpu().unwrap();
    let (good, _) = sample(3);
    let mut random = fastrand::Rng::with_seed(41);
    let (mut read, mut refused) = (0, 0);
    for index in 0..300 {
        let mut bytes = good.clone();
        match index % 5 {
            0 => bytes.truncate(random.usize(0..bytes.len())),
            1 => (0..random.usize(1..8)).for_each(|_| {
                let at = random.usize(0..bytes.len());
                bytes[at] ^= 1 << random.u32(0..8);
            }),
            2 => bytes[..8].copy_from_slice(&(random.u64(..) >> random.u32(0..60)).to_le_bytes()),
            3 => {
                // A digit of the header becomes another: offsets, shapes and types go wrong.
                let digits: Vec<_> =
                    (8..1000.min(bytes.len())).filter(|&i| bytes[i].is_ascii_digit()).collect();
                for _ in 0..random.usize(1..4) {
                    bytes[digits[random.usize(0..digits.len())]] = random.u8(b'0'..=b'9');
                }
            }
            _ => {
                let at = random.usize(0..bytes.len());
                let part = bytes[at..(at + 40).min(good.len())].to_vec();
                bytes.splice(random.usize(0..=at)..at, part);
            }
        }
        let file = Temporary::new(&format!("mutant-{index}"), &bytes);
        match Checkpoint::open(&device, &file.0) {
            Ok(model) => {
                read += 1;
                for tensor in model.tensors() {
                    let _ = tensor.array::<f32>().map(|array| array.sum().unwrap().item().unwrap());
                    let _ = tensor.array::<bool>().map(|array| array.count().unwrap().item());
                }
            }
            Err(error) => {
                refused += 1;
                assert!(matches!(error.kind(), ErrorKind::File | ErrorKind::Io), "{error}");
                assert!(error.to_string().contains("mutant"), "{error}");
            }
        }
    }
    println!("{read} mutants were read, {refused} refused");
    assert!(read > 5 && refused > 100);
    assert_eq!((device.memory().mapped, device.memory().active), (0, 0));
}

/// L.4: a bool that is neither 0 nor 1, and a file that has become shorter, are errors.
#[test]
fn what_changes_under_us_is_an_error() {
    let device = Device::cpu().unwrap();
    let (mut bytes, data) = sample(0);
    let start = bytes.len() - data.len();
    bytes[start] = 2;
    let file = Temporary::new("bool", &bytes);
    let model = Checkpoint::open(&device, &file.0).unwrap();
    let error = model.array::<bool>("BOOL").unwrap_err();
    assert!(error.to_string().contains("'BOOL': a bool is neither 0 nor 1"), "{error}");
    let short = std::fs::OpenOptions::new().write(true).open(&file.0).unwrap();
    short.set_len(start as u64 + 20).unwrap();
    let error = model.array::<f64>("F64").unwrap_err();
    assert!(error.to_string().contains("become shorter"), "{error}");
    for (name, bytes) in [("empty", &[][..]), ("tiny", &[0; 7])] {
        let file = Temporary::new(name, bytes);
        assert_eq!(Checkpoint::open(&device, &file.0).unwrap_err().kind(), ErrorKind::File);
    }
    assert_eq!(Checkpoint::open(&device, "/no/such/file").unwrap_err().kind(), ErrorKind::Io);
    let folder = Checkpoint::open(&device, std::env::temp_dir()).unwrap_err();
    assert!(folder.to_string().contains("a folder"), "{folder}");
}

/// Peer case 29: the footprint before loading is the rise of `mapped`; wired mapped files count.
#[test]
fn mapped_files_can_be_wired() {
    let device = Device::cpu().unwrap();
    let (bytes, _) = sample(0);
    let file = Temporary::new("wired", &bytes);
    device.set_wired_limit(1 << 20).unwrap();
    let model = Checkpoint::open(&device, &file.0).unwrap();
    let stats = device.memory();
    assert!(stats.wired_mapped == 0 || stats.wired_mapped == stats.mapped, "{stats:?}");
    assert!(stats.wired_mapped <= stats.wired);
    drop(model);
    assert_eq!(device.memory().wired, 0);
}
