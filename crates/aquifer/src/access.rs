//! The CPU's access to arrays: guards that are slices, and single elements (rules E.3, F.1–F.4).

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use aquifer_backend::Element;
use aquifer_core::{Access, ByteRange};

use crate::array::Array;
use crate::buffer::Buffer;
use crate::error::{Error, Inner, Result};
use crate::mode::{CpuMode, Mode, Private};
use crate::shape::{Shape, place};

/// A slice of an array that the CPU reads. While it lives, work that writes the array is refused
/// with `Borrowed`.
pub struct ReadGuard<'a, T: Element> {
    buffer: &'a Buffer,
    id: u64,
    slice: &'a [T],
}

/// A slice of an array that the CPU writes. While it lives, all other use of the array is refused
/// with `Borrowed`.
pub struct WriteGuard<'a, T: Element> {
    buffer: &'a Buffer,
    id: u64,
    range: ByteRange,
    slice: &'a mut [T],
}

impl<T: Element> Deref for ReadGuard<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.slice
    }
}

impl<T: Element> Deref for WriteGuard<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.slice
    }
}

impl<T: Element> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.slice
    }
}

impl<T: Element> Drop for ReadGuard<'_, T> {
    fn drop(&mut self) {
        self.buffer.unborrow(self.id);
    }
}

impl<T: Element> Drop for WriteGuard<'_, T> {
    fn drop(&mut self) {
        self.buffer.unborrow_written(self.id, self.range);
    }
}

impl<T: Element> fmt::Debug for ReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.slice.fmt(f)
    }
}

impl<T: Element> fmt::Debug for WriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.slice.fmt(f)
    }
}

/// The slice behind a range of a shared buffer.
///
/// # Safety
/// The caller holds a borrow of the range for reading, as long as `'a`.
unsafe fn slice_of<'a, T: Element>(buffer: &Buffer, range: ByteRange, len: usize) -> &'a [T] {
    if len == 0 {
        return &[];
    }
    // SAFETY: `range` lies in the buffer, whose memory is initialised by the system or by an
    // earlier owner; offsets are aligned for their element (rule I.1); every bit pattern is a
    // value, except of bool, whose arrays are only ever written with bools. No one writes the
    // range while the caller's borrow lives.
    unsafe { std::slice::from_raw_parts((buffer.address() + range.start) as *const T, len) }
}

impl<T: Element, M: CpuMode> Array<T, M> {
    fn check_cpu(&self, what: &'static str) -> Result<()> {
        if self.is_private() { Err(Error::new(Inner::Private { what })) } else { Ok(()) }
    }

    /// The elements as a slice, once work that writes them is done. Work that does not write the
    /// array is not waited for.
    ///
    /// # Errors
    /// `Borrowed` while a write guard lives, `Freed`, `PrivateAccess`, and what failed on the
    /// device.
    pub fn read(&self) -> Result<ReadGuard<'_, T>> {
        self.read_within(None)
    }

    /// The same with a limit of time for the wait.
    ///
    /// # Errors
    /// As [`read`](Self::read), and `Timeout`.
    pub fn read_timeout(&self, limit: Duration) -> Result<ReadGuard<'_, T>> {
        self.read_within(Some(limit))
    }

    fn read_within(&self, limit: Option<Duration>) -> Result<ReadGuard<'_, T>> {
        self.check_cpu("read()")?;
        let (buffer, range) = (&**self.buffer(), self.bytes());
        let id = buffer.borrow(range, Access::Read, limit)?;
        // SAFETY: the borrow just taken; the guard gives it back when it is dropped.
        let slice = unsafe { slice_of(buffer, range, self.len()) };
        Ok(ReadGuard { buffer, id, slice })
    }

    /// The elements as a mutable slice, once work that uses them is done.
    ///
    /// # Errors
    /// `Borrowed` while another guard lives, `ReadOnly`, `Freed`, `PrivateAccess`, and what
    /// failed on the device.
    pub fn write(&self) -> Result<WriteGuard<'_, T>> {
        self.check_cpu("write()")?;
        let (buffer, range) = (&**self.buffer(), self.bytes());
        let id = buffer.borrow(range, Access::Write, None)?;
        let slice: &mut [T] = if self.is_empty() {
            &mut []
        } else {
            let start = (buffer.address() + range.start) as *mut T;
            // SAFETY: as for `slice_of`, and the borrow is exclusive: no other guard, element
            // access or work overlaps the range until the guard gives it back.
            unsafe { std::slice::from_raw_parts_mut(start, self.len()) }
        };
        Ok(WriteGuard { buffer, id, range, slice })
    }

    /// One element. An idle array costs no lock.
    ///
    /// # Errors
    /// `OutOfRange`, and those of [`read`](Self::read).
    #[inline]
    pub fn get(&self, index: impl Shape) -> Result<T> {
        self.check_cpu("get()")?;
        let place = place(self.dims(), self.len(), &index.dims())?;
        self.read_element(place)
    }

    /// Writes one element.
    ///
    /// # Errors
    /// `OutOfRange`, and those of [`write`](Self::write).
    #[inline]
    pub fn set(&self, index: impl Shape, value: T) -> Result<()> {
        self.check_cpu("set()")?;
        let place = place(self.dims(), self.len(), &index.dims())?;
        self.write_element(place, value)
    }
}

