//! Constructors (rule E.2): each takes the mode by type, or as an argument.

use aquifer_backend::{Dtype, Element};

use crate::array::Array;
use crate::buffer::Buffer;
use crate::compute::{Inputs, run_map};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::expr::{Expr, constant, random_bits};
use crate::mode::{Mode, Shared};
use crate::queue;
use crate::shape::{Shape, extent};

/// Element types with random numbers.
pub trait RandomElement: Element {
    /// Uniform: floats in [0, 1), integers over their whole range, bools evenly.
    fn uniform(key: Expr<u64>) -> Expr<Self>;
}

/// Element types with normally distributed numbers: the floats.
pub trait NormalElement: Element {
    /// Mean 0, standard deviation 1.
    fn normal(key: Expr<u64>) -> Expr<Self>;
}

/// 64 random bits.
fn wide_bits(key: Expr<u64>) -> Expr<u64> {
    let high = random_bits(key).cast::<u64>() << 32u64;
    high | random_bits(key).cast::<u64>()
}

impl RandomElement for f32 {
    fn uniform(key: Expr<u64>) -> Expr<Self> {
        // The 24 bits that an f32 holds exactly.
        (random_bits(key) >> 8u32).cast::<f32>() * (1.0 / 16_777_216.0f32)
    }
}

impl RandomElement for f64 {
    fn uniform(key: Expr<u64>) -> Expr<Self> {
        (wide_bits(key) >> 11u64).cast::<f64>() * (1.0 / 9_007_199_254_740_992.0)
    }
}

macro_rules! narrow_uniform {
    ($($type:ty, $bits:literal;)*) => {
        $(impl RandomElement for $type {
            fn uniform(key: Expr<u64>) -> Expr<Self> {
                // As many bits as the type holds exactly, so that 1 is not reached by rounding.
                let bits = (random_bits(key) >> (32u32 - $bits)).cast::<f32>();
                (bits * (1.0 / (1u32 << $bits) as f32)).cast()
            }
        })*
    };
}

narrow_uniform! { half::f16, 11; half::bf16, 8; }

macro_rules! integer_uniform {
    ($bits:ident: $($type:ty),*) => {
        $(impl RandomElement for $type {
            fn uniform(key: Expr<u64>) -> Expr<Self> {
                // `as` keeps the low bits, which are as random as the others.
                $bits(key).cast()
            }
        })*
    };
}

integer_uniform! { random_bits: u8, i8, u16, i16, u32, i32 }
integer_uniform! { wide_bits: u64, i64 }

impl RandomElement for bool {
    fn uniform(key: Expr<u64>) -> Expr<Self> {
        random_bits(key).lt(1u32 << 31)
    }
}

/// Box and Muller's transform of two uniform numbers, the first above 0.
macro_rules! normal {
    ($($type:ident, $tau:expr, $above_zero:expr;)*) => {
        $(impl NormalElement for $type {
            fn normal(key: Expr<u64>) -> Expr<Self> {
                let radius = (($above_zero - <$type>::uniform(key)).log() * -2.0).sqrt();
                radius * (<$type>::uniform(key) * $tau).cos()
            }
        })*
    };
}

normal! { f32, std::f32::consts::TAU, 1.0f32; f64, std::f64::consts::TAU, 1.0f64; }

impl NormalElement for half::f16 {
    fn normal(key: Expr<u64>) -> Expr<Self> {
        f32::normal(key).cast()
    }
}

impl NormalElement for half::bf16 {
    fn normal(key: Expr<u64>) -> Expr<Self> {
        f32::normal(key).cast()
    }
}

/// The value one.
fn one<T: Element>() -> T {
    match T::DTYPE {
        Dtype::F16 => T::from_bits(u64::from(half::f16::ONE.to_bits())),
        Dtype::Bf16 => T::from_bits(u64::from(half::bf16::ONE.to_bits())),
        Dtype::F32 => T::from_bits(1.0f32.to_bits().into()),
        Dtype::F64 => T::from_bits(1.0f64.to_bits()),
        _ => T::from_bits(1),
    }
}

impl<T: Element, M: Mode> Array<T, M> {
    /// Zeros.
    ///
    /// # Errors
    /// `OutOfMemory`, `TooLarge`; `Dtype` where the device lacks the type.
    pub fn zeros(device: &Device, shape: impl Shape) -> Result<Self> {
        Self::zeros_in(device, M::of(device), shape)
    }

    /// Zeros, with the mode as an argument.
    ///
    /// # Errors
    /// As [`zeros`](Self::zeros).
    pub fn zeros_in(device: &Device, mode: M, shape: impl Shape) -> Result<Self> {
        Self::full_in(device, mode, shape, T::default())
    }

    /// Ones.
    ///
    /// # Errors
    /// As [`zeros`](Self::zeros).
    pub fn ones(device: &Device, shape: impl Shape) -> Result<Self> {
        Self::full_in(device, M::of(device), shape, one())
    }

    /// Ones, with the mode as an argument.
    ///
    /// # Errors
    /// As [`zeros`](Self::zeros).
    pub fn ones_in(device: &Device, mode: M, shape: impl Shape) -> Result<Self> {
        Self::full_in(device, mode, shape, one())
    }

    /// One value everywhere.
    ///
    /// # Errors
    /// As [`zeros`](Self::zeros).
    pub fn full(device: &Device, shape: impl Shape, value: T) -> Result<Self> {
        Self::full_in(device, M::of(device), shape, value)
    }

