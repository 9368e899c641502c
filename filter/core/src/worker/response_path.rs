//! An answer on its way out: what the client is told beside it, and what the companion is told of it.

use penstock_wire::{Api, Cancel, filter_frame::Event, limits::NAME_BYTES_MAX, names};

use super::Worker;
use crate::{
    effect::ResponseHeadersAction,
    end_reason::UpstreamFailure,
    exchange::{self, Granted, Phase, Response, Upstream},
    header_sanitizer::{self, CONTENT_LENGTH, HeaderEdit},
    headers::Headers,
    identity::Properties,
    limits::SLICE_BYTES,
    local_reply::{LocalReply, QueueReport},
    response::{Format, ResponseScanner},
    time::Instant,
};

impl Worker {
    /// An answer's headers are in, a server's or Envoy's own. `sequence`: none for what passes through.
    pub fn handle_response_headers(
        &mut self,
        now: Instant,
        sequence: Option<u64>,
        headers: Headers<'_>,
        end: bool,
        host: &impl Properties,
    ) -> ResponseHeadersAction {
        let Some(exchange) = sequence.and_then(|sequence| self.exchanges.get_mut(&sequence)) else {
            return ResponseHeadersAction {
                edits: header_sanitizer::response(headers),
                body: None,
            };
        };
        let sequence = exchange.register.sequence;
        let api = exchange.register.api();
        let Phase::Granted(going) = &mut exchange.phase else {
            return ResponseHeadersAction::default();
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
        let told = headers
            .text(names::SERVED_HEADER, NAME_BYTES_MAX)
            .filter(|_| self.routes_report_endpoint);
        let is_told = told.is_some();
        // Without the route's word it is asked for, which costs more than reading it.
        let address = told.or_else(|| exchange::address(host));
        if address.is_some() && address == self.requeue {
            going.upstream = Upstream::Requeued { status };
            // Where it entered again here, too, the first listener is still to come.
            let overwritten = self.routes_report_endpoint && !self.is_requeue_listener;
            let edits = reported_again(&going.standing, headers, overwritten);
            return ResponseHeadersAction { edits, body: None };
        }
        let format = Format::of(headers.get("content-type"), headers.get("content-encoding"));
        // How often it was sent matters only where the first of its list isn't who answers.
        let attempts = match &address {
            Some(address) if *address == going.endpoint => 0,
            Some(_) | None => exchange::attempts(host),
        };
        let begun = Response {
            endpoint: address.unwrap_or_else(|| going.endpoint.clone()),
            status,
            attempts,
            scanner: ResponseScanner::new(if status < 400 { format } else { Format::Opaque }),
            ended: end,
        };
        let mut edits = report(&going.standing);
        if !is_told {
            edits.push(HeaderEdit::Set(names::SERVED_HEADER, begun.endpoint.clone()));
        }
        if self.is_requeue_listener && self.routes_report_endpoint {
            // The first listener's route overwrites the other one.
            edits.push(HeaderEdit::Set(
                names::SERVED_AGAIN_HEADER,
                begun.endpoint.clone(),
            ));
        } else if headers.get(names::SERVED_AGAIN_HEADER).is_some() {
            edits.push(HeaderEdit::Remove(names::SERVED_AGAIN_HEADER.into()));
        }
        // One whose length is known comes as a whole: what is said at its end says all of it.
        let streams = !end && headers.get(CONTENT_LENGTH).is_none();
        let started = streams.then(|| going.started(now, sequence, &begun));
        going.upstream = Upstream::Responding(Box::new(begun));
        if let Some(started) = started {
            self.session.tell(now, Event::Started(started));
        }
        ResponseHeadersAction { edits, body: None }
    }

    /// Bytes of an answer's body are there, `size` of them, read by `read(start, length)`.
    pub fn handle_response_body(
        &mut self,
        now: Instant,
        sequence: u64,
        size: usize,
        end: bool,
        mut read: impl FnMut(usize, usize) -> Option<Vec<u8>>,
    ) {
        let Some(begun) = self.begun(sequence) else { return };
        begun.ended |= end;
        if size > 0 {
            begun.scanner.arrived(now);
        }
        if begun.scanner.reads() {
            let mut at = 0_usize;
            while at < size {
                let wanted = size.saturating_sub(at).min(SLICE_BYTES);
                let Some(slice) = read(at, wanted).filter(|slice| !slice.is_empty()) else {
                    return;
                };
                at = at.saturating_add(slice.len());
                begun.scanner.feed(&slice);
            }
        }
    }

    /// An answer's body is over, by trailers.
    pub fn handle_response_end(&mut self, sequence: u64) {
        if let Some(begun) = self.begun(sequence) {
            begun.ended = true;
        }
    }

    fn begun(&mut self, sequence: u64) -> Option<&mut Response> {
        match &mut self.exchanges.get_mut(&sequence)?.phase {
            Phase::Granted(going) => match &mut going.upstream {
                Upstream::Responding(begun) => Some(begun),
                Upstream::Pending
                | Upstream::Unanswered { .. }
                | Upstream::EndedByEnvoy { .. }
                | Upstream::Requeued { .. } => None,
            },
            Phase::ReadingBody(_) | Phase::Waiting { .. } | Phase::Answered => None,
        }
    }

    /// The HTTP stream is over, whatever ended it.
    pub fn handle_log(&mut self, now: Instant, sequence: u64, host: &impl Properties) {
        let Some(exchange) = self.exchanges.remove(&sequence) else {
            return;
        };
        match exchange.phase {
            Phase::Waiting { registered: true } => self
                .session
                .tell_terminal(now, Event::Cancel(Cancel { sequence })),
            Phase::Granted(going) => {
                self.land(now, &going);
                let completed = going.completed(sequence, host);
                self.session.tell_terminal(now, Event::Completed(completed));
            }
            Phase::ReadingBody(_) | Phase::Waiting { registered: false } | Phase::Answered => {}
        }
    }
}

fn report(standing: &QueueReport) -> Vec<HeaderEdit> {
    standing
        .headers()
        .into_iter()
        .map(|(name, value)| HeaderEdit::Set(name, value))
        .collect()
}

/// Of an answer to a request that entered again. The exchange that it became says what the client is told; it can't if
/// its VM has trapped meanwhile. `overwritten`: this listener's route has put the way back in the place of the endpoint.
fn reported_again(standing: &QueueReport, headers: Headers<'_>, overwritten: bool) -> Vec<HeaderEdit> {
    let mut edits = Vec::new();
    let mut served = headers.text(names::SERVED_AGAIN_HEADER, NAME_BYTES_MAX);
    if headers.get(names::OUTCOME_HEADER).is_none() {
        edits = report(standing);
        served = None;
    } else if !overwritten {
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

/// Envoy answers a granted request by itself: in the contract's words where it has some.
fn no_answer(going: &mut Granted, status: u32, details: &str, api: Api, end: bool) -> ResponseHeadersAction {
    let mut edits = report(&going.standing);
    edits.push(HeaderEdit::Remove(names::SERVED_HEADER.into()));
    let Some(why) = UpstreamFailure::of(details) else {
        going.upstream = Upstream::EndedByEnvoy { status };
        return ResponseHeadersAction { edits, body: None };
    };
    let failure = why.failure();
    going.upstream = Upstream::Unanswered {
        why,
        status: failure.status,
    };
    let LocalReply {
        status,
        headers,
        body,
    } = failure.answer(api, None);
    edits.push(HeaderEdit::Set(":status", status.to_string()));
    if end {
        // No body comes that could be replaced.
        return ResponseHeadersAction { edits, body: None };
    }
    edits.push(HeaderEdit::Set("content-length", body.len().to_string()));
    edits.extend(
        headers
            .into_iter()
            .map(|(name, value)| HeaderEdit::Set(name, value)),
    );
    ResponseHeadersAction {
        edits,
        body: Some(body),
    }
}
