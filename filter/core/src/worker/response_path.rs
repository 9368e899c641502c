//! The response: adds the gateway's headers for the client, and reports the response to the companion.

use core::ops::Range;
use core::time::Duration;
use std::borrow::Cow;

use penstock_wire::filter_frame::Event;
use penstock_wire::limits::NAME_BYTES_MAX;
use penstock_wire::names::outcome;
use penstock_wire::{Api, Cancel, Code, Register, Started, names};

use super::held_responses::{self, Decision};
use super::{Worker, carried_status};
use crate::body::is_of_one_engine;
use crate::effect::{ResponseBodyAction, ResponseHeadersAction};
use crate::end_reason::UpstreamFailure;
use crate::exchange::{Exchange, Granted, Held, Phase, Response, Upstream};
use crate::header_sanitizer::{self, CONTENT_LENGTH, HeaderEdit};
use crate::headers::Headers;
use crate::limits::{RESPONSE_HEAD_BYTES, RETRY_AFTER_MIN_MS, RETRY_AFTER_TEXT_BYTES_MAX, SLICE_BYTES};
use crate::local_reply::{Failure, LocalReply, QueueReport};
use crate::properties::{Properties, attempt_count, response_code_details, upstream_address};
use crate::response::{Format, ResponseScanner};
use crate::retry_advice::retry_after_ms;
use crate::time::{Clock, Instant};

impl Worker {
    /// The headers of a response have arrived, from a server or from Envoy itself. `sequence`: `None` for a request that
    /// passed through.
    pub fn handle_response_headers(
        &mut self,
        now: Instant,
        sequence: Option<u64>,
        headers: Headers<'_>,
        end: bool,
        host: &impl Properties,
    ) -> ResponseHeadersAction {
        let Some(sequence) = sequence.filter(|sequence| self.exchanges.contains_key(sequence)) else {
            return only_edits(header_sanitizer::response(headers));
        };
        if self.handle_failure(now, sequence, headers, host) {
            return ResponseHeadersAction { is_restarted: true, ..ResponseHeadersAction::default() };
        }
        let action = self.read_response_headers(now, sequence, headers, end, host);
        self.carry_status(sequence, headers, action)
    }

