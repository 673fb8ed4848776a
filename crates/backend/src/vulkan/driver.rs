//! Every call into the driver, in one place.
//!
//! The one idea: handles never leave this back end, and each has one owner that destroys it once, when
//! no work uses it. So the calls are safe functions here, under these invariants:
//! 1. A handle that is passed in was made by this driver and is not destroyed. Buffers and memory
//!    belong to a region, semaphores, pools and command buffers to a queue, pipelines and layouts
//!    to a program; each destroys its own after the last work on it is done.
//! 2. A command buffer is recorded under the lock of its queue, and not while it is pending.
//! 3. Offsets, ranges and sizes lie inside what they are of: regions and cuts compute them so.
//!
//! A call that fails is told by name and code; one that says that the device is lost ends everything.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use aquifer_core::DriverError;
use ash::{ext, khr, vk};

use super::calls::{Call, DriverCalls, failed};
use super::device::Facts;
use super::instance::{Instance, Physical};

/// What every buffer is used for.
pub(super) const USAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::STORAGE_BUFFER.as_raw()
        | vk::BufferUsageFlags::TRANSFER_SRC.as_raw()
        | vk::BufferUsageFlags::TRANSFER_DST.as_raw(),
);

const HOST: vk::ExternalMemoryHandleTypeFlags =
    vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;

/// An open device.
pub(super) struct Driver {
    raw: ash::Device,
    push: khr::push_descriptor::Device,
    host: ext::external_memory_host::Device,
    queues: Vec<Mutex<vk::Queue>>,
    pub(super) facts: Facts,
    pub(super) calls: DriverCalls,
    lost: OnceLock<DriverError>,
    cache: vk::PipelineCache,
    physical: vk::PhysicalDevice,
    pub(super) instance: Arc<Instance>,
}

/// What a kernel is bound to.
pub(super) type Bindings = smallvec::SmallVec<[vk::DescriptorBufferInfo; 16]>;

/// A pipeline and its layouts.
#[derive(Clone, Copy, Debug)]
pub(super) struct RawPipeline {
    pub(super) pipeline: vk::Pipeline,
    pub(super) layout: vk::PipelineLayout,
    set: vk::DescriptorSetLayout,
}

impl Driver {
    pub(super) fn new(
        instance: Arc<Instance>,
        physical: &Physical,
        (raw, facts): (ash::Device, Facts),
    ) -> Self {
        let queues = (0..facts.queues)
            // SAFETY: the device was made with so many queues of this family.
            .map(|index| Mutex::new(unsafe { raw.get_device_queue(facts.family, index) }))
            .collect();
        let create = vk::PipelineCacheCreateInfo::default();
        // SAFETY: an empty cache. Without it pipelines compile all the same.
        let cache = unsafe { raw.create_pipeline_cache(&create, None) }.unwrap_or_default();
        Self {
            push: khr::push_descriptor::Device::new(&instance.raw, &raw),
            host: ext::external_memory_host::Device::new(&instance.raw, &raw),
            queues,
            facts,
            calls: DriverCalls::default(),
            lost: OnceLock::new(),
            cache,
            physical: physical.raw,
            raw,
            instance,
        }
    }

    /// Makes a call, unless it is to fail or the device is lost.
    fn call<T>(
        &self,
        call: Call,
        make: impl FnOnce() -> Result<T, vk::Result>,
    ) -> Result<T, DriverError> {
        if self.lost.get().is_some() {
            return Err(failed(call, vk::Result::ERROR_DEVICE_LOST));
        }
        self.calls.count(call).and_then(|()| make()).map_err(|result| {
            let error = failed(call, result);
            if result == vk::Result::ERROR_DEVICE_LOST {
                self.lose(error.clone());
            }
            error
        })
    }

    /// The device is lost: waits until it touches no memory any more, then says so to all.
    fn lose(&self, error: DriverError) {
        self.wait_idle();
        let _ = self.lost.set(error);
    }

