use super::*;

const A: QueueId = QueueId(0);
const B: QueueId = QueueId(1);

fn range(start: u64, end: u64) -> ByteRange {
    ByteRange { start, end }
}

fn used(queue: QueueId, ticket: Ticket, epoch: Epoch, at: (u64, u64), access: Access) -> Use {
    Use { stamp: Stamp { queue, ticket, epoch }, range: range(at.0, at.1), access }
}

/// F.1: reads wait for writes only; writes wait for both.
#[test]
fn reads_wait_for_writes_and_writes_for_both() {
    let mut uses = Uses::default();
    uses.record(used(A, 1, 0, (0, 100), Access::Read));
    assert!(uses.conflicts(range(0, 100), Access::Read).is_empty());
    assert!(!uses.conflicts(range(0, 100), Access::Write).is_empty());
    uses.record(used(A, 2, 0, (0, 100), Access::Write));
    assert!(!uses.conflicts(range(50, 51), Access::Read).is_empty());
}

/// F.3: disjoint ranges do not meet; an empty range meets nothing.
#[test]
fn disjoint_and_empty_ranges_do_not_conflict() {
    let mut uses = Uses::default();
    uses.record(used(A, 1, 0, (0, 100), Access::Write));
    assert!(uses.conflicts(range(100, 200), Access::Write).is_empty());
    assert!(uses.conflicts(range(50, 50), Access::Write).is_empty());
}

/// N.2: a barrier in one queue only inside an epoch; a wait for another queue always.
#[test]
fn a_barrier_stands_between_epochs_and_a_wait_between_queues() {
    let mut uses = Uses::default();
    uses.record(used(A, 1, 7, (0, 10), Access::Write));
    let mut needs = Dependencies::default();
    uses.depend(A, 7, (range(0, 10), Access::Read), &mut needs);
    assert!(needs.barrier && needs.waits.is_empty());
    let mut needs = Dependencies::default();
    uses.depend(A, 8, (range(0, 10), Access::Read), &mut needs);
    assert!(!needs.barrier && needs.waits.is_empty());
    let mut needs = Dependencies::default();
    uses.depend(B, 8, (range(0, 10), Access::Read), &mut needs);
    assert!(!needs.barrier);
    assert_eq!(needs.waits.iter().map(|stamp| stamp.queue).collect::<Vec<_>>(), [A]);
}

/// A loop over one array does not let its list grow, and drops nothing that is still needed:
/// every conflict of the full history is implied by one of the kept uses.
#[test]
fn kept_uses_stand_for_the_whole_history() {
    let mut random = fastrand::Rng::with_seed(11);
    for _ in 0..200 {
        let (mut uses, mut history) = (Uses::default(), Vec::<Use>::new());
        // For every use, what it has been ordered after, directly or not.
        let mut after: Vec<u64> = Vec::new();
        for ticket in 1..60 {
            let start = random.u64(0..8);
            let access = if random.bool() { Access::Read } else { Access::Write };
            let queue = if random.bool() { A } else { B };
            let new = used(queue, ticket, ticket, (start, start + random.u64(1..8)), access);
            let waits = uses.conflicts(new.range, access);
            let mut before = 0u64;
            for (index, old) in history.iter().enumerate() {
                let awaited = waits.iter().any(|stamp| {
                    stamp.queue == old.stamp.queue && old.stamp.ticket <= stamp.ticket
                });
                let same_queue = old.stamp.queue == queue;
                if awaited || same_queue {
                    before |= 1 << index | after[index];
                }
            }
            for (index, old) in history.iter().enumerate() {
                if old.access.conflicts(access) && old.range.overlaps(new.range) {
                    assert!(before & 1 << index != 0, "{new:?} is not ordered after {old:?}");
                }
            }
            uses.record(new);
            history.push(new);
            after.push(before);
        }
    }
    let mut uses = Uses::default();
    for ticket in 1..1000 {
        uses.record(used(A, ticket, ticket, (0, 10), Access::Write));
        uses.record(used(A, ticket, ticket, (0, 10), Access::Read));
        assert!(uses.len() <= 2);
    }
}

/// Stamps keep the latest of each queue and forget what is done.
#[test]
fn stamps_keep_the_latest_of_each_queue() {
    let mut stamps = Stamps::default();
    for (queue, ticket) in [(A, 3), (B, 1), (A, 2), (B, 9)] {
        stamps.add(Stamp { queue, ticket, epoch: ticket });
    }
    let seen: Vec<_> = stamps.iter().map(|stamp| (stamp.queue, stamp.ticket)).collect();
    assert_eq!(seen, [(A, 3), (B, 9)]);
    stamps.prune(|queue| if queue == A { 3 } else { 8 });
    assert_eq!(stamps.only_queue(), Some(B));
}
