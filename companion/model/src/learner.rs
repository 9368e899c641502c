//! Learning from single requests: what one variant's observations say of its parameters, and how sure that is.

use nalgebra::Vector3;

use crate::closed_form::{Parameters, Traffic};
use crate::fit::{Solution, solve};
use crate::ledger::Observation;
use crate::reservoir::{Reservoir, Sample};
use crate::sizing::Targets;

/// Observations before anything is said.
const FEW: usize = 32;
/// The 95 % interval of n*, relative to it, from which on the parameters are known.
const KNOWN: f64 = 0.2;
/// Observations that must be enough: fewer of them are given the benefit of the doubt.
const ENOUGH: f64 = 1_000.0;
/// The spread of what was observed is one operating point's if the design is worse conditioned than this.
const ONE_POINT: f64 = 30.0;

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
    state: State,
    reservoir: Reservoir,
    /// The last fit, whatever its state.
    solution: Option<Solution>,
    change: Change,
    first_token: FirstToken,
    /// Observations of any kind, and how many there were at the last fit.
    seen: u64,
    seen_at_fit: u64,
}

impl Learner {
    /// One that starts from `kept` parameters and time-to-first-token bias of an earlier life, if there are any. Those
    /// that can't be are none.
    #[must_use]
    pub fn new(kept: Option<(Parameters, f64)>) -> Self {
        let kept = kept.filter(|(parameters, _)| parameters.is_valid());
        Self {
            last_good: kept.map(|(parameters, _)| parameters),
            state: State::NoTraffic,
            reservoir: Reservoir::default(),
            solution: None,
            change: Change::default(),
            first_token: FirstToken::new(kept.map_or(1.0, |(_, bias)| bias)),
            seen: 0,
            seen_at_fit: 0,
        }
    }

    /// Takes one observation in, in constant time.
    pub fn observe(&mut self, observation: &Observation) {
        self.seen += 1;
        if let Some(predicted_ms) = observation.ttft_predicted_ms {
            self.first_token.saw(observation.ttft_ms, predicted_ms);
        }
        let gaps = observation.output - 1.0;
        let Some(decode) = observation.decode else {
            return;
        };
        let mut sample = Sample {
            decode,
            gaps,
            number: 0,
            at_ms: observation.at_ms,
        };
        let load = self
            .solution
            .map_or(decode.batch, |solution| solution.load(&sample));
        if let Some(number) = self.reservoir.take(observation.at_ms, decode, gaps, load) {
            sample.number = number;
            if let Some(solution) = &self.solution {
                self.change.saw(number, solution.surprise(&sample, DOUBT));
            }
        }
    }

