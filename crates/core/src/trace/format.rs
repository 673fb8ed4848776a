//! How a trace is written: a stream of events, each whole in itself.
//!
//! `docs/trace.md` specifies it. Eight bytes begin the file, the last of them the version. Each
//! event is a tag, the length of its payload, and the payload; numbers are of variable length.
//! Unknown tags and bytes after the known fields are skipped, so that older readers read newer
//! files. A file that ends within an event is whole up to the event before.

use std::fmt;

use smallvec::SmallVec;

use crate::caps::{Caps, Storage, VirtualMemory};
use crate::hazard::{QueueId, Ticket};
use crate::ledger::LabelId;
use crate::memory::BlockId;
use crate::pool::{Limits, Reuse, Settings};
use crate::refusal::RefusalKind;
use crate::size::PAGE;
use crate::stats::MemoryStats;
use crate::trace::{
    Begin, DriverCall, Event, Extent, LimitKind, Place, Record, Trace, UNKNOWN_BLOCK,
};

/// What a file begins with, but for the version.
pub const MAGIC: [u8; 7] = *b"aqtrace";
/// The version that is written, and the highest that is read.
pub const VERSION: u8 = 1;

/// Queues that a trace may name: they are numbered from 0, and memory is kept for each.
const MOST_QUEUES: u64 = 1 << 16;
/// Events of a trace: some gigabytes in memory.
const MOST_EVENTS: usize = 1 << 25;
/// The largest span, granule or buffer that a device of a trace may have: 128 TiB.
const MOST_SIZE: u64 = 1 << 47;

/// Bytes that are not a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatError {
    /// Where, in bytes from the start.
    pub offset: usize,
    /// What is wrong there.
    pub reason: &'static str,
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}: {}", self.offset, self.reason)
    }
}

impl std::error::Error for FormatError {}

/// A trace that was read from bytes.
#[derive(Clone, Debug, Default)]
pub struct Decoded {
    /// The trace, up to its last whole event.
    pub trace: Trace,
    /// Bytes behind the last whole event: the program ended while it wrote.
    pub torn: usize,
    /// Events of kinds that this version does not know.
    pub unknown: usize,
}

mod tag {
    pub(super) const THREAD: u8 = 0;
    pub(super) const BEGIN: u8 = 1;
    pub(super) const FIGURES: u8 = 2;
    pub(super) const HELD: u8 = 3;
    pub(super) const LABEL: u8 = 4;
    pub(super) const SITE: u8 = 5;
    pub(super) const ALLOCATE: u8 = 6;
    pub(super) const REFUSE: u8 = 7;
    pub(super) const FREE: u8 = 8;
    pub(super) const COMPLETE: u8 = 9;
    pub(super) const OBTAIN: u8 = 10;
    pub(super) const GIVE_BACK: u8 = 11;
    pub(super) const RESERVE: u8 = 12;
    pub(super) const RELEASE: u8 = 13;
    pub(super) const COMMIT: u8 = 14;
    pub(super) const DECOMMIT: u8 = 15;
    pub(super) const WIRE: u8 = 16;
    pub(super) const UNWIRE: u8 = 17;
    pub(super) const FAIL: u8 = 18;
    pub(super) const MAP: u8 = 19;
    pub(super) const UNMAP: u8 = 20;
    pub(super) const WRAP: u8 = 21;
    pub(super) const UNWRAP: u8 = 22;
    pub(super) const LIMIT: u8 = 23;
    pub(super) const CLEAR_CACHE: u8 = 24;
    pub(super) const RELIEVE: u8 = 25;
    pub(super) const POLL: u8 = 26;
    pub(super) const RESET_PEAK: u8 = 27;
    pub(super) const CLOSE: u8 = 28;
    pub(super) const SUBMIT: u8 = 29;
    pub(super) const COPY: u8 = 30;
    pub(super) const WAIT: u8 = 31;
}

/// Writes events one after the other into a buffer that the caller takes away at will.
#[derive(Debug)]
pub struct Encoder {
    time_ns: u64,
    thread: u32,
    out: Vec<u8>,
    fields: Fields,
}

