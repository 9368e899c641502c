//! Finds the end of the unescaped text in a JSON string, many bytes at a time.

use wide::u8x16;

/// Splits off the leading unescaped characters of a string, up to a quote, a backslash, a control character, or an
/// incomplete or invalid character.
pub(crate) fn split_text(bytes: &[u8]) -> (&[u8], &[u8]) {
    let run = Run::at_start_of(bytes);
    let valid = if run.is_ascii { run.length } else { count_utf8(split_at(bytes, run.length).0) };
    split_at(bytes, valid)
}

/// Splits the texts of the strings in one slice of a document. It checks at once, and only once, that the slice is UTF-8, because a check has
/// a price for each call.
#[derive(Debug, Default)]
pub(super) struct TextSplitter {
    /// So many bytes at the end of the slice haven't been checked.
    unchecked: usize,
}

impl TextSplitter {
    /// Starts a slice of so many bytes.
    pub(super) const fn begin_slice(&mut self, bytes: usize) {
        self.unchecked = bytes;
    }

    /// As [`split_text`], of `bytes` up to the end of the slice.
    pub(super) fn split_text<'a>(&mut self, bytes: &'a [u8]) -> (&'a [u8], &'a [u8]) {
        let run = Run::at_start_of(bytes);
        let valid = if run.is_ascii { run.length } else { run.length.min(self.count_utf8(bytes)) };
        split_at(bytes, valid)
    }

    /// How many bytes of `bytes`, which lie at the end of the slice, are UTF-8.
    fn count_utf8(&mut self, bytes: &[u8]) -> usize {
        match bytes.len().saturating_sub(self.unchecked) {
            0 => {
                let valid = count_utf8(bytes);
                self.unchecked = bytes.len().saturating_sub(valid);
                valid
            }
            checked => checked,
        }
    }
}

/// How many bytes there are before the first that isn't part of a whole character in UTF-8.
fn count_utf8(bytes: &[u8]) -> usize {
    match simdutf8::compat::from_utf8(bytes) {
        Ok(text) => text.len(),
        Err(error) => error.valid_up_to(),
    }
}

/// The bytes before the first that is special in a string: a quote, a backslash, a control character.
struct Run {
    length: usize,
    is_ascii: bool,
}

impl Run {
    fn at_start_of(bytes: &[u8]) -> Self {
        let mut rest = bytes;
        let mut seen = u8x16::ZERO;
        loop {
            // Many runs end soon.
            for _ in 0..BLOCK / LANES {
                let Some((lanes, after)) = rest.split_first_chunk::<LANES>() else {
                    return Self::before(bytes, rest, seen.to_bitmask() == 0);
                };
                let lanes = u8x16::new(*lanes);
                let special = special_lanes(lanes).to_bitmask();
                if special != 0 {
                    let before = special.trailing_zeros();
                    let high = lanes.to_bitmask() & !u32::MAX.wrapping_shl(before);
                    let length = bytes.len().saturating_sub(rest.len());
                    return Self {
                        length: length.saturating_add(usize::try_from(before).unwrap_or(0)),
                        is_ascii: (seen.to_bitmask() | high) == 0,
                    };
                }
                seen |= lanes;
                rest = after;
            }
            while let Some((block, after)) = rest.split_first_chunk::<BLOCK>() {
                let Some(all) = bits_of_clear(block) else {
                    break;
                };
                seen |= all;
                rest = after;
            }
        }
    }

    /// The run at the start of `bytes`. All bytes before the last few, `tail`, belong to the run.
    fn before(bytes: &[u8], tail: &[u8], is_ascii: bool) -> Self {
        let special = tail.iter().position(|byte| matches!(byte, 0..0x20 | b'"' | b'\\'));
        let (run, after) = split_at(tail, special.unwrap_or(tail.len()));
        Self {
            length: bytes.len().saturating_sub(after.len()),
            is_ascii: is_ascii && run.iter().all(u8::is_ascii),
        }
    }
}

