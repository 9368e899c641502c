//! Both sides of evictions: the critical requests that wait, and the running sheddable requests that may be asked to end for them.
//!
//! It also remembers whose turn it was. Both sides are kept only while the policy has evictions. Each event of a request costs one entry at most.

use alloc::collections::{BTreeSet, VecDeque};
use core::ops::Bound;
use core::time::Duration;

use crate::arrival::Arrival;
use crate::ids::{Id as _, JobId};
use crate::limits::EVICTED_FLOWS_KEPT;
use crate::time::Instant;

#[derive(Debug, Default)]
pub(crate) struct Evictions {
    is_on: bool,
    /// Starts of requests so far.
    starts: u64,
    /// The critical requests that wait.
    waiting: BTreeSet<(Arrival, JobId)>,
    /// The running requests that may be asked to end, by the number of their start.
    silent: BTreeSet<(u64, JobId)>,
    /// The flows whose requests were asked to end last, by the hashes of their names; the last one at the end.
    flows: VecDeque<u64>,
    /// Until then the last one that was asked has time to end; `None`: none was asked.
    blocked_until: Option<Instant>,
}

impl Evictions {
    /// `is_on`: the policy has evictions.
    pub(crate) fn new(is_on: bool) -> Self {
        Self { is_on, ..Self::default() }
    }

    pub(crate) const fn is_on(&self) -> bool {
        self.is_on
    }

    /// Forgets both sides. The caller then lists all requests, if evictions are on.
    pub(crate) fn restart(&mut self, is_on: bool) {
        self.is_on = is_on;
        self.waiting.clear();
        self.silent.clear();
    }

    /// The number of a start.
    pub(crate) const fn next_start(&mut self) -> u64 {
        self.starts += 1;
        self.starts
    }

    /// `job`, which is critical, waits.
    pub(crate) fn insert_waiting(&mut self, job: JobId, arrival: Arrival) {
        if self.is_on {
            self.waiting.insert((arrival, job));
        }
    }

    /// `job`, whatever its band, waits no longer.
    pub(crate) fn remove_waiting(&mut self, job: JobId, arrival: Arrival) {
        if self.is_on {
            self.waiting.remove(&(arrival, job));
        }
    }

    /// `job`, which runs since this start, may be asked to end.
    pub(crate) fn insert_silent(&mut self, job: JobId, start: u64) {
        if self.is_on {
            self.silent.insert((start, job));
        }
    }

    /// `job` may not be asked to end, any more or at all.
    pub(crate) fn remove_silent(&mut self, job: JobId, start: u64) {
        if self.is_on {
            self.silent.remove(&(start, job));
        }
    }

    /// A critical request has waited for `after`.
    pub(crate) fn is_overdue(&self, now: Instant, after: Duration) -> bool {
        self.waiting.first().is_some_and(|(arrival, _)| arrival.at.after(after) <= now)
    }

    /// Some request may be asked to end.
    pub(crate) fn any_silent(&self) -> bool {
        !self.silent.is_empty()
    }

    /// A request is asked to end, and has time until then.
    pub(crate) const fn block_until(&mut self, until: Instant) {
        self.blocked_until = Some(until);
    }

    /// A request of this flow was asked to end.
    pub(crate) fn took_turn(&mut self, flow: u64) {
        self.flows.retain(|&other| other != flow);
        if self.flows.len() >= EVICTED_FLOWS_KEPT {
            self.flows.pop_front();
        }
        self.flows.push_back(flow);
    }

    /// The flow's place among those whose requests were asked to end: 0 for one of which none was, as far as is remembered, and the most
    /// for the last one.
    pub(crate) fn turn(&self, flow: u64) -> usize {
        self.flows.iter().position(|&other| other == flow).map_or(0, |position| position + 1)
    }

    /// Until when the last request that was asked to end has time.
    pub(crate) const fn blocked_until(&self) -> Option<Instant> {
        self.blocked_until
    }

    /// The critical requests that have waited for `after`, the first to arrive first.
    pub(crate) fn overdue(&self, now: Instant, after: Duration) -> impl Iterator<Item = JobId> {
        let overdue = self.waiting.iter().take_while(move |(arrival, _)| arrival.at.after(after) <= now);
        overdue.map(|&(_, job)| job)
    }

    /// When the next critical request will have waited for `after`, or the time of a request that was asked to end is over while one waits that
    /// has; `None`: none will.
    pub(crate) fn next_due(&self, now: Instant, after: Duration) -> Option<Instant> {
        let due = |&(arrival, _): &(Arrival, JobId)| arrival.at.after(after);
        let first = self.waiting.first().map(due)?;
        if first > now {
            return Some(first);
        }
        // Those that are overdue set no other timer: every event looks at them.
        let unblocked = self.blocked_until.filter(|&until| until > now && self.any_silent());
        let last_overdue = Arrival { at: now.before(after), sequence: u64::MAX };
        let later = (Bound::Excluded((last_overdue, JobId::MAX)), Bound::Unbounded);
        self.waiting.range(later).next().map(due).into_iter().chain(unblocked).min()
    }

    /// The requests that may be asked to end, the last to start first.
    pub(crate) fn silent(&self) -> impl Iterator<Item = JobId> {
        self.silent.iter().rev().map(|&(_, job)| job)
    }

    /// Whether `job` is listed as waiting.
    pub(crate) fn has_waiting(&self, job: JobId, arrival: Arrival) -> bool {
        self.waiting.contains(&(arrival, job))
    }

    /// Whether `job` is listed as one that may be asked to end.
    pub(crate) fn has_silent(&self, job: JobId, start: u64) -> bool {
        self.silent.contains(&(start, job))
    }

    /// How many requests are listed, as waiting and as those that may be asked to end.
    pub(crate) fn lengths(&self) -> (usize, usize) {
        (self.waiting.len(), self.silent.len())
    }
}
