//! Every call of the driver that may fail, by name: counted, and made to fail by tests.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use aquifer_core::DriverError;
use ash::vk;

macro_rules! calls {
    ($($name:ident)*) => {
        /// A call that may fail.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(clippy::enum_variant_names)]
        pub(super) enum Call { $($name),* }

        impl Call {
            /// As the specification names them.
            const NAMES: &'static [&'static str] = &[$(concat!("vk", stringify!($name))),*];
        }
    };
}

calls! {
    AllocateCommandBuffers AllocateMemory BeginCommandBuffer BindBufferMemory CreateBuffer
    CreateCommandPool CreateComputePipelines CreateDescriptorSetLayout CreatePipelineLayout
    CreateSemaphore CreateShaderModule EndCommandBuffer FlushMappedMemoryRanges
    GetMemoryHostPointerPropertiesEXT GetSemaphoreCounterValue InvalidateMappedMemoryRanges
    MapMemory QueueSubmit WaitSemaphores
}

impl Call {
    pub(super) fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// What the driver was asked, and which call is to fail next.
#[derive(Debug)]
pub struct DriverCalls {
    made: Vec<AtomicU64>,
    all: AtomicU64,
    fail_at: AtomicU64,
    code: AtomicI32,
}

impl Default for DriverCalls {
    fn default() -> Self {
        Self {
            made: Call::NAMES.iter().map(|_| AtomicU64::new(0)).collect(),
            all: AtomicU64::new(0),
            fail_at: AtomicU64::new(u64::MAX),
            code: AtomicI32::new(0),
        }
    }
}

impl DriverCalls {
    /// Calls made so far that may fail, by name.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let made = self.made.iter().map(|count| count.load(Ordering::Relaxed));
        Call::NAMES.iter().copied().zip(made).collect()
    }

    /// All of them together.
    pub fn total(&self) -> u64 {
        self.all.load(Ordering::Relaxed)
    }

    /// Lets the `n`-th call from now fail with a `VkResult` code, without making it; 0 is the
    /// next one.
    pub fn fail_after(&self, n: u64, code: i32) {
        self.code.store(code, Ordering::Relaxed);
        self.fail_at.store(self.total() + n, Ordering::Relaxed);
    }

    /// Counts a call; an error where it is to fail.
    pub(super) fn count(&self, call: Call) -> Result<(), vk::Result> {
        self.made[call as usize].fetch_add(1, Ordering::Relaxed);
        let number = self.all.fetch_add(1, Ordering::Relaxed);
        if number == self.fail_at.load(Ordering::Relaxed) {
            return Err(vk::Result::from_raw(self.code.load(Ordering::Relaxed)));
        }
        Ok(())
    }
}

/// The driver's refusal as the seam tells it.
pub(super) fn failed(call: Call, result: vk::Result) -> DriverError {
    DriverError { call: call.name(), code: i64::from(result.as_raw()) }
}
