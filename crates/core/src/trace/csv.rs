//! Allocation traces: what a program asked for, so that a policy can be tried on it.

use std::fmt;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Memory was asked for.
    Allocate,
    /// The program let go, and no other stream used it any more.
    Free,
    /// The recorder's own allocator took memory from the driver.
    Obtain,
    /// It gave memory back.
    GiveBack,
}

impl Action {
    /// Whether the program did it; the rest is what the recorder's own allocator did then.
    pub fn is_request(self) -> bool {
        matches!(self, Self::Allocate | Self::Free)
    }
}

/// One event of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// Microseconds since the start.
    pub time_us: u64,
    /// What happened.
    pub action: Action,
    /// Which allocation: counts from 1; 0 is one made before the recording began.
    pub id: u64,
    /// Bytes: what was asked.
    pub size: u64,
    /// The stream that asked.
    pub stream: u32,
}

/// A line that is not an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsvError {
    /// Counted from 1, the header included.
    pub line: usize,
    /// What is wrong with it.
    pub reason: &'static str,
}

impl fmt::Display for CsvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.reason)
    }
}

impl std::error::Error for CsvError {}

/// Reads `time_us,action,id,size,stream` with a header line: `alloc`, `free_completed`,
/// `segment_alloc` and `segment_free`; other notes of the recorder are skipped.
///
/// # Errors
/// The first line that has a wrong number of fields or a field that is not a number.
///
/// ```
/// let text = "time_us,action,id,size,stream\n0,alloc,1,512,0\n9,free_completed,1,512,0\n";
/// let events = aquifer_core::parse_csv(text)?;
/// assert_eq!(events[1].time_us, 9);
/// # Ok::<(), aquifer_core::CsvError>(())
/// ```
pub fn parse_csv(text: &str) -> Result<Vec<TraceEvent>, CsvError> {
    let mut events = Vec::new();
    for (index, line) in text.lines().enumerate().skip(1) {
        let wrong = |reason| CsvError { line: index + 1, reason };
        let mut fields = line.split(',');
        let (Some(time), Some(action), Some(id), Some(size), Some(stream), None) = (
            fields.next(),
            fields.next(),
            fields.next(),
            fields.next(),
            fields.next(),
            fields.next(),
        ) else {
            return Err(wrong("not five fields"));
        };
        let action = match action {
            "alloc" => Action::Allocate,
            "free_completed" => Action::Free,
            "segment_alloc" => Action::Obtain,
            "segment_free" => Action::GiveBack,
            _ => continue,
        };
        let number = |text: &str| text.parse::<u64>().map_err(|_| wrong("not a number"));
        events.push(TraceEvent {
            time_us: number(time)?,
            action,
            id: number(id)?,
            size: number(size)?,
            stream: u32::try_from(number(stream)?).map_err(|_| wrong("stream above 2^32"))?,
        });
    }
    Ok(events)
}
