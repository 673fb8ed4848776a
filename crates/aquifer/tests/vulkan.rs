//! Vulkan devices do what every back end must, under the validation layer, without a message.
#![allow(clippy::unwrap_used)]

mod conformance;

use std::sync::Arc;

use aquifer::backend::{Vulkan, VulkanOptions};
use aquifer::prelude::*;
use conformance::Opened;

fn opened(options: &VulkanOptions, reuse: Reuse) -> Opened {
    // A driver that has more layers than ours may lack the one asked for.
    let validation = std::env::var("AQUIFER_VULKAN_VALIDATION").is_ok_and(|on| on == "1");
    let options = VulkanOptions { validation, ..options.clone() };
    match Vulkan::open_with(&options) {
        Ok(vulkan) => {
            let device = Device::builder().backend(Arc::clone(&vulkan) as _).reuse(reuse);
            Opened::checked(device.open().unwrap(), move || vulkan.messages())
        }
        Err(error) => Opened::missing("vulkan", &error.to_string()),
    }
}

conformance! { crate::opened(&aquifer::backend::VulkanOptions::default(), aquifer::Reuse::Ranges) }

/// The same on a device with small allocations and ranges: long work and large arrays are cut (rule
/// G.2), and copies are a kernel's.
mod small {
    use super::*;

    fn open() -> Opened {
        let options = VulkanOptions {
            largest_block: Some(4 << 20),
            largest_range: Some(1 << 20),
            alignment: Some(256),
            copy_by_kernel: true,
            ..VulkanOptions::default()
        };
        opened(&options, Reuse::Ranges)
    }

    conformance! { super::open() }
}
