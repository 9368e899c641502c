//! Prompts that are computed by endpoints of their own.

use alloc::vec::Vec;

use super::Endpoints;
use crate::audit::{AuditError, check, check_equal};
use crate::endpoint::Endpoint;
use crate::ids::EndpointIndex;
use crate::input::{EndpointId, Role};
use crate::load::Load;
use crate::rng::Rng;
use crate::scores::ScoredRequest;

impl Endpoints {
    /// Some endpoint takes prompts of requests that others answer.
    pub(crate) const fn any_prefill_room(&self) -> bool {
        !self.with_prefill_room.is_empty()
    }

    /// This endpoint is ready, and nothing is known against it.
    pub(crate) fn is_healthy(&self, id: EndpointId) -> bool {
        self.get(id).is_some_and(|endpoint| endpoint.ready && endpoint.health.is_healthy())
    }

    /// Some endpoint takes whole requests only where no other one has room.
    pub(crate) const fn any_comes_last(&self) -> bool {
        // All ready endpoints decode, or none does.
        self.decoding > 0 && self.decoding < self.ready
    }

    /// The endpoint at this index answers requests and gets their computed prompts from others.
    pub(crate) fn takes_computed_prompts(&self, index: EndpointIndex) -> bool {
        self.all[index].role == Role::Decode
    }

    /// The best endpoint for the prompt of `request`: the best score where a scorer has data, else the least stock. `more`: its load there.
    pub(crate) fn choose_for_prefill(
        &self,
        eligible: Option<&[EndpointId]>,
        request: &ScoredRequest<'_>,
        more: impl Fn(&Endpoint) -> Load,
        allows: impl Fn(&Endpoint) -> bool,
    ) -> Option<EndpointId> {
        let takes = |endpoint: &Endpoint| {
            eligible.is_none_or(|eligible| eligible.contains(&endpoint.id))
                && allows(endpoint)
                && endpoint.takes_prefill(&more(endpoint), self.gate)
        };
        if !self.scorer.has_votes(request) {
            let first = self.with_prefill_room.first(1, |index| takes(&self.all[index]));
            return first.first().map(|&index| self.id(index));
        }
        let able =
            self.with_prefill_room.ids().map(|index| &self.all[index]).filter(|endpoint| takes(endpoint));
        let scored = able.map(|endpoint| (self.scorer.score(endpoint, endpoint.free(), request), endpoint));
        let best = scored.min_by(|(score, endpoint), (other_score, other)| {
            score
                .order(*other_score)
                .then_with(|| (endpoint.stock, endpoint.tie).cmp(&(other.stock, other.tie)))
        });
        best.map(|(_, endpoint)| endpoint.id)
    }

    /// The endpoint at this index is probed, or failed its last request: the next one must show what it does alone.
    pub(crate) fn is_tried_alone(&self, index: EndpointIndex) -> bool {
        let health = &self.all[index].health;
        health.is_single() || health.failures_in_a_row() > 0
    }

    pub(super) fn update_with_prefill_room(&mut self, index: EndpointIndex) {
        let endpoint = &self.all[index];
        if endpoint.has_prefill_room() {
            self.with_prefill_room.set(index, (endpoint.stock, endpoint.tie, index));
        } else {
            self.with_prefill_room.remove(index);
        }
    }

    /// The first endpoint that answers requests has become ready, or the last one is ready no longer.
    pub(super) fn update_roles(&mut self, rng: &mut Rng) {
        let others = self.all.iter().filter(|(_, endpoint)| !endpoint.decodes());
        let indices: Vec<EndpointIndex> = others.map(|(index, _)| index).collect();
        for index in indices {
            self.change(index, rng, |_| {});
        }
    }

    pub(super) fn audit_roles(&self) -> Result<(), AuditError> {
        let decoding = self.iter().filter(|endpoint| endpoint.ready && endpoint.decodes()).count();
        check_equal("endpoints that answer requests", self.decoding as u64, decoding as u64)?;
        self.with_prefill_room.audit()?;
        for (index, endpoint) in self.all.iter() {
            check(
                "an endpoint for prompts keeps places for them while another one answers",
                endpoint.prefills_for_others() == (decoding > 0 && !endpoint.decodes()),
            )?;
            let expected = endpoint.has_prefill_room().then_some((endpoint.stock, endpoint.tie, index));
            check(
                "the index holds the endpoints with room for prompts",
                self.with_prefill_room.key(index) == expected,
            )?;
        }
        Ok(())
    }
}
