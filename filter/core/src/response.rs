//! The body of a server's answer, read while it streams by: when it began and ended, and the tokens it speaks of.
//!
//! Reads one JSON document, or a stream of server-sent events that carry one each. Tolerant throughout: what can't be
//! read is passed over until the next event; nothing is ever refused here. At most 512 bytes are kept.

use core::convert::Infallible;

use crate::{
    json::{ReadError, Reader},
    time::Instant,
    usage::{Usage, UsageProbe},
};

/// How an answer's body is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One document.
    Json,
    /// Events.
    Sse,
    /// Something else: only its times are taken.
    Opaque,
}

impl Format {
    /// By the answer's headers.
    #[must_use]
    pub fn of(content_type: Option<&[u8]>, content_encoding: Option<&[u8]>) -> Self {
        let plain = content_encoding.is_none_or(|coding| coding.eq_ignore_ascii_case(b"identity"));
        let essence = content_type.and_then(|value| value.split(|byte| *byte == b';').next());
        match essence.map(<[u8]>::trim_ascii) {
            Some(kind) if plain && kind.eq_ignore_ascii_case(b"text/event-stream") => Self::Sse,
            Some(kind) if plain && kind.eq_ignore_ascii_case(b"application/json") => Self::Json,
            Some(_) | None => Self::Opaque,
        }
    }
}

/// Where in a line of an event stream the next byte stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// So many bytes of `data:` have been seen, nothing else.
    Start(usize),
    /// After `data:`, where one space is not part of the value.
    Value,
    Data,
    Skip,
}

const FIELD: &[u8] = b"data:";

/// Reads one answer, slice by slice.
#[derive(Debug)]
pub struct ResponseScanner {
    format: Format,
    reader: Reader,
    probe: UsageProbe,
    /// The document at hand can't be read: wait for the next.
    lost: bool,
    line: Line,
    after_cr: bool,
    in_event: bool,
    chunks: u64,
    first: Option<Instant>,
    last: Option<Instant>,
}

/// What an answer's body told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseStats {
    /// The last usage of the body.
    pub usage: Usage,
    /// Events that carried text.
    pub chunks: u64,
    /// When the first byte came.
    pub first: Option<Instant>,
    /// When the last byte came.
    pub last: Option<Instant>,
}

impl ResponseScanner {
    /// A scanner for a body of this format.
    #[must_use]
    pub fn new(format: Format) -> Self {
        Self {
            format,
            reader: Reader::new(),
            probe: UsageProbe::default(),
            lost: false,
            line: Line::Start(0),
            after_cr: false,
            in_event: false,
            chunks: 0,
            first: None,
            last: None,
        }
    }

    /// Bytes of the body are there, whether or not `feed` is called with them.
    pub fn arrived(&mut self, now: Instant) {
        self.first.get_or_insert(now);
        self.last = Some(now);
    }

    /// The scanner has a use for the body's bytes.
    #[must_use]
    pub fn reads(&self) -> bool {
        match self.format {
            Format::Json => !self.lost,
            Format::Sse => true,
            Format::Opaque => false,
        }
    }

    /// Reads the next bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        match self.format {
            Format::Json => self.read(bytes),
            Format::Sse => self.read_lines(bytes),
            Format::Opaque => {}
        }
    }

    /// What was told until now. An event that the end of the stream cut off before its blank line counts too.
    #[must_use]
    pub fn told(&mut self) -> ResponseStats {
        self.end_event();
        ResponseStats {
            usage: self.probe.usage(),
            chunks: self.chunks,
            first: self.first,
            last: self.last,
        }
    }

    fn read(&mut self, bytes: &[u8]) {
        if !self.lost {
            let read: Result<(), ReadError<Infallible>> = self.reader.feed(bytes, &mut self.probe);
            self.lost = read.is_err();
        }
    }

    fn read_lines(&mut self, mut bytes: &[u8]) {
        while let Some((byte, rest)) = bytes.split_first() {
            if core::mem::take(&mut self.after_cr) && *byte == b'\n' {
                bytes = rest;
                continue;
            }
            if let Line::Data | Line::Skip = self.line {
                let end = memchr::memchr2(b'\n', b'\r', bytes).unwrap_or(bytes.len());
                let (value, after) = bytes.split_at_checked(end).unwrap_or((bytes, &[]));
                if !value.is_empty() {
                    if self.line == Line::Data {
                        self.read(value);
                    }
                    bytes = after;
                    continue;
                }
            }
            bytes = rest;
            self.line = match (self.line, *byte) {
                (line, b'\n' | b'\r') => {
                    self.after_cr = *byte == b'\r';
                    if line == Line::Start(0) {
                        self.end_event();
                    }
                    Line::Start(0)
                }
                (Line::Start(seen), byte) if FIELD.get(seen) == Some(&byte) => {
                    let seen = seen.saturating_add(1);
                    if seen == FIELD.len() {
                        self.begin_value()
                    } else {
                        Line::Start(seen)
                    }
                }
                (Line::Start(_) | Line::Skip, _) => Line::Skip,
                (Line::Value, b' ') => Line::Data,
                (Line::Value | Line::Data, byte) => {
                    self.read(&[byte]);
                    Line::Data
                }
            };
        }
    }

    fn begin_value(&mut self) -> Line {
        if self.in_event {
            // The values of one event are joined by line feeds.
            self.read(b"\n");
        }
        self.in_event = true;
        Line::Value
    }

    fn end_event(&mut self) {
        if self.format == Format::Sse && core::mem::take(&mut self.in_event) {
            self.chunks = self.chunks.saturating_add(u64::from(self.probe.end_document()));
            self.reader.restart();
            self.lost = false;
        }
    }
}
