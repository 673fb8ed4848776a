//! Recording what happens to a device's memory: a file, or bytes in memory.
//!
//! The one idea: whoever makes an event encodes it into a buffer, some twenty bytes; a thread of the
//! trace's takes the buffer away and writes it. Events of the pool are made under the pool's lock, so
//! the buffer has them in the order in which they happened.

use std::cell::Cell;
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aquifer_backend::WaitError;
use aquifer_core::trace::format::{self, Decoded, Encoder};
use aquifer_core::trace::{Begin, Event, Observer};
use aquifer_core::{QueueId, Ticket};
use parking_lot::{Condvar, Mutex};
use quanta::Clock;

use crate::device::Device;
use crate::error::{Error, ErrorKind, Inner, Result};
use crate::stacks::{self, Stacks};

/// Bytes that are buffered before whoever makes the next event writes them itself.
const MOST_BUFFERED: usize = 4 << 20;
/// Bytes after which the writing thread is woken.
const WAKE_AT: usize = 64 << 10;
/// How long an event waits at most: what a program that is killed loses.
const FLUSH_EVERY: Duration = Duration::from_millis(100);

/// How a trace is recorded.
#[derive(Clone, Debug, Default)]
#[must_use = "options are for `Tracing::start_with`"]
pub struct TraceOptions {
    path: Option<PathBuf>,
    stacks: bool,
}

impl TraceOptions {
    /// In memory, without call sites.
    pub fn new() -> Self {
        Self::default()
    }

    /// To a file, which is made or overwritten; `%p` in the name becomes the process's number.
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// With the call stack of every allocation. It takes microseconds for each instead of
    /// nanoseconds; names need debug information (`debug = "line-tables-only"`).
    pub fn with_stacks(mut self) -> Self {
        self.stacks = true;
        self
    }

    /// What `AQUIFER_TRACE` and `AQUIFER_TRACE_STACKS` ask for.
    pub(crate) fn from_environment() -> Option<Self> {
        let path = std::env::var_os("AQUIFER_TRACE").filter(|path| !path.is_empty())?;
        let stacks = std::env::var_os("AQUIFER_TRACE_STACKS").is_some_and(|value| value == "1");
        // Every device of the process has a file of its own.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let path = numbered(&PathBuf::from(path), COUNT.fetch_add(1, Ordering::Relaxed) + 1);
        Some(Self { path: Some(path), stacks })
    }
}

/// The path of the `n`-th file: `trace.aqt`, `trace.2.aqt`, ...
fn numbered(path: &Path, n: u32) -> PathBuf {
    if n == 1 {
        return path.to_owned();
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let name = match path.extension() {
        Some(extension) => format!("{stem}.{n}.{}", extension.to_string_lossy()),
        None => format!("{stem}.{n}"),
    };
    path.with_file_name(name)
}

/// A path in which `%p` stands for the number of this process.
pub(crate) fn with_pid(path: &Path) -> PathBuf {
    match path.to_str() {
        Some(text) => PathBuf::from(text.replace("%p", &std::process::id().to_string())),
        None => path.to_owned(),
    }
}

/// A trace that has ended: the bytes of `docs/trace.md`, for `aquifer replay` and `aquifer view`.
#[derive(Clone, PartialEq, Eq)]
pub struct Recording(Vec<u8>);

impl Recording {
    /// The file's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Writes them to a file.
    ///
    /// # Errors
    /// `Io`.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        std::fs::write(path, &self.0).map_err(|source| io(path, source))
    }

    /// The events.
    ///
    /// # Errors
    /// `File`: bytes that are not a trace; a recording's own are.
    pub fn decode(&self) -> Result<Decoded> {
        format::decode(&self.0)
            .map_err(|error| Error::message(ErrorKind::File, format!("the recording: {error}")))
    }
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recording").field("bytes", &self.0.len()).finish()
    }
}

fn io(path: &Path, source: std::io::Error) -> Error {
    Error::new(Inner::Io { path: path.to_owned(), source })
}

/// The traces of a device; from [`Device::trace`].
///
/// ```
/// use aquifer::prelude::*;
/// use aquifer::core::replay;
/// let device = Device::cpu()?;
/// device.trace().start()?;
/// drop(Array::<f32>::zeros(&device, [1024])?);
/// let recording = device.trace().take()?.expect("it was started");
/// let trace = recording.decode()?.trace;
/// assert_eq!(&replay::verify(&trace).unwrap().stats, trace.last_figures().unwrap());
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Debug)]
pub struct Tracing<'d> {
    device: &'d Device,
}

/// A trace under way, or one that has ended and was not taken.
pub(crate) struct Running {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

impl Device {
    /// Recording of every change of state of this device's memory.
    pub fn trace(&self) -> Tracing<'_> {
        Tracing { device: self }
    }
}

