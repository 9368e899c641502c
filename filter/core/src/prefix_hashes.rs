//! Hashes of a prompt's prefixes. Two prompts with the same beginning have the same first hashes, so a server that has
//! processed one of them has the shared prefix in its cache.
//!
//! The k-th hash covers the first 256 * 2^(k/2) bytes of the prompt's text, as `Body::prompt_bytes` counts them, and the
//! positions in there at which strings end. Each hash therefore covers all that the previous one covers. A shorter prompt
//! has fewer hashes. The hashes contain neither the model nor the roles of the messages: the companion compares them within
//! one model. The function is XXH3 with 64 bits and without a seed, so that all Envoys compute the same values. It reads a
//! prompt many times as fast as a cryptographic function. A client that forges a collision only misdirects requests to a
//! server that doesn't have their prefix cached.

use core::fmt;

use penstock_wire::limits::PREFIX_HASHES_MAX;
use xxhash_rust::xxh3::Xxh3;

/// The number of bytes that each hash covers.
const OFFSETS: [u64; PREFIX_HASHES_MAX] = offsets();
/// Marks the end of a string: a byte that never occurs in UTF-8.
const STRING_END: [u8; 1] = [0xff];

const fn offsets() -> [u64; PREFIX_HASHES_MAX] {
    let mut offsets = [0; PREFIX_HASHES_MAX];
    let mut rest: &mut [u64] = &mut offsets;
    // The square of 256; it doubles with each offset.
    let mut square: u64 = 1 << 16;
    while let Some((first, more)) = rest.split_first_mut() {
        *first = square.isqrt();
        square = square.wrapping_shl(1);
        rest = more;
    }
    offsets
}

const _: () = assert!(PREFIX_HASHES_MAX <= 47, "the squares fit into 64 bits");

/// Hashes one prompt while it is read.
pub(crate) struct PrefixHasher {
    hasher: Xxh3,
    /// Bytes hashed so far.
    written: u64,
    hashes: Vec<u64>,
}

impl fmt::Debug for PrefixHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrefixHasher")
            .field("written", &self.written)
            .field("hashes", &self.hashes)
            .finish_non_exhaustive()
    }
}

impl PrefixHasher {
    pub(crate) fn new() -> Self {
        Self { hasher: Xxh3::new(), written: 0, hashes: Vec::new() }
    }

    /// Hashes the next bytes of the prompt.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some(offset) = OFFSETS.get(self.hashes.len()) {
            let missing = usize::try_from(offset.saturating_sub(self.written)).unwrap_or(usize::MAX);
            let Some((prefix, more)) = rest.split_at_checked(missing) else {
                self.hasher.update(rest);
                let count = u64::try_from(rest.len()).unwrap_or(u64::MAX);
                self.written = self.written.saturating_add(count);
                return;
            };
            self.hasher.update(prefix);
            self.written = *offset;
            self.hashes.push(self.hasher.digest());
            rest = more;
        }
    }

    /// Ends a string of the prompt.
    pub(crate) fn end_string(&mut self) {
        self.hasher.update(&STRING_END);
    }

    pub(crate) fn into_hashes(self) -> Vec<u64> {
        self.hashes
    }
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    fn hashes(strings: &[&[u8]]) -> Vec<u64> {
        let mut hasher = PrefixHasher::new();
        for string in strings {
            hasher.write(string);
            hasher.end_string();
        }
        hasher.into_hashes()
    }

    #[test]
    fn offsets_grow_by_the_square_root_of_two() {
        assert_eq!(OFFSETS[..6], [256, 362, 512, 724, 1024, 1448]);
        assert_eq!(OFFSETS[30..], [8_388_608, 11_863_283]);
        for (position, offset) in OFFSETS.iter().enumerate() {
            let exact = 256.0 * 2_f64.powf(position as f64 / 2.0);
            assert!((*offset as f64 - exact).abs() < 1.0, "{position}: {offset}");
        }
    }

    #[test]
    fn prompt_has_one_hash_for_each_offset_it_reaches() {
        let text = vec![b'x'; 12_000_000];
        for (bytes, count) in [(0, 0), (255, 0), (256, 1), (361, 1), (362, 2), (1_023, 4), (12_000_000, 32)] {
            assert_eq!(hashes(&[&text[..bytes]]).len(), count, "{bytes}");
        }
    }

    #[test]
    fn prompts_with_equal_prefixes_share_the_first_hashes() {
        let text: Vec<u8> =
            (0..2_000).map(|position| b'a' + u8::try_from(position % 26).expect("small")).collect();
        let whole = hashes(&[&text]);
        assert_eq!(whole.len(), 6);
        for position in [0, 255, 256, 511, 512, 1_447, 1_448] {
            let mut other = text.clone();
            other[position] = b'-';
            let same = OFFSETS.iter().take_while(|offset| **offset <= position as u64).count();
            let changed = hashes(&[&other]);
            assert_eq!(changed[..same], whole[..same], "{position}");
            assert!(changed[same..].iter().zip(&whole[same..]).all(|(a, b)| a != b), "{position}");
        }
        assert_eq!(hashes(&[&text[..1_500]]), whole);
    }

    #[test]
    fn hashes_depend_on_where_strings_end() {
        let text = [b'x'; 512];
        let one = hashes(&[&text]);
        let cut = hashes(&[&text[..300], &text[300..]]);
        assert_eq!(one[..1], cut[..1]);
        assert!(one[1] != cut[1] && one[2] != cut[2]);
        // The end of a string takes effect with the next bytes.
        assert_eq!(hashes(&[&text[..256], &text[256..300]]), hashes(&[&text[..256]]));
    }

    #[test]
    fn hashes_are_the_same_in_every_build() {
        assert_eq!(hashes(&[&[b'p'; 256]]), [PINNED]);
    }

    const PINNED: u64 = 4_362_046_760_042_216_546;
}
