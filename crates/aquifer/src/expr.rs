//! Expressions: what closures over arrays build (rule N.3).
//!
//! The one idea: an [`Expr`] is a number on a tape that belongs to the thread while a closure
//! runs. Operators append to the tape; equal operations are one node. What comes out is a kernel
//! whose constants are parameters, so the same closure is compiled once.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops;

use aquifer_backend::ir::{Binary, Fold, Kernel, Node, NodeId, Op, Output, Unary};
use aquifer_backend::{Dtype, Element};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::error::{Error, ErrorKind, Result};

/// Constants that an expression may have.
const MOST_CONSTANTS: usize = 1000;

/// A value of a kernel for each element: built by operators inside the closure of `map`, `zip`,
/// `reduce` and the like. It is `Copy` and means nothing outside that closure.
#[derive(Debug)]
pub struct Expr<T> {
    id: NodeId,
    tape: u32,
    /// Not `Send`: the tape is this thread's.
    element: PhantomData<*const T>,
}

impl<T> Clone for Expr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Expr<T> {}

/// A fold of a value along a row: what the closure of `reduce` returns.
#[derive(Debug)]
pub struct Folded<R> {
    pub(crate) fold: Fold,
    pub(crate) id: NodeId,
    tape: u32,
    element: PhantomData<*const R>,
}

#[derive(Default)]
struct Tape {
    number: u32,
    kernel: Kernel,
    params: SmallVec<[u64; 4]>,
    /// Nodes by what they are, once there are too many to look through.
    known: FxHashMap<Node, NodeId>,
    random: u8,
    broken: Option<&'static str>,
}

impl Tape {
    fn node(&mut self, node: Node) -> NodeId {
        const FEW: usize = 16;
        let nodes = &mut self.kernel.nodes;
        let found = if nodes.len() <= FEW {
            nodes.iter().position(|known| *known == node).map(|at| at as NodeId)
        } else {
            if self.known.is_empty() {
                self.known = nodes.iter().zip(0..).map(|(node, at)| (*node, at)).collect();
            }
            self.known.get(&node).copied()
        };
        found.unwrap_or_else(|| {
            let id = nodes.len() as NodeId;
            nodes.push(node);
            if !self.known.is_empty() {
                self.known.insert(node, id);
            }
            id
        })
    }

    fn param(&mut self, dtype: Dtype, bits: u64) -> u16 {
        if self.params.len() >= MOST_CONSTANTS {
            self.broken = Some("the expression has more than 1,000 constants");
            return 0;
        }
        self.params.push(bits);
        self.kernel.params.push(dtype);
        (self.params.len() - 1) as u16
    }
}

thread_local! {
    static TAPE: RefCell<Tape> = RefCell::default();
}

fn with_tape<R>(work: impl FnOnce(&mut Tape) -> R) -> R {
    TAPE.with_borrow_mut(work)
}

/// A finished kernel and the values of its parameters.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) kernel: Kernel,
    pub(crate) params: SmallVec<[u64; 4]>,
}

thread_local! {
    /// A kernel that has been recorded, for its memory: small work allocates little.
    static SPARE: RefCell<Option<Kernel>> = const { RefCell::new(None) };
}

impl Drop for Built {
    fn drop(&mut self) {
        let mut kernel = std::mem::take(&mut self.kernel);
        kernel.nodes.clear();
        kernel.inputs.clear();
        kernel.params.clear();
        kernel.outputs.clear();
        let _ = SPARE.try_with(|spare| *spare.borrow_mut() = Some(kernel));
    }
}

