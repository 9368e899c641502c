//! Reads the body of a server's response while it passes: whether it is an answer, the times of its first token and last byte, its
//! token counts and its text.
//!
//! The body is one JSON document, or a stream of server-sent events with one JSON document each. The scanner never fails:
//! it skips a malformed document up to the next event. It keeps less than 2 KB of a stream, and less than 5 KB of a document.

mod event_template;
mod format;
mod tail;

use core::convert::Infallible;

use self::event_template::EventTemplate;
pub use self::format::Format;
use self::tail::Tail;
use crate::json::{ReadError, Reader};
use crate::limits::RESPONSE_TAIL_BYTES;
use crate::reported_error::ReportedError;
use crate::time::Instant;
use crate::usage::{Usage, UsageCollector};

/// The position of the next byte in a line of an event stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// The line so far is this many bytes of `data:`.
    FieldName(usize),
    /// The line so far is this many bytes of `event:`.
    EventFieldName(usize),
    /// Directly after `event:`, where one space isn't part of the name.
    EventNameStart,
    /// The name so far is this many bytes of `error`.
    EventName(usize),
    /// Directly after `data:`, where one space isn't part of the value.
    ValueStart,
    Value,
    /// The rest of a line that isn't a data field.
    Skip,
}

const FIELD: &[u8] = b"data:";
const EVENT_FIELD: &[u8] = b"event:";
const ERROR_EVENT: &[u8] = b"error";

/// What one slice has of an event: everything from these places to the end of the slice.
#[derive(Clone, Copy, Debug, Default)]
struct EventInSlice<'a> {
    /// From the first line of data on; `None`: the slice lacks the beginning, or the data has several lines.
    event: Option<&'a [u8]>,
    /// From the event's document on.
    document: Option<&'a [u8]>,
}

/// What the beginning of a body shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Neither of the others so far: comments, pings, a role without text.
    Open,
    /// The answer has begun, or the scanner can't tell.
    Answer,
    /// The server reports an error in place of an answer.
    Error,
}

/// Scans one response body, slice by slice.
#[derive(Debug)]
pub struct ResponseScanner {
    format: Format,
    /// A byte of the body that isn't white space has been read.
    has_begun: bool,
    reader: Reader,
    collector: UsageCollector,
    /// The current document is malformed; the scanner waits for the next one.
    is_malformed: bool,
    line: Line,
    /// The last byte was a carriage return, which a line feed may complete.
    after_cr: bool,
    in_event: bool,
    /// The event's name is `error`.
    is_error_event: bool,
    text_events: u64,
    template: EventTemplate,
    /// The length that the headers announce; `None`: they announce none, or the body isn't a long document.
    length: Option<usize>,
    /// The end of a JSON document of which only the end is read.
    tail: Option<Tail>,
    /// A server error has come before the first token.
    is_error: bool,
    has_token: bool,
    first_token: Option<Instant>,
    last_byte: Option<Instant>,
    body_bytes: u64,
}

/// The facts of a response body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseStats {
    /// The largest token counts in the body.
    pub usage: Usage,
    /// Events that carried text of the answer.
    pub text_events: u64,
    /// Decoded bytes of the answer's text; `None`: the text wasn't read.
    pub text_bytes: Option<u64>,
    /// Bytes of the body.
    pub body_bytes: u64,
    /// The body is an answer: it has a token, or the server has counted output, or has said why it ended.
    pub is_answer: bool,
    /// The server has said why the answer ended.
    pub is_finished: bool,
    /// The server has reported an error.
    pub is_failed: bool,
    /// A token of the answer has arrived.
    pub has_token: bool,
    /// When the first token arrived: text, an argument of a tool, or data.
    pub first_token: Option<Instant>,
    /// When the last byte arrived.
    pub last_byte: Option<Instant>,
}

