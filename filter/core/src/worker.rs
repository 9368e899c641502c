//! One root context's whole state: its session and its exchanges. Host events in, decisions out.
//!
//! What an HTTP callback must answer at once is its method's return value; everything else is an `Effect`, to be polled
//! until there is none after every call. Every number of a request is the worker's own sequence, never the host's.

mod companion_down;
mod request_path;
mod response_path;

use core::time::Duration;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use penstock_wire::{
    self as wire, Cancel, Grant, Reject, command, filter_frame::Event, limits::HEARTBEAT_INTERVAL, names,
};

use companion_down::WorkerInFlight;
use prost::Message;

use crate::{
    compiled_policy::CompiledPolicy,
    config::Config,
    effect::Effect,
    exchange::{Exchange, Granted, Phase},
    header_sanitizer::{self, HeaderEdit},
    limits::{DEADLINE_CHECK_INTERVAL, TICK_MIN},
    local_reply::{Failure, QueueReport},
    process_identity::{Key, ProcessIdentity, RandomBits},
    session::Session,
    shared_data::SharedData,
    time::Instant,
};

/// The whole state of a root context.
#[derive(Debug)]
pub struct Worker {
    session: Session,
    shared_data: Box<dyn SharedData>,
    /// Where the shared_data keep the policy in force.
    policy_key: String,
    /// What this Envoy signs with.
    key: Option<Key>,
    /// Where a request enters again, as the endpoint header names it.
    requeue: Option<String>,
    /// Only what enters again is let in here.
    is_requeue_listener: bool,
    /// Which host answers stands in the answer's headers.
    routes_report_endpoint: bool,
    policy: Arc<CompiledPolicy>,
    exchanges: BTreeMap<u64, Exchange>,
    last_sequence: u64,
    /// Of each pool that the companion spoke of.
    ready: BTreeMap<String, PoolEndpoints>,
    in_flight: WorkerInFlight,
    turn: usize,
    saturation_milli: BTreeMap<String, u32>,
    effects: VecDeque<Effect>,
}

/// What the companion said last of a pool's endpoints.
#[derive(Debug)]
pub(crate) struct PoolEndpoints {
    pub(crate) endpoints: Vec<String>,
    /// What this Envoy may have in flight without a companion; `None`: it didn't say.
    pub(crate) fallback_bound: Option<u64>,
}

impl Worker {
    /// A worker that opens its session at the next tick. It starts with the policy that its Envoy had last, else with
    /// its configuration's.
    #[must_use]
    pub fn new(now: Instant, draw: &RandomBits, config: &Config, shared_data: Box<dyn SharedData>) -> Self {
        let process = ProcessIdentity::join(&*shared_data, draw);
        let policy_key = format!("penstock/policy/{}", config.companion);
        let kept = shared_data.get(&policy_key);
        let kept = kept.and_then(|(kept, _)| wire::Policy::decode(kept.as_slice()).ok());
        Self {
            session: Session::new(now, draw.epoch, process.id, config.node.clone()),
            shared_data,
            policy_key,
            key: process.key,
            requeue: config.requeue.clone(),
            is_requeue_listener: config.is_requeue_listener,
            routes_report_endpoint: config.routes_report_endpoint,
            policy: Arc::new(CompiledPolicy::new(kept.as_ref().unwrap_or(&config.policy))),
            exchanges: BTreeMap::new(),
            last_sequence: 0,
            ready: BTreeMap::new(),
            in_flight: WorkerInFlight::new(now),
            // Not every worker's first.
            turn: usize::try_from(draw.epoch.lo & 0xffff).unwrap_or(0),
            saturation_milli: BTreeMap::new(),
            effects: VecDeque::new(),
        }
    }

