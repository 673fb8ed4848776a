//! The Metal back end does what every back end must, on the stand-in: the same list of cases.
#![allow(clippy::unwrap_used)]

#[path = "../../../../aquifer/tests/conformance/mod.rs"]
mod conformance;

use std::time::Duration;

use aquifer::prelude::*;
use conformance::Opened;
use metal_fake::{Alone, ORDINARY, System, alone, delay, left_behind, memory, system};

/// A device of the stand-in's; at the end nothing of Objective-C's is left.
fn opened(alone: Alone) -> Opened {
    let device = Device::named("metal").unwrap();
    Opened::checked(device, move || {
        let _ = &alone;
        left_behind()
    })
}

conformance! { crate::opened(crate::alone()) }

/// The same on another system: an older macOS, a card with memory of its own, small buffers and
/// workgroups, and work that finishes late.
mod other {
    use super::*;

    fn open() -> Opened {
        let alone = alone();
        memory(1 << 30, 4 << 30, 64 << 20);
        system(System { macos15: false, unified: false, most_threads: 128, ..ORDINARY });
        delay(Duration::from_micros(100), Duration::from_micros(100));
        opened(alone)
    }

    conformance! { super::open() }
}
