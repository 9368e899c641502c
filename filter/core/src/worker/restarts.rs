//! Requests that are queued again without a requeue listener, because the host can restart a stream.
//!
//! When the server of a granted request fails before its answer has begun, the host sends the request in again as a new stream. It passes all
//! filters, and this one registers it again, in the place of its exchange before. That exchange has ended, but its end is reported after the
//! registration: otherwise the companion would take the request for ended, and refuse the new one.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_wire::{AttemptFailed, Code, Register, RequestKey};

use super::refused_attempts::failed_attempt;
use super::{Worker, carried_status};
use crate::effect::HeadersAction;
use crate::end_reason::UpstreamFailure;
use crate::exchange::{Departure, Exchange, Phase, Upstream};
use crate::header_sanitizer::{self, CONTENT_LENGTH};
use crate::headers::Headers;
use crate::identity::IdentityClaims;
use crate::local_reply::{Failure, LocalReply};
use crate::properties::{Properties, attempt_count, response_code_details, upstream_address};
use crate::requeue_on::RequeueOn;
use crate::retry_advice::retry_after_ms;
use crate::time::Instant;
use crate::usage_request::UsageHider;

/// The exchanges whose streams the host is restarting, by their sequence number.
#[derive(Debug, Default)]
pub(super) struct Restarts(BTreeMap<u64, Departure>);

impl Restarts {
    pub(super) fn departures(&self) -> impl Iterator<Item = &Departure> {
        self.0.values()
    }
}

impl Worker {
    /// The headers of a response to a granted request have arrived. If they show that its server failed, and its stream is to be restarted,
    /// ends the exchange and returns `true`.
    pub(super) fn handle_failure(
        &mut self,
        now: Instant,
        sequence: u64,
        headers: Headers<'_>,
        host: &impl Properties,
    ) -> bool {
        if !self.grant_headers.restarts {
            return false;
        }
        let status = carried_status::of_response(headers);
        if status < 400 {
            return false;
        }
        let Some(exchange) = self.exchanges.get(&sequence) else {
            return false;
        };
        let Phase::Granted(granted) = &exchange.phase else {
            return false;
        };
        if let Upstream::Evicted { .. } = granted.upstream {
            return false;
        }
        let details = response_code_details(host);
        let server_status = if details.starts_with("via_upstream") { status } else { 0 };
        let attempt = failed_attempt(exchange, granted, server_status, headers, host);
        let attempt = attempt.filter(|attempt| !attempt.endpoint.is_empty());
        let is_restarted =
            granted.restart_on.is_some_and(|causes| restarts_after(causes, server_status, &details))
                && host.can_restart(exchange.register.body_bytes);
        if let Some(attempt) = &attempt {
            self.report_failed_attempt(now, attempt.clone());
        }
        if is_restarted {
            self.depart(now, sequence, status, attempt, host);
        }
        is_restarted
    }

    /// Ends an exchange whose stream is restarted.
    fn depart(
        &mut self,
        now: Instant,
        sequence: u64,
        status: u32,
        failed_attempt: Option<AttemptFailed>,
        host: &impl Properties,
    ) {
        let Some(exchange) = self.exchanges.remove(&sequence) else {
            return;
        };
        self.forget(sequence, &exchange);
        let Exchange { arrived, pool, usage_hider, is_body_edited, register, phase, .. } = exchange;
        let Phase::Granted(mut granted) = phase else {
            return;
        };
        granted.upstream = Upstream::Requeued { status };
        self.release(now, &granted);
        let departure = Departure {
            arrived,
            pool: pool.map(|pool| pool.name.clone()),
            register,
            granted: *granted,
            hides_usage: usage_hider.is_some(),
            is_body_edited,
            failed_attempt,
            endpoint: upstream_address(host),
            attempts: attempt_count(host),
        };
        self.restarts.0.insert(sequence, departure);
    }

