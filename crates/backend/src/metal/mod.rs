//! Metal: the native API of Apple's devices.
//!
//! A block is a buffer; arrays are bound by offset. Kernels are WGSL, turned into MSL by naga and
//! compiled at run time; a shared event for each queue holds its tickets, and completion handlers
//! tell them. Every entry point has an autorelease pool of its own.

mod device;
mod encode;
mod memory;
mod msl;
mod pool;
mod queue;
mod signature;
mod wiring;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aquifer_core::{Block, BlockId, Caps, DriverError, Memory, QueueId, Storage, Ticket};
use objc2_foundation::NSProcessInfo;
use objc2_metal::{MTLCopyAllDevices, MTLCreateSystemDefaultDevice, MTLDevice};

use crate::apis::{Listed, OpenError};
use crate::dtype::Dtype;
use crate::gpu::{Compiler, Copiers, Expression, How, Program as Compiled, User};
use crate::ir::Kernel;
use crate::queues::Queues;
use crate::reaper::Reaper;
use crate::seam::{
    Backend, Batch, Budget, CompileError, Dispatch, Failure, ImportError, Language, Pipeline,
    Program, Signature, Source, WaitError,
};
use device::{Gpu, Object};
use encode::Ranges;
use memory::Regions;
use pool::{Pooled, pooled};
use queue::{Landing, Queue};

/// Command queues of Metal's that ours are spread over: a process has few.
const QUEUES: usize = 16;

/// A Metal device.
#[derive(Debug)]
pub struct Metal(Pooled<Inner>);

#[derive(Debug)]
struct Inner {
    // In the order in which they go: the reaper may hold what is a queue's.
    reaper: Reaper<Landing>,
    queues: Queues<Queue>,
    regions: Regions,
    copiers: Copiers,
    /// What lost the device.
    lost: Arc<OnceLock<DriverError>>,
    gpu: Arc<Gpu>,
}

fn all() -> Vec<Object<dyn MTLDevice>> {
    MTLCopyAllDevices().to_vec()
}

impl Metal {
    /// Opens the `index`-th device of [`list`](Self::list); by default the system's own choice.
    ///
    /// # Errors
    /// Why there is none.
    pub fn open(index: Option<usize>) -> Result<Arc<Self>, OpenError> {
        pooled(|| {
            let raw = match index {
                None => MTLCreateSystemDefaultDevice(),
                Some(index) => all().into_iter().nth(index),
            };
            let Some(raw) = raw else {
                return Err(OpenError::new(match index {
                    None => "the system has no Metal device".to_owned(),
                    Some(index) => format!(
                        "there is no Metal device {index}: there are {}, from metal:0",
                        all().len()
                    ),
                }));
            };
            let gpu = Arc::new(Gpu::new(raw));
            let copiers = Copiers::new(&gpu).map_err(|error| {
                OpenError::new(format!("{}: {}", gpu.caps().name, error.reason))
            })?;
            Ok(Arc::new(Self(Pooled::new(Inner {
                reaper: Reaper::default(),
                queues: Queues::default(),
                regions: Regions::new(Arc::clone(&gpu)),
                copiers,
                lost: Arc::default(),
                gpu,
            }))))
        })
    }

    /// The devices there are.
    ///
    /// # Errors
    /// None today; the signature is that of the other APIs.
    pub fn list() -> Result<Vec<Listed>, OpenError> {
        pooled(|| {
            let version = NSProcessInfo::processInfo().operatingSystemVersionString();
            let describe = |raw: Object<dyn MTLDevice>| {
                let gpu = Gpu::new(raw);
                Listed {
                    name: gpu.caps().name.clone(),
                    kind: if gpu.caps().unified { "integrated" } else { "discrete" },
                    driver: Some(format!("Metal, macOS {version}")),
                    memory: gpu.budget().total,
                }
            };
            Ok(all().into_iter().map(describe).collect())
        })
    }

    fn ranges(&self) -> Ranges<'_> {
        Ranges { held: self.0.regions.held(), gpu: &self.0.gpu }
    }
}

impl Inner {
    fn remove(&self, block: &Block) {
        if let Some(lent) = pooled(|| self.regions.remove(block)) {
            lent.returned();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // What completion handlers still hold is not ours to wait for: they end by themselves.
        for queue in self.queues.iter() {
            let _ = queue.wait(queue.submitted(), None);
        }
    }
}

impl Memory for Metal {
    fn obtain(&self, size: u64, mode: Storage) -> Result<Block, DriverError> {
        pooled(|| self.0.regions.obtain(size, mode))
    }

    fn give_back(&self, block: Block) {
        self.0.remove(&block);
    }

    fn reserve(&self, _size: u64, _mode: Storage) -> Result<Block, DriverError> {
        Err(device::nothing("reserve"))
    }

    fn release(&self, _span: Block) {}

    fn commit(&self, _span: BlockId, _offset: u64, _len: u64) -> Result<(), DriverError> {
        Err(device::nothing("reserve"))
    }

    fn decommit(&self, _span: BlockId, _offset: u64, _len: u64) {}

    fn wire(&self, block: BlockId, _offset: u64, _len: u64) -> Result<(), DriverError> {
        pooled(|| self.0.regions.wire(block))
    }

