//! Every limit of this crate.

/// Running requests that an overlap tracker follows at one endpoint.
pub const RUNNING_MAX: usize = 4_096;
/// Completed requests that an overlap tracker keeps because they overlap an unsettled one.
pub const PAST_MAX: usize = 4_096;
/// A completed request settles after this many times the number of requests that ran at its end have ended, even if
/// some that overlap it still run.
pub const SETTLE_ROUNDS: u64 = 2;
/// Sequences of one request that the load of its neighbours counts.
pub const SEQUENCES_MAX: u32 = 1_024;
/// The largest token count that is accepted for one request.
pub const TOKENS_MAX: f64 = 1e9;
/// Observations that the reservoir keeps for each quarter octave of the load.
pub const BUCKET: usize = 256;
/// Quarter octaves of the load: up to 2^14 tokens in an iteration. The last one holds all larger loads.
pub const BUCKETS: usize = 57;
/// An observation expires after this many newer ones of its variant, unless it is younger than [`AGE_MS_MAX`].
pub const AGE_MAX: u64 = 3_000;
/// Milliseconds during which no observation expires: a fast server serves [`AGE_MAX`] requests between two probes of
/// another load.
pub const AGE_MS_MAX: f64 = 1_800_000.0;
