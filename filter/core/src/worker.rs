//! The state of one root context: its session with the companion, and its HTTP exchanges.
//!
//! The host reports events with the `handle_` methods. A decision that an HTTP callback needs at once is the method's return
//! value. All other decisions are effects: after each call, the host takes them from `poll_effect` until there are none. A
//! request is identified by the worker's sequence number, never by an id of the host.

mod companion_down;
mod in_flight_counts;
mod refused_attempts;
mod request_body;
mod request_headers;
mod response_path;

use core::time::Duration;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use penstock_wire::{
    self as wire, Cancel, Grant, Reject, command, filter_frame::Event, limits::HEARTBEAT_INTERVAL, names,
};
use prost::Message;

use crate::{
    compiled_policy::CompiledPolicy,
    config::Config,
    effect::Effect,
    exchange::{Exchange, Granted, Phase},
    header_sanitizer::{self, HeaderEdit},
    limits::{DEADLINE_CHECK_INTERVAL, TICK_MIN},
    local_reply::{Failure, QueueReport},
    pool_endpoints::{self, PoolEndpoints},
    process_identity::{ProcessIdentity, RandomBits, SigningKey},
    retry_advice::FailingPools,
    session::Session,
    shared_data::{SetIf, SharedData},
    time::Instant,
};
use in_flight_counts::InFlightCounts;
use refused_attempts::GrantedIds;

/// The state of a root context.
#[derive(Debug)]
pub struct Worker {
    session: Session,
    shared_data: Box<dyn SharedData>,
    /// The shared-data key of the current policy.
    policy_key: String,
    /// Signs requeue tokens; `None` without shared data.
    key: Option<SigningKey>,
    /// The address of the requeue listener.
    requeue_listener: Option<String>,
    /// This worker runs in the requeue listener, which accepts only requeued requests.
    is_requeue_listener: bool,
    /// The routes set the served-endpoint header of every response.
    routes_report_endpoint: bool,
    /// Envoy's log of attempts calls the filter.
    logs_attempts: bool,
    policy: Arc<CompiledPolicy>,
    exchanges: BTreeMap<u64, Exchange>,
    last_sequence: u64,
    /// The ready endpoints by pool, for the pools that the companion has sent.
    endpoints: BTreeMap<String, PoolEndpoints>,
    in_flight: InFlightCounts,
    failing_pools: FailingPools,
    granted_ids: GrantedIds,
    /// The round-robin counter over endpoints.
    turn: usize,
    saturation_milli: BTreeMap<String, u32>,
    effects: VecDeque<Effect>,
}

impl Worker {
    /// A worker that opens its session at the next tick. It applies the last policy that this Envoy received, or else the
    /// policy of the plugin configuration.
    #[must_use]
    pub fn new(now: Instant, random: &RandomBits, config: &Config, shared_data: Box<dyn SharedData>) -> Self {
        let process = ProcessIdentity::join(&*shared_data, random);
        let policy_key = format!("penstock/policy/{}", config.companion);
        let stored = shared_data.get(&policy_key);
        let stored = stored.and_then(|(policy, _)| wire::Policy::decode(policy.as_slice()).ok());
        let can_requeue = config.requeue_listener.is_some() && process.key.is_some();
        let node = config.node.clone();
        Self {
            session: Session::new(now, random.epoch, process.id, node, can_requeue),
            shared_data,
            policy_key,
            key: process.key,
            requeue_listener: config.requeue_listener.clone(),
            is_requeue_listener: config.is_requeue_listener,
            routes_report_endpoint: config.routes_report_endpoint,
            logs_attempts: config.logs_attempts,
            policy: Arc::new(CompiledPolicy::new(stored.as_ref().unwrap_or(&config.policy))),
            exchanges: BTreeMap::new(),
            last_sequence: 0,
            endpoints: BTreeMap::new(),
            in_flight: InFlightCounts::new(now),
            failing_pools: FailingPools::default(),
            granted_ids: GrantedIds::new(random.epoch),
            // A random start, so that not all workers start with the same endpoint.
            turn: usize::try_from(random.epoch.lo & 0xffff).unwrap_or(0),
            saturation_milli: BTreeMap::new(),
            effects: VecDeque::new(),
        }
    }

