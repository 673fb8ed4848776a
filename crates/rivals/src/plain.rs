//! A Vulkan device as a program without aquifer opens it, and the dispatches it would record.

use std::time::{Duration, Instant};

use ash::{khr, vk};

use crate::Fault;

/// Instance, device and one queue.
pub(crate) struct Plain {
    _entry: ash::Entry,
    pub(crate) instance: ash::Instance,
    pub(crate) physical: vk::PhysicalDevice,
    pub(crate) device: ash::Device,
    queue: vk::Queue,
}

impl Plain {
    pub(crate) fn open(index: usize) -> Result<Self, Fault> {
        // SAFETY: loading libvulkan has no conditions.
        let entry = unsafe { ash::Entry::load() }?;
        let info = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_2);
        let create = vk::InstanceCreateInfo::default().application_info(&info);
        // SAFETY: no layers or extensions are asked for.
        let instance = unsafe { entry.create_instance(&create, None) }?;
        // SAFETY: the instance is alive.
        let devices = unsafe { instance.enumerate_physical_devices() }?;
        let physical = *devices.get(index).ok_or("there is no such Vulkan device")?;
        // SAFETY: the physical device is the instance's.
        let families = unsafe { instance.get_physical_device_queue_family_properties(physical) };
        let computes = |family: &vk::QueueFamilyProperties| {
            family.queue_flags.contains(vk::QueueFlags::COMPUTE)
        };
        let family = families.iter().position(computes).ok_or("no compute queue")? as u32;
        let priorities = [1.0];
        let queues = [vk::DeviceQueueCreateInfo::default()
            .queue_family_index(family)
            .queue_priorities(&priorities)];
        let extensions = [khr::push_descriptor::NAME.as_ptr()];
        let create = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queues)
            .enabled_extension_names(&extensions);
        // SAFETY: the family is one of the device's; push descriptors are what ours needs too.
        let device = unsafe { instance.create_device(physical, &create, None) }?;
        // SAFETY: the device was made with one queue of this family.
        let queue = unsafe { device.get_device_queue(family, 0) };
        Ok(Self { _entry: entry, instance, physical, device, queue })
    }

    fn memory_type(&self, bits: u32) -> u32 {
        // SAFETY: the physical device is the instance's.
        let table = unsafe { self.instance.get_physical_device_memory_properties(self.physical) };
        let local = |index: &u32| {
            let flags = table.memory_types[*index as usize].property_flags;
            bits >> index & 1 == 1 && flags.contains(vk::MemoryPropertyFlags::DEVICE_LOCAL)
        };
        (0..table.memory_type_count).find(local).unwrap_or(0)
    }
}

const ADD: &str = "
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@compute @workgroup_size(256)
fn add(@builtin(global_invocation_id) id: vec3<u32>) {
    x[id.x] = x[id.x] + 1.0;
}";

/// Small dependent dispatches, recorded, submitted and waited for; what they need is made before.
pub(crate) struct Dispatches {
    plain: Plain,
    push: khr::push_descriptor::Device,
    pipeline: vk::Pipeline,
    layout: vk::PipelineLayout,
    buffer: vk::Buffer,
    commands: vk::CommandBuffer,
    fence: vk::Fence,
}

