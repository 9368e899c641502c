//! The order in a flow: a granted request overtakes no other one of its flow.
//!
//! Of one session the filter sends requests in their order, so an older one is known in time. Requests that two filters of one host list in
//! their Hellos keep their exact order, because both Hellos name the time by the host's clock. All Envoys of a world whose clocks don't jump
//! read one clock.

use penstock_engine::policy::{Budget, Over};

use super::World;
use crate::http::HttpStream;
use crate::time::{MICRO, Nanos};

/// Ages are in whole microseconds.
const ROUNDING: Nanos = 3 * MICRO;

impl World {
    /// Checks a grant: no request of the same flow that came earlier still waits.
    pub(crate) fn check_flow_order(&mut self, index: usize, id: u64) {
        if !self.is_order_certain(index, id) {
            return;
        }
        let overtaken = self.overtaken_in_session(index, id).or_else(|| self.overtaken_on_host(index, id));
        let Some(older) = overtaken.and_then(|older| Some((older, self.http_streams.get(&older)?))) else {
            return;
        };
        // The older request's grant may be in transit.
        let (older, sequence, root) = (older.0, older.1.sequence, self.roots.get(&older.1.root));
        let control = self.companions[index].control.as_ref();
        let granted = control.zip(root).and_then(|(control, root)| control.is_granted(root.epoch, sequence));
        if granted == Some(false) {
            self.fail(|| format!("http {id} overtakes http {older} of the same flow"));
        }
    }

    /// Whether the world knows which requests of its flow come before a granted one.
    fn is_order_certain(&self, index: usize, id: u64) -> bool {
        let Some(http) = self.http_streams.get(&id) else {
            return false;
        };
        // A lost grant is repeated, whatever arrived in between.
        let repeated = http.counted_by == Some(self.companions[index].tenure);
        if self.clock_jumped || http.parent.is_some() || http.resumed || repeated {
            return false;
        }
        // Above the limit of identities several flows share one queue, and a flow can move into the shared queue, unless the policy names
        // it.
        let client = &self.clients[http.client as usize];
        let flows = &self.scenario.pools[client.pool].policy.flows;
        if flows.identities_max < self.scenario.flows as usize && !flows.names(&format!("f{}", client.flow)) {
            return false;
        }
        // Within one band only: what was demoted goes after a newcomer for which there is room again.
        let demotes = |budget: &Budget| budget.over == Over::Demote && !budget.shadow;
        !flows.budgets.iter().any(demotes)
    }

    /// A waiting request of the same flow and session that came clearly earlier.
    fn overtaken_in_session(&self, index: usize, id: u64) -> Option<u64> {
        let http = self.http_streams.get(&id)?;
        // A companion whose clock has another rate than an Envoy's misjudges the ages that filters report.
        let misjudged = match self.scenario.lease {
            0 => 0,
            _ => self.now.saturating_sub(http.arrived_at) / 10,
        };
        let delay = self.notification_delay_max() + misjudged;
        let is_earlier = |older: &HttpStream| {
            older.arrived_at + delay < http.arrived_at && self.waits_beside(index, older, http)
        };
        let in_session = self.roots.get(&http.root)?.http_streams.values();
        in_session.copied().find(|id| self.http_streams.get(id).is_some_and(is_earlier))
    }

    /// A waiting request of the same flow that another session of the same host has listed, and that came earlier.
    fn overtaken_on_host(&mut self, index: usize, id: u64) -> Option<u64> {
        // While a session is silent, its requests stay behind.
        if self.scenario.faults.iter().any(|kind| kind.silences_sessions()) {
            return None;
        }
        let http = self.http_streams.get(&id)?;
        let group = http.listed_in?;
        let is_beside = |other: &&HttpStream| {
            other.listed_in == Some(group)
                && other.root != http.root
                && self.has_open_session(index, other.root)
                && self.waits_beside(index, other, http)
        };
        let all = self.http_streams.iter();
        let beside: Vec<(u64, Nanos)> =
            all.filter(|(_, other)| is_beside(other)).map(|(&id, other)| (id, other.arrived_at)).collect();
        let earlier = beside.iter().find(|(_, arrived_at)| arrived_at + ROUNDING < http.arrived_at);
        let earlier = earlier.map(|&(id, _)| id);
        self.summary.orders_on_hosts += u64::from(!beside.is_empty());
        earlier
    }

    /// Whether `other`, a request of the same flow as `http`, waits at the companion.
    fn waits_beside(&self, index: usize, other: &HttpStream, http: &HttpStream) -> bool {
        let flow = |number: u64| {
            let client = &self.clients[number as usize];
            (client.pool, client.flow, client.band, client.model)
        };
        other.registered_with == Some(self.companions[index].tenure)
            && !other.resumed
            && !other.replied
            && !other.age_uncertain
            && other.parent.is_none()
            && flow(other.client) == flow(http.client)
    }

    fn has_open_session(&self, index: usize, root: u64) -> bool {
        self.roots.get(&root).is_some_and(|root| {
            let attachment = &root.attachments[index];
            !root.dead && attachment.session_stream.is_some() && attachment.orphaned_since.is_none()
        })
    }
}
