//! Requests that filters admitted by credit, and report at their end.
//!
//! Nothing can happen to such a request any more, so it is counted at once: it is never among the open requests.

use std::sync::Arc;

use penstock_engine::input::{AnswerResult, EndpointAnswer, EndpointId, Request, Service};
use penstock_engine::{Instant, Outcome};

use super::input::Registering;
use super::lifecycle::Admission;
use super::{Pool, PoolEffect};
use crate::completion::Completion;
use crate::cost_trace::CostEventKind;
use crate::labels::Labels;
use crate::registration::{Arrival, Running};

/// The end of a request that a filter admitted by credit, at the endpoint for which it was admitted and where an answer had begun. Every
/// other end may show something of the endpoints, so that request is opened first, as one that asked.
#[derive(Clone, Copy)]
pub(super) struct EndedThere<'a> {
    running: Running<'a>,
    completion: &'a Completion<'a>,
}

impl<'a> EndedThere<'a> {
    /// `None`: the request runs, or its end is another one.
    pub(super) fn of(registering: &Registering<'a>) -> Option<Self> {
        let Arrival::ByCredit { running, end, .. } = registering.arrival else {
            return None;
        };
        let completion = end.filter(|end| end.endpoint == Some(running.endpoint) && !end.is_unanswered)?;
        let is_first = registering.previous_key.is_none();
        is_first.then_some(Self { running, completion })
    }
}

impl Pool {
    /// Counts a request that has ended.
    pub(super) fn count_ended(
        &mut self,
        now: Instant,
        registering: &Registering<'_>,
        request: Request,
        labels: &Arc<Labels>,
        endpoint: EndpointId,
        end: EndedThere<'_>,
    ) {
        let EndedThere { running, completion } = end;
        let (id, key) = (request.id, registering.registration.key);
        let admission = Admission {
            outcome: Outcome::Leased,
            arrived: request.arrived,
            waited: now.before(running.age).since(request.arrived),
            requeues: 0,
            sequences: registering.registration.asked().sequences,
            extra: false,
        };
        self.model_counts.passed(now, &labels.model);
        self.observe_arrival(registering, labels);
        self.observe_admitted(registering, labels, endpoint);
        self.avoided.remove(registering.peer.envoy, endpoint);
        self.add_by_credit(now, key.epoch, request, endpoint, None);
        let counted = self.count(completion, &registering.registration.asked());
        let service = counted.service;
        if let Some(result) = completion.result {
            let kind = registering.registration.kind(&labels.model.target);
            if let AnswerResult::Rejected(status) = result {
                self.model_not_found(now, endpoint, kind, status);
            }
            let sent_ago = running.age;
            self.record_answer(
                now,
                EndpointAnswer {
                    request: id,
                    endpoint,
                    kind,
                    sent_ago,
                    result,
                    has_begun: false,
                    is_hidden: false,
                },
            );
        }
        if let Some(granted) = self.expected_usage(id, endpoint) {
            let served = completion.served(&counted).filter(|_| service != Service::Nothing);
            self.autopilot.admitted_by_credit_and_ended(now, id, granted, served);
        }
        self.apply_decisions(now, None);
        let news = self.completion_news(now, &admission, completion, &counted);
        self.observe_estimate(service, &counted);
        self.observe_request(labels.clone(), news);
        self.effects.push_back(PoolEffect::Counted(key));
        self.record_cost_event(|| CostEventKind::Ended { id, service });
        self.end_in_engine(now, id, completion.input(id, service), labels);
    }
}
