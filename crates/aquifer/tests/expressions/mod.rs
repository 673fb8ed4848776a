//! Random expressions on a device and on the CPU: the same values (rule N.3).
#![allow(clippy::unwrap_used, unreachable_pub)]

use aquifer::prelude::*;
use aquifer::{Element, Expr, RandomElement};
use fastrand::Rng;

/// Bits of a value as something that can be compared: integers as they are, floats with their
/// tolerance.
fn differs<T: Element>(a: T, b: T) -> bool {
    let (a, b) = (a.to_bits(), b.to_bits());
    if a == b {
        return false;
    }
    let float = match T::DTYPE {
        Dtype::F32 => (f32::from_bits(a as u32).into(), f32::from_bits(b as u32).into(), 1.2e-7),
        Dtype::F64 => (f64::from_bits(a), f64::from_bits(b), 2.3e-16),
        Dtype::F16 => (f16::from_bits(a as u16).to_f64(), f16::from_bits(b as u16).to_f64(), 1e-3),
        Dtype::Bf16 => {
            (bf16::from_bits(a as u16).to_f64(), bf16::from_bits(b as u16).to_f64(), 8e-3)
        }
        _ => return true,
    };
    let (x, y, ulp): (f64, f64, f64) = float;
    if x.is_nan() && y.is_nan() {
        return false;
    }
    // Numbers that are too small to be normal may be 0.
    let tiny = if T::DTYPE == Dtype::F64 { f64::MIN_POSITIVE } else { 1.2e-38 };
    (x - y).abs() > 4.0 * ulp * x.abs().max(y.abs()) && x.abs().max(y.abs()) > tiny
}

/// One operation on a float: well-conditioned ones, so that an error of an operand by a few ulp
/// stays one of a few ulp.
macro_rules! float_steps {
    ($step:ident, $type:ty) => {
        fn $step(x: Expr<$type>, y: Expr<$type>, which: u32) -> Expr<$type> {
            let c = |value: f64| <$type as FromF64>::of(value);
            match which % 16 {
                0 => x + y.abs() * c(0.5),
                1 => x.abs() * c(0.75),
                2 => x * c(0.5),
                3 => x.min(y),
                4 => x.max(y),
                5 => x.abs().sqrt(),
                6 => x.floor(),
                7 => x.gt(y).select(x, y),
                8 => -x,
                9 => x.clamp(c(-2.0), c(2.0)),
                10 => x / (y.abs() + c(1.0)),
                11 => x.ceil().max(y.round()),
                12 => (x.eq(y) | x.lt(c(0.25))).select(y, x),
                13 => x.cast::<i32>().cast::<$type>(),
                14 => x.is_nan().select(c(1.0), x),
                _ => x.cast::<u8>().cast::<$type>() * c(0.5),
            }
        }
    };
}

trait FromF64 {
    fn of(value: f64) -> Self;
}

impl FromF64 for f32 {
    fn of(value: f64) -> Self {
        value as f32
    }
}

impl FromF64 for f64 {
    fn of(value: f64) -> Self {
        value
    }
}

float_steps!(step_f32, f32);
float_steps!(step_f64, f64);

macro_rules! half_steps {
    ($step:ident, $type:ty) => {
        fn $step(x: Expr<$type>, y: Expr<$type>, which: u32) -> Expr<$type> {
            match which % 7 {
                0 => x.abs() + y.abs(),
                1 => x * <$type>::from_f32(0.5),
                2 => x.min(y),
                3 => x.max(y),
                4 => x.le(y).select(y, x),
                5 => -x.abs(),
                _ => x.cast::<f32>().cast::<$type>(),
            }
        }
    };
}

half_steps!(step_f16, f16);
half_steps!(step_bf16, bf16);

macro_rules! integer_steps {
    ($($step:ident, $type:ty, $wide:ty, $signed:expr;)*) => {$(
        fn $step(x: Expr<$type>, y: Expr<$type>, which: u32) -> Expr<$type> {
            match which % 20 {
                0 => x + y,
                1 => x - y,
                2 => x * y,
                3 => x / y,
                4 => x % y,
                5 => x & y,
                6 => x | y,
                7 => x ^ y,
                8 => x << (which as u8 % 7) as $type,
                9 => x >> (which as u8 % 7) as $type,
                10 => x << y,
                11 => x >> y,
                12 => !x,
                13 => x.ge(y).select(y, x),
                14 => $signed(x),
                15 => x.min(y).max(3 as $type),
                16 => x.lt(y).select(y, x),
                17 => x.cast::<$wide>().cast::<$type>(),
                18 => x.cast::<f32>().cast::<$type>(),
                _ => x.pow(y),
            }
        }
    )*};
}

