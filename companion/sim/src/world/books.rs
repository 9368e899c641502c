//! What must hold: after every step that could break it, now and then of everything, and of the world at rest.

use penstock_engine::policy::{Gate, StockUnit};

use super::World;
use super::agenda::{MILLI, Nanos};
use super::clients::Client;
use super::faults::Kind;
use super::http::Http;

/// A worker's word on what it has in flight is renewed with each beat, and that by a tick, which may come a little late.
const WORD_AGE_MAX: Nanos = 1_500 * MILLI;

impl World {
    /// Something doesn't hold; the first time is what counts.
    pub(super) fn broken(&mut self, what: impl FnOnce() -> String) {
        if self.failure.is_none() {
            let what = what();
            self.note(|| format!("BROKEN: {what}"));
            self.failure = Some(what);
        }
    }

    /// A stream was resumed just now.
    pub(super) fn check_resumed(&mut self, id: u64) {
        if let Some((_, term)) = self.by_companion {
            let (root, envoy) = self.https.get(&id).map_or((0, 0), |it| (it.root, it.envoy));
            self.envoys[envoy].granted_at = self.now;
            let last = self
                .roots
                .get_mut(&root)
                .map(|it| core::mem::replace(&mut it.term, term));
            if last.is_some_and(|last| last > term) {
                self.broken(|| {
                    format!("root {root} takes the word of companion {term} after that of {last:?}")
                });
            }
        } else {
            self.tally.opened += 1;
            self.check_open(id);
        }
    }

    /// So much later than it happens the companion may hear of something, when nothing holds it up.
    pub(super) fn slack(&self) -> Nanos {
        self.setting.delay_max + self.setting.batch + MILLI
    }

    /// The companion lets a request go: it is somebody's whose filter it hears, and it has heard all filters it waits for.
    pub(super) fn check_let_go(&mut self, request: &str) {
        let Some(number) = request.strip_prefix('r').and_then(|it| it.parse::<u64>().ok()) else {
            return;
        };
        // What runs already, under one name or another, is only adopted.
        let of = || self.https.values().filter(|it| it.client == number);
        if of().next().is_none() || of().any(|it| it.resumed) {
            return;
        }
        let orphaned = |it: &Http| {
            self.roots
                .get(&it.root)
                .is_some_and(|root| root.orphaned.is_some())
        };
        if of().any(orphaned) {
            self.broken(|| format!("client {number} is let go, though no stream speaks for its filter"));
        }
        let open = self.companion.spoke;
        let expected = self.setting.sessions_expected();
        let since = self
            .companion_now()
            .as_nanos()
            .saturating_sub(self.companion.booted);
        let waited = u128::from(since) >= self.setting.startup_wait.as_nanos();
        if !waited && !self.jumped && expected.is_none_or(|expected| open < expected) {
            self.broken(|| format!("client {number} is let go, though only {open} filters have spoken"));
        }
    }

    /// A companion counts one arrival and one outcome of a request, however often it hears of it.
    pub(super) fn check_once(&mut self, request: &str, arrived: bool, decided: bool) {
        let Some(number) = request.strip_prefix('r').and_then(|it| it.parse::<usize>().ok()) else {
            return;
        };
        let life = self.companion.life;
        // One that entered again may be taken for two by a companion that hears of its second name first.
        let one = |it: &&mut Client| it.released != life && it.roots.len() == 1;
        let Some(client) = self.clients.get_mut(number).filter(one) else {
            return;
        };
        let twice = arrived && core::mem::replace(&mut client.arrived, life) == life
            || decided && core::mem::replace(&mut client.decided, life) == life;
        if twice {
            self.broken(|| format!("client {number} is counted twice"));
        }
    }

    /// A filter said Bye: nothing of it is left.
    pub(super) fn check_released(&mut self, root: u64) {
        let (Some(of), Some(control)) = (self.epochs.get(&root), &self.companion.control) else {
            return;
        };
        let id = format!("{:016x}", of >> 64);
        let status = control.status(self.companion_now());
        if !status.handed_over && status.sessions.iter().any(|it| it.id == id) {
            self.broken(|| format!("root {root} said Bye, and its session is still there"));
        }
    }

