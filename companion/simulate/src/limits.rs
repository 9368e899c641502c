//! The limits of a simulation.

use std::time::Duration;

/// Requests of one run. A run needs about 180 bytes of memory for each.
pub const REQUESTS_MAX: usize = 2_000_000;
/// Bytes of one line of a trace.
pub const TRACE_LINE_BYTES_MAX: usize = 1 << 20;
/// Tokens of a prompt, and of an answer.
pub const TOKENS_MAX: u64 = 10_000_000;
/// The time from the first to the last arrival of a run.
pub const ARRIVALS_MAX: Duration = Duration::from_hours(31 * 24);
/// After the last arrival and the longest wait, a run goes on for so long; what isn't served then is unfinished.
pub const DRAIN_MAX: Duration = Duration::from_hours(1);
/// Tenants to which a trace is dealt.
pub const TENANTS_MAX: usize = 10_000;
/// Servers of one run.
pub const SERVERS_MAX: usize = 1_000;
/// Runs of one simulation: policies times numbers of servers.
pub const RUNS_MAX: usize = 128;
/// Parts of a run over whose time the load is recorded.
pub const PARTS: usize = 60;

const _: () = assert!(SERVERS_MAX <= penstock_engine::limits::ENDPOINTS_MAX);
