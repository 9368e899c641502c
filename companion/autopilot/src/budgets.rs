//! From what is known of a variant to what its endpoints may take: budgets, and the smaller ones that probe.
//!
//! Source: QUEUEING.md's `auto`. A tenth of every target is left as a margin, for an SLO holds on the mean of what
//! the gate lets up to its limit.

use penstock_engine::Budget;
use penstock_model::{Parameters, Targets, Traffic};

use crate::window_stats::count;

/// The part of a limit that is used.
const USED: f64 = 0.9;
/// Far more than any server takes.
const REQUESTS_MAX: f64 = 1e6;

/// Limits of an endpoint that follow from its targets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Limits {
    /// What an iteration may take; may be infinite.
    pub(crate) iteration_ms: f64,
    /// What a first token may take; may be infinite.
    pub(crate) first_token_ms: f64,
}

impl Limits {
    /// From explicit targets.
    pub(crate) fn explicit(targets: &Targets) -> Self {
        Self {
            iteration_ms: targets.itl_ms.unwrap_or(f64::INFINITY),
            first_token_ms: targets.ttft_ms.unwrap_or(f64::INFINITY),
        }
    }

    /// From targets inferred at iterations of `iteration_ms`. Those for the first token say the same of the iteration,
    /// plus the request's own prompt: so they add nothing, and a prompt longer than the mean isn't held back for it.
    pub(crate) const fn inferred(iteration_ms: f64) -> Self {
        Self {
            iteration_ms,
            first_token_ms: f64::INFINITY,
        }
    }
}

/// An endpoint that is to have a budget.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gauge {
    pub(crate) parameters: Parameters,
    pub(crate) ttft_bias: f64,
    /// Requests like the mean,
    pub(crate) traffic: Traffic,
    /// and prompt tokens of them that are in the cache already: nothing is computed for them, and they are resident.
    pub(crate) cached: f64,
    pub(crate) limits: Limits,
    pub(crate) max_batch: u64,
    pub(crate) kv_tokens: Option<u64>,
    /// It runs at one part of so many of what fits, whatever limits that, so that more than one load is seen; 1: at all.
    pub(crate) probed_by: u8,
}

impl Gauge {
    /// Its budget.
    pub(crate) fn budget(&self) -> Budget {
        let Parameters {
            alpha_ms,
            beta_ms,
            gamma_ms,
        } = self.parameters;
        let iteration_ms_max = self.limits.iteration_ms * USED;
        let first_token_ms_max = self.limits.first_token_ms * USED / self.ttft_bias;
        let kv_tokens_max = self.kv_tokens.map(|tokens| tokens / 10 * 9);
        let (i, o) = (self.traffic.input.max(0.0), self.traffic.output.max(1.0));
        let each_ms = beta_ms * (1.0 + i / o) + gamma_ms * (i + self.cached + o / 2.0);
        let iteration_ms = iteration_ms_max.min(first_token_ms_max - (beta_ms + gamma_ms) * i);
        let mut fits = REQUESTS_MAX;
        if each_ms > 0.0 {
            fits = fits.min((iteration_ms - alpha_ms) / each_ms);
        }
        if let Some(tokens) = kv_tokens_max {
            fits = fits.min(count(tokens) / (i + self.cached + o));
        }
        fits = fits.min(count(self.max_batch)).max(1.0);
        let mut requests_max = self.max_batch;
        if self.probed_by > 1 {
            fits = (fits / f64::from(self.probed_by)).max(1.0);
            requests_max = whole(fits);
        }
        Budget {
            alpha_ms,
            beta_ms,
            gamma_ms,
            iteration_ms_max,
            first_token_ms_max,
            ttft_bias: self.ttft_bias,
            kv_tokens_max,
            requests_max: Some(requests_max),
            typical: whole(fits),
            rate: Some(1_000.0 * fits / ((o + 1.0) * (alpha_ms + fits * each_ms)))
                .filter(|rate| rate.is_finite() && self.traffic.rate > 0.0),
        }
    }
}

