//! From a variant's parameters to an endpoint's allowance.
//!
//! A tenth of every target is left as a margin, because the gate lets the load go up to its limit and the targets hold on the
//! mean.

use penstock_engine::Allowance;
use penstock_model::{Parameters, Targets, Traffic};

use crate::window_stats::count;

/// The fraction of a limit that is used.
const USED: f64 = 0.9;
/// Far more than any endpoint takes.
const REQUESTS_MAX: f64 = 1e6;

/// Limits of an endpoint by its targets, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Limits {
    /// Of an iteration. May be infinite.
    pub(crate) iteration_ms: f64,
    /// Of the time to the first token. May be infinite.
    pub(crate) first_token_ms: f64,
}

impl Limits {
    pub(crate) const NONE: Self = Self { iteration_ms: f64::INFINITY, first_token_ms: f64::INFINITY };

    pub(crate) fn explicit(targets: &Targets) -> Self {
        Self {
            iteration_ms: targets.itl_ms.unwrap_or(f64::INFINITY) * USED,
            first_token_ms: targets.ttft_ms.unwrap_or(f64::INFINITY) * USED,
        }
    }

    /// From targets inferred at iterations of `iteration_ms`. The inferred target for the first token is such an iteration plus
    /// the request's own prompt. So it adds no limit, and a prompt above the mean isn't delayed by it.
    pub(crate) const fn inferred(iteration_ms: f64) -> Self {
        Self { iteration_ms: iteration_ms * USED, first_token_ms: f64::INFINITY }
    }
}

/// Everything from which an endpoint's allowance follows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllowanceInputs {
    pub(crate) parameters: Parameters,
    pub(crate) ttft_bias: f64,
    /// The mean request.
    pub(crate) traffic: Traffic,
    /// Mean prompt tokens in the cache: resident, and not computed.
    pub(crate) cached: f64,
    pub(crate) limits: Limits,
    /// The most sequences within the bound.
    pub(crate) max_batch: u64,
    /// The most sequences that the server computes at a time, if they are known.
    pub(crate) sequences_max: Option<u64>,
    pub(crate) kv_tokens: Option<u64>,
    /// The load is divided by this, to observe more than one load; 1 for the whole load.
    pub(crate) divisor: u8,
}

impl AllowanceInputs {
    /// What the mean request adds to an iteration.
    fn each_ms(&self) -> f64 {
        let Parameters { beta_ms, gamma_ms, .. } = self.parameters;
        let (i, o) = (self.traffic.input.max(0.0), self.traffic.output.max(1.0));
        beta_ms * (1.0 + i / o) + gamma_ms * (i + self.cached + o / 2.0)
    }

    fn kv_tokens_max(&self) -> Option<u64> {
        self.kv_tokens.map(|tokens| tokens / 10 * 9)
    }

    /// Mean requests that fit into the cache.
    fn cached_requests_max(&self) -> f64 {
        let each = self.traffic.input.max(0.0) + self.cached + self.traffic.output.max(1.0);
        self.kv_tokens_max().map_or(f64::INFINITY, |tokens| count(tokens) / each)
    }

    /// The limits under which the endpoint runs the fewest requests that give this part of the throughput of a full server. An
    /// iteration over n requests takes T(n) = alpha + n * each, and gives n tokens.
    pub(crate) fn keeping(&self, part: f64) -> Limits {
        let (alpha_ms, each_ms) = (self.parameters.alpha_ms, self.each_ms());
        let full = count(self.max_batch).min(self.cached_requests_max()).max(1.0);
        let throughput = part * full / (alpha_ms + full * each_ms);
        let fewest = throughput * alpha_ms / (1.0 - throughput * each_ms);
        Limits { iteration_ms: alpha_ms + fewest.max(1.0) * each_ms, first_token_ms: f64::INFINITY }
    }

    pub(crate) fn allowance(&self) -> Allowance {
        let Parameters { alpha_ms, beta_ms, gamma_ms } = self.parameters;
        let iteration_ms_max = self.limits.iteration_ms;
        let first_token_ms_max = self.limits.first_token_ms / self.ttft_bias;
        let kv_tokens_max = self.kv_tokens_max();
        let (i, o) = (self.traffic.input.max(0.0), self.traffic.output.max(1.0));
        let each_ms = self.each_ms();
        let iteration_ms = iteration_ms_max.min(first_token_ms_max - (beta_ms + gamma_ms) * i);
        let mut fits = REQUESTS_MAX;
        if each_ms > 0.0 {
            fits = fits.min((iteration_ms - alpha_ms) / each_ms);
        }
        fits = fits.min(self.cached_requests_max());
        fits = fits.min(count(self.max_batch)).max(1.0);
        let mut requests_max = self.max_batch;
        if self.divisor > 1 {
            fits = (fits / f64::from(self.divisor)).max(1.0);
            requests_max = whole(fits);
        }
        Allowance {
            alpha_ms,
            beta_ms,
            gamma_ms,
            iteration_ms_max,
            first_token_ms_max,
            ttft_bias: self.ttft_bias,
            kv_tokens_max,
            requests_max: Some(requests_max),
            sequences_max: self.sequences_max,
            typical: whole(fits),
            rate: Some(1_000.0 * fits / ((o + 1.0) * (alpha_ms + fits * each_ms)))
                .filter(|rate| rate.is_finite() && self.traffic.rate > 0.0),
        }
    }
}

