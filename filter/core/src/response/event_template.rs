//! The last event of a stream, as a template for the next one.
//!
//! The events of a model server differ in their text alone. So an event with the same bytes before and after its text has the
//! same elements, and the scanner needs to read nothing but the text. Any other event is read as JSON.

use crate::json::split_text;
use crate::limits::EVENT_TEMPLATE_BYTES_MAX;

/// An event with one string for the answer's text, and without token counts.
#[derive(Debug, Default)]
pub(super) struct EventTemplate {
    /// The event's bytes without the text between the quotes; empty: there is no template.
    bytes: Vec<u8>,
    /// The number of bytes before the text.
    before: usize,
}

/// An event that has the template's form.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Matched<'a> {
    /// Decoded bytes of the event's text.
    pub(super) text_bytes: u64,
    /// The event's last byte is a carriage return.
    pub(super) ends_with_cr: bool,
    /// The bytes that follow the event.
    pub(super) rest: &'a [u8],
}

impl EventTemplate {
    /// Takes the event of which `before` comes before its text, and `after` from the closing quote on.
    pub(super) fn learn(&mut self, before: &[u8], after: &[u8]) {
        self.bytes.clear();
        let length = before.len().saturating_add(after.len());
        if length <= EVENT_TEMPLATE_BYTES_MAX {
            self.bytes.reserve(length);
            self.bytes.extend_from_slice(before);
            self.bytes.extend_from_slice(after);
            self.before = before.len();
        }
    }

    /// Splits off a whole event with the template's form.
    pub(super) fn split_event<'a>(&self, bytes: &'a [u8]) -> Option<Matched<'a>> {
        let (before, after) = self.bytes.split_at_checked(self.before)?;
        let last = after.last()?;
        let text = strip_prefix(bytes, before)?;
        let (text_bytes, rest) = skip_text(text)?;
        Some(Matched { text_bytes, ends_with_cr: *last == b'\r', rest: strip_prefix(rest, after)? })
    }
}

/// `bytes` without `prefix`. It compares many bytes at a time, because the module's `memcmp` compares one.
fn strip_prefix<'a>(bytes: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    let (begin, rest) = bytes.split_at_checked(prefix.len())?;
    let (blocks, tail) = begin.as_chunks::<16>();
    let (prefix_blocks, prefix_tail) = prefix.as_chunks::<16>();
    let word = |block: &[u8; 16]| u128::from_le_bytes(*block);
    let are_equal = blocks.iter().map(word).eq(prefix_blocks.iter().map(word));
    (are_equal && tail == prefix_tail).then_some(rest)
}

/// The decoded bytes of a string, and the bytes from its closing quote on; `None`: it is malformed, or has no end.
fn skip_text(mut bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut decoded = 0_usize;
    // The last element was a high surrogate, which counts as U+FFFD unless a low one follows.
    let mut after_high = false;
    loop {
        let (text, after) = split_text(bytes);
        decoded = decoded.saturating_add(text.len());
        after_high &= text.is_empty();
        let (size, is_high, rest) = match after {
            [b'"', ..] => return Some((u64::try_from(decoded).ok()?, after)),
            [b'\\', b'u', a, b, c, d, rest @ ..] => {
                let unit = code_unit([*a, *b, *c, *d])?;
                let size = match unit {
                    0..=0x7f => 1,
                    0x80..=0x7ff => 2,
                    // With the three bytes of the high surrogate, the pair has four.
                    0xdc00..=0xdfff if after_high => 1,
                    0x800.. => 3,
                };
                (size, matches!(unit, 0xd800..=0xdbff), rest)
            }
            [b'\\', b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', rest @ ..] => (1, false, rest),
            _ => return None,
        };
        decoded = decoded.saturating_add(size);
        (after_high, bytes) = (is_high, rest);
    }
}

/// The code unit of an escape with these hexadecimal digits.
fn code_unit(digits: [u8; 4]) -> Option<u16> {
    digits.into_iter().try_fold(0_u16, |unit, digit| {
        let digit = char::from(digit).to_digit(16).and_then(|digit| u16::try_from(digit).ok())?;
        Some(unit.wrapping_shl(4) | digit)
    })
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    fn template() -> EventTemplate {
        let mut template = EventTemplate::default();
        template.learn(b"data: {\"id\":\"chatcmpl-1\",\"delta\":\"", b"\"}\n\n");
        template
    }

    fn matched(text: &str) -> Option<u64> {
        let event = format!("data: {{\"id\":\"chatcmpl-1\",\"delta\":\"{text}\"}}\n\nmore");
        let template = template();
        let matched = template.split_event(event.as_bytes())?;
        assert_eq!((matched.rest, matched.ends_with_cr), (&b"more"[..], false));
        Some(matched.text_bytes)
    }

    #[test]
    fn event_with_another_text_matches() {
        for (text, bytes) in [
            ("", 0),
            ("a", 1),
            (" word", 5),
            ("\u{e4}\u{1f600} b", 8),
            (r#"\"\\\/\b\f\n\r\t"#, 8),
            (r"\u00e4\ud800x", 6),
            (r"a\u00E4\u0041\u20ac", 7),
            (r"\ud83d\ude00", 4),
            (r"\ud83d\ud83d\ude00\ude00", 10),
        ] {
            assert_eq!(matched(text), Some(bytes), "{text}");
        }
    }

    #[test]
    fn malformed_text_does_not_match() {
        for text in ["\u{1}", r"\x", r"\u12", r"\u12g4", "\n", r"\"] {
            assert_eq!(matched(text), None, "{text}");
        }
        let mut invalid = b"data: {\"id\":\"chatcmpl-1\",\"delta\":\"".to_vec();
        invalid.extend_from_slice(b"\xff\"}\n\n");
        assert_eq!(template().split_event(&invalid), None);
    }

    #[test]
    fn other_bytes_around_the_text_do_not_match() {
        let event = "data: {\"id\":\"chatcmpl-1\",\"delta\":\"a\"}\n\n";
        for position in 0..event.len() {
            if event.as_bytes()[position] == b'a' {
                continue;
            }
            let mut other = event.as_bytes().to_vec();
            other[position] = b'#';
            assert_eq!(template().split_event(&other), None, "{position}");
        }
        for end in 0..event.len() {
            assert_eq!(template().split_event(&event.as_bytes()[..end]), None, "{end}");
        }
    }

    #[test]
    fn long_event_is_no_template() {
        let mut template = template();
        template.learn(&[b'x'; EVENT_TEMPLATE_BYTES_MAX], b"\"\n\n");
        assert_eq!(template.split_event(&[b'x'; EVENT_TEMPLATE_BYTES_MAX]), None);
        assert_eq!(EventTemplate::default().split_event(b""), None);
    }
}
