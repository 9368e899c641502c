//! Decodes the contents of one JSON string that may arrive in several slices: escapes, surrogate pairs, UTF-8.

use super::string::TextSplitter;
use super::visitor::{SyntaxError, Visitor};

/// Decoded bytes of a string with escapes that reach the visitor together.
const FORWARDED_BYTES: usize = 1 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Text,
    Escape,
    Hex { left: u8, value: u16 },
    Utf8 { left: u8, low: u8, high: u8 },
}

/// The state of the string that is being read.
#[derive(Debug)]
pub(super) struct StringDecoder {
    state: State,
    text: TextSplitter,
    /// The decoded beginning of a string that has escapes or spans slices, up to `limit` bytes.
    kept: Vec<u8>,
    limit: usize,
    /// The visitor receives the decoded bytes.
    forward: bool,
    /// The last decoded bytes, which the visitor hasn't received.
    unforwarded: Vec<u8>,
    /// Decoded bytes so far.
    bytes: u64,
    /// A high surrogate that waits for its low surrogate.
    surrogate: Option<u16>,
}

/// How far a slice has brought the string.
pub(super) enum Decoded<'a> {
    /// The slice ends inside the string.
    Partial,
    /// The string ends. `rest` begins with the closing quote.
    Complete {
        /// The beginning of a string that lies unescaped in the slice; `None`: it is in `StringDecoder::kept`.
        borrowed: Option<&'a [u8]>,
        rest: &'a [u8],
    },
}

impl StringDecoder {
    /// A decoder that uses the memory of `kept`.
    pub(super) fn new(mut kept: Vec<u8>) -> Self {
        kept.clear();
        Self {
            state: State::Text,
            text: TextSplitter::default(),
            kept,
            limit: 0,
            forward: false,
            unforwarded: Vec::new(),
            bytes: 0,
            surrogate: None,
        }
    }

    /// The document goes on in a slice of so many bytes.
    pub(super) const fn begin_slice(&mut self, bytes: usize) {
        self.text.begin_slice(bytes);
    }

    /// Starts a string of which `limit` bytes are kept. With `forward`, the visitor receives the decoded bytes.
    pub(super) fn begin(&mut self, limit: usize, forward: bool) {
        self.state = State::Text;
        self.kept.clear();
        self.limit = limit;
        self.forward = forward;
        self.unforwarded.clear();
        self.bytes = 0;
        self.surrogate = None;
    }

