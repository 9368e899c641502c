//! Dispatching: which waiting requests are granted, and to which endpoints.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Engine;
use super::lifecycle::Place;
use crate::band::TreeBand;
use crate::cost::TokenEstimate;
use crate::effect::{Effect, Grant, Trace};
use crate::endpoint::Endpoint;
use crate::gate::is_over_ceiling;
use crate::ids::JobId;
use crate::input::EndpointId;
use crate::job::Job;
use crate::load::Load;
use crate::outcome::Outcome;
use crate::units::Tokens;

impl Engine {
    /// Grants waiting requests, one after another, while the gate is open.
    ///
    /// Where the gate counts sequences, the next request may fit no endpoint. Then its endpoints are reserved for it, and
    /// requests after it are granted as far as they need none of these. Reservations last until the next call.
    pub(super) fn dispatch(&mut self) {
        self.dispatch_within_bounds();
        // A grant above a bound may be the next request, which didn't fit within one.
        while self.dispatch_above_bounds() {
            self.dispatch_within_bounds();
        }
    }

    fn dispatch_within_bounds(&mut self) {
        if self.fits_each() {
            self.release_reserved();
        }
        while self.tree.any_active() && self.is_open() {
            self.apply_ceilings(self.endpoints.bounds().lower);
            if !self.rate_limiter.has_token(self.now) {
                return;
            }
            self.counters.dequeue_attempts += 1;
            let Some(job) = self.tree.pick() else {
                // One class mode ends a continued turn by this, so even a pick that finds nothing is an event to it.
                self.tree.pick_missed();
                return;
            };
            if !self.admits_next(job) {
                continue;
            }
            let arrival = self.jobs[job].queued.arrival.sequence;
            let endpoints = self.choose_endpoints(job, self.blocked_head == Some(arrival));
            if endpoints.is_empty() && self.fits_each() {
                self.blocked_head = Some(arrival);
                self.endpoints.clear_dirty();
                if self.reserve_endpoints(job) {
                    continue;
                }
                return;
            }
            self.counters.dequeue_successes += 1;
            self.rate_limiter.take(self.now);
            self.grant_waiting(job, endpoints);
        }
    }

    /// Reserves the endpoints that would take `job`. Returns whether others with room remain.
    fn reserve_endpoints(&mut self, job: JobId) -> bool {
        let able = self.tree.able_endpoints(self.jobs[job].queued.flow);
        let Some(able) = able.filter(|able| able.len() < self.endpoints.room_count()) else {
            return false;
        };
        for id in able {
            self.change_endpoints(|endpoints, _| endpoints.reserve(id));
        }
        true
    }

    /// Ends all reservations.
    pub(super) fn release_reserved(&mut self) {
        while self.change_endpoints(|endpoints, _| endpoints.release_reserved()) {}
    }

    /// The endpoints for `id`, best first; empty if none takes it now. `dirty_only`: `id` is the blocked head, so only
    /// endpoints that changed since it was blocked can take it.
    pub(super) fn choose_endpoints(&self, id: JobId, dirty_only: bool) -> Vec<EndpointId> {
        let job = &self.jobs[id];
        let eligible = self.tree.eligible_endpoints(job.queued.eligibility);
        let allows = |endpoint: &Endpoint| self.tree.allows(&job.queued, endpoint);
        let choose = |is_last_resort: Option<bool>| {
            let allows = |endpoint: &Endpoint| {
                is_last_resort.is_none_or(|last| endpoint.prefills_for_others() == last) && allows(endpoint)
            };
            if self.is_auto() {
                let load = |endpoint: &Endpoint| self.load_at(job, endpoint);
                return self.endpoints.choose_fitting(eligible, &job.scored(), load, dirty_only, allows);
            }
            let takes = |endpoint: &Endpoint| endpoint.takes(job.estimate.sequences) && allows(endpoint);
            if dirty_only && !self.endpoints.any_dirty(takes) {
                return Vec::new();
            }
            self.endpoints.choose(eligible, &job.scored(), takes)
        };
        // Without scores, the order has those that come last at its end.
        let by_score = self.is_auto() || self.endpoints.goes_by_score(&job.scored());
        if !by_score || !self.endpoints.any_comes_last() {
            return choose(None);
        }
        let endpoints = choose(Some(false));
        if endpoints.is_empty() { choose(Some(true)) } else { endpoints }
    }

    /// The load of `job` at `endpoint`, without the part of its prompt that is probably cached there.
    pub(super) fn load_at(&self, job: &Job, endpoint: &Endpoint) -> Load {
        match job.hashed_prompt() {
            Some(prompt) => Load::of(&TokenEstimate {
                cached: self.endpoints.cached_tokens_at(endpoint, &prompt),
                ..job.estimate
            }),
            None => Load::of(&job.estimate),
        }
    }

