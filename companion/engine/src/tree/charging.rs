//! Charges of dispatched requests, and the limits on requests that an identity runs.

use super::node::{Node, Passage, band_child, charge_child};
use super::{Queued, Receipts, Tree};
use crate::cost::Charge;
use crate::endpoints::Endpoints;
use crate::ids::{ChildId, FlowId, IdentityId, JobId};
use crate::input::EndpointId;
use crate::policy::Discipline;

impl Tree {
    /// `request`, which was picked, is dispatched to `endpoint`: it leaves its queue, is charged on every level, and runs
    /// until [`Self::ended`].
    pub(crate) fn dispatch(
        &mut self,
        job: JobId,
        request: &Queued,
        charge: &Charge,
        endpoint: EndpointId,
        endpoints: &Endpoints,
    ) -> Receipts {
        // The levels are charged while the picked child is still runnable. Tally and limits are counted before the request leaves its queue,
        // because its flow then gets the next head, with a tag and a limit that include this request.
        self.tally_charge(request.flow, charge);
        let receipts = self.charge_levels(request.flow, charge, Passage::Picked);
        let limit_reached = self.count_started(request.flow, endpoint);
        self.remove(job, request, endpoints);
        self.retag_others(request.flow, charge);
        self.charge_elsewhere(request.flow, charge);
        self.finish_charge(request.flow, limit_reached, endpoints);
        receipts
    }

    /// A request of `flow` that doesn't wait starts at `endpoint`: it is charged on every level, and runs until
    /// [`Self::ended`].
    pub(crate) fn bypass(
        &mut self,
        flow: FlowId,
        charge: &Charge,
        endpoint: EndpointId,
        endpoints: &Endpoints,
    ) -> Receipts {
        self.tally_charge(flow, charge);
        let receipts = self.charge_levels(flow, charge, Passage::Bypassed);
        let limit_reached = self.count_started(flow, endpoint);
        if self.flows[flow].waiting > 0 {
            self.update_head(flow, endpoints);
        } else {
            self.propagate(self.flows[flow].leaf);
        }
        self.retag_others(flow, charge);
        self.charge_elsewhere(flow, charge);
        self.finish_charge(flow, limit_reached, endpoints);
        receipts
    }

    #[inline]
    fn charge_levels(&mut self, flow: FlowId, charge: &Charge, passage: Passage) -> Receipts {
        let node = &mut self.flows[flow];
        node.largest_cost = node.largest_cost.max(charge.cost);
        let leaf = &mut self.leaves[node.leaf];
        let tree = &mut self.trees[leaf.tree];
        leaf.lags.charged();
        let models = &mut self.bands[tree.band as usize].level;
        let (band, class) = (band_child(tree.band), ChildId::of_class(leaf.class));
        Receipts {
            band: charge_child(&mut self.root, band, charge, passage),
            model: charge_child(models, tree.child, charge, passage),
            class: charge_child(&mut tree.level, class, charge, passage),
            flow: charge_child(&mut leaf.level, node.child, charge, passage),
            epoch: self.epoch,
        }
    }

    #[inline]
    fn finish_charge(&mut self, flow: FlowId, limit_reached: bool, endpoints: &Endpoints) {
        let (identity, leaf) = (self.flows[flow].identity, self.flows[flow].leaf);
        if limit_reached {
            self.update_heads(identity, endpoints);
        }
        self.forget_idle(leaf);
    }

    /// A request of `flow` that was charged costs `real`; `None`: nothing.
    pub(crate) fn settle(&mut self, flow: FlowId, charge: &Charge, receipts: &Receipts, real: Option<u64>) {
        let node = &mut self.flows[flow];
        node.largest_cost = node.largest_cost.max(real.unwrap_or(0));
        let leaf = &mut self.leaves[node.leaf];
        let tree = &mut self.trees[leaf.tree];
        // To levels that were rebuilt since, these receipts mean nothing: they began with what waited and ran then.
        if receipts.epoch == self.epoch {
            let (band, class) = (band_child(tree.band), ChildId::of_class(leaf.class));
            self.root.settle(band, charge, receipts.band, real);
            self.bands[tree.band as usize].level.settle(tree.child, charge, receipts.model, real);
            tree.level.settle(class, charge, receipts.class, real);
        }
        leaf.level.settle(node.child, charge, receipts.flow, real);
        leaf.lags.settled(node.tracked, charge.cost, real, self.config.discipline);
        let leaf = node.leaf;
        self.tally_settle(flow, charge, real);
        self.settle_elsewhere(flow, charge, real);
        self.propagate(leaf);
        if matches!(self.config.discipline, Discipline::Wfq | Discipline::RoundRobin) {
            // Virtual time may have advanced, so that the charges of others no longer matter.
            self.forget_idle(leaf);
        }
    }

    /// A request of `flow` no longer runs at `endpoint`. The caller then calls [`Self::release_flow`], unless the request
    /// waits again.
    pub(crate) fn ended(&mut self, flow: FlowId, endpoint: EndpointId, endpoints: &Endpoints) {
        self.flows[flow].in_flight -= 1;
        let identity = self.flows[flow].identity;
        if self.count_ended(identity, endpoint) {
            self.update_heads(identity, endpoints);
        }
    }

    /// A request of `flow` runs at endpoint `to`, not at `from`.
    pub(crate) fn moved(&mut self, flow: FlowId, from: EndpointId, to: EndpointId, endpoints: &Endpoints) {
        let identity = self.flows[flow].identity;
        let left = self.count_ended(identity, from);
        if self.count_identity_started(identity, to) || left {
            self.update_heads(identity, endpoints);
        }
    }

    #[inline]
    fn count_started(&mut self, flow: FlowId, endpoint: EndpointId) -> bool {
        self.flows[flow].in_flight += 1;
        self.count_identity_started(self.flows[flow].identity, endpoint)
    }

    /// Returns whether `identity` reaches a limit by that.
    fn count_identity_started(&mut self, identity: IdentityId, endpoint: EndpointId) -> bool {
        let node = self.identities.get_mut(identity);
        node.in_flight += 1;
        if node.in_flight == 1 {
            self.update_idle_flows(identity);
        }
        let node = self.identities.get_mut(identity);
        let mut reached = self.config.max_in_flight == Some(node.in_flight);
        if let Some(limit) = self.config.max_in_flight_per_endpoint {
            reached |= node.count_started_at(endpoint) == limit;
        }
        reached
    }

    /// Returns whether `identity` falls below a limit by that.
    fn count_ended(&mut self, identity: IdentityId, endpoint: EndpointId) -> bool {
        let node = self.identities.get_mut(identity);
        let mut left = self.config.max_in_flight == Some(node.in_flight);
        node.in_flight -= 1;
        if node.in_flight == 0 {
            self.update_idle_flows(identity);
        }
        let node = self.identities.get_mut(identity);
        if let Some(limit) = self.config.max_in_flight_per_endpoint {
            left |= node.count_ended_at(endpoint) == Some(limit);
        }
        left
    }
}