    /// Fits all that is kept: once a window. `traffic` and `targets` are what n* is asked for; where no target is
    /// given, it is asked at a multiple of alpha. `None`: there is too little, or nothing was served since the last.
    pub fn fit(&mut self, now_ms: f64, traffic: &Traffic, targets: &Targets) -> Option<Fit> {
        if self.seen == self.seen_at_fit {
            self.state = State::NoTraffic;
            return None;
        }
        self.seen_at_fit = self.seen;
        let mut samples = self.reservoir.samples(now_ms);
        let mut solution = solve(&samples);
        if let (Some(since), Some(found)) = (self.change.since(), &solution) {
            if self.change.lasts(found, &samples, since) {
                self.reservoir.forget_before(since);
                samples = self.reservoir.samples(now_ms);
                solution = solve(&samples);
            }
            self.change = Change::default();
        }
        self.solution = solution.filter(|_| samples.len() >= FEW);
        let Some(found) = self.solution else {
            self.state = State::Learning;
            return None;
        };
        let one_point = found.condition > ONE_POINT;
        let Some(parameters) = found.parameters() else {
            self.state = if one_point {
                State::Unidentifiable
            } else {
                State::Error
            };
            return None;
        };
        let (n_star_half_width, feasible) = interval(&found, &parameters, traffic, targets);
        self.state = match () {
            () if 2.0 * n_star_half_width < KNOWN && feasible => State::Converged,
            () if 2.0 * n_star_half_width < KNOWN => State::Infeasible,
            () if one_point || hopeless(n_star_half_width, samples.len()) => State::Unidentifiable,
            () => State::Learning,
        };
        if matches!(self.state, State::Converged | State::Infeasible) {
            self.last_good = Some(parameters);
        }
        Some(Fit {
            parameters,
            n_star_half_width,
            condition: found.condition,
            observations: samples.len(),
        })
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

    /// What a prompt token adds to an iteration, in milliseconds, as soon as that is known somewhat: for the ledgers.
    #[must_use]
    pub fn prompt_ms(&self) -> Option<f64> {
        let by = Vector3::new(0.0, 1.0, 1.0);
        let known = |it: &Solution| it.half_width(it.theta.dot(&by), &by) < 0.3;
        let of_fit = self.solution.filter(known).map(|it| it.theta.dot(&by));
        of_fit.or_else(|| self.last_good.map(|good| good.beta_ms + good.gamma_ms))
    }

    /// Observed over predicted time to the first token; 1 until something is known.
    #[must_use]
    pub const fn ttft_bias(&self) -> f64 {
        self.first_token.bias
    }
}

/// More observations like these wouldn't make n* known: what they were made under varies too little.
fn hopeless(n_star_half_width: f64, observations: usize) -> bool {
    let missing = (observations as f64 / ENOUGH).min(1.0);
    2.0 * n_star_half_width * missing.sqrt() >= KNOWN
}

/// Half of the 95 % interval of n*, relative to it, and whether any load meets the targets: if none does, it is the
/// interval of alpha over the work of a request.
fn interval(
    solution: &Solution,
    parameters: &Parameters,
    traffic: &Traffic,
    targets: &Targets,
) -> (f64, bool) {
    let n_star = |p: &Parameters| {
        let (i, o) = (traffic.input, traffic.output);
        let iteration_ms = [
            targets.ttft_ms.map(|ms| ms - (p.beta_ms + p.gamma_ms) * i),
            targets
                .itl_ms
                .map(|ms| ms - p.beta_ms - p.gamma_ms * (i + f64::midpoint(o, 1.0))),
        ];
        let most_ms = iteration_ms.into_iter().flatten().fold(f64::INFINITY, f64::min);
        let room_ms = if most_ms.is_finite() {
            most_ms - p.alpha_ms
        } else {
            p.alpha_ms
        };
        room_ms / p.delta_ms(traffic)
    };
    let inferred = |p: &Parameters| p.alpha_ms / p.delta_ms(traffic);
    let feasible = n_star(parameters) > 0.0;
    let value = |p: &Parameters| if feasible { n_star(p) } else { inferred(p) };
    let at = value(parameters);
    let slope = |change: fn(&mut Parameters, f64), step: f64| {
        let step = step.max(parameters.alpha_ms * 1e-9) * 1e-4;
        let mut moved = *parameters;
        change(&mut moved, step);
        (value(&moved) - at) / step
    };
    let gradient = Vector3::new(
        slope(|p, step| p.alpha_ms += step, parameters.alpha_ms),
        slope(|p, step| p.beta_ms += step, parameters.beta_ms),
        slope(|p, step| p.gamma_ms += step, parameters.gamma_ms),
    );
    (solution.half_width(at, &gradient), feasible)
}

/// The least relative deviation in which a surprise is measured: below it the model's own misfit is no news.
const DOUBT: f64 = 0.05;
/// What one surprise counts at most, so that single ones say little.
const SURPRISE_MAX: f64 = 3.0;
/// What a surprise has to exceed to count at all.
const SLACK: f64 = 1.0;
/// The sum from which on it isn't chance.
const ALARM: f64 = 12.0;

/// Whether what is observed departs from what was fitted, and since when: sums of surprises, upwards and downwards.
#[derive(Clone, Copy, Debug, Default)]
struct Change {
    up: Sum,
    down: Sum,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    sum: f64,
    /// The observation since which it is above 0.
    since: u64,
}

impl Sum {
    fn add(&mut self, number: u64, surprise: f64) {
        if self.sum <= 0.0 {
            self.since = number;
        }
        self.sum = (self.sum + surprise.min(SURPRISE_MAX) - SLACK).clamp(0.0, 1e6);
    }
}

impl Change {
    fn saw(&mut self, number: u64, surprise: f64) {
        self.up.add(number, surprise);
        self.down.add(number, -surprise);
    }

    /// The first observation of those that depart.
    fn since(&self) -> Option<u64> {
        [self.up, self.down]
            .into_iter()
            .filter(|one| one.sum > ALARM)
            .map(|one| one.since)
            .min()
    }

    /// They depart from a fit to all that is kept as well.
    fn lasts(&self, solution: &Solution, samples: &[Sample], since: u64) -> bool {
        let surprises = samples
            .iter()
            .filter(|sample| sample.number >= since)
            .map(|sample| {
                solution
                    .surprise(sample, DOUBT)
                    .clamp(-SURPRISE_MAX, SURPRISE_MAX)
            });
        let (count, sum) = surprises.fold((0.0, 0.0), |(n, sum), z| (n + 1.0, sum + z));
        count > 0.0 && (sum / count).abs() > SLACK / 2.0
    }
}

/// What is believed of observed over predicted.
const BIAS_MIN: f64 = 0.05;
const BIAS_MAX: f64 = 20.0;

/// Observed over predicted time to the first token, of late.
#[derive(Clone, Copy, Debug)]
struct FirstToken {
    observed_ms: f64,
    predicted_ms: f64,
    count: f64,
    bias: f64,
}

impl FirstToken {
    fn new(bias: f64) -> Self {
        Self {
            observed_ms: 0.0,
            predicted_ms: 0.0,
            count: 0.0,
            bias: if bias.is_finite() && bias > 0.0 {
                bias.clamp(BIAS_MIN, BIAS_MAX)
            } else {
                1.0
            },
        }
    }

    fn saw(&mut self, observed_ms: f64, predicted_ms: f64) {
        const FORGET: f64 = 1.0 - 1.0 / 400.0;
        let ratio = observed_ms / predicted_ms;
        if !(ratio.is_finite() && ratio > 0.0 && predicted_ms > 1e-6) {
            return;
        }
        // A single one of a server that was busy with something else must not carry the mean.
        let observed_ms = ratio.clamp(BIAS_MIN, BIAS_MAX) * predicted_ms;
        self.observed_ms = self.observed_ms * FORGET + observed_ms;
        self.predicted_ms = self.predicted_ms * FORGET + predicted_ms;
        self.count += 1.0;
        if self.count >= 16.0 {
            self.bias = (self.observed_ms / self.predicted_ms).clamp(BIAS_MIN, BIAS_MAX);
        }
    }
}
