//! Registrations: the pool of a request, rejections that need no pool, and requests that come in again.
//!
//! A request that no endpoint took is requeued: its Envoy registers it under another key and names the previous key. The two
//! keys may belong to different sessions, which send their Hellos in any order. The request must be counted once, so the
//! registration that comes second makes no second request: either the new key takes over the request of the previous key, or
//! the previous key becomes an alias before it is registered.

use core::time::Duration;
use std::sync::Arc;

use penstock_engine::input::Band;
use penstock_engine::{Instant, ModelName, Outcome, RequestId};
use penstock_wire as wire;
use wildmatch::WildMatch;

use super::Control;
use crate::answer::{self, GatewayAnswer};
use crate::ids::{Door, PoolId, RequestKey, Route};
use crate::labels::Labels;
use crate::limits::{REQUESTS_IN_ALL_MAX, REQUESTS_MAX};
use crate::observation::{Decided, RequestNews};
use crate::pool::{Pool, PoolInput, Registering};
use crate::registration::{Arrival, Registration};
use crate::rejection::Rejection;
use crate::root_context::RootContext;
use crate::{trust, wire_in, wire_out};

/// What the previous key of a registration means.
enum Previous {
    /// There is none, or it belongs to another request.
    None,
    /// The request goes on under the new key: nothing is left to do.
    TakenOver,
    /// The previous key isn't known here. It becomes an alias of the new request.
    Unknown(RequestKey),
    /// The previous key's request has ended, and this one runs: it is the same request, counted before.
    Ended,
}

impl Control {
    /// A request asks to be admitted, or runs already.
    pub(super) fn register(
        &mut self,
        now: Instant,
        mut registration: Registration<'_>,
        arrival: Arrival<'_>,
    ) {
        let key = registration.key;
        let Some(context) = self.contexts.get(&key.epoch) else {
            return;
        };
        let (peer, door) = (context.peer(), context.origin.door());
        let is_context_full = context.requests.len() >= REQUESTS_MAX;
        if context.requests.contains_key(&key.sequence) || self.aliases.contains(key) {
            return;
        }
        // A request that was rejected here may run nevertheless: its filter let it go before the rejection arrived.
        let has_ended = context.ended.contains(key.sequence);
        if has_ended && !matches!(arrival, Arrival::Running(_)) {
            return self.send_rejection_again(key);
        }
        self.count_by_credit(now, &registration, arrival);
        let pool = self.pool_for(&registration, arrival);
        let objective = |name: &str| self.pools.get(pool?)?.objective(name);
        let claim = trust::apply(&mut registration, objective, &self.settings.max_priority);
        let previous = self.resolve_previous(now, &registration, arrival);
        let has_outcome = match previous {
            Previous::TakenOver => return,
            Previous::None | Previous::Unknown(_) => has_ended,
            Previous::Ended => true,
        };
        if let Some(answer) = invalid(&registration, arrival) {
            let shown = registration.is_within_limits.then_some(&registration);
            let labels = self.labels_without_pool(shown, claim.band);
            return self.turn_away(key, arrival, labels, answer, Outcome::RejectedInvalid);
        }
        let Some(pool) = pool else {
            if self.is_of_another_session(registration.model) {
                return;
            }
            let labels = self.labels_without_pool(Some(&registration), claim.band);
            let answer = self.unserved(registration.model);
            return self.turn_away(key, arrival, labels, answer, Outcome::RejectedInvalid);
        };
        if is_context_full || self.open_requests >= REQUESTS_IN_ALL_MAX {
            self.drive_pool(now, pool, PoolInput::CountArrival);
            let labels = self.labels_without_pool(Some(&registration), claim.band);
            let status = self.pools.get(pool).map_or(503, Pool::capacity_status);
            let answer = answer::too_many(status, is_context_full);
            return self.turn_away(key, arrival, labels, answer, Outcome::RejectedQueueFull);
        }
        self.last_request += 1;
        let registering = Registering {
            id: RequestId(self.last_request),
            registration: &registration,
            claim,
            peer,
            door,
            arrival,
            has_outcome,
            previous_key: match previous {
                Previous::Unknown(previous_key) => Some(previous_key),
                Previous::None | Previous::TakenOver | Previous::Ended => None,
            },
            visible_flows_max: self.pools.visible_flows_max(pool, self.settings.flows_shown),
        };
        self.drive_pool(now, pool, PoolInput::Register(registering));
    }

