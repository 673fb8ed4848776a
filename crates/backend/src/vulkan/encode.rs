//! Single calls as the driver's commands.

use aquifer_core::DriverError;
use ash::vk;

use super::calls::{Call, failed};
use super::driver::{Bindings, Driver};
use super::memory::Region;
use super::pipeline::VulkanPipeline;
use crate::gpu::{Held, KernelLimits, Place, Places, Range, Recorder};
use crate::seam::Binding;

/// Bytes that one update may write.
const UPDATE: usize = 64 << 10;

/// Where bindings lie, by the regions that are held.
pub(super) struct Ranges<'r> {
    pub(super) held: Held<'r, Region>,
    pub(super) driver: &'r Driver,
}

impl Places for Ranges<'_> {
    type Buffer = vk::Buffer;

    fn limits(&self) -> &KernelLimits {
        &self.driver.facts.limits.kernels
    }

    fn place(&self, binding: &Binding, offset: u64) -> Option<Place<vk::Buffer>> {
        self.held.get(binding.block)?.place(binding.offset.checked_add(offset)?)
    }
}

/// A command buffer that is being written.
pub(super) struct Commands<'r> {
    ranges: Ranges<'r>,
    raw: vk::CommandBuffer,
    /// What is bound.
    pipeline: vk::Pipeline,
}

impl<'r> Commands<'r> {
    pub(super) fn new(ranges: Ranges<'r>, raw: vk::CommandBuffer) -> Self {
        Self { ranges, raw, pipeline: vk::Pipeline::null() }
    }

    /// Makes what was written visible to the CPU once it is done.
    pub(super) fn finish(self) {
        self.ranges.driver.host_barrier(self.raw);
    }
}

impl Places for Commands<'_> {
    type Buffer = vk::Buffer;

    fn limits(&self) -> &KernelLimits {
        self.ranges.limits()
    }

    fn place(&self, binding: &Binding, offset: u64) -> Option<Place<vk::Buffer>> {
        self.ranges.place(binding, offset)
    }
}

impl Recorder for Commands<'_> {
    type Compiler = Driver;

    fn call(
        &mut self,
        pipeline: &VulkanPipeline,
        buffers: &[Range<vk::Buffer>],
        immediates: &[u8],
        groups: [u32; 3],
    ) -> Result<(), DriverError> {
        let (driver, raw) = (self.ranges.driver, &pipeline.raw);
        if self.pipeline != raw.pipeline {
            self.pipeline = raw.pipeline;
            driver.bind_pipeline(self.raw, raw);
        }
        let infos: Bindings = buffers
            .iter()
            .map(|range| vk::DescriptorBufferInfo {
                buffer: range.buffer,
                offset: range.offset,
                range: range.len,
            })
            .collect();
        driver.bind_buffers(self.raw, raw, &infos);
        driver.immediates(self.raw, raw, immediates);
        driver.dispatch(self.raw, groups);
        Ok(())
    }

    fn copy(
        &mut self,
        from: &Range<vk::Buffer>,
        to: &Range<vk::Buffer>,
    ) -> Result<(), DriverError> {
        let (source, target) = ((from.buffer, from.offset), (to.buffer, to.offset));
        self.ranges.driver.copy(self.raw, source, target, from.len);
        Ok(())
    }

    fn constants(
        &mut self,
        bytes: &[u8],
        scratch: Option<&Binding>,
    ) -> Result<Range<vk::Buffer>, DriverError> {
        let scratch = scratch.ok_or_else(Self::misfit)?;
        let start = self.place(scratch, 0).ok_or_else(Self::misfit)?;
        let len = bytes.len() as u64;
        if start.room < len {
            return Err(Self::misfit());
        }
        for (index, part) in bytes.chunks(UPDATE).enumerate() {
            let offset = start.offset + (index * UPDATE) as u64;
            self.ranges.driver.update(self.raw, start.buffer, offset, part);
        }
        // The scratch memory is this command's alone: the order inside it is not the core's.
        self.ranges.driver.barrier(self.raw);
        Ok(Range { buffer: start.buffer, offset: start.offset, len })
    }

    fn barrier(&mut self) -> Result<(), DriverError> {
        self.ranges.driver.barrier(self.raw);
        Ok(())
    }

    fn misfit() -> DriverError {
        failed(Call::QueueSubmit, vk::Result::ERROR_VALIDATION_FAILED_EXT)
    }
}
