//! The `retry-after` of errors that the filter reports by itself.
//!
//! The end of a failure isn't known. A failure that has lasted for some time is expected to last about as long again, so a client is
//! advised to wait for that time: it comes back soon after a short failure, and tries seldom during a long one.

use core::time::Duration;
use std::collections::BTreeMap;

use crate::limits::{RETRY_AFTER_MAX_MS, RETRY_AFTER_MIN_MS};
use crate::time::Instant;

/// Percent by which the longest wait differs from the shortest, so that clients don't all return at once.
const JITTER_PERCENT: u64 = 10;

/// Milliseconds after which a client should retry. `lasts`: how long the failure has lasted. `sequence`: the request's number, which
/// varies the advice.
pub(crate) fn retry_after_ms(lasts: Duration, sequence: u64) -> u64 {
    let lasts_ms = u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX);
    let wait_ms = lasts_ms.clamp(RETRY_AFTER_MIN_MS, RETRY_AFTER_MAX_MS);
    let percent = sequence.checked_rem(JITTER_PERCENT.saturating_add(1)).unwrap_or(0);
    let beyond_ms = wait_ms.saturating_sub(RETRY_AFTER_MIN_MS);
    wait_ms.saturating_add(beyond_ms.saturating_mul(percent) / 100)
}

/// The pools in which no server accepts a request, each since the first such request.
#[derive(Debug, Default)]
pub(crate) struct FailingPools(BTreeMap<String, Instant>);

impl FailingPools {
    /// No server accepted a request. Returns how long that has been so.
    pub(crate) fn record_failure(&mut self, now: Instant, pool: &str) -> Duration {
        if let Some(since) = self.0.get(pool) {
            return now.since(*since);
        }
        self.0.insert(pool.to_owned(), now);
        Duration::ZERO
    }

    /// A server of the pool responded.
    pub(crate) fn record_response(&mut self, pool: &str) {
        if !self.0.is_empty() {
            self.0.remove(pool);
        }
    }

    /// Removes the pools that `exists` doesn't name.
    pub(crate) fn retain(&mut self, exists: impl Fn(&str) -> bool) {
        self.0.retain(|pool, _| exists(pool));
    }
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[test]
    fn clients_are_advised_to_wait_as_long_as_the_failure_has_lasted() {
        let ms = Duration::from_millis;
        assert_eq!(retry_after_ms(ms(0), 3), 1_000);
        assert_eq!(retry_after_ms(ms(1_000), 3), 1_000);
        assert_eq!(retry_after_ms(ms(6_000), 0), 6_000);
        assert_eq!(retry_after_ms(ms(6_000), 10), 6_500, "10 % of what exceeds 1 s");
        assert_eq!(retry_after_ms(ms(6_000), 11), 6_000);
        assert_eq!(retry_after_ms(Duration::MAX, 0), 30_000);
        assert_eq!(retry_after_ms(Duration::MAX, 10), 32_900);
    }

    #[test]
    fn a_pool_fails_from_its_first_failure_until_a_server_responds() {
        let time = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
        let mut pools = FailingPools::default();
        assert_eq!(pools.record_failure(time(5), "a"), Duration::ZERO);
        assert_eq!(pools.record_failure(time(9), "a"), Duration::from_secs(4));
        assert_eq!(pools.record_failure(time(9), "b"), Duration::ZERO);
        pools.record_response("a");
        assert_eq!(pools.record_failure(time(10), "a"), Duration::ZERO);
        pools.retain(|pool| pool == "a");
        assert_eq!(pools.record_failure(time(20), "b"), Duration::ZERO);
        assert_eq!(pools.record_failure(time(20), "a"), Duration::from_secs(10));
    }
}
