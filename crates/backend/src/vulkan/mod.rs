//! Vulkan: any GPU with a driver for version 1.2, and software drivers.
//!
//! libvulkan is loaded at run time. A block is a buffer over memory of its own; arrays are bound by
//! offset. Kernels are WGSL, turned into SPIR-V by naga; a timeline semaphore for each queue holds
//! its tickets.

mod calls;
mod device;
mod driver;
mod encode;
mod instance;
mod memory;
mod pipeline;
mod queue;
mod spirv;
mod types;

use std::sync::Arc;
use std::time::Duration;

use aquifer_core::{Block, BlockId, Caps, DriverError, Memory, QueueId, Storage, Ticket};

pub use calls::DriverCalls;
pub use instance::VulkanOptions;

use crate::apis::{Listed, OpenError};
use crate::dtype::Dtype;
use crate::gpu::{Copiers, Copies, Expression, How, Program as Compiled, User};
use crate::ir::Kernel;
use crate::queues::Queues;
use crate::reaper::Reaper;
use crate::seam::{
    Backend, Batch, Budget, CompileError, Dispatch, Failure, ImportError, Language, Pipeline,
    Program, Signature, Source, WaitError,
};
use driver::Driver;
use encode::Ranges;
use instance::{Instance, Physical, refuse};
use memory::Regions;
use queue::Queue;

/// A Vulkan device.
#[derive(Debug)]
pub struct Vulkan {
    // In the order in which they go: the reaper has queues.
    reaper: Reaper<Watched>,
    queues: Queues<Queue>,
    regions: Regions,
    barriers: bool,
    /// The kernels that copy within a discrete device's memory.
    copiers: Option<Copiers>,
    driver: Arc<Driver>,
}

/// A queue and the ticket that is waited for.
type Watched = (Arc<Queue>, Ticket);

/// Drops what a batch kept alive once its ticket is reached, if nobody else looks at its queue.
fn reap((queue, ticket): Watched) {
    // A device that is lost is done too; a call that failed is made again.
    while matches!(queue.wait(ticket, None), Err(WaitError::Driver(_))) {
        std::thread::sleep(Duration::from_millis(1));
    }
    queue.reap();
}

/// Whether the environment asks for the validation layer.
fn validation() -> bool {
    std::env::var_os("AQUIFER_VULKAN_VALIDATION").is_some_and(|on| on == "1")
}

impl Vulkan {
    /// Opens the `index`-th device of [`list`](Self::list); by default the first.
    ///
    /// # Errors
    /// Why there is none: no loader, no driver, no such device, or what its driver lacks.
    pub fn open(index: Option<usize>) -> Result<Arc<Self>, OpenError> {
        let validation = validation();
        Self::open_with(&VulkanOptions { index, validation, ..VulkanOptions::default() })
    }

