//! Learning from windows alone: the Kalman filter's steps, its restarts and its states.
//!
//! For servers that are only scraped, and for recordings of windows. Behind its own gate it sees one operating point
//! and can't tell the parameters apart there, so it never sets the gate where single requests are seen.

use std::collections::VecDeque;

use nalgebra::{Matrix3, SymmetricEigen};

use crate::bootstrap::{DEFAULTS, bootstrap};
use crate::closed_form::{Parameters, Traffic};
use crate::kalman::{Belief, Noise, Seen, Step, slopes, step};
use crate::learner::State;
use crate::workload::Observed;

/// What came of the windows so far. Every one with traffic is accepted or rejected; the rest is counted beside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Believed.
    pub accepted: u64,
    /// Not believed.
    pub rejected: u64,
    /// Impossible under what was believed, which was mended before it was looked at again.
    pub undefined: u64,
    /// Beliefs that were given up.
    pub restarts: u64,
}

/// What came of a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// It was believed.
    pub accepted: bool,
    /// Normalised innovation squared; `None`: nothing was predicted.
    pub nis: Option<f64>,
    /// A belief was given up on it.
    pub restarted: bool,
}

/// What windows say of one kind of server.
#[derive(Clone, Debug)]
pub struct Windows {
    belief: Option<Belief>,
    noise: Noise,
    recent: VecDeque<Seen>,
    counts: Counts,
    accepted_in_a_row: u64,
    missed_in_a_row: u64,
    restarts_in_a_row: u64,
    condition: Option<f64>,
    nis: Option<f64>,
    idle: bool,
}

impl Windows {
    /// Starts from `parameters`; `None`: from what the first window says, and the defaults if it says nothing.
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

    /// Takes one window in: of one server, or of several together as if each had the same part of the load. `None`:
    /// there was no traffic in it, or nothing was seen of that; a mean of 0 wasn't seen.
    pub fn observe(&mut self, window: &Observed) -> Option<Outcome> {
        let Some(seen) = seen(window) else {
            self.idle = true;
            return None;
        };
        self.idle = false;
        let belief = *self
            .belief
            .get_or_insert_with(|| Belief::new(&bootstrap(window).unwrap_or(DEFAULTS)));
        let mut stepped = step(&belief, &seen, &self.noise);
        if stepped == Step::Undefined {
            self.counts.undefined += 1;
            stepped = step(&belief.stable_under(&seen.traffic), &seen, &self.noise);
        }
        let mut next = belief.widened();
        if self.missed_in_a_row > 0 {
            // One miss is an outlier. After another the server has changed, and not rather in what was known least.
            next = next.loosened();
        }
        let restarted =
            !matches!(stepped, Step::Accepted { .. }) && self.missed_in_a_row + 1 >= MISSES_BEFORE_RESTART;
        if restarted {
            self.counts.restarts += 1;
            self.restarts_in_a_row += 1;
            self.missed_in_a_row = 0;
            self.noise = Noise::default();
            // Windows of what the server no longer is say nothing about what it is.
            self.recent.clear();
            (next, stepped) = least_contradicted(&belief, window, &seen);
        }
        let (accepted, nis) = match stepped {
            Step::Accepted {
                posterior,
                nis,
                noise,
            } => {
                next = posterior;
                self.follow(&noise);
                (true, Some(nis))
            }
            Step::Rejected { nis } => (false, Some(nis)),
            Step::Undefined => (false, None),
        };
        self.belief = Some(next);
        self.nis = nis;
        if accepted {
            self.counts.accepted += 1;
            self.accepted_in_a_row += 1;
            self.missed_in_a_row = 0;
            self.restarts_in_a_row = 0;
            if self.recent.len() == RECENT_MAX {
                self.recent.pop_front();
            }
            self.recent.push_back(seen);
        } else {
            self.counts.rejected += 1;
            self.accepted_in_a_row = 0;
            if !restarted {
                self.missed_in_a_row += 1;
            }
        }
        self.condition = condition(&next.parameters(), &self.recent);
        Some(Outcome {
            accepted,
            nis,
            restarted,
        })
    }

    /// How far it is. Targets it doesn't know, so it never says [`State::Infeasible`].
    #[must_use]
    pub fn state(&self) -> State {
        if self.idle {
            State::NoTraffic
        } else if self.restarts_in_a_row >= RESTARTS_BEFORE_ERROR {
            State::Error
        } else if self.accepted_in_a_row < ACCEPTED_BEFORE_CONVERGED {
            State::Learning
        } else if self.condition.is_some_and(|it| it < CONDITION_MAX) && self.is_sure() {
            State::Converged
        } else {
            State::Unidentifiable
        }
    }

