//! A request on its way: its client leaves, a server answers, servers fail it, it ends.
//!
//! A name that is moved stands for a request that goes by another: nothing that is said under it changes anything but
//! that it needn't be remembered any more.

use core::time::Duration;

use penstock_engine::input::{Input, RequestId, Service, Usage};
use penstock_engine::{Instant, Outcome};
use penstock_wire as wire;

use crate::control::Control;
use crate::convert;
use crate::event::Observation;
use crate::register::{Entry, Name, Stage};

/// Served, and nobody counted.
pub(crate) const AT_ESTIMATE: Service = Service::Served(Usage {
    prompt: None,
    cached: None,
    output: None,
});

impl Control {
    /// The client of a request has gone before it went.
    pub(crate) fn cancel(&mut self, now: Instant, name: Name) {
        self.requests.forget(name);
        let Some(id) = self.requests.find(name) else {
            return;
        };
        let Some(entry) = self.requests.get(id) else {
            return;
        };
        if entry.waits() {
            let pool = entry.pool;
            self.decide(now, pool, Input::Cancel(id));
        } else {
            // The grant crossed the cancel: it was never sent.
            self.settle(now, id, Service::Nothing);
        }
    }

    /// A granted request has ended, and no server was seen to end it.
    pub(crate) fn settle(&mut self, now: Instant, id: RequestId, service: Service) {
        if let Some(entry) = self.requests.close(id) {
            if let (Some(outcome), Some(waited)) = (entry.admitted, entry.since_arrival(0)) {
                self.dropped(&entry.labels, outcome, "", waited);
            }
            self.decide(now, entry.pool, Input::Completed { id, service });
        }
    }

    /// A server answers.
    pub(crate) fn begun(&mut self, now: Instant, name: Name, from: &wire::Started) {
        if let Some(id) = self.requests.find(name) {
            self.sent(now, id, &from.endpoint, from.attempts);
        }
    }

    /// Envoy sent a granted request to this address, after so many attempts.
    fn sent(&mut self, now: Instant, id: RequestId, address: &str, attempts: u32) {
        let Some(entry) = self.requests.get(id) else {
            return;
        };
        let Stage::Granted { grant, misrouted, .. } = &entry.stage else {
            return;
        };
        if address.is_empty() {
            return;
        }
        let pool = entry.pool;
        let place = grant.endpoints.iter().position(|granted| granted == address);
        let endpoint = self.pools[pool].endpoint(address);
        let attempts = usize::try_from(attempts).unwrap_or(usize::MAX);
        let passed_over = match place {
            // It went the whole list, and to the gateway itself, to enter again.
            None if grant.requeue && endpoint.is_none() => {
                let all = grant.endpoints.len();
                return self.failed(now, id, all);
            }
            _ if *misrouted => 0,
            None => grant.endpoints.len(),
            // One that Envoy's cluster doesn't have is passed over without an attempt.
            Some(place) if attempts == 1 => place,
            Some(_) => 0,
        };
        if passed_over > 0 {
            self.passed_over(now, id, passed_over);
        }
        match place {
            None => self.misrouted(id, address),
            Some(place) if attempts == place + 1 => self.failed(now, id, place),
            Some(_) => {}
        }
        let Some(endpoint) = endpoint else {
            return;
        };
        if let Some(envoy) = self.envoy_of(id) {
            self.envoys.uses(envoy, pool, endpoint);
        }
        // Mostly it went where it was granted: the engine has it there.
        if self.pools[pool].engine.endpoint_of(id) != Some(endpoint) {
            self.decide(now, pool, Input::Sent { id, endpoint });
        }
    }

    /// Its Envoy sent it to another endpoint than it was granted: counted once.
    fn misrouted(&mut self, id: RequestId, address: &str) {
        let Some(Entry {
            labels,
            stage: Stage::Granted { misrouted, .. },
            ..
        }) = self.requests.get_mut(id)
        else {
            return;
        };
        let labels = labels.clone();
        if !core::mem::replace(misrouted, true) {
            let endpoint = address.into();
            self.observe(Observation::Misrouted { labels, endpoint });
        }
    }

    fn envoy_of(&self, id: RequestId) -> Option<crate::envoys::Envoy> {
        let epoch = self.requests.get(id)?.name.epoch;
        self.requests.contexts.get(&epoch).map(|context| context.envoy)
    }

