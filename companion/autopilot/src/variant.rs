//! A variant: endpoints of the same hardware and settings. Their parameters are learned together.
//!
//! Two estimators learn them: one from single streamed requests, the other one from the averages of windows. The one with
//! [fresh evidence](StreamedShare) gives the variant's state, and the parameters in use are those to which it converged last.

use core::time::Duration;

use penstock_engine::Instant;
use penstock_model::analysis::{self, Error, VariantAnalysis};
use penstock_model::learner::{Fit, Learner, State};
use penstock_model::observation::Observation;
use penstock_model::slo::Policy as SloPolicy;
use penstock_model::window_estimator::WindowEstimator;
use penstock_model::workload::{Observed, aggregate};
use penstock_model::{Parameters, Traffic};

use crate::endpoint::Window;
use crate::moving_mean::MovingMean;
use crate::pace::Pace;
use crate::prediction_error::PredictionError;
use crate::streamed_share::StreamedShare;
use crate::types::{Desired, DesiredSource, Kept, VariantStatus};

/// The least time between two sets of parameters that are stored.
const KEPT_FOR: Duration = Duration::from_secs(60);
/// Parameters are stored again if one of them has changed by this fraction.
const KEPT_WITHIN: f64 = 0.01;

/// Bootstrap parameters ask for at most this many times the ready replicas.
const BOOTSTRAP_GROWTH: u64 = 2;

/// n* is well known if half of its 95 % confidence interval is below this.
const WELL_KNOWN: f64 = 0.07;

/// Parameters, and where they come from.
#[derive(Clone, Copy, Debug)]
struct Known {
    parameters: Parameters,
    /// From averages of windows. These parameters absorb what the closed form of the time to the first token leaves out.
    is_of_windows: bool,
}

#[derive(Debug)]
pub(crate) struct Variant {
    pub(crate) name: String,
    learner: Learner,
    /// Learns from windows alone. Used while hardly any response is streamed.
    window_estimator: WindowEstimator,
    streamed_share: StreamedShare,
    /// The parameters in use: stored ones until an estimator with fresh evidence converges.
    known: Option<Known>,
    /// A request was observed since the last fit.
    is_fit_due: bool,
    /// The last fit to single requests.
    last_fit: Option<Fit>,
    /// All endpoints together in the last window. Its rate is 0 if they were idle.
    last_window: Observed,
    /// The last known mean time between tokens.
    itl_ms: f64,
    /// The endpoints were busy in the last window, or a request was observed since.
    is_active: bool,
    /// At the end of the last window, one of its ready endpoints wasn't young.
    pub(crate) has_established: bool,
    /// The mean request of the last windows.
    mean: MovingMean,
    pub(crate) pace: Pace,
    analysis: Option<VariantAnalysis>,
    /// How far the parameters in use were off lately.
    error: PredictionError,
    kept: Option<Kept>,
    kept_at: Option<Instant>,
}

impl Variant {
    pub(crate) fn new(name: String, kept: Option<Kept>) -> Self {
        Self {
            name,
            learner: Learner::new(kept.map(|kept| (kept.parameters, kept.ttft_bias))),
            window_estimator: WindowEstimator::new(None),
            streamed_share: StreamedShare::default(),
            known: kept
                .map(|kept| kept.parameters)
                .filter(Parameters::is_valid)
                .map(|parameters| Known { parameters, is_of_windows: false }),
            is_fit_due: false,
            last_fit: None,
            last_window: Observed::default(),
            itl_ms: 0.0,
            is_active: false,
            has_established: false,
            mean: MovingMean::default(),
            pace: Pace::default(),
            analysis: None,
            error: PredictionError::default(),
            kept,
            kept_at: None,
        }
    }

    /// The parameters in use.
    pub(crate) fn parameters(&self) -> Option<Parameters> {
        self.known.map(|known| known.parameters)
    }

    /// The parameters are known, and observations agree with them.
    pub(crate) fn is_sure(&self) -> bool {
        matches!(self.state(), State::Converged | State::Infeasible)
    }

