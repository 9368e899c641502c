//! What a JSON document is told as while it is read: the words between `reader` and those who want something of it.

use core::fmt;

/// What a document is told to, in its order.
pub(crate) trait Visitor {
    /// Cause a visitor stops the reader.
    type Stop;
    /// How many decoded bytes of the key that begins are kept.
    fn keep_key(&self) -> usize;
    /// How many decoded bytes of the string value that begins are kept.
    fn keep_string(&self) -> usize;
    /// The decoded bytes of the string value that begins are to be told as they are read.
    fn wants_bytes(&self) -> bool {
        false
    }
    /// The next bytes of such a string; its end is told by `string`.
    fn bytes(&mut self, bytes: &[u8]) {
        let _nobody_asked = bytes;
    }
    fn key(&mut self, key: JsonString<'_>) -> Result<(), Self::Stop>;
    fn string(&mut self, value: JsonString<'_>) -> Result<(), Self::Stop>;
    /// A number, with its value if that is a whole one that fits; `in_array`: it is an item, not a member.
    fn number(&mut self, whole: Option<u64>, in_array: bool) -> Result<(), Self::Stop>;
    fn word(&mut self, word: Literal) -> Result<(), Self::Stop>;
    fn open(&mut self, container: Container) -> Result<(), Self::Stop>;
    fn close(&mut self);
}

/// A string of the document.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JsonString<'a> {
    /// Its beginning, up to the limit that was asked for.
    pub(crate) kept: &'a str,
    /// Its whole length in UTF-8.
    pub(crate) bytes: u64,
    /// Where it stands in the document, its quotes included.
    pub(crate) begin: u64,
    pub(crate) end: u64,
}

impl JsonString<'_> {
    /// The limit has cut it.
    pub(crate) fn is_cut(self) -> bool {
        u64::try_from(self.kept.len()).is_ok_and(|kept| kept < self.bytes)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Container {
    Object,
    Array,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Literal {
    True,
    False,
    Null,
}

/// Cause a document isn't read further, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadError<S> {
    /// The offset of the byte that can't be, from 0.
    pub(crate) at: u64,
    pub(crate) why: Cause<S>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause<S> {
    Syntax(SyntaxError),
    Stopped(S),
}

/// What JSON doesn't allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyntaxError {
    /// A value must stand here.
    Value,
    /// A key or `}` must stand here.
    Key,
    /// A `:` must stand here.
    Colon,
    /// A comma or the container's end must stand here.
    Comma,
    /// Nothing may follow the document.
    Trailing,
    /// A number can't go on like this.
    Number,
    /// `true`, `false` or `null` is misspelt.
    Literal,
    /// An unknown escape.
    Escape,
    /// A control character that isn't escaped.
    Control,
    /// Not UTF-8.
    Utf8,
    /// Containers nest too deep.
    Depth,
    /// The document ends before it is complete.
    Unfinished,
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Value => "expected a value",
            Self::Key => "expected a key in double quotes",
            Self::Colon => "expected `:` after a key",
            Self::Comma => "expected `,` or the end of the object or array",
            Self::Trailing => "there is more after the end of the object",
            Self::Number => "a number is malformed",
            Self::Literal => "expected `true`, `false` or `null`",
            Self::Escape => "an escape in a string is malformed",
            Self::Control => "a control character in a string isn't escaped",
            Self::Utf8 => "a string isn't UTF-8",
            Self::Depth => "objects and arrays are nested deeper than 127 levels",
            Self::Unfinished => "it ends before it is complete",
        })
    }
}
