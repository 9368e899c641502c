//! Every limit of the filter, and how they relate. What both sides of the session share is in `penstock_wire::limits`.

use core::time::Duration;

use penstock_wire::limits as wire;

/// Bytes of a body that are looked at in one go, so that linear memory never holds more.
pub const SLICE_BYTES: usize = 64 << 10;
/// Bytes before what is replaced in a body, up to which they are taken out whole; where more stand before it, the body is
/// turned round in slices.
pub const REWRITE_FRONT_BYTES: usize = 1 << 20;
/// Containers inside containers in a JSON body; one mask bit each.
pub const JSON_DEPTH_MAX: u32 = 127;
/// Decoded bytes of a key that are kept for comparison.
pub const KEY_BYTES_MAX: usize = 64;
/// Top-level strings of the body that a policy may name as identities.
pub const BODY_KEYS_MAX: usize = 16;
/// An attachment (image, audio, file) counts as this much text at most.
pub const ATTACHMENT_BYTES_MAX: u64 = 4_096;
/// What a prompt's token id counts as, in bytes of text.
pub const TOKEN_ID_BYTES: u64 = 4;
/// Bytes of one `ip:port` or of one taint in a client's list.
pub const LIST_ENTRY_BYTES_MAX: usize = 64;
/// Bytes of a request id that are passed on.
pub const REQUEST_ID_BYTES_MAX: usize = 128;
/// Bytes of a `traceparent` that are passed on: version 00 has 55, and what a later one adds stands behind them.
pub const TRACEPARENT_BYTES_MAX: usize = 64;
/// Routes, pools, or globs of one pool that a policy may name.
pub const POLICY_LIST_MAX: usize = 10_000;
/// While the companion is away and requests wait for it, their deadlines are looked at this often.
pub const DEADLINE_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The least time between two ticks.
pub const TICK_MIN: Duration = Duration::from_millis(10);
/// Paused streams that one callback of the host resumes or answers. The host carries out what a callback asked for when
/// it is over, and each of these calls back into the module, at whose end the next is carried out: inside of it, on the
/// same stack. Some hundreds overflow it, and that is a trap.
pub const STREAMS_RESUMED_MAX: usize = 32;
/// The time to the tick that moves the next ones.
pub const RESUME_INTERVAL: Duration = Duration::from_millis(1);
/// What a refused client is told to wait when the companion, who would know better, is away.
pub const RETRY_AFTER_MS: u64 = 1_000;
/// How long requests wait for the companion when no pool says it.
pub const HOLD_DEFAULT: Duration = Duration::from_secs(5);
/// How long they may wait in all when no pool says it.
pub const TTL_DEFAULT: Duration = Duration::from_secs(30);
/// A worker that didn't renew its word on what it has in flight for this long is dead.
pub const IN_FLIGHT_RECORD_TTL: Duration = Duration::from_secs(10);
/// How often a worker tries to write its word while others write theirs.
pub const IN_FLIGHT_WRITE_ATTEMPTS: usize = 64;
/// Endpoints that a request which goes without the companion may try.
pub const FALLBACK_ENDPOINTS_MAX: usize = 3;
/// What a request which goes without the companion is expected to generate, unless its client allows less.
pub const FALLBACK_OUTPUT_TOKENS: u64 = 256;
/// Bytes of text that count as one token there.
pub const FALLBACK_BYTES_PER_TOKEN: u64 = 4;

const _: () = assert!(wire::HEARTBEAT_INTERVAL.as_millis() * 3 < IN_FLIGHT_RECORD_TTL.as_millis());
const _: () = assert!(FALLBACK_BYTES_PER_TOKEN > 0);
// A token's id is hashed as a number of 32 bits.
const _: () = assert!(TOKEN_ID_BYTES == 4);
const _: () = assert!(JSON_DEPTH_MAX < u128::BITS);
const _: () = assert!(KEY_BYTES_MAX <= wire::NAME_BYTES_MAX);
const _: () = assert!(TICK_MIN.as_millis() <= wire::BACKOFF_MIN.as_millis());
// An expiry is answered within 200 ms of its time.
const _: () = assert!(DEADLINE_CHECK_INTERVAL.as_millis() * 2 <= 200);
// A full part of a Hello, every list of every request at its limit, fits in a message.
const _: () = assert!(
    wire::HELLO_PART_REQUESTS * (2 * wire::LIST_MAX * (LIST_ENTRY_BYTES_MAX + 4) + 14 * wire::NAME_BYTES_MAX)
        < wire::MESSAGE_BYTES_MAX
);