    /// The parameters are known, and have predicted the last observations.
    pub(crate) fn predicts(&self) -> bool {
        self.known.is_some() && self.error.is_small()
    }

    /// The divisor of a probed endpoint's load: the less is known, the further the load is from the usual one.
    pub(crate) fn probe_divisor(&self) -> u8 {
        match self.fit() {
            Some(fit) if self.is_sure() && fit.n_star_half_width < WELL_KNOWN => 2,
            Some(_) | None => 4,
        }
    }

    fn state(&self) -> State {
        let state = if self.streamed_share.is_enough() {
            self.learner.state()
        } else {
            self.window_estimator.state()
        };
        match state {
            // The first fit or the first window is still missing.
            State::NoTraffic if self.is_active => State::Learning,
            state => state,
        }
    }

    /// The last fit to single requests, while these are evidence.
    fn fit(&self) -> Option<Fit> {
        self.last_fit.filter(|_| self.streamed_share.is_enough())
    }

    /// The best guess at the parameters, for predictions at the present load.
    pub(crate) fn guess(&self) -> Option<Parameters> {
        self.parameters().or(self.fit().map(|fit| fit.parameters))
    }

    /// Observed divided by predicted time to the first token.
    pub(crate) fn ttft_bias(&self) -> f64 {
        match self.known {
            Some(known) if known.is_of_windows => 1.0,
            Some(_) | None => self.learner.ttft_bias(),
        }
    }

    /// The time that a prompt token adds to an iteration, in milliseconds.
    pub(crate) fn prompt_ms(&self) -> Option<f64> {
        match self.known {
            Some(known) if known.is_of_windows => Some(known.parameters.beta_ms + known.parameters.gamma_ms),
            Some(_) | None => self.learner.prompt_ms(),
        }
    }

    /// The mean request of the last windows.
    pub(crate) fn traffic(&self) -> Traffic {
        self.mean.traffic()
    }

    /// Prompt tokens of the mean request that are in an endpoint's cache.
    pub(crate) const fn cached(&self) -> f64 {
        self.mean.cached()
    }

    /// A window is over. `windows`: the averages of its endpoints. `cached`: mean prompt tokens in their caches.
    pub(crate) fn close_window(
        &mut self,
        now_ms: f64,
        length: Duration,
        windows: &[Window],
        cached: f64,
        policy: &SloPolicy,
    ) {
        let observed: Vec<Observed> = windows.iter().map(|window| window.observed).collect();
        self.last_window = aggregate(&observed);
        self.is_active = self.last_window.busy > 0;
        self.streamed_share.close_window();
        if self.last_window.traffic.rate <= 0.0 {
            return;
        }
        self.mean.add(&self.last_window.traffic, cached, length);
        self.update_itl(self.last_window.itl_ms);
        self.learn_from_windows(windows);
        self.fit_requests(now_ms, &self.mean.traffic(), policy);
    }

    /// Hands the window estimator what the window measured. A window that measured no time leaves the estimator as it is.
    fn learn_from_windows(&mut self, windows: &[Window]) {
        let measured = || windows.iter().map(|window| window.measured);
        let is_timed = |window: &Observed| window.ttft_ms > 0.0 && window.itl_ms > 0.0;
        let is_partly_timed = |window: &Observed| window.ttft_ms > 0.0 || window.itl_ms > 0.0;
        let mut timed: Vec<Observed> = measured().filter(is_timed).collect();
        if timed.is_empty() {
            timed = measured().filter(is_partly_timed).collect();
        }
        if timed.is_empty() {
            return;
        }
        self.window_estimator.observe(&aggregate(&timed));
        if !self.streamed_share.is_enough()
            && self.window_estimator.state() == State::Converged
            && let Some(parameters) = self.window_estimator.parameters()
        {
            self.set_known(Known { parameters, is_of_windows: true });
        }
    }

