//! All limits of the session, and the relations between them.

use core::time::Duration;

/// The oldest protocol version that this build supports.
pub const VERSION_MIN: u32 = 1;
/// The newest protocol version that this build supports.
pub const VERSION_MAX: u32 = 1;

/// Requests in one part of a `Hello`.
pub const HELLO_PART_REQUESTS: usize = 256;
/// Unacknowledged terminal events that a filter keeps.
pub const UNACKED_EVENTS_MAX: usize = 4_096;
/// Unacknowledged bytes after which the filter considers the companion unreachable.
pub const UNACKED_BYTES_MAX: usize = 1 << 20;
/// Bytes of one gRPC message, in either direction.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Bytes of an identity, a model name, or another string that a client chooses.
pub const NAME_BYTES_MAX: usize = 256;
/// Entries of a list that a client chooses: endpoint subset, tolerations.
pub const LIST_MAX: usize = 64;
/// The highest strict tier.
pub const STRICT_MAX: u32 = 15;
/// The longest head start, in seconds.
pub const JUMP_S_MAX: u32 = 3_600;
/// Sequences of one request. vLLM refuses a request for more choices.
pub const SEQUENCES_MAX: u64 = 16_384;
/// Hashes of one prompt's prefixes.
pub const PREFIX_HASHES_MAX: usize = 32;
/// Models of a `ModelList`.
pub const MODEL_LIST_MAX: usize = 1_024;
/// Bytes of the objects of a `ModelList`, all together.
pub const MODEL_LIST_BYTES_MAX: usize = 256 << 10;
/// API keys of a policy.
pub const API_KEYS_MAX: usize = 10_000;
/// Bytes of an API key. A longer one is no tenant's.
pub const API_KEY_BYTES_MAX: usize = 1_024;

/// Time between two heartbeats of a filter.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// A session without a frame for this long is dead.
pub const SILENCE: Duration = Duration::from_secs(10);
/// The requests of a session that ended without `Bye` stay counted for this long, so that the filter can reconnect.
pub const SESSION_GRACE: Duration = Duration::from_secs(5);
/// Delay before the first reconnect.
pub const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// The longest delay before a reconnect.
pub const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// The longest delay while a standby answers and no leader does.
pub const BACKOFF_LEADERLESS_MAX: Duration = Duration::from_millis(200);
/// A starting companion dispatches once every known session has sent its `Hello`, at the latest after this time.
pub const STARTUP_WAIT: Duration = Duration::from_secs(2);
/// How long a filter waits for the answer to a probe before it tries another companion.
pub const PROBE_WAIT: Duration = Duration::from_secs(1);
/// How long a filter waits at a standby that knows no leader before it tries another companion.
pub const LEADER_WAIT: Duration = Duration::from_secs(5);
/// How long a filter waits at a companion that has the lease and can't take the filter yet: the companion is taking over, and waits for all
/// filters, or it can't reach the store of leases.
pub const TAKEOVER_WAIT: Duration = Duration::from_secs(60);
/// A filter gives up an admission credit that isn't renewed for this long.
pub const CREDIT_TTL: Duration = Duration::from_secs(2);
/// The companion renews the credits of busy filters this often.
pub const CREDIT_RENEWAL: Duration = Duration::from_secs(1);
/// Delay before a reconnect if filter and companion have no version in common.
pub const VERSION_RETRY: Duration = Duration::from_secs(30);

const _: () = assert!(BACKOFF_MAX.as_millis() + HEARTBEAT_INTERVAL.as_millis() < SESSION_GRACE.as_millis());
const _: () = assert!(BACKOFF_MAX.as_millis() < STARTUP_WAIT.as_millis());
const _: () = assert!(HEARTBEAT_INTERVAL.as_millis() * 3 < SILENCE.as_millis());
const _: () = assert!(CREDIT_RENEWAL.as_millis() < CREDIT_TTL.as_millis());
// A companion that has lost a session has released its requests only after the credit has expired in the filter.
const _: () = assert!(CREDIT_TTL.as_millis() < SESSION_GRACE.as_millis());
const _: () = assert!(VERSION_MIN <= VERSION_MAX);
// A full part of a `Hello`, with every string at its limit, fits into a message.
const _: () = assert!(HELLO_PART_REQUESTS * 24 * NAME_BYTES_MAX < MESSAGE_BYTES_MAX);
// A policy with all API keys and a list of models fit into a frame.
const _: () = assert!(
    API_KEYS_MAX * (NAME_BYTES_MAX + 64) + MODEL_LIST_BYTES_MAX + MODEL_LIST_MAX * (NAME_BYTES_MAX + 64)
        < MESSAGE_BYTES_MAX
);
// A policy with all API keys, each of a tenant with the longest name, leaves room for its pools.
const _: () = assert!(API_KEYS_MAX * (NAME_BYTES_MAX + 64) < MESSAGE_BYTES_MAX * 4 / 5);
