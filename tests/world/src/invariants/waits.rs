//! How long requests wait: for the ttl from their arrival, and for longer only while no server of their pool is ready.

use core::time::Duration;

use super::super::World;
use super::super::faults::FaultKind;
use super::super::time::{Nanos, SECOND};

/// Filters and companions look at their deadlines this often.
const LATE_MAX: Nanos = 2 * SECOND;

impl World {
    /// Notes, before anything changes, which pools have no ready server now.
    pub(crate) fn note_readiness(&mut self) {
        for pool in 0..self.scenario.pools.len() {
            let mut servers = self.servers.iter().filter(|server| server.pool == pool);
            if !servers.any(|server| server.ready && !self.is_removed(&server.address)) {
                self.waits.unready_at[pool] = self.now;
            }
        }
    }

    /// A fault is injected.
    pub(crate) const fn note_fault(&mut self, kind: FaultKind) {
        if kind.delays_decisions() {
            self.waits.disturb(self.now);
        }
    }

    /// Checks a client's stream that stops waiting now.
    pub(crate) fn check_wait(&mut self, id: u64) {
        let Some(http) = self.http_streams.get(&id) else {
            return;
        };
        let is_disturbed = self.clock_jumped || http.arrived_at <= self.waits.disturbed_until;
        if is_disturbed || http.parent.is_some() {
            return;
        }
        let pool = self.clients[http.client as usize].pool;
        let queue = &self.scenario.pools[pool].policy.queue;
        let nanos = |duration: Duration| Nanos::try_from(duration.as_nanos()).unwrap_or(Nanos::MAX);
        let factor = if self.scenario.faults.contains(&FaultKind::RulesChanged) { 2 } else { 1 };
        let ttl = nanos(queue.ttl) * factor;
        let longest = ttl.max(nanos(queue.no_endpoint_ttl));
        let arrived = http.arrived_at;
        let last_unready = self.waits.unready_at[pool].min(arrived + longest);
        let due = (arrived + ttl).max(last_unready).max(http.body_read_at.unwrap_or_default());
        // Clocks of several companions have other rates than those of Envoys.
        let misjudged = match self.scenario.lease {
            0 => 0,
            _ => (self.now - arrived) / 10,
        };
        self.summary.full_waits += u64::from(self.now >= arrived + nanos(queue.ttl) / 2);
        if self.now > due + misjudged + LATE_MAX + 2 * self.notification_delay_max() {
            let waited = Duration::from_nanos(self.now - arrived);
            let ttl = Duration::from_nanos(ttl);
            self.fail(|| format!("http {id} waited for {waited:?} at a ttl of {ttl:?}"));
        }
    }
}