    /// Opens the first device that is not software.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_hardware() -> Result<Arc<Self>, OpenError> {
        if !instance::hardware_may_be_here() {
            return refuse("no device node of a GPU is here");
        }
        let options = VulkanOptions { validation: validation(), ..VulkanOptions::default() };
        let instance = Arc::new(Instance::open(options.validation)?);
        match instance.devices()?.iter().find(|device| !device.is_software()) {
            Some(physical) => Self::open_on(&instance, physical, &options),
            None => refuse("no Vulkan driver here has a device that is not software"),
        }
    }

    /// Opens a device with options.
    ///
    /// # Errors
    /// As [`open`](Self::open); the validation layer, where it is asked for and not installed.
    pub fn open_with(options: &VulkanOptions) -> Result<Arc<Self>, OpenError> {
        let instance = Arc::new(Instance::open(options.validation)?);
        let devices = instance.devices()?;
        let Some(physical) = devices.get(options.index.unwrap_or(0)) else {
            return match (options.index, devices.len()) {
                (_, 0) => refuse("no Vulkan driver is installed, or none has a device"),
                (index, count) => refuse(format!(
                    "there is no Vulkan device {}: there are {count}, from vulkan:0",
                    index.unwrap_or(0)
                )),
            };
        };
        Self::open_on(&instance, physical, options)
    }

    fn open_on(
        instance: &Arc<Instance>,
        physical: &Physical,
        options: &VulkanOptions,
    ) -> Result<Arc<Self>, OpenError> {
        let opened = device::open(instance, physical, options)?;
        let driver = Arc::new(Driver::new(Arc::clone(instance), physical, opened));
        let copiers = match driver.facts.limits.kernels.copies {
            Copies::Driver => None,
            _ => Copiers::new(&driver).ok(),
        };
        Ok(Arc::new(Self {
            copiers,
            queues: Queues::default(),
            regions: Regions::new(Arc::clone(&driver)),
            reaper: Reaper::default(),
            barriers: !options.no_barriers,
            driver,
        }))
    }

    /// The devices there are, those with memory of their own first, software last.
    ///
    /// # Errors
    /// Why there is no list: no loader.
    pub fn list() -> Result<Vec<Listed>, OpenError> {
        let instance = Instance::open(false)?;
        let devices = instance.devices()?;
        Ok(devices.iter().map(|physical| device::describe(&instance, physical)).collect())
    }

    /// What the driver was asked, and what of it is to fail.
    pub fn calls(&self) -> &DriverCalls {
        &self.driver.calls
    }

    /// Bytes of all blocks that the driver gave and has not got back.
    pub fn held(&self) -> u64 {
        self.regions.taken()
    }

    /// What the validation layer said, if it was asked for.
    pub fn messages(&self) -> Vec<String> {
        self.driver.instance.messages.all()
    }

    fn ranges(&self) -> Ranges<'_> {
        Ranges { held: self.regions.held(), driver: &self.driver }
    }
}

impl Drop for Vulkan {
    fn drop(&mut self) {
        // Queues first: what they keep may be regions' or programs'.
        for queue in self.queues.iter() {
            while matches!(
                queue.wait(queue.submitted(), None),
                Err(WaitError::Driver(_) | WaitError::Timeout)
            ) {}
        }
        self.driver.wait_idle();
    }
}

impl Memory for Vulkan {
    fn obtain(&self, size: u64, mode: Storage) -> Result<Block, DriverError> {
        self.regions.obtain(size, mode)
    }

    fn give_back(&self, block: Block) {
        self.regions.remove(block);
    }

    fn reserve(&self, _size: u64, _mode: Storage) -> Result<Block, DriverError> {
        Err(no_virtual_memory())
    }

    fn release(&self, _span: Block) {}

    fn commit(&self, _span: BlockId, _offset: u64, _len: u64) -> Result<(), DriverError> {
        Err(no_virtual_memory())
    }

    fn decommit(&self, _span: BlockId, _offset: u64, _len: u64) {}

    fn wire(&self, _block: BlockId, _offset: u64, _len: u64) -> Result<(), DriverError> {
        // `Caps::can_wire` says so.
        Err(DriverError { call: "wire", code: -1 })
    }

    fn unwire(&self, _block: BlockId, _offset: u64, _len: u64) {}

    fn reached(&self, queue: QueueId) -> Ticket {
        // A queue that is not there has no work.
        self.queues.get(queue).map_or(Ticket::MAX, |queue| queue.reached())
    }
}

/// The answer to what is never asked where `Caps::virtual_memory` is absent.
fn no_virtual_memory() -> DriverError {
    DriverError { call: "reserve", code: -1 }
}

