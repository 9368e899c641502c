//! A JSON reader for documents that arrive in arbitrary slices: it checks the grammar and reports each element to a
//! `Visitor`.
//!
//! The reader builds no tree. It passes strings to the visitor where they lie in the slice, cut at a limit that the
//! visitor sets; only strings with escapes, or that span slices, are copied, up to that limit. So memory use is one small
//! buffer for any document. Containers nest at most `JSON_DEPTH_MAX` deep. Strings must be UTF-8 without raw control
//! characters. An escaped lone surrogate becomes U+FFFD, because model servers accept it.

use super::number::split_number;
use super::string_decoder::{Decoded, StringDecoder};
use super::visitor::{Cause, Container, JsonString, Literal, ReadError, SyntaxError, Visitor};
use crate::limits::JSON_DEPTH_MAX;

const BYTE_ORDER_MARK: [u8; 3] = [0xef, 0xbb, 0xbf];

/// What the grammar expects next, or the element that is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Value,
    ItemOrEnd,
    KeyOrEnd,
    Key,
    Colon,
    /// After a value in a container: a comma or the end.
    Next,
    String,
    Number(Number),
    Literal {
        rest: &'static [u8],
        literal: Literal,
    },
    End,
}

/// The part of a number that was read last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Whole,
    Dot,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

/// The reader's state between two slices.
#[derive(Debug)]
pub(crate) struct Reader {
    state: State,
    /// One bit for each open container, set for objects; the innermost is bit `depth - 1`.
    objects: u128,
    depth: u32,
    /// Bytes read.
    offset: u64,
    /// Bytes of a byte order mark at the beginning.
    marked: u64,
    string: StringDecoder,
    /// The string is a key.
    in_key: bool,
    /// Offset of the string's opening quote.
    string_start: u64,
    /// The number so far, while it is a whole number of 64 bits, as `12` or `12.0`.
    whole: Option<u64>,
}

impl Reader {
    pub(crate) fn new() -> Self {
        Self::with_buffer(Vec::new())
    }

    fn with_buffer(buffer: Vec<u8>) -> Self {
        Self {
            state: State::Value,
            objects: 0,
            depth: 0,
            offset: 0,
            marked: 0,
            string: StringDecoder::new(buffer),
            in_key: false,
            string_start: 0,
            whole: None,
        }
    }

    /// Starts another document and reuses the buffer.
    pub(crate) fn restart(&mut self) {
        *self = Self::with_buffer(self.string.take_kept());
    }

    /// Number of bytes read.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads the next slice. After an error the reader must not be used again.
    pub(crate) fn feed<V: Visitor>(
        &mut self,
        bytes: &[u8],
        visitor: &mut V,
    ) -> Result<(), ReadError<V::Stop>> {
        self.string.begin_slice(bytes.len());
        let mut rest = bytes;
        while let Some((byte, tail)) = rest.split_first() {
            if self.state == State::String {
                rest = self.read_string(rest, visitor)?;
                continue;
            }
            match self.step(*byte, visitor) {
                Ok(true) => {
                    self.advance(1);
                    rest = tail;
                    // After a comma a value follows in arrays alone.
                    if *byte == b',' && self.state == State::Value {
                        rest = self.read_numbers(rest, visitor)?;
                    }
                }
                Ok(false) => {}
                Err(_) if self.is_in_byte_order_mark(*byte) => {
                    self.marked = self.offset.saturating_add(1);
                    self.advance(1);
                    rest = tail;
                }
                Err(cause) => return Err(self.error(cause)),
            }
        }
        Ok(())
    }

    /// Some programs put a mark of UTF-8 before a document, and servers skip it.
    fn is_in_byte_order_mark(&self, byte: u8) -> bool {
        let mark = usize::try_from(self.offset).ok().and_then(|offset| BYTE_ORDER_MARK.get(offset));
        self.state == State::Value && self.depth == 0 && self.marked == self.offset && mark == Some(&byte)
    }

    /// Ends the input, and checks that the document is complete.
    pub(crate) fn finish<V: Visitor>(&mut self, visitor: &mut V) -> Result<(), ReadError<V::Stop>> {
        if let State::Number(number) = self.state
            && self.depth == 0
        {
            self.end_number(number, visitor).map_err(|cause| self.error(cause))?;
        }
        if self.state == State::End {
            Ok(())
        } else {
            Err(self.error(Cause::Syntax(SyntaxError::Unfinished)))
        }
    }

    fn error<S>(&self, cause: Cause<S>) -> ReadError<S> {
        ReadError { offset: self.offset, cause }
    }

    fn advance(&mut self, count: usize) {
        self.offset = self.offset.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
    }

