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

/// Targets at `multiplier` times alpha, for one variant.
#[must_use]
pub fn inferred(_parameters: &Parameters, _traffic: &Traffic, _multiplier: f64) -> Targets {
    Targets::default()
}

/// Of what was observed, `None` unless both are above 0.
#[must_use]
pub fn observed(_ttft_ms: f64, _itl_ms: f64) -> Option<Targets> {
    None
}