    /// The pool of a request: the one that admitted it, the one that its gateway has chosen, or that of its model.
    fn pool_for(&mut self, registration: &Registration<'_>, arrival: Arrival<'_>) -> Option<PoolId> {
        let named = arrival.running().and_then(|running| self.pools.named(running.pool));
        let chosen = named.or_else(|| self.pools.by_name(registration.chosen_pool?));
        let serving = chosen.or_else(|| self.pools.serving(registration.model));
        serving.or_else(|| self.own_pool(arrival))
    }

    /// The pool of a request that runs in it although it no longer serves the request's model.
    fn own_pool(&self, arrival: Arrival<'_>) -> Option<PoolId> {
        if self.settings.pool.is_none() || !matches!(arrival, Arrival::Running(_)) {
            return None;
        }
        self.pools.iter().map(|(id, _)| id).next()
    }

    /// The answer to a request whose model no pool of this control serves.
    fn unserved(&self, model: &str) -> GatewayAnswer {
        match &self.settings.pool {
            // Its filter applied an earlier policy, so this is the answer that waiting requests got when the policy changed.
            Some(pool) => answer::model_removed(pool),
            None => answer::unknown_model(model),
        }
    }

    /// The request belongs to a pool with a session of its own. Its filter doesn't know that yet: it learns so from the policy, and
    /// then lists the request in that session.
    fn is_of_another_session(&self, model: &str) -> bool {
        if self.settings.pool.is_some() {
            return false;
        }
        let policy = &self.settings.policy;
        let serves = |pool: &wire::Pool| {
            let globs = &pool.models;
            if model.is_empty() {
                return pool.is_default;
            }
            globs.is_empty() || globs.iter().any(|glob| WildMatch::new(glob).matches(model))
        };
        policy.session_per_pool && policy.pools.iter().any(serves)
    }

    /// Handles the previous key of a registration.
    fn resolve_previous(
        &mut self,
        now: Instant,
        registration: &Registration<'_>,
        arrival: Arrival<'_>,
    ) -> Previous {
        let key = registration.key;
        let previous = registration.previous_key.filter(|previous| self.is_same_envoy(*previous, key));
        let Some(previous) = previous else {
            return Previous::None;
        };
        if self.aliases.contains(previous) {
            // Another request has taken its place already.
            return Previous::None;
        }
        if let Some(route) = self.find(previous) {
            self.take_over(now, route, previous, registration, arrival);
            return Previous::TakenOver;
        }
        let has_ended = self.has_ended(previous);
        match arrival {
            Arrival::Waiting if has_ended && registration.is_moved => {
                // It was rejected, or given up, while it was on its way to this key. Its client is there.
                self.record_end(key);
                let context = self.contexts.get(&previous.epoch);
                let rejection =
                    context.and_then(|context| context.ended.unacknowledged_rejection(previous.sequence));
                let rejection = rejection.map_or_else(
                    || Rejection::immediate(answer::lost_while_moved(), Outcome::Cancelled),
                    |rejection| (**rejection).clone(),
                );
                self.reject(key, rejection);
                Previous::TakenOver
            }
            Arrival::New | Arrival::Waiting if has_ended => {
                // The client left during the first exchange, so this exchange is about to end.
                self.record_end(key);
                self.reject(key, Rejection::immediate(answer::client_left(), Outcome::Cancelled));
                Previous::TakenOver
            }
            Arrival::Running(_) if has_ended => Previous::Ended,
            Arrival::New | Arrival::Waiting | Arrival::Running(_) | Arrival::ByCredit { .. } => {
                Previous::Unknown(previous)
            }
        }
    }

