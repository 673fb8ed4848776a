//! Queues: recording commands, and the order between them (rules N.1, N.2).
//!
//! The one idea: under one lock a command learns what it must wait for and leaves its own mark
//! for those after it. A wait for another queue is only ever for a batch that has been submitted,
//! so no two batches can wait for each other.

use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, Weak};

use aquifer_backend::{Backend, Batch, Command};
use aquifer_core::trace::Event;
use aquifer_core::{Access, ByteRange, Dependencies, Epoch, QueueId, Stamp, Ticket, Use};

use crate::buffer::Buffer;
use crate::device::{Device, DeviceInner};
use crate::error::Result;
use crate::trace::Shared;

/// Commands of a batch before it is submitted.
const BATCH_COMMANDS: usize = 64;
/// Bytes that a batch touches before it is submitted: large work starts at once.
const BATCH_BYTES: u64 = 4 << 20;
/// Batches of a queue that may be in flight; one more waits for the first.
pub(crate) const IN_FLIGHT: u64 = 4;

/// What a queue has recorded and not submitted.
struct Open {
    id: QueueId,
    batch: Batch,
    submitted: Ticket,
    epoch: Epoch,
}

/// The open batches of all queues of a device.
#[derive(Default)]
pub(crate) struct Recorder {
    open: Vec<Open>,
    /// Queues whose threads have ended, for the next thread.
    spare: Vec<QueueId>,
    barriers: u64,
    /// The trace under way.
    pub(crate) trace: Option<Arc<Shared>>,
}

/// A range of an array that a command touches.
pub(crate) struct Touch<'a> {
    pub(crate) buffer: &'a Arc<Buffer>,
    pub(crate) range: ByteRange,
    pub(crate) access: Access,
}

impl Recorder {
    pub(crate) fn queues(&self) -> Vec<QueueId> {
        self.open.iter().map(|open| open.id).collect()
    }

    pub(crate) fn barriers(&self) -> u64 {
        self.barriers
    }

    fn index(&self, queue: QueueId) -> usize {
        self.open.iter().position(|open| open.id == queue).expect("queues are never removed")
    }

    fn obtain(&mut self, backend: &dyn Backend) -> Result<QueueId> {
        if let Some(queue) = self.spare.pop() {
            return Ok(queue);
        }
        let id = backend.open_queue()?;
        self.open.push(Open { id, batch: Batch::default(), submitted: 0, epoch: 0 });
        Ok(id)
    }

    /// Commands that a queue has recorded and not submitted.
    pub(crate) fn recorded(&self, queue: QueueId) -> usize {
        self.open[self.index(queue)].batch.commands.len()
    }

    /// Submits a queue's open batch; whether there was one. On an error it stays open.
    pub(crate) fn flush(&mut self, backend: &dyn Backend, queue: QueueId) -> Result<bool> {
        let index = self.index(queue);
        let open = &mut self.open[index];
        if open.batch.commands.is_empty() {
            return Ok(false);
        }
        let commands = open.batch.commands.len() as u32;
        // SAFETY: the contract of `Backend::submit`. 1: bindings are made by `Array` from ranges
        // it has checked, of memory that goes back to the pool only with this batch's stamp, or
        // is kept alive by the batch. 2 and 3: `record` put waits and barriers before each
        // command from the uses of all others, and the CPU's guards are refused or refuse while
        // the uses are pending. 4: the shapes are checked where the dispatch is made.
        let ticket = unsafe { backend.submit(queue, &mut open.batch) }?;
        debug_assert_eq!(ticket, open.submitted + 1, "tickets of a queue count up by one");
        open.submitted = ticket;
        if let Some(trace) = &self.trace {
            trace.record(&Event::Submit { queue, ticket, commands });
        }
        Ok(true)
    }

    /// Takes what a queue has recorded and cannot submit away, for the caller to drop without the
    /// lock; its ticket stays to be submitted.
    pub(crate) fn discard(&mut self, queue: QueueId) -> Batch {
        let index = self.index(queue);
        let batch = Batch { commands: vec![Command::Barrier], ..Batch::default() };
        std::mem::replace(&mut self.open[index].batch, batch)
    }

