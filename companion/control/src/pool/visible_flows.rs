//! The flows of a pool that metrics and status show by name, and the cost that each was served.
//!
//! A flow becomes visible when it arrives while there is room, and stays so until it has been idle for [`IDLE`]. All other
//! flows are counted together as `other`. The cost of `other` never falls: no cost is counted twice or moved between names.

use core::time::Duration;
use std::sync::Arc;

use hashbrown::HashMap;
use penstock_engine::Instant;
use penstock_engine::policy::Over;

use crate::status::OTHER;

/// A flow that was idle for so long loses its series.
pub(crate) const IDLE: Duration = Duration::from_secs(600);
/// The least time between two searches for idle flows.
const SWEEP: Duration = Duration::from_secs(1);

/// The visible flows of one pool.
#[derive(Debug, Default)]
pub(crate) struct VisibleFlows {
    flows: HashMap<Arc<str>, Flow>,
    other_served: u64,
    other_shadowed: Shadowed,
    swept: Instant,
}

/// Requests for which a budget with `shadow` had no room, by what would have happened to them.
#[derive(Clone, Copy, Debug, Default)]
struct Shadowed {
    demoted: u64,
    held: u64,
    refused: u64,
}

impl Shadowed {
    const fn count(&mut self, over: Over) {
        let counter = match over {
            Over::Demote => &mut self.demoted,
            Over::Hold => &mut self.held,
            Over::Refuse => &mut self.refused,
        };
        *counter = counter.saturating_add(1);
    }

    /// The counters that aren't 0.
    fn counted(self) -> impl Iterator<Item = (Over, u64)> {
        let all = [(Over::Demote, self.demoted), (Over::Hold, self.held), (Over::Refuse, self.refused)];
        all.into_iter().filter(|(_, count)| *count > 0)
    }
}

#[derive(Debug)]
struct Flow {
    /// The time of its last arrival or settlement.
    last: Instant,
    /// Settled cost.
    served: u64,
    shadowed: Shadowed,
}

impl VisibleFlows {
    /// A request of a flow arrives. The flow becomes visible if fewer than `most` are. Returns the name of a visible flow, of which all
    /// its requests share one copy.
    pub(crate) fn record_arrival(&mut self, now: Instant, flow: &str, most: usize) -> Option<Arc<str>> {
        if let Some((name, known)) = self.flows.get_key_value_mut(flow) {
            known.last = now;
            return Some(name.clone());
        }
        if self.flows.len() >= most {
            self.sweep(now);
        }
        if self.flows.len() >= most {
            return None;
        }
        let name: Arc<str> = flow.into();
        let newcomer = Flow { last: now, served: 0, shadowed: Shadowed::default() };
        self.flows.insert(name.clone(), newcomer);
        Some(name)
    }

    /// A request of a flow was served for `cost`. A private flow counts as `other`, even if its name is visible.
    pub(crate) fn record_cost(&mut self, now: Instant, flow: &str, is_private: bool, cost: u64) {
        match self.flows.get_mut(flow).filter(|_| !is_private) {
            Some(known) => {
                known.last = known.last.max(now);
                known.served = known.served.saturating_add(cost);
            }
            None => self.other_served = self.other_served.saturating_add(cost),
        }
    }

    /// The budget of a flow, which is a shadow, had no room for a request.
    pub(crate) fn record_shadowed(&mut self, flow: &str, over: Over) {
        let known = self.flows.get_mut(flow).map(|flow| &mut flow.shadowed);
        known.unwrap_or(&mut self.other_shadowed).count(over);
    }

    /// What was [recorded](Self::record_shadowed) of each of these visible flows, and of all that were invisible then.
    pub(crate) fn shadowed<'a>(
        &'a self,
        visible: impl Iterator<Item = &'a str>,
    ) -> Vec<(&'a str, Over, u64)> {
        let known = visible.filter_map(|name| Some((name, self.flows.get(name)?.shadowed)));
        let all = known.chain([(OTHER, self.other_shadowed)]);
        all.flat_map(|(name, shadowed)| shadowed.counted().map(move |(over, count)| (name, over, count)))
            .collect()
    }

    /// Makes all flows invisible. The cost of `other` stays.
    pub(crate) fn clear(&mut self) {
        self.flows.clear();
    }

    /// How many flows are visible.
    pub(crate) fn len(&self) -> usize {
        self.flows.len()
    }

    /// The visible flows with their cost, without those that have been idle for [`IDLE`] and aren't busy.
    pub(crate) fn visible_at(&self, now: Instant, is_busy: impl Fn(&str) -> bool) -> Vec<(Box<str>, u64)> {
        let visible = self.flows.iter().filter(|(name, flow)| now.since(flow.last) < IDLE || is_busy(name));
        visible.map(|(name, flow)| ((**name).into(), flow.served)).collect()
    }

    /// The cost of all other flows.
    pub(crate) const fn other_served(&self) -> u64 {
        self.other_served
    }

    fn sweep(&mut self, now: Instant) {
        if now.since(self.swept) < SWEEP {
            return;
        }
        self.swept = now;
        // The cost goes with the flow: if the flow comes back it starts at 0.
        self.flows.retain(|_, flow| now.since(flow.last) < IDLE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO.after(Duration::from_secs(seconds))
    }

    fn names(flows: &VisibleFlows, now: Instant) -> Vec<String> {
        let mut names: Vec<String> =
            flows.visible_at(now, |_| false).into_iter().map(|(name, _)| name.into()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_first_flows_are_visible_until_they_are_idle_for_ten_minutes() {
        let mut flows = VisibleFlows::default();
        for (second, flow) in [(10, "a"), (20, "b"), (30, "c")] {
            flows.record_arrival(at(second), flow, 2);
        }
        assert_eq!(names(&flows, at(30)), ["a", "b"]);
        flows.record_cost(at(400), "a", false, 7);
        assert_eq!(names(&flows, at(619)), ["a", "b"]);
        assert_eq!(names(&flows, at(620)), ["a"]);
        flows.record_arrival(at(621), "c", 2);
        assert_eq!(names(&flows, at(621)), ["a", "c"]);
        assert_eq!(names(&flows, at(999)), ["a", "c"]);
        assert_eq!(names(&flows, at(1_000)), ["c"]);
        assert_eq!(flows.visible_at(at(1_000), |name| name == "a").len(), 2, "a flow that waits isn't idle");
    }

    #[test]
    fn cost_is_counted_once_under_one_name() {
        let mut flows = VisibleFlows::default();
        flows.record_arrival(at(1), "a", 1);
        flows.record_arrival(at(1), "b", 1);
        flows.record_cost(at(2), "a", false, 5);
        flows.record_cost(at(2), "a", true, 100);
        flows.record_cost(at(2), "b", false, 1_000);
        assert_eq!(flows.visible_at(at(2), |_| false), [("a".into(), 5)]);
        assert_eq!(flows.other_served(), 1_100);
        flows.record_arrival(at(700), "b", 1);
        flows.record_cost(at(700), "b", false, 1);
        assert_eq!(flows.visible_at(at(700), |_| false), [("b".into(), 1)]);
        assert_eq!(flows.other_served(), 1_100, "it never falls, and nothing moves into it");
    }
}
