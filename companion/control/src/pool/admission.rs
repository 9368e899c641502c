//! Requests that come in: new ones, those of a Hello, and those that no endpoint took and that come in again.

use core::hash::Hasher as _;
use core::time::Duration;
use std::hash::DefaultHasher;
use std::sync::Arc;

use penstock_autopilot as autopilot;
use penstock_engine::input::{ClassKey, EndpointId, Input, Prompt, Request, RequestId, Service};
use penstock_engine::units::Tokens;
use penstock_engine::{Instant, ModelName, Outcome};

use super::eligibility::Constraints;
use super::input::Registering;
use super::reported::EndedThere;
use super::request::{Demand, OpenRequest, Stage};
use super::rules::Rules;
use super::{Pool, PoolEffect};
use crate::cost_trace::CostEventKind;
use crate::ids::{Peer, RequestKey};
use crate::labels::{EstimatedTokens, Labels, flow_name};
use crate::observation::{Decided, Dropped, RequestNews};
use crate::registration::{Arrival, Registration, Running};

impl Pool {
    /// A request comes in.
    pub(super) fn register(&mut self, now: Instant, registering: &Registering<'_>) {
        let &Registering { id, registration, peer, arrival, has_outcome, .. } = registering;
        let running = arrival.running();
        let runs_at = running.and_then(|running| Some((self.endpoint_in_use(running.endpoint)?, running)));
        if running.is_some() && runs_at.is_none() {
            // It can't be counted at any endpoint.
            return;
        }
        let mut labels = self.labels(now, registering);
        let mut request = engine_request(id, now, registration, &self.rules, &labels);
        let constraints = Constraints::new(registration);
        let kind = registration.kind(&labels.model.target);
        request.eligible = self.eligible(now, peer.envoy, kind, constraints.as_deref());
        self.classify(&mut request, &mut labels);
        let labels = Arc::new(labels);
        self.record_cost_event(|| CostEventKind::Arrived { id, labels: labels.clone() });
        if let (Some((endpoint, _)), Some(end)) = (runs_at, EndedThere::of(registering)) {
            return self.count_ended(now, registering, request, &labels, endpoint, end);
        }
        let open = OpenRequest {
            key: registration.key,
            envoy_process: peer.envoy.process(),
            can_requeue: peer.can_requeue,
            could_use_credit: arrival.is_new() && self.could_use_credit(now, registering),
            labels: labels.clone(),
            arrived: request.arrived,
            asked: registration.asked(),
            constraints,
            is_restricted: request.eligible.is_some(),
            is_rewritten: registration.rewritten_to.is_some(),
            stage: self.first_stage(now, runs_at, peer, arrival),
            admitted: runs_at.map(|_| outcome_of(arrival)),
            requeues: registration.requeues,
            resets: 0,
            stale_cuts: 0,
            failed_at: Vec::new(),
            kind,
            has_begun: false,
            is_kept_alive: registration.is_moved,
            demand: Demand::at_arrival(arrival.is_new() && !has_outcome),
        };
        self.open(now, id, open, registering.previous_key);
        self.observe_arrival(registering, &labels);
        match (runs_at, arrival) {
            (Some((endpoint, running)), _) => {
                self.enter_stock(now, registering, request, &labels, endpoint);
                self.prefills_at(now, id, running);
                self.has_come_to(now, id, running);
            }
            (None, Arrival::New) => {
                if !has_outcome {
                    self.autopilot.arrived(now);
                }
                self.arriving = Some(id);
                self.decide(now, Input::Register(request));
                self.arriving = None;
                self.postpone_demand(id);
            }
            (None, _) => self.decide(now, Input::Resume(request)),
        }
    }

    /// A newcomer that waits for limits of its own is no load until they let it go: no server could serve it now.
    fn postpone_demand(&mut self, id: RequestId) {
        if let Some(request) = self.requests.get_mut(&id)
            && request.is_waiting()
            && request.demand == Demand::Counted
            && self.engine.is_flow_at_limit(&request.labels.flow)
        {
            request.demand = Demand::Later;
            self.autopilot.refused();
        }
    }

    /// A request that runs already at this endpoint enters the stock.
    fn enter_stock(
        &mut self,
        now: Instant,
        registering: &Registering<'_>,
        request: Request,
        labels: &Arc<Labels>,
        endpoint: EndpointId,
    ) {
        self.observe_admitted(registering, labels, endpoint);
        match registering.arrival {
            Arrival::ByCredit { place, .. } => {
                let epoch = registering.registration.key.epoch;
                self.admit_by_credit(now, epoch, request, endpoint, place);
            }
            Arrival::New | Arrival::Waiting | Arrival::Running(_) => self.adopt(now, request, endpoint),
        }
    }

