//! A kernel of one's own: WGSL for devices that compile it, the same in Rust for the CPU.

use aquifer::prelude::*;

const SAXPY: &str = "
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
var<immediate> factor: f32;

@compute @workgroup_size(64)
fn saxpy(@builtin(global_invocation_id) id: vec3<u32>) {
    y[id.x] += factor * x[id.x];
}";

fn main() -> aquifer::Result<()> {
    let device = Device::open()?;
    let saxpy = device.kernel(
        KernelSource::wgsl(SAXPY)
            .with_cpu(|k| {
                let (x, factor, range) = (k.input::<f32>(0)?, k.scalar::<f32>(0)?, k.range());
                for (y, x) in k.output::<f32>(0)?.iter_mut().zip(&x[range]) {
                    *y += factor * x;
                }
                Ok(())
            })
            .named("saxpy"),
    )?;
    let x = Array::<f32, Private>::ones(&device, [100_000])?;
    let y = Array::<f32>::full(&device, [100_000], 0.5)?;
    // What the kernel does with each array is read from the WGSL.
    saxpy.run(&[kernel::array(&x), kernel::array(&y), kernel::scalar(2.0f32)], x.len())?;
    println!("{}", y.get(99_999)?);
    assert_eq!(y.get(99_999)?, 2.5);
    Ok(())
}
