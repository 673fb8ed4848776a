//! WGSL to MSL: where each argument is bound, and what Metal must be told beside the text.

use naga::back::msl;
use naga::{AddressSpace, ShaderStage, StorageAccess};

use crate::gpu::{self, Text};
use crate::seam::CompileError;

/// Keeps arithmetic as it is written, whatever the compiler's default is: an expression has the same
/// bits everywhere.
const STRICT: &str = "#pragma METAL fp math_mode(safe)\n#pragma METAL fp contract(off)\n";

/// A text in MSL and its arguments beside the buffers, which have their own numbers.
#[derive(Debug)]
pub(super) struct Msl {
    pub(super) text: String,
    pub(super) entry: String,
    /// The argument that has the immediates, where there are any.
    pub(super) immediates: Option<u32>,
    /// The argument that has the bytes of buffers, and which ones in order; `None`: not used.
    pub(super) sizes: Option<(u32, Vec<Option<u32>>)>,
    /// Bytes of each piece of threadgroup memory.
    pub(super) threadgroup: Vec<u32>,
    /// Invocations of a workgroup along each axis.
    pub(super) workgroup: [u32; 3],
}

fn wrong(error: impl std::fmt::Display) -> CompileError {
    CompileError::new(format!("MSL: {error}"))
}

/// The text with the numbers in naga's guards of 64-bit divisions in the type of what is divided:
/// naga 30 writes 32-bit ones, which Metal's compiler calls ambiguous (wgpu issue 10277).
fn typed_guards(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut wide: Option<&str> = None;
    for line in text.split_inclusive('\n') {
        let name = ["naga_div(", "naga_mod("].iter().find_map(|name| line.find(name));
        match name.map(|at| line[..at].trim()) {
            // The head of a guard begins with its type.
            Some(kind) if !line.starts_with(' ') && line.trim_end().ends_with('{') => {
                wide = (kind.contains("long") && !kind.contains(' ')).then_some(kind);
            }
            _ => {}
        }
        match wide {
            Some(kind) if line.contains("metal::select(rhs, 1") => {
                let typed = |number: &str| format!("{kind}({number})");
                out.push_str(
                    &line
                        .replace("(rhs, 1u, rhs == 0u)", "(rhs, 1, rhs == 0)")
                        .replace("(rhs, 1, ", &format!("(rhs, {}, ", typed("1")))
                        .replace("rhs == -1)", &format!("rhs == {})", typed("-1")))
                        .replace("rhs == 0)", &format!("rhs == {})", typed("0"))),
                );
            }
            _ => out.push_str(line),
        }
    }
    out
}

/// Writes one entry point. The immediates come after the buffers, then the buffers' sizes.
pub(super) fn write(text: &Text<'_>) -> Result<Msl, CompileError> {
    let (module, entries) = (text.module, &text.module.entry_points);
    let index = entries.iter().position(|entry| entry.name == text.entry);
    let index = index.ok_or_else(|| wrong(format!("no entry point '{}'", text.entry)))?;
    let slot = |number: u32| u8::try_from(number).map_err(wrong);
    let (immediates, sizes) = (slot(text.bindings)?, slot(text.bindings + 1)?);
    let mut resources = msl::EntryPointResources {
        immediates_buffer: Some(immediates),
        sizes_buffer: Some(sizes),
        ..Default::default()
    };
    let (mut runtime, mut threadgroup) = (Vec::new(), Vec::new());
    let uses = text.info.get_entry_point(index);
    for (handle, global) in module.global_variables.iter() {
        let (inner, used) = (&module.types[global.ty].inner, !uses[handle].is_empty());
        match (global.space, global.binding) {
            (AddressSpace::Storage { access }, Some(binding)) => {
                let target = msl::BindTarget {
                    buffer: Some(slot(binding.binding)?),
                    mutable: access.contains(StorageAccess::STORE),
                    ..Default::default()
                };
                if inner.is_dynamically_sized(&module.types) {
                    runtime.push(used.then_some(binding.binding));
                }
                // Two entry points may use one number; only one is written.
                if used {
                    resources.resources.insert(binding, target);
                }
            }
            (AddressSpace::WorkGroup, _) if used => {
                // Metal takes multiples of 16.
                threadgroup.push(inner.size(module.to_ctx()).next_multiple_of(16));
            }
            _ => {}
        }
    }
    let options = msl::Options {
        lang_version: (2, 4),
        per_entry_point_map: [(text.entry.to_owned(), resources)].into(),
        fake_missing_bindings: false,
        bounds_check_policies: gpu::bounds(module, text.own),
        zero_initialize_workgroup_memory: !text.own,
        force_loop_bounding: !text.own,
        ..Default::default()
    };
    let pipeline = msl::PipelineOptions {
        entry_point: Some((ShaderStage::Compute, text.entry.to_owned())),
        ..Default::default()
    };
    let (body, info) = msl::write_string(module, text.info, &options, &pipeline).map_err(wrong)?;
    // Only one was asked for.
    let entry = match info.entry_point_names.first() {
        Some(Ok(name)) => name.clone(),
        Some(Err(error)) => return Err(wrong(error)),
        None => return Err(wrong("the entry point was not written")),
    };
    Ok(Msl {
        sizes: body.contains("_buffer_sizes [[").then(|| (u32::from(sizes), runtime)),
        immediates: (text.immediates > 0).then_some(u32::from(immediates)),
        text: format!("{STRICT}{}", typed_guards(&body)),
        entry,
        threadgroup,
        workgroup: entries[index].workgroup_size,
    })
}
