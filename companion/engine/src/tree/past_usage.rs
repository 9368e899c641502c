//! Usage from before this engine started, or from other engines, added to the windows of
//! [`crate::policy::Discipline::Usage`]. An entry counts in the band and class that it names, so that its flow is shown there, and its
//! usage counts in all.

use alloc::vec::Vec;

use crate::input::PastUsage;
use crate::policy::Flows as FlowsPolicy;

use super::Tree;
use super::usage::reach;

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
            let flow = self.flow_or_insert(entry.flow, entry.band, model, class, policy);
            let (leaf, child) = (self.flows[flow].leaf, self.flows[flow].child);
            self.leaves[leaf]
                .level
                .add_past_usage(child, model, entry.cost.0, entry.ago);
            self.tally_past(flow, model, entry.cost.0);
            self.release_flow(flow);
        }
    }
}