impl<T: Element, M: Mode> Array<T, M> {
    #[inline]
    fn read_element(&self, place: usize) -> Result<T> {
        let (buffer, range) = (&**self.buffer(), self.element_bytes(place));
        let pointer = (buffer.address() + range.start) as *const T;
        if !buffer.incoherent
            && let Some(_borrow) = buffer.tracker.peek()
        {
            // SAFETY: the place lies in the array; nothing is pending and no one writes while the
            // borrow lives.
            return Ok(unsafe { pointer.read() });
        }
        let id = buffer.borrow(range, Access::Read, None)?;
        // SAFETY: as above, under a borrow of the element.
        let value = unsafe { pointer.read() };
        buffer.unborrow(id);
        Ok(value)
    }

    #[inline]
    fn write_element(&self, place: usize, value: T) -> Result<()> {
        let (buffer, range) = (&**self.buffer(), self.element_bytes(place));
        buffer.check_access(Access::Write)?;
        let pointer = (buffer.address() + range.start) as *mut T;
        if !buffer.incoherent
            && let Some(_borrow) = buffer.tracker.poke()
        {
            // SAFETY: the place lies in the array; no one else touches it while the borrow lives.
            unsafe { pointer.write(value) };
            return Ok(());
        }
        let id = buffer.borrow(range, Access::Write, None)?;
        // SAFETY: as above, under an exclusive borrow of the element.
        unsafe { pointer.write(value) };
        let flushed = buffer.flush(range);
        buffer.unborrow(id);
        flushed
    }
}

thread_local! {
    static SCALARS_ALLOWED: Cell<u32> = const { Cell::new(0) };
}

/// Permission to touch single elements of private arrays on this thread, for tests; ends with its
/// scope, also on a panic.
#[must_use = "the permission ends when it is dropped"]
#[derive(Debug)]
pub struct ScalarPermission {
    thread: PhantomData<*const ()>,
}

/// Lets this thread read and write single elements of private arrays while the result lives
/// (rule E.3). Each access copies through the device: for tests, not for programs.
///
/// ```
/// use aquifer::prelude::*;
/// let a = Array::<f32, Private>::ones(&Device::cpu()?, [3])?;
/// assert!(a.get_scalar(1).is_err());
/// {
///     let _permission = aquifer::allow_scalar();
///     assert_eq!(a.get_scalar(1)?, 1.0);
/// }
/// assert!(a.get_scalar(1).is_err());
/// # Ok::<(), aquifer::Error>(())
/// ```
pub fn allow_scalar() -> ScalarPermission {
    SCALARS_ALLOWED.set(SCALARS_ALLOWED.get() + 1);
    ScalarPermission { thread: PhantomData }
}

impl Drop for ScalarPermission {
    fn drop(&mut self) {
        SCALARS_ALLOWED.set(SCALARS_ALLOWED.get() - 1);
    }
}

impl<T: Element> Array<T, Private> {
    fn check_scalar(&self, what: &'static str) -> Result<()> {
        if SCALARS_ALLOWED.get() > 0 { Ok(()) } else { Err(Error::new(Inner::Private { what })) }
    }

    /// One element of a private array, with [`allow_scalar`].
    ///
    /// # Errors
    /// `PrivateAccess` without the permission, `OutOfRange`, and what failed on the device.
    pub fn get_scalar(&self, index: impl Shape) -> Result<T> {
        self.check_scalar("get_scalar()")?;
        let place = place(self.dims(), self.len(), &index.dims())?;
        let element = self.slice(place..place + 1)?.to_vec()?;
        Ok(element.first().copied().unwrap_or_default())
    }

    /// Writes one element of a private array, with [`allow_scalar`].
    ///
    /// # Errors
    /// As [`get_scalar`](Self::get_scalar).
    pub fn set_scalar(&self, index: impl Shape, value: T) -> Result<()> {
        self.check_scalar("set_scalar()")?;
        let place = place(self.dims(), self.len(), &index.dims())?;
        self.slice(place..place + 1)?.write_from(&[value])
    }
}
