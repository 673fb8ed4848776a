//! Folds: values along a row become one.
//!
//! A row is cut into pieces of fixed length, whatever the number of threads, and the pieces'
//! results are joined in order: the same input gives the same bits on every run. Sums of f32 are
//! kept in f64 between chunks.

use bytemuck::{Pod, cast_slice};

use crate::dtype::Dtype;
use crate::ir::Fold;

/// The running result of one fold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Accumulator {
    /// Sum and product of floats; extremes of floats, NaN while there is no number yet.
    Float(f64),
    /// Sums, products and extremes of signed integers, in the width of the type.
    Signed(i64),
    /// The same of unsigned ones; counts.
    Unsigned(u64),
    /// Any, all.
    Truth(bool),
    /// The best value so far and its place.
    FloatAt(f64, Option<u64>),
    SignedAt(i64, Option<u64>),
    UnsignedAt(u64, Option<u64>),
}

impl Accumulator {
    /// The result of folding nothing.
    pub(super) fn start(fold: Fold, dtype: Dtype) -> Self {
        let compute = dtype.compute();
        let float = compute.is_float();
        let signed = matches!(compute, Dtype::I8 | Dtype::I16 | Dtype::I32 | Dtype::I64);
        match fold {
            Fold::Count => Self::Unsigned(0),
            Fold::Any => Self::Truth(false),
            Fold::All => Self::Truth(true),
            Fold::Sum | Fold::Product => {
                let neutral = u8::from(fold == Fold::Product);
                match (float, signed) {
                    (true, _) => Self::Float(f64::from(neutral)),
                    (_, true) => Self::Signed(i64::from(neutral)),
                    _ => Self::Unsigned(u64::from(neutral)),
                }
            }
            Fold::Min | Fold::Max => match (float, signed, fold == Fold::Min) {
                (true, ..) => Self::Float(f64::NAN),
                (_, true, true) => Self::Signed(i64::MAX),
                (_, true, false) => Self::Signed(i64::MIN),
                (_, _, true) => Self::Unsigned(u64::MAX),
                _ => Self::Unsigned(u64::MIN),
            },
            Fold::ArgMin | Fold::ArgMax => match (float, signed) {
                (true, _) => Self::FloatAt(f64::NAN, None),
                (_, true) => Self::SignedAt(0, None),
                _ => Self::UnsignedAt(0, None),
            },
        }
    }

    /// Joins the result of later places to that of earlier ones.
    pub(super) fn join(self, fold: Fold, later: Self) -> Self {
        match (self, later) {
            (Self::Float(a), Self::Float(b)) => Self::Float(match fold {
                Fold::Sum => a + b,
                Fold::Product => a * b,
                Fold::Min => a.min(b),
                _ => a.max(b),
            }),
            (Self::Signed(a), Self::Signed(b)) => Self::Signed(match fold {
                Fold::Sum => a.wrapping_add(b),
                Fold::Product => a.wrapping_mul(b),
                Fold::Min => a.min(b),
                _ => a.max(b),
            }),
            (Self::Unsigned(a), Self::Unsigned(b)) => Self::Unsigned(match fold {
                Fold::Sum | Fold::Count => a.wrapping_add(b),
                Fold::Product => a.wrapping_mul(b),
                Fold::Min => a.min(b),
                _ => a.max(b),
            }),
            (Self::Truth(a), Self::Truth(b)) => {
                Self::Truth(if fold == Fold::Any { a || b } else { a && b })
            }
            (Self::FloatAt(a, at), Self::FloatAt(b, bt)) => {
                let (value, place) = better((a, at), (b, bt), fold);
                Self::FloatAt(value, place)
            }
            (Self::SignedAt(a, at), Self::SignedAt(b, bt)) => {
                let (value, place) = better((a, at), (b, bt), fold);
                Self::SignedAt(value, place)
            }
            (Self::UnsignedAt(a, at), Self::UnsignedAt(b, bt)) => {
                let (value, place) = better((a, at), (b, bt), fold);
                Self::UnsignedAt(value, place)
            }
            (same, _) => same,
        }
    }

