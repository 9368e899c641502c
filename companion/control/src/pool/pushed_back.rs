//! Servers that refuse a request by themselves, before a response: their bounds fall, and the request goes elsewhere.

use core::time::Duration;

use penstock_engine::Instant;
use penstock_engine::input::{EndpointId, Input, RequestId};

use super::Pool;
use super::request::{OpenRequest, Refusal};
use crate::observation::PoolNews;
use crate::pushback::Pushback;

impl Pool {
    /// A server refused a request, or Envoy couldn't send it. A report about an earlier attempt of the request is only counted.
    pub(super) fn pushed_back(&mut self, now: Instant, id: Option<RequestId>, pushback: Pushback<'_>) {
        let Some(endpoint) = self.endpoint(pushback.endpoint) else {
            return;
        };
        self.observe_pool(match pushback.status {
            Some(status) => PoolNews::PushedBack { endpoint: self.endpoints.address(endpoint), status },
            None => PoolNews::OutOfFiles,
        });
        let is_granted = |id: &RequestId| {
            let granted = self.requests.get(id).and_then(OpenRequest::granted);
            granted.is_some_and(|granted| granted.grant.contains(pushback.endpoint))
        };
        let Some(id) = id.filter(is_granted) else {
            return;
        };
        self.not_taken(now, id, endpoint, pushback);
    }

    /// `endpoint` didn't take a granted request, and hasn't failed it.
    fn not_taken(&mut self, now: Instant, id: RequestId, endpoint: EndpointId, pushback: Pushback<'_>) {
        match pushback.status {
            Some(_) => self.refused_at(now, id, endpoint, pushback.retry_after.unwrap_or_default()),
            None => self.unsent_to(id, endpoint),
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

    /// `endpoint` refused a granted request. The engine learns of it once for each attempt.
    fn refused_at(&mut self, now: Instant, id: RequestId, endpoint: EndpointId, retry_after: Duration) {
        let granted = self.requests.get_mut(&id).and_then(OpenRequest::granted_mut);
        let Some(granted) = granted.filter(|granted| granted.refusal_at(endpoint).is_none()) else {
            return;
        };
        let refusal = Refusal { endpoint, retry_after };
        granted.refusals = granted.refusals.iter().copied().chain([refusal]).collect();
        self.decide(now, Input::PushedBack { id, endpoint });
    }

    /// The input with which a request that no endpoint took returns to its place. `failed_attempt`: the last that its filter knows
    /// of, though that report may come later.
    pub(super) fn return_input(
        &mut self,
        now: Instant,
        id: RequestId,
        failed_attempt: Option<Pushback<'_>>,
    ) -> Input {
        let granted = self.requests.get(&id).and_then(OpenRequest::granted);
        let last = granted.and_then(|granted| granted.grant.endpoints.last());
        let Some((address, endpoint)) = last.and_then(|address| Some((&**address, self.endpoint(address)?)))
        else {
            return Input::Retry(id);
        };
        let is_here = |attempt: &Pushback<'_>| attempt.endpoint.is_empty() || attempt.endpoint == address;
        if let Some(attempt) = failed_attempt.filter(is_here) {
            self.not_taken(now, id, endpoint, attempt);
        }
        let granted = self.requests.get(&id).and_then(OpenRequest::granted);
        match granted.and_then(|granted| granted.refusal_at(endpoint)) {
            Some(refusal) => Input::Refused { id, retry_after: refusal.retry_after },
            None => Input::Retry(id),
        }
    }
}
