//! A queue: a timeline of tickets, and command buffers that come back.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aquifer_core::{DriverError, QueueId, Ticket};
use ash::vk;

use super::driver::Driver;
use super::encode::{Commands, Ranges};
use super::memory::Regions;
use crate::gpu::{Encoder, How, waits};
use crate::queues::Failures;
use crate::seam::{Batch, Command, Failure, WaitError};

/// How long a waiting thread polls before it sleeps in the driver: most small work is done by then,
/// and a wake-up costs as much.
const POLL: Duration = Duration::from_micros(60);

/// A batch in flight.
struct Flying {
    ticket: Ticket,
    commands: vk::CommandBuffer,
    /// What it runs: pipelines live until it is done.
    _batch: Vec<Command>,
}

/// What whoever submits holds.
struct State {
    pool: vk::CommandPool,
    spare: Vec<vk::CommandBuffer>,
    flying: VecDeque<Flying>,
}

type Keep = Vec<Arc<dyn Any + Send + Sync>>;

pub(super) struct Queue {
    driver: Arc<Driver>,
    /// Its place among the driver's queues.
    index: usize,
    timeline: vk::Semaphore,
    state: Mutex<State>,
    submitted: AtomicU64,
    reached: AtomicU64,
    /// What batches keep alive, by ticket.
    kept: Mutex<VecDeque<(Ticket, Keep)>>,
    failures: Failures,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the first of a queue if it is done.
fn pop_done<T>(queue: &mut VecDeque<T>, done: impl FnOnce(&T) -> bool) -> Option<T> {
    if queue.front().is_some_and(done) { queue.pop_front() } else { None }
}

impl Queue {
    pub(super) fn open(driver: &Arc<Driver>, index: usize) -> Result<Self, DriverError> {
        let timeline = driver.create_timeline()?;
        let pool = driver.create_pool().inspect_err(|_| driver.destroy_semaphore(timeline))?;
        Ok(Self {
            driver: Arc::clone(driver),
            index,
            timeline,
            state: Mutex::new(State { pool, spare: Vec::new(), flying: VecDeque::new() }),
            submitted: AtomicU64::new(0),
            reached: AtomicU64::new(0),
            kept: Mutex::default(),
            failures: Failures::default(),
        })
    }

    pub(super) fn submitted(&self) -> Ticket {
        self.submitted.load(Ordering::Acquire)
    }

    /// The ticket up to which work is known to be done. A driver that does not answer tells
    /// nothing new: only a wait needs the answer, and says why there is none.
    pub(super) fn reached(&self) -> Ticket {
        self.ask().unwrap_or_else(|_| self.reached.load(Ordering::Acquire))
    }

    /// The same from the driver, which is asked only while there is work.
    fn ask(&self) -> Result<Ticket, DriverError> {
        let (known, submitted) = (self.reached.load(Ordering::Acquire), self.submitted());
        if known >= submitted {
            return Ok(known);
        }
        if self.driver.lost().is_some() {
            // It touches nothing any more: all that was submitted is over.
            return Ok(self.advance(self.submitted()));
        }
        self.driver.counter(self.timeline).map(|value| self.advance(value))
    }

    fn advance(&self, value: Ticket) -> Ticket {
        self.reached.fetch_max(value, Ordering::AcqRel).max(value)
    }

