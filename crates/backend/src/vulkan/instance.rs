//! The loader, the instance, and the devices behind it.

use std::ffi::{CStr, c_void};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use ash::{Entry, ext, vk};

use crate::apis::OpenError;

/// How a Vulkan device is opened.
#[derive(Clone, Debug, Default)]
pub struct VulkanOptions {
    /// Its place among [`Vulkan::list`](super::Vulkan::list); by default the best.
    pub index: Option<usize>,
    /// Opens it under the Khronos validation layer; its messages are collected, and printed on
    /// standard error.
    pub validation: bool,
    /// Bytes of the largest allocation, where it is to be less than the driver's.
    pub largest_block: Option<u64>,
    /// Bytes of the largest range that a kernel is bound to, where it is to be less.
    pub largest_range: Option<u64>,
    /// Alignment of bound ranges in bytes, a power of two, where it is to be more: 16 to 256.
    pub alignment: Option<u64>,
    /// Lets the device behave as if it could not import memory.
    pub no_import: bool,
    /// Copies by kernels only, as Metal does.
    pub copy_by_kernel: bool,
    /// Leaves every barrier out: for the test that shows that they are needed.
    pub no_barriers: bool,
}

pub(super) fn refuse<T>(reason: impl Into<String>) -> Result<T, OpenError> {
    Err(OpenError::new(reason))
}

pub(super) fn call(name: &'static str) -> impl Fn(vk::Result) -> OpenError {
    move |error| OpenError::new(format!("{name} failed with code {} ({error:?})", error.as_raw()))
}

/// Messages of the validation layer.
#[derive(Debug, Default)]
pub(super) struct Messages(Mutex<Vec<String>>);

impl Messages {
    pub(super) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// An instance; destroyed when the last of its owners is gone.
pub(super) struct Instance {
    /// Keeps the loaded library.
    _entry: Entry,
    pub(super) raw: ash::Instance,
    messenger: Option<(ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT)>,
    pub(super) messages: Arc<Messages>,
}

const VALIDATION: &CStr = c"VK_LAYER_KHRONOS_validation";

unsafe extern "system" fn message(
    _severity: vk::DebugUtilsMessageSeverityFlagsEXT,
    _kind: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    messages: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: the layer passes a valid structure for the length of the call.
    let data = unsafe { data.as_ref() };
    // SAFETY: the pointer is that of the instance's `Messages`, which outlive the messenger.
    let messages = unsafe { messages.cast::<Messages>().as_ref() };
    if let (Some(data), Some(messages)) = (data, messages) {
        // SAFETY: the message is null or a string that lives as long as the call.
        let text = (!data.p_message.is_null()).then(|| unsafe { CStr::from_ptr(data.p_message) });
        let text = text.map_or_else(String::new, |text| text.to_string_lossy().into_owned());
        // Whoever asked for the layer sees it at once, too.
        eprintln!("Vulkan: {text}");
        messages.0.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }
    vk::FALSE
}

/// Whether this system may have a device that is not software. Drivers of hardware work through
/// device nodes; where there is none, libvulkan and what it loads (50 MB with a software driver)
/// stay out of programs that did not ask for Vulkan.
pub(super) fn hardware_may_be_here() -> bool {
    const NODES: [&str; 8] = [
        "/dev/dri",
        "/dev/nvidiactl",
        "/dev/dxg",
        "/dev/kfd",
        "/dev/kgsl-3d0",
        "/dev/mali0",
        "/dev/nvhost-gpu",
        "/dev/nvgpu",
    ];
    !cfg!(target_os = "linux") || NODES.iter().any(|node| std::path::Path::new(node).exists())
}

fn load() -> Result<Entry, OpenError> {
    // SAFETY: loading libvulkan runs its initialisers, which have no conditions.
    unsafe { Entry::load() }.map_err(|error| {
        OpenError::new(format!("the Vulkan loader (libvulkan) is not here: {error}"))
    })
}

impl Instance {
    pub(super) fn open(validation: bool) -> Result<Self, OpenError> {
        let entry = load()?;
        // SAFETY: a call without conditions.
        let version = unsafe { entry.try_enumerate_instance_version() }
            .map_err(call("vkEnumerateInstanceVersion"))?
            .unwrap_or(vk::API_VERSION_1_0);
        if version < vk::API_VERSION_1_2 {
            return refuse("the Vulkan loader is older than version 1.2");
        }
        let info = vk::ApplicationInfo::default()
            .application_name(c"aquifer")
            .engine_name(c"aquifer")
            .api_version(vk::API_VERSION_1_2);
        // SAFETY: a call without conditions.
        let layers = unsafe { entry.enumerate_instance_layer_properties() }
            .map_err(call("vkEnumerateInstanceLayerProperties"))?;
        let has = |name: &CStr| layers.iter().any(|layer| layer.layer_name_as_c_str() == Ok(name));
        if validation && !has(VALIDATION) {
            return refuse(
                "the validation layer is not installed (Debian: vulkan-validationlayers)",
            );
        }
        // SAFETY: a call without conditions.
        let known = unsafe { entry.enumerate_instance_extension_properties(None) }
            .map_err(call("vkEnumerateInstanceExtensionProperties"))?;
        let offers = |name: &CStr| {
            known.iter().any(|extension| extension.extension_name_as_c_str() == Ok(name))
        };
        let mut names = Vec::new();
        if validation {
            names.push(ext::debug_utils::NAME.as_ptr());
        }
        let mut flags = vk::InstanceCreateFlags::empty();
        if offers(ash::khr::portability_enumeration::NAME) {
            // Drivers over another API, as MoltenVK, are listed only on request.
            names.push(ash::khr::portability_enumeration::NAME.as_ptr());
            flags |= vk::InstanceCreateFlags::ENUMERATE_PORTABILITY_KHR;
        }
        let layers = [VALIDATION.as_ptr()];
        let create = vk::InstanceCreateInfo::default()
            .flags(flags)
            .application_info(&info)
            .enabled_layer_names(if validation { &layers } else { &[] })
            .enabled_extension_names(&names);
        // SAFETY: the names are those of layers and extensions that were just listed (the debug
        // extension comes with the layer), all alive during the call.
        let raw =
            unsafe { entry.create_instance(&create, None) }.map_err(call("vkCreateInstance"))?;
        let messages = Arc::default();
        let mut instance = Self { _entry: entry, raw, messenger: None, messages };
        if validation {
            instance.listen()?;
        }
        Ok(instance)
    }

