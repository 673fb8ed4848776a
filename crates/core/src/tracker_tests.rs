#[cfg(not(loom))]
mod rules {
    use crate::hazard::{Access, ByteRange, Dependencies, QueueId, Stamp, Use, Uses};
    use crate::tracker::{BorrowError, Borrowed, Tracker};

    const A: QueueId = QueueId(0);

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange { start, end }
    }

    fn pending(access: Access) -> Use {
        let stamp = Stamp { queue: A, ticket: 1, epoch: 0 };
        Use { stamp, range: range(0, 100), access }
    }

    /// F.1, F.3: the CPU waits only for what conflicts with it, by range.
    #[test]
    fn the_cpu_waits_only_for_what_conflicts() {
        let tracker = Tracker::default();
        tracker.record(pending(Access::Read), |_| 0).unwrap();
        let id = tracker.borrow(range(0, 100), Access::Read, |_| 0).unwrap();
        tracker.unborrow(id);
        let waits = tracker.borrow(range(0, 1), Access::Write, |_| 0).unwrap_err();
        assert!(matches!(waits, BorrowError::Pending(stamps) if stamps.iter().count() == 1));
        assert!(tracker.borrow(range(100, 200), Access::Write, |_| 0).is_ok());
        assert!(tracker.borrow(range(0, 1), Access::Write, |_| 1).is_ok(), "it is done now");
    }

    /// F.4: a guard refuses conflicting work and guards, whoever asks, and nothing else.
    #[test]
    fn a_guard_refuses_what_conflicts_with_it() {
        let tracker = Tracker::default();
        let id = tracker.borrow(range(0, 10), Access::Read, |_| 0).unwrap();
        let borrowed = BorrowError::Borrowed(Borrowed { by: Access::Read });
        let mut needs = Dependencies::default();
        let write = (range(5, 6), Access::Write);
        assert_eq!(tracker.depend(A, 0, write, &mut needs), Err(borrowed.clone()));
        assert_eq!(tracker.borrow(write.0, write.1, |_| 0), Err(borrowed));
        assert!(tracker.depend(A, 0, (range(5, 6), Access::Read), &mut needs).is_ok());
        assert!(tracker.depend(A, 0, (range(10, 20), Access::Write), &mut needs).is_ok());
        assert!(tracker.peek().is_none() && tracker.poke().is_none());
        tracker.unborrow(id);
        assert!(tracker.is_idle() && tracker.peek().is_some());
    }

    /// J.1: after a release every use is refused; a second one does nothing; with a guard alive
    /// the memory is free when that ends.
    #[test]
    fn a_release_ends_all_use() {
        let tracker = Tracker::default();
        let id = tracker.borrow(range(0, 10), Access::Read, |_| 0).unwrap();
        assert!(tracker.release().is_none(), "a guard still reads");
        assert!(tracker.unborrow(id).is_some(), "its end frees");
        assert!(tracker.release().is_none(), "the second does nothing");
        let mut needs = Dependencies::default();
        let read = (range(0, 1), Access::Read);
        assert_eq!(tracker.depend(A, 0, read, &mut needs), Err(BorrowError::Released));
        assert_eq!(tracker.borrow(read.0, read.1, |_| 9), Err(BorrowError::Released));
        assert!(tracker.peek().is_none());
    }

    /// Peer case 27: what a reused range inherits is waited for.
    #[test]
    fn an_earlier_owners_work_is_waited_for() {
        let stamp = Stamp { queue: A, ticket: 7, epoch: 0 };
        let tracker = Tracker::new(Uses::inherited(stamp, 100));
        assert!(!tracker.is_idle() && tracker.peek().is_none());
        assert!(tracker.borrow(range(0, 1), Access::Read, |_| 6).is_err());
        let id = tracker.borrow(range(0, 1), Access::Read, |_| 7).unwrap();
        tracker.unborrow(id);
        assert!(tracker.is_idle());
    }
}

#[cfg(loom)]
mod model_checked {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::thread;

    use crate::hazard::{Access, ByteRange, QueueId, Stamp, Use};
    use crate::tracker::Tracker;

    const ALL: ByteRange = ByteRange { start: 0, end: 8 };

    /// Marks the time in which a thread is inside; two conflicting ones must never meet.
    struct Inside {
        readers: AtomicU32,
        writers: AtomicU32,
    }

    impl Inside {
        fn new() -> Self {
            Self { readers: AtomicU32::new(0), writers: AtomicU32::new(0) }
        }

        fn read(&self) {
            self.readers.fetch_add(1, Ordering::SeqCst);
            assert_eq!(self.writers.load(Ordering::SeqCst), 0, "a reader meets a writer");
            self.readers.fetch_sub(1, Ordering::SeqCst);
        }

        fn write(&self) {
            assert_eq!(self.writers.fetch_add(1, Ordering::SeqCst), 0, "two writers meet");
            assert_eq!(self.readers.load(Ordering::SeqCst), 0, "a writer meets a reader");
            self.writers.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn run(others: impl Fn(&Tracker, &Inside) + Send + Sync + Copy + 'static) {
        loom::model(move || {
            let shared = Arc::new((Tracker::default(), Inside::new()));
            let copy = Arc::clone(&shared);
            let reader = thread::spawn(move || {
                let (tracker, inside) = &*copy;
                if let Some(_borrow) = tracker.peek() {
                    inside.read();
                }
            });
            others(&shared.0, &shared.1);
            reader.join().unwrap();
            assert!(shared.0.is_idle() || shared.0.peek().is_none());
        });
    }

    #[test]
    fn an_element_read_never_meets_a_guard_that_writes() {
        run(|tracker, inside| {
            if let Ok(id) = tracker.borrow(ALL, Access::Write, |_| 0) {
                inside.write();
                tracker.unborrow(id);
            }
        });
    }

    #[test]
    fn an_element_read_never_meets_an_element_write() {
        run(|tracker, inside| {
            if let Some(_borrow) = tracker.poke() {
                inside.write();
            }
        });
    }

    #[test]
    fn an_element_read_never_meets_recorded_work_that_writes() {
        run(|tracker, inside| {
            let stamp = Stamp { queue: QueueId(0), ticket: 1, epoch: 0 };
            let new = Use { stamp, range: ALL, access: Access::Write };
            if tracker.record(new, |_| 0).is_ok() {
                inside.write();
                // Done: the next borrow prunes it.
                let id = tracker.borrow(ALL, Access::Read, |_| 1).unwrap();
                tracker.unborrow(id);
            }
        });
    }

    #[test]
    fn an_element_read_never_meets_a_release() {
        run(|tracker, inside| {
            if tracker.release().is_some() {
                inside.write();
            }
        });
    }
}
