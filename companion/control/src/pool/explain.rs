//! Sentences that explain to people why a request waits, or why it went where it is.

use penstock_engine::Outcome;
use penstock_engine::policy::{BandMode, Discipline, Policy};
use penstock_engine::queue_position::{BlockReason, Position};

use super::request::OpenRequest;
use crate::answer::duration_text;

/// Why a waiting request isn't granted.
pub(super) fn block_reason(reason: &BlockReason, policy: &Policy, class: &str) -> String {
    match reason {
        BlockReason::Starting => {
            "the companion has just started, and not all of Envoy's workers have reported their requests yet".into()
        }
        BlockReason::Suspended => {
            "its session is orphaned: the Envoy worker that holds it has lost its stream, and has a few seconds to reconnect"
                .into()
        }
        BlockReason::Pause { left } => format!(
            "every endpoint that is ready has failed or refused it before a response; it is tried again in {}",
            duration_text(*left)
        ),
        BlockReason::NoEndpoint => format!(
            "no endpoint of its pool is ready; if none is before it has waited for {}, it is answered no_endpoints (queue.no_endpoint_ttl)",
            duration_text(policy.queue.longest_wait())
        ),
        BlockReason::OwnEndpoints => "none of its eligible endpoints is ready".into(),
        BlockReason::Held { left: Some(left) } => format!(
            "its flow has used its budget and is held until there is room, in {} (flows.budgets)",
            duration_text(*left)
        ),
        BlockReason::Held { left: None } => {
            "its flow has used its budget and is held until requests end that run at other gateways (flows.budgets)".into()
        }
        BlockReason::MaxInFlight { running, most } => {
            format!("its flow has {running} running requests of at most {most} (flows.max_in_flight)")
        }
        BlockReason::MaxInFlightPerEndpoint { most } => format!(
            "its flow has {most} running requests at every endpoint with room, and no more are allowed (flows.max_in_flight_per_endpoint)"
        ),
        BlockReason::ClassThreshold => format!(
            "its class {class} is above its prefill threshold at every endpoint with room (prefill_busy_threshold)"
        ),
        BlockReason::Gate { stock, lower } => {
            format!("the gate is full: stock {stock} of {lower}; the next request is granted below that")
        }
        BlockReason::EndpointsFull => {
            "all of its eligible endpoints are full".into()
        }
        BlockReason::Sequences { count } => format!(
            "its {count} sequences (n, best_of, lists of prompts) don't fit beside what runs at any of its eligible endpoints \
             (stock.unit: sequences)"
        ),
        BlockReason::Ceiling { stock, lower } => format!(
            "its band is at its ceiling: stock {stock} of {lower} (bands.ceiling)"
        ),
        BlockReason::MaxRate => "the pool has granted as many requests this second as its rate allows (queue.max_rate)".into(),
        BlockReason::Turn => "the gate is open, but the requests before it don't fit yet".into(),
    }
}

/// Why the bound is lower than the configured one; `None`: no endpoint has refused requests.
pub(super) fn pushback(reason: &BlockReason, pushed_back: usize) -> Option<String> {
    let is_full = matches!(
        reason,
        BlockReason::Gate { .. } | BlockReason::EndpointsFull | BlockReason::Sequences { .. }
    );
    (is_full && pushed_back > 0).then(|| {
        let endpoints = if pushed_back == 1 { "endpoint" } else { "endpoints" };
        format!(
            "{pushed_back} {endpoints} answered 429 or 503, so fewer requests go there until it has served some (queue.requeue_on)"
        )
    })
}

/// The requests that are granted before it; `None` if it is the next.
pub(super) fn ahead(position: &Position, policy: &Policy) -> Option<String> {
    let same = position.ahead - position.in_other_bands;
    let others = match policy.bands.mode {
        BandMode::Strict => "more critical",
        BandMode::Weighted(_) => "of other bands",
    };
    let how = match policy.flows.discipline {
        Discipline::Fifo => "of its band that came earlier",
        Discipline::Drr => "of its band whose turn is earlier",
        Discipline::Usage | Discipline::Vtc | Discipline::Wfq | Discipline::RoundRobin => {
            "of its band with a lower tag"
        }
    };
    let kinds = match (position.in_other_bands, same) {
        (0, 0) => return None,
        (elsewhere, 0) => format!("{elsewhere} {others}"),
        (0, same) => format!("{same} {how}"),
        (elsewhere, same) => format!("{elsewhere} {others}, {same} {how}"),
    };
    Some(format!("requests before it: {} ({kinds})", position.ahead))
}

/// Why a request went to `endpoint`. `first`: the first choice of its grant.
pub(super) fn grant(request: &OpenRequest, endpoint: &str, first: &str) -> String {
    let mut why = match request.admitted {
        Some(Outcome::Bypassed | Outcome::Dispatched) | None if request.is_extra() => format!(
            "it was granted above the bound after {}, because its flow had nothing running: stock.extra_for_idle_flows",
            duration_text(request.waited().unwrap_or_default())
        ),
        Some(Outcome::Bypassed) => {
            "it was granted at once: it overtook no waiting request, and stock was below the upper bound"
                .into()
        }
        Some(Outcome::Dispatched) | None => format!(
            "it was granted in its turn, after {}",
            duration_text(request.waited().unwrap_or_default())
        ),
        Some(other) => format!("it was granted: {}", other.as_str()),
    };
    if endpoint != first && !first.is_empty() {
        why.push_str(&format!("; its first choice was {first}, but Envoy sent it to {endpoint}"));
    }
    if request.requeues > 0 {
        let times = request.requeues;
        why.push_str(&format!("; it was requeued before, because no server accepted it: {times} times"));
    }
    why
}
