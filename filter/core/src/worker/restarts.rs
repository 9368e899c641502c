//! Requests that are queued again without a requeue listener, because the host can restart a stream.
//!
//! When the server of a granted request fails before its answer has begun, the host sends the request in again as a new stream. It passes all
//! filters, and this one registers it again, in the place of its exchange before. That exchange has ended, but its end is reported after the
//! registration: otherwise the companion would take the request for ended, and refuse the new one.

use std::collections::BTreeMap;

use penstock_wire::{AttemptFailed, Register};

use super::refused_attempts::failed_attempt;
use super::{Worker, carried_status};
use crate::effect::HeadersAction;
use crate::end_reason::UpstreamFailure;
use crate::exchange::{Departure, Exchange, Phase, Upstream};
use crate::headers::Headers;
use crate::properties::{Properties, attempt_count, response_code_details, upstream_address};
use crate::requeue_on::RequeueOn;
use crate::requeue_token::RequeueToken;
use crate::time::Instant;

/// The streams that the host is restarting, by the sequence number of the exchange that has ended.
#[derive(Debug, Default)]
pub(super) struct Restarts(BTreeMap<u64, Restart>);

#[derive(Debug)]
struct Restart {
    restarted: Restarted,
    departure: Departure,
}

/// The facts of a request whose stream was restarted.
#[derive(Debug)]
pub(super) struct Restarted {
    pub(super) token: RequeueToken,
    /// `None`: no server accepted the request.
    pub(super) failed_attempt: Option<AttemptFailed>,
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
        let credit_endpoint = credit_endpoint(&exchange);
        let token = exchange.requeue_token(self.grant_headers.epoch, credit_endpoint.as_deref());
        let Exchange { pool, register, arrived, phase: Phase::Granted(mut granted), .. } = exchange else {
            return;
        };
        self.release(now, &granted);
        granted.upstream = Upstream::Requeued { status };
        let departure = Departure {
            pool: pool.map(|pool| pool.name.clone()),
            register: Register { age_us: now.micros_since(arrived), ..register },
            granted: *granted,
            endpoint: upstream_address(host),
            attempts: attempt_count(host),
        };
        let restarted = Restarted { token, failed_attempt };
        self.restarts.0.insert(sequence, Restart { restarted, departure });
    }

    /// The headers of a request have arrived whose stream the host has restarted, by [`crate::effect::ResponseHeadersAction::is_restarted`].
    /// `sequence`: its number before. Otherwise as [`Self::handle_request_headers`].
    pub fn handle_restarted_headers(
        &mut self,
        now: Instant,
        context: u32,
        headers: Headers<'_>,
        end: bool,
        host: &impl Properties,
        sequence: u64,
    ) -> HeadersAction {
        let Some(Restart { restarted, departure }) = self.restarts.0.remove(&sequence) else {
            return self.begin(now, context, headers, end, host, None);
        };
        let action = self.begin(now, context, headers, end, host, Some(restarted));
        let exchange = match &action {
            HeadersAction::Pause(sequence, _) | HeadersAction::Reply(sequence, _) => {
                self.exchanges.get_mut(sequence)
            }
            HeadersAction::Pass(_) | HeadersAction::Answer(_) => None,
        };
        match exchange {
            Some(exchange) => exchange.departure = Some(Box::new(departure)),
            None => self.report(now, departure),
        }
        action
    }

    /// The host couldn't restart a stream, or the new one ended before the filter saw its headers. `sequence`: the request's number.
    pub fn abandon_restart(&mut self, now: Instant, sequence: u64) {
        if let Some(restart) = self.restarts.0.remove(&sequence) {
            self.report(now, restart.departure);
        }
    }

    /// Reports the end of the exchange that a restarted request had before, if that is still due.
    pub(super) fn report_departure(&mut self, now: Instant, sequence: u64) {
        let exchange = self.exchanges.get_mut(&sequence);
        if let Some(departure) = exchange.and_then(|exchange| exchange.departure.take()) {
            self.report(now, *departure);
        }
    }

    fn report(&mut self, now: Instant, departure: Departure) {
        let attempt = Attempt { endpoint: departure.endpoint, attempts: departure.attempts };
        let Departure { pool, register, granted, .. } = departure;
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

/// The endpoint at which a request was admitted by credit; `None`: the companion granted it.
fn credit_endpoint(exchange: &Exchange) -> Option<String> {
    match &exchange.phase {
        Phase::Granted(granted) if granted.by_credit.is_some() => granted.endpoint.clone(),
        Phase::Granted(_)
        | Phase::ReadingBody(_)
        | Phase::Waiting { .. }
        | Phase::KeptAlive
        | Phase::Answered => None,
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