integer_steps! {
    step_u8, u8, i32, (|x: Expr<u8>| !x);
    step_i8, i8, u32, (|x: Expr<i8>| -x.abs());
    step_u16, u16, u64, (|x: Expr<u16>| !x);
    step_i16, i16, u8, (|x: Expr<i16>| -x.abs());
    step_u32, u32, i64, (|x: Expr<u32>| !x);
    step_i32, i32, u16, (|x: Expr<i32>| -x.abs());
    step_u64, u64, i8, (|x: Expr<u64>| !x);
    step_i64, i64, u32, (|x: Expr<i64>| -x.abs());
}

fn step_bool(x: Expr<bool>, y: Expr<bool>, which: u32) -> Expr<bool> {
    match which % 7 {
        0 => x & y,
        1 => x | y,
        2 => x ^ y,
        3 => !x,
        4 => x.lt(y),
        5 => x.eq(y),
        _ => x.select(y, !y),
    }
}

type Step<T> = fn(Expr<T>, Expr<T>, u32) -> Expr<T>;

/// One random expression over views of two arrays: mapped to a new array or in place, and folded.
struct Case {
    len: usize,
    at: [usize; 2],
    /// How many elements the second has: as many, or fewer that repeat.
    short: usize,
    steps: Vec<u32>,
    in_place: bool,
    queue: usize,
}

impl Case {
    fn new(random: &mut Rng) -> Self {
        let row = [1, 3, 8, 17, 100][random.usize(0..5)];
        let rows = [1, 2, 5, 63, 200][random.usize(0..5)];
        let len = row * rows;
        Self {
            len,
            at: [random.usize(0..9), random.usize(0..9)],
            short: [len, len, row, 1][random.usize(0..4)],
            steps: (0..random.usize(1..6)).map(|_| random.u32(..)).collect(),
            in_place: random.u8(0..3) == 0,
            queue: random.usize(0..3),
        }
    }

    fn run<T: Element>(
        &self,
        device: &Device,
        (a, b): (&[T], &[T]),
        step: Step<T>,
    ) -> Result<(Vec<T>, Vec<u64>, T, T)> {
        let queues = [device.queue()?, device.queue()?, device.queue()?];
        let (a, b) = (device.array(a)?, device.array_in(Private, b)?);
        let row = if self.short < self.len { self.short } else { 1 };
        let x = a.slice(self.at[0]..self.at[0] + self.len)?.reshape([self.len / row, row])?;
        let y = b.slice(self.at[1]..self.at[1] + self.short)?;
        let y = if self.short == self.len { y.reshape([self.len / row, row])? } else { y };
        let apply = |x: Expr<T>, y: Expr<T>| {
            self.steps.iter().fold(x, |value, &which| step(value, y, which))
        };
        let mapped = queues[self.queue].run(|| {
            if self.in_place {
                x.assign_with(&y, apply)?;
                return Ok(x.share());
            }
            x.zip(&y)?.map(|(x, y)| apply(x, y))
        })?;
        let (least, greatest, place) = queues[(self.queue + 1) % 3]
            .run(|| mapped.reduce(|x| (x.least(), x.greatest(), x.arg_greatest())))?;
        let along = mapped.reduce_last(|x| x.arg_least())?;
        let mut places = along.to_vec()?;
        places.push(place.item()?);
        Ok((mapped.to_vec()?, places, least.item()?, greatest.item()?))
    }
}

fn agree<T: RandomElement>(
    (vulkan, cpu): (&Device, &Device),
    random: &mut Rng,
    step: Step<T>,
) -> Result<usize> {
    let case = Case::new(random);
    let count = case.len + 16;
    cpu.seed(random.u64(..));
    let values =
        [Array::<T>::rand(cpu, [count])?.to_vec()?, Array::<T>::rand(cpu, [count])?.to_vec()?];
    let values = (&values[0][..], &values[1][..]);
    let (got, got_places, low, high) = case.run(vulkan, values, step)?;
    let (want, places, least, greatest) = case.run(cpu, values, step)?;
    for (place, (&got, &want)) in got.iter().zip(&want).enumerate() {
        assert!(
            !differs(got, want),
            "{} at {place} of {}: {got}, {want} on the CPU; steps {:?}",
            T::DTYPE,
            case.len,
            case.steps
        );
    }
    assert!(!differs(low, least) && !differs(high, greatest), "{}", T::DTYPE);
    if got == want {
        assert_eq!(got_places, places, "{} {:?}", T::DTYPE, case.steps);
    }
    Ok(case.steps.len())
}

