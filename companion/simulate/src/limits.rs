//! The limits of a simulation.

/// Requests of a trace.
pub const TRACE_REQUESTS_MAX: usize = 10_000_000;
/// Bytes of one line of a trace.
pub const TRACE_LINE_BYTES_MAX: u64 = 1 << 20;
/// Tokens of a prompt, and of an answer.
pub const TOKENS_MAX: u64 = 10_000_000;
/// Tenants to which a trace is dealt.
pub const TENANTS_MAX: usize = 10_000;
/// Servers of one run.
pub const SERVERS_MAX: usize = 10_000;
