//! The choice of endpoints for a request, among those that have room and are eligible.
//!
//! The least stock comes first; or the best score, where another scorer has data; or, under an allowance, the least used
//! allowance. A grant names a few endpoints, the best first. The others are fallbacks, for an Envoy that can't bring a failed
//! request back.

use alloc::vec::Vec;
use core::cmp::Ordering;

use super::Endpoints;
use crate::allowance::Rank;
use crate::endpoint::Endpoint;
use crate::ids::EndpointIndex;
use crate::input::{EndpointId, ServerStats};
use crate::limits::GRANT_ENDPOINTS_MAX;
use crate::load::Load;
use crate::policy::Scorers;
use crate::scores::{Score, ScoredRequest};

/// An endpoint whose stock is further above the least than this part of its bound comes after the others.
const AHEAD_MAX: f64 = 0.25;

impl Endpoints {
    /// Changes the weights of the scorers. `counts_cached`: the policy counts cached tokens.
    pub(crate) fn set_weights(&mut self, weights: Scorers, counts_cached: bool) {
        let all = self.all.iter().map(|(_, endpoint)| &endpoint.stats);
        self.scorer.set_weights(weights, counts_cached, all);
    }

    /// The server of `id` exports these metrics. Ignored if `id` isn't listed.
    pub(crate) fn set_stats(&mut self, id: EndpointId, stats: ServerStats) {
        if let Some(index) = self.listed_index(id) {
            let before = core::mem::replace(&mut self.all[index].stats, stats);
            self.scorer.stats_changed(&before, &self.all[index].stats);
        }
    }

    /// The server at `index` computes a prompt with these prefixes.
    pub(crate) fn prompt_sent(&mut self, index: EndpointIndex, prefix: &[u64]) {
        if !prefix.is_empty() {
            self.scorer.prompt_sent(&self.all[index], prefix);
        }
    }

    /// The best endpoints for `request`, at most [`GRANT_ENDPOINTS_MAX`]. Each has room, is one of `eligible` (`None`:
    /// any) and is accepted by `allows`. Empty if there is none.
    pub(crate) fn choose(
        &self,
        eligible: Option<&[EndpointId]>,
        request: &ScoredRequest<'_>,
        allows: impl Fn(&Endpoint) -> bool,
    ) -> Vec<EndpointId> {
        if self.scorer.has_votes(request) {
            return self.choose_by_score(eligible, request, allows);
        }
        let Some(eligible) = eligible else {
            let allows = |index| allows(&self.all[index]);
            let first = self.with_room.first(GRANT_ENDPOINTS_MAX, allows);
            return first.into_iter().map(|index| self.id(index)).collect();
        };
        let mut able: Vec<(bool, u64, u32, EndpointId)> = eligible
            .iter()
            .filter_map(|&id| self.get(id))
            .filter(|endpoint| endpoint.has_room() && allows(endpoint))
            .map(|endpoint| (endpoint.prefills_for_others(), endpoint.stock, endpoint.tie, endpoint.id))
            .collect();
        able.sort_unstable();
        able.into_iter().take(GRANT_ENDPOINTS_MAX).map(|(.., id)| id).collect()
    }

    /// [`Self::choose`] goes by scores.
    pub(crate) fn goes_by_score(&self, request: &ScoredRequest<'_>) -> bool {
        self.scorer.has_votes(request)
    }

    /// [`Self::choose`] by score, then by stock.
    fn choose_by_score(
        &self,
        eligible: Option<&[EndpointId]>,
        request: &ScoredRequest<'_>,
        allows: impl Fn(&Endpoint) -> bool,
    ) -> Vec<EndpointId> {
        let order = |a: &(Score, u64, u32), b: &(Score, u64, u32)| {
            a.0.order(b.0).then_with(|| (a.1, a.2).cmp(&(b.1, b.2)))
        };
        let each = |visit: &mut dyn FnMut(&Endpoint)| {
            let mut visit_able = |endpoint: &Endpoint| {
                if endpoint.has_room() && allows(endpoint) {
                    visit(endpoint);
                }
            };
            match eligible {
                Some(eligible) => eligible.iter().filter_map(|&id| self.get(id)).for_each(&mut visit_able),
                None => self.with_room.ids().for_each(|index| visit_able(&self.all[index])),
            }
        };
        let mut least = u64::MAX;
        each(&mut |endpoint| least = least.min(endpoint.stock));
        let mut best = Best::new(order);
        each(&mut |endpoint| {
            let score = if endpoint.stock - least > endpoint.bound / 4 {
                Score::OVERLOADED
            } else {
                self.scorer.score(endpoint, endpoint.free(), request)
            };
            best.add((score, endpoint.stock, endpoint.tie), endpoint.id);
        });
        best.into_ids()
    }

