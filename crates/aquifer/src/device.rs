//! Devices: what arrays live on.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;

use aquifer_backend::ir::Kernel;
use aquifer_backend::{
    Api, Backend, Cpu, Dtype, Listed, Pipeline, Signature, Source, WaitError, apis,
};
use aquifer_core::{
    Allocation, LabelRow, MemoryStats, Pool, QueueId, Request, Reuse, Settings, Stamps, Storage,
};

use crate::error::{Error, ErrorKind, Inner, Result};
use crate::label;
use crate::pool::PoolGuard;
use crate::queue::{Queue, Recorder};
use crate::trace::{Running, TraceOptions};

/// A processor with its memory. Cheap to clone: all clones are one device, which closes when the
/// last of them and the last of its arrays are gone.
///
/// ```
/// use aquifer::prelude::*;
/// let device = Device::cpu()?;
/// let array = Array::<f32>::zeros(&device, [1000])?;
/// assert_eq!(device.memory().active, 4096);
/// # drop(array);
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone)]
pub struct Device(pub(crate) Arc<DeviceInner>);

pub(crate) struct DeviceInner {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) id: u64,
    pool: Mutex<Pool>,
    recorder: Mutex<Recorder>,
    pipelines: Mutex<FxHashMap<Kernel, Pipeline>>,
    /// Kernels of the user's own, by their source.
    sources: Mutex<FxHashMap<Source, (Pipeline, Signature)>>,
    storage: Storage,
    poison: bool,
    random: AtomicU64,
    /// `measure` calls under way: only then is the pool's time taken.
    measuring: AtomicU32,
    managing_ns: AtomicU64,
    /// Errors that came where nobody could be told; the next wait tells them.
    untold: Mutex<Vec<Error>>,
    any_untold: AtomicBool,
    /// Compilations made: what the cache of pipelines saves is seen by it.
    compiled: AtomicU64,
    /// Whether a trace is under way.
    pub(crate) traced: AtomicBool,
    pub(crate) tracing: Mutex<Option<Running>>,
    /// Subscribers of `tracing` have been told that the device is lost.
    lost_told: AtomicBool,
}

/// A device that is here, or that is not and why.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceEntry {
    /// The API: `cpu`, `vulkan`, ...
    pub api: &'static str,
    /// What `AQUIFER_DEVICE` and [`Device::named`] take.
    pub selector: String,
    /// The device's own name, if it is here.
    pub name: Option<String>,
    /// Bytes of memory, if it is here.
    pub memory: Option<u64>,
    /// What kind of device it is: `processor`, `discrete`, `integrated`, `software`, ...
    pub kind: Option<&'static str>,
    /// The driver's name and version, where there is one.
    pub driver: Option<String>,
    /// Why it is not here.
    pub reason: Option<String>,
}

/// How a device is opened.
#[derive(Default)]
pub struct DeviceBuilder {
    name: Option<String>,
    backend: Option<Arc<dyn Backend>>,
    reuse: Reuse,
    storage: Option<Storage>,
    memory_limit: Option<u64>,
    cache_limit: Option<u64>,
    poison: bool,
    trace: Option<TraceOptions>,
}

impl DeviceBuilder {
    /// The device of this name, as for [`Device::named`].
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// A back end of the caller's: one of the adaptors, or one of its own.
    #[must_use]
    pub fn backend(mut self, backend: Arc<dyn Backend>) -> Self {
        self.backend = Some(backend);
        self
    }

    /// How freed memory is reused; default [`Reuse::Ranges`].
    #[must_use]
    pub fn reuse(mut self, reuse: Reuse) -> Self {
        self.reuse = reuse;
        self
    }

    /// The mode of arrays whose mode is chosen at run time; default `AQUIFER_STORAGE`, else
    /// shared.
    #[must_use]
    pub fn storage(mut self, storage: Storage) -> Self {
        self.storage = Some(storage);
        self
    }

