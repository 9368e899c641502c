//! A JSON reader for bytes that arrive split anywhere: it checks the grammar and tells a `Visitor` what it meets.
//!
//! It builds nothing. The strings that the visitor asks to keep are handed to it from where they lie, cut at a limit of its
//! choice; those with escapes, or in two slices, are copied first; all others are only measured. Memory is one small buffer,
//! whatever the document. Containers nest at most `JSON_DEPTH_MAX` deep. Strings must be UTF-8 without raw control
//! characters; an escaped lone surrogate is taken for U+FFFD, because servers take it.

use super::{Cause, Container, JsonString, Literal, ReadError, SyntaxError, Visitor, string::split_text};
use crate::limits::JSON_DEPTH_MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Value,
    ItemOrEnd,
    KeyOrEnd,
    Key,
    Colon,
    Next,
    Text,
    Escape,
    Hex { left: u8, value: u16 },
    Utf8 { left: u8, low: u8, high: u8 },
    Number(Number),
    Literal { rest: &'static [u8], word: Literal },
    End,
}

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

/// The reader's whole memory between two slices.
#[derive(Debug)]
pub(crate) struct Reader {
    state: State,
    /// One bit a level, set for objects; the innermost is bit `depth - 1`.
    objects: u128,
    depth: u32,
    offset: u64,
    in_key: bool,
    /// What is wanted of a string that doesn't lie whole where it is read.
    kept: Vec<u8>,
    keep: usize,
    /// The visitor wants the string's bytes.
    tell: bool,
    text_bytes: u64,
    /// Where the string's first quote is.
    text_at: u64,
    /// A high surrogate whose low one may follow; 0: none.
    surrogate: u16,
    whole: Option<u64>,
}

impl Reader {
    pub(crate) fn new() -> Self {
        Self::within(Vec::new())
    }

    fn within(kept: Vec<u8>) -> Self {
        Self {
            state: State::Value,
            objects: 0,
            depth: 0,
            offset: 0,
            in_key: false,
            kept,
            keep: 0,
            tell: false,
            text_bytes: 0,
            text_at: 0,
            surrogate: 0,
            whole: None,
        }
    }

    /// Begins another document, with the memory of the last one.
    pub(crate) fn restart(&mut self) {
        let mut kept = core::mem::take(&mut self.kept);
        kept.clear();
        *self = Self::within(kept);
    }

    /// How many bytes were read.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads on. After a fault the reader is of no further use.
    pub(crate) fn feed<V: Visitor>(
        &mut self,
        bytes: &[u8],
        visitor: &mut V,
    ) -> Result<(), ReadError<V::Stop>> {
        let mut rest = bytes;
        while let Some((byte, tail)) = rest.split_first() {
            if matches!(self.state, State::Text) && self.surrogate == 0 {
                let left = match self.read_text(rest, visitor) {
                    Ok(left) => left,
                    Err(why) => return Err(ReadError { at: self.offset, why }),
                };
                if left.len() < rest.len() {
                    rest = left;
                    continue;
                }
            }
            match self.step(*byte, visitor) {
                Ok(true) => {
                    self.advance(1);
                    rest = tail;
                }
                Ok(false) => {}
                Err(why) => return Err(ReadError { at: self.offset, why }),
            }
        }
        Ok(())
    }

    /// The input is over: was it a whole document?
    pub(crate) fn finish<V: Visitor>(&mut self, visitor: &mut V) -> Result<(), ReadError<V::Stop>> {
        if let State::Number(number) = self.state
            && self.depth == 0
        {
            self.end_number(number, visitor)
                .map_err(|why| ReadError { at: self.offset, why })?;
        }
        match self.state {
            State::End => Ok(()),
            State::Value
            | State::ItemOrEnd
            | State::KeyOrEnd
            | State::Key
            | State::Colon
            | State::Next
            | State::Text
            | State::Escape
            | State::Hex { .. }
            | State::Utf8 { .. }
            | State::Number(_)
            | State::Literal { .. } => Err(ReadError {
                at: self.offset,
                why: Cause::Syntax(SyntaxError::Unfinished),
            }),
        }
    }

    fn advance(&mut self, by: usize) {
        self.offset = self.offset.saturating_add(u64::try_from(by).unwrap_or(u64::MAX));
    }