/// The payload of one event: nearly always small enough for the array, which a hot path fills
/// without a call.
#[derive(Debug)]
struct Fields {
    len: usize,
    small: [u8; SMALL_PAYLOAD],
    rest: Vec<u8>,
}

/// Bytes of a payload that need no memory of their own.
const SMALL_PAYLOAD: usize = 120;

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Encoder {
    /// An encoder at the start of a file.
    pub fn new() -> Self {
        let mut out = MAGIC.to_vec();
        out.push(VERSION);
        let fields = Fields { len: 0, small: [0; SMALL_PAYLOAD], rest: Vec::new() };
        Self { time_ns: 0, thread: 0, out, fields }
    }

    /// Writes an event.
    pub fn push(&mut self, record: &Record) {
        self.write(record.time_ns, (record.thread, record.site), &record.event);
    }

    /// Writes an event of a thread, with the call site if it has one.
    pub fn write(&mut self, time_ns: u64, (thread, site): (u32, u32), event: &Event) {
        if thread != self.thread {
            self.thread = thread;
            self.fields.put(thread.into());
            self.frame(tag::THREAD);
        }
        // Times of two threads may cross by nanoseconds; in the file they never run backwards.
        let time = time_ns.max(self.time_ns);
        self.fields.put(time - self.time_ns);
        self.time_ns = time;
        let tag = encode(event, site, &mut self.fields);
        self.frame(tag);
    }

    /// Writes the fields behind their tag and length, and clears them.
    #[inline]
    fn frame(&mut self, tag: u8) {
        let fields = &mut self.fields;
        let len = fields.len + fields.rest.len();
        if len < 0x80 {
            self.out.extend_from_slice(&[tag, len as u8]);
        } else {
            self.out.push(tag);
            let mut left = len;
            while left >= 0x80 {
                self.out.push(left as u8 | 0x80);
                left >>= 7;
            }
            self.out.push(left as u8);
        }
        self.out.extend_from_slice(&fields.small[..fields.len]);
        if !fields.rest.is_empty() {
            self.out.append(&mut fields.rest);
        }
        fields.len = 0;
    }

    /// Takes what was written since the last time; `spare` is what is written to next.
    pub fn swap(&mut self, spare: Vec<u8>) -> Vec<u8> {
        std::mem::replace(&mut self.out, spare)
    }

    /// Takes what was written since the last time.
    pub fn take(&mut self) -> Vec<u8> {
        self.swap(Vec::new())
    }

    /// Bytes written since the last time that they were taken.
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Whether nothing has been written since.
    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }
}

impl Fields {
    #[inline]
    fn push(&mut self, byte: u8) {
        match self.small.get_mut(self.len) {
            Some(place) => {
                *place = byte;
                self.len += 1;
            }
            None => self.rest.push(byte),
        }
    }

    #[inline]
    fn put(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.push(value as u8);
    }
}

/// A number that may be absent: 0 for none, else the number + 1.
#[inline]
fn put_optional(out: &mut Fields, value: Option<u64>) {
    out.put(value.map_or(0, |value| value.wrapping_add(1)));
}

fn put_text(out: &mut Fields, text: &str) {
    out.put(text.len() as u64);
    text.bytes().for_each(|byte| out.push(byte));
}

/// Blocks are written plus one, so that the unknown one is a short 0.
fn put_block(out: &mut Fields, block: BlockId) {
    out.put(block.0.wrapping_add(1));
}

fn put_place(out: &mut Fields, place: Place) {
    out.push(place.mode as u8);
    put_block(out, place.block);
    out.put(place.offset);
}

fn put_extent(out: &mut Fields, extent: &Extent) {
    put_block(out, extent.block);
    out.put(extent.offset);
    out.put(extent.len);
}

fn put_queue(out: &mut Fields, queue: Option<QueueId>) {
    put_optional(out, queue.map(|queue| queue.0.into()));
}

