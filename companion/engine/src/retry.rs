//! The failures of one request: which endpoints it avoids because they failed it, and until when.
//!
//! The engine's side is in `engine/retry.rs`.

use alloc::vec::Vec;
use core::time::Duration;

use crate::input::EndpointId;
use crate::limits::{AVOIDED_MAX, PAUSE_MAX_MS, PAUSE_MIN_MS};
use crate::time::Instant;

/// The failures of a request.
#[derive(Debug, Default)]
pub(crate) struct Retry {
    /// How often an endpoint failed the request.
    failures: u32,
    /// The endpoints that failed it since the last pause ended, sorted.
    failed_at: Vec<EndpointId>,
    /// The end of the last pause.
    until: Instant,
    /// The pause lasts, and the request waits.
    is_paused: bool,
    /// It lets other requests pass until the end of the pause.
    lets_pass: bool,
}

impl Retry {
    /// `endpoint` failed the request: a pause begins. Past [`AVOIDED_MAX`] it forgets the endpoints that failed it before.
    pub(crate) fn fail(&mut self, now: Instant, endpoint: EndpointId) {
        if self.until <= now || self.failed_at.len() >= AVOIDED_MAX {
            self.failed_at.clear();
        }
        if let Err(place) = self.failed_at.binary_search(&endpoint) {
            self.failed_at.insert(place, endpoint);
        }
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        let pause = Duration::from_millis(PAUSE_MIN_MS).saturating_mul(factor);
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

    /// The endpoints that the request avoids.
    pub(crate) fn avoided(&self) -> &[EndpointId] {
        if self.is_paused { &self.failed_at } else { &[] }
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

    fn at(milliseconds: u64) -> Instant {
        Instant::from_nanos(milliseconds * 1_000_000)
    }

    #[test]
    fn pause_doubles_from_100_ms_to_1_s() {
        let mut retry = Retry::default();
        let mut pauses = Vec::new();
        for second in 1..40 {
            let now = at(second * 1_000);
            retry.fail(now, EndpointId(1));
            pauses.push(retry.until().map(|until| until.since(now).as_millis()));
            retry.end_pause();
        }
        assert_eq!(pauses[..6], [100, 200, 400, 800, 1_000, 1_000].map(Some));
        assert!(pauses[6..].iter().all(|pause| *pause == Some(1_000)));
    }

    #[test]
    fn request_avoids_every_endpoint_that_failed_it_until_its_pause_ends() {
        let mut retry = Retry::default();
        retry.fail(at(0), EndpointId(3));
        retry.end_pause();
        assert!(retry.avoided().is_empty(), "it was granted");
        retry.fail(at(1), EndpointId(1));
        assert_eq!(retry.avoided(), [1, 3].map(EndpointId));
        retry.end_pause();
        retry.fail(at(201), EndpointId(2));
        assert_eq!(retry.avoided(), [EndpointId(2)], "the pause was over");
        for id in 10..17 {
            retry.fail(at(202), EndpointId(id));
        }
        assert_eq!(retry.avoided().len(), AVOIDED_MAX);
        retry.fail(at(203), EndpointId(20));
        assert_eq!(retry.avoided(), [EndpointId(20)]);
    }
}