    /// Its Envoy passed over the first `count` of the endpoints it was granted.
    fn passed_over(&mut self, now: Instant, id: RequestId, count: usize) {
        let Some(envoy) = self.envoy_of(id) else {
            return;
        };
        let Some(Entry {
            pool,
            stage: Stage::Granted { grant, .. },
            ..
        }) = self.requests.get(id)
        else {
            return;
        };
        for address in grant.endpoints.iter().take(count) {
            if let Some(endpoint) = self.pools[*pool].endpoint(address) {
                self.envoys.avoid(now, envoy, *pool, endpoint);
            }
        }
    }

    /// The first `count` of the endpoints that a request was granted failed it: each is told once.
    pub(crate) fn failed(&mut self, now: Instant, id: RequestId, count: usize) {
        let Some(Entry {
            pool,
            stage: Stage::Granted { grant, failed, .. },
            ..
        }) = self.requests.get_mut(id)
        else {
            return;
        };
        let pool = *pool;
        let news: Vec<_> = grant
            .endpoints
            .iter()
            .take(count)
            .skip(*failed)
            .filter_map(|address| self.pools[pool].endpoint(address))
            .collect();
        *failed = (*failed).max(count);
        for endpoint in news {
            self.decide(now, pool, Input::Failed { id, endpoint });
        }
    }

    /// A granted request has ended.
    pub(crate) fn completed(&mut self, now: Instant, name: Name, from: &wire::Completed) {
        self.requests.forget(name);
        let Some(id) = self.requests.find(name) else {
            return;
        };
        self.sent(now, id, &from.endpoint, from.attempts);
        match from.end() {
            wire::EndReason::Unavailable | wire::EndReason::ResetBeforeAnswer => {
                self.failed(now, id, usize::try_from(from.attempts).unwrap_or(usize::MAX));
            }
            wire::EndReason::Unspecified
            | wire::EndReason::Served
            | wire::EndReason::ClientLeft
            | wire::EndReason::ResetInsideAnswer => {}
        }
        let Some(entry) = self.requests.get(id) else {
            return;
        };
        let Stage::Granted { grant, .. } = &entry.stage else {
            // It was granted by nobody we know of; what it waits for here is over.
            let pool = entry.pool;
            return self.decide(now, pool, Input::Cancel(id));
        };
        // On its way to enter again nobody serves it.
        let reentering = grant.requeue
            && !from.endpoint.is_empty()
            && !grant.endpoints.contains(&from.endpoint)
            && self.pools[entry.pool].endpoint(&from.endpoint).is_none()
            && from.end() != wire::EndReason::Served;
        let service = if reentering {
            Service::Nothing
        } else {
            convert::service(from)
        };
        if let (Service::Served(_), Some(served)) = (service, convert::served(from)) {
            self.pools[entry.pool].autopilot.served(now, id, served);
        }
        let output_tokens = convert::output_tokens(from);
        let ttft = from.first_byte_us.and_then(|first| entry.since_arrival(first));
        let itl = match (from.first_byte_us, from.last_byte_us, output_tokens) {
            (Some(first), Some(last), Some(tokens)) if tokens > 1 && last > first => {
                Some(Duration::from_micros((last - first) / (tokens - 1)))
            }
            _ => None,
        };
        let completed = Observation::Completed {
            labels: entry.labels.clone(),
            outcome: entry.admitted.unwrap_or(Outcome::Dispatched),
            waited: entry.since_arrival(0).unwrap_or_default(),
            endpoint: self.pools[entry.pool].shared_address(&from.endpoint),
            status: u16::try_from(from.status).unwrap_or(0),
            ttft,
            itl,
            duration: now.since(entry.arrived),
            prompt_tokens: from.prompt_tokens,
            output_tokens,
        };
        let pool = entry.pool;
        self.observe(completed);
        self.requests.close(id);
        self.decide(now, pool, Input::Completed { id, service });
    }

    /// The filter answered by itself.
    pub(crate) fn refused(&mut self, now: Instant, name: Name, from: &wire::Refused) {
        if self.requests.find(name).is_some() {
            // It leaves our queue: counted there, as cancelled, or as granted before.
            return self.cancel(now, name);
        }
        if self.requests.forget(name) || !self.requests.count(name) {
            return;
        }
        let labels = self.labels_of_refused(from);
        self.observe(Observation::Arrived(labels.clone()));
        self.observe(Observation::Refused {
            labels,
            outcome: from.outcome.as_str().into(),
            code: from.code.as_str().into(),
        });
    }
}
