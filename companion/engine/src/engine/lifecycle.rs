//! A job after its admission: its start, its cost, and its end.

use alloc::vec::Vec;
use core::time::Duration;

use super::Engine;
use crate::cost::Charge;
use crate::effect::Effect;
use crate::ids::{JobId, ModelId};
use crate::input::{EndpointId, PastUsage, RequestId, RunningUsage, Service};
use crate::job::Running;
use crate::load::Load;
use crate::outcome::Outcome;
use crate::policy::CostUnit;
use crate::retry::Failure;
use crate::token_history::Served;
use crate::tree::Receipts;
use crate::units::Tokens;

/// Where a request starts at its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It counts against the bound.
    Within,
    /// In a place for flows with nothing running: see [`crate::policy::ExtraPlaces`].
    Above,
}

impl Engine {
    /// The charge of `id` if it is granted now.
    pub(super) fn charge_for(&self, id: JobId) -> Charge {
        let queued = &self.jobs[id].queued;
        Charge {
            cost: queued.cost,
            class_cost: queued.class_cost,
            weight: self.tree.identity_of(queued.flow).weight,
            unit: self.policy.flows.cost,
            model: queued.model,
        }
    }

    /// `id`, which is charged already, starts at `endpoint`.
    pub(super) fn start(
        &mut self,
        id: JobId,
        endpoint: EndpointId,
        place: Place,
        charge: Charge,
        receipts: Receipts,
        outcome: Outcome,
    ) {
        let (load, predicted_cached) = self.expected_at(id, endpoint);
        let load = load.placed(place == Place::Above);
        let endpoint = self.change_endpoints(|endpoints, rng| endpoints.started(endpoint, load, rng));
        let job = &self.jobs[id];
        self.endpoints.prompt_sent(endpoint, &job.prefix);
        self.counters.count(job.band.shown(), outcome);
        let running = Running {
            endpoint,
            load,
            predicted_cached,
            charge,
            receipts,
            outcome,
            prefill: None,
            cached_elsewhere: None,
            is_answering: false,
            settled: None,
            start: self.evictions.next_start(),
            has_begun: false,
        };
        self.jobs.start(id, running);
        self.list_silent(id);
        self.push_running_usage(id, charge.model);
        self.charge_budget(id);
    }

    /// The load of `id` at `endpoint`, and its prompt tokens that are cached there by the index of prefixes.
    fn expected_at(&self, id: JobId, endpoint: EndpointId) -> (Load, u64) {
        let job = &self.jobs[id];
        let known = self.endpoints.get(endpoint).zip(job.hashed_prompt());
        match known {
            Some((endpoint, prompt)) => {
                let predicted = self.endpoints.predicted_tokens_at(endpoint.id, &prompt);
                (self.load_at(job, endpoint), predicted)
            }
            None => (Load::of(&job.estimate), 0),
        }
    }

    pub(super) fn running_job(&self, id: RequestId) -> Option<(JobId, Running)> {
        let job = self.jobs.find(id)?;
        Some((job, *self.jobs.running(job)?))
    }

    /// The load of `running` leaves its endpoint. `served`: the server processed the request.
    #[inline]
    fn stop(&mut self, running: &Running, served: bool) {
        let now = self.now;
        self.change_endpoints(|endpoints, rng| {
            endpoints.ended(now, running.endpoint, running.load, served, rng);
        });
        if let Some(prefill) = &running.prefill {
            self.release_prefill(prefill, served);
        }
    }

    pub(super) fn sent(&mut self, id: RequestId, endpoint: EndpointId) {
        let Some((id, running)) = self.running_job(id) else {
            return;
        };
        let from = self.endpoints.id(running.endpoint);
        if from == endpoint {
            return;
        }
        let (mut load, predicted_cached) = self.expected_at(id, endpoint);
        load = running.answering_load(load).placed(running.load.extra.is_used()).evicted_like(&running.load);
        if running.is_answering {
            load = load.prefilled();
        }
        if running.settled.is_some() {
            // Its tokens are counted, so no estimate is better.
            load = running.load;
        }
        let index = self.change_endpoints(|endpoints, rng| endpoints.started(endpoint, load, rng));
        self.endpoints.prompt_sent(index, &self.jobs[id].prefix);
        // Its prompt stays where it is: the header that names the endpoint for it has gone along.
        self.stop(&Running { prefill: None, ..running }, false);
        let flow = self.jobs[id].queued.flow;
        self.tree.moved(flow, from, endpoint, &self.endpoints);
        if let Some(running) = self.jobs.running_mut(id) {
            running.endpoint = index;
            running.load = load;
            running.predicted_cached = predicted_cached;
        }
    }

