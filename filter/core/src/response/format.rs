//! The format of a response body: as its headers announce it, or as its first bytes show it.

/// The format of a response body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON document.
    Json,
    /// Server-sent events.
    Sse,
    /// An answer that the scanner can't read: compressed, or no text. Its first byte counts as its first token.
    Opaque,
    /// Text that is no JSON: a page for people. It is no answer.
    Text,
    /// The first bytes decide: JSON, or `Text` if `is_text`, or else `Opaque`.
    Unknown {
        /// The headers announce text, or nothing.
        is_text: bool,
    },
}

impl Format {
    /// The format that the response headers announce.
    #[must_use]
    pub fn from_headers(content_type: Option<&[u8]>, content_encoding: Option<&[u8]>) -> Self {
        if content_encoding.is_some_and(|coding| !coding.trim_ascii().eq_ignore_ascii_case(b"identity")) {
            return Self::Opaque;
        }
        let essence = content_type.and_then(|value| value.split(|byte| *byte == b';').next());
        let essence = essence.unwrap_or_default().trim_ascii();
        let begins =
            |begin: &[u8]| essence.get(..begin.len()).is_some_and(|first| first.eq_ignore_ascii_case(begin));
        let ends = |end: &[u8]| {
            let last = essence.len().checked_sub(end.len()).and_then(|before| essence.get(before..));
            last.is_some_and(|last| last.eq_ignore_ascii_case(end))
        };
        if essence.eq_ignore_ascii_case(b"text/event-stream") {
            Self::Sse
        } else if ends(b"/json") || ends(b"+json") {
            Self::Json
        } else {
            Self::Unknown { is_text: essence.is_empty() || begins(b"text/") || ends(b"xml") }
        }
    }

    /// The format of a body that begins with these bytes, before which there was only white space.
    pub(super) fn at_begin(self, bytes: &[u8]) -> Self {
        match (self, first_byte(bytes)) {
            // A server may report an error without an event around it.
            (Self::Sse | Self::Unknown { .. }, Some(b'{')) => Self::Json,
            (Self::Unknown { is_text: true }, Some(_)) => Self::Text,
            (Self::Unknown { is_text: false }, Some(_)) => Self::Opaque,
            (format, _) => format,
        }
    }
}

/// White space of JSON.
pub(super) const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// The first byte that isn't white space.
fn first_byte(bytes: &[u8]) -> Option<u8> {
    bytes.iter().copied().find(|byte| !is_space(*byte))
}
