//! All sizes, times and limits of the bootstrap that a user can't set, with their reasons.
//!
//! The values that a user sets (addresses, the body limit, the queue's times) are in [`crate::bootstrap::Settings`].

use std::time::Duration;

/// How far Envoy's body limit is above the filter's, in bytes. The filter sees each piece of a body before Envoy counts it,
/// so with this margin every 413 comes from the filter.
pub const BODY_SLACK_BYTES: u64 = 1 << 20;
/// Default heap size at which the overload manager sheds load, in bytes. Envoy's heap holds the bodies of waiting requests:
/// this is room for the default queues of a dozen pools.
pub const HEAP_BYTES_MAX: u64 = 4 << 30;
/// Default limit of concurrent downstream connections.
pub const CONNECTIONS_MAX: u64 = 50_000;
/// Share of the heap limit above which Envoy closes connections after each request.
pub const HEAP_KEEPALIVE_OFF: f64 = 0.92;
/// Share of the heap limit above which Envoy refuses new requests.
pub const HEAP_REFUSE: f64 = 0.95;
/// Share of the heap limit above which Envoy returns free pages to the system.
pub const HEAP_SHRINK: f64 = 0.85;

/// Time within which a whole request must arrive. It guards against slow bodies; the wait in the queue doesn't count.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Time within which a client must complete the TLS handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time within which a request's headers must arrive.
pub const HEADERS_TIMEOUT: Duration = Duration::from_secs(10);
/// The least idle timeout of a stream where the configuration may change while Envoy runs. The timeout itself can't change,
/// and the longest wait in any queue must stay below it.
pub const STREAM_IDLE_RELOADED: Duration = Duration::from_secs(900);
/// Time within which a model server, on the same network, must accept a connection.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Idle timeout of upstream connections. uvicorn, under most model servers, closes an idle connection after 5 s; Envoy closes
/// it earlier, so that no request races with that.
pub const UPSTREAM_IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// Interval and timeout of the HTTP/2 pings to the companion, which detect a suspended companion.
pub const COMPANION_KEEPALIVE: Duration = Duration::from_secs(2);
/// Time between two lookups of the companions' DNS name. A companion that is started again may have another address. The filter
/// can't choose it before Envoy has that address, so this delays a failover.
pub const COMPANION_LOOKUP: Duration = Duration::from_secs(1);
/// Seconds of silence before the first TCP keep-alive probe. A model server whose machine is gone is detected after this
/// time plus [`KEEPALIVE_PROBES`] * [`KEEPALIVE_INTERVAL_S`]. Generation may be silent for minutes, but a live kernel answers.
pub const KEEPALIVE_AFTER_S: u32 = 30;
/// Seconds between two TCP keep-alive probes.
pub const KEEPALIVE_INTERVAL_S: u32 = 5;
/// Unanswered probes that end a connection.
pub const KEEPALIVE_PROBES: u32 = 3;

/// The statuses with which a server may refuse a request by itself, so that it goes elsewhere.
pub const REFUSALS: [u32; 2] = [429, 503];
/// Delay before the first retry. It is short because the next server of the list is another machine.
pub const RETRY_PAUSE: Duration = Duration::from_millis(1);
/// Envoy's circuit breaker thresholds: out of reach, because the companion bounds the requests of a pool.
pub const CIRCUIT_BREAKER: u32 = 1_000_000;
/// Time within which a server must deliver the filter's module.
pub const MODULE_TIMEOUT: Duration = Duration::from_secs(10);
/// Attempts to get the module, in effect without end: Envoy opens the listener only with it, and never asks again after the last
/// attempt.
pub const MODULE_RETRIES: u32 = 1_000_000;
/// The shortest pause between two such attempts; the longest is 5 times that.
pub const MODULE_PAUSE: Duration = Duration::from_secs(1);
/// Connections that the kernel queues for a listener until a worker accepts them.
pub const BACKLOG: u32 = 4_096;

const _: () = assert!(UPSTREAM_IDLE_TIMEOUT.as_secs() < 5, "uvicorn's keep-alive is 5 s");
const _: () = assert!(
    HEAP_SHRINK < HEAP_KEEPALIVE_OFF && HEAP_KEEPALIVE_OFF < HEAP_REFUSE,
    "mild measures come first"
);
