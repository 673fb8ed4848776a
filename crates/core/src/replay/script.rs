//! Exact replay: a device whose answers are those of the trace.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;

use crate::caps::Storage;
use crate::hazard::{QueueId, Ticket};
use crate::memory::{Block, BlockId, DriverError, Memory};
use crate::pool::Pool;
use crate::refusal::RefusalKind;
use crate::replay::{Mismatch, Player, Step, Verified};
use crate::stats::MemoryStats;
use crate::trace::{DriverCall, Event, Extent, Lifetimes, Record, Trace};

/// Answers as the trace has them, and notes the first call that it does not have.
struct Script<'t> {
    records: &'t [Record],
    /// The next record to be looked at.
    next: Cell<usize>,
    /// Blocks and spans that the trace's driver has given.
    held: RefCell<HashSet<BlockId>>,
    reached: RefCell<Vec<Ticket>>,
    wrong: RefCell<Option<Mismatch>>,
    /// A call asked for an answer that the trace ends before.
    torn: Cell<bool>,
}

/// Names of blocks once the replay has left the trace; nobody sees them.
const ASTRAY: BlockId = BlockId(u64::MAX - 1);

impl<'t> Script<'t> {
    /// The next answer of the driver's in the trace, if one comes before the next call of the pool.
    fn next_effect(&self) -> Option<(usize, &'t Event)> {
        for (index, record) in self.records.iter().enumerate().skip(self.next.get()) {
            match &record.event {
                event if event.is_effect() => return Some((index, event)),
                // What other threads record without the pool's lock may stand between.
                Event::Submit { .. } | Event::Copy { .. } | Event::Wait { .. } => {}
                Event::Site { .. } => {}
                _ => return None,
            }
        }
        None
    }

    /// Whether nothing that the pool does follows.
    fn is_over(&self) -> bool {
        let rest = self.records.get(self.next.get()..).unwrap_or_default();
        !rest.iter().any(|record| record.event.is_call())
    }

    fn differs(&self, at: usize, has: &str, found: &str) {
        let mut wrong = self.wrong.borrow_mut();
        wrong.get_or_insert_with(|| {
            Mismatch::at(at, format!("the trace has {has}, the replay {found}"))
        });
    }

    /// Takes the next answer for a call; `None` where the trace has another.
    fn answer(&self, call: &str, fits: impl Fn(&Event) -> bool) -> Option<&'t Event> {
        match self.next_effect() {
            Some((index, event)) if fits(event) => {
                self.next.set(index + 1);
                Some(event)
            }
            Some((index, event)) => {
                self.differs(index, &format!("{event:?}"), call);
                None
            }
            None if self.is_over() => {
                self.torn.set(true);
                None
            }
            None => {
                self.differs(self.next.get(), "no further call of the driver", call);
                None
            }
        }
    }

    /// The answer to a call that gives a block.
    fn block(&self, call: DriverCall, size: u64, mode: Storage) -> Result<Block, DriverError> {
        let name = format!("{call:?} of {size} bytes, {mode}");
        let answer = self.answer(&name, |event| match *event {
            Event::Obtain { mode: m, size: s, .. } => {
                call == DriverCall::Obtain && (m, s) == (mode, size)
            }
            Event::Reserve { mode: m, size: s, .. } => {
                call == DriverCall::Reserve && (m, s) == (mode, size)
            }
            Event::Fail { call: c, size: s, .. } => (c, s) == (call, size),
            _ => false,
        });
        let id = match answer {
            Some(Event::Obtain { block, .. } | Event::Reserve { block, .. }) => *block,
            Some(Event::Fail { code, .. }) => return Err(refused(*code)),
            _ => ASTRAY,
        };
        if !self.held.borrow_mut().insert(id) {
            self.differs(self.next.get(), "a block that is held already", &name);
        }
        Ok(Block { id, size, address: 0 })
    }

    fn extent(&self, call: DriverCall, extent: Extent) -> Result<(), DriverError> {
        let name = format!("{call:?} of {extent:?}");
        let answer = self.answer(&name, |event| match *event {
            Event::Commit(known) => call == DriverCall::Commit && known == extent,
            Event::Wire(known) => call == DriverCall::Wire && known == extent,
            Event::Fail { call: c, size, .. } => (c, size) == (call, extent.len),
            _ => false,
        });
        match answer {
            Some(Event::Fail { code, .. }) => Err(refused(*code)),
            _ => Ok(()),
        }
    }

    fn same(&self, event: &Event) {
        self.answer(&format!("{event:?}"), |known| known == event);
    }

    fn reach(&self, queue: QueueId, ticket: Ticket) {
        let mut reached = self.reached.borrow_mut();
        let index = queue.0 as usize;
        if reached.len() <= index {
            reached.resize(index + 1, 0);
        }
        reached[index] = ticket;
    }
}

fn refused(code: i64) -> DriverError {
    DriverError { call: "the driver", code }
}

