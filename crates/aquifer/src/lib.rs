//! Arrays in memory that the CPU and a device both see, the caching allocator under them, the
//! queues and kernels that work on them, memory-mapped checkpoints, and a true account of every
//! byte.
//!
//! ```
//! use aquifer::prelude::*;
//!
//! let device = Device::open()?;
//! let a = Array::<f32>::zeros(&device, [1024, 64])?;        // shared: CPU and device see it
//! let b = Array::<f32, Private>::rand(&device, [1024, 64])?; // the device's alone
//! a.set([0, 0], 1.0)?;                                       // CPU access by Rust's rules
//! let c = a.zip(&b)?.map(|(x, y)| (x + y).sin() * 2.0)?;     // one kernel, asynchronous
//! let total = c.sum()?.item()?;                              // waits for its own work only
//! assert!(total > 0.0);
//! println!("{}", device.memory());                           // every byte
//! # Ok::<(), aquifer::Error>(())
//! ```

mod access;
mod array;
mod buffer;
mod checkpoint;
mod compute;
mod copy;
mod create;
mod device;
mod error;
mod expr;
pub mod kernel;
mod label;
mod measure;
mod mode;
mod pool;
mod print;
mod queue;
mod safetensors;
mod shape;
mod stacks;
pub mod trace;
mod watch;
mod wrap;

pub use access::{ReadGuard, ScalarPermission, WriteGuard, allow_scalar};
pub use aquifer_backend as backend;
pub use aquifer_backend::{Dtype, Element, HostArgs};
pub use aquifer_core as core;
pub use aquifer_core::{LabelRow, MemoryStats, Reuse, Storage, format_bytes};
pub use array::Array;
pub use buffer::Origin;
pub use checkpoint::{Checkpoint, Tensor};
pub use compute::{FoldOutput, MapOutput, Zip2, Zip3, Zip4};
pub use create::{NormalElement, RandomElement};
pub use device::{Device, DeviceBuilder, DeviceEntry, RawMemory};
pub use error::{Error, ErrorKind, Result};
pub use expr::{Expr, Folded, IntoExpr, constant, index};
pub use half::{bf16, f16};
pub use kernel::{Kernel, KernelSource};
pub use label::Label;
pub use measure::{CountingAllocator, Measured, measure};
pub use mode::{CpuMode, Join, Mode, Private, Shared};
pub use queue::Queue;
pub use safetensors::FileDtype;
pub use shape::Shape;
pub use wrap::Scope;

/// What programs use most.
pub mod prelude {
    pub use crate::kernel::{self, KernelSource};
    pub use crate::{
        Array, Checkpoint, Device, Dtype, Error, ErrorKind, Expr, Label, Origin, Private, Result,
        Reuse, Shared, Storage, bf16, f16, measure,
    };
}