    /// Other parameters are in use. What those of another source missed says nothing of them.
    fn set_known(&mut self, known: Known) {
        if self.known.is_some_and(|before| before.is_of_windows != known.is_of_windows) {
            self.error = PredictionError::default();
        }
        self.known = Some(known);
    }

    /// Fits the parameters inside a window, because none are known yet.
    pub(crate) fn explore(&mut self, now_ms: f64, so_far: &[Observed], policy: &SloPolicy) {
        let observed = aggregate(so_far);
        self.update_itl(observed.itl_ms);
        let traffic = if observed.busy > 0 { observed.traffic } else { self.mean.traffic() };
        self.fit_requests(now_ms, &traffic, policy);
    }

    fn update_itl(&mut self, itl_ms: f64) {
        if itl_ms > 0.0 {
            self.itl_ms = itl_ms;
        }
    }

    /// Fits the parameters to single requests, if there are new ones.
    fn fit_requests(&mut self, now_ms: f64, traffic: &Traffic, policy: &SloPolicy) {
        if !core::mem::take(&mut self.is_fit_due) {
            return;
        }
        // Without explicit targets the learner takes n* at a multiple of alpha, as inferred targets do.
        let targets = policy.explicit.unwrap_or_default();
        self.last_fit = self.learner.fit(now_ms, traffic, &targets);
        if self.streamed_share.is_enough()
            && matches!(self.learner.state(), State::Converged | State::Infeasible)
            && let Some(parameters) = self.learner.parameters()
        {
            self.set_known(Known { parameters, is_of_windows: false });
        }
    }

    /// A request has ended from which the learner can learn.
    pub(crate) fn observe(&mut self, observation: &Observation) {
        self.is_fit_due = true;
        self.is_active = true;
        if let (Some(known), Some(decode)) =
            (self.known.filter(|known| !known.is_of_windows), &observation.decode)
        {
            self.error.record(&known.parameters, decode);
        }
        self.streamed_share.record(observation.decode.is_some());
        self.learner.observe(observation);
    }

    /// The variant in the form that the analysis takes.
    pub(crate) fn for_analysis(&self, max_batch: u64, replicas: u64, pending: u64) -> analysis::Variant {
        analysis::Variant {
            name: self.name.clone(),
            replicas,
            pending,
            max_batch: Some(crate::window_stats::count(max_batch)),
            parameters: self.parameters().map(|parameters| self.with_cache(&parameters)),
            sizes_by_bootstrap: true,
            ttft_bias: self.ttft_bias(),
            windows: self.smoothed_window(),
        }
    }

    /// The last window, with the mean request of the last windows.
    fn smoothed_window(&self) -> Vec<Observed> {
        if self.last_window.busy == 0 {
            return Vec::new();
        }
        let traffic = Traffic { rate: self.last_window.traffic.rate, ..self.mean.traffic() };
        vec![Observed { traffic, ..self.last_window }]
    }

    /// The parameters for prompts that are partly cached. The closed forms know one prompt length, the computed one. So the
    /// cost of resident tokens is raised by the ratio of all resident tokens to those the closed forms know.
    fn with_cache(&self, parameters: &Parameters) -> Parameters {
        let Traffic { input, output, .. } = self.traffic();
        let own = input + output / 2.0;
        if own <= 0.0 {
            return *parameters;
        }
        Parameters { gamma_ms: parameters.gamma_ms * (own + self.mean.cached()) / own, ..*parameters }
    }

    pub(crate) fn set_analysis(&mut self, analysis: Option<VariantAnalysis>) {
        self.analysis = analysis;
    }

    /// The parameters, if they are known and have changed enough to be stored again.
    pub(crate) fn take_kept(&mut self, now: Instant) -> Option<Kept> {
        if !self.is_sure() || self.kept_at.is_some_and(|kept_at| now.since(kept_at) < KEPT_FOR) {
            return None;
        }
        let kept = Kept { parameters: self.parameters()?, ttft_bias: self.ttft_bias() };
        if self.kept.is_some_and(|before| is_near(&before, &kept)) {
            return None;
        }
        self.kept = Some(kept);
        self.kept_at = Some(now);
        Some(kept)
    }