    /// Whether an endpoint with room has changed since the last [`Self::clear_dirty`], and `takes` the request.
    pub(crate) fn any_dirty(&self, takes: impl Fn(&Endpoint) -> bool) -> bool {
        let takes = |endpoint: &Endpoint| endpoint.has_room() && takes(endpoint);
        self.dirty.endpoints().is_none_or(|dirty| dirty.iter().any(|&index| takes(&self.all[index])))
    }

    /// Forgets which endpoints changed: [`Self::choose_fitting`] can then be limited to those that change from now on.
    pub(crate) fn clear_dirty(&mut self) {
        self.dirty.clear();
    }

    /// [`Self::choose`] for a request with load `more` at each endpoint, under [`crate::policy::Gate::Auto`]: endpoints that it
    /// fits, the least used allowance first, or the best score. `dirty_only`: the request fitted no endpoint at the last
    /// [`Self::clear_dirty`], so only endpoints that changed since are visited.
    pub(crate) fn choose_fitting(
        &self,
        eligible: Option<&[EndpointId]>,
        request: &ScoredRequest<'_>,
        more: impl Fn(&Endpoint) -> Load,
        dirty_only: bool,
        allows: impl Fn(&Endpoint) -> bool,
    ) -> Vec<EndpointId> {
        let order = |a: &(Score, Rank), b: &(Score, Rank)| a.0.order(b.0).then_with(|| a.1.order(&b.1));
        let each = |visit: &mut dyn FnMut(&Endpoint, Rank)| {
            let mut visit_able = |endpoint: &Endpoint| {
                let able = Some(endpoint).filter(|endpoint| endpoint.has_room() && allows(endpoint));
                if let Some(rank) = able.and_then(|endpoint| endpoint.rank(&more(endpoint))) {
                    visit(endpoint, rank);
                }
            };
            match (self.dirty.endpoints().filter(|_| dirty_only), eligible) {
                (Some(dirty), eligible) => dirty
                    .iter()
                    .map(|&index| &self.all[index])
                    .filter(|endpoint| eligible.is_none_or(|eligible| eligible.contains(&endpoint.id)))
                    .for_each(&mut visit_able),
                (None, Some(eligible)) => {
                    eligible.iter().filter_map(|&id| self.get(id)).for_each(&mut visit_able)
                }
                (None, None) => self.with_room.ids().for_each(|index| visit_able(&self.all[index])),
            }
        };
        let has_votes = self.scorer.has_votes(request);
        let mut least = f64::INFINITY;
        if has_votes {
            each(&mut |_, rank| least = least.min(rank.used));
        }
        let mut best = Best::new(order);
        each(&mut |endpoint, rank| {
            let score = if !has_votes {
                Score::NONE
            } else if rank.used - least > AHEAD_MAX {
                Score::OVERLOADED
            } else {
                let free = (1.0 - rank.used).clamp(0.0, 1.0);
                self.scorer.score(endpoint, free, request)
            };
            best.add((score, rank), endpoint.id);
        });
        best.into_ids()
    }
}

/// The first few endpoints in an order.
pub(super) struct Best<K, F> {
    places: [Option<(K, EndpointId)>; GRANT_ENDPOINTS_MAX],
    order: F,
}

impl<K: Copy, F: Fn(&K, &K) -> Ordering> Best<K, F> {
    pub(super) const fn new(order: F) -> Self {
        Self { places: [None; GRANT_ENDPOINTS_MAX], order }
    }

    /// Inserts `id` at its place, and moves the rest on.
    pub(super) fn add(&mut self, key: K, id: EndpointId) {
        let mut next = Some((key, id));
        for place in &mut self.places {
            let Some((key, _)) = &next else { return };
            if place.is_none_or(|(other, _)| (self.order)(key, &other).is_lt()) {
                next = core::mem::replace(place, next);
            }
        }
    }

    pub(super) fn into_ids(self) -> Vec<EndpointId> {
        self.places.into_iter().flatten().map(|(_, id)| id).collect()
    }
}
