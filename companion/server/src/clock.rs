//! The one place that reads the clock.

use std::time::Duration;

use penstock_engine::Instant;

/// How far the engine's zero lies before the process's start. What a companion takes over from the last one arrived
/// before it began, and must keep its place and its age; nothing waits for as long as this.
const PAST: Duration = Duration::from_secs(365 * 24 * 3600);

/// The engine's time, monotonic; its zero lies a year before the process's start.
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
        Instant::ZERO.after(PAST.saturating_add(self.0.elapsed()))
    }

    /// Since the start.
    #[must_use]
    pub fn uptime(&self) -> Duration {
        self.0.elapsed()
    }

    /// The runtime's name of a moment; `None`: so late that it never comes.
    #[must_use]
    pub fn at(&self, instant: Instant) -> Option<tokio::time::Instant> {
        let since_start = Duration::from_nanos(instant.as_nanos()).saturating_sub(PAST);
        self.0.checked_add(since_start)
    }
}

/// Since 1970, by the wall's clock, which may be set: for what outlives the process, and nothing else.
#[must_use]
pub fn unix() -> Duration {
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_arrived_before_the_start_keeps_its_age() {
        let clock = Clock::start();
        let now = clock.now();
        let older = now.before(Duration::from_secs(30));
        assert!(older < now.before(Duration::from_secs(29)));
        assert_eq!(now.since(older), Duration::from_secs(30));
        assert_eq!(clock.at(older), Some(clock.0), "what is over is due");
        let due = clock.at(Instant::ZERO.after(PAST + Duration::from_secs(1)));
        assert_eq!(due, clock.0.checked_add(Duration::from_secs(1)));
    }
}
