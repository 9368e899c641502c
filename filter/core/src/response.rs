//! Reads the body of a server's response while it passes: the times of its first and last byte, and its token counts.
//!
//! The body is one JSON document, or a stream of server-sent events with one JSON document each. The scanner never fails:
//! it skips a malformed document up to the next event. It keeps less than 2 KB of a stream, and less than 5 KB of a document.

mod event_template;
mod tail;

use core::convert::Infallible;

use self::event_template::EventTemplate;
use self::tail::Tail;
use crate::json::{ReadError, Reader};
use crate::time::Instant;
use crate::usage::{Usage, UsageCollector};

/// The format of a response body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON document.
    Json,
    /// Server-sent events.
    Sse,
    /// Another format: the scanner records only the times.
    Opaque,
}

impl Format {
    /// The format that the response headers announce.
    #[must_use]
    pub fn from_headers(content_type: Option<&[u8]>, content_encoding: Option<&[u8]>) -> Self {
        let plain = content_encoding.is_none_or(|coding| coding.eq_ignore_ascii_case(b"identity"));
        let essence = content_type.and_then(|value| value.split(|byte| *byte == b';').next());
        match essence.map(<[u8]>::trim_ascii) {
            Some(kind) if plain && kind.eq_ignore_ascii_case(b"text/event-stream") => Self::Sse,
            Some(kind) if plain && kind.eq_ignore_ascii_case(b"application/json") => Self::Json,
            Some(_) | None => Self::Opaque,
        }
    }
}

/// The position of the next byte in a line of an event stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// The line so far is this many bytes of `data:`.
    FieldName(usize),
    /// Directly after `data:`, where one space isn't part of the value.
    ValueStart,
    Value,
    /// The rest of a line that isn't a data field.
    Skip,
}

const FIELD: &[u8] = b"data:";

/// What one slice has of an event: everything from these places to the end of the slice.
#[derive(Clone, Copy, Debug, Default)]
struct EventInSlice<'a> {
    /// From the first line of data on; `None`: the slice lacks the beginning, or the data has several lines.
    event: Option<&'a [u8]>,
    /// From the event's document on.
    document: Option<&'a [u8]>,
}

/// Scans one response body, slice by slice.
#[derive(Debug)]
pub struct ResponseScanner {
    format: Format,
    reader: Reader,
    collector: UsageCollector,
    /// The current document is malformed; the scanner waits for the next one.
    is_malformed: bool,
    line: Line,
    /// The last byte was a carriage return, which a line feed may complete.
    after_cr: bool,
    in_event: bool,
    text_events: u64,
    template: EventTemplate,
    /// The end of a JSON document of which only the end is read.
    tail: Option<Tail>,
    first_byte: Option<Instant>,
    last_byte: Option<Instant>,
}

/// The facts of a response body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseStats {
    /// The last token counts in the body.
    pub usage: Usage,
    /// Events that carried text of the answer.
    pub text_events: u64,
    /// When the first byte arrived.
    pub first_byte: Option<Instant>,
    /// When the last byte arrived.
    pub last_byte: Option<Instant>,
}

impl ResponseScanner {
    /// A scanner for a body of this format.
    #[must_use]
    pub fn new(format: Format) -> Self {
        Self {
            format,
            reader: Reader::new(),
            collector: UsageCollector::default(),
            is_malformed: false,
            line: Line::FieldName(0),
            after_cr: false,
            in_event: false,
            text_events: 0,
            template: EventTemplate::default(),
            tail: None,
            first_byte: None,
            last_byte: None,
        }
    }

    /// This scanner for a body of `length` bytes: of a long JSON document it reads the end alone.
    #[must_use]
    pub fn of_length(mut self, length: usize) -> Self {
        if self.format == Format::Json {
            self.tail = Tail::of(length);
        }
        self
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

    /// Records the time at which bytes of the body arrive.
    pub fn record_arrival(&mut self, now: Instant) {
        self.first_byte.get_or_insert(now);
        self.last_byte = Some(now);
    }

    /// Whether a byte of the body has arrived.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.first_byte.is_some()
    }

    /// Whether the scanner needs further bytes of the body.
    #[must_use]
    pub fn wants_bytes(&self) -> bool {
        match self.format {
            Format::Json => !self.is_malformed,
            Format::Sse => true,
            Format::Opaque => false,
        }
    }

    /// Scans the next bytes of the body.
    pub fn feed(&mut self, bytes: &[u8]) {
        match self.format {
            Format::Json => match &mut self.tail {
                Some(tail) => tail.keep(bytes),
                None => self.read_json(bytes),
            },
            Format::Sse => self.read_events(bytes),
            Format::Opaque => {}
        }
    }

    /// The facts so far. Counts an event that the end of the stream has cut off before its blank line.
    #[must_use]
    pub fn stats(&mut self) -> ResponseStats {
        self.end_event();
        self.read_tail();
        ResponseStats {
            usage: self.collector.usage(),
            text_events: self.text_events,
            first_byte: self.first_byte,
            last_byte: self.last_byte,
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
            if self.line == Line::FieldName(0) && !self.in_event {
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
                (Line::FieldName(_) | Line::Skip, _) => Line::Skip,
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
        self.text_events = self.text_events.saturating_add(u64::from(matched.has_text));
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

    fn end_event(&mut self) {
        if self.format == Format::Sse && core::mem::take(&mut self.in_event) {
            let carried_text = self.collector.end_document();
            self.text_events = self.text_events.saturating_add(u64::from(carried_text));
            self.reader.restart();
            self.is_malformed = false;
        }
    }
}
