//! Arrays and views.

use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use aquifer_backend::{Binding, Dtype, Element};
use aquifer_core::{Access, ByteRange, Storage};

use crate::buffer::{Buffer, Handle, Origin};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Inner, Result};
use crate::mode::{Mode, Shared};
use crate::queue::Touch;
use crate::shape::{Dims, Shape, extent};

/// A row of elements of one type in a device's memory, seen as an array of any rank.
///
/// A handle: [`share`](Self::share) and views give further handles of the same memory, which is
/// freed when the last of them is dropped and the work that uses it is done. Nothing copies
/// elements silently. `Send` and `Sync`: any thread may read, write and compute.
///
/// The layout is contiguous, the last axis fastest. An array without elements is legal
/// everywhere and has no memory.
///
/// ```
/// use aquifer::prelude::*;
/// let device = Device::cpu()?;
/// let a = device.array(&[1.0f32, 2.0, 3.0, 4.0])?.reshape([2, 2])?;
/// let b = a.map(|x| x * x)?;
/// assert_eq!(b.get([1, 0])?, 9.0);
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct Array<T: Element, M: Mode = Shared> {
    handle: Handle,
    /// Bytes from the start of the buffer.
    offset: u64,
    len: usize,
    dims: Dims,
    mode: M,
    element: PhantomData<fn() -> T>,
}

impl<T: Element, M: Mode> Array<T, M> {
    /// An array over a buffer whose first bytes it uses.
    pub(crate) fn over(buffer: Arc<Buffer>, dims: Dims, mode: M) -> Result<Self> {
        let (len, size) = extent(&dims, size_of::<T>())?;
        debug_assert!(size <= buffer.size && buffer.storage == mode.storage());
        Ok(Self { handle: Handle::new(buffer), offset: 0, len, dims, mode, element: PhantomData })
    }

    /// An array with unspecified contents, for work on `queue` to fill.
    pub(crate) fn unfilled(
        device: &Device,
        dims: Dims,
        mode: M,
        queue: Option<aquifer_core::QueueId>,
    ) -> Result<Self> {
        device.check_dtype(T::DTYPE)?;
        let (_, size) = extent(&dims, size_of::<T>())?;
        let buffer = Buffer::allocate(device, size, mode.storage(), queue)?;
        Self::over(buffer, dims, mode)
    }

    pub(crate) fn buffer(&self) -> &Arc<Buffer> {
        &self.handle.0
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The bytes of the buffer that the array uses.
    #[inline]
    pub(crate) fn bytes(&self) -> ByteRange {
        ByteRange { start: self.offset, end: self.offset + self.size() }
    }

    pub(crate) fn binding(&self) -> Binding {
        self.buffer().binding(self.bytes(), T::DTYPE)
    }

    pub(crate) fn touch(&self, access: Access) -> Touch<'_> {
        Touch { buffer: self.buffer(), range: self.bytes(), access }
    }

    pub(crate) fn dims(&self) -> &Dims {
        &self.dims
    }

    /// Whether the two use a common byte.
    pub(crate) fn overlaps<U: Element, N: Mode>(&self, other: &Array<U, N>) -> bool {
        Arc::ptr_eq(self.buffer(), other.buffer()) && self.bytes().overlaps(other.bytes())
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.buffer().device
    }

    /// Elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the elements.
    #[inline]
    pub fn size(&self) -> u64 {
        (self.len * size_of::<T>()) as u64
    }

    /// The lengths of the axes.
    pub fn shape(&self) -> &[usize] {
        &self.dims
    }

    /// The element type.
    pub fn dtype(&self) -> Dtype {
        T::DTYPE
    }

    /// The storage mode.
    pub fn storage(&self) -> Storage {
        self.mode.storage()
    }

    /// The storage mode as the array's type knows it.
    pub fn mode(&self) -> M {
        self.mode
    }

    /// Whether the CPU and the device both see it.
    pub fn is_shared(&self) -> bool {
        self.storage() == Storage::Shared
    }

    /// Whether only the device sees it.
    pub fn is_private(&self) -> bool {
        self.storage() == Storage::Private
    }

    /// Whether it is part of a mapped file.
    pub fn is_read_only(&self) -> bool {
        self.buffer().read_only
    }

    /// Where its memory came from.
    pub fn origin(&self) -> Origin {
        self.buffer().origin.clone()
    }

    /// Another handle of the same memory.
    #[must_use]
    pub fn share(&self) -> Self {
        Self {
            handle: self.handle.clone(),
            offset: self.offset,
            len: self.len,
            dims: self.dims.clone(),
            mode: self.mode,
            element: PhantomData,
        }
    }

