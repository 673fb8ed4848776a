//! The CPU device does what every back end must, plainly, with poisoned memory, with the
//! founding policy of reuse, and with memory that is not coherent.
#![allow(clippy::unwrap_used)]

mod conformance;

use aquifer::backend::Cpu;
use aquifer::backend::adaptors::{Incoherent, Poisoned};
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

/// The same where the CPU sees the device's writes, and the device the CPU's, only by flushes.
mod incoherent {
    use super::*;

    fn open() -> Device {
        Device::builder().backend(Incoherent::new(Cpu::open())).open().unwrap()
    }

    conformance! { super::open() }
}
