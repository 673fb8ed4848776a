//! Device work on arrays: `map`, `zip`, `assign`, `reduce` (rule N.3). Each closure becomes one
//! kernel, recorded on the thread's queue.

use std::borrow::Cow;
use std::sync::Arc;

use aquifer_backend::ir::Output;
use aquifer_backend::{Binding, Command, Dispatch, Dtype, Element, Program};
use aquifer_core::{Access, ByteRange, QueueId, Storage};
use smallvec::SmallVec;

use crate::array::Array;
use crate::buffer::Buffer;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::expr::{Built, Expr, Folded, build, input, output};
use crate::mode::{Join, Mode, join};
use crate::queue::{self, Touch};
use crate::shape::{Dims, extent, repeats};

/// A range of a buffer that a kernel is bound to.
pub(crate) struct Bound {
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) range: ByteRange,
    pub(crate) binding: Binding,
}

impl Bound {
    fn of<T: Element, M: Mode>(array: &Array<T, M>) -> Self {
        Self { buffer: Arc::clone(array.buffer()), range: array.bytes(), binding: array.binding() }
    }

    pub(crate) fn touch(&self, access: Access) -> Touch<'_> {
        Touch { buffer: &self.buffer, range: self.range, access }
    }
}

/// What a kernel reads, and over which shape it runs.
pub(crate) struct Inputs<'a> {
    device: &'a Device,
    dims: Dims,
    bound: SmallVec<[Bound; 4]>,
}

/// Elements of a shape that arrays have, or that is to be refused when one is made.
fn len_of(dims: &[usize]) -> usize {
    extent(dims, 1).map_or(usize::MAX, |(len, _)| len)
}

impl<'a> Inputs<'a> {
    pub(crate) fn none(device: &'a Device, dims: Dims) -> Self {
        Self { device, dims, bound: SmallVec::new() }
    }

    fn one<T: Element, M: Mode>(array: &'a Array<T, M>) -> Self {
        let mut inputs = Self::none(array.device(), array.dims().clone());
        inputs.bound.push(Bound::of(array));
        inputs
    }

    /// Adds an array; the shorter of the two shapes repeats along the longer.
    fn and<T: Element, M: Mode>(mut self, array: &Array<T, M>) -> Result<Self> {
        if self.device != array.device() {
            return Err(Error::message(
                ErrorKind::Shape,
                "the arrays are on two devices: copy one with copy_to",
            ));
        }
        if repeats(&self.dims, array.shape()) && !repeats(array.shape(), &self.dims) {
            self.dims = array.dims().clone();
        } else if !repeats(array.shape(), &self.dims) {
            return Err(Error::message(
                ErrorKind::Shape,
                format!(
                    "shapes {:?} and {:?} do not fit: they are equal, or one is the last axes of the other, or one element",
                    &self.dims[..],
                    array.shape()
                ),
            ));
        }
        self.bound.push(Bound::of(array));
        Ok(self)
    }

    fn len(&self) -> usize {
        len_of(&self.dims)
    }

