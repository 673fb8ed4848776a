//! A Metal device: its facts, and how texts are compiled on it.

use std::sync::Arc;

use aquifer_core::{Caps, DriverError, size::PAGE};
use objc2::rc::Retained;
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2::sel;
use objc2_foundation::{NSError, NSProcessInfo, NSString};
use objc2_metal::{
    MTLCompileOptions, MTLComputePipelineState, MTLDevice, MTLGPUFamily, MTLLibrary,
    MTLMathFloatingPointFunctions, MTLMathMode, MTLResourceOptions, MTLSize,
};

use super::msl::{self, Msl};
use super::pool::Pooled;
use super::signature::Signed;
use crate::gpu::{Compiler, Copies, KernelLimits, Text};
use crate::seam::{Budget, CompileError};
use crate::wgsl::source::Scalar;
use crate::wgsl::{Features, MOST_WORDS};

/// Invocations of a workgroup of ours.
const GROUP: u32 = 256;
/// Buffers that Metal binds to a kernel, less the immediates and the buffers' sizes.
const BINDINGS: u32 = 31 - 2;
/// Bytes that Metal takes as an argument's value.
const IMMEDIATES: u32 = 4096;

/// The call that finds out whether a kernel fits the device.
const STATE: &str = "newComputePipelineStateWithFunction:error:";

/// A Metal object that may be used from any thread.
pub(super) type Object<P> = Retained<ProtocolObject<P>>;

/// A call that gave nothing, without a reason.
pub(super) fn nothing(call: &'static str) -> DriverError {
    DriverError { call, code: 0 }
}

/// A call that failed with Metal's own error.
pub(super) fn refused(call: &'static str, error: &NSError) -> DriverError {
    DriverError { call, code: error.code() as i64 }
}

/// A device and what is known of it before it does anything.
#[derive(Debug)]
pub(super) struct Gpu {
    pub(super) raw: Pooled<Object<dyn MTLDevice>>,
    caps: Caps,
    limits: KernelLimits,
    features: Features,
}

impl Gpu {
    pub(super) fn new(raw: Object<dyn MTLDevice>) -> Self {
        let most = raw.maxThreadsPerThreadgroup();
        let bytes = raw.maxThreadgroupMemoryLength();
        let largest = raw.maxBufferLength() as u64 / PAGE * PAGE;
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let workgroup = [most.width, most.height, most.depth].map(number);
        // Vectors of four words are the widest that kernels load; other makers' GPUs ask more of what
        // is constant.
        let align = if raw.supportsFamily(MTLGPUFamily::Apple1) { 16 } else { 256 };
        let limits = KernelLimits {
            // The sizes of buffers are told to kernels in 32 bits.
            range: largest.min(1 << 32),
            align,
            bindings: BINDINGS,
            immediates: IMMEDIATES,
            groups: [u32::MAX >> 1; 3],
            invocations: workgroup[0],
            workgroup,
            workgroup_bytes: number(bytes),
            // Metal's own copies take whole words only.
            copies: Copies::Kernel,
        };
        let caps = Caps {
            name: raw.name().to_string(),
            system_page: rustix::param::page_size() as u64,
            virtual_memory: None,
            largest_buffer: largest,
            largest_block: largest,
            unified: raw.hasUnifiedMemory(),
            coherent: true,
            import_alignment: Some(1),
            imports_files: true,
            // Metal promises nothing of them.
            subnormals: false,
            // From macOS 15 on.
            can_wire: raw.respondsToSelector(sel!(newResidencySetWithDescriptor:error:)),
            wires_blocks: true,
            binding_alignment: limits.align,
            queues: super::QUEUES as u32,
            host_kernels: false,
            msl_kernels: true,
        };
        let features = Features {
            int64: true,
            float64: false,
            words: MOST_WORDS,
            group: 1 << GROUP.min(limits.invocations).max(32).ilog2(),
        };
        Self { raw: Pooled::new(raw), caps, limits, features }
    }

    /// What Metal recommends to use, and all memory of the machine (rule C.1); of a device with
    /// memory of its own what it recommends is all that it says.
    pub(super) fn budget(&self) -> Budget {
        let working_set = self.raw.recommendedMaxWorkingSetSize();
        let total = match self.caps.unified {
            true => NSProcessInfo::processInfo().physicalMemory(),
            false => working_set,
        };
        Budget { working_set: working_set.min(total), total }
    }

    /// The options of a buffer in a mode: the order of work is the core's.
    pub(super) fn options(mode: aquifer_core::Storage) -> MTLResourceOptions {
        let mode = match mode {
            aquifer_core::Storage::Shared => MTLResourceOptions::StorageModeShared,
            aquifer_core::Storage::Private => MTLResourceOptions::StorageModePrivate,
        };
        mode | MTLResourceOptions::HazardTrackingModeUntracked
    }

