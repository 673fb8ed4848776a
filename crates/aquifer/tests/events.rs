//! What subscribers of `tracing` are told: memory from the driver, refusals, pressure, loss, leaks.
#![allow(clippy::unwrap_used)]

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex, Once};
use std::thread::ThreadId;

use aquifer::backend::Cpu;
use aquifer::backend::adaptors::Failing;
use aquifer::prelude::*;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Keeps a line for each event of each thread: level, message, fields. One for the whole process:
/// subscribers that come and go while other threads tell events would miss some.
struct Lines;

static LINES: Mutex<Vec<(ThreadId, String)>> = Mutex::new(Vec::new());

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("aquifer")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        LINES.lock().unwrap().push((std::thread::current().id(), line.0));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Lines {
    /// The lines of a piece of work on this thread.
    fn of(work: impl FnOnce() -> Result<()>) -> Vec<String> {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| tracing::subscriber::set_global_default(Self).unwrap());
        let own = |line: &(ThreadId, String)| line.0 == std::thread::current().id();
        LINES.lock().unwrap().retain(|line| !own(line));
        work().unwrap();
        let lines = LINES.lock().unwrap();
        lines.iter().filter(|line| own(line)).map(|line| line.1.clone()).collect()
    }
}

fn has(lines: &[String], parts: &[&str]) -> bool {
    lines.iter().any(|line| parts.iter().all(|part| line.contains(part)))
}

#[test]
fn obtained_memory_pressure_and_refusals_are_told() {
    let device = Device::builder().named("cpu").memory_limit(64 << 20).open().unwrap();
    let request = |mib: u64| device.allocate_raw(mib << 20, Storage::Private);
    let lines = Lines::of(|| request(40).map(drop));
    assert!(has(&lines, &["DEBUG", "obtained", "bytes=41943040"]), "{lines:?}");
    let lines = Lines::of(|| request(40).map(drop));
    assert_eq!(lines, [""; 0], "memory from the cache is nothing to tell");
    let lines = Lines::of(|| {
        let _live = request(30)?;
        // It does not fit beside what is live and cached: the cache goes.
        let error = request(60).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        Ok(())
    });
    assert!(has(&lines, &["DEBUG", "refused: making room"]), "{lines:?}");
    assert!(has(&lines, &["DEBUG", "pressure", "went back"]), "{lines:?}");
    assert!(has(&lines, &["WARN", "out of memory", "asked=62914560", "limit=67108864"]));
}

#[test]
fn a_lost_device_is_told_once() {
    let failing = Failing::new(Cpu::open());
    let device = Device::builder().backend(Arc::clone(&failing) as _).open().unwrap();
    let array = Array::<f32>::ones(&device, [16]).unwrap();
    failing.lose();
    let lines = Lines::of(|| {
        assert!(device.synchronize().is_err());
        assert!(array.to_vec().is_err());
        assert!(device.synchronize().is_err());
        Ok(())
    });
    let told = lines.iter().filter(|line| line.contains("the device is lost")).count();
    assert_eq!(told, 1, "{lines:?}");
    assert!(has(&lines, &["ERROR", "call="]), "{lines:?}");
}

#[test]
fn what_is_left_at_the_close_is_told() {
    let lines = Lines::of(|| {
        let device = Device::cpu()?;
        std::mem::forget(device.allocate_raw(1000, Storage::Shared)?);
        Ok(())
    });
    assert!(has(&lines, &["WARN", "still held at the close", "allocations=1"]), "{lines:?}");
}
