//! The bounds on stock, in exact decimals, over the endpoints that are ready.
//!
//! A bound of the pool is the ceiling of a sum, not a sum of ceilings: three endpoints at 2.2 give 7, not 9. The sum is
//! updated as shares come and go. That is exact, because no share is ever rounded. One endpoint takes at most the
//! ceiling of its own share, and always at least one request, so that an idle pool serves.

use core::ops::{AddAssign, SubAssign};

use crate::limits::ENDPOINTS_MAX;
use crate::policy::{Gate, StockUnit};
use crate::units::Decimal;

/// Units of a share in one: the product of two decimals.
const ONE: u128 = Decimal::ONE * Decimal::ONE;
/// 4e16 requests or tokens, so that the sum over all endpoints is in range.
const SHARE_MAX: u128 = u128::MAX / (2 * ENDPOINTS_MAX as u128);

/// What lowers the bounds of one endpoint below the gate, in requests or sequences. Bounds in tokens ignore all fields,
/// because neither foreign requests nor future ones have a known length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// The endpoint's slow start allows this many requests.
    pub(crate) ramp: Option<u64>,
    /// Requests at the endpoint that aren't of this pool.
    pub(crate) foreign: u64,
    /// The endpoint itself refused more requests of this pool than this.
    pub(crate) pushback: Option<u64>,
}

/// Whether stock and bounds count tokens under this gate, not requests or sequences.
pub(crate) const fn counts_tokens(gate: Gate) -> bool {
    matches!(gate.unit(), StockUnit::Tokens)
}

/// The contribution of one endpoint to the bounds, or the sum over several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    lower: u128,
    upper: u128,
    watermark: u128,
}

impl Share {
    /// The share of an endpoint of `weight`; zero for a gate without bounds.
    pub(crate) fn of(gate: Gate, weight: Decimal, limits: Limits) -> Self {
        match gate {
            Gate::Open | Gate::Manual => Self::default(),
            Gate::Auto { initial } => Self::of(
                Gate::Bounded {
                    unit: StockUnit::Sequences,
                    lower: initial,
                    upper: initial,
                    watermark: initial,
                },
                weight,
                limits,
            ),
            Gate::Bounded { unit, lower, upper, watermark } => {
                let limits = match unit {
                    StockUnit::Requests | StockUnit::Sequences => limits,
                    StockUnit::Tokens => Limits::default(),
                };
                let share = |bound: Decimal| {
                    let full = product(bound, weight).min(SHARE_MAX);
                    let ramp = limits.ramp.map_or(u128::MAX, units);
                    let pushback = limits.pushback.map_or(u128::MAX, units);
                    let free = full.min(ramp).saturating_sub(units(limits.foreign));
                    free.min(pushback)
                };
                Self { lower: share(lower), upper: share(upper), watermark: share(watermark) }
            }
        }
    }

    /// The bound of one endpoint with this share.
    pub(crate) fn bound(&self, gate: Gate) -> u64 {
        match gate {
            Gate::Open | Gate::Manual => u64::MAX,
            Gate::Auto { .. } | Gate::Bounded { .. } => ceil(self.upper).max(1),
        }
    }
}

impl Gate {
    /// The bound of an endpoint of this weight that has no allowance and nothing else that limits it, in the unit of the gate.
    #[must_use]
    pub fn bound_of(self, weight: Decimal) -> u64 {
        Share::of(self, weight, Limits::default()).bound(self)
    }
}

impl AddAssign for Share {
    fn add_assign(&mut self, other: Self) {
        self.lower += other.lower;
        self.upper += other.upper;
        self.watermark += other.watermark;
    }
}

impl SubAssign for Share {
    fn sub_assign(&mut self, other: Self) {
        self.lower -= other.lower;
        self.upper -= other.upper;
        self.watermark -= other.watermark;
    }
}

/// The bounds of the pool, in the unit of the stock; `u64::MAX` for a gate without bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) lower: u64,
    pub(crate) upper: u64,
    pub(crate) watermark: Decimal,
}

impl Bounds {
    /// The bounds for the sum of the shares of all ready endpoints.
    pub(crate) fn over(gate: Gate, sum: Share) -> Self {
        match gate {
            Gate::Open | Gate::Manual => {
                Self { lower: u64::MAX, upper: u64::MAX, watermark: Decimal::default() }
            }
            Gate::Auto { .. } | Gate::Bounded { .. } => Self {
                lower: ceil(sum.lower),
                upper: ceil(sum.upper),
                watermark: Decimal::from_billionths(sum.watermark / Decimal::ONE),
            },
        }
    }
}

