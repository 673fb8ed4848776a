//! Kernels of the user's own (rule N.4): WGSL for devices that compile it, a closure over ranges
//! for the CPU.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use aquifer_backend::{
    Argument, Binding, Command, Dispatch, Dtype, Element, HostArgs, HostKernel, Language, Program,
    Signature, Source, signature,
};
use aquifer_core::{Access, ByteRange};
use smallvec::SmallVec;

use crate::array::Array;
use crate::buffer::Buffer;
use crate::compute::{Bound, copied};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Inner, Result};
use crate::mode::Mode;
use crate::queue::{self, Touch};

/// The source of a kernel, by kind of device: WGSL, a closure, or both.
#[derive(Clone, Default)]
pub struct KernelSource {
    name: Option<String>,
    cpu: Option<HostKernel>,
    wgsl: Option<Source>,
    msl: Option<Source>,
    entry: Option<String>,
    workgroup: Option<[u32; 3]>,
}

fn source(language: Language, text: &str) -> Option<Source> {
    Some(Source { language, text: text.to_owned(), entry: None, workgroup: None })
}

impl KernelSource {
    /// A kernel that runs on the CPU: the closure is called for ranges of the grid, side by side.
    #[must_use]
    pub fn cpu(
        closure: impl Fn(&mut HostArgs<'_>) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Self { cpu: Some(Arc::new(closure)), ..Self::default() }
    }

    /// A kernel in WGSL, for devices that compile it. Arrays are `var<storage>` in `@group(0)`, in
    /// the order of their bindings; scalars are `var<immediate>`, one or a struct of them. What
    /// the kernel does with an array is read from the text. An index that is out of range reads
    /// 0 and writes nothing; in a text with atomics it is the nearest element.
    #[must_use]
    pub fn wgsl(text: &str) -> Self {
        Self { wgsl: source(Language::Wgsl, text), ..Self::default() }
    }

    /// A kernel in Metal's own language, for Metal devices. Arrays are `device` or `constant`
    /// pointers, scalars `constant` references, each with its number: `[[buffer(n)]]`. They are
    /// passed as arrays in the order of their numbers, then scalars in that of theirs; a `const` or
    /// `constant` array is read, any other written. Threadgroup memory is declared inside the
    /// kernel.
    ///
    /// ```
    /// use aquifer::prelude::*;
    /// let text = "
    ///     #include <metal_stdlib>
    ///     kernel void scale(device float* y [[buffer(0)]], constant float& factor [[buffer(1)]],
    ///                       constant uint& count [[buffer(2)]],
    ///                       uint at [[thread_position_in_grid]]) {
    ///         if (at < count) y[at] *= factor;
    ///     }";
    /// // SAFETY: the kernel keeps to `count`, which is the array's length below.
    /// let source = unsafe { KernelSource::msl(text) };
    /// let device = Device::open()?;
    /// if device.caps().msl_kernels {
    ///     let y = device.array(&[1.0f32, 2.0])?;
    ///     let (factor, count) = (kernel::scalar(3.0f32), kernel::scalar(y.len() as u32));
    ///     device.kernel(source)?.run(&[kernel::array(&y), factor, count], y.len())?;
    ///     assert_eq!(y.to_vec()?, [3.0, 6.0]);
    /// }
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Safety
    /// The kernel touches no element outside of its arrays: nothing checks what MSL does.
    #[must_use]
    pub unsafe fn msl(text: &str) -> Self {
        Self { msl: source(Language::Msl, text), ..Self::default() }
    }

    /// The same in Metal's own language, which a Metal device prefers. Its arrays and scalars are
    /// those of the WGSL, in the same order.
    ///
    /// # Safety
    /// As for [`msl`](Self::msl).
    #[must_use]
    pub unsafe fn with_msl(mut self, text: &str) -> Self {
        self.msl = source(Language::Msl, text);
        self
    }

    /// Invocations of a workgroup along each axis, for MSL, whose text does not say; default 256
    /// along the first.
    #[must_use]
    pub fn workgroup(mut self, sizes: [u32; 3]) -> Self {
        self.workgroup = Some(sizes);
        self
    }

    /// The same in Rust, for the CPU device. Its inputs and outputs are the arrays that the WGSL
    /// reads and writes, each in order.
    #[must_use]
    pub fn with_cpu(
        mut self,
        closure: impl Fn(&mut HostArgs<'_>) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.cpu = Some(Arc::new(closure));
        self
    }

    /// The entry point of the WGSL and of the MSL; needed only where there are several.
    #[must_use]
    pub fn entry(mut self, name: &str) -> Self {
        self.entry = Some(name.to_owned());
        self
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
        f.debug_struct("KernelSource")
            .field("name", &self.name)
            .field("wgsl", &self.wgsl)
            .field("msl", &self.msl)
            .finish_non_exhaustive()
    }
}

/// A kernel of the user's own, ready to run on its device.
pub struct Kernel {
    device: Device,
    name: String,
    program: Program,
    /// What its source takes.
    signature: Option<Signature>,
}

/// One argument of a kernel; made by [`read`], [`write()`], [`array()`] and [`scalar`].
pub struct Arg<'a>(ArgKind<'a>);

enum ArgKind<'a> {
    Array {
        buffer: &'a Arc<Buffer>,
        binding: Binding,
        range: ByteRange,
        /// As the caller says it.
        access: Option<Access>,
    },
    Scalar(Dtype, u64),
}

