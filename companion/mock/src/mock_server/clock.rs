//! The clocks of the mock server. All other modules get the time as an argument.

use std::time::{SystemTime, UNIX_EPOCH};

use penstock_engine::Instant;

/// Converts between the runtime's clock and the simulated server's time, which starts at zero.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    zero: tokio::time::Instant,
}

impl Clock {
    pub(super) fn start() -> Self {
        Self { zero: tokio::time::Instant::now() }
    }

    pub(super) fn now(self) -> Instant {
        Instant::ZERO.after(self.zero.elapsed())
    }

    pub(super) fn deadline(self, time: Instant) -> tokio::time::Instant {
        self.zero + time.since(Instant::ZERO)
    }

    /// Seconds since 1970, for the `created` field.
    pub(super) fn unix_s() -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }
}
