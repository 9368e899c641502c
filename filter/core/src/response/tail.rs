//! The end of a long JSON document, in which model servers put the token counts.
//!
//! Reading 1,536 numbers or a long text only to reach the counts behind them costs more than all the rest of a request. So the scanner
//! skips the beginning, and reads the last `usage` in the end as the last member of the document's object.

use core::convert::Infallible;

use crate::json::{ReadError, Reader};
use crate::limits::RESPONSE_TAIL_BYTES;
use crate::usage::UsageCollector;

const USAGE: &[u8] = b"\"usage\"";

/// The end of a document, as far as it has arrived.
#[derive(Debug)]
pub(super) struct Tail {
    /// Bytes of the document that are still to come before its end.
    ahead: usize,
    bytes: Vec<u8>,
}

impl Tail {
    /// The end of a document of `length` bytes; `None`: it is short enough to be read whole.
    pub(super) fn of(length: usize) -> Option<Self> {
        let ahead = length.checked_sub(RESPONSE_TAIL_BYTES)?;
        (ahead > RESPONSE_TAIL_BYTES).then_some(Self { ahead, bytes: Vec::new() })
    }

    /// How many of the next `size` bytes come before the end.
    pub(super) fn skip(&mut self, size: usize) -> usize {
        let skipped = size.min(self.ahead);
        self.ahead = self.ahead.saturating_sub(skipped);
        skipped
    }

    /// Keeps the next bytes of the end.
    pub(super) fn keep(&mut self, bytes: &[u8]) {
        let room = RESPONSE_TAIL_BYTES.saturating_sub(self.bytes.len());
        let (kept, _) = bytes.split_at_checked(room).unwrap_or((bytes, &[]));
        self.bytes.extend_from_slice(kept);
    }

    /// The counts of the document; `None`: its `usage` isn't in the end, or isn't a member of the outermost object.
    pub(super) fn counts(&self) -> Option<UsageCollector> {
        let begin = self.bytes.windows(USAGE.len()).rposition(|bytes| bytes == USAGE)?;
        let (before, members) = self.bytes.split_at_checked(begin)?;
        // In a string, a backslash comes before each quote.
        if before.last() == Some(&b'\\') {
            return None;
        }
        let (mut reader, mut collector) = (Reader::new(), UsageCollector::default());
        let mut read =
            |bytes: &[u8]| -> Result<(), ReadError<Infallible>> { reader.feed(bytes, &mut collector) };
        read(b"{").ok()?;
        read(members).ok()?;
        reader.finish(&mut collector).ok()?;
        collector.has_counts().then_some(collector)
    }
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;
    use crate::usage::Usage;

    fn counts(end: &str) -> Option<Usage> {
        let mut tail = Tail::of(1 << 20).expect("a long document");
        tail.keep(end.as_bytes());
        tail.counts().map(|collector| collector.usage())
    }

    fn prompt(tokens: u64) -> Option<Usage> {
        Some(Usage { prompt: Some(tokens), ..Usage::default() })
    }

    #[test]
    fn last_usage_of_the_outermost_object_counts() {
        assert_eq!(counts(r#"0.1]}],"usage":{"prompt_tokens":7}}"#), prompt(7));
        assert_eq!(
            counts("\"}], \"usage\" :\n{\"prompt_tokens\": 7}, \"prompt_logprobs\": [{}, null]}\n"),
            prompt(7)
        );
        assert_eq!(counts(r#""usage":{"prompt_tokens":9}},"usage":{"prompt_tokens":7}}"#), prompt(7));
    }

    #[test]
    fn other_ends_have_no_counts() {
        for end in [
            "",
            r#"0.1]}]}"#,
            // Of an inner object.
            r#"{"usage":{"prompt_tokens":7}}}"#,
            r#"[{"usage":{"prompt_tokens":7}}]}"#,
            // In a text.
            r#"\"usage\":{\"prompt_tokens\":7}}"}"#,
            r#"say \"usage":{"prompt_tokens":7}}"#,
            r#""usage"}"#,
            // Incomplete.
            r#""usage":{"prompt_tokens":7}"#,
            r#""usage":{"prompt_tok"#,
            // Without counts.
            r#""usage":null}"#,
            r#""usage":{}}"#,
        ] {
            assert_eq!(counts(end), None, "{end}");
        }
    }

    #[test]
    fn only_the_end_of_a_long_document_is_kept() {
        assert!(Tail::of(2 * RESPONSE_TAIL_BYTES).is_none());
        let mut tail = Tail::of(2 * RESPONSE_TAIL_BYTES + 10).expect("a long document");
        assert_eq!(tail.skip(RESPONSE_TAIL_BYTES), RESPONSE_TAIL_BYTES);
        assert_eq!(tail.skip(50), 10);
        assert_eq!(tail.skip(50), 0);
        tail.keep(&[b'x'; RESPONSE_TAIL_BYTES + 1]);
        assert_eq!(tail.bytes.len(), RESPONSE_TAIL_BYTES);
    }
}