    /// A stream is granted: nobody of its own flow and session waits who came clearly before it.
    pub(super) fn check_order(&mut self, id: u64) {
        let Some(http) = self.https.get(&id) else {
            return;
        };
        // A grant that was lost is said again whoever came in between.
        let again = http.held == self.companion.life;
        if self.jumped || http.parent.is_some() || http.resumed || again {
            return;
        }
        // Past the limit of identities several flows share one, and a flow may change from one to the other.
        let pool = &self.setting.pools[self.clients[http.client as usize].pool];
        if pool.policy.flows.identities_max < self.setting.flows as usize {
            return;
        }
        let Some(root) = self.roots.get(&http.root) else {
            return;
        };
        let slack = self.slack();
        let of = |number: u64| {
            let client = &self.clients[number as usize];
            (client.pool, client.flow, client.band, client.model)
        };
        let older = root.https.values().find(|other| {
            self.https.get(other).is_some_and(|it| {
                it.known == self.companion.life
                    && !it.resumed
                    && !it.replied
                    && !it.unsure
                    && it.parent.is_none()
                    && it.arrived + slack < http.arrived
                    && of(it.client) == of(http.client)
            })
        });
        let Some(&older) = older else {
            return;
        };
        // The grant of the older one may be on its way.
        let sequence = self.https.get(&older).map_or(0, |it| it.sequence);
        let control = self.companion.control.as_ref();
        let granted = control.and_then(|it| it.is_granted(root.epoch, sequence));
        if granted == Some(false) {
            self.broken(|| format!("http {id} overtakes http {older} of its own flow"));
        }
    }

    /// A companion lets this one go: with what it knows to be at the servers, adopted ones too, it is within the bound.
    pub(super) fn check_bound(&mut self, id: u64) {
        let life = self.companion.life;
        let Some(http) = self.https.get(&id).filter(|it| it.held != life) else {
            return;
        };
        let pool = self.clients[http.client as usize].pool;
        let Some(bound) = self.setting.pools[pool].pool_bound.filter(|_| self.is_still()) else {
            return;
        };
        let held = self.https.values().filter(|it| {
            it.held == life && it.job.is_some() && self.clients[it.client as usize].pool == pool
        });
        let held = held.count() as u64;
        if held >= bound {
            self.broken(|| format!("http {id} is let go, though {held} run where {bound} may"));
        }
    }

    /// Endpoints are what they were from the beginning.
    fn is_still(&self) -> bool {
        let moves = [
            Kind::Flap,
            Kind::Refuse,
            Kind::Reset,
            Kind::BreakOff,
            Kind::Hang,
            Kind::Misroute,
            Kind::Retune,
            Kind::Relist,
            Kind::Drop,
        ];
        !moves.iter().any(|kind| self.setting.faults.contains(kind))
    }

    /// What an Envoy's filters let go by themselves is never more than its share; nor is all that it has in flight, where
    /// no companion has let anything go for longer than a worker's word may be old.
    fn check_open(&mut self, id: u64) {
        let Some(http) = self.https.get(&id) else {
            return;
        };
        let pool = self.clients[http.client as usize].pool;
        let Some(bound) = self.open_bounds[pool].filter(|_| !self.jumped && http.parent.is_none()) else {
            return;
        };
        let calm = self.now.saturating_sub(self.envoys[http.envoy].granted_at) > WORD_AGE_MAX;
        let counts = |it: &Http| {
            it.envoy == http.envoy
                && it.resumed
                && it.parent.is_none()
                && (calm || it.life == 0)
                && self.clients[it.client as usize].pool == pool
                && self.roots.get(&it.root).is_some_and(|root| !root.dead)
        };
        let in_flight = self.https.values().filter(|it| counts(it)).count() as u64;
        if in_flight > bound {
            self.broken(|| {
                format!("http {id} is the {in_flight}th in flight of an Envoy that may have {bound}")
            });
        }
    }

    /// A request has reached a server just now.
    pub(super) fn check_job(&mut self, id: u64) {
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        let (server, pool) = (job.server, self.servers[job.server].pool);
        let Some(http) = self.https.get(&job.http) else {
            return self.broken(|| format!("job {id} is nobody's"));
        };
        let client = http.client;
        if self.clients[client as usize].end.is_some() {
            return self.broken(|| format!("client {client} has ended, and reaches a server"));
        }
        if self.clients[client as usize].pool != pool {
            return self.broken(|| format!("client {client} reaches a server of another pool"));
        }
        let twice = self
            .jobs
            .values()
            .filter(|it| self.https.get(&it.http).is_some_and(|it| it.client == client))
            .count();
        if twice != 1 {
            return self.broken(|| format!("client {client} is at {twice} servers at once"));
        }
        let life = self.companion.life;
        // Adopted ones, and those that their companion has released, don't count.
        let counted = |job: &super::servers::Job| {
            self.https
                .get(&job.http)
                .is_some_and(|it| it.life == life && it.life > 0 && !it.excused)
        };
        let here = self
            .jobs
            .values()
            .filter(|it| it.server == server && !it.fallback && counted(it));
        let here = here.count() as u64;
        let there = self
            .jobs
            .values()
            .filter(|it| self.servers[it.server].pool == pool && counted(it));
        let there = there.count() as u64;
        let setting = &self.setting.pools[pool];
        if setting.server_bound.is_some_and(|bound| here > bound) {
            let bound = setting.server_bound;
            return self.broken(|| format!("{here} are at a server that takes {bound:?}"));
        }
        if self.is_still() && setting.pool_bound.is_some_and(|bound| there > bound) {
            let bound = setting.pool_bound;
            self.broken(|| format!("{there} are at the servers of a pool that takes {bound:?}"));
        }
    }

