//! The loops of the evaluator: one operation over one chunk.
//!
//! The one idea: every loop is a plain loop over slices that the compiler vectorises. The
//! entries ([`unary`], [`binary`], [`pair`], [`cast`], [`select_by`]) are compiled twice, once for any
//! processor and once with wider vectors; what they call is `inline(always)` so that both get
//! loops of their own.

use bytemuck::{Pod, cast_slice, cast_slice_mut};

use crate::cpu::math;
use crate::dtype::Dtype;
use crate::element::Element;
use crate::ir::{Binary, Unary};

#[inline(always)]
fn map1<A: Pod, R: Pod>(a: &[u8], out: &mut [u8], f: impl Fn(A) -> R) {
    let (a, out): (&[A], &mut [R]) = (cast_slice(a), cast_slice_mut(out));
    if let [value] = a {
        out.fill(f(*value));
        return;
    }
    for (out, a) in out.iter_mut().zip(a) {
        *out = f(*a);
    }
}

/// An operand of one element is that value at every place: a loop of its own keeps it in a
/// register.
#[inline(always)]
fn map2<A: Pod, R: Pod>(a: &[u8], b: &[u8], out: &mut [u8], f: impl Fn(A, A) -> R) {
    let (a, b): (&[A], &[A]) = (cast_slice(a), cast_slice(b));
    let out: &mut [R] = cast_slice_mut(out);
    match (a, b) {
        ([a], [b]) => out.fill(f(*a, *b)),
        ([a], b) => {
            let a = *a;
            for (out, b) in out.iter_mut().zip(b) {
                *out = f(a, *b);
            }
        }
        (a, [b]) => {
            let b = *b;
            for (out, a) in out.iter_mut().zip(a) {
                *out = f(*a, b);
            }
        }
        (a, b) => {
            for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                *out = f(*a, *b);
            }
        }
    }
}

#[inline(always)]
fn select<T: Pod>(condition: &[u8], a: &[u8], b: &[u8], out: &mut [u8]) {
    let (a, b): (&[T], &[T]) = (cast_slice(a), cast_slice(b));
    let out: &mut [T] = cast_slice_mut(out);
    let n = out.len();
    let pick = |c: u8, a: T, b: T| if c != 0 { a } else { b };
    match (a, b) {
        _ if condition.len() < n => {
            out.copy_from_slice(&long(if condition[0] != 0 { a } else { b }, n))
        }
        ([a], [b]) if n > 1 => {
            for (out, c) in out.iter_mut().zip(condition) {
                *out = pick(*c, *a, *b);
            }
        }
        ([a], b) if n > 1 => {
            for ((out, c), b) in out.iter_mut().zip(condition).zip(b) {
                *out = pick(*c, *a, *b);
            }
        }
        (a, [b]) if n > 1 => {
            for ((out, c), a) in out.iter_mut().zip(condition).zip(a) {
                *out = pick(*c, *a, *b);
            }
        }
        (a, b) => {
            for (((out, c), a), b) in out.iter_mut().zip(condition).zip(a).zip(b) {
                *out = pick(*c, *a, *b);
            }
        }
    }
}

/// `n` values; one value is repeated.
fn long<T: Copy>(values: &[T], n: usize) -> Vec<T> {
    if let [value] = values { vec![*value; n] } else { values.to_vec() }
}

/// `condition` where true `a`, else `b`; values of `dtype`'s compute type.
#[inline(always)]
fn run_select(dtype: Dtype, condition: &[u8], [a, b]: [&[u8]; 2], out: &mut [u8]) {
    match dtype.compute().size() {
        1 => select::<u8>(condition, a, b, out),
        2 => select::<u16>(condition, a, b, out),
        4 => select::<u32>(condition, a, b, out),
        _ => select::<u64>(condition, a, b, out),
    }
}

macro_rules! unary_int {
    ($t:ty, $op:expr, $a:expr, $out:expr) => {
        match $op {
            Unary::Neg => map1($a, $out, |x: $t| x.wrapping_neg()),
            Unary::Not => map1($a, $out, |x: $t| !x),
            Unary::IsNan | Unary::IsInf => $out.fill(0),
            // Whole already.
            _ => map1($a, $out, |x: $t| x),
        }
    };
}

