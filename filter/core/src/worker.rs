//! One root context's whole state: its session and its exchanges. Host events in, decisions out.
//!
//! What an HTTP callback must answer at once is its method's return value; everything else is an `Effect`, to be polled
//! until there is none after every call. Every number of a request is the worker's own sequence, never the host's.

use core::time::Duration;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use penstock_wire::{
    self as wire, Api, Cancel, Endpoints, Grant, Refused, Reject, command,
    filter_frame::Event,
    limits::BEAT,
    names::{self, code, outcome},
};

use crate::{
    answer::{Answer, Failure, Standing},
    body::BodyScanner,
    config::Config,
    effect::{Effect, Headed, Responded},
    ends::NoAnswer,
    exchange::{self, Begun, Collecting, Exchange, Going, Phase, Upstream},
    headers::Headers,
    hygiene::{self, Edit},
    identity::{Claims, Properties},
    intake::{describe, invalid, read_claims, refuse_by_headers, too_large},
    limits::{ENFORCE, RETRY_AFTER_MS, SLICE_BYTES, TICK_MIN},
    patience::overdue,
    plan::Plan,
    response::{Format, ResponseScanner},
    session::{Epoch, Session},
    time::Instant,
};

/// The whole state of a root context.
#[derive(Debug)]
pub struct Worker {
    session: Session,
    plan: Arc<Plan>,
    exchanges: BTreeMap<u64, Exchange>,
    last_sequence: u64,
    /// The ready endpoints of each pool that the companion spoke of.
    ready: BTreeMap<String, Vec<String>>,
    turn: usize,
    saturation_milli: BTreeMap<String, u32>,
    effects: VecDeque<Effect>,
}

impl Worker {
    /// A worker that opens its session at the next tick.
    #[must_use]
    pub fn new(now: Instant, epoch: Epoch, config: &Config) -> Self {
        Self {
            session: Session::new(now, epoch, config.node.clone()),
            plan: Arc::new(Plan::new(&config.policy)),
            exchanges: BTreeMap::new(),
            last_sequence: 0,
            ready: BTreeMap::new(),
            turn: 0,
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

    /// How long the host may wait before the next `handle_tick`.
    #[must_use]
    pub fn tick_period(&self, now: Instant) -> Duration {
        let next = self.session.next_tick_at(now).since(now).clamp(TICK_MIN, BEAT);
        // A request that comes while the companion is away can't shorten the period from its own context.
        if self.session.away_since().is_some() {
            next.min(ENFORCE)
        } else {
            next
        }
    }

    /// Time has passed: beats, opens, and answers what has waited too long for a companion that is away.
    pub fn handle_tick(&mut self, now: Instant) {
        self.session.handle_tick(now);
        self.enforce(now);
    }

    /// The stream that was ordered is open.
    pub fn handle_opened(&mut self, now: Instant) {
        let mut waiting = Vec::new();
        let mut running = Vec::new();
        for exchange in self.exchanges.values_mut() {
            let register = exchange.register(now);
            match &mut exchange.phase {
                Phase::Waiting { told } => {
                    *told = true;
                    waiting.push(register);
                }
                Phase::Running(going) => running.push(going.running(now, register)),
                Phase::Collecting(_) | Phase::Answered => {}
            }
        }
        self.session
            .handle_opened(now, &self.plan.digest, waiting, running);
    }

    /// The stream that was ordered can't be opened.
    pub fn handle_open_failed(&mut self, now: Instant) {
        self.session.handle_open_failed(now);
    }

    /// The stream has ended.
    pub fn handle_closed(&mut self, now: Instant) {
        self.session.handle_closed(now);
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
                Some(command::Kind::Endpoints(Endpoints { pool, ready, .. })) => {
                    self.ready.insert(pool, ready);
                }
                // The session has taken these; what a later version says is passed over.
                Some(command::Kind::HelloAck(_) | command::Kind::Bye(_)) | None => {}
            }
        }
    }

    fn handle_policy(&mut self, policy: &wire::Policy) {
        self.plan = Arc::new(Plan::new(policy));
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
                .is_some_and(|e| matches!(e.phase, Phase::Running(_)));
            if !runs {
                self.session
                    .tell_terminal(now, Event::Cancel(Cancel { sequence }));
            }
            return;
        };
        let mut edits = vec![Edit::Set(names::POOL_HEADER, grant.pool.clone())];
        if !grant.endpoints.is_empty() {
            edits.push(Edit::Set(names::ENDPOINT_HEADER, grant.endpoints.join(",")));
        }
        self.saturation_milli
            .insert(grant.pool.clone(), grant.saturation_milli);
        exchange.phase = Phase::Running(Box::new(Going::new(now, grant)));
        self.effects.push_back(Effect::Resume {
            context: exchange.context,
            edits,
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
            self.saturation_milli
                .insert(pool.name.clone(), reject.saturation_milli);
        }
        let standing = Standing {
            outcome: reject.outcome.clone(),
            queue_us: reject.queue_us,
            saturation_milli: reject.saturation_milli,
        };
        let answer = Failure::from(reject).answer(exchange.register.api(), Some(&standing));
        self.effects.push_back(Effect::Answer {
            context: exchange.context,
            answer,
        });
    }

