//! Every limit of the control, and how they relate: a filter that lies can't make it keep more than this.

use core::time::Duration;

use penstock_wire::limits::{HELLO_PART_REQUESTS, SILENCE, UNACKED_EVENTS_MAX};

/// Streams at a time, those that haven't said Hello included.
pub(crate) const STREAMS_MAX: usize = 8_192;
/// Root contexts at a time, the orphaned ones included.
pub(crate) const CONTEXTS_MAX: usize = 4_096;
/// Characters of what an Envoy is called.
pub(crate) const NODE_CHARS_MAX: usize = 256;
/// Requests of one root context that haven't ended, and so those that its Hello names.
pub(crate) const REQUESTS_MAX: usize = 65_536;
/// Requests of all root contexts together.
pub(crate) const REQUESTS_IN_ALL_MAX: usize = 1 << 20;
/// Bytes of one Hello, all parts together.
pub(crate) const HELLO_BYTES_MAX: usize = 64 << 20;
/// Ended requests that a root context is remembered by, however well it acknowledges.
pub(crate) const COUNTED_MIN: usize = UNACKED_EVENTS_MAX;
/// Ended requests that a root context is remembered by, if it acknowledges nothing.
pub(crate) const COUNTED_MAX: usize = 65_536;
/// Frames to one root context whose acknowledgement is watched for.
pub(crate) const MARKS_MAX: usize = 1_024;
/// Requests of one root context that have entered again as others.
pub(crate) const MOVED_MAX: usize = 65_536;
/// Requests that one request has been before.
pub(crate) const TRAIL_MAX: usize = 16;
/// A deadline that is found to be over for this long was missed because nothing ran here: it slept.
pub(crate) const SLEPT_MIN: Duration = Duration::from_secs(1);
/// For how long an endpoint that an Envoy passed over isn't granted to it; then it is tried again.
pub(crate) const AVOIDED_FOR: Duration = Duration::from_secs(60);
/// Over so long a pool's servers are averaged; once in it their model is learned anew.
pub(crate) const WINDOW: Duration = Duration::from_secs(10);

const _: () = assert!(COUNTED_MIN < COUNTED_MAX);
const _: () = assert!(SLEPT_MIN.as_millis() * 2 < SILENCE.as_millis());
const _: () = assert!(HELLO_PART_REQUESTS < REQUESTS_MAX);
// Whoever fills the queue of a context can be told what became of it, once per request.
const _: () = assert!(REQUESTS_MAX <= COUNTED_MAX);
