//! The account: labels, limits, measuring, and an error that says who holds the memory.

use aquifer::prelude::*;

#[global_allocator]
static ALLOCATOR: aquifer::CountingAllocator = aquifer::CountingAllocator;

fn main() -> aquifer::Result<()> {
    let device = Device::open()?;
    let used = measure(&device, || Array::<f32>::zeros(&device, [1024]))?;
    println!("{used}");

    let weights = {
        let _label = device.label("weights");
        Array::<f32, Private>::ones(&device, [4 << 20])?
    };
    let cache = {
        let _label = device.label("kv cache");
        Array::<f16, Private>::zeros(&device, [1 << 20])?
    };
    for row in device.labels() {
        println!("{:<12}{:>12} bytes in {}", row.name, row.active, row.count);
    }

    let old = device.set_memory_limit(32 << 20);
    match Array::<f32>::zeros(&device, [8 << 20]) {
        Ok(_) => unreachable!("32 MiB are not enough for it"),
        Err(error) => println!("{error}"),
    }
    device.set_memory_limit(old);
    drop((weights, cache));
    device.synchronize()?;
    println!("{}", device.memory());
    device.clear_cache();
    assert_eq!(device.memory().active, used.value.size());
    Ok(())
}
