//! Changes a request body that the host buffers: replaces the model in it, or adds an option.
//!
//! A host that can change only the ends of a body changes bytes in the middle in one of two ways. Envoy is one for WebAssembly: a filter can
//! replace the first bytes, and append to the end. If few bytes are before the change, [`Rewrite::apply_at_ends`] reads these and replaces
//! everything up to the change. If many are, it rotates the whole body once, a slice at a time from the front to the end, because linear
//! memory never shrinks and shouldn't grow to the size of a body. At no time is the body longer than before by more than the change, so the
//! rewrite can't exceed the host's buffer limit.

use core::ops::{ControlFlow, Range};

use crate::limits::{REWRITE_FRONT_BYTES, SLICE_BYTES};

/// A replacement of some bytes of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// The bytes to replace; empty: nothing is replaced, and the text comes before the byte at its start.
    pub range: Range<usize>,
    /// The bytes to put in their place.
    pub text: Vec<u8>,
    /// Length of the body before the rewrite.
    pub length: usize,
}

/// A request body that the host buffers.
pub trait BufferedBody {
    /// At most `length` bytes from `start` on; `None`: the host fails.
    fn read(&mut self, start: usize, length: usize) -> Option<Vec<u8>>;
    /// Passes the bytes of `range` to `take`, in order and in as many pieces as the host likes, until `take` breaks off. Before the `end` of
    /// the body the host may leave the last bytes for a later call. A host that fails passes fewer bytes.
    ///
    /// This implementation is for a host that copies the bytes. It waits for full slices, because a copy of a few bytes costs it as much as one of many.
    fn visit<B>(
        &mut self,
        range: Range<usize>,
        end: bool,
        mut take: impl FnMut(&[u8]) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let mut start = range.start;
        loop {
            let length = range.end.saturating_sub(start).min(SLICE_BYTES);
            if length == 0 || (length < SLICE_BYTES && !end) {
                return ControlFlow::Continue(());
            }
            let Some(slice) = self.read(start, length).filter(|slice| !slice.is_empty()) else {
                return ControlFlow::Continue(());
            };
            start = start.saturating_add(slice.len());
            take(&slice)?;
        }
    }

    /// Carries out a rewrite. Returns `false` if the body isn't as expected or the host fails; the body is then incomplete and must not be
    /// sent.
    fn rewrite(&mut self, rewrite: &Rewrite) -> bool;
    /// Bytes of the body as it arrived, before Envoy decoded it; `None`: unknown.
    fn received(&mut self) -> Option<u64> {
        None
    }
}

/// Passes the bytes of `range` of a body that lies in `pieces` to `take`, where they lie.
pub fn visit_pieces<'a, B>(
    pieces: impl IntoIterator<Item = &'a [u8]>,
    range: &Range<usize>,
    mut take: impl FnMut(&'a [u8]) -> ControlFlow<B>,
) -> ControlFlow<B> {
    let (mut before, mut left) = (range.start, range.len());
    for piece in pieces {
        if left == 0 {
            break;
        }
        let skipped = before.min(piece.len());
        before = before.saturating_sub(skipped);
        let rest = piece.get(skipped..).unwrap_or_default();
        let (wanted, _) = rest.split_at_checked(left).unwrap_or((rest, &[]));
        left = left.saturating_sub(wanted.len());
        if !wanted.is_empty() {
            take(wanted)?;
        }
    }
    ControlFlow::Continue(())
}

/// A body that can only be read.
impl<F: FnMut(usize, usize) -> Option<Vec<u8>>> BufferedBody for F {
    fn read(&mut self, start: usize, length: usize) -> Option<Vec<u8>> {
        self(start, length)
    }

    fn rewrite(&mut self, _: &Rewrite) -> bool {
        false
    }
}

