//! The way of a request after its registration: its client leaves, endpoints fail or answer, it ends.

use core::time::Duration;
use std::sync::Arc;

use penstock_engine::input::{AnswerResult, EndpointId, Input, RequestId, Service, Usage};
use penstock_engine::{Instant, Outcome};
use penstock_wire::Code;

use super::Pool;
use super::request::{Granted, OpenRequest};
use crate::completion::Completion;
use crate::cost_trace::CostEventKind;
use crate::counting::{self, Asked, Counted, EstimateReason};
use crate::filter_answer::FilterAnswer;
use crate::labels::Labels;
use crate::observation::{Completed, Decided, Dropped, PoolNews, RequestNews};

/// The request was sent, and its usage isn't known: the estimate is settled.
const AT_ESTIMATE: Service = Service::Cut(Usage { prompt: None, cached: None, output: None });

/// How a request was admitted that has ended.
pub(super) struct Admission {
    pub(super) outcome: Outcome,
    pub(super) arrived: Instant,
    /// From the arrival to the grant.
    pub(super) waited: Duration,
    pub(super) requeues: u32,
    pub(super) sequences: u32,
    /// Its last grant was above a bound.
    pub(super) extra: bool,
}

impl Admission {
    /// The filter has answered the request, because the engine asked it to: no endpoint has.
    const fn evicted(&self, status: u16) -> RequestNews {
        RequestNews::Dropped(Dropped {
            outcome: Outcome::Evicted,
            requeues: self.requeues,
            status: Some(status),
            code: Some(Code::Evicted),
            waited: self.waited,
        })
    }
}

impl Pool {
    /// The client has left.
    pub(super) fn cancel(&mut self, now: Instant, id: RequestId) {
        match self.requests.get(&id).map(OpenRequest::is_waiting) {
            Some(true) => self.decide(now, Input::Cancel(id)),
            // The grant crossed the cancellation, so the request was never sent.
            Some(false) => self.settle(now, id, Service::Nothing),
            None => {}
        }
    }

    /// The filter answered the request by itself: while it waited here, or before its grant arrived, or after it came back from its
    /// endpoint and before it was registered again.
    pub(super) fn answered(&mut self, now: Instant, id: RequestId, answer: &FilterAnswer<'_>) {
        let Some(request) = self.requests.get(&id) else {
            return;
        };
        let (waited, was_granted) = (now.since(request.arrived), request.admitted.is_some());
        let is_waiting = request.is_waiting();
        let end = answer.news(Some(waited), was_granted);
        if is_waiting {
            self.leave(now, id, end);
        } else if let Some(request) = self.close(id) {
            self.observe_request(request.labels.clone(), end);
            self.end(now, id, Input::Completed { id, service: Service::Nothing }, &request);
        }
    }

    /// The filter is gone, so the end of a granted request will never be reported.
    pub(super) fn release(&mut self, now: Instant, id: RequestId) {
        match self.requests.get(&id).map(OpenRequest::is_waiting) {
            Some(true) => self.decide(now, Input::Cancel(id)),
            Some(false) => {
                self.observe_pool(PoolNews::Estimated(EstimateReason::FilterLost));
                // Envoy has ended with the request, and a server that doesn't notice that computes on.
                self.settle_as(now, id, Input::Left { id, service: AT_ESTIMATE });
            }
            None => {}
        }
    }

    /// Another companion is responsible for the request, and will charge its cost.
    pub(super) fn forget(&mut self, now: Instant, id: RequestId) {
        match self.requests.get(&id).map(OpenRequest::is_waiting) {
            Some(true) => self.decide(now, Input::Cancel(id)),
            Some(false) => self.settle(now, id, Service::Nothing),
            None => {}
        }
    }

    /// Ends a granted request that no endpoint is known to have ended.
    pub(super) fn settle(&mut self, now: Instant, id: RequestId, service: Service) {
        self.settle_as(now, id, Input::Completed { id, service });
    }

    /// [`Self::settle`] by this input to the engine.
    fn settle_as(&mut self, now: Instant, id: RequestId, input: Input) {
        // An answer that had begun there is one no longer.
        if self.requests.get(&id).is_some_and(|request| request.has_begun)
            && let Some(endpoint) = self.engine.endpoint_of(id)
        {
            self.attempt_answered(now, id, endpoint, AnswerResult::Left);
        }
        let Some(request) = self.close(id) else {
            return;
        };
        if let (Some(outcome), Some(waited)) = (request.admitted, request.waited()) {
            self.observe_dropped(&request, outcome, None, waited);
        }
        self.end(now, id, input, &request);
    }