    /// A request's headers are in. `end`: it has no body.
    pub fn handle_request_headers(
        &mut self,
        now: Instant,
        context: u32,
        headers: Headers<'_>,
        end: bool,
        host: &impl Properties,
    ) -> Headed {
        let method = headers.get(":method").unwrap_or_default();
        let path = headers.get(":path").unwrap_or_default();
        let Some(api) = self.plan.route(method, path) else {
            return self.pass(headers);
        };
        self.last_sequence = self.last_sequence.saturating_add(1);
        let sequence = self.last_sequence;
        let collecting = Collecting {
            scanner: BodyScanner::new(Arc::clone(&self.plan.body_keys)),
            claims: Claims::gather(&self.plan.sources, headers, host),
            scanned: 0,
        };
        let exchange = Exchange {
            context,
            arrived: now,
            plan: Arc::clone(&self.plan),
            pool: None,
            register: read_claims(sequence, api, headers, host),
            phase: Phase::Collecting(Box::new(collecting)),
        };
        self.exchanges.insert(sequence, exchange);
        let refusal = refuse_by_headers(headers, end, self.plan.body_bytes_max);
        match refusal {
            Some(failure) => {
                let answer = self.refuse(now, sequence, &failure, outcome::REJECTED_INVALID);
                Headed::Answered(sequence, answer)
            }
            None => Headed::Held(sequence, hygiene::request(headers, true)),
        }
    }

    /// To the first pool, in turn over its ready endpoints.
    fn pass(&mut self, headers: Headers<'_>) -> Headed {
        let mut edits = hygiene::request(headers, false);
        let Some(pool) = self.plan.first_pool() else {
            return Headed::Pass(edits);
        };
        edits.push(Edit::Set(names::POOL_HEADER, pool.name.clone()));
        // Before the companion's first word Envoy's own balancing serves.
        let Some(ready) = self.ready.get(&pool.name) else {
            return Headed::Pass(edits);
        };
        self.turn = self.turn.wrapping_add(1);
        let Some(endpoint) = self
            .turn
            .checked_rem(ready.len())
            .and_then(|turn| ready.get(turn))
        else {
            let failure = Failure::new(
                503,
                code::NO_ENDPOINTS,
                format!(
                    "The pool \"{}\" has no ready endpoint: check that its model servers are up.",
                    pool.name
                ),
            );
            return Headed::Nowhere(
                failure
                    .retry_after_ms(RETRY_AFTER_MS)
                    .answer(Api::Unspecified, None),
            );
        };
        edits.push(Edit::Set(names::ENDPOINT_HEADER, endpoint.clone()));
        Headed::Pass(edits)
    }

    /// More of a request's body is there: `size` bytes since its beginning, read by `read(start, length)`. Returns the
    /// answer, if there is one now.
    pub fn handle_request_body(
        &mut self,
        now: Instant,
        sequence: u64,
        size: usize,
        end: bool,
        read: impl FnMut(usize, usize) -> Option<Vec<u8>>,
    ) -> Option<Answer> {
        let exchange = self.exchanges.get_mut(&sequence)?;
        let Phase::Collecting(collecting) = &mut exchange.phase else {
            return None;
        };
        let limit = exchange.plan.body_bytes_max;
        if u64::try_from(size).unwrap_or(u64::MAX) > limit {
            return Some(self.refuse(now, sequence, &too_large(limit), outcome::REJECTED_INVALID));
        }
        let mut scanned = Ok(());
        let scanner = &mut collecting.scanner;
        for_slices(collecting.scanned, size, read, |slice| {
            scanned = scanner.feed(slice);
            scanned.is_ok()
        });
        collecting.scanned = size;
        if let Err(error) = scanned {
            return Some(self.refuse(now, sequence, &invalid(error), outcome::REJECTED_INVALID));
        }
        if end {
            self.handle_request_end(now, sequence)
        } else {
            None
        }
    }

