//! A user's own WGSL: checked, and what it takes read from it (rule N.4).

use aquifer_core::Access;
use naga::valid::{Capabilities, GlobalUse, ModuleInfo, ValidationFlags, Validator};
use naga::{AddressSpace, Module, ScalarKind, ShaderStage, StorageAccess, TypeInner};

use super::{Features, MOST_WORDS};
use crate::dtype::Dtype;
use crate::seam::{Argument, CompileError, Signature, Source};

/// A scalar among the immediates: bytes from their start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scalar {
    pub(crate) offset: u32,
    pub(crate) dtype: Dtype,
}

/// A user's kernel that has been checked.
#[derive(Debug)]
pub(crate) struct UserKernel {
    pub(crate) module: Module,
    pub(crate) info: ModuleInfo,
    pub(crate) entry: String,
    pub(crate) signature: Signature,
    /// Arrays: their binding numbers are their places in the signature.
    pub(crate) bindings: u32,
    pub(crate) scalars: Vec<Scalar>,
    /// Bytes of the immediates.
    pub(crate) immediates: u32,
    /// Bytes of workgroup memory.
    pub(crate) workgroup_bytes: u64,
}

fn wrong(reason: impl Into<String>) -> CompileError {
    CompileError::new(reason)
}

fn capabilities(features: Features) -> Capabilities {
    let mut all = Capabilities::IMMEDIATES;
    all.set(Capabilities::SHADER_INT64, features.int64);
    all.set(Capabilities::FLOAT64, features.float64);
    all
}

/// Parses and checks a WGSL text of ours or of the user's. Flow is checked for the user's alone:
/// ours is uniform by the numbers that it is called with.
pub(crate) fn parse(
    text: &str,
    features: Features,
    own: bool,
) -> Result<(Module, ModuleInfo), CompileError> {
    let capabilities = capabilities(features);
    let options = naga::front::wgsl::Options { parse_doc_comments: false, capabilities };
    let module = naga::front::wgsl::Frontend::new_with_options(options)
        .parse(text)
        .map_err(|error| wrong(error.emit_to_string_with_path(text, "kernel.wgsl")))?;
    // Before it is validated: naga counts no more than these.
    for (_, global) in module.global_variables.iter() {
        let bytes = module.types[global.ty].inner.size(module.to_ctx());
        if global.space == AddressSpace::Immediate && bytes as usize > MOST_WORDS * 4 {
            return Err(wrong(format!(
                "{bytes} bytes of immediates are above the {} that a kernel has at most: pass an array",
                MOST_WORDS * 4
            )));
        }
    }
    let mut flags = ValidationFlags::all();
    flags.set(ValidationFlags::CONTROL_FLOW_UNIFORMITY, !own);
    let info = Validator::new(flags, capabilities)
        .validate(&module)
        .map_err(|error| wrong(error.emit_to_string_with_path(text, "kernel.wgsl")))?;
    Ok((module, info))
}

/// The element type of a buffer's innermost array, where it is a scalar.
fn element(module: &Module, inner: &TypeInner) -> Option<Dtype> {
    let scalar = match *inner {
        TypeInner::Scalar(scalar) | TypeInner::Atomic(scalar) => scalar,
        TypeInner::Vector { scalar, .. } | TypeInner::Matrix { scalar, .. } => scalar,
        TypeInner::Array { base, .. } => return element(module, &module.types[base].inner),
        _ => return None,
    };
    match (scalar.kind, scalar.width) {
        (ScalarKind::Uint, 4) => Some(Dtype::U32),
        (ScalarKind::Sint, 4) => Some(Dtype::I32),
        (ScalarKind::Float, 4) => Some(Dtype::F32),
        (ScalarKind::Uint, 8) => Some(Dtype::U64),
        (ScalarKind::Sint, 8) => Some(Dtype::I64),
        (ScalarKind::Float, 8) => Some(Dtype::F64),
        _ => None,
    }
}

/// The scalars of the immediates' type, in order.
fn scalars(module: &Module, inner: &TypeInner) -> Result<Vec<Scalar>, CompileError> {
    let one = |inner: &TypeInner, offset: u32| match *inner {
        TypeInner::Scalar(_) => element(module, inner)
            .map(|dtype| Scalar { offset, dtype })
            .ok_or_else(|| wrong("a scalar argument has a type that arrays do not have")),
        _ => Err(wrong("the immediates are a scalar or a struct of scalars")),
    };
    match inner {
        TypeInner::Struct { members, .. } => members
            .iter()
            .map(|member| one(&module.types[member.ty].inner, member.offset))
            .collect(),
        other => Ok(vec![one(other, 0)?]),
    }
}

