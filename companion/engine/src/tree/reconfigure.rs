//! Another policy under everything that waits and runs.
//!
//! A level keeps its state if its discipline and the costs of requests stay the same. A level with another discipline, or other
//! costs, starts anew from what waits and runs: a flow that is 1,000 tokens behind must not be 1,000 requests behind. Levels aren't
//! updated in between, so that no flow counts as empty because of the change.

use alloc::vec::Vec;

use hashbrown::HashSet;

use super::classes::Classes;
use super::disciplines::{BandLevel, ClassLevel, ModelLevel};
use super::node::{Node, Receipt};
use super::tree_config::TreeConfig;
use super::{Leaf, Queued, Receipts, Tree};
use crate::band::TreeBand;
use crate::cost::Charge;
use crate::endpoints::Endpoints;
use crate::ids::{ClassId, EligibilityId, FlowId, Id, IdentityId, LeafId, ModelTreeId};
use crate::input::EndpointId;
use crate::policy::Policy;

/// A change of policy in progress.
#[derive(Debug)]
pub(crate) struct Change {
    /// Leaves to remove, sorted.
    removed_leaves: Vec<LeafId>,
    removed_trees: Vec<ModelTreeId>,
    /// Eligibility sets to release when no head waits under them.
    released: Vec<EligibilityId>,
    /// The flows of waiting requests, in the order in which [`Change::puts_back`] was called. In this order they join rings that start anew.
    flows: Vec<FlowId>,
    /// The classes are the same: every request keeps its own.
    same_classes: bool,
    /// What runs was charged another cost.
    other_costs: bool,
}

impl Change {
    fn removes(&self, leaf: LeafId) -> bool {
        self.removed_leaves.binary_search(&leaf).is_ok()
    }

    /// A request that waits is put back into this flow.
    pub(crate) fn puts_back(&mut self, flow: FlowId) {
        self.flows.push(flow);
    }

    /// Requests cost something else than before.
    pub(crate) const fn has_other_costs(&self) -> bool {
        self.other_costs
    }
}

impl Tree {
    /// Applies the policy, while every waiting request is taken out ([`Self::take_out`]). The caller then calls
    /// [`Self::reassign`] for every job, [`Self::put_back`] or [`Self::transfer_running`], and [`Self::end_change`].
    pub(crate) fn begin_change(&mut self, policy: &Policy) -> Change {
        let old = core::mem::replace(&mut self.config, TreeConfig::of(policy));
        let old_classes = core::mem::replace(&mut self.classes, Classes::new(&policy.classes));
        let other_costs = !old.has_costs_of(&self.config);
        let rebuilt =
            other_costs || (old.per_model, old.discipline) != (self.config.per_model, self.config.discipline);
        let same_classes = old_classes.same_ring(&self.classes);
        let same_ring = same_classes && old.class_mode == self.config.class_mode;
        let mut change = Change {
            removed_leaves: Vec::new(),
            removed_trees: Vec::new(),
            released: Vec::new(),
            flows: Vec::new(),
            same_classes,
            other_costs,
        };
        if other_costs || !self.root.reconfigure(&self.config) {
            self.root = BandLevel::new(&self.config);
            self.epoch += 1;
        }
        if rebuilt {
            change.removed_leaves = self.leaves.ids().collect();
            change.removed_trees = self.trees.ids().collect();
            for band in &mut self.bands {
                band.trees.clear();
                band.level = ModelLevel::new(&self.config);
            }
            self.epoch += 1;
        } else {
            self.change_classes(&old_classes, same_ring, &mut change);
            for (_, leaf) in self.leaves.iter_mut() {
                leaf.level.reconfigure(&self.config);
            }
        }
        self.apply_weights(policy);
        change
    }

    /// Applies weights and capacities to identities and flows.
    fn apply_weights(&mut self, policy: &Policy) {
        self.identities.reconfigure(&policy.flows);
        for (_, flow) in self.flows.iter() {
            let weight = self.identities.get(flow.identity).weight;
            self.leaves[flow.leaf].level.set_weight(flow.child, weight, &self.config);
        }
        for (_, leaf) in self.leaves.iter_mut() {
            leaf.level.end_weights();
        }
    }