/// Runs `work` with an empty tape; an outer closure's tape comes back after it.
pub(crate) fn build<R>(work: impl FnOnce() -> R) -> (R, Result<Built>) {
    struct Restore(Option<Tape>);
    impl Drop for Restore {
        fn drop(&mut self) {
            if let Some(outer) = self.0.take() {
                with_tape(|tape| *tape = outer);
            }
        }
    }
    thread_local! {
        static NEXT: std::cell::Cell<u32> = const { std::cell::Cell::new(1) };
    }
    let number = NEXT.get();
    NEXT.set(number.wrapping_add(1));
    let kernel = SPARE.with_borrow_mut(Option::take).unwrap_or_default();
    let fresh = Tape { number, kernel, ..Tape::default() };
    let mut restore = Restore(Some(with_tape(|tape| std::mem::replace(tape, fresh))));
    let result = work();
    let outer = restore.0.take().unwrap_or_default();
    let done = with_tape(|tape| std::mem::replace(tape, outer));
    let built = match done.broken {
        Some(reason) => Err(Error::message(ErrorKind::Kernel, reason)),
        None => Ok(Built { kernel: done.kernel, params: done.params }),
    };
    (result, built)
}

/// Adds an output to the tape.
pub(crate) fn output(output: Output) {
    with_tape(|tape| tape.kernel.outputs.push(output));
}

/// An input of the kernel.
pub(crate) fn input<T: Element>() -> Expr<T> {
    with_tape(|tape| {
        let slot = tape.kernel.inputs.len() as u8;
        tape.kernel.inputs.push(T::DTYPE);
        let id = tape.node(Node { op: Op::Input(slot), dtype: T::DTYPE });
        Expr { id, tape: tape.number, element: PhantomData }
    })
}

/// The place of the element, counted from 0 through the whole array.
pub fn index() -> Expr<u64> {
    make(Op::Index)
}

/// The same value at every place.
pub fn constant<T: Element>(value: T) -> Expr<T> {
    let slot = with_tape(|tape| tape.param(T::DTYPE, value.to_bits()));
    make(Op::Param(slot))
}

/// 32 random bits for each place.
pub(crate) fn random_bits(key: Expr<u64>) -> Expr<u32> {
    let op = with_tape(|tape| {
        let slot = match tape.kernel.nodes.get(key.id as usize).map(|node| node.op) {
            Some(Op::Param(slot)) => slot,
            _ => 0,
        };
        tape.random = tape.random.wrapping_add(1);
        Op::Random { key: slot, stream: tape.random }
    });
    make(op)
}

fn make<T: Element>(op: Op) -> Expr<T> {
    with_tape(|tape| {
        let id = tape.node(Node { op, dtype: T::DTYPE });
        Expr { id, tape: tape.number, element: PhantomData }
    })
}

impl<T: Element> Expr<T> {
    /// The node, if it belongs to the tape in force.
    pub(crate) fn node(self) -> NodeId {
        with_tape(|tape| {
            if self.tape == tape.number {
                return self.id;
            }
            tape.broken = Some(
                "an expression of another closure is used: expressions mean nothing outside the closure that makes them",
            );
            0
        })
    }

    fn unary<R: Element>(self, op: Unary) -> Expr<R> {
        make(Op::Unary(op, self.node()))
    }

    fn binary<R: Element>(self, op: Binary, other: impl IntoExpr<T>) -> Expr<R> {
        let other = other.into_expr();
        make(Op::Binary(op, self.node(), other.node()))
    }

    /// The value in another element type: floats to integers saturate, NaN gives 0.
    pub fn cast<U: Element>(self) -> Expr<U> {
        let id = self.node();
        if T::DTYPE == U::DTYPE {
            return Expr { id, tape: self.tape, element: PhantomData };
        }
        make(Op::Cast(id))
    }

    /// The smaller; of a NaN and a number the number.
    pub fn min(self, other: impl IntoExpr<T>) -> Self {
        self.binary(Binary::Min, other)
    }

    /// The larger; of a NaN and a number the number.
    pub fn max(self, other: impl IntoExpr<T>) -> Self {
        self.binary(Binary::Max, other)
    }

    /// At least `low` and at most `high`.
    pub fn clamp(self, low: impl IntoExpr<T>, high: impl IntoExpr<T>) -> Self {
        self.max(low).min(high)
    }

    /// Whether it is less.
    pub fn lt(self, other: impl IntoExpr<T>) -> Expr<bool> {
        self.binary(Binary::Lt, other)
    }