    /// Compiles a text in MSL. Faults of the user's are told with their lines, as Metal says them.
    fn state(
        &self,
        text: &str,
        entry: &str,
    ) -> Result<Object<dyn MTLComputePipelineState>, CompileError> {
        let options = MTLCompileOptions::new();
        if options.respondsToSelector(sel!(setMathMode:)) {
            options.setMathMode(MTLMathMode::Safe);
            options.setMathFloatingPointFunctions(MTLMathFloatingPointFunctions::Precise);
        } else {
            // Before macOS 15.
            #[allow(deprecated)]
            options.setFastMathEnabled(false);
        }
        let said = |error: Retained<NSError>| {
            CompileError::new(format!("MSL: {}", error.localizedDescription()))
        };
        let source = NSString::from_str(text);
        let library = self.raw.newLibraryWithSource_options_error(&source, Some(&options));
        let function = library.map_err(said)?.newFunctionWithName(&NSString::from_str(entry));
        let function =
            function.ok_or_else(|| CompileError::from(nothing("newFunctionWithName:")))?;
        let state = self.raw.newComputePipelineStateWithFunction_error(&function);
        state.map_err(|error| CompileError { driver: Some(refused(STATE, &error)), ..said(error) })
    }

    /// A user's kernel in MSL; with where its scalars lie among the immediates, and their bytes.
    pub(super) fn user(
        &self,
        text: &str,
        signed: &Signed,
    ) -> Result<(MetalPipeline, Vec<Scalar>, u32), CompileError> {
        let state = self.state(text, &signed.entry)?;
        let workgroup = signed.signature.workgroup;
        let axes = self.limits.workgroup;
        let inside = workgroup.iter().zip(axes).all(|(size, most)| (1..=most).contains(size));
        let most = state.maxTotalThreadsPerThreadgroup() as u64;
        // Axes are at most 2^32 long, and three of them inside their limits.
        let invocations: u128 = workgroup.iter().map(|&size| u128::from(size)).product();
        if !inside || invocations > u128::from(most) {
            return Err(CompileError::new(format!(
                "a workgroup of {workgroup:?} invocations is not from 1 to the {most} that the kernel may have here, {axes:?} along the axes: give another with workgroup()"
            )));
        }
        let offset = |place: usize| place as u32 * 8;
        let scalars = signed.scalars.iter().enumerate();
        let scalars =
            scalars.map(|(place, (_, dtype))| Scalar { offset: offset(place), dtype: *dtype });
        let each = signed.scalars.iter().enumerate();
        let each = each.map(|(place, (index, dtype))| (*index, offset(place), dtype.size() as u32));
        let pipeline = MetalPipeline {
            state: Pooled::new(state),
            threads: size(workgroup),
            buffers: signed.arrays.clone(),
            values: each.collect(),
            sizes: None,
            threadgroup: Vec::new(),
        };
        Ok((pipeline, scalars.collect(), offset(signed.scalars.len())))
    }
}

/// A grid in Metal's words.
pub(super) fn size(grid: [u32; 3]) -> MTLSize {
    let [width, height, depth] = grid.map(|axis| axis as usize);
    MTLSize { width, height, depth }
}

/// A pipeline and where its arguments are bound.
#[derive(Debug)]
pub(super) struct MetalPipeline {
    pub(super) state: Pooled<Object<dyn MTLComputePipelineState>>,
    pub(super) threads: MTLSize,
    /// The argument of each buffer.
    pub(super) buffers: Vec<u32>,
    /// Arguments that are values: which, from which byte of the immediates on, how many bytes.
    pub(super) values: Vec<(u32, u32, u32)>,
    /// The argument that has the bytes of buffers, and which.
    pub(super) sizes: Option<(u32, Vec<Option<u32>>)>,
    /// Bytes of each piece of threadgroup memory.
    pub(super) threadgroup: Vec<u32>,
}

impl Compiler for Gpu {
    type Pipeline = MetalPipeline;

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn features(&self) -> Features {
        self.features
    }

    fn limits(&self) -> &KernelLimits {
        &self.limits
    }

    fn compile(self: &Arc<Self>, text: &Text<'_>) -> Result<MetalPipeline, CompileError> {
        let Msl { text: source, entry, immediates, sizes, threadgroup, workgroup } =
            msl::write(text)?;
        Ok(MetalPipeline {
            state: Pooled::new(self.state(&source, &entry)?),
            threads: size(workgroup),
            buffers: (0..text.bindings).collect(),
            values: immediates.map(|index| (index, 0, text.immediates)).into_iter().collect(),
            sizes,
            threadgroup,
        })
    }

    fn may_be_too_large(error: &CompileError) -> bool {
        error.driver.as_ref().is_some_and(|error| error.call == STATE)
    }

    fn most_invocations(pipeline: &MetalPipeline) -> u32 {
        u32::try_from(pipeline.state.maxTotalThreadsPerThreadgroup()).unwrap_or(u32::MAX)
    }
}
