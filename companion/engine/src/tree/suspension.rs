//! Suspended requests: they count in every sum, and are never the head of their flow.
//!
//! A flow with only suspended requests is blocked like one at its limit: it stays backlogged, earns nothing, and counts
//! as newly backlogged when one of its requests is active again.

use super::{Queued, Tree};
use crate::endpoints::Endpoints;
use crate::ids::JobId;

impl Tree {
    /// Suspended requests.
    pub(crate) const fn suspended(&self) -> u64 {
        self.suspended
    }

    /// A request waits that isn't suspended.
    pub(crate) const fn any_active(&self) -> bool {
        self.waiting_in_all().requests > self.suspended
    }

    /// No request of the flow of `request`, a newcomer, waits for the same endpoints, except suspended ones.
    pub(crate) fn overtakes_none(&self, request: &Queued) -> bool {
        let eligible = self.eligibility.eligible(request.eligibility);
        self.flows[request.flow].queue.has_empty_lane(eligible)
    }

    /// The suspension of `request`, which waits, started or ended.
    pub(crate) fn suspension_changed(&mut self, job: JobId, request: &Queued, endpoints: &Endpoints) {
        if request.suspended {
            self.suspended += 1;
        } else {
            self.suspended -= 1;
        }
        let queue = &mut self.flows[request.flow].queue;
        let eligible = self.eligibility.eligible(request.eligibility);
        if self.order.set_suspended(queue, job, request, eligible) {
            self.update_head(request.flow, endpoints);
        }
    }
}