/// The bytes of a vector.
const LANES: usize = 16;
/// The bytes that one branch decides about in a long run.
const BLOCK: usize = 64;

fn special_lanes(lanes: u8x16) -> u8x16 {
    let control = lanes.simd_eq(lanes.min(u8x16::splat(0x1f)));
    lanes.simd_eq(u8x16::splat(b'"')) | lanes.simd_eq(u8x16::splat(b'\\')) | control
}

/// The bits of all bytes of a block without a special byte.
fn bits_of_clear(block: &[u8; BLOCK]) -> Option<u8x16> {
    let ([a, b, c, d], []) = block.as_chunks::<LANES>() else {
        return None;
    };
    let [a, b, c, d] = [u8x16::new(*a), u8x16::new(*b), u8x16::new(*c), u8x16::new(*d)];
    let is_backslash = |lanes: u8x16| lanes.simd_eq(u8x16::splat(b'\\'));
    // Swaps the quote, 0x22, with the space, 0x20: the bytes up to 0x20 are then the control characters and the quote.
    let swap = |lanes: u8x16| lanes ^ u8x16::splat(b'"' ^ b' ');
    let least = swap(a).min(swap(b)).min(swap(c).min(swap(d)));
    let controls_or_quotes = least.simd_eq(least.min(u8x16::splat(b' ')));
    let backslashes = is_backslash(a) | is_backslash(b) | is_backslash(c) | is_backslash(d);
    let is_special = (backslashes | controls_or_quotes).any();
    (!is_special).then_some(a | b | c | d)
}

fn split_at(bytes: &[u8], index: usize) -> (&[u8], &[u8]) {
    bytes.split_at_checked(index).unwrap_or((bytes, &[]))
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    /// Longer than two blocks, so that blocks, vectors and single bytes are all read.
    const LONGEST: usize = 150;

    #[test]
    fn text_ends_before_the_first_special_byte() {
        for length in 0..LONGEST {
            for byte in 0..=u8::MAX {
                // At both ends and in the middle.
                for position in [0, length / 2, length.saturating_sub(1)] {
                    let mut text = vec![b'x'; length];
                    let plain = matches!(byte, 0x20..0x80) && byte != b'"' && byte != b'\\';
                    let Some(place) = text.get_mut(position) else {
                        continue;
                    };
                    *place = byte;
                    let (run, after) = split_text(&text);
                    assert_eq!(run.len(), if plain { length } else { position }, "{byte:#x} at {position}");
                    assert_eq!(run.len() + after.len(), length);
                }
            }
        }
    }

    #[test]
    fn text_ends_before_an_incomplete_character() {
        let text = "\u{e4}\u{1f600}b".repeat(20);
        for position in 0..text.len() {
            let (before, after) = text.as_bytes().split_at(position);
            let whole = (0..=position).rev().find(|index| text.is_char_boundary(*index)).expect("0 is one");
            assert_eq!(split_text(before).0.len(), whole, "{position}");
            let cut = [before, b"\\", after].concat();
            assert_eq!(split_text(&cut).0.len(), whole, "{position}");
        }
        assert_eq!(split_text(text.as_bytes()), (text.as_bytes(), [].as_slice()));
    }

    #[test]
    fn texts_of_one_slice_end_as_they_do_alone() {
        let slices: [&[u8]; 4] = [
            "a\u{e4}\"b\u{1f600}c\\\u{e4}\u{e4}\"d".as_bytes(),
            // An invalid byte, and a character that the slice cuts.
            b"\xc3\xa4\"\xc3\xa4\xff\xc3\xa4",
            b"\xc3\xa4\\\xc3\xa4\"\xc3",
            b"x\"\x01\xc3\xa4\"y",
        ];
        for slice in slices {
            let mut splitter = TextSplitter::default();
            splitter.begin_slice(slice.len());
            let mut rest = slice;
            while !rest.is_empty() {
                let (text, after) = splitter.split_text(rest);
                assert_eq!((text, after), split_text(rest), "{slice:?}");
                rest = if text.is_empty() { &rest[1..] } else { after };
            }
        }
    }
}
