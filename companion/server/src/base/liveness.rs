//! When bytes of answers last came from each endpoint, as the filters report it: such an endpoint lives, though its health check is slow.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hashlink::LruCache;

/// Endpoints that are remembered; the one that has been silent for the longest is forgotten first.
const ENDPOINTS_MAX: usize = 65_536;

/// By address.
#[derive(Debug)]
pub(crate) struct Liveness(Mutex<LruCache<Box<str>, Instant>>);

impl Default for Liveness {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(ENDPOINTS_MAX)))
    }
}

impl Liveness {
    /// Bytes have come from these endpoints.
    pub(crate) fn record(&self, endpoints: &[Box<str>]) {
        let now = Instant::now();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for endpoint in endpoints {
            known.insert(endpoint.clone(), now);
        }
    }

    /// How long the endpoint has sent no byte of any answer while a request ran there; 0: none runs. `oldest_running`: how long the request
    /// has run that was granted first.
    pub(crate) fn silence(&self, endpoint: &str, oldest_running: Option<Duration>) -> Duration {
        let Some(oldest) = oldest_running else {
            return Duration::ZERO;
        };
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.peek(endpoint).map_or(oldest, |seen| seen.elapsed().min(oldest))
    }

    /// Bytes have come from the endpoint within this time.
    pub(crate) fn has_sent_within(&self, endpoint: &str, time: Duration) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.peek(endpoint).is_some_and(|seen| seen.elapsed() < time)
    }

    /// Bytes have come from the endpoint since then.
    pub(crate) fn is_alive_since(&self, endpoint: &str, then: Instant) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.peek(endpoint).is_some_and(|seen| *seen >= then)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_endpoint_that_has_been_silent_for_the_longest_is_forgotten_first() {
        let (alive, then) = (Liveness::default(), Instant::now());
        let addresses: Vec<Box<str>> = (0..ENDPOINTS_MAX).map(|number| number.to_string().into()).collect();
        alive.record(&addresses);
        alive.record(&["0".into(), "another".into()]);
        let are_alive = ["0", "1", "2", "another"].map(|address| alive.is_alive_since(address, then));
        assert_eq!(are_alive, [true, false, true, true]);
    }
}
