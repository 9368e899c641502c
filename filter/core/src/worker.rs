//! The state of one root context: its sessions with companions, and its HTTP exchanges.
//!
//! The host reports events with the `handle_` methods. A decision that an HTTP callback needs at once is the method's return
//! value. All other decisions are effects: after each call, the host takes them from `poll_effect` until there are none. A
//! request is identified by the worker's sequence number, never by an id of the host.

mod body_callbacks;
mod carried_status;
mod companion_down;
mod credit_admission;
mod eviction;
mod grant_headers;
mod held_responses;
mod in_flight_counts;
mod kept_alive;
mod policies;
mod recovery;
mod refused_attempts;
mod request_body;
mod request_headers;
mod response_path;
mod restarts;
mod sessions;
mod silent_servers;

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use penstock_wire::filter_frame::Event;
use penstock_wire::limits::HEARTBEAT_INTERVAL;
use penstock_wire::{self as wire, Cancel, Grant, Reject, command};
use prost::Message;

use self::body_callbacks::BodyCallbacks;
use self::grant_headers::GrantHeaders;
use self::held_responses::HeldResponses;
use self::in_flight_counts::InFlightCounts;
use self::kept_alive::KeptAlive;
use self::policies::Policies;
use self::refused_attempts::GrantedIds;
use self::restarts::Restarts;
use self::sessions::Sessions;
pub use self::silent_servers::SilentEnd;
use self::silent_servers::{SilenceTimers, watch_attempt};
use crate::alive_endpoints::AliveEndpoints;
use crate::compiled_policy::CompiledPolicy;
use crate::config::Config;
use crate::credits::{Credits, Origin};
use crate::effect::{Effect, SessionId, StreamAction};
use crate::exchange::{Exchange, Granted, Phase};
use crate::failed_attempts::FailedAttempts;
use crate::limits::{BODY_CALLBACK_CHECK_INTERVAL, DEADLINE_CHECK_INTERVAL, POLICY_LIST_MAX, TICK_MIN};
use crate::local_reply::{Failure, QueueReport};
use crate::model_list::ModelList;
use crate::pool_endpoints::{self, PoolEndpoints};
use crate::process_identity::{ProcessIdentity, RandomBits, SigningKey};
use crate::retry_advice::FailingPools;
use crate::served_models::ServedModels;
use crate::session;
use crate::shared_data::{SetIf, SharedData};
use crate::time::Instant;

/// The state of a root context.
///
/// After every call of a `handle_` method the host carries out the effects of [`Self::poll_effect`] until there is none. It does so outside
/// of the callback that it is in, where it can: a proxy may call back into the filter while it resumes a stream or sends a reply, and a
/// `handle_` method must not run inside another.
///
/// The life of an HTTP stream that the worker tracks:
///
/// 1. [`Self::handle_request_headers`] decides whether the request passes, is refused, or pauses, and gives a paused one its sequence
///    number. Every later call names that number. One that isn't known, any more or at all, is ignored.
/// 2. [`Self::handle_request_body`] for each slice, then [`Self::handle_request_end`] if trailers end the request.
///    [`Self::handle_received`] only where Envoy doesn't call the filter for a paused body.
/// 3. After the grant: [`Self::handle_response_headers`], [`Self::handle_response_body`] and [`Self::handle_response_end`].
///    [`Self::handle_attempt_log`] comes for each attempt of Envoy, in between.
/// 4. [`Self::handle_log`], exactly once for every sequence number, however the stream ends. It removes the exchange and reports its end
///    to the companion. Without it the request would hold its place for ever. The exchange of a request that passes has ended before, and so has
///    one whose stream the host restarts, because [`Self::handle_response_headers`] has said so: the new stream's headers go to
///    [`Self::handle_restarted_headers`], or, if there is none, the number goes to [`Self::abandon_restart`].
///
/// A session with a companion, of which [`SessionId::MAIN`] always exists, has calls of its own: [`Self::handle_opened`],
/// [`Self::handle_open_failed`], [`Self::handle_message`] and [`Self::handle_closed`], in the order in which the stream has them. Its id is
/// never used again, so a callback of an old stream meets nothing. [`Self::handle_tick`] is due after [`Self::tick_period`], which the host
/// asks after each tick; [`Self::handle_shutdown`] is the last call.
///
/// The worker must never panic, whatever a client, a server or a companion sends: a trap cuts every stream of the Envoy worker. It must
/// also never lose a paused stream: each one is resumed, answered or ended by its client, with the companion or without.
#[derive(Debug)]
pub struct Worker {
    sessions: Sessions,
    shared_data: Box<dyn SharedData>,
    /// The shared-data key of the current policy.
    policy_key: String,
    /// Verifies requeue tokens; `None` without shared data.
    key: Option<SigningKey>,
    /// The address of the requeue listener.
    requeue_listener: Option<String>,
    /// This worker runs in the requeue listener, which accepts only requeued requests.
    is_requeue_listener: bool,
    /// The routes set the served-endpoint header of every response.
    routes_report_endpoint: bool,
    grant_headers: GrantHeaders,
    policy: Arc<CompiledPolicy>,
    policies: Policies,
    exchanges: BTreeMap<u64, Exchange>,
    last_sequence: u64,
    /// The last request that [`Self::report_long_admissions`] has looked at.
    reported_to: u64,
    /// The ready endpoints by pool, for the pools that the companion has sent.
    endpoints: BTreeMap<String, PoolEndpoints>,
    /// `None`: no companion has sent it yet.
    model_list: Option<ModelList>,
    in_flight: InFlightCounts,
    credits: Credits,
    failing_pools: FailingPools,
    /// Whether the servers of a pool put the token counts at the end of long documents. Without an entry, it isn't known.
    document_ends: BTreeMap<String, bool>,
    held_responses: HeldResponses,
    silence_timers: SilenceTimers,
    /// The routes can send waiting streams to a companion that keeps them alive.
    keeps_alive: bool,
    kept_alive: KeptAlive,
    body_callbacks: BodyCallbacks,
    granted_ids: GrantedIds,
    restarts: Restarts,
    failed_attempts: FailedAttempts,
    alive: AliveEndpoints,
    served_models: ServedModels,
    /// The round-robin counter over endpoints.
    turn: usize,
    saturation_milli: BTreeMap<String, u32>,
    effects: VecDeque<Effect>,
}

