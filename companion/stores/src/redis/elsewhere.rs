//! What other companions run in a pool, as far as this companion has read it.
//!
//! Each companion's list is valid for a time after it was read, by this companion's clock, so that a companion that died
//! stops counting even if the server can't be reached.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

/// Bytes of a list.
pub(super) const LIST_MAX: usize = 1 << 20;
/// Companions of a pool.
const COMPANIONS_MAX: usize = 256;

/// A list as text, which `encode` writes. What exceeds [`LIST_MAX`] is left out.
pub(super) fn encode_within<T>(running: &[T], encode: impl Fn(&[T]) -> String) -> String {
    let mut kept = running;
    loop {
        let text = encode(kept);
        if text.len() <= LIST_MAX {
            return text;
        }
        kept = &kept[..kept.len() / 2];
    }
}

/// One companion's list.
#[derive(Debug)]
struct Companion<K> {
    valid_until: Instant,
    running: HashMap<K, u64>,
}

/// What the other companions of a pool run, by keys.
#[derive(Debug)]
pub(super) struct Elsewhere<K> {
    companions: BTreeMap<String, Companion<K>>,
    /// The sums over all companions.
    sums: HashMap<K, u64>,
}

impl<K> Default for Elsewhere<K> {
    fn default() -> Self {
        Self { companions: BTreeMap::new(), sums: HashMap::new() }
    }
}

impl<K: Clone + Eq + Hash> Elsewhere<K> {
    /// The sum over all companions.
    pub(super) fn sum(&self, key: &K) -> u64 {
        self.sums.get(key).copied().unwrap_or(0)
    }

    /// Replaces a companion's list, which is valid for `ttl`. Returns the sums that changed.
    pub(super) fn update(
        &mut self,
        companion: &str,
        running: Vec<(K, u64)>,
        now: Instant,
        ttl: Duration,
    ) -> Vec<(K, u64)> {
        let is_full = self.companions.len() >= COMPANIONS_MAX && !self.companions.contains_key(companion);
        if is_full || (running.is_empty() && !self.companions.contains_key(companion)) {
            return Vec::new();
        }
        let mut sums: HashMap<K, u64> = HashMap::new();
        for (key, sum) in running {
            let total = sums.entry(key).or_default();
            *total = total.saturating_add(sum);
        }
        let before = if sums.is_empty() {
            self.companions.remove(companion)
        } else {
            let list = Companion { valid_until: now + ttl, running: sums.clone() };
            self.companions.insert(companion.to_owned(), list)
        };
        let before = before.map(|list| list.running).unwrap_or_default();
        self.replace(before, sums)
    }

