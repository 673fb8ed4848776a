//! The seam: what a back end does. Object-safe, called on slow paths and once a batch.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aquifer_core::{Access, Block, BlockId, Caps, DriverError, Memory, QueueId, Ticket};
use smallvec::SmallVec;

use crate::cpu::HostArgs;
use crate::dtype::Dtype;
use crate::ir::Kernel;

/// Total and available bytes of a device now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// What the device recommends to use; never above `total`.
    pub working_set: u64,
    /// All memory there is.
    pub total: u64,
}

/// A compiled kernel; what is in it only its back end knows.
#[derive(Clone)]
pub struct Pipeline(pub(crate) Arc<dyn Any + Send + Sync>);

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pipeline")
    }
}

/// Bytes of a block that a command uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The block or span.
    pub block: BlockId,
    /// Bytes from its start.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// The block's address plus the offset.
    pub address: u64,
    /// Type of the elements.
    pub dtype: Dtype,
}

impl Binding {
    /// Whether the two share a byte.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.block == other.block
            && self.offset < other.offset + other.len
            && other.offset < self.offset + self.len
    }
}

/// The user's own kernel on the CPU.
pub type HostKernel = Arc<dyn Fn(&mut HostArgs<'_>) -> Result<(), String> + Send + Sync>;

/// What a dispatch runs.
#[derive(Clone)]
pub enum Program {
    /// A compiled expression.
    Compiled(Pipeline),
    /// A closure of the user's.
    Host(HostKernel),
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Compiled(_) => "Compiled",
            Self::Host(_) => "Host",
        })
    }
}

/// A kernel and what it works on.
#[derive(Clone, Debug)]
pub struct Dispatch {
    /// The kernel.
    pub program: Program,
    /// The name that errors carry.
    pub label: Cow<'static, str>,
    /// Arrays that are read, in the kernel's order.
    pub inputs: SmallVec<[Binding; 4]>,
    /// Arrays that are written.
    pub outputs: SmallVec<[Binding; 2]>,
    /// Parameters as bits, lowest first.
    pub params: SmallVec<[u64; 4]>,
    /// Places that the kernel runs over.
    pub len: u64,
    /// Places that fold into one element; `len` is a multiple of it. Unused without folds.
    pub row: u64,
    /// Memory for what the kernel keeps meanwhile, as large as [`Backend::prepare`] asks.
    pub scratch: Option<Binding>,
    /// Workgroups of a user's kernel; where it is not given, as many as cover `len`.
    pub grid: Option<[u32; 3]>,
}

/// What a user's kernel takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// An array.
    Array {
        /// What the kernel does with it.
        access: Access,
        /// The type of its elements, where they are scalars or vectors.
        element: Option<Dtype>,
        /// Bytes that it has at least.
        least: u64,
    },
    /// A value.
    Scalar(Dtype),
}

/// The arguments of a user's kernel, arrays first, and its workgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Arrays in the order of their bindings, then scalars in order.
    pub arguments: Vec<Argument>,
    /// Invocations of a workgroup along each axis.
    pub workgroup: [u32; 3],
}

/// A language that devices compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Language {
    /// WebGPU's.
    Wgsl,
    /// Metal's own.
    Msl,
}

/// A user's kernel in a language that devices compile.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// What it is written in.
    pub language: Language,
    /// The text.
    pub text: String,
    /// The entry point; the only one where it is not named.
    pub entry: Option<String>,
    /// Invocations of a workgroup along each axis, where the text does not say (MSL).
    pub workgroup: Option<[u32; 3]>,
}

/// One command of a batch.
#[derive(Clone, Debug)]
pub enum Command {
    /// Runs a kernel.
    Dispatch(Box<Dispatch>),
    /// Copies bytes; the ranges have one length and do not overlap.
    Copy {
        /// From.
        from: Binding,
        /// To.
        to: Binding,
    },
    /// What comes before is done and visible before what comes after starts.
    Barrier,
    /// What comes after waits for another queue.
    Wait {
        /// The other queue.
        queue: QueueId,
        /// A ticket that has been submitted there.
        ticket: Ticket,
    },
}

/// Commands that are submitted together.
#[derive(Default)]
pub struct Batch {
    /// In order.
    pub commands: Vec<Command>,
    /// Bytes that they touch: what decides whether it is small.
    pub cost: u64,
    /// What must live until the batch is done; dropped then, on whatever thread that is.
    pub keep: Vec<Arc<dyn Any + Send + Sync>>,
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("commands", &self.commands).field("cost", &self.cost).finish()
    }
}

/// Work that failed on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The name of the work.
    pub label: String,
    /// What went wrong.
    pub reason: String,
}

/// Why a wait ended without its ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitError {
    /// The time is up.
    Timeout,
    /// The device is lost: the driver's call and code.
    Lost(DriverError),
    /// A call of the driver failed; the work goes on, and another wait may find it done.
    Driver(DriverError),
}

/// A kernel that does not compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileError {
    /// What is wrong, with the source line where there is source.
    pub reason: String,
    /// The driver's call that failed, where it was one.
    pub driver: Option<DriverError>,
}

