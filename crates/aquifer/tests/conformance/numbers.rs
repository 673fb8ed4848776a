//! Expressions against Rust's own arithmetic (rule N.3).

use aquifer::{Element, Expr};

use super::*;

const LEN: usize = 5000;

/// Ulps between a result and the exact value, which is given in more precision.
fn ulps(got: f32, exact: f64) -> f64 {
    let want = exact as f32;
    if got == want || (got.is_nan() && exact.is_nan()) {
        return 0.0;
    }
    let ulp = (f64::from(want.abs().next_up()) - f64::from(want.abs()))
        .max(f64::from(f32::MIN_POSITIVE) * 1.2e-7);
    (f64::from(got) - exact).abs() / ulp
}

fn check<T: Element, R: Element>(
    device: &Device,
    values: &[T],
    ours: impl Fn(Expr<T>) -> Expr<R>,
    theirs: impl Fn(T) -> R,
    what: &str,
) -> Result<()> {
    // What a device that flushes them makes of numbers too small to be normal is its own.
    let normal = |x: &T| {
        let tiny = match T::DTYPE {
            Dtype::F32 => value_f32(*x).is_subnormal(),
            Dtype::Bf16 => bf16::from_bits(x.to_bits() as u16).to_f32().is_subnormal(),
            _ => false,
        };
        device.caps().subnormals || !tiny
    };
    let values: Vec<T> = values.iter().copied().filter(normal).collect();
    let got = device.array(&values)?.map(ours)?.to_vec()?;
    for (x, got) in values.iter().zip(got) {
        let want = theirs(*x);
        let both_nan = got.partial_cmp(&got).is_none() && want.partial_cmp(&want).is_none();
        let near = got == want || both_nan || (device.backend() != "cpu" && is_near(got, want));
        assert!(near, "{what}({x:?}) is {got:?}, not {want:?}");
    }
    Ok(())
}

/// Whether two floats are within the 4 ulp that the rule allows a device; numbers too small to be
/// normal may be 0.
fn is_near<R: Element>(got: R, want: R) -> bool {
    match R::DTYPE {
        Dtype::F32 => {
            let (got, want) = (value_f32(got), value_f32(want));
            let tiny = got.abs() <= f32::MIN_POSITIVE && want.abs() <= f32::MIN_POSITIVE;
            tiny || ulps(got, f64::from(want)) <= 4.0
        }
        Dtype::Bf16 => {
            // Computed as f32: what is too small to be normal there may be 0.
            let wide = |x: R| bf16::from_bits(x.to_bits() as u16).to_f32().abs();
            wide(got) <= f32::MIN_POSITIVE && wide(want) <= f32::MIN_POSITIVE
        }
        Dtype::F64 => {
            let (got, want) = (f64::from_bits(got.to_bits()), f64::from_bits(want.to_bits()));
            (got - want).abs() <= 4.0 * (want.abs().next_up() - want.abs())
        }
        _ => false,
    }
}

fn value_f32<R: Element>(value: R) -> f32 {
    f32::from_bits(value.to_bits() as u32)
}

fn floats(seed: u64) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(seed);
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        f32::MIN_POSITIVE,
        1e-42,
        0.5,
        1.5,
        2.5,
        -2.5,
    ];
    let mut values: Vec<f32> = special.to_vec();
    values.extend((0..LEN).map(|_| (random.f32() - 0.5) * 10f32.powi(random.i32(-5..6))));
    values
}