/// Whether a band with this `ceiling` may not dispatch at this `stock` under this `bound`. At stock 0 every band may.
/// Otherwise stock must be below the ceiling's part of the bound, and one place must stay free if there is more than
/// one.
pub(crate) fn is_over_ceiling(stock: u64, bound: u64, ceiling: Decimal) -> bool {
    let whole = ceiling.billionths() >= Decimal::ONE;
    if stock == 0 || bound == u64::MAX || whole {
        return false;
    }
    let below = u128::from(stock) * Decimal::ONE < ceiling.billionths() * u128::from(bound);
    let leaves_one = bound <= 1 || stock + 1 < bound;
    !(below && leaves_one)
}

fn ceil(share: u128) -> u64 {
    u64::try_from(share.div_ceil(ONE)).unwrap_or(u64::MAX)
}

const fn units(whole: u64) -> u128 {
    (whole as u128).saturating_mul(ONE)
}

/// Saturates past 3e20.
const fn product(bound: Decimal, weight: Decimal) -> u128 {
    bound.billionths().saturating_mul(weight.billionths())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: Decimal = Decimal::whole(1);

    fn gate(watermark: u128, deviation_percent: u128) -> Gate {
        let cent = Decimal::ONE / 100;
        Gate::Bounded {
            unit: StockUnit::Requests,
            lower: Decimal::from_billionths(watermark * (100 - deviation_percent) * cent),
            upper: Decimal::from_billionths(watermark * (100 + deviation_percent) * cent),
            watermark: Decimal::from_billionths(watermark * Decimal::ONE),
        }
    }

    fn ramp(bound: u64) -> Limits {
        Limits { ramp: Some(bound), ..Limits::default() }
    }

    fn foreign(requests: u64) -> Limits {
        Limits { foreign: requests, ..Limits::default() }
    }

    fn bounds(gate: Gate, endpoints: impl IntoIterator<Item = (Decimal, Limits)>) -> Bounds {
        let mut sum = Share::default();
        for (weight, limits) in endpoints {
            sum += Share::of(gate, weight, limits);
        }
        Bounds::over(gate, sum)
    }

    fn alike(gate: Gate, endpoints: u64) -> Bounds {
        bounds(gate, (0..endpoints).map(|_| (WHOLE, Limits::default())))
    }

    fn own(gate: Gate, weight: Decimal, limits: Limits) -> u64 {
        Share::of(gate, weight, limits).bound(gate)
    }

    #[test]
    fn the_default_gate_over_three_endpoints() {
        let bounds = alike(gate(2, 10), 3);
        assert_eq!((bounds.lower, bounds.upper, bounds.watermark), (6, 7, Decimal::whole(6)));
        assert_eq!(own(gate(2, 10), WHOLE, Limits::default()), 3);
        assert_eq!(own(gate(2, 10), Decimal::default(), Limits::default()), 1);
    }

    #[test]
    fn bounds_are_the_ceilings_of_the_configured_decimals() {
        let mut binary_differs = 0;
        for watermark in 1..=64_u64 {
            for percent in 1..=99_u64 {
                for n in 1..=8_u64 {
                    let bounds = alike(gate(watermark.into(), percent.into()), n);
                    // Hundredths are whole numbers: the ceiling needs no fraction at all.
                    let upper = (n * watermark * (100 + percent)).div_ceil(100);
                    let lower = (n * watermark * (100 - percent)).div_ceil(100);
                    assert_eq!((bounds.lower, bounds.upper), (lower, upper), "{watermark} {percent}% x {n}");
                    let deviation = percent as f64 / 100.0;
                    let binary = libm::ceil(n as f64 * (watermark as f64 * (1.0 + deviation)));
                    binary_differs += u64::from(binary as u64 != upper);
                }
            }
        }
        assert!(binary_differs > 100, "{binary_differs}");
    }

    #[test]
    fn binary_fractions_would_admit_one_request_more() {
        // 50 x 1.1 is 55; in binary it is 55.00000000000001.
        assert_eq!(libm::ceil(50.0 * (1.0 + 0.1)), 56.0);
        assert_eq!(alike(gate(50, 10), 1).upper, 55);
    }

    #[test]
    fn ramps_weights_and_foreign_load_add_up_exactly() {
        let tenths = |tenths: u128| Decimal::from_billionths(tenths * Decimal::ONE / 10);
        // 2 x 0.9 and 2 x 1.1; the second starts at 1; the third weighs 0.3: 0.54 and 0.66.
        let three = [(WHOLE, Limits::default()), (WHOLE, ramp(1)), (tenths(3), Limits::default())];
        let sums = bounds(gate(2, 10), three);
        assert_eq!((sums.lower, sums.upper), (4, 4), "3.34 and 3.86");
        assert_eq!(sums.watermark, tenths(36));
        // In hundredths: 100 endpoints of weight 0.01 to 1 whose limits go round.
        for watermark in [1_u64, 3, 7, 64] {
            for percent in [1_u64, 10, 33, 99] {
                let mut all = alloc::vec::Vec::new();
                let (mut lower, mut upper) = (0, 0);
                for cents in 1..=100_u64 {
                    let limits = Limits {
                        ramp: [None, Some(1), Some(2), Some(8)][cents as usize % 4],
                        foreign: cents % 3,
                        pushback: None,
                    };
                    let share = |percent: u64| {
                        // In units of 1e-4.
                        let full = watermark * percent * cents;
                        let ramp = limits.ramp.map_or(u64::MAX, |ramp| ramp * 10_000);
                        full.min(ramp).saturating_sub(limits.foreign * 10_000)
                    };
                    lower += share(100 - percent);
                    upper += share(100 + percent);
                    all.push((Decimal::from_billionths(u128::from(cents) * Decimal::ONE / 100), limits));
                    let sums = bounds(gate(watermark.into(), percent.into()), all.iter().rev().copied());
                    assert_eq!(
                        (sums.lower, sums.upper),
                        (lower.div_ceil(10_000), upper.div_ceil(10_000)),
                        "{watermark} {percent}% up to weight {cents}/100"
                    );
                }
            }
        }
    }

    #[test]
    fn a_share_that_was_added_and_subtracted_leaves_no_trace() {
        let third = Decimal::from_billionths(333_333_333);
        let mut sum = Share::default();
        for bound in 1..100 {
            sum += Share::of(gate(3, 7), third, ramp(bound));
        }
        for bound in 1..100 {
            sum -= Share::of(gate(3, 7), third, ramp(bound));
        }
        assert_eq!(sum, Share::default());
    }

    #[test]
    fn foreign_load_lowers_a_bound_to_one_at_least() {
        assert_eq!(own(gate(4, 10), WHOLE, foreign(0)), 5);
        assert_eq!(own(gate(4, 10), WHOLE, foreign(1)), 4, "4.4 less 1");
        assert_eq!(own(gate(4, 10), WHOLE, foreign(4)), 1);
        assert_eq!(own(gate(4, 10), WHOLE, foreign(u64::MAX)), 1);
        let loaded = [(WHOLE, foreign(1_000)), (WHOLE, Limits::default())];
        assert_eq!(bounds(gate(4, 10), loaded).upper, 5, "an endpoint lowers only its own bound");
        let both = Limits { ramp: Some(2), foreign: 1, pushback: None };
        assert_eq!(own(gate(4, 10), WHOLE, both), 1);
    }

    #[test]
    fn least_limit_counts_and_foreign_requests_are_not_subtracted_from_pushback() {
        let limits = |ramp, foreign, pushback| Limits { ramp, foreign, pushback };
        assert_eq!(own(gate(4, 10), WHOLE, limits(None, 0, Some(3))), 3);
        assert_eq!(own(gate(4, 10), WHOLE, limits(Some(2), 0, Some(3))), 2);
        assert_eq!(
            own(gate(4, 10), WHOLE, limits(None, 1, Some(3))),
            3,
            "the server refused with the foreign request there"
        );
        assert_eq!(own(gate(4, 10), WHOLE, limits(None, 3, Some(3))), 2, "4.4 less 3");
        assert_eq!(own(gate(4, 10), WHOLE, limits(None, 0, Some(9))), 5);
        let one_of_two = [(WHOLE, limits(None, 0, Some(1))), (WHOLE, Limits::default())];
        let sums = bounds(gate(4, 10), one_of_two);
        assert_eq!((sums.lower, sums.upper), (5, 6), "1 + 3.6 and 1 + 4.4");
    }

    #[test]
    fn in_tokens_no_limit_on_requests_changes_the_bounds() {
        let tokens = Gate::Bounded {
            unit: StockUnit::Tokens,
            lower: Decimal::whole(900),
            upper: Decimal::whole(1_100),
            watermark: Decimal::whole(1_000),
        };
        let both = Limits { ramp: Some(1), foreign: 3, pushback: Some(1) };
        let sums = bounds(tokens, [(WHOLE, both), (WHOLE, Limits::default())]);
        assert_eq!((sums.lower, sums.upper), (1_800, 2_200));
        assert_eq!(own(tokens, WHOLE, both), 1_100);
    }

    #[test]
    fn weights_scale_and_nothing_overflows() {
        let half = Decimal::from_billionths(Decimal::ONE / 2);
        assert_eq!(own(gate(4, 10), half, Limits::default()), 3);
        let huge = (Decimal::from_billionths(u128::MAX), ramp(u64::MAX));
        let sums = bounds(gate(64, 99), (0..ENDPOINTS_MAX).map(|_| huge));
        assert!(sums.upper > u64::MAX / 2, "{}", sums.upper);
        assert_eq!(bounds(Gate::Open, []).lower, u64::MAX);
        assert_eq!(own(Gate::Manual, Decimal::default(), Limits::default()), u64::MAX);
    }
}
