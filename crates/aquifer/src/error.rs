//! The one error of the library (rule O.1).

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use aquifer_backend::{CompileError, Dtype, Failure, WaitError};
use aquifer_core::{Access, DriverError, Refusal};

/// `std::result::Result` whose error is this crate's [`Error`] unless another is named.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of thing went wrong: what a program can act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A request passes the memory limit, or the driver has no more.
    OutOfMemory,
    /// An array is larger than the device's largest buffer, or its size overflows.
    TooLarge,
    /// Shapes, ranges or element counts do not fit one another.
    Shape,
    /// An index or a range is outside the array.
    OutOfRange,
    /// An element type does not fit, or the device lacks it.
    Dtype,
    /// The CPU may not touch a private array.
    PrivateAccess,
    /// The array is read-only.
    ReadOnly,
    /// A guard of the CPU is in the way.
    Borrowed,
    /// The array has been released.
    Freed,
    /// Other handles share the array.
    Shared,
    /// Memory cannot be used in place, and a copy was not wanted.
    Import,
    /// An expression or a kernel is not valid.
    Kernel,
    /// Work failed on the device.
    Work,
    /// A wait's time is up.
    Timeout,
    /// The device is lost.
    Lost,
    /// A call of the driver failed.
    Backend,
    /// There is no such device.
    NoDevice,
    /// A name is not one of those there are.
    Name,
    /// A file is not what it should be.
    File,
    /// The operating system failed to read or map a file.
    Io,
    /// A limit is outside what the device allows.
    Limit,
}

/// Why a call failed. `kind()` is for programs; the message names the thing, the value and the
/// limit, and where it helps what to do next.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Debug)]
pub(crate) enum Inner {
    Refused(Refusal),
    Overflow { shape: Vec<usize>, element: usize },
    Message(ErrorKind, String),
    Guard { by: Access },
    Freed,
    Private { what: &'static str },
    Unsupported { dtype: Dtype, device: String },
    Work(Failure),
    Wait(WaitError),
    Driver(DriverError),
    File { path: PathBuf, tensor: Option<String>, reason: String },
    Io { path: PathBuf, source: std::io::Error },
}

impl Error {
    pub(crate) fn new(inner: Inner) -> Self {
        Self(Arc::new(inner))
    }

    pub(crate) fn message(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self::new(Inner::Message(kind, text.into()))
    }

    /// What kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        match &*self.0 {
            Inner::Refused(refusal) => match refusal.kind {
                aquifer_core::RefusalKind::TooLarge(_) => ErrorKind::TooLarge,
                _ => ErrorKind::OutOfMemory,
            },
            Inner::Overflow { .. } => ErrorKind::OutOfMemory,
            Inner::Message(kind, _) => *kind,
            Inner::Guard { .. } => ErrorKind::Borrowed,
            Inner::Freed => ErrorKind::Freed,
            Inner::Private { .. } => ErrorKind::PrivateAccess,
            Inner::Unsupported { .. } => ErrorKind::Dtype,
            Inner::Work(_) => ErrorKind::Work,
            Inner::Wait(WaitError::Timeout) => ErrorKind::Timeout,
            Inner::Wait(WaitError::Driver(_)) => ErrorKind::Backend,
            Inner::Wait(_) => ErrorKind::Lost,
            Inner::Driver(_) => ErrorKind::Backend,
            Inner::File { .. } => ErrorKind::File,
            Inner::Io { .. } => ErrorKind::Io,
        }
    }

    /// The refusal behind an `OutOfMemory` or `TooLarge` error: figures and holders.
    pub fn refusal(&self) -> Option<&Refusal> {
        match &*self.0 {
            Inner::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Inner::Refused(refusal) => write!(f, "{refusal}"),
            Inner::Overflow { shape, element } => write!(
                f,
                "out of memory: shape {shape:?} of {element}-byte elements overflows the address range"
            ),
            Inner::Message(_, text) => f.write_str(text),
            Inner::Guard { by: Access::Read } => f.write_str(
                "the array is borrowed by a read guard: drop the guard before work writes it",
            ),
            Inner::Guard { by: Access::Write } => f.write_str(
                "the array is borrowed by a write guard: drop the guard before anything else uses it",
            ),
            Inner::Freed => f.write_str("attempt to use a freed array"),
            Inner::Private { what } => write!(
                f,
                "{what} needs CPU access, but the array is private: copy it with to_vec() or copy_in(Shared)"
            ),
            Inner::Unsupported { dtype, device } => {
                write!(f, "the device {device} has no {dtype} arrays")
            }
            Inner::Work(failure) => {
                write!(f, "work '{}' failed: {}", failure.label, failure.reason)
            }
            Inner::Wait(WaitError::Timeout) => f.write_str("the time of the wait is up"),
            Inner::Wait(WaitError::Lost(error)) => write!(f, "the device is lost: {error}"),
            Inner::Wait(WaitError::Driver(error)) => write!(f, "{error}"),
            Inner::Wait(_) => f.write_str("the wait failed"),
            Inner::Driver(error) => write!(f, "{error}"),
            Inner::File { path, tensor: None, reason } => {
                write!(f, "{}: {reason}", path.display())
            }
            Inner::File { path, tensor: Some(tensor), reason } => {
                write!(f, "{}: tensor '{tensor}': {reason}", path.display())
            }
            Inner::Io { path, source } => write!(f, "{}: {source}", path.display()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}: {self})", self.kind())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &*self.0 {
            Inner::Refused(refusal) => Some(refusal),
            Inner::Driver(error)
            | Inner::Wait(WaitError::Lost(error) | WaitError::Driver(error)) => Some(error),
            Inner::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::new(Inner::Refused(refusal))
    }
}

impl From<DriverError> for Error {
    fn from(error: DriverError) -> Self {
        Self::new(Inner::Driver(error))
    }
}

impl From<CompileError> for Error {
    fn from(error: CompileError) -> Self {
        match error.driver {
            Some(driver) => driver.into(),
            None => Self::message(ErrorKind::Kernel, error.reason),
        }
    }
}

impl From<WaitError> for Error {
    fn from(error: WaitError) -> Self {
        Self::new(Inner::Wait(error))
    }
}
