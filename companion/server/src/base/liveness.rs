//! When bytes of answers last came from each endpoint, as the filters report it: such an endpoint lives, though its health check is slow.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Endpoints that are remembered; those that were silent for the longest are forgotten first.
const ENDPOINTS_MAX: usize = 65_536;

/// By address.
#[derive(Debug, Default)]
pub(crate) struct Liveness(Mutex<HashMap<Box<str>, Instant>>);

impl Liveness {
    /// Bytes have come from these endpoints.
    pub(crate) fn record(&self, endpoints: &[Box<str>]) {
        let now = Instant::now();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for endpoint in endpoints {
            known.insert(endpoint.clone(), now);
        }
        if known.len() > ENDPOINTS_MAX {
            known.retain(|_, seen| now.duration_since(*seen) < Duration::from_secs(60));
        }
    }

    /// Bytes have come from the endpoint since then.
    pub(crate) fn is_alive_since(&self, endpoint: &str, then: Instant) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(endpoint).is_some_and(|seen| *seen >= then)
    }
}