impl Tracing<'_> {
    /// Records in memory from now on, some twenty bytes an event until it is taken. A trace that
    /// begins before the device's first use replays exactly; a later one says what was held.
    ///
    /// # Errors
    /// `Limit` while another trace is under way.
    pub fn start(&self) -> Result<()> {
        self.start_with(TraceOptions::new())
    }

    /// Records in another way.
    ///
    /// # Errors
    /// `Limit` while another trace is under way, `Io` where the file cannot be made.
    pub fn start_with(&self, options: TraceOptions) -> Result<()> {
        let mut running = self.device.0.tracing.lock();
        if running.as_ref().is_some_and(|running| running.writer.is_some()) {
            let text = "a trace of this device is under way: stop() or take() it first";
            return Err(Error::message(ErrorKind::Limit, text));
        }
        let shared = Arc::new(Shared::new(&options)?);
        let writer = Arc::clone(&shared);
        let writer = std::thread::Builder::new()
            .name("aquifer-trace".into())
            .spawn(move || writer.write_until_done())
            .map_err(|source| io(Path::new("aquifer-trace thread"), source))?;
        let begin = self.begin();
        self.device.pool().start_observing(Box::new(Recorder(Arc::clone(&shared))), begin);
        self.device.recorder().trace = Some(Arc::clone(&shared));
        *running = Some(Running { shared, writer: Some(writer) });
        self.device.0.traced.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether a trace is under way.
    pub fn is_on(&self) -> bool {
        self.device.0.traced.load(Ordering::Acquire)
    }

    /// Ends the trace under way, if there is one: a file is then whole.
    ///
    /// # Errors
    /// `Io`: what failed while the file was written.
    pub fn stop(&self) -> Result<()> {
        self.end(&mut self.device.0.tracing.lock())
    }

    fn end(&self, running: &mut Option<Running>) -> Result<()> {
        self.device.0.traced.store(false, Ordering::Release);
        self.device.recorder().trace = None;
        self.device.pool().stop_observing();
        match running.as_mut() {
            Some(running) => running.finish(),
            None => Ok(()),
        }
    }

    /// Ends the trace and hands it out, if it was recorded in memory; `None` where none was, or it
    /// was taken.
    ///
    /// # Errors
    /// As [`stop`](Self::stop).
    pub fn take(&self) -> Result<Option<Recording>> {
        let mut running = self.device.0.tracing.lock();
        self.end(&mut running)?;
        Ok(running.take().and_then(|running| running.shared.recorded()))
    }

    fn begin(&self) -> Begin {
        let mut program = std::env::args_os().map(|part| part.to_string_lossy().into_owned());
        let name = program.next().unwrap_or_default();
        let name = name.rsplit('/').next().unwrap_or_default().to_owned();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let caps = self.device.caps();
        let source = concat!("aquifer ", env!("CARGO_PKG_VERSION"));
        // The pool fills its settings in.
        let settings = self.device.pool().settings();
        Begin {
            program: program.fold(name, |all, part| all + " " + &part),
            pid: std::process::id(),
            unix_ns: since.as_nanos() as u64,
            api: self.device.backend().to_owned(),
            ..Begin::new(source, caps, settings)
        }
    }
}

impl Device {
    /// Waits for a ticket, and says so in a trace.
    pub(crate) fn traced_wait(
        &self,
        queue: QueueId,
        ticket: Ticket,
        limit: Option<Duration>,
    ) -> Result<(), WaitError> {
        if !self.0.traced.load(Ordering::Relaxed) {
            return self.0.backend.wait(queue, ticket, limit);
        }
        let trace = self.recorder().trace.clone();
        let start = trace.as_ref().map(|trace| trace.clock.raw());
        let result = self.0.backend.wait(queue, ticket, limit);
        if let (Some(trace), Some(start)) = (trace, start) {
            let ns = trace.clock.delta_as_nanos(start, trace.clock.raw());
            trace.record(&Event::Wait { queue, ticket, ns });
        }
        result
    }
}

impl Running {
    /// Ends the writing thread; everything is written then.
    pub(crate) fn finish(&mut self) -> Result<()> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        {
            // Under the lock, so that the thread does not fall asleep in between.
            let _buffer = self.shared.buffer.lock();
            self.shared.done.store(true, Ordering::Release);
            self.shared.wake.notify_all();
        }
        // The thread only writes; if it panicked there is nothing more to learn from it.
        let _ = writer.join();
        self.shared.drain();
        match self.shared.output.lock().failed.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

/// What the makers of events and the writing thread share.
pub(crate) struct Shared {
    /// The processor's own counter: a third of the cost of the system's clock.
    clock: Clock,
    /// Its ticks at time 0.
    start: u64,
    buffer: Mutex<Buffer>,
    wake: Condvar,
    done: AtomicBool,
    output: Mutex<Output>,
    stacks: Option<Mutex<Stacks>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("start", &self.start).finish_non_exhaustive()
    }
}

/// What has not been written yet.
struct Buffer {
    encoder: Encoder,
    /// The writing thread has been woken and has not come yet.
    woken: bool,
}

