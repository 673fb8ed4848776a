//! What is in a checkpoint: `cargo run --example 01_inspect -- model.safetensors`.
//!
//! Without a file it writes a small one first.

use aquifer::prelude::*;

fn main() -> aquifer::Result<()> {
    let path = std::env::args().nth(1).unwrap_or_else(sample);
    let device = Device::open()?;
    let model = Checkpoint::open(&device, &path)?; // mapped, not read
    for tensor in model.tensors().filter(|tensor| tensor.dtype().name() == "F32") {
        let weight = tensor.array::<f32>()?; // in place, read-only
        let (least, greatest, sum) = weight.reduce(|x| (x.least(), x.greatest(), x.sum()))?;
        let mean = sum.item()? / weight.len() as f32;
        println!("{} {:?} {} .. {}, mean {mean}", tensor.name(), tensor.shape(), least, greatest);
    }
    println!("{}", device.memory());
    Ok(())
}

/// A file with one tensor of six numbers.
fn sample() -> String {
    let header = r#"{"weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}  "#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend([1.0f32, 2.0, 3.0, -4.0, 5.0, 0.5].iter().flat_map(|x| x.to_le_bytes()));
    let path = std::env::temp_dir().join("aquifer-example.safetensors");
    std::fs::write(&path, bytes).expect("the folder for temporary files is writable");
    path.display().to_string()
}
