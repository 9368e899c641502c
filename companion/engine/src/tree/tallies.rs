//! The usage of an identity and model over all bands and classes of the pool, by which [`Discipline::Usage`] orders flows:
//! an identity gains nothing by spreading its requests over bands or classes.
//!
//! The window of each leaf counts what its own flows used. An identity adds its flows up by model, at each change. A
//! change gives the identity's heads of that model new tags: at most one head in each band and class, because a flow has
//! one head, and with a tree per model only the trees of that model count. So a change costs at most bands x classes
//! steps of a heap, and one for an identity that keeps to one band and class.

use alloc::vec::Vec;

use super::Tree;
use crate::audit::{AuditError, check};
use crate::band::TreeBand;
use crate::cost::{Charge, VirtualTime};
use crate::ids::{FlowId, IdentityId, LeafId, ModelId};
use crate::policy::Discipline;

/// The usage of one identity by model: settled in the window, and the estimates of what runs. Models without usage have
/// no entry.
#[derive(Debug, Default)]
pub(super) struct Tally(Vec<(ModelId, u128)>);

impl Tally {
    /// The usage of `model`.
    pub(super) fn of(&self, model: ModelId) -> u128 {
        let found = self.0.iter().find(|(other, _)| *other == model);
        found.map_or(0, |&(_, used)| used)
    }

    /// The usage of all models.
    pub(super) fn of_all(&self) -> u128 {
        self.0.iter().map(|&(_, used)| used).sum()
    }

    fn add(&mut self, model: ModelId, cost: u128) {
        match self.0.iter_mut().find(|(other, _)| *other == model) {
            Some((_, used)) => *used += cost,
            None if cost > 0 => self.0.push((model, cost)),
            None => {}
        }
    }

    fn subtract(&mut self, model: ModelId, cost: u128) {
        if let Some(position) = self.0.iter().position(|(other, _)| *other == model) {
            self.0[position].1 -= cost;
            if self.0[position].1 == 0 {
                self.0.swap_remove(position);
            }
        }
    }
}

impl Tree {
    pub(crate) fn has_usage_windows(&self) -> bool {
        self.config.discipline == Discipline::Usage
    }

    /// The usage of all identities.
    pub(crate) fn usage_in_all(&self) -> u128 {
        self.identities().map(|identity| identity.tally.of_all()).sum()
    }

    /// The usage of all models by the identity of `flow`, per weight.
    pub(super) fn usage_per_weight(&self, flow: FlowId) -> VirtualTime {
        let identity = self.identity_of(flow);
        VirtualTime::of(identity.tally.of_all(), identity.weight)
    }

    /// The usage by which `flow` is ordered with a head of `model`.
    pub(super) fn head_usage(&self, flow: FlowId, model: ModelId) -> u128 {
        self.identity_of(flow).tally.of(model)
    }

    /// A request of `flow` is charged. The caller updates that flow's head, and then calls [`Self::retag_others`].
    #[inline]
    pub(super) fn tally_charge(&mut self, flow: FlowId, charge: &Charge) {
        if self.has_usage_windows() {
            let identity = self.flows[flow].identity;
            self.tally_mut(identity).add(charge.model, charge.cost.into());
        }
    }

    /// A request of `flow` that was charged costs `real`; `None`: nothing.
    #[inline]
    pub(super) fn tally_settle(&mut self, flow: FlowId, charge: &Charge, real: Option<u64>) {
        if self.has_usage_windows() {
            let identity = self.flows[flow].identity;
            let tally = self.tally_mut(identity);
            tally.add(charge.model, real.unwrap_or(0).into());
            tally.subtract(charge.model, charge.cost.into());
            self.retag_heads(identity, charge.model);
        }
    }

    /// A past cost of `flow` was added to its leaf's window.
    pub(super) fn tally_past(&mut self, flow: FlowId, model: ModelId, cost: u64) {
        let (identity, leaf) = (self.flows[flow].identity, self.flows[flow].leaf);
        self.tally_mut(identity).add(model, cost.into());
        self.tally_expired(leaf);
        self.retag_heads(identity, model);
    }

