//! A logical device: what is asked of it, and the facts that follow.

use std::ffi::CStr;
use std::sync::Arc;

use aquifer_core::Caps;
use ash::{ext, khr, vk};

use super::instance::{Instance, Physical, VulkanOptions, call, refuse};
use super::spirv::FloatControls;
use super::types::{self, Types};
use crate::apis::{Listed, OpenError};
use crate::gpu::{Copies, KernelLimits};
use crate::wgsl::{Features, MOST_WORDS};

/// Queues of the driver that ours are spread over.
const MOST_QUEUES: u32 = 8;
/// Bytes from which on a copy inside a discrete device's memory is a kernel: the copy commands of
/// an H200's driver reach 0.84 TB/s, a kernel 3.7.
const COPY_BY_KERNEL: u64 = 1 << 18;
/// Invocations of a workgroup of ours.
const GROUP: u32 = 256;

/// What the driver allows.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    pub(super) kernels: KernelLimits,
    /// Bytes of one allocation.
    pub(super) block: u64,
    /// Bytes of each heap.
    pub(super) heaps: Vec<u64>,
    /// Alignment of memory that is imported; `None` where it cannot be.
    pub(super) import_alignment: Option<u64>,
    /// Bytes that non-coherent memory is flushed in.
    pub(super) atom: u64,
    /// Heap budgets are told by the driver.
    pub(super) budget: bool,
}

/// All that is known of a device before it does anything.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) caps: Caps,
    pub(super) limits: Limits,
    pub(super) types: Types,
    /// What imported memory may be.
    pub(super) host_visible: Vec<types::MemoryType>,
    pub(super) features: Features,
    pub(super) floats: [(u32, FloatControls); 2],
    pub(super) family: u32,
    pub(super) queues: u32,
}

/// The newest drivers' own description of themselves, and what is asked of the device.
struct Wanted {
    features: vk::PhysicalDeviceFeatures,
    names: Vec<*const std::ffi::c_char>,
    import_alignment: Option<u64>,
    budget: bool,
    controls: [(u32, FloatControls); 2],
    largest_block: u64,
    push_descriptors: u32,
}

fn wanted(instance: &Instance, physical: &Physical) -> Result<Wanted, OpenError> {
    let name = physical.name();
    if physical.properties.api_version < vk::API_VERSION_1_2 {
        return refuse(format!("{name}: its driver is older than Vulkan 1.2"));
    }
    if !physical.offers(khr::push_descriptor::NAME) {
        return refuse(format!("{name}: its driver lacks VK_KHR_push_descriptor"));
    }
    let mut timeline = vk::PhysicalDeviceTimelineSemaphoreFeatures::default();
    let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut timeline);
    // SAFETY: the physical device is the instance's; the chain is of structures for this call.
    unsafe { instance.raw.get_physical_device_features2(physical.raw, &mut features) };
    let has = features.features;
    if timeline.timeline_semaphore == vk::FALSE {
        return refuse(format!("{name}: its driver lacks timeline semaphores"));
    }
    let imports = physical.offers(ext::external_memory_host::NAME);
    let mut host = vk::PhysicalDeviceExternalMemoryHostPropertiesEXT::default();
    let mut floats = vk::PhysicalDeviceFloatControlsProperties::default();
    let mut maintenance = vk::PhysicalDeviceMaintenance3Properties::default();
    let mut properties =
        vk::PhysicalDeviceProperties2::default().push_next(&mut floats).push_next(&mut maintenance);
    let mut push = vk::PhysicalDevicePushDescriptorPropertiesKHR::default();
    properties = properties.push_next(&mut push);
    if imports {
        properties = properties.push_next(&mut host);
    }
    // SAFETY: as above; the host structure is chained only where its extension is there.
    unsafe { instance.raw.get_physical_device_properties2(physical.raw, &mut properties) };
    let mut names = vec![khr::push_descriptor::NAME.as_ptr()];
    let budget = physical.offers(ext::memory_budget::NAME);
    let optional: [(&CStr, bool); 3] = [
        (ext::external_memory_host::NAME, imports),
        (ext::memory_budget::NAME, budget),
        // Where it is offered it must be asked for.
        (khr::portability_subset::NAME, physical.offers(khr::portability_subset::NAME)),
    ];
    names.extend(optional.iter().filter(|(_, offered)| *offered).map(|(name, _)| name.as_ptr()));
    let control = |denormals: vk::Bool32, specials: vk::Bool32| FloatControls {
        denormals: denormals == vk::TRUE,
        specials: specials == vk::TRUE,
    };
    let mut narrow = control(
        floats.shader_denorm_preserve_float32,
        floats.shader_signed_zero_inf_nan_preserve_float32,
    );
    let mut wide = control(
        floats.shader_denorm_preserve_float64,
        floats.shader_signed_zero_inf_nan_preserve_float64,
    );
    if floats.denorm_behavior_independence == vk::ShaderFloatControlsIndependence::NONE {
        let both = narrow.denormals && wide.denormals;
        (narrow.denormals, wide.denormals) = (both, both);
    }
    let alignment = host.min_imported_host_pointer_alignment;
    Ok(Wanted {
        features: vk::PhysicalDeviceFeatures::default()
            .shader_int64(has.shader_int64 == vk::TRUE)
            .shader_float64(has.shader_float64 == vk::TRUE),
        names,
        import_alignment: (imports && alignment.is_power_of_two()).then_some(alignment),
        budget,
        controls: [(32, narrow), (64, wide)],
        largest_block: maintenance.max_memory_allocation_size,
        push_descriptors: push.max_push_descriptors,
    })
}

