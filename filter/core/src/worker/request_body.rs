//! The request's body: reads it, then admits the request by credit, registers it with the companion, or refuses it.

use penstock_wire::Code;
use penstock_wire::filter_frame::Event;
use penstock_wire::names::outcome;
use penstock_wire::{Api, AttemptFailed, Refused};

use super::Worker;
use crate::body::{Body, BodyError};
use crate::effect::BodyAction;
use crate::exchange::{Phase, ReadingBody};
use crate::fallback_deadlines::{WaitDecision, decide};
use crate::identity::IdentityClaims;
use crate::local_reply::{Failure, LocalReply, QueueReport};
use crate::registration::{self, body_too_large, invalid_body};
use crate::rewrite::BufferedBody;
use crate::session::Epoch;
use crate::time::{Clock, Instant};
use crate::usage_request;

impl Worker {
    /// More of a request's body has arrived: `size` bytes in total. The host buffers the whole `body`, and lets it be edited at its end.
    pub fn handle_request_body(
        &mut self,
        clock: impl Clock,
        sequence: u64,
        size: usize,
        end: bool,
        mut body: impl BufferedBody,
    ) -> BodyAction {
        self.body_callbacks.record();
        let Some(exchange) = self.exchanges.get_mut(&sequence) else {
            return BodyAction::Pause;
        };
        let Phase::ReadingBody(reading) = &mut exchange.phase else {
            return BodyAction::Pause;
        };
        let limit = exchange.policy.body_bytes_max;
        // The first arrival has checked the body, which the gateway may have made longer since.
        if u64::try_from(size).unwrap_or(u64::MAX) > limit && !exchange.is_restarted {
            return self.refuse_invalid(clock.now(), sequence, &body_too_large(limit));
        }
        reading.size = size;
        if end {
            return self.handle_request_end(clock.now(), sequence, body);
        }
        match reading.scanner.read_on(size, false, &mut body) {
            Ok(()) => BodyAction::Pause,
            Err(error) => self.refuse_invalid(clock.now(), sequence, &invalid_body(error)),
        }
    }

    /// The body of a request has ended, with its last byte or with trailers. The host buffers the whole
    /// `body`.
    pub fn handle_request_end(
        &mut self,
        now: Instant,
        sequence: u64,
        mut body: impl BufferedBody,
    ) -> BodyAction {
        self.body_callbacks.record();
        let Some(exchange) = self.exchanges.get_mut(&sequence) else {
            return BodyAction::Pause;
        };
        let phase = core::mem::replace(&mut exchange.phase, Phase::Answered);
        let Phase::ReadingBody(reading) = phase else {
            exchange.phase = phase;
            return BodyAction::Pause;
        };
        let ReadingBody { mut scanner, claims, size, since: _ } = *reading;
        let scanned = scanner.read_on(size, true, &mut body);
        let scanned = scanned.and_then(|()| scanner.finish());
        let Some(claims) = claims else {
            return self.pass_by_model(now, sequence, scanned.unwrap_or_default().model);
        };
        let action = match scanned {
            Ok(fields) => self.handle_body(now, sequence, fields, (size, &mut body), &claims),
            Err(error) => {
                let failure = registration::invalid_whole_body(error, size, body.received());
                self.refuse_invalid(now, sequence, &failure)
            }
        };
        self.report_departure(now, sequence);
        action
    }

    /// The body of a request goes to its server, and the host passes nothing of it to the worker: the headers are all that is known. `size`:
    /// its bytes, as far as the headers tell.
    pub fn handle_unseen_body(&mut self, now: Instant, sequence: u64, size: usize) -> BodyAction {
        self.body_callbacks.record();
        let Some(exchange) = self.exchanges.get_mut(&sequence) else {
            return BodyAction::Pause;
        };
        let phase = core::mem::replace(&mut exchange.phase, Phase::Answered);
        let Phase::ReadingBody(reading) = phase else {
            exchange.phase = phase;
            return BodyAction::Pause;
        };
        let Some(claims) = reading.claims else {
            return self.pass_by_model(now, sequence, String::new());
        };
        let prompt_bytes = u64::try_from(size).unwrap_or(u64::MAX);
        let mut nothing = |_, _| None;
        self.handle_body(
            now,
            sequence,
            Body { prompt_bytes, ..Body::default() },
            (size, &mut nothing),
            &claims,
        )
    }