    /// The parameters in use, to be kept while the variant has no endpoint.
    pub(crate) fn to_keep(&self) -> Option<Kept> {
        let parameters = self.parameters()?;
        Some(Kept { parameters, ttft_bias: self.ttft_bias() })
    }

    /// Requests per second that its endpoints served in the last window.
    pub(crate) fn served_rate(&self) -> f64 {
        self.last_window.traffic.rate
    }

    /// The replicas that its part of the demand needs. `saturated`: those that a steady overload of the pool needs.
    ///
    /// Before a model is learned, the variant never asks for fewer replicas than are ready, and by bootstrap parameters for at
    /// most [`BOOTSTRAP_GROWTH`] times as many: these parameters are those of one load, and may be far off at another.
    fn desired(&self, current: u64, saturated: Option<u64>) -> Option<Desired> {
        let analysis = self.analysis.as_ref();
        let is_learned = analysis.is_some_and(|analysis| !analysis.is_bootstrapped);
        let required = analysis.and_then(|analysis| analysis.required);
        if is_learned && self.parameters().is_some() {
            return required.map(|replicas| Desired { replicas, source: DesiredSource::Model });
        }
        if self.served_rate() <= 0.0 {
            return None;
        }
        let bootstrap = required.map(|replicas| replicas.clamp(current, BOOTSTRAP_GROWTH * current.max(1)));
        match saturated {
            Some(replicas) if bootstrap < saturated => {
                Some(Desired { replicas, source: DesiredSource::Saturation })
            }
            _ => bootstrap.map(|replicas| Desired { replicas, source: DesiredSource::Bootstrap }),
        }
    }

    /// The variant at this moment. `saturated`: the replicas that a steady overload of the pool needs.
    pub(crate) fn status(&self, current: u64, pending: u64, saturated: Option<u64>) -> VariantStatus {
        // Numbers of bootstrap parameters size replicas and are shown nowhere else.
        let analysis =
            self.analysis.as_ref().filter(|analysis| analysis.error.is_none() && !analysis.is_bootstrapped);
        // Parameters from one window, or from before a change of the servers, don't prove that no load meets the targets.
        let learned = self.analysis.as_ref().filter(|analysis| !analysis.is_bootstrapped);
        let is_infeasible =
            self.is_sure() && learned.is_some_and(|analysis| analysis.error == Some(Error::Infeasible));
        // The load never varied enough: the parameters can't be identified, so the guess is shown only while learning.
        let guess = self.guess().filter(|_| self.state() == State::Learning);
        VariantStatus {
            name: self.name.clone(),
            state: match self.state() {
                _ if !self.is_active => State::NoTraffic,
                _ if is_infeasible => State::Infeasible,
                state => state,
            },
            parameters: self.parameters().or(guess),
            ttft_bias: self.ttft_bias(),
            nis: self.window_estimator.nis(),
            condition: self.fit().map(|fit| fit.condition).or_else(|| self.window_estimator.condition()),
            n_star: analysis.and_then(|analysis| analysis.n_star),
            lambda_star: analysis.map(|analysis| analysis.lambda_star),
            capacity: analysis.map_or(0.0, |analysis| analysis.capacity),
            demand: analysis.map_or(0.0, |analysis| analysis.demand),
            utilization: analysis.map_or(0.0, |analysis| analysis.utilization),
            desired: self.desired(current, saturated),
            current,
            pending,
        }
    }
}

/// No value differs by more than [`KEPT_WITHIN`].
fn is_near(one: &Kept, other: &Kept) -> bool {
    let values = |kept: &Kept| {
        [kept.parameters.alpha_ms, kept.parameters.beta_ms, kept.parameters.gamma_ms, kept.ttft_bias]
    };
    let mut pairs = values(one).into_iter().zip(values(other));
    pairs.all(|(one, other)| (one - other).abs() <= KEPT_WITHIN * one.abs())
}
