//! Seeded numbers for tests.
#![expect(unreachable_pub, reason = "a module of tests")]

/// Seeded numbers (`SplitMix64`).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub const fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let of = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let of = (of ^ (of >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        of ^ (of >> 31)
    }

    /// From 0 to `below`, exclusive.
    pub const fn below(&mut self, below: u64) -> u64 {
        self.roll() % below
    }

    /// True so often of a hundred.
    pub const fn percent(&mut self, of: u64) -> bool {
        self.below(100) < of
    }

    pub fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize].clone()
    }
}
