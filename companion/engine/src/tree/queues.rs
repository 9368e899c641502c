//! Requests enter and leave the queues of their flows, with every sum that counts them, and the order of their displacement.

use super::{Queued, Tree};
use crate::band::TreeBand;
use crate::endpoints::Endpoints;
use crate::ids::{FlowId, JobId};
use crate::policy::Discipline;

impl Tree {
    /// Adds a waiting request.
    pub(crate) fn enqueue(&mut self, job: JobId, request: &Queued, endpoints: &Endpoints) {
        if self.put_back(job, request) {
            self.update_head(request.flow, endpoints);
        }
    }

    /// Removes a waiting request, without a charge.
    pub(crate) fn remove(&mut self, job: JobId, request: &Queued, endpoints: &Endpoints) {
        // A suspended request is never the head. But without the last one the flow is no longer backlogged.
        if self.take_out(job, request) || self.flows[request.flow].waiting == 0 {
            self.update_head(request.flow, endpoints);
        }
    }

    /// Adds a request to every sum and to its flow's queue, without an update of any level. Returns whether the head of
    /// its flow may be another one then.
    pub(crate) fn put_back(&mut self, job: JobId, request: &Queued) -> bool {
        self.change_backlogs(request, |count, change| count + change);
        let flow = &mut self.flows[request.flow];
        let leaf = &self.leaves[flow.leaf];
        let tree = &self.trees[leaf.tree];
        self.bands[tree.band as usize].waiting.add(request);
        self.classes.get_mut(leaf.class).waiting.add(request);
        let identity = self.identities.get_mut(flow.identity);
        identity.bands[tree.band as usize].waiting.add(request);
        self.identities.waiting_changed(flow.identity, tree.band);
        self.suspended += u64::from(request.suspended);
        let eligible = self.eligibility.eligible(request.eligibility);
        self.order.insert(&mut flow.queue, job, request, eligible)
    }

    /// Removes a request from every sum and from its flow's queue, without an update of any level. Returns whether the
    /// head of its flow may be another one then.
    pub(crate) fn take_out(&mut self, job: JobId, request: &Queued) -> bool {
        self.change_backlogs(request, |count, change| count - change);
        let flow = &mut self.flows[request.flow];
        let leaf = &self.leaves[flow.leaf];
        let tree = &self.trees[leaf.tree];
        self.bands[tree.band as usize].waiting.subtract(request);
        self.classes.get_mut(leaf.class).waiting.subtract(request);
        let identity = self.identities.get_mut(flow.identity);
        identity.bands[tree.band as usize].waiting.subtract(request);
        self.identities.waiting_changed(flow.identity, tree.band);
        self.suspended -= u64::from(request.suspended);
        self.order.remove(&mut flow.queue, job, request.suspended)
    }

    /// Adds `request` to what waits of its flow, leaf and tree, or subtracts it.
    #[inline]
    fn change_backlogs(&mut self, request: &Queued, change: impl Fn(u64, u64) -> u64) {
        let flow = &mut self.flows[request.flow];
        let weight = self.identities.get(flow.identity).weight;
        let leaf = &mut self.leaves[flow.leaf];
        let tree = &mut self.trees[leaf.tree];
        let discipline = self.config.discipline;
        let before = flow.backlog(discipline, weight);
        flow.waiting = change(flow.waiting, 1);
        flow.waiting_cost = change(flow.waiting_cost, request.cost);
        if discipline != Discipline::Fifo {
            leaf.backlogs.change(before, flow.backlog(discipline, weight));
        }
        leaf.waiting = change(leaf.waiting, 1);
        leaf.waiting_cost = change(leaf.waiting_cost, request.cost);
        leaf.waiting_class_cost = change(leaf.waiting_class_cost, request.class_cost);
        let before = tree.backlog();
        tree.waiting = change(tree.waiting, 1);
        tree.waiting_cost = change(tree.waiting_cost, request.cost);
        if self.config.per_model {
            self.bands[tree.band as usize].models.change(before, tree.backlog());
        }
    }

    /// The request that is displaced first in `band`: the youngest of the identity that was least recently displaced.
    pub(crate) fn victim(&self, band: TreeBand) -> Option<JobId> {
        let identity = self.identities.get(self.identities.victim(band)?);
        let youngest =
            self.flows_in(identity, band).filter_map(|flow| self.order.youngest(&self.flows[flow].queue));
        youngest.max_by_key(|&job| self.order.arrival(job))
    }

    /// A request of `flow` is displaced: the other identities of the band come before its identity next time.
    pub(crate) fn displaced(&mut self, flow: FlowId) {
        self.displacements += 1;
        let band = self.band_of(flow);
        self.identities.displaced(self.flows[flow].identity, band, self.displacements);
    }
}
