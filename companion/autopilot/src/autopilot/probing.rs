//! Allowances of the endpoints, and other loads than the allowances allow, to learn more.
//!
//! A gate that only follows the learned parameters sees one load, and parameters that one load can't tell apart are forgotten. So
//! one endpoint at a time is *probed* for a window: it gets less load where explicit targets limit it, and more where the gate
//! only saves what adds no throughput, so that learning costs no throughput.

use penstock_engine::input::Input;
use penstock_engine::policy::StockUnit;
use penstock_engine::{Allowance, Instant};
use penstock_model::slo;
use penstock_model::workload::Observed;

use super::{Autopilot, millis};
use crate::allowances::{self, AllowanceInputs, Limits};
use crate::endpoint::Endpoint;

/// One endpoint in one of so many windows is probed.
const PROBED_EVERY: u64 = 10;
/// [`PROBED_EVERY`] while the parameters of a variant are in doubt.
const PROBED_EVERY_UNSURE: u64 = 3;
/// An endpoint is probed for so many times the duration of its requests, because requests show the load under which they ran,
const LIVES: f64 = 2.0;
/// for at least one window, and for no more windows than this.
const PROBED_MAX: u64 = 12;
/// How often in a window a variant without known parameters is fitted.
const FITS_PER_WINDOW: u32 = 4;
/// The part of the throughput of a full server that the gate keeps at least, where no targets are set. The measured throughput
/// has to be 0.95 of it.
const THROUGHPUT_KEPT: f64 = 0.97;

impl Autopilot {
    /// The parameters of this variant aren't known.
    fn is_unknown(&self, variant: usize) -> bool {
        self.gates && self.variants[variant].parameters().is_none()
    }

    pub(super) fn plan_fit(&mut self, now: Instant) {
        let is_any_unknown =
            self.endpoints.iter().any(|endpoint| endpoint.is_listed && self.is_unknown(endpoint.variant));
        let fits = self.window_since.is_some() && is_any_unknown;
        self.fit_at = fits.then(|| now.after(self.window / FITS_PER_WINDOW));
    }

    /// Inside a window: fits variants without known parameters.
    pub(super) fn fit_unknown(&mut self, now: Instant, since: Instant) {
        for index in 0..self.variants.len() {
            if self.variants[index].parameters().is_some() {
                continue;
            }
            let own = self.endpoints.iter().filter(|endpoint| endpoint.variant == index);
            let so_far: Vec<Observed> =
                own.filter_map(|endpoint| endpoint.window_so_far(now.since(since))).collect();
            self.variants[index].explore(millis(now), &so_far, &self.slo_policy);
        }
        self.update_allowances(now);
        self.plan_fit(now);
    }

    /// The limits that the configuration sets; `None` if the gate has to keep the throughput.
    fn limits(&self) -> Option<Limits> {
        if let Some(targets) = &self.slo_policy.explicit {
            return Some(Limits::explicit(targets));
        }
        let multiplier = self.slo_policy.multiplier.or((!self.gates).then_some(slo::MULTIPLIER))?;
        let known = self.variants.iter().filter_map(crate::variant::Variant::parameters);
        let greatest_ms = known.map(|parameters| parameters.alpha_ms).reduce(f64::max)?;
        Some(Limits::inferred(greatest_ms * multiplier))
    }

    /// Outputs the allowance of every endpoint where it has changed.
    pub(super) fn update_allowances(&mut self, now: Instant) {
        let limits = self.limits();
        let probed = self.probed();
        for index in 0..self.endpoints.len() {
            self.follow_model(now, index, limits.is_some());
            let allowance = self.allowance(now, index, limits, probed == Some(index));
            let endpoint = &mut self.endpoints[index];
            if endpoint.is_listed && endpoint.allowance != allowance {
                endpoint.allowance = allowance;
                self.inputs.push_back(Input::Allowance { id: endpoint.id, allowance });
            }
        }
    }

