//! Quantities that cross modules, each a type of its own.

/// Tokens of a prompt or an answer, as the model server counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tokens(pub u64);

/// An exact decimal number, in units of 1e-9: bounds are sums of decimals that a person wrote, and a binary
/// fraction would round some of them to the other integer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Decimal(u128);

impl Decimal {
    /// Units in one.
    pub const ONE: u128 = 1_000_000_000;

    /// A whole number.
    #[must_use]
    pub const fn whole(of: u64) -> Self {
        Self(of as u128 * Self::ONE)
    }

    /// So many billionths.
    #[must_use]
    pub const fn from_billionths(of: u128) -> Self {
        Self(of)
    }

    /// In billionths.
    #[must_use]
    pub const fn billionths(self) -> u128 {
        self.0
    }

    /// The least whole number that isn't smaller.
    #[must_use]
    pub const fn ceil(self) -> u64 {
        let whole = self.0.div_ceil(Self::ONE);
        if whole > u64::MAX as u128 {
            u64::MAX
        } else {
            whole as u64
        }
    }
}
