//! The cost of a request to its flow, and how far that cost moves the flow in virtual time.
//!
//! Virtual time counts cost per weight in whole units of 1/[`ONE`]. Sums and differences of whole units are exact in
//! any order, so a charge that is refunded leaves no trace. Each quotient is rounded once, the same on every machine
//! (IEEE 754). Every number up to 16 divides [`ONE`]: three steps at weight 3 equal one step at weight 1, and ties stay
//! ties. The price: above 3,000,000 tokens per weight a step may be off by 1e-16 of itself.

use core::ops::{Add, Sub};

use crate::ids::ModelId;
use crate::policy::{CostUnit, TokenWeights};

/// The largest cost of a request.
pub(crate) const COST_MAX: u64 = 1 << 40;
/// The largest number of tokens of a prompt or an answer.
pub(crate) const TOKENS_MAX: u64 = 1 << 40;

/// Units in a cost of 1 at weight 1: the least common multiple of 1 to 16, times 1,024.
const ONE: f64 = 720_720.0 * 1_024.0;
const STEP_MAX: f64 = 1.0e27;

/// A point in virtual time, or a distance there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
// Heaps of many flows are as fast as their entries are small, and the alignment of `i128` would add a sixth to these.
#[repr(C, packed(8))]
pub(crate) struct VirtualTime(i128);

impl VirtualTime {
    /// Later than every reachable point.
    pub(crate) const FAR: Self = Self(1 << 120);

    /// How far `cost` moves a flow of `weight`; at least one unit, so that nothing is free.
    pub(crate) fn step(cost: u64, weight: f64) -> Self {
        Self::rounded(cost as f64 / weight * ONE)
    }

    /// The point of a sum of costs at `weight`.
    pub(crate) fn of(cost: u128, weight: f64) -> Self {
        match cost {
            0 => Self::default(),
            cost => Self::rounded(cost as f64 / weight * ONE),
        }
    }

    /// This distance of a flow whose weight was `old` and is `new`: as far in cost as before.
    pub(crate) fn reweighted(self, old: f64, new: f64) -> Self {
        Self(libm::rint(self.0 as f64 * old / new).clamp(-STEP_MAX, STEP_MAX) as i128)
    }

    /// Rounds to the nearest unit, ties to even; at least 1.
    fn rounded(exact: f64) -> Self {
        // From this value on a float has no fraction. Below, adding and subtracting it rounds the fraction off.
        const WHOLE: f64 = (1_u64 << 52) as f64;
        if exact < WHOLE {
            Self(i128::from((exact.max(1.0) + WHOLE - WHOLE) as i64))
        } else {
            Self(exact.min(STEP_MAX) as i128)
        }
    }

    /// Cost per weight, for display.
    pub(crate) fn as_f64(self) -> f64 {
        self.0 as f64 / ONE
    }
}

impl Add for VirtualTime {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for VirtualTime {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

/// What a request was charged. A change of policy gives it the weight and the unit that count from then on: a settlement in the old
/// ones would move the flow by thousands of requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Charge {
    /// The cost to its flow and its band.
    pub(crate) cost: u64,
    /// The cost to its class.
    pub(crate) class_cost: u64,
    pub(crate) weight: f64,
    pub(crate) unit: CostUnit,
    pub(crate) model: ModelId,
}

/// Tokens of one request: estimated at registration, counted by the server at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TokenEstimate {
    pub(crate) prompt: u64,
    /// The part of the prompt in a prefix cache. An excess over the prompt doesn't count.
    pub(crate) cached: u64,
    /// The output of all sequences together.
    pub(crate) output: u64,
    /// Sequences; 0 counts as 1.
    pub(crate) sequences: u64,
}

impl TokenEstimate {
    /// At least 1.
    pub(crate) fn cost(&self, unit: CostUnit, weights: TokenWeights) -> u64 {
        match unit {
            CostUnit::Requests => 1,
            CostUnit::Tokens => {
                let input = self.prompt.saturating_sub(self.cached) as f64 * weights.input;
                let output = self.output as f64 * weights.output;
                // A valid policy gives finite numbers. The cast saturates at the bounds.
                (libm::rint(input + output) as u64).clamp(1, COST_MAX)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_tokens_cost_nothing_and_a_cost_is_at_least_one() {
        let weights = TokenWeights { input: 1.0, output: 2.0 };
        let estimate = TokenEstimate { prompt: 100, cached: 40, output: 10, sequences: 1 };
        assert_eq!(estimate.cost(CostUnit::Tokens, weights), 80);
        assert_eq!(estimate.cost(CostUnit::Requests, weights), 1);
        let cached = TokenEstimate { prompt: 100, cached: 400, output: 0, sequences: 1 };
        assert_eq!(cached.cost(CostUnit::Tokens, weights), 1);
        let endless = TokenEstimate { prompt: u64::MAX, cached: 0, output: u64::MAX, sequences: 1 };
        assert_eq!(endless.cost(CostUnit::Tokens, weights), COST_MAX);
    }

    #[test]
    fn steps_at_whole_weights_add_up_exactly() {
        for weight in 1..=16 {
            for cost in [1, 7, 100, 4_096, 2_999_999] {
                let step = VirtualTime::step(cost, f64::from(weight));
                let sum = (0..weight).fold(VirtualTime::default(), |sum, _| sum + step);
                assert_eq!(sum, VirtualTime::step(cost, 1.0), "{cost} at {weight}");
            }
        }
        assert_eq!(VirtualTime::step(3, 0.1), VirtualTime::step(30, 1.0));
    }

    #[test]
    fn a_distance_is_as_far_in_cost_at_another_weight() {
        let distance = VirtualTime::step(12, 0.25);
        assert_eq!(distance.reweighted(0.25, 3.0), VirtualTime::step(12, 3.0));
        assert_eq!(distance.reweighted(0.25, 3.0).reweighted(3.0, 0.25), distance);
        let behind = VirtualTime::default() - distance;
        assert_eq!(behind.reweighted(0.25, 1e300), VirtualTime::default());
        assert!(behind.reweighted(1e300, 1e-300) < behind, "it stays finite");
        assert_eq!(VirtualTime::default().reweighted(1e300, 1e-300), VirtualTime::default());
    }

    #[test]
    fn a_refunded_charge_leaves_no_trace() {
        let start = VirtualTime::step(12_345, 0.3);
        let steps = [(7, 0.1), (COST_MAX, 1e-300), (1, 1e300), (1_000_003, 3.0)];
        let charged =
            steps.iter().fold(start, |time, &(cost, weight)| time + VirtualTime::step(cost, weight));
        let refunded =
            steps.iter().fold(charged, |time, &(cost, weight)| time - VirtualTime::step(cost, weight));
        assert_eq!(refunded, start);
    }
}