/// The family with the most compute queues, and how many of them are used.
fn family(instance: &Instance, physical: &Physical) -> Option<(u32, u32)> {
    // SAFETY: the physical device is the instance's.
    let families =
        unsafe { instance.raw.get_physical_device_queue_family_properties(physical.raw) };
    let computes =
        |family: &vk::QueueFamilyProperties| family.queue_flags.contains(vk::QueueFlags::COMPUTE);
    let best = families
        .iter()
        .enumerate()
        .rev()
        .filter(|(_, family)| computes(family))
        .max_by_key(|(_, family)| family.queue_count)?;
    Some((best.0 as u32, best.1.queue_count.min(MOST_QUEUES)))
}

/// Opens a device; its buffers' memory types are found by a buffer of its own kind.
pub(super) fn open(
    instance: &Arc<Instance>,
    physical: &Physical,
    options: &VulkanOptions,
) -> Result<(ash::Device, Facts), OpenError> {
    let wanted = wanted(instance, physical)?;
    let Some((family, queues)) = family(instance, physical) else {
        return refuse(format!("{}: it has no compute queue", physical.name()));
    };
    let priorities = [1.0; MOST_QUEUES as usize];
    let queue = [vk::DeviceQueueCreateInfo::default()
        .queue_family_index(family)
        .queue_priorities(&priorities[..queues as usize])];
    let mut timeline =
        vk::PhysicalDeviceTimelineSemaphoreFeatures::default().timeline_semaphore(true);
    let create = vk::DeviceCreateInfo::default()
        .queue_create_infos(&queue)
        .enabled_extension_names(&wanted.names)
        .enabled_features(&wanted.features)
        .push_next(&mut timeline);
    // SAFETY: extensions and features are those that the device has just said it offers; what
    // the structures point to lives through the call.
    let device = unsafe { instance.raw.create_device(physical.raw, &create, None) }
        .map_err(call("vkCreateDevice"))?;
    match facts(instance, physical, &device, (&wanted, options), (family, queues)) {
        Ok(facts) => Ok((device, facts)),
        Err(error) => {
            // SAFETY: nothing of the device is left.
            unsafe { device.destroy_device(None) };
            Err(error)
        }
    }
}

/// Memory types that buffers of ours may have.
fn buffer_types(device: &ash::Device) -> Result<u32, OpenError> {
    let create = vk::BufferCreateInfo::default().size(4096).usage(super::driver::USAGE);
    // SAFETY: a plain buffer of a legal size.
    let buffer = unsafe { device.create_buffer(&create, None) }.map_err(call("vkCreateBuffer"))?;
    // SAFETY: the buffer is alive.
    let needs = unsafe { device.get_buffer_memory_requirements(buffer) };
    // SAFETY: the buffer is not used by anything.
    unsafe { device.destroy_buffer(buffer, None) };
    Ok(needs.memory_type_bits)
}

fn kernel_limits(
    physical: &Physical,
    (wanted, options): (&Wanted, &VulkanOptions),
    unified: bool,
) -> KernelLimits {
    let limits = &physical.properties.limits;
    let range = u64::from(limits.max_storage_buffer_range);
    KernelLimits {
        range: range.min(options.largest_range.unwrap_or(u64::MAX)),
        align: limits.min_storage_buffer_offset_alignment.max(options.alignment.unwrap_or(16)),
        bindings: limits
            .max_per_stage_descriptor_storage_buffers
            .min(limits.max_descriptor_set_storage_buffers)
            .min(wanted.push_descriptors),
        immediates: limits.max_push_constants_size,
        groups: limits.max_compute_work_group_count,
        invocations: limits.max_compute_work_group_invocations,
        workgroup: limits.max_compute_work_group_size,
        workgroup_bytes: limits.max_compute_shared_memory_size,
        copies: match (options.copy_by_kernel, unified) {
            (true, _) => Copies::Kernel,
            // Where all memory is one, the driver's copies are the processor's own.
            (false, true) => Copies::Driver,
            (false, false) => Copies::LongByKernel(COPY_BY_KERNEL),
        },
    }
}