impl From<DriverError> for CompileError {
    fn from(error: DriverError) -> Self {
        Self { reason: error.to_string(), driver: Some(error) }
    }
}

impl CompileError {
    /// A fault of the kernel's own.
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), driver: None }
    }
}

/// Why memory that exists cannot be used in place.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ImportError {
    /// The device cannot import.
    Unsupported(&'static str),
    /// The driver refused.
    Driver(DriverError),
}

/// A device and its queues.
///
/// An implementation never unwinds out of a call.
///
/// # Safety
/// Safe code dereferences what an implementation says:
/// 1. Addresses of blocks and spans of shared memory are valid for the CPU, for the size given
///    (spans: where committed), until they are given back; no two that are held overlap.
/// 2. `reached` never tells of a ticket whose work still runs, and `wait` returns `Ok` only after
///    it.
///
/// Whoever calls the methods of [`Memory`] on a back end that a device uses breaks its books; a
/// device owns its back end.
pub unsafe trait Backend: Memory + Send + Sync + fmt::Debug {
    /// The API's name: `cpu`, `vulkan`, ...
    fn api(&self) -> &'static str;
    /// Constant facts.
    fn caps(&self) -> &Caps;
    /// Memory now, clamped and honest (rule C.1).
    fn budget(&self) -> Budget;
    /// Whether arrays of this element type work.
    fn supports(&self, dtype: Dtype) -> bool;
    /// Names memory that exists as a block, without a copy. `len` is not 0.
    ///
    /// # Safety
    /// 1. `address` starts `len` bytes that stay valid until [`forget`](Self::forget) and until
    ///    all work on the block is done.
    /// 2. They may be written unless only reading work is submitted on the block.
    unsafe fn import(&self, address: *mut u8, len: u64) -> Result<Block, ImportError>;
    /// Ends an import.
    fn forget(&self, block: Block);
    /// A new queue.
    fn open_queue(&self) -> Result<QueueId, DriverError>;
    /// Ends a queue after its work.
    fn close_queue(&self, queue: QueueId);
    /// Takes a batch, which is empty afterwards, to the end of a queue and returns its ticket, one
    /// above the last. It neither runs work nor blocks.
    ///
    /// # Safety
    /// 1. Every binding lies inside its block, and the memory stays until the ticket is reached.
    /// 2. No one else writes what the batch reads, or touches what it writes, from the moment
    ///    that its waits are over until the ticket is reached.
    /// 3. Commands of the batch, and of earlier batches, that conflict have a barrier between
    ///    them.
    /// 4. Kernels fit their bindings: count, element types, and lengths as the dispatch says.
    ///
    /// # Errors
    /// The driver's; the batch is then as it was and its ticket is not taken.
    unsafe fn submit(&self, queue: QueueId, batch: &mut Batch) -> Result<Ticket, DriverError>;
    /// Starts what has been submitted; may run small work in the caller.
    fn kick(&self, queue: QueueId);
    /// The last ticket given out on a queue.
    fn submitted(&self, queue: QueueId) -> Ticket;
    /// Waits until a queue has reached a ticket that was submitted.
    ///
    /// # Errors
    /// See [`WaitError`]. A back end says [`WaitError::Lost`] only once the device touches no
    /// memory any more: what waits for it then frees that memory.
    fn wait(
        &self,
        queue: QueueId,
        ticket: Ticket,
        timeout: Option<Duration>,
    ) -> Result<(), WaitError>;
    /// What lost the device, once it is lost: work that is over then may not have been done.
    fn lost(&self) -> Option<DriverError>;
    /// Takes the next failure of work on a queue, oldest first.
    fn take_failure(&self, queue: QueueId) -> Option<Failure>;
    /// Compiles an expression.
    ///
    /// # Errors
    /// See [`CompileError`].
    fn compile(&self, kernel: &Kernel) -> Result<Pipeline, CompileError>;
    /// Compiles a user's kernel.
    ///
    /// # Errors
    /// See [`CompileError`]: the text's own faults with their lines, or that this kind of device
    /// takes no such source.
    fn compile_source(&self, source: &Source) -> Result<(Pipeline, Signature), CompileError>;
    /// Makes ready what a dispatch of a compiled kernel needs beyond its pipeline, which may take
    /// long, before it is part of a batch. Returns the bytes of scratch memory (device memory, in
    /// any mode) that it must be given.
    ///
    /// # Errors
    /// See [`CompileError`].
    fn prepare(&self, dispatch: &Dispatch) -> Result<u64, CompileError>;
    /// Makes the CPU's writes to a range of shared memory visible to work submitted from now on.
    /// Called only where `Caps::coherent` is false.
    ///
    /// # Errors
    /// The driver's.
    fn flush(&self, block: BlockId, offset: u64, len: u64) -> Result<(), DriverError>;
    /// Makes what finished work wrote to a range of shared memory visible to the CPU. Called only
    /// where `Caps::coherent` is false.
    ///
    /// # Errors
    /// The driver's.
    fn invalidate(&self, block: BlockId, offset: u64, len: u64) -> Result<(), DriverError>;
}
