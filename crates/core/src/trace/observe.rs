//! How a pool tells its observer what it does.
//!
//! While an observer is there, every call goes through [`Pool::observe`]: the call runs on a device
//! that notes what is asked of it and shows each queue's timeline at one place for the whole call.
//! The observer is taken out meanwhile, so the call itself is the same code as without one.

use std::cell::RefCell;

use crate::caps::Storage;
use crate::hazard::{QueueId, Ticket};
use crate::ledger::LabelId;
use crate::memory::{Block, BlockId, DriverError, Memory};
use crate::pool::Pool;
use crate::trace::{Begin, DriverCall, Event, Extent, Observer};

/// Calls between two times that all figures are written.
const FIGURES_EVERY: u32 = 1024;

/// An observer, with what it has been told.
#[derive(Debug)]
pub(crate) struct Watch {
    observer: Box<dyn Observer>,
    /// How far each queue was last seen to have come.
    reached: Vec<Ticket>,
    notes: RefCell<Notes>,
    until_figures: u32,
    labels: u32,
}

/// What one call saw and did.
#[derive(Debug, Default)]
struct Notes {
    seen: Vec<(QueueId, Ticket)>,
    effects: Vec<Event>,
}

/// A device whose answers are noted.
struct Observed<'a, M: ?Sized> {
    device: &'a M,
    notes: &'a RefCell<Notes>,
}

impl<M: Memory + ?Sized> Observed<'_, M> {
    fn note(&self, event: Event) {
        self.notes.borrow_mut().effects.push(event);
    }

    fn noted<T>(
        &self,
        (call, size): (DriverCall, u64),
        result: Result<T, DriverError>,
        event: impl FnOnce(&T) -> Event,
    ) -> Result<T, DriverError> {
        self.note(match &result {
            Ok(value) => event(value),
            Err(error) => Event::Fail { call, size, code: error.code },
        });
        result
    }
}

impl<M: Memory + ?Sized> Memory for Observed<'_, M> {
    fn obtain(&self, size: u64, mode: Storage) -> Result<Block, DriverError> {
        self.noted((DriverCall::Obtain, size), self.device.obtain(size, mode), |block| {
            Event::Obtain { block: block.id, mode, size: block.size }
        })
    }

    fn give_back(&self, block: Block) {
        self.note(Event::GiveBack { block: block.id });
        self.device.give_back(block);
    }

    fn reserve(&self, size: u64, mode: Storage) -> Result<Block, DriverError> {
        self.noted((DriverCall::Reserve, size), self.device.reserve(size, mode), |block| {
            Event::Reserve { block: block.id, mode, size: block.size }
        })
    }

    fn release(&self, span: Block) {
        self.note(Event::Release { block: span.id });
        self.device.release(span);
    }

    fn commit(&self, span: BlockId, offset: u64, len: u64) -> Result<(), DriverError> {
        self.noted((DriverCall::Commit, len), self.device.commit(span, offset, len), |()| {
            Event::Commit(Extent { block: span, offset, len })
        })
    }

    fn decommit(&self, span: BlockId, offset: u64, len: u64) {
        self.note(Event::Decommit(Extent { block: span, offset, len }));
        self.device.decommit(span, offset, len);
    }

    fn wire(&self, block: BlockId, offset: u64, len: u64) -> Result<(), DriverError> {
        self.noted((DriverCall::Wire, len), self.device.wire(block, offset, len), |()| {
            Event::Wire(Extent { block, offset, len })
        })
    }

    fn unwire(&self, block: BlockId, offset: u64, len: u64) {
        self.note(Event::Unwire(Extent { block, offset, len }));
        self.device.unwire(block, offset, len);
    }

    fn reached(&self, queue: QueueId) -> Ticket {
        let seen = &mut self.notes.borrow_mut().seen;
        if let Some(known) = seen.iter().find(|known| known.0 == queue) {
            return known.1;
        }
        let ticket = self.device.reached(queue);
        seen.push((queue, ticket));
        ticket
    }
}

