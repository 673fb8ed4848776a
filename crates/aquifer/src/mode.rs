//! Storage modes as types (rules E.1 to E.4).

use aquifer_core::Storage;

use crate::device::Device;

/// The mode of arrays that the CPU and the device both see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shared;

/// The mode of arrays that only the device sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Private;

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Shared {}
    impl Sealed for super::Private {}
    impl Sealed for aquifer_core::Storage {}
}

/// How an array's storage mode is known: by its type ([`Shared`], [`Private`]), or at run time
/// ([`Storage`]).
pub trait Mode: sealed::Sealed + Copy + std::fmt::Debug + Send + Sync + 'static {
    /// The storage mode.
    fn storage(self) -> Storage;
    /// The mode where none is given: the type's own, or the device's setting.
    fn of(device: &Device) -> Self;
    /// The mode of a result with this storage.
    fn known(storage: Storage) -> Self;
}

impl Mode for Shared {
    fn storage(self) -> Storage {
        Storage::Shared
    }

    fn of(_device: &Device) -> Self {
        Self
    }

    fn known(_storage: Storage) -> Self {
        Self
    }
}

impl Mode for Private {
    fn storage(self) -> Storage {
        Storage::Private
    }

    fn of(_device: &Device) -> Self {
        Self
    }

    fn known(_storage: Storage) -> Self {
        Self
    }
}

impl Mode for Storage {
    fn storage(self) -> Storage {
        self
    }

    fn of(device: &Device) -> Self {
        device.default_storage()
    }

    fn known(storage: Storage) -> Self {
        storage
    }
}

/// Modes whose arrays the CPU may touch: known to be so ([`Shared`]), or found out at run time
/// ([`Storage`], with the error `PrivateAccess`).
///
/// A private array has no `read`:
///
/// ```compile_fail
/// # use aquifer::prelude::*;
/// # fn main() -> aquifer::Result<()> {
/// let array = Array::<f32, Private>::zeros(&Device::cpu()?, [4])?;
/// let guard = array.read()?;
/// # Ok(()) }
/// ```
pub trait CpuMode: Mode {}

impl CpuMode for Shared {}
impl CpuMode for Storage {}

/// The mode of a result of two inputs: the same if they agree, [`Shared`] if they differ.
pub trait Join<Other: Mode>: Mode {
    /// The result's mode.
    type Output: Mode;
}

impl Join<Shared> for Shared {
    type Output = Shared;
}
impl Join<Private> for Private {
    type Output = Private;
}
impl Join<Private> for Shared {
    type Output = Shared;
}
impl Join<Shared> for Private {
    type Output = Shared;
}
impl Join<Storage> for Storage {
    type Output = Storage;
}
impl Join<Shared> for Storage {
    type Output = Storage;
}
impl Join<Private> for Storage {
    type Output = Storage;
}
impl Join<Storage> for Shared {
    type Output = Storage;
}
impl Join<Storage> for Private {
    type Output = Storage;
}

/// The storage of a result (rule E.4).
pub(crate) fn join(a: Storage, b: Storage) -> Storage {
    if a == b { a } else { Storage::Shared }
}
