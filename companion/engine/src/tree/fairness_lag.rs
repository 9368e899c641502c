//! The fairness lag of the flows of a leaf: how far they are apart in the service they received, against the bound of
//! their discipline. Measured beside the disciplines, which don't use it.
//!
//! The bound holds for pairs of flows, from the moment when both can be dispatched. So every pair has a start, and these
//! are kept for the first [`TRACKED`] flows only, which keeps the cost independent of the number of flows. Further flows
//! are served by the same discipline, untracked.

use alloc::vec::Vec;

use crate::ids::FlowId;
use crate::policy::{CostUnit, Discipline};

/// Tracked flows of a leaf.
const TRACKED: usize = 16;
/// Tokens that a visit grants per weight under `drr`; with costs in requests it grants 1.
const DRR_TOKENS: f64 = 1_024.0;

/// The position of a flow among the tracked ones. The flow keeps it, so untracked flows, which most are, cost nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TrackedSlot(Option<u8>);

/// The tracked flows of one leaf.
#[derive(Debug, Default)]
pub(super) struct FairnessLags {
    /// By slot; entries of free slots are stale.
    flows: Vec<TrackedFlow>,
    /// A bit per slot in use.
    used: u32,
    /// Requests charged and not settled.
    in_flight: u64,
    /// The maximum of `in_flight` since two flows have been tracked.
    in_flight_max: u64,
}

/// A flow that can be dispatched, and has waited since it was tracked.
#[derive(Debug)]
struct TrackedFlow {
    flow: FlowId,
    weight: f64,
    /// Settled cost since the start, without requests charged before.
    served: f64,
    /// Requests charged before the start and not settled.
    charged_before: u64,
    /// The largest cost of a head.
    largest_head: u64,
    /// By the other flow's slot: `served` when both became tracked.
    served_at_start: [f64; TRACKED],
}

impl FairnessLags {
    /// The head of `flow`, which costs `cost`, can be dispatched, while `running` of its requests are charged and not
    /// settled.
    pub(super) fn track(
        &mut self,
        slot: &mut TrackedSlot,
        flow: FlowId,
        weight: f64,
        cost: u64,
        running: u64,
    ) {
        if let TrackedSlot(Some(index)) = *slot {
            let tracked = &mut self.flows[usize::from(index)];
            if tracked.weight.to_bits() == weight.to_bits() {
                tracked.largest_head = tracked.largest_head.max(cost);
                return;
            }
            // The bound of a pair goes by its weights, so another weight begins new pairs.
            self.untrack(slot);
        }
        let free = self.used.trailing_ones() as usize;
        if free >= TRACKED {
            return;
        }
        if self.used.count_ones() < 2 {
            self.in_flight_max = self.in_flight;
        }
        for tracked in &mut self.flows {
            tracked.served_at_start[free] = tracked.served;
        }
        let tracked = TrackedFlow {
            flow,
            weight,
            served: 0.0,
            charged_before: running,
            largest_head: cost,
            served_at_start: [0.0; TRACKED],
        };
        match self.flows.get_mut(free) {
            Some(stale) => *stale = tracked,
            None => self.flows.push(tracked),
        }
        self.used |= 1 << free;
        *slot = TrackedSlot(Some(free as u8));
    }

    /// The flow of `slot` has no head that can be dispatched.
    pub(super) fn untrack(&mut self, slot: &mut TrackedSlot) {
        if let TrackedSlot(Some(index)) = core::mem::take(slot) {
            self.used &= !(1 << index);
        }
    }

    pub(super) fn flows(&self) -> impl Iterator<Item = FlowId> {
        self.tracked().map(|(_, tracked)| tracked.flow)
    }

    /// Whether `slot` is the slot of `flow` here.
    pub(super) fn is_slot_of(&self, slot: TrackedSlot, flow: FlowId) -> bool {
        let found = self.tracked().find(|(_, tracked)| tracked.flow == flow);
        found.map(|(index, _)| index) == slot.0.map(usize::from)
    }

    fn tracked(&self) -> impl Iterator<Item = (usize, &TrackedFlow)> {
        let flows = self.flows.iter().enumerate();
        flows.filter(|&(index, _)| self.used & (1 << index) != 0)
    }

    /// A request of any flow was charged.
    pub(super) fn charged(&mut self) {
        self.in_flight += 1;
        self.in_flight_max = self.in_flight_max.max(self.in_flight);
    }

    /// A request of the flow of `slot`, which was charged `estimate`, cost `real`; `None`: nothing.
    pub(super) fn settled(
        &mut self,
        slot: TrackedSlot,
        estimate: u64,
        real: Option<u64>,
        discipline: Discipline,
    ) {
        self.in_flight = self.in_flight.saturating_sub(1);
        let TrackedSlot(Some(index)) = slot else {
            return;
        };
        let tracked = &mut self.flows[usize::from(index)];
        if tracked.charged_before > 0 {
            tracked.charged_before -= 1;
            return;
        }
        let served = real.map(|real| match discipline {
            Discipline::RoundRobin => 1,
            // Deficits are never settled.
            Discipline::Drr => estimate,
            Discipline::Wfq | Discipline::Usage | Discipline::Vtc | Discipline::Fifo => real,
        });
        tracked.served += served.unwrap_or(0) as f64;
    }

