//! A request asks to go: whose it is, which pool's, and what of its claims reaches the engine.

use core::time::Duration;
use std::sync::Arc;

use penstock_engine::input::{Band, Input};
use penstock_engine::{Instant, Outcome};
use penstock_wire as wire;
use wire::command::Kind;

use crate::answer::{self, Answer};
use crate::constraints::Constraints;
use crate::control::Control;
use crate::convert;
use crate::decisions::reject;
use crate::event::{Labels, Observation};
use crate::limits::{REQUESTS_IN_ALL_MAX, REQUESTS_MAX};
use crate::register::{Entry, Name, Stage};
use crate::session::Epoch;
use crate::status::named;
use crate::trust;

/// How a request comes in.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// It has just arrived.
    New,
    /// It waited at a filter, for another companion or over another stream.
    Waiting,
    /// It runs already, granted by another companion.
    Running {
        /// As that companion must have said it.
        grant: Box<wire::Grant>,
        /// Since it was granted.
        age: Duration,
    },
}

impl Control {
    /// A request asks to go, or runs already.
    pub(crate) fn register(&mut self, now: Instant, epoch: Epoch, from: &wire::Register, how: Arrival) {
        let name = Name {
            epoch,
            sequence: from.sequence,
        };
        let Some(context) = self.requests.contexts.get(&epoch) else {
            return;
        };
        let (version, envoy, count) = (context.version, context.envoy, context.requests.len());
        if context.requests.contains_key(&name.sequence) || self.requests.moved(name).is_some() {
            return;
        }
        let runs = matches!(how, Arrival::Running { .. });
        // What was refused here may have been let go meanwhile, by its filter itself: it runs, with the outcome it has.
        let has_outcome = self.requests.has_ended(name);
        if has_outcome && !runs {
            return self.say_again(name);
        }
        let origin = from
            .requeued_from
            .as_ref()
            .map(Name::from)
            .filter(|origin| *origin != name);
        let Some((origin, how)) = self.reenter(now, name, from, origin, how) else {
            return;
        };
        let ended = origin.is_some_and(|origin| self.requests.has_ended(origin));
        let (origin, has_outcome) = (origin.filter(|_| !ended), has_outcome || ended);
        if !convert::is_bounded(from) {
            let nameless = wire::Register::default();
            let (band, outcome) = (Band::Default, Outcome::RejectedInvalid);
            return self.refuse(name, &nameless, band, answer::too_long(), outcome);
        }
        let tenant = from.fairness_id.as_str();
        let (from, trusted) = trust::counted(from, version, &self.settings.policy);
        let claim = self.claim(&from, tenant, trusted);
        let Some(pool) = self.pool_of(&from.model) else {
            let answer = answer::unknown_model(&from.model);
            return self.refuse(name, &from, claim.band, answer, Outcome::RejectedInvalid);
        };
        let of_one = count >= REQUESTS_MAX;
        if of_one || self.requests.len() >= REQUESTS_IN_ALL_MAX {
            let of = &mut self.pools[pool];
            of.autopilot.arrived(now);
            let answer = answer::too_many(of.capacity_status, of_one);
            return self.refuse(name, &from, claim.band, answer, Outcome::RejectedQueueFull);
        }
        let is_new = matches!(how, Arrival::New);
        let (stage, runs_at) = match how {
            Arrival::New | Arrival::Waiting => (Stage::Waiting, None),
            Arrival::Running { grant, age } => {
                let address = grant.endpoints.first().map_or("", String::as_str);
                let Some(endpoint) = self.pools[pool].endpoint(address) else {
                    // It runs where nothing of ours is: nothing to count.
                    return;
                };
                (
                    Stage::adopted(grant, &self.pools[pool].name, now.before(age)),
                    Some(endpoint),
                )
            }
        };
        let mut labels = self.labels(now, pool, &from, name, claim.band);
        let id = self.requests.name();
        let mut request = convert::request(id, now, &from, &self.pools[pool], &labels);
        let constraints = Constraints::of(&from);
        request.eligible = self.eligible(now, Some(envoy), pool, constraints.as_deref());
        labels.class = self.pools[pool].engine.class_of(&request).into();
        let labels = Arc::new(labels);
        if !has_outcome {
            self.observe(Observation::Arrived(labels.clone()));
        }
        if claim.is_lowered {
            self.observe(Observation::PriorityLowered(labels.clone()));
        }
        if convert::bad_deadline(&from, &self.pools[pool]) {
            self.observe(Observation::BadDeadline(labels.clone()));
        }
        let entry = Entry {
            name,
            pool,
            labels: labels.clone(),
            arrived: request.arrived,
            constraints,
            confined: request.eligible.is_some(),
            rewritten: !from.target_model.is_empty(),
            stage,
            admitted: runs_at.map(|_| Outcome::Dispatched),
            requeues: from.requeues,
            trail: Vec::new(),
        };
        self.requests.insert(id, entry);
        if let Some(origin) = origin {
            self.requests.link(origin, id);
        }
        let input = match runs_at {
            Some(endpoint) => {
                if !has_outcome {
                    let address = self.pools[pool].shared_address(self.pools[pool].address(endpoint));
                    self.decided(&labels, Outcome::Dispatched, "", Duration::ZERO, address);
                }
                Input::Adopt { request, endpoint }
            }
            None if is_new => {
                // Known twice, it came once.
                if !has_outcome {
                    self.pools[pool].autopilot.arrived(now);
                }
                Input::Register(request)
            }
            None => Input::Resume(request),
        };
        self.decide(now, pool, input);
    }

