//! The recorded traces on a Vulkan device with real blocks: ours, gpu-allocator, vk-mem.
//!
//! Sizes are divided by 16, so that the traces fit a software driver's heap. What is freed is in use
//! for the next 64 events: ours may give it to the same queue meanwhile; the others, which know
//! nothing of queues, get it back then.

use std::collections::VecDeque;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use aquifer::backend::{Backend, Vulkan};
use aquifer::core::{
    Action, Allocation, Block, BlockId, DriverError, Memory, Pool, QueueId, Request, Settings,
    Stamp, Storage, Ticket, TraceEvent, parse_csv,
};
use ash::vk;
use vk_mem::Alloc;

use crate::plain::Plain;
use crate::{Fault, median};

const TRACES: [&str; 6] =
    ["gpt2_train", "resnet_train", "decode_growing_kv", "bert_varlen", "two_streams", "moe_infer"];
const LAG: u64 = 64;
const ROUNDS: usize = 5;
const DIVISOR: u64 = 16;

/// What a replay held, over what was asked; nanoseconds an event; blocks got from the driver.
#[derive(Clone, Copy, Default)]
struct Outcome {
    ratio: f64,
    nanoseconds: f64,
    blocks: u64,
}

/// An allocator that a trace is replayed on.
trait Subject {
    fn allocate(&mut self, slot: usize, event: &TraceEvent) -> Result<(), Fault>;
    /// The program lets go at event `now`; the work that uses it ends `LAG` later.
    fn free(&mut self, slot: usize, event: &TraceEvent, now: u64) -> Result<(), Fault>;
    /// Event `now` begins: what ended by then is done.
    fn advance(&mut self, now: u64) -> Result<(), Fault>;
    /// Bytes got from the driver.
    fn held(&mut self) -> Result<u64, Fault>;
    fn obtained(&self) -> u64 {
        0
    }
}

pub(crate) fn run(index: usize) -> Result<(), Fault> {
    println!("sizes / {DIVISOR}, {LAG} events in flight, median of {ROUNDS} rounds");
    println!("{:<20}{:>24}{:>24}{:>24}", "", "aquifer", "gpu-allocator", "vk-mem");
    let mut worst: f64 = 0.0;
    for name in TRACES {
        let events = load(name)?;
        let mut rounds: [Vec<Outcome>; 3] = Default::default();
        for _ in 0..ROUNDS {
            let vulkan = Vulkan::open(Some(index))?;
            rounds[0].push(replay(&events, &mut Ours::new(&vulkan, &events))?);
            let plain = Plain::open(index)?;
            rounds[1].push(replay(&events, &mut Allocator::new(&plain, &events)?)?);
            rounds[2].push(replay(&events, &mut Vma::new(&plain, &events)?)?);
        }
        print!("{name:<20}");
        for outcomes in &rounds {
            let each = |what: fn(&Outcome) -> f64| median(outcomes.iter().map(what).collect());
            print!(
                "{:>10.3} x {:>6.0} ns {:>2}",
                each(|o| o.ratio),
                each(|o| o.nanoseconds),
                match outcomes[0].blocks {
                    0 => String::new(),
                    blocks => blocks.to_string(),
                }
            );
        }
        println!();
        worst = worst.max(rounds[0][0].ratio);
    }
    let word = if worst <= 1.15 { "ok" } else { "ABOVE THE BOUND" };
    println!("ours, at most: {worst:.3} x, at most 1.15 x  {word}");
    Ok(())
}

fn load(name: &str) -> Result<Vec<TraceEvent>, Fault> {
    let folder = std::env::var_os("AQUIFER_TRACES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces"),
        std::path::PathBuf::from,
    );
    let file = std::fs::File::open(folder.join(format!("{name}.csv.gz")))?;
    let mut text = String::new();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text)?;
    let mut events = parse_csv(&text)?;
    // Slots instead of numbers: the replay itself looks nothing up.
    let mut slots = std::collections::BTreeMap::new();
    let mut count = 0;
    events.retain_mut(|event| {
        event.size = (event.size / DIVISOR).max(1);
        match event.action {
            Action::Allocate => {
                count += 1;
                slots.insert(event.id, count - 1);
                event.id = count - 1;
                true
            }
            Action::Free => match slots.remove(&event.id) {
                Some(slot) => {
                    event.id = slot;
                    true
                }
                // Made before the recording began.
                None => false,
            },
            Action::Obtain | Action::GiveBack => false,
        }
    });
    Ok(events)
}

fn slots(events: &[TraceEvent]) -> usize {
    events.iter().map(|event| event.id as usize + 1).max().unwrap_or(0)
}

