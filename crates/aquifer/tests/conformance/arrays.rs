//! Arrays, modes, views and copies (rules E, G, I; peer cases 1 to 10).

use aquifer::{Element, Join, Mode, NormalElement, RandomElement};

use super::*;

fn filled<T: Element>(device: &Device, value: T, shapes: &[&[usize]]) -> Result<()> {
    for &shape in shapes {
        let len: usize = shape.iter().product();
        let array = Array::<T>::full(device, shape, value)?;
        assert_eq!((array.len(), array.shape()), (len, shape));
        assert_eq!(array.size(), (len * size_of::<T>()) as u64);
        assert!(array.read()?.iter().all(|&x| x == value), "{} {shape:?}", T::DTYPE);
        let private = Array::<T, Private>::full(device, shape, value)?;
        assert!(private.to_vec()?.iter().all(|&x| x == value));
        assert!(Array::<T>::zeros(device, shape)?.read()?.iter().all(|&x| x == T::default()));
    }
    Ok(())
}

/// E.2, E.5, peer case 2: zeros, ones and full for every type, ranks 0 to 4, and 10 million.
pub fn every_type_and_rank_is_filled(device: &Device) -> Result<()> {
    let shapes: &[&[usize]] = &[&[], &[1], &[7], &[3, 5], &[2, 3, 4], &[2, 1, 3, 2], &[4099]];
    filled(device, true, shapes)?;
    filled(device, 200u8, shapes)?;
    filled(device, -100i8, shapes)?;
    filled(device, 60_000u16, shapes)?;
    filled(device, -30_000i16, shapes)?;
    filled(device, 4_000_000_000u32, shapes)?;
    filled(device, -2_000_000_000i32, shapes)?;
    filled(device, u64::MAX - 1, shapes)?;
    filled(device, i64::MIN + 1, shapes)?;
    filled(device, f16::from_f32(-1.5), shapes)?;
    filled(device, bf16::from_f32(3.0), shapes)?;
    filled(device, 0.1f32, shapes)?;
    with::<f64>(device, || filled(device, 0.1f64, shapes))?;
    let ones = Array::<f32>::ones(device, [10_000_000])?;
    assert_eq!(ones.sum()?.item()?, 1e7);
    assert!(Array::<bool>::ones(device, [3])?.all()?.item()?);
    assert_eq!(Array::<f16, Private>::ones(device, [2])?.to_vec()?, [f16::ONE; 2]);
    assert_eq!(Array::<bf16>::ones(device, [1])?.item()?, bf16::ONE);
    Ok(())
}

/// A.3, peer case 1: empty arrays are legal everywhere and cost nothing.
pub fn empty_arrays_are_legal(device: &Device) -> Result<()> {
    let a = Array::<f32>::zeros(device, [0])?;
    let b = Array::<f32, Private>::ones(device, [3, 0, 2])?;
    assert!(a.is_empty() && b.is_empty() && device.memory().active == 0);
    assert_eq!(a.map(|x| x + 1.0)?.len(), 0);
    a.assign(|x| x * 2.0)?;
    a.fill(1.0)?;
    assert!(a.read()?.is_empty() && a.write()?.is_empty() && b.to_vec()?.is_empty());
    assert_eq!(a.sum()?.item()?, 0.0);
    assert_eq!(a.product()?.item()?, 1.0);
    assert!(a.min().is_err() && a.argmax().is_err(), "no elements have no least");
    assert_eq!(a.slice(0..0)?.reinterpret::<u64>()?.len(), 0);
    assert_eq!(a.copy_in(Private)?.copy()?.len(), 0);
    assert_eq!(device.array::<u8>(&[])?.reshape([0, 5])?.shape(), [0, 5]);
    assert!(device.wrap(Vec::<f32>::new())?.into_vec()?.is_empty());
    assert_eq!(a.zip(&a)?.map(|(x, y)| x + y)?.to_string(), "[]");
    assert_eq!(Array::<f32>::zeros(device, [3, 0])?.reduce_last(|x| x.sum())?.to_vec()?, [0.0; 3]);
    // Axes whose product overflows are harmless while one of them is 0.
    let odd = Array::<f32>::zeros(device, [usize::MAX, usize::MAX, 0])?;
    assert_eq!(
        (odd.map(|x| x + 1.0)?.to_string(), odd.zip(&odd)?.map(|(x, _)| x)?.len()),
        ("[]".into(), 0)
    );
    assert!(odd.get([1, 1, 0]).is_err() && odd.reduce_last(|x| x.sum()).is_err());
    let wide = Array::<f32>::zeros(device, [0, usize::MAX])?;
    assert!(wide.reinterpret::<u8>().is_err() && wide.sum()?.item()? == 0.0);
    Ok(())
}

