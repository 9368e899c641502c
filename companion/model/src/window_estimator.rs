//! Learns parameters from windows alone: applies the Kalman filter's steps, restarts it, and reports its state.
//!
//! It serves servers that are only scraped, and recordings of windows. Behind a gate that it set itself, such an
//! estimator would see one operating point and couldn't identify the parameters there. So it never sets the gate of a
//! server with per-request observations.

use std::collections::VecDeque;

use nalgebra::{Matrix3, SymmetricEigen};

use crate::bootstrap::{DEFAULTS, bootstrap};
use crate::closed_form::{Parameters, Traffic};
use crate::kalman::{Belief, Measurement, Noise, Step, slopes, step};
use crate::learner::State;
use crate::workload::Observed;

/// Accepted windows that the condition number is computed from.
const RECENT_MAX: usize = 60;
/// Windows in a row that aren't accepted before the filter restarts.
const MISSES_BEFORE_RESTART: u64 = 3;
/// Restarts in a row before the state is [`State::Error`].
const RESTARTS_BEFORE_ERROR: u64 = 2;
/// Accepted windows in a row before the state can be [`State::Converged`].
const ACCEPTED_BEFORE_CONVERGED: u64 = 3;
/// Condition number from which the parameters aren't identifiable.
const CONDITION_MAX: f64 = 1_000.0;
/// Eigenvalues below this part of the largest one are rounding errors.
const EIGENVALUE_RATIO_MIN: f64 = 1e-13;
/// Half of the 95 % interval of ln n* from which n* isn't known.
const N_STAR_HALF_WIDTH_MAX: f64 = 0.4;
/// Weight of a window in the running noise.
const NOISE_WEIGHT: f64 = 0.05;
/// Smallest noise: 95 % of the measurements within 1 % of the mean.
const NOISE_MIN: f64 = (0.01 / 1.96) * (0.01 / 1.96);
/// Largest noise: 95 % of the measurements within 50 % of the mean.
const NOISE_MAX: f64 = (0.5 / 1.96) * (0.5 / 1.96);

/// Counts of windows. Every window with traffic is accepted or rejected; `undefined` and `restarts` count some of
/// them again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Windows that updated the parameters.
    pub accepted: u64,
    /// Windows that did not.
    pub rejected: u64,
    /// Windows with a load that was unstable under the parameters. The parameters were scaled down and the window
    /// tried again.
    pub undefined: u64,
    /// Restarts of the filter.
    pub restarts: u64,
}

/// Result of one window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// The window updated the parameters.
    pub accepted: bool,
    /// Normalised innovation squared; `None` if nothing was predicted.
    pub nis: Option<f64>,
    /// The filter restarted on this window.
    pub restarted: bool,
}

/// Estimates the parameters of one kind of server from windows.
#[derive(Clone, Debug)]
pub struct WindowEstimator {
    belief: Option<Belief>,
    noise: Noise,
    recent: VecDeque<Measurement>,
    counts: Counts,
    accepted_in_a_row: u64,
    missed_in_a_row: u64,
    restarts_in_a_row: u64,
    condition: Option<f64>,
    nis: Option<f64>,
    idle: bool,
}

impl WindowEstimator {
    /// Starts from `parameters`; `None`: from those that explain the first window, or from the defaults.
    #[must_use]
    pub fn new(parameters: Option<Parameters>) -> Self {
        Self {
            belief: parameters.as_ref().map(Belief::new),
            noise: Noise::default(),
            recent: VecDeque::new(),
            counts: Counts::default(),
            accepted_in_a_row: 0,
            missed_in_a_row: 0,
            restarts_in_a_row: 0,
            condition: None,
            nis: None,
            idle: true,
        }
    }

    /// Adds one window, of one server or the aggregate of several that share the load equally. Returns `None` if the window
    /// had no traffic or no measurement; a mean of 0 counts as not measured.
    pub fn observe(&mut self, window: &Observed) -> Option<Outcome> {
        let Some(measurement) = measurement(window) else {
            self.idle = true;
            return None;
        };
        self.idle = false;
        let belief = *self.belief.get_or_insert_with(|| Belief::new(&bootstrap(window).unwrap_or(DEFAULTS)));
        let mut stepped = step(&belief, &measurement, &self.noise);
        if stepped == Step::Undefined {
            self.counts.undefined += 1;
            stepped = step(&belief.stable_under(&measurement.traffic), &measurement, &self.noise);
        }
        let mut next = belief.widened();
        if self.missed_in_a_row > 0 {
            // A single miss is an outlier. After a second one the server has changed, in any parameter, not only in the least
            // certain one.
            next = next.loosened();
        }
        let restarted =
            !matches!(stepped, Step::Accepted { .. }) && self.missed_in_a_row + 1 >= MISSES_BEFORE_RESTART;
        if restarted {
            self.record_restart();
            (next, stepped) = restart(&belief, window, &measurement);
        }
        let (accepted, nis) = match stepped {
            Step::Accepted { posterior, nis, noise } => {
                next = posterior;
                self.update_noise(&noise);
                (true, Some(nis))
            }
            Step::Rejected { nis } => (false, Some(nis)),
            Step::Undefined => (false, None),
        };
        self.belief = Some(next);
        self.nis = nis;
        if accepted {
            self.record_accepted(measurement);
        } else {
            self.record_rejected(restarted);
        }
        self.condition = condition(&next.parameters(), &self.recent);
        Some(Outcome { accepted, nis, restarted })
    }

