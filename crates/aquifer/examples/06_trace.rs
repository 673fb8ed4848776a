//! A trace: record it, replay it, see it.
//!
//! Three commands make a picture of a decoder whose cache grows by copying:
//!
//! ```text
//! AQUIFER_TRACE=decode.aqt AQUIFER_TRACE_STACKS=1 cargo run --release --example 06_trace
//! aquifer replay decode.aqt --compare
//! aquifer view decode.aqt
//! ```

use aquifer::core::replay;
use aquifer::prelude::*;

const LAYERS: usize = 4;
const WIDTH: usize = 512;
const TOKENS: usize = 48;

/// The keys and values of one layer, in a buffer that grows by a quarter when it is full.
struct Cache {
    rows: Array<f32, Private>,
    used: usize,
}

impl Cache {
    fn new(device: &Device) -> aquifer::Result<Self> {
        Ok(Self { rows: Array::zeros(device, [4, WIDTH])?, used: 0 })
    }

    fn push(&mut self, device: &Device, row: &Array<f32, Private>) -> aquifer::Result<()> {
        let _label = device.label("kv cache");
        if self.used == self.rows.shape()[0] {
            let grown = Array::<f32, Private>::zeros(device, [self.used * 5 / 4 + 1, WIDTH])?;
            grown.slice(..self.rows.len())?.copy_from(&self.rows)?;
            self.rows = grown;
        }
        self.rows.slice(self.used * WIDTH..(self.used + 1) * WIDTH)?.copy_from(row)?;
        self.used += 1;
        Ok(())
    }
}

fn decode(device: &Device) -> aquifer::Result<f32> {
    let mut weights = Vec::new();
    let mut caches = Vec::new();
    for _ in 0..LAYERS {
        let _label = device.label("weights");
        weights.push(Array::<f32, Private>::rand(device, [WIDTH, 64])?);
        caches.push(Cache::new(device)?);
    }
    let mut last = 0.0;
    for _ in 0..TOKENS {
        for (weights, cache) in weights.iter().zip(&mut caches) {
            let gated = {
                let _label = device.label("activations");
                let hidden = weights.map(|x| (x * 0.5).sin())?;
                let gated = hidden.zip(weights)?.map(|(h, w)| h * w)?;
                last = gated.sum()?.item()?;
                gated
            };
            cache.push(device, &gated.slice(..WIDTH)?)?;
        }
    }
    Ok(last)
}

fn main() -> aquifer::Result<()> {
    let device = Device::open()?;
    if device.trace().is_on() {
        // AQUIFER_TRACE is set: the file is whole when the device closes.
        decode(&device)?;
        return Ok(());
    }
    device.trace().start()?;
    decode(&device)?;
    let recording = device.trace().take()?.expect("it was recorded in memory");
    let trace = recording.decode()?.trace;
    match replay::verify(&trace) {
        Ok(verified) => {
            println!("{} events, {} bytes", trace.records.len(), recording.bytes().len());
            println!("the replay came to the same figures:\n{}", verified.stats);
            assert_eq!(verified.stats.peak, device.memory().peak);
        }
        Err(mismatch) => println!("the replay differs: {mismatch}"),
    }
    Ok(())
}