/// Writes the fields of an event; its tag.
fn encode(event: &Event, site: u32, out: &mut Fields) -> u8 {
    match event {
        Event::Allocate { place, asked, size, queue, label, inherited } => {
            put_place(out, *place);
            out.put(*asked);
            out.put(size.wrapping_sub(*asked));
            put_queue(out, *queue);
            out.put(label.0.into());
            put_optional(out, *inherited);
            out.put(site.into());
            tag::ALLOCATE
        }
        Event::Free { place, size, stamps } => {
            put_place(out, *place);
            out.put(*size);
            for &(queue, ticket) in stamps {
                out.put(queue.0.into());
                out.put(ticket);
            }
            tag::FREE
        }
        Event::Complete { queue, ticket } => {
            out.put(queue.0.into());
            out.put(*ticket);
            tag::COMPLETE
        }
        Event::Commit(extent) => {
            put_extent(out, extent);
            tag::COMMIT
        }
        Event::Decommit(extent) => {
            put_extent(out, extent);
            tag::DECOMMIT
        }
        Event::Wire(extent) => {
            put_extent(out, extent);
            tag::WIRE
        }
        Event::Unwire(extent) => {
            put_extent(out, extent);
            tag::UNWIRE
        }
        Event::Submit { queue, ticket, commands } => {
            out.put(queue.0.into());
            out.put(*ticket);
            out.put((*commands).into());
            tag::SUBMIT
        }
        Event::Copy { queue, size } => {
            out.put(queue.0.into());
            out.put(*size);
            tag::COPY
        }
        Event::Wait { queue, ticket, ns } => {
            out.put(queue.0.into());
            out.put(*ticket);
            out.put(*ns);
            tag::WAIT
        }
        event => encode_rare(event, out),
    }
}

fn encode_rare(event: &Event, out: &mut Fields) -> u8 {
    match event {
        Event::Begin(begin) => {
            put_begin(out, begin);
            tag::BEGIN
        }
        Event::Figures(stats) => {
            stats.figures().iter().for_each(|(_, value)| out.put(*value));
            tag::FIGURES
        }
        Event::Held { label, size, count } => {
            [label.0.into(), *size, *count].into_iter().for_each(|value| out.put(value));
            tag::HELD
        }
        Event::Label { id, name } => {
            out.put(id.0.into());
            put_text(out, name);
            tag::LABEL
        }
        Event::Site { id, stack } => {
            out.put((*id).into());
            put_text(out, stack);
            tag::SITE
        }
        Event::Refuse { mode, asked, queue, label, reason } => {
            out.push(*mode as u8);
            out.put(*asked);
            put_queue(out, *queue);
            out.put(label.0.into());
            let (kind, number) = match *reason {
                RefusalKind::Limit => (0, 0),
                RefusalKind::TooLarge(most) => (1, most),
                RefusalKind::Overflow => (2, 0),
                RefusalKind::Driver(_, code) => (3, code as u64),
            };
            out.push(kind);
            out.put(number);
            tag::REFUSE
        }
        Event::Obtain { block, mode, size } | Event::Reserve { block, mode, size } => {
            put_block(out, *block);
            out.push(*mode as u8);
            out.put(*size);
            if matches!(event, Event::Obtain { .. }) { tag::OBTAIN } else { tag::RESERVE }
        }
        Event::GiveBack { block } => {
            put_block(out, *block);
            tag::GIVE_BACK
        }
        Event::Release { block } => {
            put_block(out, *block);
            tag::RELEASE
        }
        Event::Fail { call, size, code } => {
            out.push(*call as u8);
            out.put(*size);
            out.put(*code as u64);
            tag::FAIL
        }
        event => encode_simple(event, out),
    }
}

fn encode_simple(event: &Event, out: &mut Fields) -> u8 {
    match event {
        Event::Map { id, size, block } => {
            put_optional(out, id.map(u64::from));
            out.put(*size);
            put_optional(out, block.map(|block| block.0));
            tag::MAP
        }
        Event::Unmap { id } => {
            out.put((*id).into());
            tag::UNMAP
        }
        Event::Wrap { size } => {
            out.put(*size);
            tag::WRAP
        }
        Event::Unwrap { size } => {
            out.put(*size);
            tag::UNWRAP
        }
        Event::Limit { kind, bytes } => {
            out.push(*kind as u8);
            out.put(*bytes);
            tag::LIMIT
        }
        Event::Relieve { percent } => {
            out.put(*percent);
            tag::RELIEVE
        }
        Event::ClearCache => tag::CLEAR_CACHE,
        Event::Poll => tag::POLL,
        Event::ResetPeak => tag::RESET_PEAK,
        // What has fields is written above.
        _ => tag::CLOSE,
    }
}

