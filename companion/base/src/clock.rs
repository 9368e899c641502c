//! The companion's clocks: monotonic time for decisions, and wall-clock time for state that outlives the process.

use std::time::Duration;

use penstock_engine::Instant;

/// How far the engine's zero lies before the start of the process. Requests that this companion takes over from another
/// one arrived before its start, and must keep their place and age; no request waits for as long as this.
const PAST: Duration = Duration::from_secs(365 * 24 * 3600);

/// The engine's monotonic time. Its zero lies a year before the start of the process.
#[derive(Clone, Copy, Debug)]
pub struct Clock(tokio::time::Instant);

impl Clock {
    /// Starts the clock.
    #[must_use]
    pub fn start() -> Self {
        Self(tokio::time::Instant::now())
    }

    /// The present time.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::ZERO.after(PAST.saturating_add(self.0.elapsed()))
    }

    /// The time since the start.
    #[must_use]
    pub fn uptime(&self) -> Duration {
        self.0.elapsed()
    }

    /// This moment as an instant of the runtime. `None`: too far in the future to be represented.
    #[must_use]
    pub fn runtime_instant(&self, instant: Instant) -> Option<tokio::time::Instant> {
        let since_start = Duration::from_nanos(instant.as_nanos()).saturating_sub(PAST);
        self.0.checked_add(since_start)
    }
}

/// Wall-clock time since 1970, which an administrator may set. Only for state that outlives the process.
#[must_use]
pub fn unix() -> Duration {
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

/// Returns at this instant of the runtime; `None`: never.
pub async fn sleep_until(due: Option<tokio::time::Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_before_the_start_keep_their_age() {
        let clock = Clock::start();
        let now = clock.now();
        let older = now.before(Duration::from_secs(30));
        assert!(older < now.before(Duration::from_secs(29)));
        assert_eq!(now.since(older), Duration::from_secs(30));
        assert_eq!(clock.runtime_instant(older), Some(clock.0), "a past deadline is due");
        let due = clock.runtime_instant(Instant::ZERO.after(PAST + Duration::from_secs(1)));
        assert_eq!(due, clock.0.checked_add(Duration::from_secs(1)));
    }
}