/// What a user's kernel takes, whatever device it is for.
///
/// # Errors
/// The text's own faults, with their lines.
pub fn signature(source: &Source) -> Result<Signature, CompileError> {
    let all = Features { int64: true, float64: true, words: MOST_WORDS, group: 256 };
    read(&source.text, source.entry.as_deref(), all).map(|kernel| kernel.signature)
}

/// The place of the entry point that is meant.
fn entry_point(module: &Module, entry: Option<&str>) -> Result<usize, CompileError> {
    let compute: Vec<usize> = (0..module.entry_points.len())
        .filter(|&index| module.entry_points[index].stage == ShaderStage::Compute)
        .collect();
    let named = |&index: &usize| entry.is_none_or(|name| module.entry_points[index].name == name);
    let found: Vec<usize> = compute.iter().copied().filter(named).collect();
    let [index] = found[..] else {
        let names: Vec<&str> =
            compute.iter().map(|&index| module.entry_points[index].name.as_str()).collect();
        return Err(wrong(match entry {
            Some(name) => format!("no @compute function '{name}'; there are: {names:?}"),
            None if names.is_empty() => "there is no @compute function".to_owned(),
            None => format!("name the entry point with entry(): there are {names:?}"),
        }));
    };
    Ok(index)
}

/// Reads what a text's entry point takes.
pub(crate) fn read(
    text: &str,
    entry: Option<&str>,
    features: Features,
) -> Result<UserKernel, CompileError> {
    let (mut module, info) = parse(text, features, false)?;
    let index = entry_point(&module, entry)?;
    let (name, workgroup) =
        (module.entry_points[index].name.clone(), module.entry_points[index].workgroup_size);
    let uses = info.get_entry_point(index);
    let (mut arrays, mut found, mut immediates) = (Vec::new(), Vec::new(), 0);
    let mut workgroup_bytes = 0;
    for (handle, global) in module.global_variables.iter() {
        if uses[handle].is_empty() {
            // Another entry point's, or nobody's.
            continue;
        }
        let inner = &module.types[global.ty].inner;
        let called = global.name.as_deref().unwrap_or("?");
        match global.space {
            AddressSpace::Storage { access } => {
                let Some(binding) = global.binding.filter(|binding| binding.group == 0) else {
                    return Err(wrong(format!("'{called}': arrays are bound in @group(0)")));
                };
                // What it may do, less what it does not.
                let writes = uses[handle].intersects(GlobalUse::WRITE | GlobalUse::ATOMIC);
                let may = access.contains(StorageAccess::STORE);
                let access = if may && writes { Access::Write } else { Access::Read };
                let argument = Argument::Array {
                    access,
                    element: element(&module, innermost(&module, inner)),
                    least: u64::from(inner.size(module.to_ctx())),
                };
                arrays.push((binding.binding, handle, argument));
            }
            AddressSpace::Immediate => {
                found = scalars(&module, inner)?;
                immediates = inner.size(module.to_ctx());
            }
            AddressSpace::WorkGroup => {
                workgroup_bytes += u64::from(inner.size(module.to_ctx()));
            }
            AddressSpace::Private => {}
            _ => {
                return Err(wrong(format!(
                    "'{called}': a kernel takes arrays (var<storage>) and scalars (var<immediate>)"
                )));
            }
        }
    }
    arrays.sort_by_key(|(binding, ..)| *binding);
    if let Some(pair) = arrays.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(wrong(format!("two arrays have @binding({})", pair[0].0)));
    }
    // Bound in order, whatever numbers the text has.
    for (place, (_, handle, _)) in arrays.iter().enumerate() {
        let binding = naga::ResourceBinding { group: 0, binding: place as u32 };
        module.global_variables.get_mut(*handle).binding = Some(binding);
    }
    let bindings = arrays.len() as u32;
    let mut arguments: Vec<Argument> = arrays.into_iter().map(|(.., argument)| argument).collect();
    arguments.extend(found.iter().map(|scalar| Argument::Scalar(scalar.dtype)));
    let signature = Signature { arguments, workgroup };
    let scalars = found;
    Ok(UserKernel {
        module,
        info,
        entry: name,
        signature,
        bindings,
        scalars,
        immediates,
        workgroup_bytes,
    })
}

/// The type of the elements: of a struct that ends in an array, that array.
fn innermost<'m>(module: &'m Module, inner: &'m TypeInner) -> &'m TypeInner {
    match inner {
        TypeInner::Struct { members, .. } if members.len() == 1 => {
            &module.types[members[0].ty].inner
        }
        other => other,
    }
}