    /// Both keys belong to one Envoy, as far as their root contexts are known.
    pub(super) fn is_same_envoy(&self, one: RequestKey, other: RequestKey) -> bool {
        let envoy = |key: RequestKey| Some(self.contexts.get(&key.epoch)?.envoy);
        match (envoy(one), envoy(other)) {
            (Some(one), Some(other)) => one == other,
            (None, _) | (_, None) => true,
        }
    }

    /// A request goes on under the key of a registration.
    fn take_over(
        &mut self,
        now: Instant,
        route: Route,
        previous: RequestKey,
        registration: &Registration<'_>,
        arrival: Arrival<'_>,
    ) {
        let key = registration.key;
        if let Some(context) = self.contexts.get_mut(&previous.epoch) {
            context.requests.remove(&previous.sequence);
            context.unconfirmed.retain(|unconfirmed| *unconfirmed != route);
        }
        let Some(context) = self.contexts.get_mut(&key.epoch) else {
            return;
        };
        context.requests.insert(key.sequence, route);
        let peer = context.peer();
        self.aliases.remove(key);
        self.aliases.insert(previous, route.id);
        let input = PoolInput::Reenter { id: route.id, peer, registration, arrival };
        self.drive_pool(now, route.pool, input);
    }

    /// A request runs under a key that is an alias already, and names its previous key: that becomes an alias too.
    pub(super) fn extend_alias(&mut self, now: Instant, alias: RequestKey, previous: RequestKey) {
        let Some(id) = self.aliases.get(alias) else {
            return;
        };
        if previous == alias || !self.is_same_envoy(previous, alias) || self.aliases.contains(previous) {
            return;
        }
        let duplicate = self.find(previous);
        if duplicate.is_some_and(|duplicate| duplicate.id == id) {
            return;
        }
        let is_open = self.aliases.is_open(id);
        if let Some(duplicate) = duplicate {
            // It was taken for another request, because its filter reported it first.
            self.aliases.transfer(duplicate.id, is_open.then_some(id));
            self.drive_pool(now, duplicate.pool, PoolInput::Cancel(duplicate.id));
        }
        if is_open {
            self.aliases.insert(previous, id);
        }
    }

    /// The filter answered a request by itself. Under its own key the request isn't known if it was never registered, and if it has
    /// ended. Under the key before its requeue it may run still, as far as is known here.
    pub(super) fn refused(&mut self, now: Instant, key: RequestKey, refused: &wire::Refused) {
        let node = self.contexts.get(&key.epoch).map(|context| context.node.clone());
        let answer = wire_in::filter_answer(node.unwrap_or_default(), refused);
        let is_alias = self.aliases.remove(key);
        let origin = refused.requeued_from.as_ref().map(wire_in::request_key);
        let origin = origin.filter(|origin| *origin != key && self.is_same_envoy(*origin, key));
        let mut route = self.find(key);
        if route.is_none() {
            if is_alias || !self.record_end(key) {
                return;
            }
            route = origin.and_then(|origin| self.find(origin));
        }
        if let Some(route) = route {
            let id = route.id;
            let answer = &answer;
            return self.drive_pool(now, route.pool, PoolInput::Answered { id, answer });
        }
        let labels = self.labels_of_refused(refused);
        let was_granted = origin.is_some_and(|origin| self.has_ended(origin));
        if !was_granted {
            self.observe_request(labels.clone(), RequestNews::Arrived(self.door(key)));
        }
        self.observe_request(labels, answer.news(None, was_granted));
    }

    /// The filter hasn't received the rejection of a request that has ended.
    fn send_rejection_again(&mut self, key: RequestKey) {
        let context = self.contexts.get(&key.epoch);
        let rejection = context.and_then(|context| context.ended.unacknowledged_rejection(key.sequence));
        if let Some(rejection) = rejection {
            let command = wire_out::reject(key.sequence, rejection);
            self.send(key.epoch, command);
        }
    }

