//! All pools: by id, by name, and by model, with the earliest deadline of them.
//!
//! An event touches one pool, and only pools that were touched are looked at after it. So an event costs the same whatever
//! the number of pools.

use hashbrown::{HashMap, HashSet};
use penstock_engine::Instant;

use crate::cost_trace::CostEvent;
use crate::deadlines::Deadlines;
use crate::ids::PoolId;
use crate::limits::RESOLVED_MODELS_MAX;
use crate::pool::{Pool, PoolEffect, PoolInput};
use crate::settings::PoolSettings;

/// The pools of the configuration, and retired pools that still have requests.
#[derive(Debug)]
pub(crate) struct Pools {
    slots: Vec<Option<Slot>>,
    /// In the order of the configuration.
    configured: Vec<PoolId>,
    retired: Vec<PoolId>,
    /// Configured pools.
    by_name: HashMap<Box<str>, PoolId>,
    /// The pool of a model, as the configuration's globs resolve it.
    by_model: HashMap<Box<str>, Option<PoolId>>,
    deadlines: Deadlines,
    /// Pools with an input since [`Self::take_touched`].
    touched: Vec<PoolId>,
    /// Flows of all pools that metrics and status show by name.
    visible_flows: usize,
    /// Pools that were ever made. The number gives each engine another seed.
    made: u64,
    /// New pools record cost events.
    traces_costs: bool,
}

#[derive(Debug)]
struct Slot {
    pool: Pool,
    is_touched: bool,
}

/// What a reload did to the list of pools.
#[derive(Debug)]
pub(crate) struct Arranged {
    /// The configured pools in order, each with whether it is new.
    pub(crate) configured: Vec<(PoolId, bool)>,
    pub(crate) retired: Vec<PoolId>,
}

impl Pools {
    pub(crate) fn new() -> Self {
        Self {
            slots: Vec::new(),
            configured: Vec::new(),
            retired: Vec::new(),
            by_name: HashMap::new(),
            by_model: HashMap::new(),
            deadlines: Deadlines::default(),
            touched: Vec::new(),
            visible_flows: 0,
            made: 0,
            traces_costs: false,
        }
    }

    /// Hands an input to a pool. Unknown ids are ignored.
    pub(crate) fn handle(&mut self, now: Instant, id: PoolId, input: PoolInput<'_>) {
        self.update(id, |pool| pool.handle(now, input));
    }

    /// Lets a pool do everything that is due.
    pub(crate) fn handle_timeout(&mut self, now: Instant, id: PoolId) {
        self.update(id, |pool| pool.handle_timeout(now));
    }

    fn update(&mut self, id: PoolId, change: impl FnOnce(&mut Pool)) {
        let Some(slot) = self.slots.get_mut(id.index()).and_then(Option::as_mut) else {
            return;
        };
        let visible_before = slot.pool.visible_flows();
        change(&mut slot.pool);
        self.visible_flows = self.visible_flows + slot.pool.visible_flows() - visible_before;
        if !core::mem::replace(&mut slot.is_touched, true) {
            self.touched.push(id);
        }
    }

    /// The next effect of a pool.
    pub(crate) fn poll_effect(&mut self, id: PoolId) -> Option<PoolEffect> {
        self.get_mut(id)?.poll_effect()
    }