/// Operators and exact functions agree with Rust bit for bit.
pub fn arithmetic_agrees_with_rust(device: &Device) -> Result<()> {
    let values = floats(1);
    check(device, &values, |x| -x, |x| -x, "neg")?;
    check(device, &values, |x| x.abs(), f32::abs, "abs")?;
    check(device, &values, |x| x + 1.5, |x| x + 1.5, "add")?;
    check(device, &values, |x| 1.5 - x, |x| 1.5 - x, "sub")?;
    check(device, &values, |x| x * x, |x| x * x, "mul")?;
    check(device, &values, |x| 3.0 / x, |x| 3.0 / x, "div")?;
    check(device, &values, |x| x % 0.7, |x| x % 0.7, "rem")?;
    check(device, &values, |x| x.sqrt(), f32::sqrt, "sqrt")?;
    check(device, &values, |x| x.rsqrt(), |x| 1.0 / x.sqrt(), "rsqrt")?;
    check(device, &values, |x| x.floor(), f32::floor, "floor")?;
    check(device, &values, |x| x.ceil(), f32::ceil, "ceil")?;
    check(device, &values, |x| x.round(), f32::round_ties_even, "round")?;
    check(device, &values, |x| x.min(0.25), |x| x.min(0.25), "min")?;
    check(device, &values, |x| x.max(0.25), |x| x.max(0.25), "max")?;
    check(
        device,
        &values,
        |x| x.clamp(-1.0, 2.0),
        |x| if x.is_nan() { -1.0 } else { x.clamp(-1.0, 2.0) },
        "clamp",
    )?;
    check(device, &values, |x| x.is_nan(), f32::is_nan, "is_nan")?;
    check(device, &values, |x| x.is_inf(), f32::is_infinite, "is_inf")?;
    with::<f64>(device, || {
        let wide: Vec<f64> = values.iter().map(|&x| f64::from(x)).collect();
        check(device, &wide, |x| x * 0.1 + x / 3.0, |x| x * 0.1 + x / 3.0, "f64")?;
        let functions = |x: f64| x.sqrt().floor().abs();
        check(device, &wide, |x| x.sqrt().floor().abs(), functions, "f64 functions")
    })
}

