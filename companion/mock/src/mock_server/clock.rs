//! The one place where the mock server reads a clock; everything else is told the time.

use std::time::{SystemTime, UNIX_EPOCH};

use penstock_engine::Instant;

/// Maps the runtime's clock to the simulation's time, which starts at zero when the server does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    zero: tokio::time::Instant,
}

impl Clock {
    pub(super) fn start() -> Self {
        Self {
            zero: tokio::time::Instant::now(),
        }
    }

    pub(super) fn now(self) -> Instant {
        Instant::ZERO.after(self.zero.elapsed())
    }

    pub(super) fn deadline(self, at: Instant) -> tokio::time::Instant {
        self.zero + at.since(Instant::ZERO)
    }

    /// Seconds since 1970, for `created`.
    pub(super) fn unix_s() -> u64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs())
    }
}