impl Memory for Script<'_> {
    fn obtain(&self, size: u64, mode: Storage) -> Result<Block, DriverError> {
        self.block(DriverCall::Obtain, size, mode)
    }

    fn give_back(&self, block: Block) {
        self.held.borrow_mut().remove(&block.id);
        self.same(&Event::GiveBack { block: block.id });
    }

    fn reserve(&self, size: u64, mode: Storage) -> Result<Block, DriverError> {
        self.block(DriverCall::Reserve, size, mode)
    }

    fn release(&self, span: Block) {
        self.held.borrow_mut().remove(&span.id);
        self.same(&Event::Release { block: span.id });
    }

    fn commit(&self, span: BlockId, offset: u64, len: u64) -> Result<(), DriverError> {
        self.extent(DriverCall::Commit, Extent { block: span, offset, len })
    }

    fn decommit(&self, span: BlockId, offset: u64, len: u64) {
        self.same(&Event::Decommit(Extent { block: span, offset, len }));
    }

    fn wire(&self, block: BlockId, offset: u64, len: u64) -> Result<(), DriverError> {
        self.extent(DriverCall::Wire, Extent { block, offset, len })
    }

    fn unwire(&self, block: BlockId, offset: u64, len: u64) {
        self.same(&Event::Unwire(Extent { block, offset, len }));
    }

    fn reached(&self, queue: QueueId) -> Ticket {
        self.reached.borrow().get(queue.0 as usize).copied().unwrap_or(0)
    }
}

pub(super) fn verify(trace: &Trace, lifetimes: &Lifetimes) -> Result<Verified, Mismatch> {
    let begin = trace.begin().expect("an exact trace has a beginning");
    let mut player = Player::new(Pool::new(&begin.caps, begin.settings), lifetimes);
    let script = Script {
        records: &trace.records,
        next: Cell::new(0),
        held: RefCell::default(),
        reached: RefCell::default(),
        wrong: RefCell::default(),
        torn: Cell::new(false),
    };
    let last_call = trace.records.iter().rposition(|record| record.event.is_call());
    let (mut events, mut compared) = (0, 0);
    while let Some(record) = trace.records.get(script.next.get()) {
        let index = script.next.get();
        script.next.set(index + 1);
        match &record.event {
            Event::Complete { queue, ticket } => script.reach(*queue, *ticket),
            Event::Figures(stats) => {
                compare(index, stats, &player.pool.stats())?;
                compared += 1;
            }
            event if event.is_effect() => {
                return Err(Mismatch::at(
                    index,
                    format!("the trace has {event:?}, the replay made no such call"),
                ));
            }
            event => {
                // The program may have ended between this call and the driver's answers to it.
                let before = (last_call == Some(index)).then(|| player.pool.stats());
                let step = player.play(&script, event, lifetimes.of_record[index]);
                if let (true, Some(stats)) = (script.torn.get(), before) {
                    return Ok(Verified { stats, events, compared });
                }
                check(&mut player, event, step).map_err(|reason| Mismatch::at(index, reason))?;
                events += usize::from(event.is_call());
            }
        }
        if let Some(wrong) = script.wrong.borrow_mut().take() {
            return Err(wrong);
        }
    }
    Ok(Verified { stats: player.pool.stats(), events, compared })
}

/// Compares every figure.
fn compare(index: usize, trace: &MemoryStats, replay: &MemoryStats) -> Result<(), Mismatch> {
    let differing = trace.figures().into_iter().zip(replay.figures());
    let differing: Vec<String> = differing
        .filter(|(known, found)| known.1 != found.1)
        .map(|((name, known), (_, found))| format!("{name} is {known}, in the replay {found}"))
        .collect();
    if differing.is_empty() {
        return Ok(());
    }
    Err(Mismatch::at(index, differing.join("; ")))
}

/// Compares what became of an event with what the trace says of it.
fn check(player: &mut Player, event: &Event, step: Step) -> Result<(), String> {
    match (event, step) {
        (
            &Event::Allocate { place, asked, size, inherited, .. },
            Step::Allocated { place: to, size: charged, inherited: work },
        ) => {
            if (place, size, inherited) == (to, charged, work) {
                return Ok(());
            }
            let text = |place, size, work| format!("{place:?}, {size} bytes, after {work:?}");
            Err(format!(
                "{asked} bytes lie at {} in the trace, at {} in the replay",
                text(place, size, inherited),
                text(to, charged, work)
            ))
        }
        (Event::Allocate { asked, .. }, Step::Refused(kind)) => {
            Err(format!("{asked} bytes were given, and are refused in the replay: {kind:?}"))
        }
        (Event::Refuse { reason, asked, .. }, Step::Refused(kind)) => {
            let code = |kind| match kind {
                RefusalKind::Driver(_, code) => RefusalKind::Driver("", code),
                other => other,
            };
            if code(*reason) == code(kind) {
                return Ok(());
            }
            Err(format!("{asked} bytes were refused for {reason:?}, in the replay for {kind:?}"))
        }
        (Event::Refuse { asked, reason, .. }, _) => {
            Err(format!("{asked} bytes were refused ({reason:?}), and are given in the replay"))
        }
        (Event::Map { id: Some(id), .. }, Step::Mapped(Some(mapping))) => {
            match player.mappings.insert(*id, mapping) {
                None => Ok(()),
                Some(_) => Err(format!("mapping {id} is made twice")),
            }
        }
        (Event::Map { id: None, .. }, Step::Mapped(None)) => Ok(()),
        (Event::Map { size, .. }, _) => {
            Err(format!("a mapping of {size} bytes has another result in the replay"))
        }
        (event, Step::Missing) => Err(format!("{event:?} is of something that is not there")),
        _ => Ok(()),
    }
}