    pub(super) fn answer_begun(&mut self, id: RequestId) {
        let job = self.jobs.find(id);
        let Some(running) = job.and_then(|job| self.jobs.running_mut(job)) else {
            return;
        };
        if core::mem::replace(&mut running.is_answering, true) {
            return;
        }
        let (endpoint, load) = (running.endpoint, running.load);
        running.load = load.prefilled();
        self.change_endpoints(|endpoints, _| endpoints.prefilled(endpoint, load));
        if let Some(job) = job {
            self.end_prefill(job, true);
        }
        self.begun(id);
    }

    pub(super) fn settle(&mut self, id: RequestId, service: Service) {
        if self.is_manual() {
            self.completed(id, service);
            return;
        }
        // What an answer has cost is known only at its end.
        self.begun(id);
        let Some((id, running)) = self.running_job(id) else {
            return;
        };
        if running.settled.is_none() {
            self.settle_running(id, running, service);
        }
    }

    /// Settles the cost of `id` while it continues to run, and corrects its load.
    fn settle_running(&mut self, id: JobId, running: Running, service: Service) {
        let service = running.charged(service);
        let cost = self.settle_cost(id, &running, service);
        let mut load = running.load;
        if let Service::Served(usage) | Service::Cut(usage) = service {
            let counted = Load::of(&self.jobs[id].counted(usage));
            load = running.answering_load(counted).placed(running.load.extra.is_used());
            if running.is_answering {
                load = load.prefilled();
            }
            let from = running.load;
            self.change_endpoints(|endpoints, rng| endpoints.correct_load(running.endpoint, from, load, rng));
        }
        if let Some(running) = self.jobs.running_mut(id) {
            running.load = load;
            running.settled = Some(cost);
        }
    }

    /// Settles or refunds the cost of `id`. Returns the final cost, 0 for a refund.
    fn settle_cost(&mut self, id: JobId, running: &Running, service: Service) -> u64 {
        let job = &self.jobs[id];
        let real = match service {
            Service::Nothing => None,
            Service::Served(usage) | Service::Cut(usage) => {
                let real = match running.charge.unit {
                    CostUnit::Requests => running.charge.cost,
                    CostUnit::Tokens => {
                        let counted = job.counted(usage);
                        counted.cost(running.charge.unit, self.policy.weights)
                    }
                };
                let flow = self.tree.identity_of(job.queued.flow).hashed_name();
                let is_whole = matches!(service, Service::Served(_));
                let learned = |tokens: Option<Tokens>| tokens.filter(|_| is_whole).map(|tokens| tokens.0);
                let served = Served {
                    band: job.band.shown(),
                    cost: real,
                    prompt_bytes: job.prompt_bytes,
                    prompt: learned(usage.prompt),
                    output: learned(usage.output)
                        .map(|tokens| tokens.div_ceil(job.estimate.sequences.max(1))),
                };
                self.token_history.served(flow, &job.model, &served);
                Some(real)
            }
        };
        let queued = job.queued;
        self.tree.settle(queued.flow, &running.charge, &running.receipts, real);
        self.settle_budget(id, service);
        // First: a request must not count twice for an owner that reads the effects one by one.
        self.push_running_usage(id, running.charge.model);
        let real = real.unwrap_or(0);
        if self.reports_usage && real > 0 && self.tree.has_usage_windows() {
            self.push_usage(id, running.charge.model, real);
        }
        real
    }

    fn push_usage(&mut self, id: JobId, model: ModelId, cost: u64) {
        let job = &self.jobs[id];
        let Some(model) = self.tree.model_name(model) else {
            return;
        };
        let effect = Effect::UsageSettled(PastUsage {
            band: job.band.shown(),
            class: self.tree.classes().get(job.queued.class).name().into(),
            flow: (*self.tree.identity_of(job.queued.flow).name).into(),
            model: (**model).into(),
            cost: Tokens(cost),
            ago: Duration::ZERO,
        });
        self.push(effect);
    }

    /// Reports what the flow of `id` runs of `model`, where reports are on.
    #[inline]
    pub(super) fn push_running_usage(&mut self, id: JobId, model: ModelId) {
        if self.reports_running_usage && self.tree.has_usage_windows() {
            self.report_running(id, model);
        }
    }

    #[inline(never)]
    fn report_running(&mut self, id: JobId, model: ModelId) {
        let running = self.tree.running_usage(self.jobs[id].queued.flow, model);
        let effect = self.running_usage(id, model, running);
        self.effects.extend(effect);
    }

    /// The report that the flow of `id` runs `running` of `model`; `None`: several models share the id.
    pub(super) fn running_usage(&self, id: JobId, model: ModelId, running: u128) -> Option<Effect> {
        let job = &self.jobs[id];
        Some(Effect::UsageRunning(RunningUsage {
            band: job.band.shown(),
            class: self.tree.classes().get(job.queued.class).name().into(),
            flow: (*self.tree.identity_of(job.queued.flow).name).into(),
            model: (**self.tree.model_name(model)?).into(),
            running: Tokens(u64::try_from(running).unwrap_or(u64::MAX)),
        }))
    }