    /// Another companion, or a filter by credit, has admitted the request at this endpoint.
    pub(super) fn observe_admitted(
        &mut self,
        registering: &Registering<'_>,
        labels: &Arc<Labels>,
        endpoint: EndpointId,
    ) {
        if !registering.has_outcome {
            let outcome = outcome_of(registering.arrival);
            let address = self.endpoints.address(endpoint);
            let was_queued = outcome == Outcome::Dispatched;
            let granted = Decided::granted(outcome, Duration::ZERO, address, was_queued);
            self.observe_decided(labels, granted);
        }
    }

    /// Adds a request to the pool.
    fn open(&mut self, now: Instant, id: RequestId, request: OpenRequest, previous_key: Option<RequestKey>) {
        let (key, labels) = (request.key, request.labels.clone());
        self.model_counts.open(now, &labels.model, request.is_waiting());
        self.requests.insert(id, request);
        self.effects.push_back(PoolEffect::Opened { key, id, labels, previous_key });
    }

    /// Sets the cached tokens of a request, and with them its class and its tokens.
    fn classify(&self, request: &mut Request, labels: &mut Labels) {
        let prepared = self.engine.prepare(request);
        labels.class = prepared.class.into();
        let count = |tokens: Tokens| u32::try_from(tokens.0).unwrap_or(u32::MAX);
        labels.tokens = Some(EstimatedTokens {
            prompt: count(prepared.prompt),
            cached: count(prepared.cached),
            expected_output: count(prepared.output),
        });
    }

