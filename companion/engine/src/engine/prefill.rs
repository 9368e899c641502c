//! Prefill apart from decoding: a request whose prompt is long is granted two endpoints, one that computes the prompt and one that
//! gets it from there and answers.
//!
//! The request counts at both: at the first until its answer begins, or it ends. Where no endpoint for prompts has room or is ready, the
//! endpoint that answers computes the prompt too. A request that an endpoint failed or refused is sent to one endpoint alone from then on,
//! because the other one may have been the cause.

use super::Engine;
use crate::cost::TOKENS_MAX;
use crate::endpoint::Endpoint;
use crate::ids::JobId;
use crate::input::{EndpointId, RequestId};
use crate::job::{Job, RemotePrefill};
use crate::load::Load;

impl Engine {
    /// The prompt of `id`, which has just started, is computed by another endpoint, if the policy says so and one has room.
    pub(super) fn start_prefill(&mut self, id: JobId) {
        let Some(endpoint) = self.prefill_endpoint_for(id) else { return };
        self.prefill_begins(id, endpoint);
    }

    fn prefill_endpoint_for(&self, id: JobId) -> Option<EndpointId> {
        let least = self.policy.min_uncached_tokens?;
        let (job, running) = (&self.jobs[id], self.jobs.running(id)?);
        let decodes = self.endpoints.takes_computed_prompts(running.endpoint) && job.estimate.output > 0;
        let has_failed = job.retry.is_some();
        let is_trial = self.endpoints.is_tried_alone(running.endpoint);
        if !decodes || has_failed || is_trial || running.load.prefill < least.max(1) {
            return None;
        }
        if !self.endpoints.any_prefill_room() || !self.is_below(self.endpoints.bounds().upper) {
            return None;
        }
        let eligible = self.tree.eligible_endpoints(job.queued.eligibility);
        let allows = |endpoint: &Endpoint| self.tree.is_eligible(&job.queued, endpoint);
        let load = |endpoint: &Endpoint| self.prefill_load(job, endpoint);
        self.endpoints.choose_for_prefill(eligible, &job.scored(), load, allows)
    }

    /// The load of the prompt of `job` at an endpoint for prompts.
    fn prefill_load(&self, job: &Job, endpoint: &Endpoint) -> Load {
        let there = self.load_at(job, endpoint);
        Load::of_prefill(there.prompt(), there.prefill)
    }

    /// The prompt of `id`, which runs, is computed at `endpoint`.
    fn prefill_begins(&mut self, id: JobId, endpoint: EndpointId) {
        let Some(&running) = self.jobs.running(id) else {
            return;
        };
        let job = &self.jobs[id];
        let load = match self.endpoints.get(endpoint) {
            Some(there) => self.prefill_load(job, there),
            // It isn't listed, and as far as is known it has nothing cached.
            None => Load::of_prefill(job.estimate.prompt, job.estimate.prompt),
        };
        let (prompt, uncached) = (load.prompt().min(TOKENS_MAX), load.prefill);
        let without = running.load.without_prefill();
        let index = self.change_endpoints(|endpoints, rng| {
            endpoints.correct_load(running.endpoint, running.load, without, rng);
            endpoints.started(endpoint, load, rng)
        });
        self.endpoints.prompt_sent(index, &self.jobs[id].prefix);
        if let Some(running) = self.jobs.running_mut(id) {
            running.load = without;
            running.prefill = Some(RemotePrefill { endpoint: index, prompt, uncached });
            running.cached_elsewhere = Some(prompt.saturating_sub(uncached));
        }
    }

    /// [`crate::Input::Prefills`].
    pub(super) fn prefills(&mut self, id: RequestId, endpoint: EndpointId) {
        let Some((job, running)) = self.running_job(id) else { return };
        let is_known =
            running.cached_elsewhere.is_some() || running.is_answering || running.settled.is_some();
        if !is_known && self.endpoints.id(running.endpoint) != endpoint {
            self.prefill_begins(job, endpoint);
        }
    }

    /// The prompt of `id` has been computed at the endpoint for prompts, or isn't any more. `served`: it has.
    pub(super) fn end_prefill(&mut self, id: JobId, served: bool) {
        let Some(prefill) = self.jobs.running_mut(id).and_then(|running| running.prefill.take()) else {
            return;
        };
        self.release_prefill(&prefill, served);
    }

    /// The load of `prefill` leaves its endpoint.
    pub(super) fn release_prefill(&mut self, prefill: &RemotePrefill, served: bool) {
        let now = self.now;
        let load = prefill.load();
        self.change_endpoints(|endpoints, rng| endpoints.ended(now, prefill.endpoint, load, served, rng));
    }

    /// The endpoint is ready, and no answers keep it away or on probation.
    #[must_use]
    pub fn is_healthy(&self, endpoint: EndpointId) -> bool {
        self.endpoints.is_healthy(endpoint)
    }

    /// The endpoint that computes the prompt of a request for another one; `None`: none does now.
    #[must_use]
    pub fn prefill_endpoint_of(&self, id: RequestId) -> Option<EndpointId> {
        let running = self.jobs.running(self.jobs.find(id)?)?;
        running.prefill.map(|prefill| self.endpoints.id(prefill.endpoint))
    }
}
