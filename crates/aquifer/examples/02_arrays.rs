//! Arrays, modes, device work, CPU access, wrapped memory: the library in one page.

use aquifer::prelude::*;

fn main() -> aquifer::Result<()> {
    let device = Device::open()?;

    // The element type and the storage mode are in the type; the mode can be an argument.
    let a = Array::<f32>::zeros(&device, [1024, 64])?; // shared: CPU and device see it
    let b = Array::<f32, Private>::rand(&device, [1024, 64])?; // the device's alone
    let c = device.array_in(Private, &[1.0f32, 2.0, 3.0])?;
    let d = b.similar_in(Shared)?;
    assert!(a.is_shared() && b.is_private() && c.is_private() && d.shape() == b.shape());

    // One expression is one kernel, asynchronous; mixed modes give shared.
    let e = a.zip(&b)?.map(|(x, y)| (x + y).sin() * 2.0)?;
    a.assign(|x| x * 0.5 + 1.0)?;
    let total: f32 = e.sum()?.item()?; // waits for e's sum and nothing else
    println!("sum {total}");

    // CPU access: guards that are slices.
    a.write()?[0] = 42.0;
    println!("{} {:?}", a.get([0, 0])?, &e.read()?[..4]);
    println!("{}", c); // printing works on both modes
    let host: Vec<f32> = b.to_vec()?; // through staging
    let view = a.slice(64..128)?.reshape([8, 8])?; // views share memory and outlive `a`
    println!("{} elements, view {:?}", host.len(), view.shape());

    // Memory that exists already.
    let wrapped = device.wrap(vec![0.5f32; 4096])?; // takes the Vec, no copy
    wrapped.assign(|x| x.exp())?;
    println!("{}: {}", wrapped.origin(), wrapped.into_vec()?[0]);
    let mut mine = vec![1.0f32; 1000];
    device.scope(|s| s.wrap(&mut mine)?.assign(|x| x.exp()))?; // done when the scope ends
    println!("{}", mine[0]);

    // Freeing: by drop; or now, for every handle.
    e.release();
    assert_eq!(e.read().err().map(|error| error.kind()), Some(ErrorKind::Freed));
    Ok(())
}
