//! Attempts of granted requests that failed before a byte of an answer was passed on, and what may be tried again.
//!
//! | what happened | what follows |
//! |---|---|
//! | the connection failed | The request goes elsewhere, as often as needed: it never reached a server. |
//! | 429, 503 | The server's bound falls, and the request goes elsewhere or waits. Whoever is refused again by a server that has served others since and has nothing else to do is refused for what it asks: that answer is the client's. With less to do than the last time, the refusal says nothing about the server's bound. |
//! | 500, 502, 504 | The request goes elsewhere. The second answer of one server is the client's: it would be the same again. |
//! | 404, from a server that hasn't served the model lately | The request goes elsewhere once, and the model avoids that server for a while. |
//! | the connection was cut after the request was sent | The request goes elsewhere `queue.resets` times, because it may be what ends servers. |
//! | no byte of an answer came in time | The same: the request may be what servers hang on. |
//! | a connection was cut that had carried another request | The server has closed it meanwhile, and didn't read the request: nothing happened. |
//! | Envoy had no file descriptor | The server has nothing to do with it. |
//!
//! Whether an attempt may be the last one is decided at its grant, because Envoy passes an answer on or discards it without asking.

use core::time::Duration;

use penstock_engine::input::{
    AnswerResult, EndpointAnswer, EndpointId, Fault, Input, Kind, RequestId, Service,
};
use penstock_engine::{Instant, Outcome};

use super::request::{FailedAt, OpenRequest, Refusal};
use super::{Pool, PoolEffect};
use crate::answer;
use crate::completion::Completion;
use crate::failed_attempt::{AttemptEnd, FailedAttempt};
use crate::limits::FAILED_AT_MAX;
use crate::observation::PoolNews;
use crate::rejection::Rejection;

/// The endpoint of two that has failed a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Culprit {
    /// The one that answers.
    Answering,
    /// The one that computes the prompt.
    Prefilling,
}

/// How an attempt is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AttemptRules {
    /// The client gets the server's answer, whatever its status.
    pub(super) is_final: bool,
    /// After a 404 the request goes elsewhere.
    pub(super) retries_not_found: bool,
    /// Other requests that the endpoint has.
    pub(super) others: u64,
}

impl Pool {
    /// An attempt to send a request failed. A report about an earlier attempt of the request is only counted.
    pub(super) fn attempt_failed(&mut self, now: Instant, id: Option<RequestId>, attempt: FailedAttempt<'_>) {
        let Some(endpoint) = self.endpoint(attempt.endpoint) else {
            return;
        };
        match attempt.end {
            AttemptEnd::Status(status @ (429 | 503)) => {
                let endpoint = self.endpoints.address(endpoint);
                self.observe_pool(PoolNews::PushedBack { endpoint, status });
            }
            AttemptEnd::Unsent => self.observe_pool(PoolNews::OutOfFiles),
            AttemptEnd::Status(_) | AttemptEnd::Cut { .. } | AttemptEnd::TimedOut => {}
        }
        let is_granted = |id: &RequestId| {
            let granted = self.requests.get(id).and_then(OpenRequest::granted);
            granted.is_some_and(|granted| granted.grant.contains(attempt.endpoint))
        };
        let Some(id) = id.filter(is_granted) else {
            return;
        };
        self.not_taken(now, id, endpoint, attempt);
    }