    /// The memory limit in bytes; default rule C.1.
    #[must_use]
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.memory_limit = Some(bytes);
        self
    }

    /// The cache limit in bytes; default the memory limit's default.
    #[must_use]
    pub fn cache_limit(mut self, bytes: u64) -> Self {
        self.cache_limit = Some(bytes);
        self
    }

    /// Fills every new shared array's memory with the byte `0xA5` before it is handed out, so that
    /// code which counts on zeros is seen (rule B.2).
    #[must_use]
    pub fn poison_new_memory(mut self) -> Self {
        self.poison = true;
        self
    }

    /// Records what happens to the device's memory from its first use on; default
    /// `AQUIFER_TRACE=path`, with call stacks where `AQUIFER_TRACE_STACKS=1`.
    #[must_use]
    pub fn trace(mut self, options: TraceOptions) -> Self {
        self.trace = Some(options);
        self
    }

    /// Opens the device.
    ///
    /// # Errors
    /// `Io` where the file of a trace cannot be made;
    /// `NoDevice` where there is none of the name, with the reason; `Name` where
    /// `AQUIFER_STORAGE` is not a mode.
    pub fn open(self) -> Result<Device> {
        let backend = match self.backend {
            Some(backend) => backend,
            None => open_named(self.name.as_deref())?,
        };
        let storage = match (self.storage, std::env::var("AQUIFER_STORAGE")) {
            (Some(storage), _) => storage,
            (None, Ok(name)) => name.parse().map_err(|error| {
                Error::message(ErrorKind::Name, format!("AQUIFER_STORAGE: {error}"))
            })?,
            (None, Err(_)) => Storage::default(),
        };
        let budget = backend.budget();
        let mut settings = Settings::for_working_set(budget.working_set, budget.total);
        settings.reuse = self.reuse;
        settings.limits.memory = self.memory_limit.unwrap_or(settings.limits.memory);
        settings.limits.cache = self.cache_limit.unwrap_or(settings.limits.cache);
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let device = Device(Arc::new(DeviceInner {
            pool: Mutex::new(Pool::new(backend.caps(), settings)),
            backend,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            recorder: Mutex::default(),
            pipelines: Mutex::default(),
            sources: Mutex::default(),
            storage,
            poison: self.poison,
            random: AtomicU64::new(0),
            measuring: AtomicU32::new(0),
            managing_ns: AtomicU64::new(0),
            untold: Mutex::default(),
            any_untold: AtomicBool::new(false),
            compiled: AtomicU64::new(0),
            traced: AtomicBool::new(false),
            tracing: Mutex::default(),
            lost_told: AtomicBool::new(false),
        }));
        if let Some(options) = self.trace.or_else(TraceOptions::from_environment) {
            device.trace().start_with(options)?;
        }
        crate::watch::register(&device);
        Ok(device)
    }
}

/// The best that opens without being named: a GPU, else the CPU.
fn open_best() -> Arc<dyn Backend> {
    apis().iter().find_map(|api| api.open_best().ok()).unwrap_or_else(|| Cpu::open())
}

fn open_named(name: Option<&str>) -> Result<Arc<dyn Backend>> {
    let environment = std::env::var("AQUIFER_DEVICE").ok();
    let (name, source) = match (name, environment.as_deref()) {
        (Some(name), _) => (name, "device"),
        (None, Some(name)) => (name, "AQUIFER_DEVICE"),
        (None, None) => return Ok(open_best()),
    };
    let (api, index) = match name.split_once(':') {
        Some((api, index)) => (api, Some(index)),
        None => (name, None),
    };
    let missing = |reason: &str| {
        Error::message(
            ErrorKind::NoDevice,
            format!("{source} '{name}': {reason}; `aquifer devices` lists what is here"),
        )
    };
    let index = match index.map(str::parse::<usize>) {
        None => None,
        Some(Ok(index)) => Some(index),
        Some(Err(_)) => return Err(missing("the part after ':' is not a number")),
    };
    match apis().iter().find(|known| api.eq_ignore_ascii_case(known.name)) {
        Some(api) => api.open(index).map_err(|error| missing(&error.to_string())),
        None => Err(missing("no such device: use cpu, vulkan[:n], metal[:n] or cuda[:n]")),
    }
}

fn missing(api: &'static str, reason: &str) -> DeviceEntry {
    DeviceEntry {
        api,
        selector: api.to_owned(),
        name: None,
        memory: None,
        kind: None,
        driver: None,
        reason: Some(reason.to_owned()),
    }
}

