//! Where the series of a request are found, and how many names there may be: one look-up finds all handles of its kind.
//!
//! Who asks for a model can make its name up, so there is a limit on the names; past it they are `other`. A name that
//! wasn't heard of for ten minutes makes room when there is none. The series of a pool that the configuration doesn't
//! have any more go, and those of an endpoint that isn't listed any more, once it is idle.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use penstock_control::{Labels, Status};
use penstock_engine::Instant;

use super::series::{Ended, Series};
use super::{Metrics, NO_POOL, OTHER};

/// A name that isn't heard of for so long gives up its series when there is need, or reason.
const IDLE: Duration = Duration::from_secs(600);
/// Room is looked for no more often than this.
const SWEEP: Duration = Duration::from_secs(10);

/// Everything that is counted by request. Owned by the observer: nothing here is shared.
#[derive(Debug)]
pub(crate) struct Table {
    metrics: Arc<Metrics>,
    pools: Vec<Pool>,
    series: Vec<Series>,
    /// The one that was asked for last: mostly the same is asked for again.
    last: usize,
    models: HashSet<Box<str>>,
    targets: HashSet<Box<str>>,
    endpoints: HashSet<Box<str>>,
    swept: Instant,
    /// The pools when somebody looked last.
    known: Vec<Arc<str>>,
}

#[derive(Debug)]
struct Pool {
    name: Arc<str>,
    /// By the model asked for: where the series of each of its targets is.
    models: HashMap<Box<str>, Vec<(Box<str>, usize)>>,
}

