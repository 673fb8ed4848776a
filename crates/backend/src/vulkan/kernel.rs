//! Programs: expressions, with a pipeline for each shape that they have been run in, and kernels of
//! the user's.

use std::ffi::CString;
use std::sync::{Arc, PoisonError, RwLock};

use aquifer_core::{Access, DriverError};
use smallvec::SmallVec;

use super::cut::{self, Cutter, Rooms};
use super::device::Limits;
use super::driver::{Driver, RawPipeline};
use super::spirv;
use crate::dtype::Dtype;
use crate::ir::{Kernel, Node, Op, Output};
use crate::seam::{Argument, CompileError, Dispatch};
use crate::wgsl::source::{Scalar, UserKernel};
use crate::wgsl::{self, Shader, Shape, Slot, Variant, Word};

/// A pipeline with what its arguments are.
#[derive(Debug)]
pub(super) struct Compiled {
    driver: Arc<Driver>,
    pub(super) raw: RawPipeline,
    pub(super) words: Vec<Word>,
    pub(super) slots: Vec<Slot>,
    /// The binding of each slot.
    pub(super) places: Vec<u32>,
    pub(super) group: u32,
}

impl Drop for Compiled {
    fn drop(&mut self) {
        self.driver.destroy_pipeline(self.raw);
    }
}

/// What a pipeline of the seam holds.
#[derive(Debug)]
pub(super) enum Program {
    Expression(Expression),
    User(User),
}

/// The pipelines of an expression: there are few.
type Variants = SmallVec<[(Variant, Arc<Compiled>); 4]>;

/// A compiled expression.
#[derive(Debug)]
pub(super) struct Expression {
    driver: Arc<Driver>,
    pub(super) kernel: Kernel,
    /// Which inputs are read.
    pub(super) used: Vec<bool>,
    variants: RwLock<Variants>,
}

/// A compiled kernel of the user's.
#[derive(Debug)]
pub(super) struct User {
    pub(super) compiled: Compiled,
    /// What the kernel does with each array, in the order of their bindings.
    pub(super) accesses: Vec<Access>,
    pub(super) scalars: Vec<Scalar>,
    pub(super) immediates: u32,
    pub(super) workgroup: [u32; 3],
}

fn driver_error(error: DriverError) -> CompileError {
    CompileError { reason: error.to_string(), driver: Some(error) }
}

impl Expression {
    pub(super) fn compile(driver: &Arc<Driver>, kernel: &Kernel) -> Result<Self, CompileError> {
        kernel.check().map_err(CompileError::new)?;
        let features = driver.facts.features;
        let needed = wgsl::needed_types(kernel);
        if let Some(dtype) = needed.into_iter().find(|dtype| !features.supports(*dtype)) {
            return Err(CompileError::new(format!(
                "the device {} cannot compute with {dtype}",
                driver.facts.caps.name
            )));
        }
        Ok(Self {
            driver: Arc::clone(driver),
            kernel: kernel.clone(),
            used: wgsl::used_inputs(kernel),
            variants: RwLock::default(),
        })
    }

    /// The pipeline of a variant, if it has been made.
    pub(super) fn find(&self, variant: Variant) -> Option<Arc<Compiled>> {
        let variants = self.variants.read().unwrap_or_else(PoisonError::into_inner);
        let found = variants.iter().find(|(known, _)| *known == variant);
        found.map(|(_, compiled)| Arc::clone(compiled))
    }

    /// The kernel that copies words, ready for ranges of any length.
    pub(super) fn copier(driver: &Arc<Driver>) -> Result<Self, CompileError> {
        let kernel = Kernel {
            nodes: vec![Node { op: Op::Input(0), dtype: Dtype::U32 }],
            inputs: vec![Dtype::U32],
            params: Vec::new(),
            outputs: vec![Output::Store(0)],
        };
        let copier = Self::compile(driver, &kernel)?;
        for shape in [Shape::Wide, Shape::One] {
            copier.make(Variant { shape, repeats: 0 })?;
        }
        Ok(copier)
    }

    fn make(&self, variant: Variant) -> Result<Arc<Compiled>, CompileError> {
        if let Some(compiled) = self.find(variant) {
            return Ok(compiled);
        }
        // Outside the lock: a slow compilation does not block those whose pipeline is there.
        let facts = &self.driver.facts;
        let shader = wgsl::shader(&self.kernel, variant, facts.features);
        let compiled = Arc::new(compile_shader(&self.driver, shader)?);
        let mut variants = self.variants.write().unwrap_or_else(PoisonError::into_inner);
        if !variants.iter().any(|(known, _)| *known == variant) {
            variants.push((variant, Arc::clone(&compiled)));
        }
        Ok(compiled)
    }

    /// Makes the pipelines of every call of a dispatch; the bytes of scratch memory that it takes.
    pub(super) fn prepare<R: Rooms>(
        &self,
        dispatch: &Dispatch,
        rooms: impl FnOnce() -> R,
    ) -> Result<u64, CompileError> {
        let (mut variants, mut records) = (SmallVec::<[Variant; 4]>::new(), 0);
        let cut = {
            // Given up before anything is compiled: whoever gets memory waits for it.
            let rooms = &rooms();
            let cutter = Cutter { kernel: &self.kernel, used: &self.used, dispatch, rooms };
            cutter.cut(|step| {
                records = step.records().max(records);
                if !variants.contains(&step.variant) {
                    variants.push(step.variant);
                }
            })
        };
        cut.map_err(|_| {
            let limits = &self.driver.facts.limits;
            CompileError::new(format!(
                "a dispatch over {} places does not fit the device's ranges of {} bytes",
                dispatch.len, limits.range
            ))
        })?;
        let mut params = false;
        for variant in variants {
            params |= self.make(variant)?.slots.contains(&Slot::Params);
        }
        Ok(cut::scratch(&self.kernel, records, params))
    }
}

