//! Another policy under everything that waits and runs.
//!
//! A level keeps its state if its discipline stays the same. A level with another discipline starts anew from what waits
//! and runs. Levels aren't updated in between, so that no flow counts as empty because of the change.

use alloc::vec::Vec;

use crate::band::TreeBand;
use crate::cost::Charge;
use crate::endpoints::Endpoints;
use crate::ids::{ClassId, EligibilityId, FlowId, Id, LeafId, ModelTreeId};
use crate::input::EndpointId;
use crate::policy::{Over, Policy};

use super::classes::Classes;
use super::disciplines::{BandLevel, ClassLevel, ModelLevel};
use super::node::Node;
use super::tree_config::TreeConfig;
use super::{Queued, Receipts, Tree};

/// A change of policy in progress.
#[derive(Debug)]
pub(crate) struct Change {
    /// Leaves to remove, sorted.
    removed_leaves: Vec<LeafId>,
    removed_trees: Vec<ModelTreeId>,
    /// Eligibility sets to release when no head waits under them.
    released: Vec<EligibilityId>,
}

impl Change {
    fn removes(&self, leaf: LeafId) -> bool {
        self.removed_leaves.binary_search(&leaf).is_ok()
    }
}

impl Tree {
    /// Applies the policy, while every waiting request is taken out ([`Self::take_out`]). The caller then calls
    /// [`Self::reassign`] for every job, [`Self::put_back`] or [`Self::transfer_running`], and [`Self::end_change`].
    pub(crate) fn begin_change(&mut self, policy: &Policy) -> Change {
        let old = core::mem::replace(&mut self.config, TreeConfig::of(policy));
        let old_classes = core::mem::replace(&mut self.classes, Classes::new(&policy.classes));
        let rebuilt = (old.per_model, old.discipline) != (self.config.per_model, self.config.discipline);
        let same_ring = old_classes.same_ring(&self.classes) && old.class_mode == self.config.class_mode;
        let mut change = Change {
            removed_leaves: Vec::new(),
            removed_trees: Vec::new(),
            released: Vec::new(),
        };
        if !self.root.reconfigure(&self.config) {
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
            for (_, tree) in self.trees.iter() {
                let models = &mut self.bands[tree.band as usize].level;
                models.reconfigure(tree.child, &self.config);
            }
        }
        self.apply_weights(policy);
        change
    }

    /// Applies weights and capacities to identities and flows.
    fn apply_weights(&mut self, policy: &Policy) {
        for (_, identity) in self.identities.iter_mut() {
            identity.weight = policy.flows.weight_of(&identity.name);
            identity.capacity = policy.flows.capacities.get(&*identity.name).copied();
            identity.quota = policy.flows.quota_of(&identity.name);
            let quota = identity.quota.and_then(|index| policy.flows.quotas.get(index));
            identity.held &= quota.is_some_and(|quota| quota.over == Over::Hold && !quota.shadow);
            identity.in_flight_at.clear();
        }
        for (_, flow) in self.flows.iter() {
            let weight = self.identities.get(flow.identity).weight;
            self.leaves[flow.leaf]
                .level
                .set_weight(flow.child, weight, &self.config);
        }
    }

    fn change_classes(&mut self, old: &Classes, same_ring: bool, change: &mut Change) {
        if !same_ring {
            self.epoch += 1;
        }
        let new_ids: Vec<Option<ClassId>> = old
            .iter()
            .map(|(_, class)| self.classes.by_name(class.name()))
            .collect();
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

    /// Assigns `request` to its flow, class and eligibility set under the new policy. `class`: its class if its leaf is
    /// removed; otherwise it keeps its own.
    pub(crate) fn reassign(
        &mut self,
        request: &mut Queued,
        band: TreeBand,
        class: ClassId,
        endpoints: &Endpoints,
        change: &mut Change,
    ) {
        let (identity, leaf) = (self.flows[request.flow].identity, self.flows[request.flow].leaf);
        if !change.removes(leaf) && self.band_of(request.flow) != band {
            request.class = self.leaves[leaf].class;
            let leaf = self.leaf_or_insert(band, request.model, request.class);
            request.flow = self.flow_at(identity, leaf);
        } else if change.removes(leaf) {
            request.class = class;
            let leaf = self.leaf_or_insert(band, request.model, class);
            request.flow = self.flow_at(identity, leaf);
        } else {
            request.class = self.leaves[leaf].class;
        }
        let threshold = self.classes.get(request.class).threshold;
        change.released.push(request.eligibility);
        request.eligibility = self
            .eligibility
            .hold_under(request.eligibility, threshold, endpoints);
    }

    /// A request that runs at `endpoint` moves from one flow to another, or stays.
    pub(crate) fn transfer_running(
        &mut self,
        (from, to): (FlowId, FlowId),
        endpoint: EndpointId,
        charge: &Charge,
        receipts: &mut Receipts,
    ) {
        if from != to {
            self.flows[from].in_flight -= 1;
            self.flows[to].in_flight += 1;
            let (leaf, child) = (self.flows[to].leaf, self.flows[to].child);
            let level = &mut self.leaves[leaf].level;
            // It no longer runs elsewhere.
            level.settle_elsewhere(child, charge, None);
            receipts.flow = level.charge(child, charge);
        }
        if self.config.max_in_flight_per_endpoint.is_some() {
            let identity = self.identities.get_mut(self.flows[to].identity);
            identity.count_started_at(endpoint);
        }
    }

    /// Every job is in its place: removes what is no longer used, and updates every level.
    pub(crate) fn end_change(&mut self, change: Change, endpoints: &Endpoints) {
        self.rebuild_tallies(|leaf| !change.removes(leaf));
        let flows: Vec<FlowId> = self.flows.ids().collect();
        for flow in flows {
            let leaf = self.flows[flow].leaf;
            if change.removes(leaf) {
                self.move_head(flow, None);
                self.watch(flow, Vec::new());
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
