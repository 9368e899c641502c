//! The flows with a budget that may be shown by name to everybody, idle ones too.

use hashbrown::HashSet;
use penstock_engine::limits::BUDGET_FLOWS_MAX;

/// Names of flows with a budget that came in a header or from a key. At [`BUDGET_FLOWS_MAX`] names all are forgotten, and each comes back
/// with the flow's next request.
#[derive(Debug, Default)]
pub(super) struct PublicBudgets(HashSet<Box<str>>);

impl PublicBudgets {
    pub(super) fn record(&mut self, flow: &str) {
        if self.0.contains(flow) {
            return;
        }
        if self.0.len() >= BUDGET_FLOWS_MAX {
            self.0.clear();
        }
        self.0.insert(flow.into());
    }

    pub(super) fn contains(&self, flow: &str) -> bool {
        self.0.contains(flow)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
