//! When a waiting request expires: by the policy's ttl, or by its client's deadline.
//!
//! Every ttl counts from the arrival, so one order by arrival serves all of them: an outage, its end, or another ttl moves
//! every expiry at once, and no request has to be moved for that. Deadlines are absolute times of the clients.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::time::Duration;

use crate::arrival::Arrival;
use crate::ids::JobId;
use crate::outcome::Outcome;
use crate::pairing_heap::{PairingHeaps, Root};
use crate::time::Instant;

/// A reason to expire. Of two that are due at the same moment, the first of these counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// The client's deadline.
    Deadline,
    /// The ttl while an endpoint is ready.
    Ttl,
    /// The ttl while no endpoint is ready.
    NoEndpointTtl,
}

impl Timer {
    pub(crate) const fn outcome(self) -> Outcome {
        match self {
            Self::Deadline => Outcome::DeadlineExceeded,
            Self::Ttl => Outcome::ExpiredTtl,
            Self::NoEndpointTtl => Outcome::NoEndpoints,
        }
    }
}

/// The two ttls of the policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ttls {
    pub(crate) ttl: Duration,
    /// The longer of the two: how long a request may wait while no endpoint is ready.
    pub(crate) without_endpoint: Duration,
}

#[derive(Debug)]
pub(crate) struct Expiry {
    waiting: PairingHeaps<JobId, Arrival>,
    by_arrival: Root<JobId>,
    deadlines: BTreeSet<(Instant, Arrival, JobId)>,
    /// Some endpoint of the pool is ready.
    any_ready: bool,
    /// No request expires before this time.
    none_before: Instant,
}

impl Expiry {
    /// Starts without a ready endpoint.
    pub(crate) fn new() -> Self {
        Self {
            waiting: PairingHeaps::default(),
            by_arrival: Root::default(),
            deadlines: BTreeSet::new(),
            any_ready: false,
            none_before: Instant::ZERO,
        }
    }

    /// Some endpoint of the pool is ready, or none is.
    pub(crate) const fn set_ready(&mut self, any_ready: bool) {
        self.any_ready = any_ready;
        self.invalidate();
    }

    /// When a request of this arrival has waited for as long as it may now, and which ttl says so.
    pub(crate) fn ttl_end(&self, arrival: Instant, ttls: Ttls) -> (Instant, Timer) {
        if self.any_ready {
            (arrival.after(ttls.ttl), Timer::Ttl)
        } else {
            (arrival.after(ttls.without_endpoint), Timer::NoEndpointTtl)
        }
    }

    pub(crate) fn insert(&mut self, job: JobId, arrival: Arrival, deadline: Option<Instant>) {
        self.waiting.insert(&mut self.by_arrival, job, arrival);
        if self.by_arrival.least() == Some(job) {
            self.invalidate();
        }
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, arrival, job));
            self.none_before = self.none_before.min(deadline);
        }
    }

    pub(crate) fn remove(&mut self, job: JobId, arrival: Arrival, deadline: Option<Instant>) {
        self.waiting.remove(&mut self.by_arrival, job);
        if let Some(deadline) = deadline {
            self.deadlines.remove(&(deadline, arrival, job));
        }
    }

    /// The next request to expire: when, why, and which.
    pub(crate) fn next(&self, ttls: Ttls) -> Option<(Instant, Timer, JobId)> {
        let ttl = self.waiting.least(&self.by_arrival).map(|(job, arrival)| {
            let (end, timer) = self.ttl_end(arrival.at, ttls);
            (end, timer, job)
        });
        let deadline = self.deadlines.first().map(|&(end, _, job)| (end, Timer::Deadline, job));
        ttl.into_iter().chain(deadline).min_by_key(|&(end, timer, _)| (end, timer))
    }

    /// The ttls changed, so that requests may expire sooner than computed.
    pub(crate) const fn invalidate(&mut self) {
        self.none_before = Instant::ZERO;
    }

    /// Whether [`Self::due`] has anything to find.
    pub(crate) fn may_be_due(&self, now: Instant) -> bool {
        now >= self.none_before
    }

    /// The first request that expires by `now`, under the ttls of the last call unless [`Self::invalidate`]d. Mostly
    /// there is none, and the last call has found that out already.
    pub(crate) fn due(&mut self, now: Instant, ttls: Ttls) -> Option<(Timer, JobId)> {
        if !self.may_be_due(now) {
            return None;
        }
        match self.next(ttls) {
            Some((end, timer, job)) if end <= now => Some((timer, job)),
            next => {
                self.none_before = next.map_or(Instant::MAX, |(end, _, _)| end);
                None
            }
        }
    }

    pub(crate) fn jobs(&self) -> Vec<JobId> {
        self.waiting.members(&self.by_arrival)
    }

    pub(crate) fn jobs_with_deadline(&self) -> impl Iterator<Item = JobId> {
        self.deadlines.iter().map(|&(_, _, job)| job)
    }
}