fn entries(api: &Api) -> Vec<DeviceEntry> {
    let devices = match api.list() {
        Ok(devices) if devices.is_empty() => {
            return vec![missing(api.name, "no driver is installed, or none has a device")];
        }
        Ok(devices) => devices,
        Err(error) => return vec![missing(api.name, &error.to_string())],
    };
    let entry = |(index, device): (usize, Listed)| DeviceEntry {
        api: api.name,
        // There is one processor.
        selector: match device.kind {
            "processor" => api.name.to_owned(),
            _ => format!("{}:{index}", api.name),
        },
        name: Some(device.name),
        memory: Some(device.memory),
        kind: Some(device.kind),
        driver: device.driver,
        reason: None,
    };
    devices.into_iter().enumerate().map(entry).collect()
}

impl Device {
    /// The device that `AQUIFER_DEVICE` names, or else the best that opens.
    ///
    /// # Errors
    /// `NoDevice` where the named one does not open.
    pub fn open() -> Result<Self> {
        Self::builder().open()
    }

    /// The CPU.
    ///
    /// # Errors
    /// None today; the signature is that of the other ways to open a device.
    pub fn cpu() -> Result<Self> {
        Self::builder().named("cpu").open()
    }

    /// The device of a name: `cpu`, `vulkan[:n]`, `metal[:n]`, `cuda[:n]`.
    ///
    /// # Errors
    /// `NoDevice`, with the reason.
    pub fn named(name: &str) -> Result<Self> {
        Self::builder().named(name).open()
    }

    /// A device with settings of one's own.
    pub fn builder() -> DeviceBuilder {
        DeviceBuilder::default()
    }

    /// What is here, what is not, and why.
    pub fn list() -> Vec<DeviceEntry> {
        apis().iter().rev().flat_map(entries).collect()
    }

    /// The device's own name.
    pub fn name(&self) -> &str {
        &self.0.backend.caps().name
    }