fn facts(
    instance: &Instance,
    physical: &Physical,
    device: &ash::Device,
    (wanted, options): (&Wanted, &VulkanOptions),
    (family, queues): (u32, u32),
) -> Result<Facts, OpenError> {
    let limits = &physical.properties.limits;
    // SAFETY: the physical device is the instance's.
    let table = unsafe { instance.raw.get_physical_device_memory_properties(physical.raw) };
    let integrated = matches!(
        physical.properties.device_type,
        vk::PhysicalDeviceType::INTEGRATED_GPU | vk::PhysicalDeviceType::CPU
    );
    let Some(types) = types::choose(&table, buffer_types(device)?, integrated) else {
        return refuse(format!("{}: none of its memory is visible to the CPU", physical.name()));
    };
    let heaps: Vec<u64> = table.memory_heaps[..table.memory_heap_count as usize]
        .iter()
        .map(|heap| heap.size)
        .collect();
    let block = wanted.largest_block.min(options.largest_block.unwrap_or(u64::MAX));
    let limits = Limits {
        kernels: kernel_limits(physical, (wanted, options), types.unified),
        // Whole pages of the pool's.
        block: block / aquifer_core::size::PAGE * aquifer_core::size::PAGE,
        import_alignment: wanted.import_alignment.filter(|_| !options.no_import),
        atom: limits.non_coherent_atom_size.max(1),
        budget: wanted.budget,
        heaps,
    };
    let most = physical.properties.limits.max_compute_work_group_invocations;
    let group = GROUP.min(most).min(physical.properties.limits.max_compute_work_group_size[0]);
    let features = Features {
        int64: wanted.features.shader_int64 == vk::TRUE,
        float64: wanted.features.shader_float64 == vk::TRUE,
        words: (limits.kernels.immediates as usize / 4).min(MOST_WORDS),
        // A power of two, for the trees of folds.
        group: 1 << group.max(32).ilog2(),
    };
    let heap = |kind: types::MemoryType| limits.heaps[kind.heap as usize];
    let caps = Caps {
        name: physical.name(),
        system_page: rustix::param::page_size() as u64,
        virtual_memory: None,
        largest_buffer: heap(types.private).max(heap(types.shared)),
        largest_block: limits.block,
        unified: types.unified,
        coherent: types.shared.coherent(),
        import_alignment: limits.import_alignment,
        // A driver of a card's own memory refuses them at best.
        imports_files: types.unified && limits.import_alignment.is_some(),
        subnormals: wanted.controls.iter().all(|(_, controls)| controls.denormals),
        can_wire: false,
        wires_blocks: false,
        binding_alignment: limits.kernels.align,
        queues,
        host_kernels: false,
        msl_kernels: false,
    };
    Ok(Facts {
        caps,
        limits,
        types,
        host_visible: types::host_visible(&table),
        features,
        floats: wanted.controls,
        family,
        queues,
    })
}

/// A device as it is listed.
pub(super) fn describe(instance: &Instance, physical: &Physical) -> Listed {
    let mut driver = vk::PhysicalDeviceDriverProperties::default();
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut driver);
    if physical.properties.api_version >= vk::API_VERSION_1_2 {
        // SAFETY: the physical device is the instance's; the structure is of version 1.2.
        unsafe { instance.raw.get_physical_device_properties2(physical.raw, &mut properties) };
    }
    let text = |name: Result<&CStr, _>| {
        name.map_or_else(
            |_: std::ffi::FromBytesUntilNulError| String::new(),
            |name| name.to_string_lossy().into_owned(),
        )
    };
    let driver =
        format!("{} {}", text(driver.driver_name_as_c_str()), text(driver.driver_info_as_c_str()));
    // SAFETY: as above.
    let table = unsafe { instance.raw.get_physical_device_memory_properties(physical.raw) };
    let heaps = &table.memory_heaps[..table.memory_heap_count as usize];
    let local = heaps.iter().filter(|heap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
    Listed {
        name: physical.name(),
        kind: physical.kind(),
        driver: Some(driver.trim().to_owned()),
        memory: local.map(|heap| heap.size).max().unwrap_or(0),
    }
}
