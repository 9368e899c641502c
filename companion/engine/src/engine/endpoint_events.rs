//! Events of endpoints. Every change of an endpoint is passed to the tree, because it can open or close eligibility
//! sets.

use super::Engine;
use crate::budget::Budget;
use crate::endpoints::Changed;
use crate::input::{EndpointId, EndpointState, Relisted, RequestId};

impl Engine {
    pub(super) fn list_endpoint(&mut self, id: EndpointId, state: EndpointState) {
        let changed = self.endpoints.list(self.now, id, state, &mut self.rng);
        self.endpoint_changed(changed);
        self.readiness_changed();
    }

    pub(super) fn unlist_endpoint(&mut self, id: EndpointId) {
        let changed = self.endpoints.unlist(id, &mut self.rng);
        self.endpoint_changed(changed);
        self.readiness_changed();
    }

    pub(super) fn relist(&mut self, relisted: Relisted) {
        for id in relisted.removed {
            let changed = self.endpoints.unlist(id, &mut self.rng);
            self.endpoint_changed(changed);
        }
        for (id, state) in relisted.listed {
            let changed = self.endpoints.list(self.now, id, state, &mut self.rng);
            self.endpoint_changed(changed);
        }
        self.readiness_changed();
        for amended in relisted.amended {
            self.amend(amended);
        }
    }

    pub(super) fn request_failed(&mut self, request: RequestId, endpoint: EndpointId) {
        let policy = self.policy.outlier_ejection;
        let changed = self.endpoints.failed(self.now, endpoint, request, policy, &mut self.rng);
        self.endpoint_changed(changed);
    }

    pub(super) fn observe_load(&mut self, id: EndpointId, running: Option<u64>) {
        let changed = self.endpoints.observe(id, running, &mut self.rng);
        self.endpoint_changed(changed);
    }

    pub(super) fn set_budget(&mut self, id: EndpointId, budget: Option<Budget>) {
        let changed = self.endpoints.set_budget(id, budget, &mut self.rng);
        self.endpoint_changed(changed);
    }

    /// Listed or healthy endpoints changed: another endpoint may have to be probed early, and requests may wait for longer
    /// or less long.
    fn readiness_changed(&mut self) {
        let probed = self.endpoints.probe_early(&mut self.rng);
        self.endpoint_changed(probed);
        self.expiry.set_ready(self.endpoints.any_ready());
    }

    pub(super) fn endpoint_changed(&mut self, changed: Option<Changed>) {
        if let Some(changed) = changed {
            self.tree.endpoint_changed(changed.id, &self.endpoints);
        }
    }
}