    /// Writes the result as one element of the fold's result type.
    pub(super) fn store(self, fold: Fold, dtype: Dtype, out: &mut [u8]) {
        let (signed, unsigned) = match self {
            Self::Float(value) => return store_float(value, dtype, out),
            Self::Signed(value) => (value, value as u64),
            Self::Unsigned(value) => (value as i64, value),
            Self::Truth(value) => (i64::from(value), u64::from(value)),
            Self::FloatAt(_, place) | Self::SignedAt(_, place) | Self::UnsignedAt(_, place) => {
                (0, place.unwrap_or(0))
            }
        };
        match fold.result(dtype) {
            // A bool's greatest and least are bools.
            Dtype::Bool => out[0] = u8::from(unsigned != 0),
            Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64 => {
                let len = out.len();
                out.copy_from_slice(&unsigned.to_ne_bytes()[low_bytes(len)]);
            }
            _ => {
                let len = out.len();
                out.copy_from_slice(&signed.to_ne_bytes()[low_bytes(len)]);
            }
        }
    }
}

/// Where the `len` low bytes of a native u64 lie.
fn low_bytes(len: usize) -> std::ops::Range<usize> {
    if cfg!(target_endian = "little") { 0..len } else { 8 - len..8 }
}

fn store_float(value: f64, dtype: Dtype, out: &mut [u8]) {
    match dtype {
        Dtype::F16 => out.copy_from_slice(&half::f16::from_f32(value as f32).to_ne_bytes()),
        Dtype::Bf16 => out.copy_from_slice(&half::bf16::from_f32(value as f32).to_ne_bytes()),
        Dtype::F32 => out.copy_from_slice(&(value as f32).to_ne_bytes()),
        _ => out.copy_from_slice(&value.to_ne_bytes()),
    }
}

fn better<T: PartialOrd + Copy>(
    first: (T, Option<u64>),
    second: (T, Option<u64>),
    fold: Fold,
) -> (T, Option<u64>) {
    match (first.1, second.1) {
        (None, _) => second,
        (_, None) => first,
        _ if fold == Fold::ArgMin && second.0 < first.0 => second,
        _ if fold == Fold::ArgMax && second.0 > first.0 => second,
        _ => first,
    }
}

/// Lanes that a sum or an extreme runs in side by side, so that the loop vectorises.
const LANES: usize = 16;

/// Folds `values` in lanes, then the lanes.
#[inline(always)]
fn in_lanes<T: Copy>(values: &[T], start: T, f: impl Fn(T, T) -> T) -> T {
    let mut lanes = [start; LANES];
    let mut groups = values.chunks_exact(LANES);
    for group in groups.by_ref() {
        for (lane, &value) in lanes.iter_mut().zip(group) {
            *lane = f(*lane, value);
        }
    }
    for (lane, &value) in lanes.iter_mut().zip(groups.remainder()) {
        *lane = f(*lane, value);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] = f(lanes[lane], lanes[lane + width]);
        }
        width /= 2;
    }
    lanes[0]
}

#[inline(always)]
fn first_best<T: Pod + PartialOrd>(values: &[T], less: bool) -> Option<(T, usize)> {
    let mut best: Option<(T, usize)> = None;
    for (place, &value) in values.iter().enumerate() {
        // Comparison with itself: NaN is passed over.
        #[allow(clippy::eq_op)]
        let number = value == value;
        let better = best.is_none_or(|(known, _)| if less { value < known } else { value > known });
        if number && better {
            best = Some((value, place));
        }
    }
    best
}

