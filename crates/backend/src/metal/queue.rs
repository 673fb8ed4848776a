//! A queue: a shared event that holds its tickets, and what runs when a command buffer is done.

use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use aquifer_core::{DriverError, QueueId, Ticket};
use block2::RcBlock;
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{
    MTLCommandBuffer, MTLCommandBufferError, MTLCommandBufferStatus, MTLCommandQueue, MTLDevice,
    MTLEvent, MTLFence, MTLSharedEvent,
};

use super::Inner;
use super::device::{Gpu, Object, nothing};
use super::encode::{Commands, Ranges};
use super::memory::Buffer;
use super::pool::pooled;
use crate::gpu::{Encoder, How, waits};
use crate::queues::Failures;
use crate::seam::{Batch, Command, Failure, WaitError};

/// How long a waiting thread polls before it sleeps: most small work is done by then, and a wake-up
/// costs as much.
const POLL: Duration = Duration::from_micros(60);
/// Command buffers that may be under way; Metal's own default of 64 makes the next one block.
const IN_FLIGHT: usize = 1024;
/// Labels of work that a command buffer's own label names.
const LABELS: usize = 4;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// This thread drops what a batch kept alive: what it waits for must not be its own return.
    static LANDING: Cell<bool> = const { Cell::new(false) };
}

/// Tickets that are over, in order, whatever the order in which they are told.
#[derive(Debug, Default)]
struct Ordered {
    upto: Ticket,
    early: BTreeSet<Ticket>,
}

impl Ordered {
    fn add(&mut self, ticket: Ticket) -> Ticket {
        if ticket == self.upto + 1 {
            self.upto = ticket;
        } else {
            self.early.insert(ticket);
        }
        while self.early.remove(&(self.upto + 1)) {
            self.upto += 1;
        }
        self.upto
    }
}

/// A queue's tickets. Completion handlers share it, so that it outlives them.
pub(super) struct Timeline {
    /// What other queues wait for.
    event: Object<dyn MTLSharedEvent>,
    submitted: AtomicU64,
    /// Work that is over.
    reached: AtomicU64,
    /// Work that is over, with what it kept dropped and its failures noted.
    landed: AtomicU64,
    order: Mutex<[Ordered; 2]>,
    changed: Condvar,
    failures: Failures,
    /// A command buffer failed since the last was written.
    failed: AtomicBool,
    /// What lost the device; all of its queues share it.
    lost: Arc<OnceLock<DriverError>>,
}

impl Timeline {
    /// Notes that a ticket's work is over.
    fn reach(&self, ticket: Ticket) {
        let mut order = lock(&self.order);
        let upto = order[0].add(ticket);
        self.reached.store(upto, Ordering::Release);
        // A command buffer that fails may not signal, and what waits for it must not wait for ever.
        // Under the lock, by what is over in order: the event never goes back for good.
        if self.event.signaledValue() < upto {
            self.event.setSignaledValue(upto);
        }
        drop(order);
        self.changed.notify_all();
    }

    fn land(&self, ticket: Ticket) {
        let mut order = lock(&self.order);
        self.landed.store(order[1].add(ticket), Ordering::Release);
        drop(order);
        self.changed.notify_all();
    }

    /// The ticket up to which all is done. To what is dropped with a batch, which lands only after
    /// that, work that is over is enough.
    fn done(&self) -> Ticket {
        let upto = if LANDING.get() { &self.reached } else { &self.landed };
        upto.load(Ordering::Acquire)
    }
}

/// A batch under way.
struct Flight {
    /// What it runs: pipelines live until it is done.
    commands: Vec<Command>,
    buffers: Vec<Buffer>,
    /// The queue may have another one by then.
    fence: Object<dyn MTLFence>,
    landing: Landing,
    /// Who drops what is kept: it may be the last of a device, which then waits for other completion
    /// handlers, and those may be this thread's to run.
    reaper: Option<Sender<Landing>>,
}

/// A batch that is over, with what it kept alive.
pub(super) struct Landing {
    timeline: Arc<Timeline>,
    ticket: Ticket,
    keep: Vec<Arc<dyn Any + Send + Sync>>,
}

impl Landing {
    /// Drops what was kept, and lets waits for the ticket go on.
    pub(super) fn land(self) {
        let panicked = "a value that the work kept alive panicked when dropped";
        pooled(move || {
            let Self { timeline, ticket, keep } = self;
            LANDING.set(true);
            timeline.guarded("drop", panicked, || drop(keep));
            LANDING.set(false);
            timeline.land(ticket);
        });
    }
}

