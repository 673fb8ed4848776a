//! A queue of the CPU device: batches in order, a timeline, and whoever has time to run them.
//!
//! The one idea: one lock is the right to run the queue's next batch. The queue's own thread
//! takes it for large work; the caller takes it for small work, because handing a batch to a
//! thread costs more than a microsecond and the work itself nanoseconds; and so does a caller
//! that waits without a limit of time.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aquifer_core::Ticket;

use crate::cpu::program::Program as Compiled;
use crate::cpu::{host, run};
use crate::queues::Failures;
use crate::seam::{Batch, Command, Dispatch, Failure, Program, WaitError};

/// Bytes that a batch may touch to run in its caller: some 10 µs of work.
const SMALL_BYTES: u64 = 64 << 10;
/// Commands that such a batch may have.
const SMALL_COMMANDS: usize = 64;
/// How long a waiting thread spins before it sleeps; a wake-up costs about 35 µs.
const SPIN: Duration = Duration::from_micros(30);

#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    batch: Batch,
    small: bool,
}

#[derive(Debug, Default)]
struct Fifo {
    batches: VecDeque<Waiting>,
    submitted: Ticket,
    closing: bool,
    has_thread: bool,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    fifo: Mutex<Fifo>,
    work: Condvar,
    /// Held by whoever runs a batch.
    running: Mutex<()>,
    reached: AtomicU64,
    done: Mutex<()>,
    progress: Condvar,
    sleepers: AtomicU32,
    failures: Failures,
}

