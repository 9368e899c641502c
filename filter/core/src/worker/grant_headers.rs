//! The edits of a granted request's headers: where Envoy sends it, and when Envoy sends it again.

use penstock_wire::{Grant, names};

use crate::exchange::Exchange;
use crate::header_sanitizer::{self, ATTEMPT_TIMEOUT_HEADER, HEDGE_HEADER, HeaderEdit};
use crate::process_identity::SigningKey;
use crate::requeue_on::RequeueOn;
use crate::requeue_token::RequeueToken;
use crate::rewrite::Rewrite;
use crate::session::Epoch;

/// What the edits depend on, beside the request and its grant.
#[derive(Debug)]
pub(super) struct GrantHeaders {
    pub(super) epoch: Epoch,
    /// The address of the requeue listener, and the key that signs tokens for it; `None`: no request goes there.
    pub(super) requeue: Option<(String, SigningKey)>,
    /// Envoy's log of attempts calls the filter.
    pub(super) logs_attempts: bool,
    /// The routes requeue by themselves.
    pub(super) routes_requeue: bool,
    /// The host restarts the streams of requests that are requeued.
    pub(super) restarts: bool,
}

impl GrantHeaders {
    /// The edits for a grant. The arrival of the request has removed what its client sent under these names. `rewrite`: that of the body. `credit_endpoint`: the grant is by credit, for this endpoint.
    pub(super) fn edits(
        &self,
        exchange: &Exchange,
        grant: &Grant,
        rewrite: Option<&Rewrite>,
        credit_endpoint: Option<&str>,
    ) -> Vec<HeaderEdit> {
        let mut edits = vec![HeaderEdit::Add(names::POOL_HEADER, grant.pool.clone())];
        if rewrite.is_some() || exchange.is_body_edited {
            let whole = usize::try_from(exchange.register.body_bytes).unwrap_or(usize::MAX);
            let length = rewrite.map_or(whole, Rewrite::length_after);
            edits.extend(header_sanitizer::rewritten(length, exchange.has_length));
        }
        let requeue = self.requeue.as_ref().filter(|_| grant.requeue && !self.restarts);
        let requeue_on = exchange.requeue_on().known_to(self.logs_attempts || self.restarts);
        let requeue_on = requeue_on.for_grant(grant.final_status, grant.retry_not_found);
        // The route lists one endpoint and the requeue listener, and has every cause of a requeue.
        let is_routed = self.routes_requeue && grant.endpoints.len() == 1 && requeue_on.is_every();
        let mut entries = grant.endpoints.len();
        if !grant.endpoints.is_empty() {
            entries = entries.saturating_add(usize::from(requeue.is_some()));
            let endpoints = grant.endpoints.join(",");
            let list = requeue.filter(|_| !is_routed);
            let route = list.map(|(listener, _)| format!("{endpoints},{listener}"));
            edits.push(HeaderEdit::Add(names::ENDPOINT_HEADER, endpoints));
            if !grant.prefill_endpoint.is_empty() {
                edits.push(HeaderEdit::Add(names::PREFILL_HEADER, grant.prefill_endpoint.clone()));
            }
            edits.extend(route.map(|route| HeaderEdit::Add(names::ROUTE_HEADER, route)));
            if let Some((_, key)) = requeue {
                edits.push(self.keep(&exchange.requeue_token(self.epoch, credit_endpoint), key));
            }
        }
        // Where streams are restarted, the request's arrival has removed these headers, and an only endpoint needs none.
        let is_only = self.restarts && entries == 1;
        if !(is_routed && requeue.is_some() || is_only) {
            edits.extend(requeue_on.edits(entries));
        }
        if let Some(longest) = exchange.first_byte() {
            edits.push(HeaderEdit::Set(ATTEMPT_TIMEOUT_HEADER, longest.as_millis().to_string()));
            let hedge = requeue.filter(|_| !grant.endpoints.is_empty());
            edits.extend(hedge.map(|_| HeaderEdit::SetStatic(HEDGE_HEADER, "true")));
        }
        edits
    }

    /// The failures after which the stream of a granted request is restarted; `None`: it isn't restarted.
    pub(super) fn restart_on(&self, exchange: &Exchange, grant: &Grant) -> Option<RequeueOn> {
        let is_restarted = self.restarts && grant.requeue && !grant.endpoints.is_empty();
        is_restarted.then(|| exchange.requeue_on().for_grant(grant.final_status, grant.retry_not_found))
    }

    /// Keeps a signed token for the requeue listener: where the routes read it, or in a header that they remove.
    fn keep(&self, token: &RequeueToken, key: &SigningKey) -> HeaderEdit {
        if self.routes_requeue {
            let value = token.sign_after(names::REQUEUE_PROPERTY_PREFIX, key);
            HeaderEdit::SetProperty(names::REQUEUE_PROPERTY, value)
        } else {
            HeaderEdit::Set(names::REQUEUE_HEADER, token.sign(key))
        }
    }
}
