//! Texts as pipelines.

use std::ffi::CString;
use std::sync::Arc;

use aquifer_core::Caps;

use super::driver::{Driver, RawPipeline};
use super::spirv;
use crate::gpu::{Compiler, KernelLimits, Text};
use crate::seam::CompileError;
use crate::wgsl::Features;

/// A pipeline that is freed when it is dropped.
#[derive(Debug)]
pub(super) struct VulkanPipeline {
    driver: Arc<Driver>,
    pub(super) raw: RawPipeline,
}

impl Drop for VulkanPipeline {
    fn drop(&mut self) {
        self.driver.destroy_pipeline(self.raw);
    }
}

impl Compiler for Driver {
    type Pipeline = VulkanPipeline;

    fn caps(&self) -> &Caps {
        &self.facts.caps
    }

    fn features(&self) -> Features {
        self.facts.features
    }

    fn limits(&self) -> &KernelLimits {
        &self.facts.limits.kernels
    }

    fn compile(self: &Arc<Self>, text: &Text<'_>) -> Result<VulkanPipeline, CompileError> {
        // Modes of a width that the code does not have would ask for a capability.
        let floats = match text.own && has_f64(text.module) {
            true => &self.facts.floats[..],
            false => &self.facts.floats[..1],
        };
        let code = spirv::write((text.module, text.info), text.entry, text.own, floats)?;
        let entry = CString::new(text.entry)
            .map_err(|_| CompileError::new("the entry point's name has a zero in it"))?;
        let raw = self.create_pipeline(&code, &entry, text.bindings, text.immediates)?;
        Ok(VulkanPipeline { driver: Arc::clone(self), raw })
    }
}

fn has_f64(module: &naga::Module) -> bool {
    let wide =
        |inner: &naga::TypeInner| inner.scalar().is_some_and(|scalar| scalar == naga::Scalar::F64);
    module.types.iter().any(|(_, kind)| wide(&kind.inner))
}