    /// It has ended here, and its filter hasn't heard that: what it was told is said again.
    fn say_again(&mut self, name: Name) {
        let context = self.requests.contexts.get(&name.epoch);
        if let Some(said) = context.and_then(|context| context.counted.said(name.sequence)) {
            let said = said.clone();
            self.say(name.epoch, Kind::Reject(said));
        }
    }

    /// Whose request it is, and what its server is asked for. Its flow is shown if there is room.
    fn labels(&mut self, now: Instant, pool: usize, from: &wire::Register, name: Name, band: Band) -> Labels {
        let of = &self.pools[pool];
        // Where its body is rewritten already, it stays as it is.
        let target = match from.target_model.as_str() {
            "" => of.rewriter.target(&from.model, name).unwrap_or(&from.model),
            rewritten => rewritten,
        };
        let (flow, private) = convert::flow(&of.flow_key, from, target);
        let labels = Labels {
            pool: of.name.clone(),
            model: from.model.as_str().into(),
            target_model: target.into(),
            class: Box::default(),
            traceparent: from.traceparent.as_str().into(),
            flow: flow.as_ref().into(),
            private,
            band,
            request_id: from.request_id.as_str().into(),
        };
        if !private {
            self.show(now, pool, named(&labels.flow));
        }
        labels
    }

    /// Lets a flow be shown, as one of those of all pools for which there is room.
    fn show(&mut self, now: Instant, pool: usize, flow: &str) {
        let all: usize = self.pools.iter().map(|pool| pool.shown.len()).sum();
        let of = &mut self.pools[pool].shown;
        let others = all - of.len();
        of.came(now, flow, self.settings.flows_shown.saturating_sub(others));
    }

    /// It goes nowhere, and no engine is asked.
    fn refuse(&mut self, name: Name, from: &wire::Register, band: Band, answer: Answer, outcome: Outcome) {
        let labels = Arc::new(Labels {
            pool: self.no_pool.clone(),
            model: from.model.as_str().into(),
            target_model: from.model.as_str().into(),
            class: Box::default(),
            traceparent: from.traceparent.as_str().into(),
            flow: from.fairness_id.as_str().into(),
            private: from.fairness_id_private,
            band,
            request_id: from.request_id.as_str().into(),
        });
        if self.requests.count(name) {
            self.observe(Observation::Arrived(labels.clone()));
            self.decided(&labels, outcome, answer.code, Duration::ZERO, Arc::default());
        }
        let reject = reject(name.sequence, answer, outcome.as_str(), Duration::ZERO, None, 0);
        self.turn_down(name, reject);
    }

    /// Tells a filter that a request of its doesn't go, until it has heard that.
    pub(crate) fn turn_down(&mut self, name: Name, reject: wire::Reject) {
        if let Some(context) = self.requests.contexts.get_mut(&name.epoch) {
            context.counted.told(&reject);
        }
        self.say(name.epoch, Kind::Reject(reject));
    }

    /// Labels of a request that only its filter knew.
    pub(crate) fn labels_of_refused(&self, from: &wire::Refused) -> Arc<Labels> {
        let pool = match from.model.as_str() {
            "" => None,
            model => self.pool_of(model),
        };
        Arc::new(Labels {
            pool: pool.map_or(&self.no_pool, |pool| &self.pools[pool].name).clone(),
            model: from.model.as_str().into(),
            target_model: from.model.as_str().into(),
            class: Box::default(),
            traceparent: Box::default(),
            flow: "".into(),
            private: false,
            band: Band::Default,
            request_id: from.request_id.as_str().into(),
        })
    }
}
