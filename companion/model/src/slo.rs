//! Which targets hold: explicit ones, else those inferred from what was learned, else those of what was seen.

use crate::closed_form::{Parameters, Traffic};
use crate::sizing::Targets;

/// What the configuration says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// Inferred targets are those at so many times alpha; above 1.
    pub multiplier: f64,
    /// Explicit targets: both are given.
    pub explicit: Option<Targets>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            multiplier: 3.0,
            explicit: None,
        }
    }
}

/// Where targets come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The configuration.
    Explicit,
    /// Learned parameters.
    Model,
    /// What was observed: for replicas only, never for the gate.
    Observed,
    /// There are none.
    None,
}

impl Source {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Explicit, Self::Model, Self::Observed, Self::None];

    /// Its name in metrics and answers.
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
    /// Both are there unless the source is [`Source::None`].
    pub targets: Targets,
    /// Where they come from.
    pub source: Source,
}

/// Targets at `multiplier` times alpha, for one variant: where its iterations take so long, by the model. What a real
/// server shows then is the first of them times the variant's bias.
#[must_use]
pub fn inferred(parameters: &Parameters, traffic: &Traffic, multiplier: f64) -> Targets {
    let iteration_ms = multiplier * parameters.alpha_ms;
    Targets {
        ttft_ms: Some(iteration_ms + parameters.own_prefill_ms(traffic)),
        itl_ms: Some(iteration_ms + parameters.own_decode_ms(traffic)),
    }
}

/// Of what was observed, `None` unless both are above 0: room to breathe, and no more than anybody waits.
#[must_use]
pub fn observed(ttft_ms: f64, itl_ms: f64) -> Option<Targets> {
    (ttft_ms > 0.0 && itl_ms > 0.0).then(|| Targets {
        ttft_ms: Some((HEADROOM * ttft_ms).min(TTFT_MS_MAX)),
        itl_ms: Some((HEADROOM * itl_ms).min(ITL_MS_MAX)),
    })
}

/// The larger of either.
#[must_use]
pub fn maximum(one: Targets, other: Targets) -> Targets {
    // `None` is the least of all options.
    let larger = |a: Option<f64>, b: Option<f64>| if a > b { a } else { b };
    Targets {
        ttft_ms: larger(one.ttft_ms, other.ttft_ms),
        itl_ms: larger(one.itl_ms, other.itl_ms),
    }
}

/// How much worse than what was observed is still on target.
const HEADROOM: f64 = 1.5;
const TTFT_MS_MAX: f64 = 10_000.0;
const ITL_MS_MAX: f64 = 500.0;
