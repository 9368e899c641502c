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
    pub(crate) fn set_extra_places(&mut self, places: ExtraPlaces) {
        self.extra_places = places;
        for (_, endpoint) in self.all.iter_mut() {
            endpoint.extra_places = places;
        }
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
        if endpoint.has_extra_room(self.gate) {
            self.with_extra_room.set(index, (endpoint.stock, endpoint.tie, index));
        } else {
            self.with_extra_room.remove(index);
        }
    }

    /// The best endpoints of `eligible` (`None`: any) that take `request` above their bounds, at most [`GRANT_ENDPOINTS_MAX`]: by score,
    /// then by stock. `more`: its load there.
    pub(crate) fn choose_above(
        &self,
        eligible: Option<&[EndpointId]>,
        request: &ScoredRequest<'_>,
        more: impl Fn(&Endpoint) -> Load,
        allows: impl Fn(&Endpoint) -> bool,
    ) -> Vec<EndpointId> {
        let takes =
            |endpoint: &&Endpoint| allows(endpoint) && endpoint.takes_above(&more(endpoint), self.gate);
        let has_votes = self.scorer.has_votes(request);
        if eligible.is_none() && !has_votes {
            let first = self.with_extra_room.first(GRANT_ENDPOINTS_MAX, |index| takes(&&self.all[index]));
            return first.into_iter().map(|index| self.id(index)).collect();
        }
        let mut best = Best::new(|a: &(Score, u64, u32), b: &(Score, u64, u32)| {
            a.0.order(b.0).then_with(|| (a.1, a.2).cmp(&(b.1, b.2)))
        });
        let mut visit = |endpoint: &Endpoint| {
            let score =
                if has_votes { self.scorer.score(endpoint, endpoint.free(), request) } else { Score::NONE };
            best.add((score, endpoint.stock, endpoint.tie), endpoint.id);
        };
        match eligible {
            Some(eligible) => {
                eligible.iter().filter_map(|&id| self.get(id)).filter(takes).for_each(&mut visit)
            }
            None => {
                let with_room = self.with_extra_room.ids().map(|index| &self.all[index]);
                with_room.filter(takes).for_each(&mut visit);
            }
        }
        best.into_ids()
    }

    /// The index holds exactly the endpoints with such places.
    pub(super) fn audit_with_extra_room(&self) -> Result<(), AuditError> {
        self.with_extra_room.audit()?;
        for (index, endpoint) in self.all.iter() {
            let has_room = endpoint.has_extra_room(self.gate);
            let expected = has_room.then_some((endpoint.stock, endpoint.tie, index));
            check(
                "the index holds the endpoints with room above their bounds",
                self.with_extra_room.key(index) == expected,
            )?;
        }
        Ok(())
    }
}
