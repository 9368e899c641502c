//! Changes of a pool's configuration, endpoints and health while requests wait and run.
//!
//! A request that waits keeps its place, its flow and its band. New flow keys, claims and rewrites apply to later requests. A
//! request that waits is rejected if the pool no longer serves its model.

use core::time::Duration;

use penstock_autopilot::{PendingServers, Scraped};
use penstock_engine::Instant;
use penstock_engine::input::{Amended, EndpointId, Input, Relisted, RequestId, ServerStats};
use penstock_engine::policy::Gate;

use super::endpoints::ListChange;
use super::rules::Rules;
use super::{Pool, autopilot_settings};
use crate::settings::{EndpointSettings, PoolSettings};

impl Pool {
    /// Applies another configuration. The endpoints come first: no request is granted to an endpoint that is gone, whatever
    /// the rules are.
    pub(super) fn reload(&mut self, now: Instant, settings: &PoolSettings) {
        self.relist_under(settings.policy.gate, now, &settings.endpoints, &settings.pending);
        if self.rules.flow_key != settings.flow_key {
            // The new parts of a flow's name may be private.
            self.visible_flows.clear();
            self.public_budgets.clear();
        }
        self.is_retired = false;
        self.engine.report_usage(settings.reported);
        self.engine.report_running_usage(settings.shared);
        self.engine.report_budgets(settings.reported);
        self.engine.share_budgets(settings.shared);
        let old = core::mem::replace(&mut self.rules, Rules::new(settings));
        self.autopilot.limit_demand(settings.policy.queue.max_rate);
        self.autopilot.change(now, &autopilot_settings(settings));
        if old.class_globs != self.rules.class_globs {
            for id in self.sorted_ids(|_| true) {
                self.amend(now, id);
            }
        }
        if old.policy != self.rules.policy {
            self.decide(now, Input::Policy(Box::new(self.rules.policy.clone())));
        }
        // Every key may decide otherwise now.
        self.recall_credits(|_| true);
        self.credits.forget_longest_prompt();
    }

    /// The configuration no longer has the pool: no endpoint is listed any more, and what runs ends as usual.
    pub(super) fn retire(&mut self, now: Instant) {
        self.is_retired = true;
        self.relist(now, &[], &[]);
    }

    /// Replaces the list of endpoints, and of the servers that are no endpoints yet.
    pub(super) fn relist(
        &mut self,
        now: Instant,
        endpoints: &[EndpointSettings],
        pending: &[PendingServers],
    ) {
        self.relist_under(self.rules.policy.gate, now, endpoints, pending);
    }

    /// [`Self::relist`], with the gate that is or will be in force.
    fn relist_under(
        &mut self,
        gate: Gate,
        now: Instant,
        endpoints: &[EndpointSettings],
        pending: &[PendingServers],
    ) {
        let were_any_unlisted = self.endpoints.any_unlisted();
        let ListChange { mut relisted, is_eligibility_changed } = self.endpoints.relist(endpoints);
        self.autopilot.relist(now, &self.endpoints.for_autopilot(gate), pending);
        for (id, state) in &relisted.listed {
            self.autopilot.ready(now, *id, state.ready);
        }
        if were_any_unlisted {
            self.follow_unfollowed(now);
        }
        if is_eligibility_changed && self.engine.waiting() > 0 {
            relisted.amended = self.amended_waiting(now);
        }
        if relisted != Relisted::default() {
            self.decide(now, Input::Relist(Box::new(relisted)));
        }
        self.forget_unlisted();
    }

    /// The autopilot follows requests at endpoints that weren't listed when these requests became known.
    fn follow_unfollowed(&mut self, now: Instant) {
        let unfollowed = self.requests.keys().filter(|id| !self.autopilot.is_in_flight(**id));
        let mut unfollowed: Vec<(RequestId, EndpointId)> =
            unfollowed.filter_map(|id| Some((*id, self.engine.endpoint_of(*id)?))).collect();
        unfollowed.sort_unstable();
        for (id, endpoint) in unfollowed {
            self.follow(now, id, endpoint);
        }
    }

    /// Forgets endpoints that aren't listed and where the last request has ended. Takes constant time if there is none.
    pub(crate) fn forget_unlisted(&mut self) {
        let freed = self.endpoints.free_unlisted(|id| self.engine.has_endpoint(id));
        if freed.ids.is_empty() {
            return;
        }
        self.autopilot.forget_unlisted();
        self.avoided.forget_endpoints(&freed.ids);
        self.missing_models.forget_endpoints(&freed.ids);
        if freed.was_announced {
            self.announced.mark_endpoint_forgotten();
        }
    }