/// Where encoded events go.
struct Output {
    file: Option<(PathBuf, File)>,
    memory: Vec<u8>,
    /// The buffer that is not in use.
    spare: Vec<u8>,
    failed: Option<Error>,
}

thread_local! {
    /// This thread's number in traces; the highest where it has none yet.
    static THREAD: Cell<u32> = const { Cell::new(u32::MAX) };
}

/// The number of the calling thread.
#[inline]
fn thread_number() -> u32 {
    let known = THREAD.get();
    if known != u32::MAX {
        return known;
    }
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    THREAD.set(number);
    number
}

impl Shared {
    fn new(options: &TraceOptions) -> Result<Self> {
        let file = match &options.path {
            Some(path) => {
                let path = with_pid(path);
                let file = File::create(&path).map_err(|source| io(&path, source))?;
                Some((path, file))
            }
            None => None,
        };
        let clock = Clock::new();
        Ok(Self {
            start: clock.raw(),
            clock,
            buffer: Mutex::new(Buffer { encoder: Encoder::new(), woken: false }),
            wake: Condvar::new(),
            done: AtomicBool::new(false),
            output: Mutex::new(Output {
                file,
                memory: Vec::new(),
                spare: Vec::new(),
                failed: None,
            }),
            stacks: options.stacks.then(Mutex::default),
        })
    }

    /// Keeps an event of the calling thread.
    pub(crate) fn record(&self, event: &Event) {
        let site = match (&self.stacks, event) {
            (Some(stacks), Event::Allocate { .. }) => stacks.lock().current(),
            _ => 0,
        };
        let (wake, full) = self.push(site, event);
        if wake {
            self.wake.notify_one();
        }
        if full {
            self.drain();
        }
    }

    /// Encodes an event; whether the writing thread is to be woken, and whether the buffer is full.
    #[inline]
    fn push(&self, site: u32, event: &Event) -> (bool, bool) {
        let thread = thread_number();
        let time_ns = self.clock.delta_as_nanos(self.start, self.clock.raw());
        let mut buffer = self.buffer.lock();
        buffer.encoder.write(time_ns, (thread, site), event);
        let len = buffer.encoder.len();
        let wake = len >= WAKE_AT && !buffer.woken;
        buffer.woken |= wake;
        (wake, len >= MOST_BUFFERED)
    }

    /// Takes what is buffered and writes it. Whoever holds the output's lock takes the buffer, so
    /// nothing overtakes.
    fn drain(&self) {
        let mut output = self.output.lock();
        if let Some(stacks) = &self.stacks {
            let new = stacks.lock().take_unresolved();
            for (id, frames) in new {
                let event = Event::Site { id, stack: stacks::resolve(&frames).into() };
                // At the time of the event before: a name is not something that happened.
                self.buffer.lock().encoder.write(0, (thread_number(), 0), &event);
            }
        }
        let spare = std::mem::take(&mut output.spare);
        let mut bytes = {
            let mut buffer = self.buffer.lock();
            buffer.woken = false;
            buffer.encoder.swap(spare)
        };
        output.write(&bytes);
        bytes.clear();
        output.spare = bytes;
    }

    fn write_until_done(&self) {
        while !self.done.load(Ordering::Acquire) {
            {
                let mut buffer = self.buffer.lock();
                if buffer.encoder.len() < WAKE_AT && !self.done.load(Ordering::Acquire) {
                    self.wake.wait_for(&mut buffer, FLUSH_EVERY);
                }
            }
            self.drain();
        }
    }

    /// The bytes that were kept in memory; `None` where a file has them.
    fn recorded(&self) -> Option<Recording> {
        let mut output = self.output.lock();
        let in_memory = output.file.is_none();
        in_memory.then(|| Recording(std::mem::take(&mut output.memory)))
    }
}

impl Output {
    fn write(&mut self, bytes: &[u8]) {
        match &mut self.file {
            None => self.memory.extend_from_slice(bytes),
            Some((path, file)) => {
                if self.failed.is_none()
                    && let Err(source) = file.write_all(bytes)
                {
                    // The program goes on; whoever stops the trace is told.
                    self.failed = Some(io(path, source));
                }
            }
        }
    }
}

/// What the pool tells.
#[derive(Debug)]
struct Recorder(Arc<Shared>);

impl Observer for Recorder {
    fn record(&mut self, event: &Event) {
        self.0.record(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_devices_have_files_of_their_own() {
        let path = |n| numbered(Path::new("/tmp/a.trace.aqt"), n).display().to_string();
        assert_eq!([path(1), path(2)], ["/tmp/a.trace.aqt", "/tmp/a.trace.2.aqt"]);
        assert_eq!(numbered(Path::new("t"), 3), Path::new("t.3"));
        let pid = std::process::id();
        assert_eq!(with_pid(Path::new("t.%p.aqt")), PathBuf::from(format!("t.{pid}.aqt")));
    }
}
