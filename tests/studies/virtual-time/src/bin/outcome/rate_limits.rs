//! Limits of requests per second for each tenant, as gateways answer 429 by: a token bucket of one second.

use std::time::Duration;

use penstock_simulate::closed_loop::Planned;

/// The requests that pass when every tenant may send `rate` requests per second.
pub(crate) fn admitted(requests: &[Planned], tenants: usize, rate: f64) -> Vec<Planned> {
    let most = rate.max(1.0);
    let mut buckets = vec![(most, Duration::ZERO); tenants];
    let passes = |request: &&Planned| {
        let (tokens, filled) = &mut buckets[request.tenant as usize];
        *tokens = (*tokens + rate * (request.at - *filled).as_secs_f64()).min(most);
        *filled = request.at;
        let passes = *tokens >= 1.0;
        *tokens -= if passes { 1.0 } else { 0.0 };
        passes
    };
    requests.iter().filter(passes).copied().collect()
}
