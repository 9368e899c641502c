//! Resets of flows' budgets at this engine that the other engines haven't heard of.

use alloc::boxed::Box;

use hashlink::LinkedHashMap;

use crate::limits::{BUDGET_RESET_KEPT, BUDGET_RESETS_MAX};
use crate::time::Instant;

/// The flows, in the order of their resets, with the time of each.
#[derive(Debug, Default)]
pub(super) struct Resets(LinkedHashMap<Box<str>, Instant>);

impl Resets {
    /// The flow is reset now.
    pub(super) fn begin(&mut self, name: &str, now: Instant) {
        self.0.remove(name);
        self.0.insert(name.into(), now);
        while let Some((_, first)) = self.0.front()
            && (now.since(*first) > BUDGET_RESET_KEPT || self.0.len() > BUDGET_RESETS_MAX)
        {
            self.0.pop_front();
        }
    }

    /// The other engines have heard of it.
    pub(super) fn end(&mut self, name: &str) {
        self.0.remove(name);
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }
}