impl Worker {
    /// A worker that opens its sessions at the next tick. It applies the last policy that this Envoy received, or else the
    /// policy of the plugin configuration.
    #[must_use]
    pub fn new(now: Instant, random: &RandomBits, config: &Config, shared_data: Box<dyn SharedData>) -> Self {
        let process = ProcessIdentity::join(&*shared_data, random);
        let policy_key = format!("penstock/policy/{}", config.companion);
        let stored = shared_data.get(&policy_key);
        let stored = stored.and_then(|(policy, _)| wire::Policy::decode(policy.as_slice()).ok());
        let stored = stored.map(|stored| policies::with_api_keys(stored, &config.policy));
        let settings = session::Settings {
            epoch: random.epoch,
            envoy: process.id,
            node: config.node.clone(),
            can_requeue: config.restarts || config.requeue_listener.is_some() && process.key.is_some(),
            is_picker: config.is_picker,
        };
        let policy = stored.unwrap_or_else(|| config.policy.clone());
        let mut sessions = Sessions::new(now, settings, &policy.digest);
        sessions.configure(now, pools_with_sessions(&policy), &policy.digest);
        Self {
            sessions,
            shared_data,
            policy_key,
            key: process.key,
            requeue_listener: config.requeue_listener.clone(),
            is_requeue_listener: config.is_requeue_listener,
            routes_report_endpoint: config.routes_report_endpoint,
            grant_headers: GrantHeaders {
                epoch: random.epoch,
                requeue: config.requeue_listener.clone().zip(process.key),
                logs_attempts: config.logs_attempts,
                routes_requeue: config.routes_requeue,
                restarts: config.restarts,
            },
            policy: Arc::new(CompiledPolicy::new(&policy)),
            policies: Policies::new(policy),
            exchanges: BTreeMap::new(),
            last_sequence: 0,
            reported_to: 0,
            endpoints: BTreeMap::new(),
            in_flight: InFlightCounts::new(now),
            credits: Credits::default(),
            failing_pools: FailingPools::default(),
            document_ends: BTreeMap::new(),
            held_responses: HeldResponses::default(),
            silence_timers: SilenceTimers::default(),
            keeps_alive: config.keeps_alive && process.key.is_some(),
            kept_alive: KeptAlive::default(),
            body_callbacks: BodyCallbacks::default(),
            granted_ids: GrantedIds::new(random.epoch),
            restarts: Restarts::default(),
            failed_attempts: FailedAttempts::default(),
            alive: AliveEndpoints::default(),
            model_list: None,
            served_models: ServedModels::new(random.epoch),
            // A random start, so that not all workers start with the same endpoint.
            turn: usize::try_from(random.epoch.lo & 0xffff).unwrap_or(0),
            saturation_milli: BTreeMap::new(),
            effects: VecDeque::new(),
        }
    }

