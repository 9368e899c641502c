//! How long a request waits while no companion answers: the deadlines that are the filter's to enforce then.

use core::time::Duration;
use std::collections::BTreeMap;

use penstock_wire::names::{self, code, outcome};

use crate::{
    exchange::Exchange,
    limits::{RETRY_AFTER_MS, TTL_DEFAULT},
    local_reply::Failure,
    time::Instant,
    worker::PoolEndpoints,
};

/// What becomes of a request that waits.
#[derive(Debug)]
pub(crate) enum WaitDecision {
    /// It waits on.
    Wait,
    /// It goes without the companion, if there is room.
    Admit,
    /// It is refused, with this outcome.
    Reject(Failure, &'static str),
}

/// What becomes of a request if its companion has been away since then; `None`: it isn't.
pub(crate) fn decide(
    now: Instant,
    exchange: &Exchange,
    away_since: Option<Instant>,
    ready: &BTreeMap<String, PoolEndpoints>,
) -> WaitDecision {
    let Some(away_since) = away_since else {
        return WaitDecision::Wait;
    };
    let age = now.since(exchange.arrived);
    if let Some(deadline_ms) = exchange.register.deadline_ms
        && age >= Duration::from_millis(deadline_ms)
    {
        let message = format!(
            "The request's deadline of {deadline_ms}ms passed in the queue: raise {}.",
            names::DEADLINE_HEADER
        );
        let failure = Failure::new(504, code::DEADLINE_EXCEEDED, message)
            .retry_after_ms(RETRY_AFTER_MS)
            .last();
        return WaitDecision::Reject(failure, outcome::DEADLINE_EXCEEDED);
    }
    let none_ready = |pool: &str| ready.get(pool).is_some_and(|ready| ready.endpoints.is_empty());
    let ttl = exchange.pool.as_ref().map_or(TTL_DEFAULT, |pool| {
        if none_ready(&pool.name) {
            pool.no_endpoint_ttl
        } else {
            pool.ttl
        }
    });
    if age >= ttl {
        let status = exchange.pool.as_ref().map_or(503, |pool| pool.capacity_status);
        let message = format!("Request timed out after {} in queue", spoken(ttl));
        let failure = Failure::new(status, code::QUEUE_TIMEOUT, message).retry_after_ms(RETRY_AFTER_MS);
        return WaitDecision::Reject(failure, outcome::EXPIRED_TTL);
    }
    if now.since(away_since) < exchange.hold() {
        WaitDecision::Wait
    } else if exchange.pool.as_ref().is_some_and(|pool| pool.fails_open) {
        WaitDecision::Admit
    } else {
        let message =
            "The gateway's queue is unreachable: check that Penstock's companion runs, then try again.";
        let failure = Failure::new(503, code::GATEWAY_UNAVAILABLE, message).retry_after_ms(RETRY_AFTER_MS);
        WaitDecision::Reject(failure, outcome::GATEWAY_UNAVAILABLE)
    }
}

/// A duration as the configuration writes it.
fn spoken(duration: Duration) -> String {
    let millis = duration.as_millis();
    if millis.is_multiple_of(1_000) {
        format!("{}s", millis / 1_000)
    } else {
        format!("{millis}ms")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn durations_are_spoken_as_configured() {
        assert_eq!(spoken(Duration::from_secs(30)), "30s");
        assert_eq!(spoken(Duration::from_secs(90)), "90s");
        assert_eq!(spoken(Duration::from_millis(250)), "250ms");
    }
}
