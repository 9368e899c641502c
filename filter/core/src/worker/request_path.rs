//! A request on its way in: from its headers over its body to its place among those that wait, or to its refusal.

use std::sync::Arc;

use penstock_wire::{
    Api, Cancel, Refused, RequestKey,
    filter_frame::Event,
    names::{self, code, outcome},
};

use super::Worker;
use crate::{
    body::BodyScanner,
    effect::{BodyAction, HeadersAction},
    exchange::{Exchange, Phase, ReadingBody},
    fallback_deadlines::{WaitDecision, decide},
    header_sanitizer::{self, CONTENT_LENGTH, HeaderEdit},
    headers::Headers,
    identity::{IdentityClaims, Properties},
    limits::{RETRY_AFTER_MS, TRACEPARENT_BYTES_MAX},
    local_reply::{Failure, LocalReply, QueueReport},
    registration::{client, describe, invalid, read_claims, refuse_by_headers, too_large},
    requeue_token::RequeueToken,
    time::Instant,
    trust::Trust,
};

impl Worker {
    /// A request's headers are in. `end`: it has no body.
    pub fn handle_request_headers(
        &mut self,
        now: Instant,
        context: u32,
        headers: Headers<'_>,
        end: bool,
        host: &impl Properties,
    ) -> HeadersAction {
        let method = headers.get(":method").unwrap_or_default();
        let path = headers.get(":path").unwrap_or_default();
        let api = self.policy.route(method, path);
        let again = self.is_requeue_listener.then(|| {
            let token = headers.get(names::REQUEUE_HEADER).zip(self.key.as_ref());
            token.and_then(|(text, key)| RequeueToken::verify(text, key))
        });
        if let Some(None) = again {
            return self.refuse_stranger(now, context, api.unwrap_or_default(), headers);
        }
        let again = again.flatten();
        let Some(api) = api else {
            return self.pass(headers, host);
        };
        let client = match &again {
            Some(token) => token.client.clone(),
            // Who it is matters to nobody where everybody is trusted.
            None if self.policy.trust == Trust::All => String::new(),
            None => client(host),
        };
        let trusted = self.policy.trust.covers(&client);
        let sequence = self.next_sequence();
        let scanner = BodyScanner::new(Arc::clone(&self.policy.body_keys));
        let collecting = ReadingBody {
            scanner: if self.policy.hashes {
                scanner.hashing()
            } else {
                scanner
            },
            claims: IdentityClaims::gather(&self.policy.sources, trusted, headers, host),
            size: 0,
        };
        let mut exchange = Exchange {
            context,
            arrived: now,
            policy: Arc::clone(&self.policy),
            pool: None,
            model_at: 0..0,
            sized: headers.get(CONTENT_LENGTH).is_some(),
            register: read_claims(sequence, api, client, trusted, headers),
            phase: Phase::ReadingBody(Box::new(collecting)),
        };
        if self.policy.tracing {
            let parent = headers.text("traceparent", TRACEPARENT_BYTES_MAX);
            exchange.register.traceparent = parent.unwrap_or_default();
        }
        if let Some(token) = again {
            exchange.arrived = token.arrived;
            exchange.register.requeues = token.requeues;
            exchange.register.model = token.model;
            exchange.register.requeued_from = Some(RequestKey {
                epoch_hi: token.epoch.hi,
                epoch_lo: token.epoch.lo,
                sequence: token.sequence,
            });
        }
        self.exchanges.insert(sequence, exchange);
        let refusal = refuse_by_headers(headers, end, self.policy.body_bytes_max);
        match refusal {
            Some(failure) => {
                let answer = self.refuse(now, sequence, &failure, outcome::REJECTED_INVALID);
                HeadersAction::Reply(sequence, answer)
            }
            None => {
                let mut edits = header_sanitizer::request(headers, true);
                if !trusted {
                    edits.extend(header_sanitizer::privileges(headers, &self.policy.privileges));
                }
                HeadersAction::Pause(sequence, edits)
            }
        }
    }

