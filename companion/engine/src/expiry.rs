//! When a waiting request expires: by the policy's ttl, or by its client's deadline.
//!
//! The ttl counts only time during which some endpoint is ready. So requests are ordered by the time on that clock at
//! which they came, and not by the time of their expiry: an outage, its end, or another ttl moves every expiry at once,
//! and no request has to be moved for that. Deadlines are absolute times of the clients.

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
    pub(crate) no_endpoint_ttl: Duration,
}

/// A time, in nanoseconds, on the clock that runs while some endpoint is ready. Negative for an arrival before the
/// owner's origin plus all outages. Ends at 292 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReadyTime(i64);

#[derive(Debug)]
pub(crate) struct Expiry {
    waiting: PairingHeaps<JobId, (ReadyTime, Arrival)>,
    by_ready_time: Root<JobId>,
    deadlines: BTreeSet<(Instant, Arrival, JobId)>,
    /// Nanoseconds of all past outages.
    outages: i128,
    /// The start of the present outage.
    out_since: Option<Instant>,
    /// No request expires before this time.
    none_before: Instant,
}

impl Expiry {
    /// Starts in an outage.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            waiting: PairingHeaps::default(),
            by_ready_time: Root::default(),
            deadlines: BTreeSet::new(),
            outages: 0,
            out_since: Some(now),
            none_before: Instant::ZERO,
        }
    }

    /// An outage ends (`ready`) or begins at `now`, unless it already has.
    pub(crate) fn set_ready(&mut self, now: Instant, ready: bool) {
        self.invalidate();
        match self.out_since {
            Some(since) if ready => {
                self.outages += i128::from(now.as_nanos()) - i128::from(since.as_nanos());
                self.out_since = None;
            }
            None if !ready => self.out_since = Some(now),
            Some(_) | None => {}
        }
    }

    /// The time on the ready clock from which a request of `arrival` waits. An arrival before past outages counts as if
    /// it had waited through them: a request that comes from elsewhere hasn't seen the outages here.
    pub(crate) fn ready_time(&self, arrival: Instant) -> ReadyTime {
        let running = self.out_since.map_or(arrival, |since| arrival.min(since));
        let ready = i128::from(running.as_nanos()) - self.outages;
        // An outage is no longer than 2^64 ns, so only times after 292 years are clamped, at either end.
        ReadyTime(i64::try_from(ready).unwrap_or(if ready < 0 { i64::MIN } else { i64::MAX }))
    }

    /// When the ttl of a request ends, and which of the two.
    pub(crate) fn ttl_end(&self, start: ReadyTime, arrival: Instant, ttls: Ttls) -> (Instant, Timer) {
        match self.out_since {
            Some(since) => (
                arrival.max(since).after(ttls.no_endpoint_ttl),
                Timer::NoEndpointTtl,
            ),
            None => {
                let start = u64::try_from((i128::from(start.0) + self.outages).max(0)).unwrap_or(u64::MAX);
                (Instant::from_nanos(start).after(ttls.ttl), Timer::Ttl)
            }
        }
    }

    pub(crate) fn insert(
        &mut self,
        job: JobId,
        start: ReadyTime,
        arrival: Arrival,
        deadline: Option<Instant>,
    ) {
        self.waiting
            .insert(&mut self.by_ready_time, job, (start, arrival));
        if self.by_ready_time.least() == Some(job) {
            self.invalidate();
        }
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, arrival, job));
            self.none_before = self.none_before.min(deadline);
        }
    }

    pub(crate) fn remove(&mut self, job: JobId, arrival: Arrival, deadline: Option<Instant>) {
        self.waiting.remove(&mut self.by_ready_time, job);
        if let Some(deadline) = deadline {
            self.deadlines.remove(&(deadline, arrival, job));
        }
    }

    /// The next request to expire: when, why, and which.
    pub(crate) fn next(&self, ttls: Ttls) -> Option<(Instant, Timer, JobId)> {
        // By ready time and then by arrival, so the first is also the first to expire in an outage, where all requests
        // that came before it share its start.
        let ttl = self
            .waiting
            .least(&self.by_ready_time)
            .map(|(job, (start, arrival))| {
                let (end, timer) = self.ttl_end(start, arrival.at, ttls);
                (end, timer, job)
            });
        let deadline = self
            .deadlines
            .first()
            .map(|&(end, _, job)| (end, Timer::Deadline, job));
        ttl.into_iter()
            .chain(deadline)
            .min_by_key(|&(end, timer, _)| (end, timer))
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
        self.waiting.members(&self.by_ready_time)
    }

    pub(crate) fn jobs_with_deadline(&self) -> impl Iterator<Item = JobId> {
        self.deadlines.iter().map(|&(_, _, job)| job)
    }
}