/// N.3: 500 random expressions, over every type, views at odd offsets, shorter inputs that repeat,
/// in place and not, on three queues: integers exactly, floats within 4 ulp.
pub fn agree_with_the_cpu(device: &Device, count: u64) {
    let cpu = Device::cpu().unwrap();
    let devices = (device, &cpu);
    let mut random = Rng::with_seed(count);
    for turn in 0..count {
        let random = &mut random;
        let done = match turn % 13 {
            0 => agree::<f32>(devices, random, step_f32),
            1 if device.supports(Dtype::F64) => agree::<f64>(devices, random, step_f64),
            1 => agree::<f32>(devices, random, step_f32),
            2 => agree::<f16>(devices, random, step_f16),
            3 => agree::<bf16>(devices, random, step_bf16),
            4 => agree::<u8>(devices, random, step_u8),
            5 => agree::<i8>(devices, random, step_i8),
            6 => agree::<u16>(devices, random, step_u16),
            7 => agree::<i16>(devices, random, step_i16),
            8 => agree::<u32>(devices, random, step_u32),
            9 => agree::<i32>(devices, random, step_i32),
            10 => agree::<u64>(devices, random, step_u64),
            11 => agree::<i64>(devices, random, step_i64),
            _ => agree::<bool>(devices, random, step_bool),
        };
        assert!(done.unwrap() > 0);
    }
}

/// N.3: the elementary functions on both, over their ranges and far beyond.
pub fn functions_agree_with_the_cpu(device: &Device) {
    let mut random = Rng::with_seed(9);
    let mut values: Vec<f32> =
        (0..20_000).map(|_| (random.f32() - 0.5) * 10f32.powi(random.i32(-6..38))).collect();
    values.extend([0.0, -0.0, 1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX]);
    let functions: [Function<f32>; 9] = [
        ("sin", |x| x.sin()),
        ("cos", |x| x.cos()),
        ("log2", |x| x.abs().log2()),
        ("power of 0.3", |x| x.abs().pow(0.3)),
        ("power of 3", |x| x.pow(3.0)),
        ("power of -1.7", |x| x.abs().pow(-1.7)),
        ("power of itself", |x| (x.abs() % 40.0).pow(x % 30.0)),
        ("near 1 to a large power", |x| ((x % 1.0) * 0.01 + 1.0).pow(x % 20_000.0)),
        ("remainder", |x| x % 0.7),
    ];
    of_one_type(device, &values, &functions);
    if device.supports(Dtype::F64) {
        let values: Vec<f64> =
            (0..20_000).map(|_| (random.f64() - 0.5) * 10f64.powi(random.i32(-8..250))).collect();
        let functions: [Function<f64>; 8] = [
            ("sin", |x| x.sin()),
            ("cos", |x| x.cos()),
            ("tan", |x| x.tan()),
            ("log2", |x| x.abs().log2()),
            ("log", |x| x.abs().log()),
            ("tanh", |x| x.tanh()),
            ("power of 0.7", |x| x.abs().pow(0.7)),
            ("remainder", |x| x % 0.7),
        ];
        of_one_type(device, &values, &functions);
    }
}

type Function<T> = (&'static str, fn(Expr<T>) -> Expr<T>);

fn of_one_type<T: Element>(device: &Device, values: &[T], functions: &[Function<T>]) {
    let cpu = Device::cpu().unwrap();
    for (name, function) in functions {
        let on = |device: &Device| device.array(values)?.map(*function)?.to_vec();
        let (got, want) = (on(device).unwrap(), on(&cpu).unwrap());
        for ((&got, &want), x) in got.iter().zip(&want).zip(values) {
            assert!(!differs(got, want), "{name} of {x:?} ({}): {got:?}, {want:?}", T::DTYPE);
        }
    }
}