    /// One value everywhere, with the mode as an argument.
    ///
    /// # Errors
    /// As [`zeros`](Self::zeros).
    pub fn full_in(device: &Device, mode: M, shape: impl Shape, value: T) -> Result<Self> {
        Self::generate(device, mode, shape, || constant(value), "full")
    }

    fn generate(
        device: &Device,
        mode: M,
        shape: impl Shape,
        value: impl FnOnce() -> Expr<T>,
        label: &'static str,
    ) -> Result<Self> {
        device.check_dtype(T::DTYPE)?;
        let inputs = Inputs::none(device, shape.dims());
        run_map(inputs, mode, label, value)
    }

    /// Random numbers, uniform: floats in [0, 1), integers over their whole range. The same
    /// numbers on every device after the same [`Device::seed`] and the same calls.
    ///
    /// # Errors
    /// As [`zeros`](Self::zeros).
    pub fn rand(device: &Device, shape: impl Shape) -> Result<Self>
    where
        T: RandomElement,
    {
        Self::rand_in(device, M::of(device), shape)
    }

    /// Random numbers, uniform, with the mode as an argument.
    ///
    /// # Errors
    /// As [`zeros`](Self::zeros).
    pub fn rand_in(device: &Device, mode: M, shape: impl Shape) -> Result<Self>
    where
        T: RandomElement,
    {
        let key = device.random_key();
        Self::generate(device, mode, shape, || T::uniform(constant(key)), "rand")
    }

    /// Random numbers, normal with mean 0 and standard deviation 1.
    ///
    /// # Errors
    /// As [`zeros`](Self::zeros).
    pub fn randn(device: &Device, shape: impl Shape) -> Result<Self>
    where
        T: NormalElement,
    {
        Self::randn_in(device, M::of(device), shape)
    }

    /// Random numbers, normal, with the mode as an argument.
    ///
    /// # Errors
    /// As [`zeros`](Self::zeros).
    pub fn randn_in(device: &Device, mode: M, shape: impl Shape) -> Result<Self>
    where
        T: NormalElement,
    {
        let key = device.random_key();
        Self::generate(device, mode, shape, || T::normal(constant(key)), "randn")
    }

    /// The elements of a slice, as one axis.
    ///
    /// # Errors
    /// As [`zeros`](Self::zeros).
    pub fn from(device: &Device, elements: &[T]) -> Result<Self> {
        Self::from_in(device, M::of(device), elements)
    }

    /// The elements of a slice, with the mode as an argument.
    ///
    /// # Errors
    /// As [`zeros`](Self::zeros).
    pub fn from_in(device: &Device, mode: M, elements: &[T]) -> Result<Self> {
        device.check_dtype(T::DTYPE)?;
        let dims = elements.len().dims();
        let (_, size) = extent(&dims, size_of::<T>())?;
        // Memory that no queue uses any more: the CPU writes it at once.
        let buffer = Buffer::allocate(device, size, mode.storage(), None)?;
        let new = Self::over(buffer, dims, mode)?;
        new.write_from(elements)?;
        Ok(new)
    }

    /// An array of the same shape and type, with zeros.
    ///
    /// # Errors
    /// As [`zeros`](Self::zeros).
    pub fn similar(&self) -> Result<Self> {
        Self::zeros_in(self.device(), self.mode(), self.shape())
    }

    /// An array of the same shape and type in another mode, with zeros.
    ///
    /// # Errors
    /// As [`zeros`](Self::zeros).
    pub fn similar_in<N: Mode>(&self, mode: N) -> Result<Array<T, N>> {
        Array::zeros_in(self.device(), mode, self.shape())
    }

    /// Writes one value everywhere.
    ///
    /// # Errors
    /// `ReadOnly`, `Borrowed` while a guard lives, `Freed`.
    pub fn fill(&self, value: T) -> Result<()> {
        let inputs = Inputs::none(self.device(), self.dims().clone());
        crate::compute::run_into(inputs, self, "fill", || constant(value))
    }
}

impl Device {
    /// A shared array of the elements of a slice.
    ///
    /// # Errors
    /// `OutOfMemory`, `TooLarge`; `Dtype` where the device lacks the type.
    pub fn array<T: Element>(&self, elements: &[T]) -> Result<Array<T>> {
        Array::from_in(self, Shared, elements)
    }

    /// An array of the elements of a slice in a mode.
    ///
    /// # Errors
    /// As [`array`](Self::array).
    pub fn array_in<T: Element, M: Mode>(&self, mode: M, elements: &[T]) -> Result<Array<T, M>> {
        Array::from_in(self, mode, elements)
    }

    /// The queue of this thread, by the commands it has recorded and not submitted.
    ///
    /// # Errors
    /// `Backend` where the driver has no queue for the thread.
    pub fn recorded(&self) -> Result<usize> {
        let queue = queue::current(self)?;
        Ok(self.recorder().recorded(queue))
    }
}

/// The element of an array that has just one.
impl<T: Element, M: Mode> Array<T, M> {
    /// The only element; waits for the work that writes it and nothing else.
    ///
    /// # Errors
    /// `Shape` where there is not just one element, and what failed on the device.
    pub fn item(&self) -> Result<T> {
        if self.len() != 1 {
            return Err(Error::message(
                ErrorKind::Shape,
                format!(
                    "item() needs one element, but the array {:?} has {}",
                    self.shape(),
                    self.len()
                ),
            ));
        }
        let mut element = [T::default()];
        self.read_into(&mut element)?;
        Ok(element[0])
    }
}
