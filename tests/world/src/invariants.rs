//! The world's invariants: checks after each step that could violate them, regular audits of the companion, and final
//! checks of the idle world.

use penstock_control::Control;
use penstock_engine::policy::{Gate, StockUnit};

mod flow_order;
mod leadership;
mod outcomes;
mod quiescence;
mod waits;

use super::World;
use super::clients::Client;
use super::companion::PoolCounts;
use super::http::HttpStream;
use super::servers::Job;
use super::time::{MILLI, Nanos};

/// The oldest that a worker's published in-flight count may be: one heartbeat, which a tick renews, and a tick may be
/// late.
const REPORT_AGE_MAX: Nanos = 1_500 * MILLI;

impl World {
    /// Records a violated invariant. Only the first one counts.
    pub(super) fn fail(&mut self, violation: impl FnOnce() -> String) {
        if self.failure.is_none() {
            let violation = violation();
            self.note(|| format!("VIOLATED: {violation}"));
            self.failure = Some(violation);
        }
    }

    /// Checks an HTTP stream that its filter just resumed.
    pub(super) fn check_resumed(&mut self, id: u64) {
        if let Some((_, term)) = self.message_source {
            let (root, envoy) = self.http_streams.get(&id).map_or((0, 0), |http| (http.root, http.envoy));
            self.envoys[envoy].last_grant_at = self.now;
            let last = self.roots.get_mut(&root).map(|root| core::mem::replace(&mut root.term, term));
            if last.is_some_and(|last| last > term) {
                self.fail(|| {
                    format!("root {root} obeys a companion of term {term} after one of term {last:?}")
                });
            }
        } else {
            self.summary.fallback_admissions += 1;
            self.check_fallback_bound(id);
        }
    }

    /// The longest delay between an event and the companion's processing of it, unless a fault delays it.
    pub(super) fn notification_delay_max(&self) -> Nanos {
        self.scenario.delay_max + self.scenario.batch + MILLI
    }

    /// Checks a grant: the request's session has a stream, and the companion has waited for the sessions it expects.
    pub(super) fn check_grant_allowed(&mut self, index: usize, request: &str) {
        let Some(number) = client_number(request) else {
            return;
        };
        // A grant for a request that already runs, under its current or a previous key, is an adoption.
        let streams = || self.http_streams.values().filter(|http| http.client == number);
        if streams().next().is_none() || streams().any(|http| http.resumed) {
            return;
        }
        // A stream that ends in the batch in which its session begins was never seen as open here, and its requests may be granted between.
        let ends_now = |root: u64| self.companions[index].roots_closed_in_batch.contains(&root);
        let without_session = |http: &HttpStream| {
            let root = self.roots.get(&http.root).filter(|_| !ends_now(http.root));
            root.is_some_and(|root| root.attachments[index].orphaned_since.is_some())
        };
        if streams().any(without_session) {
            self.fail(|| format!("client {number} is granted, though its filter has no session stream"));
        }
        let sessions = self.companions[index].sessions_max;
        let expected = self.scenario.sessions_expected();
        let uptime = self.companion_now(index).as_nanos().saturating_sub(self.companions[index].started_at);
        let waited = u128::from(uptime) >= self.scenario.startup_wait.as_nanos();
        // Of several companions, the leader knows which filters it must wait for.
        let is_alone = self.companions[index].election.is_none();
        if is_alone && !waited && !self.clock_jumped && expected.is_none_or(|expected| sessions < expected) {
            self.fail(|| {
                format!("client {number} is granted during the startup wait with only {sessions} sessions")
            });
        }
    }

    /// Checks that a companion counts at most one arrival and one outcome of a request, however often the request is
    /// registered.
    pub(super) fn check_counted_once(&mut self, index: usize, request: &str, arrived: bool, decided: bool) {
        let Some(number) = client_number(request).and_then(|number| usize::try_from(number).ok()) else {
            return;
        };
        let tenure = self.companions[index].tenure;
        if let Some(client) = self.clients.get_mut(number).filter(|_| decided) {
            client.decided_by.push(tenure);
        }
        // A companion that learns of a requeued request's second key first may count the request twice.
        let has_one_key =
            |client: &&mut Client| !client.released_by.contains(&tenure) && client.roots.len() == 1;
        let Some(client) = self.clients.get_mut(number).filter(has_one_key) else {
            return;
        };
        let twice = arrived && client.arrival_counted_by.replace(tenure) == Some(tenure)
            || decided && client.outcome_counted_by.replace(tenure) == Some(tenure);
        if twice {
            self.fail(|| format!("client {number} is counted twice"));
        }
    }

    /// Checks that a session is gone after its filter sent Bye.
    pub(super) fn check_released(&mut self, index: usize, root: u64) {
        if self.has_session(index, root) {
            self.fail(|| format!("root {root} sent Bye, and its session still exists"));
        }
    }

    /// Whether a companion has the session of a root context, open or not. `false` after it has handed over.
    pub(super) fn has_session(&self, index: usize, root: u64) -> bool {
        let (Some(epoch), Some(control)) = (self.epochs.get(&root), &self.companions[index].control) else {
            return false;
        };
        let id = format!("{:016x}", epoch >> 64);
        let status = control.status(self.companion_now(index));
        !status.handed_over && status.sessions.iter().any(|session| session.id == id)
    }

