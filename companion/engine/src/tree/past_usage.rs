//! Usage from before this engine started, or from other engines, added to the windows of [`crate::policy::Discipline::Usage`], and what runs
//! at other engines.
//!
//! An entry counts in the band and class that it names, so that its flow is shown there, and its usage counts in all.

use alloc::vec::Vec;

use super::Tree;
use super::usage::reach;
use crate::band::TreeBand;
use crate::ids::{FlowId, Id as _, ModelId};
use crate::input::{PastUsage, RunningUsage};
use crate::policy::Flows as FlowsPolicy;

impl Tree {
    /// See [`crate::Input::PastUsage`].
    pub(crate) fn add_past_usage(&mut self, entries: Vec<PastUsage>, policy: &FlowsPolicy) {
        if !self.has_usage_windows() {
            return;
        }
        let reach = reach(self.config.usage_window);
        for entry in entries {
            let counts = entry.cost.0 > 0 && entry.ago < reach;
            let Some(class) = self.classes.by_name(&entry.class).filter(|_| counts) else {
                continue;
            };
            let model = self.model_id(&entry.model);
            let (flow, _) = self.flow_or_insert(entry.flow.into(), entry.band.into(), model, class, policy);
            let (leaf, child) = (self.flows[flow].leaf, self.flows[flow].child);
            self.leaves[leaf].level.add_past_usage(child, model, entry.cost.0, entry.ago);
            self.tally_past(flow, model, entry.cost.0);
            // Usage in the window keeps the flow. Without any, it must not stay for ever.
            self.release_flow(flow);
        }
    }

    /// See [`crate::Input::SharedUsage`].
    pub(crate) fn set_running_elsewhere(&mut self, entries: Vec<RunningUsage>, policy: &FlowsPolicy) {
        if !self.has_usage_windows() {
            return;
        }
        for entry in entries {
            let Some(class) = self.classes.by_name(&entry.class) else {
                continue;
            };
            let model = self.model_id(&entry.model);
            let (flow, _) = self.flow_or_insert(entry.flow.into(), entry.band.into(), model, class, policy);
            let (leaf, child) = (self.flows[flow].leaf, self.flows[flow].child);
            let running = entry.running.0;
            let level = &mut self.leaves[leaf].level;
            let before = level.set_running_elsewhere(child, model, running);
            self.tally_elsewhere(flow, model, before, running);
            self.release_flow(flow);
        }
    }

    /// The estimated cost of all flows' requests that run at other engines.
    pub(crate) fn running_elsewhere(&self) -> u128 {
        let leaves = self.leaves.iter();
        leaves.map(|(_, leaf)| leaf.level.running_elsewhere()).sum()
    }

    /// The estimated cost of the requests for `model` that run here, where the discipline counts usage: of `flow`, and of the flow of
    /// the same identity that is shown in the same band.
    pub(crate) fn running_usage(&self, flow: FlowId, model: ModelId) -> u128 {
        let flow = &self.flows[flow];
        let leaf = &self.leaves[flow.leaf];
        let tree = &self.trees[leaf.tree];
        let identity = self.identities.get(flow.identity);
        let leaves = TreeBand::shown_as(tree.band.shown()).iter().filter_map(|&band| {
            let tree = *self.bands[band as usize].trees.get(&tree.model)?;
            self.trees[tree].leaves[leaf.class.index()]
        });
        let running = leaves.filter_map(|leaf| {
            let flow = &self.flows[identity.flow(leaf)?];
            Some(self.leaves[leaf].level.running_usage(flow.child, model))
        });
        running.sum()
    }
}
