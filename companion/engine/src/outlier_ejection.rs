//! Endpoints that fail before they answer: they rest for a while, and come back for one request that shows how it goes.
//!
//! Two different requests that failed within [`WITHIN`] mark an endpoint down, for longer each time until something is
//! served there again. Once it is back a single failure is enough. Health checks are discovery's; this is what requests
//! saw themselves, and sooner. It never takes the last endpoint: [`crate::endpoints`] sees to that.

use alloc::collections::BTreeSet;
use core::time::Duration;

use crate::input::{EndpointId, RequestId};
use crate::policy::OutlierEjection;
use crate::time::Instant;

/// Failures further apart are no sign.
const WITHIN: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Up {
        /// Who failed there last, and when.
        last: Option<(RequestId, Instant)>,
        /// When anyone else last did.
        other: Option<Instant>,
    },
    /// Marked down until then.
    Down(Instant),
    /// Back, and nothing was served there since.
    Probed,
}

impl State {
    const UNHURT: Self = Self::Up {
        last: None,
        other: None,
    };
}

/// How one endpoint has failed of late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failures {
    state: State,
    /// How often it was marked down since something was served there.
    times: u32,
}

impl Failures {
    pub(crate) const NONE: Self = Self {
        state: State::UNHURT,
        times: 0,
    };

    /// Marked down until then.
    pub(crate) const fn down(&self) -> Option<Instant> {
        match self.state {
            State::Down(until) => Some(until),
            State::Up { .. } | State::Probed => None,
        }
    }

    /// `id` failed there at `now`; whether that is enough to mark it down, which is [`Self::mark`].
    pub(crate) fn fail(&mut self, now: Instant, id: RequestId) -> bool {
        match &mut self.state {
            State::Up { last, other } => {
                if let Some((_, at)) = last.replace((id, now)).filter(|&(before, _)| before != id) {
                    *other = Some(at);
                }
                other.is_some_and(|at| now.since(at) <= WITHIN)
            }
            State::Down(_) => false,
            State::Probed => true,
        }
    }

    /// Down from `now` on. Returns until when.
    pub(crate) fn mark(&mut self, now: Instant, policy: OutlierEjection) -> Instant {
        let factor = 1_u32.checked_shl(self.times).unwrap_or(u32::MAX);
        let until = now.after(policy.first.saturating_mul(factor).min(policy.max));
        self.times = self.times.saturating_add(1);
        self.state = State::Down(until);
        until
    }

    /// It isn't down any more, if it was.
    pub(crate) const fn back(&mut self) {
        if let State::Down(_) = self.state {
            self.state = State::Probed;
        }
    }

    /// Something was served there.
    pub(crate) const fn served(&mut self) {
        self.times = 0;
        if let State::Probed = self.state {
            self.state = State::UNHURT;
        }
    }
}

/// Who is marked down, by when they are back.
#[derive(Debug, Default)]
pub(crate) struct EjectedEndpoints {
    all: BTreeSet<(Instant, EndpointId)>,
}

impl EjectedEndpoints {
    /// `id` was marked down until `before`, and is until `after`.
    pub(crate) fn set(&mut self, id: EndpointId, before: Option<Instant>, after: Option<Instant>) {
        if before == after {
            return;
        }
        if let Some(until) = before {
            self.all.remove(&(until, id));
        }
        if let Some(until) = after {
            self.all.insert((until, id));
        }
    }

    /// Who is back first, and when.
    pub(crate) fn first(&self) -> Option<(Instant, EndpointId)> {
        self.all.first().copied()
    }

    /// All, in the order in which they are back.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Instant, EndpointId)> {
        self.all.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: OutlierEjection = OutlierEjection {
        first: Duration::from_secs(1),
        max: Duration::from_secs(30),
    };

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    /// Whether these, each of a request at a second, are enough.
    fn enough(failures: &[(u64, u64)]) -> bool {
        let mut endpoint = Failures::NONE;
        let told: Vec<bool> = failures
            .iter()
            .map(|&(id, second)| endpoint.fail(at(second), RequestId(id)))
            .collect();
        let (last, before) = told.split_last().expect("some failed");
        assert!(!before.contains(&true), "{failures:?} was enough earlier");
        *last
    }

    use alloc::vec::Vec;

    #[test]
    fn two_different_ones_within_ten_seconds_are_enough() {
        assert!(!enough(&[(1, 0)]));
        assert!(!enough(&[(1, 0), (1, 0), (1, 9)]), "always the same");
        assert!(enough(&[(1, 0), (2, 0)]));
        assert!(enough(&[(1, 0), (2, 10)]));
        assert!(!enough(&[(1, 0), (2, 11)]));
        assert!(enough(&[(1, 0), (1, 8), (2, 18)]), "it failed at 8, too");
        assert!(enough(&[(1, 0), (2, 11), (1, 12)]));
        let mut last = Failures::NONE;
        assert!(!last.fail(at(0), RequestId(1)) && last.fail(at(1), RequestId(2)));
        assert!(
            last.fail(at(10), RequestId(2)),
            "it wasn't marked, and 1 failed at 0"
        );
        assert!(!last.fail(at(11), RequestId(2)));
    }

    #[test]
    fn each_time_is_twice_as_long_until_something_is_served() {
        let mut endpoint = Failures::NONE;
        let mut lasts = Vec::new();
        for second in (0..80).map(|time| time * 100) {
            let now = at(second);
            lasts.push(endpoint.mark(now, POLICY).since(now).as_secs());
            assert!(!endpoint.fail(now, RequestId(second)), "it is down already");
            endpoint.back();
            assert_eq!(endpoint.down(), None);
            assert!(endpoint.fail(now, RequestId(7)), "the first is enough");
        }
        assert_eq!(lasts[..7], [1, 2, 4, 8, 16, 30, 30]);
        assert!(lasts[7..].iter().all(|&seconds| seconds == 30));
        endpoint.served();
        assert!(!endpoint.fail(at(9_000), RequestId(8)));
        assert!(endpoint.fail(at(9_000), RequestId(9)));
        assert_eq!(endpoint.mark(at(9_000), POLICY), at(9_001));
        endpoint.served();
        assert_eq!(endpoint.down(), Some(at(9_001)), "what ran there all the time");
        endpoint.back();
        assert!(endpoint.fail(at(9_002), RequestId(8)));
        assert_eq!(endpoint.mark(at(9_002), POLICY), at(9_003));
    }

    #[test]
    fn a_longest_time_below_the_first_is_the_only_one() {
        let short = OutlierEjection {
            max: Duration::from_millis(500),
            ..POLICY
        };
        let mut endpoint = Failures::NONE;
        assert_eq!(endpoint.mark(at(0), short), Instant::from_nanos(500_000_000));
    }
}
