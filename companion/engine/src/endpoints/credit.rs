//! Admission credit at endpoints: requests that filters may run without asking. They count as if they ran.

use super::Endpoints;
use crate::endpoint::{Endpoint, half};
use crate::input::EndpointId;
use crate::rng::Rng;

impl Endpoints {
    /// How many requests filters may run without asking in all: half of the lower bound, less what runs otherwise besides one request. `lent`:
    /// how many they may run now.
    pub(crate) fn credit_limit(&self, lent: u64) -> u64 {
        lent.saturating_add(self.room_in_pool()).min(half(self.bounds.lower))
    }

    /// How many requests more filters may run without asking, as far as the stock of the pool has room.
    fn room_in_pool(&self) -> u64 {
        let left = self.bounds.lower.saturating_sub(self.filled).saturating_sub(1);
        half(self.bounds.lower).saturating_sub(self.filled.saturating_sub(1)).min(left)
    }

    /// How many requests more filters may run at `id` without asking: besides one request that runs, the stock stays at half of the lower
    /// bound and, at the endpoint, at half of its bound. The gate counts requests.
    pub(crate) fn credit_room(&self, id: EndpointId) -> u64 {
        let there = self.get(id).map_or(0, Endpoint::credit_room);
        self.room_in_pool().min(there)
    }

    /// The stock isn't above the lower bound.
    pub(crate) const fn keeps_credit(&self) -> bool {
        self.filled <= self.bounds.lower
    }

    /// `id` is ready, has neither a slow start nor refused requests, and isn't over its bound.
    pub(crate) fn keeps_credit_at(&self, id: EndpointId) -> bool {
        self.get(id).is_some_and(Endpoint::keeps_credit)
    }

    /// The credit at all endpoints together.
    pub(crate) fn credit(&self) -> u64 {
        self.iter().map(|endpoint| endpoint.credit).sum()
    }

    /// The credit at ready endpoints, as far as it counts in their stock.
    pub(crate) fn credit_at_ready(&self) -> u64 {
        self.counted_credit(true)
    }

    /// The credit at all other endpoints, as far as it counts in their stock.
    pub(crate) fn credit_at_others(&self) -> u64 {
        self.counted_credit(false)
    }

    fn counted_credit(&self, at_ready: bool) -> u64 {
        let endpoints = self.iter().filter(|endpoint| endpoint.ready == at_ready);
        endpoints.map(|endpoint| endpoint.credit_in(self.gate)).sum()
    }

    /// Filters may run so many requests more at `id`. Ignored for an endpoint that isn't known.
    pub(crate) fn give_credit(&mut self, id: EndpointId, requests: u64, rng: &mut Rng) {
        if let Some(&index) = self.indices.get(&id) {
            self.change_load(index, rng, |endpoint| endpoint.credit += requests);
        }
    }

    /// Filters may run so many requests less at `id`, at most all that they have.
    pub(crate) fn take_back(&mut self, id: EndpointId, requests: u64, rng: &mut Rng) {
        let Some(&index) = self.indices.get(&id) else { return };
        self.change_load(index, rng, |endpoint| {
            endpoint.credit = endpoint.credit.saturating_sub(requests);
        });
        self.remove_unused(index);
    }
}
