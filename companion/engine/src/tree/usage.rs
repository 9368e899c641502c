//! Recent usage: settled cost per child and model in a sliding window, and the estimated cost of running requests, here and at
//! other engines.
//!
//! The window is counted in buckets of a second, or of a 300th of the window where it is longer than 5 minutes: the
//! present bucket and the whole ones before it. One log holds all buckets by age, with one entry per bucket, child and
//! model (or a few, if costs arrive out of order), so the passage of time costs only what leaves the window. Buckets are
//! numbered from the owner's origin and may be before it. This file knows neither weights nor waiting requests.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use crate::audit::{AuditError, check};
use crate::ids::{ChildId, Id, ModelId};
use crate::time::Instant;

const SECOND: u64 = 1_000_000_000;
/// Buckets in a window, at most.
const BUCKETS_MAX: u64 = 300;

/// The usage of one model by one child.
#[derive(Clone, Copy, Debug)]
struct ModelUsage {
    model: ModelId,
    /// The sum of the estimates of what runs.
    running: u128,
    /// The usage of the requests that run at other engines.
    elsewhere: u128,
    /// The sum of the entries in the log.
    served: u128,
    /// The two entries that were changed last: the bucket's number, and the position in the bucket. Two, because what is settled here, in the
    /// present bucket, alternates with reports of other engines, which are older.
    latest: [Option<(i64, u32)>; 2],
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    child: ChildId,
    model: ModelId,
    cost: u128,
}

#[derive(Debug)]
struct Bucket {
    number: i64,
    entries: Vec<Entry>,
}

#[derive(Debug)]
pub(super) struct Usage {
    /// Nanoseconds of a bucket.
    width: i64,
    /// Buckets in the window.
    kept: i64,
    /// The number of the present bucket.
    bucket: i64,
    now: Instant,
    /// By child; empty for a child without usage.
    by_child: Vec<Vec<ModelUsage>>,
    /// Oldest first, none empty.
    log: VecDeque<Bucket>,
}

/// The age from which on no cost counts in a window.
pub(super) fn reach(window: Duration) -> Duration {
    let (width, kept) = buckets(window);
    Duration::from_nanos(width.saturating_mul(kept).cast_unsigned())
}

impl Usage {
    /// `window` is above 0, and is rounded up to whole buckets.
    pub(super) fn new(window: Duration, now: Instant) -> Self {
        let (width, kept) = buckets(window);
        Self { width, kept, bucket: nanos(now) / width, now, by_child: Vec::new(), log: VecDeque::new() }
    }

    /// Changes the window. [`Self::expired`] then removes what it no longer covers.
    pub(super) fn resize(&mut self, window: Duration) {
        let old = self.width;
        (self.width, self.kept) = buckets(window);
        self.bucket = nanos(self.now) / self.width;
        for usage in self.by_child.iter_mut().flatten() {
            usage.served = 0;
            usage.latest = [None; 2];
        }
        for bucket in core::mem::take(&mut self.log) {
            let number = bucket.number.saturating_mul(old).div_euclid(self.width);
            for entry in bucket.entries {
                self.add(number.min(self.bucket), entry.child, entry.model, entry.cost);
            }
        }
    }

