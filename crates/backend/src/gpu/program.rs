//! Programs: expressions, with a pipeline for each shape that they have been run in, and kernels of
//! the user's.

use std::sync::{Arc, PoisonError, RwLock};

use aquifer_core::Access;
use smallvec::SmallVec;

use super::cut::{self, Cutter, Rooms};
use super::{Compiler, Copies, KernelLimits, Text};
use crate::dtype::Dtype;
use crate::ir::{Kernel, Node, Op, Output};
use crate::seam::{Argument, CompileError, Dispatch, Pipeline, Signature};
use crate::wgsl::source::{Scalar, UserKernel};
use crate::wgsl::{self, Shader, Shape, Slot, Variant, Word};

/// A pipeline with what its arguments are.
#[derive(Debug)]
pub(crate) struct Compiled<P> {
    pub(super) pipeline: P,
    pub(super) words: Vec<Word>,
    pub(super) slots: Vec<Slot>,
    /// Invocations of a workgroup.
    pub(super) group: u32,
}

/// What a pipeline of the seam holds.
#[derive(Debug)]
pub(crate) enum Program<C: Compiler> {
    Expression(Expression<C>),
    User(User<C>),
}

/// The pipelines of an expression: there are few.
type Variants<P> = SmallVec<[(Variant, Arc<Compiled<P>>); 4]>;

/// A compiled expression.
#[derive(Debug)]
pub(crate) struct Expression<C: Compiler> {
    compiler: Arc<C>,
    pub(super) kernel: Kernel,
    /// Which inputs are read.
    pub(super) used: Vec<bool>,
    variants: RwLock<Variants<C::Pipeline>>,
}

/// A compiled kernel of the user's.
#[derive(Debug)]
pub(crate) struct User<C: Compiler> {
    pub(super) pipeline: C::Pipeline,
    /// What the kernel does with each array, in the order of their bindings.
    pub(super) accesses: Vec<Access>,
    pub(super) scalars: Vec<Scalar>,
    /// Bytes of the immediates.
    pub(super) immediates: u32,
    workgroup: [u32; 3],
}

impl<C: Compiler> Expression<C> {
    pub(crate) fn compile(compiler: &Arc<C>, kernel: &Kernel) -> Result<Self, CompileError> {
        kernel.check().map_err(CompileError::new)?;
        let features = compiler.features();
        let needed = wgsl::needed_types(kernel);
        if let Some(dtype) = needed.into_iter().find(|dtype| !features.supports(*dtype)) {
            return Err(CompileError::new(format!(
                "the device {} cannot compute with {dtype}",
                compiler.caps().name
            )));
        }
        Ok(Self {
            compiler: Arc::clone(compiler),
            kernel: kernel.clone(),
            used: wgsl::used_inputs(kernel),
            variants: RwLock::default(),
        })
    }

    /// The pipeline of a variant, if it has been made.
    pub(super) fn find(&self, variant: Variant) -> Option<Arc<Compiled<C::Pipeline>>> {
        let variants = self.variants.read().unwrap_or_else(PoisonError::into_inner);
        let found = variants.iter().find(|(known, _)| *known == variant);
        found.map(|(_, compiled)| Arc::clone(compiled))
    }

    /// The kernel that copies elements, ready for ranges of any length.
    fn copier(compiler: &Arc<C>, dtype: Dtype, shapes: &[Shape]) -> Result<Self, CompileError> {
        let kernel = Kernel {
            nodes: vec![Node { op: Op::Input(0), dtype }],
            inputs: vec![dtype],
            params: Vec::new(),
            outputs: vec![Output::Store(0)],
        };
        let copier = Self::compile(compiler, &kernel)?;
        for &shape in shapes {
            copier.make(Variant { shape, repeats: 0 })?;
        }
        Ok(copier)
    }

    fn make(&self, variant: Variant) -> Result<Arc<Compiled<C::Pipeline>>, CompileError> {
        if let Some(compiled) = self.find(variant) {
            return Ok(compiled);
        }
        // Outside the lock: a slow compilation does not block those whose pipeline is there.
        let mut features = self.compiler.features();
        let compiled = loop {
            let shader = wgsl::shader(&self.kernel, variant, features);
            // A long kernel's registers leave room for fewer.
            let most = match compile_shader(&self.compiler, shader) {
                Ok(compiled) if compiled.group <= C::most_invocations(&compiled.pipeline) => {
                    break Arc::new(compiled);
                }
                Ok(compiled) => C::most_invocations(&compiled.pipeline),
                Err(error) if C::may_be_too_large(&error) && features.group > 32 => u32::MAX,
                Err(error) => return Err(error),
            };
            if features.group <= 32 {
                return Err(CompileError::new(format!(
                    "a kernel may have only {most} invocations on the device {}",
                    self.compiler.caps().name
                )));
            }
            features.group = 1 << most.clamp(32, features.group / 2).ilog2();
        };
        let mut variants = self.variants.write().unwrap_or_else(PoisonError::into_inner);
        if !variants.iter().any(|(known, _)| *known == variant) {
            variants.push((variant, Arc::clone(&compiled)));
        }
        Ok(compiled)
    }

