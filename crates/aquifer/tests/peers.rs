//! Cases of the peers' own suites that need a device with room, time, or a back end made slow.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use aquifer::backend::ir::Kernel;
use aquifer::backend::{
    Backend, Batch, Budget, CompileError, Cpu, Dispatch, Failure, ImportError, Pipeline, Signature,
    Source, WaitError,
};
use aquifer::core::{Block, BlockId, Caps, DriverError, Memory, QueueId, Ticket};
use aquifer::prelude::*;

/// Peer case 1: a fresh array is 256-byte aligned, and a copy has another address.
#[test]
fn fresh_arrays_are_aligned_and_copies_are_elsewhere() {
    let device = Device::cpu().unwrap();
    let mut live = Vec::new();
    for len in [1, 3, 64, 65, 1000, 4096, 4097, 100_000] {
        let a = Array::<u8>::ones(&device, [len]).unwrap();
        let b = a.copy().unwrap();
        let (x, y) = (a.read().unwrap().as_ptr().addr(), b.read().unwrap().as_ptr().addr());
        assert!(x % 256 == 0 && y % 256 == 0 && x != y, "{len}: {x:#x} and {y:#x}");
        live.push((a, b));
    }
}

/// G.2, peer case 6: more than 4 GiB is exact to the last element, and so is index arithmetic
/// around 2^31 and 2^32.
#[test]
fn more_than_four_gibibytes_are_exact() {
    const LEN: usize = (4 << 30) + 44;
    let device = Device::cpu().unwrap();
    if device.memory().working_set < 12 << 30 {
        eprintln!("skipped: less than 12 GiB are available");
        return;
    }
    let a = Array::<u8, Private>::zeros(&device, [LEN]).unwrap();
    let places = [0, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, LEN - 1];
    for (value, place) in places.into_iter().enumerate() {
        a.slice(place..=place).unwrap().write_from(&[value as u8 + 1]).unwrap();
    }
    let b = a.copy().unwrap();
    drop(a);
    for (value, place) in places.into_iter().enumerate() {
        assert_eq!(b.slice(place..=place).unwrap().item().unwrap(), value as u8 + 1, "{place}");
    }
    let (sum, place) = b.reduce(|x| (x.sum(), x.arg_greatest())).unwrap();
    assert_eq!((sum.item().unwrap(), place.item().unwrap()), (21, LEN as u64 - 1));
    // Each place knows itself.
    b.assign(|_| (aquifer::index() >> 24u64).cast::<u8>()).unwrap();
    for place in places {
        assert_eq!(b.slice(place..=place).unwrap().item().unwrap(), (place >> 24) as u8);
    }
}

/// Peer case 22: 100 times 1 GiB of untouched memory is fast.
#[test]
fn untouched_gibibytes_are_fast() {
    let device = Device::cpu().unwrap();
    let start = Instant::now();
    for _ in 0..100 {
        drop(device.allocate_raw(1 << 30, Storage::Private).unwrap());
    }
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert_eq!(device.memory().system_allocations, 1);
}

/// Peer case 25: what is recorded and abandoned releases its arrays, and the timeline goes on.
#[test]
fn abandoned_work_releases_its_arrays() {
    let device = Device::cpu().unwrap();
    let queue = device.queue().unwrap();
    for _ in 0..100 {
        let a = queue.run(|| Array::<f32>::ones(&device, [5000])).unwrap();
        let wrapped = device.wrap(vec![1.0f32; 100]).unwrap();
        queue.run(|| wrapped.assign_with(&a.slice(..100).unwrap(), |x, y| x + y)).unwrap();
    }
    queue.synchronize().unwrap();
    device.synchronize().unwrap();
    let start = Instant::now();
    while device.memory().wrapped > 0 && start.elapsed() < Duration::from_secs(5) {
        std::thread::yield_now();
    }
    assert_eq!((device.memory().active, device.memory().wrapped), (0, 0));
}

/// Peer case 25: 200 chained batches without a wait, and a wait that returns only after
/// completion, 10,000 times.
#[test]
fn chained_batches_and_many_waits() {
    let device = Device::cpu().unwrap();
    let a = Array::<u32>::zeros(&device, [10_000]).unwrap();
    for _ in 0..200 {
        a.assign(|x| x + 1).unwrap();
        device.submit().unwrap();
    }
    assert!(a.read().unwrap().iter().all(|&x| x == 200));
    let small = Array::<u32>::zeros(&device, [4]).unwrap();
    for turn in 1..=10_000 {
        small.assign(|x| x + 1).unwrap();
        device.synchronize().unwrap();
        assert_eq!(small.get(3).unwrap(), turn);
    }
}

/// A CPU whose compilations take a while.
#[derive(Debug)]
struct SlowCompiler(Arc<Cpu>);

const COMPILE: Duration = Duration::from_millis(400);

