//! Requests that filters admitted by credit, and report at their end.
//!
//! Nothing can happen to such a request any more, so it is counted at once: it is never among the open requests.

use core::time::Duration;

use penstock_engine::Instant;
use penstock_engine::input::{EndpointId, Input, Request, Service};

use super::input::Registering;
use super::lifecycle::Admission;
use super::{Pool, PoolEffect};
use crate::completion::Completion;
use crate::registration::Arrival;

/// The end of a request that a filter admitted by credit, if the request ended at the endpoint for which it was admitted, and an answer
/// had begun there. Every other end may show something of the endpoints, so that request is opened first, as one that asked.
pub(super) fn ended_there<'a>(registering: &Registering<'a>) -> Option<&'a Completion<'a>> {
    let Arrival::Leased { running, end, .. } = registering.arrival else {
        return None;
    };
    let is_there = |completion: &&Completion<'_>| completion.endpoint == Some(running.endpoint);
    end.filter(|completion| !completion.is_unanswered && registering.previous_key.is_none())
        .filter(is_there)
}

impl Pool {
    /// Counts a request for which [`ended_there`] is true.
    pub(super) fn count_ended(
        &mut self,
        now: Instant,
        registering: &Registering<'_>,
        request: Request,
        admission: &Admission<'_>,
        endpoint: EndpointId,
        completion: &Completion<'_>,
    ) {
        let (id, key) = (request.id, registering.registration.key);
        let &Admission { labels, outcome, .. } = admission;
        self.model_counts.passed(now, &labels.model);
        self.observe_arrival(registering, labels);
        if !registering.has_outcome {
            let address = self.endpoints.address(endpoint);
            self.observe_decided(labels, outcome, "", Duration::ZERO, address, false);
        }
        self.avoided.remove(registering.peer.envoy, endpoint);
        self.add_leased(now, key.epoch, request, endpoint, None);
        let service = completion.service;
        if let Some(granted) = self.expected_usage(id, endpoint) {
            let served = completion.served.filter(|_| service != Service::Nothing);
            self.autopilot.leased_and_ended(now, id, granted, served);
        }
        self.apply_decisions(now, None);
        let observation = self.completion_observation(now, admission, completion);
        self.observe(observation);
        self.effects.push_back(PoolEffect::Counted(key));
        self.engine.handle(now, Input::Completed { id, service });
        self.apply_decisions(now, Some((id, labels)));
    }
}
