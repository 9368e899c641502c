//! Statistics of each pool's last minutes, on which advice is based beside the present state.
//!
//! The driver records observations and reads the statistics on request; nothing runs in the background. Counts are kept
//! in slots of half a minute, so that the sum over five minutes reads ten slots.

use std::sync::Arc;
use std::time::Duration;

use penstock_control::{Labels, Observation, RequestNews};
use penstock_engine::input::Band;
use penstock_engine::{Instant, Outcome};
use penstock_wire::Code;

/// The time that the counts cover.
pub(crate) const WINDOW: Duration = Duration::from_secs(SLOT_S * SLOTS as u64);
const SLOT_S: u64 = 30;
const SLOTS: usize = 10;

/// The statistics of all pools.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecentStats {
    pools: Vec<(Arc<str>, PoolStats)>,
    misconfigured: Option<(Instant, Box<str>)>,
}

/// The statistics of one pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct PoolStats {
    slots: [Slot; SLOTS],
    bands: [BandStats; 3],
    /// The last request that was rejected because of its flow's limit.
    last_flow_rejection: Option<Arc<Labels>>,
}

/// Counts of requests by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) granted: u64,
    /// Expired after the ttl, by a decision of the companion.
    pub(crate) expired: u64,
    /// Expired after the ttl in filters that knew of no decision.
    pub(crate) expired_at_filters: u64,
    /// Rejected or displaced because the queue was full.
    pub(crate) full: u64,
    /// Rejected because of the flow's limit.
    pub(crate) flow_capacity: u64,
    /// Rejected because of the class's limit.
    pub(crate) class_capacity: u64,
    /// Rejected because no endpoint was ready.
    pub(crate) no_endpoints: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// The number of its half minute since the clock's zero.
    number: u64,
    counts: Counts,
}

/// The statistics of one band.
#[derive(Clone, Copy, Debug, Default)]
struct BandStats {
    /// Requests that arrived and haven't left the queue.
    waiting: u64,
    /// The first arrival since the last grant of the band, or since its queue was empty.
    since: Option<Instant>,
    last_grant: Option<Instant>,
}

impl RecentStats {
    /// Records an observation.
    pub(crate) fn record(&mut self, now: Instant, observation: &Observation) {
        let Observation::Request(labels, news) = observation else { return };
        match news {
            RequestNews::Arrived(_) => {
                let band = &mut self.pool_mut(labels).bands[labels.band as usize];
                band.waiting += 1;
                band.since.get_or_insert(now);
            }
            RequestNews::Decided(decided) => self.record_decision(now, labels, decided.outcome),
            RequestNews::Refused(refused) => {
                if refused.code == Code::FilterMisconfigured {
                    self.misconfigured = Some((now, refused.node.clone()));
                }
                if !refused.was_granted {
                    let band = &mut self.pool_mut(labels).bands[labels.band as usize];
                    band.request_left();
                }
                match Outcome::from_name(&refused.outcome) {
                    Some(Outcome::ExpiredTtl) => self.pool_mut(labels).slot(now).expired_at_filters += 1,
                    Some(outcome) if !outcome.is_grant() => self.record_outcome(now, labels, outcome),
                    Some(_) | None => {}
                }
            }
            // The grant was the request's end for its band. Its refusal is one like others.
            RequestNews::Dropped(dropped) if !dropped.outcome.is_grant() => {
                self.record_outcome(now, labels, dropped.outcome);
            }
            RequestNews::ClientRetry(_)
            | RequestNews::BadDeadline
            | RequestNews::PriorityLowered
            | RequestNews::Requeued
            | RequestNews::Dropped(_)
            | RequestNews::Misrouted(_)
            | RequestNews::Completed(_) => {}
        }
    }

    /// The node name of an Envoy that didn't pass a request's body to its filter in the last [`WINDOW`].
    #[must_use]
    pub(crate) fn misconfigured_envoy(&self, now: Instant) -> Option<&str> {
        let (last, node) = self.misconfigured.as_ref()?;
        (now.since(*last) < WINDOW).then_some(node)
    }

    /// The statistics of a pool, if anything has happened in it.
    #[must_use]
    pub(crate) fn pool(&self, name: &str) -> Option<&PoolStats> {
        let found = self.pools.iter().find(|(known, _)| **known == *name);
        found.map(|(_, pool)| pool)
    }

    /// Drops the statistics of pools that no longer exist.
    pub(crate) fn retain_pools(&mut self, exists: impl Fn(&str) -> bool) {
        self.pools.retain(|(name, _)| exists(name));
    }

