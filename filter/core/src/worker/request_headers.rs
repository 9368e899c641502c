//! The request's headers: starts an exchange for a queued path, and passes all other requests through.

use std::sync::Arc;

use penstock_wire::Code;
use penstock_wire::names::{self, outcome};
use penstock_wire::{Api, RequestKey};

use super::Worker;
use crate::body::BodyScanner;
use crate::effect::{self, HeadersAction};
use crate::exchange::{Exchange, Phase, ReadingBody};
use crate::header_sanitizer::{self, CONTENT_LENGTH, HeaderEdit};
use crate::headers::Headers;
use crate::identity::IdentityClaims;
use crate::limits::{RETRY_AFTER_MIN_MS, TRACEPARENT_BYTES_MAX};
use crate::local_reply::Failure;
use crate::properties::{Properties, client_address};
use crate::registration;
use crate::requeue_on::RequeueOn;
use crate::requeue_token::RequeueToken;
use crate::time::Instant;
use crate::trust::Trust;

impl Worker {
    /// The headers of a request have arrived. `end`: it has no body.
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
        let token = if self.is_requeue_listener {
            let Some(token) = self.requeue_token(headers) else {
                return self.refuse_at_headers(now, context, api.unwrap_or_default(), headers, &stranger());
            };
            if !self.failed_attempts.is_first_return(token.epoch, token.sequence) {
                // Envoy drops this answer, because the first return goes on.
                return HeadersAction::Unroutable(effect::returned_twice());
            }
            Some(token)
        } else {
            None
        };
        // The first listener has checked the key of a requeued request.
        let tenant = match &token {
            Some(token) => Ok(token.tenant.clone()),
            None => self.policy.tenant(headers),
        };
        let tenant = match tenant {
            Ok(tenant) => tenant,
            Err(failure) => {
                let api = api.unwrap_or_else(|| self.policy.dialect(path));
                return self.refuse_at_headers(now, context, api, headers, &failure);
            }
        };
        let Some(api) = api else {
            return self.pass_through(headers, host);
        };
        let client = match &token {
            Some(token) => token.client.clone(),
            // Without trusted networks nothing depends on the address.
            None if self.policy.trust == Trust::All => None,
            None => client_address(host),
        };
        let trusted = self.policy.trust.covers(client.as_deref());
        let claims = IdentityClaims::gather(&self.policy.sources, trusted, headers, host);
        let mut exchange = self.new_exchange(now, context, api, client, trusted, headers);
        exchange.phase = self.reading_body(now, api, claims);
        exchange.register.tenant_verified = tenant.is_some();
        exchange.register.fairness_id = tenant.unwrap_or_default();
        if let Some(token) = token {
            let was_refused = headers.get(names::REFUSED_HEADER).is_some();
            exchange.register.failed_attempt =
                self.failed_attempts.before_requeue(now, token.epoch, token.sequence, was_refused);
            apply_token(&mut exchange, token);
        }
        let sequence = exchange.register.sequence;
        self.exchanges.insert(sequence, exchange);
        if let Some(failure) = registration::check_headers(headers, end, self.policy.body_bytes_max) {
            let reply = self.refuse(now, sequence, &failure, outcome::REJECTED_INVALID);
            return HeadersAction::Reply(sequence, reply);
        }
        let mut edits = header_sanitizer::request(headers, true);
        edits.extend(self.policy.key_removals(headers));
        if !trusted {
            edits.extend(header_sanitizer::privileged(headers, &self.policy.privileged_headers));
        }
        HeadersAction::Pause(sequence, edits)
    }

    fn requeue_token(&self, headers: Headers<'_>) -> Option<RequeueToken> {
        let text = headers.get(names::REQUEUE_HEADER)?;
        // From a property of the first stream, the token has the prefix.
        let token = text.strip_prefix(names::REQUEUE_PROPERTY_PREFIX.as_bytes());
        RequeueToken::verify(token.unwrap_or(text), self.key.as_ref()?)
    }

    /// A new exchange in the phase `Answered`; the caller sets another phase or refuses the request.
    fn new_exchange(
        &mut self,
        now: Instant,
        context: u32,
        api: Api,
        client: Option<String>,
        trusted: bool,
        headers: Headers<'_>,
    ) -> Exchange {
        let mut register = registration::from_headers(self.next_sequence(), api, client, trusted, headers);
        if self.policy.tracing {
            let parent = headers.text("traceparent", TRACEPARENT_BYTES_MAX);
            register.traceparent = parent.unwrap_or_default();
        }
        Exchange {
            context,
            arrived: now,
            policy: Arc::clone(&self.policy),
            pool: None,
            model_range: 0..0,
            usage_hider: None,
            is_body_edited: false,
            has_length: headers.get(CONTENT_LENGTH).is_some(),
            register,
            phase: Phase::Answered,
        }
    }

    fn reading_body(&self, now: Instant, api: Api, claims: IdentityClaims) -> Phase {
        let scanner = BodyScanner::new(Arc::clone(&self.policy.body_keys)).of_api(api);
        Phase::ReadingBody(Box::new(ReadingBody {
            since: now,
            scanner: if self.policy.prefix_hashes { scanner.hashing() } else { scanner },
            claims,
            size: 0,
        }))
    }

    /// Refuses a request, on any path, before its body.
    fn refuse_at_headers(
        &mut self,
        now: Instant,
        context: u32,
        api: Api,
        headers: Headers<'_>,
        failure: &Failure,
    ) -> HeadersAction {
        let exchange = self.new_exchange(now, context, api, None, false, headers);
        let sequence = exchange.register.sequence;
        self.exchanges.insert(sequence, exchange);
        let reply = self.refuse(now, sequence, failure, outcome::REJECTED_INVALID);
        HeadersAction::Reply(sequence, reply)
    }

    /// Sends a request that isn't queued to the first pool, round robin over its ready endpoints.
    fn pass_through(&mut self, headers: Headers<'_>, host: &impl Properties) -> HeadersAction {
        let mut edits = header_sanitizer::request(headers, false);
        edits.extend(self.policy.key_removals(headers));
        let mut privileged =
            header_sanitizer::privileged(headers, &self.policy.privileged_headers).peekable();
        // Asking the host for the client's address costs a call, so it is asked only if there is a header to remove.
        if privileged.peek().is_some() && !self.policy.trust.covers(client_address(host).as_deref()) {
            edits.extend(privileged);
        }
        let Some(pool) = self.policy.first_pool() else {
            return HeadersAction::Pass(edits);
        };
        edits.push(HeaderEdit::Set(names::POOL_HEADER, pool.name.clone()));
        // Until the companion has sent endpoints, Envoy's load balancing chooses.
        let Some(endpoints) = self.endpoints.get(&pool.name) else {
            edits.extend(RequeueOn::default().edits(0));
            return HeadersAction::Pass(edits);
        };
        self.turn = self.turn.wrapping_add(1);
        let endpoint =
            self.turn.checked_rem(endpoints.ready.len()).and_then(|index| endpoints.ready.get(index));
        if let Some(endpoint) = endpoint {
            edits.push(HeaderEdit::Set(names::ENDPOINT_HEADER, endpoint.clone()));
            return HeadersAction::Pass(edits);
        }
        let message =
            format!("The pool \"{}\" has no ready endpoint: check that its model servers are up.", pool.name);
        let failure = Failure::new(503, Code::NoEndpoints, message).retry_after_ms(RETRY_AFTER_MIN_MS);
        HeadersAction::Unroutable(failure.reply(Api::Unspecified, None))
    }
}

/// The error for a request that reaches the requeue listener without a valid token.
fn stranger() -> Failure {
    let message =
        "Only requests that this gateway queues again may come here: send requests to listen.gateway.";
    Failure::new(403, Code::InvalidRequest, message).without_retry()
}

/// Adds the facts of the first pass to the exchange of a requeued request.
fn apply_token(exchange: &mut Exchange, token: RequeueToken) {
    exchange.arrived = token.arrived;
    exchange.register.requeues = token.requeues;
    exchange.register.credit_endpoint = token.credit_endpoint.unwrap_or_default();
    exchange.register.model = token.requested_model.unwrap_or_default();
    exchange.register.requeued_from =
        Some(RequestKey { epoch_hi: token.epoch.hi, epoch_lo: token.epoch.lo, sequence: token.sequence });
}
