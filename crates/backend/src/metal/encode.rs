//! Single calls in a command buffer of Metal's.
//!
//! The one idea: all work is in compute encoders that run their calls side by side, with a memory
//! barrier where the core says. What orders encoders is a fence of the queue's, which each waits for
//! and then updates, since Metal tracks no hazards of our buffers.

use std::ffi::c_void;
use std::ptr::NonNull;

use aquifer_core::DriverError;
use objc2::runtime::ProtocolObject;
use objc2_metal::{
    MTLBarrierScope, MTLCommandBuffer, MTLCommandEncoder, MTLComputeCommandEncoder, MTLDevice,
    MTLDispatchType, MTLFence,
};

use super::device::{Gpu, MetalPipeline, Object, nothing, size};
use super::memory::{Buffer, Region};
use crate::gpu::{Compiler, Held, KernelLimits, Place, Places, Range, Recorder};
use crate::seam::Binding;

/// Where bindings lie, by the regions that are held.
pub(super) struct Ranges<'r> {
    pub(super) held: Held<'r, Region>,
    pub(super) gpu: &'r Gpu,
}

impl Places for Ranges<'_> {
    type Buffer = Buffer;

    fn limits(&self) -> &KernelLimits {
        self.gpu.limits()
    }

    fn place(&self, binding: &Binding, offset: u64) -> Option<Place<Buffer>> {
        self.held.get(binding.block)?.place(binding.offset.checked_add(offset)?)
    }
}

/// A command buffer that is being written.
pub(super) struct Commands<'r> {
    ranges: Ranges<'r>,
    raw: &'r ProtocolObject<dyn MTLCommandBuffer>,
    fence: &'r ProtocolObject<dyn MTLFence>,
    /// Earlier commands update the fence.
    fenced: bool,
    /// Made with the first call.
    encoder: Option<Object<dyn MTLComputeCommandEncoder>>,
    /// What is bound.
    pipeline: Option<NonNull<MetalPipeline>>,
    /// Buffers that live until the commands are done.
    pub(super) kept: Vec<Buffer>,
}

impl<'r> Commands<'r> {
    pub(super) fn new(
        ranges: Ranges<'r>,
        raw: &'r ProtocolObject<dyn MTLCommandBuffer>,
        (fence, fenced): (&'r ProtocolObject<dyn MTLFence>, bool),
    ) -> Self {
        Self { ranges, raw, fence, fenced, encoder: None, pipeline: None, kept: Vec::new() }
    }

    fn encoder(&mut self) -> Result<Object<dyn MTLComputeCommandEncoder>, DriverError> {
        if let Some(encoder) = &self.encoder {
            return Ok(encoder.clone());
        }
        let encoder = self.raw.computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent);
        let encoder = encoder.ok_or_else(|| nothing("computeCommandEncoderWithDispatchType:"))?;
        if self.fenced {
            encoder.waitForFence(self.fence);
        }
        Ok(self.encoder.insert(encoder).clone())
    }

    /// Ends what was written. A batch without calls has an encoder too: by its fence the ticket comes
    /// after those before it.
    pub(super) fn end(&mut self) -> Result<(), DriverError> {
        let encoder = self.encoder()?;
        self.encoder = None;
        encoder.updateFence(self.fence);
        encoder.endEncoding();
        Ok(())
    }

    fn bind(
        &mut self,
        encoder: &ProtocolObject<dyn MTLComputeCommandEncoder>,
        pipeline: &MetalPipeline,
    ) {
        if self.pipeline == Some(NonNull::from(pipeline)) {
            return;
        }
        self.pipeline = Some(NonNull::from(pipeline));
        encoder.setComputePipelineState(&pipeline.state);
        for (index, bytes) in pipeline.threadgroup.iter().enumerate() {
            // SAFETY: the text has this piece of threadgroup memory; its length is a multiple of 16.
            unsafe { encoder.setThreadgroupMemoryLength_atIndex(*bytes as usize, index) };
        }
    }
}

fn set_bytes(encoder: &ProtocolObject<dyn MTLComputeCommandEncoder>, bytes: &[u8], index: u32) {
    // SAFETY: Metal copies the bytes before the call returns; at most 4 KiB, by the limit on
    // immediates and the number of buffers.
    unsafe {
        encoder.setBytes_length_atIndex(
            NonNull::from(bytes).cast::<c_void>(),
            bytes.len(),
            index as usize,
        );
    }
}

impl Drop for Commands<'_> {
    /// An encoder must be ended before it goes, also where its command buffer is given up.
    fn drop(&mut self) {
        if let Some(encoder) = self.encoder.take() {
            encoder.endEncoding();
        }
    }
}

impl Places for Commands<'_> {
    type Buffer = Buffer;

    fn limits(&self) -> &KernelLimits {
        self.ranges.limits()
    }

    fn place(&self, binding: &Binding, offset: u64) -> Option<Place<Buffer>> {
        self.ranges.place(binding, offset)
    }
}

impl Recorder for Commands<'_> {
    type Compiler = Gpu;

    fn call(
        &mut self,
        pipeline: &MetalPipeline,
        buffers: &[Range<Buffer>],
        immediates: &[u8],
        groups: [u32; 3],
    ) -> Result<(), DriverError> {
        let encoder = self.encoder()?;
        self.bind(&encoder, pipeline);
        for (range, index) in buffers.iter().zip(&pipeline.buffers) {
            let offset = usize::try_from(range.offset).map_err(|_| Self::misfit())?;
            // SAFETY: the range lies in the buffer, which lives until the ticket of this batch; the
            // text has a buffer of this number, and keeps inside it.
            unsafe {
                encoder.setBuffer_offset_atIndex(Some(&range.buffer.0), offset, *index as usize);
            }
        }
        for (index, start, len) in &pipeline.values {
            let (start, end) = (*start as usize, (*start + *len) as usize);
            set_bytes(&encoder, immediates.get(start..end).ok_or_else(Self::misfit)?, *index);
        }
        if let Some((index, which)) = &pipeline.sizes {
            let len = |buffer: &Option<u32>| {
                let range = buffer.and_then(|buffer| buffers.get(buffer as usize));
                range.map_or(0, |range| u32::try_from(range.len).unwrap_or(u32::MAX))
            };
            let lens: Vec<u32> = which.iter().map(len).collect();
            set_bytes(&encoder, bytemuck::cast_slice(&lens), *index);
        }
        encoder.dispatchThreadgroups_threadsPerThreadgroup(size(groups), pipeline.threads);
        Ok(())
    }

    fn constants(
        &mut self,
        bytes: &[u8],
        _scratch: Option<&Binding>,
    ) -> Result<Range<Buffer>, DriverError> {
        let options = Gpu::options(aquifer_core::Storage::Shared);
        // SAFETY: Metal copies the bytes before the call returns.
        let buffer = unsafe {
            self.ranges.gpu.raw.newBufferWithBytes_length_options(
                NonNull::from(bytes).cast::<c_void>(),
                bytes.len(),
                options,
            )
        };
        let buffer = Buffer(buffer.ok_or_else(|| nothing("newBufferWithBytes:length:options:"))?);
        self.kept.push(buffer.clone());
        Ok(Range { buffer, offset: 0, len: bytes.len() as u64 })
    }

    fn barrier(&mut self) -> Result<(), DriverError> {
        // Before the first call the fence is the barrier.
        if let Some(encoder) = &self.encoder {
            encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);
        }
        Ok(())
    }

    fn misfit() -> DriverError {
        DriverError { call: "commit", code: -1 }
    }
}
