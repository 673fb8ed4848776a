//! Checkpoints: files of tensors, mapped and used in place (rules L.1, L.2, L.4).

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aquifer_backend::{Dtype, Element, ImportError};
use aquifer_core::{Block, ByteRange, MappingId, Storage, size::mapping_size};
use memmap2::Mmap;

use crate::array::Array;
use crate::buffer::{Buffer, Origin};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Inner, Result};
use crate::mode::Shared;
use crate::safetensors::{Entry, FileDtype, parse};
use crate::shape::Shape;

/// A file that is mapped, counted and named as a block, until the last array of it is gone.
struct Mapping {
    device: Device,
    map: Mmap,
    file: File,
    path: PathBuf,
    block: Option<Block>,
    /// Why it is not used in place.
    refused: Option<String>,
    counted: Option<MappingId>,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.device.0.backend.forget(block);
        }
        if let Some(counted) = self.counted.take() {
            self.device.pool().unmap(&*self.device.0.backend, counted);
        }
    }
}

impl Mapping {
    fn error(&self, tensor: Option<&str>, reason: impl Into<String>) -> Error {
        Error::new(Inner::File {
            path: self.path.clone(),
            tensor: tensor.map(str::to_owned),
            reason: reason.into(),
        })
    }
}

/// A safetensors file whose tensors are arrays, mapped and not read: opening costs milliseconds
/// and no memory, whatever its size. It counts whole in `mapped`, as long as it or an array of it
/// lives.
///
/// The file must not be written or cut short while it is mapped. A file that has become shorter
/// is an error when a tensor is next asked for; touching pages that are gone in between ends the
/// process (`SIGBUS`), which no library can prevent.
///
/// ```no_run
/// use aquifer::prelude::*;
/// let device = Device::open()?;
/// let model = Checkpoint::open(&device, "model.safetensors")?;
/// for tensor in model.tensors() {
///     println!("{} {} {:?}", tensor.name(), tensor.dtype(), tensor.shape());
/// }
/// let weight = model.array::<f32>("embeddings.weight")?; // in place, read-only
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct Checkpoint {
    mapping: Arc<Mapping>,
    entries: Vec<Entry>,
}

/// One tensor of a checkpoint.
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    checkpoint: &'a Checkpoint,
    entry: &'a Entry,
}

impl Checkpoint {
    /// Maps a safetensors file.
    ///
    /// # Errors
    /// `Io` where it cannot be opened or mapped, `File` where it is not a valid safetensors file
    /// (naming the tensor), `OutOfMemory` where `active + mapped` would pass the memory limit.
    /// Nothing has changed then.
    pub fn open(device: &Device, path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_path_buf();
        let io = |source| Error::new(Inner::Io { path: path.clone(), source });
        let bad = |tensor, reason| Error::new(Inner::File { path: path.clone(), tensor, reason });
        let file = File::open(&path).map_err(io)?;
        let meta = file.metadata().map_err(io)?;
        if meta.is_dir() {
            return Err(bad(None, "it is a folder: name the .safetensors file in it".to_owned()));
        }
        let len = meta.len();
        if len < 8 {
            return Err(bad(None, format!("{len} bytes are too few for a safetensors file")));
        }
        // SAFETY: the mapping is read-only and private to this process's view of the file; that
        // no one shortens or rewrites the file meanwhile is the documented condition above, which
        // every use of a mapped file has.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        let entries = parse(&map).map_err(|fault| bad(fault.tensor, fault.reason))?;
        let size = mapping_size(len, device.caps().system_page)
            .ok_or_else(|| bad(None, format!("{len} bytes overflow the address range")))?;
        let mut mapping = Mapping {
            device: device.clone(),
            map,
            file,
            path,
            block: None,
            refused: None,
            counted: None,
        };
        let address = mapping.map.as_ptr().cast_mut();
        let imported = match device.caps().imports_files {
            // SAFETY: the map stays until the mapping is dropped, which forgets the block first; it
            // is only ever bound as an input, since its buffers are read-only.
            true => unsafe { device.0.backend.import(address, len) },
            false => Err(ImportError::Unsupported("the device cannot use mapped files in place")),
        };
        match imported {
            Ok(block) => mapping.block = Some(block),
            // Each tensor that is used is copied, and says why.
            Err(error) => mapping.refused = Some(crate::wrap::reason(&error)),
        }
        let name = mapping.block.as_ref().map(|block| block.id);
        let counted = device.pool().map(&*device.0.backend, size, name);
        // Outside the pool's lock: an error drops the mapping, which takes the lock again.
        mapping.counted = Some(counted?);
        Ok(Self { mapping: Arc::new(mapping), entries })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.mapping.path
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.mapping.device
    }

