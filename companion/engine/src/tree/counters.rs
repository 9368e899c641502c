//! The counters of an identity under [`Discipline::Vtc`]: a charge in one leaf also moves the identity's counters in the
//! other bands and classes, and with a tree per model in those of the same model. The lift of a flow that becomes
//! backlogged stays in its leaf: counters are high in one band and low in another, and a flow must not lose its place in
//! one because of its rank in the other.
//!
//! An identity has at most one flow in each band and class. So a charge costs at most bands x classes steps of a heap, and
//! none for an identity that keeps to one band and class.

use super::Tree;
use super::disciplines::FlowLevel;
use crate::cost::Charge;
use crate::ids::{ChildId, FlowId};
use crate::policy::Discipline;

impl Tree {
    /// A request of `flow` was charged in its leaf.
    #[inline]
    pub(super) fn charge_elsewhere(&mut self, flow: FlowId, charge: &Charge) {
        if self.config.discipline == Discipline::Vtc && self.identity_of(flow).flows.len() > 1 {
            self.change_elsewhere(flow, charge, |level, child| level.charge_elsewhere(child, charge));
        }
    }

    /// A request of `flow` that was charged in its leaf cost `real`; `None`: nothing.
    #[inline]
    pub(super) fn settle_elsewhere(&mut self, flow: FlowId, charge: &Charge, real: Option<u64>) {
        if self.config.discipline == Discipline::Vtc && self.identity_of(flow).flows.len() > 1 {
            self.change_elsewhere(flow, charge, |level, child| level.settle_elsewhere(child, charge, real));
        }
    }

    /// Changes the counters of the identity of `flow` in the other leaves. `change` returns whether a tag changed.
    #[inline(never)]
    fn change_elsewhere(
        &mut self,
        flow: FlowId,
        charge: &Charge,
        change: impl Fn(&mut FlowLevel, ChildId) -> bool,
    ) {
        let flows = self.flows_of_model(self.flows[flow].identity, charge.model);
        for (leaf, other) in flows.into_iter().filter(|&(_, other)| other != flow) {
            let child = self.flows[other].child;
            if change(&mut self.leaves[leaf].level, child) {
                self.propagate(leaf);
            }
        }
    }
}