fn wide_functions_are_within_four_ulp(device: &Device, random: &mut fastrand::Rng) -> Result<()> {
    let wide: Vec<f64> = (0..20_000).map(|_| (random.f64() - 0.5) * 60.0).collect();
    type Wide = (&'static str, fn(Expr<f64>) -> Expr<f64>, fn(f64) -> f64);
    let functions: [Wide; 5] = [
        ("exp", |x| x.exp(), f64::exp),
        ("log", |x| x.abs().log(), |x| x.abs().ln()),
        ("sin", |x| x.sin(), f64::sin),
        ("cos", |x| x.cos(), f64::cos),
        ("tanh", |x| x.tanh(), f64::tanh),
    ];
    for (name, ours, exact) in functions {
        let got = device.array(&wide)?.map(ours)?.to_vec()?;
        for (&x, &got) in wide.iter().zip(&got) {
            let want = exact(x);
            let ulp = want.abs().next_up() - want.abs();
            assert!((got - want).abs() <= 4.0 * ulp, "f64 {name}({x}) is {got}, not {want}");
        }
    }
    Ok(())
}

/// N.3: elementary functions are within 4 ulp of the exact value over their whole range.
pub fn functions_are_within_four_ulp(device: &Device) -> Result<()> {
    type Function = (&'static str, fn(Expr<f32>) -> Expr<f32>, fn(f64) -> f64, (f32, f32));
    let functions: [Function; 8] = [
        ("exp", |x| x.exp(), f64::exp, (-110.0, 95.0)),
        ("log", |x| x.log(), f64::ln, (-1.0, 1e10)),
        ("log2", |x| x.log2(), f64::log2, (-1.0, 1e10)),
        ("sin", |x| x.sin(), f64::sin, (-40.0, 40.0)),
        ("cos", |x| x.cos(), f64::cos, (-40.0, 40.0)),
        ("tan", |x| x.tan(), f64::tan, (-40.0, 40.0)),
        ("tanh", |x| x.tanh(), f64::tanh, (-12.0, 12.0)),
        ("exp near 0", |x| x.exp(), f64::exp, (-1e-3, 1e-3)),
    ];
    let mut random = fastrand::Rng::with_seed(2);
    for (name, ours, exact, (low, high)) in functions {
        let mut values: Vec<f32> = (0..40_000).map(|_| low + random.f32() * (high - low)).collect();
        values.extend(floats(3));
        values.extend([1e5, -1e5, 3e8, 1e30, 1e-30, -1e-30].map(|x: f32| x));
        values.extend((0..2000).map(|i| 0.5 + i as f32 / 2000.0));
        let got = device.array(&values)?.map(ours)?.to_vec()?;
        let mut worst = (0.0, 0.0);
        for (&x, &got) in values.iter().zip(&got) {
            let want = exact(f64::from(x));
            if !device.caps().subnormals
                && (x.is_subnormal() || (want.abs() < 1.2e-38 && got.abs() < 1.2e-38))
            {
                continue;
            }
            let off = ulps(got, want);
            if off > worst.0 || off.is_nan() {
                worst = (off, x);
            }
        }
        println!("{name:<12}{:>8.2} ulp at {}", worst.0, worst.1);
        assert!(worst.0 <= 4.0, "{name}: {} ulp at {}", worst.0, worst.1);
    }
    with::<f64>(device, || wide_functions_are_within_four_ulp(device, &mut random))?;
    let zero = device.array(&[-0.0f32])?.map(|x| (x.sin(), x.tan(), x.tanh()))?;
    for zero in [zero.0, zero.1, zero.2] {
        let zero = zero.item()?;
        assert!(zero == 0.0 && (zero.is_sign_negative() || device.backend() == "cpu"));
    }
    let powers = device.array(&[2.0f32, 9.0, 0.0, -8.0])?.map(|x| x.pow(0.5))?.to_vec()?;
    assert!((powers[0] - 2f32.sqrt()).abs() < 1e-6 && powers[1] == 3.0 && powers[3].is_nan());
    Ok(())
}

/// Integers wrap; dividing by zero gives the dividend and remainder 0; bits and shifts.
pub fn integers_wrap_and_divide(device: &Device) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(4);
    let mut values: Vec<i32> = (0..LEN).map(|_| random.i32(..)).collect();
    values.extend([0, 1, -1, i32::MIN, i32::MAX]);
    check(device, &values, |x| x + 7, |x| x.wrapping_add(7), "add")?;
    check(device, &values, |x| x * x - x, |x| x.wrapping_mul(x).wrapping_sub(x), "mul")?;
    check(
        device,
        &values,
        |x| 1000 / x,
        |x| if x == 0 { 1000 } else { 1000i32.wrapping_div(x) },
        "div",
    )?;
    check(device, &values, |x| x / -1, |x| x.wrapping_div(-1), "div by -1")?;
    check(device, &values, |x| x / 0, |x| x, "div by 0")?;
    check(device, &values, |x| x % 7, |x| x % 7, "rem")?;
    check(device, &values, |x| x % 0, |_| 0, "rem by 0")?;
    check(device, &values, |x| x.abs(), i32::wrapping_abs, "abs")?;
    check(device, &values, |x| !x & 0xFF | 5 ^ x, |x| !x & 0xFF | 5 ^ x, "bits")?;
    check(device, &values, |x| x << 33, |x| x.wrapping_shl(33), "shl modulo the width")?;
    check(device, &values, |x| x >> 3, |x| x >> 3, "shr keeps the sign")?;
    check(device, &values, |x| x.min(5).max(-5), |x| x.clamp(-5, 5), "clamp")?;
    check(device, &values, |x| x.pow(3), |x| x.wrapping_mul(x).wrapping_mul(x), "pow")?;
    let bytes: Vec<u8> = (0..=255).collect();
    check(device, &bytes, |x| x * 3 + 200, |x| x.wrapping_mul(3).wrapping_add(200), "u8")?;
    let wide: Vec<u64> = (0..1000).map(|_| random.u64(..)).collect();
    check(device, &wide, |x| (x * 3) >> 1, |x| x.wrapping_mul(3) >> 1, "u64")?;
    let small: Vec<i16> = (0..1000).map(|_| random.i16(..)).collect();
    check(device, &small, |x| -x * x, |x| x.wrapping_neg().wrapping_mul(x), "i16")
}

/// Comparisons, select and logic on bools.
pub fn comparisons_and_select(device: &Device) -> Result<()> {
    let values = floats(5);
    check(device, &values, |x| x.lt(0.5), |x| x < 0.5, "lt")?;
    check(device, &values, |x| x.le(0.5), |x| x <= 0.5, "le")?;
    check(device, &values, |x| x.gt(0.5), |x| x > 0.5, "gt")?;
    check(device, &values, |x| x.ge(0.5), |x| x >= 0.5, "ge")?;
    check(device, &values, |x| x.eq(0.5), |x| x == 0.5, "eq")?;
    check(device, &values, |x| x.ne(x), |x| x.is_nan(), "ne")?;
    check(
        device,
        &values,
        |x| x.gt(0.0).select(x, -1.0),
        |x| if x > 0.0 { x } else { -1.0 },
        "select",
    )?;
    check(
        device,
        &values,
        |x| x.gt(0.0).select(1u8, 2u8),
        |x| if x > 0.0 { 1 } else { 2 },
        "two constants",
    )?;
    check(
        device,
        &values,
        |x| !(x.gt(0.0) & x.lt(1.0)) | x.is_nan(),
        |x| !(x > 0.0 && x < 1.0),
        "logic",
    )?;
    check(device, &[true, false], |x| x ^ true, |x| !x, "xor")
}

/// Casts are Rust's `as`, and to bool "not zero".
pub fn casts_agree_with_rust(device: &Device) -> Result<()> {
    let mut values = floats(6);
    values.extend([300.0, -300.0, 1e20, -1e20, 255.9]);
    check(device, &values, |x| x.cast::<u8>(), |x| x as u8, "u8")?;
    check(device, &values, |x| x.cast::<i32>(), |x| x as i32, "i32")?;
    check(device, &values, |x| x.cast::<u64>(), |x| x as u64, "u64")?;
    with::<f64>(device, || check(device, &values, |x| x.cast::<f64>(), f64::from, "f64"))?;
    check(device, &values, |x| x.cast::<bool>(), |x| x != 0.0, "bool")?;
    check(device, &values, |x| x.cast::<f16>(), f16::from_f32, "f16")?;
    check(device, &values, |x| x.cast::<bf16>(), bf16::from_f32, "bf16")?;
    let integers = [i64::MIN, -1, 0, 1, 1 << 40, i64::MAX];
    check(device, &integers, |x| x.cast::<i8>(), |x| x as i8, "i8")?;
    check(device, &integers, |x| x.cast::<f32>(), |x| x as f32, "f32 of i64")?;
    check(device, &[true, false], |x| x.cast::<f32>(), |x| f32::from(u8::from(x)), "of bool")
}

/// 16-bit floats are computed in f32 and rounded once, when stored.
pub fn sixteen_bit_floats_round_once(device: &Device) -> Result<()> {
    let values: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    let (a, b) = (f16::from_f32(1.1), f16::from_f32(0.3));
    let want = |x: f16| f16::from_f32(x.to_f32() * a.to_f32() + b.to_f32());
    check(device, &values, |x| x * a + b, want, "f16")?;
    let values: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
    let a = bf16::from_f32(1.1);
    check(
        device,
        &values,
        |x| x * a - x,
        |x| bf16::from_f32(x.to_f32() * a.to_f32() - x.to_f32()),
        "bf16",
    )
}

/// Folds agree with a loop, for every kind and lengths around the sizes of chunks and pieces.
pub fn folds_agree_with_a_loop(device: &Device) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(8);
    for len in [1, 2, 15, 16, 17, 1023, 1024, 1025, 65_535, 65_536, 65_537, 300_000] {
        let floats: Vec<f32> = (0..len).map(|_| random.f32() - 0.3).collect();
        let a = device.array(&floats)?;
        let (sum, least, greatest, low, high, count) = a.reduce(|x| {
            (x.sum(), x.least(), x.greatest(), x.arg_least(), x.arg_greatest(), x.gt(0.0).count())
        })?;
        let exact: f64 = floats.iter().map(|&x| f64::from(x)).sum();
        assert!((f64::from(sum.item()?) - exact).abs() <= 1e-6 * len as f64, "{len}");
        let want_least = floats.iter().copied().fold(f32::INFINITY, f32::min);
        let want_greatest = floats.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert_eq!((least.item()?, greatest.item()?), (want_least, want_greatest));
        let first = |want: f32| floats.iter().position(|&x| x == want).unwrap() as u64;
        assert_eq!((low.item()?, high.item()?), (first(want_least), first(want_greatest)));
        assert_eq!(count.item()?, floats.iter().filter(|&&x| x > 0.0).count() as u64);
        let integers: Vec<i32> = (0..len).map(|_| random.i32(..)).collect();
        let b = device.array(&integers)?;
        assert_eq!(b.sum()?.item()?, integers.iter().map(|&x| i64::from(x)).sum::<i64>());
        assert_eq!(b.max()?.item()?, *integers.iter().max().unwrap());
        assert_eq!(b.min()?.item()?, *integers.iter().min().unwrap());
        let product = integers.iter().fold(1i64, |p, &x| p.wrapping_mul(i64::from(x)));
        assert_eq!(b.product()?.item()?, product);
        let bits = b.map(|x| (x & 1).eq(1))?;
        assert_eq!(bits.any()?.item()?, integers.iter().any(|x| x & 1 == 1));
        assert_eq!(bits.all()?.item()?, integers.iter().all(|x| x & 1 == 1));
    }
    let nans = device.array(&[f32::NAN, 3.0, f32::NAN, -1.0])?;
    assert_eq!((nans.min()?.item()?, nans.argmin()?.item()?), (-1.0, 3));
    assert!(device.array(&[f32::NAN])?.max()?.item()?.is_nan());
    let bytes = device.array(&[200u8; 1000])?;
    assert_eq!(bytes.sum()?.item()?, 200_000u64, "sums of bytes are 64 bits wide");
    Ok(())
}

