//! The extended Kalman filter over ln alpha, ln beta and ln gamma: one step, a pure function.
//!
//! A window's mean TTFT and ITL are seen, by their logarithms: parameters stay above 0 by construction, and an error is
//! one of so many per cent. It knows the closed forms alone, so what they leave out ends up in the parameters. It
//! refuses what the prior can't explain; what then becomes of the filter is [`windows`](crate::windows)' business.

use nalgebra::{Matrix2, Matrix2x3, Matrix3, SymmetricEigen, Vector2, Vector3};

use crate::closed_form::{Parameters, Traffic};

/// One server in one window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// What was asked of it; rate, input and output finite, 0 or more.
    pub traffic: Traffic,
    /// Mean time to the first token, finite and above 0; `None`: nobody saw it.
    pub ttft_ms: Option<f64>,
    /// Mean time between tokens, finite and above 0; `None`: nobody saw it.
    pub itl_ms: Option<f64>,
}

/// What is believed, and how firmly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Belief {
    logarithms: Vector3<f64>,
    covariance: Matrix3<f64>,
}

/// Variances of what is seen, relative to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    /// Of the time to the first token.
    pub ttft: f64,
    /// Of the time between tokens.
    pub itl: f64,
}

impl Default for Noise {
    /// 95 % of what is seen is within 5 % of the mean.
    fn default() -> Self {
        let variance = (0.05_f64 / 1.96).powi(2);
        Self {
            ttft: variance,
            itl: variance,
        }
    }
}

/// What came of a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// It was believed.
    Accepted {
        /// What is believed now.
        posterior: Belief,
        /// Normalised innovation squared.
        nis: f64,
        /// What this window alone says of the noise.
        noise: Noise,
    },
    /// It lies too far from what was believed.
    Rejected {
        /// Normalised innovation squared.
        nis: f64,
    },
    /// The prior makes the load unstable, so it predicts nothing.
    Undefined,
}

impl Belief {
    /// `parameters`, not very firmly. Those that aren't above 0 are taken to be tiny.
    #[must_use]
    pub fn new(parameters: &Parameters) -> Self {
        let logarithm = |value: f64| value.max(SMALLEST).ln();
        Self {
            logarithms: Vector3::new(
                logarithm(parameters.alpha_ms),
                logarithm(parameters.beta_ms),
                logarithm(parameters.gamma_ms),
            ),
            covariance: Matrix3::from_diagonal_element(INITIAL_VARIANCE),
        }
    }

    /// What is believed.
    #[must_use]
    pub fn parameters(&self) -> Parameters {
        Parameters {
            alpha_ms: self.logarithms[0].exp(),
            beta_ms: self.logarithms[1].exp(),
            gamma_ms: self.logarithms[2].exp(),
        }
    }

    /// One standard deviation of ln n*, of n* at targets inferred for such traffic: alpha over the work of a request.
    #[must_use]
    pub fn n_star_deviation(&self, traffic: &Traffic) -> f64 {
        let parameters = self.parameters();
        let delta_ms = parameters.delta_ms(traffic);
        let by_beta = Parameters {
            gamma_ms: 0.0,
            ..parameters
        }
        .delta_ms(traffic)
            / delta_ms;
        let slope = Vector3::new(1.0, -by_beta, by_beta - 1.0);
        slope.dot(&(self.covariance * slope)).sqrt()
    }

    /// The same, less firmly: so a filter that refuses everything lets go of what it believes.
    #[must_use]
    pub fn widened(&self) -> Self {
        Self {
            covariance: at_most(self.covariance * REJECTED_FACTOR),
            ..*self
        }
    }

    /// The same, as little firmly as a new one.
    #[must_use]
    pub fn loosened(&self) -> Self {
        Self {
            covariance: at_most(self.covariance + Matrix3::from_diagonal_element(INITIAL_VARIANCE)),
            ..*self
        }
    }

    /// The nearest belief under which the load is stable: less work per token, and less firmly so. One under which it is
    /// stable stays.
    #[must_use]
    pub fn stable_under(&self, traffic: &Traffic) -> Self {
        if self.parameters().solve(traffic).rho < 1.0 {
            return *self;
        }
        let mut covariance = self.covariance;
        for at in [1, 2] {
            covariance[(at, at)] += UNDEFINED_VARIANCE;
        }
        Self {
            logarithms: self.at_rho(RHO_STABLE, traffic),
            covariance: at_most(covariance),
        }
    }

    /// The state with beta and gamma scaled down together, until the load's rho is `most` where it is more.
    fn at_rho(&self, most: f64, traffic: &Traffic) -> Vector3<f64> {
        let rho = self.parameters().solve(traffic).rho;
        let mut logarithms = self.logarithms;
        if rho.is_finite() && rho > most {
            // rho is linear in both together.
            let by = (most / rho).ln();
            logarithms[1] += by;
            logarithms[2] += by;
        }
        logarithms
    }
}

