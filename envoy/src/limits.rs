//! All sizes, times and limits of the bootstrap that a user can't set, with their reasons.
//!
//! The values that a user sets (addresses, the body limit, the queue's times) are in [`crate::bootstrap::Settings`].

use std::time::Duration;

/// How far Envoy's body limit is above the filter's, in bytes. The filter sees each piece of a body before Envoy counts it,
/// so with this margin every 413 comes from the filter.
pub const BODY_SLACK_BYTES: u64 = 1 << 20;
/// Size of a request's headers, in KiB: above the limit of the filter, whose answer says what is wrong. Over HTTP/2 Envoy itself only resets
/// the stream.
pub const HEADERS_KIB_MAX: u32 = 96;
/// Number of a request's headers: above the limit of the filter, for the same reason.
pub const HEADERS_MAX: u32 = 500;
/// Default heap size at which the overload manager sheds load, in bytes. Envoy's heap holds the bodies of waiting requests:
/// this is room for the default queues of a dozen pools.
pub const HEAP_BYTES_MAX: u64 = 4 << 30;
/// The most concurrent downstream connections, however many files Envoy may open.
pub const CONNECTIONS_MAX: u64 = 50_000;
/// File descriptors that Envoy needs for itself: its module, logs, admin interface and timers.
pub const FILES_OWN: u64 = 64;
/// File descriptors that each worker needs: its event loop, listeners, and streams to the companions.
pub const FILES_PER_WORKER: u64 = 16;
/// Workers that are assumed where their number isn't known.
pub const WORKERS_ASSUMED: u32 = 16;
/// Open files that an Envoy is assumed to be allowed where that isn't known: enough for [`CONNECTIONS_MAX`].
pub const FILES_ASSUMED: u64 = FILES_OWN + FILES_PER_WORKER * WORKERS_ASSUMED as u64 + 2 * CONNECTIONS_MAX;
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
/// Envoy's notation for a timer that is off. Where a timer is on by default, it is set to this.
pub const UNLIMITED: Duration = Duration::ZERO;
/// Time within which a model server, on the same network, must accept a connection.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Idle timeout of upstream connections. Servers close idle connections after some time: uvicorn after 5 s, gunicorn after 2 s, some proxies
/// after 1 s. Envoy closes them earlier, so that no request races with that. A new connection in the same network takes less than a
/// thousandth of the time of an answer.
pub const UPSTREAM_IDLE_TIMEOUT: Duration = Duration::from_millis(800);
/// Time within which a model server must accept a connection with TLS: it may be farther away, and the handshake takes more round trips.
pub const CONNECT_TIMEOUT_TLS: Duration = Duration::from_secs(5);
/// Interval of the HTTP/2 pings to model servers. Many requests share one connection, and TCP probes find no dead peer while a request waits for its
/// acknowledgement.
pub const PING_INTERVAL: Duration = Duration::from_secs(60);
/// Time without any frame after a ping that ends the connection: much longer than a process computes without a look at its connections.
pub const PING_TIMEOUT: Duration = Duration::from_secs(45);
/// Interval and timeout of the HTTP/2 pings to the companion, which detect a suspended companion.
pub const COMPANION_KEEPALIVE: Duration = Duration::from_secs(2);
/// Time between two lookups of the companions' DNS name. A companion that is started again may have another address. The filter
/// can't choose it before Envoy has that address, so this delays a failover.
pub const COMPANION_LOOKUP: Duration = Duration::from_secs(1);
/// Seconds of silence before the first TCP keep-alive probe. A model server or a client whose machine is gone is detected after this
/// time plus [`KEEPALIVE_PROBES`] * [`KEEPALIVE_INTERVAL_S`]. Generation may be silent for minutes, but a live kernel answers.
pub const KEEPALIVE_AFTER_S: u32 = 30;
/// Seconds between two TCP keep-alive probes.
pub const KEEPALIVE_INTERVAL_S: u32 = 5;
/// Unanswered probes that end a connection.
pub const KEEPALIVE_PROBES: u32 = 3;

/// The statuses of a server after which a request may go elsewhere, by the default of `queue.requeue_on`.
pub const REFUSALS: [u32; 5] = [429, 500, 502, 503, 504];
/// The status of a server that doesn't have the model. The filter says when a request goes elsewhere after it.
pub const NOT_FOUND: u32 = 404;
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

const _: () = assert!(UPSTREAM_IDLE_TIMEOUT.as_millis() < 1_000, "some servers keep connections for 1 s");
const _: () =
    assert!(HEAP_SHRINK < HEAP_KEEPALIVE_OFF && HEAP_KEEPALIVE_OFF < HEAP_REFUSE, "mild measures come first");

/// The most concurrent downstream connections of an Envoy that may open so many files. The request of each needs a connection to a server
/// at its turn, which Envoy could not open if clients had taken all descriptors: so clients get half of what Envoy doesn't need itself.
#[must_use]
pub const fn connections_max(open_files: u64, workers: u32) -> u64 {
    let own = FILES_OWN.saturating_add(FILES_PER_WORKER.saturating_mul(workers as u64));
    match open_files.saturating_sub(own) / 2 {
        0 => 1,
        half if half > CONNECTIONS_MAX => CONNECTIONS_MAX,
        half => half,
    }
}

/// The heap limit of an Envoy in a process group that may have so much memory: half of it, because Envoy isn't alone and its heap isn't all of
/// its memory; at least `least`, which one request may need.
#[must_use]
pub const fn heap_bytes_max(memory: u64, least: u64) -> u64 {
    match memory / 2 {
        half if half > HEAP_BYTES_MAX => HEAP_BYTES_MAX,
        half if half < least => least,
        half => half,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_leave_descriptors_for_servers() {
        assert_eq!(connections_max(20_000, 16), 9_840);
        assert_eq!(connections_max(256, 2), 80);
        assert_eq!(connections_max(0, 2), 1, "one client can still be told");
        for open_files in [FILES_ASSUMED, 1 << 20, u64::MAX] {
            assert_eq!(connections_max(open_files, WORKERS_ASSUMED), CONNECTIONS_MAX);
        }
    }

    #[test]
    fn the_heap_is_half_of_the_memory() {
        assert_eq!(heap_bytes_max(2 << 30, 256 << 20), 1 << 30);
        assert_eq!(heap_bytes_max(300 << 20, 256 << 20), 256 << 20);
        assert_eq!(heap_bytes_max(u64::MAX, 256 << 20), HEAP_BYTES_MAX);
    }
}
