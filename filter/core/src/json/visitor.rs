//! The interface between the JSON reader and its users: callbacks for each element, and the errors.

use core::fmt;

/// Receives the elements of a document, in order.
pub(crate) trait Visitor {
    /// The reason for which a visitor stops the reader.
    type Stop;
    /// How many decoded bytes of the next key to keep.
    fn key_limit(&self) -> usize;
    /// How many decoded bytes of the next string value to keep.
    fn string_limit(&self) -> usize;
    /// Whether `string_bytes` is called with the decoded bytes of the next string value.
    fn wants_string_bytes(&self) -> bool {
        false
    }
    /// The next decoded bytes of a string value; `string` follows at its end.
    fn string_bytes(&mut self, _: &[u8]) {}
    fn key(&mut self, key: JsonString<'_>) -> Result<(), Self::Stop>;
    fn string(&mut self, value: JsonString<'_>) -> Result<(), Self::Stop>;
    /// A number. `whole` is its value if that is a whole number of 64 bits, without an exponent. `in_array`: an item of an array, not a member
    /// of an object.
    fn number(&mut self, whole: Option<u64>, in_array: bool) -> Result<(), Self::Stop>;
    fn literal(&mut self, literal: Literal) -> Result<(), Self::Stop>;
    fn open(&mut self, container: Container) -> Result<(), Self::Stop>;
    fn close(&mut self);
}

/// A string of the document.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JsonString<'a> {
    /// The decoded string, cut at the visitor's limit.
    pub(crate) kept: &'a str,
    /// Length of the whole decoded string in UTF-8.
    pub(crate) bytes: u64,
    /// Offsets in the document of the first quote and of the byte after the last quote.
    pub(crate) begin: u64,
    pub(crate) end: u64,
}

impl JsonString<'_> {
    /// Whether the limit has cut the string.
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

/// Where and why reading stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadError<S> {
    /// Offset of the offending byte, from 0.
    pub(crate) offset: u64,
    pub(crate) cause: Cause<S>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause<S> {
    Syntax(SyntaxError),
    /// The visitor stopped the reader.
    Stopped(S),
}

/// A violation of the JSON grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyntaxError {
    /// Expected a value.
    Value,
    /// Expected a key or `}`.
    Key,
    /// Expected `:`.
    Colon,
    /// Expected a comma or the end of the container.
    Comma,
    /// The document is followed by more bytes.
    Trailing,
    /// A malformed number.
    Number,
    /// `true`, `false` or `null` is misspelt.
    Literal,
    /// An unknown escape.
    Escape,
    /// A control character that isn't escaped.
    Control,
    /// Not UTF-8.
    Utf8,
    /// Containers are nested too deep.
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