    /// The tensors, in the order of the file's header.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        self.entries.iter().map(|entry| Tensor { checkpoint: self, entry })
    }

    /// A tensor by name.
    ///
    /// # Errors
    /// `Name` where there is none, with the nearest name.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>> {
        let found = self.entries.iter().find(|entry| entry.name == name);
        found.map(|entry| Tensor { checkpoint: self, entry }).ok_or_else(|| {
            let common =
                |other: &str| name.chars().zip(other.chars()).take_while(|(a, b)| a == b).count();
            let near = self.entries.iter().max_by_key(|entry| common(&entry.name));
            let hint =
                near.map_or_else(String::new, |near| format!("; the nearest is '{}'", near.name));
            Error::message(
                ErrorKind::Name,
                format!(
                    "{}: no tensor '{name}' among {}{hint}",
                    self.path().display(),
                    self.entries.len()
                ),
            )
        })
    }

    /// A tensor as an array: in place and read-only, or copied alone where its place in the file
    /// is not aligned for its elements (`origin()` says so).
    ///
    /// # Errors
    /// `Name` where there is none of the name, `Dtype` where its elements are not `T`, `File`
    /// where the file has become shorter or a bool is neither 0 nor 1, `OutOfMemory` for a copy.
    pub fn array<T: Element>(&self, name: &str) -> Result<Array<T>> {
        self.tensor(name)?.array()
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoint")
            .field("path", &self.path())
            .field("tensors", &self.entries.len())
            .finish()
    }
}

impl<'a> Tensor<'a> {
    /// The name.
    pub fn name(&self) -> &'a str {
        &self.entry.name
    }

    /// The element type, in the file's spelling.
    pub fn dtype(&self) -> FileDtype {
        self.entry.dtype
    }

    /// The lengths of the axes.
    pub fn shape(&self) -> &'a [usize] {
        &self.entry.shape
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.entry.len
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.entry.len == 0
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.entry.size
    }

    /// Where an array of it has its memory.
    pub fn origin(&self) -> Origin {
        if let Some(reason) = &self.checkpoint.mapping.refused
            && !self.is_empty()
        {
            return Origin::Copied(reason.clone());
        }
        let align = self.entry.dtype.size() as u64;
        if self.entry.offset.is_multiple_of(align) || self.is_empty() {
            return Origin::Mapped;
        }
        Origin::Copied(format!(
            "byte {} of the file is not aligned to the {align} bytes of {}",
            self.entry.offset,
            self.dtype()
        ))
    }

    /// The tensor as an array; see [`Checkpoint::array`].
    ///
    /// # Errors
    /// As [`Checkpoint::array`], without `Name`.
    pub fn array<T: Element>(&self) -> Result<Array<T>> {
        let (mapping, entry) = (&self.checkpoint.mapping, self.entry);
        let wrong = |reason: String| mapping.error(Some(&entry.name), reason);
        if entry.dtype.dtype() != Some(T::DTYPE) {
            return Err(Error::message(
                ErrorKind::Dtype,
                format!(
                    "{}: tensor '{}' has {} elements, not {}",
                    mapping.path.display(),
                    entry.name,
                    entry.dtype,
                    T::DTYPE
                ),
            ));
        }
        let device = &mapping.device;
        device.check_dtype(T::DTYPE)?;
        let now = mapping
            .file
            .metadata()
            .map_err(|source| Error::new(Inner::Io { path: mapping.path.clone(), source }))?;
        if now.len() < entry.offset + entry.size {
            return Err(wrong(format!(
                "the file has become shorter: {} bytes are left",
                now.len()
            )));
        }
        let dims = entry.shape.dims();
        let bytes = &mapping.map[entry.offset as usize..(entry.offset + entry.size) as usize];
        if T::DTYPE == Dtype::Bool && bytes.iter().any(|&byte| byte > 1) {
            return Err(wrong("a bool is neither 0 nor 1".to_owned()));
        }
        let origin = self.origin();
        let block = mapping.block.as_ref();
        if let (Origin::Mapped, Some(block)) = (&origin, block) {
            let place = (block.id, entry.offset, block.address);
            let buffer = Buffer::mapped(device, place, entry.size, Arc::clone(mapping) as _);
            return Array::over(buffer, dims, Shared);
        }
        let buffer = Buffer::allocate(device, entry.size, Storage::Shared, None)?;
        let buffer = buffer.with_origin(origin, true);
        // SAFETY: the buffer was just allocated with the tensor's size, in shared memory that no
        // work uses; no handle of it exists yet.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.address() as *mut u8, bytes.len());
        }
        buffer.flush(ByteRange { start: 0, end: entry.size })?;
        Array::over(buffer, dims, Shared)
    }
}

impl fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {} {:?})", self.name(), self.dtype(), self.shape())
    }
}
