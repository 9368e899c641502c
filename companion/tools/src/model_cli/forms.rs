//! `penstock model solve` and `size`: the closed forms for one kind of server and one kind of request.

use penstock_model::{Parameters, Targets, Traffic, sizing, slo};
use serde::Serialize;

use super::Error;
use crate::number::{Above0, AtLeast0, Batch, Multiplier};

/// A kind of server, and a mean request.
#[derive(Debug, clap::Args)]
struct Case {
    /// Milliseconds per iteration; above 0.
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    alpha: Above0,
    /// Milliseconds per token that an iteration processes.
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    beta: AtLeast0,
    /// Milliseconds per token in the KV cache.
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    gamma: AtLeast0,
    /// Mean number of prompt tokens.
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true)]
    input: AtLeast0,
    /// Mean number of output tokens.
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true)]
    output: AtLeast0,
}

impl Case {
    const fn parameters(&self) -> Parameters {
        Parameters { alpha_ms: self.alpha.0, beta_ms: self.beta.0, gamma_ms: self.gamma.0 }
    }

    const fn traffic(&self, rate: f64) -> Traffic {
        Traffic { rate, input: self.input.0, output: self.output.0 }
    }
}

/// Arguments of `penstock model solve`.
#[derive(Debug, clap::Args)]
pub(super) struct Solve {
    #[command(flatten)]
    case: Case,
    /// Requests per second.
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    rate: AtLeast0,
}

/// The steady state of a server. Without one, t_iter, ttft, itl and n are null.
#[derive(Debug, Serialize)]
pub(super) struct Solved {
    delta: f64,
    rho: f64,
    t_iter: Option<f64>,
    ttft: Option<f64>,
    itl: Option<f64>,
    n: Option<f64>,
    stable: bool,
}

impl Solve {
    pub(super) fn solve(&self) -> Solved {
        let operation = self.case.parameters().solve(&self.case.traffic(self.rate.0));
        let steady = operation.steady;
        Solved {
            delta: operation.delta_ms,
            rho: operation.rho,
            t_iter: steady.map(|steady| steady.iteration_ms),
            ttft: steady.map(|steady| steady.ttft_ms),
            itl: steady.map(|steady| steady.itl_ms),
            n: steady.map(|steady| steady.in_flight),
            stable: steady.is_some(),
        }
    }
}

/// Arguments of `penstock model size`.
#[derive(Debug, clap::Args)]
pub(super) struct Size {
    #[command(flatten)]
    case: Case,
    /// Ignored, because a server's capacity doesn't depend on its load. Accepted so that the flags of `solve` can be
    /// reused.
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    rate: Option<AtLeast0>,
    /// Target for the mean time to the first token; 0 or absent: none.
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    slo_ttft: Option<AtLeast0>,
    /// Target for the mean time between tokens; 0 or absent: none.
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    slo_itl: Option<AtLeast0>,
    /// Infer the targets from the latencies when an iteration takes K times alpha; above 1, or 0 for 3. Ignored if
    /// both targets are given.
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    slo_multiplier: Option<Multiplier>,
    /// The most requests in one batch; absent: no limit.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max_batch: Option<Batch>,
    /// Requests per second for all servers together.
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    total_rate: Option<AtLeast0>,
}

/// The capacity of a server.
#[derive(Debug, Serialize)]
pub(super) struct Sized {
    /// Null: unlimited, because no limit applies and requests cost nothing.
    lambda_star: f64,
    n_star: Option<f64>,
    rho: f64,
    binding: &'static str,
    feasible: bool,
    required_replicas: Option<u64>,
    /// The inferred or given targets, if a multiplier was given.
    #[serde(flatten)]
    slo: Option<Slo>,
}

#[derive(Debug, Serialize)]
struct Slo {
    slo_ttft: Option<f64>,
    slo_itl: Option<f64>,
}

impl Size {
    /// # Errors
    /// The flags contradict each other.
    pub(super) fn size(&self) -> Result<Sized, Error> {
        let (parameters, traffic) = (self.case.parameters(), self.case.traffic(0.0));
        let given = |target: Option<AtLeast0>| target.map(|target| target.0).filter(|ms| *ms > 0.0);
        let explicit = Targets { ttft_ms: given(self.slo_ttft), itl_ms: given(self.slo_itl) };
        let targets = match (self.slo_multiplier, explicit.ttft_ms, explicit.itl_ms) {
            (Some(k), None, None) => slo::inferred(&parameters, &traffic, k.value()),
            (None, _, _) | (Some(_), Some(_), Some(_)) => explicit,
            (Some(_), Some(_), None) | (Some(_), None, Some(_)) => {
                return Err(Error::Usage(
                    "with --slo-multiplier, give both --slo-ttft and --slo-itl or neither",
                ));
            }
        };
        let max_batch = self.max_batch.map(|batch| batch.0);
        let sizing = sizing::size(&parameters, &traffic, &targets, max_batch, 1.0);
        Ok(Sized {
            lambda_star: sizing.lambda_star,
            n_star: sizing.n_star,
            rho: sizing.rho,
            binding: sizing.binding.as_str(),
            feasible: sizing.feasible,
            required_replicas: self
                .total_rate
                .and_then(|rate| sizing::required_replicas(rate.0, sizing.lambda_star)),
            slo: self.slo_multiplier.map(|_| Slo { slo_ttft: targets.ttft_ms, slo_itl: targets.itl_ms }),
        })
    }
}
