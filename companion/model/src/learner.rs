//! Learns the parameters of one variant from observations of single requests, and how precisely they are known.

use nalgebra::Vector3;

use crate::change_detector::{self, ChangeDetector};
use crate::closed_form::{Parameters, Traffic};
use crate::fit::{Solution, solve};
use crate::n_star_interval::n_star_interval;
use crate::observation::Observation;
use crate::reservoir::{Reservoir, Sample};
use crate::sizing::Targets;
use crate::ttft_bias::TtftBias;

/// Observations before the first fit counts.
const OBSERVATIONS_MIN: usize = 32;
/// The parameters are known when the 95 % interval of n*, relative to n*, is narrower than this.
const INTERVAL_MAX: f64 = 0.2;
/// Observations after which a wide interval means that the load varies too little. With fewer, the interval is expected
/// to narrow with more observations.
const OBSERVATIONS_ENOUGH: f64 = 1_000.0;
/// Above this condition number the observations are of a single operating point.
const CONDITION_MAX: f64 = 30.0;
/// The largest relative half width at which the time per prompt token is used.
const PROMPT_HALF_WIDTH_MAX: f64 = 0.3;

/// State of a variant's model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// No request was served since the last fit.
    #[default]
    NoTraffic,
    /// There are too few observations, or the interval of n* is still too wide.
    Learning,
    /// The observations are of one operating point, which can't identify three parameters. Predictions hold at that
    /// point only.
    Unidentifiable,
    /// The 95 % interval of n* is narrower than 20 %.
    Converged,
    /// The parameters are known, and no load meets the targets.
    Infeasible,
    /// The observations contradict the model.
    Error,
}

impl State {
    /// All states.
    pub const ALL: [Self; 6] = [
        Self::NoTraffic,
        Self::Learning,
        Self::Unidentifiable,
        Self::Converged,
        Self::Infeasible,
        Self::Error,
    ];

    /// Name in metrics and responses.
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

/// The fit at the end of one window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// The best parameters.
    pub parameters: Parameters,
    /// Half of the 95 % interval of n*, relative to n*.
    pub n_star_half_width: f64,
    /// Condition number of the observations, with scaled columns.
    pub condition: f64,
    /// Number of observations in the fit.
    pub observations: usize,
}

/// Estimates the parameters of one variant.
#[derive(Clone, Debug)]
pub struct Learner {
    /// The last parameters that converged.
    last_good: Option<Parameters>,
    state: State,
    reservoir: Reservoir,
    /// The last fit, whatever its state.
    solution: Option<Solution>,
    change_detector: ChangeDetector,
    ttft_bias: TtftBias,
    /// Observations so far, with or without a decode.
    observed: u64,
    /// `observed` at the last fit.
    observed_at_fit: u64,
}

impl Learner {
    /// Creates a learner. `restored` holds the parameters and the time-to-first-token bias of an earlier process;
    /// invalid parameters are ignored.
    #[must_use]
    pub fn new(restored: Option<(Parameters, f64)>) -> Self {
        let restored = restored.filter(|(parameters, _)| parameters.is_valid());
        Self {
            last_good: restored.map(|(parameters, _)| parameters),
            state: State::NoTraffic,
            reservoir: Reservoir::default(),
            solution: None,
            change_detector: ChangeDetector::default(),
            ttft_bias: TtftBias::new(restored.map_or(1.0, |(_, bias)| bias)),
            observed: 0,
            observed_at_fit: 0,
        }
    }

    /// Adds one observation, in constant time.
    pub fn observe(&mut self, observation: &Observation) {
        self.observed += 1;
        if let Some(predicted_ms) = observation.ttft_predicted_ms {
            self.ttft_bias.observe(observation.ttft_ms, predicted_ms);
        }
        let gaps = observation.output - 1.0;
        let Some(decode) = observation.decode else {
            return;
        };
        let mut sample = Sample { decode, gaps, number: 0, at_ms: observation.at_ms };
        let load = self.solution.map_or(decode.batch, |solution| solution.load(&sample));
        if let Some(number) = self.reservoir.insert(observation.at_ms, decode, gaps, load) {
            sample.number = number;
            if let Some(solution) = &self.solution {
                let surprise = solution.surprise(&sample, change_detector::DEVIATION_MIN);
                self.change_detector.observe(number, surprise);
            }
        }
    }