    /// Removes the lists that are no longer valid. Returns the sums that changed.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<(K, u64)> {
        let companions = &mut self.companions;
        let expired: Vec<Companion<K>> =
            companions.extract_if(.., |_, list| list.valid_until <= now).map(|(_, list)| list).collect();
        let changed = expired.into_iter().flat_map(|list| self.replace(list.running, HashMap::new()));
        changed.collect()
    }

    /// Removes all lists. Returns the sums that changed.
    pub(super) fn clear(&mut self) -> Vec<(K, u64)> {
        self.companions.clear();
        let sums = std::mem::take(&mut self.sums);
        sums.into_keys().map(|key| (key, 0)).collect()
    }

    /// When the next list is no longer valid.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.companions.values().map(|list| list.valid_until).min()
    }

    fn replace(&mut self, before: HashMap<K, u64>, now: HashMap<K, u64>) -> Vec<(K, u64)> {
        let mut changes: HashMap<K, (u64, u64)> = HashMap::new();
        for (key, sum) in before {
            changes.entry(key).or_default().0 = sum;
        }
        for (key, sum) in now {
            changes.entry(key).or_default().1 = sum;
        }
        let mut changed = Vec::new();
        for (key, (before, now)) in changes {
            if before == now {
                continue;
            }
            let sum = self.sum(&key);
            let sum = sum.saturating_sub(before).saturating_add(now);
            if sum == 0 {
                self.sums.remove(&key);
            } else {
                self.sums.insert(key.clone(), sum);
            }
            changed.push((key, sum));
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use penstock_engine::input::Band;

    use super::super::entry;
    use super::*;
    use crate::write_buffer::UsageKey;

    const TTL: Duration = Duration::from_secs(5);

    fn key(flow: &str) -> UsageKey {
        UsageKey { band: Band::Default, class: "".into(), flow: flow.into(), model: "m".into() }
    }

    fn list(running: &[(&str, u64)]) -> Vec<(UsageKey, u64)> {
        let running = running.iter();
        running.map(|&(flow, sum)| (key(flow), sum)).collect()
    }

    fn sorted(changed: Vec<(UsageKey, u64)>) -> Vec<(String, u64)> {
        let mut changed: Vec<_> =
            changed.into_iter().map(|(key, sum)| (String::from(key.flow), sum)).collect();
        changed.sort();
        changed
    }

    fn pairs(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
        let expected = expected.iter();
        expected.map(|&(flow, sum)| (flow.to_owned(), sum)).collect()
    }

    #[test]
    fn sums_are_over_all_companions_and_only_changes_are_returned() {
        let (mut elsewhere, now) = (Elsewhere::default(), Instant::now());
        let mut update =
            |companion, running: &[(&str, u64)]| sorted(elsewhere.update(companion, list(running), now, TTL));
        assert_eq!(update("a", &[("x", 5), ("y", 1)]), pairs(&[("x", 5), ("y", 1)]));
        assert_eq!(update("b", &[("x", 7), ("x", 1)]), pairs(&[("x", 13)]));
        assert_eq!(update("a", &[("x", 5), ("y", 1)]), []);
        assert_eq!(update("a", &[("x", 2), ("z", 3)]), pairs(&[("x", 10), ("y", 0), ("z", 3)]));
        assert_eq!(update("a", &[]), pairs(&[("x", 8), ("z", 0)]));
        assert_eq!(update("b", &[("x", u64::MAX)]), pairs(&[("x", u64::MAX)]));
        assert_eq!(update("b", &[]), pairs(&[("x", 0)]));
        assert!(elsewhere.sums.is_empty() && elsewhere.companions.is_empty());
    }

    #[test]
    fn a_list_that_is_not_repeated_expires() {
        let (mut elsewhere, now) = (Elsewhere::default(), Instant::now());
        let second = Duration::from_secs(1);
        assert_eq!(elsewhere.next_expiry(), None);
        elsewhere.update("dead", list(&[("x", 5)]), now, TTL);
        elsewhere.update("alive", list(&[("x", 2)]), now, TTL);
        assert_eq!(elsewhere.update("alive", list(&[("x", 2)]), now + second, TTL), []);
        assert_eq!(elsewhere.next_expiry(), Some(now + TTL));
        assert_eq!(elsewhere.expire(now + TTL - second), []);
        assert_eq!(sorted(elsewhere.expire(now + TTL)), pairs(&[("x", 2)]));
        assert_eq!(sorted(elsewhere.expire(now + TTL + second)), pairs(&[("x", 0)]));
        assert_eq!(elsewhere.next_expiry(), None);
        elsewhere.update("alive", list(&[("x", 2)]), now, TTL);
        assert_eq!(sorted(elsewhere.clear()), pairs(&[("x", 0)]));
        assert_eq!((elsewhere.clear(), elsewhere.next_expiry()), (Vec::new(), None));
    }

    #[test]
    fn the_tables_are_bounded() {
        let (mut elsewhere, now) = (Elsewhere::default(), Instant::now());
        for companion in 0..2 * COMPANIONS_MAX {
            elsewhere.update(&companion.to_string(), list(&[("x", 1)]), now, TTL);
        }
        assert_eq!(elsewhere.companions.len(), COMPANIONS_MAX);
        let long = "x".repeat(LIST_MAX / 10);
        let names: Vec<String> = (0..30).map(|number| format!("{number}{long}")).collect();
        let running: Vec<_> = names.iter().map(|name| (key(name), 1)).collect();
        let text = encode_within(&running, entry::encode);
        assert!(text.len() <= LIST_MAX && text.contains("\"0x"));
    }
}