impl Watch {
    fn tell(&mut self, event: Event) {
        self.observer.record(&event);
    }

    /// Tells what the last call saw, what it was and what it did.
    fn tell_call(&mut self, tell: Tell, event: impl FnOnce() -> Option<Event>) {
        let notes = self.notes.get_mut();
        // A pool that looked at a queue may have moved its notes, also where it freed nothing.
        let quiet = notes.seen.is_empty() && notes.effects.is_empty();
        for (queue, ticket) in notes.seen.drain(..) {
            let index = queue.0 as usize;
            if self.reached.len() <= index {
                self.reached.resize(index + 1, 0);
            }
            if self.reached[index] < ticket {
                self.reached[index] = ticket;
                self.observer.record(&Event::Complete { queue, ticket });
            }
        }
        if (tell == Tell::Always || !quiet)
            && let Some(event) = event()
        {
            self.observer.record(&event);
        }
        for event in notes.effects.drain(..) {
            self.observer.record(&event);
        }
    }
}

/// Whether a call is an event also when it looked at nothing and did nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tell {
    Always,
    IfChanged,
}

impl Pool {
    /// Tells `observer` everything from now on, first the state that the pool is in; returns the
    /// one before. `begin` says what the trace is of; its settings are filled in.
    ///
    /// A trace that begins with a pool that has never been used replays exactly.
    pub fn start_observing(
        &mut self,
        observer: Box<dyn Observer>,
        begin: Begin,
    ) -> Option<Box<dyn Observer>> {
        let old = self.stop_observing();
        let mut watch = Watch {
            observer,
            reached: Vec::new(),
            notes: RefCell::default(),
            until_figures: FIGURES_EVERY,
            labels: 0,
        };
        let settings = self.settings();
        watch.tell(Event::Begin(Box::new(Begin { settings, caps: self.caps.clone(), ..begin })));
        watch.tell(Event::Figures(Box::new(self.stats())));
        self.watch = Some(Box::new(watch));
        self.tell_labels();
        for (id, row) in self.ledger.held_rows() {
            let (size, count) = (row.active, row.count);
            self.tell(Event::Held { label: id, size, count });
        }
        old
    }

    /// Tells the observer the last figures and takes it away.
    pub fn stop_observing(&mut self) -> Option<Box<dyn Observer>> {
        let stats = self.stats();
        let mut watch = self.watch.take()?;
        watch.tell(Event::Figures(Box::new(stats)));
        Some(watch.observer)
    }

    /// Tells the observer an event that is no call of the pool's.
    pub(crate) fn tell(&mut self, event: Event) {
        if let Some(watch) = &mut self.watch {
            watch.tell(event);
        }
    }

    /// Tells the observer every figure: a replay compares with them.
    pub fn tell_figures(&mut self) {
        if self.watch.is_some() {
            let stats = Box::new(self.stats());
            self.tell(Event::Figures(stats));
        }
    }

    /// Labels that the observer does not know yet.
    pub(crate) fn tell_labels(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        while let Some(name) = self.ledger.label_name(watch.labels + 1) {
            watch.labels += 1;
            let id = LabelId(watch.labels);
            watch.observer.record(&Event::Label { id, name: name.into() });
        }
    }

    /// Runs a call and tells the observer what it saw, what it was and what it did.
    #[cold]
    pub(crate) fn observe<M: Memory + ?Sized, R>(
        &mut self,
        device: &M,
        tell: Tell,
        call: impl FnOnce(&mut Self, &dyn Memory) -> R,
        event: impl FnOnce(&R) -> Option<Event>,
    ) -> R {
        let mut watch = self.watch.take().expect("only an observed pool comes here");
        let result = call(self, &Observed { device, notes: &watch.notes });
        watch.tell_call(tell, || event(&result));
        watch.until_figures -= 1;
        if watch.until_figures == 0 {
            watch.until_figures = FIGURES_EVERY;
            watch.tell(Event::Figures(Box::new(self.stats())));
        }
        self.watch = Some(watch);
        result
    }
}
