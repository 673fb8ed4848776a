//! Elementary functions over slices.
//!
//! `wide` computes eight (f32) or four (f64) lanes at once; lanes outside the range in which it
//! is exact to a few ulp go to the standard library one by one.

/// `base` to the power `exponent`, wrapping; a negative exponent gives 0 except for 1 and −1.
pub(super) fn int_pow(base: i128, exponent: i128) -> i128 {
    if exponent < 0 {
        return match base {
            1 => 1,
            -1 if exponent % 2 == 0 => 1,
            -1 => -1,
            _ => 0,
        };
    }
    let (mut result, mut square, mut rest) = (1i128, base, exponent);
    while rest > 0 {
        if rest & 1 == 1 {
            result = result.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        rest >>= 1;
    }
    result
}

macro_rules! lanes {
    (
        $name:ident, $scalar:ty, $vector:ty, $width:literal,
        $($function:ident $lanes:expr, $exact:expr, $one:expr;)*
    ) => {
        /// Functions of this type.
        pub(super) mod $name {
            $(
                #[inline(always)]
                pub(in crate::cpu) fn $function(a: &[$scalar], out: &mut [$scalar]) {
                    super::$name::over(a, out, $lanes, $exact, $one);
                }
            )*

            #[inline(always)]
            fn over(
                a: &[$scalar],
                out: &mut [$scalar],
                lanes: impl Fn($vector) -> $vector,
                exact: impl Fn($scalar) -> bool,
                one: impl Fn($scalar) -> $scalar,
            ) {
                if a.len() < out.len() {
                    // The same value at every place.
                    let same = lanes(<$vector>::splat(a[0])).to_array()[0];
                    out.fill(if exact(a[0]) { same } else { one(a[0]) });
                    return;
                }
                let mut groups = out.chunks_exact_mut($width);
                let mut values = a.chunks_exact($width);
                for (out, a) in groups.by_ref().zip(values.by_ref()) {
                    let mut lane = [0.0; $width];
                    lane.copy_from_slice(a);
                    // All at once, so that the check stays a vector compare.
                    let all_exact = lane.iter().fold(true, |all, &x| all & exact(x));
                    if all_exact {
                        out.copy_from_slice(&lanes(<$vector>::from(lane)).to_array());
                    } else {
                        for (out, &x) in out.iter_mut().zip(a) {
                            *out = one(x);
                        }
                    }
                }
                for (out, &x) in groups.into_remainder().iter_mut().zip(values.remainder()) {
                    // The same lanes as above: a value must not depend on its place.
                    *out = if exact(x) { lanes(<$vector>::splat(x)).to_array()[0] } else { one(x) };
                }
            }
        }
    };
}

lanes! { f32, f32, wide::f32x8, 8,
    exp |x| x.exp(), |x| x.abs() < 87.0, f32::exp;
    log |x| x.ln(), |x| (f32::MIN_POSITIVE..=f32::MAX).contains(&x), f32::ln;
    log2 |x| x.log2(), |x| (f32::MIN_POSITIVE..=f32::MAX).contains(&x), f32::log2;
    sin |x| x.sin(), |x| x.abs() < 8192.0, f32::sin;
    cos |x| x.cos(), |x| x.abs() < 8192.0, f32::cos;
    tan |x| x.tan(), |x| x.abs() < 8192.0, f32::tan;
    tanh super::tanh_f32, |x| !x.is_nan(), f32::tanh;
}

lanes! { f64, f64, wide::f64x4, 4,
    exp |x| x.exp(), |x| x.abs() < 700.0, f64::exp;
    log |x| x.ln(), |x| (f64::MIN_POSITIVE..=f64::MAX).contains(&x), f64::ln;
    log2 |x| x.log2(), |x| (f64::MIN_POSITIVE..=f64::MAX).contains(&x), f64::log2;
    sin |x| x.sin(), |x| x.abs() < 1e6, f64::sin;
    cos |x| x.cos(), |x| x.abs() < 1e6, f64::cos;
    tan |x| x.tan(), |x| x.abs() < 1e6, f64::tan;
    tanh |x| x, |_| false, f64::tanh;
}

/// tanh by its series near 0 and by exp beyond.
///
/// Source: the rational form of the Cephes library for |x| < 0.625; beyond it
/// `1 - 2 / (exp(2x) + 1)` loses nothing, since its result is above 0.55.
#[inline(always)]
fn tanh_f32(x: wide::f32x8) -> wide::f32x8 {
    use wide::f32x8;
    let size = x.abs();
    let square = x * x;
    let mut series = f32x8::splat(-5.704_988_7e-3);
    for coefficient in [2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1] {
        series = series * square + f32x8::splat(coefficient);
    }
    let near = series * square * x + x;
    // Beyond 10 the result is 1 to the last bit; the bound keeps exp in its range.
    let double = size.min(f32x8::splat(10.0)) * f32x8::splat(2.0);
    let far = f32x8::ONE - f32x8::splat(2.0) / (double.exp() + f32x8::ONE);
    let far = far.copysign(x);
    size.simd_lt(f32x8::splat(0.625)).select(near, far)
}
