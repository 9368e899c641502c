//! Requests that an endpoint failed or refused before a response: each returns to its old place, and avoids the endpoint for a
//! pause.
//!
//! Meanwhile the request may go to any other of its endpoints. If no other is ready, it waits for the end of the pause, and
//! the requests behind it in its flow that may go to the same endpoints wait with it, because the endpoint would fail them
//! too. If the endpoint has failed no
//! other request since it last served one, the failed request itself may be the cause: then it lets the others pass.
//!
//! An endpoint that refused requests because it is overloaded has room again when it has served one: then the pauses that
//! it caused end.

use core::time::Duration;

use super::Engine;
use crate::ids::{Id as _, JobId};
use crate::input::{EndpointId, RequestId};
use crate::retry::Failure;

impl Engine {
    pub(super) fn retry(&mut self, id: RequestId) {
        if let Some((job, running)) = self.running_job(id) {
            self.return_to_queue(job, &running, Some(Failure::Failed));
        }
    }

    pub(super) fn refused(&mut self, id: RequestId, retry_after: Duration) {
        if let Some((job, running)) = self.running_job(id) {
            self.return_to_queue(job, &running, Some(Failure::Refused(retry_after)));
        }
    }

    pub(super) fn pushed_back(&mut self, id: RequestId, endpoint: EndpointId) {
        let here =
            self.running_job(id).filter(|(_, running)| self.endpoints.id(running.endpoint) == endpoint);
        let sequences_here = here.map(|(_, running)| running.load.sequences);
        self.change_endpoints(|endpoints, rng| endpoints.pushed_back(endpoint, id, sequences_here, rng));
    }

    /// `id`, which isn't in the queue yet, avoids `endpoint`, which failed or refused it.
    pub(super) fn avoid(&mut self, id: JobId, endpoint: EndpointId, failure: Failure) {
        let job = &mut self.jobs[id];
        let retry = job.retry.get_or_insert_default();
        retry.fail(self.now, endpoint, failure);
        if let Some(until) = retry.until() {
            self.pauses.insert((until, id));
        }
        let refused = retry.refused().iter().map(|&endpoint| (endpoint, id));
        self.refused.extend(refused);
        let request = job.id;
        let may_be_cause = !self.endpoints.fails_others(endpoint, request);
        if may_be_cause
            && !self.has_other_endpoint(id)
            && let Some(retry) = &mut self.jobs[id].retry
        {
            retry.let_pass();
        }
        let job = &mut self.jobs[id];
        job.queued.suspended = job.is_suspended();
        self.update_avoided(id, false);
    }

    /// The eligible endpoints of `id` are those that it doesn't avoid. `waits`: it is in the queue.
    fn update_avoided(&mut self, id: JobId, waits: bool) {
        let job = &mut self.jobs[id];
        let avoided = job.retry.as_ref().map_or(&[][..], |retry| retry.avoided());
        let eligibility = self.tree.hold_without(job.queued.eligibility, avoided, &self.endpoints);
        self.tree.change_eligibility(id, &mut job.queued, eligibility, waits, &self.endpoints);
    }

    /// `endpoint` has served a request: the requests that it refused avoid it no longer.
    pub(super) fn end_refusals(&mut self, endpoint: EndpointId) {
        while let Some(&(_, id)) =
            self.refused.range((endpoint, JobId::MIN)..).next().filter(|(refusing, _)| *refusing == endpoint)
        {
            self.refused.remove(&(endpoint, id));
            let Some(retry) = &mut self.jobs[id].retry else {
                continue;
            };
            if retry.readmit(endpoint) {
                self.end_pause(id, true);
            } else {
                self.update_avoided(id, true);
                self.forget_blocked_head(id);
            }
            self.update_suspension(id);
        }
    }

    /// Some endpoint that `id` doesn't avoid is ready for it.
    fn has_other_endpoint(&self, id: JobId) -> bool {
        let job = &self.jobs[id];
        let avoided = job.avoided();
        match self.tree.eligible_endpoints(job.queued.eligibility) {
            None => {
                let avoided_ready = avoided.iter().filter(|&&id| self.endpoints.is_ready(id));
                self.endpoints.ready_count() > avoided_ready.count()
            }
            Some(eligible) => eligible.iter().any(|id| !avoided.contains(id) && self.endpoints.is_ready(*id)),
        }
    }

    /// Ends every pause that is due.
    pub(super) fn end_pauses(&mut self) {
        while let Some(&(until, id)) = self.pauses.first().filter(|(until, _)| *until <= self.now) {
            debug_assert_eq!(
                self.jobs[id].retry.as_ref().and_then(|retry| retry.until()),
                Some(until),
                "invariant: a pause belongs to a waiting request"
            );
            self.end_pause(id, true);
            self.update_suspension(id);
        }
    }

    /// Ends the pause of `id`, if there is one. `waits`: it is in the queue.
    pub(super) fn end_pause(&mut self, id: JobId, waits: bool) {
        if self.forget_pause(id) {
            self.update_avoided(id, waits);
            self.forget_blocked_head(id);
        }
    }

    /// Ends the pause of `id`, but for its eligible endpoints. Returns whether there was one.
    pub(super) fn forget_pause(&mut self, id: JobId) -> bool {
        let Some(retry) = &mut self.jobs[id].retry else {
            return false;
        };
        let Some(until) = retry.until() else {
            return false;
        };
        self.pauses.remove(&(until, id));
        for &endpoint in retry.refused() {
            self.refused.remove(&(endpoint, id));
        }
        retry.end_pause();
        true
    }

    /// `id`, which waits, is suspended as its owner and its pause say.
    pub(super) fn update_suspension(&mut self, id: JobId) {
        let suspended = self.jobs[id].is_suspended();
        let queued = &mut self.jobs[id].queued;
        if queued.suspended != suspended {
            queued.suspended = suspended;
            self.tree.suspension_changed(id, queued, &self.endpoints);
        }
    }

    /// `id` hasn't been offered to its endpoints yet.
    pub(super) fn forget_blocked_head(&mut self, id: JobId) {
        if self.blocked_head == Some(self.jobs[id].queued.arrival.sequence) {
            self.blocked_head = None;
        }
    }
}
