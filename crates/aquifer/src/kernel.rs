//! Kernels of the user's own (rule N.4): on the CPU a closure over ranges.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use aquifer_backend::{Binding, Command, Dispatch, Element, HostArgs, HostKernel, Program};
use aquifer_core::Access;
use smallvec::SmallVec;

use crate::array::Array;
use crate::buffer::Buffer;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Inner, Result};
use crate::mode::Mode;
use crate::queue::{self, Touch};

/// The source of a kernel, by kind of device.
#[derive(Clone, Default)]
pub struct KernelSource {
    name: Option<String>,
    cpu: Option<HostKernel>,
}

impl KernelSource {
    /// A kernel that runs on the CPU: the closure is called for ranges of the grid, side by side.
    #[must_use]
    pub fn cpu(
        closure: impl Fn(&mut HostArgs<'_>) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Self { name: None, cpu: Some(Arc::new(closure)) }
    }

    /// The name that errors carry; default `kernel`.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }
}

impl fmt::Debug for KernelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelSource").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A kernel of the user's own, ready to run on its device.
pub struct Kernel {
    device: Device,
    name: String,
    closure: HostKernel,
}

/// One argument of a kernel; made by [`read`], [`write()`] and [`scalar`].
pub struct Arg<'a>(ArgKind<'a>);

enum ArgKind<'a> {
    Array {
        buffer: &'a Arc<Buffer>,
        binding: Binding,
        range: aquifer_core::ByteRange,
        access: Access,
    },
    Scalar(u64),
}

/// An array that a kernel reads.
pub fn read<T: Element, M: Mode>(array: &Array<T, M>) -> Arg<'_> {
    arg(array, Access::Read)
}

/// An array that a kernel writes.
pub fn write<T: Element, M: Mode>(array: &Array<T, M>) -> Arg<'_> {
    arg(array, Access::Write)
}

/// A value that a kernel gets.
pub fn scalar<'a, T: Element>(value: T) -> Arg<'a> {
    Arg(ArgKind::Scalar(value.to_bits()))
}

fn arg<T: Element, M: Mode>(array: &Array<T, M>, access: Access) -> Arg<'_> {
    Arg(ArgKind::Array {
        buffer: array.buffer(),
        binding: array.binding(),
        range: array.bytes(),
        access,
    })
}

impl Device {
    /// Makes a kernel of the user's own ready for this device.
    ///
    /// ```
    /// use aquifer::prelude::*;
    /// let device = Device::cpu()?;
    /// let double = device.kernel(KernelSource::cpu(|k| {
    ///     let (x, range) = (k.input::<f32>(0)?, k.range());
    ///     for (y, x) in k.output::<f32>(0)?.iter_mut().zip(&x[range]) {
    ///         *y = 2.0 * x;
    ///     }
    ///     Ok(())
    /// }))?;
    /// let x = device.array(&[1.0f32, 2.0])?;
    /// let y = x.similar()?;
    /// double.run(&[kernel::read(&x), kernel::write(&y)], x.len())?;
    /// assert_eq!(y.to_vec()?, [2.0, 4.0]);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Kernel` where there is no source for this kind of device.
    pub fn kernel(&self, source: KernelSource) -> Result<Kernel> {
        let name = source.name.unwrap_or_else(|| "kernel".to_owned());
        match source.cpu {
            Some(closure) if self.backend() == "cpu" => {
                Ok(Kernel { device: self.clone(), name, closure })
            }
            _ => Err(Error::message(
                ErrorKind::Kernel,
                format!("kernel '{name}' has no source for the device {self}"),
            )),
        }
    }
}

impl Kernel {
    /// Records the kernel over `len` places. The closure finds the arrays that are read as its
    /// inputs and those that are written as its outputs, each in the order given.
    ///
    /// # Errors
    /// `Kernel` where a written array overlaps another argument or an array is of another device,
    /// `ReadOnly`, `Borrowed` while a guard lives, `Freed`.
    pub fn run(&self, args: &[Arg<'_>], len: usize) -> Result<()> {
        let wrong = |text: &str| {
            Err(Error::message(ErrorKind::Kernel, format!("kernel '{}': {text}", self.name)))
        };
        let mut dispatch = Dispatch {
            program: Program::Host(Arc::clone(&self.closure)),
            label: Cow::Owned(self.name.clone()),
            inputs: SmallVec::new(),
            outputs: SmallVec::new(),
            params: SmallVec::new(),
            len: len as u64,
            row: 0,
        };
        let mut touches: SmallVec<[Touch<'_>; 6]> = SmallVec::new();
        for arg in args {
            match &arg.0 {
                ArgKind::Scalar(bits) => dispatch.params.push(*bits),
                ArgKind::Array { buffer, binding, range, access } => {
                    if buffer.device != self.device {
                        return wrong("an array is on another device");
                    }
                    if buffer.tracker.is_released() {
                        return Err(Error::new(Inner::Freed));
                    }
                    buffer.check_access(*access)?;
                    match access {
                        Access::Read => dispatch.inputs.push(*binding),
                        Access::Write => dispatch.outputs.push(*binding),
                    }
                    touches.push(Touch { buffer, range: *range, access: *access });
                }
            }
        }
        let overlaps = |(index, output): (usize, &Binding)| {
            let others = dispatch.inputs.iter().chain(&dispatch.outputs[..index]);
            others.into_iter().any(|other| output.overlaps(other))
        };
        if dispatch.outputs.iter().enumerate().any(overlaps) {
            return wrong("a written array overlaps another argument");
        }
        if len == 0 {
            return Ok(());
        }
        let queue = queue::current(&self.device)?;
        self.device.record(queue, Command::Dispatch(Box::new(dispatch)), &touches)
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("name", &self.name).finish_non_exhaustive()
    }
}
