//! Requests that wait and can't go, whatever may: they count in every sum, and are nobody's next.
//!
//! A flow all of which is suspended is blocked like one at its limit: it stays backlogged, earns nothing, and counts as
//! newly backlogged when one of it can go again.

use crate::endpoints::Endpoints;

use super::{Queued, Tree};

impl Tree {
    /// How many of those that wait are suspended.
    pub(crate) const fn suspended(&self) -> u64 {
        self.suspended
    }

    /// Something waits that isn't.
    pub(crate) const fn any_active(&self) -> bool {
        self.waiting_in_all().requests > self.suspended
    }

    /// Nothing of `flow` waits that isn't suspended.
    pub(crate) fn is_passable(&self, flow: u32) -> bool {
        self.flows[flow].queue.head().is_none()
    }

    /// `request`, which waits, is suspended from now on, or isn't any more, as it says of itself.
    pub(crate) fn suspend(&mut self, number: u32, request: &Queued, endpoints: &Endpoints) {
        if request.suspended {
            self.suspended += 1;
        } else {
            self.suspended -= 1;
        }
        let queue = &mut self.flows[request.flow].queue;
        if self.order.suspend(queue, number, request.suspended) {
            self.head_changed(request.flow, endpoints);
        }
    }
}
