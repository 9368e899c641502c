//! Quantities that cross modules, each a type of its own.

/// Tokens of a prompt or an answer, as the model server counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tokens(pub u64);

/// An exact decimal number, in units of 1e-9. Bounds are sums of configured decimals, and binary fractions would round
/// some of these sums to another integer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Decimal(u128);

impl Decimal {
    /// Units in one.
    pub const ONE: u128 = 1_000_000_000;

    /// A whole number.
    #[must_use]
    pub const fn whole(number: u64) -> Self {
        Self(number as u128 * Self::ONE)
    }

    /// The decimal of this many billionths.
    #[must_use]
    pub const fn from_billionths(billionths: u128) -> Self {
        Self(billionths)
    }

    /// The number in billionths.
    #[must_use]
    pub const fn billionths(self) -> u128 {
        self.0
    }

    /// The least integer that isn't smaller.
    #[must_use]
    pub const fn ceil(self) -> u64 {
        let whole = self.0.div_ceil(Self::ONE);
        if whole > u64::MAX as u128 { u64::MAX } else { whole as u64 }
    }

    /// The nearest float, to show.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
    pub const fn to_f64(self) -> f64 {
        self.0 as f64 / Self::ONE as f64
    }
}

/// A ratio from its thousandths.
#[must_use]
pub fn thousandths(value: u64) -> f64 {
    u32::try_from(value).map_or(f64::INFINITY, f64::from) / 1_000.0
}
