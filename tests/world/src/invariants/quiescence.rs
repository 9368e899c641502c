//! Final checks of the idle world: every request has ended, no component keeps any state of it, and one companion leads.

use penstock_election::{Role, RoleStatus};

use super::super::World;

impl World {
    /// Checks the idle world: every request has ended, and no component keeps any state of it.
    pub(crate) fn check_quiescence(&mut self) {
        for index in 0..self.companions.len() {
            self.audit_companion(index);
        }
        let mut leftovers = Vec::new();
        for (number, client) in self.clients.iter().enumerate() {
            if client.end.is_none() {
                leftovers.push(format!("client {number} has no outcome"));
            }
        }
        if !self.jobs.is_empty() {
            leftovers.push(format!("{} jobs are still at servers", self.jobs.len()));
        }
        let leader = self.collect_leadership_leftovers(&mut leftovers);
        self.collect_root_leftovers(leader, &mut leftovers);
        for companion in 0..self.companions.len() {
            self.collect_companion_leftovers(companion, &mut leftovers);
        }
        self.collect_stream_leftovers(&mut leftovers);
        let keys = self.envoys.iter().map(|envoy| envoy.shared.len()).max();
        let keys = keys.unwrap_or(0) as u64;
        self.summary.shared_keys_max = self.summary.shared_keys_max.max(keys);
        if !leftovers.is_empty() {
            leftovers.truncate(8);
            self.fail(|| format!("in the idle world: {}", leftovers.join("; ")));
        }
    }

    /// Exactly one companion leads and has the lease, and the others know it. Returns the leader's index.
    fn collect_leadership_leftovers(&self, leftovers: &mut Vec<String>) -> usize {
        if self.scenario.lease == 0 {
            return 0;
        }
        let leaders: Vec<usize> =
            (0..self.companions.len()).filter(|index| self.is_in_charge(*index)).collect();
        let &[leader] = leaders.as_slice() else {
            leftovers.push(format!("the companions {leaders:?} lead"));
            return leaders.first().copied().unwrap_or_default();
        };
        if !self.holds_lease(self.companions[leader].generation) {
            leftovers.push(format!("companion {leader} leads without the lease"));
        }
        let address = Self::companion_address(leader);
        for (index, companion) in self.companions.iter().enumerate() {
            let role = companion.control.as_ref().map(|control| control.role());
            match role {
                Some(RoleStatus { role: Role::Leader, .. }) => {}
                Some(RoleStatus { role: Role::Standby, leader: Some(named), .. }) if *named == address => {}
                role => {
                    leftovers.push(format!("companion {index} is {role:?}, and companion {leader} leads"))
                }
            }
        }
        leader
    }

    fn collect_root_leftovers(&self, leader: usize, leftovers: &mut Vec<String>) {
        for (id, root) in &self.roots {
            let (exchanges, unacknowledged) = (root.worker.exchanges(), root.worker.unacknowledged());
            if exchanges > 0 || !root.http_streams.is_empty() {
                leftovers.push(format!("root {id} keeps {exchanges} exchanges"));
            }
            if !root.unreported_ends.is_empty() {
                leftovers.push(format!("root {id} has not reported the ends of {:?}", root.unreported_ends));
            }
            if unacknowledged > 0 {
                leftovers.push(format!("root {id} keeps {unacknowledged} unacknowledged events"));
            }
            let session_stream = root.attachments[leader].session_stream;
            if session_stream.is_none() || session_stream != root.stream {
                leftovers.push(format!("root {id} has no session; its stream: {:?}", root.stream));
            }
            if root.draining || root.dead {
                leftovers.push(format!("root {id} hasn't ended"));
            }
        }
    }

    fn collect_companion_leftovers(&self, index: usize, leftovers: &mut Vec<String>) {
        let Some(control) = &self.companions[index].control else {
            return;
        };
        let status = control.status(self.companion_now(index));
        if status.requests > 0 {
            leftovers.push(format!("companion {index} keeps {} requests", status.requests));
        }
        let is_standby = control.role().role == Role::Standby;
        let expected = if is_standby { 0 } else { self.roots.len() };
        if status.sessions.len() != expected || status.sessions.iter().any(|session| !session.open) {
            let sessions: Vec<_> =
                status.sessions.iter().map(|session| (&session.id, session.open)).collect();
            leftovers.push(format!("companion {index} keeps the sessions {sessions:?}"));
        }
        for pool in &status.pools {
            let snapshot = &pool.snapshot;
            if (snapshot.stock, snapshot.draining_stock, snapshot.waiting) != (0, 0, 0) {
                leftovers.push(format!(
                    "pool {} has a stock of {}, {} draining, {} waiting",
                    pool.name, snapshot.stock, snapshot.draining_stock, snapshot.waiting
                ));
            }
            if snapshot.credit > 0 {
                leftovers.push(format!("pool {} has given {} places", pool.name, snapshot.credit));
            }
            if snapshot.flows.iter().any(|flow| flow.waiting > 0 || flow.in_flight > 0) {
                leftovers.push(format!("a flow of pool {} still has requests", pool.name));
            }
        }
        for (pool, counts) in &self.companions[index].counts {
            if counts.arrived != counts.left {
                leftovers.push(format!("pool {pool} counted {counts:?}"));
            }
        }
    }

    fn collect_stream_leftovers(&self, leftovers: &mut Vec<String>) {
        let open =
            self.streams.values().filter(|stream| stream.open_at_companion && stream.open_at_filter).count();
        if open > self.roots.len() {
            leftovers.push(format!("{open} streams are open for {} roots", self.roots.len()));
        }
    }
}