    /// Takes one byte; false if it is left to the state that follows.
    fn step<V: Visitor>(&mut self, byte: u8, visitor: &mut V) -> Result<bool, Cause<V::Stop>> {
        match self.state {
            State::Text => self.in_text(byte, visitor),
            State::Escape => self.in_escape(byte, visitor).map_err(Cause::Syntax),
            State::Hex { left, value } => self.in_hex(byte, left, value, visitor).map_err(Cause::Syntax),
            State::Utf8 { left, low, high } => {
                let taken = self.in_utf8(byte, left, low, high, visitor);
                taken.map_err(Cause::Syntax)
            }
            State::Number(number) => self.in_number(byte, number, visitor),
            State::Literal { rest, word } => self.in_word(byte, rest, word, visitor),
            State::Value
            | State::ItemOrEnd
            | State::KeyOrEnd
            | State::Key
            | State::Colon
            | State::Next
            | State::End => {
                if !matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
                    self.between(byte, visitor)?;
                }
                Ok(true)
            }
        }
    }

    fn between<V: Visitor>(&mut self, byte: u8, visitor: &mut V) -> Result<(), Cause<V::Stop>> {
        match (self.state, byte) {
            (State::ItemOrEnd, b']') | (State::KeyOrEnd, b'}') => self.close(visitor),
            (State::Value | State::ItemOrEnd, _) => return self.begin_value(byte, visitor),
            (State::KeyOrEnd | State::Key, b'"') => self.begin_text(true, visitor.keep_key(), false),
            (State::KeyOrEnd | State::Key, _) => return Err(Cause::Syntax(SyntaxError::Key)),
            (State::Colon, b':') => self.state = State::Value,
            (State::Colon, _) => return Err(Cause::Syntax(SyntaxError::Colon)),
            (State::Next, b',') => {
                self.state = if self.in_object() {
                    State::Key
                } else {
                    State::Value
                }
            }
            (State::Next, b'}') if self.in_object() => self.close(visitor),
            (State::Next, b']') if !self.in_object() => self.close(visitor),
            (State::End, _) => return Err(Cause::Syntax(SyntaxError::Trailing)),
            (_, _) => return Err(Cause::Syntax(SyntaxError::Comma)),
        }
        Ok(())
    }

    fn begin_value<V: Visitor>(&mut self, byte: u8, visitor: &mut V) -> Result<(), Cause<V::Stop>> {
        match byte {
            b'"' => self.begin_text(false, visitor.keep_string(), visitor.wants_bytes()),
            b'{' => return self.open(Container::Object, visitor),
            b'[' => return self.open(Container::Array, visitor),
            b'-' => self.begin_number(Number::Minus, None),
            b'0' => self.begin_number(Number::Zero, Some(0)),
            b'1'..=b'9' => self.begin_number(Number::Whole, Some(digit(byte))),
            b't' => {
                self.state = State::Literal {
                    rest: b"rue",
                    word: Literal::True,
                }
            }
            b'f' => {
                self.state = State::Literal {
                    rest: b"alse",
                    word: Literal::False,
                }
            }
            b'n' => {
                self.state = State::Literal {
                    rest: b"ull",
                    word: Literal::Null,
                }
            }
            _ => return Err(Cause::Syntax(SyntaxError::Value)),
        }
        Ok(())
    }

    fn begin_text(&mut self, in_key: bool, keep: usize, tell: bool) {
        self.state = State::Text;
        self.in_key = in_key;
        self.keep = keep;
        self.tell = tell;
        self.kept.clear();
        self.text_bytes = 0;
        self.text_at = self.offset;
        self.surrogate = 0;
    }

    fn begin_number(&mut self, number: Number, whole: Option<u64>) {
        self.state = State::Number(number);
        self.whole = whole;
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
        self.after_value();
    }

    fn after_value(&mut self) {
        self.state = if self.depth == 0 { State::End } else { State::Next };
    }

    fn in_object(&self) -> bool {
        self.depth > 0 && self.objects.wrapping_shr(self.depth.saturating_sub(1)) & 1 == 1
    }

    /// Reads on inside a string, as far as whole characters and short escapes go; the rest is left to `step`.
    fn read_text<'a, V: Visitor>(
        &mut self,
        bytes: &'a [u8],
        visitor: &mut V,
    ) -> Result<&'a [u8], Cause<V::Stop>> {
        let mut rest = bytes;
        loop {
            let (text, after) = split_text(rest);
            match after {
                // A string that is whole here is told of where it lies.
                [b'"', after @ ..] if self.text_bytes == 0 && !text.is_empty() => {
                    self.advance(text.len());
                    self.count(text, visitor);
                    let (kept, _) = text.split_at_checked(self.keep).unwrap_or((text, &[]));
                    self.end_text(kept, visitor).map_err(Cause::Stopped)?;
                    self.advance(1);
                    return Ok(after);
                }
                _ => {
                    self.keep(text, visitor);
                    self.advance(text.len());
                }
            }
            let Some((decoded, after_escape)) = split_escape(after) else {
                return Ok(after);
            };
            self.keep_char(decoded, visitor);
            self.advance(after.len().saturating_sub(after_escape.len()));
            rest = after_escape;
        }
    }

    fn in_text<V: Visitor>(&mut self, byte: u8, visitor: &mut V) -> Result<bool, Cause<V::Stop>> {
        if byte != b'\\' {
            self.flush_surrogate(visitor);
        }
        match byte {
            b'"' => {
                let kept = core::mem::take(&mut self.kept);
                let ended = self.end_text(&kept, visitor);
                self.kept = kept;
                ended.map_err(Cause::Stopped)?;
            }
            b'\\' => self.state = State::Escape,
            0..=0x1f => return Err(Cause::Syntax(SyntaxError::Control)),
            0x20..=0x7f => self.keep(&[byte], visitor),
            0x80.. => {
                let (left, low, high) = match byte {
                    0xc2..=0xdf => (1, 0x80, 0xbf),
                    0xe0 => (2, 0xa0, 0xbf),
                    0xe1..=0xec | 0xee..=0xef => (2, 0x80, 0xbf),
                    0xed => (2, 0x80, 0x9f),
                    0xf0 => (3, 0x90, 0xbf),
                    0xf1..=0xf3 => (3, 0x80, 0xbf),
                    0xf4 => (3, 0x80, 0x8f),
                    _ => return Err(Cause::Syntax(SyntaxError::Utf8)),
                };
                self.keep(&[byte], visitor);
                self.state = State::Utf8 { left, low, high };
            }
        }
        Ok(true)
    }

    fn in_utf8<V: Visitor>(
        &mut self,
        byte: u8,
        left: u8,
        low: u8,
        high: u8,
        visitor: &mut V,
    ) -> Result<bool, SyntaxError> {
        if byte < low || byte > high {
            return Err(SyntaxError::Utf8);
        }
        self.keep(&[byte], visitor);
        self.state = match left {
            0 | 1 => State::Text,
            _ => State::Utf8 {
                left: left.saturating_sub(1),
                low: 0x80,
                high: 0xbf,
            },
        };
        Ok(true)
    }

    fn in_escape<V: Visitor>(&mut self, byte: u8, visitor: &mut V) -> Result<bool, SyntaxError> {
        if byte == b'u' {
            self.state = State::Hex { left: 4, value: 0 };
            return Ok(true);
        }
        self.flush_surrogate(visitor);
        let decoded = unescaped(byte).ok_or(SyntaxError::Escape)?;
        self.keep(&[decoded], visitor);
        self.state = State::Text;
        Ok(true)
    }

    fn in_hex<V: Visitor>(
        &mut self,
        byte: u8,
        left: u8,
        value: u16,
        visitor: &mut V,
    ) -> Result<bool, SyntaxError> {
        let digit = char::from(byte)
            .to_digit(16)
            .and_then(|digit| u16::try_from(digit).ok());
        let value = value.wrapping_shl(4) | digit.ok_or(SyntaxError::Escape)?;
        if left > 1 {
            self.state = State::Hex {
                left: left.saturating_sub(1),
                value,
            };
            return Ok(true);
        }
        self.state = State::Text;
        match value {
            0xdc00..=0xdfff if self.surrogate != 0 => {
                let pair = [core::mem::take(&mut self.surrogate), value];
                for decoded in char::decode_utf16(pair) {
                    self.keep_char(decoded.unwrap_or(char::REPLACEMENT_CHARACTER), visitor);
                }
            }
            0xd800..=0xdbff => {
                self.flush_surrogate(visitor);
                self.surrogate = value;
            }
            _ => {
                self.flush_surrogate(visitor);
                let decoded = char::from_u32(u32::from(value));
                self.keep_char(decoded.unwrap_or(char::REPLACEMENT_CHARACTER), visitor);
            }
        }
        Ok(true)
    }

    fn flush_surrogate<V: Visitor>(&mut self, visitor: &mut V) {
        if core::mem::take(&mut self.surrogate) != 0 {
            self.keep_char(char::REPLACEMENT_CHARACTER, visitor);
        }
    }

    fn keep_char<V: Visitor>(&mut self, decoded: char, visitor: &mut V) {
        let mut buffer = [0; 4];
        self.keep(decoded.encode_utf8(&mut buffer).as_bytes(), visitor);
    }

    /// More of the string: what it means.
    fn keep<V: Visitor>(&mut self, bytes: &[u8], visitor: &mut V) {
        self.count(bytes, visitor);
        let room = self.keep.saturating_sub(self.kept.len());
        if room > 0 {
            let (fits, _) = bytes.split_at_checked(room).unwrap_or((bytes, &[]));
            self.kept.extend_from_slice(fits);
        }
    }

    fn count<V: Visitor>(&mut self, bytes: &[u8], visitor: &mut V) {
        if self.tell {
            visitor.bytes(bytes);
        }
        self.text_bytes = self
            .text_bytes
            .saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
    }

    /// The string is over, of which so much is kept.
    fn end_text<V: Visitor>(&mut self, kept: &[u8], visitor: &mut V) -> Result<(), V::Stop> {
        // The limit may have cut the last character.
        let kept = match core::str::from_utf8(kept) {
            Ok(kept) => kept,
            Err(cut) => kept
                .get(..cut.valid_up_to())
                .and_then(|whole| core::str::from_utf8(whole).ok())
                .unwrap_or(""),
        };
        let text = JsonString {
            kept,
            bytes: self.text_bytes,
            begin: self.text_at,
            // Its last quote is the byte that is read.
            end: self.offset.saturating_add(1),
        };
        if self.in_key {
            self.state = State::Colon;
            visitor.key(text)
        } else {
            self.state = if self.depth == 0 { State::End } else { State::Next };
            visitor.string(text)
        }
    }

    fn in_number<V: Visitor>(
        &mut self,
        byte: u8,
        number: Number,
        visitor: &mut V,
    ) -> Result<bool, Cause<V::Stop>> {
        let next = match (number, byte) {
            (Number::Minus, b'0') => Number::Zero,
            (Number::Minus | Number::Whole, b'0'..=b'9') => {
                self.whole = self
                    .whole
                    .and_then(|whole| whole.checked_mul(10)?.checked_add(digit(byte)));
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
        if !matches!(next, Number::Zero | Number::Whole) {
            self.whole = None;
        }
        self.state = State::Number(next);
        Ok(true)
    }

    fn end_number<V: Visitor>(&mut self, number: Number, visitor: &mut V) -> Result<(), Cause<V::Stop>> {
        match number {
            Number::Zero | Number::Whole | Number::Fraction | Number::ExponentDigits => {
                let in_array = self.depth > 0 && !self.in_object();
                self.after_value();
                visitor
                    .number(self.whole.take(), in_array)
                    .map_err(Cause::Stopped)
            }
            Number::Minus | Number::Dot | Number::Exponent | Number::ExponentSign => {
                Err(Cause::Syntax(SyntaxError::Number))
            }
        }
    }

    fn in_word<V: Visitor>(
        &mut self,
        byte: u8,
        rest: &'static [u8],
        word: Literal,
        visitor: &mut V,
    ) -> Result<bool, Cause<V::Stop>> {
        match rest.split_first() {
            Some((expected, rest)) if *expected == byte => {
                if rest.is_empty() {
                    self.after_value();
                    visitor.word(word).map_err(Cause::Stopped)?;
                } else {
                    self.state = State::Literal { rest, word };
                }
                Ok(true)
            }
            _ => Err(Cause::Syntax(SyntaxError::Literal)),
        }
    }
}

/// Splits off an escape that is whole here and means a character by itself.
fn split_escape(bytes: &[u8]) -> Option<(char, &[u8])> {
    match bytes {
        [b'\\', b'u', a, b, c, d, after @ ..] => {
            let digits = [a, b, c, d]
                .into_iter()
                .map(|digit| char::from(*digit).to_digit(16));
            let value = digits.reduce(|high, low| Some(high?.wrapping_shl(4) | low?));
            Some((char::from_u32(value??)?, after))
        }
        [b'\\', letter, after @ ..] => Some((char::from(unescaped(*letter)?), after)),
        _ => None,
    }
}

/// What a letter after a backslash means; none: more follows it, or it is no escape.
fn unescaped(letter: u8) -> Option<u8> {
    match letter {
        b'"' | b'\\' | b'/' => Some(letter),
        b'b' => Some(8),
        b'f' => Some(12),
        b'n' => Some(b'\n'),
        b'r' => Some(b'\r'),
        b't' => Some(b'\t'),
        _ => None,
    }
}

fn digit(byte: u8) -> u64 {
    u64::from(byte.wrapping_sub(b'0'))
}