    /// Decoded bytes of the string so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn take_kept(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.kept)
    }

    /// Returns the buffer of `take_kept`, so that the next string reuses its memory.
    pub(super) fn return_kept(&mut self, kept: Vec<u8>) {
        self.kept = kept;
    }

    /// Decodes `bytes`, the last ones of the slice, up to the closing quote.
    ///
    /// # Errors
    /// The violation, and the rest of the slice from the offending byte on.
    pub(super) fn decode<'a, V: Visitor>(
        &mut self,
        bytes: &'a [u8],
        visitor: &mut V,
    ) -> Result<Decoded<'a>, (SyntaxError, &'a [u8])> {
        let mut rest = bytes;
        loop {
            // The fast path: whole runs of text and short escapes.
            if self.state == State::Text && self.surrogate.is_none() {
                let (text, after) = self.text.split_text(rest);
                if self.bytes == 0 && !text.is_empty() && after.first() == Some(&b'"') {
                    self.count(text);
                    if self.forward {
                        visitor.string_bytes(text);
                    }
                    let (kept, _) = text.split_at_checked(self.limit).unwrap_or((text, &[]));
                    return Ok(Decoded::Complete { borrowed: Some(kept), rest: after });
                }
                self.keep(text, visitor);
                rest = after;
                if let Some((decoded, after)) = split_escape(rest) {
                    self.keep_char(decoded, visitor);
                    rest = after;
                    continue;
                }
            }
            let Some((byte, tail)) = rest.split_first() else {
                return Ok(Decoded::Partial);
            };
            if self.state == State::Text && *byte == b'"' {
                self.flush_surrogate(visitor);
                self.forward_rest(visitor);
                return Ok(Decoded::Complete { borrowed: None, rest });
            }
            self.step(*byte, visitor).map_err(|error| (error, rest))?;
            rest = tail;
        }
    }

    fn step<V: Visitor>(&mut self, byte: u8, visitor: &mut V) -> Result<(), SyntaxError> {
        match self.state {
            State::Text => self.text(byte, visitor),
            State::Escape => self.escape(byte, visitor),
            State::Hex { left, value } => self.hex(byte, left, value, visitor),
            State::Utf8 { left, low, high } => self.utf8(byte, left, low, high, visitor),
        }
    }

    fn text<V: Visitor>(&mut self, byte: u8, visitor: &mut V) -> Result<(), SyntaxError> {
        if byte == b'\\' {
            self.state = State::Escape;
            return Ok(());
        }
        self.flush_surrogate(visitor);
        // The range of the second byte excludes overlong forms, surrogates, and code points above U+10FFFF.
        let (left, low, high) = match byte {
            0..=0x1f => return Err(SyntaxError::Control),
            0x20..=0x7f => {
                self.keep(&[byte], visitor);
                return Ok(());
            }
            0xc2..=0xdf => (1, 0x80, 0xbf),
            0xe0 => (2, 0xa0, 0xbf),
            0xe1..=0xec | 0xee..=0xef => (2, 0x80, 0xbf),
            0xed => (2, 0x80, 0x9f),
            0xf0 => (3, 0x90, 0xbf),
            0xf1..=0xf3 => (3, 0x80, 0xbf),
            0xf4 => (3, 0x80, 0x8f),
            _ => return Err(SyntaxError::Utf8),
        };
        self.keep(&[byte], visitor);
        self.state = State::Utf8 { left, low, high };
        Ok(())
    }

    fn utf8<V: Visitor>(
        &mut self,
        byte: u8,
        left: u8,
        low: u8,
        high: u8,
        visitor: &mut V,
    ) -> Result<(), SyntaxError> {
        if byte < low || byte > high {
            return Err(SyntaxError::Utf8);
        }
        self.keep(&[byte], visitor);
        self.state = match left {
            0 | 1 => State::Text,
            _ => State::Utf8 { left: left.saturating_sub(1), low: 0x80, high: 0xbf },
        };
        Ok(())
    }

    fn escape<V: Visitor>(&mut self, byte: u8, visitor: &mut V) -> Result<(), SyntaxError> {
        if byte == b'u' {
            self.state = State::Hex { left: 4, value: 0 };
            return Ok(());
        }
        self.flush_surrogate(visitor);
        let decoded = unescape(byte).ok_or(SyntaxError::Escape)?;
        self.keep(&[decoded], visitor);
        self.state = State::Text;
        Ok(())
    }

    fn hex<V: Visitor>(
        &mut self,
        byte: u8,
        left: u8,
        value: u16,
        visitor: &mut V,
    ) -> Result<(), SyntaxError> {
        let digit = char::from(byte).to_digit(16).and_then(|digit| u16::try_from(digit).ok());
        let value = value.wrapping_shl(4) | digit.ok_or(SyntaxError::Escape)?;
        if left > 1 {
            self.state = State::Hex { left: left.saturating_sub(1), value };
            return Ok(());
        }
        self.state = State::Text;
        match (value, self.surrogate.take()) {
            (0xdc00..=0xdfff, Some(high)) => {
                for decoded in char::decode_utf16([high, value]) {
                    self.keep_char(decoded.unwrap_or(char::REPLACEMENT_CHARACTER), visitor);
                }
            }
            (_, unpaired) => {
                if unpaired.is_some() {
                    self.keep_char(char::REPLACEMENT_CHARACTER, visitor);
                }
                if let 0xd800..=0xdbff = value {
                    self.surrogate = Some(value);
                } else {
                    let decoded = char::from_u32(u32::from(value));
                    self.keep_char(decoded.unwrap_or(char::REPLACEMENT_CHARACTER), visitor);
                }
            }
        }
        Ok(())
    }

    fn flush_surrogate<V: Visitor>(&mut self, visitor: &mut V) {
        if self.surrogate.take().is_some() {
            self.keep_char(char::REPLACEMENT_CHARACTER, visitor);
        }
    }

    fn keep_char<V: Visitor>(&mut self, decoded: char, visitor: &mut V) {
        let mut buffer = [0; 4];
        self.keep(decoded.encode_utf8(&mut buffer).as_bytes(), visitor);
    }

    /// Adds decoded bytes to the string.
    fn keep<V: Visitor>(&mut self, bytes: &[u8], visitor: &mut V) {
        self.count(bytes);
        if self.forward {
            self.forward(bytes, visitor);
        }
        let room = self.limit.saturating_sub(self.kept.len());
        if room > 0 {
            let (fits, _) = bytes.split_at_checked(room).unwrap_or((bytes, &[]));
            self.kept.extend_from_slice(fits);
        }
    }

    fn count(&mut self, bytes: &[u8]) {
        self.bytes = self.bytes.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
    }

    /// Passes decoded bytes on to the visitor, short ones together, because each call has a price.
    fn forward<V: Visitor>(&mut self, bytes: &[u8], visitor: &mut V) {
        if self.unforwarded.len().saturating_add(bytes.len()) > FORWARDED_BYTES {
            self.forward_rest(visitor);
            if bytes.len() > FORWARDED_BYTES {
                visitor.string_bytes(bytes);
                return;
            }
        }
        self.unforwarded.extend_from_slice(bytes);
    }

    fn forward_rest<V: Visitor>(&mut self, visitor: &mut V) {
        if !self.unforwarded.is_empty() {
            visitor.string_bytes(&self.unforwarded);
            self.unforwarded.clear();
        }
    }
}

/// Splits off an escape that lies whole in `bytes` and isn't part of a surrogate pair.
fn split_escape(bytes: &[u8]) -> Option<(char, &[u8])> {
    match bytes {
        [b'\\', b'u', a, b, c, d, after @ ..] => {
            let digits = [a, b, c, d].into_iter().map(|digit| char::from(*digit).to_digit(16));
            let value = digits.reduce(|high, low| Some(high?.wrapping_shl(4) | low?));
            Some((char::from_u32(value??)?, after))
        }
        [b'\\', letter, after @ ..] => Some((char::from(unescape(*letter)?), after)),
        _ => None,
    }
}

/// The character that a backslash and this letter stand for; `None`: `u`, which has digits, or no escape.
fn unescape(letter: u8) -> Option<u8> {
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
