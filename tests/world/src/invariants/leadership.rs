//! The invariants of several companions: who may grant, and what the leaders together grant.

use penstock_control::ConnId;
use penstock_election::Role;

use super::super::World;
use super::super::envoy::Root;
use super::super::http::HttpStream;
use super::super::servers::Job;

impl World {
    /// Checks a grant that one of several companions sends on a stream.
    pub(crate) fn check_leader_grants(&mut self, index: usize, (root, sequence): (u64, u64), conn: ConnId) {
        let companion = &self.companions[index];
        let (Some(control), Some(election)) = (&companion.control, &companion.election) else {
            return;
        };
        let (generation, tenure, term) = (companion.generation, companion.tenure, control.role().term);
        if control.role().role != Role::Leader {
            return self.fail(|| format!("companion {generation} grants, and doesn't lead"));
        }
        if !self.holds_lease(generation) && !election.is_store_unreachable {
            return self
                .fail(|| format!("companion {generation} grants without the lease, and reaches the store"));
        }
        self.exempt_unknown_requests(index);
        // A filter that has left takes no grant.
        let is_taken = self.roots.get(&root).is_some_and(|root| !root.dead && root.stream == Some(conn.0));
        let http = self.roots.get(&root).and_then(|root| root.http_streams.get(&sequence));
        let Some(http) = http.and_then(|id| self.http_streams.get(id)).filter(|_| is_taken) else {
            return;
        };
        let pool = self.clients[http.client as usize].pool;
        let (last_term, last_tenure) = self.granting[pool];
        if last_tenure != tenure && last_term >= term {
            return self.fail(|| {
                format!(
                    "companion {generation} grants with term {term} after a companion with term {last_term} has \
                     granted in the same pool"
                )
            });
        }
        self.granting[pool] = (term, tenure);
    }

    /// A leader begins to dispatch. After a wait it doesn't count requests of filters that have not come, and leaves nothing
    /// about them to the next leader: these run in addition to what is granted from now on.
    pub(crate) fn exempt_unknown_requests(&mut self, index: usize) {
        if core::mem::replace(&mut self.companions[index].dispatches, true) {
            return;
        }
        let now = self.companion_now(index);
        let Some(election) = &self.companions[index].election else {
            return;
        };
        let startup_wait = self.scenario.startup_wait;
        let has_waited = election.lacks_filters
            || election.leads_since.is_some_and(|since| since.after(startup_wait) <= now);
        let is_here = |root: &Root| root.attachments[index].session_stream.is_some();
        if !has_waited {
            return;
        }
        for http in self.http_streams.values_mut() {
            let is_known = self.roots.get(&http.root).is_some_and(is_here);
            // A grant of the last leader may be in transit.
            http.released_while_running |= (http.resumed || http.counted_by.is_some()) && !is_known;
        }
    }

    /// Checks the bounds of a server and its pool. Adopted and released requests don't count.
    pub(super) fn check_server_bounds(&mut self, server: usize, pool: usize) {
        let is_counted = |http: &HttpStream| {
            let is_adopted = http.counted_by.is_some() && http.counted_by != http.granted_by;
            http.granted_by.is_some() && !http.released_while_running && !is_adopted
        };
        let alone = (self.scenario.lease == 0).then(|| self.companions[0].tenure);
        let counts = |job: &&Job| {
            self.http_streams.get(&job.http).is_some_and(|http| match alone {
                Some(_) => http.granted_by == alone && !http.released_while_running,
                None => is_counted(http),
            })
        };
        let at_server =
            self.jobs.values().filter(|job| job.server == server && !job.fallback).filter(counts).count()
                as u64;
        let at_pool =
            self.jobs.values().filter(|job| self.servers[job.server].pool == pool).filter(counts).count()
                as u64;
        let scenario = &self.scenario.pools[pool];
        let extra = scenario.server_extra;
        if let Some(bound) = scenario.server_bound.filter(|bound| at_server > *bound + extra) {
            return self
                .fail(|| format!("{at_server} requests are at a server with a bound of {bound} + {extra}"));
        }
        let pool_bound = scenario.pool_bound.filter(|_| self.endpoints_are_static());
        let extra = extra * scenario.servers.len() as u64;
        if let Some(bound) = pool_bound.filter(|bound| at_pool > *bound + extra) {
            self.fail(|| {
                format!("{at_pool} requests are at the servers of a pool with a bound of {bound} + {extra}")
            });
        }
    }
}