    /// Every book of the companion.
    pub(super) fn audit_companion(&mut self) {
        self.tally.audits += 1;
        let Some(control) = &self.companion.control else {
            return;
        };
        if let Err(error) = control.audit() {
            return self.broken(|| error.to_string());
        }
        let status = control.status(self.companion_now());
        let mut wrong = None;
        for pool in &status.pools {
            let Some(setting) = self.setting.pools.iter().find(|it| *it.name == *pool.name) else {
                continue;
            };
            let books = self
                .companion
                .books
                .get(&setting.name)
                .copied()
                .unwrap_or_default();
            let waiting = pool.snapshot.waiting;
            // One that was queued again waits, though its outcome is counted.
            let least = books.arrived.saturating_sub(books.left);
            if waiting < least || waiting > least + books.requeued {
                wrong = Some(format!(
                    "pool {} says {books:?}, and {waiting} wait",
                    setting.name
                ));
            }
            let in_requests = matches!(
                setting.policy.gate,
                Gate::Auto { .. }
                    | Gate::Bounded {
                        unit: StockUnit::Requests,
                        ..
                    }
            );
            let stock = pool.snapshot.stock + pool.snapshot.draining_stock;
            let granted = status.requests as u64;
            if in_requests && stock > granted {
                wrong = Some(format!(
                    "pool {} has a stock of {stock} of {granted} requests",
                    setting.name
                ));
            }
        }
        if let Some(wrong) = wrong {
            self.broken(|| wrong);
        }
    }

    /// Nobody asks any more, and long enough nothing has happened: all books are empty.
    pub(super) fn check_rest(&mut self) {
        self.audit_companion();
        let mut wrong = Vec::new();
        for (number, client) in self.clients.iter().enumerate() {
            if client.end.is_none() {
                wrong.push(format!("client {number} has no outcome"));
            }
        }
        if !self.jobs.is_empty() {
            wrong.push(format!("{} jobs are still at servers", self.jobs.len()));
        }
        for (id, root) in &self.roots {
            let (exchanges, unacknowledged) = (root.worker.exchanges(), root.worker.unacknowledged());
            if exchanges > 0 || !root.https.is_empty() {
                wrong.push(format!("root {id} keeps {exchanges} exchanges"));
            }
            if !root.owed.is_empty() {
                wrong.push(format!("root {id} owes the ends of {:?}", root.owed));
            }
            if unacknowledged > 0 {
                wrong.push(format!("root {id} keeps {unacknowledged} events"));
            }
            if root.spoken_for.is_none() || root.spoken_for != root.stream {
                wrong.push(format!("root {id} has no session: {:?}", root.stream));
            }
            if root.draining || root.dead {
                wrong.push(format!("root {id} hasn't ended"));
            }
        }
        if let Some(control) = &self.companion.control {
            let status = control.status(self.companion_now());
            if status.requests > 0 {
                wrong.push(format!("the companion keeps {} requests", status.requests));
            }
            if status.sessions.len() != self.roots.len() || status.sessions.iter().any(|it| !it.open) {
                let ids: Vec<_> = status.sessions.iter().map(|it| (&it.id, it.open)).collect();
                wrong.push(format!("the companion keeps the sessions {ids:?}"));
            }
            for pool in &status.pools {
                let of = &pool.snapshot;
                if (of.stock, of.draining_stock, of.waiting) != (0, 0, 0) {
                    wrong.push(format!(
                        "pool {} rests at a stock of {}, {} draining, {} waiting",
                        pool.name, of.stock, of.draining_stock, of.waiting
                    ));
                }
                if of.flows.iter().any(|it| it.waiting > 0 || it.in_flight > 0) {
                    wrong.push(format!("a flow of pool {} is leaked", pool.name));
                }
            }
            for (pool, books) in &self.companion.books {
                if books.arrived != books.left {
                    wrong.push(format!("pool {pool} rests at {books:?}"));
                }
            }
        }
        if self.streams.len() > self.roots.len() {
            let known: Vec<_> = self
                .streams
                .iter()
                .filter(|(_, it)| it.at_companion && it.at_filter)
                .collect();
            if known.len() > self.roots.len() {
                wrong.push(format!(
                    "{} streams are open for {} roots",
                    known.len(),
                    self.roots.len()
                ));
            }
        }
        let shared = self.envoys.iter().map(|it| it.shared.len()).max().unwrap_or(0);
        self.tally.shared_keys_max = self.tally.shared_keys_max.max(shared as u64);
        if !wrong.is_empty() {
            wrong.truncate(8);
            self.broken(|| format!("at rest: {}", wrong.join("; ")));
        }
    }
}
