//! Another policy under everything that waits and runs.
//!
//! What a level's rule knows is kept wherever the rule stays the same; a level that becomes another begins anew from
//! what waits and runs. Nothing in between is told to any level, so that nobody is taken to have run empty.

use alloc::vec::Vec;

use crate::cost::Charge;
use crate::endpoints::Endpoints;
use crate::input::{Band, ClassKey, EndpointId};
use crate::policy::Policy;

use super::classes::Classes;
use super::disciplines::{Bands, Models, Ring};
use super::tree_config::TreeConfig;
use super::{BANDS, LaneId, NONE, Queued, Receipts, Tree};

/// A change that isn't done yet.
#[derive(Debug)]
pub(crate) struct Change {
    /// Leaves that are no more.
    dead: Vec<u32>,
    dead_trees: Vec<u32>,
    /// Held until nothing stands in them.
    lanes: Vec<LaneId>,
}

impl Tree {
    /// `number` waits: it leaves its queue until [`Self::put_back`], and no level is told.
    pub(crate) fn lift(&mut self, number: u32, request: &Queued) {
        self.take_out(number, request);
    }

    /// The policy is this from now on, while everything that waits is lifted.
    pub(crate) fn begin_change(&mut self, policy: &Policy) -> Change {
        let old = core::mem::replace(&mut self.shape, TreeConfig::of(policy));
        let classes = core::mem::replace(&mut self.classes, Classes::new(&policy.classes));
        let anew = (old.per_model, old.discipline) != (self.shape.per_model, self.shape.discipline);
        let same_ring = classes.same_ring(&self.classes) && old.class_mode == self.shape.class_mode;
        let mut change = Change {
            dead: Vec::new(),
            dead_trees: Vec::new(),
            lanes: Vec::new(),
        };
        if !self.pool.reweigh(&self.shape) {
            self.pool = Bands::new(&self.shape);
            self.epoch += 1;
        }
        if anew {
            change.dead = self.leaves.iter().map(|(number, _)| number).collect();
            change.dead_trees = self.trees.iter().map(|(number, _)| number).collect();
            for band in &mut self.bands {
                band.trees.clear();
                band.models = Models::new(&self.shape);
            }
            self.epoch += 1;
        } else {
            self.change_classes(&classes, same_ring, &mut change);
            for (_, leaf) in self.leaves.iter_mut() {
                leaf.level.reshape(&self.shape);
            }
            for (_, tree) in self.trees.iter() {
                let models = &mut self.bands[tree.band as usize].models;
                models.reweigh(tree.child, &self.shape);
            }
        }
        for (_, identity) in self.identities.iter_mut() {
            identity.weight = policy.flows.weight_of(&identity.name);
            identity.capacity = policy.flows.capacities.get(&identity.name).copied();
            identity.in_flight_at.clear();
        }
        for (_, flow) in self.flows.iter() {
            let weight = self.identities.get(flow.identity).weight;
            self.leaves[flow.leaf]
                .level
                .weigh(flow.child, weight, &self.shape);
        }
        change
    }

    fn change_classes(&mut self, old: &Classes, same_ring: bool, change: &mut Change) {
        if !same_ring {
            self.epoch += 1;
        }
        let numbers: Vec<Option<u32>> = old.iter().map(|(_, class)| self.classes.like(class)).collect();
        for (_, tree) in self.trees.iter_mut() {
            if same_ring {
                tree.ring.reweigh(&self.classes);
                continue;
            }
            tree.ring = Ring::new(&self.classes, &self.shape);
            let leaves = core::mem::replace(&mut tree.leaves, alloc::vec![NONE; self.classes.len()]);
            for (leaf, number) in leaves.into_iter().zip(&numbers) {
                match *number {
                    _ if leaf == NONE => {}
                    Some(class) => {
                        tree.leaves[class as usize] = leaf;
                        self.leaves[leaf].class = class;
                    }
                    None => change.dead.push(leaf),
                }
            }
        }
        change.dead.sort_unstable();
    }

    /// Where `request` belongs from now on: in another flow, perhaps, class and lane.
    pub(crate) fn place(
        &mut self,
        request: &mut Queued,
        band: Band,
        set: u16,
        key: &ClassKey,
        endpoints: &Endpoints,
        change: &mut Change,
    ) {
        let (identity, leaf) = (self.flows[request.flow].identity, self.flows[request.flow].leaf);
        if change.is_dead(leaf) {
            let uncached = request.prompt - request.cached;
            request.class = self.classify(set, key, uncached);
            let leaf = self.leaf(band, request.model, request.class);
            request.flow = self.flow_at(identity, leaf);
        } else {
            request.class = self.leaves[leaf].class;
        }
        let threshold = self.classes.get(request.class).threshold;
        change.lanes.push(request.lane);
        request.lane = self.lanes.under(request.lane, threshold, endpoints);
    }

    /// `number` waits again, without a level being told.
    pub(crate) fn put_back(&mut self, number: u32, request: &Queued) {
        self.insert(number, request);
    }

    /// A request of `from` that runs at `endpoint` belongs to `to` now.
    pub(crate) fn rerun(
        &mut self,
        (from, to): (u32, u32),
        endpoint: EndpointId,
        charge: &Charge,
        receipts: &mut Receipts,
    ) {
        if from != to {
            self.flows[from].in_flight -= 1;
            self.flows[to].in_flight += 1;
            let (leaf, child) = (self.flows[to].leaf, self.flows[to].child);
            receipts.flow = self.leaves[leaf].level.charge(child, charge);
        }
        if self.shape.max_in_flight_per_endpoint.is_some() {
            let identity = self.identities.get_mut(self.flows[to].identity);
            let found = identity
                .in_flight_at
                .binary_search_by_key(&endpoint, |&(id, _)| id);
            match found {
                Ok(at) => identity.in_flight_at[at].1 += 1,
                Err(at) => identity.in_flight_at.insert(at, (endpoint, 1)),
            }
        }
    }

    /// Everything is where it belongs: every level is told.
    pub(crate) fn end_change(&mut self, change: Change, endpoints: &Endpoints) {
        let flows: Vec<u32> = self.flows.iter().map(|(number, _)| number).collect();
        for flow in flows {
            let leaf = self.flows[flow].leaf;
            if change.is_dead(leaf) {
                self.stand(flow, None);
                let band = self.trees[self.leaves[leaf].tree].band;
                let tree = self.leaves[leaf].tree;
                self.trees[tree].flows -= 1;
                let gone = self.flows.remove(flow);
                self.identities.left(gone.identity, band, leaf);
            } else {
                self.head_changed(flow, endpoints);
            }
        }
        for &leaf in &change.dead {
            self.leaves.remove(leaf);
        }
        for &tree in &change.dead_trees {
            self.trees.remove(tree);
        }
        for lane in change.lanes {
            self.lanes.release(lane);
        }
        for band in BANDS {
            self.tell_pool(band);
        }
        let flows: Vec<u32> = self.flows.iter().map(|(number, _)| number).collect();
        for flow in flows {
            let still = self.flows.get(flow).is_some();
            if still {
                self.release_flow(flow);
            }
        }
    }
}

impl Change {
    fn is_dead(&self, leaf: u32) -> bool {
        self.dead.binary_search(&leaf).is_ok()
    }
}