    /// Waits until the device does nothing. Before handles of queues are destroyed it is more than
    /// their timelines say: a driver's own thread may still be at what it has just signalled.
    pub(super) fn wait_idle(&self) {
        let held: Vec<_> = self.queues.iter().map(lock).collect();
        // SAFETY: no queue is in use: their locks are held. It returns also of a lost device.
        let _ = unsafe { self.raw.device_wait_idle() };
        drop(held);
    }

    /// What lost the device.
    pub(super) fn lost(&self) -> Option<&DriverError> {
        self.lost.get()
    }

    // Memory.

    pub(super) fn create_buffer(&self, size: u64, host: bool) -> Result<vk::Buffer, DriverError> {
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(HOST);
        let mut create = vk::BufferCreateInfo::default().size(size).usage(USAGE);
        if host {
            create = create.push_next(&mut external);
        }
        self.call(Call::CreateBuffer, || {
            // SAFETY: `size` is not 0, the usage is legal, and external memory is asked for only
            // where the extension was enabled.
            unsafe { self.raw.create_buffer(&create, None) }
        })
    }

    pub(super) fn destroy_buffer(&self, buffer: vk::Buffer) {
        // SAFETY: invariant 1.
        unsafe { self.raw.destroy_buffer(buffer, None) };
    }

    pub(super) fn requirements(&self, buffer: vk::Buffer) -> vk::MemoryRequirements {
        // SAFETY: invariant 1.
        unsafe { self.raw.get_buffer_memory_requirements(buffer) }
    }

    pub(super) fn allocate(&self, size: u64, kind: u32) -> Result<vk::DeviceMemory, DriverError> {
        let info = vk::MemoryAllocateInfo::default().allocation_size(size).memory_type_index(kind);
        self.call(Call::AllocateMemory, || {
            // SAFETY: the type is one of the device's.
            unsafe { self.raw.allocate_memory(&info, None) }
        })
    }

    /// Memory types that host memory at an address may be imported as.
    pub(super) fn host_types(&self, address: u64) -> Result<u32, DriverError> {
        let mut properties = vk::MemoryHostPointerPropertiesEXT::default();
        self.call(Call::GetMemoryHostPointerPropertiesEXT, || {
            // SAFETY: called only where the extension was enabled; the address is aligned for it
            // and inside memory that is mapped (contract of `Backend::import`).
            let result = unsafe {
                (self.host.fp().get_memory_host_pointer_properties_ext)(
                    self.host.device(),
                    HOST,
                    address as *const std::ffi::c_void,
                    &raw mut properties,
                )
            };
            result.result()
        })?;
        Ok(properties.memory_type_bits)
    }

    /// Names host memory as device memory.
    pub(super) fn import(
        &self,
        address: u64,
        size: u64,
        kind: u32,
    ) -> Result<vk::DeviceMemory, DriverError> {
        let mut host = vk::ImportMemoryHostPointerInfoEXT::default()
            .handle_type(HOST)
            .host_pointer(address as *mut std::ffi::c_void);
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(size)
            .memory_type_index(kind)
            .push_next(&mut host);
        self.call(Call::AllocateMemory, || {
            // SAFETY: address and size are multiples of the import alignment, the memory is mapped
            // until the region goes (contract of `Backend::import`), and the type is one that the
            // driver named for the address.
            unsafe { self.raw.allocate_memory(&info, None) }
        })
    }

    pub(super) fn bind(
        &self,
        buffer: vk::Buffer,
        memory: vk::DeviceMemory,
    ) -> Result<(), DriverError> {
        self.call(Call::BindBufferMemory, || {
            // SAFETY: invariant 1; the memory was made for this buffer's size and types.
            unsafe { self.raw.bind_buffer_memory(buffer, memory, 0) }
        })
    }