macro_rules! unary_signed {
    ($t:ty, $op:expr, $a:expr, $out:expr) => {
        match $op {
            Unary::Abs => map1($a, $out, |x: $t| x.wrapping_abs()),
            op => unary_int!($t, op, $a, $out),
        }
    };
}

macro_rules! unary_float {
    ($t:ty, $math:ident, $op:expr, $a:expr, $out:expr) => {
        match $op {
            Unary::Neg => map1($a, $out, |x: $t| -x),
            Unary::Abs => map1($a, $out, |x: $t| x.abs()),
            Unary::Sqrt => map1($a, $out, |x: $t| x.sqrt()),
            Unary::Rsqrt => map1($a, $out, |x: $t| 1.0 / x.sqrt()),
            Unary::Floor => map1($a, $out, |x: $t| x.floor()),
            Unary::Ceil => map1($a, $out, |x: $t| x.ceil()),
            Unary::Round => map1($a, $out, |x: $t| x.round_ties_even()),
            Unary::IsNan => map1($a, $out, |x: $t| u8::from(x.is_nan())),
            Unary::IsInf => map1($a, $out, |x: $t| u8::from(x.is_infinite())),
            Unary::Exp => math::$math::exp(cast_slice($a), cast_slice_mut($out)),
            Unary::Log => math::$math::log(cast_slice($a), cast_slice_mut($out)),
            Unary::Log2 => math::$math::log2(cast_slice($a), cast_slice_mut($out)),
            Unary::Sin => math::$math::sin(cast_slice($a), cast_slice_mut($out)),
            Unary::Cos => math::$math::cos(cast_slice($a), cast_slice_mut($out)),
            Unary::Tan => math::$math::tan(cast_slice($a), cast_slice_mut($out)),
            Unary::Tanh => math::$math::tanh(cast_slice($a), cast_slice_mut($out)),
            Unary::Not => {}
        }
    };
}

/// One operand of `dtype`'s compute type.
#[inline(always)]
fn run_unary(op: Unary, dtype: Dtype, a: &[u8], out: &mut [u8]) {
    match dtype.compute() {
        Dtype::Bool => map1(a, out, |x: u8| if op == Unary::Not { x ^ 1 } else { 0 }),
        Dtype::U8 => unary_int!(u8, op, a, out),
        Dtype::U16 => unary_int!(u16, op, a, out),
        Dtype::U32 => unary_int!(u32, op, a, out),
        Dtype::U64 => unary_int!(u64, op, a, out),
        Dtype::I8 => unary_signed!(i8, op, a, out),
        Dtype::I16 => unary_signed!(i16, op, a, out),
        Dtype::I32 => unary_signed!(i32, op, a, out),
        Dtype::I64 => unary_signed!(i64, op, a, out),
        Dtype::F64 => unary_float!(f64, f64, op, a, out),
        _ => unary_float!(f32, f32, op, a, out),
    }
}

macro_rules! compare {
    ($t:ty, $op:expr, $a:expr, $b:expr, $out:expr) => {
        match $op {
            Binary::Lt => map2($a, $b, $out, |x: $t, y| u8::from(x < y)),
            Binary::Le => map2($a, $b, $out, |x: $t, y| u8::from(x <= y)),
            Binary::Gt => map2($a, $b, $out, |x: $t, y| u8::from(x > y)),
            Binary::Ge => map2($a, $b, $out, |x: $t, y| u8::from(x >= y)),
            Binary::Ne => map2($a, $b, $out, |x: $t, y| u8::from(x != y)),
            _ => map2($a, $b, $out, |x: $t, y| u8::from(x == y)),
        }
    };
}

macro_rules! binary_int {
    ($t:ty, $op:expr, $a:expr, $b:expr, $out:expr) => {
        match $op {
            Binary::Add => map2($a, $b, $out, |x: $t, y| x.wrapping_add(y)),
            Binary::Sub => map2($a, $b, $out, |x: $t, y| x.wrapping_sub(y)),
            Binary::Mul => map2($a, $b, $out, |x: $t, y| x.wrapping_mul(y)),
            Binary::Div => {
                map2($a, $b, $out, |x: $t, y| if y == 0 { x } else { x.wrapping_div(y) })
            }
            Binary::Rem => {
                map2($a, $b, $out, |x: $t, y| if y == 0 { 0 } else { x.wrapping_rem(y) })
            }
            Binary::Min => map2($a, $b, $out, |x: $t, y| x.min(y)),
            Binary::Max => map2($a, $b, $out, |x: $t, y| x.max(y)),
            Binary::And => map2($a, $b, $out, |x: $t, y| x & y),
            Binary::Or => map2($a, $b, $out, |x: $t, y| x | y),
            Binary::Xor => map2($a, $b, $out, |x: $t, y| x ^ y),
            Binary::Shl => map2($a, $b, $out, |x: $t, y| x.wrapping_shl(y as u32)),
            Binary::Shr => map2($a, $b, $out, |x: $t, y| x.wrapping_shr(y as u32)),
            Binary::Pow => map2($a, $b, $out, |x: $t, y| math::int_pow(x as i128, y as i128) as $t),
            op => compare!($t, op, $a, $b, $out),
        }
    };
}