/// An array that a kernel reads.
pub fn read<T: Element, M: Mode>(array: &Array<T, M>) -> Arg<'_> {
    arg(array, Some(Access::Read))
}

/// An array that a kernel writes.
pub fn write<T: Element, M: Mode>(array: &Array<T, M>) -> Arg<'_> {
    arg(array, Some(Access::Write))
}

/// An array; what the kernel does with it is in its source.
pub fn array<T: Element, M: Mode>(array: &Array<T, M>) -> Arg<'_> {
    arg(array, None)
}

/// A value that a kernel gets.
pub fn scalar<'a, T: Element>(value: T) -> Arg<'a> {
    Arg(ArgKind::Scalar(T::DTYPE, value.to_bits()))
}

fn arg<T: Element, M: Mode>(array: &Array<T, M>, access: Option<Access>) -> Arg<'_> {
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
    /// let text = "
    ///     @group(0) @binding(0) var<storage, read> x: array<f32>;
    ///     @group(0) @binding(1) var<storage, read_write> y: array<f32>;
    ///     var<immediate> factor: f32;
    ///     @compute @workgroup_size(64)
    ///     fn scale(@builtin(global_invocation_id) id: vec3<u32>) {
    ///         y[id.x] = factor * x[id.x];
    ///     }";
    /// let scale = device.kernel(KernelSource::wgsl(text).with_cpu(|k| {
    ///     let (x, factor, range) = (k.input::<f32>(0)?, k.scalar::<f32>(0)?, k.range());
    ///     for (y, x) in k.output::<f32>(0)?.iter_mut().zip(&x[range]) {
    ///         *y = factor * x;
    ///     }
    ///     Ok(())
    /// }))?;
    /// let x = device.array(&[1.0f32, 2.0])?;
    /// let y = x.similar()?;
    /// scale.run(&[kernel::array(&x), kernel::array(&y), kernel::scalar(2.0f32)], x.len())?;
    /// assert_eq!(y.to_vec()?, [2.0, 4.0]);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Kernel` where there is no source for this kind of device, or the WGSL has a fault, with
    /// its line.
    pub fn kernel(&self, source: KernelSource) -> Result<Kernel> {
        let name = source.name.unwrap_or_else(|| "kernel".to_owned());
        let hosts = self.caps().host_kernels;
        let msl = source.msl.filter(|_| self.caps().msl_kernels);
        let (entry, workgroup) = (source.entry, source.workgroup);
        let text = msl.or(source.wgsl).map(|text| Source { entry, workgroup, ..text });
        let (program, signature) = match (text, source.cpu) {
            (Some(text), _) if !hosts => {
                let (pipeline, signature) = self.compiled_source(text)?;
                (Program::Compiled(pipeline), Some(signature))
            }
            (wgsl, Some(closure)) if hosts => {
                let signature = wgsl.map(|wgsl| signature(&wgsl)).transpose()?;
                (Program::Host(closure), signature)
            }
            _ => {
                let what = match (hosts, self.caps().msl_kernels) {
                    (true, _) => "a closure: with_cpu()",
                    (false, true) => "WGSL or MSL: KernelSource::wgsl() or msl()",
                    (false, false) => "WGSL: KernelSource::wgsl()",
                };
                return Err(Error::message(
                    ErrorKind::Kernel,
                    format!("kernel '{name}' has no source for the device {self}: it takes {what}"),
                ));
            }
        };
        Ok(Kernel { device: self.clone(), name, program, signature })
    }
}

