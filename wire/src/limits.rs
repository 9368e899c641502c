//! Every limit of the session, in one place, and how they relate.

use core::time::Duration;

/// The oldest version of the session that this build speaks.
pub const VERSION_MIN: u32 = 1;
/// The newest version of the session that this build speaks.
pub const VERSION_MAX: u32 = 2;

/// Requests in one part of a Hello.
pub const HELLO_PART_REQUESTS: usize = 256;
/// Terminal events that a filter keeps until they are acknowledged.
pub const UNACKED_EVENTS_MAX: usize = 4_096;
/// Bytes sent and not acknowledged that make the companion unreachable.
pub const UNACKED_BYTES_MAX: usize = 1 << 20;
/// Bytes of one gRPC message, either way.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Bytes of an identity, a model's name or any other string that a client chooses.
pub const NAME_BYTES_MAX: usize = 256;
/// Entries of a list that a client chooses: subset, tolerations.
pub const LIST_MAX: usize = 64;
/// The highest strict tier.
pub const STRICT_MAX: u32 = 15;
/// The longest head start, in seconds.
pub const JUMP_S_MAX: u32 = 3_600;
/// Hashes of a prompt's prefixes.
pub const PREFIX_HASHES_MAX: usize = 32;

/// Between two beats of a filter.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Without a frame for this long a session is dead.
pub const SILENCE: Duration = Duration::from_secs(10);
/// A session that ended without Bye keeps its stock for this long.
pub const SESSION_GRACE: Duration = Duration::from_secs(5);
/// Before the first attempt to open a stream again.
pub const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// Before every further one, at most.
pub const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// A starting companion dispatches when every known session said Hello, at the latest after this.
pub const STARTUP_WAIT: Duration = Duration::from_secs(2);
/// Between two attempts when no version is common.
pub const VERSION_RETRY: Duration = Duration::from_secs(30);

const _: () = assert!(BACKOFF_MAX.as_millis() + HEARTBEAT_INTERVAL.as_millis() < SESSION_GRACE.as_millis());
const _: () = assert!(BACKOFF_MAX.as_millis() < STARTUP_WAIT.as_millis());
const _: () = assert!(HEARTBEAT_INTERVAL.as_millis() * 3 < SILENCE.as_millis());
const _: () = assert!(VERSION_MIN <= VERSION_MAX);
// A full part of a Hello, every string at its limit, fits in a message.
const _: () = assert!(HELLO_PART_REQUESTS * 24 * NAME_BYTES_MAX < MESSAGE_BYTES_MAX);
