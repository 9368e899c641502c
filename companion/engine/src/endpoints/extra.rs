//! Places above the bounds, at all endpoints.

use alloc::vec::Vec;

use super::Endpoints;
use super::choice::Best;
use crate::audit::{AuditError, check};
use crate::endpoint::Endpoint;
use crate::ids::EndpointIndex;
use crate::input::EndpointId;
use crate::limits::GRANT_ENDPOINTS_MAX;
use crate::load::Load;
use crate::policy::ExtraPlaces;
use crate::scores::{Score, ScoredRequest};

impl Endpoints {
    /// Changes the places above each bound. The caller then calls [`Self::set_gate`].
    pub(crate) const fn set_extra_places(&mut self, places: ExtraPlaces) {
        self.extra_places = places;
    }

    /// Some request of a flow with nothing running may be granted above a bound.
    pub(crate) fn any_extra_room(&self) -> bool {
        !self.with_extra_room.is_empty()
    }

    /// The stock above the bounds of ready endpoints.
    pub(crate) fn extra_at_ready(&self) -> u64 {
        self.iter().filter(|endpoint| endpoint.ready).map(Endpoint::extra).sum()
    }

    pub(super) fn update_with_extra_room(&mut self, index: EndpointIndex) {
        let endpoint = &self.all[index];
        if endpoint.has_extra_room(self.extra_places, self.gate) {
            self.with_extra_room.set(index, (endpoint.stock, endpoint.tie, index));
        } else {
            self.with_extra_room.remove(index);
        }
    }

    /// The best endpoints that take `request` above their bounds, at most [`GRANT_ENDPOINTS_MAX`]: by score, then by stock. `more`: its
    /// load there.
    pub(crate) fn choose_above(
        &self,
        request: &ScoredRequest<'_>,
        more: impl Fn(&Endpoint) -> Load,
        allows: impl Fn(&Endpoint) -> bool,
    ) -> Vec<EndpointId> {
        let takes = |endpoint: &Endpoint| {
            allows(endpoint) && endpoint.takes_above(&more(endpoint), self.extra_places, self.gate)
        };
        if !self.scorer.has_votes(request) {
            let first = self.with_extra_room.first(GRANT_ENDPOINTS_MAX, |index| takes(&self.all[index]));
            return first.into_iter().map(|index| self.id(index)).collect();
        }
        let mut best = Best::new(|a: &(Score, u64, u32), b: &(Score, u64, u32)| {
            a.0.order(b.0).then_with(|| (a.1, a.2).cmp(&(b.1, b.2)))
        });
        let all = self.with_extra_room.ids().map(|index| &self.all[index]);
        for endpoint in all.filter(|endpoint| takes(endpoint)) {
            let score = self.scorer.score(endpoint, endpoint.free(), request);
            best.add((score, endpoint.stock, endpoint.tie), endpoint.id);
        }
        best.into_ids()
    }

    /// The index holds exactly the endpoints with such places.
    pub(super) fn audit_with_extra_room(&self) -> Result<(), AuditError> {
        self.with_extra_room.audit()?;
        for (index, endpoint) in self.all.iter() {
            let has_room = endpoint.has_extra_room(self.extra_places, self.gate);
            let expected = has_room.then_some((endpoint.stock, endpoint.tie, index));
            check(
                "the index holds the endpoints with room above their bounds",
                self.with_extra_room.key(index) == expected,
            )?;
        }
        Ok(())
    }
}
