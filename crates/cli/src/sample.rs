//! A sample checkpoint: what the demo inspects where no file is at hand.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use aquifer::prelude::*;

/// A tensor of the sample: name, shape, and how many bytes an element has.
const TENSORS: [(&str, &str, &[usize]); 6] = [
    ("embed.weight", "F32", &[8192, 1024]),
    ("layer.0.attention.weight", "BF16", &[2048, 2048]),
    ("layer.0.mlp.weight", "F16", &[4096, 2048]),
    ("layer.0.norm.weight", "F32", &[2048]),
    ("layer.1.attention.weight", "F16", &[2048, 2048]),
    ("position_ids", "I64", &[1, 512]),
];

/// Writes about 64 MiB of random numbers, computed on the device, as a safetensors file.
pub(crate) fn write(device: &Device, path: &Path) -> Result<(), crate::Failure> {
    let mut header = serde_json::Map::new();
    let mut offset = 0;
    for (name, dtype, shape) in TENSORS {
        let element = match dtype {
            "F32" => 4,
            "I64" => 8,
            _ => 2,
        };
        let end = offset + shape.iter().product::<usize>() * element;
        header.insert(
            name.to_owned(),
            serde_json::json!({ "dtype": dtype, "shape": shape, "data_offsets": [offset, end] }),
        );
        offset = end;
    }
    let mut header = serde_json::to_string(&header)?;
    while header.len() % 8 != 0 {
        header.push(' ');
    }
    let mut out = BufWriter::new(File::create(path)?);
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    device.seed(2026);
    // In the order of the header, which is that of the names.
    for (_, dtype, shape) in TENSORS {
        match dtype {
            "F32" => elements(&mut out, &Array::<f32>::randn(device, shape)?)?,
            "F16" => elements(&mut out, &Array::<f16>::randn(device, shape)?)?,
            "BF16" => elements(&mut out, &Array::<bf16>::randn(device, shape)?)?,
            _ => {
                let ids: Vec<i64> = (0..512).collect();
                elements(&mut out, &device.array(&ids)?)?;
            }
        }
    }
    out.flush()?;
    Ok(())
}

fn elements<T: aquifer::Element>(out: &mut impl Write, array: &Array<T>) -> io::Result<()> {
    let bytes = array.reinterpret::<u8>().map_err(io::Error::other)?;
    let guard = bytes.read().map_err(io::Error::other)?;
    out.write_all(&guard)
}
