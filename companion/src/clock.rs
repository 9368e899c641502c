//! The one place that reads the clock.

use std::time::Duration;

use penstock_engine::Instant;

/// The engine's time: nanoseconds since this was made, monotonic.
#[derive(Clone, Copy, Debug)]
pub struct Clock(tokio::time::Instant);

impl Clock {
    /// Starts the engine's time.
    #[must_use]
    pub fn start() -> Self {
        Self(tokio::time::Instant::now())
    }

    /// Now.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::ZERO.after(self.0.elapsed())
    }

    /// Since the start.
    #[must_use]
    pub fn uptime(&self) -> Duration {
        self.0.elapsed()
    }

    /// The runtime's name of a moment; `None`: so late that it never comes.
    #[must_use]
    pub fn at(&self, instant: Instant) -> Option<tokio::time::Instant> {
        self.0.checked_add(Duration::from_nanos(instant.as_nanos()))
    }
}