    /// A request's body is over, by its last byte or by trailers. Returns the answer, if there is one now.
    pub fn handle_request_end(&mut self, now: Instant, sequence: u64) -> Option<Answer> {
        let exchange = self.exchanges.get_mut(&sequence)?;
        let phase = core::mem::replace(&mut exchange.phase, Phase::Waiting { told: false });
        let Phase::Collecting(collecting) = phase else {
            exchange.phase = phase;
            return None;
        };
        let Collecting {
            scanner,
            claims,
            scanned,
        } = *collecting;
        let body = match scanner.finish() {
            Ok(body) => body,
            Err(error) => {
                return Some(self.refuse(now, sequence, &invalid(error), outcome::REJECTED_INVALID));
            }
        };
        claims.settle(&body, &mut exchange.register);
        describe(body, scanned, &mut exchange.register);
        let Ok(pool) = exchange.plan.pool(&exchange.register.model) else {
            let message = format!(
                "No pool serves the model \"{}\": check the name, or add it to `models` of a pool.",
                exchange.register.model
            );
            let failure = Failure::new(404, code::MODEL_NOT_FOUND, message);
            return Some(self.refuse(now, sequence, &failure, outcome::REJECTED_INVALID));
        };
        exchange.pool = pool;
        if let Some((failure, outcome)) = overdue(now, exchange, self.session.away_since(), &self.ready) {
            return Some(self.refuse(now, sequence, &failure, outcome));
        }
        if self.session.is_linked() {
            exchange.phase = Phase::Waiting { told: true };
            let register = exchange.register(now);
            self.session.tell(now, Event::Register(register));
        }
        None
    }

    /// Answers a request by the filter's own word, and tells the companion.
    fn refuse(&mut self, now: Instant, sequence: u64, failure: &Failure, outcome: &str) -> Answer {
        let exchange = self.exchanges.get_mut(&sequence);
        let Some(exchange) = exchange else {
            return failure.answer(Api::Unspecified, None);
        };
        let phase = core::mem::replace(&mut exchange.phase, Phase::Answered);
        let (registered, queue_us) = match phase {
            Phase::Waiting { told } => (told, now.micros_since(exchange.arrived)),
            Phase::Collecting(_) | Phase::Running(_) | Phase::Answered => (false, 0),
        };
        let saturation = exchange
            .pool
            .as_ref()
            .and_then(|pool| self.saturation_milli.get(&pool.name));
        let standing = Standing {
            outcome: outcome.to_owned(),
            queue_us,
            saturation_milli: saturation.copied().unwrap_or(0),
        };
        let refused = Refused {
            sequence,
            code: failure.code.clone(),
            outcome: outcome.to_owned(),
            status: failure.status,
            model: exchange.register.model.clone(),
            request_id: exchange.register.request_id.clone(),
            registered,
        };
        let answer = failure.answer(exchange.register.api(), Some(&standing));
        self.session.tell_terminal(now, Event::Refused(refused));
        answer
    }

    /// While no companion answers, its deadlines are ours.
    fn enforce(&mut self, now: Instant) {
        let Some(away_since) = self.session.away_since() else {
            return;
        };
        let late: Vec<_> = self
            .exchanges
            .iter()
            .filter(|(_, exchange)| matches!(exchange.phase, Phase::Waiting { .. }))
            .filter_map(|(sequence, exchange)| {
                let (failure, outcome) = overdue(now, exchange, Some(away_since), &self.ready)?;
                Some((*sequence, exchange.context, failure, outcome))
            })
            .collect();
        for (sequence, context, failure, outcome) in late {
            let answer = self.refuse(now, sequence, &failure, outcome);
            self.effects.push_back(Effect::Answer { context, answer });
        }
    }

    /// An answer's headers are in, a server's or Envoy's own. `sequence`: none for what passes through.
    pub fn handle_response_headers(
        &mut self,
        now: Instant,
        sequence: Option<u64>,
        headers: Headers<'_>,
        end: bool,
        host: &impl Properties,
    ) -> Responded {
        let Some(exchange) = sequence.and_then(|sequence| self.exchanges.get_mut(&sequence)) else {
            return Responded {
                edits: hygiene::response(headers),
                body: None,
            };
        };
        let sequence = exchange.register.sequence;
        let api = exchange.register.api();
        let Phase::Running(going) = &mut exchange.phase else {
            return Responded::default();
        };
        let status = headers
            .text(":status", 3)
            .and_then(|status| status.parse().ok())
            .unwrap_or(0);
        // A server's error is the server's to explain; only where no server answered Envoy's words are replaced.
        let details = if status >= 400 {
            exchange::details(host)
        } else {
            String::new()
        };
        if status >= 400 && !details.starts_with("via_upstream") {
            return no_answer(going, status, &details, api, end);
        }
        let format = Format::of(headers.get("content-type"), headers.get("content-encoding"));
        let begun = Begun {
            endpoint: exchange::address(host).unwrap_or_else(|| going.endpoint.clone()),
            status,
            attempts: exchange::attempts(host),
            scanner: ResponseScanner::new(if status < 400 { format } else { Format::Opaque }),
            ended: end,
        };
        let mut edits = report(&going.standing);
        edits.push(Edit::Set(names::SERVED_HEADER, begun.endpoint.clone()));
        let started = going.started(now, sequence, &begun);
        going.upstream = Upstream::Begun(Box::new(begun));
        self.session.tell(now, Event::Started(started));
        Responded { edits, body: None }
    }