macro_rules! binary_float {
    ($t:ty, $math:ident, $op:expr, $a:expr, $b:expr, $out:expr) => {
        match $op {
            Binary::Add => map2($a, $b, $out, |x: $t, y| x + y),
            Binary::Sub => map2($a, $b, $out, |x: $t, y| x - y),
            Binary::Mul => map2($a, $b, $out, |x: $t, y| x * y),
            Binary::Div => map2($a, $b, $out, |x: $t, y| x / y),
            Binary::Rem => map2($a, $b, $out, |x: $t, y| x % y),
            Binary::Min => map2($a, $b, $out, |x: $t, y| x.min(y)),
            Binary::Max => map2($a, $b, $out, |x: $t, y| x.max(y)),
            Binary::Pow => map2($a, $b, $out, |x: $t, y| x.powf(y)),
            Binary::And | Binary::Or | Binary::Xor | Binary::Shl | Binary::Shr => {}
            op => compare!($t, op, $a, $b, $out),
        }
    };
}

/// Two operands of `dtype`'s compute type; comparisons give bytes.
#[inline(always)]
fn run_binary(op: Binary, dtype: Dtype, [a, b]: [&[u8]; 2], out: &mut [u8]) {
    match dtype.compute() {
        Dtype::Bool => match op {
            Binary::And | Binary::Mul | Binary::Min => map2(a, b, out, |x: u8, y| x & y),
            Binary::Or | Binary::Max => map2(a, b, out, |x: u8, y| x | y),
            Binary::Xor => map2(a, b, out, |x: u8, y| x ^ y),
            op => compare!(u8, op, a, b, out),
        },
        Dtype::U8 => binary_int!(u8, op, a, b, out),
        Dtype::U16 => binary_int!(u16, op, a, b, out),
        Dtype::U32 => binary_int!(u32, op, a, b, out),
        Dtype::U64 => binary_int!(u64, op, a, b, out),
        Dtype::I8 => binary_int!(i8, op, a, b, out),
        Dtype::I16 => binary_int!(i16, op, a, b, out),
        Dtype::I32 => binary_int!(i32, op, a, b, out),
        Dtype::I64 => binary_int!(i64, op, a, b, out),
        Dtype::F64 => binary_float!(f64, f64, op, a, b, out),
        _ => binary_float!(f32, f32, op, a, b, out),
    }
}

macro_rules! pair_float {
    ($t:ty, $ops:expr, $params:expr, $a:expr, $out:expr) => {{
        let [p, q]: [$t; 2] = $params.map(<$t as Element>::from_bits);
        macro_rules! second {
            ($first:expr) => {
                match $ops[1] {
                    Binary::Add => map1($a, $out, |x: $t| $first(x) + q),
                    Binary::Sub => map1($a, $out, |x: $t| $first(x) - q),
                    Binary::Mul => map1($a, $out, |x: $t| $first(x) * q),
                    Binary::Min => map1($a, $out, |x: $t| $first(x).min(q)),
                    _ => map1($a, $out, |x: $t| $first(x).max(q)),
                }
            };
        }
        match $ops[0] {
            Binary::Add => second!(|x: $t| x + p),
            Binary::Sub => second!(|x: $t| x - p),
            Binary::Mul => second!(|x: $t| x * p),
            Binary::Min => second!(|x: $t| x.min(p)),
            _ => second!(|x: $t| x.max(p)),
        }
    }};
}

/// Two of add, sub, mul, min and max in a row, each with a parameter, in one loop.
#[inline(always)]
fn run_pair((ops, dtype): ([Binary; 2], Dtype), params: [u64; 2], a: &[u8], out: &mut [u8]) {
    if dtype == Dtype::F64 {
        pair_float!(f64, ops, params, a, out);
    } else {
        pair_float!(f32, ops, params, a, out);
    }
}