    /// `endpoint` didn't answer a granted request, or by an error. The engine learns of it once for each attempt.
    fn not_taken(&mut self, now: Instant, id: RequestId, endpoint: EndpointId, attempt: FailedAttempt<'_>) {
        let mut end = attempt.end;
        if end == AttemptEnd::Unsent {
            return self.unsent_to(id, endpoint);
        }
        let others = self.others_at(endpoint);
        // Its sidecar passes on what another endpoint answers. The next attempt goes to one endpoint alone.
        let is_shared = self.engine.prefill_endpoint_of(id).is_some();
        let served = self.endpoints.get(endpoint).map_or(0, |endpoint| endpoint.served);
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        let (kind, stale_cuts) = (request.kind, request.stale_cuts);
        let Some(granted) = request.granted_mut().filter(|granted| granted.refusal_at(endpoint).is_none())
        else {
            return;
        };
        if let AttemptEnd::Cut { is_reused } = &mut end {
            // A server that cuts again and again does more than close idle connections.
            *is_reused &= stale_cuts < STALE_CUTS_MAX;
        }
        let refusal = Refusal { endpoint, end, retry_after: attempt.retry_after.unwrap_or_default() };
        granted.refusals = granted.refusals.iter().copied().chain([refusal]).collect();
        let is_final = granted.grant.is_final;
        // Of those that were sent before it, some may have been refused since; of those that are there now, some may have come later.
        let others = others.min(granted.grant.others);
        let mut is_about_request = false;
        match end {
            AttemptEnd::Cut { is_reused: false } | AttemptEnd::TimedOut => {
                request.resets = request.resets.saturating_add(1);
            }
            AttemptEnd::Status(status) => {
                let mut earlier = request.failed_at.iter().filter(|failed| failed.endpoint == endpoint);
                is_about_request = earlier.any(|failed| served > failed.served && others < failed.others);
                if request.failed_at.len() >= FAILED_AT_MAX {
                    request.failed_at.remove(0);
                }
                request.failed_at.push(FailedAt { endpoint, status, served, others });
            }
            AttemptEnd::Cut { is_reused: true } => request.stale_cuts = stale_cuts.saturating_add(1),
            AttemptEnd::Unsent => {}
        }
        match end {
            AttemptEnd::Status(status @ (429 | 503)) => {
                if !is_final {
                    self.attempt_answered(now, id, endpoint, AnswerResult::Refused(status));
                }
                if !is_final && !is_about_request && !is_shared {
                    self.decide(now, Input::PushedBack { id, endpoint });
                }
            }
            AttemptEnd::Status(status @ 500..) => {
                self.attempt_answered(now, id, endpoint, AnswerResult::Failed(Fault::Status(status)));
            }
            AttemptEnd::Status(status) => {
                if !is_shared {
                    self.model_not_found(now, endpoint, kind, status);
                }
                self.attempt_answered(now, id, endpoint, AnswerResult::Rejected(status));
            }
            AttemptEnd::Cut { is_reused: false } => {
                self.attempt_answered(now, id, endpoint, AnswerResult::Failed(Fault::Cut));
                // The server may have ended, and its cache with it.
                self.decide(now, Input::Restarted(endpoint));
            }
            AttemptEnd::TimedOut => {
                self.attempt_answered(now, id, endpoint, AnswerResult::Failed(Fault::Timeout));
            }
            AttemptEnd::Cut { is_reused: true } | AttemptEnd::Unsent => {}
        }
    }

    /// Envoy couldn't send a granted request to `endpoint`, for a reason that isn't the endpoint's.
    fn unsent_to(&mut self, id: RequestId, endpoint: EndpointId) {
        let granted = self.requests.get_mut(&id).and_then(OpenRequest::granted_mut);
        // A repeated report must not make the list longer.
        if let Some(granted) = granted.filter(|granted| !granted.unsent.contains(&endpoint)) {
            granted.unsent = granted.unsent.iter().copied().chain([endpoint]).collect();
        }
    }

    /// The input with which a request that no endpoint took returns to its place. `failed_attempt`: the last that its filter knows
    /// of, though that report may come later.
    pub(super) fn return_input(
        &mut self,
        now: Instant,
        id: RequestId,
        failed_attempt: Option<FailedAttempt<'_>>,
    ) -> Input {
        let granted = self.requests.get(&id).and_then(OpenRequest::granted);
        let last = granted.and_then(|granted| granted.grant.endpoints.last());
        let Some((address, endpoint)) = last.and_then(|address| Some((&**address, self.endpoint(address)?)))
        else {
            return Input::Retry(id);
        };
        let is_here =
            |attempt: &FailedAttempt<'_>| attempt.endpoint.is_empty() || attempt.endpoint == address;
        if let Some(attempt) = failed_attempt.filter(is_here) {
            self.not_taken(now, id, endpoint, attempt);
        }
        let granted = self.requests.get(&id).and_then(OpenRequest::granted);
        match granted.and_then(|granted| granted.refusal_at(endpoint)) {
            Some(Refusal { end: AttemptEnd::Status(429 | 503), retry_after, .. }) => {
                Input::Refused { id, retry_after: *retry_after }
            }
            // The server hasn't seen it.
            Some(Refusal { end: AttemptEnd::Cut { is_reused: true }, .. }) => Input::Requeue(id),
            Some(_) | None => Input::Retry(id),
        }
    }