    /// Collects the layer's warnings and errors.
    fn listen(&mut self) -> Result<(), OpenError> {
        use vk::{
            DebugUtilsMessageSeverityFlagsEXT as Severity, DebugUtilsMessageTypeFlagsEXT as Kind,
        };
        let utils = ext::debug_utils::Instance::new(&self._entry, &self.raw);
        let create = vk::DebugUtilsMessengerCreateInfoEXT::default()
            .message_severity(Severity::WARNING | Severity::ERROR)
            .message_type(Kind::VALIDATION | Kind::PERFORMANCE)
            .pfn_user_callback(Some(message))
            .user_data(Arc::as_ptr(&self.messages).cast_mut().cast());
        // SAFETY: the callback and its data stay until the messenger is destroyed, in `drop`.
        let messenger = unsafe { utils.create_debug_utils_messenger(&create, None) }
            .map_err(call("vkCreateDebugUtilsMessengerEXT"))?;
        self.messenger = Some((utils, messenger));
        Ok(())
    }

    /// The devices that could be opened, those with memory of their own first, software last;
    /// otherwise in the loader's order.
    pub(super) fn devices(&self) -> Result<Vec<Physical>, OpenError> {
        // SAFETY: the instance is alive.
        let raw = unsafe { self.raw.enumerate_physical_devices() }
            .map_err(call("vkEnumeratePhysicalDevices"))?;
        let mut devices: Vec<Physical> =
            raw.into_iter().map(|raw| Physical::read(&self.raw, raw)).collect();
        devices.sort_by_key(|device| match device.properties.device_type {
            vk::PhysicalDeviceType::DISCRETE_GPU => 0,
            vk::PhysicalDeviceType::INTEGRATED_GPU => 1,
            vk::PhysicalDeviceType::VIRTUAL_GPU => 2,
            vk::PhysicalDeviceType::CPU => 4,
            _ => 3,
        });
        Ok(devices)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some((utils, messenger)) = self.messenger.take() {
            // SAFETY: made by this instance, destroyed once.
            unsafe { utils.destroy_debug_utils_messenger(messenger, None) };
        }
        // SAFETY: every device of the instance holds it, so none is left.
        unsafe { self.raw.destroy_instance(None) };
    }
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instance").finish_non_exhaustive()
    }
}

/// A device as the driver describes it.
#[derive(Clone)]
pub(super) struct Physical {
    pub(super) raw: vk::PhysicalDevice,
    pub(super) properties: vk::PhysicalDeviceProperties,
    pub(super) extensions: Vec<vk::ExtensionProperties>,
}

impl Physical {
    fn read(instance: &ash::Instance, raw: vk::PhysicalDevice) -> Self {
        // SAFETY: the physical device is one that the instance has just listed.
        let properties = unsafe { instance.get_physical_device_properties(raw) };
        // SAFETY: as above.
        let extensions = unsafe { instance.enumerate_device_extension_properties(raw) };
        Self { raw, properties, extensions: extensions.unwrap_or_default() }
    }

    pub(super) fn name(&self) -> String {
        let name = self.properties.device_name_as_c_str().unwrap_or(c"unnamed");
        name.to_string_lossy().into_owned()
    }

    pub(super) fn is_software(&self) -> bool {
        self.properties.device_type == vk::PhysicalDeviceType::CPU
    }

    pub(super) fn offers(&self, name: &CStr) -> bool {
        self.extensions.iter().any(|known| known.extension_name_as_c_str() == Ok(name))
    }

    /// What kind of device it is, in a word.
    pub(super) fn kind(&self) -> &'static str {
        match self.properties.device_type {
            vk::PhysicalDeviceType::DISCRETE_GPU => "discrete",
            vk::PhysicalDeviceType::INTEGRATED_GPU => "integrated",
            vk::PhysicalDeviceType::VIRTUAL_GPU => "virtual",
            vk::PhysicalDeviceType::CPU => "software",
            _ => "other",
        }
    }
}
