//! Seeded random numbers for tests.
#![expect(unreachable_pub, reason = "a module of tests")]

/// A seeded generator (`SplitMix64`).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to `below`, exclusive.
    pub const fn below(&mut self, below: u64) -> u64 {
        self.next_u64() % below
    }

    /// True in this percentage of calls.
    pub const fn percent(&mut self, percentage: u64) -> bool {
        self.below(100) < percentage
    }

    pub fn choose<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize].clone()
    }
}
