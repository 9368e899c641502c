//! Every limit of the model, and how they relate.

/// Requests that a ledger follows at one endpoint.
pub const RUNNING_MAX: usize = 4_096;
/// Requests that have ended there and overlap one that isn't settled.
pub const PAST_MAX: usize = 4_096;
/// For so many times those that run at its end, others end before a request is settled though some still run.
pub const PATIENCE: u64 = 2;
/// The most tokens that any request may have.
pub const TOKENS_MAX: f64 = 1e9;
/// Observations kept of each quarter octave of the load.
pub const BUCKET: usize = 256;
/// Quarter octaves of the load: up to 2^14 tokens in an iteration; the last holds all above.
pub const BUCKETS: usize = 57;
/// Requests of a variant after which an observation is too old.
pub const AGE_MAX: u64 = 3_000;
/// Milliseconds in which none is: a fast server makes that many between two looks at another load.
pub const AGE_MS_MAX: f64 = 1_800_000.0;
