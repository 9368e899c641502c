//! Finds the series of a request with one lookup, and limits the number of label values.
//!
//! Clients choose model names, so their number is limited; names beyond the limit are counted as `other`. A quarter of the places is for
//! names that were served. A name that wasn't used for ten minutes, or for one if it was never served, makes room when there is none. The series of a removed pool are deleted, and those of a
//! removed endpoint once it is idle.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use penstock_control::{Labels, Status};
use penstock_engine::{Instant, ModelName};

use super::series::{CompletedRequest, Series};
use super::{Metrics, NO_POOL, OTHER};

/// Series that weren't used for this long may be deleted.
const IDLE: Duration = Duration::from_secs(600);
/// Of a model that was never served. It may be a name that only a client has.
const UNSERVED_IDLE: Duration = Duration::from_secs(60);
/// The least time between two searches for idle series.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// All series of requests. Owned by the observer; nothing is shared.
#[derive(Debug)]
pub(crate) struct SeriesTable {
    metrics: Arc<Metrics>,
    pools: Vec<Pool>,
    series: Vec<Series>,
    /// The index of the series that was found last, which most often is found again.
    last_found: usize,
    models: HashSet<Box<str>>,
    targets: HashSet<Box<str>>,
    endpoints: HashSet<Box<str>>,
    last_sweep: Instant,
    /// The pools of the last status.
    known_pools: Vec<Arc<str>>,
}

#[derive(Debug)]
struct Pool {
    name: Arc<str>,
    /// By requested model: each target model, and the index of its series.
    models: HashMap<Box<str>, Vec<(Box<str>, usize)>>,
}