/// One window seen by what was believed before it.
///
/// The normalised innovation squared is that of the iterated update: what the most likely state leaves unexplained, and
/// what it takes to get there. Where the closed forms are straight it is the textbook's; near rho = 1, where they aren't,
/// a filter that measures along the tangent refuses what it could explain, and locks itself out.
#[must_use]
pub fn step(before: &Belief, seen: &Seen, noise: &Noise) -> Step {
    let prior = Belief {
        covariance: at_most(before.covariance + Matrix3::from_diagonal_element(DRIFT_VARIANCE)),
        ..*before
    };
    let present = [seen.ttft_ms.is_some(), seen.itl_ms.is_some()];
    let Some(expected) = predict(&prior.logarithms, &seen.traffic) else {
        return Step::Undefined;
    };
    let measured = Measured {
        traffic: seen.traffic,
        // What isn't seen says nothing.
        value: Vector2::new(
            seen.ttft_ms.map_or(0.0, f64::ln),
            seen.itl_ms.map_or(0.0, f64::ln),
        ),
        information: Vector2::new(
            seen.ttft_ms.map_or(0.0, |_| 1.0 / noise.ttft),
            seen.itl_ms.map_or(0.0, |_| 1.0 / noise.itl),
        ),
    };
    let limit = if present == [true; 2] {
        NIS_MAX_BOTH
    } else {
        NIS_MAX_ONE
    };
    let mut found = update(&prior, prior.logarithms, expected, &measured);
    for rho in OTHER_STARTS {
        if found.is_some_and(|(_, nis)| nis < limit) {
            break;
        }
        let start = prior.at_rho(rho, &seen.traffic);
        let other = predict(&start, &seen.traffic).and_then(|it| update(&prior, start, it, &measured));
        found = match (found, other) {
            (Some(one), Some(other)) if other.1 < one.1 => Some(other),
            (one, other) => one.or(other),
        };
    }
    let Some((posterior, nis)) = found else {
        return Step::Undefined;
    };
    if nis < limit {
        Step::Accepted {
            noise: left_over(&posterior, &measured, noise),
            posterior,
            nis,
        }
    } else {
        Step::Rejected { nis }
    }
}

/// What the posterior doesn't explain, and what it took from the window: together the noise, on average. Of the prior's
/// misses that can't be said while it is far off.
fn left_over(posterior: &Belief, measured: &Measured, noise: &Noise) -> Noise {
    let Some(there) = predict(&posterior.logarithms, &measured.traffic) else {
        return *noise;
    };
    let missed = measured.value - there.value;
    let taken = there.slope * posterior.covariance * there.slope.transpose();
    let of = |at: usize, so_far: f64| {
        if measured.information[at] > 0.0 {
            missed[at] * missed[at] + taken[(at, at)]
        } else {
            so_far
        }
    };
    Noise {
        ttft: of(0, noise.ttft),
        itl: of(1, noise.itl),
    }
}

/// How large an error of ln alpha, ln beta and ln gamma shows in ln TTFT and ln ITL of such traffic, as rows; `None`:
/// there is no steady state.
#[must_use]
pub(crate) fn slopes(parameters: &Parameters, traffic: &Traffic) -> Option<Matrix2x3<f64>> {
    predict(&Belief::new(parameters).logarithms, traffic).map(|it| it.slope)
}

struct Prediction {
    value: Vector2<f64>,
    slope: Matrix2x3<f64>,
}

/// What was seen under which load; without information about what wasn't.
struct Measured {
    traffic: Traffic,
    value: Vector2<f64>,
    information: Vector2<f64>,
}