/// A budget that only counts: it probes an endpoint of which nothing is known.
pub(crate) fn count_only(requests_max: u64) -> Budget {
    let requests_max = requests_max.max(1);
    Budget {
        alpha_ms: 1.0,
        beta_ms: 0.0,
        gamma_ms: 0.0,
        iteration_ms_max: f64::INFINITY,
        first_token_ms_max: f64::INFINITY,
        ttft_bias: 1.0,
        kv_tokens_max: None,
        requests_max: Some(requests_max),
        typical: requests_max,
        rate: None,
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "from 1 to a million"
)]
fn whole(of: f64) -> u64 {
    of.clamp(1.0, REQUESTS_MAX) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const GAUGE: Gauge = Gauge {
        parameters: Parameters {
            alpha_ms: 8.0,
            beta_ms: 0.05,
            gamma_ms: 0.0005,
        },
        ttft_bias: 1.25,
        traffic: Traffic {
            rate: 1.0,
            input: 512.0,
            output: 128.0,
        },
        cached: 0.0,
        limits: Limits {
            iteration_ms: 50.0,
            first_token_ms: 500.0,
        },
        max_batch: 256,
        kv_tokens: None,
        probed_by: 1,
    };

    /// An iteration with `n` requests like the mean.
    fn iteration_ms(budget: &Budget, n: f64) -> f64 {
        let (i, o) = (512.0, 128.0);
        budget.alpha_ms + budget.beta_ms * n * (1.0 + i / o) + budget.gamma_ms * n * (i + o / 2.0)
    }

    #[test]
    fn as_many_fit_as_the_iteration_allows() {
        let budget = GAUGE.budget();
        assert_eq!(budget.iteration_ms_max, 45.0);
        assert_eq!(budget.first_token_ms_max, 360.0);
        let typical = count(budget.typical);
        assert!(iteration_ms(&budget, typical) <= 45.0 && iteration_ms(&budget, typical + 1.0) > 45.0);
        assert_eq!((budget.requests_max, budget.kv_tokens_max), (Some(256), None));
        let rate = budget.rate.expect("there is traffic");
        assert!((rate - 1_000.0 * typical / (129.0 * 45.0)).abs() < 0.2, "{rate}");
    }

    #[test]
    fn the_least_limit_binds() {
        let typical = |gauge: Gauge| gauge.budget().typical;
        let limits = |iteration_ms, first_token_ms| Limits {
            iteration_ms,
            first_token_ms,
        };
        let first = Gauge {
            limits: limits(50.0, 75.0),
            ..GAUGE
        };
        let left_ms = 75.0 * 0.9 / 1.25 - 512.0 * 0.0505;
        assert!(left_ms < 45.0);
        let budget = first.budget();
        assert!(iteration_ms(&budget, count(budget.typical)) <= left_ms);
        assert!(typical(first) < typical(GAUGE));
        assert_eq!(
            typical(Gauge {
                max_batch: 4,
                ..GAUGE
            }),
            4
        );
        let kv = Gauge {
            kv_tokens: Some(10_000),
            ..GAUGE
        };
        assert_eq!(
            (kv.budget().kv_tokens_max, typical(kv)),
            (Some(9_000), 9_000 / 640)
        );
        assert_eq!(
            typical(Gauge {
                limits: limits(1.0, 1.0),
                ..GAUGE
            }),
            1,
            "one always"
        );
        let unlimited = Gauge {
            limits: limits(f64::INFINITY, f64::INFINITY),
            ..GAUGE
        };
        assert_eq!(typical(unlimited), 256);
    }

    #[test]
    fn who_is_probed_takes_half() {
        let probed = Gauge {
            probed_by: 2,
            ..GAUGE
        }
        .budget();
        let half = GAUGE.budget().typical / 2;
        assert_eq!((probed.typical, probed.requests_max), (half, Some(half)));
        assert_eq!(probed.iteration_ms_max, 45.0);
        let least = Gauge {
            probed_by: 2,
            max_batch: 1,
            ..GAUGE
        }
        .budget();
        assert_eq!(least.requests_max, Some(1));
        assert_eq!(count_only(0).requests_max, Some(1));
    }

    #[test]
    fn what_is_free_has_no_end_and_no_nonsense() {
        let free = Parameters {
            alpha_ms: 8.0,
            beta_ms: 0.0,
            gamma_ms: 0.0,
        };
        let budget = Gauge {
            parameters: free,
            max_batch: u64::MAX,
            ..GAUGE
        }
        .budget();
        assert_eq!(budget.typical, 1_000_000);
        let empty = Traffic {
            rate: 0.0,
            input: 0.0,
            output: 0.0,
        };
        let budget = Gauge {
            traffic: empty,
            ..GAUGE
        }
        .budget();
        assert!(budget.typical >= 1 && budget.rate.is_none());
    }
}
