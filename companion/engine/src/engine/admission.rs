//! Admission of a new request, in the call that brings it: it bypasses the queue, waits, or is rejected.
//!
//! Limits are checked in the order in which causes are reported: first the request's own, then its flow's, then the
//! pool's. A request that ran or waited elsewhere before is above all limits.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::Engine;
use super::lifecycle::Place;
use crate::arrival::Arrival;
use crate::band::TreeBand;
use crate::cost::{TOKENS_MAX, TokenEstimate};
use crate::endpoint::Endpoint;
use crate::hashed_name::HashedName;
use crate::ids::{JobId, ModelId};
use crate::input::{EndpointId, ModelName, Request};
use crate::job::Job;
use crate::limits::{BODY_BYTES_MAX, SEQUENCES_MAX};
use crate::outcome::Outcome;
use crate::policy::{Admit, Overflow};
use crate::tree::{OrderKey, Queued};
use crate::units::Tokens;

impl Engine {
    pub(super) fn register(&mut self, request: Request) {
        if self.fits_each() {
            // Waiting requests that fit come first, and the blocked head's endpoints must be reserved.
            self.dispatch();
        }
        let Some(job) = self.arrive(request) else {
            return;
        };
        if !self.admits_newcomer(job) {
            return;
        }
        let within = self.bypass(job).map(|endpoints| (endpoints, Place::Within));
        let granted = within.or_else(|| self.endpoints_above(job).map(|endpoints| (endpoints, Place::Above)));
        if self.is_unmeetable(job, granted.is_none()) {
            self.reject_newcomer(job, Outcome::RejectedUnmeetable);
            return;
        }
        if let Some((endpoints, place)) = granted {
            self.grant_beside_queue(job, endpoints, place, Outcome::Bypassed);
            return;
        }
        match self.may_wait(job) {
            Ok(()) => self.enqueue(job),
            Err(outcome) => self.reject_newcomer(job, outcome),
        }
    }

    pub(super) fn resume(&mut self, request: Request) {
        if let Some(job) = self.arrive(request) {
            self.enqueue(job);
        }
    }

    /// `request` runs already, with this outcome if it didn't wait here.
    pub(super) fn adopt(&mut self, request: Request, endpoint: EndpointId, outcome: Outcome) {
        let (arrived, sequences) = (request.arrived, sequences_of(request.sequences));
        let id = match self.jobs.find(request.id) {
            Some(id) if self.jobs[id].is_waiting() => {
                self.stop_timers(id);
                self.tree.remove(id, &self.jobs[id].queued, &self.endpoints);
                self.end_pause(id, false);
                self.jobs[id].session_lost = false;
                self.jobs[id].queued.suspended = false;
                id
            }
            Some(_) => return,
            None => {
                self.counters.arrivals += 1;
                self.insert(request)
            }
        };
        self.change_endpoints(|endpoints, rng| endpoints.recognize(endpoint, arrived, sequences, rng));
        let charge = self.charge_for(id);
        let flow = self.jobs[id].queued.flow;
        let receipts = self.tree.bypass(flow, &charge, endpoint, &self.endpoints);
        self.start(id, endpoint, Place::Within, charge, receipts, outcome);
    }

    /// Inserts a new request, which doesn't wait yet, unless it must be rejected whatever the load; `None` for one that
    /// was rejected, or is known already.
    fn arrive(&mut self, request: Request) -> Option<JobId> {
        if self.jobs.find(request.id).is_some() {
            return None;
        }
        self.counters.arrivals += 1;
        let rejected = if self.draining {
            Some(Outcome::ShuttingDown)
        } else if !self.may_get_endpoint(request.eligible.as_deref()) {
            Some(Outcome::NoEndpoints)
        } else if request.deadline.is_some_and(|deadline| deadline <= self.now) {
            Some(Outcome::DeadlineExceeded)
        } else {
            None
        };
        if let Some(outcome) = rejected {
            let id = self.insert(request);
            self.reject_newcomer(id, outcome);
            return None;
        }
        Some(self.insert(request))
    }

    /// Whether a request may be granted one of `eligible` (`None`: any of the pool), now or once it is ready. While the pool lists no
    /// endpoint at all, it may: discovery can bring one of them.
    pub(super) fn may_get_endpoint(&self, eligible: Option<&[EndpointId]>) -> bool {
        eligible.is_none_or(|eligible| {
            !eligible.is_empty()
                && (!self.endpoints.any_listed() || eligible.iter().any(|&id| self.endpoints.is_listed(id)))
        })
    }

