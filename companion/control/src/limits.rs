//! Every limit of this crate, and how they relate. A filter that sends wrong messages can't make a control keep more.

use core::time::Duration;

use penstock_wire::limits::{CREDIT_TTL, HELLO_PART_REQUESTS, SILENCE, UNACKED_EVENTS_MAX};

/// Open streams, including those without a complete Hello.
pub(crate) const STREAMS_MAX: usize = 65_536;
/// Root contexts, including orphaned ones.
pub(crate) const CONTEXTS_MAX: usize = 32_768;
/// Characters of an Envoy's node name.
pub(crate) const NODE_CHARS_MAX: usize = 256;
/// Requests of one root context that haven't ended, and so the requests that its Hello may name.
pub(crate) const REQUESTS_MAX: usize = 65_536;
/// Requests of all root contexts together.
pub(crate) const REQUESTS_IN_ALL_MAX: usize = 1 << 20;
/// Bytes of one Hello, all parts together.
pub(crate) const HELLO_BYTES_MAX: usize = 64 << 20;
/// Ended requests that are remembered of a root context, even if it acknowledges every frame at once.
pub(crate) const ENDED_MIN: usize = UNACKED_EVENTS_MAX;
/// Ended requests that are remembered of a root context that acknowledges nothing.
pub(crate) const ENDED_MAX: usize = 65_536;
/// Frames to one root context for which the number of ended requests is remembered.
pub(crate) const FRAME_MARKS_MAX: usize = 1_024;
/// Aliases of one root context: previous keys of requeued requests.
pub(crate) const ALIASES_MAX: usize = 65_536;
/// Previous keys of one request.
pub(crate) const PREVIOUS_KEYS_MAX: usize = 16;
/// Prompt tokens that a body may not show: templates of the server, images and videos by address, stored conversations.
pub(crate) const PROMPT_TOKENS_UNSEEN: u64 = 1 << 20;
/// Output tokens that an answer may not show: reasoning that the server keeps. Only of requests without a limit of their own.
pub(crate) const OUTPUT_TOKENS_UNSEEN: u64 = 1 << 18;
/// Bytes of an answer's text that count as one token.
pub(crate) const TEXT_BYTES_PER_TOKEN: u64 = 4;
/// The time between two tokens while no answer has shown it.
pub(crate) const TOKEN_TIME_DEFAULT: Duration = Duration::from_millis(20);
/// Models with a remembered pool.
pub(crate) const RESOLVED_MODELS_MAX: usize = 4_096;
/// Models without requests whose counts a pool keeps.
pub(crate) const IDLE_MODELS_MAX: usize = 1_000;
/// Grant messages whose memory is kept for the next grants.
pub(crate) const SPENT_GRANTS_MAX: usize = 256;
/// Lists of commands whose memory is kept for the next frames.
pub(crate) const SPENT_LISTS_MAX: usize = 16;
/// Places of a list whose memory is kept.
pub(crate) const SPENT_COMMANDS_MAX: usize = 256;
/// A timer that is late by this much was missed because the process was suspended.
pub(crate) const SUSPENDED_MIN: Duration = Duration::from_secs(1);
/// Places that a filter may have in a pool.
pub(crate) const CREDIT_MAX: u64 = 1_024;
/// The places that a filter gets first, at most. It gets no more than a quarter of its part, because a filter with few requests needs few.
pub(crate) const CREDIT_FIRST: u64 = 4;
/// A filter that hasn't returned a recalled credit after this time loses its session, and with it the credit.
pub(crate) const RECALL_WAIT: Duration = SILENCE;
/// Time for which an endpoint isn't granted to an Envoy that passed it over.
pub(crate) const AVOIDED_FOR: Duration = Duration::from_secs(60);
/// Errors of servers that are remembered of a request.
pub(crate) const FAILED_AT_MAX: usize = 16;
/// Models that some endpoint doesn't have, as a pool remembers them.
pub(crate) const MISSING_MODELS_MAX: usize = 1_024;
/// Endpoints that are remembered of each such model.
pub(crate) const MISSING_ENDPOINTS_MAX: usize = 64;
/// The autopilot's window: endpoints are averaged over it, and their model is learned once in it.
pub(crate) const WINDOW: Duration = Duration::from_secs(10);
/// Filters whose clocks seem to differ by less than this are taken to be on one host. A Hello takes less, even on a busy machine; hosts that
/// started within so short a time of each other are few, and the order of their requests is wrong by no more.
pub(crate) const CLOCKS_AGREE: Duration = Duration::from_millis(100);
/// How long the clock of a host is known from a Hello. The filters of a last leader say Hello in a shorter time; clocks that drift by 0.1 %
/// differ by a tenth of [`CLOCKS_AGREE`] after it.
pub(crate) const CLOCKS_KEPT: Duration = Duration::from_secs(10);
/// Hosts whose clocks are known.
pub(crate) const CLOCKS_MAX: usize = 16_384;

const _: () = assert!(ENDED_MIN < ENDED_MAX);
const _: () = assert!(SUSPENDED_MIN.as_millis() * 2 < SILENCE.as_millis());
// A filter gives up by itself what isn't renewed.
const _: () = assert!(CREDIT_TTL.as_millis() < RECALL_WAIT.as_millis());
const _: () = assert!(HELLO_PART_REQUESTS < REQUESTS_MAX);
// All requests of one root context may be rejected at once, and every rejection is remembered.
const _: () = assert!(REQUESTS_MAX <= ENDED_MAX);