    /// Advances time to `now`. The caller then calls [`Self::expired`] until it returns `None`.
    pub(super) fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.bucket = self.bucket.max(nanos(now) / self.width);
    }

    /// Removes the next entry that is out of the window. Returns the child and model whose usage decreased, and by how
    /// much.
    pub(super) fn expired(&mut self) -> Option<(ChildId, ModelId, u128)> {
        let oldest = self.log.front_mut()?;
        if oldest.number.saturating_add(self.kept) > self.bucket {
            return None;
        }
        let entry = oldest.entries.pop()?;
        if oldest.entries.is_empty() {
            self.log.pop_front();
        }
        self.model_usage_mut(entry.child, entry.model).served -= entry.cost;
        self.remove_unused(entry.child, entry.model);
        Some((entry.child, entry.model, entry.cost))
    }

    /// The usage by `child`, by model: settled in the window, plus running here and elsewhere.
    pub(super) fn by_model(&self, child: ChildId) -> impl Iterator<Item = (ModelId, u128)> {
        let models = self.of_child(child).iter();
        models.map(|usage| (usage.model, usage.served + usage.running + usage.elsewhere))
    }

    /// The estimated cost of the requests for `model` that `child` runs here.
    pub(super) fn running(&self, child: ChildId, model: ModelId) -> u128 {
        let found = self.of_child(child).iter().find(|usage| usage.model == model);
        found.map_or(0, |usage| usage.running)
    }

    /// The estimated cost of the requests that run at other engines.
    pub(super) fn running_elsewhere(&self) -> u128 {
        self.by_child.iter().flatten().map(|usage| usage.elsewhere).sum()
    }

    /// Replaces the estimated cost of `child`'s requests for `model` at other engines, and returns the cost before.
    pub(super) fn set_elsewhere(&mut self, child: ChildId, model: ModelId, running: u64) -> u128 {
        let usage = self.model_usage_mut(child, model);
        let before = core::mem::replace(&mut usage.elsewhere, running.into());
        self.remove_unused(child, model);
        before
    }

    /// `child` has no usage in the window, and nothing running.
    pub(super) fn is_empty(&self, child: ChildId) -> bool {
        self.of_child(child).is_empty()
    }

    /// A request of `child` with this estimate starts.
    pub(super) fn charge(&mut self, child: ChildId, model: ModelId, estimate: u64) {
        self.model_usage_mut(child, model).running += u128::from(estimate);
    }

    /// A request that was charged `estimate` cost `real`; `None`: nothing.
    pub(super) fn settle(&mut self, child: ChildId, model: ModelId, estimate: u64, real: Option<u64>) {
        self.model_usage_mut(child, model).running -= u128::from(estimate);
        if let Some(real) = real.filter(|&real| real > 0) {
            self.add(self.bucket, child, model, u128::from(real));
        }
        self.remove_unused(child, model);
    }

    /// Adds a past cost above 0. The caller then calls [`Self::expired`] until it returns `None`.
    pub(super) fn add_past(&mut self, child: ChildId, model: ModelId, cost: u64, ago: Duration) {
        let ago = i64::try_from(ago.as_nanos()).unwrap_or(i64::MAX);
        let bucket = nanos(self.now).saturating_sub(ago).div_euclid(self.width);
        self.add(bucket, child, model, u128::from(cost));
    }

    /// Multiplies what the window holds of each child by its factor. A sum over buckets is exact to a unit of cost.
    pub(super) fn scale(&mut self, factors: &[(ChildId, f64)]) {
        let Self { by_child, log, .. } = self;
        let factors: BTreeMap<ChildId, f64> = factors.iter().copied().collect();
        for child in factors.keys() {
            for usage in by_child.get_mut(child.index()).into_iter().flatten() {
                usage.served = 0;
            }
        }
        // What the buckets so far have held, and what they hold now.
        let mut sums: BTreeMap<(ChildId, ModelId), (u128, u128)> = BTreeMap::new();
        let mut scale = |entry: &mut Entry| {
            let Some(factor) = factors.get(&entry.child) else {
                return true;
            };
            let (before, now) = sums.entry((entry.child, entry.model)).or_default();
            *before += entry.cost;
            let sum = libm::floor(*before as f64 * factor) as u128;
            entry.cost = sum.saturating_sub(*now);
            *now += entry.cost;
            let models = by_child.get_mut(entry.child.index()).into_iter().flatten();
            for usage in models.filter(|usage| usage.model == entry.model) {
                usage.served += entry.cost;
            }
            entry.cost > 0
        };
        log.retain_mut(|bucket| {
            bucket.entries.retain_mut(&mut scale);
            !bucket.entries.is_empty()
        });
        for (child, model) in sums.into_keys() {
            self.remove_unused(child, model);
        }
    }

    fn add(&mut self, number: i64, child: ChildId, model: ModelId, cost: u128) {
        let position = self.log.partition_point(|bucket| bucket.number < number);
        let existing = self.log.get(position);
        if existing.is_none_or(|bucket| bucket.number != number) {
            let entries = Vec::new();
            self.log.insert(position, Bucket { number, entries });
        }
        let usage = self.model_usage_mut(child, model);
        usage.served += cost;
        let latest = usage.latest.iter().flatten().find(|&&(bucket, _)| bucket == number);
        let latest = latest.map(|&(_, position)| position as usize);
        let entries = &mut self.log[position].entries;
        // The bucket may have been removed and created again since, so the entry may be another one.
        let is_same = |entry: &&mut Entry| (entry.child, entry.model) == (child, model);
        if let Some(entry) = latest.and_then(|position| entries.get_mut(position)).filter(is_same) {
            entry.cost += cost;
            return;
        }
        let latest = Some((number, entries.len() as u32));
        entries.push(Entry { child, model, cost });
        let usage = self.model_usage_mut(child, model);
        usage.latest = [latest, usage.latest[0]];
    }

    fn of_child(&self, child: ChildId) -> &[ModelUsage] {
        self.by_child.get(child.index()).map_or(&[], Vec::as_slice)
    }

    fn model_usage_mut(&mut self, child: ChildId, model: ModelId) -> &mut ModelUsage {
        if child.index() >= self.by_child.len() {
            self.by_child.resize_with(child.index() + 1, Vec::new);
        }
        let models = &mut self.by_child[child.index()];
        let position = models.iter().position(|usage| usage.model == model).unwrap_or_else(|| {
            // Most children use one model, and there may be 100,000 of them.
            models.reserve_exact(1);
            models.push(ModelUsage { model, running: 0, elsewhere: 0, served: 0, latest: [None; 2] });
            models.len() - 1
        });
        &mut models[position]
    }

    /// Removes the usage of `model` by `child` if it is zero.
    fn remove_unused(&mut self, child: ChildId, model: ModelId) {
        let models = &mut self.by_child[child.index()];
        models.retain(|usage| usage.model != model || usage.running + usage.elsewhere + usage.served > 0);
        if models.is_empty() {
            // An empty list would keep its memory, for every child that there ever was.
            *models = Vec::new();
        }
    }

    /// Checks the sums against the log.
    pub(super) fn audit(&self) -> Result<(), AuditError> {
        let mut served: Vec<(ChildId, ModelId, u128)> = Vec::new();
        for (position, bucket) in self.log.iter().enumerate() {
            check(
                "the log is sorted by age",
                position == 0 || self.log[position - 1].number < bucket.number,
            )?;
            check(
                "the log holds only what is in the window",
                bucket.number.saturating_add(self.kept) > self.bucket && bucket.number <= self.bucket,
            )?;
            check("no bucket is empty", !bucket.entries.is_empty())?;
            let entries = bucket.entries.iter();
            served.extend(entries.map(|entry| (entry.child, entry.model, entry.cost)));
        }
        served.sort_unstable();
        for (index, models) in self.by_child.iter().enumerate() {
            let child = ChildId::from_index(index);
            for usage in models {
                let is_same = |entry: &(ChildId, ModelId, u128)| (entry.0, entry.1) == (child, usage.model);
                let entries = served.iter().filter(|entry| is_same(entry));
                let sum: u128 = entries.map(|&(_, _, cost)| cost).sum();
                check("usage is the sum of its log entries", sum == usage.served)?;
                served.retain(|entry| !is_same(entry));
                check("zero usage is removed", usage.served + usage.running + usage.elsewhere > 0)?;
            }
        }
        check("every log entry counts as usage", served.is_empty())
    }
}

