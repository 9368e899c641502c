//! A JSON reader for bytes that arrive split anywhere: it checks the grammar and tells a `Visitor` what it meets.
//!
//! It builds nothing and copies nothing but the few strings that the visitor asks to keep, cut at a limit of its choice;
//! all others are only measured. Memory is one small buffer, whatever the document. Containers nest at most
//! `JSON_DEPTH_MAX` deep. Strings must be UTF-8 without raw control characters; an escaped lone surrogate is taken for
//! U+FFFD, because servers take it.

use crate::{
    json::{Container, Fault, Syntax, Text, Visitor, Why, Word},
    limits::{JSON_DEPTH_MAX, KEY_BYTES_MAX},
};

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
    Word { rest: &'static [u8], word: Word },
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
        // As long as keys are: it doesn't grow bit by bit then.
        Self::within(Vec::with_capacity(KEY_BYTES_MAX))
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
    pub(crate) fn feed<V: Visitor>(&mut self, bytes: &[u8], visitor: &mut V) -> Result<(), Fault<V::Stop>> {
        let mut rest = bytes;
        while let Some((byte, tail)) = rest.split_first() {
            if matches!(self.state, State::Text) && self.surrogate == 0 && !is_special(*byte) {
                let (run, after) = match split_plain(rest) {
                    ([], _) => split_text(rest),
                    plain => plain,
                };
                if !run.is_empty() {
                    self.keep(run, visitor);
                    self.advance(run.len());
                    rest = after;
                    continue;
                }
            }
            match self.step(*byte, visitor) {
                Ok(true) => {
                    self.advance(1);
                    rest = tail;
                }
                Ok(false) => {}
                Err(why) => return Err(Fault { at: self.offset, why }),
            }
        }
        Ok(())
    }

    /// The input is over: was it a whole document?
    pub(crate) fn finish<V: Visitor>(&mut self, visitor: &mut V) -> Result<(), Fault<V::Stop>> {
        if let State::Number(number) = self.state
            && self.depth == 0
        {
            self.end_number(number, visitor)
                .map_err(|why| Fault { at: self.offset, why })?;
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
            | State::Word { .. } => Err(Fault {
                at: self.offset,
                why: Why::Syntax(Syntax::Unfinished),
            }),
        }
    }

    fn advance(&mut self, by: usize) {
        self.offset = self.offset.saturating_add(u64::try_from(by).unwrap_or(u64::MAX));
    }

    /// Takes one byte; false if it is left to the state that follows.
    fn step<V: Visitor>(&mut self, byte: u8, visitor: &mut V) -> Result<bool, Why<V::Stop>> {
        match self.state {
            State::Text => self.in_text(byte, visitor),
            State::Escape => self.in_escape(byte, visitor).map_err(Why::Syntax),
            State::Hex { left, value } => self.in_hex(byte, left, value, visitor).map_err(Why::Syntax),
            State::Utf8 { left, low, high } => {
                let taken = self.in_utf8(byte, left, low, high, visitor);
                taken.map_err(Why::Syntax)
            }
            State::Number(number) => self.in_number(byte, number, visitor),
            State::Word { rest, word } => self.in_word(byte, rest, word, visitor),
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

    fn between<V: Visitor>(&mut self, byte: u8, visitor: &mut V) -> Result<(), Why<V::Stop>> {
        match (self.state, byte) {
            (State::ItemOrEnd, b']') | (State::KeyOrEnd, b'}') => self.close(visitor),
            (State::Value | State::ItemOrEnd, _) => return self.begin_value(byte, visitor),
            (State::KeyOrEnd | State::Key, b'"') => self.begin_text(true, visitor.keep_key(), false),
            (State::KeyOrEnd | State::Key, _) => return Err(Why::Syntax(Syntax::Key)),
            (State::Colon, b':') => self.state = State::Value,
            (State::Colon, _) => return Err(Why::Syntax(Syntax::Colon)),
            (State::Next, b',') => {
                self.state = if self.in_object() {
                    State::Key
                } else {
                    State::Value
                }
            }
            (State::Next, b'}') if self.in_object() => self.close(visitor),
            (State::Next, b']') if !self.in_object() => self.close(visitor),
            (State::End, _) => return Err(Why::Syntax(Syntax::Trailing)),
            (_, _) => return Err(Why::Syntax(Syntax::Comma)),
        }
        Ok(())
    }

    fn begin_value<V: Visitor>(&mut self, byte: u8, visitor: &mut V) -> Result<(), Why<V::Stop>> {
        match byte {
            b'"' => self.begin_text(false, visitor.keep_string(), visitor.wants_bytes()),
            b'{' => return self.open(Container::Object, visitor),
            b'[' => return self.open(Container::Array, visitor),
            b'-' => self.begin_number(Number::Minus, None),
            b'0' => self.begin_number(Number::Zero, Some(0)),
            b'1'..=b'9' => self.begin_number(Number::Whole, Some(digit(byte))),
            b't' => {
                self.state = State::Word {
                    rest: b"rue",
                    word: Word::True,
                }
            }
            b'f' => {
                self.state = State::Word {
                    rest: b"alse",
                    word: Word::False,
                }
            }
            b'n' => {
                self.state = State::Word {
                    rest: b"ull",
                    word: Word::Null,
                }
            }
            _ => return Err(Why::Syntax(Syntax::Value)),
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

    fn open<V: Visitor>(&mut self, container: Container, visitor: &mut V) -> Result<(), Why<V::Stop>> {
        if self.depth >= JSON_DEPTH_MAX {
            return Err(Why::Syntax(Syntax::Depth));
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
        visitor.open(container).map_err(Why::Stopped)
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

    fn in_text<V: Visitor>(&mut self, byte: u8, visitor: &mut V) -> Result<bool, Why<V::Stop>> {
        if byte != b'\\' {
            self.flush_surrogate(visitor);
        }
        match byte {
            b'"' => self.end_text(visitor).map_err(Why::Stopped)?,
            b'\\' => self.state = State::Escape,
            0..=0x1f => return Err(Why::Syntax(Syntax::Control)),
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
                    _ => return Err(Why::Syntax(Syntax::Utf8)),
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
    ) -> Result<bool, Syntax> {
        if byte < low || byte > high {
            return Err(Syntax::Utf8);
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

    fn in_escape<V: Visitor>(&mut self, byte: u8, visitor: &mut V) -> Result<bool, Syntax> {
        if byte == b'u' {
            self.state = State::Hex { left: 4, value: 0 };
            return Ok(true);
        }
        self.flush_surrogate(visitor);
        let decoded = match byte {
            b'"' | b'\\' | b'/' => byte,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            _ => return Err(Syntax::Escape),
        };
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
    ) -> Result<bool, Syntax> {
        let digit = char::from(byte)
            .to_digit(16)
            .and_then(|digit| u16::try_from(digit).ok());
        let value = value.wrapping_shl(4) | digit.ok_or(Syntax::Escape)?;
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

    fn keep<V: Visitor>(&mut self, bytes: &[u8], visitor: &mut V) {
        if self.tell {
            visitor.bytes(bytes);
        }
        self.text_bytes = self
            .text_bytes
            .saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        let room = self.keep.saturating_sub(self.kept.len());
        if room > 0 {
            let (fits, _) = bytes.split_at_checked(room).unwrap_or((bytes, &[]));
            self.kept.extend_from_slice(fits);
        }
    }

    fn end_text<V: Visitor>(&mut self, visitor: &mut V) -> Result<(), V::Stop> {
        // The limit may have cut the last character.
        let kept = match core::str::from_utf8(&self.kept) {
            Ok(kept) => kept,
            Err(cut) => self
                .kept
                .get(..cut.valid_up_to())
                .and_then(|b| core::str::from_utf8(b).ok())
                .unwrap_or(""),
        };
        let text = Text {
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
    ) -> Result<bool, Why<V::Stop>> {
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

    fn end_number<V: Visitor>(&mut self, number: Number, visitor: &mut V) -> Result<(), Why<V::Stop>> {
        match number {
            Number::Zero | Number::Whole | Number::Fraction | Number::ExponentDigits => {
                let in_array = self.depth > 0 && !self.in_object();
                self.after_value();
                visitor.number(self.whole.take(), in_array).map_err(Why::Stopped)
            }
            Number::Minus | Number::Dot | Number::Exponent | Number::ExponentSign => {
                Err(Why::Syntax(Syntax::Number))
            }
        }
    }

    fn in_word<V: Visitor>(
        &mut self,
        byte: u8,
        rest: &'static [u8],
        word: Word,
        visitor: &mut V,
    ) -> Result<bool, Why<V::Stop>> {
        match rest.split_first() {
            Some((expected, rest)) if *expected == byte => {
                if rest.is_empty() {
                    self.after_value();
                    visitor.word(word).map_err(Why::Stopped)?;
                } else {
                    self.state = State::Word { rest, word };
                }
                Ok(true)
            }
            _ => Err(Why::Syntax(Syntax::Word)),
        }
    }
}

fn digit(byte: u8) -> u64 {
    u64::from(byte.wrapping_sub(b'0'))
}

/// Splits off the leading bytes of a string that stand for themselves: printable ASCII but quote and backslash.
fn split_plain(bytes: &[u8]) -> (&[u8], &[u8]) {
    split_before(
        bytes,
        |word| (word & HIGHS) | specials(word),
        |byte| !byte.is_ascii() || is_special(byte),
    )
}

/// Splits off the leading characters of a string that stand for themselves, whatever their alphabet; a character that
/// isn't whole, or none, ends them.
fn split_text(bytes: &[u8]) -> (&[u8], &[u8]) {
    let (run, _) = split_before(bytes, specials, is_special);
    let whole = match core::str::from_utf8(run) {
        Ok(text) => text.len(),
        Err(error) => error.valid_up_to(),
    };
    bytes.split_at_checked(whole).unwrap_or((&[], bytes))
}

/// Splits off the bytes before the first that both find: of eight, the lowest high bit of what `of_eight` returns marks
/// it; the last few are asked one by one.
fn split_before(bytes: &[u8], of_eight: impl Fn(u64) -> u64, of_one: impl Fn(u8) -> bool) -> (&[u8], &[u8]) {
    let (words, tail) = bytes.as_chunks::<8>();
    let mut run = 0_usize;
    for word in words {
        let found = of_eight(u64::from_le_bytes(*word));
        if found != 0 {
            let before = usize::try_from(found.trailing_zeros() / 8).unwrap_or(0);
            return split_at(bytes, run.saturating_add(before));
        }
        run = run.saturating_add(8);
    }
    let before = tail.iter().position(|byte| of_one(*byte)).unwrap_or(tail.len());
    split_at(bytes, run.saturating_add(before))
}

fn split_at(bytes: &[u8], at: usize) -> (&[u8], &[u8]) {
    bytes.split_at_checked(at).unwrap_or((bytes, &[]))
}

fn is_special(byte: u8) -> bool {
    matches!(byte, 0..0x20 | b'"' | b'\\')
}

const HIGHS: u64 = 0x8080_8080_8080_8080;

/// Eight bytes at once: a high bit where one is special, 0 if none is. The lowest bit is right; above it one may be called
/// special that isn't (a borrow reaches only higher bytes).
fn specials(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const CONTROLS: u64 = 0x2020_2020_2020_2020;
    const QUOTES: u64 = 0x2222_2222_2222_2222;
    const SLASHES: u64 = 0x5c5c_5c5c_5c5c_5c5c;
    let below = word.wrapping_sub(CONTROLS) & !word;
    let quote = (word ^ QUOTES).wrapping_sub(ONES) & !(word ^ QUOTES);
    let slash = (word ^ SLASHES).wrapping_sub(ONES) & !(word ^ SLASHES);
    (below | quote | slash) & HIGHS
}
