//! The models that endpoints have served to requests by credit.
//!
//! A credit is for any model. A server without the model answers 404, and another one of the pool may have it: until the endpoint has
//! served the model, its 404 goes to no client, and the companion chooses another endpoint.

use core::hash::Hasher;
use std::collections::BTreeSet;

use siphasher::sip::SipHasher13;

use crate::limits::SERVED_MODELS_MAX;
use crate::session::Epoch;

/// Pairs of an endpoint and a model, by their hash.
#[derive(Debug)]
pub(crate) struct ServedModels {
    /// The key of the hash, which no client knows.
    key: Epoch,
    hashes: BTreeSet<u64>,
}

impl ServedModels {
    pub(crate) const fn new(key: Epoch) -> Self {
        Self { key, hashes: BTreeSet::new() }
    }

    fn hash(&self, endpoint: &str, model: &str) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.key.hi, self.key.lo);
        hasher.write(endpoint.as_bytes());
        // No address contains this byte.
        hasher.write_u8(0);
        hasher.write(model.as_bytes());
        hasher.finish()
    }

    /// The endpoint has served the model.
    pub(crate) fn insert(&mut self, endpoint: &str, model: &str) {
        if self.hashes.len() >= SERVED_MODELS_MAX && !self.contains(endpoint, model) {
            // Until an endpoint has served its model again, requests for it carry the headers that let Envoy retry a 404.
            self.hashes.clear();
        }
        self.hashes.insert(self.hash(endpoint, model));
    }

    /// The endpoint has the model no longer.
    pub(crate) fn remove(&mut self, endpoint: &str, model: &str) {
        let hash = self.hash(endpoint, model);
        self.hashes.remove(&hash);
    }

    pub(crate) fn contains(&self, endpoint: &str, model: &str) -> bool {
        self.hashes.contains(&self.hash(endpoint, model))
    }
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[test]
    fn a_pair_is_known_once_served_and_the_set_has_a_limit() {
        let mut served = ServedModels::new(Epoch { hi: 1, lo: 2 });
        served.insert("10.0.0.1:80", "m");
        assert!(served.contains("10.0.0.1:80", "m"));
        served.insert("10.0.0.1:80", "gone");
        served.remove("10.0.0.1:80", "gone");
        assert!(served.contains("10.0.0.1:80", "m") && !served.contains("10.0.0.1:80", "gone"));
        assert!(!served.contains("10.0.0.1:80", "lora") && !served.contains("10.0.0.2:80", "m"));
        for number in 0..SERVED_MODELS_MAX {
            served.insert("10.0.0.2:80", &number.to_string());
            assert!(served.hashes.len() <= SERVED_MODELS_MAX);
        }
        assert!(served.contains("10.0.0.2:80", &(SERVED_MODELS_MAX - 1).to_string()));
    }
}
