//! Endpoints that refuse requests by themselves.

use super::Endpoints;
use crate::endpoint::Endpoint;
use crate::input::{EndpointId, RequestId};
use crate::rng::Rng;

impl Endpoints {
    /// The server of `id` itself refused `request`. Ignored unless `id` is ready. `sequences_here`: those of the request, if it
    /// is counted among those of `id`.
    pub(crate) fn pushed_back(
        &mut self,
        id: EndpointId,
        request: RequestId,
        sequences_here: Option<u64>,
        rng: &mut Rng,
    ) {
        if let Some(index) = self.indices.get(&id).copied().filter(|_| self.is_ready(id)) {
            self.change(index, rng, |endpoint| endpoint.push_back(request, sequences_here));
        }
    }

    /// How many endpoints are bounded by their own refusals.
    pub(crate) fn pushed_back_count(&self) -> usize {
        let refused = |endpoint: &&Endpoint| endpoint.lowering_pushback(self.gate).is_some();
        self.iter().filter(refused).count()
    }
}