/// The labels of the work in a batch, each once, the first few.
fn label(commands: &[Command]) -> String {
    let mut labels: Vec<&str> = Vec::new();
    for command in commands {
        if let Command::Dispatch(dispatch) = command
            && !labels.contains(&&*dispatch.label)
        {
            if labels.len() == LABELS {
                labels.push("...");
                break;
            }
            labels.push(&dispatch.label);
        }
    }
    if labels.is_empty() { "copy".to_owned() } else { labels.join(", ") }
}

impl Timeline {
    /// Notes why a command buffer failed, if it has.
    fn note(&self, commands: &[Command], buffer: &ProtocolObject<dyn MTLCommandBuffer>) {
        if buffer.status() != MTLCommandBufferStatus::Error {
            return;
        }
        self.failed.store(true, Ordering::Release);
        let (code, text) = buffer.error().map_or((0, "no error is given".to_owned()), |error| {
            (error.code(), error.localizedDescription().to_string())
        });
        let fatal = [MTLCommandBufferError::DeviceRemoved, MTLCommandBufferError::AccessRevoked];
        if fatal.iter().any(|fatal| fatal.0 as isize == code) {
            let call = "MTLCommandBuffer.error";
            let _ = self.lost.set(DriverError { call, code: code as i64 });
        } else {
            let reason = format!("the command buffer failed with code {code}: {text}");
            self.failures.push(&label(commands), reason);
        }
    }

    /// Runs what may panic, and tells it as a failure of the work.
    fn guarded(&self, what: &str, reason: &str, work: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            self.failures.push(what, reason.to_owned());
        }
    }
}

impl Flight {
    /// What a completion handler does. It never unwinds: Objective-C is below it.
    fn end(self, buffer: &ProtocolObject<dyn MTLCommandBuffer>) {
        let Self { commands, buffers, fence, landing, reaper } = self;
        let timeline = Arc::clone(&landing.timeline);
        let panicked = "asking Metal how the work ended panicked";
        timeline.guarded("completion", panicked, || timeline.note(&commands, buffer));
        timeline.reach(landing.ticket);
        drop((commands, buffers, fence));
        match reaper {
            // A thread that is gone gives it back.
            Some(reaper) => {
                if let Err(back) = reaper.send(landing) {
                    back.0.land();
                }
            }
            None => landing.land(),
        }
    }
}

pub(super) struct Queue {
    raw: Object<dyn MTLCommandQueue>,
    timeline: Arc<Timeline>,
    /// One batch is written at a time: tickets are in the order of their command buffers.
    writing: Mutex<Writing>,
}

struct Writing {
    /// Orders the encoders of the queue's command buffers.
    fence: Object<dyn MTLFence>,
    /// One that was committed updates the fence: before that there is nothing to wait for.
    fenced: bool,
}

impl Queue {
    pub(super) fn open(
        gpu: &Gpu,
        shared: Option<&Self>,
        lost: &Arc<OnceLock<DriverError>>,
    ) -> Result<Self, DriverError> {
        // More than Metal has queues for share one; each has tickets of its own.
        let raw = match shared {
            Some(shared) => shared.raw.clone(),
            None => {
                let call = "newCommandQueueWithMaxCommandBufferCount:";
                let raw = gpu.raw.newCommandQueueWithMaxCommandBufferCount(IN_FLIGHT);
                raw.ok_or_else(|| nothing(call))?
            }
        };
        let fence = gpu.raw.newFence().ok_or_else(|| nothing("newFence"))?;
        let event = gpu.raw.newSharedEvent().ok_or_else(|| nothing("newSharedEvent"))?;
        let timeline = Timeline {
            event,
            submitted: AtomicU64::new(0),
            reached: AtomicU64::new(0),
            landed: AtomicU64::new(0),
            order: Mutex::default(),
            changed: Condvar::new(),
            failures: Failures::default(),
            failed: AtomicBool::new(false),
            lost: Arc::clone(lost),
        };
        let writing = Mutex::new(Writing { fence, fenced: false });
        Ok(Self { raw, timeline: Arc::new(timeline), writing })
    }

    pub(super) fn submitted(&self) -> Ticket {
        self.timeline.submitted.load(Ordering::Acquire)
    }

    /// The ticket up to which work is done.
    pub(super) fn reached(&self) -> Ticket {
        self.timeline.done()
    }