    fn unwire(&self, block: BlockId, _offset: u64, _len: u64) {
        pooled(|| self.0.regions.wiring.forget(block));
    }

    fn reached(&self, queue: QueueId) -> Ticket {
        // A queue that is not there has no work.
        self.0.queues.get(queue).map_or(Ticket::MAX, |queue| queue.reached())
    }
}

// SAFETY: 1: addresses of shared blocks are those of buffers that live until they are given back.
// 2: tickets are told by completion handlers, which Metal calls once a command buffer is over.
unsafe impl Backend for Metal {
    fn api(&self) -> &'static str {
        "metal"
    }

    fn caps(&self) -> &Caps {
        self.0.gpu.caps()
    }

    fn budget(&self) -> Budget {
        pooled(|| self.0.gpu.budget())
    }

    fn supports(&self, dtype: Dtype) -> bool {
        self.0.gpu.features().supports(dtype)
    }

    unsafe fn import(&self, address: *mut u8, len: u64) -> Result<Block, ImportError> {
        let imported = pooled(|| self.0.regions.import(address as u64, len));
        imported.map_err(|(error, lent)| {
            lent.iter().for_each(|lent| lent.returned());
            error
        })
    }

    fn forget(&self, block: Block) {
        self.0.remove(&block);
    }

    fn open_queue(&self) -> Result<QueueId, DriverError> {
        pooled(|| {
            self.0.queues.add(|index| {
                let shared = self.0.queues.iter().nth(index % QUEUES).filter(|_| index >= QUEUES);
                Queue::open(&self.0.gpu, shared.map(|queue| &**queue), &self.0.lost)
            })
        })
    }

    fn close_queue(&self, _queue: QueueId) {
        // It goes with the device: its number stays taken.
    }

    unsafe fn submit(&self, queue: QueueId, batch: &mut Batch) -> Result<Ticket, DriverError> {
        let Some(queue) = self.0.queues.get(queue) else {
            return Err(DriverError { call: "submit", code: i64::from(queue.0) });
        };
        let how = How { barriers: true, copiers: Some(&self.0.copiers) };
        let reaper = match batch.keep.is_empty() {
            true => None,
            false => self.0.reaper.sender(Landing::land),
        };
        let other = |other: QueueId| self.0.queues.get(other).map(|queue| &**queue);
        pooled(|| queue.submit(batch, (&self.0, how, reaper), other))
    }

    fn kick(&self, _queue: QueueId) {
        // Metal has it already.
    }

    fn submitted(&self, queue: QueueId) -> Ticket {
        self.0.queues.get(queue).map_or(0, |queue| queue.submitted())
    }

    fn wait(
        &self,
        queue: QueueId,
        ticket: Ticket,
        timeout: Option<Duration>,
    ) -> Result<(), WaitError> {
        self.0.queues.get(queue).map_or(Ok(()), |queue| queue.wait(ticket, timeout))
    }

    fn lost(&self) -> Option<DriverError> {
        self.0.lost.get().cloned()
    }

    fn take_failure(&self, queue: QueueId) -> Option<Failure> {
        self.0.queues.get(queue)?.take_failure()
    }

    fn compile(&self, kernel: &Kernel) -> Result<Pipeline, CompileError> {
        let expression = Expression::compile(&self.0.gpu, kernel)?;
        Ok(Pipeline(Arc::new(Compiled::Expression(expression))))
    }

    fn compile_source(&self, source: &Source) -> Result<(Pipeline, Signature), CompileError> {
        let (text, entry) = (&source.text, source.entry.as_deref());
        let (user, signature) = pooled(|| match source.language {
            Language::Wgsl => {
                let user = crate::wgsl::source::read(text, entry, self.0.gpu.features())?;
                Ok::<_, CompileError>((User::compile(&self.0.gpu, &user)?, user.signature))
            }
            Language::Msl => {
                let signed = signature::read(text, entry, source.workgroup)?;
                let (pipeline, scalars, bytes) = self.0.gpu.user(text, &signed)?;
                let user = User::new(pipeline, &signed.signature, (scalars, bytes));
                Ok((user, signed.signature))
            }
        })?;
        Ok((Pipeline(Arc::new(Compiled::User(user))), signature))
    }

    fn prepare(&self, dispatch: &Dispatch) -> Result<u64, CompileError> {
        let Program::Compiled(pipeline) = &dispatch.program else {
            return Err(CompileError::new("Metal devices run WGSL or MSL, not closures"));
        };
        pooled(|| match pipeline.0.downcast_ref::<Compiled<Gpu>>() {
            Some(Compiled::Expression(expression)) => {
                expression.prepare(dispatch, || self.ranges())
            }
            Some(Compiled::User(user)) => {
                user.check(self.0.gpu.limits(), dispatch, &self.ranges()).map(|()| 0)
            }
            None => Err(CompileError::new("the pipeline belongs to another device")),
        })
    }

    fn flush(&self, _block: BlockId, _offset: u64, _len: u64) -> Result<(), DriverError> {
        Ok(())
    }

    fn invalidate(&self, _block: BlockId, _offset: u64, _len: u64) -> Result<(), DriverError> {
        Ok(())
    }
}