/// E.1, E.2, peer case 3: every constructor keeps the mode, by type and by argument; `similar`
/// keeps it or takes another.
pub fn modes_are_kept(device: &Device) -> Result<()> {
    fn each<T: RandomElement + NormalElement, M: Mode>(device: &Device, mode: M) -> Result<()> {
        for len in [10, 20_000] {
            let arrays = [
                Array::<T, M>::zeros_in(device, mode, [len])?,
                Array::<T, M>::ones_in(device, mode, [len])?,
                Array::<T, M>::full_in(device, mode, [len], T::default())?,
                Array::<T, M>::rand_in(device, mode, [len])?,
                Array::<T, M>::randn_in(device, mode, [len])?,
                Array::<T, M>::from_in(device, mode, &vec![T::default(); len])?,
            ];
            for array in &arrays {
                assert_eq!(array.storage(), mode.storage());
                assert_eq!(array.is_private(), mode.storage() == Storage::Private);
                assert_ne!(array.is_shared(), array.is_private());
                assert_eq!(array.similar()?.storage(), mode.storage());
                assert_eq!(array.copy()?.storage(), mode.storage());
                assert!(array.similar_in(Shared)?.is_shared());
                assert!(array.similar_in(Private)?.is_private());
                assert_eq!(array.similar_in(Storage::Private)?.shape(), array.shape());
            }
        }
        Ok(())
    }
    each::<f32, _>(device, Shared)?;
    each::<bf16, _>(device, Private)?;
    each::<f16, _>(device, Storage::Shared)?;
    each::<bf16, _>(device, Storage::Private)?;
    assert_eq!(Array::<f32, Storage>::zeros(device, [1])?.storage(), device.default_storage());
    assert_eq!("Private".parse::<Storage>().unwrap(), Storage::Private);
    let managed = "managed".parse::<Storage>().unwrap_err().to_string();
    assert!(managed.contains("managed") && managed.contains("not offered"), "{managed}");
    assert!("fast".parse::<Storage>().is_err());
    Ok(())
}

/// G.1, peer cases 3 and 6: all pairs of modes, every type, 170,000 elements.
pub fn modes_convert_in_every_pair(device: &Device) -> Result<()> {
    fn each<T: RandomElement>(device: &Device) -> Result<()> {
        let host = Array::<T>::rand(device, [170_000])?.to_vec()?;
        let shared = device.array(&host)?;
        let private = device.array_in(Private, &host)?;
        let copies = [
            shared.copy_in(Shared)?.to_vec()?,
            shared.copy_in(Private)?.to_vec()?,
            private.copy_in(Shared)?.to_vec()?,
            private.copy_in(Private)?.to_vec()?,
            private.copy_in(Storage::Shared)?.to_vec()?,
        ];
        assert!(copies.iter().all(|copy| *copy == host), "{}", T::DTYPE);
        Ok(())
    }
    each::<bool>(device)?;
    each::<u8>(device)?;
    each::<i8>(device)?;
    each::<u16>(device)?;
    each::<i16>(device)?;
    each::<u32>(device)?;
    each::<i32>(device)?;
    each::<u64>(device)?;
    each::<i64>(device)?;
    each::<f16>(device)?;
    each::<bf16>(device)?;
    each::<f32>(device)?;
    with::<f64>(device, || each::<f64>(device))
}

/// E.4, peer case 5: results keep their inputs' mode, mixed ones give shared; also of unequal
/// ranks.
pub fn mixed_modes_give_shared(device: &Device) -> Result<()> {
    fn joined<A: Join<B>, B: Mode>(device: &Device, a: A, b: B, want: Storage) -> Result<()> {
        let long = Array::<f32, A>::ones_in(device, a, [4, 3])?;
        let short = Array::<f32, B>::ones_in(device, b, [3])?;
        let sum = long.zip(&short)?.map(|(x, y)| x + y)?;
        assert_eq!((sum.storage(), sum.to_vec()?), (want, vec![2.0; 12]));
        Ok(())
    }
    use Storage::{Private as P, Shared as S};
    joined(device, Shared, Shared, S)?;
    joined(device, Shared, Private, S)?;
    joined(device, Private, Shared, S)?;
    joined(device, Private, Private, P)?;
    joined(device, P, Private, P)?;
    joined(device, P, S, S)?;
    joined(device, Private, P, P)?;
    let private = Array::<f32, Private>::ones(device, [5])?;
    assert!(private.map(|x| x + 1.0)?.is_private() && private.sum()?.is_private());
    Ok(())
}

