//! Prompts that begin alike: their hashes, as a filter computes them, and their cached part.

use super::scenario::SharedPrefix;

/// Length in bytes of the shortest hashed prefix.
const FIRST_BYTES: f64 = 256.0;
/// Hashes of one prompt at most.
const HASHES_MAX: u64 = 32;

/// The hashes of a prompt of this length: each prefix is longer than the one before by the root of two.
pub(super) fn hashes(shared: &SharedPrefix, request: u64, bytes: u64) -> Box<[u64]> {
    let (whole, common) = (bytes as f64, shared.part * bytes as f64);
    let mut length = FIRST_BYTES;
    let mut hashes = Vec::new();
    for index in 0..HASHES_MAX {
        if length > whole {
            break;
        }
        let text = if length <= common { 0 } else { request + 1 };
        hashes.push(text * HASHES_MAX + index);
        length *= core::f64::consts::SQRT_2;
    }
    hashes.into()
}

/// Prompt tokens that a server with the shared prefix has in its cache.
pub(super) fn cached_tokens(shared: &SharedPrefix, input: u64) -> u64 {
    ((shared.part * input as f64) as u64).min(input.saturating_sub(1))
}