    /// Drops everything recorded, at close: nobody can see it any more.
    pub(crate) fn discard_all(&mut self) {
        self.open.iter_mut().for_each(|open| open.batch = Batch::default());
    }

    /// Records a command; whether the batch is full. Queues that were submitted on the way are
    /// added to `kick`.
    fn record(
        &mut self,
        backend: &dyn Backend,
        queue: QueueId,
        (command, touches): (Command, &[Touch<'_>]),
        kick: &mut Vec<QueueId>,
    ) -> Result<bool> {
        let cost: u64 = touches.iter().map(|touch| touch.range.end - touch.range.start).sum();
        let index = self.index(queue);
        let mut needs = Dependencies::default();
        for touch in touches {
            let epoch = self.open[index].epoch;
            let (buffer, range) = (touch.buffer, touch.buffer.tracked(touch.range));
            buffer.tracker.depend(queue, epoch, (range, touch.access), &mut needs)?;
        }
        for stamp in needs.waits.iter() {
            if backend.reached(stamp.queue) >= stamp.ticket {
                continue;
            }
            if self.open[self.index(stamp.queue)].submitted < stamp.ticket {
                self.flush(backend, stamp.queue)?;
                kick.push(stamp.queue);
            }
            let wait = Command::Wait { queue: stamp.queue, ticket: stamp.ticket };
            self.open[index].batch.commands.push(wait);
        }
        let open = &mut self.open[index];
        if needs.barrier {
            open.epoch += 1;
            self.barriers += 1;
            open.batch.commands.push(Command::Barrier);
        }
        let stamp = Stamp { queue, ticket: open.submitted + 1, epoch: open.epoch };
        for touch in touches {
            let range = touch.buffer.tracked(touch.range);
            let new = Use { stamp, range, access: touch.access };
            let recorded = touch.buffer.tracker.record(new, |queue| backend.reached(queue));
            if let Err(error) = recorded {
                // A guard came in between. Uses that are recorded already name this batch: it must
                // have something to submit, or whoever waits for them waits for ever.
                open.batch.commands.push(Command::Barrier);
                return Err(error.into());
            }
            if touch.buffer.is_imported() {
                open.batch.keep.push(Arc::clone(touch.buffer) as _);
            }
        }
        if let (Some(trace), Command::Copy { .. }) = (&self.trace, &command) {
            let size = touches.first().map_or(0, |touch| touch.range.end - touch.range.start);
            trace.record(&Event::Copy { queue, size });
        }
        open.batch.commands.push(command);
        open.batch.cost = open.batch.cost.saturating_add(cost);
        Ok(open.batch.commands.len() >= BATCH_COMMANDS || open.batch.cost >= BATCH_BYTES)
    }
}

impl Device {
    /// Records a command on a queue, ordered after what it depends on.
    pub(crate) fn record(
        &self,
        queue: QueueId,
        command: Command,
        touches: &[Touch<'_>],
    ) -> Result<()> {
        let backend = &*self.0.backend;
        let mut kick = Vec::new();
        let full = self.recorder().record(backend, queue, (command, touches), &mut kick);
        for queue in kick {
            backend.kick(queue);
        }
        if full? {
            // The command is recorded; a refusal is told by whoever submits or waits next.
            let _ = self.submit_full(queue);
        }
        Ok(())
    }

    /// Submits a full batch once there is room in flight.
    fn submit_full(&self, queue: QueueId) -> Result<()> {
        let backend = &*self.0.backend;
        let submitted = backend.submitted(queue);
        if submitted >= IN_FLIGHT && backend.reached(queue) + IN_FLIGHT <= submitted {
            self.traced_wait(queue, submitted + 1 - IN_FLIGHT, None)?;
        }
        self.flush(queue)
    }
}

/// Work that is run in order. Work of different queues may run side by side; what touches the
/// same memory is ordered by the library.
///
/// ```
/// use aquifer::prelude::*;
/// let device = Device::cpu()?;
/// let a = Array::<f32>::ones(&device, [4])?;
/// let queue = device.queue()?;
/// let b = queue.run(|| a.map(|x| x + 1.0))?;
/// assert_eq!(b.to_vec()?, [2.0; 4]);
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct Queue {
    device: Device,
    id: QueueId,
}

impl Queue {
    pub(crate) fn open(device: &Device) -> Result<Self> {
        let id = device.recorder().obtain(&*device.0.backend)?;
        Ok(Self { device: device.clone(), id })
    }

    /// Runs `work` with this queue as the thread's queue of its device.
    pub fn run<R>(&self, work: impl FnOnce() -> R) -> R {
        let _guard = Override::new(&self.device, self.id);
        work()
    }

    /// Submits what is recorded.
    ///
    /// # Errors
    /// `Backend`: the driver's; what was recorded stays recorded.
    pub fn submit(&self) -> Result<()> {
        self.device.flush(self.id)
    }

    /// Submits what is recorded and waits for the queue.
    ///
    /// # Errors
    /// What failed on the queue since the last wait, `Lost`.
    pub fn synchronize(&self) -> Result<()> {
        self.device.flush(self.id)?;
        let ticket = self.device.0.backend.submitted(self.id);
        self.device.wait_ticket(self.id, ticket, None)
    }

    /// Commands that are recorded and not submitted, barriers and waits included.
    pub fn recorded(&self) -> usize {
        self.device.recorder().recorded(self.id)
    }

    /// Batches that are submitted and not done.
    pub fn in_flight(&self) -> u64 {
        let backend = &self.device.0.backend;
        backend.submitted(self.id).saturating_sub(backend.reached(self.id))
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        give_back(&self.device, self.id);
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("id", &self.id.0).finish()
    }
}

/// A queue that nobody holds any more is for the next thread; its work goes on.
fn give_back(device: &Device, queue: QueueId) {
    // A driver that refuses here refuses again at the next wait, which reports it.
    let _ = device.flush(queue);
    device.recorder().spare.push(queue);
}

struct Entry {
    device: u64,
    queue: QueueId,
    /// The thread's own queue, not one that `run` put in its place.
    own: Option<Weak<DeviceInner>>,
}

/// The queues of one thread, the one in force last.
struct ThreadQueues(Vec<Entry>);

impl Drop for ThreadQueues {
    fn drop(&mut self) {
        for entry in self.0.drain(..) {
            if let Some(inner) = entry.own.and_then(|own| own.upgrade()) {
                give_back(&Device(inner), entry.queue);
            }
        }
    }
}

thread_local! {
    static QUEUES: RefCell<ThreadQueues> = const { RefCell::new(ThreadQueues(Vec::new())) };
}

/// The queue of this thread on a device.
pub(crate) fn current(device: &Device) -> Result<QueueId> {
    let known = QUEUES.try_with(|queues| {
        let queues = queues.borrow();
        queues.0.iter().rev().find(|entry| entry.device == device.0.id).map(|entry| entry.queue)
    });
    if let Ok(Some(queue)) = known {
        return Ok(queue);
    }
    let queue = device.recorder().obtain(&*device.0.backend)?;
    let kept = QUEUES.try_with(|queues| {
        let mut queues = queues.borrow_mut();
        // Queues of devices that are gone leave with the next one that comes.
        queues.0.retain(|entry| entry.own.as_ref().is_none_or(|own| own.strong_count() > 0));
        let own = Some(Arc::downgrade(&device.0));
        queues.0.insert(0, Entry { device: device.0.id, queue, own });
    });
    if kept.is_err() {
        // The thread is ending: the queue serves this call and goes back.
        device.recorder().spare.push(queue);
    }
    Ok(queue)
}

struct Override {
    depth: usize,
}

impl Override {
    fn new(device: &Device, queue: QueueId) -> Self {
        QUEUES.with_borrow_mut(|queues| {
            let depth = queues.0.iter().filter(|entry| entry.own.is_none()).count();
            queues.0.push(Entry { device: device.0.id, queue, own: None });
            Self { depth }
        })
    }
}

impl Drop for Override {
    fn drop(&mut self) {
        let _ = QUEUES.try_with(|queues| {
            let mut seen = 0;
            queues.borrow_mut().0.retain(|entry| {
                seen += usize::from(entry.own.is_none());
                entry.own.is_some() || seen <= self.depth
            });
        });
    }
}
