//! Requests that run and are asked to end, because a critical request waits for their place.
//!
//! The filter ends a request only if its server hasn't begun to respond, and reports it as every other end. Otherwise the request runs on, and
//! the filter reports that it has begun. A command that was lost with its stream is repeated after the next Hello.

use std::sync::Arc;

use penstock_engine::input::{Input, RequestId};
use penstock_engine::{Instant, Outcome, effect};

use super::request::OpenRequest;
use super::{Pool, PoolEffect};
use crate::answer;
use crate::registration::Running;
use crate::rejection::Rejection;

impl Pool {
    /// The engine asks for the end of a granted request.
    pub(super) fn evict(&mut self, now: Instant, decided: effect::Evict) {
        let effect::Evict { id, waited: _, retry_after } = decided;
        let rules = &self.rules;
        let answer = answer::for_outcome(Outcome::Evicted, &self.name, &rules.policy, rules.capacity_status);
        let rate_limit = self.rate_limit_of(now, id);
        let saturation_milli = self.saturation_milli();
        let Some((answer, request)) = answer.zip(self.requests.get_mut(&id)) else {
            return;
        };
        let waited = request.waited().unwrap_or_default();
        let Some(granted) = request.granted_mut() else {
            return;
        };
        let rejection = Rejection::new(answer, Outcome::Evicted, waited, Some(retry_after), saturation_milli);
        granted.evicted = Some(Arc::new(rejection.with_rate_limit(rate_limit)));
        self.send_eviction(id);
    }

    /// Sends the command for a request that is asked to end.
    fn send_eviction(&mut self, id: RequestId) {
        let Some(request) = self.requests.get(&id) else {
            return;
        };
        if let Some(rejection) = request.granted().and_then(|granted| granted.evicted.clone()) {
            self.effects.push_back(PoolEffect::Evict { key: request.key, rejection });
        }
    }

    /// The server of a granted request has begun to respond.
    pub(super) fn responds(&mut self, now: Instant, id: RequestId) {
        let granted = self.requests.get_mut(&id).and_then(OpenRequest::granted_mut);
        if let Some(granted) = granted {
            granted.evicted = None;
            // Also without evictions: they may be switched on while it runs.
            self.decide(now, Input::Begun(id));
        }
    }

    /// A Hello reports how far a request has come.
    pub(super) fn has_come_to(&mut self, now: Instant, id: RequestId, running: Running<'_>) {
        self.first_token(now, id, running.has_first_token);
        // Its client has received a part of the answer.
        let is_kept_alive = self.requests.get(&id).is_some_and(|request| request.is_kept_alive);
        if running.has_begun || is_kept_alive {
            self.responds(now, id);
        } else {
            // The command may have been lost with the last stream.
            self.send_eviction(id);
        }
    }
}
