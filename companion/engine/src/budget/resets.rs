//! Resets of flows' budgets. Each is remembered for a while, because usage from before it may still be reported.

use alloc::boxed::Box;

use hashlink::LinkedHashMap;

use super::moment::PastMoment;
use super::{LocalNow, Now};
use crate::input::BudgetUsage;
use crate::limits::{BUDGET_RESET_KEPT, BUDGET_RESETS_MAX};

/// The last reset of each flow, in the order in which they became known.
#[derive(Debug, Default)]
pub(super) struct Resets(LinkedHashMap<Box<str>, PastMoment>);

impl Resets {
    pub(super) fn remember(&mut self, name: &str, moment: PastMoment, now: &Now<'_>) {
        let before = self.0.remove(name);
        self.0.insert(name.into(), before.map_or(moment, |before| before.max(moment)));
        let oldest = PastMoment::ago(now.instant, BUDGET_RESET_KEPT);
        while let Some((_, first)) = self.0.front()
            && (oldest > *first || self.0.len() > BUDGET_RESETS_MAX)
        {
            self.0.pop_front();
        }
    }

    /// The usage was settled before the flow's last reset, or is from a step before that.
    pub(super) fn is_forgotten(&self, usage: &BudgetUsage, now: &LocalNow<'_>) -> bool {
        let Some(reset) = self.0.get(&usage.flow) else {
            return false;
        };
        let is_earlier = |step| step < now.step_at(usage.period, *reset);
        *reset > PastMoment::ago(now.moment.at, usage.settled_ago)
            || now.step_of(usage).is_some_and(is_earlier)
    }
}
