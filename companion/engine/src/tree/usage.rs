//! Who used how much of late: settled cost per child and model in a sliding window, and beside it what runs now, at
//! its estimate.
//!
//! The window is counted in buckets of a second, of a 300th of it where it is longer than 5 minutes: the bucket of
//! now and the whole ones before it. One log holds them all by age, an entry per bucket, child and model (or a few, of
//! one that is told out of order), so that time costs what falls out of the window and nothing else. Buckets are
//! numbered from the owner's zero and may lie before it. Nothing here knows of weights or of who waits.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use crate::audit::{AuditError, holds};
use crate::time::Instant;

use super::node::ChildId;

const SECOND: u64 = 1_000_000_000;
/// Buckets in a window, at most.
const BUCKETS_MAX: u64 = 300;

/// What one child used of one model.
#[derive(Clone, Copy, Debug)]
struct Tally {
    model: u32,
    /// Estimates of what runs.
    running: u128,
    /// What the log says.
    served: u128,
    /// Its entries in the log that were touched last: the bucket's number, and the place in it.
    latest: [Option<(i64, u32)>; 2],
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    child: ChildId,
    model: u32,
    cost: u128,
}

#[derive(Debug)]
struct Bucket {
    number: i64,
    entries: Vec<Entry>,
}

#[derive(Debug)]
pub(super) struct Usage {
    /// Of a bucket, in nanoseconds.
    width: i64,
    /// Buckets in the window.
    kept: i64,
    /// The bucket of now.
    bucket: i64,
    now: Instant,
    /// By child; those who used nothing have none.
    tallies: Vec<Vec<Tally>>,
    /// Oldest first, none empty.
    log: VecDeque<Bucket>,
}

/// How far back a window reaches at most: nothing older counts.
pub(super) fn reach(window: Duration) -> Duration {
    let (width, kept) = buckets(window);
    Duration::from_nanos(width.saturating_mul(kept).cast_unsigned())
}

impl Usage {
    /// `window` is above 0; it is rounded up to whole buckets.
    pub(super) fn new(window: Duration, now: Instant) -> Self {
        let (width, kept) = buckets(window);
        Self {
            width,
            kept,
            bucket: nanos(now) / width,
            now,
            tallies: Vec::new(),
            log: VecDeque::new(),
        }
    }

    /// Another window from now on; what it doesn't reach falls out by [`Self::expired`].
    pub(super) fn resize(&mut self, window: Duration) {
        let old = self.width;
        (self.width, self.kept) = buckets(window);
        self.bucket = nanos(self.now) / self.width;
        for tally in self.tallies.iter_mut().flatten() {
            tally.served = 0;
            tally.latest = [None; 2];
        }
        for bucket in core::mem::take(&mut self.log) {
            let number = bucket.number.saturating_mul(old).div_euclid(self.width);
            for entry in bucket.entries {
                self.add(number.min(self.bucket), entry.child, entry.model, entry.cost);
            }
        }
    }

