//! The removal of flows that are no longer used, and with them of empty leaves and model trees.

use super::Tree;
use crate::ids::{FlowId, LeafId};

impl Tree {
    /// Removes `flow` if nothing of it waits or runs, once its discipline no longer counts its charges. That may allow
    /// other flows to be removed, too.
    pub(crate) fn release_flow(&mut self, flow: FlowId) {
        let node = &self.flows[flow];
        let (leaf, child) = (node.leaf, node.child);
        if node.waiting == 0 && node.in_flight == 0 {
            self.leaves[leaf].level.set_idle(child);
        }
        self.forget_idle(leaf);
    }

    /// Removes the idle flows of `leaf` that can be removed. Returns whether `leaf` was removed by that.
    pub(super) fn forget_idle(&mut self, leaf: LeafId) -> bool {
        while let Some(child) = self.leaves[leaf].level.forgettable() {
            let flow = self.leaves[leaf].level.flow(child);
            self.leaves[leaf].level.forget(child);
            if self.remove_flow(flow) {
                return true;
            }
        }
        false
    }

    /// Removes `flow`. Returns whether its leaf was removed, too.
    fn remove_flow(&mut self, flow: FlowId) -> bool {
        let removed = self.flows.remove(flow);
        let tree_id = self.leaves[removed.leaf].tree;
        let tree = &mut self.trees[tree_id];
        tree.flows -= 1;
        let (band, empty) = (tree.band, tree.flows == 0);
        self.identities.flow_removed(removed.identity, band, removed.leaf);
        if !empty || !self.config.per_model {
            return false;
        }
        let tree = self.trees.remove(tree_id);
        for leaf in tree.leaves.into_iter().flatten() {
            self.leaves.remove(leaf);
        }
        let node = &mut self.bands[band as usize];
        node.trees.remove(&tree.model);
        node.level.forget(tree.child);
        true
    }
}
