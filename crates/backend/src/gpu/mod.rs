//! What the back ends share whose devices run compiled kernels over buffers: which calls a dispatch
//! becomes, what their arguments are, and how a batch is written.
//!
//! The one idea: all of it is arithmetic over [`Place`]s and [`KernelLimits`]. A back end compiles a
//! [`Text`], says where bytes lie, and writes single calls ([`Recorder`]).

pub(crate) mod cut;
mod encode;
mod program;
mod segments;
mod table;

use std::fmt::Debug;
use std::sync::Arc;

use aquifer_core::{Caps, DriverError};
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::ModuleInfo;
use naga::{Module, TypeInner};

pub(crate) use encode::{Encoder, How, waits};
pub(crate) use program::{Copiers, Expression, Program, User};
pub(crate) use segments::{Segment, Segments, overlapping};
pub(crate) use table::{Held, Table};

use crate::seam::{Binding, CompileError};
use crate::wgsl::Features;

/// How bytes are copied on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copies {
    /// By the driver's command.
    Driver,
    /// By a kernel where both ranges are aligned, in the device's own memory, and so many bytes
    /// long; else by the driver.
    LongByKernel(u64),
    /// By a kernel, always.
    Kernel,
}

/// What a device lets one kernel have.
#[derive(Clone, Debug)]
pub(crate) struct KernelLimits {
    /// Bytes of a range that it is bound to.
    pub(crate) range: u64,
    /// Alignment of such a range's offset, in bytes.
    pub(crate) align: u64,
    /// Buffers.
    pub(crate) bindings: u32,
    /// Bytes of immediates.
    pub(crate) immediates: u32,
    /// Workgroups along each axis.
    pub(crate) groups: [u32; 3],
    /// Invocations of a workgroup, in all and along each axis, and bytes of its memory.
    pub(crate) invocations: u32,
    pub(crate) workgroup: [u32; 3],
    pub(crate) workgroup_bytes: u32,
    pub(crate) copies: Copies,
}

/// A kernel's text that has been checked.
#[derive(Clone, Copy)]
pub(crate) struct Text<'t> {
    pub(crate) module: &'t Module,
    pub(crate) info: &'t ModuleInfo,
    pub(crate) entry: &'t str,
    /// It is ours: its accesses lie inside their buffers by the numbers that it is called with. A
    /// user's are checked in the code.
    pub(crate) own: bool,
    /// Buffers, numbered from 0.
    pub(crate) bindings: u32,
    /// Bytes of immediates: whole words.
    pub(crate) immediates: u32,
}

/// A device's compiler.
pub(crate) trait Compiler: Debug + Send + Sync + 'static {
    /// What a text becomes; freed when it is dropped.
    type Pipeline: Debug + Send + Sync + 'static;

    fn caps(&self) -> &Caps;
    fn features(&self) -> Features;
    fn limits(&self) -> &KernelLimits;
    fn compile(self: &Arc<Self>, text: &Text<'_>) -> Result<Self::Pipeline, CompileError>;
    /// Whether a text may have failed for the size of its workgroup.
    fn may_be_too_large(_error: &CompileError) -> bool {
        false
    }
    /// Invocations that a workgroup of a pipeline may have, where that is known only now.
    fn most_invocations(_pipeline: &Self::Pipeline) -> u32 {
        u32::MAX
    }
}

/// A place in a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place<B> {
    pub(crate) buffer: B,
    pub(crate) offset: u64,
    /// Bytes from here to the end of the buffer.
    pub(crate) room: u64,
    /// It is the device's own memory.
    pub(crate) local: bool,
}

/// Bytes of a buffer.
#[derive(Clone, Debug)]
pub(crate) struct Range<B> {
    pub(crate) buffer: B,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// Where bindings lie.
pub(crate) trait Places {
    type Buffer: Clone;

    fn limits(&self) -> &KernelLimits;
    /// The place of a byte of a binding; `None` where there is no such byte.
    fn place(&self, binding: &Binding, offset: u64) -> Option<Place<Self::Buffer>>;
}

impl<P: Places> cut::Rooms for P {
    fn room(&self, binding: &Binding, offset: u64) -> Option<(u64, bool)> {
        let (place, limits) = (self.place(binding, offset)?, self.limits());
        let room = place.room.min(limits.range.saturating_sub(limits.align));
        Some((room, place.offset.is_multiple_of(limits.align)))
    }
}

/// Writes single calls, in order.
pub(crate) trait Recorder: Places {
    type Compiler: Compiler;

    /// One call of a kernel over so many workgroups.
    fn call(
        &mut self,
        pipeline: &<Self::Compiler as Compiler>::Pipeline,
        buffers: &[Range<Self::Buffer>],
        immediates: &[u8],
        groups: [u32; 3],
    ) -> Result<(), DriverError>;
    /// Copies bytes between ranges of one length; not called where all copies are kernels.
    fn copy(
        &mut self,
        _from: &Range<Self::Buffer>,
        _to: &Range<Self::Buffer>,
    ) -> Result<(), DriverError> {
        Err(Self::misfit())
    }
    /// A range that holds these bytes when the calls that follow run; `scratch` has room for them.
    fn constants(
        &mut self,
        bytes: &[u8],
        scratch: Option<&Binding>,
    ) -> Result<Range<Self::Buffer>, DriverError>;
    /// What comes before is done and visible before what comes after starts.
    fn barrier(&mut self) -> Result<(), DriverError>;
    /// What is wrong with a batch that should not have come here.
    fn misfit() -> DriverError;
}

/// What is done where an index may be out of range: nothing in texts of ours, whose accesses lie
/// inside their buffers; a user's read 0 and write nothing.
pub(crate) fn bounds(module: &Module, own: bool) -> BoundsCheckPolicies {
    let atomics = || {
        let atomic = |inner: &TypeInner| matches!(inner, TypeInner::Atomic(_));
        module.types.iter().any(|(_, kind)| atomic(&kind.inner))
    };
    let policy = match own {
        true => BoundsCheckPolicy::Unchecked,
        // Of atomics naga knows no other check than to take the nearest element.
        false if atomics() => BoundsCheckPolicy::Restrict,
        false => BoundsCheckPolicy::ReadZeroSkipWrite,
    };
    BoundsCheckPolicies { index: policy, buffer: policy, image_load: policy, binding_array: policy }
}
