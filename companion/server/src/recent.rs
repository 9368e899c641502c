//! What happened in each pool in the last minutes, in numbers: what advice goes by beside the state of the moment.
//!
//! Fed by what the driver sees, and looked at when somebody asks: nothing here runs by itself. Counts are kept in
//! slots of half a minute, so that looking back five minutes costs ten of them.

use std::sync::Arc;
use std::time::Duration;

use penstock_control::{Labels, Observation};
use penstock_engine::input::Band;
use penstock_engine::{Instant, Outcome};

/// How far back is looked.
pub const WINDOW: Duration = Duration::from_secs(SLOT_S * SLOTS as u64);
const SLOT_S: u64 = 30;
const SLOTS: usize = 10;

/// What happened, pool by pool.
#[derive(Clone, Debug, Default)]
pub struct Recent {
    pools: Vec<(Arc<str>, PoolRecent)>,
}

/// What happened in one pool.
#[derive(Clone, Debug, Default)]
pub struct PoolRecent {
    slots: [Slot; SLOTS],
    bands: [BandRecent; 3],
    /// Whose request was last refused for its flow's limit.
    last_over: Option<Arc<Labels>>,
}

/// Numbers of some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that went.
    pub went: u64,
    /// That waited longer than they may.
    pub expired: u64,
    /// That were refused or displaced because the queue was full.
    pub full: u64,
    /// That were refused because their flow had as many waiting as it may.
    pub flow_capacity: u64,
    /// That were refused because their class had.
    pub class_capacity: u64,
    /// That no endpoint was ready for.
    pub no_endpoints: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Which half minute it is of.
    number: u64,
    counts: Counts,
}

/// What happened in one band.
#[derive(Clone, Copy, Debug, Default)]
struct BandRecent {
    /// Requests that came and haven't left the queue.
    waiting: u64,
    /// When the first of those came that did since anything of the band went, or since nothing of it waited.
    since: Option<Instant>,
    /// When the last went.
    went: Option<Instant>,
}

impl Recent {
    /// Something was seen.
    pub fn note(&mut self, now: Instant, observation: &Observation) {
        match observation {
            Observation::Arrived(labels) => {
                let band = &mut self.pool_mut(labels).bands[labels.band as usize];
                band.waiting += 1;
                band.since.get_or_insert(now);
            }
            Observation::Decided { labels, outcome, .. } => self.left(now, labels, *outcome),
            Observation::Refused { labels, .. } => {
                let of = &mut self.pool_mut(labels).bands[labels.band as usize];
                of.left();
            }
            Observation::SessionOpened { .. }
            | Observation::SessionClosed { .. }
            | Observation::SessionOrphaned { .. }
            | Observation::EndpointDown { .. }
            | Observation::EndpointBack { .. }
            | Observation::BadDeadline(_)
            | Observation::PriorityLowered(_)
            | Observation::Requeued(_)
            | Observation::Dropped { .. }
            | Observation::Misrouted { .. }
            | Observation::Learned { .. }
            | Observation::Used { .. }
            | Observation::Completed { .. } => {}
        }
    }

    /// Of the pool of this name, if anything ever happened there.
    #[must_use]
    pub fn pool(&self, name: &str) -> Option<&PoolRecent> {
        let found = self.pools.iter().find(|(known, _)| **known == *name);
        found.map(|(_, pool)| pool)
    }

    /// Only these pools exist.
    pub fn keep(&mut self, is_there: impl Fn(&str) -> bool) {
        self.pools.retain(|(name, _)| is_there(name));
    }

    fn left(&mut self, now: Instant, labels: &Arc<Labels>, outcome: Outcome) {
        let pool = self.pool_mut(labels);
        let band = &mut pool.bands[labels.band as usize];
        band.left();
        let counts = pool.slot(now);
        match outcome {
            Outcome::Bypassed | Outcome::Leased | Outcome::Dispatched => {
                counts.went += 1;
                let band = &mut pool.bands[labels.band as usize];
                band.went = Some(now);
                band.since = None;
            }
            Outcome::ExpiredTtl => counts.expired += 1,
            Outcome::RejectedTooManyFlows | Outcome::RejectedQueueFull | Outcome::Displaced => {
                counts.full += 1;
            }
            Outcome::RejectedFlowCapacity => {
                counts.flow_capacity += 1;
                pool.last_over = Some(labels.clone());
            }
            Outcome::RejectedClassCapacity => counts.class_capacity += 1,
            Outcome::NoEndpoints => counts.no_endpoints += 1,
            Outcome::RejectedPolicy
            | Outcome::RejectedUnmeetable
            | Outcome::RejectedInvalid
            | Outcome::DeadlineExceeded
            | Outcome::Cancelled
            | Outcome::ShuttingDown
            | Outcome::GatewayUnavailable
            | Outcome::Internal => {}
        }
    }

    fn pool_mut(&mut self, labels: &Labels) -> &mut PoolRecent {
        let found = self.pools.iter().position(|(name, _)| *name == labels.pool);
        let at = found.unwrap_or_else(|| {
            self.pools.push((labels.pool.clone(), PoolRecent::default()));
            self.pools.len() - 1
        });
        &mut self.pools[at].1
    }
}

