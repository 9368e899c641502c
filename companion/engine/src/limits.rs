//! Every limit of the engine, and how the limits relate.

use core::time::Duration;

/// Bytes that one body counts at most, so that sums over the queue stay far from overflow.
pub const BODY_BYTES_MAX: u64 = 1 << 40;
/// Endpoints of a pool.
pub const ENDPOINTS_MAX: usize = 4_096;
/// Prefix hashes of a request.
pub const PREFIX_HASHES_MAX: usize = 32;
/// Prefix hashes, per endpoint that computed them, that a pool remembers.
pub const PREFIXES_MAX: usize = 131_072;
/// Sequences of a request.
pub const SEQUENCES_MAX: u64 = 16_384;
/// Requests at one endpoint whose clients have left and whose load still counts. Past it the oldest counts no longer.
pub const ABANDONED_MAX: usize = 4_096;
/// For how long such a request counts at most, in seconds. After that what the server reports is foreign.
pub const ABANDONED_KEPT_S: u64 = 600;
/// An endpoint where nothing but such requests runs, and whose server generates no token for this many seconds, may report an
/// old number: what it reports is foreign then, and so the endpoint takes one request.
pub const ABANDONED_STILL_S: u64 = 3;
/// These seconds where the server doesn't report its tokens.
pub const ABANDONED_ALONE_S: u64 = 20;
/// The flows with nothing running that are seen at an event, for a place above a bound.
pub const IDLE_FLOWS_SEEN: usize = 16;
/// The critical requests that have waited for too long and are seen at an event, to evict other requests for them: the first ones of many.
pub const OVERDUE_SEEN: usize = 32;
/// Those of them that no limit of their own holds back, and for which a request to evict is looked for at an event.
pub const OVERDUE_TRIED: usize = 4;
/// A request that was asked to end has so long, and its server with it. Then another one of the pool may be asked.
pub const EVICTION_WAIT: Duration = Duration::from_secs(5);
/// The running requests that are seen for each of them: those that were granted last.
pub const SILENT_SEEN: usize = 32;
/// The tenants whose requests were asked to end last, which are remembered so that others take their turns.
pub const EVICTED_FLOWS_KEPT: usize = 16;
/// So many answers an endpoint may miss after a request was asked to end there. One that runs a part s of the pool's requests has missed n once the
/// pool has begun n / s answers since then, and the endpoint none.
pub const MISSED_ANSWERS_MAX: u64 = 4;
/// Endpoints in a grant: the first choice and its fallbacks.
pub const GRANT_ENDPOINTS_MAX: usize = 3;
/// Flows with state of their own, beside those that the policy names. Further identities share [`OVERFLOW_FLOWS`].
pub const FLOWS_MAX: usize = 100_000;
/// Flows that further identities share, by seeded hash, when the table is full.
pub const OVERFLOW_FLOWS: usize = 64;
/// Identities whose last displacement in a band is remembered although nothing of them waits or runs there.
pub const DISPLACED_REMEMBERED_MAX: usize = 4_096;
/// Sets of endpoints that the waiting requests of one flow are kept apart by. Requests with further sets share the last.
pub const LANES_MAX: usize = 32;
/// Flows with requests for several sets of endpoints that follow one set. Further flows wait for their first request alone.
pub const WATCHERS_MAX: usize = 64;
/// Budgets of a pool.
pub const BUDGETS_MAX: usize = 256;
/// Windows of a budget.
pub const BUDGET_WINDOWS_MAX: usize = 8;
/// Flows whose usage of their budgets is kept, beside those that the policy names. Past it the flow that was charged least recently, and
/// runs nothing, starts anew.
pub const BUDGET_FLOWS_MAX: usize = 100_000;
/// A step in which a sliding window of a budget is counted lasts a 60th of the window. The window keeps one step more.
pub const BUDGET_STEPS: u64 = 60;
/// For so long at most an engine ignores others' usage of a flow that it has reset, and the store of engines remembers a reset.
pub const BUDGET_RESET_KEPT: Duration = Duration::from_secs(3_600);
/// Remembered resets of a pool. Past it the oldest is forgotten.
pub const BUDGET_RESETS_MAX: usize = 10_000;
/// Classes of a pool.
pub const CLASSES_MAX: usize = 1_024;
/// Flows with remembered answer lengths and service, whether they still exist or not.
pub const HISTORIES_MAX: usize = 4_096;
/// Models with remembered prompt ratios and answer lengths.
pub const MODELS_MAX: usize = 256;
/// Models with an id of their own. Further models share [`MODELS_SHARED`].
pub const MODELS_NUMBERED_MAX: usize = 4_096;
/// Ids that further models share, by seeded hash.
pub const MODELS_SHARED: usize = 64;
/// Answers that a median is taken over.
pub const OUTPUTS_KEPT: usize = 128;
/// Endpoints that a request avoids at a time because they failed it.
pub const AVOIDED_MAX: usize = 8;
/// The pause for which a request avoids an endpoint after its first failure, in milliseconds. Each failure doubles it.
pub const PAUSE_MIN_MS: u64 = 100;
/// The longest such pause, in milliseconds.
pub const PAUSE_MAX_MS: u64 = 1_000;
/// The longest Retry-After, in seconds.
pub const RETRY_AFTER_MAX_S: u64 = 120;

const _: () = assert!(LANES_MAX <= 1 << 8);
const _: () = assert!(OVERFLOW_FLOWS < FLOWS_MAX);
const _: () = assert!(PREFIX_HASHES_MAX < PREFIXES_MAX);
const _: () = assert!(GRANT_ENDPOINTS_MAX <= ENDPOINTS_MAX);
const _: () = assert!(PAUSE_MIN_MS <= PAUSE_MAX_MS);
/// Kinds of requests whose last answers a pool remembers.
pub const KINDS_MAX: usize = 2_048;
/// Endpoints that are remembered of each kind.
pub const KIND_ENDPOINTS_MAX: usize = 8;
/// Pairs of a model and path, and an endpoint that answered it lately.
pub const LAST_ANSWERS_MAX: usize = 16_384;
/// Failures in a row of which an endpoint remembers more than their number.
pub const RUN_MAX: usize = 32;
