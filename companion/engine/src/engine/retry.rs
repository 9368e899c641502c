//! Requests that an endpoint failed before a response: each returns to its old place, and avoids the endpoint for a pause.
//!
//! Meanwhile the request may go to any other of its endpoints. If no other is ready, it waits for the end of the pause, and
//! the requests behind it in its flow wait with it, because the endpoint would fail them too. If the endpoint has failed no
//! other request since it last served one, the failed request itself may be the cause: then it lets the others pass.

use super::Engine;
use crate::ids::JobId;
use crate::input::{EndpointId, RequestId};

impl Engine {
    pub(super) fn retry(&mut self, id: RequestId) {
        if let Some((job, running)) = self.running_job(id) {
            let endpoint = self.endpoints.id(running.endpoint);
            self.return_to_queue(job, &running, Some(endpoint));
        }
    }

    /// `id`, which isn't in the queue yet, avoids `endpoint`, which failed it.
    pub(super) fn avoid(&mut self, id: JobId, endpoint: EndpointId) {
        let job = &mut self.jobs[id];
        let retry = job.retry.get_or_insert_default();
        retry.fail(self.now, endpoint);
        if let Some(until) = retry.until() {
            self.pauses.insert((until, id));
        }
        let (queued, request) = (job.queued, job.id);
        let may_be_cause = !self.endpoints.fails_others(endpoint, request);
        if may_be_cause
            && !self.has_other_endpoint(id)
            && let Some(retry) = &mut self.jobs[id].retry
        {
            retry.let_pass();
        }
        let job = &mut self.jobs[id];
        job.queued.suspended = job.is_suspended();
        let narrowed = self
            .tree
            .hold_without(queued.eligibility, job.avoided(), &self.endpoints);
        self.tree
            .change_eligibility(id, &mut job.queued, narrowed, false, &self.endpoints);
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
            Some(eligible) => eligible
                .iter()
                .any(|id| !avoided.contains(id) && self.endpoints.is_ready(*id)),
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
        let job = &mut self.jobs[id];
        let Some(retry) = &mut job.retry else { return };
        let Some(until) = retry.until() else { return };
        retry.end_pause();
        self.pauses.remove(&(until, id));
        let widened = self
            .tree
            .hold_without(job.queued.eligibility, &[], &self.endpoints);
        self.tree
            .change_eligibility(id, &mut job.queued, widened, waits, &self.endpoints);
        self.forget_blocked_head(id);
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