    /// The CPU's address of a whole allocation.
    pub(super) fn map(&self, memory: vk::DeviceMemory) -> Result<u64, DriverError> {
        self.call(Call::MapMemory, || {
            let flags = vk::MemoryMapFlags::empty();
            // SAFETY: invariant 1; the type is visible to the CPU, and it is mapped once.
            unsafe { self.raw.map_memory(memory, 0, vk::WHOLE_SIZE, flags) }
        })
        .map(|address| address as u64)
    }

    pub(super) fn free(&self, memory: vk::DeviceMemory) {
        // SAFETY: invariant 1; freeing ends its mapping too.
        unsafe { self.raw.free_memory(memory, None) };
    }

    /// Writes the CPU's cache back, or drops it, over whole atoms.
    pub(super) fn sync(
        &self,
        memory: vk::DeviceMemory,
        (offset, len): (u64, u64),
        flush: bool,
    ) -> Result<(), DriverError> {
        let range = [vk::MappedMemoryRange::default().memory(memory).offset(offset).size(len)];
        if flush {
            self.call(Call::FlushMappedMemoryRanges, || {
                // SAFETY: invariants 1 and 3; the memory is mapped and the range whole atoms.
                unsafe { self.raw.flush_mapped_memory_ranges(&range) }
            })
        } else {
            self.call(Call::InvalidateMappedMemoryRanges, || {
                // SAFETY: as for the flush.
                unsafe { self.raw.invalidate_mapped_memory_ranges(&range) }
            })
        }
    }

    /// Bytes that the driver lets this process use of each heap, where it says so.
    pub(super) fn budgets(&self) -> Option<Vec<u64>> {
        if !self.facts.limits.budget {
            return None;
        }
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let mut table = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
        // SAFETY: the physical device is the instance's; the extension was enabled.
        unsafe {
            self.instance.raw.get_physical_device_memory_properties2(self.physical, &mut table);
        };
        Some(budget.heap_budget[..self.facts.limits.heaps.len()].to_vec())
    }

    // Queues.

    pub(super) fn create_timeline(&self) -> Result<vk::Semaphore, DriverError> {
        let mut kind = vk::SemaphoreTypeCreateInfo::default()
            .semaphore_type(vk::SemaphoreType::TIMELINE)
            .initial_value(0);
        let create = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        self.call(Call::CreateSemaphore, || {
            // SAFETY: timeline semaphores are enabled.
            unsafe { self.raw.create_semaphore(&create, None) }
        })
    }

    pub(super) fn destroy_semaphore(&self, semaphore: vk::Semaphore) {
        // SAFETY: invariant 1.
        unsafe { self.raw.destroy_semaphore(semaphore, None) };
    }

    pub(super) fn counter(&self, semaphore: vk::Semaphore) -> Result<u64, DriverError> {
        self.call(Call::GetSemaphoreCounterValue, || {
            // SAFETY: invariant 1.
            unsafe { self.raw.get_semaphore_counter_value(semaphore) }
        })
    }

    /// Whether a timeline reached a value within a time.
    pub(super) fn wait(
        &self,
        semaphore: vk::Semaphore,
        value: u64,
        nanoseconds: u64,
    ) -> Result<bool, DriverError> {
        let (semaphores, values) = ([semaphore], [value]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        let waited = self.call(Call::WaitSemaphores, || {
            // SAFETY: invariant 1.
            match unsafe { self.raw.wait_semaphores(&info, nanoseconds) } {
                Err(vk::Result::TIMEOUT) => Ok(false),
                other => other.map(|()| true),
            }
        })?;
        Ok(waited)
    }

    pub(super) fn create_pool(&self) -> Result<vk::CommandPool, DriverError> {
        let create = vk::CommandPoolCreateInfo::default()
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER)
            .queue_family_index(self.facts.family);
        self.call(Call::CreateCommandPool, || {
            // SAFETY: the family is the one that the device was made with.
            unsafe { self.raw.create_command_pool(&create, None) }
        })
    }

    pub(super) fn destroy_pool(&self, pool: vk::CommandPool) {
        // SAFETY: invariant 1; its command buffers go with it.
        unsafe { self.raw.destroy_command_pool(pool, None) };
    }

