//! Metrics of several companions. They have series only with `replicas`.

use std::time::Duration;

use penstock_control::Status;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec};

use super::page::Page;
use super::{Maker, Metrics};
use crate::base::role::Roles;

const RENEW_SECONDS: [f64; 12] = [0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

/// Counters that the election of the leader updates.
#[derive(Debug)]
pub(super) struct ReplicaMetrics {
    failovers: IntCounterVec,
    renew_seconds: HistogramVec,
    lease_store_up: IntGaugeVec,
}

impl ReplicaMetrics {
    /// All families, without series.
    pub(super) fn new(make: &Maker) -> prometheus::Result<Self> {
        Ok(Self {
            failovers: make.counter(
                "failovers_total",
                "How often this companion became the leader after another companion. Only with replicas.",
                &[],
            )?,
            renew_seconds: make.seconds(
                "lease_renew_seconds",
                "Time of a renewal of the leader's lease, until the store has confirmed it. Only with replicas.",
                &[],
                &RENEW_SECONDS,
            )?,
            lease_store_up: make.gauge(
                "lease_store_up",
                "1 while the store of the leader's lease answers, else 0. Only with replicas.",
                &[],
            )?,
        })
    }

    /// Makes the series that start at 0.
    pub(super) fn init(&self) {
        self.failovers();
        self.renew_seconds();
    }

    fn failovers(&self) -> IntCounter {
        self.failovers.with_label_values::<&str>(&[])
    }

    fn renew_seconds(&self) -> Histogram {
        self.renew_seconds.with_label_values::<&str>(&[])
    }
}

impl Metrics {
    /// Counts that this companion became the leader after another.
    pub(crate) fn count_failover(&self) {
        self.replicas.failovers().inc();
    }

    /// How often this companion became the leader after another.
    #[cfg(test)]
    pub(crate) fn failovers(&self) -> u64 {
        self.replicas.failovers().get()
    }

    /// Records a confirmed renewal of the leader's lease, and the time from the request to the answer.
    pub(crate) fn record_lease_renewal(&self, took: Duration) {
        self.replicas.renew_seconds().observe(took.as_secs_f64());
    }

    /// Sets whether the store of the leader's lease answers.
    pub(crate) fn set_lease_store_up(&self, is_up: bool) {
        self.replicas.lease_store_up.with_label_values::<&str>(&[]).set(is_up.into());
    }
}

/// Adds the gauges of the roles, without series if `roles` is `None`. Where each pool has a leader of its own, `term` has the label
/// `pool`.
pub(super) fn render(page: &mut Page, status: &Status, roles: Option<&Roles>) {
    const TERM: &str = "The term of the leader that this companion knows; 0: unknown. Only with replicas; by pool, if each has a leader.";
    let by_pool: Vec<_> = status.pools.iter().filter(|pool| !pool.retired).collect();
    page.gauge(
        "leader",
        "1 while this companion leads the pool, 0 while it is a standby. Only with replicas.",
        ["pool"],
        |series| {
            for pool in &by_pool {
                series.add([&pool.name], roles.map(|roles| roles.of(&pool.name).is_leader()));
            }
        },
    );
    if let Some(roles @ Roles::Pools(_)) = roles {
        page.gauge("term", TERM, ["pool"], |series| {
            for pool in by_pool {
                series.add([&pool.name], roles.of(&pool.name).term);
            }
        });
    } else {
        page.gauge("term", TERM, [], |series| series.add([], roles.map(|roles| roles.summary().term)));
    }
}