fn replay(events: &[TraceEvent], subject: &mut dyn Subject) -> Result<Outcome, Fault> {
    let mut sizes = vec![0u64; slots(events)];
    let (mut asked, mut most_asked, mut most_held) = (0u64, 0u64, 0u64);
    let mut spent = 0u128;
    for (index, event) in events.iter().enumerate() {
        let (now, slot) = (index as u64 + 1, event.id as usize);
        let start = Instant::now();
        subject.advance(now)?;
        match event.action {
            Action::Allocate => subject.allocate(slot, event)?,
            _ => subject.free(slot, event, now)?,
        }
        spent += start.elapsed().as_nanos();
        match event.action {
            Action::Allocate => {
                sizes[slot] = event.size;
                asked += event.size;
            }
            _ => asked -= sizes[slot],
        }
        most_asked = most_asked.max(asked);
        if index % 8 == 0 || most_asked == asked {
            most_held = most_held.max(subject.held()?);
        }
    }
    Ok(Outcome {
        ratio: most_held as f64 / most_asked as f64,
        nanoseconds: spent as f64 / events.len() as f64,
        blocks: subject.obtained(),
    })
}

/// The device's memory, with timelines that the replay moves.
struct Timed {
    vulkan: Arc<Vulkan>,
    reached: Vec<AtomicU64>,
}

impl Memory for Timed {
    fn obtain(&self, size: u64, mode: Storage) -> Result<Block, DriverError> {
        self.vulkan.obtain(size, mode)
    }
    fn give_back(&self, block: Block) {
        self.vulkan.give_back(block);
    }
    fn reserve(&self, size: u64, mode: Storage) -> Result<Block, DriverError> {
        self.vulkan.reserve(size, mode)
    }
    fn release(&self, span: Block) {
        self.vulkan.release(span);
    }
    fn commit(&self, span: BlockId, offset: u64, len: u64) -> Result<(), DriverError> {
        self.vulkan.commit(span, offset, len)
    }
    fn decommit(&self, span: BlockId, offset: u64, len: u64) {
        self.vulkan.decommit(span, offset, len);
    }
    fn wire(&self, block: BlockId, offset: u64, len: u64) -> Result<(), DriverError> {
        self.vulkan.wire(block, offset, len)
    }
    fn unwire(&self, block: BlockId, offset: u64, len: u64) {
        self.vulkan.unwire(block, offset, len);
    }
    fn reached(&self, queue: QueueId) -> Ticket {
        self.reached[queue.0 as usize].load(Ordering::Relaxed)
    }
}

struct Ours {
    memory: Timed,
    pool: Pool,
    live: Vec<Option<Allocation>>,
}

impl Ours {
    fn new(vulkan: &Arc<Vulkan>, events: &[TraceEvent]) -> Self {
        let streams = events.iter().map(|event| event.stream).max().unwrap_or(0) + 1;
        let reached = (0..streams).map(|_| AtomicU64::new(0)).collect();
        let budget = vulkan.budget();
        let settings = Settings::for_working_set(budget.working_set, budget.total);
        Self {
            pool: Pool::new(vulkan.caps(), settings),
            memory: Timed { vulkan: Arc::clone(vulkan), reached },
            live: (0..slots(events)).map(|_| None).collect(),
        }
    }
}

impl Subject for Ours {
    fn allocate(&mut self, slot: usize, event: &TraceEvent) -> Result<(), Fault> {
        let request = Request::new(event.size, Storage::Private).on(QueueId(event.stream));
        self.live[slot] = Some(self.pool.allocate(&self.memory, request)?);
        Ok(())
    }

    fn free(&mut self, slot: usize, event: &TraceEvent, now: u64) -> Result<(), Fault> {
        if let Some(allocation) = self.live[slot].take() {
            let stamp = Stamp { queue: QueueId(event.stream), ticket: now, epoch: now };
            self.pool.free(&self.memory, allocation, stamp.into());
        }
        Ok(())
    }

    fn advance(&mut self, now: u64) -> Result<(), Fault> {
        for reached in &self.memory.reached {
            reached.store(now.saturating_sub(LAG), Ordering::Relaxed);
        }
        Ok(())
    }

    fn held(&mut self) -> Result<u64, Fault> {
        Ok(self.memory.vulkan.held())
    }

    fn obtained(&self) -> u64 {
        self.pool.stats().system_allocations
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        for allocation in self.live.drain(..).flatten() {
            self.pool.free(&self.memory, allocation, Default::default());
        }
        self.pool.close(&self.memory);
    }
}

