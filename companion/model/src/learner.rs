//! Learning from single requests: what one variant's observations say of its parameters, and how sure that is.

use crate::closed_form::{Parameters, Traffic};
use crate::ledger::Observation;
use crate::sizing::Targets;

/// How far a variant's model is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Nothing was served lately.
    #[default]
    NoTraffic,
    /// There is too little to say.
    Learning,
    /// One operating point can't tell three parameters apart: predictions hold there, and nowhere else.
    Unidentifiable,
    /// The parameters are known.
    Converged,
    /// No load meets the targets.
    Infeasible,
    /// What was seen contradicts the model.
    Error,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::NoTraffic,
        Self::Learning,
        Self::Unidentifiable,
        Self::Converged,
        Self::Infeasible,
        Self::Error,
    ];

    /// Its name in metrics and answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoTraffic => "no_traffic",
            Self::Learning => "learning",
            Self::Unidentifiable => "unidentifiable",
            Self::Converged => "converged",
            Self::Infeasible => "infeasible",
            Self::Error => "error",
        }
    }
}

/// What one window's fit says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// The best parameters.
    pub parameters: Parameters,
    /// Half of the 95 % interval of n*, relative to it.
    pub n_star_half_width: f64,
    /// The condition number of what was observed, columns scaled.
    pub condition: f64,
    /// Observations it rests on.
    pub observations: usize,
}

/// What is learned of one variant.
#[derive(Clone, Debug)]
pub struct Learner {
    last_good: Option<Parameters>,
    ttft_bias: f64,
    state: State,
}

impl Learner {
    /// One that starts from `kept` parameters and time-to-first-token bias of an earlier life, if there are any.
    #[must_use]
    pub fn new(kept: Option<(Parameters, f64)>) -> Self {
        Self {
            last_good: kept.map(|(parameters, _)| parameters),
            ttft_bias: kept.map_or(1.0, |(_, bias)| bias),
            state: State::NoTraffic,
        }
    }

    /// Takes one observation in, in constant time.
    pub fn observe(&mut self, _observation: &Observation) {}

    /// Fits all that is kept: once a window. `traffic` and `targets` are what n* is asked for.
    pub fn fit(&mut self, _now_ms: f64, _traffic: &Traffic, _targets: &Targets) -> Option<Fit> {
        None
    }

    /// How far it is, as of the last fit.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// The parameters to act on: the last ones that were converged, also when that is lost; `None`: there never were any.
    #[must_use]
    pub const fn parameters(&self) -> Option<Parameters> {
        self.last_good
    }

    /// Observed over predicted time to the first token; 1 until something is known.
    #[must_use]
    pub const fn ttft_bias(&self) -> f64 {
        self.ttft_bias
    }
}
