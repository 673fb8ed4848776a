//! The Rust types that elements of arrays have.

use crate::dtype::Dtype;

mod sealed {
    pub trait Sealed {}
}

/// A type of array elements: bool, the integers of 8 to 64 bits, f16, bf16, f32 and f64.
///
/// Sealed: the element types are those that every back end knows.
pub trait Element:
    sealed::Sealed
    + Copy
    + Default
    + PartialEq
    + PartialOrd
    + std::fmt::Debug
    + std::fmt::Display
    + Send
    + Sync
    + 'static
{
    /// The type's name at run time.
    const DTYPE: Dtype;
    /// The type that its sums and products have: 64 bits for integers, f32 for 16-bit floats.
    type Sum: Element;

    /// The value's bits, the lowest first.
    fn to_bits(self) -> u64;
    /// The value of the lowest bits.
    fn from_bits(bits: u64) -> Self;
}

macro_rules! element {
    ($($type:ty, $dtype:ident, $sum:ty, |$value:ident| $to:expr, |$bits:ident| $from:expr;)*) => {
        $(
            impl sealed::Sealed for $type {}
            impl Element for $type {
                const DTYPE: Dtype = Dtype::$dtype;
                type Sum = $sum;

                #[inline]
                fn to_bits(self) -> u64 {
                    let $value = self;
                    $to
                }

                #[inline]
                fn from_bits($bits: u64) -> Self {
                    $from
                }
            }
        )*
    };
}

element! {
    bool, Bool, u64, |v| u64::from(v), |b| b & 1 != 0;
    u8, U8, u64, |v| u64::from(v), |b| b as u8;
    i8, I8, i64, |v| u64::from(v as u8), |b| b as i8;
    u16, U16, u64, |v| u64::from(v), |b| b as u16;
    i16, I16, i64, |v| u64::from(v as u16), |b| b as i16;
    u32, U32, u64, |v| u64::from(v), |b| b as u32;
    i32, I32, i64, |v| u64::from(v as u32), |b| b as i32;
    u64, U64, u64, |v| v, |b| b;
    i64, I64, i64, |v| v as u64, |b| b as i64;
    half::f16, F16, f32, |v| u64::from(v.to_bits()), |b| half::f16::from_bits(b as u16);
    half::bf16, Bf16, f32, |v| u64::from(v.to_bits()), |b| half::bf16::from_bits(b as u16);
    f32, F32, f32, |v| u64::from(v.to_bits()), |b| f32::from_bits(b as u32);
    f64, F64, f64, |v| v.to_bits(), |b| f64::from_bits(b);
}
