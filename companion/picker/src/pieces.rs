//! A body in the pieces in which it came.
//!
//! A long piece keeps the memory of the message that brought it, so a body is given back without a copy. Short ones are joined. The filter core reads at any place;
//! what it changes becomes a piece of its own.

use core::ops::Range;
use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use penstock_filter_core::rewrite::BufferedBody;

use crate::limits::PIECE_BYTES;

/// A piece that is shorter is added to the one before.
const SMALL: usize = 4_096;

/// A body, or what has come of it and not been given on.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    pieces: VecDeque<Bytes>,
    size: usize,
    is_changed: bool,
}

impl Pieces {
    pub(crate) fn push(&mut self, piece: Bytes) {
        if piece.is_empty() {
            return;
        }
        self.size = self.size.saturating_add(piece.len());
        let last = if piece.len() < SMALL { self.pieces.pop_back() } else { None };
        match last {
            // A piece holds more memory than its bytes, so a body in many small ones would hold many times its length.
            Some(last) if last.len() < PIECE_BYTES => {
                let mut joined = last.try_into_mut().unwrap_or_else(|shared| {
                    let mut copied = BytesMut::with_capacity(shared.len().saturating_add(SMALL));
                    copied.extend_from_slice(&shared);
                    copied
                });
                joined.extend_from_slice(&piece);
                self.pieces.push_back(joined.freeze());
            }
            last => self.pieces.extend(last.into_iter().chain([piece])),
        }
    }

    /// Bytes that are there.
    pub(crate) const fn size(&self) -> usize {
        self.size
    }

    /// Whether the core has changed the body.
    pub(crate) const fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// Puts `bytes` in the place of everything.
    pub(crate) fn replace(&mut self, bytes: Bytes) {
        self.pieces.clear();
        self.size = 0;
        self.push(bytes);
        self.is_changed = true;
    }

    /// Puts `text` in the place of a range. `false`: the body doesn't have the range.
    pub(crate) fn splice(&mut self, range: Range<usize>, text: Vec<u8>) -> bool {
        if range.is_empty() || range.end > self.size {
            return false;
        }
        let mut front = Self::default();
        while front.size < range.start
            && let Some(piece) = self.take(range.start.saturating_sub(front.size))
        {
            front.push(piece);
        }
        let is_replaced = self.replace_front(range.len(), &text);
        front.pieces.into_iter().rev().for_each(|piece| self.push_front(piece));
        is_replaced
    }

    fn push_front(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.size = self.size.saturating_add(piece.len());
            self.pieces.push_front(piece);
        }
    }

    /// Takes the next part of at most `longest` bytes off the front.
    pub(crate) fn take(&mut self, longest: usize) -> Option<Bytes> {
        let mut piece = self.pieces.pop_front()?;
        if piece.len() > longest {
            let rest = piece.split_off(longest);
            self.pieces.push_front(rest);
        }
        self.size = self.size.saturating_sub(piece.len());
        Some(piece)
    }

    /// Takes everything, as one piece.
    pub(crate) fn take_whole(&mut self) -> Bytes {
        let pieces = core::mem::take(self).pieces;
        match pieces.len() {
            0 => Bytes::new(),
            1 => pieces.into_iter().next().unwrap_or_default(),
            _ => pieces.iter().flatten().copied().collect(),
        }
    }
}

impl BufferedBody for &mut Pieces {
    fn read(&mut self, start: usize, length: usize) -> Option<Vec<u8>> {
        (**self).read(start, length)
    }

    fn replace_front(&mut self, length: usize, bytes: &[u8]) -> bool {
        (**self).replace_front(length, bytes)
    }

    fn append(&mut self, bytes: &[u8]) -> bool {
        self.push(Bytes::copy_from_slice(bytes));
        self.is_changed = true;
        true
    }
}

impl Pieces {
    /// At most `length` bytes from `start` on.
    pub(crate) fn read(&self, start: usize, length: usize) -> Option<Vec<u8>> {
        let mut read = Vec::with_capacity(length.min(self.size));
        let mut before = start;
        for piece in &self.pieces {
            let skipped = before.min(piece.len());
            before = before.saturating_sub(skipped);
            let rest = piece.get(skipped..)?;
            let taken = rest.len().min(length.saturating_sub(read.len()));
            read.extend_from_slice(rest.get(..taken)?);
            if read.len() == length {
                break;
            }
        }
        Some(read)
    }

    /// Puts `bytes` in the place of the first `length` bytes.
    fn replace_front(&mut self, length: usize, bytes: &[u8]) -> bool {
        let mut left = length.min(self.size);
        while left > 0 {
            let Some(taken) = self.take(left) else {
                return false;
            };
            left = left.saturating_sub(taken.len());
        }
        self.push_front(Bytes::copy_from_slice(bytes));
        self.is_changed = true;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pieces: &[&'static str]) -> Pieces {
        let mut body = Pieces::default();
        pieces.iter().for_each(|piece| body.push(Bytes::from_static(piece.as_bytes())));
        body
    }

    #[test]
    fn any_part_is_read_across_pieces() {
        let body = of(&["abc", "", "de", "fghi"]);
        for start in 0..10 {
            for length in 0..10 {
                let end = (start + length).min(9);
                let expected = b"abcdefghi".get(start..end).unwrap_or_default();
                assert_eq!(body.read(start, length).as_deref(), Some(expected), "{start} {length}");
            }
        }
        assert!(!body.is_changed());
    }

    #[test]
    fn the_front_is_replaced_and_the_end_extended() {
        for length in 0..=9 {
            let mut body = of(&["abc", "de", "fghi"]);
            assert!(body.replace_front(length, b"XY") && (&mut body).append(b"Z"));
            let expected = format!("XY{}Z", &"abcdefghi"[length..]);
            assert!(body.is_changed());
            assert_eq!(body.size(), expected.len());
            assert_eq!(body.take_whole(), expected);
        }
    }

    #[test]
    fn a_range_is_replaced_as_the_core_replaces_it() {
        use penstock_filter_core::rewrite::Rewrite;
        for (start, end) in [(0, 1), (0, 9), (2, 4), (3, 5), (8, 9)] {
            let mut spliced = of(&["abc", "de", "fghi"]);
            let mut rewritten = of(&["abcdefghi"]);
            let rewrite = Rewrite { range: start..end, text: b"XY".to_vec(), length: 9 };
            assert!(rewrite.apply(&mut &mut rewritten));
            assert!(spliced.splice(rewrite.range, rewrite.text));
            assert_eq!(spliced.size(), rewritten.size());
            assert_eq!(spliced.take_whole(), rewritten.take_whole(), "{start}..{end}");
        }
        let mut body = of(&["abc"]);
        assert!(!body.splice(2..4, Vec::new()) && !body.splice(1..1, Vec::new()));
    }

    #[test]
    fn parts_are_taken_without_a_copy() {
        let whole = Bytes::from(vec![7; 10]);
        let mut body = Pieces::default();
        body.push(whole.clone());
        let parts: Vec<Bytes> = std::iter::from_fn(|| body.take(4)).collect();
        assert_eq!(parts.iter().map(Bytes::len).collect::<Vec<_>>(), [4, 4, 2]);
        assert_eq!(parts[1].as_ptr(), whole[4..].as_ptr());
        assert_eq!((body.size(), body.take(4)), (0, None));
    }
}
