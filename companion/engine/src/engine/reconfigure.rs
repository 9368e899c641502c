//! Another policy, or other eligible endpoints for a request. Waiting requests keep their places as far
//! as these still exist; running requests continue.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Engine;
use crate::ids::{JobId, ModelId};
use crate::input::Amended;
use crate::outcome::Outcome;
use crate::policy::Policy;
use crate::tree::Change;

impl Engine {
    pub(super) fn set_policy(&mut self, policy: Box<Policy>) {
        self.release_reserved();
        self.blocked_head = None;
        let old = core::mem::replace(&mut self.policy, *policy);
        self.budgets.reconfigure(&old.flows.budgets, &self.policy.flows);
        self.expiry.invalidate();
        self.rate_limiter.set(self.policy.queue.max_rate, self.now);
        self.endpoints.set_weights(self.policy.scheduler, self.policy.counts_cached_tokens());
        self.endpoints.set_release_after(self.policy.release_after);
        self.endpoints.set_extra_places(self.policy.extra_for_idle_flows);
        self.release_abandoned();
        let gate = self.policy.gate;
        self.change_endpoints(|endpoints, rng| endpoints.set_gate(gate, rng));
        if self.policy.failing.is_none() {
            let now = self.now;
            self.change_endpoints(|endpoints, rng| endpoints.pardon_failing(now, rng));
        }
        self.rebuild_tree();
        self.list_evictions_again();
        self.reserve_all_again();
    }

    /// Takes every waiting request out of the tree, applies the policy to the tree, and puts every job into its place
    /// under the new policy, in the order of their arrivals.
    fn rebuild_tree(&mut self) {
        let mut jobs: Vec<JobId> = self.jobs.ids().collect();
        jobs.sort_unstable_by_key(|&id| self.jobs[id].queued.arrival);
        let running = self.running_models();
        if self.reports_running_usage && self.tree.has_usage_windows() {
            // A class that the policy no longer has runs nothing.
            for &(id, model) in &running {
                let ended = self.running_usage(id, model, 0);
                self.effects.extend(ended);
            }
        }
        for &id in jobs.iter().filter(|&&id| self.jobs[id].is_waiting()) {
            self.tree.take_out(id, &self.jobs[id].queued);
        }
        let mut change = self.tree.begin_change(&self.policy);
        for id in jobs {
            self.reassign(id, &mut change);
        }
        self.tree.end_change(change, &self.endpoints);
        for (id, model) in running {
            self.push_running_usage(id, model);
        }
    }

    /// Puts `id` into its place under the new policy.
    fn reassign(&mut self, id: JobId, change: &mut Change) {
        // What runs stays where it was charged.
        let mut identity = None;
        if self.jobs[id].is_waiting() {
            identity = self.identity_under_policy(id);
            self.jobs[id].band = self.band_under_policy(id, identity);
        }
        let job = &mut self.jobs[id];
        let from = job.queued.flow;
        let class = self.tree.classes().classify(job.class_set, &job.class_key, job.queued.uncached());
        let place = (identity, job.band, class);
        self.tree.reassign(&mut job.queued, place, &self.endpoints, change);
        let order = self.tree.classes().get(job.queued.class).order(self.policy.order);
        job.queued.score = job.order_key.score(order);
        let cost = job.estimate.cost(self.policy.flows.cost, self.policy.weights);
        let to = job.queued.flow;
        if job.is_waiting() {
            job.queued.cost = cost;
            self.tree.put_back(id, &job.queued);
            change.puts_back(to);
        } else if let Some(running) = self.jobs.running_mut(id) {
            let endpoint = self.endpoints.id(running.endpoint);
            let charge = &mut running.charge;
            charge.weight = self.tree.identity_of(to).weight;
            if change.has_other_costs() {
                (charge.unit, charge.cost) = (self.policy.flows.cost, cost);
            }
            let charge = running.settled.is_none().then_some(&*charge);
            self.tree.transfer_running((from, to), endpoint, charge, &mut running.receipts);
        }
    }

    /// The running requests and their models; empty unless what runs is reported.
    fn running_models(&self) -> Vec<(JobId, ModelId)> {
        let jobs = self.jobs.ids().filter(|_| self.reports_running_usage);
        jobs.filter_map(|id| Some((id, self.jobs.running(id)?.charge.model))).collect()
    }

    pub(super) fn amend(&mut self, amended: Amended) {
        let Some(id) = self.jobs.find(amended.id) else {
            return;
        };
        let may_get_endpoint = self.may_get_endpoint(amended.eligible.as_deref());
        let job = &mut self.jobs[id];
        job.class_set = amended.class_set;
        let waits = job.is_waiting();
        let mut eligibility = self.tree.hold_eligibility(job.queued.class, amended.eligible, &self.endpoints);
        if !job.avoided().is_empty() {
            let all = eligibility;
            eligibility = self.tree.hold_without(all, job.avoided(), &self.endpoints);
            self.tree.release_eligibility(all);
        }
        self.tree.change_eligibility(id, &mut job.queued, eligibility, waits, &self.endpoints);
        self.forget_blocked_head(id);
        if waits && !may_get_endpoint {
            self.reject_waiting(id, Outcome::NoEndpoints);
        }
    }
}