fn put_begin(out: &mut Fields, begin: &Begin) {
    let (caps, settings) = (&begin.caps, &begin.settings);
    for text in [&begin.source, &begin.program, &begin.api, &caps.name] {
        put_text(out, text);
    }
    let memory = caps.virtual_memory.unwrap_or(VirtualMemory { span: 0, granule: 0 });
    let flags = u64::from(caps.can_wire)
        | u64::from(caps.wires_blocks) << 1
        | u64::from(settings.reuse == Reuse::Blocks) << 2;
    for number in [
        begin.pid.into(),
        begin.unix_ns,
        memory.span,
        memory.granule,
        caps.largest_buffer,
        caps.largest_block,
        flags,
        settings.limits.memory,
        settings.limits.cache,
        settings.limits.wired,
        settings.working_set,
        settings.pressure,
    ] {
        out.put(number);
    }
}

/// Reads numbers and texts off the front of bytes.
#[derive(Clone, Copy)]
struct Reader<'a>(&'a [u8]);

/// What is wrong with a payload.
type Field<T> = Result<T, &'static str>;

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Field<u8> {
        let (&first, rest) = self.0.split_first().ok_or("a field is missing")?;
        self.0 = rest;
        Ok(first)
    }

    fn number(&mut self) -> Field<u64> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err("a number above 64 bits");
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("a number above 64 bits")
    }

    fn small(&mut self) -> Field<u32> {
        u32::try_from(self.number()?).map_err(|_| "a number above 32 bits")
    }

    fn optional(&mut self) -> Field<Option<u64>> {
        Ok(self.number()?.checked_sub(1))
    }

    fn take(&mut self, len: u64) -> Field<&'a [u8]> {
        let len = usize::try_from(len).map_err(|_| "a length above the file's")?;
        let (text, rest) = self.0.split_at_checked(len).ok_or("a length above the file's")?;
        self.0 = rest;
        Ok(text)
    }

    fn text(&mut self) -> Field<String> {
        let len = self.number()?;
        Ok(String::from_utf8_lossy(self.take(len)?).into_owned())
    }

    fn mode(&mut self) -> Field<Storage> {
        let index = usize::from(self.byte()?);
        Storage::ALL.get(index).copied().ok_or("a storage mode that is none")
    }

    fn block(&mut self) -> Field<BlockId> {
        Ok(BlockId(self.number()?.wrapping_sub(1)))
    }

    fn place(&mut self) -> Field<Place> {
        Ok(Place { mode: self.mode()?, block: self.block()?, offset: self.number()? })
    }

    fn extent(&mut self) -> Field<Extent> {
        Ok(Extent { block: self.block()?, offset: self.number()?, len: self.number()? })
    }

    fn queue(&mut self) -> Field<QueueId> {
        Self::as_queue(self.number()?)
    }

    fn as_queue(number: u64) -> Field<QueueId> {
        if number >= MOST_QUEUES {
            return Err("a queue above 65,535");
        }
        Ok(QueueId(number as u32))
    }

    fn optional_queue(&mut self) -> Field<Option<QueueId>> {
        self.optional()?.map(Self::as_queue).transpose()
    }
}

