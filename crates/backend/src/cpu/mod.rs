//! The CPU as a device of its own: queues with tickets, private memory, a budget.
//!
//! It is not a stand-in. Arrays that are `Private` are as unreachable for the CPU's own code as
//! on any device, work is asynchronous, and memory is what the operating system gives out and
//! takes back page by page.

mod fold;
mod host;
mod math;
mod memory;
mod ops;
mod pages;
mod philox;
mod program;
mod queue;
mod run;
mod threads;

use std::sync::Arc;
use std::time::Duration;

use aquifer_core::{
    Block, BlockId, Caps, DriverError, Memory, QueueId, Storage, Ticket, VirtualMemory, size::PAGE,
};

pub use host::HostArgs;

use crate::apis::Listed;
use crate::dtype::Dtype;
use crate::ir::Kernel;
use crate::queues::Queues;
use crate::seam::{
    Backend, Batch, Budget, CompileError, Dispatch, Failure, ImportError, Pipeline, Signature,
    Source, WaitError,
};
use memory::Regions;
use queue::{Queue, Timelines};

/// Address space of one span. 47 bits are there; two modes and a few spans each leave most of
/// it free, and a machine's whole memory fits many times over.
const SPAN: u64 = 4 << 40;

/// The CPU device.
#[derive(Debug)]
pub struct Cpu {
    caps: Caps,
    regions: Regions,
    queues: Arc<Queues<Queue>>,
}

impl Timelines for Queues<Queue> {
    fn await_ticket(&self, queue: QueueId, ticket: Ticket) {
        if let Some(queue) = self.get(queue) {
            // Whoever submitted that batch has it run. To run it here, while another queue's turn is
            // held, could drop the last of a device that waits for this one. Without a limit of
            // time the wait always succeeds.
            let _ = queue.wait_idly(ticket, None);
        }
    }

    fn has_reached(&self, queue: QueueId, ticket: Ticket) -> bool {
        self.get(queue).is_none_or(|queue| queue.reached() >= ticket)
    }
}

impl Cpu {
    /// Opens the CPU as a device. It always opens.
    pub fn open() -> Arc<Self> {
        let caps = Caps {
            name: crate::system::processor(),
            system_page: rustix::param::page_size() as u64,
            virtual_memory: Some(VirtualMemory {
                span: SPAN,
                granule: PAGE.max(rustix::param::page_size() as u64),
            }),
            largest_buffer: SPAN,
            largest_block: SPAN,
            unified: true,
            coherent: true,
            import_alignment: Some(1),
            imports_files: true,
            subnormals: true,
            can_wire: true,
            wires_blocks: false,
            binding_alignment: 1,
            queues: u32::MAX,
            host_kernels: true,
            msl_kernels: false,
        };
        Arc::new(Self { caps, regions: Regions::default(), queues: Arc::default() })
    }

    /// The CPU as it is listed.
    pub(crate) fn listed() -> Listed {
        let memory = crate::system::budget().total;
        Listed { name: crate::system::processor(), kind: "processor", driver: None, memory }
    }

    #[inline]
    fn queue(&self, id: QueueId) -> Option<&Arc<Queue>> {
        self.queues.get(id)
    }
}

impl Drop for Cpu {
    fn drop(&mut self) {
        self.queues.iter().for_each(|queue| queue.close());
    }
}

impl Memory for Cpu {
    fn obtain(&self, size: u64, _mode: Storage) -> Result<Block, DriverError> {
        let block = self.regions.map(size)?;
        self.regions.commit(block.id, 0, size);
        Ok(block)
    }

    fn give_back(&self, block: Block) {
        self.regions.remove(block);
    }

    fn reserve(&self, size: u64, _mode: Storage) -> Result<Block, DriverError> {
        self.regions.map(size)
    }

    fn release(&self, span: Block) {
        self.regions.remove(span);
    }

    fn commit(&self, span: BlockId, offset: u64, len: u64) -> Result<(), DriverError> {
        self.regions.commit(span, offset, len);
        Ok(())
    }

    fn decommit(&self, span: BlockId, offset: u64, len: u64) {
        self.regions.decommit(span, offset, len);
    }

    fn wire(&self, block: BlockId, offset: u64, len: u64) -> Result<(), DriverError> {
        self.regions.wire(block, offset, len)
    }

    fn unwire(&self, block: BlockId, offset: u64, len: u64) {
        self.regions.unwire(block, offset, len);
    }

    fn reached(&self, queue: QueueId) -> Ticket {
        // A queue that is not there has no work.
        self.queue(queue).map_or(Ticket::MAX, |queue| queue.reached())
    }
}

// SAFETY: 1: addresses are those of mappings that live until they are removed. 2: a queue's
// timeline moves after its batch has run.
unsafe impl Backend for Cpu {
    fn api(&self) -> &'static str {
        "cpu"
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn budget(&self) -> Budget {
        crate::system::budget()
    }

    fn supports(&self, _dtype: Dtype) -> bool {
        true
    }

    unsafe fn import(&self, address: *mut u8, len: u64) -> Result<Block, ImportError> {
        Ok(self.regions.import(address as u64, len))
    }

    fn forget(&self, block: Block) {
        self.regions.remove(block);
    }

    fn open_queue(&self) -> Result<QueueId, DriverError> {
        self.queues.add(|_| Ok(Queue::default()))
    }

    fn close_queue(&self, queue: QueueId) {
        if let Some(queue) = self.queue(queue) {
            queue.close();
        }
    }

    unsafe fn submit(&self, queue: QueueId, batch: &mut Batch) -> Result<Ticket, DriverError> {
        match self.queue(queue) {
            Some(queue) => Ok(queue.submit(std::mem::take(batch))),
            None => Err(DriverError { call: "submit", code: i64::from(queue.0) }),
        }
    }

    fn kick(&self, queue: QueueId) {
        if let Some(queue) = self.queue(queue) {
            queue.kick(&self.queues);
        }
    }

    fn submitted(&self, queue: QueueId) -> Ticket {
        self.queue(queue).map_or(0, |queue| queue.submitted())
    }

    fn wait(
        &self,
        queue: QueueId,
        ticket: Ticket,
        timeout: Option<Duration>,
    ) -> Result<(), WaitError> {
        match self.queue(queue) {
            Some(queue) => queue.wait(ticket, timeout, &*self.queues),
            None => Ok(()),
        }
    }

    fn lost(&self) -> Option<DriverError> {
        None
    }

    fn take_failure(&self, queue: QueueId) -> Option<Failure> {
        self.queue(queue)?.take_failure()
    }

    fn compile(&self, kernel: &Kernel) -> Result<Pipeline, CompileError> {
        Ok(Pipeline(Arc::new(program::Program::compile(kernel)?)))
    }

    fn compile_source(&self, _source: &Source) -> Result<(Pipeline, Signature), CompileError> {
        Err(CompileError::new("the CPU device runs closures, not WGSL or MSL"))
    }

    fn prepare(&self, _dispatch: &Dispatch) -> Result<u64, CompileError> {
        Ok(0)
    }

    fn flush(&self, _block: BlockId, _offset: u64, _len: u64) -> Result<(), DriverError> {
        Ok(())
    }

    fn invalidate(&self, _block: BlockId, _offset: u64, _len: u64) -> Result<(), DriverError> {
        Ok(())
    }
}