    /// Records the kernel.
    fn dispatch(
        &self,
        queue: QueueId,
        (mut built, label): (Built, &'static str),
        outputs: &[Bound],
        row: u64,
    ) -> Result<()> {
        for output in outputs {
            output.buffer.check_access(Access::Write)?;
        }
        let program = Program::Compiled(self.device.pipeline(&built.kernel)?);
        let mut dispatch = Dispatch {
            program,
            label: Cow::Borrowed(label),
            inputs: self.bound.iter().map(|bound| bound.binding).collect(),
            outputs: outputs.iter().map(|bound| bound.binding).collect(),
            params: std::mem::take(&mut built.params),
            len: self.len() as u64,
            row,
            scratch: None,
            grid: None,
        };
        let scratch = scratch(self.device, queue, &mut dispatch)?;
        let reads = self.bound.iter().map(|bound| bound.touch(Access::Read));
        let writes = outputs.iter().map(|bound| bound.touch(Access::Write));
        let kept = scratch.iter().map(|bound| bound.touch(Access::Write));
        let touches: SmallVec<[Touch<'_>; 6]> = reads.chain(writes).chain(kept).collect();
        self.device.record(queue, Command::Dispatch(Box::new(dispatch)), &touches)
    }

    /// Released inputs are errors also where there is nothing to do.
    fn check_alive(&self) -> Result<()> {
        for bound in &self.bound {
            if bound.buffer.tracker.is_released() {
                return Err(Error::new(crate::error::Inner::Freed));
            }
        }
        Ok(())
    }
}

/// Makes a dispatch ready, with the scratch memory that its device asks for.
pub(crate) fn scratch(
    device: &Device,
    queue: QueueId,
    dispatch: &mut Dispatch,
) -> Result<Option<Bound>> {
    let size = device.0.backend.prepare(dispatch)?;
    if size == 0 {
        return Ok(None);
    }
    let buffer = Buffer::allocate(device, size, Storage::Private, Some(queue))?;
    let range = ByteRange { start: 0, end: size };
    let binding = buffer.binding(range, Dtype::U32);
    dispatch.scratch = Some(binding);
    // Whether it can be used where it lies is found out before anything is recorded.
    device.0.backend.prepare(dispatch)?;
    Ok(Some(Bound { buffer, range, binding }))
}

/// Outputs of a kernel as they are made.
pub struct Outputs<'a> {
    device: &'a Device,
    dims: &'a Dims,
    queue: QueueId,
    bound: SmallVec<[Bound; 2]>,
}

impl Outputs<'_> {
    fn array<T: Element, M: Mode>(&mut self, mode: M) -> Result<Array<T, M>> {
        let array = Array::unfilled(self.device, self.dims.clone(), mode, Some(self.queue))?;
        self.bound.push(Bound::of(&array));
        Ok(array)
    }
}

/// What the closure of `map` may return: an expression, or a tuple of up to four, each of which
/// becomes an array.
pub trait MapOutput<M: Mode> {
    /// The arrays.
    type Arrays;
    #[doc(hidden)]
    fn declare(&self);
    #[doc(hidden)]
    fn make(outputs: &mut Outputs<'_>, mode: M) -> Result<Self::Arrays>;
}

/// What the closure of `reduce` may return: a fold, or a tuple of up to eight, each of which
/// becomes an array.
pub trait FoldOutput<M: Mode> {
    /// The arrays.
    type Arrays;
    #[doc(hidden)]
    fn declare(self);
    #[doc(hidden)]
    fn make(outputs: &mut Outputs<'_>, mode: M) -> Result<Self::Arrays>;
}

impl<T: Element, M: Mode> MapOutput<M> for Expr<T> {
    type Arrays = Array<T, M>;

    fn declare(&self) {
        output(Output::Store(self.node()));
    }

    fn make(outputs: &mut Outputs<'_>, mode: M) -> Result<Self::Arrays> {
        outputs.array(mode)
    }
}

impl<R: Element, M: Mode> FoldOutput<M> for Folded<R> {
    type Arrays = Array<R, M>;

    fn declare(self) {
        output(self.take());
    }