/// An argument with what the kernel does with it, and where it is bound.
struct Placed {
    bound: Bound,
    access: Access,
    /// What was written goes back there.
    back: Option<Bound>,
}

impl Kernel {
    /// Records the kernel over `len` places: as many workgroups along the first axis as cover
    /// them. A closure finds the arrays that are read as its inputs and those that are written as
    /// its outputs, each in the order given.
    ///
    /// # Errors
    /// `Kernel` where arguments do not fit the WGSL, a written array overlaps another argument, an
    /// array is of another device or the grid is above the device's limit; `ReadOnly`, `Borrowed`
    /// while a guard lives, `Freed`.
    pub fn run(&self, args: &[Arg<'_>], len: usize) -> Result<()> {
        self.run_over(args, len as u64, None)
    }

    /// Records the kernel over a grid of workgroups. Closures run over as many places as the grid
    /// has workgroups.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_grid(&self, args: &[Arg<'_>], grid: [u32; 3]) -> Result<()> {
        let len = grid.iter().try_fold(1u64, |all, &axis| all.checked_mul(axis.into()));
        match len {
            Some(len) => self.run_over(args, len, Some(grid)),
            None => self.wrong(format!("a grid of {grid:?} workgroups overflows")),
        }
    }

    fn wrong<T>(&self, text: impl fmt::Display) -> Result<T> {
        Err(Error::message(ErrorKind::Kernel, format!("kernel '{}': {text}", self.name)))
    }