macro_rules! cast_from {
    ($t:ty, $to:expr, $a:expr, $out:expr) => {
        match $to {
            Dtype::Bool => map1($a, $out, |x: $t| u8::from(x != 0 as $t)),
            Dtype::U8 => map1($a, $out, |x: $t| x as u8),
            Dtype::I8 => map1($a, $out, |x: $t| x as i8),
            Dtype::U16 => map1($a, $out, |x: $t| x as u16),
            Dtype::I16 => map1($a, $out, |x: $t| x as i16),
            Dtype::U32 => map1($a, $out, |x: $t| x as u32),
            Dtype::I32 => map1($a, $out, |x: $t| x as i32),
            Dtype::U64 => map1($a, $out, |x: $t| x as u64),
            Dtype::I64 => map1($a, $out, |x: $t| x as i64),
            Dtype::F64 => map1($a, $out, |x: $t| x as f64),
            Dtype::F16 => map1($a, $out, |x: $t| half::f16::from_f32(x as f32).to_f32()),
            Dtype::Bf16 => map1($a, $out, |x: $t| half::bf16::from_f32(x as f32).to_f32()),
            Dtype::F32 => map1($a, $out, |x: $t| x as f32),
        }
    };
}

/// From `from`'s compute type to `to`'s; a 16-bit float is rounded to its precision.
#[inline(always)]
fn run_cast(from: Dtype, to: Dtype, a: &[u8], out: &mut [u8]) {
    match from.compute() {
        Dtype::Bool | Dtype::U8 => cast_from!(u8, to, a, out),
        Dtype::I8 => cast_from!(i8, to, a, out),
        Dtype::U16 => cast_from!(u16, to, a, out),
        Dtype::I16 => cast_from!(i16, to, a, out),
        Dtype::U32 => cast_from!(u32, to, a, out),
        Dtype::I32 => cast_from!(i32, to, a, out),
        Dtype::U64 => cast_from!(u64, to, a, out),
        Dtype::I64 => cast_from!(i64, to, a, out),
        Dtype::F64 => cast_from!(f64, to, a, out),
        _ => cast_from!(f32, to, a, out),
    }
}

/// Makes an entry that picks the widest vectors of this processor.
macro_rules! entry {
    ($(#[$doc:meta])* $name:ident, $wide:ident, $run:ident, ($($arg:ident: $type:ty),*)) => {
        $(#[$doc])*
        pub(super) fn $name(wide: bool, $($arg: $type),*) {
            #[cfg(target_arch = "x86_64")]
            if wide {
                // SAFETY: `wide` is the answer of `wide_vectors`, which found these features.
                return unsafe { $wide($($arg),*) };
            }
            let _ = wide;
            $run($($arg),*);
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,f16c,bmi2")]
        fn $wide($($arg: $type),*) {
            $run($($arg),*);
        }
    };
}

entry! {
    /// One operand of `dtype`'s compute type.
    unary, unary_wide, run_unary, (op: Unary, dtype: Dtype, a: &[u8], out: &mut [u8])
}
entry! {
    /// Two operands of `dtype`'s compute type; comparisons give bytes.
    binary, binary_wide, run_binary, (op: Binary, dtype: Dtype, pair: [&[u8]; 2], out: &mut [u8])
}
entry! {
    /// Two operations in a row on f32 or f64, each with a parameter's bits as second operand.
    pair, pair_wide, run_pair,
    (what: ([Binary; 2], Dtype), params: [u64; 2], a: &[u8], out: &mut [u8])
}
entry! {
    /// From `from`'s compute type to `to`'s; a 16-bit float is rounded to its precision.
    cast, cast_wide, run_cast, (from: Dtype, to: Dtype, a: &[u8], out: &mut [u8])
}
entry! {
    /// The second where the first is true, else the third; values of `dtype`'s compute type.
    select_by, select_wide, run_select,
    (dtype: Dtype, condition: &[u8], pair: [&[u8]; 2], out: &mut [u8])
}

/// Whether this processor has the vectors that the wide entries are compiled for.
pub(super) fn wide_vectors() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("bmi2");
    #[cfg(not(target_arch = "x86_64"))]
    false
}
