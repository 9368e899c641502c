//! Applies the engine's decisions to the requests of the pool.

use core::time::Duration;
use std::sync::Arc;

use penstock_autopilot as autopilot;
use penstock_engine::input::{Input, RequestId};
use penstock_engine::{BudgetReport, Effect, Instant, Outcome, effect};
use penstock_wire::Code;

use super::request::{Demand, Grant, Granted, OpenRequest, Stage};
use super::{Pool, PoolEffect};
use crate::answer;
use crate::cost_trace::CostEventKind;
use crate::ids::RequestKey;
use crate::labels::{Labels, flow_name};
use crate::observation::{Decided, Dropped, PoolNews, RequestNews};
use crate::rejection::Rejection;

impl Pool {
    /// Applies all decisions that the engine has made. `completed`: the request that ended with the last input. The settled
    /// cost belongs to it.
    pub(super) fn apply_decisions(&mut self, now: Instant, completed: Option<(RequestId, &Labels)>) {
        while let Some(effect) = self.engine.poll_effect() {
            match effect {
                Effect::Grant(decided) => self.grant(now, &decided),
                Effect::Reject(decided) => self.reject(now, decided),
                Effect::Cancelled { id, waited } => self.cancelled(id, waited),
                Effect::Evict(decided) => self.evict(now, decided),
                Effect::UsageSettled(used) => self.observe_pool(PoolNews::Used(used)),
                Effect::UsageRunning(running) => self.observe_pool(PoolNews::Running(running)),
                Effect::Settled { id, band: _, cost } => {
                    if let Some((_, labels)) = completed.filter(|(completed, _)| *completed == id) {
                        let flow = flow_name(&labels.flow);
                        self.visible_flows.record_cost(now, flow, labels.private, cost.0);
                    }
                }
                Effect::Budget(BudgetReport::Shadowed { flow, over }) => {
                    self.visible_flows.record_shadowed(flow_name(&flow), over);
                }
                Effect::Budget(report) => {
                    self.record_cost_event(|| CostEventKind::Reported(report.clone()));
                    self.observe_pool(PoolNews::Budget(report));
                }
                // Only an engine that is asked for these has them.
                Effect::Traced(_) => {}
            }
        }
        self.check_credits(now);
    }

    fn grant(&mut self, now: Instant, decided: &effect::Grant) {
        self.record_start(decided.id, true);
        let saturation_milli = self.saturation_milli();
        let rules = self.attempt_rules(decided.id, decided.endpoints.first().copied());
        let Some(request) = self.requests.get_mut(&decided.id) else {
            return;
        };
        if let Some(&endpoint) = decided.endpoints.first() {
            let granted = autopilot::ExpectedUsage {
                endpoint,
                prompt: decided.prompt.0,
                cached: decided.cached.0,
                output: decided.output.0,
                sequences: request.asked.sequences.into(),
                is_streamed: request.asked.is_streamed,
                is_extra: decided.extra,
            };
            match decided.prefill {
                None => self.autopilot.granted(now, decided.id, granted),
                Some(_) => self.autopilot.granted_apart(now, decided.id, granted),
            }
        }
        if request.demand == Demand::Later {
            request.demand = Demand::Counted;
            self.autopilot.arrived(now);
        }
        let is_first = request.admitted.is_none();
        // A request that was requeued and is granted again keeps the outcome of its first grant, under which it is counted.
        let outcome = *request.admitted.get_or_insert(decided.outcome);
        // A fallback's room may be taken when Envoy tries it. Where the request can come back, the companion chooses again.
        // Nor could a fallback read the header that names the endpoint for the prompt.
        let is_single = request.can_requeue || decided.prefill.is_some();
        let named = if is_single { 1 } else { decided.endpoints.len() };
        let mut endpoints = Vec::with_capacity(named);
        let granted = decided.endpoints.iter().take(named);
        endpoints.extend(granted.map(|id| self.endpoints.address(*id)));
        let grant = Arc::new(Grant {
            endpoints,
            outcome,
            granted_at: now,
            waited: decided.waited,
            saturation_milli,
            rewrites_body: !request.is_rewritten && request.labels.model.is_rewritten(),
            may_requeue: request.can_requeue
                && (self.rules.requeues_max).is_none_or(|most| request.requeues < most),
            is_final: rules.is_final,
            retries_not_found: rules.retries_not_found,
            others: rules.others,
            extra: decided.extra,
            prefill: decided.prefill.map(|id| self.endpoints.address(id)),
        });
        self.model_counts.change(&request.labels.model, request.is_waiting(), false);
        request.has_begun = false;
        request.stage = Stage::Granted(Granted {
            grant: grant.clone(),
            failed: 0,
            refusals: Box::default(),
            unsent: Box::default(),
            evicted: None,
            is_off_list: false,
        });
        let (key, labels, is_kept_alive) = (request.key, request.labels.clone(), request.is_kept_alive);
        if is_kept_alive {
            // Its client has received a part of the answer. Also without evictions: they may be switched on while it runs.
            self.engine.handle(now, Input::Begun(decided.id));
        }
        if is_first {
            let endpoint = grant.first().cloned().unwrap_or_default();
            let was_queued = self.arriving != Some(decided.id);
            let granted = Decided::granted(outcome, decided.waited, endpoint, was_queued);
            let prefill = grant.prefill.clone();
            self.observe_decided(&labels, Decided { extra: decided.extra, prefill, ..granted });
        }
        self.send_grant(now, decided.id, key, labels, grant);
        if let (Outcome::Bypassed, Some(&endpoint)) = (decided.outcome, decided.endpoints.first()) {
            self.consider_credit(now, decided.id, endpoint);
        }
    }