    fn read_response_headers(
        &mut self,
        now: Instant,
        sequence: u64,
        headers: Headers<'_>,
        end: bool,
        host: &impl Properties,
    ) -> ResponseHeadersAction {
        let Some(exchange) = self.exchanges.get_mut(&sequence) else {
            return ResponseHeadersAction::default();
        };
        let api = exchange.register.api();
        let format = Format::from_headers(headers.get("content-type"), headers.get("content-encoding"));
        if format != Format::Sse {
            exchange.usage_hider = None;
        }
        // Without the hidden event, the response is shorter than its server announces.
        let is_shorter = exchange.usage_hider.is_some() && headers.get(CONTENT_LENGTH).is_some();
        let shorten = is_shorter.then_some(HeaderEdit::Remove(Cow::Borrowed(CONTENT_LENGTH)));
        let reports_first_token = exchange.pool.as_ref().is_some_and(|pool| pool.first_token);
        let status = carried_status::of_response(headers);
        let Phase::Granted(granted) = &mut exchange.phase else {
            let is_lost = matches!(exchange.phase, Phase::KeptAlive)
                && status >= 400
                && !response_code_details(host).starts_with("via_upstream");
            return if is_lost { lost_reply(api, end) } else { ResponseHeadersAction::default() };
        };
        if let Upstream::Evicted { .. } = granted.upstream {
            // The reply is complete, but for what a route adds to it.
            return only_edits(vec![HeaderEdit::Remove(names::SERVED_HEADER.into())]);
        }
        // A server's error passes unchanged. Only an error that Envoy itself sends is replaced.
        if status >= 400 {
            let details = response_code_details(host);
            if !details.starts_with("via_upstream") {
                let failure = UpstreamFailure::from_details(&details);
                let failure = failure.map(|failure| {
                    let lasts = match failure {
                        UpstreamFailure::Unavailable => self.failing_pools.record_failure(now, &granted.pool),
                        UpstreamFailure::Reset | UpstreamFailure::Timeout => Duration::ZERO,
                    };
                    (failure, failure.failure(retry_after_ms(lasts, sequence)))
                });
                return replace_envoy_error(granted, headers, status, failure, api, end);
            }
        }
        let reported =
            headers.text(names::SERVED_HEADER, NAME_BYTES_MAX).filter(|_| self.routes_report_endpoint);
        let is_reported = reported.is_some();
        // Asking the host for the address costs more than reading the header that a route may set.
        let address = reported.or_else(|| upstream_address(host));
        if address.is_some() && address == self.requeue_listener {
            granted.upstream = Upstream::Requeued { status: carried_status::of_requeued(headers) };
            // At the first listener, the route's header names the requeue listener instead of the server.
            let is_overwritten = self.routes_report_endpoint && !self.is_requeue_listener;
            let mut edits = requeued_edits(&granted.report, headers, is_overwritten);
            edits.extend(shorten);
            return only_edits(edits);
        }
        self.failing_pools.record_response(&granted.pool);
        let reads_end = self.document_ends.get(&granted.pool).copied().unwrap_or(false);
        let mut response = new_response(granted, status, address, headers, end, reads_end, host);
        // What isn't seen of a response counts as served, and nothing waits for it.
        response.is_unseen = !end && !host.passes_answer();
        let end = end || response.is_unseen;
        response.is_complete = end;
        if !end {
            let (pool, granted_at) = (exchange.pool.as_deref(), granted.granted_at);
            response.silence = self.silence_timers.start(now, sequence, pool, granted_at);
        }
        // A body of no announced type is seldom one that the scanner knows.
        let is_held = headers.get("content-type").is_some() && held_responses::can_hold(api, &response);
        response.held = is_held.then_some(Held { scanned: 0 });
        let mut edits = report_edits(&granted.report, headers);
        if !is_reported {
            let endpoint = response.endpoint.clone().unwrap_or_default();
            edits.push(header_sanitizer::put(headers, names::SERVED_HEADER, endpoint));
        }
        edits.extend(shorten);
        let serves_again = self.is_requeue_listener && self.routes_report_endpoint;
        edits.extend(served_again_edit(headers, &response, serves_again));
        // A response of known length sends no event at its start, because `Completed` reports everything at its end.
        if granted.by_credit.is_some()
            && let Some(endpoint) = &response.endpoint
        {
            let model = &exchange.register.model;
            match status {
                200..300 if granted.retries_not_found => self.served_models.insert(endpoint, model),
                // Of the API of one engine, another engine has no path.
                404 if !is_of_one_engine(api) => self.served_models.remove(endpoint, model),
                _ => {}
            }
        }
        let is_streamed = !end && headers.get(CONTENT_LENGTH).is_none();
        let mut started = is_streamed.then(|| granted.started(now, sequence, &response));
        if reports_first_token {
            let is_expected = response.endpoint == granted.endpoint;
            response.first_token_event = first_token_event(&mut started, is_expected);
        }
        granted.upstream = Upstream::Responding(Box::new(response));
        if let Some(started) = started {
            self.report_start(now, started);
        }
        if is_held {
            self.hold_response(now, sequence);
        }
        ResponseHeadersAction { is_held, ..only_edits(edits) }
    }

    /// Bytes of a response body have arrived. `size` bytes are present, which `read(start, length)` fetches: the new ones, and before
    /// them those that are held.
    pub fn handle_response_body(
        &mut self,
        clock: impl Clock,
        sequence: u64,
        size: usize,
        end: bool,
        mut read: impl FnMut(usize, usize) -> Option<Vec<u8>>,
    ) -> ResponseBodyAction {
        let Some(response) = self.response(sequence) else {
            // A requeued response is read at the requeue listener. There its client seems to have asked for the counts.
            return self
                .hide_usage(sequence, 0..size, end, &mut read)
                .map_or(ResponseBodyAction::Pass, passing);
        };
        response.is_complete |= end;
        let (was_held, is_kept) = (response.held.is_some(), response.is_kept);
        let scanned = response.held.map_or(0, |held| held.scanned);
        if size > scanned {
            let now = clock.now();
            response.scanner.record_arrival(now, size.saturating_sub(scanned));
            feed(&mut response.scanner, scanned, size, &mut read);
            if response.scanner.has_token()
                && let Some(started) = response.first_token_event.take()
            {
                self.report_start(now, *started);
            }
        }
        if size > scanned {
            self.record_alive(sequence);
        }
        if is_kept {
            let edited = self.hide_usage(sequence, scanned..size, end, &mut read);
            let action = self.pass_kept(sequence, edited.as_ref().map_or(size, Vec::len));
            return match edited {
                Some(bytes) => {
                    ResponseBodyAction::Edit { bytes, is_held: action == ResponseBodyAction::Hold }
                }
                None => action,
            };
        }
        if !was_held {
            return self
                .hide_usage(sequence, 0..size, end, &mut read)
                .map_or(ResponseBodyAction::Pass, passing);
        }
        let decision = self.response(sequence).map(|response| held_responses::decide(response, size, end));
        let decision = decision.unwrap_or(Decision::Pass);
        self.forget_passed_responses();
        // What is held is all before the first token, and so before the counts.
        let edited = (decision == Decision::Pass).then(|| self.hide_usage(sequence, 0..size, end, &mut read));
        match edited.flatten() {
            Some(bytes) => passing(bytes),
            None => self.carry_out_decision(sequence, decision),
        }
    }

