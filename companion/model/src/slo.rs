//! The latency targets in force: explicit ones, else those inferred from learned parameters, else those derived from
//! measured latencies.

use crate::closed_form::{Parameters, Traffic};
use crate::sizing::Targets;

/// The configured policy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Policy {
    /// Inferred targets allow an iteration this many times alpha; above 1. `None`: [`MULTIPLIER`], which sizes replicas and limits
    /// no gate.
    pub multiplier: Option<f64>,
    /// Explicit targets, at least one of them.
    pub explicit: Option<Targets>,
}

impl Policy {
    /// The multiplier of inferred targets.
    #[must_use]
    pub fn multiplier(&self) -> f64 {
        self.multiplier.unwrap_or(MULTIPLIER)
    }
}

/// The multiplier of inferred targets where none is configured.
pub const MULTIPLIER: f64 = 3.0;

/// Where the targets come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The configuration.
    Explicit,
    /// Learned parameters.
    Model,
    /// Measured latencies: for replica counts only, never for the gate.
    Observed,
    /// There are no targets.
    None,
}

impl Source {
    /// All sources.
    pub const ALL: [Self; 4] = [Self::Explicit, Self::Model, Self::Observed, Self::None];

    /// Name in metrics and responses.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Explicit => "explicit",
            Self::Model => "model",
            Self::Observed => "observed",
            Self::None => "none",
        }
    }
}

/// The targets in force.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slo {
    /// The targets. None is set if the source is [`Source::None`], and perhaps only one if it is [`Source::Explicit`].
    pub targets: Targets,
    /// Where they come from.
    pub source: Source,
}

/// Targets of one variant, at which the model's iteration takes `multiplier` times alpha. A real server then shows
/// the TTFT target times the variant's bias.
#[must_use]
pub fn inferred(parameters: &Parameters, traffic: &Traffic, multiplier: f64) -> Targets {
    let iteration_ms = multiplier * parameters.alpha_ms;
    Targets {
        ttft_ms: Some(iteration_ms + parameters.own_prefill_ms(traffic)),
        itl_ms: Some(iteration_ms + parameters.own_decode_ms(traffic)),
    }
}

/// Targets 1.5 times above the measured latencies, at most 10 s and 500 ms. `None` unless both latencies are above 0.
#[must_use]
pub fn observed(ttft_ms: f64, itl_ms: f64) -> Option<Targets> {
    (ttft_ms > 0.0 && itl_ms > 0.0).then(|| Targets {
        ttft_ms: Some((HEADROOM * ttft_ms).min(TTFT_MS_MAX)),
        itl_ms: Some((HEADROOM * itl_ms).min(ITL_MS_MAX)),
    })
}

/// The larger of both targets, each by itself.
#[must_use]
pub fn maximum(left: Targets, right: Targets) -> Targets {
    // `None` compares below every `Some`.
    let larger = |a: Option<f64>, b: Option<f64>| if a > b { a } else { b };
    Targets { ttft_ms: larger(left.ttft_ms, right.ttft_ms), itl_ms: larger(left.itl_ms, right.itl_ms) }
}

/// Factor from measured latencies to targets.
const HEADROOM: f64 = 1.5;
const TTFT_MS_MAX: f64 = 10_000.0;
const ITL_MS_MAX: f64 = 500.0;