    /// Bytes of an answer's body are there, `size` of them, read by `read(start, length)`.
    pub fn handle_response_body(
        &mut self,
        now: Instant,
        sequence: u64,
        size: usize,
        end: bool,
        read: impl FnMut(usize, usize) -> Option<Vec<u8>>,
    ) {
        let Some(begun) = self.begun(sequence) else { return };
        begun.ended |= end;
        if size > 0 {
            begun.scanner.arrived(now);
        }
        if begun.scanner.reads() {
            for_slices(0, size, read, |slice| {
                begun.scanner.feed(slice);
                true
            });
        }
    }

    /// An answer's body is over, by trailers.
    pub fn handle_response_end(&mut self, sequence: u64) {
        if let Some(begun) = self.begun(sequence) {
            begun.ended = true;
        }
    }

    fn begun(&mut self, sequence: u64) -> Option<&mut Begun> {
        match &mut self.exchanges.get_mut(&sequence)?.phase {
            Phase::Running(going) => match &mut going.upstream {
                Upstream::Begun(begun) => Some(begun),
                Upstream::Awaited | Upstream::Absent { .. } | Upstream::Ended { .. } => None,
            },
            Phase::Collecting(_) | Phase::Waiting { .. } | Phase::Answered => None,
        }
    }

    /// The HTTP stream is over, whatever ended it.
    pub fn handle_log(&mut self, now: Instant, sequence: u64, host: &impl Properties) {
        let Some(exchange) = self.exchanges.remove(&sequence) else {
            return;
        };
        match exchange.phase {
            Phase::Waiting { told: true } => self
                .session
                .tell_terminal(now, Event::Cancel(Cancel { sequence })),
            Phase::Running(going) => {
                let completed = going.completed(sequence, host);
                self.session.tell_terminal(now, Event::Completed(completed));
            }
            Phase::Collecting(_) | Phase::Waiting { told: false } | Phase::Answered => {}
        }
    }
}

fn report(standing: &Standing) -> Vec<Edit> {
    standing
        .headers()
        .into_iter()
        .map(|(name, value)| Edit::Set(name, value))
        .collect()
}

/// Envoy answers a granted request by itself: in the contract's words where it has some.
fn no_answer(going: &mut Going, status: u32, details: &str, api: Api, end: bool) -> Responded {
    let mut edits = report(&going.standing);
    edits.push(Edit::Remove(names::SERVED_HEADER));
    let Some(why) = NoAnswer::of(details) else {
        going.upstream = Upstream::Ended { status };
        return Responded { edits, body: None };
    };
    let failure = why.failure();
    going.upstream = Upstream::Absent {
        why,
        status: failure.status,
    };
    let Answer {
        status,
        headers,
        body,
    } = failure.answer(api, None);
    edits.push(Edit::Set(":status", status.to_string()));
    if end {
        // No body comes that could be replaced.
        return Responded { edits, body: None };
    }
    edits.push(Edit::Set("content-length", body.len().to_string()));
    edits.extend(headers.into_iter().map(|(name, value)| Edit::Set(name, value)));
    Responded {
        edits,
        body: Some(body),
    }
}

/// Reads what lies from `start` to `end` in slices, until `take` has enough.
fn for_slices(
    start: usize,
    end: usize,
    mut read: impl FnMut(usize, usize) -> Option<Vec<u8>>,
    mut take: impl FnMut(&[u8]) -> bool,
) {
    let mut at = start;
    while at < end {
        let wanted = end.saturating_sub(at).min(SLICE_BYTES);
        let Some(slice) = read(at, wanted).filter(|slice| !slice.is_empty()) else {
            return;
        };
        at = at.saturating_add(slice.len());
        if !take(&slice) {
            return;
        }
    }
}
