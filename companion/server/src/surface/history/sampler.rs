//! Makes samples of all pools.

use std::time::Duration;

use penstock_config::Config;
use penstock_control::Status;

use super::limits::{POOLS_MAX, Room};
use super::pool_sampler::{PoolSampler, Unrouted, stock_unit};
use super::sample::Sample;
use crate::metrics::{NO_POOL, PoolTotals, Totals};

/// All pools at the sample before.
#[derive(Debug, Default)]
pub(super) struct Sampler {
    pools: Vec<PoolSampler>,
    unrouted: Unrouted,
}

impl Sampler {
    /// The sample of the moment of `status` and `totals`. `time` is since 1970.
    pub(super) fn sample(
        &mut self,
        time: Duration,
        status: &Status,
        config: &Config,
        totals: &Totals,
    ) -> Sample {
        let nothing = PoolTotals::default();
        let totals_of = |name: &str| totals.get(name).unwrap_or(&nothing);
        let pools = status.pools.iter().take(POOLS_MAX);
        let room = Room::of(pools.len());
        let mut before = std::mem::take(&mut self.pools);
        let mut samples = Vec::with_capacity(pools.len());
        for status in pools {
            let known = before.iter().position(|pool| pool.name() == &*status.name);
            let mut sampler = match known {
                Some(index) => before.swap_remove(index),
                None => PoolSampler::new(&status.name),
            };
            let unit = stock_unit(config, &status.name);
            samples.push(sampler.sample(status, unit, totals_of(&status.name), room));
            self.pools.push(sampler);
        }
        // A pool that this companion leads again later still has its counters.
        before.retain(|pool| totals.contains_key(pool.name()));
        self.pools.append(&mut before);
        Sample {
            time_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            unrouted: self.unrouted.advance(totals_of(NO_POOL)),
            pools: samples.into(),
        }
    }
}
