//! What children run, here and at other engines, under [`Rule::Usage`].

use super::{Rule, VirtualTimeScheduler};
use crate::ids::{ChildId, ModelId};

impl VirtualTimeScheduler {
    /// The estimated cost of the requests for `model` that `child` runs here.
    pub(crate) fn running_usage(&self, child: ChildId, model: ModelId) -> u128 {
        self.usage.running(child, model)
    }

    /// The estimated cost of all children's requests that run at other engines.
    pub(crate) fn running_elsewhere(&self) -> u128 {
        self.usage.running_elsewhere()
    }

    /// Replaces the estimated cost of `child`'s requests for `model` at other engines, and returns the cost before. Ignored without
    /// [`Rule::Usage`].
    pub(crate) fn set_running_elsewhere(&mut self, child: ChildId, model: ModelId, running: u64) -> u128 {
        if self.rule != Rule::Usage {
            return 0;
        }
        let before = self.usage.set_elsewhere(child, model, running);
        self.update_idle(child);
        before
    }
}
