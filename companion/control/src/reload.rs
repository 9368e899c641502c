//! Another configuration under everything that waits and runs: pools come and go, their endpoints too.
//!
//! A pool is told apart by its name. One that stays keeps its engine, so what waits there keeps its place, its flow and
//! its band, and what runs there its stock; new claims, keys and rewrites count for those that come. A request that
//! waits where its model isn't served any more is refused. A pool that the configuration drops is *retired*: it takes
//! nothing, and is here until the last of its requests has ended; named again before that, it goes on as it was.

use penstock_engine::Instant;
use penstock_engine::input::{EndpointId, Input, Relisted, RequestId};
use penstock_wire::command::Kind;

use crate::control::Control;
use crate::pool::Pool;
use crate::register::Entry;
use crate::session::Epoch;
use crate::settings::{EndpointSettings, PoolSettings, Settings};

impl Control {
    /// Holds to other settings from now on. Its term and its seed are its own.
    pub(crate) fn reload(&mut self, now: Instant, settings: Settings) {
        let settings = Settings {
            term: self.settings.term,
            seed: self.settings.seed,
            ..settings
        };
        let old = core::mem::replace(&mut self.settings, settings);
        if self.settings.policy != old.policy {
            // Before anything of pools that it is the first to name.
            for epoch in self.open_epochs() {
                self.say(epoch, Kind::Policy(self.settings.policy.clone()));
            }
        }
        if self.settings.flows_shown < old.flows_shown {
            self.pools.iter_mut().for_each(|pool| pool.shown.clear());
        }
        let begun = self.rearrange(now);
        for pool in 0..self.in_force {
            let settings = self.settings.pools[pool].clone();
            // Nothing more goes where nothing is any more, whatever the rules are.
            self.list(now, pool, &settings.endpoints);
            if !begun.contains(&pool) {
                self.change(now, pool, &settings);
            }
        }
        for pool in self.in_force..self.pools.len() {
            self.retire(now, pool);
        }
        self.evict(now);
        self.begin_if_gathered(now);
        self.tell_endpoints(None);
    }

    /// Puts the pools in the order of the settings, with those that they don't have behind them. Returns which are new.
    fn rearrange(&mut self, now: Instant) -> Vec<usize> {
        let mut old: Vec<Option<Pool>> = core::mem::take(&mut self.pools).into_iter().map(Some).collect();
        let mut places = vec![0; old.len()];
        let mut begun = Vec::new();
        for settings in &self.settings.pools {
            let place = self.pools.len();
            let is_it = |pool: &Option<Pool>| pool.as_ref().is_some_and(|it| *it.name == *settings.name);
            let found = old.iter().position(is_it);
            let pool = match found.and_then(|at| Some((at, old[at].take()?))) {
                Some((at, pool)) => {
                    places[at] = place;
                    pool
                }
                None => {
                    begun.push(place);
                    let seed = self.settings.seed.wrapping_add(self.pools_made);
                    self.pools_made += 1;
                    Pool::new(settings, seed, now)
                }
            };
            self.pools.push(pool);
        }
        self.in_force = self.pools.len();
        for (at, pool) in old.into_iter().enumerate() {
            if let Some(pool) = pool {
                places[at] = self.pools.len();
                self.pools.push(pool);
            }
        }
        self.move_pools(&places);
        for &pool in &begun {
            if self.started {
                self.decide(now, pool, Input::Ready);
            }
            if self.draining {
                self.decide(now, pool, Input::Drain(true));
            }
        }
        begun
    }

    /// The pool that was at `n` is at `places[n]`.
    fn move_pools(&mut self, places: &[usize]) {
        if places.iter().enumerate().all(|(at, place)| at == *place) {
            return;
        }
        self.requests.move_pools(places);
        self.envoys.move_pools(places);
    }