    pub(super) fn completed(&mut self, id: RequestId, service: Service) {
        self.end(id, service, false);
    }

    pub(super) fn left(&mut self, id: RequestId, service: Service) {
        self.end(id, service, true);
    }

    /// `has_left`: the client left before the end of the answer, so the server may compute on.
    fn end(&mut self, id: RequestId, service: Service, has_left: bool) {
        let Some(job_id) = self.jobs.find(id) else {
            return;
        };
        let Some(&running) = self.jobs.running(job_id) else {
            return;
        };
        let job = &self.jobs[job_id];
        let (flow, eligibility, band) = (job.queued.flow, job.queued.eligibility, job.band);
        let served = matches!(service, Service::Served(_) | Service::Cut(_));
        let endpoint = self.endpoints.id(running.endpoint);
        if let (Service::Served(usage), None) = (service, running.cached_elsewhere) {
            let cached = usage.cached.map(|tokens| tokens.0);
            self.endpoints.record_cached(running.endpoint, running.predicted_cached, cached);
        }
        let service = running.charged(service);
        if has_left {
            let (now, Running { endpoint, load, .. }) = (self.now, running);
            self.change_endpoints(|endpoints, rng| endpoints.left(now, endpoint, load, served, rng));
            self.end_prefill(job_id, false);
        } else {
            self.stop(&running, served);
        }
        if served {
            self.drain_rate.completed();
            self.end_refusals(endpoint);
        }
        let cost = running.settled.unwrap_or_else(|| self.settle_cost(job_id, &running, service));
        self.evictions.remove_silent(job_id, running.start);
        self.jobs.discard(job_id);
        self.tree.ended(flow, endpoint, &self.endpoints);
        self.tree.release_flow(flow);
        self.tree.release_eligibility(eligibility);
        self.push(Effect::Settled { id, band: band.shown(), cost: Tokens(cost) });
    }

    pub(super) fn requeue(&mut self, id: RequestId) {
        if let Some((job, running)) = self.running_job(id) {
            self.return_to_queue(job, &running, None);
        }
    }

    /// `id`, which runs, is refunded and returns to its old place. `failure`: how its endpoint failed it.
    pub(super) fn return_to_queue(&mut self, id: JobId, running: &Running, failure: Option<Failure>) {
        let endpoint = self.endpoints.id(running.endpoint);
        self.stop(running, false);
        self.evictions.remove_silent(id, running.start);
        self.jobs.end(id);
        let job = &mut self.jobs[id];
        job.queued.cost = job.estimate.cost(self.policy.flows.cost, self.policy.weights);
        let (flow, band) = (job.queued.flow, job.band);
        if running.settled.is_none() {
            self.tree.settle(flow, &running.charge, &running.receipts, None);
            self.push_running_usage(id, running.charge.model);
            self.settle_budget(id, Service::Nothing);
        }
        self.counters.take_back(band.shown(), running.outcome);
        self.counters.requeues += 1;
        if let Some(failure) = failure {
            self.avoid(id, endpoint, failure);
        }
        self.forget_blocked_head(id);
        self.update_account(id);
        // In the queue first: if the identity falls below its limit by this end, the request is among the heads that are updated.
        self.enqueue(id);
        self.tree.ended(flow, endpoint, &self.endpoints);
        if self.jobs[id].queued.flow != flow {
            self.tree.release_flow(flow);
        }
        if self.draining {
            self.reject_waiting(id, Outcome::ShuttingDown);
        }
    }

    pub(super) fn cancel(&mut self, id: RequestId) {
        let Some(job) = self.waiting_job(id) else {
            return;
        };
        let job = self.take_waiting(job);
        self.release(&job);
        self.counters.count(job.band.shown(), Outcome::Cancelled);
        self.push(Effect::Cancelled { id, waited: self.now.since(job.queued.arrival.at) });
    }

    pub(super) fn set_suspended(&mut self, id: RequestId, suspended: bool) {
        let Some(job) = self.waiting_job(id) else {
            return;
        };
        self.jobs[job].session_lost = suspended;
        self.update_suspension(job);
    }

    pub(super) fn drain(&mut self, draining: bool) {
        self.draining = draining;
        if draining {
            let mut waiting: Vec<JobId> = self.expiry.jobs();
            waiting.sort_unstable_by_key(|&job| self.jobs[job].queued.arrival);
            for job in waiting {
                self.reject_waiting(job, Outcome::ShuttingDown);
            }
        }
    }
}
