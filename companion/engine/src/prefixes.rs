//! The prompt prefixes that each endpoint computed lately.
//!
//! Chained hashes name the prefixes of a prompt, at fixed lengths: an endpoint that computed a prefix computed all
//! shorter ones with it. The memory is bounded and evicts the least recently used prefix. The state of a server's real
//! cache is unknown, so this is an estimate; an endpoint that stops being ready loses all its prefixes. An
//! index by hash finds the longest prefix that some endpoint computed, however many endpoints there are.

use alloc::vec::Vec;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use hashlink::LinkedHashMap;

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
    /// Each with its position among the holders of its prefix; least recently used first.
    computed: LinkedHashMap<(u64, EndpointId), usize>,
    /// The endpoints that computed a prefix, in no order; at least one.
    holders: HashMap<u64, Vec<EndpointId>>,
}

impl Prefixes {
    pub(crate) fn is_empty(&self) -> bool {
        self.computed.is_empty()
    }

    /// `endpoint` computes a prompt with these prefixes.
    pub(crate) fn add(&mut self, endpoint: EndpointId, hashes: &[u64]) {
        // The longest first, so that it is evicted before its own prefixes.
        for &hash in hashes.iter().take(PREFIX_HASHES_MAX).rev() {
            if self.computed.to_back(&(hash, endpoint)).is_none() {
                let holders = self.holders.entry(hash).or_default();
                self.computed.insert((hash, endpoint), holders.len());
                holders.push(endpoint);
            }
        }
        while self.computed.len() > PREFIXES_MAX
            && let Some(((hash, _), position)) = self.computed.pop_front()
        {
            self.remove_holder(hash, position);
        }
    }

    /// How many of these prefixes `endpoint` has computed.
    pub(crate) fn matched(&self, endpoint: EndpointId, hashes: &[u64]) -> usize {
        hashes.partition_point(|&hash| self.computed.contains_key(&(hash, endpoint)))
    }

    /// How many of these prefixes one endpoint of `eligible` has computed; `None`: any endpoint. `eligible` is sorted.
    pub(crate) fn longest(&self, eligible: Option<&[EndpointId]>, hashes: &[u64]) -> usize {
        hashes.partition_point(|&hash| self.is_held(hash, eligible))
    }

    /// Visits the shorter of two lists: the endpoints that hold the prefix, and the eligible ones.
    fn is_held(&self, hash: u64, eligible: Option<&[EndpointId]>) -> bool {
        let Some(holders) = self.holders.get(&hash) else {
            return false;
        };
        match eligible {
            None => true,
            Some(eligible) if eligible.len() < holders.len() => {
                eligible.iter().any(|&endpoint| self.computed.contains_key(&(hash, endpoint)))
            }
            Some(eligible) => holders.iter().any(|endpoint| eligible.binary_search(endpoint).is_ok()),
        }
    }

    /// The endpoints of `eligible` that have computed the prefix, in no order; `None`: of all endpoints. `eligible` is sorted.
    pub(crate) fn holders<'a>(
        &'a self,
        hash: u64,
        eligible: Option<&'a [EndpointId]>,
    ) -> impl Iterator<Item = EndpointId> + 'a {
        let holders = self.holders.get(&hash).into_iter().flatten().copied();
        holders.filter(move |id| eligible.is_none_or(|eligible| eligible.binary_search(id).is_ok()))
    }

    /// `endpoint` has lost its cache.
    pub(crate) fn forget(&mut self, endpoint: EndpointId) {
        let entries = self.computed.iter();
        let lost: Vec<(u64, usize)> = entries
            .filter(|&(&(_, other), _)| other == endpoint)
            .map(|(&(hash, _), &position)| (hash, position))
            .collect();
        for (hash, position) in lost {
            self.computed.remove(&(hash, endpoint));
            self.remove_holder(hash, position);
        }
    }

    /// Removes the holder of a prefix at `position`. The last holder takes its place.
    fn remove_holder(&mut self, hash: u64, position: usize) {
        let Entry::Occupied(mut entry) = self.holders.entry(hash) else {
            return;
        };
        let holders = entry.get_mut();
        holders.swap_remove(position);
        if let Some(&moved) = holders.get(position)
            && let Some(old) = self.computed.get_mut(&(hash, moved))
        {
            *old = position;
        }
        if holders.is_empty() {
            entry.remove();
        }
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

    #[test]
    fn the_longest_prefix_is_that_of_any_eligible_endpoint() {
        const C: EndpointId = EndpointId(3);
        let mut prefixes = Prefixes::default();
        prefixes.add(A, &[1, 2, 3]);
        prefixes.add(B, &[1, 2]);
        prefixes.add(C, &[1]);
        let longest = |prefixes: &Prefixes, eligible| prefixes.longest(eligible, &[1, 2, 3, 4]);
        assert_eq!(longest(&prefixes, None), 3);
        assert_eq!(longest(&prefixes, Some(&[A, C])), 3);
        assert_eq!(longest(&prefixes, Some(&[B, C])), 2);
        assert_eq!(longest(&prefixes, Some(&[C])), 1);
        assert_eq!(longest(&prefixes, Some(&[EndpointId(9)])), 0);
        assert_eq!(longest(&prefixes, Some(&[])), 0);
        assert!(prefixes.holders(2, None).eq([A, B]));
        assert!(prefixes.holders(2, Some(&[B, C])).eq([B]));
        assert!(prefixes.holders(9, None).eq([]));
        prefixes.forget(A);
        assert_eq!(longest(&prefixes, None), 2);
        assert_eq!(longest(&prefixes, Some(&[A, C])), 1);
        prefixes.forget(B);
        prefixes.forget(C);
        assert!(prefixes.is_empty() && prefixes.holders.is_empty());
    }

    #[test]
    fn the_index_follows_evictions() {
        let mut prefixes = Prefixes::default();
        for endpoint in 0..100 {
            prefixes.add(EndpointId(endpoint), &[1]);
        }
        for hash in 2..2 + PREFIXES_MAX as u64 - 50 {
            prefixes.add(A, &[hash]);
        }
        assert_eq!(prefixes.holders[&1].len(), 50);
        for (position, &endpoint) in prefixes.holders[&1].iter().enumerate() {
            assert!(endpoint.0 >= 50);
            assert_eq!(prefixes.computed.get(&(1, endpoint)), Some(&position));
        }
        assert_eq!(prefixes.longest(Some(&[EndpointId(49)]), &[1]), 0);
        assert_eq!(prefixes.longest(Some(&[EndpointId(50)]), &[1]), 1);
    }
}