    /// An endpoint begins to answer.
    pub(super) fn started(&mut self, now: Instant, id: RequestId, endpoint: Option<&str>, attempts: usize) {
        let Some((address, request)) = endpoint.zip(self.requests.get(&id)) else {
            return;
        };
        let Some(granted) = request.granted() else {
            return;
        };
        let (grant, envoy, is_off_list) = (granted.grant.clone(), request.envoy(), granted.is_off_list);
        let endpoint = self.endpoint(address);
        let place = grant.endpoints.iter().position(|granted| **granted == *address);
        let passed_over = match place {
            // Every endpoint of the list failed, and Envoy sent the request to the gateway, where it comes in again.
            None if grant.may_requeue && endpoint.is_none() => {
                return self.endpoints_failed(now, id, grant.endpoints.len());
            }
            _ if is_off_list => 0,
            None => grant.endpoints.len(),
            // Envoy passes over an endpoint that its cluster doesn't have, without an attempt.
            Some(index) if attempts == 1 => index,
            Some(_) => 0,
        };
        for passed_over in grant.endpoints.iter().take(passed_over) {
            if let Some(endpoint) = self.endpoint(passed_over) {
                self.avoided.insert(now, envoy, endpoint);
                self.recall_credits(|id| id == endpoint);
            }
        }
        match place {
            None => self.misrouted(id, address),
            Some(index) if attempts == index + 1 => self.endpoints_failed(now, id, index),
            Some(_) => {}
        }
        let Some(endpoint) = self.endpoint_in_use(address) else {
            return;
        };
        self.avoided.remove(envoy, endpoint);
        // In most cases the request went where it was granted, and the engine counts it there already.
        if self.engine.endpoint_of(id) != Some(endpoint) {
            self.sent_to(now, id, endpoint);
        }
    }

    /// The first token of the answer has arrived, if `has_arrived`.
    pub(super) fn first_token(&mut self, now: Instant, id: RequestId, has_arrived: bool) {
        if has_arrived {
            self.autopilot.first_token(now, id);
            self.decide(now, Input::FirstToken(id));
        }
    }

    /// The request runs at this endpoint, whatever was granted.
    pub(super) fn sent_to(&mut self, now: Instant, id: RequestId, endpoint: EndpointId) {
        if self.autopilot.is_in_flight(id) {
            self.autopilot.moved(now, id, endpoint);
        } else if let Some(granted) = self.expected_usage(id, endpoint) {
            self.autopilot.came_to(now, id, granted);
        }
        self.decide(now, Input::Sent { id, endpoint });
    }

    /// Envoy sent the request to an endpoint that wasn't granted. This is observed once.
    fn misrouted(&mut self, id: RequestId, address: &str) {
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        let labels = request.labels.clone();
        let is_known =
            request.granted_mut().is_none_or(|granted| core::mem::replace(&mut granted.is_off_list, true));
        if !is_known {
            let endpoint = address.into();
            self.observe_request(labels, RequestNews::Misrouted(endpoint));
        }
    }

    /// The first `count` endpoints of the grant's list failed the request. The engine learns of each once.
    pub(super) fn endpoints_failed(&mut self, now: Instant, id: RequestId, count: usize) {
        let Some(granted) = self.requests.get_mut(&id).and_then(OpenRequest::granted_mut) else {
            return;
        };
        let (grant, known) = (granted.grant.clone(), granted.failed as usize);
        granted.failed = u32::try_from(known.max(count)).unwrap_or(u32::MAX);
        let newly_failed = grant.endpoints.iter().take(count).skip(known);
        let mut endpoints: Vec<EndpointId> =
            newly_failed.filter_map(|address| self.endpoint(address)).collect();
        if let Some(granted) = self.requests.get(&id).and_then(OpenRequest::granted) {
            endpoints.retain(|endpoint| !granted.is_blameless(*endpoint));
        }
        for endpoint in endpoints {
            self.decide(now, Input::Failed { id, endpoint });
        }
    }

    /// A granted request has ended.
    pub(super) fn completed(&mut self, now: Instant, id: RequestId, completion: &Completion<'_>) {
        self.started(now, id, completion.endpoint, completion.attempts);
        self.answered_at_end(now, id, completion);
        if completion.is_unanswered {
            self.endpoints_failed(now, id, completion.attempts);
        }
        let Some(request) = self.requests.get(&id) else {
            return;
        };
        let Some(granted) = request.granted() else {
            return self.completed_elsewhere(now, id, completion);
        };
        let counted = self.count(completion, &request.asked);
        let is_reentering = self.is_reentering(granted, completion);
        let service = if is_reentering { Service::Nothing } else { counted.service };
        if let (Service::Served(_), Some(served)) = (service, completion.served(&counted)) {
            self.autopilot.served(now, id, served);
        }
        let admission = Admission {
            outcome: request.admitted.unwrap_or(Outcome::Dispatched),
            arrived: request.arrived,
            waited: request.waited().unwrap_or_default(),
            requeues: request.requeues,
            sequences: request.asked.sequences,
            extra: request.is_extra(),
        };
        let news = self.completion_news(now, &admission, completion, &counted);
        let labels = request.labels.clone();
        self.observe_estimate(service, &counted);
        self.observe_request(labels, news);
        // No server computes a request that went to the gateway itself.
        let input =
            if is_reentering { Input::Completed { id, service } } else { completion.input(id, service) };
        if let Some(request) = self.close(id) {
            self.end(now, id, input, &request);
        }
    }