    fn record_restart(&mut self) {
        self.counts.restarts += 1;
        self.restarts_in_a_row += 1;
        self.missed_in_a_row = 0;
        self.noise = Noise::default();
        // The earlier windows describe the server before it changed.
        self.recent.clear();
    }

    fn record_accepted(&mut self, measurement: Measurement) {
        self.counts.accepted += 1;
        self.accepted_in_a_row += 1;
        self.missed_in_a_row = 0;
        self.restarts_in_a_row = 0;
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(measurement);
    }

    fn record_rejected(&mut self, restarted: bool) {
        self.counts.rejected += 1;
        self.accepted_in_a_row = 0;
        if !restarted {
            self.missed_in_a_row += 1;
        }
    }

    /// State after the last window. It is never [`State::Infeasible`], because the estimator doesn't know the targets.
    #[must_use]
    pub fn state(&self) -> State {
        if self.idle {
            State::NoTraffic
        } else if self.restarts_in_a_row >= RESTARTS_BEFORE_ERROR {
            State::Error
        } else if self.accepted_in_a_row < ACCEPTED_BEFORE_CONVERGED {
            State::Learning
        } else if self.condition.is_some_and(|condition| condition < CONDITION_MAX) && self.is_n_star_known()
        {
            State::Converged
        } else {
            State::Unidentifiable
        }
    }

    /// Whether n* is known well enough. Loads that differ by chance alone have a good condition number, but their noise
    /// leaves the parameters uncertain.
    fn is_n_star_known(&self) -> bool {
        let total = self.recent.iter().fold(Traffic::default(), |total, measurement| Traffic {
            rate: 0.0,
            input: total.input + measurement.traffic.input,
            output: total.output + measurement.traffic.output,
        });
        let windows = self.recent.len().max(1) as f64;
        let mean = Traffic { rate: 0.0, input: total.input / windows, output: total.output / windows };
        self.belief.is_some_and(|belief| 1.96 * belief.n_star_deviation(&mean) < N_STAR_HALF_WIDTH_MAX)
    }

    /// The current parameters, however uncertain; `None` before the first window if the estimator started without any.
    #[must_use]
    pub fn parameters(&self) -> Option<Parameters> {
        self.belief.map(|belief| belief.parameters())
    }

    /// Condition number of the accepted windows; infinite if the parameters can't be identified at all. `None` before
    /// any was accepted.
    #[must_use]
    pub const fn condition(&self) -> Option<f64> {
        self.condition
    }

    /// Normalised innovation squared of the last window with traffic.
    #[must_use]
    pub const fn nis(&self) -> Option<f64> {
        self.nis
    }

    /// Counts of all windows.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Moves the running noise towards that of one window.
    fn update_noise(&mut self, window: &Noise) {
        let update = |variance: &mut f64, sample: f64| {
            *variance = (*variance + NOISE_WEIGHT * (sample - *variance)).clamp(NOISE_MIN, NOISE_MAX);
        };
        update(&mut self.noise.ttft, window.ttft);
        update(&mut self.noise.itl, window.itl);
    }
}

/// One server's part of `window`; `None` if it holds nothing to learn from.
fn measurement(window: &Observed) -> Option<Measurement> {
    let traffic = window.per_server();
    let is_count = |value: f64| value.is_finite() && value >= 0.0;
    let valid =
        traffic.rate > 0.0 && is_count(traffic.rate) && is_count(traffic.input) && is_count(traffic.output);
    let measured = |value: f64| (value > 0.0 && value.is_finite()).then_some(value);
    let measurement =
        Measurement { traffic, ttft_ms: measured(window.ttft_ms), itl_ms: measured(window.itl_ms) };
    (valid && (measurement.ttft_ms.is_some() || measurement.itl_ms.is_some())).then_some(measurement)
}

/// Restarts from whichever of the window's bootstrap, the defaults and the last parameters the window contradicts least,
/// and applies the window to it.
fn restart(last: &Belief, window: &Observed, measurement: &Measurement) -> (Belief, Step) {
    let contradiction = |step: &Step| match step {
        Step::Accepted { nis, .. } | Step::Rejected { nis } => *nis,
        Step::Undefined => f64::INFINITY,
    };
    let try_from = |parameters: &Parameters| {
        let belief = Belief::new(parameters).stable_under(&measurement.traffic);
        (belief, step(&belief, measurement, &Noise::default()))
    };
    [bootstrap(window), Some(last.parameters())]
        .into_iter()
        .flatten()
        .map(|parameters| try_from(&parameters))
        .fold(try_from(&DEFAULTS), |least, candidate| {
            if contradiction(&candidate.1) < contradiction(&least.1) { candidate } else { least }
        })
}

/// Condition number of the errors of `parameters` that the `recent` windows would reveal; `None` without any window.
fn condition(parameters: &Parameters, recent: &VecDeque<Measurement>) -> Option<f64> {
    let mut gram = Matrix3::zeros();
    for measurement in recent {
        let Some(slope) = slopes(parameters, &measurement.traffic) else {
            continue;
        };
        let measured = [measurement.ttft_ms, measurement.itl_ms];
        for (row, value) in measured.into_iter().enumerate() {
            if value.is_some() {
                gram += slope.row(row).transpose() * slope.row(row);
            }
        }
    }
    if gram == Matrix3::zeros() {
        return None;
    }
    let values = SymmetricEigen::new(gram).eigenvalues;
    let (least, most) = (values.min(), values.max());
    Some(if least > most * EIGENVALUE_RATIO_MIN { (most / least).sqrt() } else { f64::INFINITY })
}