    /// Whether it knows n* at all: loads that differ by chance alone tell parameters apart on paper, but their noise
    /// drowns it.
    fn is_sure(&self) -> bool {
        let sizes = self.recent.iter().map(|it| it.traffic);
        let sum = sizes.fold(Traffic::default(), |sum, it| Traffic {
            rate: 0.0,
            input: sum.input + it.input,
            output: sum.output + it.output,
        });
        let windows = self.recent.len().max(1) as f64;
        let mean = Traffic {
            rate: 0.0,
            input: sum.input / windows,
            output: sum.output / windows,
        };
        self.belief
            .is_some_and(|it| 1.96 * it.n_star_deviation(&mean) < N_STAR_HALF_WIDTH_MAX)
    }

    /// What is believed now, however firmly; `None`: there was nothing to believe yet.
    #[must_use]
    pub fn parameters(&self) -> Option<Parameters> {
        self.belief.map(|it| it.parameters())
    }

    /// Condition number of what was observed; infinite where parameters can't be told apart at all. `None`: nothing was.
    #[must_use]
    pub const fn condition(&self) -> Option<f64> {
        self.condition
    }

    /// Normalised innovation squared of the last window with traffic.
    #[must_use]
    pub const fn nis(&self) -> Option<f64> {
        self.nis
    }

    /// What came of all windows.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// The noise follows what accepted windows leave over.
    fn follow(&mut self, of_window: &Noise) {
        let follow = |variance: &mut f64, now: f64| {
            *variance = (*variance + NOISE_WEIGHT * (now - *variance)).clamp(NOISE_MIN, NOISE_MAX);
        };
        follow(&mut self.noise.ttft, of_window.ttft);
        follow(&mut self.noise.itl, of_window.itl);
    }
}

/// One server's part of `window`; `None`: there is nothing to learn from it.
fn seen(window: &Observed) -> Option<Seen> {
    let traffic = window.per_server();
    let counts = |it: f64| it.is_finite() && it >= 0.0;
    let valid = traffic.rate > 0.0 && counts(traffic.rate) && counts(traffic.input) && counts(traffic.output);
    let known = |it: f64| (it > 0.0 && it.is_finite()).then_some(it);
    let seen = Seen {
        traffic,
        ttft_ms: known(window.ttft_ms),
        itl_ms: known(window.itl_ms),
    };
    (valid && (seen.ttft_ms.is_some() || seen.itl_ms.is_some())).then_some(seen)
}

/// What to believe instead of `last`: of what comes to mind, the one that the window contradicts least, and the step
/// from there.
fn least_contradicted(last: &Belief, window: &Observed, seen: &Seen) -> (Belief, Step) {
    let contradiction = |step: &Step| match step {
        Step::Accepted { nis, .. } | Step::Rejected { nis } => *nis,
        Step::Undefined => f64::INFINITY,
    };
    let stepped = |parameters: &Parameters| {
        let belief = Belief::new(parameters).stable_under(&seen.traffic);
        (belief, step(&belief, seen, &Noise::default()))
    };
    [bootstrap(window), Some(last.parameters())]
        .into_iter()
        .flatten()
        .map(|it| stepped(&it))
        .fold(stepped(&DEFAULTS), |least, it| {
            if contradiction(&it.1) < contradiction(&least.1) {
                it
            } else {
                least
            }
        })
}

/// The condition number of what `recent` windows would show of errors of `parameters`; `None`: there are none.
fn condition(parameters: &Parameters, recent: &VecDeque<Seen>) -> Option<f64> {
    let mut gram = Matrix3::zeros();
    for seen in recent {
        let Some(slope) = slopes(parameters, &seen.traffic) else {
            continue;
        };
        for (row, value) in [seen.ttft_ms, seen.itl_ms].into_iter().enumerate() {
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
    // Less is rounding.
    Some(if least > most * 1e-13 {
        (most / least).sqrt()
    } else {
        f64::INFINITY
    })
}

/// Windows that say which loads were seen.
const RECENT_MAX: usize = 60;
const MISSES_BEFORE_RESTART: u64 = 3;
const RESTARTS_BEFORE_ERROR: u64 = 2;
const ACCEPTED_BEFORE_CONVERGED: u64 = 3;
const CONDITION_MAX: f64 = 1_000.0;
/// Half of the 95 % interval of ln n* beyond which it isn't known.
const N_STAR_HALF_WIDTH_MAX: f64 = 0.4;
/// The part of a window in the running variance,
const NOISE_WEIGHT: f64 = 0.05;
/// and what that is held within: 95 % within 1 % of the mean, and within 50 %.
const NOISE_MIN: f64 = (0.01 / 1.96) * (0.01 / 1.96);
const NOISE_MAX: f64 = (0.5 / 1.96) * (0.5 / 1.96);
