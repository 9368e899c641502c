//! Every limit of the simulation, and how they relate.

/// Jobs that wait at one server.
pub const WAITING_MAX: usize = 65_536;
/// Sequences in one batch.
pub const SEQS_MAX: usize = 4_096;
/// Tokens of the KV cache of one server, and so of one job.
pub const KV_TOKENS_MAX: u64 = 1 << 30;
/// The dearest that an iteration, a token in it, or a resident token may be, in milliseconds.
pub const COST_MS_MAX: f64 = 60_000.0;
/// Tokens processed in one iteration, where nothing else is said: decodes first, prompts share the rest.
pub const BATCHED_TOKENS: u64 = 8_192;

const _: () = assert!(SEQS_MAX as u64 <= BATCHED_TOKENS);
const _: () = assert!(SEQS_MAX <= WAITING_MAX);
