//! Admission credit: requests that filters may run without asking.
//!
//! Credit counts as stock, so a bound holds whether the filters use it or not. A request that is reported while it runs takes a
//! place of the credit, inside one input, so that no waiting request is dispatched in between. A request that is reported at its
//! end counts beside the credit until its completion is handled, which is never too few.

use super::Engine;
use crate::endpoint::Endpoint;
use crate::input::{EndpointId, Request};
use crate::outcome::Outcome;
use crate::units::Tokens;

impl Engine {
    /// How many requests more filters may run at `endpoint` without asking: none unless every request would be granted at once there,
    /// and none beyond half of the bounds, besides the request that has just been granted there: it asked because its filter had no place,
    /// and the next one in its place may not have to. The owner asks only under a policy that [allows credit](crate::Policy::allows_credit).
    #[must_use]
    pub fn credit_room(&self, endpoint: EndpointId) -> u64 {
        if self.is_calm() { self.endpoints.credit_room(endpoint) } else { 0 }
    }

    /// How many requests filters may run without asking in all: half of the lower bound, less what runs otherwise besides one request. `lent`:
    /// how many they may run now, which the owner knows without a sum over the endpoints.
    #[must_use]
    pub fn credit_limit(&self, lent: u64) -> u64 {
        self.endpoints.credit_limit(lent)
    }

    const fn is_calm(&self) -> bool {
        self.ready && !self.draining && self.waiting() == 0
    }

    /// The credit may stay: nothing waits, and the stock isn't above the lower bound.
    #[must_use]
    pub fn keeps_credit(&self) -> bool {
        self.is_calm() && self.endpoints.keeps_credit()
    }

    /// The credit at this endpoint may stay: the endpoint is ready, starts no requests slowly, refuses none, and isn't over its bound.
    #[must_use]
    pub fn keeps_credit_at(&self, endpoint: EndpointId) -> bool {
        self.endpoints.keeps_credit_at(endpoint)
    }

    /// The places of all credit at this endpoint.
    #[must_use]
    pub fn credit_at(&self, endpoint: EndpointId) -> u64 {
        self.endpoints.get(endpoint).map_or(0, |endpoint| endpoint.credit)
    }

    /// The requests that run at this endpoint, and those that filters may run there.
    #[must_use]
    pub fn taken_at(&self, endpoint: EndpointId) -> u64 {
        self.endpoints.get(endpoint).map_or(0, Endpoint::taken)
    }

    /// The places of all credit in the pool.
    #[must_use]
    pub fn credit(&self) -> u64 {
        self.endpoints.credit()
    }

    /// Prompts of at most so many bytes have fewer than `tokens` tokens, whatever their model, by the ratios that were learned. In time
    /// proportional to the number of models.
    #[must_use]
    pub fn bytes_below(&self, tokens: Tokens) -> u64 {
        self.token_history.bytes_below(tokens.0)
    }

    pub(super) fn give_credit(&mut self, endpoint: EndpointId, requests: u64) {
        self.change_endpoints(|endpoints, rng| endpoints.give_credit(endpoint, requests, rng));
    }

    pub(super) fn take_back(&mut self, endpoint: EndpointId, requests: u64) {
        self.change_endpoints(|endpoints, rng| endpoints.take_back(endpoint, requests, rng));
    }

    pub(super) fn admitted_by_credit(
        &mut self,
        request: Request,
        place: Option<EndpointId>,
        endpoint: EndpointId,
    ) {
        if self.jobs.find(request.id).is_some() {
            return;
        }
        // The request first: an endpoint that is no longer listed would be forgotten in between.
        self.adopt(request, endpoint, Outcome::Leased);
        if let Some(place) = place {
            self.take_back(place, 1);
        }
    }
}
