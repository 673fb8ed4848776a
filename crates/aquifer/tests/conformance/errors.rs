//! Errors (rule O; peer cases 12, 18, 24, 30): each by name, nothing lost.

use super::*;

/// Shapes that do not fit are errors that show both.
pub fn bad_shapes_are_errors(device: &Device) -> Result<()> {
    let a = Array::<f32>::zeros(device, [4, 3])?;
    let b = Array::<f32>::zeros(device, [4])?;
    let error = a.zip(&b).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Shape);
    assert!(error.to_string().contains("[4, 3]") && error.to_string().contains("[4]"), "{error}");
    assert_eq!(b.assign_with(&a, |x, y| x + y).unwrap_err().kind(), ErrorKind::Shape);
    assert_eq!(a.item().unwrap_err().kind(), ErrorKind::Shape);
    Ok(())
}

/// J.1: after `release` every use of every handle is `Freed`; a second release does nothing.
pub fn released_arrays_are_freed(device: &Device) -> Result<()> {
    let a = Array::<f32>::ones(device, [1000])?;
    let (b, view) = (a.share(), a.slice(..10)?);
    let sum = a.map(|x| x + 1.0)?;
    a.release();
    assert_eq!(sum.get(0)?, 2.0, "work in flight was finished on it");
    drop(sum);
    assert_eq!(device.memory().active, 0);
    let freed = |result: Result<()>| assert_eq!(result.unwrap_err().kind(), ErrorKind::Freed);
    freed(b.read().map(drop));
    freed(b.write().map(drop));
    freed(b.get(0).map(drop));
    freed(b.set(0, 1.0));
    freed(view.to_vec().map(drop));
    freed(view.map(|x| x + 1.0).map(drop));
    freed(view.assign(|x| x + 1.0));
    freed(b.sum().map(drop));
    freed(b.fill(0.0));
    freed(b.copy().map(drop));
    freed(b.slice(..0)?.map(|x| x + 1.0).map(drop));
    let text = b.read().err().unwrap().to_string();
    assert_eq!(text, "attempt to use a freed array");
    assert!(b.to_string().contains("freed array"));
    b.release();
    let guarded = Array::<f32>::ones(device, [8])?;
    let guard = guarded.read()?;
    guarded.release();
    assert_eq!((guard[7], guarded.read().err().unwrap().kind()), (1.0, ErrorKind::Freed));
    assert!(device.memory().active > 0, "a guard keeps it until it ends");
    drop(guard);
    assert_eq!(device.memory().active, 0);
    Ok(())
}

/// L.2, peer case 30: mapped arrays refuse both kinds of writes.
pub fn read_only_is_read_only(device: &Device) -> Result<()> {
    let path = std::env::temp_dir().join(format!("aquifer-ro-{}-{:p}", std::process::id(), device));
    let header = r#"{"w":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}} "#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend([1.0f32, 2.0, 3.0].iter().flat_map(|x| x.to_le_bytes()));
    std::fs::write(&path, &bytes).unwrap();
    let model = Checkpoint::open(device, &path)?;
    let array = model.array::<f32>("w")?;
    let refused = |result: Result<()>| assert_eq!(result.unwrap_err().kind(), ErrorKind::ReadOnly);
    refused(array.write().map(drop));
    refused(array.set(0, 1.0));
    refused(array.assign(|x| x + 1.0));
    refused(array.fill(0.0));
    refused(array.write_from(&[0.0; 3]));
    assert_eq!((array.get(2)?, array.map(|x| x * x)?.to_vec()?), (3.0, vec![1.0, 4.0, 9.0]));
    drop(model);
    let in_place = array.origin() == Origin::Mapped;
    assert_eq!(device.memory().mapped > 0, in_place, "an array keeps the file mapped");
    assert_eq!(array.copy()?.slice(..1)?.to_vec()?, [1.0]);
    drop(array);
    assert_eq!(device.memory().mapped, 0);
    std::fs::remove_file(&path).unwrap();
    Ok(())
}

/// F.6, N.5, peer case 12: an error of device work is reported once, by the next wait, with its
/// label; the other work is done.
pub fn failing_work_is_reported_once(device: &Device) -> Result<()> {
    let a = Array::<f32>::zeros(device, [8])?;
    if !device.caps().host_kernels {
        // Kernels that a device compiles cannot fail by themselves: closures are refused.
        let error = device.kernel(KernelSource::cpu(|_| Ok(()))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Kernel);
        return Ok(());
    }
    let failing = device.kernel(KernelSource::cpu(|_| Err("no luck".into())).named("lottery"))?;
    let panicking = device.kernel(KernelSource::cpu(|_| panic!("as planned")).named("panic"))?;
    failing.run(&[kernel::write(&a)], 8)?;
    let b = a.map(|x| x + 1.0)?;
    let error = device.synchronize().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Work);
    assert_eq!(error.to_string(), "work 'lottery' failed: no luck");
    device.synchronize()?;
    assert_eq!(b.get(0)?, 1.0);
    panicking.run(&[kernel::write(&a)], 8)?;
    let error = a.read().err().unwrap();
    assert!(error.to_string().contains("'panic'") && error.to_string().contains("as planned"));
    assert_eq!(a.read()?[0], 0.0, "never twice");
    let (first, second) = (device.queue()?, device.queue()?);
    first.run(|| failing.run(&[kernel::write(&a)], 8))?;
    assert_eq!(first.synchronize().unwrap_err().kind(), ErrorKind::Work);
    // Two at once: each is told, one at a time.
    let c = Array::<f32>::zeros(device, [8])?;
    first.run(|| failing.run(&[kernel::write(&a)], 8))?;
    second.run(|| failing.run(&[kernel::write(&c)], 8))?;
    let told = [device.synchronize(), device.synchronize(), device.synchronize()];
    assert_eq!(told.map(|result| result.is_err()), [true, true, false]);
    // A wrapped `Vec` is not lost for another's failure.
    let wrapped = device.wrap(vec![1.0f32; 8])?;
    wrapped.assign(|x| x + 1.0)?;
    failing.run(&[kernel::write(&a)], 8)?;
    assert_eq!(wrapped.into_vec()?, [2.0; 8]);
    assert!(device.synchronize().is_err());
    Ok(())
}