    /// The stage of a newcomer.
    fn first_stage(
        &self,
        now: Instant,
        runs_at: Option<(EndpointId, Running<'_>)>,
        peer: Peer,
        arrival: Arrival<'_>,
    ) -> Stage {
        let Some((endpoint, running)) = runs_at else {
            return Stage::Waiting;
        };
        let (address, granted_at) = (self.endpoints.address(endpoint), now.before(running.age));
        match arrival {
            Arrival::ByCredit { .. } => {
                Stage::by_credit(address, granted_at, self.may_requeue_by_credit(peer))
            }
            Arrival::New | Arrival::Waiting | Arrival::Running(_) => Stage::adopted(address, granted_at),
        }
    }

    pub(super) fn observe_arrival(&mut self, registering: &Registering<'_>, labels: &Arc<Labels>) {
        if !registering.has_outcome {
            self.observe_request(labels.clone(), RequestNews::Arrived(registering.door));
            let retries = registering.registration.client_retries;
            if retries > 0 {
                self.observe_request(labels.clone(), RequestNews::ClientRetry(retries));
            }
        }
        if registering.claim.is_lowered {
            self.observe_request(labels.clone(), RequestNews::PriorityLowered);
        }
        if self.rules.is_deadline_invalid(registering.registration) {
            self.observe_request(labels.clone(), RequestNews::BadDeadline);
        }
    }

    /// The labels of a request, without its class and its tokens. Its flow becomes visible if there is room.
    fn labels(&mut self, now: Instant, registering: &Registering<'_>) -> Labels {
        let registration = registering.registration;
        // A body that was rewritten keeps its target model, whatever the rules are now.
        let target_model = registration.rewritten_to.unwrap_or_else(|| {
            let rewriter = &self.rules.rewriter;
            rewriter.target(registration.model, registration.key).unwrap_or(registration.model)
        });
        let (flow, is_private) = self.rules.flow(registration, target_model);
        let visible = if is_private {
            None
        } else {
            let (name, most) = (flow_name(&flow), registering.visible_flows_max);
            if self.engine.has_budget(name) {
                self.public_budgets.record(name);
            }
            self.visible_flows.record_arrival(now, name, most)
        };
        if (registration.model, target_model) != (&*self.last_model.requested, &*self.last_model.target) {
            self.last_model = ModelName::new(registration.model, target_model);
        }
        Labels {
            tokens: None,
            pool: self.name.clone(),
            model: self.last_model.clone(),
            class: Box::default(),
            traceparent: registration.traceparent.into(),
            flow: visible.filter(|_| !flow.is_empty()).unwrap_or_else(|| flow.as_ref().into()),
            private: is_private,
            band: registering.claim.band,
            request_id: registration.request_id.into(),
        }
    }

    /// A request that another companion granted enters the stock.
    fn adopt(&mut self, now: Instant, request: Request, endpoint: EndpointId) {
        let id = request.id;
        self.engine.handle(now, Input::Adopt { request, endpoint });
        self.record_start(id, false);
        self.follow(now, id, endpoint);
        self.apply_decisions(now, None);
    }

    /// The autopilot follows a request from now on, if it follows this endpoint.
    pub(super) fn follow(&mut self, now: Instant, id: RequestId, endpoint: EndpointId) {
        if let Some(granted) = self.expected_usage(id, endpoint) {
            self.autopilot.adopted(now, id, granted);
        }
    }

    /// Another companion had the prompt of this request computed at an endpoint of its own.
    fn prefills_at(&mut self, now: Instant, id: RequestId, running: Running<'_>) {
        let endpoint = running.prefill_endpoint.and_then(|address| self.endpoint_in_use(address));
        if let Some(endpoint) = endpoint {
            self.decide(now, Input::Prefills { id, endpoint });
        }
    }

    /// The expected usage of a running request at an endpoint, for the autopilot.
    pub(super) fn expected_usage(
        &self,
        id: RequestId,
        endpoint: EndpointId,
    ) -> Option<autopilot::ExpectedUsage> {
        let expected = self.engine.expected(id)?;
        let count = |tokens: Option<Tokens>| tokens.unwrap_or_default().0;
        Some(autopilot::ExpectedUsage {
            endpoint,
            prompt: count(expected.prompt),
            cached: count(expected.cached),
            output: count(expected.output),
            sequences: self.engine.sequences(id),
            // It isn't known whether its answer has begun.
            is_streamed: false,
            is_extra: false,
        })
    }

    /// A request that waits here was granted by another companion: it leaves the queue and runs.
    fn adopt_waiting(
        &mut self,
        now: Instant,
        id: RequestId,
        registration: &Registration<'_>,
        running: Running<'_>,
    ) {
        let endpoint = self.endpoint_in_use(running.endpoint);
        let address = self.endpoints.share(running.endpoint);
        let granted_at = now.before(running.age);
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        let labels = request.labels.clone();
        let is_first = request.admitted.replace(Outcome::Dispatched).is_none();
        if endpoint.is_some() {
            self.model_counts.change(&labels.model, request.is_waiting(), false);
            request.stage = Stage::adopted(address.clone(), granted_at);
            request.requeues = registration.requeues;
            request.is_rewritten |= registration.rewritten_to.is_some();
        }
        let waited = granted_at.since(request.arrived);
        if is_first {
            let granted = Decided::granted(Outcome::Dispatched, waited, address, true);
            self.observe_decided(&labels, granted);
        }
        match endpoint {
            Some(endpoint) => {
                let mut request = engine_request(id, now, registration, &self.rules, &labels);
                request.cached = Tokens(labels.tokens.map_or(0, |tokens| tokens.cached.into()));
                self.adopt(now, request, endpoint);
                self.prefills_at(now, id, running);
                self.has_come_to(now, id, running);
            }
            // It can't be counted at any endpoint.
            None => self.runs_nowhere(now, id, waited),
        }
    }

    /// A request that waits here runs, at no endpoint that can be counted: it only leaves the queue.
    fn runs_nowhere(&mut self, now: Instant, id: RequestId, waited: Duration) {
        let Some(request) = self.requests.get(&id) else {
            return;
        };
        let dropped = Dropped {
            outcome: Outcome::Dispatched,
            requeues: request.requeues,
            status: None,
            code: None,
            waited,
        };
        self.leave(now, id, RequestNews::Dropped(dropped));
    }

    /// A request that no endpoint took comes in again under another key.
    pub(super) fn reenter(
        &mut self,
        now: Instant,
        id: RequestId,
        peer: Peer,
        registration: &Registration<'_>,
        arrival: Arrival<'_>,
    ) {
        let Some(request) = self.requests.get(&id) else {
            return;
        };
        let granted = request.granted().map(|granted| granted.grant.endpoints.len());
        let failed_attempt = registration.failed_attempt.filter(|_| matches!(arrival, Arrival::New));
        // A grant that crossed a move was never used.
        let return_input = match arrival {
            Arrival::Waiting if registration.is_moved => Input::Requeue(id),
            Arrival::New | Arrival::Waiting | Arrival::Running(_) | Arrival::ByCredit { .. } => {
                self.return_input(now, id, failed_attempt)
            }
        };
        if let (Some(endpoints), Arrival::New) = (granted, arrival) {
            self.endpoints_failed(now, id, endpoints);
        }
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        request.key = registration.key;
        request.set_peer(peer);
        request.is_kept_alive |= registration.is_moved;
        match (granted, arrival) {
            // No request that was admitted by credit comes in again.
            (_, Arrival::ByCredit { .. }) => {}
            (_, Arrival::New | Arrival::Waiting) => {
                request.requeues = registration.requeues;
                request.is_rewritten |= registration.rewritten_to.is_some();
                if granted.is_some() && self.has_used_resets(id) {
                    self.reject_cut(now, id);
                } else if granted.is_some() {
                    self.requeue(now, id, return_input);
                } else {
                    self.decide(now, Input::Continue(id));
                }
            }
            (Some(_), Arrival::Running(running)) => {
                let Some(endpoint) = self.endpoint_in_use(running.endpoint) else {
                    return self.settle(now, id, Service::Nothing);
                };
                let stage = Stage::adopted(self.endpoints.address(endpoint), now.before(running.age));
                if let Some(request) = self.requests.get_mut(&id) {
                    let evicted = request.granted_mut().and_then(|granted| granted.evicted.take());
                    request.stage = stage.evicted_by(evicted);
                    request.requeues = registration.requeues;
                    request.is_rewritten |= registration.rewritten_to.is_some();
                }
                self.sent_to(now, id, endpoint);
                self.prefills_at(now, id, running);
                self.has_come_to(now, id, running);
            }
            (None, Arrival::Running(running)) => self.adopt_waiting(now, id, registration, running),
        }
    }

    /// A Hello reports that a request runs.
    pub(super) fn still_runs(
        &mut self,
        now: Instant,
        id: RequestId,
        registration: &Registration<'_>,
        running: Running<'_>,
    ) {
        if self.is_waiting(id) {
            return self.adopt_waiting(now, id, registration, running);
        }
        // The message that named its endpoint may have been lost with the last stream.
        if self.requests.contains_key(&id)
            && let Some(endpoint) = self.endpoint_in_use(running.endpoint)
        {
            self.sent_to(now, id, endpoint);
        }
        self.has_come_to(now, id, running);
    }

    /// A Hello reports that the filter has a request waiting.
    pub(super) fn still_waits(&mut self, now: Instant, id: RequestId) {
        let Some(request) = self.requests.get(&id) else {
            return;
        };
        let Some(granted) = request.granted() else {
            return self.decide(now, Input::Continue(id));
        };
        let is_listed = |address: &Arc<str>| self.endpoints.listed_id(address).is_some();
        if granted.grant.endpoints.iter().any(is_listed) {
            // The grant was lost with the last stream.
            let (key, labels, grant) = (request.key, request.labels.clone(), granted.grant.clone());
            self.send_grant(now, id, key, labels, grant);
        } else {
            self.requeue(now, id, Input::Requeue(id));
        }
    }

    /// A granted request waits again, in its old place, by this input to the engine.
    fn requeue(&mut self, now: Instant, id: RequestId, input: Input) {
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        let labels = request.labels.clone();
        self.model_counts.change(&labels.model, request.is_waiting(), true);
        request.stage = Stage::Waiting;
        self.observe_request(labels, RequestNews::Requeued);
        self.record_cost_event(|| CostEventKind::Requeued(id));
        self.amend(now, id);
        self.autopilot.dropped(now, id);
        self.decide(now, input);
        self.evict_if_unserved(now, id);
        if self.is_waiting(id) {
            // The only endpoints that suit it may be gone for good.
            self.amend(now, id);
        }
    }

    /// The root context of a request is of another Envoy, or of one with another configuration.
    pub(super) fn set_peer(&mut self, id: RequestId, peer: Peer) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.set_peer(peer);
        }
    }
}

