//! The limits of this crate.

use core::time::Duration;

/// Envoys of a record. A control has at most so many root contexts. The record stays below 256 KiB as JSON, the limit of
/// the annotations of a Kubernetes object.
pub const ENVOYS_MAX: usize = 4_096;
/// Workers of earlier leaders' endpoint pickers in a record. The record stays below the limit of [`ENVOYS_MAX`] with them.
pub const PICKERS_MAX: usize = 128;
/// The leader grants for this part of the lease's duration after it sent the last successful request. The rest covers
/// clocks whose rates differ.
pub(crate) const GRANTS: (u32, u32) = (2, 3);
/// The lease is renewed after this part of its duration.
pub(crate) const RENEWALS: u32 = 3;
/// A request may take this part of the lease's duration. Then the leader learns that the store is unreachable before it must
/// stop granting.
pub(crate) const ANSWERS: u32 = 4;
/// After a failed request the next one follows after this part of the lease's duration.
pub(crate) const RETRIES: u32 = 12;

/// A companion that a pool prefers least leaves the pool's free lease to others for this part of the lease's duration.
pub(crate) const HESITATIONS: u32 = 30;
/// A companion asks for a pool that prefers it after so long. A companion that starts has checked its endpoints by then, and one
/// that starts again and again moves no pools.
pub(crate) const CLAIM_WAIT: Duration = Duration::from_secs(10);
/// Until it has led the pool, it waits twice as long after each time that it asked, so often.
pub(crate) const CLAIM_DOUBLINGS: u32 = 5;
/// A leader that has left a pool in vain, and leads it again, leaves it no more for so long.
pub(crate) const YIELD_WAIT: Duration = Duration::from_secs(60);

const _: () = assert!(RETRIES > RENEWALS);
// 1 / RENEWALS + 1 / ANSWERS < 2 / 3
const _: () = assert!(3 * (RENEWALS + ANSWERS) < 2 * RENEWALS * ANSWERS);
const _: () = assert!(GRANTS.0 == 2 && GRANTS.1 == 3);