    fn make(outputs: &mut Outputs<'_>, mode: M) -> Result<Self::Arrays> {
        outputs.array(mode)
    }
}

macro_rules! output_tuple {
    ($trait:ident: $($name:ident)*) => {
        #[allow(non_snake_case)]
        impl<M: Mode, $($name: $trait<M>),*> $trait<M> for ($($name,)*) {
            type Arrays = ($($name::Arrays,)*);

            output_tuple! { @declare $trait $($name)* }

            fn make(outputs: &mut Outputs<'_>, mode: M) -> Result<Self::Arrays> {
                Ok(($($name::make(outputs, mode)?,)*))
            }
        }
    };
    (@declare MapOutput $($name:ident)*) => {
        fn declare(&self) {
            let ($($name,)*) = self;
            $($name.declare();)*
        }
    };
    (@declare FoldOutput $($name:ident)*) => {
        fn declare(self) {
            let ($($name,)*) = self;
            $($name.declare();)*
        }
    };
}

output_tuple! { MapOutput: A B }
output_tuple! { MapOutput: A B C }
output_tuple! { MapOutput: A B C D }
output_tuple! { FoldOutput: A B }
output_tuple! { FoldOutput: A B C }
output_tuple! { FoldOutput: A B C D }
output_tuple! { FoldOutput: A B C D E }
output_tuple! { FoldOutput: A B C D E F }
output_tuple! { FoldOutput: A B C D E F G }
output_tuple! { FoldOutput: A B C D E F G H }

/// New arrays of what the closure returns, at every place of the inputs.
pub(crate) fn run_map<O: MapOutput<M>, M: Mode>(
    inputs: Inputs<'_>,
    mode: M,
    label: &'static str,
    work: impl FnOnce() -> O,
) -> Result<O::Arrays> {
    let ((), built) = build(|| work().declare());
    let (built, queue) = (built?, queue::current(inputs.device)?);
    let dims = inputs.dims.clone();
    let mut outputs = Outputs { device: inputs.device, dims: &dims, queue, bound: SmallVec::new() };
    let arrays = O::make(&mut outputs, mode)?;
    if inputs.len() > 0 {
        let bound = outputs.bound;
        inputs.dispatch(queue, (built, label), &bound, 0)?;
    } else {
        inputs.check_alive()?;
    }
    Ok(arrays)
}

/// The same into an array that exists. Inputs that overlap it otherwise than exactly are copied
/// first, so that every read comes before every write.
pub(crate) fn run_into<T: Element, M: Mode>(
    mut inputs: Inputs<'_>,
    target: &Array<T, M>,
    label: &'static str,
    work: impl FnOnce() -> Expr<T>,
) -> Result<()> {
    target.buffer().check_access(Access::Write)?;
    target.check_alive()?;
    inputs.check_alive()?;
    if target.is_empty() {
        return Ok(());
    }
    let ((), built) = build(|| MapOutput::<M>::declare(&work()));
    let (built, queue) = (built?, queue::current(inputs.device)?);
    let out = Bound::of(target);
    for bound in &mut inputs.bound {
        let exact = bound.range == out.range && bound.binding.dtype.size() == size_of::<T>();
        let overlaps = Arc::ptr_eq(&bound.buffer, &out.buffer) && bound.range.overlaps(out.range);
        if overlaps && !exact {
            *bound = copied(inputs.device, queue, bound)?;
        }
    }
    inputs.dispatch(queue, (built, label), &[out], 0)
}

pub(crate) fn copied(device: &Device, queue: QueueId, from: &Bound) -> Result<Bound> {
    let size = from.range.end - from.range.start;
    let buffer = Buffer::allocate(device, size, from.buffer.storage, Some(queue))?;
    let range = ByteRange { start: 0, end: size };
    let binding = buffer.binding(range, from.binding.dtype);
    let to = Bound { buffer, range, binding };
    let command = Command::Copy { from: from.binding, to: to.binding };
    device.record(queue, command, &[from.touch(Access::Read), to.touch(Access::Write)])?;
    Ok(to)
}

/// New arrays of folds along rows: the whole array, or its last axis.
fn run_fold<O: FoldOutput<M>, M: Mode>(
    inputs: Inputs<'_>,
    mode: M,
    whole: bool,
    work: impl FnOnce() -> O,
) -> Result<O::Arrays> {
    let ((), built) = build(|| work().declare());
    let (built, queue) = (built?, queue::current(inputs.device)?);
    let (dims, row) = match inputs.dims.split_last() {
        Some((&row, rows)) if !whole => (Dims::from(rows), row),
        _ => (Dims::new(), inputs.len()),
    };
    let extreme = |output: &Output| {
        use aquifer_backend::ir::Fold;
        matches!(output, Output::Fold(Fold::Min | Fold::Max | Fold::ArgMin | Fold::ArgMax, _))
    };
    if row == 0 && built.kernel.outputs.iter().any(extreme) {
        return Err(Error::message(
            ErrorKind::Shape,
            format!("no elements in shape {:?}: there is no least or greatest", &inputs.dims[..]),
        ));
    }
    let mut outputs = Outputs { device: inputs.device, dims: &dims, queue, bound: SmallVec::new() };
    let arrays = O::make(&mut outputs, mode)?;
    if len_of(&dims) > 0 {
        let bound = outputs.bound;
        inputs.dispatch(queue, (built, "reduce"), &bound, row as u64)?;
    } else {
        inputs.check_alive()?;
    }
    Ok(arrays)
}

impl<T: Element, M: Mode> Array<T, M> {
    /// A new array of the closure's value at every place; several for a tuple. One kernel, one
    /// pass over memory.
    ///
    /// ```
    /// use aquifer::prelude::*;
    /// let a = Device::cpu()?.array(&[1.0f32, 4.0, 9.0])?;
    /// let (root, square) = a.map(|x| (x.sqrt(), x * x))?;
    /// assert_eq!(root.to_vec()?, [1.0, 2.0, 3.0]);
    /// assert_eq!(square.to_vec()?, [1.0, 16.0, 81.0]);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    /// `OutOfMemory`, `Kernel` where the expression is not valid, `Borrowed` while a write guard
    /// lives, `Freed`.
    pub fn map<O: MapOutput<M>>(&self, work: impl FnOnce(Expr<T>) -> O) -> Result<O::Arrays> {
        run_map(Inputs::one(self), self.mode(), "map", || work(input()))
    }

