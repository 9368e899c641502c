//! Endpoints that an Envoy passes over because its cluster doesn't have them yet.

use hashbrown::HashMap;
use penstock_engine::Instant;
use penstock_engine::input::EndpointId;

use crate::ids::EnvoyId;
use crate::limits::AVOIDED_FOR;

/// By Envoy and endpoint: until when the endpoint isn't granted to that Envoy.
#[derive(Debug, Default)]
pub(super) struct AvoidedEndpoints(HashMap<EnvoyId, HashMap<EndpointId, Instant>>);

impl AvoidedEndpoints {
    /// The Envoy passed over an endpoint that it was granted.
    pub(super) fn insert(&mut self, now: Instant, envoy: EnvoyId, endpoint: EndpointId) {
        let endpoints = self.0.entry(envoy).or_default();
        endpoints.insert(endpoint, now.after(AVOIDED_FOR));
    }

    /// The Envoy has sent a request to the endpoint.
    pub(super) fn remove(&mut self, envoy: EnvoyId, endpoint: EndpointId) {
        if let Some(endpoints) = self.0.get_mut(&envoy) {
            endpoints.remove(&endpoint);
        }
    }

    /// The Envoy passes over some endpoint.
    pub(super) fn contains_any(&self, now: Instant, envoy: EnvoyId) -> bool {
        let endpoints = self.0.get(&envoy);
        endpoints.is_some_and(|endpoints| endpoints.values().any(|&until| now < until))
    }

    /// The Envoy passes over this endpoint.
    pub(super) fn contains(&self, now: Instant, envoy: EnvoyId, endpoint: EndpointId) -> bool {
        let until = self.0.get(&envoy).and_then(|endpoints| endpoints.get(&endpoint));
        until.is_some_and(|&until| now < until)
    }

    pub(super) fn forget_envoy(&mut self, envoy: EnvoyId) {
        self.0.remove(&envoy);
    }

    /// The numbers of these endpoints are free.
    pub(super) fn forget_endpoints(&mut self, freed: &[EndpointId]) {
        for endpoints in self.0.values_mut() {
            endpoints.retain(|endpoint, _| !freed.contains(endpoint));
        }
    }
}
