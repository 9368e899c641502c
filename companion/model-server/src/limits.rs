//! Limits of the simulation.

/// Jobs that wait at one server.
pub const WAITING_MAX: usize = 65_536;
/// Sequences in one batch.
pub const SEQS_MAX: usize = 4_096;
/// Tokens of one server's KV cache, and so the most tokens of one job.
pub const KV_TOKENS_MAX: u64 = 1 << 30;
/// The highest cost of an iteration, a processed token or a resident token, in milliseconds.
pub const COST_MS_MAX: f64 = 60_000.0;
/// Default for the tokens processed in one iteration: decodes first, prompts share the rest.
pub const BATCHED_TOKENS: u64 = 8_192;

const _: () = assert!(SEQS_MAX as u64 <= BATCHED_TOKENS);
const _: () = assert!(SEQS_MAX <= WAITING_MAX);