    /// Hides the counts that the client didn't ask for among the bytes `new`, the last ones that are present. Returns what all present
    /// bytes become; `None`: they stay.
    fn hide_usage(
        &mut self,
        sequence: u64,
        new: Range<usize>,
        end: bool,
        read: &mut impl FnMut(usize, usize) -> Option<Vec<u8>>,
    ) -> Option<Vec<u8>> {
        let hider = self.exchanges.get_mut(&sequence)?.usage_hider.as_mut()?;
        let bytes = if new.is_empty() { Vec::new() } else { read(new.start, new.len())? };
        let edited = hider.pass(&bytes, end)?;
        let mut present = if new.start == 0 { Vec::new() } else { read(0, new.start)? };
        present.extend_from_slice(&edited);
        Some(present)
    }

    /// A response has ended with trailers.
    pub fn handle_response_end(&mut self, sequence: u64) {
        if let Some(response) = self.response(sequence) {
            response.is_complete = true;
            // The host passes everything on.
            response.held = None;
        }
    }

    /// A byte of the response has come from its endpoint.
    fn record_alive(&mut self, sequence: u64) {
        let Some(exchange) = self.exchanges.get_mut(&sequence) else {
            return;
        };
        if let Phase::Granted(granted) = &mut exchange.phase
            && let Upstream::Responding(response) = &mut granted.upstream
        {
            let Response { endpoint, alive_in, .. } = &mut **response;
            self.alive.record(endpoint.as_deref(), alive_in);
        }
    }

    pub(super) fn response(&mut self, sequence: u64) -> Option<&mut Response> {
        match &mut self.exchanges.get_mut(&sequence)?.phase {
            Phase::Granted(granted) => match &mut granted.upstream {
                Upstream::Responding(response) => Some(response),
                Upstream::Pending
                | Upstream::Unanswered { .. }
                | Upstream::EndedByEnvoy { .. }
                | Upstream::Evicted { .. }
                | Upstream::Requeued { .. } => None,
            },
            Phase::ReadingBody(_) | Phase::Waiting { .. } | Phase::KeptAlive | Phase::Answered => None,
        }
    }

    /// Forgets what else is known of an exchange that has ended.
    pub(super) fn forget(&mut self, sequence: u64, exchange: &Exchange) {
        self.granted_ids.remove(exchange);
        self.kept_alive.end(sequence, exchange);
        self.failed_attempts.remove(self.grant_headers.epoch, sequence);
    }

    /// Learns from the end of a granted request where the servers of its pool put the token counts of long documents.
    fn learn_document_end(&mut self, granted: &mut Granted) {
        if granted.lacks_counts() {
            // One request of the pool costs its estimate. From now on documents are read whole.
            self.document_ends.insert(granted.pool.clone(), false);
        } else if !self.document_ends.contains_key(&granted.pool) && granted.has_counts_at_end() {
            self.document_ends.insert(granted.pool.clone(), true);
        }
    }

