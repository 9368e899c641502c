//! What flows used since it was last written: summed up by whoever settles, taken by whoever writes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use penstock_control::Kept;
use penstock_engine::input::{Band, PastUsage};
use penstock_engine::units::Tokens;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::NOTED_MAX;
use super::clerk::Message;

/// Whose, and of what.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Who {
    pub(super) band: Band,
    pub(super) class: Box<str>,
    pub(super) flow: Box<str>,
    pub(super) model: Box<str>,
}

impl Who {
    /// That it used `cost` so long ago.
    pub(super) fn used(self, cost: u64, ago: Duration) -> PastUsage {
        PastUsage {
            band: self.band,
            class: self.class,
            flow: self.flow,
            model: self.model,
            cost: Tokens(cost),
            ago,
        }
    }
}

/// What one pool's flows used, since it was taken last.
#[derive(Debug, Default)]
pub(super) struct Ledger(Mutex<Sums>);

#[derive(Debug, Default)]
struct Sums {
    costs: HashMap<Who, u64>,
    /// Entries for which there was no room.
    lost: u64,
}

impl Ledger {
    /// `true`: nothing was noted before.
    fn add(&self, used: PastUsage) -> bool {
        let who = Who {
            band: used.band,
            class: used.class,
            flow: used.flow,
            model: used.model,
        };
        let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = sums.costs.is_empty();
        if sums.costs.len() < NOTED_MAX || sums.costs.contains_key(&who) {
            let cost = sums.costs.entry(who).or_default();
            *cost = cost.saturating_add(used.cost.0);
        } else {
            sums.lost += 1;
        }
        is_first
    }

    /// All of it, and how much there was no room for.
    pub(super) fn take(&self) -> (Vec<(Who, u64)>, u64) {
        let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Sums { costs, lost } = std::mem::take(&mut *sums);
        (costs.into_iter().collect(), lost)
    }
}

/// What one pool's flows used at about the same time.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    /// Each has one of its own, in order.
    pub(super) number: u64,
    pub(super) pool: Arc<str>,
    pub(super) window: Duration,
    pub(super) taken: Instant,
    pub(super) used: Arc<[(Who, u64)]>,
}

/// Takes what is learned and used, and keeps nobody waiting. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Writers(pub(super) HashMap<String, Writer>);

/// Of one pool.
#[derive(Clone, Debug)]
pub(super) struct Writer {
    pub(super) inbox: mpsc::Sender<Message>,
    /// `None`: it has no windows.
    pub(super) ledger: Option<Arc<Ledger>>,
}

impl Writers {
    /// Keeps this, if its pool has a store.
    pub fn learned(&self, pool: &str, variant: String, kept: Kept) {
        if let Some(writer) = self.0.get(pool) {
            let pool = pool.to_owned();
            // What comes when the inbox is full is dropped, for the same is learned better later.
            let _ = writer.inbox.try_send(Message::Learned { pool, variant, kept });
        }
    }

    /// Keeps that this was used just now, if its pool has a store and windows.
    pub fn used(&self, pool: &str, used: PastUsage) {
        if let Some(writer) = self.0.get(pool)
            && let Some(ledger) = &writer.ledger
            && ledger.add(used)
        {
            // Where the inbox is full, something else in it has the ledger looked at.
            let _ = writer.inbox.try_send(Message::Used);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(flow: &str, cost: u64) -> PastUsage {
        PastUsage {
            band: Band::Default,
            class: "".into(),
            flow: flow.into(),
            model: "m".into(),
            cost: Tokens(cost),
            ago: Duration::ZERO,
        }
    }

    #[test]
    fn what_one_used_is_one_sum_until_it_is_taken() {
        let ledger = Ledger::default();
        assert!(ledger.add(used("a", 1)));
        assert!(!ledger.add(used("a", 2)));
        assert!(!ledger.add(used("b", u64::MAX)) && !ledger.add(used("b", 5)));
        let (mut taken, lost) = ledger.take();
        taken.sort_by_key(|(_, cost)| *cost);
        let costs: Vec<_> = taken.iter().map(|(who, cost)| (&*who.flow, *cost)).collect();
        assert_eq!((costs, lost), (vec![("a", 3), ("b", u64::MAX)], 0));
        assert!(ledger.take().0.is_empty() && ledger.add(used("a", 1)));
    }

    #[test]
    fn it_has_a_limit_and_says_what_it_dropped() {
        let ledger = Ledger::default();
        for flow in 0..NOTED_MAX + 3 {
            ledger.add(used(&flow.to_string(), 1));
        }
        ledger.add(used("0", 1));
        let (taken, lost) = ledger.take();
        assert_eq!((taken.len(), lost), (NOTED_MAX, 3));
    }
}