/// I.1: views share memory and outlive their parent; offsets are exact.
pub fn views_share_memory(device: &Device) -> Result<()> {
    let parent = device.array(&(0..100).map(|x| x as f32).collect::<Vec<_>>())?;
    let view = parent.slice(10..40)?;
    let inner = view.slice(5..=9)?;
    assert_eq!(inner.to_vec()?, [15.0, 16.0, 17.0, 18.0, 19.0]);
    inner.fill(-1.0)?;
    assert_eq!((parent.get(15)?, parent.get(14)?, parent.get(20)?), (-1.0, 14.0, 20.0));
    parent.set(16, 7.0)?;
    assert_eq!(inner.get(1)?, 7.0);
    drop((parent, view));
    assert_eq!(inner.get(1)?, 7.0);
    assert_eq!(device.memory().allocations, 1);
    for range in [(3, 2), (0, 6), (6, 6)] {
        let error = inner.slice(range.0..range.1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfRange, "{error}");
    }
    assert_eq!(inner.slice(5..)?.len(), 0);
    Ok(())
}

/// I.1, peer case 10: counts, sizes and alignment are checked, by name.
pub fn reshape_and_reinterpret_are_checked(device: &Device) -> Result<()> {
    let a = device.array(&[1u32, 2, 3, 4, 5, 6])?;
    let matrix = a.reshape([2, 3])?;
    assert_eq!((matrix.get([1, 2])?, matrix.shape()), (6, &[2, 3][..]));
    assert_eq!(a.reshape([7]).unwrap_err().kind(), ErrorKind::Shape);
    assert_eq!(a.reshape([usize::MAX, 2]).unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!(matrix.reinterpret::<u16>()?.shape(), [2, 6]);
    assert_eq!(matrix.reinterpret::<u64>().unwrap_err().kind(), ErrorKind::Shape);
    assert_eq!(a.reinterpret::<u64>()?.to_vec()?, [1 | 2 << 32, 3 | 4 << 32, 5 | 6 << 32]);
    let odd = a.reinterpret::<u8>()?.slice(1..17)?;
    for error in [odd.reinterpret::<u32>().unwrap_err(), odd.reinterpret::<u64>().unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Dtype, "{error}");
    }
    assert_eq!(odd.reinterpret::<i8>()?.get(0)?, 0);
    assert_eq!(a.reinterpret::<bool>().unwrap_err().kind(), ErrorKind::Dtype);
    let flags = device.array(&[true, false])?;
    assert_eq!(flags.reinterpret::<u8>().unwrap_err().kind(), ErrorKind::Dtype);
    let one = device.array(&[1.5f32])?.reshape(())?;
    assert_eq!((one.shape().len(), one.item()?), (0, 1.5));
    Ok(())
}

/// G.1, peer case 7: sub-ranges by views; both sides are checked.
pub fn ranges_copy_and_are_checked(device: &Device) -> Result<()> {
    let host: Vec<i32> = (0..1000).collect();
    let a = device.array_in(Private, &host)?;
    let b = Array::<i32>::zeros(device, [1000])?;
    b.slice(100..200)?.copy_from(&a.slice(700..800)?)?;
    let got = b.to_vec()?;
    assert_eq!((got[99], got[100], got[199], got[200]), (0, 700, 799, 0));
    let short = b.slice(..99)?;
    assert_eq!(short.copy_from(&a.slice(..100)?).unwrap_err().kind(), ErrorKind::Shape);
    assert_eq!(short.write_from(&host[..100]).unwrap_err().kind(), ErrorKind::Shape);
    assert_eq!(short.read_into(&mut [0; 98]).unwrap_err().kind(), ErrorKind::Shape);
    a.slice(1..3)?.write_from(&[-1, -2])?;
    let mut out = [0; 4];
    a.slice(..4)?.read_into(&mut out)?;
    assert_eq!(out, [0, -1, -2, 3]);
    let wrapped = device.wrap(vec![9i32; 10])?;
    wrapped.slice(2..4)?.copy_from(&a.slice(0..2)?)?;
    a.slice(10..20)?.copy_from(&wrapped)?;
    assert_eq!(wrapped.into_vec()?[..5], [9, 9, 0, -1, 9]);
    assert_eq!(a.slice(12..14)?.to_vec()?, [0, -1]);
    b.slice(5..5)?.copy_from(&a.slice(7..7)?)?;
    Ok(())
}