    /// The same elements under another shape; shares the memory.
    ///
    /// # Errors
    /// `Shape` where the element counts differ.
    pub fn reshape(&self, shape: impl Shape) -> Result<Self> {
        let dims = shape.dims();
        let (len, _) = extent(&dims, size_of::<T>())?;
        if len != self.len {
            return Err(Error::message(
                ErrorKind::Shape,
                format!(
                    "shape {:?} has {len} elements, but the array {:?} has {}",
                    &dims[..],
                    self.shape(),
                    self.len
                ),
            ));
        }
        Ok(Self { dims, ..self.share() })
    }

    /// The elements of a range of places, as one axis; shares the memory, which outlives `self`.
    ///
    /// # Errors
    /// `OutOfRange` where the range ends before it starts or beyond the array.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let (start, end) = self.limits(range)?;
        Ok(Self {
            offset: self.offset + (start * size_of::<T>()) as u64,
            len: end - start,
            dims: smallvec::smallvec![end - start],
            ..self.share()
        })
    }

    /// The first and one past the last place of a range.
    pub(crate) fn limits(&self, range: impl RangeBounds<usize>) -> Result<(usize, usize)> {
        let start = match range.start_bound() {
            Bound::Included(&start) => Some(start),
            Bound::Excluded(&start) => start.checked_add(1),
            Bound::Unbounded => Some(0),
        };
        let end = match range.end_bound() {
            Bound::Included(&end) => end.checked_add(1),
            Bound::Excluded(&end) => Some(end),
            Bound::Unbounded => Some(self.len),
        };
        match (start, end) {
            (Some(start), Some(end)) if start <= end && end <= self.len => Ok((start, end)),
            _ => Err(Error::message(
                ErrorKind::OutOfRange,
                format!(
                    "range {:?}..{:?} is outside an array of {} elements",
                    range.start_bound(),
                    range.end_bound(),
                    self.len
                ),
            )),
        }
    }

    /// The same bytes as elements of another type; the last axis changes its length. Shares the
    /// memory.
    ///
    /// # Errors
    /// `Shape` where the bytes of the last axis do not divide into `U`, `Dtype` where the offset is
    /// not aligned for it, or one of the two is bool (not every byte is one).
    pub fn reinterpret<U: Element>(&self) -> Result<Array<U, M>> {
        let wrong = |kind, text: String| Err(Error::message(kind, text));
        self.device().check_dtype(U::DTYPE)?;
        // Not every byte is a bool, and through such a view any could be written.
        if U::DTYPE != T::DTYPE && (U::DTYPE == Dtype::Bool || T::DTYPE == Dtype::Bool) {
            return wrong(
                ErrorKind::Dtype,
                format!(
                    "{} cannot be reinterpreted as {}: use map(|x| x.cast())",
                    T::DTYPE,
                    U::DTYPE
                ),
            );
        }
        let mut dims = self.dims.clone();
        if dims.is_empty() {
            dims.push(1);
        }
        let last = dims.len() - 1;
        let bytes = dims[last].checked_mul(size_of::<T>()).ok_or_else(|| {
            let shape = self.shape().to_vec();
            Error::new(Inner::Overflow { shape, element: size_of::<T>() })
        })?;
        if !bytes.is_multiple_of(size_of::<U>()) {
            return wrong(
                ErrorKind::Shape,
                format!(
                    "the last axis of {:?} has {bytes} bytes, not a multiple of the {} of {}",
                    self.shape(),
                    size_of::<U>(),
                    U::DTYPE
                ),
            );
        }
        let place = self.buffer().address() + self.offset;
        if !place.is_multiple_of(align_of::<U>() as u64) && self.len > 0 {
            return wrong(
                ErrorKind::Dtype,
                format!(
                    "the array starts at byte {} of its memory, which is not aligned for {}",
                    self.offset,
                    U::DTYPE
                ),
            );
        }
        dims[last] = bytes / size_of::<U>();
        let (len, _) = extent(&dims, size_of::<U>())?;
        Ok(Array {
            handle: self.handle.clone(),
            offset: self.offset,
            len,
            dims,
            mode: self.mode,
            element: PhantomData,
        })
    }

    /// Frees the memory now, for all handles; a later use of any of them is the error `Freed`.
    /// Work in flight is finished on it first; with a guard alive it is freed when that ends. A
    /// second release does nothing.
    pub fn release(&self) {
        self.buffer().release();
    }

    /// The same array under another name of its mode.
    pub(crate) fn with_mode<N: Mode>(self, mode: N) -> Array<T, N> {
        Array {
            handle: self.handle,
            offset: self.offset,
            len: self.len,
            dims: self.dims,
            mode,
            element: PhantomData,
        }
    }

    /// The bytes of one element, for the checks of access.
    pub(crate) fn element_bytes(&self, place: usize) -> ByteRange {
        let start = self.offset + (place * size_of::<T>()) as u64;
        ByteRange { start, end: start + size_of::<T>() as u64 }
    }
}