impl ResponseScanner {
    /// A scanner for a body of this format.
    #[must_use]
    pub fn new(format: Format) -> Self {
        Self {
            format,
            has_begun: false,
            reader: Reader::new(),
            collector: UsageCollector::default(),
            is_malformed: false,
            line: Line::FieldName(0),
            after_cr: false,
            in_event: false,
            is_error_event: false,
            text_events: 0,
            template: EventTemplate::default(),
            length: None,
            tail: None,
            is_error: false,
            has_token: false,
            first_token: None,
            last_byte: None,
            body_bytes: 0,
        }
    }

    /// This scanner for a body of `length` bytes. With `reads_end`, it reads the end alone of a long JSON document.
    #[must_use]
    pub fn of_length(mut self, length: usize, reads_end: bool) -> Self {
        let tail = Tail::of(length).filter(|_| self.format == Format::Json);
        self.length = tail.as_ref().map(|_| length);
        self.tail = tail.filter(|_| reads_end);
        self
    }

    /// The first bytes of a document of which only the end is to be read. If they begin an error, the document is read whole.
    pub fn examine_head(&mut self, bytes: &[u8]) {
        if self.tail.is_none() || self.has_token {
            return;
        }
        let (mut reader, mut collector) = (Reader::new(), UsageCollector::default());
        let read: Result<(), ReadError<Infallible>> = reader.feed(bytes, &mut collector);
        if read.is_ok() && collector.may_be_error() {
            self.tail = None;
        } else {
            self.note_token();
        }
    }

    /// Whether the scanner wants to see the first bytes of the body before it skips them.
    #[must_use]
    pub fn wants_head(&self) -> bool {
        self.tail.is_some() && !self.has_token
    }

    /// How many of the next `size` bytes of the body the scanner doesn't need. The bytes that are fed next come after them.
    pub fn skip(&mut self, size: usize) -> usize {
        self.tail.as_mut().map_or(0, |tail| tail.skip(size))
    }

    /// Reads the end of a document of which nothing else was read. Returns `false` if the end lacks the token counts.
    pub fn read_tail(&mut self) -> bool {
        let Some(tail) = self.tail.take() else {
            return true;
        };
        let counts = tail.counts();
        let has_counts = counts.is_some();
        self.collector = counts.unwrap_or_default();
        has_counts
    }

    /// The document is long, was read whole, and has its token counts at its end.
    #[must_use]
    pub fn has_counts_at_end(&self) -> bool {
        let end = self.length.map(|length| length.saturating_sub(RESPONSE_TAIL_BYTES));
        let begin = self.collector.usage_begin().and_then(|begin| usize::try_from(begin).ok());
        end.zip(begin).is_some_and(|(end, begin)| begin >= end)
    }

    /// Records the time at which `size` bytes of the body arrive.
    pub fn record_arrival(&mut self, now: Instant, size: usize) {
        self.last_byte = Some(now);
        self.body_bytes = self.body_bytes.saturating_add(u64::try_from(size).unwrap_or(u64::MAX));
    }

    /// Whether a token of the answer has arrived.
    #[must_use]
    pub const fn has_token(&self) -> bool {
        self.has_token
    }

    /// What the body has shown so far.
    #[must_use]
    pub const fn verdict(&self) -> Verdict {
        match self.format {
            _ if self.has_token => Verdict::Answer,
            _ if self.is_error => Verdict::Error,
            Format::Opaque | Format::Text => Verdict::Answer,
            Format::Json if self.is_malformed => Verdict::Answer,
            _ if self.collector.is_finished() => Verdict::Answer,
            Format::Json | Format::Sse | Format::Unknown { .. } => Verdict::Open,
        }
    }

    /// The error that the server has reported.
    #[must_use]
    pub const fn error(&self) -> &ReportedError {
        self.collector.error()
    }