/// The width of a bucket in nanoseconds, and the number of buckets.
fn buckets(window: Duration) -> (i64, i64) {
    let nanos = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX).max(1);
    let width = SECOND.max(nanos.div_ceil(BUCKETS_MAX));
    (width.cast_signed(), nanos.div_ceil(width).cast_signed())
}

/// Nanoseconds since the owner's origin, at most 292 years.
fn nanos(time: Instant) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * SECOND)
    }

    fn id(child: usize) -> ChildId {
        ChildId::from_index(child)
    }

    fn model_id(model: usize) -> ModelId {
        ModelId::from_index(model)
    }

    fn of(usage: &Usage, child: usize, model: usize) -> u128 {
        let mut models = usage.by_model(id(child));
        let found = models.find(|&(other, _)| other == model_id(model));
        found.map_or(0, |(_, used)| used)
    }

    fn of_all(usage: &Usage, child: usize) -> u128 {
        usage.by_model(id(child)).map(|(_, used)| used).sum()
    }

    /// Advances time. Returns how many entries left the window.
    fn to(usage: &mut Usage, seconds: u64) -> usize {
        usage.advance(at(seconds));
        let expired = core::iter::from_fn(|| usage.expired()).count();
        usage.audit().expect("sound");
        expired
    }

    fn used(usage: &mut Usage, child: usize, model: usize, cost: u64) {
        usage.charge(id(child), model_id(model), 1);
        usage.settle(id(child), model_id(model), 1, Some(cost));
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
    fn usage_older_than_the_window_no_longer_counts() {
        let mut usage = Usage::new(Duration::from_secs(10), at(100));
        used(&mut usage, 3, 0, 40);
        to(&mut usage, 105);
        used(&mut usage, 3, 0, 2);
        used(&mut usage, 3, 0, 3);
        let entries: Vec<usize> = usage.log.iter().map(|bucket| bucket.entries.len()).collect();
        assert_eq!(entries, [1, 1], "one entry a bucket");
        assert_eq!((to(&mut usage, 109), of(&usage, 3, 0)), (0, 45));
        assert_eq!((to(&mut usage, 110), of(&usage, 3, 0)), (1, 5));
        assert_eq!((to(&mut usage, 114), of(&usage, 3, 0)), (0, 5));
        assert_eq!((to(&mut usage, 115), of(&usage, 3, 0)), (1, 0));
        assert!(usage.is_empty(id(3)) && usage.log.is_empty());
    }

    #[test]
    fn running_requests_count_at_their_estimates_until_settled() {
        let mut usage = Usage::new(Duration::from_secs(1), at(0));
        usage.charge(id(0), model_id(7), 100);
        usage.charge(id(0), model_id(8), 1);
        usage.charge(id(0), model_id(7), 50);
        to(&mut usage, 1_000);
        assert_eq!((of(&usage, 0, 7), of(&usage, 0, 8), of_all(&usage, 0)), (150, 1, 151));
        usage.settle(id(0), model_id(7), 100, Some(30));
        assert_eq!(of(&usage, 0, 7), 80);
        usage.settle(id(0), model_id(7), 50, None);
        assert_eq!(of(&usage, 0, 7), 30);
        usage.settle(id(0), model_id(8), 1, None);
        assert_eq!(of_all(&usage, 0), 30);
        assert_eq!(to(&mut usage, 1_001), 1);
        assert!(usage.is_empty(id(0)));
    }

    #[test]
    fn what_runs_elsewhere_counts_until_it_is_replaced() {
        let mut usage = Usage::new(Duration::from_secs(1), at(0));
        used(&mut usage, 2, 0, 10);
        assert_eq!(usage.set_elsewhere(id(2), model_id(0), 500), 0);
        assert_eq!(usage.set_elsewhere(id(2), model_id(0), 300), 500);
        assert_eq!((of(&usage, 2, 0), usage.running(id(2), model_id(0))), (310, 0));
        to(&mut usage, 100);
        assert_eq!((of(&usage, 2, 0), usage.running_elsewhere()), (300, 300));
        usage.resize(Duration::from_secs(50));
        assert_eq!(usage.set_elsewhere(id(2), model_id(0), 0), 300);
        assert!(usage.is_empty(id(2)));
        assert_eq!(usage.set_elsewhere(id(9), model_id(0), 0), 0);
        assert!(usage.is_empty(id(9)));
        usage.audit().expect("sound");
    }

    #[test]
    fn a_longer_window_keeps_usage_that_a_shorter_one_drops() {
        let mut usage = Usage::new(Duration::from_secs(20), at(0));
        used(&mut usage, 0, 0, 5);
        to(&mut usage, 12);
        used(&mut usage, 0, 0, 6);
        usage.resize(Duration::from_secs(3_600));
        to(&mut usage, 40);
        assert_eq!(of(&usage, 0, 0), 11);
        usage.resize(Duration::from_secs(40));
        to(&mut usage, 40);
        assert_eq!(of(&usage, 0, 0), 6, "0 s is out of the last 40 s, 12 s is not");
    }

    #[test]
    fn past_usage_counts_at_its_time_also_before_the_origin() {
        let mut usage = Usage::new(Duration::from_secs(10), at(2));
        used(&mut usage, 0, 0, 1);
        for (seconds, cost) in [(1, 2), (7, 4), (1, 8), (9, 16), (7, 32), (10, 64)] {
            usage.add_past(id(0), model_id(0), cost, Duration::from_secs(seconds));
        }
        assert_eq!(usage.log[0].number, -8);
        assert_eq!(to(&mut usage, 2), 1, "10 s ago is out of the window");
        assert_eq!(of(&usage, 0, 0), 63);
        assert_eq!((to(&mut usage, 3), of(&usage, 0, 0)), (1, 47));
        assert_eq!((to(&mut usage, 5), of(&usage, 0, 0)), (1, 11));
        assert_eq!((to(&mut usage, 11), of(&usage, 0, 0)), (1, 1));
        assert_eq!((to(&mut usage, 12), of(&usage, 0, 0)), (1, 0));
        assert!(usage.is_empty(id(0)) && usage.log.is_empty());
    }

    #[test]
    fn a_scaled_child_leaves_the_window_as_it_would_have() {
        let mut usage = Usage::new(Duration::from_secs(10), at(0));
        for second in 0..5 {
            to(&mut usage, second);
            used(&mut usage, 0, 0, 3);
            used(&mut usage, 1, 0, 3);
        }
        usage.charge(id(0), model_id(0), 100);
        usage.scale(&[(id(0), 0.5)]);
        usage.audit().expect("sound");
        assert_eq!((of(&usage, 0, 0), of(&usage, 1, 0)), (100 + 7, 15), "what runs keeps its estimate");
        to(&mut usage, 11);
        assert_eq!((of(&usage, 0, 0), of(&usage, 1, 0)), (100 + 4, 9));
        usage.settle(id(0), model_id(0), 100, None);
        usage.scale(&[(id(0), 1e-9), (id(1), 1_000.0), (id(9), 2.0)]);
        usage.audit().expect("sound");
        assert!(usage.is_empty(id(0)));
        assert_eq!(of(&usage, 1, 0), 9_000);
        to(&mut usage, 14);
        assert!(usage.is_empty(id(1)) && usage.log.is_empty());
    }

    #[test]
    fn repeated_past_usage_shares_one_entry_per_bucket() {
        let mut usage = Usage::new(Duration::from_secs(10), at(100));
        for _ in 0..20 {
            used(&mut usage, 4, 1, 1);
            usage.add_past(id(4), model_id(1), 1, Duration::from_secs(1));
        }
        let entries: usize = usage.log.iter().map(|bucket| bucket.entries.len()).sum();
        assert_eq!((entries, of(&usage, 4, 1)), (2, 40));
        usage.audit().expect("sound");
    }
}
