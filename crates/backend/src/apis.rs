//! Every API that devices are reached by, best first; what differs between them is data.

use std::fmt;
use std::sync::Arc;

use crate::cpu::Cpu;
use crate::metal::Metal;
use crate::seam::Backend;
use crate::vulkan::Vulkan;

/// Why a device does not open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenError(String);

impl OpenError {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OpenError {}

/// A device as its API lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// `processor`, `discrete`, `integrated`, `virtual`, `software` or `other`.
    pub kind: &'static str,
    /// The driver's name and version, where there is one.
    pub driver: Option<String>,
    /// Bytes of the largest memory that it has.
    pub memory: u64,
}

type Opened = Result<Arc<dyn Backend>, OpenError>;

/// An API.
#[derive(Clone, Copy, Debug)]
pub struct Api {
    /// As `AQUIFER_DEVICE` takes it.
    pub name: &'static str,
    open: fn(Option<usize>) -> Opened,
    best: fn() -> Opened,
    list: fn() -> Result<Vec<Listed>, OpenError>,
}

impl Api {
    /// Opens the `index`-th device of [`list`](Self::list); by default the best.
    ///
    /// # Errors
    /// Why there is none.
    pub fn open(&self, index: Option<usize>) -> Opened {
        (self.open)(index)
    }

    /// Opens the device that is taken unasked: never a software driver.
    ///
    /// # Errors
    /// Why there is none.
    pub fn open_best(&self) -> Opened {
        (self.best)()
    }

    /// The devices there are.
    ///
    /// # Errors
    /// Why there is no list.
    pub fn list(&self) -> Result<Vec<Listed>, OpenError> {
        (self.list)()
    }
}

fn no_cuda() -> OpenError {
    OpenError::new("this build has no CUDA back end")
}

fn cpu(index: Option<usize>) -> Opened {
    match index {
        None | Some(0) => Ok(Cpu::open()),
        Some(_) => Err(OpenError::new("there is one CPU device, cpu:0")),
    }
}

/// Every API, in the order in which devices are taken unasked.
pub fn apis() -> &'static [Api] {
    &[
        Api {
            name: "metal",
            open: |index| Metal::open(index).map(|device| device as Arc<dyn Backend>),
            best: || Metal::open(None).map(|device| device as Arc<dyn Backend>),
            list: Metal::list,
        },
        Api {
            name: "cuda",
            open: |_| Err(no_cuda()),
            best: || Err(no_cuda()),
            list: || Err(no_cuda()),
        },
        Api {
            name: "vulkan",
            open: |index| Ok(Vulkan::open(index)?),
            best: || Ok(Vulkan::open_hardware()?),
            list: Vulkan::list,
        },
        Api { name: "cpu", open: cpu, best: || cpu(None), list: || Ok(vec![Cpu::listed()]) },
    ]
}
