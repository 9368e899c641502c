//! Endpoints whose requests fail before a response: they are marked down for a while, then probed.
//!
//! Two different requests that fail within [`WINDOW`] mark an endpoint down. Each time it stays down longer, until a
//! request is served there again. After that time the endpoint is probed: one more failure marks it down again. Health
//! checks belong to discovery; failed requests are seen here, and sooner. The last ready endpoint is never marked down
//! ([`crate::endpoints`]).

use alloc::collections::BTreeSet;
use core::time::Duration;

use crate::input::{EndpointId, RequestId};
use crate::policy::OutlierEjection;
use crate::time::Instant;

/// Failures further apart don't count together.
const WINDOW: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Up {
        /// The request that failed last, and when.
        last: Option<(RequestId, Instant)>,
        /// When another request last failed.
        other: Option<Instant>,
    },
    /// Marked down until then.
    Down(Instant),
    /// No longer marked down, and nothing was served there since.
    Probing,
}

impl State {
    const UNHURT: Self = Self::Up { last: None, other: None };
}

/// The requests that an endpoint failed or refused since it last served one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failed {
    None,
    One(RequestId),
    Several,
}

/// The recent failures of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failures {
    state: State,
    failed: Failed,
    /// How often the endpoint was marked down since a request was served there.
    times: u32,
}

impl Failures {
    pub(crate) const NONE: Self = Self { state: State::UNHURT, failed: Failed::None, times: 0 };

    /// The endpoint has failed or refused another request than `request` since it last served one.
    pub(crate) fn has_failed_others(&self, request: RequestId) -> bool {
        match self.failed {
            Failed::None => false,
            Failed::One(failed) => failed != request,
            Failed::Several => true,
        }
    }

    /// When the endpoint stops being marked down; `None`: it isn't.
    pub(crate) const fn down_until(&self) -> Option<Instant> {
        match self.state {
            State::Down(until) => Some(until),
            State::Up { .. } | State::Probing => None,
        }
    }

    /// Records that `request` failed. Returns whether that suffices to mark the endpoint down by [`Self::mark_down`].
    pub(crate) fn fail(&mut self, now: Instant, request: RequestId) -> bool {
        self.count_failed(request);
        match &mut self.state {
            State::Up { last, other } => {
                let previous = last.replace((request, now));
                if let Some((_, failed)) = previous.filter(|&(previous, _)| previous != request) {
                    *other = Some(failed);
                }
                other.is_some_and(|failed| now.since(failed) <= WINDOW)
            }
            State::Down(_) => false,
            State::Probing => true,
        }
    }

    /// Records that the endpoint itself refused `request`, which never marks it down.
    pub(crate) fn pushed_back(&mut self, request: RequestId) {
        self.count_failed(request);
    }

    fn count_failed(&mut self, request: RequestId) {
        self.failed = if self.has_failed_others(request) { Failed::Several } else { Failed::One(request) };
    }

    /// Marks the endpoint down from `now` on. Returns until when.
    pub(crate) fn mark_down(&mut self, now: Instant, policy: OutlierEjection) -> Instant {
        let factor = 1_u32.checked_shl(self.times).unwrap_or(u32::MAX);
        let until = now.after(policy.first.saturating_mul(factor).min(policy.max));
        self.times = self.times.saturating_add(1);
        self.state = State::Down(until);
        until
    }

    /// Ends the mark, if there is one.
    pub(crate) const fn probe(&mut self) {
        if let State::Down(_) = self.state {
            self.state = State::Probing;
        }
    }

    /// A request was served at the endpoint.
    pub(crate) const fn served(&mut self) {
        self.times = 0;
        self.failed = Failed::None;
        if let State::Probing = self.state {
            self.state = State::UNHURT;
        }
    }
}

/// The endpoints that are marked down, by the end of their marks.
#[derive(Debug, Default)]
pub(crate) struct EjectedEndpoints {
    by_end: BTreeSet<(Instant, EndpointId)>,
}