    /// [`crate::Input::Dispatch`]: grants the next request, except of the `blocked` classes.
    pub(super) fn dispatch_one(&mut self, blocked: &[Box<str>]) {
        if !self.is_manual() || !self.ready || !self.endpoints.any_room() {
            return;
        }
        self.tree.block_classes(blocked);
        self.counters.dequeue_attempts += 1;
        let picked = loop {
            let picked = self.tree.pick();
            if picked.is_none_or(|job| self.admits_next(job)) {
                break picked;
            }
        };
        if let Some(job) = picked {
            self.counters.dequeue_successes += 1;
            let endpoints = self.choose_endpoints(job, false);
            self.grant_waiting(job, endpoints);
        } else {
            self.tree.pick_missed();
        }
        self.tree.block_classes(&[]);
        if self.traced
            && let Some(job) = picked
        {
            self.push_trace(job);
        }
    }

    /// Applies the bands' ceilings under `bound`.
    pub(super) fn apply_ceilings(&mut self, bound: u64) {
        let over = TreeBand::ALL.map(|band| self.is_over_ceiling(band, bound));
        self.tree.apply_ceilings(|band| over[band as usize]);
    }

    /// The band has as much of `bound` as it may.
    pub(super) fn is_over_ceiling(&self, band: TreeBand, bound: u64) -> bool {
        let ceiling = self.policy.bands.ceilings[band.shown() as usize];
        ceiling.is_some_and(|ceiling| is_over_ceiling(self.endpoints.filled(), bound, ceiling))
    }

    /// Grants `id`, which waits, to the first of `endpoints`.
    pub(super) fn grant_waiting(&mut self, id: JobId, endpoints: Vec<EndpointId>) {
        let queued = self.jobs[id].queued;
        let first = *endpoints.first().expect("invariant: an open eligibility set has an endpoint with room");
        // A granted request has no deadline here: only its client can end it.
        self.stop_timers(id);
        let charge = self.charge_for(id);
        let receipts = self.tree.dispatch(id, &queued, &charge, first, &self.endpoints);
        self.end_pause(id, false);
        self.start(id, first, Place::Within, charge, receipts, Outcome::Dispatched);
        self.start_prefill(id);
        self.push_grant(id, endpoints, Outcome::Dispatched);
        if self.traced && !self.is_manual() {
            self.push_trace(id);
        }
    }

    /// Grants `id`, which isn't in the queue, to the first of `endpoints`.
    pub(super) fn grant_beside_queue(
        &mut self,
        id: JobId,
        endpoints: Vec<EndpointId>,
        place: Place,
        outcome: Outcome,
    ) {
        let flow = self.jobs[id].queued.flow;
        let first = *endpoints.first().expect("invariant: a request that is granted has an endpoint");
        self.rate_limiter.take(self.now);
        let charge = self.charge_for(id);
        if place == Place::Above {
            self.tree.restart_lag(flow);
        }
        let receipts = self.tree.bypass(flow, &charge, first, &self.endpoints);
        self.start(id, first, place, charge, receipts, outcome);
        if place == Place::Within {
            self.start_prefill(id);
        }
        self.push_grant(id, endpoints, outcome);
        if self.traced {
            self.push_trace(id);
        }
    }

    #[inline]
    fn push_grant(&mut self, id: JobId, endpoints: Vec<EndpointId>, outcome: Outcome) {
        let job = &self.jobs[id];
        let waited = match outcome {
            Outcome::Bypassed => core::time::Duration::ZERO,
            _ => self.now.since(job.queued.arrival.at),
        };
        let estimate = &job.estimate;
        let running = self.jobs.running(id);
        let load = running.map(|running| running.load);
        let prefill = running.and_then(|running| running.prefill);
        let cached = match (prefill, load) {
            (Some(prefill), _) => prefill.prompt - prefill.uncached,
            (None, Some(load)) => load.prompt() - load.prefill,
            (None, None) => estimate.cached,
        };
        let grant = Effect::Grant(Grant {
            id: job.id,
            endpoints,
            outcome,
            waited,
            cost: Tokens(job.queued.cost),
            prompt: Tokens(estimate.prompt),
            cached: Tokens(cached.min(estimate.prompt)),
            output: Tokens(estimate.output),
            extra: load.is_some_and(|load| load.extra.is_used()),
            prefill: prefill.map(|prefill| self.endpoints.id(prefill.endpoint)),
        });
        self.push(grant);
    }

    /// Pushes the details of the grant of `id`.
    fn push_trace(&mut self, id: JobId) {
        let job = &self.jobs[id];
        let queued = &job.queued;
        let flow_cost = self.jobs.running(id).map_or(queued.cost, |running| running.charge.cost);
        let effect = Effect::Traced(Trace {
            id: job.id,
            class: self.tree.classes().get(queued.class).name().into(),
            flow: (*self.tree.identity_of(queued.flow).name).into(),
            class_cost: Tokens(queued.class_cost),
            flow_cost: Tokens(flow_cost),
            deficits: self.tree.deficits(queued.flow),
        });
        self.push(effect);
    }
}