    /// Servers have cut the connections of the request, or let its time run out, more often than `queue.resets` allows.
    pub(super) fn has_used_resets(&self, id: RequestId) -> bool {
        self.requests.get(&id).is_some_and(|request| request.resets > self.rules.resets_max)
    }

    /// Answers a granted request that servers cut or left without an answer: it may be the cause.
    pub(super) fn reject_cut(&mut self, now: Instant, id: RequestId) {
        let Some(request) = self.close(id) else {
            return;
        };
        let last = request.granted().and_then(|granted| granted.refusals.last());
        let answer = match last.map(|refusal| refusal.end) {
            Some(AttemptEnd::TimedOut) => answer::upstream_timeout(),
            _ => answer::upstream_reset(),
        };
        let outcome = request.admitted.unwrap_or(Outcome::Dispatched);
        let waited = request.waited().unwrap_or_default();
        self.observe_dropped(&request, outcome, Some((answer.status, answer.code)), waited);
        let rejection = Rejection::new(answer, outcome, waited, None, self.saturation_milli());
        self.effects.push_back(PoolEffect::Reject { key: request.key, rejection });
        self.end(now, id, Input::Completed { id, service: Service::Nothing }, &request);
    }

    /// How the next attempt of a request is sent, which goes to `endpoint`.
    pub(super) fn attempt_rules(&self, id: RequestId, endpoint: Option<EndpointId>) -> AttemptRules {
        let Some((request, endpoint)) = self.requests.get(&id).zip(endpoint) else {
            return AttemptRules::default();
        };
        let has_choice = self.engine.ready_count() > 1 && request.constraints.is_none();
        let has_met_404 = || request.failed_at.iter().any(|failed| failed.status == 404);
        AttemptRules {
            is_final: !request.failed_at.is_empty() && self.is_last_answer(request, endpoint),
            retries_not_found: has_choice
                && !self.engine.has_served(endpoint, request.kind)
                && !has_met_404(),
            others: self.others_at(endpoint),
        }
    }

    /// The endpoint has answered the request by an error before, and would again.
    fn is_last_answer(&self, request: &OpenRequest, endpoint: EndpointId) -> bool {
        let served = self.endpoints.get(endpoint).map_or(0, |endpoint| endpoint.served);
        let others = self.others_at(endpoint);
        let mut failed = request.failed_at.iter().filter(|failed| failed.endpoint == endpoint);
        failed.any(|failed| match failed.status {
            // Beside others, a server that is full refuses whichever request comes last.
            429 | 503 => served > failed.served && others == 0,
            _ => true,
        })
    }

    /// The requests that an endpoint has, without the one in question, which counts there already.
    fn others_at(&self, endpoint: EndpointId) -> u64 {
        self.engine.taken_at(endpoint).saturating_sub(1)
    }

    /// The engine learns what an endpoint did with a granted request.
    pub(super) fn attempt_answered(
        &mut self,
        now: Instant,
        id: RequestId,
        endpoint: EndpointId,
        result: AnswerResult,
    ) {
        let Some(request) = self.requests.get(&id) else {
            return;
        };
        let Some(granted) = request.granted() else {
            return;
        };
        let is_hidden =
            granted.grant.may_requeue && !granted.grant.is_final && granted.refusal_at(endpoint).is_some();
        let answer = EndpointAnswer {
            request: id,
            endpoint,
            kind: request.kind,
            sent_ago: now.since(granted.grant.granted_at),
            result,
            has_begun: request.has_begun,
            is_hidden,
        };
        match self.engine.prefill_endpoint_of(id) {
            None => self.record_answer(now, answer),
            Some(prefill) => self.answered_by_two(now, answer, prefill),
        }
    }

    /// A request has an answer, or none, of which `prefill` has computed, or should have computed, the prompt.
    fn answered_by_two(&mut self, now: Instant, answer: EndpointAnswer, prefill: EndpointId) {
        let of_prefill = EndpointAnswer { endpoint: prefill, has_begun: false, ..answer };
        match answer.result {
            // The prompt of an answer that had begun was computed.
            AnswerResult::Failed(_) if !answer.has_begun => {
                match self.failed_the_other(answer.endpoint, prefill) {
                    Culprit::Answering => self.record_answer(now, answer),
                    Culprit::Prefilling => self.record_answer(now, of_prefill),
                }
            }
            AnswerResult::Begun | AnswerResult::Served if !answer.has_begun => {
                self.record_answer(now, answer);
                self.record_answer(now, EndpointAnswer { result: AnswerResult::Served, ..of_prefill });
                if let Some(endpoint) = self.endpoints.get_mut(prefill) {
                    endpoint.last_failed_with = None;
                }
            }
            _ => self.record_answer(now, answer),
        }
    }

