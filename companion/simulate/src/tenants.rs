//! Deals the requests of a trace to tenants, the first of which is the heaviest.
//!
//! Shares follow Zipf's law with exponent 1: tenant `k` gets a part in proportion to `1/k`.

use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The names of tenants and how often each is drawn.
#[derive(Debug)]
pub struct Tenants {
    names: Vec<Arc<str>>,
    /// The sum of the shares up to each tenant; the last is 1.
    cumulated: Vec<f64>,
    rng: ChaCha8Rng,
}

impl Tenants {
    /// `count` tenants, at least one, named `t1`, `t2` and so on.
    #[must_use]
    pub fn new(count: usize, seed: u64) -> Self {
        let count = count.max(1);
        let mut sum = 0.0;
        let parts = (1..=count).map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        });
        let parts: Vec<f64> = parts.collect();
        Self {
            names: (1..=count).map(|rank| format!("t{rank}").into()).collect(),
            cumulated: parts.iter().map(|part| part / sum).collect(),
            rng: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    /// The tenant of the next request.
    pub fn draw(&mut self) -> Arc<str> {
        let drawn: f64 = self.rng.random();
        let index = self.cumulated.partition_point(|sum| *sum <= drawn);
        self.names[index.min(self.names.len() - 1)].clone()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn counts(tenants: usize, seed: u64) -> BTreeMap<Arc<str>, usize> {
        let mut drawn = Tenants::new(tenants, seed);
        let mut counts = BTreeMap::new();
        for _ in 0..30_000 {
            *counts.entry(drawn.draw()).or_default() += 1;
        }
        counts
    }

    #[test]
    fn the_first_tenant_is_the_heaviest_and_shares_follow_zipf() {
        let counts = counts(3, 7);
        // 1, 1/2 and 1/3 of 11/6.
        for (name, expected) in [("t1", 16_364), ("t2", 8_182), ("t3", 5_454)] {
            assert!(counts[name].abs_diff(expected) < 300, "{counts:?}");
        }
    }

    #[test]
    fn the_seed_decides_and_one_tenant_gets_everything() {
        assert_eq!(counts(5, 1), counts(5, 1));
        assert_ne!(counts(5, 1), counts(5, 2));
        assert_eq!(counts(1, 1).get("t1"), Some(&30_000));
    }
}