/// A body of which the host can change only the ends.
pub trait BodyEnds {
    /// As [`BufferedBody::read`].
    fn read(&mut self, start: usize, length: usize) -> Option<Vec<u8>>;
    /// Replaces the first `length` bytes. Returns `false` if the host fails.
    fn replace_front(&mut self, length: usize, bytes: &[u8]) -> bool;
    /// Appends bytes. Returns `false` if the host fails.
    fn append(&mut self, bytes: &[u8]) -> bool;
}

impl Rewrite {
    /// Replaces the JSON string at `range`, in a body of `length` bytes, by the string `text`.
    #[must_use]
    pub fn json_string(range: &Range<u64>, text: &str, length: u64) -> Self {
        let index = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
        Self {
            range: index(range.start)..index(range.end),
            text: serde_json::to_vec(text).unwrap_or_default(),
            length: index(length),
        }
    }

    /// Length of the body after the rewrite.
    #[must_use]
    pub fn length_after(&self) -> usize {
        let left = self.length.saturating_sub(self.range.len());
        left.saturating_add(self.text.len())
    }

    /// The rewrite replaces a part of a body of `length` bytes.
    #[must_use]
    pub const fn fits(&self, length: usize) -> bool {
        self.length == length && self.range.start <= self.range.end && self.range.end <= length
    }

    /// Rewrites a body of which the host can change only the ends. Returns `false` as [`BufferedBody::rewrite`].
    #[must_use]
    pub fn apply_at_ends(&self, body: &mut impl BodyEnds) -> bool {
        let Range { start, end } = self.range;
        if !self.fits(self.length) {
            return false;
        }
        if start <= REWRITE_FRONT_BYTES {
            let front = if start == 0 { Some(Vec::new()) } else { body.read(0, start) };
            let Some(mut front) = front.filter(|front| front.len() == start) else {
                return false;
            };
            // Growing by doubling would keep twice the memory for ever.
            front.reserve_exact(self.text.len());
            front.extend_from_slice(&self.text);
            return body.replace_front(end, &front);
        }
        rotate(body, start)
            && body.replace_front(self.range.len(), &[])
            && body.append(&self.text)
            && rotate(body, self.length.saturating_sub(end))
    }
}