    fn next_sequence(&mut self) -> u64 {
        self.last_sequence = self.last_sequence.saturating_add(1);
        self.last_sequence
    }

    /// Who comes where requests enter again, and didn't leave from here.
    fn refuse_stranger(
        &mut self,
        now: Instant,
        context: u32,
        api: Api,
        headers: Headers<'_>,
    ) -> HeadersAction {
        let sequence = self.next_sequence();
        let exchange = Exchange {
            context,
            arrived: now,
            policy: Arc::clone(&self.policy),
            pool: None,
            model_at: 0..0,
            sized: false,
            register: read_claims(sequence, api, String::new(), false, headers),
            phase: Phase::Answered,
        };
        self.exchanges.insert(sequence, exchange);
        let message =
            "Only requests that this gateway queues again are let in here: send to its own address.";
        let failure = Failure::new(403, code::INVALID_REQUEST, message).last();
        let answer = self.refuse(now, sequence, &failure, outcome::REJECTED_INVALID);
        HeadersAction::Reply(sequence, answer)
    }

    /// To the first pool, in turn over its ready endpoints.
    fn pass(&mut self, headers: Headers<'_>, host: &impl Properties) -> HeadersAction {
        let mut edits = header_sanitizer::request(headers, false);
        let mut privileges = header_sanitizer::privileges(headers, &self.policy.privileges).peekable();
        // Whose they are is asked for only if there are some.
        if privileges.peek().is_some() && !self.policy.trust.covers(&client(host)) {
            edits.extend(privileges);
        }
        let Some(pool) = self.policy.first_pool() else {
            return HeadersAction::Pass(edits);
        };
        edits.push(HeaderEdit::Set(names::POOL_HEADER, pool.name.clone()));
        // Before the companion's first word Envoy's own balancing serves.
        let Some(ready) = self.ready.get(&pool.name) else {
            return HeadersAction::Pass(edits);
        };
        self.turn = self.turn.wrapping_add(1);
        let Some(endpoint) = self
            .turn
            .checked_rem(ready.endpoints.len())
            .and_then(|turn| ready.endpoints.get(turn))
        else {
            let failure = Failure::new(
                503,
                code::NO_ENDPOINTS,
                format!(
                    "The pool \"{}\" has no ready endpoint: check that its model servers are up.",
                    pool.name
                ),
            );
            return HeadersAction::Unroutable(
                failure
                    .retry_after_ms(RETRY_AFTER_MS)
                    .answer(Api::Unspecified, None),
            );
        };
        edits.push(HeaderEdit::Set(names::ENDPOINT_HEADER, endpoint.clone()));
        HeadersAction::Pass(edits)
    }

    /// More of a request's body is there: `size` bytes since its beginning, read by `read(start, length)`.
    pub fn handle_request_body(
        &mut self,
        now: Instant,
        sequence: u64,
        size: usize,
        end: bool,
        read: impl FnMut(usize, usize) -> Option<Vec<u8>>,
    ) -> BodyAction {
        let Some(exchange) = self.exchanges.get_mut(&sequence) else {
            return BodyAction::Pause;
        };
        let Phase::ReadingBody(collecting) = &mut exchange.phase else {
            return BodyAction::Pause;
        };
        let limit = exchange.policy.body_bytes_max;
        if u64::try_from(size).unwrap_or(u64::MAX) > limit {
            return BodyAction::Reply(self.refuse(
                now,
                sequence,
                &too_large(limit),
                outcome::REJECTED_INVALID,
            ));
        }
        collecting.size = size;
        if end {
            return self.handle_request_end(now, sequence, read);
        }
        match collecting.scanner.read_on(size, false, read) {
            Ok(()) => BodyAction::Pause,
            Err(error) => {
                BodyAction::Reply(self.refuse(now, sequence, &invalid(error), outcome::REJECTED_INVALID))
            }
        }
    }

