//! Grants above the bounds, to flows with nothing running: see [`crate::policy::ExtraPlaces`].

use alloc::vec::Vec;

use super::Engine;
use super::lifecycle::Place;
use crate::endpoint::Endpoint;
use crate::gate::counts_tokens;
use crate::ids::JobId;
use crate::input::EndpointId;
use crate::limits::IDLE_FLOWS_SEEN;
use crate::outcome::Outcome;

impl Engine {
    /// Grants the next request of a flow with nothing running above a bound. Returns whether there was one, granted or not.
    #[inline]
    pub(super) fn dispatch_above_bounds(&mut self) -> bool {
        if !self.may_grant_above() || !self.tree.has_idle_flows() || !self.rate_limiter.has_token(self.now) {
            return false;
        }
        let Some((job, endpoints)) = self.next_above() else { return false };
        if self.admits_next(job) {
            self.grant_waiting_above(job, endpoints);
        }
        true
    }

    /// Only the rate keeps a request from a place above a bound.
    pub(super) fn waits_for_rate_above(&self) -> bool {
        self.may_grant_above() && self.next_above().is_some()
    }

    pub(super) fn may_grant_above(&self) -> bool {
        // What ran above the bounds of a former leader counts as within those of this one.
        let may_exceed = self.is_auto() || counts_tokens(self.policy.gate);
        let is_within = may_exceed || self.endpoints.filled() <= self.endpoints.bounds().upper;
        self.endpoints.any_extra_room() && self.ready && !self.is_manual() && is_within
    }

    /// The first request of a flow with nothing running that an endpoint takes above its bound, and those endpoints. Of many flows whose
    /// endpoints have no such place only the first few are seen, so that an event costs the same however many wait.
    pub(super) fn next_above(&self) -> Option<(JobId, Vec<EndpointId>)> {
        self.tree.idle_heads().take(IDLE_FLOWS_SEEN).find_map(|job| {
            let endpoints = self.choose_above(job);
            (!endpoints.is_empty()).then_some((job, endpoints))
        })
    }

    fn choose_above(&self, id: JobId) -> Vec<EndpointId> {
        let job = &self.jobs[id];
        if self.is_over_ceiling(job.band, self.endpoints.bounds().lower) || !self.tree.may_go_above(job.band)
        {
            return Vec::new();
        }
        let load = |endpoint: &Endpoint| self.load_at(job, endpoint);
        let allows = |endpoint: &Endpoint| self.tree.is_eligible(&job.queued, endpoint);
        let eligible = self.tree.eligible_endpoints(job.queued.eligibility);
        self.endpoints.choose_above(eligible, &job.scored(), load, allows)
    }

    /// The endpoints that take `id`, a newcomer, above their bounds; `None` if it isn't its flow's turn, or there is none.
    pub(super) fn endpoints_above(&mut self, id: JobId) -> Option<Vec<EndpointId>> {
        let queued = self.jobs[id].queued;
        let is_next = self.tree.is_idle(queued.flow)
            && self.tree.overtakes_none(&queued)
            && !self.tree.is_at_limit(queued.flow);
        if !self.may_grant_above() || !is_next || !self.rate_limiter.has_token(self.now) {
            return None;
        }
        // Time alone may have let others go, who are dispatched after this input.
        self.apply_ceilings(self.endpoints.bounds().lower);
        let waits = self.is_open() && self.tree.has_runnable();
        if waits || self.tree.has_idle_flows() && self.next_above().is_some() {
            return None;
        }
        let endpoints = self.choose_above(id);
        (!endpoints.is_empty()).then_some(endpoints)
    }

    fn grant_waiting_above(&mut self, id: JobId, endpoints: Vec<EndpointId>) {
        self.counters.dequeue_attempts += 1;
        self.counters.dequeue_successes += 1;
        let queued = self.jobs[id].queued;
        self.stop_timers(id);
        // Not a dispatch of the tree: that one serves only the request that is next.
        self.tree.remove(id, &queued, &self.endpoints);
        self.end_pause(id, false);
        self.grant_beside_queue(id, endpoints, Place::Above, Outcome::Dispatched);
    }
}
