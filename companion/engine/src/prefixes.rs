//! The prompt prefixes that each endpoint computed lately.
//!
//! Chained hashes name the prefixes of a prompt, at fixed lengths: an endpoint that computed a prefix computed all
//! shorter ones with it. The memory is bounded and evicts the least recently used prefix. The state of a server's real
//! cache is unknown, so this is an estimate; an endpoint that stops being ready loses all its prefixes.

use hashlink::LinkedHashSet;

use crate::input::EndpointId;
use crate::limits::{PREFIX_HASHES_MAX, PREFIXES_MAX};

/// The length in bytes of the prefix at `index`: 256 times the square root of two to the power of `index`.
pub(crate) fn prefix_bytes(index: usize) -> u64 {
    let whole = 256_u64.checked_shl((index / 2) as u32).unwrap_or(u64::MAX);
    if index.is_multiple_of(2) {
        whole
    } else {
        // Times 1.414213562, rounded down.
        (u128::from(whole) * 1_414_213_562 / 1_000_000_000).min(u128::from(u64::MAX)) as u64
    }
}

#[derive(Debug, Default)]
pub(crate) struct Prefixes {
    /// Least recently used first.
    computed: LinkedHashSet<(u64, EndpointId)>,
}

impl Prefixes {
    pub(crate) fn is_empty(&self) -> bool {
        self.computed.is_empty()
    }

    /// `endpoint` computes a prompt with these prefixes.
    pub(crate) fn add(&mut self, endpoint: EndpointId, hashes: &[u64]) {
        // The longest first, so that it is evicted before its own prefixes.
        for &hash in hashes.iter().take(PREFIX_HASHES_MAX).rev() {
            self.computed.insert((hash, endpoint));
        }
        while self.computed.len() > PREFIXES_MAX {
            self.computed.pop_front();
        }
    }

    /// How many of these prefixes `endpoint` has computed.
    pub(crate) fn matched(&self, endpoint: EndpointId, hashes: &[u64]) -> usize {
        hashes.partition_point(|&hash| self.computed.contains(&(hash, endpoint)))
    }

    /// `endpoint` has lost its cache.
    pub(crate) fn forget(&mut self, endpoint: EndpointId) {
        self.computed.retain_with_order(|&(_, other)| other != endpoint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: EndpointId = EndpointId(1);
    const B: EndpointId = EndpointId(2);

    #[test]
    fn prefix_lengths_grow_by_the_square_root_of_two() {
        let bytes = [0, 1, 2, 3, 4, 30, 31].map(prefix_bytes);
        assert_eq!(bytes, [256, 362, 512, 724, 1_024, 256 << 15, 11_863_283]);
        assert_eq!(prefix_bytes(1_000), u64::MAX);
    }

    #[test]
    fn an_endpoint_holds_the_prefixes_it_computed() {
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
    fn the_least_recently_used_prefix_is_evicted_first() {
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
        assert_eq!(prefixes.computed.len(), PREFIXES_MAX);
    }

    #[test]
    fn a_prefix_used_again_and_again_evicts_nothing() {
        let mut prefixes = Prefixes::default();
        prefixes.add(A, &[1]);
        for _ in 0..2 * PREFIXES_MAX {
            prefixes.add(B, &[2]);
        }
        assert_eq!(prefixes.matched(A, &[1]), 1);
        assert_eq!(prefixes.computed.len(), 2);
    }
}
