//! Queues: work runs side by side, and what touches the same memory is ordered by itself.

use aquifer::prelude::*;

fn main() -> aquifer::Result<()> {
    let device = Device::open()?;
    let weights = Array::<f32, Private>::rand(&device, [1 << 20])?;
    let prefetch = device.queue()?;
    let next = prefetch.run(|| weights.map(|x| x + 1.0))?; // recorded on that queue
    // This thread's queue waits for the other's work, because it reads its result.
    let both = next.zip(&weights)?.map(|(x, y)| x * y)?;
    let sum = both.sum()?.item()?;
    device.synchronize()?;
    println!("sum {sum}, {} barriers", device.barriers());
    assert!((8.0e5..9.5e5).contains(&sum));
    Ok(())
}