impl SeriesTable {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            metrics,
            pools: Vec::new(),
            series: Vec::new(),
            last_found: 0,
            models: HashSet::new(),
            targets: HashSet::new(),
            endpoints: HashSet::new(),
            last_sweep: Instant::ZERO,
            known_pools: Vec::new(),
        }
    }

    /// The series of requests with these labels.
    pub(crate) fn series(&mut self, now: Instant, labels: &Labels) -> &mut Series {
        let index = self.find(labels).unwrap_or_else(|| self.insert(now, labels, false));
        self.last_found = index;
        let series = &mut self.series[index];
        series.last_used = now;
        series
    }

    /// Counts a completed request.
    pub(crate) fn record_completion(
        &mut self,
        now: Instant,
        labels: &Labels,
        endpoint: &str,
        completed: &CompletedRequest,
    ) {
        let values_max = self.metrics.values_max();
        let is_served = matches!(completed.status, 200..300);
        let index = self.find(labels).unwrap_or_else(|| self.insert(now, labels, is_served));
        self.last_found = index;
        let series = &mut self.series[index];
        series.last_used = now;
        series.was_served |= is_served;
        if !series.count_completion(now, endpoint, completed) {
            let endpoint = limited(&mut self.endpoints, endpoint, values_max);
            series.add_endpoint(now, endpoint);
            series.count_completion(now, endpoint, completed);
        }
    }

    fn find(&self, labels: &Labels) -> Option<usize> {
        if let Some(series) = self.series.get(self.last_found)
            && Arc::ptr_eq(&series.pool, &labels.pool)
            && *series.model == *labels.model.requested
            && *series.target == *labels.model.target
        {
            return Some(self.last_found);
        }
        let pool = self.pools.iter().find(|pool| pool.name == labels.pool)?;
        let targets = pool.models.get(&*labels.model.requested)?;
        let found = targets.iter().find(|(target, _)| **target == *labels.model.target)?;
        Some(found.1)
    }

    /// Adds the series of a request with new names, or finds that of `other`. Returns its index.
    fn insert(&mut self, now: Instant, labels: &Labels, is_served: bool) -> usize {
        let values_max = self.metrics.values_max();
        // Names that no pool serves may use only half of the limit, so that they can't displace served names. Those that no server has served
        // leave a quarter.
        let room = match (&*labels.pool, is_served) {
            (NO_POOL, _) => values_max / 2,
            (_, false) => room_of_unserved(values_max),
            (_, true) => values_max,
        };
        let is_beyond = |seen: &HashSet<Box<str>>, name: &str| seen.len() >= room && !seen.contains(name);
        if is_beyond(&self.models, &labels.model.requested) || is_beyond(&self.targets, &labels.model.target)
        {
            self.make_room(now);
        }
        let model = limited(&mut self.models, &labels.model.requested, room);
        let target = limited(&mut self.targets, &labels.model.target, room);
        let name = &labels.pool;
        let pool = match self.pools.iter_mut().position(|pool| pool.name == *name) {
            Some(index) => &mut self.pools[index],
            None => self.pools.push_mut(Pool { name: name.clone(), models: HashMap::new() }),
        };
        let targets = pool.models.entry(model.into()).or_default();
        if let Some((_, index)) = targets.iter().find(|(known, _)| **known == *target) {
            return *index;
        }
        let index = self.series.len();
        targets.push((target.into(), index));
        let series = Series::new(self.metrics.clone(), name.clone(), model, target, now);
        self.series.push(series);
        index
    }

    /// Deletes the series of names that weren't used for long.
    fn make_room(&mut self, now: Instant) {
        if now.since(self.last_sweep) < SWEEP_INTERVAL {
            return;
        }
        self.last_sweep = now;
        let is_idle = |series: &&Series| {
            now.since(series.last_used) >= if series.was_served { IDLE } else { UNSERVED_IDLE }
        };
        let busy = |name: fn(&Series) -> &str| -> HashSet<Box<str>> {
            let busy = self.series.iter().filter(|series| !is_idle(series));
            busy.map(|series| name(series).into()).collect()
        };
        let (models, targets) = (busy(|series| &series.model), busy(|series| &series.target));
        let is_gone =
            |name: &str, busy: &HashSet<Box<str>>| !name.is_empty() && name != OTHER && !busy.contains(name);
        self.metrics.remove_series(|label, value| match label {
            "model" => is_gone(value, &models),
            "target_model" => is_gone(value, &targets),
            _ => false,
        });
        self.models.retain(|name| models.contains(name));
        self.targets.retain(|name| targets.contains(name));
        self.retain(|series| models.contains(&series.model) && targets.contains(&series.target));
    }

    /// Deletes the series of removed pools, and of removed endpoints that are idle.
    pub(crate) fn retain_labels(&mut self, now: Instant, status: &Status) {
        let names = || status.pools.iter().map(|pool| &pool.name);
        let is_pool = |name: &str| name == NO_POOL || names().any(|pool| **pool == *name);
        if !self.known_pools.iter().eq(names()) || !self.pools.iter().all(|pool| is_pool(&pool.name)) {
            self.known_pools = names().cloned().collect();
            self.metrics.remove_series(|label, value| label == "pool" && !is_pool(value));
            self.pools.retain(|pool| is_pool(&pool.name));
            self.retain(|series| is_pool(&series.pool));
        }
        if self.endpoints.is_empty() || now.since(self.last_sweep) < SWEEP_INTERVAL {
            return;
        }
        self.last_sweep = now;
        let mut kept: HashSet<&str> = HashSet::new();
        for pool in &status.pools {
            let endpoints = pool.snapshot.endpoints.iter();
            kept.extend(endpoints.map(|endpoint| pool.address(endpoint.id)));
        }
        for series in &self.series {
            let busy = series.endpoints.iter().filter(|(_, series)| now.since(series.last_used) < IDLE);
            kept.extend(busy.map(|(name, _)| &**name));
        }
        let gone: HashSet<Box<str>> =
            self.endpoints.iter().filter(|name| !kept.contains(&***name)).cloned().collect();
        if gone.is_empty() {
            return;
        }
        self.metrics.remove_series(|label, value| label == "endpoint" && gone.contains(value));
        self.endpoints.retain(|name| !gone.contains(name));
        for series in &mut self.series {
            series.endpoints.retain(|name, _| !gone.contains(name));
        }
    }

    /// Replaces the names of models beyond the limit, so that the gauges of models show the names that the counters show.
    pub(crate) fn limit_models(&mut self, status: &mut Status) {
        let values_max = room_of_unserved(self.metrics.values_max());
        for model in status.pools.iter_mut().flat_map(|pool| &mut pool.models) {
            let requested = limited(&mut self.models, &model.model.requested, values_max);
            let target = limited(&mut self.targets, &model.model.target, values_max);
            if (requested, target) != (&*model.model.requested, &*model.model.target) {
                model.model = ModelName::new(requested, target);
            }
        }
    }

    /// Keeps only these series, and rebuilds the index.
    fn retain(&mut self, keep: impl Fn(&Series) -> bool) {
        self.series.retain(keep);
        self.last_found = 0;
        for pool in &mut self.pools {
            pool.models.clear();
        }
        for (index, series) in self.series.iter().enumerate() {
            if let Some(pool) = self.pools.iter_mut().find(|pool| pool.name == series.pool) {
                let targets = pool.models.entry(series.model.clone()).or_default();
                targets.push((series.target.clone(), index));
            }
        }
    }
}

/// The places that names may take which no server has served.
const fn room_of_unserved(values_max: usize) -> usize {
    values_max - values_max / 4
}

/// The name itself, or [`OTHER`] when the limit is reached.
fn limited<'a>(seen: &mut HashSet<Box<str>>, name: &'a str, limit: usize) -> &'a str {
    if seen.contains(name) {
        return name;
    }
    if seen.len() >= limit {
        return OTHER;
    }
    seen.insert(name.into());
    name
}
