//! Servers of one kind: what is learned of them together, and what of that is worth keeping.

use core::time::Duration;

use penstock_engine::Instant;
use penstock_model::analysis::{self, Error, VariantAnalysis};
use penstock_model::learner::{Fit, Learner, State};
use penstock_model::observation::Observation;
use penstock_model::slo::Policy as SloPolicy;
use penstock_model::window_estimator::WindowEstimator;
use penstock_model::workload::{Observed, aggregate};
use penstock_model::{Parameters, Traffic};

use crate::moving_mean::Blend;
use crate::types::{Kept, VariantStatus};

/// Parameters are kept again after this, at the earliest,
const KEPT_FOR: Duration = Duration::from_secs(60);
/// and if one of them has changed by this part.
const KEPT_WITHIN: f64 = 0.01;

/// Half of the 95 % interval of n* below which it is known well.
const WELL_KNOWN: f64 = 0.07;

/// A variant.
#[derive(Debug)]
pub(crate) struct Variant {
    pub(crate) name: String,
    learner: Learner,
    /// What is learned of windows alone: shown beside it, and acted on where no request came token by token.
    filter: WindowEstimator,
    /// What that was when it was last known.
    filtered: Option<Parameters>,
    /// A request came token by token.
    streams: bool,
    /// Something was observed since the last fit.
    is_new: bool,
    fit: Option<Fit>,
    /// Its endpoints together in the last window; a rate of 0: they were idle.
    seen: Observed,
    /// Mean time between tokens, when there were some.
    itl_ms: f64,
    /// They weren't, or it was served something since.
    is_active: bool,
    /// Requests like the mean of late.
    blend: Blend,
    analysis: Option<VariantAnalysis>,
    kept: Option<Kept>,
    kept_at: Option<Instant>,
}

impl Variant {
    pub(crate) fn new(name: String, kept: Option<Kept>) -> Self {
        Self {
            name,
            learner: Learner::new(kept.map(|kept| (kept.parameters, kept.ttft_bias))),
            filter: WindowEstimator::new(None),
            filtered: None,
            streams: false,
            is_new: false,
            fit: None,
            seen: Observed::default(),
            itl_ms: 0.0,
            is_active: false,
            blend: Blend::default(),
            analysis: None,
            kept,
            kept_at: None,
        }
    }

    /// The parameters to act on.
    pub(crate) fn parameters(&self) -> Option<Parameters> {
        self.learner.parameters().or(self.filtered)
    }

    /// Its parameters are known, and what is seen agrees.
    pub(crate) fn is_sure(&self) -> bool {
        matches!(self.state(), State::Converged | State::Infeasible)
    }

    /// The part of its load that is left of an endpoint that is probed: the less is known, the further from what is seen
    /// anyway.
    pub(crate) fn probed_by(&self) -> u8 {
        match self.fit {
            Some(fit) if self.is_sure() && fit.n_star_half_width < WELL_KNOWN => 2,
            Some(_) | None => 4,
        }
    }

    fn state(&self) -> State {
        let state = if self.streams {
            self.learner.state()
        } else {
            self.filter.state()
        };
        match state {
            // The first fit, or the first window, is still to come.
            State::NoTraffic if self.is_active => State::Learning,
            state => state,
        }
    }

    /// The best guess at its parameters, for predictions at the load it is at.
    pub(crate) fn guess(&self) -> Option<Parameters> {
        self.parameters().or(self.fit.map(|fit| fit.parameters))
    }

    /// Observed over predicted time to the first token.
    pub(crate) const fn ttft_bias(&self) -> f64 {
        self.learner.ttft_bias()
    }

    /// What a prompt token adds to an iteration, in milliseconds.
    pub(crate) fn prompt_ms(&self) -> Option<f64> {
        self.learner.prompt_ms()
    }

    /// Requests like the mean of those seen lately.
    pub(crate) fn traffic(&self) -> Traffic {
        self.blend.traffic()
    }

    /// Prompt tokens of them that are in a server's cache already.
    pub(crate) const fn cached(&self) -> f64 {
        self.blend.cached()
    }

    /// A window of that length is over: what its endpoints did, and the mean of prompt tokens that were in their caches.
    pub(crate) fn close(
        &mut self,
        now_ms: f64,
        over: Duration,
        windows: &[Observed],
        cached: f64,
        policy: &SloPolicy,
    ) {
        self.seen = aggregate(windows);
        self.is_active = self.seen.busy > 0;
        if self.seen.traffic.rate <= 0.0 {
            return;
        }
        self.blend.add(&self.seen.traffic, cached, over);
        let timed = |window: &&Observed| window.ttft_ms > 0.0 && window.itl_ms > 0.0;
        let timed: Vec<Observed> = windows.iter().filter(timed).copied().collect();
        // A time that nobody saw is none, and no part of a mean; where there is no other, the filter knows that.
        let timed = if timed.is_empty() {
            self.seen
        } else {
            aggregate(&timed)
        };
        self.filter.observe(&timed);
        self.hear(self.seen.itl_ms);
        if !self.streams && self.filter.state() == State::Converged {
            self.filtered = self.filter.parameters();
        }
        self.fit(now_ms, &self.blend.traffic(), policy);
    }

