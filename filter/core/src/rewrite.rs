//! Another model in a body that waits: which bytes of it change, and how, on a host that changes bodies at their ends only.
//!
//! Envoy gives a filter two ways to change a body that it holds: to replace its first bytes, and to add to its end. What
//! stands in the middle is reached in one of two ways. Where little stands before it, that is taken out, and put back
//! behind the change. Where much does, the whole body is turned round once, a slice at a time from its front to its end, so
//! that linear memory, which never shrinks, needn't hold it. Either way the body is never longer than before by more than
//! the change, so no limit of the host is met on the way.

use core::ops::Range;

use crate::limits::{REWRITE_FRONT_BYTES, SLICE_BYTES};

/// A change to a body: these bytes of it are replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// Which bytes.
    pub at: Range<usize>,
    /// By what.
    pub text: Vec<u8>,
    /// How long the body is before.
    pub length: usize,
}

/// A body that the host holds.
pub trait Held {
    /// At most `length` bytes of it from `start` on; none: it can't be read.
    fn read(&mut self, start: usize, length: usize) -> Option<Vec<u8>>;
    /// Replaces its first `length` bytes by these. False: the host refuses.
    fn replace_front(&mut self, length: usize, bytes: &[u8]) -> bool;
    /// Adds these to its end. False: the host refuses.
    fn append(&mut self, bytes: &[u8]) -> bool;
}

impl Rewrite {
    /// Of the JSON string at `at`, in a body of `length` bytes, by another string.
    #[must_use]
    pub fn string(at: &Range<u64>, text: &str, length: u64) -> Self {
        let index = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
        Self {
            at: index(at.start)..index(at.end),
            text: serde_json::to_vec(text).unwrap_or_default(),
            length: index(length),
        }
    }

    /// How long the body is after.
    #[must_use]
    pub fn length_after(&self) -> usize {
        let left = self.length.saturating_sub(self.at.len());
        left.saturating_add(self.text.len())
    }

    /// Does it. False: the body isn't what it should be, and what it holds now is nothing to be sent.
    #[must_use]
    pub fn apply(&self, body: &mut impl Held) -> bool {
        let Range { start, end } = self.at;
        if start >= end || end > self.length {
            return false;
        }
        if start <= REWRITE_FRONT_BYTES {
            return self.by_front(body);
        }
        turn(body, start)
            && body.replace_front(self.at.len(), &[])
            && body.append(&self.text)
            && turn(body, self.length.saturating_sub(end))
    }

    fn by_front(&self, body: &mut impl Held) -> bool {
        let Range { start, end } = self.at;
        let front = if start == 0 {
            Some(Vec::new())
        } else {
            body.read(0, start)
        };
        let Some(front) = front.filter(|front| front.len() == start) else {
            return false;
        };
        body.replace_front(end, &self.text) && body.replace_front(0, &front)
    }
}

/// Moves the first `length` bytes of a body to its end.
fn turn(body: &mut impl Held, length: usize) -> bool {
    let mut left = length;
    while left > 0 {
        let Some(slice) = body
            .read(0, left.min(SLICE_BYTES))
            .filter(|slice| !slice.is_empty())
        else {
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
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    /// A body as Envoy holds it, which gives no more than `most` bytes at a time and refuses the call number `fails`.
    struct Body {
        bytes: Vec<u8>,
        longest: usize,
        fails: Option<usize>,
    }

    impl Body {
        fn of(bytes: &[u8]) -> Self {
            Self {
                bytes: bytes.to_vec(),
                longest: bytes.len(),
                fails: None,
            }
        }

        fn counts(&mut self) -> bool {
            self.longest = self.longest.max(self.bytes.len());
            let fails = self.fails == Some(0);
            self.fails = self.fails.and_then(|left| left.checked_sub(1));
            !fails
        }
    }

    impl Held for Body {
        fn read(&mut self, start: usize, length: usize) -> Option<Vec<u8>> {
            let end = self.bytes.len().min(start.saturating_add(length));
            self.counts().then(|| self.bytes[start..end].to_vec())
        }

        fn replace_front(&mut self, length: usize, bytes: &[u8]) -> bool {
            let length = length.min(self.bytes.len());
            self.bytes.splice(..length, bytes.iter().copied());
            self.counts()
        }

        fn append(&mut self, bytes: &[u8]) -> bool {
            self.bytes.extend_from_slice(bytes);
            self.counts()
        }
    }

    fn numbered(length: usize) -> Vec<u8> {
        (0..length)
            .map(|at| u8::try_from(at % 251).expect("a byte"))
            .collect()
    }

    fn rewrite(at: Range<usize>, text: &[u8], length: usize) -> Rewrite {
        Rewrite {
            at,
            text: text.to_vec(),
            length,
        }
    }

    #[test]
    fn what_stands_anywhere_is_replaced_and_nothing_else() {
        const FRONT: usize = REWRITE_FRONT_BYTES;
        for length in [9, SLICE_BYTES, FRONT + 20, FRONT + 3 * SLICE_BYTES + 7] {
            let whole = numbered(length);
            for start in [
                0,
                1,
                5,
                length / 2,
                length.saturating_sub(9),
                FRONT - 1,
                FRONT,
                FRONT + 1,
            ] {
                for (size, text) in [(4, &b"\"longer\""[..]), (4, b"\"s\""), (9, b"other_____")] {
                    let end = start + size;
                    if end > length {
                        continue;
                    }
                    let mut body = Body::of(&whole);
                    let rewrite = rewrite(start..end, text, length);
                    assert!(rewrite.apply(&mut body));
                    let expected = [&whole[..start], text, &whole[end..]].concat();
                    assert!(body.bytes == expected, "{start}..{end} of {length}");
                    assert_eq!(rewrite.length_after(), expected.len());
                    assert!(
                        body.longest <= length + text.len(),
                        "{} of {length}",
                        body.longest
                    );
                }
            }
        }
    }

    #[test]
    fn a_host_that_refuses_is_said() {
        let length = REWRITE_FRONT_BYTES + 2 * SLICE_BYTES;
        for at in [3..9, length - 9..length - 3] {
            let rewrite = rewrite(at, b"\"m\"", length);
            let mut calls = 0;
            loop {
                let mut body = Body::of(&numbered(length));
                body.fails = Some(calls);
                if rewrite.apply(&mut body) {
                    break;
                }
                calls += 1;
            }
            assert!(calls >= 3, "{calls}");
        }
        // A body that is shorter than it was.
        assert!(!rewrite(3..9, b"", 20).apply(&mut Body::of(b"ab")));
        assert!(!rewrite(length - 9..length - 3, b"", length).apply(&mut Body::of(b"ab")));
        assert!(!rewrite(3..9, b"", 8).apply(&mut Body::of(&numbered(8))));
    }

    #[test]
    fn strings_are_written_as_json() {
        let rewrite = Rewrite::string(&(9..12), "a\"\u{7}\u{e9}", 20);
        assert_eq!(rewrite.text, "\"a\\\"\\u0007\u{e9}\"".as_bytes());
        assert_eq!((rewrite.at, rewrite.length), (9..12, 20));
        for (start, end) in [(12, 9), (9, 9), (9, 21), (9, u64::MAX)] {
            assert!(!Rewrite::string(&(start..end), "m", 20).apply(&mut Body::of(&numbered(20))));
        }
    }
}
