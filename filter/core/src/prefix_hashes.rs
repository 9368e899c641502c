//! Hashes of a prompt's beginnings: who begins alike has the same first hashes, and a server that has worked on one of them
//! has in its cache what the other needs.
//!
//! The k-th hash is of the first 256 * 2^(k/2) bytes of the prompt's text, as `Body::prompt_bytes` counts it, and of where
//! its strings end in there; so each covers all that the one before does. Who has fewer bytes has fewer hashes. Neither
//! the model nor who speaks is in them: whoever compares them does it for one model. They are SipHash-1-3 with a fixed key,
//! so that all Envoys say the same; whoever forges a collision sends its own request to a server without its cache.

use core::hash::Hasher;

use penstock_wire::limits::PREFIX_HASHES_MAX;
use siphasher::sip::SipHasher13;

/// Bytes of text that each hash covers.
const OFFSETS: [u64; PREFIX_HASHES_MAX] = offsets();
/// Where a string ends: no byte of UTF-8.
const END: [u8; 1] = [0xff];

const fn offsets() -> [u64; PREFIX_HASHES_MAX] {
    let mut offsets = [0; PREFIX_HASHES_MAX];
    let mut rest: &mut [u64] = &mut offsets;
    // The square of 256 doubles with each.
    let mut square: u64 = 1 << 16;
    while let Some((first, more)) = rest.split_first_mut() {
        *first = square.isqrt();
        square = square.wrapping_shl(1);
        rest = more;
    }
    offsets
}

const _: () = assert!(PREFIX_HASHES_MAX <= 47, "the squares fit into 64 bits");

/// The hashes of one prompt, while it is read.
#[derive(Clone, Debug)]
pub(crate) struct PrefixHasher {
    hasher: SipHasher13,
    /// Bytes that were read.
    read: u64,
    hashes: Vec<u64>,
}

impl PrefixHasher {
    pub(crate) fn new() -> Self {
        Self {
            hasher: SipHasher13::new_with_keys(0x7065_6e73_746f_636b, 1),
            read: 0,
            hashes: Vec::new(),
        }
    }

    /// The next bytes of the prompt.
    pub(crate) fn text(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some(offset) = OFFSETS.get(self.hashes.len()) {
            let missing = usize::try_from(offset.saturating_sub(self.read)).unwrap_or(usize::MAX);
            let Some((taken, more)) = rest.split_at_checked(missing) else {
                self.hasher.write(rest);
                let count = u64::try_from(rest.len()).unwrap_or(u64::MAX);
                self.read = self.read.saturating_add(count);
                return;
            };
            self.hasher.write(taken);
            self.read = *offset;
            self.hashes.push(self.hasher.finish());
            rest = more;
        }
    }

    /// A string of the prompt is over.
    pub(crate) fn end(&mut self) {
        self.hasher.write(&END);
    }

    pub(crate) fn into_hashes(self) -> Vec<u64> {
        self.hashes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn of(strings: &[&[u8]]) -> Vec<u64> {
        let mut prefixes = PrefixHasher::new();
        for string in strings {
            prefixes.text(string);
            prefixes.end();
        }
        prefixes.into_hashes()
    }

    #[test]
    fn offsets_grow_by_the_root_of_two() {
        assert_eq!(OFFSETS[..6], [256, 362, 512, 724, 1024, 1448]);
        assert_eq!(OFFSETS[30..], [8_388_608, 11_863_283]);
        for (at, offset) in OFFSETS.iter().enumerate() {
            let exact = 256.0 * 2_f64.powf(at as f64 / 2.0);
            assert!((*offset as f64 - exact).abs() < 1.0, "{at}: {offset}");
        }
    }

    #[test]
    fn there_is_one_for_each_offset_that_is_reached() {
        let text = vec![b'x'; 12_000_000];
        for (bytes, hashes) in [
            (0, 0),
            (255, 0),
            (256, 1),
            (361, 1),
            (362, 2),
            (1_023, 4),
            (12_000_000, 32),
        ] {
            assert_eq!(of(&[&text[..bytes]]).len(), hashes, "{bytes}");
        }
    }

    #[test]
    fn who_begins_alike_has_the_same_first_ones() {
        let text: Vec<u8> = (0..2_000)
            .map(|at| b'a' + u8::try_from(at % 26).expect("small"))
            .collect();
        let whole = of(&[&text]);
        assert_eq!(whole.len(), 6);
        for at in [0, 255, 256, 511, 512, 1_447, 1_448] {
            let mut other = text.clone();
            other[at] = b'-';
            let same = OFFSETS.iter().take_while(|offset| **offset <= at as u64).count();
            let hashes = of(&[&other]);
            assert_eq!(hashes[..same], whole[..same], "{at}");
            assert!(
                hashes[same..].iter().zip(&whole[same..]).all(|(a, b)| a != b),
                "{at}"
            );
        }
        assert_eq!(of(&[&text[..1_500]]), whole);
    }

    #[test]
    fn where_strings_end_counts() {
        let text = [b'x'; 512];
        let one = of(&[&text]);
        let cut = of(&[&text[..300], &text[300..]]);
        assert_eq!(one[..1], cut[..1]);
        assert!(one[1] != cut[1] && one[2] != cut[2]);
        // An end is said before what comes next, not at the byte where it is.
        assert_eq!(of(&[&text[..256], &text[256..300]]), of(&[&text[..256]]));
    }

    #[test]
    fn they_are_the_same_in_every_build() {
        assert_eq!(of(&[&[b'p'; 256]]), [PINNED]);
    }

    const PINNED: u64 = 13_975_483_360_582_609_005;
}