    /// A window isn't over, and nothing is known yet.
    pub(crate) fn explore(&mut self, now_ms: f64, so_far: &[Observed], policy: &SloPolicy) {
        let seen = aggregate(so_far);
        self.hear(seen.itl_ms);
        let traffic = if seen.busy > 0 {
            seen.traffic
        } else {
            self.blend.traffic()
        };
        self.fit(now_ms, &traffic, policy);
    }

    fn hear(&mut self, itl_ms: f64) {
        if itl_ms > 0.0 {
            self.itl_ms = itl_ms;
        }
    }

    /// How long its requests decode; a minute at most.
    pub(crate) fn lasting(&self) -> Duration {
        let ms = self.traffic().output * self.itl_ms;
        Duration::try_from_secs_f64(ms / 1e3)
            .unwrap_or_default()
            .min(Duration::from_secs(60))
    }

    fn fit(&mut self, now_ms: f64, traffic: &Traffic, policy: &SloPolicy) {
        if core::mem::take(&mut self.is_new) {
            // Without targets n* is asked for at a multiple of alpha, as targets that are inferred are.
            let targets = policy.explicit.unwrap_or_default();
            self.fit = self.learner.fit(now_ms, traffic, &targets);
        }
    }

    /// A request has ended that says something.
    pub(crate) fn observe(&mut self, observation: &Observation) {
        self.is_new = true;
        self.is_active = true;
        if observation.decode.is_some() {
            self.streams = true;
        }
        self.learner.observe(observation);
    }

    /// As the analysis wants it.
    pub(crate) fn asked(&self, max_batch: u64, replicas: u64, pending: u64) -> analysis::Variant {
        analysis::Variant {
            name: self.name.clone(),
            replicas,
            pending,
            max_batch: Some(crate::window_stats::count(max_batch)),
            parameters: self.parameters().map(|it| self.with_cache(&it)),
            ttft_bias: self.ttft_bias(),
            windows: self.seen_blended(),
        }
    }

    /// Its last window, of requests like the mean of late.
    fn seen_blended(&self) -> Vec<Observed> {
        if self.seen.busy == 0 {
            return Vec::new();
        }
        let traffic = Traffic {
            rate: self.seen.traffic.rate,
            ..self.blend.traffic()
        };
        vec![Observed { traffic, ..self.seen }]
    }

    /// The same for requests whose prompts are partly cached: the closed forms know one length of a prompt, that which is
    /// computed, so what is resident beside it is put on the cost of what is.
    fn with_cache(&self, parameters: &Parameters) -> Parameters {
        let Traffic { input, output, .. } = self.traffic();
        let own = input + output / 2.0;
        if own <= 0.0 {
            return *parameters;
        }
        Parameters {
            gamma_ms: parameters.gamma_ms * (own + self.blend.cached()) / own,
            ..*parameters
        }
    }

    pub(crate) fn analysed(&mut self, analysis: Option<VariantAnalysis>) {
        self.analysis = analysis;
    }

    /// What is worth keeping, if that has changed.
    pub(crate) fn keep(&mut self, now: Instant) -> Option<Kept> {
        if !self.is_sure() || self.kept_at.is_some_and(|at| now.since(at) < KEPT_FOR) {
            return None;
        }
        let kept = Kept {
            parameters: self.parameters()?,
            ttft_bias: self.ttft_bias(),
        };
        if self.kept.is_some_and(|before| is_near(&before, &kept)) {
            return None;
        }
        self.kept = Some(kept);
        self.kept_at = Some(now);
        Some(kept)
    }

    /// What is known of it, if anything.
    pub(crate) fn known(&self) -> Option<Kept> {
        let parameters = self.parameters()?;
        Some(Kept {
            parameters,
            ttft_bias: self.ttft_bias(),
        })
    }

    pub(crate) fn status(&self, current: u64, pending: u64) -> VariantStatus {
        let analysis = self.analysis.as_ref().filter(|it| it.error.is_none());
        let error = self.analysis.as_ref().and_then(|it| it.error);
        // What one load can't tell apart is no number.
        let guess = self.guess().filter(|_| self.state() == State::Learning);
        VariantStatus {
            name: self.name.clone(),
            state: match error {
                _ if !self.is_active => State::NoTraffic,
                Some(Error::Infeasible) => State::Infeasible,
                _ => self.state(),
            },
            parameters: self.parameters().or(guess),
            ttft_bias: self.ttft_bias(),
            nis: self.filter.nis(),
            condition: self
                .fit
                .map(|fit| fit.condition)
                .or_else(|| self.filter.condition()),
            n_star: analysis.and_then(|it| it.n_star),
            lambda_star: analysis.map(|it| it.lambda_star),
            capacity: analysis.map_or(0.0, |it| it.capacity),
            demand: analysis.map_or(0.0, |it| it.demand),
            utilization: analysis.map_or(0.0, |it| it.utilization),
            desired: analysis.and_then(|it| it.required),
            current,
            pending,
        }
    }
}

/// Both say the same, nearly.
fn is_near(one: &Kept, other: &Kept) -> bool {
    let parts = |of: &Kept| {
        [
            of.parameters.alpha_ms,
            of.parameters.beta_ms,
            of.parameters.gamma_ms,
            of.ttft_bias,
        ]
    };
    let mut pairs = parts(one).into_iter().zip(parts(other));
    pairs.all(|(one, other)| (one - other).abs() <= KEPT_WITHIN * one.abs())
}
