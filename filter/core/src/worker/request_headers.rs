//! The request's headers: starts an exchange for a queued path, and passes other requests to the pool of their model, or refuses them.

use std::sync::Arc;

use penstock_wire::Code;
use penstock_wire::names::{self, outcome};
use penstock_wire::{Api, RequestKey};

use super::Worker;
use crate::body::{BodyScanner, is_of_one_engine};
use crate::effect::{self, HeadersAction};
use crate::exchange::{Exchange, Phase, ReadingBody};
use crate::header_sanitizer::{self, CONTENT_LENGTH, HeaderEdit};
use crate::headers::Headers;
use crate::identity::IdentityClaims;
use crate::limits::{RETRY_AFTER_MIN_MS, TRACEPARENT_BYTES_MAX};
use crate::local_reply::Failure;
use crate::model_list;
use crate::paths::PathUse;
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
        let path_use = self.policy.path_use(method, path);
        let api = match path_use {
            PathUse::Queued(api) => Some(api),
            PathUse::Passed | PathUse::Models | PathUse::Refused | PathUse::Unknown => None,
        };
        let token = if self.is_requeue_listener {
            let Some(token) = self.requeue_token(headers) else {
                return self.refuse_at_headers(now, context, api.unwrap_or_default(), headers, &stranger());
            };
            if !self.failed_attempts.is_first_return(token.epoch, token.sequence) {
                // Envoy drops this answer, because the first return goes on.
                return HeadersAction::Answer(effect::returned_twice());
            }
            Some(token)
        } else {
            None
        };
        if token.is_none()
            && let Some(failure) = registration::too_many_headers(headers)
        {
            let api = api.unwrap_or_else(|| self.policy.dialect(path));
            return self.refuse_at_headers(now, context, api, headers, &failure);
        }
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
        let refusal = match path_use {
            _ if headers.get("upgrade").is_some() => Some(upgrade_refused()),
            PathUse::Refused => Some(control_refused()),
            PathUse::Unknown => Some(path_not_found()),
            PathUse::Queued(_) | PathUse::Passed | PathUse::Models => None,
        };
        if let Some(refusal) = refusal {
            let dialect = self.policy.dialect(path);
            return self.refuse_at_headers(now, context, dialect, headers, &refusal);
        }
        if path_use == PathUse::Models
            && let Some(models) = &self.model_list
        {
            match models.answer(path) {
                Ok(answer) => return HeadersAction::Answer(answer),
                // A list may be incomplete, so the pool of the name decides.
                Err(model) if self.policy.pool(&model).is_err() => {
                    let is_anthropic = headers.get("anthropic-version").is_some();
                    let api = if is_anthropic { Api::Messages } else { Api::Unspecified };
                    return HeadersAction::Answer(model_list::not_found(&model).reply(api, None));
                }
                Err(model) => return self.pass_through(now, context, headers, (end, Some(&model)), host),
            }
        }
        let Some(api) = api else {
            return self.pass_through(now, context, headers, (end, None), host);
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
        exchange.phase = self.reading_body(now, api, headers, claims);
        exchange.register.tenant_verified = tenant.is_some();
        exchange.register.fairness_id = tenant.unwrap_or_default();
        if let Some(token) = token {
            let was_refused =
                headers.get(names::REFUSED_HEADER) == Some(names::REFUSED_BY_RESPONSE.as_bytes());
            exchange.register.failed_attempt =
                self.failed_attempts.before_requeue(now, token.epoch, token.sequence, was_refused);
            apply_token(&mut exchange, token);
            exchange.register.moved = headers.get(names::KEEP_ALIVE_HEADER).is_some();
        }
        exchange.register.pool = host.pool().unwrap_or_default().to_owned();
        let is_unserved = registration::restrict_to_subset(&mut exchange.register, host.subset());
        let sequence = exchange.register.sequence;
        self.exchanges.insert(sequence, exchange);
        if is_unserved {
            let reply = self.refuse(now, sequence, &empty_subset(), outcome::NO_ENDPOINTS);
            return HeadersAction::Reply(sequence, reply);
        }
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
            is_restarted: false,
            departure: None,
            phase: Phase::Answered,
        }
    }

    pub(super) fn reading_body(
        &self,
        now: Instant,
        api: Api,
        headers: Headers<'_>,
        claims: IdentityClaims,
    ) -> Phase {
        let mut scanner = BodyScanner::new(Arc::clone(&self.policy.body_keys)).of_api(api);
        if is_of_one_engine(api) {
            scanner = scanner.of_any_type(headers.get("content-type"));
        }
        Phase::ReadingBody(Box::new(ReadingBody {
            since: now,
            scanner: if self.policy.prefix_hashes { scanner.hashing() } else { scanner },
            claims: Some(claims),
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

    /// Sends a request that isn't queued to the pool of its model, round robin over its ready endpoints. `model`: the one in its path; `None`:
    /// its body names one, or nothing does.
    fn pass_through(
        &mut self,
        now: Instant,
        context: u32,
        headers: Headers<'_>,
        (end, model): (bool, Option<&str>),
        host: &impl Properties,
    ) -> HeadersAction {
        let mut edits = header_sanitizer::request(headers, false);
        edits.extend(self.policy.key_removals(headers));
        let mut privileged =
            header_sanitizer::privileged(headers, &self.policy.privileged_headers).peekable();
        // Asking the host for the client's address costs a call, so it is asked only if there is a header to remove.
        if privileged.peek().is_some() && !self.policy.trust.covers(client_address(host).as_deref()) {
            edits.extend(privileged);
        } else {
            drop(privileged);
        }
        let chosen = host.pool().and_then(|pool| self.policy.named(pool).cloned());
        let named = chosen.or_else(|| self.policy.pool(model?).ok().flatten());
        if named.is_none() && !end && self.policy.has_choice_of_pools() {
            return self.read_model(now, context, headers, edits, host.subset());
        }
        let default = || self.policy.default_pool().map(|pool| pool.name.clone());
        let Some(name) = named.map(|pool| pool.name.clone()).or_else(default) else {
            return HeadersAction::Pass(edits);
        };
        match self.pass_to(&name, host.subset().as_deref()) {
            Ok(more) => {
                edits.extend(more);
                HeadersAction::Pass(edits)
            }
            Err(failure) => {
                let api = self.policy.dialect(headers.get(":path").unwrap_or_default());
                HeadersAction::Answer(failure.reply(api, None))
            }
        }
    }

    /// The edits, after the removals, by which a request that isn't queued goes to a pool, round robin over its ready endpoints.
    /// `only`: those to which the gateway lets it go; `None`: it restricts nothing.
    pub(super) fn pass_to(
        &mut self,
        pool: &str,
        only: Option<&[String]>,
    ) -> Result<Vec<HeaderEdit>, Failure> {
        let mut edits = vec![HeaderEdit::Add(names::POOL_HEADER, pool.to_owned())];
        // Until the companion has sent endpoints, Envoy's load balancing chooses.
        let Some(endpoints) = self.endpoints.get(pool) else {
            edits.extend(RequeueOn::default().edits(0));
            return Ok(edits);
        };
        self.turn = self.turn.wrapping_add(1);
        let is_allowed = |endpoint: &&String| only.is_none_or(|only| only.contains(endpoint));
        let allowed = || endpoints.ready.iter().filter(is_allowed);
        let endpoint = self.turn.checked_rem(allowed().count()).and_then(|index| allowed().nth(index));
        if let Some(endpoint) = endpoint {
            edits.push(HeaderEdit::Add(names::ENDPOINT_HEADER, endpoint.clone()));
            return Ok(edits);
        }
        let message =
            format!("The pool \"{pool}\" has no ready endpoint: check that its model servers are up.");
        Err(Failure::new(503, Code::NoEndpoints, message).retry_after_ms(RETRY_AFTER_MIN_MS))
    }

    /// Reads the body of a request that isn't queued, because its model decides to which pool it goes.
    fn read_model(
        &mut self,
        now: Instant,
        context: u32,
        headers: Headers<'_>,
        edits: Vec<HeaderEdit>,
        subset: Option<Vec<String>>,
    ) -> HeadersAction {
        let api = self.policy.dialect(headers.get(":path").unwrap_or_default());
        let mut exchange = self.new_exchange(now, context, api, None, false, headers);
        registration::restrict_to_subset(&mut exchange.register, subset);
        exchange.phase = Phase::ReadingBody(Box::new(ReadingBody {
            since: now,
            scanner: BodyScanner::new(Arc::new([]))
                .of_api(Api::Other)
                .of_any_type(headers.get("content-type"))
                .or_anything(),
            claims: None,
            size: 0,
        }));
        let sequence = exchange.register.sequence;
        self.exchanges.insert(sequence, exchange);
        HeadersAction::Pause(sequence, edits)
    }
}

/// The error for a WebSocket, in which requests would pass unseen. Clients then send them by HTTP.
fn upgrade_refused() -> Failure {
    let message = "This gateway takes requests by HTTP, not in a WebSocket: send them with POST.";
    Failure::new(426, Code::InvalidRequest, message).without_retry()
}

/// The error for a path that controls a server.
fn control_refused() -> Failure {
    let message = "This path controls a model server, so the gateway doesn't pass it on: list it under `paths.passed` to allow it, or \
                   send the request to the server itself.";
    Failure::new(403, Code::PathRefused, message).without_retry()
}

/// The error for a path that no list names.
fn path_not_found() -> Failure {
    let message = "The gateway doesn't know this path: list it under `paths.queued` if the server computes for it, under `paths.passed` \
                   if it doesn't, or set `paths.other: pass`.";
    Failure::new(404, Code::PathNotFound, message).without_retry()
}

/// The error for a request that its gateway lets go to no endpoint.
fn empty_subset() -> Failure {
    let message = "The gateway allows no endpoint for this request: its subset of endpoints is empty.";
    Failure::new(503, Code::NoEndpoints, message).retry_after_ms(RETRY_AFTER_MIN_MS)
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