    /// The earliest deadline of all pools.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| deadline)
    }

    /// The pools that are due, in the order of their ids.
    pub(crate) fn take_due(&mut self, now: Instant) -> Vec<PoolId> {
        let mut due = Vec::new();
        while let Some((deadline, id)) = self.deadlines.first()
            && deadline <= now
        {
            self.deadlines.set(id, None);
            due.push(id);
        }
        due.sort_unstable();
        due
    }

    /// The next pool that had an input since it was last taken here. Its deadline is up to date from now on.
    pub(crate) fn take_touched(&mut self) -> Option<PoolId> {
        while let Some(id) = self.touched.pop() {
            if let Some(slot) = self.slots.get_mut(id.index()).and_then(Option::as_mut) {
                slot.is_touched = false;
                self.deadlines.set(id, slot.pool.poll_timeout());
                return Some(id);
            }
        }
        None
    }

    /// Pools with an input since they were last taken by [`Self::take_touched`].
    pub(crate) fn touched(&self) -> &[PoolId] {
        &self.touched
    }

    /// Forgets a retired pool after the end of its last request. Its id is free.
    pub(crate) fn remove_if_over(&mut self, id: PoolId) {
        if !self.get(id).is_some_and(Pool::is_over) {
            return;
        }
        if let Some(slot) = self.slots[id.index()].take() {
            self.visible_flows -= slot.pool.visible_flows();
        }
        self.deadlines.set(id, None);
        self.retired.retain(|retired| *retired != id);
    }

    pub(crate) fn get(&self, id: PoolId) -> Option<&Pool> {
        Some(&self.slots.get(id.index())?.as_ref()?.pool)
    }

    pub(crate) fn get_mut(&mut self, id: PoolId) -> Option<&mut Pool> {
        Some(&mut self.slots.get_mut(id.index())?.as_mut()?.pool)
    }

    /// The configured pool with this name.
    pub(crate) fn by_name(&self, name: &str) -> Option<PoolId> {
        self.by_name.get(name).copied()
    }

    /// The pool with this name, configured or retired.
    pub(crate) fn named(&self, name: &str) -> Option<PoolId> {
        let is_named = |id: &PoolId| self.get(*id).is_some_and(|pool| **pool.name() == *name);
        self.by_name(name).or_else(|| self.retired.iter().copied().find(is_named))
    }

    /// Filters may run requests that aren't known.
    pub(crate) fn has_credit_out(&self) -> bool {
        self.iter().any(|(_, pool)| pool.has_credit_out())
    }

    /// The first configured pool that serves the model.
    pub(crate) fn serving(&mut self, model: &str) -> Option<PoolId> {
        if let Some(&resolved) = self.by_model.get(model) {
            return resolved;
        }
        let serves = |id: &PoolId| self.get(*id).is_some_and(|pool| pool.accepts(model));
        let resolved = self.configured.iter().copied().find(serves);
        if self.by_model.len() >= RESOLVED_MODELS_MAX {
            self.by_model.clear();
        }
        self.by_model.insert(model.into(), resolved);
        resolved
    }

    /// How many flows this pool may show by name, if all pools together may show `most`.
    pub(crate) fn visible_flows_max(&self, id: PoolId, most: usize) -> usize {
        let own = self.get(id).map_or(0, Pool::visible_flows);
        most.saturating_sub(self.visible_flows - own)
    }

    /// All pools: the configured ones in order, then the retired ones.
    pub(crate) fn ids(&self) -> Vec<PoolId> {
        [self.configured.as_slice(), self.retired.as_slice()].concat()
    }

    /// All pools: the configured ones in order, then the retired ones.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PoolId, &Pool)> {
        let ids = self.configured.iter().chain(&self.retired);
        ids.filter_map(|&id| Some((id, self.get(id)?)))
    }

    /// Makes the pools that the configuration names and that don't exist yet. A retired pool that is named again is no
    /// longer retired. The caller hands every pool its part of the configuration.
    pub(crate) fn arrange(&mut self, settings: &[PoolSettings], seed: u64, now: Instant) -> Arranged {
        let before: Vec<PoolId> = self.ids();
        let mut by_name: HashMap<Box<str>, PoolId> = HashMap::with_capacity(before.len());
        for &id in &before {
            if let Some(pool) = self.get(id) {
                by_name.insert((**pool.name()).into(), id);
            }
        }
        self.by_name.clear();
        self.by_model.clear();
        let mut configured = Vec::with_capacity(settings.len());
        for pool in settings {
            let (id, is_new) = match by_name.get(pool.name.as_str()) {
                Some(&id) => (id, false),
                None => (self.insert(pool, seed, now), true),
            };
            self.by_name.insert(pool.name.as_str().into(), id);
            configured.push((id, is_new));
        }
        self.configured = configured.iter().map(|(id, _)| *id).collect();
        let is_configured: HashSet<PoolId> = self.configured.iter().copied().collect();
        let mut retired = before;
        retired.retain(|id| !is_configured.contains(id));
        self.retired.clone_from(&retired);
        Arranged { configured, retired }
    }

    fn insert(&mut self, settings: &PoolSettings, seed: u64, now: Instant) -> PoolId {
        let mut pool = Pool::new(settings, seed.wrapping_add(self.made), self.made, now);
        if self.traces_costs {
            pool.trace_costs();
        }
        self.made += 1;
        let slot = Some(Slot { pool, is_touched: false });
        match self.slots.iter().position(Option::is_none) {
            Some(index) => {
                self.slots[index] = slot;
                PoolId::new(index)
            }
            None => {
                self.slots.push(slot);
                PoolId::new(self.slots.len() - 1)
            }
        }
    }

    /// All pools record cost events from now on.
    pub(crate) fn trace_costs(&mut self) {
        self.traces_costs = true;
        let pools = self.slots.iter_mut().flatten();
        pools.for_each(|slot| slot.pool.trace_costs());
    }

    /// The cost events of all pools since the last call.
    pub(crate) fn take_cost_events(&mut self) -> Vec<CostEvent> {
        let pools = self.slots.iter_mut().flatten();
        pools.flat_map(|slot| slot.pool.take_cost_events()).collect()
    }

    /// Every index agrees with the pools.
    pub(crate) fn audit(&self) -> bool {
        let visible: usize = self.iter().map(|(_, pool)| pool.visible_flows()).sum();
        let slots = self.slots.iter().flatten().count();
        let mut configured = self.configured.iter();
        self.touched.is_empty()
            && visible == self.visible_flows
            && slots == self.configured.len() + self.retired.len()
            && self.by_name.len() == self.configured.len()
            && self.iter().all(|(id, pool)| self.deadlines.get(id) == pool.poll_timeout())
            && configured.all(|&id| {
                self.get(id).is_some_and(|pool| !pool.is_retired() && self.by_name(pool.name()) == Some(id))
            })
            && self.retired.iter().all(|&id| self.get(id).is_some_and(Pool::is_retired))
    }
}
