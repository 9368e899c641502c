//! The engine's own time: nanoseconds since a zero that its owner chose.

use core::time::Duration;

/// A point in the engine's time. Only differences mean anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The owner's zero.
    pub const ZERO: Self = Self(0);
    /// Later than everything that happens.
    pub const MAX: Self = Self(u64::MAX);

    /// `nanos` after zero.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds after zero.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// From `earlier` to this; zero when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// `by` later, at most [`Instant::MAX`].
    #[must_use]
    pub const fn after(self, by: Duration) -> Self {
        Self(self.0.saturating_add(saturating_nanos(by)))
    }

    /// `by` earlier, at least [`Instant::ZERO`].
    #[must_use]
    pub const fn before(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(saturating_nanos(by)))
    }
}

const fn saturating_nanos(of: Duration) -> u64 {
    let nanos = of.as_nanos();
    if nanos > u64::MAX as u128 {
        u64::MAX
    } else {
        nanos as u64
    }
}