    /// Whether it is less or equal.
    pub fn le(self, other: impl IntoExpr<T>) -> Expr<bool> {
        self.binary(Binary::Le, other)
    }

    /// Whether it is greater.
    pub fn gt(self, other: impl IntoExpr<T>) -> Expr<bool> {
        self.binary(Binary::Gt, other)
    }

    /// Whether it is greater or equal.
    pub fn ge(self, other: impl IntoExpr<T>) -> Expr<bool> {
        self.binary(Binary::Ge, other)
    }

    /// Whether they are equal.
    pub fn eq(self, other: impl IntoExpr<T>) -> Expr<bool> {
        self.binary(Binary::Eq, other)
    }

    /// Whether they differ.
    pub fn ne(self, other: impl IntoExpr<T>) -> Expr<bool> {
        self.binary(Binary::Ne, other)
    }

    fn fold<R>(self, fold: Fold) -> Folded<R> {
        Folded { fold, id: self.node(), tape: self.tape, element: PhantomData }
    }

    /// The least along the row; NaN is passed over.
    pub fn least(self) -> Folded<T> {
        self.fold(Fold::Min)
    }

    /// The greatest along the row; NaN is passed over.
    pub fn greatest(self) -> Folded<T> {
        self.fold(Fold::Max)
    }

    /// The sum along the row: integers in 64 bits (wrapping), 16-bit floats as f32.
    pub fn sum(self) -> Folded<T::Sum> {
        self.cast::<T::Sum>().fold(Fold::Sum)
    }

    /// The product along the row, in the type of [`sum`](Self::sum).
    pub fn product(self) -> Folded<T::Sum> {
        self.cast::<T::Sum>().fold(Fold::Product)
    }

    /// The place of the first least along the row.
    pub fn arg_least(self) -> Folded<u64> {
        self.fold(Fold::ArgMin)
    }

    /// The place of the first greatest along the row.
    pub fn arg_greatest(self) -> Folded<u64> {
        self.fold(Fold::ArgMax)
    }
}

impl<R> Folded<R> {
    pub(crate) fn take(self) -> Output {
        with_tape(|tape| {
            if self.tape != tape.number {
                tape.broken = Some("a fold of another closure is returned");
            }
        });
        Output::Fold(self.fold, self.id)
    }
}

impl Expr<bool> {
    /// `yes` where it is true, else `no`.
    pub fn select<T: Element>(self, yes: impl IntoExpr<T>, no: impl IntoExpr<T>) -> Expr<T> {
        let (yes, no) = (yes.into_expr(), no.into_expr());
        make(Op::Select(self.node(), yes.node(), no.node()))
    }

    /// How many are true along the row.
    pub fn count(self) -> Folded<u64> {
        self.fold(Fold::Count)
    }

    /// Whether one is true along the row.
    pub fn any(self) -> Folded<bool> {
        self.fold(Fold::Any)
    }

    /// Whether all are true along the row.
    pub fn all(self) -> Folded<bool> {
        self.fold(Fold::All)
    }
}

/// What can stand beside an expression: another one, or a plain value.
pub trait IntoExpr<T: Element> {
    /// The expression.
    fn into_expr(self) -> Expr<T>;
}

impl<T: Element> IntoExpr<T> for Expr<T> {
    fn into_expr(self) -> Expr<T> {
        self
    }
}

impl<T: Element> IntoExpr<T> for T {
    fn into_expr(self) -> Expr<T> {
        constant(self)
    }
}

macro_rules! operator {
    ($($trait:ident $method:ident $op:ident: $($type:ty),*;)*) => {
        $($(
            impl ops::$trait for Expr<$type> {
                type Output = Self;
                fn $method(self, other: Self) -> Self {
                    self.binary(Binary::$op, other)
                }
            }
            impl ops::$trait<$type> for Expr<$type> {
                type Output = Self;
                fn $method(self, other: $type) -> Self {
                    self.binary(Binary::$op, other)
                }
            }
            impl ops::$trait<Expr<$type>> for $type {
                type Output = Expr<$type>;
                fn $method(self, other: Expr<$type>) -> Expr<$type> {
                    constant(self).binary(Binary::$op, other)
                }
            }
        )*)*
    };
}

