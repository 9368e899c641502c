//! Every limit of the engine, and how they relate.

/// Bytes that one body counts at most: sums of what waits stay far from overflow.
pub const BODY_BYTES_MAX: u64 = 1 << 40;
/// Endpoints of one pool.
pub const ENDPOINTS_MAX: usize = 4_096;
/// Beginnings of a prompt that a request names.
pub const PREFIX_HASHES_MAX: usize = 32;
/// Beginnings of prompts, by endpoint, that are remembered in a pool.
pub const PREFIXES_MAX: usize = 131_072;
/// Endpoints named in a grant: the first choice and its fallbacks.
pub const GRANT_ENDPOINTS_MAX: usize = 3;
/// Flows with state of their own; past it new identities share [`OVERFLOW_FLOWS`].
pub const FLOWS_MAX: usize = 100_000;
/// Flows that new identities share, by seeded hash, when the table is full.
pub const OVERFLOW_FLOWS: usize = 64;
/// Classes of a pool.
pub const CLASSES_MAX: usize = 1_024;
/// Flows whose answers and service are remembered after they are gone.
pub const HISTORIES_MAX: usize = 4_096;
/// Models whose prompts and answers are remembered.
pub const MODELS_MAX: usize = 256;
/// Models with a number of their own; past it they share [`MODELS_SHARED`].
pub const MODELS_NUMBERED_MAX: usize = 4_096;
/// Numbers that further models share, by seeded hash.
pub const MODELS_SHARED: usize = 64;
/// Answers that a median is taken over.
pub const OUTPUTS_KEPT: usize = 128;
/// The longest Retry-After, in seconds.
pub const RETRY_AFTER_MAX_S: u64 = 120;

const _: () = assert!(OVERFLOW_FLOWS < FLOWS_MAX);
const _: () = assert!(PREFIX_HASHES_MAX < PREFIXES_MAX);
const _: () = assert!(GRANT_ENDPOINTS_MAX <= ENDPOINTS_MAX);