    /// More has come of a body that the worker doesn't read, `size` bytes in total. The reply, if a body mustn't be so long.
    #[must_use]
    pub fn limit_unseen_body(&self, sequence: u64, size: usize) -> Option<LocalReply> {
        let exchange = self.exchanges.get(&sequence)?;
        let limit = exchange.policy.body_bytes_max;
        let is_longer = u64::try_from(size).unwrap_or(u64::MAX) > limit;
        is_longer.then(|| body_too_large(limit).reply(exchange.register.api(), None))
    }

    /// Passes a request that isn't queued to the pool of its model. From here on the worker doesn't track it.
    fn pass_by_model(&mut self, now: Instant, sequence: u64, model: String) -> BodyAction {
        let Some(exchange) = self.exchanges.get_mut(&sequence) else {
            return BodyAction::Pause;
        };
        let chosen = exchange.policy.named(&exchange.register.pool).cloned();
        let pool = match chosen.map_or_else(|| exchange.policy.pool(&model), |pool| Ok(Some(pool))) {
            Ok(pool) => pool.map(|pool| pool.name.clone()),
            // A body that names no model may be anything.
            Err(_) if model.is_empty() => exchange.policy.default_pool().map(|pool| pool.name.clone()),
            Err(_) => {
                exchange.register.model = model;
                let failure = unknown_model(&exchange.register.model);
                return self.refuse_invalid(now, sequence, &failure);
            }
        };
        let register = &mut exchange.register;
        let only = register.gateway_subset.then(|| core::mem::take(&mut register.subset));
        let edits = pool.map_or(Ok(Vec::new()), |pool| self.pass_to(&pool, only.as_deref()));
        match edits {
            Ok(edits) => {
                self.exchanges.remove(&sequence);
                BodyAction::Continue(edits)
            }
            Err(failure) => BodyAction::Reply(self.refuse(now, sequence, &failure, outcome::NO_ENDPOINTS)),
        }
    }

    fn handle_body(
        &mut self,
        now: Instant,
        sequence: u64,
        mut body: Body,
        (size, buffered): (usize, &mut impl BufferedBody),
        claims: &IdentityClaims,
    ) -> BodyAction {
        let Some(exchange) = self.exchanges.get_mut(&sequence) else {
            return BodyAction::Pause;
        };
        exchange.phase = Phase::Waiting { registered: false, place: None };
        exchange.model_range = body.model_range.clone();
        let hashes = core::mem::take(&mut body.prefix_hashes);
        let mut is_uncounted = false;
        if exchange.is_restarted {
            // Its other facts are those of its first arrival.
            exchange.register.body_bytes = u64::try_from(size).unwrap_or(u64::MAX);
        } else {
            // A requeued body may already name the target model. Keep the model that the client requested.
            let requested = core::mem::take(&mut exchange.register.model);
            if !requested.is_empty() && requested != body.model {
                exchange.register.target_model = core::mem::replace(&mut body.model, requested);
            }
            claims.resolve(&body, &mut exchange.register);
            is_uncounted = usage_request::is_uncounted(exchange.register.api(), &body);
            registration::add_body(body, size, &mut exchange.register);
        }
        let Ok(pool) = exchange.policy.pool_of(&exchange.register) else {
            let failure = unknown_model(&exchange.register.model);
            return self.refuse_invalid(now, sequence, &failure);
        };
        if !exchange.is_restarted && pool.as_ref().is_some_and(|pool| pool.prefix_hashes) {
            exchange.register.prefix_hashes = hashes;
        }
        if is_uncounted && pool.as_ref().is_some_and(|pool| pool.include_usage) {
            exchange.ask_for_usage(buffered);
        }
        exchange.pool = pool;
        let down_since = self.sessions.of(exchange.pool_name()).down_since();
        match decide(now, exchange, down_since, &self.endpoints) {
            WaitDecision::Wait => match self.admit_by_credit(now, sequence) {
                Some(edits) => BodyAction::Continue(edits),
                None => self.register(now, sequence),
            },
            decision => match self.carry_out(now, sequence, 0, decision) {
                Ok(edits) => BodyAction::Continue(edits),
                Err((failure, outcome)) => BodyAction::Reply(self.refuse(now, sequence, &failure, outcome)),
            },
        }
    }