    /// Whether the scanner needs further bytes of the body.
    #[must_use]
    pub fn wants_bytes(&self) -> bool {
        match self.format {
            Format::Json => !self.is_malformed,
            Format::Sse | Format::Unknown { .. } => true,
            Format::Opaque => !self.has_token,
            Format::Text => false,
        }
    }

    /// Scans the next bytes of the body.
    pub fn feed(&mut self, bytes: &[u8]) {
        if !self.has_begun {
            self.format = self.format.at_begin(bytes);
            self.has_begun = bytes.iter().any(|byte| !format::is_space(*byte));
        }
        match self.format {
            Format::Json => match &mut self.tail {
                Some(tail) => tail.keep(bytes),
                None => self.read_document(bytes),
            },
            Format::Sse => self.read_events(bytes),
            Format::Opaque => self.note_token(),
            Format::Text | Format::Unknown { .. } => {}
        }
    }

    /// The end of the body. Decides about an error that the end has cut.
    pub fn end(&mut self) {
        self.end_event();
        self.is_error |= self.format == Format::Json && self.collector.document().is_error && !self.has_token;
    }

    /// When the last byte of the body came; `None`: none has.
    pub(crate) const fn last_byte(&self) -> Option<Instant> {
        self.last_byte
    }

    /// The facts so far. Counts an event that the end of the stream has cut off before its blank line.
    #[must_use]
    pub fn stats(&mut self) -> ResponseStats {
        self.end();
        let is_text_read = !matches!(self.format, Format::Opaque) && self.tail.is_none();
        let has_read_counts = self.read_tail();
        let usage = self.collector.usage();
        let is_counted = usage.output.is_some_and(|output| output > 0);
        ResponseStats {
            usage,
            text_events: self.text_events,
            text_bytes: is_text_read.then(|| self.collector.text_bytes()),
            body_bytes: self.body_bytes,
            is_answer: self.has_token || is_counted || self.collector.is_finished() || !has_read_counts,
            is_finished: self.collector.is_finished(),
            is_failed: self.collector.is_failed(),
            has_token: self.has_token,
            first_token: self.first_token,
            last_byte: self.last_byte,
        }
    }

    fn note_token(&mut self) {
        if !self.has_token {
            self.has_token = true;
            self.first_token = self.last_byte;
        }
    }

    fn read_document(&mut self, bytes: &[u8]) {
        self.read_json(bytes);
        let document = self.collector.document();
        if document.has_text || document.has_content {
            self.note_token();
        } else if document.is_error && self.collector.is_closed() {
            self.is_error = true;
        }
    }

    fn read_json(&mut self, bytes: &[u8]) {
        if !self.is_malformed {
            let read: Result<(), ReadError<Infallible>> = self.reader.feed(bytes, &mut self.collector);
            self.is_malformed = read.is_err();
        }
    }