impl Dispatches {
    pub(crate) fn new(index: usize, len: u64) -> Result<Self, Fault> {
        let plain = Plain::open(index)?;
        let device = &plain.device;
        let create = vk::BufferCreateInfo::default()
            .size(len * 4)
            .usage(vk::BufferUsageFlags::STORAGE_BUFFER);
        // SAFETY: a plain buffer of a legal size.
        let buffer = unsafe { device.create_buffer(&create, None) }?;
        // SAFETY: the buffer is alive.
        let needs = unsafe { device.get_buffer_memory_requirements(buffer) };
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(needs.size)
            .memory_type_index(plain.memory_type(needs.memory_type_bits));
        // SAFETY: the type is one of the device's.
        let memory = unsafe { device.allocate_memory(&info, None) }?;
        // SAFETY: the memory was made for the buffer.
        unsafe { device.bind_buffer_memory(buffer, memory, 0) }?;
        let (pipeline, layout) = pipeline(device)?;
        let create = vk::CommandPoolCreateInfo::default()
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER);
        // SAFETY: family 0 has the queue on the devices that this runs on.
        let pool = unsafe { device.create_command_pool(&create, None) }?;
        let info =
            vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(1);
        // SAFETY: the pool is alive.
        let commands = unsafe { device.allocate_command_buffers(&info) }?[0];
        // SAFETY: a call without conditions.
        let fence = unsafe { device.create_fence(&vk::FenceCreateInfo::default(), None) }?;
        let push = khr::push_descriptor::Device::new(&plain.instance, device);
        Ok(Self { push, pipeline, layout, buffer, commands, fence, plain })
    }

    /// Records `count` dispatches with a barrier between each two, submits them and waits.
    pub(crate) fn run(&self, count: u32, groups: u32) -> Result<Duration, Fault> {
        let device = &self.plain.device;
        let start = Instant::now();
        let begin = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        // SAFETY: the buffer is not pending: its last run was waited for.
        unsafe { device.begin_command_buffer(self.commands, &begin) }?;
        let point = vk::PipelineBindPoint::COMPUTE;
        // SAFETY: the buffer is recording; the pipeline is alive.
        unsafe { device.cmd_bind_pipeline(self.commands, point, self.pipeline) };
        let bound = [vk::DescriptorBufferInfo::default().buffer(self.buffer).range(vk::WHOLE_SIZE)];
        let access = vk::AccessFlags::SHADER_READ | vk::AccessFlags::SHADER_WRITE;
        let barrier =
            [vk::MemoryBarrier::default().src_access_mask(access).dst_access_mask(access)];
        let stage = vk::PipelineStageFlags::COMPUTE_SHADER;
        let flags = vk::DependencyFlags::empty();
        for _ in 0..count {
            let writes = [vk::WriteDescriptorSet::default()
                .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                .buffer_info(&bound)];
            // SAFETY: the layout has this one binding.
            unsafe {
                self.push.cmd_push_descriptor_set(self.commands, point, self.layout, 0, &writes);
            };
            // SAFETY: what the pipeline needs is bound.
            unsafe { device.cmd_dispatch(self.commands, groups, 1, 1) };
            // SAFETY: stages and accesses fit a compute queue.
            unsafe {
                device.cmd_pipeline_barrier(self.commands, stage, stage, flags, &barrier, &[], &[]);
            };
        }
        // SAFETY: it was begun.
        unsafe { device.end_command_buffer(self.commands) }?;
        let commands = [self.commands];
        let info = [vk::SubmitInfo::default().command_buffers(&commands)];
        // SAFETY: the queue is used by this thread alone.
        unsafe { device.queue_submit(self.plain.queue, &info, self.fence) }?;
        // SAFETY: the fence is alive.
        unsafe { device.wait_for_fences(&[self.fence], true, u64::MAX) }?;
        // SAFETY: nothing waits for it any more.
        unsafe { device.reset_fences(&[self.fence]) }?;
        Ok(start.elapsed())
    }
}

fn pipeline(device: &ash::Device) -> Result<(vk::Pipeline, vk::PipelineLayout), Fault> {
    use naga::valid::{Capabilities, ValidationFlags, Validator};
    let module = naga::front::wgsl::parse_str(ADD).map_err(|error| error.emit_to_string(ADD))?;
    let info = Validator::new(ValidationFlags::all(), Capabilities::empty())
        .validate(&module)
        .map_err(|error| error.emit_to_string(ADD))?;
    let options = naga::back::spv::Options { lang_version: (1, 3), ..Default::default() };
    let code = naga::back::spv::write_vec(&module, &info, &options, None)?;
    let bindings = [vk::DescriptorSetLayoutBinding::default()
        .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
        .descriptor_count(1)
        .stage_flags(vk::ShaderStageFlags::COMPUTE)];
    let create = vk::DescriptorSetLayoutCreateInfo::default()
        .flags(vk::DescriptorSetLayoutCreateFlags::PUSH_DESCRIPTOR_KHR)
        .bindings(&bindings);
    // SAFETY: push descriptors are enabled.
    let sets = [unsafe { device.create_descriptor_set_layout(&create, None) }?];
    let create = vk::PipelineLayoutCreateInfo::default().set_layouts(&sets);
    // SAFETY: the set layout is alive.
    let layout = unsafe { device.create_pipeline_layout(&create, None) }?;
    let create = vk::ShaderModuleCreateInfo::default().code(&code);
    // SAFETY: the code is valid SPIR-V, written from a validated module.
    let module = unsafe { device.create_shader_module(&create, None) }?;
    let stage = vk::PipelineShaderStageCreateInfo::default()
        .stage(vk::ShaderStageFlags::COMPUTE)
        .module(module)
        .name(c"add");
    let create = [vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout)];
    let cache = vk::PipelineCache::null();
    // SAFETY: the layout has the binding that the code names.
    let made = unsafe { device.create_compute_pipelines(cache, &create, None) };
    Ok((made.map_err(|(_, error)| error)?[0], layout))
}