    /// A request that waits here was granted by another companion, and has ended.
    fn completed_elsewhere(&mut self, now: Instant, id: RequestId, completion: &Completion<'_>) {
        let Some(request) = self.requests.get(&id) else {
            return;
        };
        let ran = completion.last_byte.or(completion.first_token).unwrap_or_default();
        let admission = Admission {
            outcome: request.admitted.unwrap_or(Outcome::Dispatched),
            arrived: request.arrived,
            waited: now.since(request.arrived).saturating_sub(ran),
            requeues: request.requeues,
            sequences: request.asked.sequences,
            extra: request.is_extra(),
        };
        let (labels, waited, is_first) =
            (request.labels.clone(), admission.waited, request.admitted.is_none());
        let counted = self.count(completion, &request.asked);
        let end = self.completion_news(now, &admission, completion, &counted);
        if is_first {
            let endpoint = self.endpoints.share(completion.endpoint.unwrap_or_default());
            let granted = Decided::granted(Outcome::Dispatched, waited, endpoint, true);
            self.observe_decided(&labels, Decided { extra: admission.extra, ..granted });
        }
        if let Some(request) = self.requests.get_mut(&id) {
            request.admitted.get_or_insert(Outcome::Dispatched);
        }
        self.leave(now, id, end);
    }

    /// The request went to the gateway itself, to come in again, so no endpoint serves it.
    fn is_reentering(&self, granted: &Granted, completion: &Completion<'_>) -> bool {
        let is_elsewhere = completion
            .endpoint
            .is_some_and(|address| !granted.grant.contains(address) && self.endpoint(address).is_none());
        granted.grant.may_requeue && is_elsewhere && !completion.is_served
    }

    /// Counts the tokens of an answer.
    pub(super) fn count(&self, completion: &Completion<'_>, asked: &Asked) -> Counted {
        let endpoint = completion.endpoint.and_then(|address| self.endpoint(address));
        let token_time = endpoint.and_then(|endpoint| self.autopilot.token_time(endpoint));
        counting::count(&completion.answer, asked, token_time)
    }

    /// Observes that an answer which costs something isn't charged by the counts of its server.
    pub(super) fn observe_estimate(&mut self, service: Service, counted: &Counted) {
        if let Some(reason) = counted.estimated.filter(|_| service != Service::Nothing) {
            self.observe_pool(PoolNews::Estimated(reason));
        }
    }

    /// The end of a request, by its server or because it was evicted.
    pub(super) fn completion_news(
        &self,
        now: Instant,
        admission: &Admission,
        completion: &Completion<'_>,
        counted: &Counted,
    ) -> RequestNews {
        if completion.is_evicted() {
            return admission.evicted(completion.status());
        }
        let Admission { outcome, arrived, waited, requeues, sequences, extra } = *admission;
        RequestNews::Completed(Completed {
            outcome,
            waited,
            endpoint: completion.endpoint.map_or_else(Arc::default, |address| self.endpoints.share(address)),
            status: completion.status(),
            first_token: completion.first_token.map(|first_token| waited.saturating_add(first_token)),
            ttft: completion.time_to_first_token().map(|first_token| waited.saturating_add(first_token)),
            itl: completion.inter_token_latency(counted, sequences),
            duration: now.since(arrived),
            prompt_tokens: counted.prompt,
            output_tokens: counted.output,
            requeues,
            extra,
        })
    }

    /// Takes a closed request out of stock and settles its cost, by this input to the engine.
    pub(super) fn end(&mut self, now: Instant, id: RequestId, input: Input, request: &OpenRequest) {
        self.autopilot.dropped(now, id);
        if let Input::Completed { service, .. } | Input::Left { service, .. } = input {
            self.record_cost_event(|| CostEventKind::Ended { id, service });
        }
        self.end_in_engine(now, id, input, &request.labels);
    }

    /// Ends a request in the engine, by this input.
    pub(super) fn end_in_engine(&mut self, now: Instant, id: RequestId, input: Input, labels: &Arc<Labels>) {
        let left_at = if let Input::Left { .. } = input { self.engine.endpoint_of(id) } else { None };
        self.engine.handle(now, input);
        if let Some(endpoint) = left_at.filter(|&endpoint| self.engine.has_abandoned(endpoint)) {
            let endpoint = self.endpoints.address(endpoint);
            self.observe_pool(PoolNews::Abandoned { endpoint });
        }
        self.apply_decisions(now, Some((id, labels)));
    }
}
