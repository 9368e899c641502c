//! The world's only source of randomness: the same seed draws the same values.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A seeded random number generator.
#[derive(Debug)]
pub(super) struct Rng(ChaCha8Rng);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0.random()
    }

    /// From 0 to `bound - 1`; 0 for a bound of 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }

    /// From `min` to `max`, both included.
    pub(super) fn between(&mut self, min: u64, max: u64) -> u64 {
        min + self.below(max.saturating_sub(min) + 1)
    }

    /// True with a probability of `percent` in 100.
    pub(super) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// True with a probability of `mille` in 1,000.
    pub(super) fn per_mille(&mut self, mille: u64) -> bool {
        self.below(1_000) < mille
    }

    /// One of `items`, which must not be empty.
    pub(super) fn choose<T: Clone>(&mut self, items: &[T]) -> T {
        let index = usize::try_from(self.below(items.len() as u64)).unwrap_or_default();
        items[index].clone()
    }

    /// One of `items`; `None` if `items` is empty.
    pub(super) fn choose_any<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        (!items.is_empty()).then(|| self.choose(items))
    }

    /// An exponentially distributed value with this mean, cut off at eight times the mean.
    pub(super) fn exponential(&mut self, mean: u64) -> u64 {
        let unit = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        let factor = -(1.0 - unit).max(1e-9).ln();
        (mean as f64 * factor.min(8.0)) as u64
    }
}