/// Moves the first `length` bytes of a body to its end.
fn rotate(body: &mut impl BodyEnds, length: usize) -> bool {
    let mut left = length;
    while left > 0 {
        let Some(slice) = body.read(0, left.min(SLICE_BYTES)).filter(|slice| !slice.is_empty()) else {
            return false;
        };
        if slice.len() > left || !body.replace_front(slice.len(), &[]) || !body.append(&slice) {
            return false;
        }
        left = left.saturating_sub(slice.len());
    }
    true
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    /// A buffered body that counts its greatest length and fails the call with the number `fails`.
    struct Body {
        bytes: Vec<u8>,
        longest: usize,
        fails: Option<usize>,
    }

    impl Body {
        fn new(bytes: &[u8]) -> Self {
            Self { bytes: bytes.to_vec(), longest: bytes.len(), fails: None }
        }

        fn count_call(&mut self) -> bool {
            self.longest = self.longest.max(self.bytes.len());
            let fails = self.fails == Some(0);
            self.fails = self.fails.and_then(|left| left.checked_sub(1));
            !fails
        }
    }

    impl BodyEnds for Body {
        fn read(&mut self, start: usize, length: usize) -> Option<Vec<u8>> {
            let end = self.bytes.len().min(start.saturating_add(length));
            self.count_call().then(|| self.bytes[start..end].to_vec())
        }

        fn replace_front(&mut self, length: usize, bytes: &[u8]) -> bool {
            let length = length.min(self.bytes.len());
            self.bytes.splice(..length, bytes.iter().copied());
            self.count_call()
        }

        fn append(&mut self, bytes: &[u8]) -> bool {
            self.bytes.extend_from_slice(bytes);
            self.count_call()
        }
    }

    fn numbered(length: usize) -> Vec<u8> {
        (0..length).map(|position| u8::try_from(position % 251).expect("a byte")).collect()
    }

    fn rewrite(range: Range<usize>, text: &[u8], length: usize) -> Rewrite {
        Rewrite { range, text: text.to_vec(), length }
    }

    #[test]
    fn any_range_is_replaced_and_nothing_else() {
        const FRONT: usize = REWRITE_FRONT_BYTES;
        for length in [9, SLICE_BYTES, FRONT + 20, FRONT + 3 * SLICE_BYTES + 7] {
            let whole = numbered(length);
            for start in [0, 1, 5, length / 2, length.saturating_sub(9), FRONT - 1, FRONT, FRONT + 1] {
                for (size, text) in [(0, &b"new"[..]), (4, b"\"longer\""), (4, b"\"s\""), (9, b"other_____")]
                {
                    let end = start + size;
                    if end > length {
                        continue;
                    }
                    let mut body = Body::new(&whole);
                    let rewrite = rewrite(start..end, text, length);
                    assert!(rewrite.apply_at_ends(&mut body));
                    let expected = [&whole[..start], text, &whole[end..]].concat();
                    assert!(body.bytes == expected, "{start}..{end} of {length}");
                    assert_eq!(rewrite.length_after(), expected.len());
                    assert!(body.longest <= length + text.len(), "{} of {length}", body.longest);
                }
            }
        }
    }

    #[test]
    fn failure_of_the_host_is_reported() {
        let length = REWRITE_FRONT_BYTES + 2 * SLICE_BYTES;
        // At the front a read and a replacement; a rotation has three calls for each slice.
        for (range, least) in [(3..9, 2), (length - 9..length - 3, 3 * length.div_ceil(SLICE_BYTES))] {
            let rewrite = rewrite(range, b"\"m\"", length);
            let mut calls = 0;
            loop {
                let mut body = Body::new(&numbered(length));
                body.fails = Some(calls);
                if rewrite.apply_at_ends(&mut body) {
                    break;
                }
                calls += 1;
            }
            assert!(calls >= least, "{calls} of {least}");
        }
        // The body is shorter than expected.
        assert!(!rewrite(3..9, b"", 20).apply_at_ends(&mut Body::new(b"ab")));
        assert!(!rewrite(length - 9..length - 3, b"", length).apply_at_ends(&mut Body::new(b"ab")));
        assert!(!rewrite(3..9, b"", 8).apply_at_ends(&mut Body::new(&numbered(8))));
    }

    #[test]
    fn text_is_written_as_a_json_string() {
        let rewrite = Rewrite::json_string(&(9..12), "a\"\u{7}\u{e9}", 20);
        assert_eq!(rewrite.text, "\"a\\\"\\u0007\u{e9}\"".as_bytes());
        assert_eq!((rewrite.range, rewrite.length), (9..12, 20));
        for (start, end) in [(12, 9), (9, 21), (9, u64::MAX)] {
            assert!(
                !Rewrite::json_string(&(start..end), "m", 20).apply_at_ends(&mut Body::new(&numbered(20)))
            );
        }
    }

    #[test]
    fn any_range_is_visited_piece_by_piece() {
        let pieces: [&[u8]; 4] = [b"abc", b"", b"de", b"fghi"];
        for start in 0..10 {
            for end in start..12 {
                let (mut seen, mut pieces_seen) = (Vec::new(), 0);
                let visited: ControlFlow<()> = visit_pieces(pieces, &(start..end), |piece| {
                    pieces_seen += 1;
                    assert!(!piece.is_empty());
                    seen.extend_from_slice(piece);
                    ControlFlow::Continue(())
                });
                assert_eq!(visited, ControlFlow::Continue(()));
                assert_eq!(seen, b"abcdefghi"[start.min(9)..end.min(9)], "{start}..{end}");
                assert!(pieces_seen <= 3);
            }
        }
        let broken_off = visit_pieces(pieces, &(1..9), |piece| match piece {
            b"de" => ControlFlow::Break("here"),
            other => {
                assert_eq!(other, b"bc");
                ControlFlow::Continue(())
            }
        });
        assert_eq!(broken_off, ControlFlow::Break("here"));
    }
}
