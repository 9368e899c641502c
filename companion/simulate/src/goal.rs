//! The latency that counts as good, by which policies are compared.

use penstock_model::{Parameters, Targets, Traffic, slo};

use crate::closed_loop::Finished;

/// Targets that follow from a request's size are means of the model. A request is in time within this many times of them.
pub const SLACK: f64 = 2.0;

/// The latency that counts as good.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// One pair of targets for every request.
    Targets(Targets),
    /// Targets by the size of each request: as on a server with these parameters whose iterations take this many times alpha.
    Multiple {
        /// The servers' parameters.
        parameters: Parameters,
        /// Above 1.
        multiplier: f64,
    },
}

impl Goal {
    /// The targets of a request of this size.
    #[must_use]
    pub fn targets(&self, input: f64, output: f64) -> Targets {
        match self {
            Self::Targets(targets) => *targets,
            Self::Multiple { parameters, multiplier } => {
                let traffic = Traffic { rate: 0.0, input, output };
                slo::inferred(parameters, &traffic, *multiplier)
            }
        }
    }

    /// Whether the request met its targets, as its client sees them. An answer of one token has no time between tokens.
    #[must_use]
    pub fn is_met(&self, finished: &Finished) -> bool {
        let targets = self.targets(finished.input as f64, finished.output as f64);
        let slack = match self {
            Self::Targets(_) => 1.0,
            Self::Multiple { .. } => SLACK,
        };
        let ttft_ms = (finished.first - finished.arrived).as_secs_f64() * 1e3;
        let is_first_in_time = targets.ttft_ms.is_none_or(|target| ttft_ms <= slack * target);
        let is_fast =
            targets.itl_ms.is_none_or(|target| finished.output < 2 || finished.itl_ms() <= slack * target);
        is_first_in_time && is_fast
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn finished(input: u64, ttft_ms: u64, itl_ms: u64) -> Finished {
        let ms = Duration::from_millis;
        Finished {
            kind: "t1".into(),
            server: 0,
            arrived: ms(10),
            granted: ms(20),
            first: ms(10 + ttft_ms),
            last: ms(10 + ttft_ms + 10 * itl_ms),
            input,
            output: 11,
        }
    }

    #[test]
    fn both_targets_count_from_the_arrival_and_an_absent_one_is_met() {
        let goal = |ttft_ms, itl_ms| Goal::Targets(Targets { ttft_ms, itl_ms });
        let request = finished(100, 100, 20);
        assert!(goal(Some(100.0), Some(20.0)).is_met(&request));
        assert!(!goal(Some(99.0), Some(20.0)).is_met(&request));
        assert!(!goal(Some(100.0), Some(19.0)).is_met(&request));
        assert!(goal(None, None).is_met(&request));
    }

    #[test]
    fn without_targets_a_long_prompt_may_take_longer() {
        let parameters = Parameters { alpha_ms: 8.0, beta_ms: 0.05, gamma_ms: 0.0005 };
        let goal = Goal::Multiple { parameters, multiplier: 3.0 };
        // The targets are 29 ms and 124 ms.
        assert!(goal.is_met(&finished(100, 57, 20)) && !goal.is_met(&finished(100, 60, 20)));
        assert!(goal.is_met(&finished(2_000, 240, 20)) && !goal.is_met(&finished(2_000, 260, 20)));
    }
}
