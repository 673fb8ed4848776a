//! Random expressions on Vulkan and on the CPU agree (rule N.3).

mod conformance;
mod expressions;

use aquifer::prelude::*;
use conformance::Opened;

/// A Vulkan device, if there is one.
fn vulkan() -> Option<Device> {
    let missing = |error: Error| drop(Opened::missing("vulkan", &error.to_string()));
    Device::named("vulkan").map_err(missing).ok()
}

#[test]
fn five_hundred_expressions_agree_with_the_cpu() {
    if let Some(vulkan) = vulkan() {
        expressions::agree_with_the_cpu(&vulkan, 500);
    }
}

#[test]
fn functions_agree_with_the_cpu() {
    if let Some(vulkan) = vulkan() {
        expressions::functions_agree_with_the_cpu(&vulkan);
    }
}