/// Folds along the last axis, for rows shorter and longer than a chunk and a piece.
pub fn folds_along_the_last_axis(device: &Device) -> Result<()> {
    for (rows, row) in [(1, 1), (3, 1), (1000, 3), (5, 1024), (7, 1000), (4, 70_000), (2, 65_536)] {
        let host: Vec<i64> = (0..rows * row).map(|i| (i as i64 * 7919) % 1013 - 500).collect();
        let a = device.array(&host)?.reshape([rows, row])?;
        let (sum, place) = a.reduce_last(|x| (x.sum(), x.arg_greatest()))?;
        assert_eq!(sum.shape(), [rows]);
        let want: Vec<i64> = host.chunks(row).map(|row| row.iter().sum()).collect();
        assert_eq!(sum.to_vec()?, want, "{rows} x {row}");
        for (row, place) in host.chunks(row).zip(place.to_vec()?) {
            assert_eq!(row[place as usize], *row.iter().max().unwrap());
        }
    }
    // Rows and sums that cross whatever a device cuts memory into, at no special place.
    let host: Vec<u32> = (0..2_100_001).collect();
    let a = device.array_in(Private, &host)?;
    let rows = a.slice(1..)?.reshape([700_000, 3])?;
    let (sums, last) = (rows.reduce_last(|x| x.sum())?, rows.reduce_last(|x| x.arg_greatest())?);
    for (place, (sum, last)) in sums.to_vec()?.iter().zip(last.to_vec()?).enumerate() {
        assert_eq!((*sum, last), (9 * place as u64 + 6, 2), "row {place}");
    }
    let wide = a.slice(3..2_100_000)?.reshape([3, 699_999])?.reduce_last(|x| x.sum())?;
    let exact = |row: u64| (0..699_999).map(|i| 3 + row * 699_999 + i).sum::<u64>();
    assert_eq!(wide.to_vec()?, [exact(0), exact(1), exact(2)]);
    assert_eq!(a.slice(1..)?.argmax()?.item()?, 2_099_999);
    let cube = Array::<f32>::ones(device, [2, 3, 4])?;
    assert_eq!(cube.reduce_last(|x| x.sum())?.shape(), [2, 3]);
    Ok(())
}