impl Memory for SlowCompiler {
    fn obtain(&self, size: u64, mode: Storage) -> Result<Block, DriverError> {
        self.0.obtain(size, mode)
    }
    fn give_back(&self, block: Block) {
        self.0.give_back(block);
    }
    fn reserve(&self, size: u64, mode: Storage) -> Result<Block, DriverError> {
        self.0.reserve(size, mode)
    }
    fn release(&self, span: Block) {
        self.0.release(span);
    }
    fn commit(&self, span: BlockId, offset: u64, len: u64) -> Result<(), DriverError> {
        self.0.commit(span, offset, len)
    }
    fn decommit(&self, span: BlockId, offset: u64, len: u64) {
        self.0.decommit(span, offset, len);
    }
    fn wire(&self, block: BlockId, offset: u64, len: u64) -> Result<(), DriverError> {
        self.0.wire(block, offset, len)
    }
    fn unwire(&self, block: BlockId, offset: u64, len: u64) {
        self.0.unwire(block, offset, len);
    }
    fn reached(&self, queue: QueueId) -> Ticket {
        self.0.reached(queue)
    }
}

// SAFETY: all is passed on to a back end that keeps the contract.
unsafe impl Backend for SlowCompiler {
    fn api(&self) -> &'static str {
        self.0.api()
    }
    fn caps(&self) -> &Caps {
        self.0.caps()
    }
    fn budget(&self) -> Budget {
        self.0.budget()
    }
    fn supports(&self, dtype: Dtype) -> bool {
        // E.5: a device that lacks a type says so by name.
        dtype != Dtype::F64
    }
    unsafe fn import(&self, _address: *mut u8, _len: u64) -> Result<Block, ImportError> {
        Err(ImportError::Unsupported("this device cannot import memory"))
    }
    fn forget(&self, block: Block) {
        self.0.forget(block);
    }
    fn open_queue(&self) -> Result<QueueId, DriverError> {
        self.0.open_queue()
    }
    fn close_queue(&self, queue: QueueId) {
        self.0.close_queue(queue);
    }
    unsafe fn submit(&self, queue: QueueId, batch: &mut Batch) -> Result<Ticket, DriverError> {
        // SAFETY: the same contract, passed on.
        unsafe { self.0.submit(queue, batch) }
    }
    fn kick(&self, queue: QueueId) {
        self.0.kick(queue);
    }
    fn submitted(&self, queue: QueueId) -> Ticket {
        self.0.submitted(queue)
    }
    fn wait(
        &self,
        queue: QueueId,
        ticket: Ticket,
        timeout: Option<Duration>,
    ) -> Result<(), WaitError> {
        self.0.wait(queue, ticket, timeout)
    }
    fn lost(&self) -> Option<DriverError> {
        self.0.lost()
    }
    fn take_failure(&self, queue: QueueId) -> Option<Failure> {
        self.0.take_failure(queue)
    }
    fn compile(&self, kernel: &Kernel) -> Result<Pipeline, CompileError> {
        if kernel.nodes.len() > 3 {
            std::thread::sleep(COMPILE);
        }
        self.0.compile(kernel)
    }
    fn compile_source(&self, source: &Source) -> Result<(Pipeline, Signature), CompileError> {
        self.0.compile_source(source)
    }
    fn prepare(&self, dispatch: &Dispatch) -> Result<u64, CompileError> {
        self.0.prepare(dispatch)
    }
    fn flush(&self, block: BlockId, offset: u64, len: u64) -> Result<(), DriverError> {
        self.0.flush(block, offset, len)
    }
    fn invalidate(&self, block: BlockId, offset: u64, len: u64) -> Result<(), DriverError> {
        self.0.invalidate(block, offset, len)
    }
}

fn limited() -> Device {
    Device::builder().backend(Arc::new(SlowCompiler(Cpu::open()))).open().unwrap()
}

/// Peer case 26: a slow compile does not block those whose pipeline is there.
#[test]
fn a_slow_compile_blocks_nobody_else() {
    let device = limited();
    let a = device.array(&[1.0f32; 100]).unwrap();
    a.map(|x| -x).unwrap();
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| a.map(|x| (x.sin() + x.cos()) * x));
        std::thread::sleep(Duration::from_millis(50));
        let start = Instant::now();
        assert_eq!(a.map(|x| -x).unwrap().get(0).unwrap(), -1.0);
        assert!(start.elapsed() < Duration::from_millis(100), "{:?}", start.elapsed());
        slow.join().unwrap().unwrap();
    });
}

/// H.2 and E.5 on a device that cannot import and has no f64: a copy says why, `wrap_exact` and
/// the type are errors by name.
#[test]
fn a_limited_device_says_what_it_lacks() {
    let device = limited();
    let wrapped = device.wrap(vec![1.0f32, 2.0]).unwrap();
    assert_eq!(wrapped.origin().to_string(), "copied: this device cannot import memory");
    assert_eq!(device.memory().wrapped, 0);
    assert_eq!(wrapped.into_vec().unwrap(), [1.0, 2.0]);
    let error = device.wrap_exact(vec![1.0f32]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Import);
    assert!(error.to_string().contains("cannot import memory"), "{error}");
    let error = Array::<f64>::zeros(&device, [1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Dtype);
    assert!(error.to_string().contains("has no f64 arrays"), "{error}");
    let mut mine = [1.0f32];
    let scoped = device.scope(|s| s.wrap(&mut mine).map(drop)).unwrap_err();
    assert_eq!(scoped.kind(), ErrorKind::Import);
}
