//! What differs between devices, as data. Policy branches on these facts and never on the
//! name of an API.

use std::fmt;
use std::str::FromStr;

use crate::size::PAGE;

/// Where an array's memory may be touched (rules E.1, E.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Storage {
    /// The CPU and the device use the same memory.
    #[default]
    Shared,
    /// The device's alone: the CPU reaches it only through copies.
    Private,
}

impl Storage {
    /// Both modes, in the order of their index.
    pub const ALL: [Self; 2] = [Self::Shared, Self::Private];

    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Shared => "shared",
            Self::Private => "private",
        })
    }
}

/// A storage mode was asked for by a name that is not one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownStorage(String);

impl fmt::Display for UnknownStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.eq_ignore_ascii_case("managed") {
            f.write_str("storage mode 'managed' is not offered: use 'shared' or 'private'")
        } else {
            write!(f, "unknown storage mode '{}': use 'shared' or 'private'", self.0)
        }
    }
}

impl std::error::Error for UnknownStorage {}

impl FromStr for Storage {
    type Err = UnknownStorage;

    /// Reads `shared` or `private`, in any case.
    fn from_str(name: &str) -> Result<Self, UnknownStorage> {
        Self::ALL
            .into_iter()
            .find(|mode| mode.to_string().eq_ignore_ascii_case(name))
            .ok_or_else(|| UnknownStorage(name.to_owned()))
    }
}

/// Address space that is reserved once and backed by memory in granules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualMemory {
    /// Bytes of address space in one span; a multiple of `granule`.
    pub span: u64,
    /// Bytes that are committed and given back as one; a power of two, at least [`PAGE`].
    pub granule: u64,
}

/// The constant facts of a device that policy needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caps {
    /// The device's name, for messages.
    pub name: String,
    /// Bytes of the system's page: what mapped files are counted in.
    pub system_page: u64,
    /// Present where address space can be reserved and backed page by page.
    pub virtual_memory: Option<VirtualMemory>,
    /// Bytes of the largest buffer; a larger request is refused before the driver is called.
    pub largest_buffer: u64,
    /// Bytes of the largest single block that the driver gives.
    pub largest_block: u64,
    /// The CPU and the device share one physical memory.
    pub unified: bool,
    /// The CPU's writes are seen by the device without a flush.
    pub coherent: bool,
    /// Alignment in bytes of an address that may be imported without a copy; `None` where the
    /// device cannot import.
    pub import_alignment: Option<u64>,
    /// Mapped files may be imported too, not only the heap.
    pub imports_files: bool,
    /// Floats too small to be normal are kept; where not, they may be 0.
    pub subnormals: bool,
    /// The device can keep memory resident.
    pub can_wire: bool,
    /// It does so by whole blocks: a block is resident while any live part of it is to be.
    pub wires_blocks: bool,
    /// Alignment in bytes of an array that a kernel of the user's own is bound to; a view that lies
    /// otherwise is copied for it.
    pub binding_alignment: u64,
    /// Queues of the device that run side by side; more share them.
    pub queues: u32,
    /// Kernels of the user's own are closures, not a language that the device compiles.
    pub host_kernels: bool,
    /// Kernels of the user's own may be in Metal's language.
    pub msl_kernels: bool,
}

impl Caps {
    /// Facts of the model device that the core's own tests and examples use: 1 TiB of address
    /// space in granules of one [`PAGE`].
    pub fn model() -> Self {
        Self {
            name: "model".to_owned(),
            system_page: 4096,
            virtual_memory: Some(VirtualMemory { span: 1 << 40, granule: PAGE }),
            largest_buffer: 1 << 40,
            largest_block: 1 << 40,
            unified: true,
            coherent: true,
            import_alignment: Some(1),
            imports_files: true,
            subnormals: true,
            can_wire: true,
            wires_blocks: false,
            binding_alignment: 1,
            queues: u32::MAX,
            host_kernels: true,
            msl_kernels: false,
        }
    }

    /// The same device without virtual memory: blocks of at most `largest_block` bytes.
    pub fn model_with_blocks(largest_block: u64) -> Self {
        Self { virtual_memory: None, largest_block, ..Self::model() }
    }
}
