//! Asks a server for token counts in a stream, for a client that doesn't ask, and hides from this client the event that has them.
//!
//! OpenAI's servers count a streamed answer only if the request has `stream_options.include_usage`. Then an additional event before
//! the end has the counts and an empty list of choices. Many clients read the first choice of every event, so it must not reach one
//! that didn't ask for it.

use memchr::memmem;
use penstock_wire::Api;

use crate::body::Body;
use crate::limits::HELD_BYTES_MAX;
use crate::rewrite::{BufferedBody, Rewrite};

/// The option, as the first member of a request's body. The body has other members, because it asks for a stream.
const OPTION: &[u8] = br#""stream_options":{"include_usage":true},"#;
/// White space before a body in which its opening brace is looked for.
const FRONT_BYTES: usize = 64;

/// Whether a server counts this answer only if it is asked, and its client hasn't decided about that.
///
/// A client with `stream_options` of its own keeps them: they come later in the body, and the last of several equal keys counts.
pub(crate) fn is_uncounted(api: Api, body: &Body) -> bool {
    matches!(api, Api::ChatCompletions | Api::Completions) && body.stream && !body.has_stream_options
}

/// Puts the option into a buffered request body of `length` bytes. Returns the number of bytes added; `None`: the body stays as it is.
pub(crate) fn add_option(body: &mut impl BufferedBody, length: usize) -> Option<usize> {
    let front = body.read(0, FRONT_BYTES)?;
    let after_brace = memchr::memchr(b'{', &front)?.saturating_add(1);
    let rewrite = Rewrite { range: after_brace..after_brace, text: OPTION.to_vec(), length };
    body.rewrite(&rewrite).then_some(OPTION.len())
}

/// Removes the event with the counts from the events that pass.
#[derive(Debug, Default)]
pub(crate) struct UsageHider {
    /// The beginning of an event of which the rest hasn't arrived.
    begun: Vec<u8>,
}

impl UsageHider {
    /// Takes the next bytes of the stream. Returns what passes in their place; `None`: the bytes pass as they are.
    ///
    /// At the `end` of the stream everything passes that has been kept back.
    pub(crate) fn pass(&mut self, bytes: &[u8], end: bool) -> Option<Vec<u8>> {
        let mut events = core::mem::take(&mut self.begun);
        let had_begun = !events.is_empty();
        events.extend_from_slice(bytes);
        let mut passing = Vec::with_capacity(events.len());
        let mut rest = events.as_slice();
        while let Some((event, after)) = split_event(rest) {
            if !has_only_counts(event) {
                passing.extend_from_slice(event);
            }
            rest = after;
        }
        // An event that is so long isn't that with the counts.
        if end || rest.len() > HELD_BYTES_MAX {
            if !(end && has_only_counts(rest)) {
                passing.extend_from_slice(rest);
            }
        } else {
            self.begun = rest.to_vec();
        }
        (had_begun || passing.len() != bytes.len()).then_some(passing)
    }
}

/// The next event with the blank line at its end, and the bytes after it; `None`: it hasn't arrived whole.
fn split_event(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let ends = memchr::memchr2_iter(b'\n', b'\r', bytes);
    let length = ends.filter_map(|end| {
        let after = bytes.get(end..)?;
        let blank: [&[u8]; 3] = [b"\n\n", b"\n\r\n", b"\r\r"];
        let line_ends = blank.into_iter().find(|line_ends| after.starts_with(line_ends))?;
        end.checked_add(line_ends.len())
    });
    bytes.split_at_checked(length.min()?)
}

/// The event has counts and no choice.
fn has_only_counts(event: &[u8]) -> bool {
    // In a string, the quotes of these names would be escaped.
    let Some(choices) = memmem::find(event, br#""choices""#) else {
        return false;
    };
    let after = event.get(choices..).unwrap_or_default().iter().skip(br#""choices""#.len());
    let mut value = after.filter(|byte| !byte.is_ascii_whitespace());
    let is_empty = value.next() == Some(&b':') && value.next() == Some(&b'[') && value.next() == Some(&b']');
    is_empty && memmem::find(event, br#""usage""#).is_some()
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    const TEXT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"choices\\\":[] \\\"usage\\\"\"}}],\"usage\":null}\n\n";
    const COUNTS: &str = "data: {\"id\":\"1\",\"choices\": [ ],\"usage\":{\"completion_tokens\":4}}\n\n";
    const DONE: &str = "data: [DONE]\n\n";

    fn passed(stream: &str, sizes: usize) -> String {
        let mut hider = UsageHider::default();
        let pieces: Vec<&[u8]> = stream.as_bytes().chunks(sizes).collect();
        let mut passed = Vec::new();
        for (index, piece) in pieces.iter().enumerate() {
            let edited = hider.pass(piece, index + 1 == pieces.len());
            passed.extend_from_slice(edited.as_deref().unwrap_or(piece));
        }
        String::from_utf8(passed).expect("text")
    }

    #[test]
    fn event_with_the_counts_alone_is_hidden_however_the_stream_is_cut() {
        for line_end in ["\n", "\r\n", "\r"] {
            let stream = [TEXT, COUNTS, DONE].concat().replace('\n', line_end);
            let expected = [TEXT, DONE].concat().replace('\n', line_end);
            for sizes in 1..=stream.len() {
                assert_eq!(passed(&stream, sizes), expected, "{sizes}");
            }
        }
    }

    #[test]
    fn events_without_counts_pass_as_they_are() {
        let mut hider = UsageHider::default();
        assert_eq!(hider.pass(TEXT.as_bytes(), false), None);
        assert_eq!(hider.pass(b": ping\n\n", false), None);
        assert_eq!(hider.pass(b"data: {\"choices\":[],\"prompt_filter_results\":[]}\n\n", false), None);
        assert_eq!(hider.pass(DONE.as_bytes(), true), None);
    }

    #[test]
    fn end_of_the_stream_loses_nothing_and_hides_counts_without_a_blank_line() {
        assert_eq!(passed("data: {\"choi", 5), "data: {\"choi");
        assert_eq!(passed(&format!("{TEXT}{}", COUNTS.trim_end()), 7), TEXT);
    }

    #[test]
    fn long_event_passes_before_its_end() {
        let mut hider = UsageHider::default();
        let event = vec![b'x'; HELD_BYTES_MAX + 1];
        assert_eq!(hider.pass(&event, false), None);
        assert_eq!(hider.pass(b"\n\n", true), None);
    }

    #[test]
    fn option_comes_first_in_the_body() {
        let mut body = Buffered(b" {\"model\":\"m\"}".to_vec());
        assert_eq!(add_option(&mut body, 14), Some(OPTION.len()));
        assert_eq!(body.0, br#" {"stream_options":{"include_usage":true},"model":"m"}"#);
        let mut spaces = Buffered(vec![b' '; FRONT_BYTES + 1]);
        assert_eq!(add_option(&mut spaces, FRONT_BYTES + 1), None);
        assert_eq!(add_option(&mut |_: usize, _: usize| Some(b"{".to_vec()), 1), None, "the host fails");
    }

    struct Buffered(Vec<u8>);

    impl BufferedBody for Buffered {
        fn read(&mut self, start: usize, length: usize) -> Option<Vec<u8>> {
            Some(self.0[start..self.0.len().min(start + length)].to_vec())
        }

        fn rewrite(&mut self, rewrite: &Rewrite) -> bool {
            assert!(rewrite.fits(self.0.len()));
            self.0.splice(rewrite.range.clone(), rewrite.text.iter().copied());
            true
        }
    }
}