    /// The API that it is reached by: `cpu`, `vulkan`, ...
    pub fn backend(&self) -> &'static str {
        self.0.backend.api()
    }

    /// Constant facts of the device.
    pub fn caps(&self) -> &aquifer_core::Caps {
        self.0.backend.caps()
    }

    /// The mode of arrays whose mode is chosen at run time.
    pub fn default_storage(&self) -> Storage {
        self.0.storage
    }

    /// Every figure of the device's memory, one snapshot.
    pub fn memory(&self) -> MemoryStats {
        let mut pool = self.pool();
        // What a program was told is what a replay must come to.
        pool.tell_figures();
        pool.stats()
    }

    /// What is allocated, by label.
    pub fn labels(&self) -> Vec<LabelRow> {
        self.pool().labels()
    }

    /// Counts what this thread allocates while the guard lives under `name`; inside another label
    /// under `outer/name`.
    pub fn label(&self, name: &str) -> label::Label {
        label::Label::new(self, name)
    }

    /// Sets both peaks to what is in use now.
    pub fn reset_peak(&self) {
        self.pool().reset_peak();
    }

    /// Sets the hard limit on `active + mapped`, in bytes; returns the old one.
    pub fn set_memory_limit(&self, bytes: u64) -> u64 {
        self.pool().set_memory_limit(bytes)
    }

    /// Sets the limit on what is free but held, in bytes, and trims to it; returns the old one.
    pub fn set_cache_limit(&self, bytes: u64) -> u64 {
        self.pool().set_cache_limit(&*self.0.backend, bytes)
    }

    /// Gives back all free memory that no work uses.
    pub fn clear_cache(&self) {
        self.pool().clear_cache(&*self.0.backend);
    }

    /// Sets how many bytes of live memory are kept resident; returns the old limit.
    ///
    /// # Errors
    /// `Limit` where `bytes` is above the working set.
    pub fn set_wired_limit(&self, bytes: u64) -> Result<u64> {
        self.pool().set_wired_limit(&*self.0.backend, bytes).map_err(|most| {
            Error::message(
                ErrorKind::Limit,
                format!("a wired limit of {bytes} bytes is above the working set of {most} bytes"),
            )
        })
    }

    /// Seeds the random numbers of this device: the same calls then give the same numbers.
    pub fn seed(&self, seed: u64) {
        self.0.random.store(seed, Ordering::Relaxed);
    }

    /// A new queue.
    ///
    /// # Errors
    /// `Backend` where the driver has no more.
    pub fn queue(&self) -> Result<Queue> {
        Queue::open(self)
    }

    /// Barriers put between commands so far, on all queues (rule N.2).
    pub fn barriers(&self) -> u64 {
        self.recorder().barriers()
    }

    /// Expressions and kernels of the user's own compiled so far.
    pub fn compiled(&self) -> u64 {
        self.0.compiled.load(Ordering::Relaxed)
    }

    /// Submits what this thread's queue has recorded.
    ///
    /// # Errors
    /// `Backend`: the driver's; what was recorded stays recorded.
    pub fn submit(&self) -> Result<()> {
        self.flush(crate::queue::current(self)?)
    }

    /// Submits everything and waits for all queues.
    ///
    /// # Errors
    /// What failed on the device since the last wait, `Lost`.
    pub fn synchronize(&self) -> Result<()> {
        self.synchronize_within(None)
    }

    /// The same with a limit of time.
    ///
    /// # Errors
    /// As [`synchronize`](Self::synchronize), and `Timeout`.
    pub fn synchronize_timeout(&self, limit: Duration) -> Result<()> {
        self.synchronize_within(Some(limit))
    }

    fn synchronize_within(&self, limit: Option<Duration>) -> Result<()> {
        let start = Instant::now();
        let queues = self.flush_all()?;
        let mut first = Ok(());
        for queue in queues {
            let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
            let ticket = self.0.backend.submitted(queue);
            // One failure is told at a time; those behind it stay for the next wait.
            first = match first {
                Ok(()) => self.wait_ticket(queue, ticket, left),
                Err(_) => first.and(self.traced_wait(queue, ticket, left).map_err(Error::from)),
            };
        }
        self.pool().poll(&*self.0.backend);
        first
    }

    pub(crate) fn flush_all(&self) -> Result<Vec<QueueId>> {
        let queues = self.recorder().queues();
        for &queue in &queues {
            self.flush(queue)?;
        }
        Ok(queues)
    }

    #[inline(always)]
    pub(crate) fn pool(&self) -> PoolGuard<'_> {
        PoolGuard::new(self.0.pool.lock())
    }

    pub(crate) fn recorder(&self) -> MutexGuard<'_, Recorder> {
        self.0.recorder.lock()
    }

    /// Whether the device has arrays of an element type: Metal, for one, has no `f64`.
    ///
    /// ```
    /// use aquifer::prelude::*;
    /// assert!(Device::cpu()?.supports(Dtype::F64));
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    pub fn supports(&self, dtype: Dtype) -> bool {
        self.0.backend.supports(dtype)
    }

    /// Refuses element types that the device lacks (rule E.5).
    pub(crate) fn check_dtype(&self, dtype: Dtype) -> Result<()> {
        if self.supports(dtype) {
            return Ok(());
        }
        Err(Error::new(Inner::Unsupported { dtype, device: self.name().to_owned() }))
    }

    pub(crate) fn pipeline(&self, kernel: &Kernel) -> Result<Pipeline> {
        let cached = {
            let pipelines = self.0.pipelines.lock();
            pipelines.get(kernel).cloned()
        };
        if let Some(pipeline) = cached {
            return Ok(pipeline);
        }
        // Outside the lock: a slow compilation does not block those whose pipeline is there.
        let pipeline = self.0.backend.compile(kernel)?;
        self.0.compiled.fetch_add(1, Ordering::Relaxed);
        let mut pipelines = self.0.pipelines.lock();
        Ok(pipelines.entry(kernel.clone()).or_insert(pipeline).clone())
    }

    /// A kernel of the user's own, compiled once for its source (rule N.4).
    pub(crate) fn compiled_source(&self, source: Source) -> Result<(Pipeline, Signature)> {
        let found = self.0.sources.lock().get(&source).cloned();
        if let Some(found) = found {
            return Ok(found);
        }
        let compiled = self.0.backend.compile_source(&source)?;
        self.0.compiled.fetch_add(1, Ordering::Relaxed);
        let mut sources = self.0.sources.lock();
        Ok(sources.entry(source).or_insert(compiled).clone())
    }

    pub(crate) fn random_key(&self) -> u64 {
        // Consecutive keys: Philox mixes them fully.
        self.0.random.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn poisons(&self) -> bool {
        self.0.poison
    }

    /// Allocates; on a refusal submits what is recorded, releases the cache, waits for work in
    /// flight and tries once more (rule C.3).
    #[inline(always)]
    pub(crate) fn allocate(
        &self,
        len: u64,
        mode: Storage,
        queue: Option<QueueId>,
    ) -> Result<Allocation> {
        let mut request = Request::new(len, mode).labelled(label::current(self));
        if let Some(queue) = queue {
            request = request.on(queue);
        }
        let first = self.timed(|pool, backend| pool.allocate(backend, request));
        match first {
            Ok(allocation) => Ok(allocation),
            Err(refusal) => self.allocate_again(request, refusal),
        }
    }

    #[cold]
    fn allocate_again(
        &self,
        request: Request,
        refusal: aquifer_core::Refusal,
    ) -> Result<Allocation> {
        use aquifer_core::RefusalKind;
        if matches!(refusal.kind, RefusalKind::TooLarge(_) | RefusalKind::Overflow) {
            return Err(refusal.into());
        }
        tracing::debug!(asked = refusal.asked, "refused: making room, to try once more");
        for queue in self.flush_all()? {
            // Failures stay for the next wait of the caller's own.
            let ticket = self.0.backend.submitted(queue);
            self.traced_wait(queue, ticket, None)?;
        }
        self.timed(|pool, backend| {
            pool.clear_cache(backend);
            pool.allocate(backend, request)
        })
        .inspect_err(|refusal| {
            let (asked, stats) = (refusal.asked, &refusal.stats);
            let (active, mapped, limit) = (stats.active, stats.mapped, stats.memory_limit);
            tracing::warn!(asked, active, mapped, limit, "refused: out of memory");
        })
        .map_err(Error::from)
    }

    /// Device memory without an array around it: for engines that have kernels of their own. It
    /// goes back when it is dropped; the caller must have waited for its work.
    ///
    /// # Errors
    /// `OutOfMemory`, `TooLarge`.
    #[inline(always)]
    pub fn allocate_raw(&self, size: u64, mode: Storage) -> Result<RawMemory<'_>> {
        let allocation = self.allocate(size, mode, None)?;
        Ok(RawMemory { device: self, allocation: Some(allocation) })
    }

    #[inline(always)]
    pub(crate) fn free(&self, allocation: Allocation, stamps: Stamps) {
        self.timed(|pool, backend| pool.free(backend, allocation, stamps));
    }

    #[inline(always)]
    fn timed<R>(&self, work: impl FnOnce(&mut Pool, &dyn Backend) -> R) -> R {
        if self.0.measuring.load(Ordering::Relaxed) == 0 {
            return work(&mut self.pool(), &*self.0.backend);
        }
        let start = Instant::now();
        let result = work(&mut self.pool(), &*self.0.backend);
        self.0.managing_ns.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        result
    }

    /// Time spent managing memory while a measurement ran.
    pub(crate) fn managing(&self, enter: Option<bool>) -> Duration {
        match enter {
            Some(true) => self.0.measuring.fetch_add(1, Ordering::Relaxed),
            Some(false) => self.0.measuring.fetch_sub(1, Ordering::Relaxed),
            None => 0,
        };
        Duration::from_nanos(self.0.managing_ns.load(Ordering::Relaxed))
    }

    /// Submits a queue's open batch and starts it.
    pub(crate) fn flush(&self, queue: QueueId) -> Result<()> {
        let flushed = self.recorder().flush(&*self.0.backend, queue)?;
        if flushed {
            self.0.backend.kick(queue);
        }
        Ok(())
    }

    /// Waits for a ticket, submitting it first if it is still open, and takes the queue's next
    /// failure.
    pub(crate) fn wait_ticket(
        &self,
        queue: QueueId,
        ticket: u64,
        limit: Option<Duration>,
    ) -> Result<()> {
        let backend = &self.0.backend;
        if backend.reached(queue) < ticket {
            if backend.submitted(queue) < ticket {
                self.flush(queue)?;
            }
            if backend.reached(queue) < ticket {
                // C.5: a caller that waits anyway makes room meanwhile.
                self.pool().relieve(&**backend, 50);
                self.traced_wait(queue, ticket, limit)?;
            }
        }
        self.check_failure(queue)
    }

    /// Waits until work that was submitted is over, whatever it takes: memory that it uses may go
    /// only then. Of a device that is lost it is over too.
    pub(crate) fn wait_over(&self, queue: QueueId, ticket: u64) {
        wait_over(&*self.0.backend, queue, ticket);
    }

    /// Keeps an error for the next wait.
    pub(crate) fn tell_later(&self, error: Error) {
        self.0.untold.lock().push(error);
        self.0.any_untold.store(true, Ordering::Release);
    }

    /// Takes the next failure of work on a queue; of a lost device, that it is lost.
    pub(crate) fn check_failure(&self, queue: QueueId) -> Result<()> {
        if self.0.any_untold.load(Ordering::Acquire) {
            let mut untold = self.0.untold.lock();
            let error = untold.pop();
            self.0.any_untold.store(!untold.is_empty(), Ordering::Release);
            if let Some(error) = error {
                return Err(error);
            }
        }
        if let Some(failure) = self.0.backend.take_failure(queue) {
            return Err(Error::new(Inner::Work(failure)));
        }
        // Work of a lost device is over without having been done.
        match self.0.backend.lost() {
            Some(error) => {
                if !self.0.lost_told.swap(true, Ordering::Relaxed) {
                    tracing::error!(call = error.call, code = error.code, "the device is lost");
                }
                Err(Error::from(WaitError::Lost(error)))
            }
            None => Ok(()),
        }
    }

    pub(crate) fn wait_stamps(&self, stamps: &Stamps, limit: Option<Duration>) -> Result<()> {
        let start = limit.map(|limit| (limit, Instant::now()));
        for stamp in stamps.iter() {
            let left = start.map(|(limit, start)| limit.saturating_sub(start.elapsed()));
            self.wait_ticket(stamp.queue, stamp.ticket, left)?;
        }
        Ok(())
    }
}

