//! Wrapping memory that exists (rules H.1 to H.4).

use std::any::Any;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;

use aquifer_backend::{Element, ImportError};
use aquifer_core::Storage;

use crate::array::Array;
use crate::buffer::{Buffer, Origin};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Inner, Result};
use crate::mode::{CpuMode, Shared};
use crate::shape::Shape;

/// The owner of a `Vec`'s memory: what `into_vec` gives back, and no other owner.
struct WrappedVec<T>(Vec<T>);

/// Why memory is not used in place.
pub(crate) fn reason(error: &ImportError) -> String {
    match error {
        ImportError::Unsupported(why) => (*why).to_owned(),
        ImportError::Driver(error) => error.to_string(),
        _ => "the device cannot import it".to_owned(),
    }
}

impl Device {
    /// A shared array over a `Vec`'s memory, without a copy where the device can import it; where
    /// it cannot, the elements are copied and `origin()` says why. The memory lives until its last
    /// use, queued work included; [`Array::into_vec`] gives it back.
    ///
    /// ```
    /// use aquifer::prelude::*;
    /// let device = Device::cpu()?;
    /// let wrapped = device.wrap(vec![0.0f32, 1.0])?;
    /// wrapped.assign(|x| x.exp())?;
    /// assert_eq!(wrapped.into_vec()?[0], 1.0);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Dtype` where the device lacks the type, `OutOfMemory` where a copy finds no memory.
    pub fn wrap<T: Element>(&self, vec: Vec<T>) -> Result<Array<T>> {
        self.wrap_vec(vec, true)
    }

    /// The same, but an error where a copy would be needed.
    ///
    /// # Errors
    /// `Import`, with the reason; `Dtype`.
    pub fn wrap_exact<T: Element>(&self, vec: Vec<T>) -> Result<Array<T>> {
        self.wrap_vec(vec, false)
    }

    fn wrap_vec<T: Element>(&self, mut vec: Vec<T>, may_copy: bool) -> Result<Array<T>> {
        self.check_dtype(T::DTYPE)?;
        let dims = vec.len().dims();
        if vec.is_empty() {
            return Array::over(Buffer::allocate(self, 0, Storage::Shared, None)?, dims, Shared);
        }
        let (address, size) = (vec.as_mut_ptr().cast::<u8>(), size_of_val(vec.as_slice()) as u64);
        // SAFETY: the elements live on the heap until the `Vec` is dropped, which its box, the
        // owner, does; moving the `Vec` does not move them, and no one else refers to them.
        match unsafe { Buffer::import(self, address, size, Box::new(WrappedVec(vec))) } {
            Ok(buffer) => Array::over(buffer, dims, Shared),
            Err((error, owner)) => {
                let vec = owner.downcast::<WrappedVec<T>>().map_or(Vec::new(), |vec| vec.0);
                copy_of(self, &vec, &error, may_copy)
            }
        }
    }

    /// A shared array over memory of the caller's, at any alignment that `T` has.
    ///
    /// # Safety
    /// 1. `address` starts `len` initialised elements of `T` that stay valid while `owner` lives.
    /// 2. No one but the array touches them until `owner` is dropped.
    ///
    /// # Errors
    /// `Import` for a null or misaligned address, or where the device cannot import;
    /// `OutOfRange` where `len` overflows.
    pub unsafe fn wrap_raw<T: Element>(
        &self,
        address: *mut T,
        len: usize,
        owner: Box<dyn Any + Send>,
    ) -> Result<Array<T>> {
        self.check_dtype(T::DTYPE)?;
        let dims = len.dims();
        let size = len
            .checked_mul(size_of::<T>())
            .filter(|&size| isize::try_from(size).is_ok())
            .filter(|&size| (address as usize).checked_add(size).is_some());
        let Some(size) = size else {
            return Err(Error::message(
                ErrorKind::OutOfRange,
                format!("{len} elements of {} at {address:p} overflow the address range", T::DTYPE),
            ));
        };
        if address.is_null() || !address.is_aligned() {
            return Err(Error::message(
                ErrorKind::Import,
                format!(
                    "address {address:p} is null or not aligned to the {} bytes of {}",
                    align_of::<T>(),
                    T::DTYPE
                ),
            ));
        }
        if size == 0 {
            return Array::over(Buffer::allocate(self, 0, Storage::Shared, None)?, dims, Shared);
        }
        // SAFETY: the caller's contract.
        let buffer = unsafe { Buffer::import(self, address.cast(), size as u64, owner) };
        let buffer =
            buffer.map_err(|(error, _)| Error::message(ErrorKind::Import, reason(&error)))?;
        Array::over(buffer, dims, Shared)
    }