    /// A pool that was there holds to these settings, but for its endpoints.
    fn change(&mut self, now: Instant, pool: usize, settings: &PoolSettings) {
        let of = &mut self.pools[pool];
        let has_other_rules = of.policy != settings.policy;
        let has_other_classes = of.change(now, settings);
        if has_other_classes {
            let mut ids: Vec<RequestId> = self
                .requests
                .entries()
                .filter(|(_, entry)| entry.pool == pool)
                .map(|(id, _)| id)
                .collect();
            ids.sort_unstable();
            for id in ids {
                self.amend(now, id);
            }
        }
        if has_other_rules {
            self.decide(now, pool, Input::Policy(Box::new(settings.policy.clone())));
        }
        self.steered(now, pool);
    }

    /// A pool that the settings don't have: it takes nothing more.
    fn retire(&mut self, now: Instant, pool: usize) {
        self.pools[pool].retired = true;
        self.list(now, pool, &[]);
    }

    /// Refuses what waits where it can't be served any more.
    fn evict(&mut self, now: Instant) {
        for pool in 0..self.pools.len() {
            // The last first: what leaves lets nothing go that leaves as well.
            for id in self.waiting_in(pool).into_iter().rev() {
                self.evict_one(now, id);
            }
        }
    }

    fn evict_one(&mut self, now: Instant, id: RequestId) {
        if let Some(entry) = self.requests.get(id)
            && !self.pools[entry.pool].takes(&entry.labels.model)
        {
            let pool = entry.pool;
            self.decide(now, pool, Input::ModelRemoved(id));
        }
    }

    /// A granted request waits again, in its old place, and may go where it may now.
    pub(crate) fn requeue(&mut self, now: Instant, pool: usize, id: RequestId) {
        self.amend(now, id);
        self.decide(now, pool, Input::Requeue(id));
        self.evict_one(now, id);
        if self.requests.get(id).is_some_and(Entry::waits) {
            // What suits it may be gone for good.
            self.amend(now, id);
        }
    }

    /// A pool's endpoints are these from now on.
    pub(crate) fn relist(&mut self, now: Instant, pool: &str, endpoints: &[EndpointSettings]) {
        if let Some(pool) = self.pool_named(pool) {
            self.list(now, pool, endpoints);
            self.tell_endpoints(None);
        }
    }

    /// The same.
    pub(crate) fn list(&mut self, now: Instant, pool: usize, endpoints: &[EndpointSettings]) {
        let (mut relisted, concerns_requests) = self.pools[pool].relist(now, endpoints);
        if concerns_requests && self.pools[pool].engine.waiting() > 0 {
            relisted.amended = self.amended_waiting(now, pool);
        }
        if relisted != Relisted::default() {
            self.decide(now, pool, Input::Relist(Box::new(relisted)));
        }
        self.steered(now, pool);
        self.vacate(pool);
    }

    /// Tells a pool's engine what its autopilot has to say.
    fn steered(&mut self, now: Instant, pool: usize) {
        while let Some(input) = self.pools[pool].autopilot.poll_input() {
            self.decide(now, pool, input);
        }
    }

    /// Forgets what isn't listed and where nothing runs any more.
    fn vacate(&mut self, pool: usize) {
        let gone: Vec<EndpointId> = self.pools[pool].vacate();
        if !gone.is_empty() {
            self.envoys.forget(pool, &gone);
        }
    }

    /// Forgets retired pools whose last request has ended, and endpoints where the last one has.
    pub(crate) fn sweep(&mut self) {
        for pool in 0..self.pools.len() {
            if self.pools[pool].may_vacate() {
                self.vacate(pool);
            }
        }
        if !self.pools[self.in_force..].iter().any(Pool::is_over) {
            return;
        }
        let mut places = Vec::with_capacity(self.pools.len());
        let mut kept = 0;
        for pool in &self.pools {
            // Nobody speaks of one that is gone.
            places.push(if pool.is_over() { usize::MAX } else { kept });
            kept += usize::from(!pool.is_over());
        }
        self.pools.retain(|pool| !pool.is_over());
        self.move_pools(&places);
    }

    /// The root contexts that a stream speaks for, in order.
    pub(crate) fn open_epochs(&self) -> Vec<Epoch> {
        let contexts = self.requests.contexts.iter();
        let open = contexts.filter(|(_, context)| context.conn.is_some());
        let mut epochs: Vec<Epoch> = open.map(|(epoch, _)| *epoch).collect();
        epochs.sort_unstable();
        epochs
    }
}