    /// Writes a batch and hands it to Metal. On an error the batch is as it was.
    pub(super) fn submit<'q>(
        &self,
        batch: &mut Batch,
        (device, how, reaper): (&Inner, How<'_>, Option<Sender<Landing>>),
        other: impl Fn(QueueId) -> Option<&'q Self>,
    ) -> Result<Ticket, DriverError> {
        if let Some(error) = self.timeline.lost.get() {
            return Err(error.clone());
        }
        let mut writing = lock(&self.writing);
        let raw = self.raw.commandBufferWithUnretainedReferences();
        let raw = raw.ok_or_else(|| nothing("commandBufferWithUnretainedReferences"))?;
        for (queue, ticket) in waits(&batch.commands) {
            if let Some(queue) = other(queue) {
                raw.encodeWaitForEvent_value(event(&queue.timeline), ticket);
            }
        }
        // A command buffer that failed may have left the fence as it was: another one takes its place,
        // and what is under way is waited for by its event.
        let failed = &self.timeline.failed;
        if failed.swap(false, Ordering::AcqRel) {
            let fence = device.gpu.raw.newFence().ok_or_else(|| {
                failed.store(true, Ordering::Release);
                nothing("newFence")
            })?;
            *writing = Writing { fence, fenced: false };
        }
        if !writing.fenced && self.submitted() > 0 {
            raw.encodeWaitForEvent_value(event(&self.timeline), self.submitted());
        }
        let ranges = Ranges { held: device.regions.held(), gpu: &device.gpu };
        let mut encoder =
            Encoder::new(Commands::new(ranges, &raw, (&writing.fence, writing.fenced)), how);
        encoder.batch(&batch.commands)?;
        let buffers = std::mem::take(&mut encoder.recorder.kept);
        encoder.recorder.end()?;
        drop(encoder);
        let ticket = self.submitted() + 1;
        raw.encodeSignalEvent_value(event(&self.timeline), ticket);
        raw.setLabel(Some(&NSString::from_str(&label(&batch.commands))));
        device.regions.wiring.commit();
        let Batch { commands, keep, .. } = std::mem::take(batch);
        let timeline = Arc::clone(&self.timeline);
        let landing = Landing { timeline, ticket, keep };
        let fence = writing.fence.clone();
        let flight = Mutex::new(Some(Flight { commands, buffers, fence, landing, reaper }));
        let handler = RcBlock::new(move |buffer: NonNull<ProtocolObject<dyn MTLCommandBuffer>>| {
            // It must not unwind into Objective-C; what may panic is caught and told inside.
            let end = || {
                if let Some(flight) = lock(&flight).take() {
                    // SAFETY: Metal hands the command buffer that is done, which lives meanwhile.
                    flight.end(unsafe { buffer.as_ref() });
                }
            };
            let _ = catch_unwind(AssertUnwindSafe(|| pooled(end)));
        });
        // SAFETY: Metal copies the block, calls it once, on a thread of its own; what is in it may be
        // sent there.
        unsafe { raw.addCompletedHandler(RcBlock::as_ptr(&handler)) };
        raw.commit();
        writing.fenced = true;
        // Last: who sees the ticket may have other work wait for it, behind it on a shared queue.
        self.timeline.submitted.store(ticket, Ordering::Release);
        Ok(ticket)
    }

    /// Waits for a ticket: polls, then sleeps until a completion handler wakes it.
    pub(super) fn wait(&self, ticket: Ticket, timeout: Option<Duration>) -> Result<(), WaitError> {
        let timeline = &*self.timeline;
        let start = Instant::now();
        let poll = timeout.map_or(POLL, |limit| limit.min(POLL));
        while timeline.done() < ticket && start.elapsed() < poll {
            std::hint::spin_loop();
        }
        if timeline.done() < ticket {
            let mut order = lock(&timeline.order);
            while timeline.done() < ticket {
                let left = timeout.map(|limit| limit.saturating_sub(start.elapsed()));
                if left == Some(Duration::ZERO) {
                    return Err(WaitError::Timeout);
                }
                // Long, where there is no limit.
                let left = left.unwrap_or(Duration::from_secs(3600));
                let woken = timeline.changed.wait_timeout(order, left);
                order = woken.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        match timeline.lost.get() {
            Some(error) => Err(WaitError::Lost(error.clone())),
            None => Ok(()),
        }
    }

    pub(super) fn take_failure(&self) -> Option<Failure> {
        self.timeline.failures.take()
    }
}

fn event(timeline: &Timeline) -> &ProtocolObject<dyn MTLEvent> {
    ProtocolObject::from_ref(&*timeline.event)
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("submitted", &self.submitted()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// N.1: tickets are told in order, whatever the order in which handlers run.
    #[test]
    fn tickets_are_in_order() {
        let random = &mut fastrand::Rng::with_seed(0x0DD);
        for _ in 0..200 {
            let mut tickets: Vec<Ticket> = (1..=random.u64(1..40)).collect();
            random.shuffle(&mut tickets);
            let (mut ordered, mut told) = (Ordered::default(), BTreeSet::new());
            for ticket in tickets {
                told.insert(ticket);
                let upto = (1..).take_while(|ticket| told.contains(ticket)).last().unwrap_or(0);
                assert_eq!(ordered.add(ticket), upto);
            }
        }
    }
}
