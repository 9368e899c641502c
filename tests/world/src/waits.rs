//! What the world knows of the causes of long waits, for the check in [`super::invariants`].

use super::time::{Nanos, SECOND};

/// A fault that delays decisions does so for less than this.
const DISTURBANCE: Nanos = 60 * SECOND;

/// What the world knows of the causes of long waits.
#[derive(Debug)]
pub(super) struct Waits {
    /// Until then, faults may delay decisions.
    pub(super) disturbed_until: Nanos,
    /// By pool: the last time at which no server was ready.
    pub(super) unready_at: Vec<Nanos>,
}

impl Waits {
    pub(super) fn new(pools: usize, start: Nanos) -> Self {
        Self {
            // Companions may start late.
            disturbed_until: start + DISTURBANCE / 2,
            unready_at: vec![0; pools],
        }
    }

    /// A fault delays decisions from now on.
    pub(super) const fn disturb(&mut self, now: Nanos) {
        self.disturbed_until = now + DISTURBANCE;
    }
}
