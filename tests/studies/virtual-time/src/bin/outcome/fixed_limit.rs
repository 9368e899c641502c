//! The best fixed limit of a cell, found by search: requests in flight at each server, and the time that a request may wait.

use std::time::Duration;

use penstock_engine::Policy;
use penstock_engine::policy::{Discipline, Gate};
use penstock_engine::units::Decimal;
use penstock_simulate::closed_loop::Placement;

use crate::cell::Cell;
use crate::measured::{Measured, Setup};

/// Requests in flight at each server.
const LIMITS: [u64; 15] = [1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];
/// Milliseconds that a request may wait; 0: it is refused at once.
const WAITS_MS: [u64; 5] = [0, 500, 1_000, 1_500, 2_000];
/// The wait with which the best limit is searched for first.
const FIRST_WAIT_MS: u64 = 1_000;

/// A fixed limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FixedLimit {
    in_flight: u64,
    wait_ms: u64,
}

impl FixedLimit {
    /// The limit with the highest goodput of first come, first served, and what it gives.
    pub(crate) fn best(cell: &Cell) -> (Self, Measured) {
        let limits = LIMITS.map(|in_flight| Self { in_flight, wait_ms: FIRST_WAIT_MS });
        let (best, _) = Self::best_of(cell, &limits);
        let waits = WAITS_MS.map(|wait_ms| Self { wait_ms, ..best });
        Self::best_of(cell, &waits)
    }

    fn best_of(cell: &Cell, candidates: &[Self]) -> (Self, Measured) {
        let runs = candidates.iter().map(|limit| {
            let setup = limit.setup(Discipline::Fifo, false);
            (*limit, Measured::run(cell, &setup))
        });
        let best = runs.reduce(|best, next| if next.1.goodput() > best.1.goodput() { next } else { best });
        best.expect("invariant: there is a candidate")
    }

    /// A pool with this limit.
    pub(crate) fn setup(self, discipline: Discipline, has_priorities: bool) -> Setup {
        let bound = Decimal::whole(self.in_flight);
        let mut policy = Policy { gate: Gate::requests(bound), ..Policy::default() };
        policy.queue.enabled = self.wait_ms > 0;
        policy.queue.ttl = Duration::from_millis(self.wait_ms.max(1));
        (policy.queue.total_capacity, policy.queue.flow_capacity) = (100_000, 100_000);
        policy.flows.discipline = discipline;
        Setup { policy, placement: Placement::Engine, has_priorities }
    }

    pub(crate) fn text(self) -> String {
        format!("{} a server, waits {} s", self.in_flight, self.wait_ms as f64 / 1e3)
    }
}
