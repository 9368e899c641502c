//! A world's only source of chance: the same seed rolls the same.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Seeded dice.
#[derive(Debug)]
pub(super) struct Dice(ChaCha8Rng);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    pub(super) fn roll(&mut self) -> u64 {
        self.0.random()
    }

    /// From 0 to `bound - 1`; 0 for a bound of 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.roll() % bound }
    }

    /// From `least` to `most`, both included.
    pub(super) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most.saturating_sub(least) + 1)
    }

    /// True that often in a hundred.
    pub(super) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// True that often in a thousand.
    pub(super) fn mille(&mut self, mille: u64) -> bool {
        self.below(1_000) < mille
    }

    /// One of them; there must be one.
    pub(super) fn one<T: Clone>(&mut self, of: &[T]) -> T {
        let at = usize::try_from(self.below(of.len() as u64)).unwrap_or_default();
        of[at].clone()
    }

    /// One of them, or none if there is none.
    pub(super) fn any<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        (!of.is_empty()).then(|| self.one(of))
    }

    /// Around `mean`: mostly less, sometimes much more, never more than eight times as much.
    pub(super) fn around(&mut self, mean: u64) -> u64 {
        let unit = (self.roll() >> 11) as f64 / (1_u64 << 53) as f64;
        let factor = -(1.0 - unit).max(1e-9).ln();
        (mean as f64 * factor.min(8.0)) as u64
    }
}
