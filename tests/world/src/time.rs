//! The world's virtual time.

/// Nanoseconds of the world's own clock. The simulated processes read clocks of their own, which can jump.
pub(super) type Nanos = u64;

pub(super) const MICRO: Nanos = 1_000;
pub(super) const MILLI: Nanos = 1_000_000;
pub(super) const SECOND: Nanos = 1_000_000_000;

/// Envoy's keepalive closes a dead connection after this time.
pub(super) const KEEPALIVE: Nanos = 4 * SECOND;