/// The outcome of a request that runs already.
const fn outcome_of(arrival: Arrival<'_>) -> Outcome {
    match arrival {
        Arrival::ByCredit { .. } => Outcome::Leased,
        Arrival::New | Arrival::Waiting | Arrival::Running(_) => Outcome::Dispatched,
    }
}

/// The engine's view of a registration. A target for the first token is a deadline only where the pool orders by it.
fn engine_request(
    id: RequestId,
    now: Instant,
    registration: &Registration<'_>,
    rules: &Rules,
    labels: &Labels,
) -> Request {
    let arrived = now.before(registration.age);
    let ttft_target = registration.ttft_target.filter(|_| rules.orders_by_ttft_target());
    let deadline = registration.deadline.into_iter().chain(ttft_target).min();
    Request {
        arrived,
        flow: labels.flow.clone(),
        band: labels.band,
        class: ClassKey::Family(registration.class.into()),
        class_set: rules.class_set(registration.model),
        model: labels.model.clone(),
        prompt: Prompt::Bytes(registration.prompt_bytes),
        max_output: registration.output_tokens_max.map(Tokens),
        sequences: registration.sequences,
        body_bytes: registration.body_bytes,
        strict: registration.strict,
        head_start: registration.head_start,
        ttft_target,
        deadline: deadline.map(|after| arrived.after(after)),
        prefix: prefixes(registration, &labels.model.target),
        ..Request::new(id)
    }
}