    /// The health of an endpoint has changed.
    pub(super) fn set_endpoint_ready(&mut self, now: Instant, address: &str, is_ready: bool) {
        let Some(id) = self.endpoints.listed_id(address) else {
            return;
        };
        let Some(endpoint) = self.endpoints.get_mut(id) else {
            return;
        };
        if endpoint.set_healthy(is_ready) {
            self.readiness_changed(now, id);
        }
    }

    /// An endpoint has become ready, or is ready no more.
    fn readiness_changed(&mut self, now: Instant, id: EndpointId) {
        if let Some(state) = self.endpoints.get(id).map(|endpoint| endpoint.state) {
            self.autopilot.ready(now, id, state.ready);
            self.decide(now, Input::Endpoint { id, state });
        }
    }

    /// The metrics of a model server were read, or have become too old.
    pub(super) fn take_scraped(
        &mut self,
        now: Instant,
        address: &str,
        scraped: Option<Scraped>,
        adapters: Option<Box<[Box<str>]>>,
    ) {
        let Some(id) = self.endpoints.listed_id(address) else {
            return;
        };
        let (mut is_other_process, mut is_readiness_changed) = (false, false);
        if let Some(endpoint) = self.endpoints.get_mut(id) {
            endpoint.scraped = scraped;
            // An engine whose metrics can't be read is asleep or awake as before.
            if let Some(scraped) = &scraped {
                is_other_process = endpoint.process.has_restarted(scraped);
                is_readiness_changed = endpoint.set_asleep(scraped.is_asleep == Some(true));
            }
        }
        if is_other_process {
            self.decide(now, Input::Restarted(id));
        }
        if is_readiness_changed {
            self.readiness_changed(now, id);
        }
        self.autopilot.scraped(now, id, scraped);
        let stats = ServerStats {
            waiting: scraped.and_then(|scraped| scraped.waiting),
            kv_used: scraped.and_then(|scraped| scraped.kv_used),
            generated: scraped.and_then(|scraped| scraped.totals).map(|totals| totals.output_tokens),
            adapters,
            asked_ago: scraped.map_or(Duration::ZERO, |scraped| scraped.asked_ago),
        };
        self.decide(now, Input::ServerStats { id, stats });
        let running = scraped.and_then(|scraped| scraped.running);
        self.decide(now, Input::Load { id, running });
    }

    /// Rejects the waiting requests for models that the pool no longer serves.
    pub(super) fn evict_unserved(&mut self, now: Instant) {
        // Newest first: a place that an evicted request frees must not go to a request that is evicted next.
        for id in self.waiting_ids().into_iter().rev() {
            self.evict_if_unserved(now, id);
        }
    }

    pub(super) fn evict_if_unserved(&mut self, now: Instant, id: RequestId) {
        let request = self.requests.get(&id);
        if request.is_some_and(|request| !self.accepts(&request.labels.model.requested)) {
            self.decide(now, Input::ModelRemoved(id));
        }
    }

    /// Endpoints or classes have changed: hands the engine a request's new endpoints and class set.
    pub(super) fn amend(&mut self, now: Instant, id: RequestId) {
        if let Some(amended) = self.amended(now, id) {
            self.decide(now, Input::Amend(amended));
        }
    }

    fn amended(&mut self, now: Instant, id: RequestId) -> Option<Amended> {
        let request = self.requests.get(&id)?;
        let class_set = self.rules.class_set(&request.labels.model.requested);
        let eligible = self.eligible(now, request.envoy(), request.kind, request.constraints.as_deref());
        self.requests.get_mut(&id)?.is_restricted = eligible.is_some();
        Some(Amended { id, class_set, eligible })
    }

    /// What another list of endpoints means for the waiting requests that it may concern.
    fn amended_waiting(&mut self, now: Instant) -> Vec<Amended> {
        let is_tainted = self.endpoints.any_tainted();
        let mut ids = self.waiting_ids();
        ids.retain(|id| {
            let request = self.requests.get(id);
            request
                .is_some_and(|request| request.is_restricted || request.constraints.is_some() || is_tainted)
        });
        ids.into_iter().filter_map(|id| self.amended(now, id)).collect()
    }

    fn waiting_ids(&self) -> Vec<RequestId> {
        self.sorted_ids(super::OpenRequest::is_waiting)
    }

    /// The requests for which `is_wanted` is true, in the order in which they came.
    fn sorted_ids(&self, is_wanted: impl Fn(&super::OpenRequest) -> bool) -> Vec<RequestId> {
        let wanted = self.requests().filter(|(_, request)| is_wanted(request));
        let mut ids: Vec<RequestId> = wanted.map(|(id, _)| id).collect();
        ids.sort_unstable();
        ids
    }
}