    /// Shares `failed_attempts` with the other workers of the module: those of the gateway and of the requeue listener.
    #[must_use]
    pub fn sharing(mut self, failed_attempts: FailedAttempts) -> Self {
        self.failed_attempts = failed_attempts;
        self
    }

    /// The next effect to carry out; `None`: there is none left.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects
            .pop_front()
            .or_else(|| self.sessions.poll_effect().map(|(id, effect)| Effect::Session(id, effect)))
    }

    /// Number of HTTP exchanges that haven't ended.
    #[must_use]
    pub fn exchanges(&self) -> usize {
        self.exchanges.len()
    }

    /// Number of terminal events that the companion hasn't acknowledged.
    #[must_use]
    pub fn unacknowledged(&self) -> usize {
        self.sessions.unacknowledged()
    }

    /// Whether a request was admitted by credit and hasn't ended.
    #[must_use]
    pub fn is_admitted_by_credit(&self, sequence: u64) -> bool {
        let exchange = self.exchanges.get(&sequence);
        exchange.is_some_and(
            |exchange| matches!(&exchange.phase, Phase::Granted(granted) if granted.by_credit.is_some()),
        )
    }

    /// Whether every session is open, so that the companion decides.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        !self.sessions.is_any_down()
    }

    /// How long the host may wait before the next `handle_tick`.
    #[must_use]
    pub fn tick_period(&self, now: Instant) -> Duration {
        let next = self.sessions.next_tick_at(now).since(now);
        let longest =
            if self.body_callbacks.are_missing() { BODY_CALLBACK_CHECK_INTERVAL } else { HEARTBEAT_INTERVAL };
        let timers =
            [self.held_responses.next_at(), self.silence_timers.next_at(), self.kept_alive.next_at()];
        let next = timers.into_iter().flatten().map(|due| due.since(now)).fold(next, Duration::min);
        let next = next.clamp(TICK_MIN, longest);
        // While the companion is down, a new request may need an earlier tick, but an HTTP context can't set the period.
        if self.sessions.is_any_down() { next.min(DEADLINE_CHECK_INTERVAL) } else { next }
    }

    /// Sends heartbeats, opens streams, and enforces deadlines while the companion is down.
    pub fn handle_tick(&mut self, now: Instant) {
        let is_used = |pool: &str| {
            let of_pool = |exchange: &Exchange| exchange.pool_name() == Some(pool);
            self.exchanges.values().any(of_pool)
        };
        let alive = &mut self.alive;
        self.sessions.handle_tick(now, is_used, || alive.take());
        self.return_ended_credits(now);
        self.publish_in_flight(now);
        self.enforce_deadlines(now);
        self.check_body_callbacks(now);
        self.release_responses(now);
        self.end_silent_responses(now);
        self.keep_alive(now);
        self.report_long_admissions(now);
    }

    /// The host has opened the stream of a session.
    pub fn handle_opened(&mut self, now: Instant, id: SessionId) {
        let Some(member) = self.sessions.get_mut(id) else {
            return;
        };
        if member.session.handle_opened(now, &member.policy_digest) {
            self.greet(now, id);
        }
    }

    /// Sends the Hello of a session.
    fn greet(&mut self, now: Instant, id: SessionId) {
        let mut waiting = Vec::new();
        let mut running = Vec::new();
        let hello = match self.sessions.get_mut(id) {
            Some(member) => member.session.next_hello(),
            None => return,
        };
        let departing = self.exchanges.values().filter_map(|exchange| exchange.departure.as_deref());
        for departure in departing.chain(self.restarts.departures()) {
            if self.sessions.id_of(departure.pool.as_deref()) == id {
                running.push(departure.running(now));
            }
        }
        for exchange in self.exchanges.values_mut() {
            if self.sessions.id_of(exchange.pool_name()) != id {
                continue;
            }
            let register = exchange.register(now);
            match &mut exchange.phase {
                Phase::Waiting { registered, .. } => {
                    *registered = true;
                    waiting.push(register);
                }
                Phase::Granted(granted) => {
                    let listed = granted.running(now, register);
                    if let Some(by_credit) = granted.by_credit.as_mut().filter(|_| listed.is_some()) {
                        by_credit.known_since = Some(Origin { session: id, hello });
                    }
                    running.extend(listed);
                }
                Phase::ReadingBody(_) | Phase::KeptAlive | Phase::Answered => {}
            }
        }
        let is_own = |pool: &str| self.sessions.id_of(Some(pool)) == id;
        let endpoints_digest = pool_endpoints::digest(&self.endpoints, is_own);
        if let Some(member) = self.sessions.get_mut(id) {
            member.session.greet(now, &member.policy_digest, endpoints_digest, waiting, running);
        }
    }

    /// The host failed to open the stream of a session.
    pub fn handle_open_failed(&mut self, now: Instant, id: SessionId) {
        if let Some(member) = self.sessions.get_mut(id) {
            member.session.handle_open_failed(now);
        }
        self.publish_in_flight(now);
    }

    /// The stream of a session has ended.
    pub fn handle_closed(&mut self, now: Instant, id: SessionId) {
        if let Some(member) = self.sessions.get_mut(id) {
            member.session.handle_closed(now);
        }
        self.publish_in_flight(now);
    }

    /// The host shuts this root context down.
    pub fn handle_shutdown(&mut self) {
        self.credits = Credits::default();
        self.sessions.shut_down();
    }

    /// A message of a session's companion has arrived.
    pub fn handle_message(&mut self, now: Instant, id: SessionId, message: &[u8]) {
        let Some(member) = self.sessions.get_mut(id) else {
            return;
        };
        for command in member.session.handle_message(now, message) {
            match command.kind {
                Some(command::Kind::Grant(grant)) => self.handle_grant(now, id, grant),
                Some(command::Kind::Reject(reject)) => self.handle_reject(id, &reject),
                Some(command::Kind::Evict(evict)) => self.handle_evict(now, id, &evict),
                Some(command::Kind::Policy(policy)) => self.handle_policy(now, id, &policy),
                Some(command::Kind::Endpoints(message)) => {
                    if self.sessions.id_of(Some(&message.pool)) == id {
                        pool_endpoints::update(&mut self.endpoints, message);
                    }
                }
                Some(command::Kind::ModelList(list)) => self.model_list = Some(ModelList::new(list)),
                Some(command::Kind::Credit(credit)) => self.handle_credit(now, id, &credit),
                Some(command::Kind::Recall(recall)) => self.handle_recall(now, id, &recall),
                // The session handles the first three; `None` is a command of a later protocol version.
                Some(command::Kind::HelloAck(_) | command::Kind::Bye(_) | command::Kind::Role(_)) | None => {}
            }
        }
        let member = self.sessions.get_mut(id);
        if member.is_some_and(|member| member.session.must_greet()) {
            self.greet(now, id);
        }
        self.publish_in_flight(now);
    }

    fn handle_policy(&mut self, now: Instant, id: SessionId, policy: &wire::Policy) {
        let Some(member) = self.sessions.get_mut(id) else {
            return;
        };
        member.policy_digest.clone_from(&policy.digest);
        let policy = self.policies.update(member.pool(), policy);
        self.policy = Arc::new(CompiledPolicy::new(&policy));
        // Stored for workers that start while the companion is down.
        self.shared_data.set(&self.policy_key, &policy.encode_to_vec(), SetIf::Always);
        self.sessions.configure(now, pools_with_sessions(&policy), &policy.digest);
        self.in_flight.remove_idle_pools();
        let exists = |name: &str| policy.pools.iter().any(|pool| pool.name == name);
        self.endpoints.retain(|name, _| exists(name));
        self.saturation_milli.retain(|name, _| exists(name));
        self.failing_pools.retain(exists);
        self.document_ends.retain(|name, _| exists(name));
        self.assign_pools(now);
        self.return_ended_credits(now);
        self.credits.retain(exists);
    }

    /// Assigns a pool to requests that have none, or none that the policy has: an earlier policy didn't have the sessions of
    /// this one. The sessions that carry them from now on list them again.
    fn assign_pools(&mut self, now: Instant) {
        let mut gained = BTreeSet::new();
        for exchange in self.exchanges.values_mut() {
            let is_listed = matches!(exchange.phase, Phase::Waiting { .. } | Phase::Granted(_));
            if !is_listed || self.sessions.id_of(exchange.pool_name()) != SessionId::MAIN {
                continue;
            }
            if let Ok(Some(pool)) = self.policy.pool_of(&exchange.register) {
                let id = self.sessions.id_of(Some(&pool.name));
                if id != SessionId::MAIN {
                    if let Phase::Waiting { place, .. } = &mut exchange.phase {
                        *place = Some(self.credits.wait(&pool.name));
                    }
                    exchange.pool = Some(pool);
                    gained.insert(id);
                }
            }
        }
        for id in gained {
            if let Some(member) = self.sessions.get_mut(id) {
                member.session.relist(now);
            }
        }
    }

    /// Whether a session carries a request.
    fn carries(&self, id: SessionId, sequence: u64) -> bool {
        let exchange = self.exchanges.get(&sequence);
        exchange.is_some_and(|exchange| self.sessions.id_of(exchange.pool_name()) == id)
    }

    fn handle_grant(&mut self, now: Instant, id: SessionId, grant: Grant) {
        let sequence = grant.sequence;
        let waiting = self
            .exchanges
            .get_mut(&sequence)
            .filter(|exchange| matches!(exchange.phase, Phase::Waiting { .. }))
            .filter(|exchange| self.sessions.id_of(exchange.pool_name()) == id);
        let Some(exchange) = waiting else {
            self.handle_unexpected_grant(now, id, sequence);
            return;
        };
        let rewrite = exchange.set_target_model(&grant.target_model);
        let edits = self.grant_headers.edits(exchange, &grant, rewrite.as_ref(), None);
        let restart_on = self.grant_headers.restart_on(exchange, &grant);
        if !self.grant_headers.restarts {
            self.granted_ids.insert(exchange);
            watch_attempt(&self.failed_attempts, now, self.grant_headers.epoch, exchange, &grant);
        }
        set_saturation(&mut self.saturation_milli, &grant.pool, grant.saturation_milli);
        let granted = Granted { restart_on, ..Granted::new(now, grant, exchange.load()) };
        self.in_flight.add(&granted);
        exchange.phase = Phase::Granted(Box::new(granted));
        let action = StreamAction::Resume { edits, rewrite };
        self.effects.push_back(Effect::Stream { context: exchange.context, action });
    }

    /// Ignores a duplicate grant of a running request, and that of a request that waits on under another key, under which it is granted again.
    /// Cancels the grant of a request that is gone or that another session
    /// carries.
    fn handle_unexpected_grant(&mut self, now: Instant, id: SessionId, sequence: u64) {
        let exchange = self.exchanges.get(&sequence).filter(|_| self.carries(id, sequence));
        let is_running =
            exchange.is_some_and(|exchange| matches!(exchange.phase, Phase::Granted(_) | Phase::KeptAlive));
        if !is_running && let Some(member) = self.sessions.get_mut(id) {
            let event = Event::Cancel(Cancel { sequence });
            member.session.send_terminal(now, event);
        }
    }

    fn handle_reject(&mut self, id: SessionId, reject: &Reject) {
        if !self.carries(id, reject.sequence) {
            return;
        }
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
        let report = QueueReport::from(reject);
        let reply = Failure::from(reject).reply(exchange.register.api(), Some(&report));
        let action = StreamAction::Reply(reply);
        self.effects.push_back(Effect::Stream { context: exchange.context, action });
    }

    pub(super) const fn next_sequence(&mut self) -> u64 {
        self.last_sequence = self.last_sequence.saturating_add(1);
        self.last_sequence
    }

    /// The last saturation of a pool that the companion sent; 0 before the first.
    fn saturation_milli(&self, pool: &str) -> u32 {
        self.saturation_milli.get(pool).copied().unwrap_or(0)
    }
}

/// The pools with a session of their own.
fn pools_with_sessions(policy: &wire::Policy) -> impl Iterator<Item = &str> {
    let pools = policy.pools.iter().filter(|_| policy.session_per_pool);
    pools.take(POLICY_LIST_MAX).map(|pool| pool.name.as_str())
}

/// Stores the saturation of a pool, and copies the name only for a new entry.
fn set_saturation(saturation_milli: &mut BTreeMap<String, u32>, pool: &str, milli: u32) {
    match saturation_milli.get_mut(pool) {
        Some(stored) => *stored = milli,
        None => drop(saturation_milli.insert(pool.to_owned(), milli)),
    }
}