use half::{bf16, f16};

operator! {
    Add add Add: u8, i8, u16, i16, u32, i32, u64, i64, f16, bf16, f32, f64;
    Sub sub Sub: u8, i8, u16, i16, u32, i32, u64, i64, f16, bf16, f32, f64;
    Mul mul Mul: u8, i8, u16, i16, u32, i32, u64, i64, f16, bf16, f32, f64;
    Div div Div: u8, i8, u16, i16, u32, i32, u64, i64, f16, bf16, f32, f64;
    Rem rem Rem: u8, i8, u16, i16, u32, i32, u64, i64, f16, bf16, f32, f64;
    BitAnd bitand And: bool, u8, i8, u16, i16, u32, i32, u64, i64;
    BitOr bitor Or: bool, u8, i8, u16, i16, u32, i32, u64, i64;
    BitXor bitxor Xor: bool, u8, i8, u16, i16, u32, i32, u64, i64;
    Shl shl Shl: u8, i8, u16, i16, u32, i32, u64, i64;
    Shr shr Shr: u8, i8, u16, i16, u32, i32, u64, i64;
}

macro_rules! negate {
    ($trait:ident $method:ident $op:ident: $($type:ty),*) => {
        $(
            impl ops::$trait for Expr<$type> {
                type Output = Self;
                fn $method(self) -> Self {
                    self.unary(Unary::$op)
                }
            }
        )*
    };
}

negate! { Neg neg Neg: i8, i16, i32, i64, f16, bf16, f32, f64 }
negate! { Not not Not: bool, u8, i8, u16, i16, u32, i32, u64, i64 }

macro_rules! signed {
    ($($type:ty),*) => {
        $(
            impl Expr<$type> {
                /// The value without its sign; the least integer stays itself.
                pub fn abs(self) -> Self {
                    self.unary(Unary::Abs)
                }
            }
        )*
    };
}

signed! { i8, i16, i32, i64, f16, bf16, f32, f64 }

macro_rules! float {
    ($($type:ty),*) => {
        $(
            float! { $type:
                /// The square root; NaN below 0.
                sqrt Sqrt,
                /// 1 divided by the square root.
                rsqrt Rsqrt,
                /// e to the power of the value.
                exp Exp,
                /// The natural logarithm.
                log Log,
                /// The logarithm to base 2.
                log2 Log2,
                /// The sine of radians.
                sin Sin,
                /// The cosine of radians.
                cos Cos,
                /// The tangent of radians.
                tan Tan,
                /// The hyperbolic tangent.
                tanh Tanh,
                /// The greatest whole number not above it.
                floor Floor,
                /// The least whole number not below it.
                ceil Ceil,
                /// The nearest whole number, halves to even.
                round Round,
            }
            impl Expr<$type> {
                /// To a power.
                pub fn pow(self, exponent: impl IntoExpr<$type>) -> Self {
                    self.binary(Binary::Pow, exponent)
                }

                /// Whether it is not a number.
                pub fn is_nan(self) -> Expr<bool> {
                    self.unary(Unary::IsNan)
                }

                /// Whether it is infinite.
                pub fn is_inf(self) -> Expr<bool> {
                    self.unary(Unary::IsInf)
                }
            }
        )*
    };
    ($type:ty: $($(#[$doc:meta])* $name:ident $op:ident,)*) => {
        impl Expr<$type> {
            $(
                $(#[$doc])*
                pub fn $name(self) -> Self {
                    self.unary(Unary::$op)
                }
            )*
        }
    };
}

float! { f16, bf16, f32, f64 }

macro_rules! integer {
    ($($type:ty),*) => {
        $(
            impl Expr<$type> {
                /// To a power, wrapping; a negative exponent gives 0 except for 1 and −1.
                pub fn pow(self, exponent: impl IntoExpr<$type>) -> Self {
                    self.binary(Binary::Pow, exponent)
                }
            }
        )*
    };
}

integer! { u8, i8, u16, i16, u32, i32, u64, i64 }