impl EjectedEndpoints {
    /// The mark of `endpoint` ended at `before`, and now ends at `after`.
    pub(crate) fn set(&mut self, endpoint: EndpointId, before: Option<Instant>, after: Option<Instant>) {
        if before == after {
            return;
        }
        if let Some(until) = before {
            self.by_end.remove(&(until, endpoint));
        }
        if let Some(until) = after {
            self.by_end.insert((until, endpoint));
        }
    }

    /// The endpoint whose mark ends first, and when.
    pub(crate) fn first(&self) -> Option<(Instant, EndpointId)> {
        self.by_end.first().copied()
    }

    /// All, by the end of their marks.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Instant, EndpointId)> {
        self.by_end.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: OutlierEjection =
        OutlierEjection { first: Duration::from_secs(1), max: Duration::from_secs(30) };

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    /// Whether these failures, each of a request at a second, mark an endpoint down.
    fn enough(failures: &[(u64, u64)]) -> bool {
        let mut endpoint = Failures::NONE;
        let marks: Vec<bool> =
            failures.iter().map(|&(id, second)| endpoint.fail(at(second), RequestId(id))).collect();
        let (last, before) = marks.split_last().expect("some failed");
        assert!(!before.contains(&true), "{failures:?} was enough earlier");
        *last
    }

    use alloc::vec::Vec;

    #[test]
    fn two_different_requests_within_ten_seconds_mark_an_endpoint_down() {
        assert!(!enough(&[(1, 0)]));
        assert!(!enough(&[(1, 0), (1, 0), (1, 9)]), "always the same");
        assert!(enough(&[(1, 0), (2, 0)]));
        assert!(enough(&[(1, 0), (2, 10)]));
        assert!(!enough(&[(1, 0), (2, 11)]));
        assert!(enough(&[(1, 0), (1, 8), (2, 18)]), "it failed at 8, too");
        assert!(enough(&[(1, 0), (2, 11), (1, 12)]));
        let mut last = Failures::NONE;
        assert!(!last.fail(at(0), RequestId(1)) && last.fail(at(1), RequestId(2)));
        assert!(last.fail(at(10), RequestId(2)), "it wasn't marked, and 1 failed at 0");
        assert!(!last.fail(at(11), RequestId(2)));
    }

    #[test]
    fn refusals_mark_no_endpoint_down() {
        let mut endpoint = Failures::NONE;
        for id in 1..10 {
            endpoint.pushed_back(RequestId(id));
        }
        assert!(endpoint.has_failed_others(RequestId(1)));
        assert_eq!(endpoint.down_until(), None);
        assert!(!endpoint.fail(at(0), RequestId(20)), "the first failure");
    }

    #[test]
    fn each_mark_lasts_twice_as_long_until_a_request_is_served() {
        let mut endpoint = Failures::NONE;
        let mut lasts = Vec::new();
        for second in (0..80).map(|time| time * 100) {
            let now = at(second);
            lasts.push(endpoint.mark_down(now, POLICY).since(now).as_secs());
            assert!(!endpoint.fail(now, RequestId(second)), "it is down already");
            endpoint.probe();
            assert_eq!(endpoint.down_until(), None);
            assert!(endpoint.fail(now, RequestId(7)), "the first is enough");
        }
        assert_eq!(lasts[..7], [1, 2, 4, 8, 16, 30, 30]);
        assert!(lasts[7..].iter().all(|&seconds| seconds == 30));
        endpoint.served();
        assert!(!endpoint.fail(at(9_000), RequestId(8)));
        assert!(endpoint.fail(at(9_000), RequestId(9)));
        assert_eq!(endpoint.mark_down(at(9_000), POLICY), at(9_001));
        endpoint.served();
        assert_eq!(endpoint.down_until(), Some(at(9_001)), "what ran there all the time");
        endpoint.probe();
        assert!(endpoint.fail(at(9_002), RequestId(8)));
        assert_eq!(endpoint.mark_down(at(9_002), POLICY), at(9_003));
    }

    #[test]
    fn a_longest_mark_below_the_first_bounds_it() {
        let short = OutlierEjection { max: Duration::from_millis(500), ..POLICY };
        let mut endpoint = Failures::NONE;
        assert_eq!(endpoint.mark_down(at(0), short), Instant::from_nanos(500_000_000));
    }
}