    /// The next effect to carry out; `None`: there is none left.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects
            .pop_front()
            .or_else(|| self.session.poll_effect().map(Effect::Session))
    }

    /// Number of HTTP exchanges that haven't ended.
    #[must_use]
    pub fn exchanges(&self) -> usize {
        self.exchanges.len()
    }

    /// Number of terminal events that the companion hasn't acknowledged.
    #[must_use]
    pub fn unacknowledged(&self) -> usize {
        self.session.unacknowledged()
    }

    /// How long the host may wait before the next `handle_tick`.
    #[must_use]
    pub fn tick_period(&self, now: Instant) -> Duration {
        let next = self.session.next_tick_at(now).since(now);
        let next = next.clamp(TICK_MIN, HEARTBEAT_INTERVAL);
        // While the companion is down, a new request may need an earlier tick, but an HTTP context can't set the period.
        if self.session.is_down() {
            next.min(DEADLINE_CHECK_INTERVAL)
        } else {
            next
        }
    }

    /// Sends heartbeats, opens streams, and enforces deadlines while the companion is down.
    pub fn handle_tick(&mut self, now: Instant) {
        self.session.handle_tick(now);
        self.publish_in_flight(now);
        self.enforce_deadlines(now);
    }

    /// The host has opened the stream.
    pub fn handle_opened(&mut self, now: Instant) {
        if self.session.handle_opened(now, &self.policy.digest) {
            self.greet(now);
        }
    }

    /// Sends the Hello.
    fn greet(&mut self, now: Instant) {
        let mut waiting = Vec::new();
        let mut running = Vec::new();
        for exchange in self.exchanges.values_mut() {
            let register = exchange.register(now);
            match &mut exchange.phase {
                Phase::Waiting { registered } => {
                    *registered = true;
                    waiting.push(register);
                }
                Phase::Granted(granted) => running.extend(granted.running(now, register)),
                Phase::ReadingBody(_) | Phase::Answered => {}
            }
        }
        let endpoints_digest = pool_endpoints::digest(&self.endpoints);
        self.session
            .greet(&self.policy.digest, endpoints_digest, waiting, running);
    }

    /// The host failed to open the stream.
    pub fn handle_open_failed(&mut self, now: Instant) {
        self.session.handle_open_failed(now);
        self.publish_in_flight(now);
    }

    /// The stream has ended.
    pub fn handle_closed(&mut self, now: Instant) {
        self.session.handle_closed(now);
        self.publish_in_flight(now);
    }

    /// The host shuts this root context down.
    pub fn handle_shutdown(&mut self) {
        self.session.shut_down();
    }

    /// A message of the companion has arrived.
    pub fn handle_message(&mut self, now: Instant, message: &[u8]) {
        for command in self.session.handle_message(now, message) {
            match command.kind {
                Some(command::Kind::Grant(grant)) => self.handle_grant(now, grant),
                Some(command::Kind::Reject(reject)) => self.handle_reject(&reject),
                Some(command::Kind::Policy(policy)) => self.handle_policy(&policy),
                Some(command::Kind::Endpoints(message)) => {
                    pool_endpoints::update(&mut self.endpoints, message);
                }
                // The session handles the first three; `None` is a command of a later protocol version.
                Some(command::Kind::HelloAck(_) | command::Kind::Bye(_) | command::Kind::Role(_)) | None => {}
            }
        }
        if self.session.must_greet() {
            self.greet(now);
        }
        self.publish_in_flight(now);
    }

    fn handle_policy(&mut self, policy: &wire::Policy) {
        self.policy = Arc::new(CompiledPolicy::new(policy));
        // Stored for workers that start while the companion is down.
        self.shared_data
            .set(&self.policy_key, &policy.encode_to_vec(), SetIf::Always);
        self.in_flight.remove_idle_pools();
        let exists = |name: &str| policy.pools.iter().any(|pool| pool.name == name);
        self.endpoints.retain(|name, _| exists(name));
        self.saturation_milli.retain(|name, _| exists(name));
        self.failing_pools.retain(exists);
    }

    fn handle_grant(&mut self, now: Instant, grant: Grant) {
        let sequence = grant.sequence;
        let waiting = self
            .exchanges
            .get_mut(&sequence)
            .filter(|exchange| matches!(exchange.phase, Phase::Waiting { .. }));
        let Some(exchange) = waiting else {
            self.handle_unexpected_grant(now, sequence);
            return;
        };
        let mut edits = vec![HeaderEdit::Set(names::POOL_HEADER, grant.pool.clone())];
        let rewrite = exchange.set_target_model(&grant.target_model);
        if let Some(rewrite) = &rewrite {
            let length = rewrite.length_after();
            edits.extend(header_sanitizer::rewritten(length, exchange.has_length));
        }
        if !grant.endpoints.is_empty() {
            let endpoints = grant.endpoints.join(",");
            let requeue = (self.requeue_listener.as_ref().zip(self.key.as_ref())).filter(|_| grant.requeue);
            let route = requeue.map(|(listener, _)| format!("{endpoints},{listener}"));
            edits.push(HeaderEdit::Set(names::ENDPOINT_HEADER, endpoints));
            edits.extend(route.map(|route| HeaderEdit::Set(names::ROUTE_HEADER, route)));
            if let Some((_, key)) = requeue {
                let token = exchange.requeue_token(self.session.epoch()).sign(key);
                edits.push(HeaderEdit::Set(names::REQUEUE_HEADER, token));
            }
        }
        edits.extend(exchange.requeue_on().known_to(self.logs_attempts).edits());
        self.granted_ids.insert(exchange);
        set_saturation(&mut self.saturation_milli, &grant.pool, grant.saturation_milli);
        let granted = Granted::new(now, grant, exchange.load());
        self.in_flight.add(&granted);
        exchange.phase = Phase::Granted(Box::new(granted));
        self.effects.push_back(Effect::Resume {
            context: exchange.context,
            edits,
            rewrite,
        });
    }

    /// Ignores a duplicate grant of a running request, and cancels the grant of a request that is gone.
    fn handle_unexpected_grant(&mut self, now: Instant, sequence: u64) {
        let is_running = self
            .exchanges
            .get(&sequence)
            .is_some_and(|exchange| matches!(exchange.phase, Phase::Granted(_)));
        if !is_running {
            self.session
                .send_terminal(now, Event::Cancel(Cancel { sequence }));
        }
    }

    fn handle_reject(&mut self, reject: &Reject) {
        let Some(exchange) = self.exchanges.get_mut(&reject.sequence) else {
            return;
        };
        if !matches!(exchange.phase, Phase::Waiting { .. }) {
            return;
        }
        exchange.phase = Phase::Answered;
        if let Some(pool) = &exchange.pool {
            set_saturation(&mut self.saturation_milli, &pool.name, reject.saturation_milli);
        }
        let report = QueueReport {
            outcome: reject.outcome.clone(),
            queue_us: reject.queue_us,
            saturation_milli: reject.saturation_milli,
        };
        let reply = Failure::from(reject).reply(exchange.register.api(), Some(&report));
        self.effects.push_back(Effect::Reply {
            context: exchange.context,
            reply,
        });
    }

    /// The last saturation of a pool that the companion sent; 0 before the first.
    fn saturation_milli(&self, pool: &str) -> u32 {
        self.saturation_milli.get(pool).copied().unwrap_or(0)
    }
}

/// Stores the saturation of a pool, and copies the name only for a new entry.
fn set_saturation(saturation_milli: &mut BTreeMap<String, u32>, pool: &str, milli: u32) {
    match saturation_milli.get_mut(pool) {
        Some(stored) => *stored = milli,
        None => drop(saturation_milli.insert(pool.to_owned(), milli)),
    }
}