/// Reads a trace up to its last whole event.
///
/// # Errors
/// Bytes that are not a trace, or one of a version above [`VERSION`]; an event whose fields are
/// not what they should be.
///
/// ```
/// use aquifer_core::trace::{Event, Record, format};
/// let mut encoder = format::Encoder::new();
/// encoder.push(&Record { time_ns: 5, thread: 0, site: 0, event: Event::Wrap { size: 64 } });
/// let bytes = encoder.take();
/// assert_eq!(format::decode(&bytes)?.trace.records[0].time_ns, 5);
/// assert_eq!(format::decode(&bytes[..bytes.len() - 1])?.torn, 3);
/// # Ok::<(), format::FormatError>(())
/// ```
pub fn decode(bytes: &[u8]) -> Result<Decoded, FormatError> {
    let wrong = |offset, reason| FormatError { offset, reason };
    match bytes.strip_prefix(&MAGIC).map(<[u8]>::first) {
        Some(Some(&VERSION)) => {}
        Some(Some(0)) => return Err(wrong(MAGIC.len(), "a version that never was")),
        Some(Some(_)) => return Err(wrong(MAGIC.len(), "written by a newer version of aquifer")),
        _ => return Err(wrong(0, "not a trace of aquifer's")),
    }
    let mut reader = Reader(&bytes[MAGIC.len() + 1..]);
    let mut decoded = Decoded::default();
    let (mut time_ns, mut thread) = (0u64, 0);
    while !reader.0.is_empty() {
        let at = bytes.len() - reader.0.len();
        decoded.torn = reader.0.len();
        let mut next = reader;
        let (Ok(tag), Ok(len)) = (next.byte(), next.number()) else { break };
        let Ok(payload) = next.take(len) else { break };
        reader = next;
        decoded.torn = 0;
        let mut payload = Reader(payload);
        let step = |time_ns: u64, payload: &mut Reader<'_>| {
            let step = payload.number()?;
            time_ns.checked_add(step).ok_or("a time above 64 bits")
        };
        if tag == tag::THREAD {
            thread = payload.small().map_err(|reason| wrong(at, reason))?;
            continue;
        }
        time_ns = step(time_ns, &mut payload).map_err(|reason| wrong(at, reason))?;
        match read_event(tag, &mut payload).map_err(|reason| wrong(at, reason))? {
            Some(_) if decoded.trace.records.len() >= MOST_EVENTS => {
                return Err(wrong(at, "more than 33,554,432 events: record a shorter part"));
            }
            Some((event, site)) => {
                decoded.trace.records.push(Record { time_ns, thread, site, event });
            }
            None => decoded.unknown += 1,
        }
    }
    Ok(decoded)
}

/// The event of a tag with the call site; `None` for a tag that is not known.
fn read_event(tag: u8, from: &mut Reader<'_>) -> Field<Option<(Event, u32)>> {
    let event = match tag {
        tag::ALLOCATE => {
            let (place, asked, padding) = (from.place()?, from.number()?, from.number()?);
            let size = asked.checked_add(padding).ok_or("a size above 64 bits")?;
            let (queue, label) = (from.optional_queue()?, LabelId(from.small()?));
            let inherited = from.optional()?;
            let event = Event::Allocate { place, asked, size, queue, label, inherited };
            return Ok(Some((event, from.small()?)));
        }
        tag::FREE => {
            let (place, size) = (from.place()?, from.number()?);
            let mut stamps = SmallVec::<[(QueueId, Ticket); 1]>::new();
            while !from.0.is_empty() {
                stamps.push((from.queue()?, from.number()?));
            }
            Event::Free { place, size, stamps }
        }
        tag::COMPLETE => Event::Complete { queue: from.queue()?, ticket: from.number()? },
        tag::COMMIT => Event::Commit(from.extent()?),
        tag::DECOMMIT => Event::Decommit(from.extent()?),
        tag::WIRE => Event::Wire(from.extent()?),
        tag::UNWIRE => Event::Unwire(from.extent()?),
        tag::SUBMIT => {
            Event::Submit { queue: from.queue()?, ticket: from.number()?, commands: from.small()? }
        }
        tag::COPY => Event::Copy { queue: from.queue()?, size: from.number()? },
        tag::WAIT => {
            Event::Wait { queue: from.queue()?, ticket: from.number()?, ns: from.number()? }
        }
        _ => return Ok(read_rare(tag, from)?.map(|event| (event, 0))),
    };
    Ok(Some((event, 0)))
}