fn compile_shader(driver: &Arc<Driver>, shader: Shader) -> Result<Compiled, CompileError> {
    let facts = &driver.facts;
    if shader.slots.len() > facts.limits.bindings as usize {
        return Err(CompileError::new(format!(
            "the kernel binds {} buffers, but the device {} lets it have {}",
            shader.slots.len(),
            facts.caps.name,
            facts.limits.bindings
        )));
    }
    let (module, info) = wgsl::source::parse(&shader.text, facts.features, true)?;
    // Modes of a width that the code does not have would ask for a capability.
    let floats = if shader.text.contains("f64") { &facts.floats[..] } else { &facts.floats[..1] };
    let code = spirv::write((&module, &info), "main", true, floats)?;
    let places: Vec<u32> = (0..shader.slots.len() as u32).collect();
    let immediates = shader.words.len() as u32 * 4;
    let raw = driver.create_pipeline(&code, c"main", &places, immediates).map_err(driver_error)?;
    Ok(Compiled {
        driver: Arc::clone(driver),
        raw,
        words: shader.words,
        slots: shader.slots,
        places,
        group: shader.group,
    })
}

/// Refuses what is above the device's limits; the invocations of a workgroup.
fn check_limits(user: &UserKernel, limits: &Limits) -> Result<u32, CompileError> {
    let sizes = user.signature.workgroup;
    let invocations: u64 = sizes.iter().map(|&size| u64::from(size)).product();
    if invocations > limits.invocations.into()
        || sizes.iter().zip(limits.workgroup).any(|(size, most)| *size > most)
    {
        return Err(CompileError::new(format!(
            "a workgroup of {sizes:?} invocations is above the device's {} in all, {:?} along the axes",
            limits.invocations, limits.workgroup
        )));
    }
    if user.workgroup_bytes > limits.workgroup_bytes.into() {
        return Err(CompileError::new(format!(
            "{} bytes of workgroup memory are above the device's {}",
            user.workgroup_bytes, limits.workgroup_bytes
        )));
    }
    if user.bindings.len() > limits.bindings as usize {
        return Err(CompileError::new(format!(
            "{} arrays are above the {} that the device binds to a kernel",
            user.bindings.len(),
            limits.bindings
        )));
    }
    Ok(invocations as u32)
}

impl User {
    pub(super) fn compile(driver: &Arc<Driver>, user: &UserKernel) -> Result<Self, CompileError> {
        let facts = &driver.facts;
        let invocations = check_limits(user, &facts.limits)?;
        if user.immediates > facts.limits.immediates {
            return Err(CompileError::new(format!(
                "{} bytes of scalars are above the device's {}",
                user.immediates, facts.limits.immediates
            )));
        }
        let code =
            spirv::write((&user.module, &user.info), &user.entry, false, &facts.floats[..1])?;
        let entry = CString::new(user.entry.as_str())
            .map_err(|_| CompileError::new("the entry point's name has a zero in it"))?;
        let immediates = user.immediates.next_multiple_of(4);
        let raw = driver
            .create_pipeline(&code, &entry, &user.bindings, immediates)
            .map_err(driver_error)?;
        let accesses = user.signature.arguments.iter().filter_map(|argument| match argument {
            Argument::Array { access, .. } => Some(*access),
            Argument::Scalar(_) => None,
        });
        Ok(Self {
            compiled: Compiled {
                driver: Arc::clone(driver),
                raw,
                words: Vec::new(),
                slots: Vec::new(),
                places: user.bindings.clone(),
                group: invocations,
            },
            accesses: accesses.collect(),
            scalars: user.scalars.clone(),
            immediates,
            workgroup: user.signature.workgroup,
        })
    }

    /// Workgroups of a dispatch.
    pub(super) fn grid(&self, dispatch: &Dispatch) -> [u64; 3] {
        match dispatch.grid {
            Some(grid) => grid.map(u64::from),
            None => [dispatch.len.div_ceil(u64::from(self.workgroup[0].max(1))), 1, 1],
        }
    }

    /// Refuses what does not fit the device.
    pub(super) fn check(
        &self,
        driver: &Driver,
        dispatch: &Dispatch,
        rooms: &impl Rooms,
    ) -> Result<(), CompileError> {
        let limits = &driver.facts.limits;
        let grid = self.grid(dispatch);
        if grid.iter().zip(limits.groups).any(|(&groups, most)| groups > u64::from(most)) {
            return Err(CompileError::new(format!(
                "kernel '{}': a grid of {grid:?} workgroups is above the device's {:?}: run it over parts, or name a grid of more axes",
                dispatch.label, limits.groups
            )));
        }
        for binding in dispatch.inputs.iter().chain(&dispatch.outputs) {
            let (room, aligned) = rooms.room(binding, 0).unwrap_or((0, false));
            if binding.len > room || !aligned {
                return Err(CompileError::new(format!(
                    "kernel '{}': an array of {} bytes does not lie in one range of {room} bytes that the device binds to a kernel: pass slices or a copy of it",
                    dispatch.label, binding.len
                )));
            }
        }
        Ok(())
    }
}
