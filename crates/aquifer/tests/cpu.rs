//! The CPU device does what every back end must, plainly, with poisoned memory, and with the
//! founding policy of reuse.
#![allow(clippy::unwrap_used)]

mod conformance;

use aquifer::backend::Cpu;
use aquifer::backend::adaptors::Poisoned;
use aquifer::prelude::*;

conformance! { aquifer::Device::cpu().unwrap() }

/// The same with every new page full of bytes that are no one's data.
mod poisoned {
    use super::*;

    fn open() -> Device {
        let backend = Poisoned::new(Cpu::open());
        Device::builder().backend(backend).poison_new_memory().open().unwrap()
    }

    conformance! { super::open() }
}

/// The same with whole blocks.
mod blocks {
    use super::*;

    fn open() -> Device {
        Device::builder().named("cpu").reuse(Reuse::Blocks).open().unwrap()
    }

    conformance! { super::open() }
}