    /// Makes the pipelines of every call of a dispatch; the bytes of scratch memory that it takes.
    pub(crate) fn prepare<R: Rooms>(
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
            let limits = self.compiler.limits();
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

/// The kernels that copy: words, and single bytes.
#[derive(Clone, Debug)]
pub(crate) struct Copiers {
    pub(super) words: Pipeline,
    /// There where all copies are kernels.
    pub(super) bytes: Option<Pipeline>,
}

impl Copiers {
    /// # Errors
    /// See [`CompileError`].
    pub(crate) fn new<C: Compiler>(compiler: &Arc<C>) -> Result<Self, CompileError> {
        let ready = |dtype: Dtype, shapes: &[Shape]| {
            let copier = Expression::copier(compiler, dtype, shapes)?;
            Ok::<_, CompileError>(Pipeline(Arc::new(Program::Expression(copier))))
        };
        Ok(Self {
            words: ready(Dtype::U32, &[Shape::Wide, Shape::One])?,
            bytes: match compiler.limits().copies {
                Copies::Kernel => Some(ready(Dtype::U8, &[Shape::Packed])?),
                _ => None,
            },
        })
    }
}

fn compile_shader<C: Compiler>(
    compiler: &Arc<C>,
    shader: Shader,
) -> Result<Compiled<C::Pipeline>, CompileError> {
    let most = compiler.limits().bindings;
    if shader.slots.len() > most as usize {
        return Err(CompileError::new(format!(
            "the kernel binds {} buffers, but the device {} lets it have {most}",
            shader.slots.len(),
            compiler.caps().name,
        )));
    }
    let (module, info) = wgsl::source::parse(&shader.text, compiler.features(), true)?;
    let pipeline = compiler.compile(&Text {
        module: &module,
        info: &info,
        entry: "main",
        own: true,
        bindings: shader.slots.len() as u32,
        immediates: shader.words.len() as u32 * 4,
    })?;
    Ok(Compiled { pipeline, words: shader.words, slots: shader.slots, group: shader.group })
}

/// Refuses what is above the device's limits.
fn check_limits(user: &UserKernel, limits: &KernelLimits) -> Result<(), CompileError> {
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
    if user.bindings > limits.bindings {
        return Err(CompileError::new(format!(
            "{} arrays are above the {} that the device binds to a kernel",
            user.bindings, limits.bindings
        )));
    }
    if user.immediates > limits.immediates {
        return Err(CompileError::new(format!(
            "{} bytes of scalars are above the device's {}",
            user.immediates, limits.immediates
        )));
    }
    Ok(())
}

impl<C: Compiler> User<C> {
    pub(crate) fn compile(compiler: &Arc<C>, user: &UserKernel) -> Result<Self, CompileError> {
        check_limits(user, compiler.limits())?;
        let immediates = user.immediates.next_multiple_of(4);
        let pipeline = compiler.compile(&Text {
            module: &user.module,
            info: &user.info,
            entry: &user.entry,
            own: false,
            bindings: user.bindings,
            immediates,
        })?;
        Ok(Self::new(pipeline, &user.signature, (user.scalars.clone(), immediates)))
    }

    /// A kernel that has been compiled: what it takes, and where its scalars lie in how many bytes
    /// of immediates.
    pub(crate) fn new(
        pipeline: C::Pipeline,
        signature: &Signature,
        (scalars, immediates): (Vec<Scalar>, u32),
    ) -> Self {
        let accesses = signature.arguments.iter().filter_map(|argument| match argument {
            Argument::Array { access, .. } => Some(*access),
            Argument::Scalar(_) => None,
        });
        let (accesses, workgroup) = (accesses.collect(), signature.workgroup);
        Self { pipeline, accesses, scalars, immediates, workgroup }
    }

    /// Workgroups of a dispatch.
    pub(super) fn grid(&self, dispatch: &Dispatch) -> [u64; 3] {
        match dispatch.grid {
            Some(grid) => grid.map(u64::from),
            None => [dispatch.len.div_ceil(u64::from(self.workgroup[0].max(1))), 1, 1],
        }
    }

    /// Refuses what does not fit the device.
    pub(crate) fn check(
        &self,
        limits: &KernelLimits,
        dispatch: &Dispatch,
        rooms: &impl Rooms,
    ) -> Result<(), CompileError> {
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
