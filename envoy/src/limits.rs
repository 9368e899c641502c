//! Every number of the bootstrap that isn't a user's: sizes, times and ceilings, with why.
//!
//! What a user sets (addresses, the body limit, the queue's times) is in [`crate::bootstrap::Settings`].

use std::time::Duration;

/// How far Envoy's body limit is above the filter's, in bytes, so that every 413 is the filter's: it sees each
/// piece of a body before Envoy counts it.
pub const BODY_SLACK_BYTES: u64 = 1 << 20;
/// The heap at which the overload manager sheds, in bytes, unless the settings say otherwise. Paused bodies
/// stay in Envoy: this is room for the default queue of a dozen pools.
pub const HEAP_BYTES_MAX: u64 = 4 << 30;
/// Downstream connections at a time, unless the settings say otherwise.
pub const CONNECTIONS_MAX: u64 = 50_000;
/// Share of the heap's limit above which connections aren't kept alive.
pub const HEAP_KEEPALIVE_OFF: f64 = 0.92;
/// Share of the heap's limit above which new requests are refused.
pub const HEAP_REFUSE: f64 = 0.95;
/// Share of the heap's limit above which free pages go back to the system.
pub const HEAP_SHRINK: f64 = 0.85;

/// A whole request must have arrived within this. The wait in the queue doesn't count, only reading: it is the
/// guard against slow bodies.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// A request's headers must have arrived within this.
pub const HEADERS_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a stream may stand still, at least, where the configuration may change while Envoy runs: this can't, and the
/// longest wait in any queue has to stay below it.
pub const STREAM_IDLE_RELOADED: Duration = Duration::from_secs(900);
/// How long a model server, on the same network, may take to accept a connection.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// uvicorn, under most model servers, closes an idle connection after 5 s: ours go first, or requests race it.
pub const UPSTREAM_IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// How often the companion's connection is probed, and how long the answer may take: what notices a frozen one.
pub const COMPANION_KEEPALIVE: Duration = Duration::from_secs(2);
/// A model server whose machine vanished is noticed after this much silence, plus
/// [`KEEPALIVE_PROBES`] * [`KEEPALIVE_INTERVAL_S`]. Generation may be silent for minutes; a live kernel answers.
pub const KEEPALIVE_AFTER_S: u32 = 30;
/// Seconds between two TCP keep-alive probes.
pub const KEEPALIVE_INTERVAL_S: u32 = 5;
/// Unanswered probes that end a connection.
pub const KEEPALIVE_PROBES: u32 = 3;

/// Model servers that a grant's list names, at most; one more place may lead back into this Envoy.
pub const LIST_MAX: u32 = 3;
/// Times that Envoy tries again after the first what it spreads round robin.
pub const RETRIES: u32 = 2;
/// The first pause before a retry: the next server of the list is another machine, waiting helps nobody.
pub const RETRY_PAUSE: Duration = Duration::from_millis(1);
/// Envoy's circuit breakers, where a request's place is the companion's decision: out of the way.
pub const CIRCUIT_BREAKER: u32 = 1_000_000;
/// Connections that the kernel keeps for a listener until a worker accepts them.
pub const BACKLOG: u32 = 4_096;

const _: () = assert!(UPSTREAM_IDLE_TIMEOUT.as_secs() < 5, "uvicorn's keep-alive is 5 s");
const _: () = assert!(
    HEAP_SHRINK < HEAP_KEEPALIVE_OFF && HEAP_KEEPALIVE_OFF < HEAP_REFUSE,
    "gentle before harsh"
);