    /// Replaces every element by the closure's value.
    ///
    /// # Errors
    /// `ReadOnly`, `Kernel`, `Borrowed` while a guard lives, `Freed`.
    pub fn assign(&self, work: impl FnOnce(Expr<T>) -> Expr<T>) -> Result<()> {
        run_into(Inputs::one(self), self, "assign", || work(input()))
    }

    /// Replaces every element by the closure's value of it and another array's. The two may
    /// overlap: what is read is what was there before.
    ///
    /// # Errors
    /// `Shape` where the other does not repeat along this one, and those of
    /// [`assign`](Self::assign).
    pub fn assign_with<U: Element, N: Mode>(
        &self,
        other: &Array<U, N>,
        work: impl FnOnce(Expr<T>, Expr<U>) -> Expr<T>,
    ) -> Result<()> {
        let inputs = Inputs::one(self).and(other)?;
        if inputs.dims != *self.dims() {
            return Err(Error::message(
                ErrorKind::Shape,
                format!("shape {:?} does not repeat along {:?}", other.shape(), self.shape()),
            ));
        }
        run_into(inputs, self, "assign", || {
            let first = input();
            work(first, input())
        })
    }

    /// This array and another, element by element; a shape that is the last axes of the other's,
    /// or one element, repeats.
    ///
    /// # Errors
    /// `Shape` where the shapes do not fit.
    pub fn zip<'a, U: Element, N: Mode>(
        &'a self,
        other: &'a Array<U, N>,
    ) -> Result<Zip2<'a, T, U, M::Output>>
    where
        M: Join<N>,
    {
        let storage = join(self.storage(), other.storage());
        Ok(Zip2 {
            inputs: Inputs::one(self).and(other)?,
            mode: M::Output::known(storage),
            elements: std::marker::PhantomData,
        })
    }

