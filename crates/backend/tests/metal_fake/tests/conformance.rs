//! The Metal back end does what every back end must, on the stand-in: the same list of cases.
#![allow(clippy::unwrap_used)]

#[path = "../../../../aquifer/tests/conformance/mod.rs"]
mod conformance;

use aquifer::prelude::*;
use conformance::Opened;
use metal_fake::Alone;

/// A device of the stand-in's; at the end nothing of Objective-C's is left.
fn opened(alone: Alone, reuse: Reuse) -> Opened {
    let device = Device::builder().named("metal").reuse(reuse).open().unwrap();
    Opened::checked(device, move || {
        let _ = &alone;
        metal_fake::left_behind()
    })
}

conformance! { crate::opened(metal_fake::alone(), aquifer::Reuse::Ranges) }