    /// Fits the parameters to all kept observations, once a window. The interval of n* is computed for `traffic` and
    /// `targets`. Returns `None` if there are too few observations, or no request was served since the last fit.
    pub fn fit(&mut self, now_ms: f64, traffic: &Traffic, targets: &Targets) -> Option<Fit> {
        if self.observed == self.observed_at_fit {
            self.state = State::NoTraffic;
            return None;
        }
        self.observed_at_fit = self.observed;
        let (samples, solution) = self.solve_since_change(now_ms);
        self.solution = solution.filter(|_| samples.len() >= OBSERVATIONS_MIN);
        let Some(solution) = self.solution else {
            self.state = State::Learning;
            return None;
        };
        let single_point = solution.condition > CONDITION_MAX;
        let Some(parameters) = solution.parameters() else {
            self.state = if single_point { State::Unidentifiable } else { State::Error };
            return None;
        };
        let interval = n_star_interval(&solution, &parameters, traffic, targets);
        let is_known = 2.0 * interval.half_width < INTERVAL_MAX;
        self.state = if is_known && interval.feasible {
            State::Converged
        } else if is_known {
            State::Infeasible
        } else if single_point || is_hopeless(interval.half_width, samples.len()) {
            State::Unidentifiable
        } else {
            State::Learning
        };
        if is_known {
            self.last_good = Some(parameters);
        }
        Some(Fit {
            parameters,
            n_star_half_width: interval.half_width,
            condition: solution.condition,
            observations: samples.len(),
        })
    }

    /// Fits the kept observations. If the server has changed, discards the observations from before the change first.
    fn solve_since_change(&mut self, now_ms: f64) -> (Vec<Sample>, Option<Solution>) {
        let samples = self.reservoir.samples(now_ms);
        let solution = solve(&samples);
        let (Some(since), Some(found)) = (self.change_detector.changed_since(), &solution) else {
            return (samples, solution);
        };
        self.change_detector = ChangeDetector::default();
        if !change_detector::persists(found, &samples, since) {
            return (samples, solution);
        }
        self.reservoir.discard_before(since);
        let samples = self.reservoir.samples(now_ms);
        let solution = solve(&samples);
        (samples, solution)
    }

    /// State as of the last fit.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// The parameters to act on: the last ones that converged, even if a later fit did not. `None` before any fit
    /// converged.
    #[must_use]
    pub const fn parameters(&self) -> Option<Parameters> {
        self.last_good
    }

    /// Time that a prompt token adds to an iteration, in milliseconds, for the overlap trackers. `None` until it is known
    /// to within 30 %.
    #[must_use]
    pub fn prompt_ms(&self) -> Option<f64> {
        let gradient = Vector3::new(0.0, 1.0, 1.0);
        let fitted = self.solution.and_then(|solution| {
            let prompt_ms = solution.theta.dot(&gradient);
            (solution.half_width(prompt_ms, &gradient) < PROMPT_HALF_WIDTH_MAX).then_some(prompt_ms)
        });
        fitted.or_else(|| self.last_good.map(|good| good.beta_ms + good.gamma_ms))
    }

    /// Observed over predicted time to the first token; 1 until enough requests were observed.
    #[must_use]
    pub const fn ttft_bias(&self) -> f64 {
        self.ttft_bias.get()
    }
}

/// Whether more observations like these would leave n* unknown, because the load they were made under varies too little.
fn is_hopeless(n_star_half_width: f64, observations: usize) -> bool {
    let maturity = (observations as f64 / OBSERVATIONS_ENOUGH).min(1.0);
    2.0 * n_star_half_width * maturity.sqrt() >= INTERVAL_MAX
}