    /// The headers of a request have arrived whose stream the host has restarted, by [`crate::effect::ResponseHeadersAction::is_restarted`].
    /// `sequence`: its number before. Otherwise as [`Self::handle_request_headers`].
    ///
    /// What is known of the request stays: the headers may lack what the filter or a server's settings have removed since.
    pub fn handle_restarted_headers(
        &mut self,
        now: Instant,
        context: u32,
        headers: Headers<'_>,
        end: bool,
        host: &impl Properties,
        sequence: u64,
    ) -> HeadersAction {
        let Some(mut departure) = self.restarts.0.remove(&sequence) else {
            return self.handle_request_headers(now, context, headers, end, host);
        };
        let before = &departure.register;
        let epoch = self.grant_headers.epoch;
        let by_credit = departure.granted.by_credit.is_some();
        let credit_endpoint = departure.granted.endpoint.clone().filter(|_| by_credit);
        let register = Register {
            sequence: self.next_sequence(),
            requeues: before.requeues.saturating_add(1),
            requeued_from: Some(RequestKey { epoch_hi: epoch.hi, epoch_lo: epoch.lo, sequence }),
            failed_attempt: departure.failed_attempt.take(),
            credit_endpoint: credit_endpoint.unwrap_or_default(),
            moved: false,
            ..before.clone()
        };
        let sequence = register.sequence;
        let phase = self.reading_body(now, register.api(), headers, IdentityClaims::default());
        let exchange = Exchange {
            context,
            arrived: departure.arrived,
            policy: Arc::clone(&self.policy),
            pool: None,
            model_range: 0..0,
            usage_hider: departure.hides_usage.then(UsageHider::default),
            is_body_edited: departure.is_body_edited,
            has_length: headers.get(CONTENT_LENGTH).is_some(),
            register,
            is_restarted: true,
            departure: Some(Box::new(departure)),
            phase,
        };
        self.exchanges.insert(sequence, exchange);
        HeadersAction::Pause(sequence, header_sanitizer::request(headers, true))
    }

    /// The host couldn't restart a stream, or the new one ended before the filter saw its headers. `sequence`: the request's number. Returns
    /// the reply for a stream that goes on.
    pub fn abandon_restart(&mut self, now: Instant, sequence: u64) -> Option<LocalReply> {
        let departure = self.restarts.0.remove(&sequence)?;
        let message = "The model server failed, and the gateway couldn't send the request again.";
        let failure = Failure::new(503, Code::UpstreamUnavailable, message);
        let failure = failure.retry_after_ms(retry_after_ms(Duration::ZERO, sequence));
        let reply = failure.reply(departure.register.api(), Some(&departure.granted.report));
        self.report(now, departure);
        Some(reply)
    }

    /// Reports the end of the exchange that a restarted request had before, if that is still due.
    pub(super) fn report_departure(&mut self, now: Instant, sequence: u64) {
        let exchange = self.exchanges.get_mut(&sequence);
        if let Some(departure) = exchange.and_then(|exchange| exchange.departure.take()) {
            self.report(now, *departure);
        }
    }

    fn report(&mut self, now: Instant, departure: Departure) {
        let Departure { arrived, pool, register, granted, endpoint, attempts, .. } = departure;
        let attempt = Attempt { endpoint, attempts };
        let register = Register { age_us: now.micros_since(arrived), ..register };
        self.report_end(now, pool.as_deref(), register, granted, &attempt);
    }
}

/// Whether a stream is restarted after a failure. `server_status`: 0 if no server answered. `details`: Envoy's response code details.
fn restarts_after(causes: RequeueOn, server_status: u32, details: &str) -> bool {
    if server_status != 0 {
        return causes.contains(server_status);
    }
    // Envoy knows no such server, or none yet.
    if details.starts_with("no_healthy_upstream") {
        return true;
    }
    // A limit of this Envoy, which the request would meet again.
    if details.contains("{overflow") {
        return false;
    }
    match UpstreamFailure::from_details(details) {
        Some(UpstreamFailure::Unavailable) => {
            details.starts_with("upstream_reset_before_response_started") && causes.covers_refusal()
        }
        Some(UpstreamFailure::Reset | UpstreamFailure::Timeout) => causes.covers_reset(),
        None => false,
    }
}

/// The properties of a failed attempt, which outlive its stream.
struct Attempt {
    endpoint: Option<String>,
    attempts: u32,
}

impl Properties for Attempt {
    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        match path {
            ["upstream", "address"] => self.endpoint.clone().map(String::into_bytes),
            ["upstream", "request_attempt_count"] => Some(u64::from(self.attempts).to_le_bytes().to_vec()),
            _ => None,
        }
    }
}