    fn insert(&mut self, request: Request) -> JobId {
        let id = self.insert_job(request);
        if self.budgets.is_on() {
            self.update_hold(self.jobs[id].queued.flow);
        }
        id
    }

    fn insert_job(&mut self, request: Request) -> JobId {
        let arrival = Arrival { at: request.arrived.min(self.now), sequence: self.arrivals };
        self.arrivals += 1;
        let prompt = self.prompt_of(&request);
        let cached = request.cached.0.min(prompt);
        let model = self.tree.model_id(&request.model.requested);
        let class = self.tree.classes().classify(request.class_set, &request.class, prompt - cached);
        let order_key = OrderKey::of(&request, arrival.at, prompt - cached);
        let (band, policy) = (TreeBand::from(request.band), &self.policy.flows);
        let (flow, shared_name) = self.tree.flow_or_insert(request.flow, band, model, class, policy);
        let target = self.shared_target(model, request.model);
        let name = self.tree.identity_of(flow).hashed_name();
        let known = request.estimates.filter(|estimates| estimates.flow_hash == name.hash);
        let sequences = sequences_of(request.sequences);
        let limits = (request.expected_output, request.max_output);
        let estimate = || self.expected_output(limits, sequences, name, &target);
        let output = known.map_or_else(estimate, |estimates| estimates.output);
        let estimate = TokenEstimate { prompt, cached: request.cached.0, output, sequences };
        let order = self.tree.classes().get(class).order(self.policy.order);
        self.jobs.insert(Job {
            id: request.id,
            band,
            request_band: request.band,
            class_set: request.class_set,
            class_key: request.class,
            queued: Queued {
                flow,
                class,
                eligibility: self.tree.hold_eligibility(class, request.eligible, &self.endpoints),
                model,
                cost: estimate.cost(self.policy.flows.cost, self.policy.weights),
                class_cost: order_key.class_cost,
                prompt,
                cached,
                bytes: request.body_bytes.min(BODY_BYTES_MAX),
                suspended: false,
                strict: request.strict,
                score: order_key.score(order),
                arrival,
            },
            order_key,
            estimate,
            prompt_bytes: request.prompt.bytes(),
            model: target,
            prefix: request.prefix,
            shared_name,
            session_lost: false,
            is_shadowed: false,
            retry: None,
            running: None,
        })
    }

    /// The server's name for the model `id`. One copy of a name serves all requests, so that few cache lines hold it.
    fn shared_target(&self, id: ModelId, model: ModelName) -> Arc<str> {
        let known = self.tree.model_name(id).filter(|_| !model.is_rewritten());
        known.cloned().unwrap_or(model.target)
    }

    /// Expected output tokens of all sequences together. Of each: the client's expectation, else the median of the flow or of
    /// the model; at most the client's limit.
    pub(super) fn expected_output(
        &self,
        (expected, limit): (Option<Tokens>, Option<Tokens>),
        sequences: u64,
        flow: HashedName<'_>,
        model: &str,
    ) -> u64 {
        let median = || self.token_history.output_tokens(flow, model);
        let output = expected.map_or_else(median, |tokens| tokens.0);
        let output = output.min(limit.map_or(TOKENS_MAX, |tokens| tokens.0));
        if sequences == 1 { output } else { output.saturating_mul(sequences).min(TOKENS_MAX) }
    }

    /// The endpoints for `job`, a newcomer, if it may bypass: the gate is open for it, and no waiting request would be
    /// overtaken.
    fn bypass(&mut self, job: JobId) -> Option<Vec<EndpointId>> {
        let queued = self.jobs[job].queued;
        let upper = self.endpoints.bounds().upper;
        let open = self.ready && !self.is_manual() && self.is_below(upper);
        let first = self.tree.overtakes_none(&queued);
        if !open || !first || self.tree.is_at_limit(queued.flow) || !self.rate_limiter.has_token(self.now) {
            return None;
        }
        self.apply_ceilings(upper);
        if self.tree.is_over_ceiling(self.jobs[job].band) || self.tree.has_runnable() {
            return None;
        }
        let endpoints = self.choose_endpoints(job, false);
        (!endpoints.is_empty()).then_some(endpoints)
    }

    /// Whether `id`, a newcomer, is predicted to miss its deadline and must be rejected for it. The prediction adds the
    /// wait, if it `waits`, and the time to the first token. An unknown time counts as none.
    fn is_unmeetable(&self, id: JobId, waits: bool) -> bool {
        if !self.policy.reject_unmeetable {
            return false;
        }
        let job = &self.jobs[id];
        let Some(deadline) = job.deadline() else {
            return false;
        };
        let eligible = self.tree.eligible_endpoints(job.queued.eligibility);
        let load = |endpoint: &Endpoint| self.load_at(job, endpoint);
        let first_token = self.endpoints.first_token(eligible, load);
        let ahead = if waits { self.tree.before_next(&job.queued).requests } else { 0 };
        let wait = self.drain_rate.prediction(ahead, self.expected_rate());
        let predicted = wait
            .unwrap_or_default()
            .max(self.held_for(job.queued.flow))
            .saturating_add(first_token.unwrap_or_default());
        self.now.after(predicted) > deadline
    }

