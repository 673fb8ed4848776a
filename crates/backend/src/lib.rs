//! The seam between aquifer's policy and the APIs that have memory and queues, and the back ends
//! behind it.
//!
//! A back end implements [`Memory`](aquifer_core::Memory) and [`Backend`]; it only gets and gives
//! back memory, runs batches of commands, and says how far its queues have come. Wrappers in
//! [`adaptors`] make any of them fail, slow, small or dirty, for tests.

pub mod adaptors;
mod apis;
mod cpu;
mod dtype;
mod element;
mod gpu;
pub mod ir;
// What differs between Apple's systems (and a stand-in for them) and all others is here.
#[cfg_attr(not(any(target_vendor = "apple", metal_stand_in)), path = "missing.rs")]
mod metal;
// `MTLCreateSystemDefaultDevice` needs it.
#[cfg(target_vendor = "apple")]
#[link(name = "CoreGraphics", kind = "framework")]
unsafe extern "C" {}
mod queues;
mod reaper;
mod seam;
mod system;
mod vulkan;
mod wgsl;

/// Where this crate's files are, as debug information names them.
#[doc(hidden)]
pub const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src");

pub use apis::{Api, Listed, OpenError, apis};
pub use cpu::{Cpu, HostArgs};
pub use dtype::Dtype;
pub use element::Element;
pub use metal::Metal;
pub use seam::{
    Argument, Backend, Batch, Binding, Budget, Command, CompileError, Dispatch, Failure,
    HostKernel, ImportError, Language, Pipeline, Program, Signature, Source, WaitError,
};
pub use system::is_own_user;
pub use vulkan::{DriverCalls, Vulkan, VulkanOptions};
pub use wgsl::source::signature;
