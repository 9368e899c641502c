//! When what waits has waited long enough.
//!
//! The ttl counts only time in which some endpoint was ready. So requests are kept by the moment of that clock at
//! which they came, and not by when they would expire: an outage, its end and another ttl move all expiries at
//! once, and nothing has to be moved for it. Deadlines are the clients' and stand by themselves.

use alloc::collections::BTreeSet;
use core::time::Duration;

use crate::pairing_heap::{PairingHeaps, Root};
use crate::time::Instant;
use crate::tree::Arrival;

/// What ends a wait. When two are due at the same moment, the first of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// The client's deadline: `deadline_exceeded`.
    Deadline,
    /// The ttl while an endpoint is ready: `expired_ttl`.
    Ttl,
    /// The ttl while none is: `no_endpoints`.
    NoEndpointTtl,
}

/// The two ttls of the policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ttls {
    pub(crate) ttl: Duration,
    pub(crate) no_endpoint_ttl: Duration,
}

/// A moment of the clock that runs while some endpoint is ready, in nanoseconds. An arrival before the owner's
/// zero plus the outages is negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReadyTime(i128);

#[derive(Debug)]
pub(crate) struct Expiry {
    waiting: PairingHeaps<(ReadyTime, Arrival)>,
    first: Root,
    deadlines: BTreeSet<(Instant, Arrival, u32)>,
    /// Nanoseconds of the outages that are over.
    outages: i128,
    /// Since when no endpoint is ready.
    out_since: Option<Instant>,
    /// Nothing ends before this moment.
    quiet: Instant,
}

impl Expiry {
    /// No endpoint is ready yet.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            waiting: PairingHeaps::default(),
            first: Root::default(),
            deadlines: BTreeSet::new(),
            outages: 0,
            out_since: Some(now),
            quiet: Instant::ZERO,
        }
    }

    /// From `now` on some endpoint is ready, or none is.
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

    /// Where on its clock a request of `arrival` starts to wait. An arrival that lies before outages that are over
    /// counts as if it had waited through them: who came from elsewhere has seen none of ours.
    pub(crate) fn ready_time(&self, arrival: Instant) -> ReadyTime {
        let running = self.out_since.map_or(arrival, |since| arrival.min(since));
        ReadyTime(i128::from(running.as_nanos()) - self.outages)
    }

    /// When the ttl of this ends, and which.
    pub(crate) fn ends(&self, start: ReadyTime, arrival: Instant, ttls: Ttls) -> (Instant, Timer) {
        match self.out_since {
            Some(since) => (
                arrival.max(since).after(ttls.no_endpoint_ttl),
                Timer::NoEndpointTtl,
            ),
            None => {
                let came = u64::try_from((start.0 + self.outages).max(0)).unwrap_or(u64::MAX);
                (Instant::from_nanos(came).after(ttls.ttl), Timer::Ttl)
            }
        }
    }

    pub(crate) fn insert(
        &mut self,
        number: u32,
        start: ReadyTime,
        arrival: Arrival,
        deadline: Option<Instant>,
    ) {
        self.waiting.insert(&mut self.first, number, (start, arrival));
        if self.first.least() == Some(number) {
            self.invalidate();
        }
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, arrival, number));
            self.quiet = self.quiet.min(deadline);
        }
    }

    pub(crate) fn remove(&mut self, number: u32, arrival: Arrival, deadline: Option<Instant>) {
        self.waiting.remove(&mut self.first, number);
        if let Some(deadline) = deadline {
            self.deadlines.remove(&(deadline, arrival, number));
        }
    }

    /// The timer that goes off next: when, which, of whom.
    pub(crate) fn next(&self, ttls: Ttls) -> Option<(Instant, Timer, u32)> {
        // By start and then arrival: so the first of these is also the first to end in an outage, where all who
        // came before it share the outage's start.
        let ttl = self.waiting.least(&self.first).map(|(number, (start, arrival))| {
            let (at, timer) = self.ends(start, arrival.at, ttls);
            (at, timer, number)
        });
        let deadline = self
            .deadlines
            .first()
            .map(|&(at, _, number)| (at, Timer::Deadline, number));
        ttl.into_iter()
            .chain(deadline)
            .min_by_key(|&(at, timer, _)| (at, timer))
    }

    /// The ttls are others from now on.
    pub(crate) const fn invalidate(&mut self) {
        self.quiet = Instant::ZERO;
    }

    /// The first that ends by `now`, under the ttls of the last time or after [`Self::invalidate`]. Mostly there is none,
    /// and that was seen before.
    pub(crate) fn due(&mut self, now: Instant, ttls: Ttls) -> Option<(Timer, u32)> {
        if now < self.quiet {
            return None;
        }
        match self.next(ttls) {
            Some((at, timer, number)) if at <= now => Some((timer, number)),
            next => {
                self.quiet = next.map_or(Instant::MAX, |(at, _, _)| at);
                None
            }
        }
    }

    pub(crate) fn members(&self) -> alloc::vec::Vec<u32> {
        self.waiting.members(&self.first)
    }

    pub(crate) fn deadlines(&self) -> impl Iterator<Item = u32> {
        self.deadlines.iter().map(|&(_, _, number)| number)
    }
}