    /// Envoy writes the log entry of an HTTP stream, which is the end of its exchange.
    pub fn handle_log(&mut self, now: Instant, sequence: u64, host: &impl Properties) {
        self.report_departure(now, sequence);
        let Some(exchange) = self.exchanges.remove(&sequence) else {
            return;
        };
        let is_overtaken = self.failed_attempts.is_overtaken(self.grant_headers.epoch, sequence);
        self.forget(sequence, &exchange);
        let pool = exchange.pool.as_ref().map(|pool| pool.name.as_str());
        match exchange.phase {
            // Of a request that waits on under another key, the companion drops the event.
            Phase::Waiting { registered: true, .. } | Phase::KeptAlive => {
                self.sessions.of_mut(pool).send_terminal(now, Event::Cancel(Cancel { sequence }))
            }
            Phase::Granted(mut granted) => {
                self.release(now, &granted);
                self.silence_timers.end(sequence, &granted);
                self.learn_document_end(&mut granted);
                let register = Register { age_us: now.micros_since(exchange.arrived), ..exchange.register };
                if let Some(late) = is_overtaken.then(|| granted.split_late_answer()).flatten() {
                    let sequence = self.next_sequence();
                    let register = Register {
                        sequence,
                        requeued_from: None,
                        failed_attempt: None,
                        credit_endpoint: String::new(),
                        ..register.clone()
                    };
                    self.report_end(now, pool, register, late, host);
                }
                self.report_end(now, pool, register, *granted, host);
            }
            Phase::ReadingBody(_) | Phase::Waiting { .. } | Phase::Answered => {}
        }
    }
}

/// The report of the first byte. It replaces the report of the headers, `started`, if these tell nothing new: the first
/// granted endpoint responds, as the companion expects.
fn first_token_event(started: &mut Option<Started>, is_expected: bool) -> Option<Box<Started>> {
    let event = if is_expected { started.take() } else { started.clone() };
    event.map(|event| Box::new(Started { first_token: true, ..event }))
}

/// Scans the bytes from `start` to `size`, which `read(start, length)` fetches.
fn feed(
    scanner: &mut ResponseScanner,
    start: usize,
    size: usize,
    mut read: impl FnMut(usize, usize) -> Option<Vec<u8>>,
) {
    if !scanner.wants_bytes() {
        return;
    }
    if scanner.wants_head()
        && let Some(head) = read(start, size.saturating_sub(start).min(RESPONSE_HEAD_BYTES))
    {
        scanner.examine_head(&head);
    }
    let mut start = start.saturating_add(scanner.skip(size.saturating_sub(start)));
    while start < size {
        let length = size.saturating_sub(start).min(SLICE_BYTES);
        let Some(slice) = read(start, length).filter(|slice| !slice.is_empty()) else {
            return;
        };
        start = start.saturating_add(slice.len());
        scanner.feed(&slice);
    }
}

fn passing(bytes: Vec<u8>) -> ResponseBodyAction {
    ResponseBodyAction::Edit { bytes, is_held: false }
}

fn only_edits(edits: Vec<HeaderEdit>) -> ResponseHeadersAction {
    ResponseHeadersAction { edits, ..ResponseHeadersAction::default() }
}

/// `reads_end`: only the end of a long response is needed.
fn new_response(
    granted: &Granted,
    status: u32,
    address: Option<String>,
    headers: Headers<'_>,
    end: bool,
    reads_end: bool,
    host: &impl Properties,
) -> Response {
    // The number of attempts matters only if the first endpoint of the grant isn't the one that responds.
    let attempts = if address.is_some() && address == granted.endpoint { 0 } else { attempt_count(host) };
    let format = if (200..300).contains(&status) {
        Format::from_headers(headers.get("content-type"), headers.get("content-encoding"))
    } else {
        Format::Opaque
    };
    let length = headers.get(CONTENT_LENGTH);
    let length = length.and_then(|digits| core::str::from_utf8(digits).ok()?.parse().ok());
    let scanner = ResponseScanner::new(format);
    Response {
        endpoint: address.or_else(|| granted.endpoint.clone()),
        status,
        attempts,
        scanner: match length {
            Some(length) => scanner.of_length(length, reads_end),
            None => scanner,
        },
        first_token_event: None,
        is_complete: end,
        alive_in: None,
        held: None,
        is_kept: false,
        replaced_by: None,
        retry_after_ms: retry_after_header_ms(headers),
        silence: None,
        is_timed_out: false,
        is_unseen: false,
    }
}

