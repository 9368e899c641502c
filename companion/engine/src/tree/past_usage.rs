//! What flows used before, or of what others grant: told to their windows, and said by name.

use alloc::vec::Vec;

use crate::input::PastUsage;
use crate::policy::{Discipline, Flows as FlowsPolicy};

use super::Tree;

impl Tree {
    /// Whether there is a window to count in.
    pub(crate) fn has_windows(&self) -> bool {
        self.shape.discipline == Discipline::Usage
    }

    /// The model of this number; `None`: several share it.
    pub(crate) fn model_name(&self, number: u32) -> Option<&str> {
        self.models.name(number)
    }

    /// This was used; see [`crate::Input::PastUsage`].
    pub(crate) fn used(&mut self, past: Vec<PastUsage>, policy: &FlowsPolicy) {
        if !self.has_windows() {
            return;
        }
        let earliest = super::usage::reach(self.shape.window);
        for of in past {
            let counts = of.cost.0 > 0 && of.ago < earliest;
            let Some(class) = self.classes.named(&of.class).filter(|_| counts) else {
                continue;
            };
            let model = self.model(&of.model);
            let flow = self.flow(of.flow, of.band, model, class, policy);
            let (leaf, child) = (self.flows[flow].leaf, self.flows[flow].child);
            self.leaves[leaf].level.used(child, model, of.cost.0, of.ago);
            self.tell_up(leaf);
            self.release_flow(flow);
        }
    }
}