// SAFETY: 1: addresses of shared blocks are those of allocations that stay mapped until they are
// freed with their region. 2: a timeline is signalled by the driver after its batch, whose last
// barrier makes its writes visible to the CPU; of a lost device it is said once it is idle.
unsafe impl Backend for Vulkan {
    fn api(&self) -> &'static str {
        "vulkan"
    }

    fn caps(&self) -> &Caps {
        &self.driver.facts.caps
    }

    fn budget(&self) -> Budget {
        let facts = &self.driver.facts;
        let heap = facts.types.private.heap as usize;
        let total = facts.limits.heaps[heap];
        if let Some(budgets) = self.driver.budgets() {
            return Budget { working_set: budgets[heap].min(total), total };
        }
        if facts.types.unified {
            // The system's memory, as much of it as the driver has.
            let system = crate::system::budget();
            let total = total.min(system.total);
            return Budget { working_set: system.working_set.min(total), total };
        }
        // The driver says nothing: what others use is not known, so a part is left to them.
        Budget { working_set: total / 10 * 8, total }
    }

    fn supports(&self, dtype: Dtype) -> bool {
        self.driver.facts.features.supports(dtype)
    }

    unsafe fn import(&self, address: *mut u8, len: u64) -> Result<Block, ImportError> {
        self.regions.import(address as u64, len)
    }

    fn forget(&self, block: Block) {
        self.regions.remove(block);
    }

    fn open_queue(&self) -> Result<QueueId, DriverError> {
        self.queues.add(|index| Queue::open(&self.driver, index))
    }

    fn close_queue(&self, _queue: QueueId) {
        // It goes with the device: its number stays taken.
    }

    unsafe fn submit(&self, queue: QueueId, batch: &mut Batch) -> Result<Ticket, DriverError> {
        let Some(queue) = self.queues.get(queue) else {
            return Err(DriverError { call: "submit", code: i64::from(queue.0) });
        };
        let keeps = !batch.keep.is_empty();
        let timeline = |other: QueueId| self.queues.get(other).map(|other| other.timeline());
        let how = How { barriers: self.barriers, copiers: self.copiers.as_ref() };
        let ticket = queue.submit(batch, (&self.regions, how), timeline)?;
        // Without a thread, whoever waits for the queue drops them.
        if keeps && let Some(reaper) = self.reaper.sender(reap) {
            let _ = reaper.send((Arc::clone(queue), ticket));
        }
        Ok(ticket)
    }

    fn kick(&self, queue: QueueId) {
        // The driver has it already; what is done is let go.
        if let Some(queue) = self.queues.get(queue).filter(|queue| queue.keeps()) {
            queue.reap();
        }
    }

    fn submitted(&self, queue: QueueId) -> Ticket {
        self.queues.get(queue).map_or(0, |queue| queue.submitted())
    }

    fn wait(
        &self,
        queue: QueueId,
        ticket: Ticket,
        timeout: Option<Duration>,
    ) -> Result<(), WaitError> {
        self.queues.get(queue).map_or(Ok(()), |queue| queue.wait(ticket, timeout))
    }

    fn lost(&self) -> Option<DriverError> {
        self.driver.lost().cloned()
    }

    fn take_failure(&self, queue: QueueId) -> Option<Failure> {
        self.queues.get(queue)?.take_failure()
    }

    fn compile(&self, kernel: &Kernel) -> Result<Pipeline, CompileError> {
        let expression = Expression::compile(&self.driver, kernel)?;
        Ok(Pipeline(Arc::new(Compiled::Expression(expression))))
    }

    fn compile_source(&self, source: &Source) -> Result<(Pipeline, Signature), CompileError> {
        if source.language != Language::Wgsl {
            return Err(CompileError::new("Vulkan devices run WGSL"));
        }
        let features = self.driver.facts.features;
        let user = crate::wgsl::source::read(&source.text, source.entry.as_deref(), features)?;
        let compiled = User::compile(&self.driver, &user)?;
        Ok((Pipeline(Arc::new(Compiled::User(compiled))), user.signature))
    }

    fn prepare(&self, dispatch: &Dispatch) -> Result<u64, CompileError> {
        let Program::Compiled(pipeline) = &dispatch.program else {
            return Err(CompileError::new("Vulkan devices run WGSL, not closures"));
        };
        match pipeline.0.downcast_ref::<Compiled<Driver>>() {
            Some(Compiled::Expression(expression)) => {
                expression.prepare(dispatch, || self.ranges())
            }
            Some(Compiled::User(user)) => {
                let limits = &self.driver.facts.limits.kernels;
                user.check(limits, dispatch, &self.ranges()).map(|()| 0)
            }
            None => Err(CompileError::new("the pipeline belongs to another device")),
        }
    }

    fn flush(&self, block: BlockId, offset: u64, len: u64) -> Result<(), DriverError> {
        self.regions.sync(block, (offset, len), true)
    }

    fn invalidate(&self, block: BlockId, offset: u64, len: u64) -> Result<(), DriverError> {
        self.regions.sync(block, (offset, len), false)
    }
}
