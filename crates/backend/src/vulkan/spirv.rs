//! WGSL to SPIR-V, and what the driver must keep of its arithmetic.
//!
//! The one idea: the words that naga writes are complete; three things are added that WGSL cannot
//! say. `NoContraction` on every product, sum and difference, so that no driver fuses them and an
//! expression has the same bits everywhere; where the device can, that denormals, infinities and NaN
//! are kept; and `Aliased` on our buffers, since an array is bound twice where work is in place, or
//! where its edges are written by atomics.

use naga::back::spv;
use naga::valid::ModuleInfo;
use naga::{Module, ShaderStage};

use crate::seam::CompileError;

/// What a device can keep of floats of one width.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FloatControls {
    pub(super) denormals: bool,
    pub(super) specials: bool,
}

const OP_EXTENSION: u32 = 10;
const OP_ENTRY_POINT: u32 = 15;
const OP_EXECUTION_MODE: u32 = 16;
const OP_CAPABILITY: u32 = 17;
const OP_DECORATE: u32 = 71;
const NO_CONTRACTION: u32 = 42;
const OP_VARIABLE: u32 = 59;
const STORAGE_BUFFER: u32 = 12;
const ALIASED: u32 = 20;
/// FAdd, FSub, FMul, FDiv, by vectors and matrices too.
const ARITHMETIC: [u32; 9] = [129, 131, 133, 136, 142, 143, 144, 145, 146];
/// DenormPreserve and SignedZeroInfNanPreserve, as modes and as capabilities.
const KEEPS: [(u32, u32); 2] = [(4459, 4464), (4461, 4466)];

/// Compiles one entry point. `own`: a text of ours, whose accesses are inside their buffers by the
/// numbers it is called with; a user's are checked in the code.
pub(super) fn write(
    (module, info): (&Module, &ModuleInfo),
    entry: &str,
    own: bool,
    floats: &[(u32, FloatControls)],
) -> Result<Vec<u32>, CompileError> {
    let options = spv::Options {
        lang_version: (1, 3),
        flags: spv::WriterFlags::empty(),
        // The numbers of group and binding in the text are used as they are.
        fake_missing_bindings: true,
        bounds_check_policies: crate::gpu::bounds(module, own),
        zero_initialize_workgroup_memory: match own {
            true => spv::ZeroInitializeWorkgroupMemoryMode::None,
            false => spv::ZeroInitializeWorkgroupMemoryMode::Polyfill,
        },
        force_loop_bounding: !own,
        use_storage_input_output_16: false,
        ..spv::Options::default()
    };
    let pipeline =
        spv::PipelineOptions { shader_stage: ShaderStage::Compute, entry_point: entry.to_owned() };
    let words = spv::write_vec(module, info, &options, Some(&pipeline))
        .map_err(|error| CompileError::new(format!("SPIR-V: {error}")))?;
    Ok(strict(&words, own, floats))
}

/// The instructions of a module: opcode and words.
fn instructions(words: &[u32]) -> impl Iterator<Item = (u32, &[u32])> {
    let mut rest = words.get(5..).unwrap_or_default();
    std::iter::from_fn(move || {
        let first = *rest.first()?;
        let len = (first >> 16).max(1) as usize;
        let (now, later) = rest.split_at_checked(len)?;
        rest = later;
        Some((first & 0xffff, now))
    })
}

/// The same module with the additions, each in the section that it belongs to.
fn strict(words: &[u32], own: bool, floats: &[(u32, FloatControls)]) -> Vec<u32> {
    let aliased: Vec<u32> = instructions(words)
        .filter(|(op, now)| own && *op == OP_VARIABLE && now.get(3) == Some(&STORAGE_BUFFER))
        .map(|(_, now)| now[2])
        .collect();
    let exact: Vec<u32> = instructions(words)
        .filter(|(op, now)| ARITHMETIC.contains(op) && now.len() > 2)
        .map(|(_, now)| now[2])
        .collect();
    let kept = |at: usize, controls: &FloatControls| [controls.denormals, controls.specials][at];
    let modes: Vec<(u32, u32)> = floats
        .iter()
        .flat_map(|(width, controls)| {
            let modes = KEEPS.iter().enumerate().filter(move |(at, _)| kept(*at, controls));
            modes.map(move |(_, (mode, _))| (*mode, *width))
        })
        .collect();
    let mut out = words.get(..5).unwrap_or_default().to_vec();
    let (mut capabilities, mut entry, mut decorated) = (false, None, false);
    for (op, now) in instructions(words) {
        if op != OP_CAPABILITY && !capabilities {
            capabilities = true;
            for (at, (_, capability)) in KEEPS.iter().enumerate() {
                if floats.iter().any(|(_, controls)| kept(at, controls)) {
                    out.extend([2 << 16 | OP_CAPABILITY, *capability]);
                }
            }
            if !modes.is_empty() {
                let name = b"SPV_KHR_float_controls\0\0";
                out.push(((1 + name.len() as u32 / 4) << 16) | OP_EXTENSION);
                let bytes = name.chunks_exact(4);
                out.extend(
                    bytes.map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]])),
                );
            }
        }
        if op == OP_ENTRY_POINT {
            entry = now.get(2).copied();
        } else if op == OP_EXECUTION_MODE
            && let Some(entry) = entry.take()
        {
            // Before the first mode of the entry point: the modes are one section.
            for (mode, width) in &modes {
                out.extend([4 << 16 | OP_EXECUTION_MODE, entry, *mode, *width]);
            }
        }
        if op == OP_DECORATE && !decorated {
            decorated = true;
            for id in &exact {
                out.extend([3 << 16 | OP_DECORATE, *id, NO_CONTRACTION]);
            }
            for id in &aliased {
                out.extend([3 << 16 | OP_DECORATE, *id, ALIASED]);
            }
        }
        out.extend_from_slice(now);
    }
    out
}
