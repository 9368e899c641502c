//! Finds the end of the unescaped text in a JSON string, many bytes at a time.

/// Splits off the leading unescaped characters of a string, up to a quote, a backslash, a control character, or an
/// incomplete or invalid character. A run of ASCII may end where other characters begin.
pub(crate) fn split_text(bytes: &[u8]) -> (&[u8], &[u8]) {
    match split_ascii(bytes) {
        ([], _) => split_any(bytes),
        ascii => ascii,
    }
}

fn split_ascii(bytes: &[u8]) -> (&[u8], &[u8]) {
    split_before(
        bytes,
        |word| (word & HIGH_BITS) | special_bytes(word),
        |byte| !byte.is_ascii() | is_special(byte),
    )
}

fn split_any(bytes: &[u8]) -> (&[u8], &[u8]) {
    let (run, _) = split_before(bytes, special_bytes, is_special);
    let valid = match core::str::from_utf8(run) {
        Ok(text) => text.len(),
        Err(error) => error.valid_up_to(),
    };
    split_at(bytes, valid)
}

/// Splits before the first byte that both predicates find. `in_word` marks it by the lowest high bit of its result for
/// eight bytes. For long runs, `is_match` is applied to whole blocks without a branch, so that the compiler vectorizes it.
fn split_before(bytes: &[u8], in_word: impl Fn(u64) -> u64, is_match: impl Fn(u8) -> bool) -> (&[u8], &[u8]) {
    const BLOCK: usize = 64;
    let (words, tail) = bytes.as_chunks::<8>();
    let mut run = 0_usize;
    while let Some(word) = words.get(run / 8) {
        let found = in_word(u64::from_le_bytes(*word));
        if found != 0 {
            let before = usize::try_from(found.trailing_zeros() / 8).unwrap_or(0);
            return split_at(bytes, run.saturating_add(before));
        }
        run = run.saturating_add(8);
        if run.is_multiple_of(BLOCK) {
            let (blocks, _) = split_at(bytes, run).1.as_chunks::<BLOCK>();
            let clear =
                |block: &&[u8; BLOCK]| !block.iter().fold(false, |found, byte| found | is_match(*byte));
            run = run.saturating_add(blocks.iter().take_while(clear).count().saturating_mul(BLOCK));
        }
    }
    let before = tail.iter().position(|byte| is_match(*byte)).unwrap_or(tail.len());
    split_at(bytes, run.saturating_add(before))
}

fn split_at(bytes: &[u8], index: usize) -> (&[u8], &[u8]) {
    bytes.split_at_checked(index).unwrap_or((bytes, &[]))
}

fn is_special(byte: u8) -> bool {
    matches!(byte, 0..0x20 | b'"' | b'\\')
}

const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// Sets the high bit of each byte of `word` that is special; 0 if none is. Only the lowest set bit is reliable: a borrow
/// can mark bytes above it by mistake.
fn special_bytes(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const CONTROLS: u64 = 0x2020_2020_2020_2020;
    const QUOTES: u64 = 0x2222_2222_2222_2222;
    const BACKSLASHES: u64 = 0x5c5c_5c5c_5c5c_5c5c;
    let control = word.wrapping_sub(CONTROLS) & !word;
    let quote = (word ^ QUOTES).wrapping_sub(ONES) & !(word ^ QUOTES);
    let backslash = (word ^ BACKSLASHES).wrapping_sub(ONES) & !(word ^ BACKSLASHES);
    (control | quote | backslash) & HIGH_BITS
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    /// Longer than two blocks, so that the word, block and tail scans are all used.
    const LONGEST: usize = 150;

    #[test]
    fn ascii_run_ends_before_the_first_special_byte() {
        for byte in 0..=u8::MAX {
            for position in 0..LONGEST {
                let mut text = [b'x'; LONGEST];
                text[position] = byte;
                let plain = matches!(byte, 0x20..0x80) && byte != b'"' && byte != b'\\';
                let (run, after) = split_ascii(&text);
                assert_eq!(run.len(), if plain { LONGEST } else { position }, "{byte:#x} at {position}");
                assert_eq!(run.len() + after.len(), LONGEST);
            }
        }
    }

    #[test]
    fn unicode_run_ends_before_a_special_byte_or_an_incomplete_character() {
        let text = "\u{e4}\u{1f600}b".repeat(20);
        for position in 0..text.len() {
            let (before, after) = text.as_bytes().split_at(position);
            let whole = (0..=position).rev().find(|index| text.is_char_boundary(*index)).expect("0 is one");
            assert_eq!(split_any(before).0.len(), whole, "{position}");
            let cut = [before, b"\\", after].concat();
            assert_eq!(split_any(&cut).0.len(), whole, "{position}");
        }
        assert_eq!(split_any(text.as_bytes()), (text.as_bytes(), [].as_slice()));
    }
}
