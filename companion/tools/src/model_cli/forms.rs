//! `penstock model solve` and `size`: the closed forms, for one kind of server and one kind of request.

use penstock_model::sizing;
use penstock_model::{Parameters, Targets, Traffic, slo};
use serde::Serialize;

use super::Error;
use super::number::{Above0, AtLeast0, Batch, Multiplier};

/// A kind of server, and an average request.
#[derive(Debug, clap::Args)]
struct Case {
    /// Milliseconds of every iteration; above 0.
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    alpha: Above0,
    /// Milliseconds for each token that an iteration processes.
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    beta: AtLeast0,
    /// Milliseconds for each token in the KV cache.
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    gamma: AtLeast0,
    /// Tokens of the prompt, on average.
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true)]
    input: AtLeast0,
    /// Tokens of the answer, on average.
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true)]
    output: AtLeast0,
}

impl Case {
    const fn parameters(&self) -> Parameters {
        Parameters {
            alpha_ms: self.alpha.0,
            beta_ms: self.beta.0,
            gamma_ms: self.gamma.0,
        }
    }

    const fn traffic(&self, rate: f64) -> Traffic {
        Traffic {
            rate,
            input: self.input.0,
            output: self.output.0,
        }
    }
}

/// What `penstock model solve` is told.
#[derive(Debug, clap::Args)]
pub(super) struct Solve {
    #[command(flatten)]
    case: Case,
    /// Requests per second.
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    rate: AtLeast0,
}

/// Where a server settles. The last four are null where it doesn't.
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
    pub(super) fn answer(&self) -> Solved {
        let operation = self.case.parameters().solve(&self.case.traffic(self.rate.0));
        let steady = operation.steady;
        Solved {
            delta: operation.delta_ms,
            rho: operation.rho,
            t_iter: steady.map(|it| it.iteration_ms),
            ttft: steady.map(|it| it.ttft_ms),
            itl: steady.map(|it| it.itl_ms),
            n: steady.map(|it| it.in_flight),
            stable: steady.is_some(),
        }
    }
}

/// What `penstock model size` is told.
#[derive(Debug, clap::Args)]
pub(super) struct Size {
    #[command(flatten)]
    case: Case,
    /// Plays no part: what a server can take doesn't depend on what it is asked for. Taken so that the flags of
    /// `solve` can be used again.
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    rate: Option<AtLeast0>,
    /// Target of the mean time to the first token; 0 or absent: none.
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    slo_ttft: Option<AtLeast0>,
    /// Target of the mean time between tokens; 0 or absent: none.
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    slo_itl: Option<AtLeast0>,
    /// Targets as they are at an iteration of so many times alpha; above 1, or 0 for 3. Both targets
    /// that are given win over it.
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    slo_multiplier: Option<Multiplier>,
    /// Requests in one batch at most; absent: not limited.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max_batch: Option<Batch>,
    /// Requests per second that all servers together have to take.
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    total_rate: Option<AtLeast0>,
}

/// What a server can take.
#[derive(Debug, Serialize)]
pub(super) struct Sized {
    /// Null: nothing limits it, and requests cost nothing.
    lambda_star: f64,
    n_star: Option<f64>,
    rho: f64,
    binding: &'static str,
    feasible: bool,
    required_replicas: Option<u64>,
    /// Where a multiplier was given.
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
    /// When the flags don't fit together.
    pub(super) fn answer(&self) -> Result<Sized, Error> {
        let (parameters, traffic) = (self.case.parameters(), self.case.traffic(0.0));
        let given = |target: Option<AtLeast0>| target.map(|it| it.0).filter(|ms| *ms > 0.0);
        let explicit = Targets {
            ttft_ms: given(self.slo_ttft),
            itl_ms: given(self.slo_itl),
        };
        let targets = match (self.slo_multiplier, explicit.ttft_ms, explicit.itl_ms) {
            (Some(k), None, None) => slo::inferred(&parameters, &traffic, k.value()),
            (None, _, _) | (Some(_), Some(_), Some(_)) => explicit,
            (Some(_), Some(_), None) | (Some(_), None, Some(_)) => {
                return Err(Error::Usage(
                    "--slo-ttft and --slo-itl are given both, or neither, beside --slo-multiplier",
                ));
            }
        };
        let max_batch = self.max_batch.map(|it| it.0);
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
            slo: self.slo_multiplier.map(|_| Slo {
                slo_ttft: targets.ttft_ms,
                slo_itl: targets.itl_ms,
            }),
        })
    }
}
