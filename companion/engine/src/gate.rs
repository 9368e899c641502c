//! How much the servers work on at a time: bounds, in exact decimals, over what is ready.
//!
//! A bound of the pool is the ceiling of a sum, not a sum of ceilings: three endpoints at 2.2 are 7, not 9.
//! One endpoint takes at most the ceiling of its own, and always one: an idle pool serves.

use crate::policy::Gate;
use crate::units::Decimal;

/// The bounds of the pool, in requests; `u64::MAX` where nothing bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) lower: u64,
    pub(crate) upper: u64,
    pub(crate) watermark: Decimal,
}

impl Bounds {
    /// Over endpoints that are ready and weigh so much together.
    pub(crate) fn over(gate: Gate, weight: Decimal) -> Self {
        match gate {
            Gate::Open | Gate::Manual => Self {
                lower: u64::MAX,
                upper: u64::MAX,
                watermark: Decimal::default(),
            },
            Gate::Bounded {
                unit: _,
                lower,
                upper,
                watermark,
            } => Self {
                lower: scaled_ceil(lower, weight),
                upper: scaled_ceil(upper, weight),
                watermark: Decimal::from_billionths(product(watermark, weight) / Decimal::ONE),
            },
        }
    }
}

/// What one endpoint takes at a time.
pub(crate) fn endpoint_bound(gate: Gate, weight: Decimal) -> u64 {
    match gate {
        Gate::Open | Gate::Manual => u64::MAX,
        Gate::Bounded { upper, .. } => scaled_ceil(upper, weight).max(1),
    }
}

fn scaled_ceil(bound: Decimal, weight: Decimal) -> u64 {
    let whole = product(bound, weight).div_ceil(Decimal::ONE * Decimal::ONE);
    u64::try_from(whole).unwrap_or(u64::MAX)
}

/// In units of 1e-18. Saturates past 3e20, which is more than any pool holds.
fn product(bound: Decimal, weight: Decimal) -> u128 {
    bound.billionths().saturating_mul(weight.billionths())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(watermark: u128, deviation_percent: u128) -> Gate {
        let cent = Decimal::ONE / 100;
        Gate::Bounded {
            unit: crate::policy::StockUnit::Requests,
            lower: Decimal::from_billionths(watermark * (100 - deviation_percent) * cent),
            upper: Decimal::from_billionths(watermark * (100 + deviation_percent) * cent),
            watermark: Decimal::from_billionths(watermark * Decimal::ONE),
        }
    }

    #[test]
    fn the_default_over_three_endpoints() {
        let bounds = Bounds::over(gate(2, 10), Decimal::whole(3));
        assert_eq!(
            (bounds.lower, bounds.upper, bounds.watermark),
            (6, 7, Decimal::whole(6))
        );
        assert_eq!(endpoint_bound(gate(2, 10), Decimal::whole(1)), 3);
        assert_eq!(endpoint_bound(gate(2, 10), Decimal::default()), 1);
    }

    #[test]
    fn bounds_are_the_ceilings_of_the_decimals_that_a_person_wrote() {
        let mut binary_differs = 0;
        for watermark in 1..=64_u64 {
            for percent in 1..=99_u64 {
                for n in 1..=8_u64 {
                    let bounds = Bounds::over(gate(watermark.into(), percent.into()), Decimal::whole(n));
                    // Hundredths are whole numbers: the ceiling needs no fraction at all.
                    let upper = (n * watermark * (100 + percent)).div_ceil(100);
                    let lower = (n * watermark * (100 - percent)).div_ceil(100);
                    assert_eq!(
                        (bounds.lower, bounds.upper),
                        (lower, upper),
                        "{watermark} {percent}% x {n}"
                    );
                    let deviation = percent as f64 / 100.0;
                    let binary = libm::ceil(n as f64 * (watermark as f64 * (1.0 + deviation)));
                    binary_differs += u64::from(binary as u64 != upper);
                }
            }
        }
        assert!(binary_differs > 100, "{binary_differs}");
    }

    #[test]
    fn binary_fractions_would_let_one_more_go() {
        // 50 x 1.1 is 55; in binary it is 55.00000000000001.
        assert_eq!(libm::ceil(50.0 * (1.0 + 0.1)), 56.0);
        assert_eq!(Bounds::over(gate(50, 10), Decimal::whole(1)).upper, 55);
    }

    #[test]
    fn weights_scale_and_nothing_overflows() {
        let half = Decimal::from_billionths(Decimal::ONE / 2);
        assert_eq!(endpoint_bound(gate(4, 10), half), 3);
        let huge = Decimal::from_billionths(u128::MAX);
        assert_eq!(Bounds::over(gate(64, 99), huge).upper, u64::MAX);
        assert_eq!(Bounds::over(Gate::Open, Decimal::default()).lower, u64::MAX);
    }
}
