//! A request asks to go: whose it is, which pool's, and what of its claims reaches the engine.

use core::time::Duration;
use std::sync::Arc;

use penstock_engine::input::{Band, EndpointId, Input};
use penstock_engine::{Instant, Outcome};
use penstock_wire as wire;
use wire::command::Kind;

use crate::answer::{self, Answer};
use crate::control::Control;
use crate::convert;
use crate::decisions::reject;
use crate::event::{Labels, Observation};
use crate::limits::{REQUESTS_IN_ALL_MAX, REQUESTS_MAX};
use crate::register::{Entry, Name, Stage};
use crate::session::Epoch;
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
            .origin
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
            return self.refuse(name, &nameless, answer::too_long(), Outcome::RejectedInvalid);
        }
        let (from, trusted) = trust::counted(from, version, &self.settings.policy);
        let Some(pool) = self.pools.iter().position(|pool| pool.serves(&from.model)) else {
            return self.refuse(
                name,
                &from,
                answer::unknown_model(&from.model),
                Outcome::RejectedInvalid,
            );
        };
        if count >= REQUESTS_MAX || self.requests.len() >= REQUESTS_IN_ALL_MAX {
            let of = &mut self.pools[pool];
            of.autopilot.arrived(now);
            let outcome = Outcome::RejectedQueueFull;
            if let Some(answer) = answer::to(outcome, &of.name, &of.policy, of.capacity_status) {
                self.refuse(name, &from, answer, outcome);
            }
            return;
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
        let labels = self.labels(pool, &from, trusted);
        let id = self.requests.name();
        let flow = convert::flow(&self.pools[pool].flow_key, &from).0;
        let mut request = convert::request(id, now, &from, &self.pools[pool], &flow, labels.band);
        request.eligible = self.eligible(now, envoy, pool, &from);
        if !has_outcome {
            self.observe(Observation::Arrived(labels.clone()));
        }
        if labels.band != convert::band(&from.priority, &self.settings.objectives) {
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
                    let address = self.pools[pool].address(endpoint).to_owned();
                    self.decided(&labels, Outcome::Dispatched, "", Duration::ZERO, &address);
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

    /// Whose request it is. Its flow is shown if there is room.
    pub(crate) fn labels(&mut self, pool: usize, from: &wire::Register, trusted: bool) -> Arc<Labels> {
        let claimed = convert::band(&from.priority, &self.settings.objectives);
        let (flow, private) = convert::flow(&self.pools[pool].flow_key, from);
        if !private {
            self.pools[pool].show(&flow, self.settings.flows_shown);
        }
        Arc::new(Labels {
            pool: self.pools[pool].name.clone(),
            model: from.model.as_str().into(),
            target_model: from.model.as_str().into(),
            traceparent: Box::default(),
            flow: flow.as_ref().into(),
            private,
            band: if trusted { claimed } else { trust::lowered(claimed) },
            request_id: from.request_id.as_str().into(),
        })
    }

    /// Where a request may go by its own constraints and its Envoy's; `None`: anywhere. Addresses that aren't the
    /// pool's drop out. What its Envoy passes over is left out as long as something else is left.
    pub(crate) fn eligible(
        &self,
        now: Instant,
        envoy: crate::envoys::Envoy,
        pool: usize,
        from: &wire::Register,
    ) -> Option<Box<[EndpointId]>> {
        let of = &self.pools[pool];
        let mut allowed: Option<Vec<EndpointId>> = None;
        if !from.subset.is_empty() {
            let mut ids: Vec<_> = from.subset.iter().filter_map(|it| of.endpoint(it)).collect();
            ids.sort_unstable();
            ids.dedup();
            allowed = Some(ids);
        }
        if !from.pin.is_empty() {
            let pinned = of.endpoint(&from.pin);
            let fits = |id: &EndpointId| allowed.as_ref().is_none_or(|ids| ids.contains(id));
            allowed = Some(pinned.filter(fits).into_iter().collect());
        }
        if self.envoys.avoids_any(now, envoy, pool) {
            let all = allowed.clone().unwrap_or_else(|| of.ids().collect());
            let used: Vec<_> = all
                .iter()
                .copied()
                .filter(|id| !self.envoys.avoids(now, envoy, pool, *id))
                .collect();
            if !used.is_empty() && used.len() < all.len() {
                allowed = Some(used);
            }
        }
        allowed.map(Vec::into_boxed_slice)
    }

    /// It goes nowhere, and no engine is asked.
    fn refuse(&mut self, name: Name, from: &wire::Register, answer: Answer, outcome: Outcome) {
        let labels = Arc::new(Labels {
            pool: self.no_pool.clone(),
            model: from.model.as_str().into(),
            target_model: from.model.as_str().into(),
            traceparent: Box::default(),
            flow: from.fairness_id.as_str().into(),
            private: from.fairness_id_private,
            band: convert::band(&from.priority, &self.settings.objectives),
            request_id: from.request_id.as_str().into(),
        });
        if self.requests.count(name) {
            self.observe(Observation::Arrived(labels.clone()));
            self.decided(&labels, outcome, answer.code, Duration::ZERO, "");
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
            model => self.pools.iter().find(|pool| pool.serves(model)),
        };
        Arc::new(Labels {
            pool: pool.map_or(&self.no_pool, |pool| &pool.name).clone(),
            model: from.model.as_str().into(),
            target_model: from.model.as_str().into(),
            traceparent: Box::default(),
            flow: "".into(),
            private: false,
            band: Band::Default,
            request_id: from.request_id.as_str().into(),
        })
    }
}
