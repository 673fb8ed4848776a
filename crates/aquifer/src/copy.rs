//! Copies (rules G.1, G.2): every pair of modes, sub-ranges by views, checked.

use aquifer_backend::{Command, Element};
use aquifer_core::Access;

use crate::array::Array;
use crate::buffer::Buffer;
use crate::error::{Error, ErrorKind, Result};
use crate::mode::{Mode, Shared};
use crate::queue;
use crate::shape::Dims;

/// Bytes of the staging buffer through which private memory is copied.
const STAGING: usize = 16 << 20;

impl<T: Element, M: Mode> Array<T, M> {
    fn check_len(&self, what: &str, len: usize) -> Result<()> {
        if len == self.len() {
            return Ok(());
        }
        Err(Error::message(
            ErrorKind::Shape,
            format!("{what} has {len} elements, but the array has {}", self.len()),
        ))
    }

    /// The elements on the heap, in order.
    ///
    /// # Errors
    /// `Borrowed` while a write guard lives, `Freed`, and what failed on the device.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut out = vec![T::default(); self.len()];
        self.read_into(&mut out)?;
        Ok(out)
    }

    /// Copies the elements to memory of the CPU.
    ///
    /// # Errors
    /// `Shape` where the lengths differ, and those of [`to_vec`](Self::to_vec).
    pub fn read_into(&self, out: &mut [T]) -> Result<()> {
        self.check_len("the destination", out.len())?;
        if self.is_shared() {
            let shared: Array<T, Shared> = self.as_mode(Shared);
            out.copy_from_slice(&shared.read()?);
            return Ok(());
        }
        let part = (STAGING / size_of::<T>()).min(self.len());
        if part == 0 {
            return self.check_alive();
        }
        let staging = Array::<T, Shared>::staging(self, part)?;
        for (index, out) in out.chunks_mut(part).enumerate() {
            let from = self.slice(index * part..index * part + out.len())?;
            let staging = staging.slice(..out.len())?;
            staging.copy_from(&from)?;
            out.copy_from_slice(&staging.read()?);
        }
        Ok(())
    }

    /// Copies elements from memory of the CPU into the array.
    ///
    /// # Errors
    /// `Shape` where the lengths differ, `ReadOnly`, `Borrowed` while a guard lives, `Freed`, and
    /// what failed on the device.
    pub fn write_from(&self, from: &[T]) -> Result<()> {
        self.check_len("the source", from.len())?;
        self.buffer().check_access(Access::Write)?;
        if self.is_shared() {
            let shared: Array<T, Shared> = self.as_mode(Shared);
            shared.write()?.copy_from_slice(from);
            return Ok(());
        }
        let part = (STAGING / size_of::<T>()).min(self.len());
        if part == 0 {
            return self.check_alive();
        }
        let staging = Array::<T, Shared>::staging(self, part)?;
        for (index, from) in from.chunks(part).enumerate() {
            let staging = staging.slice(..from.len())?;
            staging.write()?.copy_from_slice(from);
            self.slice(index * part..index * part + from.len())?.copy_from(&staging)?;
        }
        Ok(())
    }

    /// Copies all elements of another array, of any mode and any device. The two may overlap.
    ///
    /// # Errors
    /// `Shape` where the lengths differ, `ReadOnly`, `Borrowed` while a guard lives, `Freed`, and
    /// what failed on the device.
    pub fn copy_from<N: Mode>(&self, from: &Array<T, N>) -> Result<()> {
        self.check_len("the source", from.len())?;
        self.buffer().check_access(Access::Write)?;
        if self.is_empty() {
            from.check_alive()?;
            return self.check_alive();
        }
        if self.device() != from.device() {
            return self.copy_through_host(from);
        }
        if self.overlaps(from) {
            if self.bytes() == from.bytes() {
                return self.check_alive();
            }
            return self.copy_from(&from.copy()?);
        }
        let queue = queue::current(self.device())?;
        let command = Command::Copy { from: from.binding(), to: self.binding() };
        let touches = [from.touch(Access::Read), self.touch(Access::Write)];
        self.device().record(queue, command, &touches)
    }

    fn copy_through_host<N: Mode>(&self, from: &Array<T, N>) -> Result<()> {
        let part = STAGING / size_of::<T>();
        let mut host = vec![T::default(); part.min(self.len())];
        for start in (0..self.len()).step_by(part) {
            let end = (start + part).min(self.len());
            let host = &mut host[..end - start];
            from.slice(start..end)?.read_into(host)?;
            self.slice(start..end)?.write_from(host)?;
        }
        Ok(())
    }

    /// A new array of the same mode with the same elements.
    ///
    /// # Errors
    /// `OutOfMemory`, and those of [`copy_from`](Self::copy_from).
    pub fn copy(&self) -> Result<Self> {
        self.copy_in(self.mode())
    }

    /// A new array of another mode with the same elements.
    ///
    /// # Errors
    /// `OutOfMemory`, and those of [`copy_from`](Self::copy_from).
    pub fn copy_in<N: Mode>(&self, mode: N) -> Result<Array<T, N>> {
        let queue = queue::current(self.device())?;
        let new = Array::unfilled(self.device(), self.dims().clone(), mode, Some(queue))?;
        new.copy_from(self)?;
        Ok(new)
    }

    /// A new array on another device with the same elements.
    ///
    /// # Errors
    /// `OutOfMemory`, and those of [`copy_from`](Self::copy_from).
    pub fn copy_to<N: Mode>(&self, device: &crate::Device, mode: N) -> Result<Array<T, N>> {
        let queue = queue::current(device)?;
        let new = Array::unfilled(device, self.dims().clone(), mode, Some(queue))?;
        new.copy_from(self)?;
        Ok(new)
    }

    /// The same handle under a mode that names the same storage.
    pub(crate) fn as_mode<N: Mode>(&self, mode: N) -> Array<T, N> {
        debug_assert_eq!(self.storage(), mode.storage());
        self.share().with_mode(mode)
    }

    /// The error of a released array, for work on no elements.
    pub(crate) fn check_alive(&self) -> Result<()> {
        if self.buffer().tracker.is_released() {
            return Err(Error::new(crate::error::Inner::Freed));
        }
        Ok(())
    }
}

impl<T: Element> Array<T, Shared> {
    fn staging<M: Mode>(near: &Array<T, M>, len: usize) -> Result<Self> {
        let dims: Dims = smallvec::smallvec![len];
        let size = (len * size_of::<T>()) as u64;
        let buffer = Buffer::allocate(near.device(), size, aquifer_core::Storage::Shared, None)?;
        Self::over(buffer, dims, Shared)
    }
}
