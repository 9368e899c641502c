//! Time as an argument: nanoseconds of a monotonic clock that only the host reads. Arithmetic saturates.
//!
//! Reading the clock is a host call. A handler that often needs no time takes a [`Clock`] instead of an [`Instant`].

use core::time::Duration;

/// A moment on the host's monotonic clock. Only differences are meaningful.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(u64);

impl Instant {
    /// The moment `nanos` nanoseconds after the clock's zero.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds after the clock's zero.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The time since `earlier` in whole microseconds, the unit of the protocol.
    #[must_use]
    pub const fn micros_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0) / 1_000
    }

    /// The moment `delay` later.
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// The host's clock, for handlers that read it only where the time matters.
pub trait Clock: Copy {
    /// The present moment.
    fn now(self) -> Instant;
}

/// A moment is a clock that stands still.
impl Clock for Instant {
    fn now(self) -> Self {
        self
    }
}