    /// Folds of the closure's values over the whole array, each an array of one element. One
    /// kernel, one pass over memory, the same bits on every run.
    ///
    /// ```
    /// use aquifer::prelude::*;
    /// let a = Device::cpu()?.array(&[3.0f32, -1.0, 2.0])?;
    /// let (least, squares) = a.reduce(|x| (x.least(), (x * x).sum()))?;
    /// assert_eq!((least.item()?, squares.item()?), (-1.0, 14.0));
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Shape` for the least or greatest of no elements, and those of [`map`](Self::map).
    pub fn reduce<O: FoldOutput<M>>(&self, work: impl FnOnce(Expr<T>) -> O) -> Result<O::Arrays> {
        run_fold(Inputs::one(self), self.mode(), true, || work(input()))
    }

    /// The same along the last axis, which goes.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
    pub fn reduce_last<O: FoldOutput<M>>(
        &self,
        work: impl FnOnce(Expr<T>) -> O,
    ) -> Result<O::Arrays> {
        run_fold(Inputs::one(self), self.mode(), false, || work(input()))
    }

    /// The sum: integers in 64 bits (wrapping), 16-bit floats as f32.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
    pub fn sum(&self) -> Result<Array<T::Sum, M>> {
        self.reduce(|x| x.sum())
    }

    /// The product, in the type of [`sum`](Self::sum).
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
    pub fn product(&self) -> Result<Array<T::Sum, M>> {
        self.reduce(|x| x.product())
    }

    /// The least element; NaN is passed over.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
    pub fn min(&self) -> Result<Self> {
        self.reduce(|x| x.least())
    }

    /// The greatest element; NaN is passed over.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
    pub fn max(&self) -> Result<Self> {
        self.reduce(|x| x.greatest())
    }

    /// The place of the first least element.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
    pub fn argmin(&self) -> Result<Array<u64, M>> {
        self.reduce(|x| x.arg_least())
    }

    /// The place of the first greatest element.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
    pub fn argmax(&self) -> Result<Array<u64, M>> {
        self.reduce(|x| x.arg_greatest())
    }
}

impl<M: Mode> Array<bool, M> {
    /// How many elements are true.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
    pub fn count(&self) -> Result<Array<u64, M>> {
        self.reduce(|x| x.count())
    }

    /// Whether one element is true.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
    pub fn any(&self) -> Result<Self> {
        self.reduce(|x| x.any())
    }

    /// Whether all elements are true.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
    pub fn all(&self) -> Result<Self> {
        self.reduce(|x| x.all())
    }
}

macro_rules! zip {
    ($(#[$doc:meta])* $name:ident <$($element:ident),*>) => {
        $(#[$doc])*
        pub struct $name<'a, $($element: Element,)* M: Mode> {
            inputs: Inputs<'a>,
            mode: M,
            elements: std::marker::PhantomData<($($element,)*)>,
        }

        impl<'a, $($element: Element,)* M: Mode> $name<'a, $($element,)* M> {
            /// A new array of the closure's value at every place; several for a tuple.
            ///
            /// # Errors
            /// As [`Array::map`].
            pub fn map<O: MapOutput<M>>(
                self,
                work: impl FnOnce(($(Expr<$element>,)*)) -> O,
            ) -> Result<O::Arrays> {
                run_map(self.inputs, self.mode, "zip", || work(($(input::<$element>(),)*)))
            }

            /// Folds of the closure's values over all places.
            ///
            /// # Errors
            /// As [`Array::reduce`].
            pub fn reduce<O: FoldOutput<M>>(
                self,
                work: impl FnOnce(($(Expr<$element>,)*)) -> O,
            ) -> Result<O::Arrays> {
                run_fold(self.inputs, self.mode, true, || work(($(input::<$element>(),)*)))
            }

            /// Folds of the closure's values along the last axis, which goes.
            ///
            /// # Errors
            /// As [`Array::reduce`].
            pub fn reduce_last<O: FoldOutput<M>>(
                self,
                work: impl FnOnce(($(Expr<$element>,)*)) -> O,
            ) -> Result<O::Arrays> {
                run_fold(self.inputs, self.mode, false, || work(($(input::<$element>(),)*)))
            }
        }
    };
}

zip! {
    /// Two arrays, element by element.
    Zip2<A, B>
}
zip! {
    /// Three arrays, element by element.
    Zip3<A, B, C>
}
zip! {
    /// Four arrays, element by element.
    Zip4<A, B, C, D>
}

macro_rules! zip_more {
    ($name:ident <$($element:ident),*> $next:ident) => {
        impl<'a, $($element: Element,)* M: Mode> $name<'a, $($element,)* M> {
            /// One more array.
            ///
            /// # Errors
            /// As [`Array::zip`].
            pub fn zip<U: Element, N: Mode>(
                self,
                other: &'a Array<U, N>,
            ) -> Result<$next<'a, $($element,)* U, M::Output>>
            where
                M: Join<N>,
            {
                let storage = join(self.mode.storage(), other.storage());
                Ok($next {
                    inputs: self.inputs.and(other)?,
                    mode: M::Output::known(storage),
                    elements: std::marker::PhantomData,
                })
            }
        }
    };
}

zip_more! { Zip2<A, B> Zip3 }
zip_more! { Zip3<A, B, C> Zip4 }
