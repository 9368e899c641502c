//! The gate by allowances: the predicted iteration time of each endpoint with one request more.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_engine::policy::Gate;
use penstock_engine::{Allowance, EndpointId, RequestId};

use super::engine_effects::EngineEffects;
use super::{Item, Model, Running, Server};

/// The used part of an endpoint's allowance, and its iteration time for endpoints without a limit.
pub type Utilisation = (f64, f64);

impl Model {
    pub(super) fn by_allowance(&self) -> bool {
        matches!(self.policy.gate, Gate::Auto { .. })
    }

    /// The allowance that replaces the number of requests as the endpoint's bound.
    pub(super) fn allowance_of<'a>(&self, server: &'a Server) -> Option<&'a Allowance> {
        server.allowance.as_ref().filter(|_| self.by_allowance())
    }

    fn sum_at(&self, id: EndpointId, value: impl Fn(&Running) -> u64) -> f64 {
        self.runs_at(id).map(|(_, running)| value(running)).sum::<u64>() as f64
    }

    /// The utilisation with `item`; `None` if it doesn't fit.
    fn utilisation(&self, id: EndpointId, server: &Server, item: &Item) -> Option<Utilisation> {
        let count = self.taken_at(id);
        let sequences = self.sequences_at(id);
        if !self.takes(id, server, item) {
            return None;
        }
        let with_item = sequences + server.foreign + item.sequences;
        let within = with_item - self.extra_of(id);
        let Some(allowance) = self.allowance_of(server) else {
            let full = Self::unlimited(server);
            let used = with_item as f64 / self.own_bound(&full) as f64;
            return Some((used, 0.0));
        };
        let iteration = self.iteration(id, server, allowance, item);
        let uncached = item.prompt.saturating_sub(item.cached) as f64;
        let mean_prefill = self.sum_at(id, |running| running.prefill) / (count as f64).max(1.0);
        let per_token = allowance.beta_ms + allowance.gamma_ms;
        let left = allowance.first_token_ms_max - per_token * uncached.min(mean_prefill);
        let mut limit = allowance.iteration_ms_max;
        if left >= allowance.alpha_ms {
            limit = limit.min(left);
        }
        let resident_after = self.resident(id, server) + item.prompt + item.output;
        let fits = iteration <= limit
            && allowance.kv_tokens_max.is_none_or(|limit| resident_after <= limit)
            && allowance.requests_max.is_none_or(|limit| within <= limit);
        let batch = allowance.requests_max.map_or(0.0, |limit| within as f64 / limit as f64);
        (self.within_of(id) == 0 || fits).then_some(((iteration / limit).max(batch), iteration))
    }

    /// The tokens in the server's cache.
    pub(super) fn resident(&self, id: EndpointId, server: &Server) -> u64 {
        let outputs = self.runs_at(id).map(|(_, running)| running.output).sum::<u64>();
        let tokens = self.runs_at(id).map(|(_, running)| running.tokens).sum::<u64>();
        let ours = tokens - outputs / 2;
        ours + ours * server.foreign / self.sequences_at(id).max(1)
    }

    fn iteration(&self, id: EndpointId, server: &Server, allowance: &Allowance, item: &Item) -> f64 {
        let count = self.sequences_at(id) as f64;
        let newcomers = item.sequences as f64;
        let foreign = server.foreign as f64;
        let scale = if count > 0.0 { (count + foreign) / count } else { 0.0 };
        let uncached = item.prompt.saturating_sub(item.cached) as f64;
        let outputs = self.sum_at(id, |running| running.output);
        let mean_output = ((outputs + item.output as f64) / (count + newcomers)).max(1.0);
        let prompts = (self.sum_at(id, |running| running.prefill) * scale + uncached) / mean_output;
        let resident =
            (self.sum_at(id, |running| running.tokens) - outputs / 2.0) * scale + item.prompt as f64;
        let processed = count + foreign + newcomers + prompts;
        allowance.alpha_ms + allowance.beta_ms * processed + allowance.gamma_ms * resident
    }

    /// The endpoints where the item fits, among those that can take it otherwise.
    pub(super) fn fitting(&self, item: &Item) -> BTreeMap<EndpointId, Utilisation> {
        let candidates = self.endpoints_for(item).into_keys();
        let fits = candidates.filter_map(|id| Some((id, self.utilisation(id, &self.endpoints[&id], item)?)));
        fits.collect()
    }

    /// Dispatches the next requests. If the next one fits nowhere, no request overtakes it at its endpoints.
    pub(super) fn dispatch_fitting(&mut self, effects: &mut EngineEffects) {
        self.clear_aside();
        while self.may_dispatch() && self.has_rate() {
            let Some(id) = self.next() else { return };
            if !self.admits_next(id, effects) {
                continue;
            }
            let item = self.item(id).clone();
            if self.fits(&item) {
                self.dispatch(id, effects);
                continue;
            }
            let candidates = self.endpoints_for(&item);
            if candidates.len() == self.with_room().len() {
                return;
            }
            self.aside.extend(candidates.into_keys());
            self.refresh_backlogs();
        }
    }

    pub(super) fn clear_aside(&mut self) {
        self.aside.clear();
        self.refresh_backlogs();
    }

    /// The expected service rate in requests per second; 0 unless all ready endpoints have one.
    pub(super) fn expected_rate(&self) -> f64 {
        let ready = self.endpoints.values().filter(|server| server.ready);
        ready
            .map(|server| server.allowance.and_then(|allowance| allowance.rate))
            .sum::<Option<f64>>()
            .unwrap_or_default()
    }

    /// The predicted wait in nanoseconds; `None` if not known.
    pub(super) fn predicted_wait(&self, ahead: u64) -> Option<u64> {
        if self.completions.is_empty() {
            let rate = self.expected_rate();
            return (rate > 0.0).then(|| (ahead as f64 / rate * 1e9) as u64);
        }
        Some(self.measured_wait(ahead))
    }

    pub(super) fn measured_wait(&self, ahead: u64) -> u64 {
        let last = &self.completions[self.completions.len().saturating_sub(64)..];
        let since = if self.completions.len() < 64 { 0 } else { last[0] };
        let wait = u128::from(self.saturated - since) * u128::from(ahead) / last.len().max(1) as u128;
        u64::try_from(wait).unwrap_or(u64::MAX)
    }

    /// Whether a new request would miss its deadline.
    pub(super) fn is_unmeetable(&self, item: &Item, waits: bool) -> bool {
        let Some(deadline) = item.deadline.filter(|_| self.policy.reject_unmeetable) else {
            return false;
        };
        let wait = if waits {
            let held = self.held_for(&item.name).as_nanos() as u64;
            self.predicted_wait(self.requests_ahead(item)).unwrap_or(0).max(held)
        } else {
            0
        };
        let eligible = |id: &EndpointId| item.eligible.as_ref().is_none_or(|eligible| eligible.contains(id));
        let eligible_endpoints = self.endpoints.iter().filter(|(id, server)| server.ready && eligible(id));
        let mut first_tokens = Vec::new();
        for (&id, server) in eligible_endpoints {
            let Some(allowance) = &server.allowance else {
                first_tokens.push(0);
                continue;
            };
            let mut iteration = self.iteration(id, server, allowance, item);
            if self.taken_at(id) > 0 {
                iteration = iteration.min(allowance.iteration_ms_max);
            }
            let prefill =
                (allowance.beta_ms + allowance.gamma_ms) * item.prompt.saturating_sub(item.cached) as f64;
            first_tokens.push(((iteration + prefill) * allowance.ttft_bias * 1e6) as u64);
        }
        let first_token = first_tokens.into_iter().min().unwrap_or(0);
        let predicted = Duration::from_nanos(wait).saturating_add(Duration::from_nanos(first_token));
        self.now.after(predicted) > deadline
    }

    /// The endpoints that `id` may go to now, with their order: highest score first, then least utilisation.
    pub(super) fn choices(&self, id: RequestId) -> BTreeMap<EndpointId, (f64, Utilisation)> {
        let item = self.item(id);
        if self.by_allowance() {
            let fitting = self.fitting(item);
            let least = fitting.values().map(|utilisation| utilisation.0).fold(f64::INFINITY, f64::min);
            return fitting
                .into_iter()
                .map(|(id, (used, iteration))| {
                    let ahead = used - least > 0.25;
                    let score = self.score(item, id, (1.0 - used).clamp(0.0, 1.0), ahead);
                    (id, (score, (used, iteration)))
                })
                .collect();
        }
        let mut candidates = self.endpoints_for(item);
        candidates.retain(|id, _| self.takes(*id, &self.endpoints[id], item));
        let least = candidates.values().copied().min().unwrap_or(0);
        candidates
            .into_iter()
            .map(|(id, stock)| {
                let bound = self.own_bound(&self.endpoints[&id]);
                let free = match bound {
                    u64::MAX => 1.0 / (1.0 + stock as f64),
                    bound => (1.0 - stock as f64 / bound.max(1) as f64).max(0.0),
                };
                let ahead = stock - least > bound / 4;
                (id, (self.score(item, id, free, ahead), (stock as f64, 0.0)))
            })
            .collect()
    }
}
