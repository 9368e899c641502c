//! A body in the pieces in which it came.
//!
//! A long piece keeps the memory of the message that brought it, so a body is given back without a copy. Short ones are joined. The filter core reads at any place;
//! what it changes becomes a piece of its own.

use core::ops::{ControlFlow, Range};
use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use penstock_filter_core::limits::READ_BYTES_MIN;
use penstock_filter_core::rewrite::{BufferedBody, Rewrite, visit_pieces};

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

    /// Puts `text` in the place of a range that the body has.
    fn splice(&mut self, range: &Range<usize>, text: &[u8]) {
        let mut front = Self::default();
        while front.size < range.start
            && let Some(piece) = self.take(range.start.saturating_sub(front.size))
        {
            front.push(piece);
        }
        let mut left = range.len();
        while left > 0
            && let Some(replaced) = self.take(left)
        {
            left = left.saturating_sub(replaced.len());
        }
        self.push_front(Bytes::copy_from_slice(text));
        front.pieces.into_iter().rev().for_each(|piece| self.push_front(piece));
        self.is_changed = true;
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

    fn visit<B>(
        &mut self,
        range: Range<usize>,
        end: bool,
        take: impl FnMut(&[u8]) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        if range.len() < READ_BYTES_MIN && !end {
            return ControlFlow::Continue(());
        }
        visit_pieces(self.slices(), &range, take)
    }

    fn rewrite(&mut self, rewrite: &Rewrite) -> bool {
        let fits = rewrite.fits(self.size);
        if fits {
            self.splice(&rewrite.range, &rewrite.text);
        }
        fits
    }
}

impl Pieces {
    fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().map(|piece| piece.as_ref())
    }

    /// At most `length` bytes from `start` on.
    pub(crate) fn read(&self, start: usize, length: usize) -> Option<Vec<u8>> {
        let mut read = Vec::with_capacity(length.min(self.size));
        let _: ControlFlow<()> =
            visit_pieces(self.slices(), &(start..start.saturating_add(length)), |piece| {
                read.extend_from_slice(piece);
                ControlFlow::Continue(())
            });
        Some(read)
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
    fn a_body_is_read_where_it_lies_once_enough_has_come() {
        let whole = Bytes::from(vec![7; 2 * READ_BYTES_MIN]);
        let mut body = Pieces::default();
        body.push(whole.slice(..READ_BYTES_MIN));
        body.push(whole.slice(READ_BYTES_MIN..));
        let mut visited = |range: Range<usize>, end| {
            let mut seen = Vec::new();
            let _: ControlFlow<()> = (&mut &mut body).visit(range, end, |piece| {
                seen.push((piece.as_ptr(), piece.len()));
                ControlFlow::Continue(())
            });
            seen
        };
        let all = vec![(whole.as_ptr(), READ_BYTES_MIN), (whole[READ_BYTES_MIN..].as_ptr(), READ_BYTES_MIN)];
        assert_eq!(visited(0..whole.len(), false), all);
        let last = vec![(whole[whole.len() - 9..].as_ptr(), 9)];
        assert_eq!(visited(whole.len() - 9..whole.len(), false), []);
        assert_eq!(visited(whole.len() - 9..whole.len(), true), last);
    }

    #[test]
    fn any_range_is_replaced_and_nothing_else() {
        for start in 0..=9 {
            for end in start..=9 {
                let mut body = of(&["abc", "de", "fghi"]);
                let rewrite = Rewrite { range: start..end, text: b"XY".to_vec(), length: 9 };
                assert!((&mut body).rewrite(&rewrite));
                let expected = format!("{}XY{}", &"abcdefghi"[..start], &"abcdefghi"[end..]);
                assert!(body.is_changed());
                assert_eq!(body.size(), expected.len());
                assert_eq!(body.take_whole(), expected);
            }
        }
        let mut body = of(&["abc"]);
        for (range, length) in [(2..4, 3), (2..4, 4), (1..2, 2)] {
            assert!(!(&mut body).rewrite(&Rewrite { range, text: Vec::new(), length }));
        }
        assert!(!body.is_changed());
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
