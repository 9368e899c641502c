//! Text inside of a JSON string that stands for itself, many bytes at a time.

/// Splits off the leading characters of a string that stand for themselves, whatever their alphabet: up to a quote, a
/// backslash, a control character, or a character that isn't whole or none. Text that begins in ASCII may end where
/// another alphabet begins.
pub(crate) fn split_text(bytes: &[u8]) -> (&[u8], &[u8]) {
    match split_ascii(bytes) {
        ([], _) => split_any(bytes),
        ascii => ascii,
    }
}

fn split_ascii(bytes: &[u8]) -> (&[u8], &[u8]) {
    split_before(
        bytes,
        |word| (word & HIGHS) | specials(word),
        |byte| !byte.is_ascii() | is_special(byte),
    )
}

fn split_any(bytes: &[u8]) -> (&[u8], &[u8]) {
    let (run, _) = split_before(bytes, specials, is_special);
    let whole = match core::str::from_utf8(run) {
        Ok(text) => text.len(),
        Err(error) => error.valid_up_to(),
    };
    split_at(bytes, whole)
}

/// Splits off the bytes before the first that both find: of eight, the lowest high bit of what `of_eight` returns marks
/// it. Long runs are asked by `of_one` in blocks without a branch, which the compiler makes vectors of.
fn split_before(bytes: &[u8], of_eight: impl Fn(u64) -> u64, of_one: impl Fn(u8) -> bool) -> (&[u8], &[u8]) {
    const BLOCK: usize = 64;
    let (words, tail) = bytes.as_chunks::<8>();
    let mut run = 0_usize;
    while let Some(word) = words.get(run / 8) {
        let found = of_eight(u64::from_le_bytes(*word));
        if found != 0 {
            let before = usize::try_from(found.trailing_zeros() / 8).unwrap_or(0);
            return split_at(bytes, run.saturating_add(before));
        }
        run = run.saturating_add(8);
        if run.is_multiple_of(BLOCK) {
            let (blocks, _) = split_at(bytes, run).1.as_chunks::<BLOCK>();
            let clear = |block: &&[u8; BLOCK]| !block.iter().fold(false, |found, byte| found | of_one(*byte));
            run = run.saturating_add(blocks.iter().take_while(clear).count().saturating_mul(BLOCK));
        }
    }
    let before = tail.iter().position(|byte| of_one(*byte)).unwrap_or(tail.len());
    split_at(bytes, run.saturating_add(before))
}

fn split_at(bytes: &[u8], at: usize) -> (&[u8], &[u8]) {
    bytes.split_at_checked(at).unwrap_or((bytes, &[]))
}

fn is_special(byte: u8) -> bool {
    matches!(byte, 0..0x20 | b'"' | b'\\')
}

const HIGHS: u64 = 0x8080_8080_8080_8080;

/// Eight bytes at once: a high bit where one is special, 0 if none is. The lowest bit is right; above it one may be called
/// special that isn't (a borrow reaches only higher bytes).
fn specials(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const CONTROLS: u64 = 0x2020_2020_2020_2020;
    const QUOTES: u64 = 0x2222_2222_2222_2222;
    const SLASHES: u64 = 0x5c5c_5c5c_5c5c_5c5c;
    let below = word.wrapping_sub(CONTROLS) & !word;
    let quote = (word ^ QUOTES).wrapping_sub(ONES) & !(word ^ QUOTES);
    let slash = (word ^ SLASHES).wrapping_sub(ONES) & !(word ^ SLASHES);
    (below | quote | slash) & HIGHS
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    /// Longer than two blocks, so that each way of looking meets it.
    const LONGEST: usize = 150;

    #[test]
    fn ascii_ends_before_the_first_byte_that_does_not_stand_for_itself() {
        for byte in 0..=u8::MAX {
            for at in 0..LONGEST {
                let mut text = [b'x'; LONGEST];
                text[at] = byte;
                let plain = matches!(byte, 0x20..0x80) && byte != b'"' && byte != b'\\';
                let (run, after) = split_ascii(&text);
                assert_eq!(run.len(), if plain { LONGEST } else { at }, "{byte:#x} at {at}");
                assert_eq!(run.len() + after.len(), LONGEST);
            }
        }
    }

    #[test]
    fn other_alphabets_end_before_a_special_byte_or_half_a_character() {
        let text = "\u{e4}\u{1f600}b".repeat(20);
        for at in 0..text.len() {
            let (before, after) = text.as_bytes().split_at(at);
            let whole = (0..=at)
                .rev()
                .find(|it| text.is_char_boundary(*it))
                .expect("0 is one");
            assert_eq!(split_any(before).0.len(), whole, "{at}");
            let cut = [before, b"\\", after].concat();
            assert_eq!(split_any(&cut).0.len(), whole, "{at}");
        }
        assert_eq!(split_any(text.as_bytes()), (text.as_bytes(), [].as_slice()));
    }
}
