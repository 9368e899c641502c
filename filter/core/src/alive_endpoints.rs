//! The endpoints from which bytes of answers have come since the last heartbeat.

use std::collections::BTreeSet;

use crate::limits::ALIVE_MAX;

/// The endpoints, and the number of the heartbeat before which they are collected.
#[derive(Debug, Default)]
pub(crate) struct AliveEndpoints {
    addresses: BTreeSet<String>,
    round: u32,
}

impl AliveEndpoints {
    /// A byte has come from `address`. `seen`: the round in which an answer was seen here last, so that each answer costs a comparison for
    /// most of its bytes. Past the limit an endpoint isn't reported.
    pub(crate) fn record(&mut self, address: Option<&str>, seen: &mut Option<u32>) {
        if seen.replace(self.round) == Some(self.round) {
            return;
        }
        let Some(address) = address else {
            return;
        };
        if self.addresses.len() < ALIVE_MAX && !self.addresses.contains(address) {
            self.addresses.insert(address.to_owned());
        }
    }

    /// All that were recorded; none are left.
    pub(crate) fn take(&mut self) -> Vec<String> {
        self.round = self.round.wrapping_add(1);
        core::mem::take(&mut self.addresses).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[test]
    fn each_endpoint_is_reported_once_a_round() {
        let mut alive = AliveEndpoints::default();
        let (mut first, mut second) = (None, None);
        for _ in 0..3 {
            alive.record(Some("a:1"), &mut first);
            alive.record(Some("a:1"), &mut second);
        }
        assert_eq!(alive.take(), ["a:1"]);
        assert!(alive.take().is_empty());
        alive.record(Some("a:1"), &mut first);
        alive.record(None, &mut second);
        assert_eq!(alive.take(), ["a:1"]);
    }
}
