//! A kernel of one's own: on the CPU a closure that is called for ranges of the grid.

use aquifer::prelude::*;

fn main() -> aquifer::Result<()> {
    let device = Device::cpu()?;
    let saxpy = device.kernel(
        KernelSource::cpu(|k| {
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
    saxpy.run(&[kernel::read(&x), kernel::write(&y), kernel::scalar(2.0f32)], x.len())?;
    println!("{}", y.get(99_999)?);
    assert_eq!(y.get(99_999)?, 2.5);
    Ok(())
}
