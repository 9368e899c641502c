//! Deals the requests of a trace to tenants, the first of which is the heaviest.
//!
//! Shares follow Zipf's law with exponent 1: tenant `k` gets a part in proportion to `1/k`.

use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// How often each tenant is drawn.
#[derive(Debug)]
pub struct Tenants {
    /// The sum of the shares up to each tenant; the last is 1.
    cumulated: Vec<f64>,
    rng: ChaCha8Rng,
}

impl Tenants {
    /// `count` tenants, at least one.
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
            cumulated: parts.iter().map(|part| part / sum).collect(),
            rng: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    /// The index of the next request's tenant.
    pub fn draw(&mut self) -> u32 {
        let drawn: f64 = self.rng.random();
        let index = self.cumulated.partition_point(|sum| *sum <= drawn);
        u32::try_from(index.min(self.cumulated.len() - 1)).unwrap_or(u32::MAX)
    }
}

/// The names of `count` tenants, at least one: `t1`, `t2` and so on.
#[must_use]
pub fn names(count: usize) -> Vec<Arc<str>> {
    (1..=count.max(1)).map(|rank| format!("t{rank}").into()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn counts(tenants: usize, seed: u64) -> BTreeMap<u32, usize> {
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
        for (tenant, expected) in [(0, 16_364), (1, 8_182), (2, 5_454)] {
            assert!(counts[&tenant].abs_diff(expected) < 300, "{counts:?}");
        }
    }

    #[test]
    fn the_seed_decides_and_one_tenant_gets_everything() {
        assert_eq!(counts(5, 1), counts(5, 1));
        assert_ne!(counts(5, 1), counts(5, 2));
        assert_eq!(counts(1, 1).get(&0), Some(&30_000));
        assert_eq!(names(2), ["t1".into(), "t2".into()]);
    }
}
