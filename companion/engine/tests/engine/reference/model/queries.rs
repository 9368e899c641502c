//! Values that the model counts from its list of requests on demand.

use std::collections::BTreeSet;

use penstock_engine::input::{Band, Usage};
use penstock_engine::policy::{CostUnit, Discipline, Gate};
use penstock_engine::{Outcome, RequestId};

use super::virtual_time::in_cost_per_weight;
use super::{Item, Leaf, Model, Running};

impl Model {
    /// The places of all credit in the pool.
    pub fn credit(&self) -> u64 {
        self.places.values().sum()
    }

    pub fn waiting(&self) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(|item| item.running.is_none())
    }

    /// Waiting requests that aren't suspended.
    pub fn active(&self) -> impl Iterator<Item = &Item> {
        self.waiting().filter(|item| !item.suspended)
    }

    pub(super) fn suspend(&mut self, id: RequestId, suspended: bool) {
        let found = self.items.iter_mut().find(|item| item.id == id);
        if let Some(item) = found.filter(|item| item.running.is_none()) {
            item.suspended = suspended;
        }
        self.refresh_backlogs();
    }

    pub(super) fn cost(&self, item: &Item) -> u64 {
        match self.policy.flows.cost {
            CostUnit::Requests => 1,
            CostUnit::Tokens => self.cost_of(item, Usage::default()),
        }
    }

    /// The cost for classes, fixed at arrival and never settled.
    pub(super) fn class_cost(&self, item: &Item) -> u64 {
        item.prompt.saturating_sub(item.cached).max(1)
    }

    pub(super) fn cost_of(&self, item: &Item, usage: Usage) -> u64 {
        let prompt = usage.prompt.map_or(item.prompt, |tokens| tokens.0);
        let cached = usage.cached.map_or(item.cached, |tokens| tokens.0).min(prompt);
        let output = usage.output.map_or(item.output, |tokens| tokens.0);
        let weights = self.policy.weights;
        ((prompt - cached) * weights.input as u64 + output * weights.output as u64).max(1)
    }

    pub(super) fn is_saturated(&self) -> bool {
        let is_open = self.policy.gate != Gate::Manual && self.may_dispatch();
        let waits = self.active().next().is_some() && (!is_open || self.next().is_some());
        waits || (self.any_ready() && self.filled() >= self.bounds().1)
    }

    pub(super) fn find(&self, id: RequestId) -> Option<&Item> {
        self.items.iter().find(|item| item.id == id)
    }

    pub(super) fn item(&self, id: RequestId) -> &Item {
        self.find(id).expect("the request exists")
    }

    pub(super) fn running_mut(&mut self, id: RequestId) -> Option<&mut Running> {
        self.items.iter_mut().find(|item| item.id == id)?.running.as_mut()
    }

    pub(super) fn count(&mut self, band: Band, outcome: Outcome) {
        *self.outcomes.entry((band, outcome)).or_default() += 1;
    }

    /// Drops the flows of `leaf` without waiting or running requests that the discipline doesn't remember either.
    pub(super) fn drop_unused_flows(&mut self, leaf: &Leaf) {
        let of_leaf = self.items.iter().filter(|item| self.leaf(item) == *leaf);
        let mut used: BTreeSet<Box<str>> = of_leaf.map(|item| item.name.clone()).collect();
        if self.discipline() == Discipline::Usage {
            let in_window = self.used.iter().filter(|used| used.leaf == *leaf);
            used.extend(in_window.map(|used| used.name.clone()));
            let elsewhere = self.elsewhere.keys().filter(|(other, _, _)| other == leaf);
            used.extend(elsewhere.map(|(_, name, _)| name.clone()));
        }
        if let Some(virtual_time) = self.virtual_times.get_mut(leaf) {
            virtual_time.drop_unused_flows(|name| used.contains(name));
        }
        let remembered = |name: &str| {
            used.contains(name)
                || self
                    .virtual_times
                    .get(leaf)
                    .is_some_and(|virtual_time| virtual_time.flows.contains_key(name))
        };
        let unused: Vec<_> =
            self.nodes.iter().filter(|(other, name)| other == leaf && !remembered(name)).cloned().collect();
        for node in unused {
            self.nodes.remove(&node);
        }
        let tree = &leaf.0;
        if self.policy.per_model && !self.nodes.iter().any(|((other, _), _)| other == tree) {
            // A model without flows is dropped altogether.
            self.class_rings.remove(tree);
            self.flow_rings.retain(|(other, _), _| other != tree);
            self.virtual_times.retain(|(other, _), _| other != tree);
        }
    }

    /// The deficits of every class over all bands and models, in the order of the ring.
    pub fn deficits(&self) -> Vec<u64> {
        let deficit = |class: usize| self.class_rings.values().map(|ring| ring.deficit(&class)).sum();
        (0..self.classes.len()).map(deficit).collect()
    }

    /// The latest virtual finish time of an identity's flows in a band; `None` under a discipline without one. Under `vtc` the
    /// engine may keep the counter of an idle flow for longer, without effect.
    pub fn finish(&self, band: Band, name: &str) -> Option<f64> {
        match self.discipline() {
            Discipline::Wfq | Discipline::RoundRobin => {}
            Discipline::Usage | Discipline::Drr | Discipline::Vtc | Discipline::Fifo => return None,
        }
        let flows = self.nodes.iter();
        let leaves = flows.filter(|((tree, _), other)| tree.0.shown() == band && **other == *name);
        let finish = |leaf: &Leaf| Some(self.virtual_times.get(leaf)?.flows.get(name)?.finish);
        let latest = leaves.map(|(leaf, _)| finish(leaf).unwrap_or(0)).max();
        Some(in_cost_per_weight(latest.unwrap_or(0)))
    }

    pub fn waiting_by_band(&self) -> [u64; 3] {
        let shown = |band| self.waiting().filter(|item| item.band.shown() == band).count() as u64;
        [Band::Critical, Band::Default, Band::Sheddable].map(shown)
    }
}