    /// Which of two endpoints has failed a request that both computed. It shows over several requests: `prefill` has if it failed one before
    /// with another partner, or if this partner has served others since, and no prompt of `prefill` was answered in between. Once one of them
    /// is known to fail, its partner isn't blamed for what they still have together.
    fn failed_the_other(&mut self, answering: EndpointId, prefill: EndpointId) -> Culprit {
        if !self.engine.is_healthy(prefill) {
            return Culprit::Prefilling;
        }
        if !self.engine.is_healthy(answering) {
            return Culprit::Answering;
        }
        let served = self.endpoints.get(answering).map_or(0, |endpoint| endpoint.served);
        let endpoint = self.endpoints.get_mut(prefill);
        let before = endpoint.and_then(|endpoint| endpoint.last_failed_with.replace((answering, served)));
        match before {
            Some((partner, served_then)) if partner != answering || served > served_then => {
                Culprit::Prefilling
            }
            _ => Culprit::Answering,
        }
    }

    pub(super) fn record_answer(&mut self, now: Instant, answer: EndpointAnswer) {
        if answer.result == AnswerResult::Served
            && let Some(endpoint) = self.endpoints.get_mut(answer.endpoint)
        {
            endpoint.served = endpoint.served.saturating_add(1);
        }
        self.decide(now, Input::Answered(answer));
    }

    /// A granted request has ended at an endpoint. What the log of attempts has reported is known already.
    pub(super) fn answered_at_end(&mut self, now: Instant, id: RequestId, completion: &Completion<'_>) {
        let endpoint = completion.endpoint.and_then(|address| self.endpoint(address));
        let Some((endpoint, result)) = endpoint.zip(completion.result) else {
            return;
        };
        let Some(request) = self.requests.get(&id) else {
            return;
        };
        let kind = request.kind;
        let is_known = request.granted().is_none_or(|granted| granted.refusal_at(endpoint).is_some());
        if is_known {
            return;
        }
        let is_shared = self.engine.prefill_endpoint_of(id).is_some();
        match result {
            AnswerResult::Rejected(status) if !is_shared => {
                self.model_not_found(now, endpoint, kind, status);
            }
            AnswerResult::Refused(_) if !is_shared => self.decide(now, Input::PushedBack { id, endpoint }),
            _ => {}
        }
        self.attempt_answered(now, id, endpoint, result);
    }

    /// A server answered a request for a model with this status. After a 404, requests for the model avoid it, unless it has served the model.
    pub(super) fn model_not_found(&mut self, now: Instant, endpoint: EndpointId, kind: Kind, status: u16) {
        if status != 404 || self.engine.listed_count() < 2 || self.engine.has_served(endpoint, kind) {
            return;
        }
        let is_served = self.engine.is_served(kind);
        self.missing_models.insert(now, endpoint, kind, is_served);
        if is_served {
            // Filters that admit requests by themselves don't look at the model.
            self.recall_credits(|_| true);
        }
    }

    /// An answer to a request has begun, with this status.
    pub(super) fn begun(&mut self, now: Instant, id: RequestId, address: Option<&str>, status: u16) {
        let endpoint = address.and_then(|address| self.endpoint(address));
        let is_good = (200..300).contains(&status);
        let Some(endpoint) = endpoint.filter(|_| is_good) else {
            return;
        };
        let has_begun = self.requests.get(&id).is_none_or(|request| request.has_begun);
        if has_begun {
            return;
        }
        self.attempt_answered(now, id, endpoint, AnswerResult::Begun);
        if let Some(request) = self.requests.get_mut(&id) {
            request.has_begun = true;
        }
    }
}

/// Cuts of connections that had carried another request before, which don't count against a request.
const STALE_CUTS_MAX: u32 = 3;

/// The time for which a model avoids an endpoint that didn't have it.
pub(super) const MISSING_FOR: Duration = Duration::from_secs(60);
