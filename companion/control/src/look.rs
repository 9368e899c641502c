//! One request that hasn't ended: where it stands and why, for whoever asks.
//!
//! It looks for it among all of them: that takes time proportional to their number, and nobody is asked often.

use core::time::Duration;
use std::sync::Arc;

use penstock_engine::policy::{Discipline, Policy};
use penstock_engine::queue_position::{BlockReason, Position};
use penstock_engine::{Instant, Outcome, RequestId};

use crate::answer::written;
use crate::control::Control;
use crate::event::Labels;
use crate::register::{Entry, Stage};

/// A request as it is at one moment.
#[derive(Clone, Debug)]
pub struct RequestStatus {
    /// Whose it is.
    pub labels: Arc<Labels>,
    /// How far it is.
    pub state: RequestState,
    /// Its policy class; empty: its pool has none.
    pub class: Box<str>,
    /// How it was let go the first time; `None`: it never was.
    pub outcome: Option<Outcome>,
    /// Since its arrival until it was let go, or until now.
    pub waited: Duration,
    /// Why it waits, or why it went where it is; a sentence for people.
    pub why: Box<str>,
}

/// How far a request is.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestState {
    /// In the queue.
    Waiting {
        /// Requests that would go before it.
        ahead: u64,
        /// Until it goes, by the measured drain rate.
        estimate: Duration,
        /// Its tag in virtual time; `None`: the rule of its pool has none.
        tag: Option<f64>,
    },
    /// At a server.
    Running {
        /// The server's address; empty: not known.
        endpoint: Box<str>,
    },
}

impl Control {
    /// The request with this `x-request-id`, if it hasn't ended; of several, the one that came last.
    #[must_use]
    pub fn request(&self, now: Instant, request_id: &str) -> Option<RequestStatus> {
        let all = self.requests.entries();
        let named = all.filter(|(_, entry)| &*entry.labels.request_id == request_id);
        let (id, entry) = named.max_by_key(|(id, _)| *id)?;
        let (state, why) = match &entry.stage {
            Stage::Waiting => self.waiting(id, entry)?,
            Stage::Granted { grant, .. } => {
                let first = grant.endpoints.first().map_or("", String::as_str);
                let at = self.running_at(id, entry).unwrap_or(first);
                let endpoint = at.into();
                (RequestState::Running { endpoint }, went(entry, at, first))
            }
        };
        let waited = entry.since_arrival(0);
        Some(RequestStatus {
            labels: entry.labels.clone(),
            state,
            class: self.pools[entry.pool].engine.class(id),
            outcome: entry.admitted,
            waited: waited.unwrap_or_else(|| now.since(entry.arrived)),
            why: why.into(),
        })
    }

    fn waiting(&self, id: RequestId, entry: &Entry) -> Option<(RequestState, String)> {
        let of = &self.pools[entry.pool];
        let (position, hold) = (of.engine.position(id)?, of.engine.block_reason(id)?);
        let mut why = held(&hold, &of.policy, of.engine.class(id).as_ref());
        if entry.requeues > 0 {
            why.insert_str(0, "no server took it, so it waits again in its old place: ");
        }
        if let Some(before) = before(&position, of.policy.flows.discipline) {
            why = format!("{why}; {before}");
        }
        let state = RequestState::Waiting {
            ahead: position.ahead,
            estimate: position.estimate,
            tag: position.tag,
        };
        Some((state, why))
    }

    /// Where the engine counts it.
    fn running_at(&self, id: RequestId, entry: &Entry) -> Option<&str> {
        let of = &self.pools[entry.pool];
        of.engine.endpoint_of(id).map(|at| of.address(at))
    }
}

/// Why a request that waits isn't let go.
fn held(hold: &BlockReason, policy: &Policy, class: &str) -> String {
    match hold {
        BlockReason::Starting => {
            "the companion has just started and waits for what Envoy's workers say of their requests".into()
        }
        BlockReason::Suspended => {
            "its session is orphaned: the Envoy worker that holds it isn't heard of, and has a few seconds to come back"
                .into()
        }
        BlockReason::NoEndpoint => format!(
            "no endpoint of its pool is ready; if none comes back it is answered no_endpoints {} after that began (queue.no_endpoint_ttl)",
            written(policy.queue.no_endpoint_ttl)
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

/// Who goes before it; `None`: nobody.
fn before(position: &Position, discipline: Discipline) -> Option<String> {
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

/// Why a request went where it is.
fn went(entry: &Entry, at: &str, first: &str) -> String {
    let mut why = match entry.admitted {
        Some(Outcome::Bypassed) => {
            "it went at once: nothing waited that it could overtake, and stock was below the upper bound"
                .into()
        }
        Some(Outcome::Dispatched) | None => format!(
            "it went when its turn came, after {}",
            written(entry.since_arrival(0).unwrap_or_default())
        ),
        Some(other) => format!("it went: {}", other.as_str()),
    };
    if at != first && !first.is_empty() {
        why.push_str(&format!("; it was granted {first}, and Envoy sent it to {at}"));
    }
    if entry.requeues > 0 {
        let times = entry.requeues;
        why.push_str(&format!("; {times} times no server took it before"));
    }
    why
}