/// The server's `retry-after`, if it is a number of seconds.
fn retry_after_header_ms(headers: Headers<'_>) -> Option<u64> {
    let seconds = headers.text("retry-after", RETRY_AFTER_TEXT_BYTES_MAX)?.trim().parse::<u64>().ok()?;
    Some(seconds.saturating_mul(1_000))
}

/// The edit of the header in which the requeue listener names the server for the first listener, whose route overwrites
/// the other header. `serves_again`: this listener is the requeue listener.
fn served_again_edit(headers: Headers<'_>, response: &Response, serves_again: bool) -> Option<HeaderEdit> {
    if serves_again {
        let endpoint = response.endpoint.clone().unwrap_or_default();
        return Some(HeaderEdit::Set(names::SERVED_AGAIN_HEADER, endpoint));
    }
    headers.get(names::SERVED_AGAIN_HEADER)?;
    Some(HeaderEdit::Remove(names::SERVED_AGAIN_HEADER.into()))
}

fn report_edits(report: &QueueReport, headers: Headers<'_>) -> Vec<HeaderEdit> {
    report.headers().map(|(name, value)| header_sanitizer::put(headers, name, value)).collect()
}

/// The edits of a requeued request's response, seen by its first exchange. The requeue listener's filter has set the
/// report, unless its VM has trapped in the meantime. `is_overwritten`: this listener's route has set the served-endpoint
/// header to the address of the requeue listener.
fn requeued_edits(report: &QueueReport, headers: Headers<'_>, is_overwritten: bool) -> Vec<HeaderEdit> {
    let mut edits = Vec::new();
    let mut served = headers.text(names::SERVED_AGAIN_HEADER, NAME_BYTES_MAX);
    if headers.get(names::OUTCOME_HEADER).is_none() {
        edits = report_edits(report, headers);
        served = None;
    } else if !is_overwritten {
        return edits;
    }
    edits.push(match served {
        Some(served) => HeaderEdit::Set(names::SERVED_HEADER, served),
        None => HeaderEdit::Remove(names::SERVED_HEADER.into()),
    });
    if headers.get(names::SERVED_AGAIN_HEADER).is_some() {
        edits.push(HeaderEdit::Remove(names::SERVED_AGAIN_HEADER.into()));
    }
    edits
}

/// Replaces Envoy's error for a waiting stream that no companion has taken.
fn lost_reply(api: Api, end: bool) -> ResponseHeadersAction {
    let message = "No companion took the request while it waited: send it again.";
    let failure = Failure::new(503, Code::GatewayUnavailable, message).retry_after_ms(RETRY_AFTER_MIN_MS);
    let LocalReply { status, headers, body } = failure.reply(api, None);
    let mut edits = vec![
        HeaderEdit::Set(":status", status.to_string()),
        HeaderEdit::Set(names::OUTCOME_HEADER, outcome::GATEWAY_UNAVAILABLE.to_owned()),
    ];
    if end {
        return only_edits(edits);
    }
    edits.push(HeaderEdit::Set(CONTENT_LENGTH, body.len().to_string()));
    edits.extend(headers.into_iter().map(|(name, value)| HeaderEdit::Set(name, value)));
    ResponseHeadersAction { body: Some(body), ..only_edits(edits) }
}

/// Replaces an error that Envoy itself sends for a granted request, if it means that no server responded: by `failure`, with its cause.
fn replace_envoy_error(
    granted: &mut Granted,
    headers: Headers<'_>,
    status: u32,
    failure: Option<(UpstreamFailure, Failure)>,
    api: Api,
    end: bool,
) -> ResponseHeadersAction {
    let mut edits = report_edits(&granted.report, headers);
    edits.push(HeaderEdit::Remove(names::SERVED_HEADER.into()));
    let Some((cause, failure)) = failure else {
        granted.upstream = Upstream::EndedByEnvoy { status };
        return only_edits(edits);
    };
    let LocalReply { status, headers, body } = failure.reply(api, None);
    granted.upstream = Upstream::Unanswered { failure: cause, status };
    edits.push(HeaderEdit::Set(":status", status.to_string()));
    if end {
        // The response has no body that could be replaced.
        return only_edits(edits);
    }
    edits.push(HeaderEdit::Set(CONTENT_LENGTH, body.len().to_string()));
    edits.extend(headers.into_iter().map(|(name, value)| HeaderEdit::Set(name, value)));
    ResponseHeadersAction { body: Some(body), ..only_edits(edits) }
}