    /// Wrapping is for shared arrays; as a private one it is an error (rule H.4).
    ///
    /// # Errors
    /// `PrivateAccess` for a private mode; otherwise as [`wrap`](Self::wrap).
    pub fn wrap_in<T: Element>(&self, mode: Storage, vec: Vec<T>) -> Result<Array<T, Storage>> {
        if mode == Storage::Private {
            return Err(Error::new(Inner::Private { what: "wrapping CPU memory" }));
        }
        Ok(self.wrap(vec)?.with_mode(mode))
    }

    /// Runs `work` with the means to wrap borrowed memory; ends when all work on what it wrapped
    /// has ended. Arrays that outlive the scope are released: using one is the error `Freed`. A
    /// guard of such an array on another thread is waited for.
    ///
    /// ```
    /// use aquifer::prelude::*;
    /// let device = Device::cpu()?;
    /// let mut mine = vec![0.0f32; 3];
    /// device.scope(|s| s.wrap(&mut mine)?.assign(|x| x + 1.0))?;
    /// assert_eq!(mine, [1.0; 3]);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of `work`; then what failed on the device.
    pub fn scope<'env, R>(&self, work: impl FnOnce(&Scope<'_, 'env>) -> Result<R>) -> Result<R> {
        let scope = Scope { device: self, buffers: RefCell::default(), env: PhantomData };
        // Dropping the scope ends it also when `work` panics.
        let result = work(&scope);
        let ended = scope.end();
        let value = result?;
        ended?;
        Ok(value)
    }
}

fn copy_of<T: Element>(
    device: &Device,
    elements: &[T],
    error: &ImportError,
    may_copy: bool,
) -> Result<Array<T>> {
    let why = reason(error);
    if !may_copy {
        return Err(Error::message(
            ErrorKind::Import,
            format!("cannot wrap without a copy: {why}"),
        ));
    }
    let size = size_of_val(elements) as u64;
    let buffer = Buffer::allocate(device, size, Storage::Shared, None)?;
    let buffer = buffer.with_origin(Origin::Copied(why), false);
    let array = Array::over(buffer, elements.len().dims(), Shared)?;
    array.write_from(elements)?;
    Ok(array)
}

/// Wraps borrowed memory; see [`Device::scope`].
pub struct Scope<'scope, 'env> {
    device: &'scope Device,
    buffers: RefCell<Vec<Arc<Buffer>>>,
    env: PhantomData<&'env mut &'env ()>,
}

impl<'env> Scope<'_, 'env> {
    /// A shared array over borrowed memory, without a copy.
    ///
    /// # Errors
    /// `Import` where the device cannot import it, `Dtype`.
    pub fn wrap<T: Element>(&self, slice: &'env mut [T]) -> Result<Array<T>> {
        // SAFETY: the slice is borrowed for `'env`, which outlives the scope; the scope ends only
        // when all work and all guards on the buffer have, and releases it for every handle.
        let array = unsafe { self.device.wrap_raw(slice.as_mut_ptr(), slice.len(), Box::new(()))? };
        self.buffers.borrow_mut().push(Arc::clone(array.buffer()));
        Ok(array)
    }

    /// Ends all use of what was wrapped; the first error is told, all of it is ended.
    fn end(&self) -> Result<()> {
        let buffers = self.buffers.take();
        let ended: Vec<Result<()>> = buffers.iter().map(|buffer| buffer.end_borrow()).collect();
        ended.into_iter().collect()
    }
}

impl Drop for Scope<'_, '_> {
    fn drop(&mut self) {
        // What is still there was wrapped by a closure that panicked.
        let _ = self.end();
    }
}

impl<T: Element, M: CpuMode> Array<T, M> {
    /// The `Vec` that was wrapped, once its work is done: the same allocation. Of another array's
    /// elements a copy. Work that failed is told by the next wait.
    ///
    /// # Errors
    /// `Shared` where other handles or views share the memory, `PrivateAccess`; of a copy also
    /// what failed on the device.
    pub fn into_vec(self) -> Result<Vec<T>> {
        if self.origin() != Origin::Wrapped {
            return self.to_vec();
        }
        if !self.handle().is_only() {
            return Err(Error::message(
                ErrorKind::Shared,
                "other handles or views share the wrapped memory: drop them before into_vec()",
            ));
        }
        // A view or another element type is not the whole `Vec`.
        let whole = self.bytes().start == 0 && self.bytes().end == self.buffer().size;
        if whole && let Some(WrappedVec(vec)) = self.buffer().take_owner::<WrappedVec<T>>() {
            return Ok(vec);
        }
        self.to_vec()
    }
}