fn read_rare(tag: u8, from: &mut Reader<'_>) -> Field<Option<Event>> {
    Ok(Some(match tag {
        tag::BEGIN => Event::Begin(Box::new(read_begin(from)?)),
        tag::FIGURES => {
            let mut stats = MemoryStats::default();
            for slot in stats.figures_mut() {
                *slot = from.number()?;
            }
            Event::Figures(Box::new(stats))
        }
        tag::HELD => Event::Held {
            label: LabelId(from.small()?),
            size: from.number()?,
            count: from.number()?,
        },
        tag::LABEL => Event::Label { id: LabelId(from.small()?), name: from.text()?.into() },
        tag::SITE => Event::Site { id: from.small()?, stack: from.text()?.into() },
        tag::REFUSE => read_refusal(from)?,
        tag::OBTAIN => {
            Event::Obtain { block: from.block()?, mode: from.mode()?, size: from.number()? }
        }
        tag::RESERVE => {
            Event::Reserve { block: from.block()?, mode: from.mode()?, size: from.number()? }
        }
        tag::GIVE_BACK => Event::GiveBack { block: from.block()? },
        tag::RELEASE => Event::Release { block: from.block()? },
        tag::FAIL => {
            let call = match from.byte()? {
                0 => DriverCall::Obtain,
                1 => DriverCall::Reserve,
                2 => DriverCall::Commit,
                3 => DriverCall::Wire,
                _ => return Err("a driver's call of no known kind"),
            };
            Event::Fail { call, size: from.number()?, code: from.number()? as i64 }
        }
        tag::MAP => Event::Map {
            id: from
                .optional()?
                .map(|id| u32::try_from(id).map_err(|_| "a mapping above 2^32"))
                .transpose()?,
            size: from.number()?,
            block: from.optional()?.map(BlockId),
        },
        tag::UNMAP => Event::Unmap { id: from.small()? },
        tag::WRAP => Event::Wrap { size: from.number()? },
        tag::UNWRAP => Event::Unwrap { size: from.number()? },
        tag::LIMIT => {
            let kind = match from.byte()? {
                0 => LimitKind::Memory,
                1 => LimitKind::Cache,
                2 => LimitKind::Wired,
                _ => return Err("a limit of no known kind"),
            };
            Event::Limit { kind, bytes: from.number()? }
        }
        tag::CLEAR_CACHE => Event::ClearCache,
        tag::RELIEVE => Event::Relieve { percent: from.number()? },
        tag::POLL => Event::Poll,
        tag::RESET_PEAK => Event::ResetPeak,
        tag::CLOSE => Event::Close,
        _ => return Ok(None),
    }))
}

fn read_refusal(from: &mut Reader<'_>) -> Field<Event> {
    let (mode, asked) = (from.mode()?, from.number()?);
    let (queue, label) = (from.optional_queue()?, LabelId(from.small()?));
    let (kind, number) = (from.byte()?, from.number()?);
    let reason = match kind {
        0 => RefusalKind::Limit,
        1 => RefusalKind::TooLarge(number),
        2 => RefusalKind::Overflow,
        3 => RefusalKind::Driver("the driver", number as i64),
        _ => return Err("a refusal of no known kind"),
    };
    Ok(Event::Refuse { mode, asked, queue, label, reason })
}

fn read_begin(from: &mut Reader<'_>) -> Field<Begin> {
    let (source, program, api, name) = (from.text()?, from.text()?, from.text()?, from.text()?);
    let (pid, unix_ns) = (from.small()?, from.number()?);
    let (span, granule) = (from.number()?, from.number()?);
    let virtual_memory = (span > 0).then_some(VirtualMemory { span, granule });
    if virtual_memory.is_some() {
        let fits = granule.is_power_of_two() && granule >= PAGE && span.is_multiple_of(granule);
        if !fits || span > MOST_SIZE {
            return Err("virtual memory that no device has");
        }
    }
    let (largest_buffer, largest_block, flags) = (from.number()?, from.number()?, from.number()?);
    let limits = Limits { memory: from.number()?, cache: from.number()?, wired: from.number()? };
    let (working_set, pressure) = (from.number()?, from.number()?.min(100));
    let reuse = if flags & 4 == 0 { Reuse::Ranges } else { Reuse::Blocks };
    let caps = Caps {
        name,
        virtual_memory,
        largest_buffer: largest_buffer.min(MOST_SIZE),
        largest_block: largest_block.min(MOST_SIZE),
        can_wire: flags & 1 != 0,
        wires_blocks: flags & 2 != 0,
        ..Caps::model()
    };
    let settings = Settings { reuse, limits, working_set, pressure };
    Ok(Begin { source, program, pid, unix_ns, api, caps, settings })
}

impl Place {
    /// Whether the trace says where it lies.
    pub fn is_known(self) -> bool {
        self.block != UNKNOWN_BLOCK
    }
}