/// An allowance that only limits the number of requests, to explore an endpoint of unknown parameters.
pub(crate) fn requests_only(requests_max: u64, sequences_max: Option<u64>) -> Allowance {
    let requests_max = requests_max.max(1);
    Allowance {
        alpha_ms: 1.0,
        beta_ms: 0.0,
        gamma_ms: 0.0,
        iteration_ms_max: f64::INFINITY,
        first_token_ms_max: f64::INFINITY,
        ttft_bias: 1.0,
        kv_tokens_max: None,
        requests_max: Some(requests_max),
        sequences_max,
        typical: requests_max,
        rate: None,
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 1 to a million")]
fn whole(number: f64) -> u64 {
    number.clamp(1.0, REQUESTS_MAX) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const INPUTS: AllowanceInputs = AllowanceInputs {
        parameters: Parameters { alpha_ms: 8.0, beta_ms: 0.05, gamma_ms: 0.0005 },
        ttft_bias: 1.25,
        traffic: Traffic { rate: 1.0, input: 512.0, output: 128.0 },
        cached: 0.0,
        limits: Limits { iteration_ms: 45.0, first_token_ms: 450.0 },
        max_batch: 256,
        sequences_max: None,
        kv_tokens: None,
        divisor: 1,
    };

    /// An iteration with `n` mean requests.
    fn iteration_ms(allowance: &Allowance, n: f64) -> f64 {
        let (i, o) = (512.0, 128.0);
        allowance.alpha_ms + allowance.beta_ms * n * (1.0 + i / o) + allowance.gamma_ms * n * (i + o / 2.0)
    }

    #[test]
    fn the_iteration_limit_sets_the_number_of_requests() {
        let allowance = INPUTS.allowance();
        assert_eq!(allowance.iteration_ms_max, 45.0);
        assert_eq!(allowance.first_token_ms_max, 360.0);
        let typical = count(allowance.typical);
        assert!(iteration_ms(&allowance, typical) <= 45.0 && iteration_ms(&allowance, typical + 1.0) > 45.0);
        assert_eq!((allowance.requests_max, allowance.kv_tokens_max), (Some(256), None));
        let rate = allowance.rate.expect("there is traffic");
        assert!((rate - 1_000.0 * typical / (129.0 * 45.0)).abs() < 0.2, "{rate}");
    }

    #[test]
    fn the_lowest_limit_applies() {
        let typical = |inputs: AllowanceInputs| inputs.allowance().typical;
        let limits = |iteration_ms, first_token_ms| Limits { iteration_ms, first_token_ms };
        let first = AllowanceInputs { limits: limits(45.0, 67.5), ..INPUTS };
        let left_ms = 75.0 * 0.9 / 1.25 - 512.0 * 0.0505;
        assert!(left_ms < 45.0);
        let allowance = first.allowance();
        assert!(iteration_ms(&allowance, count(allowance.typical)) <= left_ms);
        assert!(typical(first) < typical(INPUTS));
        assert_eq!(typical(AllowanceInputs { max_batch: 4, ..INPUTS }), 4);
        let kv = AllowanceInputs { kv_tokens: Some(10_000), ..INPUTS };
        assert_eq!((kv.allowance().kv_tokens_max, typical(kv)), (Some(9_000), 9_000 / 640));
        assert_eq!(
            typical(AllowanceInputs { limits: limits(1.0, 1.0), ..INPUTS }),
            1,
            "one request always fits"
        );
        let unlimited = AllowanceInputs { limits: limits(f64::INFINITY, f64::INFINITY), ..INPUTS };
        assert_eq!(typical(unlimited), 256);
    }

    #[test]
    fn a_probed_endpoint_takes_half() {
        let probed = AllowanceInputs { divisor: 2, ..INPUTS }.allowance();
        let half = INPUTS.allowance().typical / 2;
        assert_eq!((probed.typical, probed.requests_max), (half, Some(half)));
        assert_eq!(probed.iteration_ms_max, 45.0);
        let least = AllowanceInputs { divisor: 2, max_batch: 1, ..INPUTS }.allowance();
        assert_eq!(least.requests_max, Some(1));
        assert_eq!(requests_only(0, None).requests_max, Some(1));
    }

    #[test]
    fn parameters_of_zero_and_missing_traffic_give_a_finite_allowance() {
        let free = Parameters { alpha_ms: 8.0, beta_ms: 0.0, gamma_ms: 0.0 };
        let allowance = AllowanceInputs { parameters: free, max_batch: u64::MAX, ..INPUTS }.allowance();
        assert_eq!(allowance.typical, 1_000_000);
        let empty = Traffic { rate: 0.0, input: 0.0, output: 0.0 };
        let allowance = AllowanceInputs { traffic: empty, ..INPUTS }.allowance();
        assert!(allowance.typical >= 1 && allowance.rate.is_none());
    }
}