    fn record_decision(&mut self, now: Instant, labels: &Arc<Labels>, outcome: Outcome) {
        self.pool_mut(labels).bands[labels.band as usize].request_left();
        self.record_outcome(now, labels, outcome);
    }

    fn record_outcome(&mut self, now: Instant, labels: &Arc<Labels>, outcome: Outcome) {
        let pool = self.pool_mut(labels);
        let counts = pool.slot(now);
        match outcome {
            Outcome::Bypassed | Outcome::Leased | Outcome::Dispatched => {
                counts.granted += 1;
                let band = &mut pool.bands[labels.band as usize];
                band.last_grant = Some(now);
                band.since = None;
            }
            Outcome::ExpiredTtl => counts.expired += 1,
            Outcome::RejectedTooManyFlows | Outcome::RejectedQueueFull | Outcome::Displaced => {
                counts.full += 1;
            }
            Outcome::RejectedFlowCapacity => {
                counts.flow_capacity += 1;
                pool.last_flow_rejection = Some(labels.clone());
            }
            Outcome::RejectedClassCapacity => counts.class_capacity += 1,
            Outcome::NoEndpoints => counts.no_endpoints += 1,
            Outcome::RejectedPolicy
            | Outcome::RejectedUnmeetable
            | Outcome::RejectedBudget
            | Outcome::RejectedInvalid
            | Outcome::Evicted
            | Outcome::DeadlineExceeded
            | Outcome::Cancelled
            | Outcome::ShuttingDown
            | Outcome::GatewayUnavailable
            | Outcome::Internal => {}
        }
    }

    fn pool_mut(&mut self, labels: &Labels) -> &mut PoolStats {
        let found = self.pools.iter().position(|(name, _)| *name == labels.pool);
        let index = found.unwrap_or_else(|| {
            self.pools.push((labels.pool.clone(), PoolStats::default()));
            self.pools.len() - 1
        });
        &mut self.pools[index].1
    }
}

impl PoolStats {
    /// The counts of the last [`WINDOW`], with the resolution of a slot.
    #[must_use]
    pub(crate) fn counts(&self, now: Instant) -> Counts {
        let last = slot_number(now);
        let first = last.saturating_sub(SLOTS as u64 - 1);
        let recent = self.slots.iter().filter(|slot| (first..=last).contains(&slot.number));
        recent.fold(Counts::default(), |sum, slot| sum.plus(&slot.counts))
    }

    /// Since when requests of `band` have waited without a grant of the band; `None`: none waits. The true time may be
    /// earlier, never later.
    #[must_use]
    pub(crate) fn passed_over_since(&self, band: Band) -> Option<Instant> {
        let band = &self.bands[band as usize];
        let since = band.since.or(band.last_grant)?;
        (band.waiting > 0).then_some(since)
    }

    #[must_use]
    pub(crate) fn last_grant(&self, band: Band) -> Option<Instant> {
        self.bands[band as usize].last_grant
    }

    /// The last request that was rejected because of its flow's limit; within [`WINDOW`] if [`Self::counts`] has any.
    #[must_use]
    pub(crate) fn last_flow_rejection(&self) -> Option<&Labels> {
        self.last_flow_rejection.as_deref()
    }

    fn slot(&mut self, now: Instant) -> &mut Counts {
        let number = slot_number(now);
        let index = usize::try_from(number % SLOTS as u64).unwrap_or_default();
        let slot = &mut self.slots[index];
        if slot.number != number {
            *slot = Slot { number, counts: Counts::default() };
        }
        &mut slot.counts
    }
}

impl BandStats {
    fn request_left(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
        if self.waiting == 0 {
            self.since = None;
        }
    }
}

impl Counts {
    const fn plus(self, other: &Self) -> Self {
        Self {
            granted: self.granted + other.granted,
            expired: self.expired + other.expired,
            expired_at_filters: self.expired_at_filters + other.expired_at_filters,
            full: self.full + other.full,
            flow_capacity: self.flow_capacity + other.flow_capacity,
            class_capacity: self.class_capacity + other.class_capacity,
            no_endpoints: self.no_endpoints + other.no_endpoints,
        }
    }
}