    /// Brings time to `now`; [`Self::expired`] follows until there is nothing more.
    pub(super) fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.bucket = self.bucket.max(nanos(now) / self.width);
    }

    /// Whose tally has just lost the next thing that is out of the window, and of which model.
    pub(super) fn expired(&mut self) -> Option<(ChildId, u32)> {
        let oldest = self.log.front_mut()?;
        if oldest.number.saturating_add(self.kept) > self.bucket {
            return None;
        }
        let entry = oldest.entries.pop()?;
        if oldest.entries.is_empty() {
            self.log.pop_front();
        }
        self.tally_mut(entry.child, entry.model).served -= entry.cost;
        self.tidy(entry.child, entry.model);
        Some((entry.child, entry.model))
    }

    /// What `child` used of `model` in the window, and has running.
    pub(super) fn of(&self, child: ChildId, model: u32) -> u128 {
        self.of_child(child)
            .iter()
            .find(|tally| tally.model == model)
            .map_or(0, |tally| tally.served + tally.running)
    }

    /// The same over all models.
    pub(super) fn of_all(&self, child: ChildId) -> u128 {
        let tallies = self.of_child(child).iter();
        tallies.map(|tally| tally.served + tally.running).sum()
    }

    /// Nothing of `child` runs, nor is in the window.
    pub(super) fn is_empty(&self, child: ChildId) -> bool {
        self.of_child(child).is_empty()
    }

    /// `estimate` of `child` runs from now on.
    pub(super) fn charge(&mut self, child: ChildId, model: u32, estimate: u64) {
        self.tally_mut(child, model).running += u128::from(estimate);
    }

    /// What was charged with `estimate` was `real`; `None`: nothing.
    pub(super) fn settle(&mut self, child: ChildId, model: u32, estimate: u64, real: Option<u64>) {
        self.tally_mut(child, model).running -= u128::from(estimate);
        if let Some(real) = real.filter(|&real| real > 0) {
            self.add(self.bucket, child, model, u128::from(real));
        }
        self.tidy(child, model);
    }

    /// `child` used `cost`, above 0, of `model` so long ago; [`Self::expired`] follows.
    pub(super) fn used(&mut self, child: ChildId, model: u32, cost: u64, ago: Duration) {
        let ago = i64::try_from(ago.as_nanos()).unwrap_or(i64::MAX);
        let bucket = nanos(self.now).saturating_sub(ago).div_euclid(self.width);
        self.add(bucket, child, model, u128::from(cost));
    }

    fn add(&mut self, number: i64, child: ChildId, model: u32, cost: u128) {
        let place = self.log.partition_point(|bucket| bucket.number < number);
        if self.log.get(place).is_none_or(|bucket| bucket.number != number) {
            let entries = Vec::new();
            self.log.insert(place, Bucket { number, entries });
        }
        let tally = self.tally_mut(child, model);
        tally.served += cost;
        let touched = tally.latest.iter().flatten().find(|(of, _)| *of == number);
        let touched = touched.map(|&(_, at)| at as usize);
        let entries = &mut self.log[place].entries;
        // A bucket of that number may have gone, and this be another.
        let is_its = |entry: &&mut Entry| (entry.child, entry.model) == (child, model);
        if let Some(entry) = touched.and_then(|at| entries.get_mut(at)).filter(is_its) {
            entry.cost += cost;
            return;
        }
        let latest = Some((number, entries.len() as u32));
        entries.push(Entry { child, model, cost });
        let tally = self.tally_mut(child, model);
        tally.latest = [latest, tally.latest[0]];
    }

    fn of_child(&self, child: ChildId) -> &[Tally] {
        self.tallies.get(child as usize).map_or(&[], Vec::as_slice)
    }

    fn tally_mut(&mut self, child: ChildId, model: u32) -> &mut Tally {
        let index = child as usize;
        if index >= self.tallies.len() {
            self.tallies.resize_with(index + 1, Vec::new);
        }
        let tallies = &mut self.tallies[index];
        let place = tallies
            .iter()
            .position(|tally| tally.model == model)
            .unwrap_or_else(|| {
                tallies.reserve_exact(1);
                tallies.push(Tally {
                    model,
                    running: 0,
                    served: 0,
                    latest: [None; 2],
                });
                tallies.len() - 1
            });
        &mut tallies[place]
    }

    /// Drops the tally if there is nothing in it.
    fn tidy(&mut self, child: ChildId, model: u32) {
        let tallies = &mut self.tallies[child as usize];
        tallies.retain(|tally| tally.model != model || tally.running > 0 || tally.served > 0);
        if tallies.is_empty() {
            *tallies = Vec::new();
        }
    }

    /// The tallies against the log.
    pub(super) fn audit(&self) -> Result<(), AuditError> {
        let mut served: Vec<(ChildId, u32, u128)> = Vec::new();
        for (number, bucket) in self.log.iter().enumerate() {
            holds(
                "the log is by age",
                number == 0 || self.log[number - 1].number < bucket.number,
            )?;
            holds(
                "what is out of the window is out of the log",
                bucket.number.saturating_add(self.kept) > self.bucket && bucket.number <= self.bucket,
            )?;
            holds("no bucket is empty", !bucket.entries.is_empty())?;
            served.extend(bucket.entries.iter().map(|it| (it.child, it.model, it.cost)));
        }
        served.sort_unstable();
        for (child, tallies) in (0..).zip(&self.tallies) {
            for tally in tallies {
                let of_it = served
                    .iter()
                    .filter(|&&(by, of, _)| (by, of) == (child, tally.model));
                let sum: u128 = of_it.map(|&(_, _, cost)| cost).sum();
                holds("a tally is what the log says", sum == tally.served)?;
                served.retain(|&(by, of, _)| (by, of) != (child, tally.model));
                holds("an empty tally is dropped", tally.served + tally.running > 0)?;
            }
        }
        holds("what is in the log is in a tally", served.is_empty())
    }
}

/// Width of a bucket in nanoseconds, and how many.
fn buckets(window: Duration) -> (i64, i64) {
    let nanos = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX).max(1);
    let width = SECOND.max(nanos.div_ceil(BUCKETS_MAX));
    (width.cast_signed(), nanos.div_ceil(width).cast_signed())
}