    /// The largest lag of a pair over the bound for that pair; 0 with fewer than two flows. `largest`: the largest cost
    /// of a request of a flow.
    pub(super) fn ratio(
        &self,
        discipline: Discipline,
        unit: CostUnit,
        largest: impl Fn(FlowId) -> u64,
    ) -> f64 {
        let in_flight = self.in_flight_max.max(self.in_flight) as f64 + 1.0;
        let cost = |tracked: &TrackedFlow| largest(tracked.flow).max(tracked.largest_head) as f64;
        let mut ratio = 0.0_f64;
        for (i, one) in self.tracked() {
            for (j, other) in self.tracked().skip_while(|&(j, _)| j <= i) {
                let one_served = one.served - one.served_at_start[j];
                let other_served = other.served - other.served_at_start[i];
                let lag = one_served / one.weight - other_served / other.weight;
                let costs = ((one.weight, cost(one)), (other.weight, cost(other)));
                let bound = pair_bound(costs.0, costs.1, discipline, unit) * in_flight;
                if bound > 0.0 {
                    ratio = ratio.max(libm::fabs(lag) / bound);
                }
            }
        }
        ratio
    }
}

/// The bound on the lag of two flows, by weight and largest cost, with nothing in flight.
fn pair_bound(one: (f64, f64), other: (f64, f64), discipline: Discipline, unit: CostUnit) -> f64 {
    let ((one_weight, one_largest), (other_weight, other_largest)) = (one, other);
    match discipline {
        Discipline::RoundRobin => 1.0 / one_weight + 1.0 / other_weight,
        Discipline::Drr => {
            let visit = match unit {
                CostUnit::Tokens => DRR_TOKENS,
                CostUnit::Requests => 1.0,
            };
            visit + 2.0 * one_largest.max(other_largest) / one_weight.min(other_weight)
        }
        Discipline::Wfq | Discipline::Usage | Discipline::Vtc | Discipline::Fifo => {
            one_largest / one_weight + other_largest / other_weight
        }
    }
}

/// The discipline guarantees a bound.
pub(super) const fn has_bound(discipline: Discipline) -> bool {
    match discipline {
        Discipline::Wfq | Discipline::RoundRobin | Discipline::Drr => true,
        Discipline::Usage | Discipline::Vtc | Discipline::Fifo => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Id;

    /// A leaf with these flows, all untracked.
    struct Leaf<const FLOWS: usize> {
        lags: FairnessLags,
        slots: [TrackedSlot; FLOWS],
    }

    impl<const FLOWS: usize> Leaf<FLOWS> {
        fn new() -> Self {
            Self { lags: FairnessLags::default(), slots: [TrackedSlot::default(); FLOWS] }
        }

        fn track(&mut self, flow: usize, weight: f64, running: u64) {
            self.lags.track(&mut self.slots[flow], FlowId::from_index(flow), weight, 10, running);
        }

        fn untrack(&mut self, flow: usize) {
            self.lags.untrack(&mut self.slots[flow]);
        }

        fn serve(&mut self, flow: usize, cost: u64) {
            self.lags.charged();
            self.settle(flow, Some(cost));
        }

        fn settle(&mut self, flow: usize, cost: Option<u64>) {
            self.lags.settled(self.slots[flow], 10, cost, Discipline::Wfq);
        }

        fn ratio(&self) -> f64 {
            self.lags.ratio(Discipline::Wfq, CostUnit::Tokens, |_| 0)
        }
    }

    #[test]
    fn a_pair_starts_when_both_flows_wait() {
        let mut leaf = Leaf::<3>::new();
        leaf.track(1, 1.0, 0);
        leaf.serve(1, 10);
        leaf.serve(1, 10);
        assert_eq!(leaf.ratio(), 0.0, "one flow has no pair");
        leaf.track(2, 2.0, 0);
        assert_eq!(leaf.ratio(), 0.0, "service before the start doesn't count");
        leaf.serve(1, 10);
        // One in flight at a time: 10 of 2 * (10 / 1 + 10 / 2).
        assert_eq!(leaf.ratio(), 10.0 / 30.0);
        leaf.serve(2, 20);
        assert_eq!(leaf.ratio(), 0.0, "by weight they are even");
        leaf.untrack(1);
        assert_eq!(leaf.ratio(), 0.0);
        leaf.track(1, 1.0, 0);
        assert_eq!(leaf.ratio(), 0.0, "the pair starts anew");
    }

    #[test]
    fn an_untracked_flow_ends_only_its_own_pairs() {
        let mut leaf = Leaf::<4>::new();
        for flow in 0..4 {
            leaf.track(flow, 1.0, 0);
        }
        leaf.serve(3, 10);
        let before = leaf.ratio();
        assert!(before > 0.0);
        leaf.untrack(0);
        assert_eq!(leaf.ratio(), before);
        leaf.untrack(3);
        assert_eq!(leaf.ratio(), 0.0);
    }

    #[test]
    fn requests_charged_before_or_refunded_count_as_no_service() {
        let mut leaf = Leaf::<3>::new();
        leaf.lags.charged();
        leaf.track(1, 1.0, 1);
        leaf.track(2, 1.0, 0);
        leaf.settle(1, Some(10));
        leaf.lags.charged();
        leaf.settle(1, None);
        assert_eq!(leaf.ratio(), 0.0);
    }

    #[test]
    fn at_most_sixteen_flows_are_tracked() {
        let mut leaf = Leaf::<1_000>::new();
        for flow in 0..1_000 {
            leaf.track(flow, 1.0, 0);
        }
        assert_eq!(leaf.lags.flows().count(), TRACKED);
        assert!(leaf.lags.flows().map(FlowId::index).eq(0..16));
        leaf.untrack(5);
        leaf.untrack(700);
        leaf.track(700, 1.0, 0);
        leaf.track(701, 1.0, 0);
        let tracked: Vec<usize> = leaf.lags.flows().map(FlowId::index).collect();
        assert_eq!(tracked, [0, 1, 2, 3, 4, 700, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        assert!(
            (0..).zip(leaf.slots).all(|(flow, slot)| leaf.lags.is_slot_of(slot, FlowId::from_index(flow)))
        );
    }
}