const fn slot_number(now: Instant) -> u64 {
    now.as_nanos() / (SLOT_S * 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_control::{Decided, Door};

    fn labels(band: Band) -> Arc<Labels> {
        Arc::new(Labels {
            tokens: None,
            pool: "chat".into(),
            model: "m".into(),
            flow: "acme".into(),
            private: false,
            band,
            class: Box::default(),
            request_id: "r".into(),
            traceparent: Box::default(),
        })
    }

    fn time(seconds: u64) -> Instant {
        Instant::ZERO.after(Duration::from_secs(3_600 + seconds))
    }

    fn arrived(band: Band) -> Observation {
        Observation::Request(labels(band), RequestNews::Arrived(Door::Filter))
    }

    fn decided(band: Band, outcome: Outcome) -> Observation {
        Observation::Request(
            labels(band),
            RequestNews::Decided(Decided {
                outcome,
                code: None,
                waited: Duration::ZERO,
                endpoint: Arc::default(),
                was_queued: false,
                extra: false,
                prefill: None,
            }),
        )
    }

    #[test]
    fn counts_cover_the_last_minutes() {
        let mut recent = RecentStats::default();
        for (second, outcome) in [
            (0, Outcome::Dispatched),
            (10, Outcome::ExpiredTtl),
            (20, Outcome::RejectedFlowCapacity),
            (200, Outcome::RejectedQueueFull),
            (200, Outcome::Displaced),
        ] {
            recent.record(time(second), &arrived(Band::Default));
            recent.record(time(second), &decided(Band::Default, outcome));
        }
        let pool = recent.pool("chat").expect("recorded");
        let all = Counts { granted: 1, expired: 1, full: 2, flow_capacity: 1, ..Counts::default() };
        assert_eq!(pool.counts(time(200)), all);
        let late = Counts { full: 2, ..Counts::default() };
        assert_eq!(pool.counts(time(300)), late);
        assert_eq!(pool.counts(time(1_000)), Counts::default());
        assert_eq!(pool.last_flow_rejection().map(|labels| &*labels.flow), Some("acme"));
        recent.retain_pools(|name| name != "chat");
        assert!(recent.pool("chat").is_none());
    }

    #[test]
    fn a_filters_own_answers_count_by_their_outcomes() {
        let refused = |outcome: &str, code, was_granted| {
            let news = penstock_control::Refused {
                node: "envoy".into(),
                outcome: outcome.into(),
                code,
                waited: None,
                was_granted,
                requeues: 0,
            };
            Observation::Request(labels(Band::Default), RequestNews::Refused(news))
        };
        let mut recent = RecentStats::default();
        recent.record(time(0), &arrived(Band::Default));
        for observation in [
            refused("expired_ttl", Code::QueueTimeout, false),
            refused("expired_ttl", Code::QueueTimeout, true),
            refused("no_endpoints", Code::NoEndpoints, true),
            refused("rejected_flow_capacity", Code::FlowCapacity, false),
            refused("gateway_unavailable", Code::GatewayUnavailable, false),
            refused("dispatched", Code::Internal, false),
            refused("of a later version", Code::Internal, false),
        ] {
            recent.record(time(1), &observation);
        }
        let counts = recent.pool("chat").expect("recorded").counts(time(1));
        let expected =
            Counts { expired_at_filters: 2, no_endpoints: 1, flow_capacity: 1, ..Counts::default() };
        assert_eq!(counts, expected);
    }

    #[test]
    fn a_waiting_band_has_the_time_since_its_last_grant() {
        let mut recent = RecentStats::default();
        let since =
            |recent: &RecentStats, band| recent.pool("chat").and_then(|pool| pool.passed_over_since(band));
        recent.record(time(0), &arrived(Band::Sheddable));
        recent.record(time(5), &arrived(Band::Sheddable));
        recent.record(time(5), &arrived(Band::Default));
        recent.record(time(6), &decided(Band::Default, Outcome::Dispatched));
        assert_eq!(since(&recent, Band::Sheddable), Some(time(0)));
        assert_eq!(since(&recent, Band::Default), None);
        // One request is granted, and another keeps waiting.
        recent.record(time(7), &decided(Band::Sheddable, Outcome::Dispatched));
        assert_eq!(since(&recent, Band::Sheddable), Some(time(7)));
        // The last one leaves; a later one waits since its arrival.
        recent.record(time(8), &decided(Band::Sheddable, Outcome::Cancelled));
        assert_eq!(since(&recent, Band::Sheddable), None);
        recent.record(time(99), &arrived(Band::Sheddable));
        assert_eq!(since(&recent, Band::Sheddable), Some(time(99)));
    }
}
