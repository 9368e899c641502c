//! Events of endpoints. Every change of an endpoint is passed to the tree, because it can open or close eligibility
//! sets.

use super::Engine;
use crate::allowance::Allowance;
use crate::endpoints::Endpoints;
use crate::input::{EndpointAnswer, EndpointId, EndpointState, Relisted, RequestId};
use crate::rng::Rng;

impl Engine {
    /// The only way to change what eligibility sets depend on: the tree follows each change at once.
    #[inline]
    pub(super) fn change_endpoints<T>(&mut self, change: impl FnOnce(&mut Endpoints, &mut Rng) -> T) -> T {
        let result = change(&mut self.endpoints, &mut self.rng);
        while let Some(id) = self.endpoints.next_changed() {
            self.tree.endpoint_changed(id, &self.endpoints);
        }
        result
    }

    pub(super) fn list_endpoint(&mut self, id: EndpointId, state: EndpointState) {
        let now = self.now;
        self.change_endpoints(|endpoints, rng| endpoints.list(now, id, state, rng));
        self.readiness_changed();
    }

    pub(super) fn unlist_endpoint(&mut self, id: EndpointId) {
        self.change_endpoints(|endpoints, rng| endpoints.unlist(id, rng));
        self.readiness_changed();
    }

    pub(super) fn relist(&mut self, relisted: Relisted) {
        let now = self.now;
        for id in relisted.removed {
            self.change_endpoints(|endpoints, rng| endpoints.unlist(id, rng));
        }
        for (id, state) in relisted.listed {
            self.change_endpoints(|endpoints, rng| endpoints.list(now, id, state, rng));
        }
        self.readiness_changed();
        for amended in relisted.amended {
            self.amend(amended);
        }
    }

    pub(super) fn request_failed(&mut self, request: RequestId, endpoint: EndpointId) {
        let (now, policy) = (self.now, self.policy.outlier_ejection);
        self.change_endpoints(|endpoints, rng| endpoints.failed(now, endpoint, request, policy, rng));
    }

    pub(super) fn answered(&mut self, answer: &EndpointAnswer) {
        let (now, policy) = (self.now, self.policy.failing);
        self.change_endpoints(|endpoints, rng| endpoints.answered(now, answer, policy.as_ref(), rng));
    }

    pub(super) fn observe_load(&mut self, id: EndpointId, running: Option<u64>) {
        let now = self.now;
        self.change_endpoints(|endpoints, rng| endpoints.observe(now, id, running, rng));
    }

    pub(super) fn set_allowance(&mut self, id: EndpointId, allowance: Option<Allowance>) {
        self.change_endpoints(|endpoints, rng| endpoints.set_allowance(id, allowance, rng));
    }

    /// Ends the abandoned requests whose time is over.
    pub(super) fn release_abandoned(&mut self) {
        let now = self.now;
        while self.change_endpoints(|endpoints, rng| endpoints.release_due(now, rng)) {}
    }

    /// Listed or healthy endpoints changed: another endpoint may have to be probed early, and requests may wait for longer
    /// or less long.
    fn readiness_changed(&mut self) {
        let now = self.now;
        self.change_endpoints(|endpoints, rng| endpoints.probe_early(now, rng));
        self.expiry.set_ready(self.endpoints.any_ready());
    }
}