    fn run_over(&self, args: &[Arg<'_>], len: u64, grid: Option<[u32; 3]>) -> Result<()> {
        let mut params = SmallVec::new();
        let mut placed: SmallVec<[Placed; 4]> = SmallVec::new();
        for arg in args {
            match &arg.0 {
                ArgKind::Scalar(dtype, bits) => {
                    self.check_scalar(params.len(), *dtype)?;
                    params.push(*bits);
                }
                ArgKind::Array { buffer, binding, range, access } => {
                    let access = self.check_array(placed.len(), binding, *access)?;
                    if buffer.device != self.device {
                        return self.wrong("an array is on another device");
                    }
                    if buffer.tracker.is_released() {
                        return Err(Error::new(Inner::Freed));
                    }
                    buffer.check_access(access)?;
                    let bound =
                        Bound { buffer: Arc::clone(buffer), range: *range, binding: *binding };
                    placed.push(Placed { bound, access, back: None });
                }
            }
        }
        self.check_counts(placed.len(), params.len())?;
        self.check_overlaps(&placed)?;
        if len == 0 || grid.is_some_and(|grid| grid.contains(&0)) {
            return Ok(());
        }
        self.check_lengths(&placed)?;
        self.align(&mut placed)?;
        let of = |wanted: Access| {
            placed.iter().filter(move |one| one.access == wanted).map(|one| one.bound.binding)
        };
        let dispatch = Dispatch {
            program: self.program.clone(),
            label: Cow::Owned(self.name.clone()),
            inputs: of(Access::Read).collect(),
            outputs: of(Access::Write).collect(),
            params,
            len,
            row: 0,
            scratch: None,
            grid,
        };
        if !self.device.caps().host_kernels {
            self.device.0.backend.prepare(&dispatch)?;
        }
        // Where what is written goes back to is refused now, before anything is recorded.
        let backs = placed.iter().filter_map(|one| one.back.as_ref());
        let touches: SmallVec<[Touch<'_>; 6]> = placed
            .iter()
            .map(|one| one.bound.touch(one.access))
            .chain(backs.map(|back| back.touch(Access::Write)))
            .collect();
        let queue = queue::current(&self.device)?;
        self.device.record(queue, Command::Dispatch(Box::new(dispatch)), &touches)?;
        for one in &placed {
            if let Some(back) = &one.back {
                // As long as the array, not as what a kernel sees of its padding.
                let from = Binding { len: back.binding.len, ..one.bound.binding };
                let command = Command::Copy { from, to: back.binding };
                let touches = [one.bound.touch(Access::Read), back.touch(Access::Write)];
                self.device.record(queue, command, &touches)?;
            }
        }
        Ok(())
    }

    /// Arrays that lie where the device cannot bind them are copied, and what is written copied
    /// back.
    fn align(&self, placed: &mut [Placed]) -> Result<()> {
        let queue = queue::current(&self.device)?;
        let alignment = self.device.caps().binding_alignment;
        for one in placed {
            let binding = &one.bound.binding;
            // Imported memory begins anywhere in its buffer, the pool's where the offset says.
            let place =
                if one.bound.buffer.is_imported() { binding.address } else { binding.offset };
            if binding.len > 0 && !place.is_multiple_of(alignment) {
                let copy = copied(&self.device, queue, &one.bound)?;
                let original = std::mem::replace(&mut one.bound, copy);
                one.back = (one.access == Access::Write).then_some(original);
            }
            // The padding of an array's own memory lets kernels read it by whole words.
            let whole = one.bound.range.end == one.bound.buffer.size;
            let compiled = !self.device.caps().host_kernels;
            if whole && compiled && !one.bound.buffer.is_imported() {
                let len = &mut one.bound.binding.len;
                *len = len.next_multiple_of(4);
            }
        }
        Ok(())
    }

    fn arrays(&self) -> Option<Vec<(Access, Option<Dtype>, u64)>> {
        let arguments = &self.signature.as_ref()?.arguments;
        let arrays = arguments.iter().filter_map(|argument| match *argument {
            Argument::Array { access, element, least } => Some((access, element, least)),
            Argument::Scalar(_) => None,
        });
        Some(arrays.collect())
    }

    fn scalars(&self) -> Option<Vec<Dtype>> {
        let arguments = &self.signature.as_ref()?.arguments;
        let scalars = arguments.iter().filter_map(|argument| match argument {
            Argument::Scalar(dtype) => Some(*dtype),
            Argument::Array { .. } => None,
        });
        Some(scalars.collect())
    }

    fn check_counts(&self, arrays: usize, scalars: usize) -> Result<()> {
        if let (Some(known), Some(values)) = (self.arrays(), self.scalars())
            && (known.len(), values.len()) != (arrays, scalars)
        {
            return self.wrong(format!(
                "it takes {} arrays and {} scalars, not {arrays} and {scalars}",
                known.len(),
                values.len()
            ));
        }
        Ok(())
    }

    fn check_scalar(&self, index: usize, dtype: Dtype) -> Result<()> {
        match self.scalars().and_then(|scalars| scalars.get(index).copied()) {
            Some(wanted) if wanted != dtype => {
                self.wrong(format!("scalar {index} is {wanted} in its source, not {dtype}"))
            }
            _ => Ok(()),
        }
    }

    /// What the kernel does with its `index`-th array, which must fit it.
    fn check_array(&self, index: usize, binding: &Binding, said: Option<Access>) -> Result<Access> {
        let Some(arrays) = self.arrays() else {
            return match said {
                Some(access) => Ok(access),
                None => self.wrong(format!(
                    "array {index}: a closure does not say what it does: use read() or write()"
                )),
            };
        };
        let Some(&(access, element, _)) = arrays.get(index) else {
            // The count is wrong, which is told next.
            return Ok(said.unwrap_or(Access::Read));
        };
        if said == Some(Access::Read) && access == Access::Write {
            return self.wrong(format!("array {index} is written by its source: use write()"));
        }
        let dtype = binding.dtype;
        // Elements of less than a word are seen as words; a bool is only ever written as one.
        let words = dtype.size() < 4 && element == Some(Dtype::U32);
        let fits = element.is_none_or(|element| element == dtype) || words;
        if !fits || (dtype == Dtype::Bool && access == Access::Write) {
            let wanted =
                element.map_or_else(|| "no bool".to_owned(), |element| element.to_string());
            return self
                .wrong(format!("array {index} has elements of {dtype}; its source: {wanted}"));
        }
        Ok(access)
    }

    /// Arrays are as long as the WGSL's types at least: what is shorter it could index beyond.
    fn check_lengths(&self, placed: &[Placed]) -> Result<()> {
        for (index, (one, (.., least))) in
            placed.iter().zip(self.arrays().unwrap_or_default()).enumerate()
        {
            let len = one.bound.binding.len;
            let padded = one.bound.range.end == one.bound.buffer.size;
            let seen = if padded { len.next_multiple_of(4) } else { len };
            if len == 0 || seen < least {
                return self
                    .wrong(format!("array {index} has {len} bytes; its source needs {least}"));
            }
        }
        Ok(())
    }

    fn check_overlaps(&self, placed: &[Placed]) -> Result<()> {
        for (index, one) in placed.iter().enumerate() {
            for other in &placed[..index] {
                let written = one.access == Access::Write || other.access == Access::Write;
                if written && one.bound.binding.overlaps(&other.bound.binding) {
                    return self.wrong("a written array overlaps another argument");
                }
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("name", &self.name).finish_non_exhaustive()
    }
}
