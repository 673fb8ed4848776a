//! Statistics of a tensor, computed on the device.
//!
//! A tensor is worked on in slices, two passes each (moments about the slice's own mean), which
//! are then joined: every byte is read from the file once, the second pass finds it in the page
//! cache, and nothing cancels.

use aquifer::prelude::*;
use aquifer::{Element, Tensor};

/// Bytes of a slice: small against the page cache, large against the cost of a kernel.
const SLICE: usize = 64 << 20;

/// What is said of a tensor's elements. `min` to `std` are over the finite values; all absent
/// where there are none, or where the element type has no arrays.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub(crate) struct Stats {
    pub(crate) min: Option<Number>,
    pub(crate) max: Option<Number>,
    pub(crate) mean: Option<f64>,
    pub(crate) std: Option<f64>,
    pub(crate) nan: Option<u64>,
    pub(crate) inf: Option<u64>,
    pub(crate) zero: Option<u64>,
}

/// An extreme: integers stay exact.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Float(f64),
    Signed(i64),
    Unsigned(u64),
}

/// Count, mean and sum of squared deviations of a part.
#[derive(Clone, Copy, Debug, Default)]
struct Moments {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Moments {
    /// Joins two parts.
    ///
    /// Source: Chan, Golub, LeVeque, *Updating formulae and a pairwise algorithm* (1979).
    fn join(self, other: Self) -> Self {
        let count = self.count + other.count;
        if count == 0.0 {
            return Self::default();
        }
        let apart = other.mean - self.mean;
        Self {
            count,
            mean: self.mean + apart * (other.count / count),
            squares: self.squares
                + other.squares
                + apart * apart * (self.count * other.count / count),
        }
    }

    fn into_stats(self, stats: &mut Stats) {
        if self.count > 0.0 {
            stats.mean = Some(self.mean);
            stats.std = Some((self.squares / self.count).max(0.0).sqrt());
        }
    }
}

/// The statistics of any tensor.
pub(crate) fn of(tensor: &Tensor<'_>) -> Result<Stats> {
    match tensor.dtype().dtype() {
        Some(Dtype::F16) => floats::<f16>(tensor),
        Some(Dtype::Bf16) => floats::<bf16>(tensor),
        Some(Dtype::F32) => floats::<f32>(tensor),
        Some(Dtype::F64) => floats::<f64>(tensor),
        Some(Dtype::I8) => integers::<i8>(tensor, |v| Number::Signed(v.into())),
        Some(Dtype::I16) => integers::<i16>(tensor, |v| Number::Signed(v.into())),
        Some(Dtype::I32) => integers::<i32>(tensor, |v| Number::Signed(v.into())),
        Some(Dtype::I64) => integers::<i64>(tensor, Number::Signed),
        Some(Dtype::U8) => integers::<u8>(tensor, |v| Number::Unsigned(v.into())),
        Some(Dtype::U16) => integers::<u16>(tensor, |v| Number::Unsigned(v.into())),
        Some(Dtype::U32) => integers::<u32>(tensor, |v| Number::Unsigned(v.into())),
        Some(Dtype::U64) => integers::<u64>(tensor, Number::Unsigned),
        Some(Dtype::Bool) => integers::<bool>(tensor, |v| Number::Unsigned(v.into())),
        _ => Ok(Stats::default()),
    }
}

fn floats<T: Element>(tensor: &Tensor<'_>) -> Result<Stats> {
    let array = tensor.array::<T>()?;
    let (mut stats, mut moments) = (Stats::default(), Moments::default());
    let (mut least, mut greatest) = (f64::NAN, f64::NAN);
    let (mut nans, mut infs, mut zeros) = (0, 0, 0);
    for part in parts(&array)? {
        let (low, high, sum, nan, inf, zero) = part.reduce(|x| {
            let x = x.cast::<f64>();
            let (nan, inf) = (x.is_nan(), x.is_inf());
            let finite = !(nan | inf);
            let number = finite.select(x, f64::NAN);
            (
                number.least(),
                number.greatest(),
                finite.select(x, 0.0f64).sum(),
                nan.count(),
                inf.count(),
                x.eq(0.0f64).count(),
            )
        })?;
        (nans, infs, zeros) = (nans + nan.item()?, infs + inf.item()?, zeros + zero.item()?);
        (least, greatest) = (least.min(low.item()?), greatest.max(high.item()?));
        let count = part.len() as u64 - nan.item()? - inf.item()?;
        if count > 0 {
            let mean = sum.item()? / count as f64;
            let squares = part.reduce(|x| {
                let x = x.cast::<f64>();
                let apart = x - mean;
                let finite = !(x.is_nan() | x.is_inf());
                finite.select(apart * apart, 0.0f64).sum()
            })?;
            let part = Moments { count: count as f64, mean, squares: squares.item()? };
            moments = moments.join(part);
        }
    }
    moments.into_stats(&mut stats);
    stats.min = (!least.is_nan()).then_some(Number::Float(least));
    stats.max = (!greatest.is_nan()).then_some(Number::Float(greatest));
    (stats.nan, stats.inf, stats.zero) = (Some(nans), Some(infs), Some(zeros));
    Ok(stats)
}

fn integers<T: Element>(tensor: &Tensor<'_>, number: fn(T) -> Number) -> Result<Stats> {
    let array = tensor.array::<T>()?;
    let (mut stats, mut moments, mut zeros) = (Stats::default(), Moments::default(), 0);
    let mut extremes: Option<(T, T)> = None;
    for part in parts(&array)? {
        let (low, high, sum, zero) = part.reduce(|x| {
            let zero = x.eq(T::default()).count();
            (x.least(), x.greatest(), x.cast::<f64>().sum(), zero)
        })?;
        zeros += zero.item()?;
        let (low, high) = (low.item()?, high.item()?);
        extremes = Some(match extremes {
            None => (low, high),
            Some((least, greatest)) => (
                if low < least { low } else { least },
                if high > greatest { high } else { greatest },
            ),
        });
        let mean = sum.item()? / part.len() as f64;
        let squares = part.reduce(|x| {
            let apart = x.cast::<f64>() - mean;
            (apart * apart).sum()
        })?;
        moments =
            moments.join(Moments { count: part.len() as f64, mean, squares: squares.item()? });
    }
    moments.into_stats(&mut stats);
    stats.min = extremes.map(|(least, _)| number(least));
    stats.max = extremes.map(|(_, greatest)| number(greatest));
    (stats.nan, stats.inf, stats.zero) = (Some(0), Some(0), Some(zeros));
    Ok(stats)
}

fn parts<T: Element>(array: &Array<T>) -> Result<Vec<Array<T>>> {
    let step = SLICE / size_of::<T>();
    let starts = (0..array.len()).step_by(step);
    starts.map(|start| array.slice(start..(start + step).min(array.len()))).collect()
}