    fn read_events(&mut self, mut bytes: &[u8]) {
        let mut present = EventInSlice::default();
        while let Some((byte, rest)) = bytes.split_first() {
            if core::mem::take(&mut self.after_cr) && *byte == b'\n' {
                bytes = rest;
                continue;
            }
            if self.line == Line::FieldName(0) && !self.in_event && !self.is_error_event {
                if let Some(after) = self.skip_alike(bytes) {
                    bytes = after;
                    continue;
                }
                present = EventInSlice { event: Some(bytes), document: None };
            }
            if self.reader.offset() == 0 {
                present.document = Some(bytes);
            }
            if let Line::Value | Line::Skip = self.line {
                let end = memchr::memchr2(b'\n', b'\r', bytes).unwrap_or(bytes.len());
                let (value, after) = bytes.split_at_checked(end).unwrap_or((bytes, &[]));
                if !value.is_empty() {
                    if self.line == Line::Value {
                        self.read_json(value);
                    }
                    bytes = after;
                    continue;
                }
            }
            bytes = rest;
            self.line = match (self.line, *byte) {
                (line, b'\n' | b'\r') => {
                    self.after_cr = *byte == b'\r';
                    self.is_error_event |= line == Line::EventName(ERROR_EVENT.len());
                    if line == Line::FieldName(0) {
                        self.learn(present, rest);
                        self.end_event();
                    }
                    Line::FieldName(0)
                }
                (Line::FieldName(seen), byte) if FIELD.get(seen) == Some(&byte) => {
                    let seen = seen.saturating_add(1);
                    if seen == FIELD.len() {
                        if self.in_event {
                            present.event = None;
                        }
                        self.begin_value()
                    } else {
                        Line::FieldName(seen)
                    }
                }
                (Line::FieldName(0), b'e') => Line::EventFieldName(1),
                (Line::EventFieldName(seen), byte) if EVENT_FIELD.get(seen) == Some(&byte) => {
                    let seen = seen.saturating_add(1);
                    if seen == EVENT_FIELD.len() { Line::EventNameStart } else { Line::EventFieldName(seen) }
                }
                (Line::EventNameStart, b' ') => Line::EventName(0),
                (Line::EventNameStart, byte) => Self::event_name(0, byte),
                (Line::EventName(seen), byte) => Self::event_name(seen, byte),
                (Line::FieldName(_) | Line::EventFieldName(_) | Line::Skip, _) => Line::Skip,
                (Line::ValueStart, b' ') => Line::Value,
                (Line::ValueStart | Line::Value, byte) => {
                    self.read_json(&[byte]);
                    Line::Value
                }
            };
        }
    }

    /// Counts a whole event that is like the one before; returns the bytes that follow it.
    fn skip_alike<'a>(&mut self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let matched = self.template.split_event(bytes)?;
        if matched.text_bytes > 0 {
            self.text_events = self.text_events.saturating_add(1);
            self.collector.add_text(matched.text_bytes);
            self.note_token();
        }
        self.after_cr = matched.ends_with_cr;
        Some(matched.rest)
    }

    fn begin_value(&mut self) -> Line {
        if self.in_event {
            // Line feeds join the data fields of one event.
            self.read_json(b"\n");
        }
        self.in_event = true;
        Line::ValueStart
    }

    /// Makes an event that lies whole in a slice the template for the next one. `rest`: the bytes after it.
    fn learn(&mut self, present: EventInSlice<'_>, rest: &[u8]) {
        let (Some(event), Some(document)) = (present.event, present.document) else {
            return;
        };
        let Some(text) = self.collector.only_text().filter(|_| !self.is_malformed) else {
            return;
        };
        let (Ok(begin), Ok(end)) = (usize::try_from(text.start), usize::try_from(text.end)) else {
            return;
        };
        // The quotes belong to the parts around the text.
        let document = event.len().saturating_sub(document.len());
        let begin = document.saturating_add(begin).saturating_add(1);
        let end = document.saturating_add(end).saturating_sub(1);
        let last = event.len().saturating_sub(rest.len());
        if let (Some(before), Some(after)) = (event.get(..begin), event.get(end..last)) {
            self.template.learn(before, after);
        }
    }

    /// The state after the next byte of an event's name, of which `seen` bytes are those of `error`.
    fn event_name(seen: usize, byte: u8) -> Line {
        if ERROR_EVENT.get(seen) == Some(&byte) {
            Line::EventName(seen.saturating_add(1))
        } else {
            Line::Skip
        }
    }

    fn end_event(&mut self) {
        let is_error_event = core::mem::take(&mut self.is_error_event);
        if self.format != Format::Sse || !(core::mem::take(&mut self.in_event) || is_error_event) {
            return;
        }
        if is_error_event {
            self.collector.mark_error();
        }
        let document = self.collector.end_document();
        self.text_events = self.text_events.saturating_add(u64::from(document.has_text));
        if document.has_text || document.has_content {
            self.note_token();
        } else if document.is_error && !self.has_token {
            self.is_error = true;
        }
        self.reader.restart();
        self.is_malformed = false;
    }
}