    /// Sends a grant, with the rest of the flow's budget.
    pub(super) fn send_grant(
        &mut self,
        now: Instant,
        id: RequestId,
        key: RequestKey,
        labels: Arc<Labels>,
        grant: Arc<Grant>,
    ) {
        let rate_limit = self.rate_limit_of(now, id);
        self.effects.push_back(PoolEffect::Grant { key, labels, grant, rate_limit });
    }

    fn reject(&mut self, now: Instant, decided: effect::Reject) {
        let effect::Reject { id, outcome, waited, retry_after } = decided;
        if self.arriving == Some(id) && is_for_lack_of_room(outcome) {
            self.note_lack(now);
        }
        let Some(request) = self.close(id) else {
            return;
        };
        self.record_cost_event(|| CostEventKind::Left { id, outcome: Some(outcome) });
        let saturation_milli = self.saturation_milli();
        let rules = &self.rules;
        let answer = answer::for_outcome(outcome, &self.name, &rules.policy, rules.capacity_status);
        let Some(answer) = answer else {
            return;
        };
        if request.admitted.is_some() {
            self.observe_dropped(&request, outcome, Some((answer.status, answer.code)), waited);
        } else {
            self.take_back_demand(id, &request, outcome);
            let was_queued = self.arriving != Some(id);
            let decided = Decided::refused(outcome, answer.code, waited, was_queued);
            self.observe_decided(&request.labels, decided);
        }
        let rejection = Rejection::new(answer, outcome, waited, retry_after, saturation_milli);
        let rate_limit = self.rate_limit(now, &request.labels.flow);
        self.effects.push_back(PoolEffect::Reject {
            key: request.key,
            rejection: rejection.with_rate_limit(rate_limit),
        });
    }

    /// `request`, which never ran, is rejected with this outcome. It was load only if more servers could have served it. That includes
    /// requests for which the queue or the part of their flow was full: with more servers these would be emptier.
    fn take_back_demand(&mut self, id: RequestId, request: &OpenRequest, outcome: Outcome) {
        if request.demand != Demand::Counted {
            return;
        }
        if self.arriving != Some(id) {
            if outcome.is_no_demand() {
                self.autopilot.refused_after_waiting(request.arrived);
            }
            return;
        }
        // Its deadline had passed when it arrived, or it names endpoints that the pool doesn't have.
        let is_too_late = matches!(outcome, Outcome::DeadlineExceeded | Outcome::NoEndpoints);
        let is_limited = || self.engine.is_flow_at_limit(&request.labels.flow);
        if outcome.is_no_demand() || is_too_late || is_limited() {
            self.autopilot.refused();
        }
    }

    fn cancelled(&mut self, id: RequestId, waited: Duration) {
        let Some(request) = self.close(id) else {
            return;
        };
        self.record_cost_event(|| CostEventKind::Left { id, outcome: None });
        if let Some((_, end)) = self.leaving.take_if(|(leaving, _)| *leaving == id) {
            return self.observe_request(request.labels, end);
        }
        match request.admitted {
            Some(_) => self.observe_dropped(&request, Outcome::Cancelled, None, waited),
            None => {
                let decided = Decided::refused(Outcome::Cancelled, Code::Cancelled, waited, true);
                self.observe_decided(&request.labels, decided);
            }
        }
    }

    /// Takes a waiting request out of the queue, and observes its end as `end`, unless its time is over and the engine rejects it.
    pub(super) fn leave(&mut self, now: Instant, id: RequestId, end: RequestNews) {
        self.leaving = Some((id, end));
        self.decide(now, Input::Cancel(id));
        self.leaving = None;
    }

    /// Observes the first outcome of a request, once for each.
    pub(super) fn observe_decided(&mut self, labels: &Arc<Labels>, decided: Decided) {
        self.observe_request(labels.clone(), RequestNews::Decided(decided));
    }

    /// Observes that a request ended after its first grant, and no endpoint is known to have ended it. `answer`: status and code of the
    /// gateway's answer.
    pub(super) fn observe_dropped(
        &mut self,
        request: &OpenRequest,
        outcome: Outcome,
        answer: Option<(u16, Code)>,
        waited: Duration,
    ) {
        self.observe_request(
            request.labels.clone(),
            RequestNews::Dropped(Dropped {
                outcome,
                requeues: request.requeues,
                status: answer.map(|(status, _)| status),
                code: answer.map(|(_, code)| code),
                waited,
            }),
        );
    }

    pub(super) fn saturation_milli(&self) -> u32 {
        u32::try_from(self.engine.saturation_milli()).unwrap_or(u32::MAX)
    }
}

/// A newcomer with this outcome would have been granted if there had been room.
const fn is_for_lack_of_room(outcome: Outcome) -> bool {
    matches!(
        outcome,
        Outcome::RejectedTooManyFlows
            | Outcome::RejectedQueueFull
            | Outcome::RejectedFlowCapacity
            | Outcome::RejectedClassCapacity
            | Outcome::RejectedPolicy
            | Outcome::RejectedUnmeetable
    )
}
