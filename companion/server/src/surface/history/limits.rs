//! The limits of the history, and the proof that it keeps within its memory.

use std::time::Duration;

use super::sample::{EndpointSample, PoolSample, Sample, TenantSample};

/// The time between two samples.
pub(super) const INTERVAL: Duration = Duration::from_secs(5);
/// The samples that are kept: 15 minutes.
pub(super) const SAMPLES_MAX: usize = 180;
/// A sample that took more than this part of [`INTERVAL`] to take postpones the next one, so that sampling takes at most 1 % of
/// the time.
pub(super) const TIME_SHARE: u32 = 100;
/// The memory of all samples and of the names in them. A ring with very long names drops its oldest samples earlier.
pub(super) const BYTES_MAX: usize = 16 << 20;

/// Pools of a sample; the configuration's first.
pub(super) const POOLS_MAX: usize = 48;
/// Endpoints of one pool; those that were listed first.
pub(super) const ENDPOINTS_MAX: usize = 64;
/// Public tenants of one pool, and as many private ones.
pub(super) const TENANTS_MAX: usize = 16;
/// Rows of a sample: endpoints and tenants of all pools.
const ROWS_MAX: usize = 768;
/// Private flows of a pool whose earlier use is remembered, so that their increase can be computed.
pub(super) const PRIVATE_FLOWS_MAX: usize = 256;

/// The samples over which quantiles and means are computed: a minute.
pub(super) const WINDOW_SAMPLES: usize = 12;

/// The length that names have in the proof below.
const TYPICAL_NAME_BYTES: usize = 24;

const SAMPLE_BYTES_MAX: usize = size_of::<Sample>()
    + POOLS_MAX * (size_of::<PoolSample>() + size_of::<TenantSample>())
    + ROWS_MAX * (largest_row() + TYPICAL_NAME_BYTES);
const _: () = assert!(SAMPLES_MAX * SAMPLE_BYTES_MAX <= BYTES_MAX);
const _: () = assert!(SAMPLES_MAX as u64 * INTERVAL.as_secs() == 15 * 60);
const _: () = assert!(WINDOW_SAMPLES as u64 * INTERVAL.as_secs() == 60);

const fn largest_row() -> usize {
    let (tenant, endpoint) = (size_of::<TenantSample>(), size_of::<EndpointSample>());
    if tenant > endpoint { tenant } else { endpoint }
}

/// The rows of one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) endpoints: usize,
    /// Public tenants, and as many private ones.
    pub(super) tenants: usize,
}

impl Room {
    /// The rows of each of `pools`.
    pub(super) const fn of(pools: usize) -> Self {
        let rows = match ROWS_MAX.checked_div(pools) {
            Some(rows) => rows,
            None => ROWS_MAX,
        };
        let (endpoints, tenants) = (rows * 2 / 3, rows / 6);
        Self {
            endpoints: if endpoints < ENDPOINTS_MAX { endpoints } else { ENDPOINTS_MAX },
            tenants: if tenants < TENANTS_MAX { tenants } else { TENANTS_MAX },
        }
    }
}
