//! Enforces deadlines and admits requests while the companion is down.
//!
//! The policy bounds the load that one Envoy may admit by itself, over all its workers. So each worker publishes its load in
//! flight: once in each heartbeat interval, and at every change while the companion is down.

use penstock_wire::Code;
use penstock_wire::Grant;
use penstock_wire::limits::HEARTBEAT_INTERVAL;
use penstock_wire::names::outcome;

use super::Worker;
use crate::compiled_policy::PoolPolicy;
use crate::effect::{Effect, StreamAction};
use crate::endpoint_choice::choose_endpoints;
use crate::exchange::{Granted, Phase};
use crate::fallback_deadlines::{WaitDecision, decide};
use crate::header_sanitizer::HeaderEdit;
use crate::in_flight::{Bound, InFlightStore, Load};
use crate::limits::{RETRY_AFTER_MIN_MS, TICK_MIN};
use crate::local_reply::Failure;
use crate::retry_advice::retry_after_ms;
use crate::session::Epoch;
use crate::shared_data::SharedData;
use crate::time::Instant;

/// The error for a request that isn't admitted, and its outcome.
pub(super) type Refusal = (Failure, &'static str);

impl Worker {
    /// Answers or admits the waiting requests that are due, in the order of their arrival. Does nothing while the companion
    /// is up.
    pub(super) fn enforce_deadlines(&mut self, now: Instant) {
        if !self.sessions.is_any_down() {
            return;
        }
        let mut due: Vec<_> = self
            .exchanges
            .iter()
            .filter(|(_, exchange)| matches!(exchange.phase, Phase::Waiting { .. }))
            .filter_map(|(sequence, exchange)| {
                let down_since = self.sessions.of(exchange.pool_name()).down_since();
                match decide(now, exchange, down_since, &self.endpoints) {
                    WaitDecision::Wait => None,
                    decision => Some((exchange.arrived, *sequence, exchange.context, decision)),
                }
            })
            .collect();
        due.sort_unstable_by_key(|(arrived, sequence, ..)| (*arrived, *sequence));
        for (arrived, sequence, context, decision) in due {
            let queue_us = now.micros_since(arrived);
            let action = match self.carry_out(now, sequence, queue_us, decision) {
                Ok(edits) => StreamAction::Resume { edits, rewrite: None },
                Err((failure, outcome)) => StreamAction::Reply(self.refuse(now, sequence, &failure, outcome)),
            };
            self.effects.push_back(Effect::Stream { context, action });
        }
    }

    /// Carries out a decision to admit or reject. `queue_us`: how long the request waited. Returns the edits of its headers.
    pub(super) fn carry_out(
        &mut self,
        now: Instant,
        sequence: u64,
        queue_us: u64,
        decision: WaitDecision,
    ) -> Result<Vec<HeaderEdit>, Refusal> {
        if let WaitDecision::Reject(failure, outcome) = decision {
            return Err((failure, outcome));
        }
        let exchange = self.exchanges.get(&sequence).ok_or_else(internal_error)?;
        let Phase::Waiting { registered, .. } = exchange.phase else {
            return Err(internal_error());
        };
        let pool = exchange.pool.clone().ok_or_else(internal_error)?;
        let load = exchange.load();
        let endpoints = self.fallback_endpoints(&pool, sequence)?;
        self.reserve(now, &pool, load, sequence)?;
        let grant = Grant {
            sequence,
            pool: pool.name.clone(),
            endpoints,
            outcome: outcome::DISPATCHED.to_owned(),
            queue_us,
            saturation_milli: self.saturation_milli(&pool.name),
            ..Grant::default()
        };
        let exchange = self.exchanges.get_mut(&sequence).ok_or_else(internal_error)?;
        let edits = self.grant_headers.edits(exchange, &grant, None, None);
        let granted = Granted::new(now, grant, load);
        self.in_flight.add(&granted);
        exchange.phase = Phase::Granted(Box::new(granted));
        self.sessions.of_mut(Some(&pool.name)).note_admitted(now, registered);
        Ok(edits)
    }

    /// The endpoints to try: of those that the companion or the policy names, the ones that the request allows.
    fn fallback_endpoints(&mut self, pool: &PoolPolicy, sequence: u64) -> Result<Vec<String>, Refusal> {
        let exchange = self.exchanges.get(&sequence).ok_or_else(internal_error)?;
        let known = self
            .endpoints
            .get(&pool.name)
            .map(|endpoints| &endpoints.ready)
            .filter(|ready| !ready.is_empty())
            .unwrap_or(&pool.endpoints);
        self.turn = self.turn.wrapping_add(1);
        choose_endpoints(known, &exchange.register, self.turn).ok_or_else(|| {
            let message = "None of the endpoints that the request allows is ready: allow more, or try later.";
            let failure = Failure::new(503, Code::NoEndpoints, message).retry_after_ms(RETRY_AFTER_MIN_MS);
            (failure, outcome::NO_ENDPOINTS)
        })
    }

    /// Reserves room in a pool for a request, if the pool is bounded.
    fn reserve(&mut self, now: Instant, pool: &PoolPolicy, load: Load, sequence: u64) -> Result<(), Refusal> {
        let current = self.endpoints.get(&pool.name);
        let limit = current.and_then(|endpoints| endpoints.fallback_bound).or(pool.fallback_bound);
        // A requeued request has no load, because its first exchange holds its room.
        let Some(limit) = limit.filter(|_| !load.is_zero()) else {
            return Ok(());
        };
        let bound = if pool.fallback_bound_in_tokens { Bound::Tokens(limit) } else { Bound::Requests(limit) };
        let store = store(&*self.shared_data, self.sessions.epoch(), now);
        if self.in_flight.reserve(&pool.name, load, bound, store) {
            return Ok(());
        }
        let message = "The gateway's queue is unreachable, and as many requests run as may run without it: \
                       check that Penstock's companion runs, then try again.";
        let advice_ms = retry_after_ms(self.in_flight.time_to_room(&pool.name), sequence);
        let failure = Failure::new(503, Code::GatewayUnavailable, message).retry_after_ms(advice_ms);
        Err((failure, outcome::GATEWAY_UNAVAILABLE))
    }

    /// Releases the room of a granted request that has ended.
    pub(super) fn release(&mut self, now: Instant, granted: &Granted) {
        self.in_flight.remove(now, granted);
        let fails_open = || self.policy.fail_open_pools().any(|pool| pool.name == granted.pool);
        if self.sessions.of(Some(&granted.pool)).is_down() && fails_open() {
            let store = store(&*self.shared_data, self.sessions.epoch(), now);
            self.in_flight.publish(&granted.pool, store);
        }
    }

    /// Publishes the load in flight when a renewal is due, and as soon as the companion goes down.
    pub(super) fn publish_in_flight(&mut self, now: Instant) {
        let is_down = self.sessions.is_any_down();
        let went_down = is_down && !self.in_flight.was_down;
        self.in_flight.was_down = is_down;
        if !went_down && self.in_flight.publish_at > now.after(TICK_MIN) {
            return;
        }
        self.in_flight.publish_at = now.after(HEARTBEAT_INTERVAL);
        let store = store(&*self.shared_data, self.sessions.epoch(), now);
        for pool in self.policy.fail_open_pools() {
            self.in_flight.publish(&pool.name, store);
        }
    }
}

/// This worker's access to the in-flight records. A function of the fields, so that `Worker::in_flight` can be borrowed
/// mutably beside it.
fn store(shared_data: &dyn SharedData, worker: Epoch, now: Instant) -> InFlightStore<'_> {
    InFlightStore { shared_data, worker, now }
}

fn internal_error() -> Refusal {
    let failure = Failure::new(500, Code::Internal, "The filter lost track of the request.");
    (failure, outcome::INTERNAL)
}