    fn change_classes(&mut self, old: &Classes, same_ring: bool, change: &mut Change) {
        if !same_ring {
            self.epoch += 1;
        }
        let new_ids: Vec<Option<ClassId>> =
            old.iter().map(|(_, class)| self.classes.by_name(class.name())).collect();
        for (_, tree) in self.trees.iter_mut() {
            if same_ring {
                tree.level.set_quanta(&self.classes);
                continue;
            }
            tree.level = ClassLevel::new(&self.classes, &self.config);
            let leaves = core::mem::replace(&mut tree.leaves, alloc::vec![None; self.classes.len()]);
            for (leaf, &class) in leaves.into_iter().zip(&new_ids) {
                let Some(leaf) = leaf else { continue };
                match class {
                    Some(class) => {
                        tree.leaves[class.index()] = Some(leaf);
                        self.leaves[leaf].class = class;
                    }
                    None => change.removed_leaves.push(leaf),
                }
            }
        }
        change.removed_leaves.sort_unstable();
    }

    /// Assigns `request` to its flow, class and eligibility set under the new policy. `identity`: its own, if it has shared one until
    /// now. `class`: its class if its own may be gone; otherwise it keeps its own.
    pub(crate) fn reassign(
        &mut self,
        request: &mut Queued,
        (identity, band, class): (Option<IdentityId>, TreeBand, ClassId),
        endpoints: &Endpoints,
        change: &mut Change,
    ) {
        let (former, leaf) = (self.flows[request.flow].identity, self.flows[request.flow].leaf);
        let removed = change.removes(leaf);
        request.class = if removed && !change.same_classes { class } else { self.leaves[leaf].class };
        let identity = identity.unwrap_or(former);
        if removed || identity != former || self.band_of(request.flow) != band {
            let leaf = self.leaf_or_insert(band, request.model, request.class);
            request.flow = self.flow_at(identity, leaf);
        }
        let threshold = self.classes.get(request.class).threshold;
        change.released.push(request.eligibility);
        request.eligibility = self.eligibility.hold_under(request.eligibility, threshold, endpoints);
    }

    /// A request that runs at `endpoint` moves from one flow to another, or stays. `charge`: what it was charged; `None`: that is
    /// settled, so nothing of it will change.
    pub(crate) fn transfer_running(
        &mut self,
        (from, to): (FlowId, FlowId),
        endpoint: EndpointId,
        charge: Option<&Charge>,
        receipts: &mut Receipts,
    ) {
        if from != to {
            self.flows[from].in_flight -= 1;
            self.flows[to].in_flight += 1;
            receipts.flow = Receipt::default();
        }
        if let Some(charge) = charge.filter(|_| from != to) {
            let (leaf, child) = (self.flows[to].leaf, self.flows[to].child);
            let Leaf { level, lags, .. } = &mut self.leaves[leaf];
            // It no longer runs elsewhere.
            level.settle_elsewhere(child, charge, None);
            receipts.flow = level.charge(child, charge);
            lags.charged();
        }
        if self.config.max_in_flight_per_endpoint.is_some() {
            let identity = self.identities.get_mut(self.flows[to].identity);
            identity.count_started_at(endpoint);
        }
    }

    /// Every job is in its place: removes what is no longer used, and updates every level.
    pub(crate) fn end_change(&mut self, mut change: Change, endpoints: &Endpoints) {
        // Heads get their tags from the tallies, so these come first.
        self.rebuild_tallies(|leaf| !change.removes(leaf));
        let mut flows = core::mem::take(&mut change.flows);
        flows.extend(self.flows.ids());
        let mut updated: HashSet<FlowId> = HashSet::with_capacity(self.flows.len());
        flows.retain(|&flow| updated.insert(flow));
        for flow in flows {
            let leaf = self.flows[flow].leaf;
            if change.removes(leaf) {
                self.move_head(flow, None);
                self.watch(flow, Vec::new());
                self.set_head(flow, None);
                let tree = self.leaves[leaf].tree;
                let band = self.trees[tree].band;
                self.trees[tree].flows -= 1;
                let removed = self.flows.remove(flow);
                self.identities.flow_removed(removed.identity, band, leaf);
            } else {
                self.update_head(flow, endpoints);
            }
        }
        for leaf in change.removed_leaves {
            self.leaves.remove(leaf);
        }
        for tree in change.removed_trees {
            self.trees.remove(tree);
        }
        for eligibility in change.released {
            self.eligibility.release(eligibility);
        }
        // A tree whose requests have all moved to another band has no flow that would update it.
        let trees: Vec<ModelTreeId> = self.trees.ids().collect();
        for tree in trees {
            self.propagate_tree(tree);
        }
        for band in TreeBand::ALL {
            self.propagate_band(band);
        }
        let flows: Vec<FlowId> = self.flows.ids().collect();
        for flow in flows {
            // Releasing one flow can remove others.
            if self.flows.get(flow).is_some() {
                self.release_flow(flow);
            }
        }
    }
}