    /// Reads one byte; `false`: the byte ended a number and belongs to the next state.
    fn step<V: Visitor>(&mut self, byte: u8, visitor: &mut V) -> Result<bool, Cause<V::Stop>> {
        match self.state {
            State::Number(number) => self.read_number(byte, number, visitor),
            State::Literal { rest, literal } => self.read_literal(byte, rest, literal, visitor),
            State::Value
            | State::ItemOrEnd
            | State::KeyOrEnd
            | State::Key
            | State::Colon
            | State::Next
            | State::String
            | State::End => {
                if !matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
                    self.read_structure(byte, visitor)?;
                }
                Ok(true)
            }
        }
    }

    fn read_structure<V: Visitor>(&mut self, byte: u8, visitor: &mut V) -> Result<(), Cause<V::Stop>> {
        match (self.state, byte) {
            (State::ItemOrEnd, b']') | (State::KeyOrEnd, b'}') => self.close(visitor),
            (State::Value | State::ItemOrEnd, _) => return self.begin_value(byte, visitor),
            (State::KeyOrEnd | State::Key, b'"') => self.begin_string(true, visitor.key_limit(), false),
            (State::KeyOrEnd | State::Key, _) => return Err(Cause::Syntax(SyntaxError::Key)),
            (State::Colon, b':') => self.state = State::Value,
            (State::Colon, _) => return Err(Cause::Syntax(SyntaxError::Colon)),
            (State::Next, b',') => self.state = if self.in_object() { State::Key } else { State::Value },
            (State::Next, b'}') if self.in_object() => self.close(visitor),
            (State::Next, b']') if !self.in_object() => self.close(visitor),
            (State::End, _) => return Err(Cause::Syntax(SyntaxError::Trailing)),
            (_, _) => return Err(Cause::Syntax(SyntaxError::Comma)),
        }
        Ok(())
    }

    fn begin_value<V: Visitor>(&mut self, byte: u8, visitor: &mut V) -> Result<(), Cause<V::Stop>> {
        match byte {
            b'"' => self.begin_string(false, visitor.string_limit(), visitor.wants_string_bytes()),
            b'{' => return self.open(Container::Object, visitor),
            b'[' => return self.open(Container::Array, visitor),
            b'-' => self.begin_number(Number::Minus, None),
            b'0' => self.begin_number(Number::Zero, Some(0)),
            b'1'..=b'9' => self.begin_number(Number::Whole, Some(digit(byte))),
            b't' => self.begin_literal(b"rue", Literal::True),
            b'f' => self.begin_literal(b"alse", Literal::False),
            b'n' => self.begin_literal(b"ull", Literal::Null),
            _ => return Err(Cause::Syntax(SyntaxError::Value)),
        }
        Ok(())
    }

    fn begin_string(&mut self, in_key: bool, limit: usize, forward: bool) {
        self.state = State::String;
        self.in_key = in_key;
        self.string_start = self.offset;
        self.string.begin(limit, forward);
    }

    fn begin_number(&mut self, number: Number, whole: Option<u64>) {
        self.state = State::Number(number);
        self.whole = whole;
    }

    fn begin_literal(&mut self, rest: &'static [u8], literal: Literal) {
        self.state = State::Literal { rest, literal };
    }

    fn open<V: Visitor>(&mut self, container: Container, visitor: &mut V) -> Result<(), Cause<V::Stop>> {
        if self.depth >= JSON_DEPTH_MAX {
            return Err(Cause::Syntax(SyntaxError::Depth));
        }
        let bit = 1_u128.wrapping_shl(self.depth);
        self.depth = self.depth.saturating_add(1);
        match container {
            Container::Object => {
                self.objects |= bit;
                self.state = State::KeyOrEnd;
            }
            Container::Array => {
                self.objects &= !bit;
                self.state = State::ItemOrEnd;
            }
        }
        visitor.open(container).map_err(Cause::Stopped)
    }

    fn close<V: Visitor>(&mut self, visitor: &mut V) {
        self.depth = self.depth.saturating_sub(1);
        visitor.close();
        self.end_value();
    }

    fn end_value(&mut self) {
        self.state = if self.depth == 0 { State::End } else { State::Next };
    }

    fn in_object(&self) -> bool {
        self.depth > 0 && self.objects.wrapping_shr(self.depth.saturating_sub(1)) & 1 == 1
    }

    /// Reads on inside a string; returns the bytes that follow it.
    fn read_string<'a, V: Visitor>(
        &mut self,
        bytes: &'a [u8],
        visitor: &mut V,
    ) -> Result<&'a [u8], ReadError<V::Stop>> {
        match self.string.decode(bytes, visitor) {
            Ok(Decoded::Partial) => {
                self.advance(bytes.len());
                Ok(&[])
            }
            Ok(Decoded::Complete { borrowed, rest }) => {
                self.advance(bytes.len().saturating_sub(rest.len()));
                let ended = if let Some(kept) = borrowed {
                    self.end_string(kept, visitor)
                } else {
                    let kept = self.string.take_kept();
                    let ended = self.end_string(&kept, visitor);
                    self.string.return_kept(kept);
                    ended
                };
                ended.map_err(|stop| self.error(Cause::Stopped(stop)))?;
                self.advance(1);
                Ok(rest.split_first().map_or(&[], |(_, after)| after))
            }
            Err((error, rest)) => {
                self.advance(bytes.len().saturating_sub(rest.len()));
                Err(self.error(Cause::Syntax(error)))
            }
        }
    }

    /// Ends a string at its closing quote, which is the byte at `offset`.
    fn end_string<V: Visitor>(&mut self, kept: &[u8], visitor: &mut V) -> Result<(), V::Stop> {
        // The limit may have cut the last character.
        let kept = match core::str::from_utf8(kept) {
            Ok(kept) => kept,
            Err(cut) => {
                kept.get(..cut.valid_up_to()).and_then(|valid| core::str::from_utf8(valid).ok()).unwrap_or("")
            }
        };
        let string = JsonString {
            kept,
            bytes: self.string.bytes(),
            begin: self.string_start,
            end: self.offset.saturating_add(1),
        };
        if self.in_key {
            self.state = State::Colon;
            visitor.key(string)
        } else {
            self.end_value();
            visitor.string(string)
        }
    }

    /// Reads further numbers of an array that lie whole in the slice; returns the bytes that follow them.
    fn read_numbers<'a, V: Visitor>(
        &mut self,
        bytes: &'a [u8],
        visitor: &mut V,
    ) -> Result<&'a [u8], ReadError<V::Stop>> {
        let mut rest = bytes;
        while let Some((whole, after)) = split_number(rest) {
            self.advance(rest.len().saturating_sub(after.len()));
            self.end_value();
            visitor.number(whole, true).map_err(|stop| self.error(Cause::Stopped(stop)))?;
            rest = after;
            let [b',', next @ ..] = after else {
                break;
            };
            self.advance(1);
            self.state = State::Value;
            rest = next;
        }
        Ok(rest)
    }

    fn read_number<V: Visitor>(
        &mut self,
        byte: u8,
        number: Number,
        visitor: &mut V,
    ) -> Result<bool, Cause<V::Stop>> {
        let next = match (number, byte) {
            (Number::Minus, b'0') => Number::Zero,
            (Number::Minus | Number::Whole, b'0'..=b'9') => {
                self.whole = self.whole.and_then(|whole| whole.checked_mul(10)?.checked_add(digit(byte)));
                Number::Whole
            }
            (Number::Zero | Number::Whole, b'.') => Number::Dot,
            (Number::Dot | Number::Fraction, b'0'..=b'9') => Number::Fraction,
            (Number::Zero | Number::Whole | Number::Fraction, b'e' | b'E') => Number::Exponent,
            (Number::Exponent, b'+' | b'-') => Number::ExponentSign,
            (Number::Exponent | Number::ExponentSign | Number::ExponentDigits, b'0'..=b'9') => {
                Number::ExponentDigits
            }
            (_, _) => {
                self.end_number(number, visitor)?;
                return Ok(false);
            }
        };
        // A fraction of zeros leaves a whole number whole.
        if !matches!((next, byte), (Number::Zero | Number::Whole | Number::Dot, _) | (Number::Fraction, b'0'))
        {
            self.whole = None;
        }
        self.state = State::Number(next);
        Ok(true)
    }

    fn end_number<V: Visitor>(&mut self, number: Number, visitor: &mut V) -> Result<(), Cause<V::Stop>> {
        match number {
            Number::Zero | Number::Whole | Number::Fraction | Number::ExponentDigits => {
                let in_array = self.depth > 0 && !self.in_object();
                self.end_value();
                visitor.number(self.whole.take(), in_array).map_err(Cause::Stopped)
            }
            Number::Minus | Number::Dot | Number::Exponent | Number::ExponentSign => {
                Err(Cause::Syntax(SyntaxError::Number))
            }
        }
    }

    fn read_literal<V: Visitor>(
        &mut self,
        byte: u8,
        rest: &'static [u8],
        literal: Literal,
        visitor: &mut V,
    ) -> Result<bool, Cause<V::Stop>> {
        match rest.split_first() {
            Some((expected, rest)) if *expected == byte => {
                if rest.is_empty() {
                    self.end_value();
                    visitor.literal(literal).map_err(Cause::Stopped)?;
                } else {
                    self.state = State::Literal { rest, literal };
                }
                Ok(true)
            }
            _ => Err(Cause::Syntax(SyntaxError::Literal)),
        }
    }
}

fn digit(byte: u8) -> u64 {
    u64::from(byte.wrapping_sub(b'0'))
}