    /// What `flow` runs of `model` at other engines was `before`, and is `now`.
    pub(super) fn tally_elsewhere(&mut self, flow: FlowId, model: ModelId, before: u128, now: u64) {
        let identity = self.flows[flow].identity;
        let tally = self.tally_mut(identity);
        tally.add(model, now.into());
        tally.subtract(model, before);
        self.retag_heads(identity, model);
    }

    /// Subtracts everything that has left the window of `leaf`.
    pub(super) fn tally_expired(&mut self, leaf: LeafId) {
        while let Some((flow, model, cost)) = self.leaves[leaf].level.expired_usage() {
            let identity = self.flows[flow].identity;
            self.tally_mut(identity).subtract(model, cost);
            self.retag_heads(identity, model);
        }
    }

    fn tally_mut(&mut self, identity: IdentityId) -> &mut Tally {
        &mut self.identities.get_mut(identity).tally
    }

    /// Updates the other flows of the same identity, after a charge to `flow`.
    #[inline]
    pub(super) fn retag_others(&mut self, flow: FlowId, charge: &Charge) {
        if self.has_usage_windows() {
            self.retag_heads(self.flows[flow].identity, charge.model);
        }
    }

    /// Gives the waiting flows of `identity` whose heads are of `model` their tags, after its usage of that model changed.
    fn retag_heads(&mut self, identity: IdentityId, model: ModelId) {
        let node = self.identities.get(identity);
        let used = node.tally.of(model);
        if let &[(leaf, flow)] = &*node.flows {
            return self.retag_head(leaf, flow, model, used);
        }
        for (leaf, flow) in self.flows_of_model(identity, model) {
            self.retag_head(leaf, flow, model, used);
        }
    }

    fn retag_head(&mut self, leaf: LeafId, flow: FlowId, model: ModelId, used: u128) {
        let child = self.flows[flow].child;
        if self.leaves[leaf].level.retag_usage(child, model, used) {
            self.propagate(leaf);
        }
    }

    /// The flows of `identity` in the leaves that take requests of `model`: at most one in each band and class.
    pub(super) fn flows_of_model(&self, identity: IdentityId, model: ModelId) -> Vec<(LeafId, FlowId)> {
        let node = self.identities.get(identity);
        if !self.config.per_model {
            return node.flows.to_vec();
        }
        let trees = TreeBand::ALL.into_iter().filter_map(|band| self.bands[band as usize].trees.get(&model));
        let leaves = trees.flat_map(|&tree| self.trees[tree].leaves.iter().flatten());
        leaves.filter_map(|&leaf| Some((leaf, node.flow(leaf)?))).collect()
    }

    /// Adds all tallies up again from the leaves that `stays` accepts, after a change of policy.
    pub(super) fn rebuild_tallies(&mut self, stays: impl Fn(LeafId) -> bool) {
        for (_, identity) in self.identities.iter_mut() {
            identity.tally = Tally::default();
        }
        if !self.has_usage_windows() {
            return;
        }
        for (_, flow) in self.flows.iter().filter(|(_, flow)| stays(flow.leaf)) {
            let tally = &mut self.identities.get_mut(flow.identity).tally;
            for (model, used) in self.leaves[flow.leaf].level.usage_by_model(flow.child) {
                tally.add(model, used);
            }
        }
    }

    /// Checks the tallies against the leaves, and the tags against the tallies.
    pub(super) fn audit_tallies(&self) -> Result<(), AuditError> {
        for (_, identity) in self.identities.iter() {
            let mut sum = Tally::default();
            for &(leaf, flow) in &identity.flows {
                let flow = &self.flows[flow];
                for (model, used) in self.leaves[leaf].level.usage_by_model(flow.child) {
                    sum.add(model, used);
                }
                if let (Some(job), Some(_), true) =
                    (flow.head, flow.head_eligibility, self.has_usage_windows())
                {
                    let used = identity.tally.of(self.order.head_of(job).model);
                    check(
                        "a tag is the usage of the head's identity and model",
                        self.leaves[leaf].level.finish(flow.child) == VirtualTime::of(used, identity.weight),
                    )?;
                }
            }
            sum.0.sort_unstable();
            let mut tally = identity.tally.0.clone();
            tally.sort_unstable();
            check("a tally is the sum over its leaves", tally == sum.0)?;
        }
        Ok(())
    }
}