    /// Checks a grant: the requests that the companion counts as running, adopted ones included, are below the bound.
    pub(super) fn check_bound(&mut self, index: usize, id: u64) {
        let tenure = self.companions[index].tenure;
        let Some(http) = self.http_streams.get(&id).filter(|http| http.counted_by != Some(tenure)) else {
            return;
        };
        let pool = self.clients[http.client as usize].pool;
        let scenario = &self.scenario.pools[pool];
        let extra = scenario.server_extra * scenario.servers.len() as u64;
        let bound = scenario.pool_bound.map(|bound| bound + extra);
        let Some(bound) = bound.filter(|_| self.endpoints_are_static()) else {
            return;
        };
        let running = self.http_streams.values().filter(|http| {
            http.counted_by == Some(tenure)
                && http.job.is_some()
                && self.clients[http.client as usize].pool == pool
        });
        let running = running.count() as u64;
        if running >= bound {
            self.fail(|| {
                format!("http {id} is granted, though {running} requests run with a bound of {bound}")
            });
        }
    }

    /// Whether no fault of this world changes the set of usable endpoints or the bounds.
    fn endpoints_are_static(&self) -> bool {
        !self.scenario.faults.iter().any(|kind| kind.changes_endpoints())
    }

    /// Checks a fallback admission: an Envoy's filters never have more of them in flight than the Envoy's share. If no
    /// companion has granted anything for longer than a published count may be old, granted requests count as well.
    fn check_fallback_bound(&mut self, id: u64) {
        let Some(http) = self.http_streams.get(&id) else {
            return;
        };
        let pool = self.clients[http.client as usize].pool;
        let bound = self.fallback_bounds[pool];
        let Some(bound) = bound.filter(|_| !self.clock_jumped && http.parent.is_none()) else {
            return;
        };
        let idle = self.now.saturating_sub(self.envoys[http.envoy].last_grant_at);
        let counts_granted = idle > REPORT_AGE_MAX;
        let counts = |other: &HttpStream| {
            other.envoy == http.envoy
                && other.resumed
                && other.parent.is_none()
                && (counts_granted || other.granted_by.is_none())
                && self.clients[other.client as usize].pool == pool
                && self.roots.get(&other.root).is_some_and(|root| !root.dead)
        };
        let in_flight = self.http_streams.values().filter(|other| counts(other)).count() as u64;
        if in_flight > bound {
            self.fail(|| {
                format!(
                    "http {id} is request {in_flight} in flight at an Envoy with a fallback bound of {bound}"
                )
            });
        }
    }

    /// Checks a request that just reached a server.
    pub(super) fn check_servers(&mut self, id: u64) {
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        let (server, pool) = (job.server, self.servers[job.server].pool);
        let Some(http) = self.http_streams.get(&job.http) else {
            return self.fail(|| format!("job {id} has no HTTP stream"));
        };
        let number = http.client;
        let client = &self.clients[number as usize];
        if client.end.is_some() {
            return self.fail(|| format!("client {number} has ended, and its request reaches a server"));
        }
        if client.pool != pool {
            return self.fail(|| format!("client {number}'s request reaches a server of another pool"));
        }
        let is_clients =
            |job: &&Job| self.http_streams.get(&job.http).is_some_and(|http| http.client == number);
        let copies = self.jobs.values().filter(is_clients).count();
        if copies != 1 {
            return self.fail(|| format!("client {number}'s request is at {copies} servers at once"));
        }
        self.check_server_bounds(server, pool);
    }

    /// Checks all of a companion's state.
    pub(super) fn audit_companion(&mut self, index: usize) {
        self.summary.audits += 1;
        let Some(control) = &self.companions[index].control else {
            return;
        };
        if let Err(error) = control.audit() {
            return self.fail(|| error.to_string());
        }
        if let Some(violation) = self.wrong_pool_counts(index, control) {
            self.fail(|| violation);
        }
    }

    fn wrong_pool_counts(&self, index: usize, control: &Control) -> Option<String> {
        let status = control.status(self.companion_now(index));
        for pool in &status.pools {
            let Some(scenario) = self.scenario.pools.iter().find(|scenario| *scenario.name == *pool.name)
            else {
                continue;
            };
            let counts: PoolCounts =
                self.companions[index].counts.get(&scenario.name).copied().unwrap_or_default();
            let waiting = pool.snapshot.waiting;
            // A requeued request waits although its outcome is already counted.
            let min = counts.arrived.saturating_sub(counts.left);
            if waiting < min || waiting > min + counts.requeued {
                return Some(format!(
                    "pool {} counted {counts:?}, but {waiting} requests wait",
                    scenario.name
                ));
            }
            // The lag starts anew where a reload changes weights, costs or the discipline: what was counted before must not show in it.
            let lag = pool.snapshot.fairness_lags.iter().find(|lag| lag.ratio > 1.0);
            if let Some(lag) = lag {
                return Some(format!("pool {} has the lag {lag:?} over its bound", scenario.name));
            }
            let in_requests = matches!(
                scenario.policy.gate,
                Gate::Auto { .. } | Gate::Bounded { unit: StockUnit::Requests, .. }
            );
            let stock = pool.snapshot.stock + pool.snapshot.draining_stock;
            let requests = status.requests as u64;
            if in_requests && stock > requests {
                return Some(format!(
                    "pool {} has a stock of {stock}, but only {requests} requests exist",
                    scenario.name
                ));
            }
        }
        None
    }
}

/// The client's number in a request id.
fn client_number(request: &str) -> Option<u64> {
    request.strip_prefix('r')?.parse().ok()
}