    /// A request's body is over, by its last byte or by trailers; what wasn't read of it yet is read by
    /// `read(start, length)`.
    pub fn handle_request_end(
        &mut self,
        now: Instant,
        sequence: u64,
        read: impl FnMut(usize, usize) -> Option<Vec<u8>>,
    ) -> BodyAction {
        let Some(exchange) = self.exchanges.get_mut(&sequence) else {
            return BodyAction::Pause;
        };
        let phase = core::mem::replace(&mut exchange.phase, Phase::Answered);
        let Phase::ReadingBody(collecting) = phase else {
            exchange.phase = phase;
            return BodyAction::Pause;
        };
        let ReadingBody {
            mut scanner,
            claims,
            size,
        } = *collecting;
        let scanned = scanner.read_on(size, true, read);
        let mut body = match scanned.and_then(|()| scanner.finish()) {
            Ok(body) => body,
            Err(error) => {
                return BodyAction::Reply(self.refuse(
                    now,
                    sequence,
                    &invalid(error),
                    outcome::REJECTED_INVALID,
                ));
            }
        };
        exchange.phase = Phase::Waiting { registered: false };
        // Who enters again may have been rewritten: it is still who asked for the first model.
        let asked = core::mem::take(&mut exchange.register.model);
        if !asked.is_empty() && asked != body.model {
            exchange.register.target_model = core::mem::replace(&mut body.model, asked);
        }
        exchange.model_at = body.model_at.clone();
        claims.settle(&body, &mut exchange.register);
        let hashes = core::mem::take(&mut body.prefix_hashes);
        describe(body, size, &mut exchange.register);
        let Ok(pool) = exchange.policy.pool(&exchange.register.model) else {
            let message = format!(
                "No pool serves the model \"{}\": check the name, or add it to `models` of a pool.",
                exchange.register.model
            );
            let failure = Failure::new(404, code::MODEL_NOT_FOUND, message);
            return BodyAction::Reply(self.refuse(now, sequence, &failure, outcome::REJECTED_INVALID));
        };
        if pool.as_ref().is_some_and(|pool| pool.prefix_hashes) {
            exchange.register.prefix_hashes = hashes;
        }
        exchange.pool = pool;
        match decide(now, exchange, self.session.away_since(), &self.ready) {
            WaitDecision::Wait => {}
            verdict => {
                return match self.settle(now, sequence, 0, verdict) {
                    Ok(edits) => BodyAction::Continue(edits),
                    Err((failure, outcome)) => {
                        BodyAction::Reply(self.refuse(now, sequence, &failure, outcome))
                    }
                };
            }
        }
        if self.session.is_linked() {
            exchange.phase = Phase::Waiting { registered: true };
            exchange.register.age_us = now.micros_since(exchange.arrived);
            let register = Event::Register(core::mem::take(&mut exchange.register));
            if let Some(Event::Register(register)) = self.session.tell(now, register) {
                exchange.register = register;
            }
        }
        BodyAction::Pause
    }

    /// Answers a request by the filter's own word, and tells the companion.
    pub(super) fn refuse(
        &mut self,
        now: Instant,
        sequence: u64,
        failure: &Failure,
        outcome: &str,
    ) -> LocalReply {
        let exchange = self.exchanges.get_mut(&sequence);
        let Some(exchange) = exchange else {
            return failure.answer(Api::Unspecified, None);
        };
        let phase = core::mem::replace(&mut exchange.phase, Phase::Answered);
        let (registered, queue_us) = match phase {
            Phase::Waiting { registered } => (registered, now.micros_since(exchange.arrived)),
            Phase::ReadingBody(_) | Phase::Granted(_) | Phase::Answered => (false, 0),
        };
        let saturation = exchange
            .pool
            .as_ref()
            .and_then(|pool| self.saturation_milli.get(&pool.name));
        let standing = QueueReport {
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
        if exchange.register.requeued_from.is_none() {
            self.session.tell_terminal(now, Event::Refused(refused));
        } else if registered {
            // Who entered again was counted when it was let in: it only leaves its place, and whoever doesn't know it,
            // another companion, has nothing to count.
            self.session
                .tell_terminal(now, Event::Cancel(Cancel { sequence }));
        }
        answer
    }
}