    /// Rejects a request that no engine has seen. One that its filter has admitted is only counted.
    fn turn_away(
        &mut self,
        key: RequestKey,
        arrival: Arrival<'_>,
        labels: Labels,
        answer: GatewayAnswer,
        outcome: Outcome,
    ) {
        let is_by_credit = matches!(arrival, Arrival::ByCredit { .. });
        if self.record_end(key) {
            let labels = Arc::new(labels);
            self.observe_request(labels.clone(), RequestNews::Arrived(self.door(key)));
            let decided = Decided {
                outcome: if is_by_credit { Outcome::Leased } else { outcome },
                code: (!is_by_credit).then_some(answer.code),
                waited: Duration::ZERO,
                endpoint: Arc::default(),
                was_queued: false,
                extra: false,
                prefill: None,
            };
            self.observe_request(labels, RequestNews::Decided(decided));
        }
        if !is_by_credit {
            self.reject(key, Rejection::immediate(answer, outcome));
        }
    }

    /// The way by which a request came in.
    fn door(&self, key: RequestKey) -> Door {
        self.contexts.get(&key.epoch).map(|context| context.origin.door()).unwrap_or_default()
    }

    /// A request has ended. `false` if it had ended before, as far as is remembered.
    pub(super) fn record_end(&mut self, key: RequestKey) -> bool {
        let context = self.contexts.get_mut(&key.epoch);
        context.is_none_or(|context| context.ended.record(key.sequence))
    }

    pub(super) fn has_ended(&self, key: RequestKey) -> bool {
        let context: Option<&RootContext> = self.contexts.get(&key.epoch);
        context.is_some_and(|context| context.ended.contains(key.sequence))
    }

    /// The labels of a request that no pool takes. `None`: its registration exceeds the limits, so nothing of it is shown.
    fn labels_without_pool(&self, registration: Option<&Registration<'_>>, band: Band) -> Labels {
        let text = |field: fn(&Registration<'_>) -> Box<str>| registration.map_or_else(Box::default, field);
        Labels {
            tokens: None,
            pool: self.no_pool.clone(),
            model: registration.map_or_else(ModelName::default, |registration| registration.model.into()),
            class: Box::default(),
            traceparent: text(|registration| registration.traceparent.into()),
            flow: registration.map_or_else(Arc::default, |registration| (*registration.tenant).into()),
            private: registration.is_some_and(|registration| registration.is_tenant_private),
            band,
            request_id: text(|registration| registration.request_id.into()),
        }
    }

    /// The labels of a request that was never registered.
    fn labels_of_refused(&mut self, refused: &wire::Refused) -> Arc<Labels> {
        let model = refused.model.as_str();
        let is_short = !model.is_empty() && model.len() <= wire::limits::NAME_BYTES_MAX;
        let pool = if is_short { self.pools.serving(model) } else { None };
        let pool = pool.and_then(|pool| self.pools.get(pool));
        Arc::new(Labels {
            tokens: None,
            pool: pool.map_or(&self.no_pool, |pool| pool.name()).clone(),
            model: model.into(),
            class: Box::default(),
            traceparent: Box::default(),
            flow: Arc::default(),
            private: false,
            band: Band::Default,
            request_id: refused.request_id.as_str().into(),
        })
    }
}

/// The answer to a registration that no pool can take.
fn invalid(registration: &Registration<'_>, arrival: Arrival<'_>) -> Option<GatewayAnswer> {
    if !registration.is_within_limits {
        return Some(answer::too_long());
    }
    // A request that runs has found its endpoint.
    let pin = registration.pin.filter(|_| !matches!(arrival, Arrival::Running(_)))?;
    let (address, rank) = pin.rsplit_once('@')?;
    let is_rank = !rank.is_empty() && rank.bytes().all(|byte| byte.is_ascii_digit());
    is_rank.then(|| answer::pinned_rank(pin, address))
}