/// Since the owner's zero; what is later than 292 years after it counts as then.
fn nanos(of: Instant) -> i64 {
    i64::try_from(of.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * SECOND)
    }

    /// Brings time forward; how many entries fell out.
    fn to(usage: &mut Usage, seconds: u64) -> usize {
        usage.advance(at(seconds));
        let fell = core::iter::from_fn(|| usage.expired()).count();
        usage.audit().expect("sound");
        fell
    }

    fn used(usage: &mut Usage, child: ChildId, model: u32, cost: u64) {
        usage.charge(child, model, 1);
        usage.settle(child, model, 1, Some(cost));
    }

    #[test]
    fn buckets_are_a_second_up_to_five_minutes_and_a_300th_beyond() {
        let second = SECOND.cast_signed();
        assert_eq!(buckets(Duration::from_millis(10)), (second, 1));
        assert_eq!(buckets(Duration::from_secs(60)), (second, 60));
        assert_eq!(buckets(Duration::from_secs(300)), (second, 300));
        assert_eq!(buckets(Duration::from_secs(3_600)), (12 * second, 300));
    }

    #[test]
    fn what_is_older_than_the_window_counts_no_more() {
        let mut usage = Usage::new(Duration::from_secs(10), at(100));
        used(&mut usage, 3, 0, 40);
        to(&mut usage, 105);
        used(&mut usage, 3, 0, 2);
        used(&mut usage, 3, 0, 3);
        let entries: Vec<usize> = usage.log.iter().map(|it| it.entries.len()).collect();
        assert_eq!(entries, [1, 1], "one entry a bucket");
        assert_eq!((to(&mut usage, 109), usage.of(3, 0)), (0, 45));
        assert_eq!((to(&mut usage, 110), usage.of(3, 0)), (1, 5));
        assert_eq!((to(&mut usage, 114), usage.of(3, 0)), (0, 5));
        assert_eq!((to(&mut usage, 115), usage.of(3, 0)), (1, 0));
        assert!(usage.is_empty(3) && usage.log.is_empty());
    }

    #[test]
    fn what_runs_counts_at_its_estimate_until_it_is_settled_however_long() {
        let mut usage = Usage::new(Duration::from_secs(1), at(0));
        usage.charge(0, 7, 100);
        usage.charge(0, 8, 1);
        usage.charge(0, 7, 50);
        to(&mut usage, 1_000);
        assert_eq!((usage.of(0, 7), usage.of(0, 8), usage.of_all(0)), (150, 1, 151));
        usage.settle(0, 7, 100, Some(30));
        assert_eq!(usage.of(0, 7), 80);
        usage.settle(0, 7, 50, None);
        assert_eq!(usage.of(0, 7), 30);
        usage.settle(0, 8, 1, None);
        assert_eq!(usage.of_all(0), 30);
        assert_eq!(to(&mut usage, 1_001), 1);
        assert!(usage.is_empty(0));
    }

    #[test]
    fn a_longer_window_keeps_what_a_shorter_one_drops() {
        let mut usage = Usage::new(Duration::from_secs(20), at(0));
        used(&mut usage, 0, 0, 5);
        to(&mut usage, 12);
        used(&mut usage, 0, 0, 6);
        usage.resize(Duration::from_secs(3_600));
        to(&mut usage, 40);
        assert_eq!(usage.of(0, 0), 11);
        usage.resize(Duration::from_secs(40));
        to(&mut usage, 40);
        assert_eq!(usage.of(0, 0), 6, "0 s is out of the last 40 s, 12 s is not");
    }

    #[test]
    fn what_is_told_later_counts_as_if_it_had_been_settled_then_before_the_zero_too() {
        let mut usage = Usage::new(Duration::from_secs(10), at(2));
        used(&mut usage, 0, 0, 1);
        for (seconds, cost) in [(1, 2), (7, 4), (1, 8), (9, 16), (7, 32), (10, 64)] {
            usage.used(0, 0, cost, Duration::from_secs(seconds));
        }
        assert_eq!(usage.log[0].number, -8);
        assert_eq!(to(&mut usage, 2), 1, "10 s ago is out of the window");
        assert_eq!(usage.of(0, 0), 63);
        assert_eq!((to(&mut usage, 3), usage.of(0, 0)), (1, 47));
        assert_eq!((to(&mut usage, 5), usage.of(0, 0)), (1, 11));
        assert_eq!((to(&mut usage, 11), usage.of(0, 0)), (1, 1));
        assert_eq!((to(&mut usage, 12), usage.of(0, 0)), (1, 0));
        assert!(usage.is_empty(0) && usage.log.is_empty());
    }

    #[test]
    fn what_comes_late_again_and_again_keeps_one_entry_beside_that_of_now() {
        let mut usage = Usage::new(Duration::from_secs(10), at(100));
        for _ in 0..20 {
            used(&mut usage, 4, 1, 1);
            usage.used(4, 1, 1, Duration::from_secs(1));
        }
        let entries: usize = usage.log.iter().map(|it| it.entries.len()).sum();
        assert_eq!((entries, usage.of(4, 1)), (2, 40));
        usage.audit().expect("sound");
    }
}