    pub(super) fn command_buffer(
        &self,
        pool: vk::CommandPool,
    ) -> Result<vk::CommandBuffer, DriverError> {
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(pool)
            .level(vk::CommandBufferLevel::PRIMARY)
            .command_buffer_count(1);
        let made = self.call(Call::AllocateCommandBuffers, || {
            // SAFETY: invariants 1 and 2: the pool is used under its queue's lock.
            unsafe { self.raw.allocate_command_buffers(&info) }
        })?;
        Ok(made.first().copied().unwrap_or_default())
    }

    pub(super) fn free_command_buffer(&self, pool: vk::CommandPool, commands: vk::CommandBuffer) {
        // SAFETY: invariants 1 and 2; it is of this pool and not pending.
        unsafe { self.raw.free_command_buffers(pool, &[commands]) };
    }

    pub(super) fn begin(&self, commands: vk::CommandBuffer) -> Result<(), DriverError> {
        let info = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        self.call(Call::BeginCommandBuffer, || {
            // SAFETY: invariants 1 and 2; its pool lets it be begun again.
            unsafe { self.raw.begin_command_buffer(commands, &info) }
        })
    }

    pub(super) fn end(&self, commands: vk::CommandBuffer) -> Result<(), DriverError> {
        self.call(Call::EndCommandBuffer, || {
            // SAFETY: invariant 2; it was begun.
            unsafe { self.raw.end_command_buffer(commands) }
        })
    }

    /// Submits commands to the driver's queue of this index: after `waits`, then `signal`.
    pub(super) fn submit(
        &self,
        index: usize,
        commands: vk::CommandBuffer,
        waits: &[(vk::Semaphore, u64)],
        (semaphore, ticket): (vk::Semaphore, u64),
    ) -> Result<(), DriverError> {
        let (semaphores, values): (Vec<_>, Vec<_>) = waits.iter().copied().unzip();
        let stages = vec![vk::PipelineStageFlags::ALL_COMMANDS; waits.len()];
        let (signals, tickets, commands) = ([semaphore], [ticket], [commands]);
        let mut timeline = vk::TimelineSemaphoreSubmitInfo::default()
            .wait_semaphore_values(&values)
            .signal_semaphore_values(&tickets);
        let info = [vk::SubmitInfo::default()
            .wait_semaphores(&semaphores)
            .wait_dst_stage_mask(&stages)
            .command_buffers(&commands)
            .signal_semaphores(&signals)
            .push_next(&mut timeline)];
        self.call(Call::QueueSubmit, || {
            let queue = lock(&self.queues[index % self.queues.len()]);
            // SAFETY: invariants 1 and 2; the queue's lock is held; tickets of a timeline rise.
            unsafe { self.raw.queue_submit(*queue, &info, vk::Fence::null()) }
        })
    }

    // Pipelines.

