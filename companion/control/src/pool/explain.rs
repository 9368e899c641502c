//! Sentences that explain to people why a request waits, or why it went where it is.

use penstock_engine::Outcome;
use penstock_engine::policy::{Discipline, Policy};
use penstock_engine::queue_position::{BlockReason, Position};

use super::request::OpenRequest;
use crate::answer::duration_text;

/// Why a waiting request isn't granted.
pub(super) fn block_reason(reason: &BlockReason, policy: &Policy, class: &str) -> String {
    match reason {
        BlockReason::Starting => {
            "the companion has just started and waits for what Envoy's workers say of their requests".into()
        }
        BlockReason::Suspended => {
            "its session is orphaned: the Envoy worker that holds it isn't heard of, and has a few seconds to come back"
                .into()
        }
        BlockReason::NoEndpoint => format!(
            "no endpoint of its pool is ready; if none comes back it is answered no_endpoints {} after that began (queue.no_endpoint_ttl)",
            duration_text(policy.queue.no_endpoint_ttl)
        ),
        BlockReason::OwnEndpoints => "none of the endpoints that it may go to is ready".into(),
        BlockReason::MaxInFlight { running, most } => {
            format!("its flow runs {running} of at most {most} requests (flows.max_in_flight)")
        }
        BlockReason::MaxInFlightPerEndpoint { most } => format!(
            "its flow runs {most} at every endpoint that has room (flows.max_in_flight_per_endpoint)"
        ),
        BlockReason::ClassThreshold => format!(
            "its class {class} is held by its prefill threshold: every endpoint with room prefills as many tokens as the class allows (prefill_busy_threshold)"
        ),
        BlockReason::Gate { stock, lower } => {
            format!("the gate is full: stock {stock} of {lower}, and the next goes below that")
        }
        BlockReason::EndpointsFull => {
            "every endpoint that it may go to has as much as it takes at a time".into()
        }
        BlockReason::Ceiling { stock, lower } => format!(
            "its band may take only its part of the bound: stock {stock} of {lower} (bands.ceiling)"
        ),
        BlockReason::MaxRate => "as many have gone this second as may (queue.max_rate)".into(),
        BlockReason::Turn => "the gate is open for those before it, and none of them fits yet".into(),
    }
}

/// The requests that are granted before it; `None` if it is the next.
pub(super) fn ahead(position: &Position, discipline: Discipline) -> Option<String> {
    let same = position.ahead - position.more_critical;
    let how = match discipline {
        Discipline::Fifo => "of its band that came earlier",
        Discipline::Drr => "of its band whose turn is earlier",
        Discipline::Usage | Discipline::Vtc | Discipline::Wfq | Discipline::RoundRobin => {
            "of its band with a lower tag"
        }
    };
    match (position.more_critical, same) {
        (0, 0) => None,
        (critical, 0) => Some(format!("before it go {critical} more critical")),
        (0, same) => Some(format!("before it go {same} {how}")),
        (critical, same) => Some(format!(
            "before it go {}: {critical} more critical, {same} {how}",
            position.ahead
        )),
    }
}

/// Why a request went to `endpoint`. `first`: the first choice of its grant.
pub(super) fn grant(request: &OpenRequest, endpoint: &str, first: &str) -> String {
    let mut why = match request.admitted {
        Some(Outcome::Bypassed) => {
            "it went at once: nothing waited that it could overtake, and stock was below the upper bound"
                .into()
        }
        Some(Outcome::Dispatched) | None => format!(
            "it went when its turn came, after {}",
            duration_text(request.waited().unwrap_or_default())
        ),
        Some(other) => format!("it went: {}", other.as_str()),
    };
    if endpoint != first && !first.is_empty() {
        why.push_str(&format!(
            "; it was granted {first}, and Envoy sent it to {endpoint}"
        ));
    }
    if request.requeues > 0 {
        let times = request.requeues;
        why.push_str(&format!("; {times} times no server took it before"));
    }
    why
}