fn wait_over(backend: &dyn Backend, queue: QueueId, ticket: u64) {
    while matches!(backend.wait(queue, ticket, None), Err(WaitError::Driver(_))) {
        // The driver was short of something: it is asked again.
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Memory of a device, without type or shape; see [`Device::allocate_raw`].
#[derive(Debug)]
pub struct RawMemory<'d> {
    device: &'d Device,
    allocation: Option<Allocation>,
}

impl RawMemory<'_> {
    /// The range of the block that it is; `None` only while it is being dropped.
    pub fn allocation(&self) -> Option<&Allocation> {
        self.allocation.as_ref()
    }
}

impl Drop for RawMemory<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(allocation) = self.allocation.take() {
            self.device.free(allocation, Stamps::default());
        }
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("api", &self.backend()).field("name", &self.name()).finish()
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.backend(), self.name())
    }
}

impl DeviceInner {
    /// Figures and labels at one moment, for who looks from outside.
    pub(crate) fn account(&self) -> (MemoryStats, Vec<LabelRow>) {
        let pool = self.pool.lock();
        (pool.stats(), pool.labels())
    }
}

impl Drop for DeviceInner {
    /// Closes the device: what is free goes back; what is still live is reported (rule J.2).
    fn drop(&mut self) {
        crate::watch::forget(self);
        let recorder = self.recorder.get_mut();
        // Every array is gone, so nobody can see what is still recorded.
        recorder.discard_all();
        for queue in recorder.queues() {
            wait_over(&*self.backend, queue, self.backend.submitted(queue));
            self.backend.close_queue(queue);
        }
        let pool = self.pool.get_mut();
        pool.close(&*self.backend);
        let leak = pool.leak();
        pool.stop_observing();
        if let Some(mut running) = self.tracing.get_mut().take()
            && let Err(error) = running.finish()
        {
            eprintln!("aquifer: the trace is not whole: {error}");
        }
        if let Some(leak) = leak {
            let (reserved, allocations) = (leak.reserved, leak.allocations);
            tracing::warn!(reserved, allocations, "still held at the close of the device");
            eprintln!("aquifer: {leak}");
        }
    }
}
