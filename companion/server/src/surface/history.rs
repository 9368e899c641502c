//! The last 15 minutes of every pool, for the charts of the dashboard: one sample every 5 s, in a bounded ring.
//!
//! A sample consists of the values that `/metrics` exports at the same moment: gauges as they are, counters as their increase
//! since the sample before. One task takes the samples. Decisions don't wait for it: it asks the driver for its status as
//! a scrape of `/metrics` does, and only the HTTP server shares its lock.

mod document;
mod limits;
mod pool_sampler;
mod quantile;
mod ring;
mod sample;
mod sampler;
mod tenants;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

pub(crate) use self::document::HistoryQuery;
use self::limits::{INTERVAL, TIME_SHARE};
use self::ring::Ring;
use self::sample::Sample;
use self::sampler::Sampler;
use crate::active::reload;
use crate::base::clock::{self, Clock};
use crate::base::role::RoleReceiver;
use crate::decisions::driver::Handle;
use crate::metrics::Metrics;

/// The samples of this companion.
#[derive(Debug)]
pub(crate) struct History {
    /// Distinguishes this companion from earlier and later ones at the same address.
    instance: Box<str>,
    ring: Mutex<Ring>,
}

/// The sources of the samples.
#[derive(Debug)]
struct Sources {
    driver: Handle,
    metrics: Arc<Metrics>,
    config: reload::Handle,
    /// The pools that this companion leads.
    roles: RoleReceiver,
}

impl Default for History {
    fn default() -> Self {
        let started = clock::unix().as_nanos();
        Self { instance: format!("{started:x}-{:x}", std::process::id()).into(), ring: Mutex::default() }
    }
}

impl History {
    fn push(&self, sample: Sample) {
        self.with_ring(|ring| ring.push(sample));
    }

    fn with_ring<T>(&self, action: impl FnOnce(&mut Ring) -> T) -> T {
        action(&mut self.ring.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Starts the task that takes the samples. It ends with the driver.
#[must_use]
pub(crate) fn spawn(
    driver: &Handle,
    metrics: &Arc<Metrics>,
    config: &reload::Handle,
    roles: &RoleReceiver,
) -> Arc<History> {
    let sources = Sources {
        driver: driver.clone(),
        metrics: metrics.clone(),
        config: config.clone(),
        roles: roles.clone(),
    };
    let history = Arc::new(History::default());
    tokio::spawn(take_samples(sources, history.clone()));
    history
}

async fn take_samples(sources: Sources, history: Arc<History>) {
    let (clock, started) = (Clock::start(), clock::unix());
    let mut sampler = Sampler::default();
    loop {
        let begun = Instant::now();
        let Ok(mut status) = sources.driver.status().await else {
            return;
        };
        if let Some(roles) = &sources.roles {
            let roles = roles.borrow().clone();
            status.pools.retain(|pool| roles.of(&pool.name).is_leader());
        }
        // Grows steadily, even if an administrator sets the clock.
        let time = started.saturating_add(clock.uptime());
        let config = sources.config.active().config;
        history.push(sampler.sample(time, &status, &config, &sources.metrics.totals()));
        tokio::time::sleep_until(begun + pause(begun.elapsed())).await;
    }
}

/// The time from the beginning of a sample to the next one. Samples of very many flows are taken less often.
fn pause(took: Duration) -> Duration {
    INTERVAL.max(took.saturating_mul(TIME_SHARE))
}