/// Shorter shapes repeat along longer ones, on either side, and single elements everywhere.
pub fn shapes_repeat(device: &Device) -> Result<()> {
    let host: Vec<f32> = (0..6000).map(|x| x as f32).collect();
    let matrix = device.array(&host)?.reshape([20, 300])?;
    let row = device.array(&host[..300])?;
    let one = device.array(&[10.0f32])?;
    let sum = matrix.zip(&row)?.zip(&one)?.map(|(m, r, o)| m + r * o)?.to_vec()?;
    for (place, got) in sum.iter().enumerate() {
        assert_eq!(*got, host[place] + host[place % 300] * 10.0, "{place}");
    }
    let swapped = row.zip(&matrix)?.map(|(r, m)| m - r)?;
    assert_eq!((swapped.shape(), swapped.get([3, 7])?), (&[20, 300][..], 900.0));
    let dot = matrix.zip(&row)?.reduce_last(|(m, r)| (m * r).sum())?;
    assert_eq!(dot.shape(), [20]);
    let nothing = Array::<f32>::zeros(device, [0])?;
    assert_eq!(nothing.zip(&one)?.reduce(|(x, y)| (x + y).sum())?.item()?, 0.0);
    let four = one.zip(&one)?.zip(&one)?.zip(&one)?.map(|(a, b, c, d)| a + b + c + d)?;
    assert_eq!(four.item()?, 40.0);
    Ok(())
}