    /// The index of the endpoint that is probed in the window that begins. After a lull no endpoint is probed, so that the
    /// first requests find the whole capacity.
    fn probed(&self) -> Option<usize> {
        if !self.gates || self.window_since.is_none() {
            return None;
        }
        let busy = || {
            let all = self.endpoints.iter().enumerate();
            all.filter(|(_, endpoint)| {
                endpoint.is_ready
                    && endpoint.observed.is_some()
                    && self.variants[endpoint.variant].parameters().is_some()
            })
        };
        let is_in_doubt = |endpoint: &Endpoint| {
            let variant = &self.variants[endpoint.variant];
            variant.parameters().is_some() && !variant.is_sure()
        };
        let unsure: Vec<usize> =
            busy().filter(|(_, endpoint)| is_in_doubt(endpoint)).map(|(index, _)| index).collect();
        let (candidates, every) = if unsure.is_empty() {
            (busy().map(|(index, _)| index).collect(), PROBED_EVERY)
        } else {
            (unsure, PROBED_EVERY_UNSURE)
        };
        let turn = self.windows_closed / self.probe_windows(&candidates);
        if candidates.is_empty() || !turn.is_multiple_of(every) {
            return None;
        }
        let turn = usize::try_from(turn / every).unwrap_or(0);
        candidates.get(turn % candidates.len()).copied()
    }

    /// How many windows an endpoint is probed for, so that requests run under that load from their start to their end.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float saturates, and not a number becomes 0; the result is clamped from 1 to PROBED_MAX"
    )]
    fn probe_windows(&self, candidates: &[usize]) -> u64 {
        let duration_ms = candidates
            .iter()
            .filter_map(|index| self.endpoints[*index].observed)
            .map(|observed| observed.ttft_ms + observed.itl_ms * observed.traffic.output)
            .fold(0.0, f64::max);
        let window_ms = self.window.as_secs_f64() * 1_000.0;
        ((LIVES * duration_ms / window_ms).round() as u64).clamp(1, PROBED_MAX)
    }

    /// Where limits are configured, a model that predicts replaces the search.
    fn follow_model(&mut self, now: Instant, index: usize, has_limits: bool) {
        let endpoint = &mut self.endpoints[index];
        let is_limited = self.gates && has_limits && self.variants[endpoint.variant].predicts();
        if core::mem::replace(&mut endpoint.is_limited, is_limited) != is_limited {
            let usual = endpoint.allowance.map_or(endpoint.bound_initial, |allowance| allowance.typical);
            let present = endpoint.present();
            let limit = is_limited.then(|| endpoint.max_batch.max(endpoint.search.bound()));
            endpoint.search.set_limited(now, limit, usual, &present);
        }
    }

    /// The allowance of an endpoint; `None`: the engine's own bound is right.
    fn allowance(
        &self,
        now: Instant,
        index: usize,
        limits: Option<Limits>,
        is_probed: bool,
    ) -> Option<Allowance> {
        let endpoint = &self.endpoints[index];
        let variant = &self.variants[endpoint.variant];
        let bound = if self.gates { endpoint.search.within() } else { endpoint.max_batch };
        let sequences_max = endpoint.search.room().filter(|_| self.gates);
        let is_usable = if self.gates { variant.predicts() } else { variant.parameters().is_some() };
        let Some(parameters) = variant.parameters().filter(|_| is_usable) else {
            let above = self.extra_places.above(bound, StockUnit::Sequences);
            let limits_extra = sequences_max.is_some_and(|most| most < bound.saturating_add(above));
            let is_found = bound != endpoint.bound_initial || limits_extra;
            return (self.gates && is_found).then(|| allowances::requests_only(bound, sequences_max));
        };
        let has_less = is_probed && limits.is_some();
        let inputs = AllowanceInputs {
            parameters,
            ttft_bias: variant.ttft_bias(),
            traffic: variant.traffic(),
            cached: variant.cached(),
            limits: limits.unwrap_or(Limits::NONE),
            max_batch: bound,
            sequences_max,
            kv_tokens: endpoint.kv_tokens,
            divisor: if has_less { variant.probe_divisor() } else { 1 },
        };
        if limits.is_some() || is_probed || endpoint.search.wants_test(now) {
            return Some(inputs.allowance());
        }
        let full = endpoint.search.capacity().unwrap_or_else(|| endpoint.max_batch.max(bound));
        let limits = AllowanceInputs { max_batch: full, ..inputs }.keeping(THROUGHPUT_KEPT);
        Some(AllowanceInputs { limits, ..inputs }.allowance())
    }
}