impl PoolRecent {
    /// In the last [`WINDOW`], to a slot.
    #[must_use]
    pub fn counts(&self, now: Instant) -> Counts {
        let last = slot_number(now);
        let first = last.saturating_sub(SLOTS as u64 - 1);
        let recent = self.slots.iter().filter(|it| (first..=last).contains(&it.number));
        recent.fold(Counts::default(), |sum, slot| sum.plus(&slot.counts))
    }

    /// Since when something of `band` has waited without anything of it going; `None`: nothing waits.
    ///
    /// It may be later than that, never earlier.
    #[must_use]
    pub fn passed_over_since(&self, band: Band) -> Option<Instant> {
        let of = &self.bands[band as usize];
        let since = of.since.or(of.went)?;
        (of.waiting > 0).then_some(since)
    }

    /// When something of `band` went last.
    #[must_use]
    pub fn went(&self, band: Band) -> Option<Instant> {
        self.bands[band as usize].went
    }

    /// Whose request was last refused for its flow's limit, in the last [`WINDOW`] if [`Self::counts`] says so.
    #[must_use]
    pub fn last_over(&self) -> Option<&Labels> {
        self.last_over.as_deref()
    }

    fn slot(&mut self, now: Instant) -> &mut Counts {
        let number = slot_number(now);
        let at = usize::try_from(number % SLOTS as u64).unwrap_or_default();
        let slot = &mut self.slots[at];
        if slot.number != number {
            *slot = Slot {
                number,
                counts: Counts::default(),
            };
        }
        &mut slot.counts
    }
}

impl BandRecent {
    fn left(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
        if self.waiting == 0 {
            self.since = None;
        }
    }
}

impl Counts {
    const fn plus(self, other: &Self) -> Self {
        Self {
            went: self.went + other.went,
            expired: self.expired + other.expired,
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

    fn labels(band: Band) -> Arc<Labels> {
        Arc::new(Labels {
            pool: "chat".into(),
            model: "m".into(),
            target_model: "m".into(),
            flow: "acme".into(),
            private: false,
            band,
            class: Box::default(),
            request_id: "r".into(),
            traceparent: Box::default(),
        })
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO.after(Duration::from_secs(3_600 + seconds))
    }

    fn arrived(band: Band) -> Observation {
        Observation::Arrived(labels(band))
    }

    fn decided(band: Band, outcome: Outcome) -> Observation {
        Observation::Decided {
            labels: labels(band),
            outcome,
            code: "",
            waited: Duration::ZERO,
            endpoint: Arc::default(),
        }
    }

    #[test]
    fn counts_are_of_the_last_minutes() {
        let mut recent = Recent::default();
        for (second, outcome) in [
            (0, Outcome::Dispatched),
            (10, Outcome::ExpiredTtl),
            (20, Outcome::RejectedFlowCapacity),
            (200, Outcome::RejectedQueueFull),
            (200, Outcome::Displaced),
        ] {
            recent.note(at(second), &arrived(Band::Default));
            recent.note(at(second), &decided(Band::Default, outcome));
        }
        let pool = recent.pool("chat").expect("it is known");
        let all = Counts {
            went: 1,
            expired: 1,
            full: 2,
            flow_capacity: 1,
            ..Counts::default()
        };
        assert_eq!(pool.counts(at(200)), all);
        let late = Counts {
            full: 2,
            ..Counts::default()
        };
        assert_eq!(pool.counts(at(300)), late);
        assert_eq!(pool.counts(at(1_000)), Counts::default());
        assert_eq!(pool.last_over().map(|it| &*it.flow), Some("acme"));
        recent.keep(|name| name != "chat");
        assert!(recent.pool("chat").is_none());
    }

    #[test]
    fn a_band_that_waits_knows_since_when() {
        let mut recent = Recent::default();
        let since = |recent: &Recent, band| recent.pool("chat").and_then(|it| it.passed_over_since(band));
        recent.note(at(0), &arrived(Band::Sheddable));
        recent.note(at(5), &arrived(Band::Sheddable));
        recent.note(at(5), &arrived(Band::Default));
        recent.note(at(6), &decided(Band::Default, Outcome::Dispatched));
        assert_eq!(since(&recent, Band::Sheddable), Some(at(0)));
        assert_eq!(since(&recent, Band::Default), None);
        // Something of it goes, and another waits on.
        recent.note(at(7), &decided(Band::Sheddable, Outcome::Dispatched));
        assert_eq!(since(&recent, Band::Sheddable), Some(at(7)));
        // The last leaves; who comes later waits since then.
        recent.note(at(8), &decided(Band::Sheddable, Outcome::Cancelled));
        assert_eq!(since(&recent, Band::Sheddable), None);
        recent.note(at(99), &arrived(Band::Sheddable));
        assert_eq!(since(&recent, Band::Sheddable), Some(at(99)));
    }
}