    /// A pipeline over a kernel's code, bound to buffers at these places.
    pub(super) fn create_pipeline(
        &self,
        code: &[u32],
        entry: &std::ffi::CStr,
        bindings: u32,
        immediates: u32,
    ) -> Result<RawPipeline, DriverError> {
        let set = self.create_set_layout(bindings)?;
        let layout = self.create_layout(set, immediates).inspect_err(|_| {
            // SAFETY: just made and used by nothing.
            unsafe { self.raw.destroy_descriptor_set_layout(set, None) };
        })?;
        let undone = |_: &DriverError| {
            // SAFETY: as above.
            unsafe { self.raw.destroy_pipeline_layout(layout, None) };
            // SAFETY: as above.
            unsafe { self.raw.destroy_descriptor_set_layout(set, None) };
        };
        let create = vk::ShaderModuleCreateInfo::default().code(code);
        let module = self
            .call(Call::CreateShaderModule, || {
                // SAFETY: the code is valid SPIR-V, written from a validated module.
                unsafe { self.raw.create_shader_module(&create, None) }
            })
            .inspect_err(undone)?;
        let stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .name(entry);
        let create = [vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout)];
        let made = self.call(Call::CreateComputePipelines, || {
            // SAFETY: the layout has the bindings and immediates that the code names.
            unsafe { self.raw.create_compute_pipelines(self.cache, &create, None) }
                .map_err(|(_, result)| result)
        });
        // SAFETY: the pipeline keeps what it needs of the module.
        unsafe { self.raw.destroy_shader_module(module, None) };
        let pipeline = made.inspect_err(undone)?.first().copied().unwrap_or_default();
        Ok(RawPipeline { pipeline, layout, set })
    }

    fn create_set_layout(&self, bindings: u32) -> Result<vk::DescriptorSetLayout, DriverError> {
        let bindings: Vec<_> = (0..bindings)
            .map(|binding| {
                vk::DescriptorSetLayoutBinding::default()
                    .binding(binding)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .descriptor_count(1)
                    .stage_flags(vk::ShaderStageFlags::COMPUTE)
            })
            .collect();
        let create = vk::DescriptorSetLayoutCreateInfo::default()
            .flags(vk::DescriptorSetLayoutCreateFlags::PUSH_DESCRIPTOR_KHR)
            .bindings(&bindings);
        self.call(Call::CreateDescriptorSetLayout, || {
            // SAFETY: push descriptors are enabled; the count was checked against the limit.
            unsafe { self.raw.create_descriptor_set_layout(&create, None) }
        })
    }

    fn create_layout(
        &self,
        set: vk::DescriptorSetLayout,
        immediates: u32,
    ) -> Result<vk::PipelineLayout, DriverError> {
        let sets = [set];
        let ranges = [vk::PushConstantRange::default()
            .stage_flags(vk::ShaderStageFlags::COMPUTE)
            .size(immediates)];
        let mut create = vk::PipelineLayoutCreateInfo::default().set_layouts(&sets);
        if immediates > 0 {
            create = create.push_constant_ranges(&ranges);
        }
        self.call(Call::CreatePipelineLayout, || {
            // SAFETY: the set layout is alive; the size was checked against the limit.
            unsafe { self.raw.create_pipeline_layout(&create, None) }
        })
    }

    pub(super) fn destroy_pipeline(&self, raw: RawPipeline) {
        // SAFETY: invariant 1.
        unsafe { self.raw.destroy_pipeline(raw.pipeline, None) };
        // SAFETY: invariant 1.
        unsafe { self.raw.destroy_pipeline_layout(raw.layout, None) };
        // SAFETY: invariant 1.
        unsafe { self.raw.destroy_descriptor_set_layout(raw.set, None) };
    }

    // Recording.

    pub(super) fn bind_pipeline(&self, commands: vk::CommandBuffer, pipeline: &RawPipeline) {
        // SAFETY: invariants 1 and 2.
        unsafe {
            self.raw.cmd_bind_pipeline(commands, vk::PipelineBindPoint::COMPUTE, pipeline.pipeline);
        }
    }

    /// Binds buffers, in order, at these places.
    pub(super) fn bind_buffers(
        &self,
        commands: vk::CommandBuffer,
        pipeline: &RawPipeline,
        buffers: &Bindings,
    ) {
        let writes: smallvec::SmallVec<[vk::WriteDescriptorSet<'_>; 16]> = buffers
            .iter()
            .zip(0..)
            .map(|(buffer, binding)| {
                vk::WriteDescriptorSet::default()
                    .dst_binding(binding)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .buffer_info(std::slice::from_ref(buffer))
            })
            .collect();
        // SAFETY: invariants 1 to 3; the layout has these bindings.
        unsafe {
            self.push.cmd_push_descriptor_set(
                commands,
                vk::PipelineBindPoint::COMPUTE,
                pipeline.layout,
                0,
                &writes,
            );
        }
    }

    pub(super) fn immediates(
        &self,
        commands: vk::CommandBuffer,
        pipeline: &RawPipeline,
        bytes: &[u8],
    ) {
        if bytes.is_empty() {
            return;
        }
        // SAFETY: invariants 1 and 2; the layout's range is as long as the bytes.
        unsafe {
            self.raw.cmd_push_constants(
                commands,
                pipeline.layout,
                vk::ShaderStageFlags::COMPUTE,
                0,
                bytes,
            );
        }
    }

    pub(super) fn dispatch(&self, commands: vk::CommandBuffer, [x, y, z]: [u32; 3]) {
        // SAFETY: invariant 2; the counts were checked against the limits; what the pipeline needs
        // is bound.
        unsafe { self.raw.cmd_dispatch(commands, x, y, z) };
    }

    pub(super) fn copy(
        &self,
        commands: vk::CommandBuffer,
        (from, from_offset): (vk::Buffer, u64),
        (to, to_offset): (vk::Buffer, u64),
        size: u64,
    ) {
        let region = [vk::BufferCopy { src_offset: from_offset, dst_offset: to_offset, size }];
        // SAFETY: invariants 1 to 3; the ranges do not overlap (`Command::Copy`).
        unsafe { self.raw.cmd_copy_buffer(commands, from, to, &region) };
    }

    /// Writes up to 64 KiB of whole words.
    pub(super) fn update(
        &self,
        commands: vk::CommandBuffer,
        buffer: vk::Buffer,
        offset: u64,
        bytes: &[u8],
    ) {
        // SAFETY: invariants 1 to 3; offset and size are multiples of 4.
        unsafe { self.raw.cmd_update_buffer(commands, buffer, offset, bytes) };
    }

    /// What comes before is done and visible to what comes after.
    pub(super) fn barrier(&self, commands: vk::CommandBuffer) {
        let writes = vk::AccessFlags::SHADER_WRITE | vk::AccessFlags::TRANSFER_WRITE;
        let all = writes | vk::AccessFlags::SHADER_READ | vk::AccessFlags::TRANSFER_READ;
        let stages = vk::PipelineStageFlags::COMPUTE_SHADER | vk::PipelineStageFlags::TRANSFER;
        self.memory_barrier(commands, (stages, writes), (stages, all));
    }

    /// What comes before is visible to the CPU once it is done.
    pub(super) fn host_barrier(&self, commands: vk::CommandBuffer) {
        let writes = vk::AccessFlags::SHADER_WRITE | vk::AccessFlags::TRANSFER_WRITE;
        let stages = vk::PipelineStageFlags::COMPUTE_SHADER | vk::PipelineStageFlags::TRANSFER;
        let host = (vk::PipelineStageFlags::HOST, vk::AccessFlags::HOST_READ);
        self.memory_barrier(commands, (stages, writes), host);
    }

    fn memory_barrier(
        &self,
        commands: vk::CommandBuffer,
        (from, wrote): (vk::PipelineStageFlags, vk::AccessFlags),
        (to, uses): (vk::PipelineStageFlags, vk::AccessFlags),
    ) {
        let barrier = [vk::MemoryBarrier::default().src_access_mask(wrote).dst_access_mask(uses)];
        let flags = vk::DependencyFlags::empty();
        // SAFETY: invariant 2; stages and accesses fit a compute queue.
        unsafe { self.raw.cmd_pipeline_barrier(commands, from, to, flags, &barrier, &[], &[]) };
    }
}

/// A queue of the driver, whose holder may have panicked: a handle has no state to break.
fn lock(queue: &Mutex<vk::Queue>) -> std::sync::MutexGuard<'_, vk::Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Driver {
    fn drop(&mut self) {
        // SAFETY: whoever owned a handle had the driver too: all are destroyed.
        unsafe { self.raw.destroy_pipeline_cache(self.cache, None) };
        // SAFETY: as above.
        unsafe { self.raw.destroy_device(None) };
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("facts", &self.facts).finish_non_exhaustive()
    }
}
