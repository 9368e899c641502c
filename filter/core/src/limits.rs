//! All limits of the filter, and the relations between them. The limits that both sides of the session share are in
//! `penstock_wire::limits`.

use core::time::Duration;

use penstock_wire::limits as wire;

/// How long a paused request waits for its body until the filter asks how many bytes of the body Envoy has received.
pub const BODY_CALLBACK_WAIT: Duration = Duration::from_secs(1);
/// How often the filter asks, in a worker to which Envoy has never passed a body.
pub const BODY_CALLBACK_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The number of requests about which the filter asks at a time.
pub const BODY_CHECKS_MAX: usize = 2_048;
const _: () = assert!(BODY_CALLBACK_WAIT.as_millis() + BODY_CALLBACK_CHECK_INTERVAL.as_millis() < 2_000);

/// Headers of a request, beside those that Envoy adds.
pub const HEADERS_MAX: usize = 100;
/// Bytes of a request's headers.
pub const HEADERS_BYTES_MAX: usize = 60 << 10;
/// From this ratio of a body's bytes to those that have arrived on, Envoy may have stopped decoding. Its own limit is 100, for each piece.
pub const DECODED_RATIO: u64 = 50;
/// Bytes of a body that are copied into linear memory at a time.
pub const SLICE_BYTES: usize = 64 << 10;
/// Bytes of a body that a host waits for, before its end, where it can read them in place.
pub const READ_BYTES_MIN: usize = 4 << 10;
/// A rewrite that begins within this many bytes copies all bytes before it at once; a later one rotates the body in slices.
pub const REWRITE_FRONT_BYTES: usize = 1 << 20;
/// Nesting depth of a JSON body: one mask bit for each level.
pub const JSON_DEPTH_MAX: u32 = 127;
/// Decoded bytes of a nested JSON key that are kept for comparison.
pub const KEY_BYTES_MAX: usize = 64;
/// Bytes of a stream's event that the scanner keeps as a template for the next one.
pub const EVENT_TEMPLATE_BYTES_MAX: usize = 1_024;
/// Bytes at the end of a JSON response in which the scanner expects the token counts. A response of at most twice as many is read whole.
pub const RESPONSE_TAIL_BYTES: usize = 4_096;
/// Bytes at the begin of a long JSON response in which the scanner looks for an error.
pub const RESPONSE_HEAD_BYTES: usize = 512;
/// How long the headers of a response wait for the first event that shows whether it is an answer or an error.
pub const HEADERS_HELD: Duration = Duration::from_millis(250);
/// A request that was admitted by credit and runs for longer is reported before its end.
pub const LONG_ADMISSION: Duration = Duration::from_secs(10);
/// Bytes of a response that may wait with its headers.
pub const HELD_BYTES_MAX: usize = 64 << 10;
/// How long a waiting stream that should be kept alive waits until it is tried again while no companion is in charge.
pub const KEEP_ALIVE_RETRY: Duration = Duration::from_secs(1);
/// The longest wait of which a client's library is told in milliseconds. After a longer one it isn't to retry by itself.
pub const LIBRARY_WAIT_MAX_MS: u64 = 60_000;
/// Bytes of the headers of one part of a form.
pub const FORM_HEADER_BYTES_MAX: usize = 4_096;
/// Parts of a form that are read.
pub const FORM_PARTS_MAX: usize = 1_000;
/// Top-level strings of the body that a policy may name as identities.
pub const BODY_KEYS_MAX: usize = 16;
/// Bytes of an attachment (image, audio, file) that count as prompt text.
pub const ATTACHMENT_BYTES_MAX: u64 = 4_096;
/// Bytes of text that a token id in a prompt counts as.
pub const TOKEN_ID_BYTES: u64 = 4;
/// Bytes of one `ip:port` or of one taint in a header list.
pub const LIST_ENTRY_BYTES_MAX: usize = 64;
/// Bytes of a request id that are passed on.
pub const REQUEST_ID_BYTES_MAX: usize = 128;
/// Retries of a request that Envoy spreads round robin over the servers of its pool.
pub const RETRIES: usize = 2;
/// Bytes of a server's `retry-after` that are read: a number of seconds is shorter.
pub const RETRY_AFTER_TEXT_BYTES_MAX: usize = 20;
/// Bytes of a `traceparent` that are passed on: version 00 has 55, and later versions append to it.
pub const TRACEPARENT_BYTES_MAX: usize = 64;
/// Entries of any list in a policy: routes, pools, globs of a pool, networks, sources.
pub const POLICY_LIST_MAX: usize = 10_000;
/// How often the deadlines of waiting requests are checked while the companion is down.
pub const DEADLINE_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The shortest time between two ticks.
pub const TICK_MIN: Duration = Duration::from_millis(10);
/// Paused streams that one host callback resumes or answers. The host carries these out when the callback returns; each
/// calls back into the module, at whose end the host carries out the next one on the same stack. A few hundred overflow the
/// stack, which is a trap.
pub const STREAMS_RESUMED_MAX: usize = 32;
/// Time until the tick that resumes the remaining streams, if the host has no queues to call back by.
pub const RESUME_INTERVAL: Duration = Duration::from_millis(1);
/// The shortest `retry-after` of an error that the filter reports by itself.
pub const RETRY_AFTER_MIN_MS: u64 = 1_000;
/// The longest, before it is varied by up to a tenth.
pub const RETRY_AFTER_MAX_MS: u64 = 30_000;
/// How long a request without a pool waits for a companion that is down.
pub const HOLD_DEFAULT: Duration = Duration::from_secs(5);
/// How long a request without a pool may wait in total.
pub const TTL_DEFAULT: Duration = Duration::from_secs(30);
/// A worker that hasn't renewed its in-flight record for this long is dead, and its record no longer counts.
pub const IN_FLIGHT_RECORD_TTL: Duration = Duration::from_secs(10);
/// How often a worker tries to write its in-flight record while other workers write theirs.
pub const IN_FLIGHT_WRITE_ATTEMPTS: usize = 64;
/// Endpoints that Envoy may try for a request that the filter admits by itself.
pub const FALLBACK_ENDPOINTS_MAX: usize = 3;
/// Expected output tokens of a request that the filter admits by itself, unless the client sets a lower limit.
pub const FALLBACK_OUTPUT_TOKENS: u64 = 256;
/// Bytes of prompt text that count as one token of such a request.
pub const FALLBACK_BYTES_PER_TOKEN: u64 = 4;
/// Endpoints of an admission credit.
pub const CREDIT_ENDPOINTS_MAX: usize = 256;
/// Requests that an admission credit lets run at one endpoint.
pub const CREDIT_PLACES_MAX: u32 = 4_096;
/// Reports of requests that were admitted by credit, in one frame.
pub const REPORTS_MAX: usize = 16;
/// How long such a report may wait for others. The companion's gauges lag by less than 100 ms.
pub const REPORT_HOLD: Duration = Duration::from_millis(50);