/// The hashes of the prompt's prefixes, made different for each model: models don't share a server's prefix cache.
fn prefixes(registration: &Registration<'_>, model: &str) -> Box<[u64]> {
    if registration.prefix_hashes.is_empty() {
        return Box::default();
    }
    let mut hasher = DefaultHasher::new();
    hasher.write(model.as_bytes());
    let of_model = hasher.finish();
    let hashes = registration.prefix_hashes.iter();
    hashes.map(|hash| hash ^ of_model).collect()
}

#[cfg(test)]
mod tests {
    use penstock_engine::Policy;
    use penstock_engine::input::Band;
    use penstock_engine::policy::Order;
    use penstock_wire as wire;

    use super::*;
    use crate::ids::Epoch;
    use crate::settings::PoolSettings;
    use crate::wire_in;

    fn rules(order: Order) -> Rules {
        Rules::new(&PoolSettings {
            policy: Policy { order, ..Policy::default() },
            class_globs: vec!["qwen*".into(), "*".into()],
            requeues: Some(3),
            ..PoolSettings::default()
        })
    }

    fn converted(rules: &Rules, message: &wire::Register) -> Request {
        let now = Instant::ZERO.after(Duration::from_secs(10));
        let labels = Labels {
            tokens: None,
            pool: "chat".into(),
            model: message.model.as_str().into(),
            flow: "f".into(),
            private: false,
            band: Band::Default,
            class: Box::default(),
            request_id: Box::default(),
            traceparent: Box::default(),
        };
        let registration = wire_in::registration(Epoch::from_bits(1), message);
        engine_request(RequestId(1), now, &registration, rules, &labels)
    }

    #[test]
    fn claims_reach_the_engine_unless_they_are_out_of_range() {
        let rules = rules(Order::Fcfs);
        let message = |strict, jump_s| wire::Register {
            class: "batch".into(),
            model: "qwen-7b".into(),
            strict: Some(strict),
            jump_s: Some(jump_s),
            ..Default::default()
        };
        let request = converted(&rules, &message(15, 3_600));
        assert_eq!(request.class, ClassKey::Family("batch".into()));
        assert_eq!(
            (request.class_set, request.strict, request.head_start),
            (1, 15, Duration::from_secs(3_600))
        );
        let request = converted(&rules, &message(16, 3_601));
        assert_eq!((request.strict, request.head_start), (0, Duration::ZERO));
        let other = wire::Register { model: "llama".into(), ..Default::default() };
        assert_eq!(converted(&rules, &other).class_set, 2);
    }

    #[test]
    fn a_ttft_target_is_a_deadline_where_the_pool_orders_by_it() {
        let message = |deadline_ms, slo_ttft_ms| wire::Register {
            age_us: 1_000_000,
            deadline_ms,
            slo_ttft_ms,
            ..Default::default()
        };
        let after_arrival = |rules: &Rules, deadline, target| {
            let request = converted(rules, &message(deadline, target));
            let deadline = request.deadline.map(|deadline| deadline.since(request.arrived).as_millis());
            (deadline, request.ttft_target.map(|target| target.as_millis()))
        };
        let elsewhere = rules(Order::Edf);
        assert_eq!(after_arrival(&elsewhere, None, Some(500)), (None, None));
        assert_eq!(after_arrival(&elsewhere, Some(900), Some(500)), (Some(900), None));
        let here = rules(Order::SloDeadline { target: None });
        assert_eq!(after_arrival(&here, None, Some(500)), (Some(500), Some(500)));
        assert_eq!(after_arrival(&here, Some(900), Some(500)), (Some(500), Some(500)));
        assert_eq!(after_arrival(&here, Some(400), Some(500)), (Some(400), Some(500)));
        assert_eq!(after_arrival(&here, Some(400), None), (Some(400), None));
        let bad = wire::Register { bad_slo_ttft: true, ..Default::default() };
        let bad = wire_in::registration(Epoch::from_bits(1), &bad);
        assert!(here.is_deadline_invalid(&bad) && !elsewhere.is_deadline_invalid(&bad));
    }
}