    /// Registers a waiting request with the companion. Without a stream, the next Hello lists the request.
    fn register(&mut self, now: Instant, sequence: u64) -> BodyAction {
        let Some(exchange) = self.exchanges.get_mut(&sequence) else {
            return BodyAction::Pause;
        };
        let place = exchange.pool_name().map(|pool| self.credits.wait(pool));
        if self.keeps_alive && !self.is_requeue_listener {
            self.kept_alive.start(sequence, exchange);
        }
        if let (Some(from), Some(AttemptFailed { timed_out: true, .. })) =
            (&exchange.register.requeued_from, &exchange.register.failed_attempt)
        {
            self.failed_attempts.overtake(Epoch { hi: from.epoch_hi, lo: from.epoch_lo }, from.sequence);
        }
        let session = self.sessions.of_mut(exchange.pool_name());
        let registered = session.is_linked();
        exchange.phase = Phase::Waiting { registered, place };
        if registered {
            exchange.register.age_us = now.micros_since(exchange.arrived);
            // The registration is moved into the event and back, so that it isn't copied.
            let event = Event::Register(core::mem::take(&mut exchange.register));
            if let Some(Event::Register(register)) = session.send_once(now, event) {
                exchange.register = register;
            }
        }
        BodyAction::Pause
    }

    fn refuse_invalid(&mut self, now: Instant, sequence: u64, failure: &Failure) -> BodyAction {
        BodyAction::Reply(self.refuse(now, sequence, failure, outcome::REJECTED_INVALID))
    }

    /// Refuses a request without the companion's decision, and reports that to the companion.
    pub(super) fn refuse(
        &mut self,
        now: Instant,
        sequence: u64,
        failure: &Failure,
        outcome: &str,
    ) -> LocalReply {
        let Some(exchange) = self.exchanges.get_mut(&sequence) else {
            return failure.reply(Api::Unspecified, None);
        };
        let phase = core::mem::replace(&mut exchange.phase, Phase::Answered);
        let (registered, queue_us) = match phase {
            Phase::Waiting { registered, .. } => (registered, now.micros_since(exchange.arrived)),
            Phase::ReadingBody(_) | Phase::KeptAlive | Phase::Granted(_) | Phase::Answered => (false, 0),
        };
        let saturation = exchange.pool.as_ref().and_then(|pool| self.saturation_milli.get(&pool.name));
        let report = QueueReport {
            outcome: outcome.to_owned(),
            queue_us,
            saturation_milli: saturation.copied().unwrap_or(0),
            rate_limit: None,
        };
        let refused = Refused {
            sequence,
            code: failure.code.clone(),
            outcome: outcome.to_owned(),
            status: failure.status,
            model: exchange.register.model.clone(),
            request_id: exchange.register.request_id.clone(),
            registered,
            requeued_from: exchange.register.requeued_from,
            requeues: exchange.register.requeues,
        };
        let reply = failure.reply(exchange.register.api(), Some(&report));
        let session = self.sessions.of_mut(exchange.pool_name());
        session.send_terminal(now, Event::Refused(refused));
        reply
    }
}

/// The error for a model that no pool serves, or for none.
fn unknown_model(model: &str) -> Failure {
    if model.is_empty() {
        return invalid_body(BodyError::NoModel).about("model");
    }
    let message =
        format!("No pool serves the model \"{model}\": check the name, or add it to `models` of a pool.");
    Failure::new(404, Code::ModelNotFound, message).about("model")
}
