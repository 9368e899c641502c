//! Models that endpoints of the pool don't have, though the pool serves them: a server answered 404. Requests for such a model go to other
//! endpoints for a while.

use hashbrown::HashMap;
use penstock_engine::Instant;
use penstock_engine::input::{EndpointId, Kind};

use super::attempts::MISSING_FOR;
use crate::limits::{MISSING_ENDPOINTS_MAX, MISSING_MODELS_MAX};

/// An endpoint without a model.
#[derive(Clone, Copy, Debug)]
struct Missing {
    endpoint: EndpointId,
    /// Until when that is remembered.
    until: Instant,
}

/// By model and path: the endpoints that don't have it.
#[derive(Debug, Default)]
pub(super) struct MissingModels {
    by_model: HashMap<u64, Vec<Missing>>,
    /// Until when an endpoint is remembered that doesn't have a model which others serve.
    served_until: Instant,
}

impl MissingModels {
    /// The endpoint doesn't have the model of this kind. Past the limits it isn't remembered. `is_served`: another one has served it.
    pub(super) fn insert(&mut self, now: Instant, endpoint: EndpointId, kind: Kind, is_served: bool) {
        let key = kind.model_and_path;
        if self.by_model.len() >= MISSING_MODELS_MAX && !self.by_model.contains_key(&key) {
            self.by_model.retain(|_, endpoints| endpoints.iter().any(|missing| now < missing.until));
            if self.by_model.len() >= MISSING_MODELS_MAX {
                return;
            }
        }
        let endpoints = self.by_model.entry(key).or_default();
        endpoints.retain(|missing| missing.endpoint != endpoint && now < missing.until);
        if endpoints.len() < MISSING_ENDPOINTS_MAX {
            let until = now.after(MISSING_FOR);
            endpoints.push(Missing { endpoint, until });
            if is_served {
                self.served_until = until;
            }
        }
    }

    /// A model that the pool serves is missing somewhere.
    pub(super) fn has_served_model(&self, now: Instant) -> bool {
        now < self.served_until
    }

    /// Some endpoint doesn't have the model of this kind.
    pub(super) fn has(&self, now: Instant, kind: Kind) -> bool {
        let missing = || self.by_model.get(&kind.model_and_path);
        !self.by_model.is_empty()
            && missing().is_some_and(|all| all.iter().any(|missing| now < missing.until))
    }

    /// This endpoint doesn't have the model of this kind.
    pub(super) fn contains(&self, now: Instant, kind: Kind, endpoint: EndpointId) -> bool {
        let is_it = |missing: &Missing| missing.endpoint == endpoint && now < missing.until;
        self.by_model.get(&kind.model_and_path).is_some_and(|all| all.iter().any(is_it))
    }

    /// The numbers of these endpoints are free.
    pub(super) fn forget_endpoints(&mut self, freed: &[EndpointId]) {
        for endpoints in self.by_model.values_mut() {
            endpoints.retain(|missing| !freed.contains(&missing.endpoint));
        }
        self.by_model.retain(|_, endpoints| !endpoints.is_empty());
    }
}