    /// The next thing to do; none: all is done.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects
            .pop_front()
            .or_else(|| self.session.poll_order().map(Effect::Session))
    }

    /// HTTP streams that aren't over.
    #[must_use]
    pub fn exchanges(&self) -> usize {
        self.exchanges.len()
    }

    /// Terminal events that the companion hasn't acknowledged.
    #[must_use]
    pub fn unacknowledged(&self) -> usize {
        self.session.unacknowledged()
    }

    /// How long the host may wait before the next `handle_tick`.
    #[must_use]
    pub fn tick_period(&self, now: Instant) -> Duration {
        let next = self
            .session
            .next_tick_at(now)
            .since(now)
            .clamp(TICK_MIN, HEARTBEAT_INTERVAL);
        // A request that comes while the companion is away can't shorten the period from its own context.
        if self.session.away_since().is_some() {
            next.min(DEADLINE_CHECK_INTERVAL)
        } else {
            next
        }
    }

    /// Time has passed: beats, opens, and answers what has waited too long for a companion that is away.
    pub fn handle_tick(&mut self, now: Instant) {
        self.session.handle_tick(now);
        self.publish_in_flight(now);
        self.enforce(now);
    }

    /// The stream that was ordered is open.
    pub fn handle_opened(&mut self, now: Instant) {
        let mut waiting = Vec::new();
        let mut running = Vec::new();
        for exchange in self.exchanges.values_mut() {
            let register = exchange.register(now);
            match &mut exchange.phase {
                Phase::Waiting { registered } => {
                    *registered = true;
                    waiting.push(register);
                }
                Phase::Granted(going) => running.extend(going.running(now, register)),
                Phase::ReadingBody(_) | Phase::Answered => {}
            }
        }
        self.session
            .handle_opened(now, &self.policy.digest, waiting, running);
    }

    /// The stream that was ordered can't be opened.
    pub fn handle_open_failed(&mut self, now: Instant) {
        self.session.handle_open_failed(now);
        self.publish_in_flight(now);
    }

    /// The stream has ended.
    pub fn handle_closed(&mut self, now: Instant) {
        self.session.handle_closed(now);
        self.publish_in_flight(now);
    }

    /// The host shuts this context down.
    pub fn handle_shutdown(&mut self) {
        self.session.leave();
    }

    /// A message of the companion.
    pub fn handle_message(&mut self, now: Instant, message: &[u8]) {
        for command in self.session.handle_message(now, message) {
            match command.kind {
                Some(command::Kind::Grant(grant)) => self.handle_grant(now, grant),
                Some(command::Kind::Reject(reject)) => self.handle_reject(&reject),
                Some(command::Kind::Policy(policy)) => self.handle_policy(&policy),
                Some(command::Kind::Endpoints(said)) => {
                    let (pool, ready) = PoolEndpoints::new(said);
                    self.ready.insert(pool, ready);
                }
                // The session has taken these; what a later version says is passed over.
                Some(command::Kind::HelloAck(_) | command::Kind::Bye(_)) | None => {}
            }
        }
        self.publish_in_flight(now);
    }

    fn handle_policy(&mut self, policy: &wire::Policy) {
        self.policy = Arc::new(CompiledPolicy::new(policy));
        // For who starts while no companion answers.
        self.shared_data
            .set(&self.policy_key, &policy.encode_to_vec(), None);
        self.in_flight.tidy();
        let pools = &policy.pools;
        self.ready
            .retain(|name, _| pools.iter().any(|pool| pool.name == *name));
        self.saturation_milli
            .retain(|name, _| pools.iter().any(|pool| pool.name == *name));
    }

    fn handle_grant(&mut self, now: Instant, grant: Grant) {
        let sequence = grant.sequence;
        let waiting = self
            .exchanges
            .get_mut(&sequence)
            .filter(|e| matches!(e.phase, Phase::Waiting { .. }));
        let Some(exchange) = waiting else {
            // A grant that is said again to what runs is no news; else what it grants has left.
            let runs = self
                .exchanges
                .get(&sequence)
                .is_some_and(|e| matches!(e.phase, Phase::Granted(_)));
            if !runs {
                self.session
                    .tell_terminal(now, Event::Cancel(Cancel { sequence }));
            }
            return;
        };
        let mut edits = vec![HeaderEdit::Set(names::POOL_HEADER, grant.pool.clone())];
        let rewrite = exchange.retarget(&grant.target_model);
        if let Some(rewrite) = &rewrite {
            edits.extend(header_sanitizer::rewritten(
                rewrite.length_after(),
                exchange.sized,
            ));
        }
        if !grant.endpoints.is_empty() {
            let again = (self.requeue.as_ref().zip(self.key.as_ref())).filter(|_| grant.requeue);
            let list = grant.endpoints.join(",");
            let route = again.map(|(listener, _)| format!("{list},{listener}"));
            edits.push(HeaderEdit::Set(names::ENDPOINT_HEADER, list));
            edits.extend(route.map(|route| HeaderEdit::Set(names::ROUTE_HEADER, route)));
            if let Some((_, key)) = again {
                let token = exchange.token(self.session.epoch()).mint(key);
                edits.push(HeaderEdit::Set(names::REQUEUE_HEADER, token));
            }
        }
        note(&mut self.saturation_milli, &grant.pool, grant.saturation_milli);
        let going = Granted::new(now, grant, exchange.load());
        self.in_flight.begin(&going);
        exchange.phase = Phase::Granted(Box::new(going));
        self.effects.push_back(Effect::Resume {
            context: exchange.context,
            edits,
            rewrite,
        });
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
            note(&mut self.saturation_milli, &pool.name, reject.saturation_milli);
        }
        let standing = QueueReport {
            outcome: reject.outcome.clone(),
            queue_us: reject.queue_us,
            saturation_milli: reject.saturation_milli,
        };
        let answer = Failure::from(reject).answer(exchange.register.api(), Some(&standing));
        self.effects.push_back(Effect::Reply {
            context: exchange.context,
            answer,
        });
    }
}

/// Keeps how full a pool is; its name is copied once.
fn note(saturation_milli: &mut BTreeMap<String, u32>, pool: &str, milli: u32) {
    match saturation_milli.get_mut(pool) {
        Some(known) => *known = milli,
        None => drop(saturation_milli.insert(pool.to_owned(), milli)),
    }
}
