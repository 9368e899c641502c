//! A seeded generator: the same requests in every run and for every subject.

/// A linear congruential generator (Knuth, MMIX); its upper bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lcg(u64);

impl Lcg {
    pub(crate) fn new(seed: u64) -> Self {
        let mut lcg = Self(seed);
        lcg.below(1);
        lcg
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}