/// Several outputs come from one kernel.
pub fn several_outputs_of_one_kernel(device: &Device) -> Result<()> {
    let a = device.array(&[1.0f32, 4.0, 9.0])?;
    let before = device.compiled();
    let (root, whole, same, fixed) = a.map(|x| (x.sqrt(), x.cast::<i32>(), x, x * 0.0 + 2.0))?;
    assert_eq!(device.compiled(), before + 1);
    assert_eq!((root.to_vec()?, whole.to_vec()?), (vec![1.0, 2.0, 3.0], vec![1, 4, 9]));
    assert_eq!((same.to_vec()?, fixed.to_vec()?), (a.to_vec()?, vec![2.0; 3]));
    Ok(())
}

/// An expression of any length is one kernel, compiled once whatever its constants are.
pub fn long_expressions_are_one_kernel(device: &Device) -> Result<()> {
    let a = device.array(&[0.5f32; 3000])?;
    let before = device.compiled();
    for turn in 0..10 {
        let b = a.map(|x| (0..100).fold(x, |y, i| (y * 0.99 + i as f32 * turn as f32).min(1e6)))?;
        let want = (0..100).fold(0.5f32, |y, i| (y * 0.99 + i as f32 * turn as f32).min(1e6));
        assert!(b.read()?.iter().all(|&x| x == want));
    }
    assert_eq!(device.compiled(), before + 1);
    let place = a.map(|x| x.cast::<u64>() + aquifer::index())?;
    assert_eq!(place.get(2999)?, 2999);
    Ok(())
}

/// The same input gives the same bits wherever it stands and however often it is computed.
pub fn results_do_not_depend_on_the_place(device: &Device) -> Result<()> {
    let value = 0.731_f32;
    let a = Array::<f32>::full(device, [100_003], value)?;
    let b = a.map(|x| x.sin() * x.exp() + x.tanh() / x.log())?.to_vec()?;
    assert!(b.iter().all(|x| x.to_bits() == b[0].to_bits()));
    let odd = a.slice(3..)?.map(|x| x.sin() * x.exp() + x.tanh() / x.log())?;
    assert_eq!(odd.get(17)?.to_bits(), b[0].to_bits());
    let random = Array::<f32>::rand(device, [1_000_000])?;
    let sums: Vec<u32> =
        (0..5).map(|_| Ok(random.sum()?.item()?.to_bits())).collect::<Result<_>>()?;
    assert!(sums.iter().all(|sum| *sum == sums[0]));
    Ok(())
}

/// In place, and into a view that overlaps its input: reads see what was there before.
pub fn assignments_in_place_and_overlapping(device: &Device) -> Result<()> {
    let host: Vec<f32> = (0..10_000).map(|x| x as f32).collect();
    let a = device.array(&host)?;
    a.assign(|x| x * 2.0 + x)?;
    assert_eq!(a.get(100)?, 300.0);
    let b = device.array(&host)?;
    b.slice(1..)?.assign_with(&b.slice(..9999)?, |x, y| x + y)?;
    for (place, got) in b.to_vec()?.iter().enumerate().skip(1) {
        assert_eq!(*got, host[place] + host[place - 1], "{place}");
    }
    let c = device.array(&host)?;
    c.slice(..9000)?.assign_with(&c.slice(1000..)?, |_, y| y)?;
    assert_eq!(c.to_vec()?[..9000], host[1000..]);
    c.assign_with(&c, |x, y| x - y)?;
    assert!(c.read()?.iter().all(|&x| x == 0.0));
    Ok(())
}