/// C.2, C.4, peer case 18: refusals carry the figures, change nothing, and end when memory is
/// freed; a small limit does not deadlock two queues.
pub fn limits_refuse_and_recover(device: &Device) -> Result<()> {
    let old = device.set_memory_limit(1 << 20);
    let held = {
        let _label = device.label("weights");
        Array::<f32>::zeros(device, [200_000])?
    };
    device.synchronize()?;
    let before = device.memory();
    let error = Array::<f32>::zeros(device, [100_000]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    let text = error.to_string();
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("400000 bytes") && words.contains("weights 784 KiB"), "{text}");
    assert_eq!(error.refusal().unwrap().asked, 400_000);
    let after = device.memory();
    assert_eq!(
        (before.active, before.peak, before.allocations),
        (after.active, after.peak, after.allocations)
    );
    drop(held);
    assert_eq!(Array::<f32>::zeros(device, [100_000])?.len(), 100_000);
    device.set_memory_limit(0);
    assert!(device.array(&[1.0f32]).is_err() && Array::<f32>::zeros(device, [0]).is_ok());
    device.set_memory_limit(1000);
    let (first, second) = (device.queue()?, device.queue()?);
    for _ in 0..50 {
        let a = first.run(|| Array::<f32>::ones(device, [64]))?;
        let b = second.run(|| a.map(|x| x + 1.0))?;
        assert!(first.run(|| b.sum()).map(drop).is_ok());
        drop((a, b));
    }
    device.set_memory_limit(old);
    Ok(())
}

/// N.4, peer case 24: misuse of a kernel encodes nothing, or nothing harmful.
pub fn kernels_are_checked(device: &Device) -> Result<()> {
    let a = Array::<f32>::ones(device, [8])?;
    let b = Array::<f32>::ones(device, [8])?;
    let closure = |k: &mut aquifer::HostArgs<'_>| {
        let (from, range) = (k.input::<f32>(0)?, k.range());
        k.output::<f32>(0)?.copy_from_slice(&from[range]);
        Ok(())
    };
    let copy =
        device.kernel(KernelSource::wgsl(super::kernels::COPY).with_cpu(closure).named("copy"))?;
    let overlapping = [kernel::read(&a), kernel::write(&a)];
    assert_eq!(copy.run(&overlapping, 8).unwrap_err().kind(), ErrorKind::Kernel);
    copy.run(&[kernel::read(&a), kernel::write(&b)], 0)?;
    let missing = copy.run(&[], 8).unwrap_err().to_string();
    assert!(missing.contains("'copy'") && missing.contains("takes 2 arrays"), "{missing}");
    let halves = Array::<f16>::ones(device, [8])?;
    let wrong = copy.run(&[kernel::read(&halves), kernel::write(&b)], 8).unwrap_err().to_string();
    assert!(wrong.contains("elements of f16; its source: f32"), "{wrong}");
    if device.caps().host_kernels {
        let copy = device.kernel(KernelSource::cpu(closure).named("copy"))?;
        copy.run(&[], 8)?;
        let missing = device.synchronize().unwrap_err().to_string();
        assert!(missing.contains("'copy'") && missing.contains("no input 0"), "{missing}");
        copy.run(&[kernel::read(&halves), kernel::write(&b)], 8)?;
        let wrong = device.synchronize().unwrap_err().to_string();
        assert!(wrong.contains("array of f16, not of f32"), "{wrong}");
    }
    let other = another(device)?;
    let far = Array::<f32>::ones(&other, [8])?;
    assert!(copy.run(&[kernel::read(&far), kernel::write(&b)], 8).is_err());
    let deep = a.map(|x| (0..1500).fold(x, |sum, i| sum + i as f32));
    assert_eq!(deep.unwrap_err().kind(), ErrorKind::Kernel, "more constants than there are slots");
    let mut leaked = None;
    a.map(|x| {
        leaked = Some(x);
        x
    })?;
    let misused = b.map(|x| x + leaked.unwrap()).unwrap_err().to_string();
    assert!(misused.contains("another closure"), "{misused}");
    assert_eq!(b.to_vec()?, [1.0; 8]);
    Ok(())
}

/// A.4, O.1: sizes near the top and shapes that overflow are errors, with any limit.
pub fn absurd_sizes_are_errors(device: &Device) -> Result<()> {
    for limit in [1 << 40, u64::MAX] {
        let old = device.set_memory_limit(limit);
        for shape in [vec![usize::MAX], vec![usize::MAX / 4], vec![1 << 40, 1 << 40], vec![1 << 61]]
        {
            let error = Array::<f32>::zeros(device, &shape).unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::OutOfMemory | ErrorKind::TooLarge),
                "{shape:?}: {error}"
            );
        }
        assert!(device.allocate_raw(u64::MAX, Storage::Shared).is_err());
        device.set_memory_limit(old);
    }
    assert!(Array::<f32>::zeros(device, [usize::MAX, 0, usize::MAX])?.is_empty());
    Ok(())
}
