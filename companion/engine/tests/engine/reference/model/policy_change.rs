//! Another policy, under what waits and runs.

use std::collections::BTreeMap;

use penstock_engine::Policy;
use penstock_engine::policy::{BandMode, CostUnit, Discipline};

use super::drr_ring::{DrrRing, Taken};
use super::virtual_time::VirtualTime;
use super::{BANDS, Item, Leaf, Level, Model};

impl Model {
    pub(super) fn change_policy(&mut self, policy: Policy) {
        self.fill_rate();
        let had_rate = self.policy.queue.max_rate.is_some();
        self.clear_aside();
        let old = std::mem::replace(&mut self.policy, policy);
        self.release_left();
        self.discard_unused_prefixes();
        let capacity = self.rate_capacity();
        self.rate.0 = if had_rate { self.rate.0.min(capacity) } else { capacity };
        self.end_slow_starts();
        self.change_weights(&old);
        self.scale_usage(&old);
        self.change_bands(&old);
        if token_weights(&old) != token_weights(&self.policy) {
            self.change_costs();
            self.start_anew();
        } else if old.flows.discipline != self.discipline() {
            self.start_anew();
        }
        self.refresh_backlogs();
    }

    /// A flow stays as far ahead, or behind, in cost.
    fn change_weights(&mut self, old: &Policy) {
        let flows = &self.policy.flows;
        for (leaf, name) in &self.nodes {
            if let Some(virtual_time) = self.virtual_times.get_mut(leaf) {
                virtual_time.reweigh(name, old.flows.weight_of(name), flows.weight_of(name));
            }
        }
        for item in &mut self.items {
            if let Some(running) = &mut item.running {
                running.weight = flows.weight_of(&item.name);
            }
        }
        let leaves: Vec<Leaf> = self.flow_rings.keys().cloned().collect();
        for leaf in leaves {
            for name in self.flow_rings[&leaf].keys() {
                let quantum = self.quantum(self.policy.flows.weight_of(&name), 1_024);
                let ring = self.flow_rings.get_mut(&leaf).expect("its key was listed");
                ring.set_quantum(&name, quantum);
            }
        }
    }

    /// What is in the usage window counts by the weight of its time. A sum over buckets is exact to a unit of cost.
    fn scale_usage(&mut self, old: &Policy) {
        self.used.sort_by_key(|used| used.bucket);
        let mut sums = BTreeMap::new();
        for used in &mut self.used {
            let weights = [old, &self.policy].map(|policy| policy.flows.weight_of(&used.name));
            if weights[0].to_bits() == weights[1].to_bits() {
                continue;
            }
            let key = (used.leaf.clone(), used.name.clone(), used.model.clone());
            let (before, now): &mut (u64, u64) = sums.entry(key).or_default();
            *before += used.cost;
            let sum = (*before as f64 * (weights[1] / weights[0])).floor() as u64;
            used.cost = sum - *now;
            *now = sum;
        }
        self.used.retain(|used| used.cost > 0);
        self.expire_usage();
    }

    /// The ring of bands stays if the same bands have a quantum, and costs are the same.
    fn change_bands(&mut self, old: &Policy) {
        let weights = |policy: &Policy| match policy.bands.mode {
            BandMode::Strict => None,
            BandMode::Weighted(weights) => Some(weights),
        };
        let weighted = |policy: &Policy| weights(policy).map(|weights| weights.map(|weight| weight > 0.0));
        let same_costs = token_weights(old) == token_weights(&self.policy);
        if weighted(old) != weighted(&self.policy) || !same_costs {
            self.band_ring = self.new_band_ring();
            self.forget_taken();
            return;
        }
        for band in BANDS {
            let quantum = self.band_quantum(band);
            if let Some(ring) = &mut self.band_ring {
                ring.set_quantum(&band, quantum);
            }
        }
    }

    pub(super) fn new_band_ring(&self) -> Option<DrrRing<Level>> {
        if self.policy.bands.mode == BandMode::Strict {
            return None;
        }
        let weighted = BANDS.into_iter().filter(|band| *band != Level::Demoted);
        let bands: Vec<_> = weighted.map(|band| (band, self.band_quantum(band))).collect();
        Some(DrrRing::fixed(bands))
    }

    /// Nothing above the flows is refunded for what runs.
    fn forget_taken(&mut self) {
        for running in self.items.iter_mut().filter_map(|item| item.running.as_mut()) {
            running.taken[..3].fill(Taken::default());
        }
    }

    /// What runs counts at its cost under the present policy.
    fn change_costs(&mut self) {
        for index in 0..self.items.len() {
            let cost = self.cost(&self.items[index]);
            if let Some(running) = &mut self.items[index].running {
                running.cost = cost;
                running.unit = self.policy.flows.cost;
            }
        }
    }

    /// Every level starts anew from what waits and runs, in the order of arrival.
    fn start_anew(&mut self) {
        self.model_rings.clear();
        self.class_rings.clear();
        self.flow_rings.clear();
        self.virtual_times.clear();
        self.used.clear();
        self.elsewhere.clear();
        self.forget_taken();
        self.items.sort_by_key(|item| (item.arrived, item.sequence));
        let items = self.items.iter();
        self.nodes = items.map(|item| (self.leaf(item), item.name.clone())).collect();
        for index in 0..self.items.len() {
            self.charge_again(index);
        }
    }

    fn charge_again(&mut self, index: usize) {
        let item: Item = self.items[index].clone();
        let Some(running) = &mut self.items[index].running else {
            return;
        };
        running.taken[3] = Taken::default();
        let mut uncontested = None;
        let discipline = self.policy.flows.discipline;
        if discipline == Discipline::Drr {
            return;
        }
        let (cost, weight, is_settled) = (running.cost, running.weight, running.settled.is_some());
        let leaf = self.leaf(&item);
        let virtual_time = self.virtual_times.entry(leaf).or_insert_with(|| VirtualTime::new(discipline));
        if !is_settled {
            virtual_time.charge(&item.name, cost, weight, true, &mut uncontested);
        }
        if let Some(running) = &mut self.items[index].running {
            running.uncontested = uncontested;
        }
    }
}

/// The weights of tokens in a cost; `None`: costs count requests.
fn token_weights(policy: &Policy) -> Option<[f64; 2]> {
    let weights = [policy.weights.input, policy.weights.output];
    (policy.flows.cost == CostUnit::Tokens).then_some(weights)
}
