//! Order between commands, seen twice (rules F, N.2): by the values, against the same commands one
//! after another; and by the plan itself: of any two commands that conflict, one is ordered after
//! the other by a barrier, a wait, or what the host had seen done.
#![allow(clippy::unwrap_used)]

mod conformance;

use std::collections::BTreeMap;
use std::sync::Arc;

use aquifer::backend::adaptors::{Planned, Submitted};
use aquifer::backend::{Backend, Binding, Command, Cpu, Vulkan, VulkanOptions};
use aquifer::core::{QueueId, Ticket};
use aquifer::prelude::*;
use conformance::Opened;

const LEN: usize = 900;
const COMMANDS: u32 = 1000;

/// What each array holds.
type Values = Vec<Vec<u32>>;

/// Dependent and independent commands over five arrays and three queues; what the arrays hold in
/// the end, and what they hold when the commands run one after another.
fn random_work(device: &Device) -> Result<(Values, Values)> {
    let mut random = fastrand::Rng::with_seed(1000);
    let queues = [device.queue()?, device.queue()?, device.queue()?];
    let arrays: Vec<Array<u32, Private>> =
        (0..5).map(|_| Array::zeros(device, [LEN])).collect::<Result<_>>()?;
    let mut model = vec![vec![0u32; LEN]; 5];
    for step in 0..COMMANDS {
        let (from, to) = (random.usize(0..5), random.usize(0..5));
        let len = random.usize(1..LEN / 2);
        let (at, target) = (random.usize(0..=LEN - len), random.usize(0..=LEN - len));
        let (source, sink) =
            (arrays[from].slice(at..at + len)?, arrays[to].slice(target..target + len)?);
        let copies = random.bool();
        queues[random.usize(0..3)].run(|| {
            if copies {
                sink.copy_from(&source)
            } else {
                sink.assign_with(&source, |x, y| x * 5 + y + step)
            }
        })?;
        let before = model[from][at..at + len].to_vec();
        for (x, y) in model[to][target..target + len].iter_mut().zip(before) {
            *x = if copies { y } else { x.wrapping_mul(5).wrapping_add(y).wrapping_add(step) };
        }
    }
    let got = arrays.iter().map(|array| array.to_vec()).collect::<Result<_>>()?;
    Ok((got, model))
}

/// How far a queue knows the others to have come.
type Known = BTreeMap<QueueId, Ticket>;

fn learn(known: &mut Known, more: &Known) {
    for (queue, ticket) in more {
        let best = known.entry(*queue).or_default();
        *best = (*best).max(*ticket);
    }
}

/// A command that has been placed: where, and what it touches.
struct Placed {
    queue: QueueId,
    ticket: Ticket,
    epoch: u64,
    reads: Vec<Binding>,
    writes: Vec<Binding>,
}

/// Pairs of commands that conflict and that nothing orders.
fn unordered(plan: &[Submitted], barriers: bool) -> usize {
    let mut placed: Vec<Placed> = Vec::new();
    let mut known: BTreeMap<QueueId, Known> = BTreeMap::new();
    let mut at_ticket: BTreeMap<(QueueId, Ticket), Known> = BTreeMap::new();
    let mut epochs: BTreeMap<QueueId, u64> = BTreeMap::new();
    let mut faults = 0;
    for batch in plan {
        let mine = known.entry(batch.queue).or_default();
        learn(mine, &batch.reached.iter().copied().collect());
        for command in &batch.commands {
            let (reads, writes) = match command {
                Command::Barrier => {
                    *epochs.entry(batch.queue).or_default() += u64::from(barriers);
                    continue;
                }
                Command::Wait { queue, ticket } => {
                    let theirs = at_ticket.get(&(*queue, *ticket)).cloned().unwrap_or_default();
                    let mine = known.entry(batch.queue).or_default();
                    learn(mine, &theirs);
                    learn(mine, &Known::from([(*queue, *ticket)]));
                    continue;
                }
                Command::Copy { from, to } => (vec![*from], vec![*to]),
                Command::Dispatch(dispatch) => {
                    let writes = dispatch.outputs.iter().chain(&dispatch.scratch);
                    (dispatch.inputs.to_vec(), writes.copied().collect())
                }
            };
            let epoch = epochs.get(&batch.queue).copied().unwrap_or(0);
            let new = Placed { queue: batch.queue, ticket: batch.ticket, epoch, reads, writes };
            let mine = &known[&batch.queue];
            let ordered = |old: &Placed| {
                let seen = mine.get(&old.queue).is_some_and(|ticket| *ticket >= old.ticket);
                seen || (old.queue == new.queue && old.epoch < new.epoch)
            };
            let touches =
                |a: &[Binding], b: &[Binding]| a.iter().any(|a| b.iter().any(|b| a.overlaps(b)));
            let conflicts = |old: &Placed| {
                touches(&new.writes, &old.writes)
                    || touches(&new.writes, &old.reads)
                    || touches(&new.reads, &old.writes)
            };
            faults += placed.iter().filter(|old| conflicts(old) && !ordered(old)).count();
            placed.push(new);
        }
        let mine = known.entry(batch.queue).or_default();
        at_ticket.insert((batch.queue, batch.ticket), mine.clone());
    }
    faults
}

fn check(backend: Arc<dyn Backend>) {
    let planned = Planned::new(backend);
    let device = Device::builder().backend(Arc::clone(&planned) as _).open().unwrap();
    let (got, want) = random_work(&device).unwrap();
    assert_eq!(got, want, "the values are those of the sequence");
    device.synchronize().unwrap();
    let plan = planned.take();
    let commands: usize = plan.iter().map(|batch| batch.commands.len()).sum();
    let without = unordered(&plan, false);
    println!(
        "{}: {} batches, {commands} commands; unordered conflicts {}, without barriers {without}",
        device.backend(),
        plan.len(),
        unordered(&plan, true),
    );
    assert_eq!(unordered(&plan, true), 0, "every conflict is ordered");
    assert!(without > 100, "the barriers are what orders: without them {without}");
}

/// N.2 on the CPU.
#[test]
fn conflicts_are_ordered_on_the_cpu() {
    check(Cpu::open());
}

/// N.2 on Vulkan; and with its barriers left out, what comes of it is told.
#[test]
fn conflicts_are_ordered_on_vulkan() {
    let validation = std::env::var("AQUIFER_VULKAN_VALIDATION").is_ok_and(|on| on == "1");
    let options = VulkanOptions { validation, ..VulkanOptions::default() };
    let vulkan = match Vulkan::open_with(&options) {
        Ok(vulkan) => vulkan,
        Err(error) => {
            let _ = Opened::missing("vulkan", &error.to_string());
            return;
        }
    };
    check(Arc::clone(&vulkan) as _);
    assert_eq!(vulkan.messages(), Vec::<String>::new());
    let without =
        Vulkan::open_with(&VulkanOptions { no_barriers: true, ..VulkanOptions::default() });
    let device = Device::builder().backend(without.unwrap()).open().unwrap();
    let (got, want) = random_work(&device).unwrap();
    let wrong = got.iter().flatten().zip(want.iter().flatten()).filter(|(a, b)| a != b).count();
    println!("without barriers {wrong} of {} values are wrong on this driver", 5 * LEN);
}
