//! Decides what happens to a waiting request while the companion is down, when the filter itself enforces the deadlines.

use core::time::Duration;
use std::collections::BTreeMap;

use penstock_wire::Code;
use penstock_wire::names::{self, outcome};

use crate::compiled_policy::PoolPolicy;
use crate::exchange::Exchange;
use crate::limits::{RETRY_AFTER_MIN_MS, TTL_DEFAULT};
use crate::local_reply::Failure;
use crate::pool_endpoints::PoolEndpoints;
use crate::retry_advice::retry_after_ms;
use crate::time::Instant;

/// What happens to a waiting request.
#[derive(Debug)]
pub(crate) enum WaitDecision {
    /// The request keeps waiting.
    Wait,
    /// The filter admits the request by itself, if there is room.
    Admit,
    /// The filter refuses the request, with this outcome.
    Reject(Failure, &'static str),
}

/// Decides about a waiting request. `down_since`: when the companion went down; `None`: the companion is up and decides.
pub(crate) fn decide(
    now: Instant,
    exchange: &Exchange,
    down_since: Option<Instant>,
    endpoints: &BTreeMap<String, PoolEndpoints>,
) -> WaitDecision {
    let Some(down_since) = down_since else {
        return WaitDecision::Wait;
    };
    let age = now.since(exchange.arrived);
    let advice_ms = retry_after_ms(now.since(down_since), exchange.register.sequence);
    if let Some(deadline_ms) = exchange.register.deadline_ms
        && age >= Duration::from_millis(deadline_ms)
    {
        return deadline_exceeded(deadline_ms);
    }
    let pool = exchange.pool.as_deref();
    // As the companion last knew. A filter that no companion has told of endpoints takes some to be ready.
    let none_ready =
        pool.and_then(|pool| endpoints.get(&pool.name)).is_some_and(|endpoints| endpoints.ready.is_empty());
    let ttl = match pool {
        Some(pool) if none_ready => pool.longest_wait(),
        Some(pool) => pool.ttl,
        None => TTL_DEFAULT,
    };
    if age >= ttl {
        return expired(pool, ttl, none_ready, advice_ms);
    }
    if now.since(down_since) < exchange.hold() {
        WaitDecision::Wait
    } else if exchange.pool.as_ref().is_some_and(|pool| pool.fails_open) {
        WaitDecision::Admit
    } else {
        let message =
            "The gateway's queue is unreachable: check that Penstock's companion runs, then try again.";
        let failure = Failure::new(503, Code::GatewayUnavailable, message).retry_after_ms(advice_ms);
        WaitDecision::Reject(failure, outcome::GATEWAY_UNAVAILABLE)
    }
}

/// The request has waited for `ttl`.
fn expired(pool: Option<&PoolPolicy>, ttl: Duration, none_ready: bool, advice_ms: u64) -> WaitDecision {
    if none_ready {
        let message = format!(
            "No server was ready for {}: check the servers' health and pools[].endpoints.",
            format_duration(ttl)
        );
        let failure = Failure::new(503, Code::NoEndpoints, message).retry_after_ms(advice_ms);
        return WaitDecision::Reject(failure, outcome::NO_ENDPOINTS);
    }
    let status = pool.map_or(503, |pool| pool.capacity_status);
    let message = format!("Request timed out after {} in queue", format_duration(ttl));
    let failure = Failure::new(status, Code::QueueTimeout, message).retry_after_ms(advice_ms);
    WaitDecision::Reject(failure, outcome::EXPIRED_TTL)
}

fn deadline_exceeded(deadline_ms: u64) -> WaitDecision {
    let message = format!(
        "The request's deadline of {deadline_ms}ms passed in the queue: raise {}.",
        names::DEADLINE_HEADER
    );
    let failure =
        Failure::new(504, Code::DeadlineExceeded, message).retry_after_ms(RETRY_AFTER_MIN_MS).without_retry();
    WaitDecision::Reject(failure, outcome::DEADLINE_EXCEEDED)
}

/// Formats a duration as the configuration does.
fn format_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    if millis.is_multiple_of(1_000) { format!("{}s", millis / 1_000) } else { format!("{millis}ms") }
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[test]
    fn durations_are_formatted_as_in_the_configuration() {
        assert_eq!(format_duration(Duration::from_secs(30)), "30s");
        assert_eq!(format_duration(Duration::from_secs(90)), "90s");
        assert_eq!(format_duration(Duration::from_millis(250)), "250ms");
    }
}
