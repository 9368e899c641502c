//! Which endpoints have computed which beginnings of prompts lately.
//!
//! A prompt's beginnings are named by chained hashes, at fixed lengths: who holds one held the shorter ones when it came.
//! What is remembered has a limit; what was used longest ago is forgotten first. What a server really keeps isn't
//! known, so this is a guess, and an endpoint that went away holds nothing.

use hashlink::LinkedHashSet;

use crate::input::EndpointId;
use crate::limits::{PREFIX_HASHES_MAX, PREFIXES_MAX};

/// Bytes of the `at`th beginning: 256 times the `at`th power of the square root of two.
pub(crate) fn bytes_of(at: usize) -> u64 {
    let whole = 256_u64.checked_shl((at / 2) as u32).unwrap_or(u64::MAX);
    if at.is_multiple_of(2) {
        whole
    } else {
        // 1.414213562 of it, rounded down.
        (u128::from(whole) * 1_414_213_562 / 1_000_000_000).min(u128::from(u64::MAX)) as u64
    }
}

#[derive(Debug, Default)]
pub(crate) struct Prefixes {
    /// What was used longest ago comes first.
    held: LinkedHashSet<(u64, EndpointId)>,
}

impl Prefixes {
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// `id` computes a prompt with these beginnings.
    pub(crate) fn add(&mut self, id: EndpointId, hashes: &[u64]) {
        // The longest first, so that it is forgotten before those that it begins with.
        for &hash in hashes.iter().take(PREFIX_HASHES_MAX).rev() {
            self.held.insert((hash, id));
        }
        while self.held.len() > PREFIXES_MAX {
            self.held.pop_front();
        }
    }

    /// How many of these beginnings `id` holds.
    pub(crate) fn matched(&self, id: EndpointId, hashes: &[u64]) -> usize {
        hashes.partition_point(|&hash| self.held.contains(&(hash, id)))
    }

    /// `id` holds nothing any more.
    pub(crate) fn forget(&mut self, id: EndpointId) {
        self.held.retain_with_order(|&(_, of)| of != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: EndpointId = EndpointId(1);
    const B: EndpointId = EndpointId(2);

    #[test]
    fn beginnings_grow_by_the_root_of_two() {
        let bytes = [0, 1, 2, 3, 4, 30, 31].map(bytes_of);
        assert_eq!(bytes, [256, 362, 512, 724, 1_024, 256 << 15, 11_863_283]);
        assert_eq!(bytes_of(1_000), u64::MAX);
    }

    #[test]
    fn who_computed_a_beginning_holds_it() {
        let mut prefixes = Prefixes::default();
        assert!(prefixes.is_empty());
        prefixes.add(A, &[1, 2, 3]);
        prefixes.add(B, &[1, 9]);
        assert_eq!(prefixes.matched(A, &[1, 2, 3, 4]), 3);
        assert_eq!(prefixes.matched(B, &[1, 2, 3, 4]), 1);
        assert_eq!(prefixes.matched(B, &[7]), 0);
        assert_eq!(prefixes.matched(A, &[]), 0);
        prefixes.forget(A);
        assert_eq!(prefixes.matched(A, &[1, 2]), 0);
        assert_eq!(prefixes.matched(B, &[1, 9]), 2);
    }

    #[test]
    fn what_was_used_longest_ago_is_forgotten_first() {
        let mut prefixes = Prefixes::default();
        prefixes.add(A, &[1]);
        prefixes.add(A, &[2]);
        for hash in 10..8 + PREFIXES_MAX as u64 {
            prefixes.add(B, &[hash]);
        }
        assert_eq!(prefixes.matched(A, &[1]), 1);
        prefixes.add(A, &[1]);
        assert_eq!(prefixes.matched(A, &[1]), 1, "used again");
        prefixes.add(B, &[3]);
        assert_eq!(prefixes.matched(A, &[2]), 0);
        assert_eq!(prefixes.matched(A, &[1]), 1);
        assert_eq!(prefixes.held.len(), PREFIXES_MAX);
    }

    #[test]
    fn what_is_used_again_and_again_crowds_out_nobody() {
        let mut prefixes = Prefixes::default();
        prefixes.add(A, &[1]);
        for _ in 0..2 * PREFIXES_MAX {
            prefixes.add(B, &[2]);
        }
        assert_eq!(prefixes.matched(A, &[1]), 1);
        assert_eq!(prefixes.held.len(), 2);
    }
}