    /// The pool's ready endpoints; if none is, the listed ones; at least 1. All requests of a class have the same limit,
    /// because all of them wait in its queue, wherever they may go.
    fn endpoint_count(&self) -> u64 {
        let (ready, listed) = (self.endpoints.ready_count(), self.endpoints.listed_count());
        (if ready > 0 { ready } else { listed }).max(1) as u64
    }

    /// Whether `id` may wait. Displaces other requests for it if the policy says so.
    fn may_wait(&mut self, id: JobId) -> Result<(), Outcome> {
        let queue = &self.policy.queue;
        let job = &self.jobs[id];
        let admitted = match queue.admit {
            Admit::All => true,
            Admit::CriticalOnly => job.band == TreeBand::Critical,
        };
        if !queue.enabled || queue.total_capacity == 0 || !admitted {
            return Err(Outcome::RejectedPolicy);
        }
        let (ttl_end, timer) = self.expiry.ttl_end(job.queued.arrival.at, self.ttls());
        if ttl_end <= self.now {
            return Err(timer.outcome());
        }
        let waiting = self.tree.in_band(job.queued.flow).waiting.requests;
        let capacity = self.tree.identity_of(job.queued.flow).capacity;
        if waiting >= capacity.unwrap_or(queue.flow_capacity) {
            return Err(Outcome::RejectedFlowCapacity);
        }
        let class = self.tree.classes().get(job.queued.class);
        if class.is_limited() && !class.has_room(self.endpoint_count()) {
            return Err(Outcome::RejectedClassCapacity);
        }
        let full = match waiting {
            0 => Outcome::RejectedTooManyFlows,
            _ => Outcome::RejectedQueueFull,
        };
        self.make_room(job.band, job.queued.bytes).then_some(()).ok_or(full)
    }

    /// Displaces less critical requests, the least critical first, until a request of `bytes` fits. Displaces none if
    /// all of them together aren't enough.
    ///
    /// More may wait than the limits allow: a policy with lower limits rejects no request that waits, and requests of
    /// another engine are above all limits. A newcomer then takes the room that it needs, and doesn't pay off the excess.
    fn make_room(&mut self, band: TreeBand, bytes: u64) -> bool {
        let queue = &self.policy.queue;
        let waiting = self.tree.waiting_in_all();
        let requests_max = queue.total_capacity.max(waiting.requests);
        let bytes_max = queue.total_bytes.max(waiting.bytes);
        let fits = |requests: u64, waiting_bytes: u64| {
            let sum = waiting_bytes.checked_add(bytes);
            requests < requests_max && sum.is_some_and(|sum| sum <= bytes_max)
        };
        if fits(waiting.requests, waiting.bytes) {
            return true;
        }
        let less_critical = || TreeBand::ALL.into_iter().rev().filter(move |&other| other > band);
        let (requests, freed) = less_critical().fold((0, 0), |(requests, bytes), other| {
            let waiting = self.tree.waiting(other);
            (requests + waiting.requests, bytes + waiting.bytes)
        });
        let enough = requests > 0 && fits(waiting.requests - requests, waiting.bytes - freed);
        if queue.overflow == Overflow::Reject || !enough {
            return false;
        }
        loop {
            let waiting = self.tree.waiting_in_all();
            if fits(waiting.requests, waiting.bytes) {
                return true;
            }
            let Some(victim) = less_critical().find_map(|other| self.tree.victim(other)) else {
                return false;
            };
            self.tree.displaced(self.jobs[victim].queued.flow);
            self.reject_waiting(victim, Outcome::Displaced);
        }
    }

    pub(super) fn reject_newcomer(&mut self, id: JobId, outcome: Outcome) {
        let job = self.jobs.remove(id);
        let budget_wait = self.budget_wait_for(outcome, job.queued.flow);
        self.reject(&job, outcome, budget_wait);
    }
}

/// The sequences of a request that claims so many.
pub(super) const fn sequences_of(claimed: u64) -> u64 {
    match claimed {
        0 => 1,
        claimed if claimed > SEQUENCES_MAX => SEQUENCES_MAX,
        claimed => claimed,
    }
}
