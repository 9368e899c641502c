//! What a request costs its flow, and how far that moves the flow in virtual time.
//!
//! Virtual time counts cost per weight in whole units of 1/[`ONE`]: sums and differences are exact in any order, so
//! that what was charged and is refunded leaves no trace. The quotient is rounded once, the same on every machine
//! (IEEE 754); as every number to 16 divides [`ONE`], three steps at weight 3 are one at weight 1, and ties are
//! ties. The price: above 3,000,000 tokens per weight a step may be off by 1e-16 of itself.

use core::ops::{Add, Sub};

use crate::policy::{CostUnit, TokenWeights};

/// More than any request costs.
pub(crate) const COST_MAX: u64 = 1 << 40;
/// More tokens than anything has.
pub(crate) const TOKENS_MAX: u64 = 1 << 40;

/// Units in one of cost at weight 1: the least common multiple of 1 to 16, times 1,024.
const ONE: f64 = 720_720.0 * 1_024.0;
const STEP_MAX: f64 = 1.0e27;

/// A point in virtual time, or a distance there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Virtual(i128);

impl Virtual {
    /// Behind everything that can be reached.
    pub(crate) const FAR: Self = Self(1 << 120);

    /// How far a flow of `weight` moves by `cost`; at least one unit, so that nothing is free.
    pub(crate) fn step(cost: u64, weight: f64) -> Self {
        Self::rounded(cost as f64 / weight * ONE)
    }

    /// Where a tally of `cost` at `weight` stands.
    pub(crate) fn of(cost: u128, weight: f64) -> Self {
        match cost {
            0 => Self::default(),
            cost => Self::rounded(cost as f64 / weight * ONE),
        }
    }

    /// To the nearest unit, of two to the even one; at least 1.
    fn rounded(exact: f64) -> Self {
        // From here on a float has no fraction; below, what it has is rounded off by adding this.
        const WHOLE: f64 = (1_u64 << 52) as f64;
        if exact < WHOLE {
            Self(i128::from((exact.max(1.0) + WHOLE - WHOLE) as i64))
        } else {
            Self(exact.min(STEP_MAX) as i128)
        }
    }

    /// In cost per weight, for people.
    pub(crate) fn as_f64(self) -> f64 {
        self.0 as f64 / ONE
    }
}

impl Add for Virtual {
    type Output = Self;

    fn add(self, by: Self) -> Self {
        Self(self.0.saturating_add(by.0))
    }
}

impl Sub for Virtual {
    type Output = Self;

    fn sub(self, by: Self) -> Self {
        Self(self.0.saturating_sub(by.0))
    }
}

/// What was charged, so that it can be taken back exactly whatever the policy says by then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Charge {
    /// What it costs its flow and its band.
    pub(crate) cost: u64,
    /// What it costs its class.
    pub(crate) class_cost: u64,
    pub(crate) weight: f64,
    pub(crate) unit: CostUnit,
    /// The model's number.
    pub(crate) model: u32,
}

/// Tokens of one request, estimated or counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) prompt: u64,
    /// Of the prompt; what exceeds it doesn't count.
    pub(crate) cached: u64,
    pub(crate) output: u64,
}

impl Tally {
    /// At least 1.
    pub(crate) fn cost(&self, unit: CostUnit, weights: TokenWeights) -> u64 {
        match unit {
            CostUnit::Requests => 1,
            CostUnit::Tokens => {
                let input = self.prompt.saturating_sub(self.cached) as f64 * weights.input;
                let output = self.output as f64 * weights.output;
                // What isn't finite can't come of a valid policy; the cast takes it to a bound.
                (libm::rint(input + output) as u64).clamp(1, COST_MAX)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_counts_what_is_not_cached_and_is_at_least_one() {
        let weights = TokenWeights {
            input: 1.0,
            output: 2.0,
        };
        let tally = Tally {
            prompt: 100,
            cached: 40,
            output: 10,
        };
        assert_eq!(tally.cost(CostUnit::Tokens, weights), 80);
        assert_eq!(tally.cost(CostUnit::Requests, weights), 1);
        let cached = Tally {
            prompt: 100,
            cached: 400,
            output: 0,
        };
        assert_eq!(cached.cost(CostUnit::Tokens, weights), 1);
        let endless = Tally {
            prompt: u64::MAX,
            cached: 0,
            output: u64::MAX,
        };
        assert_eq!(endless.cost(CostUnit::Tokens, weights), COST_MAX);
    }

    #[test]
    fn steps_at_whole_weights_add_up_exactly() {
        for weight in 1..=16 {
            for cost in [1, 7, 100, 4_096, 2_999_999] {
                let step = Virtual::step(cost, f64::from(weight));
                let sum = (0..weight).fold(Virtual::default(), |sum, _| sum + step);
                assert_eq!(sum, Virtual::step(cost, 1.0), "{cost} at {weight}");
            }
        }
        assert_eq!(Virtual::step(3, 0.1), Virtual::step(30, 1.0));
    }

    #[test]
    fn charged_and_taken_back_leaves_no_trace() {
        let start = Virtual::step(12_345, 0.3);
        let steps = [(7, 0.1), (COST_MAX, 1e-300), (1, 1e300), (1_000_003, 3.0)];
        let forth = steps
            .iter()
            .fold(start, |at, &(cost, weight)| at + Virtual::step(cost, weight));
        let back = steps
            .iter()
            .fold(forth, |at, &(cost, weight)| at - Virtual::step(cost, weight));
        assert_eq!(back, start);
    }
}