/// What frees wait for, for allocators without queues.
#[derive(Default)]
struct Waiting(VecDeque<(u64, usize)>);

impl Waiting {
    fn done(&mut self, now: u64) -> Option<usize> {
        let (event, slot) = *self.0.front()?;
        if event + LAG > now {
            return None;
        }
        self.0.pop_front();
        Some(slot)
    }
}

fn needs(size: u64) -> vk::MemoryRequirements {
    vk::MemoryRequirements { size, alignment: 256, memory_type_bits: u32::MAX }
}

struct Allocator {
    allocator: gpu_allocator::vulkan::Allocator,
    live: Vec<Option<gpu_allocator::vulkan::Allocation>>,
    waiting: Waiting,
}

impl Allocator {
    fn new(plain: &Plain, events: &[TraceEvent]) -> Result<Self, Fault> {
        let create = gpu_allocator::vulkan::AllocatorCreateDesc {
            instance: plain.instance.clone(),
            device: plain.device.clone(),
            physical_device: plain.physical,
            debug_settings: Default::default(),
            buffer_device_address: false,
            allocation_sizes: Default::default(),
        };
        Ok(Self {
            allocator: gpu_allocator::vulkan::Allocator::new(&create)?,
            live: (0..slots(events)).map(|_| None).collect(),
            waiting: Waiting::default(),
        })
    }
}

impl Subject for Allocator {
    fn allocate(&mut self, slot: usize, event: &TraceEvent) -> Result<(), Fault> {
        let create = gpu_allocator::vulkan::AllocationCreateDesc {
            name: "",
            requirements: needs(event.size),
            location: gpu_allocator::MemoryLocation::GpuOnly,
            linear: true,
            allocation_scheme: gpu_allocator::vulkan::AllocationScheme::GpuAllocatorManaged,
        };
        self.live[slot] = Some(self.allocator.allocate(&create)?);
        Ok(())
    }

    fn free(&mut self, slot: usize, _event: &TraceEvent, now: u64) -> Result<(), Fault> {
        self.waiting.0.push_back((now, slot));
        Ok(())
    }

    fn advance(&mut self, now: u64) -> Result<(), Fault> {
        while let Some(slot) = self.waiting.done(now) {
            if let Some(allocation) = self.live[slot].take() {
                self.allocator.free(allocation)?;
            }
        }
        Ok(())
    }

    fn held(&mut self) -> Result<u64, Fault> {
        Ok(self.allocator.capacity())
    }
}

struct Vma {
    allocator: vk_mem::Allocator,
    live: Vec<Option<vk_mem::Allocation>>,
    waiting: Waiting,
}

impl Vma {
    fn new(plain: &Plain, events: &[TraceEvent]) -> Result<Self, Fault> {
        let create =
            vk_mem::AllocatorCreateInfo::new(&plain.instance, &plain.device, plain.physical);
        Ok(Self {
            // SAFETY: instance and device outlive the allocator: the replay ends before them.
            allocator: unsafe { vk_mem::Allocator::new(create) }?,
            live: (0..slots(events)).map(|_| None).collect(),
            waiting: Waiting::default(),
        })
    }

    fn release(&mut self, slot: usize) {
        if let Some(mut allocation) = self.live[slot].take() {
            // SAFETY: made by this allocator and freed once.
            unsafe { self.allocator.free_memory(&mut allocation) };
        }
    }
}

impl Subject for Vma {
    fn allocate(&mut self, slot: usize, event: &TraceEvent) -> Result<(), Fault> {
        let create = vk_mem::AllocationCreateInfo {
            required_flags: vk::MemoryPropertyFlags::DEVICE_LOCAL,
            ..Default::default()
        };
        // SAFETY: the requirements are those of a plain buffer.
        let made = unsafe { self.allocator.allocate_memory(&needs(event.size), &create) }?;
        self.live[slot] = Some(made);
        Ok(())
    }

    fn free(&mut self, slot: usize, _event: &TraceEvent, now: u64) -> Result<(), Fault> {
        self.waiting.0.push_back((now, slot));
        Ok(())
    }

    fn advance(&mut self, now: u64) -> Result<(), Fault> {
        while let Some(slot) = self.waiting.done(now) {
            self.release(slot);
        }
        Ok(())
    }

    fn held(&mut self) -> Result<u64, Fault> {
        let budgets = self.allocator.get_heap_budgets()?;
        Ok(budgets.iter().map(|budget| budget.statistics.blockBytes).sum())
    }
}

impl Drop for Vma {
    fn drop(&mut self) {
        for slot in 0..self.live.len() {
            self.release(slot);
        }
    }
}