const _: () = assert!(wire::HEARTBEAT_INTERVAL.as_millis() * 3 < IN_FLIGHT_RECORD_TTL.as_millis());
// An admission credit that has expired is returned at the next tick, before the companion would release its requests.
const _: () = assert!(
    wire::CREDIT_TTL.as_millis() + wire::HEARTBEAT_INTERVAL.as_millis() < wire::SESSION_GRACE.as_millis()
);
const _: () = assert!(FALLBACK_BYTES_PER_TOKEN > 0);
const _: () = assert!(RETRY_AFTER_MIN_MS <= RETRY_AFTER_MAX_MS);
// A token id is hashed as a number of 32 bits.
const _: () = assert!(TOKEN_ID_BYTES == 4);
const _: () = assert!(JSON_DEPTH_MAX < u128::BITS);
const _: () = assert!(KEY_BYTES_MAX <= wire::NAME_BYTES_MAX);
const _: () = assert!(TICK_MIN.as_millis() <= wire::BACKOFF_MIN.as_millis());
// An expired request is answered within 200 ms.
const _: () = assert!(DEADLINE_CHECK_INTERVAL.as_millis() * 2 <= 200);
// A full part of a Hello, with every list of every request at its limit, fits into a message.
const _: () = assert!(
    wire::HELLO_PART_REQUESTS * (2 * wire::LIST_MAX * (LIST_ENTRY_BYTES_MAX + 4) + 14 * wire::NAME_BYTES_MAX)
        < wire::MESSAGE_BYTES_MAX
);

/// Endpoints that a heartbeat reports as alive.
pub(crate) const ALIVE_MAX: usize = 1_024;

/// Pairs of an endpoint and a model that it has served.
pub(crate) const SERVED_MODELS_MAX: usize = 4_096;