macro_rules! fold_int {
    ($t:ty, $kind:ident, $at:ident, $wide:ty, $fold:expr, $values:expr, $start:expr) => {{
        let values: &[$t] = cast_slice($values);
        match $fold {
            Fold::Sum => {
                let sum = in_lanes(values, 0, |a: $t, b| a.wrapping_add(b));
                Accumulator::$kind(sum as $wide)
            }
            Fold::Product => {
                let product = in_lanes(values, 1, |a: $t, b| a.wrapping_mul(b));
                Accumulator::$kind(product as $wide)
            }
            Fold::Min => {
                Accumulator::$kind(in_lanes(values, <$t>::MAX, |a: $t, b| a.min(b)) as $wide)
            }
            Fold::Max => {
                Accumulator::$kind(in_lanes(values, <$t>::MIN, |a: $t, b| a.max(b)) as $wide)
            }
            _ => match first_best(values, $fold == Fold::ArgMin) {
                Some((value, place)) => {
                    Accumulator::$at(value as $wide, Some($start + place as u64))
                }
                None => Accumulator::$at(0, None),
            },
        }
    }};
}

macro_rules! fold_float {
    ($t:ty, $fold:expr, $values:expr, $start:expr) => {{
        let values: &[$t] = cast_slice($values);
        match $fold {
            Fold::Sum => Accumulator::Float(in_lanes(values, 0.0, |a: $t, b| a + b) as f64),
            Fold::Product => Accumulator::Float(in_lanes(values, 1.0, |a: $t, b| a * b) as f64),
            Fold::Min => {
                Accumulator::Float(in_lanes(values, <$t>::NAN, |a: $t, b| a.min(b)) as f64)
            }
            Fold::Max => {
                Accumulator::Float(in_lanes(values, <$t>::NAN, |a: $t, b| a.max(b)) as f64)
            }
            _ => match first_best(values, $fold == Fold::ArgMin) {
                Some((value, place)) => {
                    Accumulator::FloatAt(value as f64, Some($start + place as u64))
                }
                None => Accumulator::FloatAt(f64::NAN, None),
            },
        }
    }};
}

/// Folds a chunk of values of the type's compute type; `start` is the first one's place in its
/// row.
pub(super) fn fold_chunk(
    wide: bool,
    (fold, dtype): (Fold, Dtype),
    values: &[u8],
    start: u64,
) -> Accumulator {
    #[cfg(target_arch = "x86_64")]
    if wide {
        // SAFETY: `wide` is the answer of `ops::wide_vectors`, which found these features.
        return unsafe { fold_wide(fold, dtype, values, start) };
    }
    let _ = wide;
    fold_values(fold, dtype, values, start)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,bmi2")]
fn fold_wide(fold: Fold, dtype: Dtype, values: &[u8], start: u64) -> Accumulator {
    fold_values(fold, dtype, values, start)
}

#[inline(always)]
fn fold_values(fold: Fold, dtype: Dtype, values: &[u8], start: u64) -> Accumulator {
    match fold {
        Fold::Count => {
            let count: u64 = values.iter().map(|&value| u64::from(value)).sum();
            return Accumulator::Unsigned(count);
        }
        Fold::Any => return Accumulator::Truth(values.iter().any(|&value| value != 0)),
        Fold::All => return Accumulator::Truth(values.iter().all(|&value| value != 0)),
        _ => {}
    }
    match dtype.compute() {
        Dtype::Bool | Dtype::U8 => fold_int!(u8, Unsigned, UnsignedAt, u64, fold, values, start),
        Dtype::U16 => fold_int!(u16, Unsigned, UnsignedAt, u64, fold, values, start),
        Dtype::U32 => fold_int!(u32, Unsigned, UnsignedAt, u64, fold, values, start),
        Dtype::U64 => fold_int!(u64, Unsigned, UnsignedAt, u64, fold, values, start),
        Dtype::I8 => fold_int!(i8, Signed, SignedAt, i64, fold, values, start),
        Dtype::I16 => fold_int!(i16, Signed, SignedAt, i64, fold, values, start),
        Dtype::I32 => fold_int!(i32, Signed, SignedAt, i64, fold, values, start),
        Dtype::I64 => fold_int!(i64, Signed, SignedAt, i64, fold, values, start),
        Dtype::F64 => fold_float!(f64, fold, values, start),
        _ => fold_float!(f32, fold, values, start),
    }
}