impl Table {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            metrics,
            pools: Vec::new(),
            series: Vec::new(),
            last: 0,
            models: HashSet::new(),
            targets: HashSet::new(),
            endpoints: HashSet::new(),
            swept: Instant::ZERO,
            known: Vec::new(),
        }
    }

    /// What is counted for requests like this one.
    pub(crate) fn of(&mut self, now: Instant, labels: &Labels) -> &mut Series {
        let at = self.find(labels).unwrap_or_else(|| self.make(now, labels));
        self.last = at;
        let series = &mut self.series[at];
        series.last = now;
        series
    }

    /// A granted request has ended at an endpoint.
    pub(crate) fn ended(&mut self, now: Instant, labels: &Labels, endpoint: &str, ended: &Ended) {
        let at = self.find(labels).unwrap_or_else(|| self.make(now, labels));
        self.last = at;
        let series = &mut self.series[at];
        series.last = now;
        if !series.ended(now, endpoint, ended) {
            let endpoint = limited(&mut self.endpoints, endpoint, self.metrics.values_max());
            series.meet(now, endpoint);
            series.ended(now, endpoint, ended);
        }
    }

    fn find(&self, labels: &Labels) -> Option<usize> {
        if let Some(series) = self.series.get(self.last)
            && Arc::ptr_eq(&series.pool, &labels.pool)
            && series.model == labels.model
            && series.target == labels.target_model
        {
            return Some(self.last);
        }
        let pool = self.pools.iter().find(|pool| pool.name == labels.pool)?;
        let targets = pool.models.get(&labels.model)?;
        let found = targets
            .iter()
            .find(|(target, _)| *target == labels.target_model)?;
        Some(found.1)
    }

    /// Where the series is of a request whose names weren't seen, or had no room.
    fn make(&mut self, now: Instant, labels: &Labels) -> usize {
        let most = self.metrics.values_max();
        // Names that nobody serves don't fill the room of those that somebody does.
        let room = if &*labels.pool == NO_POOL { most / 2 } else { most };
        let is_out = |seen: &HashSet<Box<str>>, name: &str| seen.len() >= room && !seen.contains(name);
        if is_out(&self.models, &labels.model) || is_out(&self.targets, &labels.target_model) {
            self.make_room(now);
        }
        let model = limited(&mut self.models, &labels.model, room);
        let target = limited(&mut self.targets, &labels.target_model, room);
        let name = &labels.pool;
        let pool = match self.pools.iter_mut().position(|pool| pool.name == *name) {
            Some(at) => &mut self.pools[at],
            None => self.pools.push_mut(Pool {
                name: name.clone(),
                models: HashMap::new(),
            }),
        };
        let targets = pool.models.entry(model.into()).or_default();
        if let Some((_, at)) = targets.iter().find(|(it, _)| **it == *target) {
            return *at;
        }
        let at = self.series.len();
        targets.push((target.into(), at));
        let series = Series::new(self.metrics.clone(), name.clone(), model, target, now);
        self.series.push(series);
        at
    }

    /// Lets names go that weren't heard of for long.
    fn make_room(&mut self, now: Instant) {
        if now.since(self.swept) < SWEEP {
            return;
        }
        self.swept = now;
        let is_idle = |series: &&Series| now.since(series.last) >= IDLE;
        let busy = |name: fn(&Series) -> &str| -> HashSet<Box<str>> {
            let busy = self.series.iter().filter(|series| !is_idle(series));
            busy.map(|series| name(series).into()).collect()
        };
        let (models, targets) = (busy(|series| &series.model), busy(|series| &series.target));
        let is_gone =
            |name: &str, busy: &HashSet<Box<str>>| !name.is_empty() && name != OTHER && !busy.contains(name);
        self.metrics.forget(|label, value| match label {
            "model" => is_gone(value, &models),
            "target_model" => is_gone(value, &targets),
            _ => false,
        });
        self.models.retain(|name| models.contains(name));
        self.targets.retain(|name| targets.contains(name));
        self.retain(|series| models.contains(&series.model) && targets.contains(&series.target));
    }

    /// Lets go what is gone: pools that the configuration doesn't have, and endpoints that aren't listed and are idle.
    pub(crate) fn tidy(&mut self, now: Instant, status: &Status) {
        let names = || status.pools.iter().map(|pool| &pool.name);
        let is_pool = |name: &str| name == NO_POOL || names().any(|pool| **pool == *name);
        if !self.known.iter().eq(names()) || !self.pools.iter().all(|pool| is_pool(&pool.name)) {
            self.known = names().cloned().collect();
            self.metrics
                .forget(|label, value| label == "pool" && !is_pool(value));
            self.pools.retain(|pool| is_pool(&pool.name));
            self.retain(|series| is_pool(&series.pool));
        }
        if self.endpoints.is_empty() || now.since(self.swept) < SWEEP {
            return;
        }
        self.swept = now;
        let mut alive: HashSet<&str> = HashSet::new();
        for pool in &status.pools {
            let there = pool.snapshot.endpoints.iter();
            alive.extend(there.map(|endpoint| pool.address(endpoint.id)));
        }
        for series in &self.series {
            let busy = series
                .endpoints
                .iter()
                .filter(|(_, at)| now.since(at.last) < IDLE);
            alive.extend(busy.map(|(name, _)| &**name));
        }
        let gone: HashSet<Box<str>> = self
            .endpoints
            .iter()
            .filter(|name| !alive.contains(&***name))
            .cloned()
            .collect();
        if gone.is_empty() {
            return;
        }
        self.metrics
            .forget(|label, value| label == "endpoint" && gone.contains(value));
        self.endpoints.retain(|name| !gone.contains(name));
        for series in &mut self.series {
            series.endpoints.retain(|name, _| !gone.contains(name));
        }
    }

    /// Keeps these series only, and finds them where they are then.
    fn retain(&mut self, keep: impl Fn(&Series) -> bool) {
        self.series.retain(keep);
        self.last = 0;
        for pool in &mut self.pools {
            pool.models.clear();
        }
        for (at, series) in self.series.iter().enumerate() {
            if let Some(pool) = self.pools.iter_mut().find(|pool| pool.name == series.pool) {
                let targets = pool.models.entry(series.model.clone()).or_default();
                targets.push((series.target.clone(), at));
            }
        }
    }
}

/// A name, or what stands for those for which there is no room.
fn limited<'a>(seen: &mut HashSet<Box<str>>, name: &'a str, most: usize) -> &'a str {
    if seen.contains(name) {
        return name;
    }
    if seen.len() >= most {
        return OTHER;
    }
    seen.insert(name.into());
    name
}