/// ln TTFT and ln ITL, and how they change with each logarithm.
fn predict(logarithms: &Vector3<f64>, traffic: &Traffic) -> Option<Prediction> {
    let parameters = Parameters {
        alpha_ms: logarithms[0].exp(),
        beta_ms: logarithms[1].exp(),
        gamma_ms: logarithms[2].exp(),
    };
    let solved = parameters.solve(traffic);
    let steady = solved.steady?;
    let (i, o) = (traffic.input, traffic.output);
    let Parameters {
        alpha_ms,
        beta_ms,
        gamma_ms,
    } = parameters;
    // T = alpha / (1 - rho), so dT/drho = T / (1 - rho); rho is linear in beta and gamma.
    let iterations_per_ms = traffic.rate / 1_000.0 * (o + 1.0);
    let by_rho = steady.iteration_ms / (1.0 - solved.rho);
    let by_beta = by_rho * iterations_per_ms * (i + o) / (o + 1.0);
    let by_gamma = by_rho * iterations_per_ms * (i + o / 2.0);
    let by_alpha = steady.iteration_ms / alpha_ms;
    let slope = Matrix2x3::new(
        by_alpha * alpha_ms / steady.ttft_ms,
        (by_beta + i) * beta_ms / steady.ttft_ms,
        (by_gamma + i) * gamma_ms / steady.ttft_ms,
        by_alpha * alpha_ms / steady.itl_ms,
        (by_beta + 1.0) * beta_ms / steady.itl_ms,
        (by_gamma + i + (o + 1.0) / 2.0) * gamma_ms / steady.itl_ms,
    );
    let value = Vector2::new(steady.ttft_ms.ln(), steady.itl_ms.ln());
    let finite = value.iter().chain(slope.iter()).all(|it| it.is_finite());
    finite.then_some(Prediction { value, slope })
}

/// The iterated update: Gauss and Newton's way to the most likely state, each step halved until it gets better and
/// stays stable; and how unlikely that state is. `None`: numbers fail.
fn update(
    prior: &Belief,
    start: Vector3<f64>,
    expected: Prediction,
    measured: &Measured,
) -> Option<(Belief, f64)> {
    let prior_inverse = prior.covariance.try_inverse()?;
    let weights = Matrix2::from_diagonal(&measured.information);
    let cost = |logarithms: &Vector3<f64>, prediction: &Prediction| {
        let moved = logarithms - prior.logarithms;
        let missed = measured.value - prediction.value;
        moved.dot(&(prior_inverse * moved)) + missed.dot(&(weights * missed))
    };
    let mut logarithms = start;
    let mut prediction = expected;
    let mut least = cost(&logarithms, &prediction);
    for _ in 0..ITERATIONS_MAX {
        let missed = measured.value - prediction.value;
        let pull =
            prediction.slope.transpose() * weights * missed - prior_inverse * (logarithms - prior.logarithms);
        let mut change =
            (prior_inverse + prediction.slope.transpose() * weights * prediction.slope).try_inverse()? * pull;
        let better = (0..HALVINGS_MAX).find_map(|_| {
            let candidate = logarithms + change;
            let there = predict(&candidate, &measured.traffic)
                .map(|it| (cost(&candidate, &it), it))
                .filter(|(cost, _)| *cost <= least);
            if there.is_none() {
                change *= 0.5;
            }
            there.map(|(cost, it)| (candidate, it, cost))
        });
        let Some((candidate, there, cost)) = better else {
            break;
        };
        (logarithms, prediction, least) = (candidate, there, cost);
        if change.amax() < SETTLED {
            break;
        }
    }
    let covariance =
        (prior_inverse + prediction.slope.transpose() * weights * prediction.slope).try_inverse()?;
    let posterior = Belief {
        logarithms,
        covariance: (covariance + covariance.transpose()) * 0.5,
    };
    least.is_finite().then_some((posterior, least))
}

/// `covariance`, no wider than [`VARIANCE_MAX`] in any direction.
fn at_most(covariance: Matrix3<f64>) -> Matrix3<f64> {
    if covariance.trace() <= VARIANCE_MAX {
        return covariance;
    }
    let mut eigen = SymmetricEigen::new(covariance);
    for value in eigen.eigenvalues.iter_mut() {
        *value = value.min(VARIANCE_MAX);
    }
    let covariance = eigen.recompose();
    (covariance + covariance.transpose()) * 0.5
}

/// A belief nobody has tried.
const INITIAL_VARIANCE: f64 = 0.25;
/// What servers change from a window to the next.
const DRIFT_VARIANCE: f64 = 0.002_5;
/// Beyond e^±4 nothing is known.
const VARIANCE_MAX: f64 = 4.0;
/// What a refusal does to a covariance.
const REJECTED_FACTOR: f64 = 4.0;
/// What beta and gamma lose in firmness where they were impossible,
const UNDEFINED_VARIANCE: f64 = 0.25;
/// and the load below which they are brought.
const RHO_STABLE: f64 = 0.979_999;
/// Where else the way to the most likely state starts: near rho = 1 the closed forms' tangents lead astray.
const OTHER_STARTS: [f64; 2] = [0.5, 0.1];
/// The 97.5 % points of chi squared with two degrees of freedom, and with one.
const NIS_MAX_BOTH: f64 = 7.378;
const NIS_MAX_ONE: f64 = 5.024;
const ITERATIONS_MAX: usize = 20;
const HALVINGS_MAX: usize = 20;
const SETTLED: f64 = 1e-10;
/// The least that a parameter is taken for, in milliseconds.
const SMALLEST: f64 = 1e-12;
