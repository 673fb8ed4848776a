//! Metal devices do what every back end must. Where there is none, the cases say so; the stand-in of
//! `crates/backend/tests/metal_fake` runs the same list.
#![allow(clippy::unwrap_used)]

mod conformance;
mod expressions;

use aquifer::prelude::*;
use conformance::Opened;

fn opened() -> Opened {
    match Device::named("metal") {
        Ok(device) => device.into(),
        Err(error) => Opened::missing("metal", &error.to_string()),
    }
}

conformance! { crate::opened() }

/// N.3: random expressions and the elementary functions agree with the CPU's.
#[test]
fn expressions_agree_with_the_cpu() {
    match Device::named("metal") {
        Ok(device) => {
            expressions::agree_with_the_cpu(&device, 500);
            expressions::functions_agree_with_the_cpu(&device);
        }
        Err(error) => drop(Opened::missing("metal", &error.to_string())),
    }
}