/// The timelines that a batch may wait for.
pub(super) trait Timelines {
    /// Waits until `queue` has reached `ticket`.
    fn await_ticket(&self, queue: aquifer_core::QueueId, ticket: Ticket);
    /// Whether it has.
    fn has_reached(&self, queue: aquifer_core::QueueId, ticket: Ticket) -> bool;
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queue {
    pub(super) fn reached(&self) -> Ticket {
        self.reached.load(Ordering::Acquire)
    }

    pub(super) fn submitted(&self) -> Ticket {
        lock(&self.fifo).submitted
    }

    pub(super) fn submit(&self, batch: Batch) -> Ticket {
        let closure = |command: &Command| {
            matches!(command, Command::Dispatch(dispatch)
                if matches!(dispatch.program, Program::Host(_)))
        };
        // A user's closure may take any time: it is never small.
        let small = batch.cost <= SMALL_BYTES
            && batch.commands.len() <= SMALL_COMMANDS
            && !batch.commands.iter().any(closure);
        let mut fifo = lock(&self.fifo);
        fifo.submitted += 1;
        let ticket = fifo.submitted;
        fifo.batches.push_back(Waiting { ticket, batch, small });
        ticket
    }

    /// Runs small batches in the caller; wakes (or starts) the thread for what is left.
    pub(super) fn kick(self: &Arc<Self>, timelines: &Arc<impl Timelines + Send + Sync + 'static>) {
        while let Some(done) = self.turn(&**timelines, true) {
            self.discard(done);
        }
        let mut fifo = lock(&self.fifo);
        if fifo.batches.is_empty() {
            return;
        }
        if !fifo.has_thread {
            fifo.has_thread = true;
            let (queue, timelines) = (Arc::clone(self), Arc::clone(timelines));
            let started = std::thread::Builder::new()
                .name("aquifer-queue".to_owned())
                .spawn(move || queue.serve(&*timelines));
            // Without a thread, whoever waits runs the work.
            fifo.has_thread = started.is_ok();
        }
        drop(fifo);
        self.work.notify_one();
    }

    fn serve(&self, timelines: &dyn Timelines) {
        loop {
            let mut fifo = lock(&self.fifo);
            while fifo.batches.is_empty() {
                if fifo.closing {
                    return;
                }
                fifo = self.work.wait(fifo).unwrap_or_else(PoisonError::into_inner);
            }
            drop(fifo);
            let turn = lock(&self.running);
            let done = self.next(timelines, false).map(|batch| self.run(batch, timelines));
            drop(turn);
            if let Some(done) = done {
                self.discard(done);
            }
        }
    }

    /// Runs the next batch if nobody else does, and returns it for [`discard`](Self::discard).
    fn turn(&self, timelines: &dyn Timelines, small: bool) -> Option<Batch> {
        let _turn = self.running.try_lock().ok()?;
        self.next(timelines, small).map(|batch| self.run(batch, timelines))
    }

    /// Drops what a batch kept alive. Not while holding the turn: it may be the last of a device,
    /// which then waits for this queue.
    fn discard(&self, batch: Batch) {
        if catch_unwind(AssertUnwindSafe(|| drop(batch))).is_err() {
            self.fail("drop", "a value that the work kept alive panicked when dropped".to_owned());
        }
    }

    /// The next batch for whoever has the turn; only a small one that need not wait if `small`.
    fn next(&self, timelines: &dyn Timelines, small: bool) -> Option<Waiting> {
        let mut fifo = lock(&self.fifo);
        let first = fifo.batches.front()?;
        if small {
            let ready = first.batch.commands.iter().all(|command| match command {
                Command::Wait { queue, ticket } => timelines.has_reached(*queue, *ticket),
                _ => true,
            });
            if !(first.small && ready) {
                return None;
            }
        }
        fifo.batches.pop_front()
    }

    fn run(&self, waiting: Waiting, timelines: &dyn Timelines) -> Batch {
        let Waiting { ticket, batch, .. } = waiting;
        for command in &batch.commands {
            match command {
                Command::Dispatch(dispatch) => self.dispatch(dispatch),
                Command::Copy { from, to } => copy(from, to),
                // One command after another: order and visibility are given.
                Command::Barrier => {}
                Command::Wait { queue, ticket } => timelines.await_ticket(*queue, *ticket),
            }
        }
        self.reached.store(ticket, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // The lock orders this after a sleeper's last look at the timeline.
            drop(lock(&self.done));
            self.progress.notify_all();
        }
        batch
    }

    fn dispatch(&self, dispatch: &Dispatch) {
        let outcome = catch_unwind(AssertUnwindSafe(|| match &dispatch.program {
            Program::Compiled(pipeline) => match pipeline.0.downcast_ref::<Compiled>() {
                Some(program) => {
                    // SAFETY: the contract of `Backend::submit` that brought this dispatch here.
                    unsafe { run::run(program, dispatch) };
                    Ok(())
                }
                None => Err("the pipeline belongs to another device".to_owned()),
            },
            Program::Host(kernel) => host::run(&**kernel, dispatch),
        }));
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(reason)) => self.fail(&dispatch.label, reason),
            Err(panic) => {
                let text = panic
                    .downcast_ref::<&str>()
                    .map(|text| (*text).to_owned())
                    .or_else(|| panic.downcast_ref::<String>().cloned())
                    .unwrap_or_else(|| "no message".to_owned());
                self.fail(&dispatch.label, format!("the kernel panicked: {text}"));
            }
        }
    }

    fn fail(&self, label: &str, reason: String) {
        self.failures.push(label, reason);
    }

    pub(super) fn take_failure(&self) -> Option<Failure> {
        self.failures.take()
    }

    pub(super) fn wait(
        &self,
        ticket: Ticket,
        timeout: Option<Duration>,
        timelines: &dyn Timelines,
    ) -> Result<(), WaitError> {
        if self.reached() >= ticket {
            return Ok(());
        }
        // Not on a thread of rayon's: while it waits for its own pieces it runs other jobs, which
        // may wait for this very queue.
        if timeout.is_none() && rayon::current_thread_index().is_none() {
            self.help(ticket, timelines);
        }
        self.wait_idly(ticket, timeout)
    }

    /// Waits without running anything.
    pub(super) fn wait_idly(
        &self,
        ticket: Ticket,
        timeout: Option<Duration>,
    ) -> Result<(), WaitError> {
        if self.reached() >= ticket {
            return Ok(());
        }
        let start = Instant::now();
        let spin = timeout.map_or(SPIN, |limit| limit.min(SPIN));
        while start.elapsed() < spin {
            if self.reached() >= ticket {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let result = self.sleep(ticket, timeout.map(|limit| (start, limit)));
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// Runs what is before `ticket` if nobody else does.
    fn help(&self, ticket: Ticket, timelines: &dyn Timelines) {
        while self.reached() < ticket {
            let Some(done) = self.turn(timelines, false) else { return };
            self.discard(done);
        }
    }

    fn sleep(&self, ticket: Ticket, limit: Option<(Instant, Duration)>) -> Result<(), WaitError> {
        let mut guard = lock(&self.done);
        while self.reached.load(Ordering::SeqCst) < ticket {
            guard = match limit {
                None => self.progress.wait(guard).unwrap_or_else(PoisonError::into_inner),
                Some((start, limit)) => {
                    let Some(left) = limit.checked_sub(start.elapsed()) else {
                        return Err(WaitError::Timeout);
                    };
                    let woken = self.progress.wait_timeout(guard, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        Ok(())
    }

    /// Lets the thread end once the queue is empty.
    pub(super) fn close(&self) {
        lock(&self.fifo).closing = true;
        self.work.notify_all();
    }
}

fn copy(from: &crate::seam::Binding, to: &crate::seam::Binding) {
    // SAFETY: both ranges are valid and the target is this command's alone (contract of
    // `Backend::submit`); `Command::Copy` promises that they do not overlap and have one length.
    unsafe {
        std::ptr::copy_nonoverlapping(
            from.address as *const u8,
            to.address as *mut u8,
            from.len as usize,
        );
    }
}
