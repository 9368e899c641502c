//! The failures of one request: which endpoints it avoids because they failed or refused it, and until when.
//!
//! The engine's side is in `engine/retry.rs`.

use alloc::vec::Vec;
use core::time::Duration;

use crate::input::EndpointId;
use crate::limits::{AVOIDED_MAX, PAUSE_MAX_MS, PAUSE_MIN_MS};
use crate::time::Instant;

/// How an endpoint failed a request before a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The connection failed.
    Failed,
    /// The server itself refused the request, and asks for at least this pause.
    Refused(Duration),
}

/// The failures of a request.
#[derive(Debug, Default)]
pub(crate) struct Retry {
    /// How often an endpoint failed or refused the request.
    failures: u32,
    /// The endpoints that did so since the last pause ended, sorted.
    failed_at: Vec<EndpointId>,
    /// The endpoints that refused the request.
    refused_at: Vec<EndpointId>,
    /// The end of the last pause.
    until: Instant,
    /// The pause lasts, and the request waits.
    is_paused: bool,
    /// The request lets others pass until the end of the pause.
    lets_pass: bool,
}

impl Retry {
    /// `endpoint` failed the request: a pause begins. Past [`AVOIDED_MAX`] it forgets the endpoints that failed it before.
    pub(crate) fn fail(&mut self, now: Instant, endpoint: EndpointId, failure: Failure) {
        if self.until <= now || self.failed_at.len() >= AVOIDED_MAX {
            self.failed_at.clear();
            self.refused_at.clear();
        }
        if let Err(place) = self.failed_at.binary_search(&endpoint) {
            self.failed_at.insert(place, endpoint);
        }
        self.refused_at.retain(|&refused| refused != endpoint);
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        let mut pause = Duration::from_millis(PAUSE_MIN_MS).saturating_mul(factor);
        if let Failure::Refused(retry_after) = failure {
            self.refused_at.push(endpoint);
            pause = pause.max(retry_after);
        }
        self.failures = self.failures.saturating_add(1);
        self.until = now.after(pause.min(Duration::from_millis(PAUSE_MAX_MS)));
        self.is_paused = true;
    }

    /// Lets other requests pass until the end of the pause.
    pub(crate) const fn let_pass(&mut self) {
        self.lets_pass = true;
    }

    /// The pause ends, or the request no longer waits.
    pub(crate) const fn end_pause(&mut self) {
        self.is_paused = false;
        self.lets_pass = false;
    }

    /// The request no longer avoids `endpoint`. Returns whether it avoids no other.
    pub(crate) fn readmit(&mut self, endpoint: EndpointId) -> bool {
        self.failed_at.retain(|&failed| failed != endpoint);
        self.refused_at.retain(|&refused| refused != endpoint);
        self.lets_pass = false;
        self.failed_at.is_empty()
    }

    /// The endpoints that the request avoids.
    pub(crate) fn avoided(&self) -> &[EndpointId] {
        if self.is_paused { &self.failed_at } else { &[] }
    }

    /// The avoided endpoints that refused the request.
    pub(crate) fn refused(&self) -> &[EndpointId] {
        if self.is_paused { &self.refused_at } else { &[] }
    }

    /// The end of the pause; `None`: the request avoids no endpoint.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.is_paused.then_some(self.until)
    }

    pub(crate) const fn lets_pass(&self) -> bool {
        self.lets_pass
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Failure = Failure::Refused(Duration::ZERO);

    fn at(milliseconds: u64) -> Instant {
        Instant::from_nanos(milliseconds * 1_000_000)
    }

    #[test]
    fn pause_doubles_from_100_ms_to_1_s() {
        for failure in [Failure::Failed, NOW] {
            let mut retry = Retry::default();
            let mut pauses = Vec::new();
            for second in 1..40 {
                let now = at(second * 1_000);
                retry.fail(now, EndpointId(1), failure);
                pauses.push(retry.until().map(|until| until.since(now).as_millis()));
                retry.end_pause();
            }
            assert_eq!(pauses[..6], [100, 200, 400, 800, 1_000, 1_000].map(Some));
            assert!(pauses[6..].iter().all(|pause| *pause == Some(1_000)));
        }
    }

    #[test]
    fn pause_is_as_long_as_the_server_asks_and_at_most_1_s() {
        let pause = |milliseconds, before: u64| {
            let mut retry = Retry::default();
            for _ in 0..before {
                retry.fail(at(0), EndpointId(1), NOW);
            }
            let asked = Failure::Refused(Duration::from_millis(milliseconds));
            retry.fail(at(0), EndpointId(1), asked);
            retry.until().map(|until| until.since(at(0)).as_millis())
        };
        assert_eq!(pause(0, 0), Some(100));
        assert_eq!(pause(700, 0), Some(700));
        assert_eq!(pause(700, 3), Some(800), "its own pause is longer");
        assert_eq!(pause(120_000, 0), Some(1_000));
    }

    #[test]
    fn request_avoids_every_endpoint_that_failed_it_until_its_pause_ends() {
        let mut retry = Retry::default();
        retry.fail(at(0), EndpointId(3), Failure::Failed);
        retry.end_pause();
        assert!(retry.avoided().is_empty(), "it was granted");
        retry.fail(at(1), EndpointId(1), NOW);
        assert_eq!(retry.avoided(), [1, 3].map(EndpointId));
        assert_eq!(retry.refused(), [EndpointId(1)]);
        retry.end_pause();
        assert!(retry.refused().is_empty(), "it was granted");
        retry.fail(at(201), EndpointId(2), Failure::Failed);
        assert_eq!(retry.avoided(), [EndpointId(2)], "the pause was over");
        assert!(retry.refused().is_empty());
        for id in 10..17 {
            retry.fail(at(202), EndpointId(id), Failure::Failed);
        }
        assert_eq!(retry.avoided().len(), AVOIDED_MAX);
        retry.fail(at(203), EndpointId(20), Failure::Failed);
        assert_eq!(retry.avoided(), [EndpointId(20)]);
    }

    #[test]
    fn endpoint_that_serves_again_is_no_longer_avoided() {
        let mut retry = Retry::default();
        retry.fail(at(0), EndpointId(3), Failure::Failed);
        retry.fail(at(1), EndpointId(1), NOW);
        retry.let_pass();
        assert!(!retry.readmit(EndpointId(1)), "3 failed it");
        assert_eq!(retry.avoided(), [EndpointId(3)]);
        assert!(retry.refused().is_empty() && !retry.lets_pass());
        assert!(retry.readmit(EndpointId(3)));
    }

    #[test]
    fn last_failure_at_an_endpoint_counts() {
        let mut retry = Retry::default();
        retry.fail(at(0), EndpointId(1), NOW);
        retry.fail(at(1), EndpointId(1), Failure::Failed);
        assert_eq!(retry.avoided(), [EndpointId(1)]);
        assert!(retry.refused().is_empty(), "its connection failed since");
    }
}