    /// Writes a batch and hands it to the driver. On an error the batch is as it was.
    pub(super) fn submit(
        &self,
        batch: &mut Batch,
        (regions, how): (&Regions, How<'_>),
        timeline: impl Fn(QueueId) -> Option<vk::Semaphore>,
    ) -> Result<Ticket, DriverError> {
        let mut state = lock(&self.state);
        let reached = self.reached();
        while let Some(done) = pop_done(&mut state.flying, |first| first.ticket <= reached) {
            state.spare.push(done.commands);
        }
        let commands = match state.spare.pop() {
            Some(commands) => commands,
            None => self.driver.command_buffer(state.pool)?,
        };
        let ticket = self.submitted() + 1;
        let waits = self.write(commands, batch, (regions, how), timeline);
        let handed = waits.and_then(|waits| {
            self.driver.submit(self.index, commands, &waits, (self.timeline, ticket))
        });
        if let Err(error) = handed {
            // In whatever state it is: it cannot be begun again.
            self.driver.free_command_buffer(state.pool, commands);
            return Err(error);
        }
        let Batch { commands: work, keep, .. } = std::mem::take(batch);
        if !keep.is_empty() {
            lock(&self.kept).push_back((ticket, keep));
        }
        state.flying.push_back(Flying { ticket, commands, _batch: work });
        self.submitted.store(ticket, Ordering::Release);
        Ok(ticket)
    }

    /// Writes a batch's commands; the timelines and values that it waits for.
    fn write(
        &self,
        commands: vk::CommandBuffer,
        batch: &Batch,
        (regions, how): (&Regions, How<'_>),
        timeline: impl Fn(QueueId) -> Option<vk::Semaphore>,
    ) -> Result<Vec<(vk::Semaphore, u64)>, DriverError> {
        let driver = &*self.driver;
        driver.begin(commands)?;
        let ranges = Ranges { held: regions.held(), driver };
        let mut encoder = Encoder::new(Commands::new(ranges, commands), how);
        encoder.batch(&batch.commands)?;
        encoder.recorder.finish();
        driver.end(commands)?;
        let waits = waits(&batch.commands);
        let of = |(queue, ticket)| timeline(queue).map(|semaphore| (semaphore, ticket));
        Ok(waits.into_iter().filter_map(of).collect())
    }

    pub(super) fn timeline(&self) -> vk::Semaphore {
        self.timeline
    }

    /// Waits for a ticket: polls, then sleeps in the driver.
    pub(super) fn wait(&self, ticket: Ticket, timeout: Option<Duration>) -> Result<(), WaitError> {
        let start = Instant::now();
        let poll = timeout.map_or(POLL, |limit| limit.min(POLL));
        loop {
            match self.ask() {
                Ok(reached) if reached >= ticket => break,
                Err(error) if self.driver.lost().is_none() => {
                    return Err(WaitError::Driver(error));
                }
                _ => {}
            }
            if start.elapsed() >= poll {
                let left = timeout.map(|limit| limit.saturating_sub(start.elapsed()));
                let left = left.map_or(u64::MAX, |left| left.as_nanos() as u64);
                match self.driver.wait(self.timeline, ticket, left) {
                    Ok(true) => {
                        self.advance(ticket);
                        break;
                    }
                    Ok(false) => return Err(WaitError::Timeout),
                    Err(error) if self.driver.lost().is_none() => {
                        return Err(WaitError::Driver(error));
                    }
                    Err(_) => break,
                }
            }
            std::hint::spin_loop();
        }
        if let Some(error) = self.driver.lost() {
            self.advance(self.submitted());
            self.reap();
            return Err(WaitError::Lost(error.clone()));
        }
        self.reap();
        Ok(())
    }

    /// Whether batches keep something alive.
    pub(super) fn keeps(&self) -> bool {
        !lock(&self.kept).is_empty()
    }

    /// Drops what batches that are done kept alive.
    pub(super) fn reap(&self) {
        let reached = self.reached();
        loop {
            // Outside the lock: it may be the last of a device, which then waits for this queue.
            let done = pop_done(&mut lock(&self.kept), |(ticket, _)| *ticket <= reached);
            let Some((_, keep)) = done else { return };
            if catch_unwind(AssertUnwindSafe(|| drop(keep))).is_err() {
                let reason = "a value that the work kept alive panicked when dropped".to_owned();
                self.failures.push("drop", reason);
            }
        }
    }

    pub(super) fn take_failure(&self) -> Option<Failure> {
        self.failures.take()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // What is destroyed here must not be in use; a driver that cannot wait has lost the device.
        while self.reached() < self.submitted() {
            if self.driver.wait(self.timeline, self.submitted(), 1_000_000_000) == Ok(true) {
                self.advance(self.submitted());
            }
        }
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.driver.destroy_pool(state.pool);
        self.driver.destroy_semaphore(self.timeline);
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("index", &self.index).finish_non_exhaustive()
    }
}