/// G.1: source and target may overlap.
pub fn copies_overlap_safely(device: &Device) -> Result<()> {
    let host: Vec<u16> = (0..5000).collect();
    for (from, to) in [(0, 100), (100, 0), (0, 1), (7, 7)] {
        let a = device.array_in(Private, &host)?;
        a.slice(to..to + 4000)?.copy_from(&a.slice(from..from + 4000)?)?;
        let mut want = host.clone();
        want.copy_within(from..from + 4000, to);
        assert_eq!(a.to_vec()?, want);
    }
    Ok(())
}

/// G.2: large copies are exact to the last element, through staging too.
pub fn large_copies_are_exact(device: &Device) -> Result<()> {
    let host: Vec<u32> = (0..(40 << 18) + 11).collect();
    let private = device.array_in(Private, &host)?;
    assert_eq!(private.to_vec()?, host);
    let copy = private.copy()?;
    assert_eq!(copy.slice(copy.len() - 1..)?.item()?, *host.last().unwrap());
    assert!(copy.zip(&private)?.reduce(|(x, y)| x.eq(y).all())?.item()?);
    let part = private.slice(64..)?.copy()?;
    assert!(part.zip(&private.slice(64..)?)?.reduce(|(x, y)| x.eq(y).all())?.item()?);
    Ok(())
}

/// G.2: arrays of two devices copy through the host.
pub fn two_devices_copy_through_the_host(device: &Device) -> Result<()> {
    let other = Device::cpu()?;
    let host: Vec<f32> = (0..10_000).map(|x| x as f32).collect();
    let here = device.array_in(Private, &host)?;
    let there = here.copy_to(&other, Private)?;
    assert_eq!((there.to_vec()?, there.device() == &other), (host.clone(), true));
    here.fill(0.0)?;
    here.copy_from(&there)?;
    assert_eq!(here.to_vec()?, host);
    let local = here.copy_in(Shared)?;
    let error = local.zip(&there).err().unwrap();
    assert!(error.to_string().contains("two devices"), "{error}");
    Ok(())
}

/// E.2: normal numbers are spread as they should be, and near those of the CPU device.
fn normal_numbers_are_near<T: NormalElement>(
    device: &Device,
    (narrow, tolerance): (impl Fn(T) -> f64, f64),
) -> Result<()> {
    let draw = |device: &Device| -> Result<Vec<f64>> {
        device.seed(7);
        let normal = Array::<T, Private>::randn(device, [100_000])?.to_vec()?;
        Ok(normal.into_iter().map(&narrow).collect())
    };
    let (normal, near) = (draw(device)?, draw(&Device::cpu()?)?);
    let far = |(a, b): (&f64, &f64)| (a - b).abs() > tolerance * a.abs().max(1e-3);
    assert!(!normal.iter().zip(&near).any(far), "the same to the last places");
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let squares: Vec<f64> = normal.iter().map(|x| x * x).collect();
    assert!(mean(&normal).abs() < 0.015 && (mean(&squares) - 1.0).abs() < 0.02);
    let beyond = normal.iter().filter(|x| x.abs() > 1.959_964).count();
    assert!((4500..5500).contains(&beyond), "{beyond} of 100,000 beyond 1.96");
    Ok(())
}

/// E.2: the same seed gives the same numbers; they are spread as they should be.
pub fn random_numbers_are_reproducible(device: &Device) -> Result<()> {
    let draw = |device: &Device| -> Result<_> {
        device.seed(7);
        let uniform = Array::<f32>::rand(device, [100_000])?.to_vec()?;
        Ok((uniform, Array::<i16>::rand(device, [64])?.to_vec()?))
    };
    let (uniform, integers) = draw(device)?;
    let (same, integral) = draw(&Device::cpu()?)?;
    assert!(uniform == same && integers == integral, "the same bits on every device");
    let sum: f64 = uniform.iter().map(|&x| f64::from(x)).sum();
    assert!(uniform.iter().all(|x| (0.0..1.0).contains(x)));
    assert!((sum / uniform.len() as f64 - 0.5).abs() < 0.005);
    normal_numbers_are_near::<f32>(device, (f64::from, 1e-5))?;
    with::<f64>(device, || normal_numbers_are_near::<f64>(device, (|x| x, 1e-13)))?;
    let again = Array::<f32>::rand(device, [1000])?.to_vec()?;
    assert_ne!(again[..], uniform[..1000], "the next draw differs");
    let small = Array::<f16>::rand(device, [100_000])?;
    assert!(small.map(|x| x.lt(f16::ONE) & x.ge(f16::ZERO))?.all()?.item()?);
    let flips = Array::<bool>::rand(device, [100_000])?.count()?.item()?;
    assert!((49_000..51_000).contains(&flips));
    Ok(())
}
