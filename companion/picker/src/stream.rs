//! One stream of the gateway: an HTTP request and its response, as far as they have come, and the answers that are owed for them.
//!
//! The modes in which the gateway sends bodies decide when a message is answered:
//!
//! | mode | headers | body |
//! |---|---|---|
//! | `NONE` | with the decision | isn't sent |
//! | `STREAMED` | with the decision, which has to do without the body: the headers leave before it comes | each piece at once |
//! | `BUFFERED` | at once | with the decision |
//! | `FULL_DUPLEX_STREAMED` | with the decision | sent back, after the headers |

use bytes::Bytes;
use penstock_filter_core::effect::{BodyAction, HeadersAction, ResponseBodyAction, StreamAction};
use penstock_filter_core::header_sanitizer::HeaderEdit;
use penstock_filter_core::headers::Headers;
use penstock_filter_core::local_reply::{Failure, LocalReply};
use penstock_filter_core::rewrite::{BufferedBody as _, Rewrite};
use penstock_filter_core::stream_action::ActedOn;
use penstock_filter_core::time::Instant;
use penstock_filter_core::worker::Worker;
use penstock_wire::{Api, Code};

use crate::answer::{self, Side};
use crate::facts::Facts;
use crate::generated::processing_request::Request;
use crate::generated::{BodySendMode, HttpBody, HttpHeaders, ProcessingRequest};
use crate::headers::{self, number, with_headers};
use crate::limits::{PIECE_BYTES, RETRY_AFTER_MS};
use crate::outbox::Outbox;
use crate::pieces::Pieces;

/// A stream. Its methods take the worker that tracks its request.
pub(crate) struct Stream {
    /// The worker's id of the stream.
    id: u32,
    out: Outbox,
    facts: Facts,
    /// The worker's number of the request; `None`: the worker doesn't track it, or it has ended.
    sequence: Option<u64>,
    request: Message,
    response: Message,
    /// The headers of the request have come.
    has_begun: bool,
    /// The picker has replied, or answers nothing: what still comes is ignored.
    is_over: bool,
}

impl Stream {
    /// A stream that has begun.
    pub(crate) fn new(id: u32, out: Outbox, facts: Facts) -> Self {
        Self {
            id,
            out,
            facts,
            sequence: None,
            request: Message::new(Side::Request),
            response: Message::new(Side::Response),
            has_begun: false,
            is_over: false,
        }
    }

    /// A message of the gateway has arrived.
    pub(crate) fn receive(&mut self, now: Instant, worker: &mut Worker, mut message: ProcessingRequest) {
        if let Some(config) = message.protocol_config {
            self.request.mode = config.request_body_mode();
            self.response.mode = config.response_body_mode();
            self.facts.set_passes_answer(self.response.mode != BodySendMode::None);
        }
        self.is_over |= message.observability_mode;
        if self.is_over {
            return;
        }
        self.facts.take_from(&mut message);
        match message.request {
            // Another request has a stream of its own.
            Some(Request::RequestHeaders(_)) if self.has_begun => {
                tracing::debug!(
                    "endpoint picker: a gateway has sent headers of a second request on one stream"
                );
                self.is_over = true;
                self.end(now, worker);
            }
            Some(Request::RequestHeaders(headers)) => self.on_request_headers(now, worker, &headers),
            Some(Request::RequestBody(body)) => self.on_request_body(now, worker, body),
            Some(Request::RequestTrailers(_)) => self.on_request_trailers(now, worker),
            Some(Request::ResponseHeaders(headers)) => self.on_response_headers(now, worker, &headers),
            Some(Request::ResponseBody(body)) => self.on_response_body(now, worker, body),
            Some(Request::ResponseTrailers(_)) => self.on_response_trailers(now, worker),
            // Of a later version of the protocol.
            None => {}
        }
    }

    fn on_request_headers(&mut self, now: Instant, worker: &mut Worker, message: &HttpHeaders) {
        self.has_begun = true;
        self.request.owed.push(Owed::Headers);
        let end = message.end_of_stream;
        let (action, length) = with_headers(message.headers.as_ref(), |headers| {
            let action = worker.handle_request_headers(now, self.id, headers, end, &self.facts);
            (action, number(headers, "content-length"))
        });
        match action {
            HeadersAction::Pass(edits) => self.release_request(edits),
            HeadersAction::Answer(reply) => self.reply(now, worker, reply),
            HeadersAction::Reply(sequence, reply) => {
                self.sequence = Some(sequence);
                self.reply(now, worker, reply);
            }
            HeadersAction::Pause(sequence, edits) => {
                self.sequence = Some(sequence);
                self.request.edits = edits;
                self.await_body(now, worker, sequence, length.unwrap_or(0));
            }
        }
    }

    /// The worker has taken the headers of a request with a body. `length`: the body's, as far as the headers tell.
    fn await_body(&mut self, now: Instant, worker: &mut Worker, sequence: u64, length: usize) {
        match self.request.mode {
            BodySendMode::FullDuplexStreamed => {}
            BodySendMode::Buffered => self.request.give(&self.out),
            BodySendMode::None | BodySendMode::Streamed => {
                let action = worker.handle_unseen_body(now, sequence, length);
                self.carry_out(now, worker, action);
            }
            BodySendMode::BufferedPartial | BodySendMode::Grpc => {
                let message = "The gateway sends bodies to the endpoint picker in a mode that it doesn't know: set request_body_mode to \
                               FULL_DUPLEX_STREAMED or BUFFERED.";
                let failure = Failure::new(503, Code::FilterMisconfigured, message);
                self.reply(now, worker, failure.reply(Api::Unspecified, None));
            }
        }
    }

    fn on_request_body(&mut self, now: Instant, worker: &mut Worker, message: HttpBody) {
        let is_whole = message.end_of_stream || self.request.mode == BodySendMode::Buffered;
        let is_read = self.request.take_body(message);
        let too_long = self.sequence.filter(|_| !is_read);
        if let Some(reply) =
            too_long.and_then(|sequence| worker.limit_unseen_body(sequence, self.request.passed))
        {
            return self.reply(now, worker, reply);
        }
        if self.request.is_open {
            self.request.give(&self.out);
        } else if let Some(sequence) = self.sequence.filter(|_| is_read) {
            let body = &mut self.request.body;
            let action = worker.handle_request_body(now, sequence, body.size(), is_whole, body);
            self.carry_out(now, worker, action);
        }
    }

    fn on_request_trailers(&mut self, now: Instant, worker: &mut Worker) {
        self.request.owed.push(Owed::Trailers);
        if self.request.is_open {
            self.request.give(&self.out);
        } else if let Some(sequence) = self.sequence {
            let action = worker.handle_request_end(now, sequence, &mut self.request.body);
            self.carry_out(now, worker, action);
        }
    }

    fn carry_out(&mut self, now: Instant, worker: &mut Worker, action: BodyAction) {
        match action {
            BodyAction::Pause => {}
            BodyAction::Reply(reply) => self.reply(now, worker, reply),
            BodyAction::Continue(edits) => self.release_request(edits),
        }
    }

    /// The request goes on: to the endpoint that the edits name.
    fn release_request(&mut self, edits: Vec<HeaderEdit>) {
        if let Some(endpoint) = headers::endpoint(&edits) {
            self.facts.set_endpoint(endpoint);
        }
        self.request.edits.extend(edits);
        self.request.open(&self.out);
    }

    fn on_response_headers(&mut self, now: Instant, worker: &mut Worker, message: &HttpHeaders) {
        self.response.owed.push(Owed::Headers);
        let (end, sequence) = (message.end_of_stream, self.sequence);
        let (action, status) = with_headers(message.headers.as_ref(), |headers| {
            self.facts.note_response(headers);
            let action = worker.handle_response_headers(now, sequence, headers, end, &self.facts);
            (action, number(headers, ":status"))
        });
        if let Some(body) = action.body {
            let status = status.and_then(|status| u32::try_from(status).ok()).unwrap_or(503);
            let replacement = LocalReply { status, headers: Vec::new(), body };
            return self.end_with(now, worker, replacement, action.edits);
        }
        self.response.edits = action.edits;
        if action.is_held && !end {
            match self.response.mode {
                BodySendMode::FullDuplexStreamed => return,
                // The gateway holds the headers until the body is answered.
                BodySendMode::Buffered => return self.response.give(&self.out),
                // The body comes only after the headers have gone on.
                _ => sequence.map(|sequence| worker.resume_response(sequence)),
            };
        }
        self.response.open(&self.out);
        if end {
            self.end(now, worker);
        }
    }

    fn on_response_body(&mut self, now: Instant, worker: &mut Worker, message: HttpBody) {
        let is_whole = message.end_of_stream || self.response.mode == BodySendMode::Buffered;
        self.response.take_body(message);
        let can_hold = self.response.mode == BodySendMode::FullDuplexStreamed;
        let body = &mut self.response.body;
        let (size, present) = (body.size(), &*body);
        let action = self.sequence.map(|sequence| {
            worker.handle_response_body(now, sequence, size, is_whole, |start, length| {
                present.read(start, length)
            })
        });
        match action {
            Some(ResponseBodyAction::Replace(reply)) => {
                return self.end_with(now, worker, reply, Vec::new());
            }
            Some(ResponseBodyAction::Edit { bytes, is_held }) => {
                body.replace(bytes.into());
                if is_held && can_hold {
                    return;
                }
            }
            Some(ResponseBodyAction::Hold) if can_hold => return,
            None | Some(ResponseBodyAction::Pass | ResponseBodyAction::Hold) => {}
        }
        self.response.open(&self.out);
        if is_whole {
            self.end(now, worker);
        }
    }

    fn on_response_trailers(&mut self, now: Instant, worker: &mut Worker) {
        self.response.owed.push(Owed::Trailers);
        if let Some(sequence) = self.sequence {
            worker.handle_response_end(sequence);
        }
        self.response.open(&self.out);
        self.end(now, worker);
    }

    /// The worker acts on the stream.
    pub(crate) fn act(&mut self, now: Instant, worker: &mut Worker, action: StreamAction) {
        action.carry_out(&mut WorkersStream { stream: self, worker, now });
    }

    /// Replies to a request that no server has answered. The worker handles the reply's headers as those of any response.
    pub(crate) fn reply(&mut self, now: Instant, worker: &mut Worker, reply: LocalReply) {
        self.facts.set_replying();
        let map = reply.header_map();
        let (headers, end) = (Headers::new(&map), reply.body.is_empty());
        let action = worker.handle_response_headers(now, self.sequence, headers, end, &self.facts);
        self.end_with(now, worker, reply, action.edits);
    }

    /// Has the gateway answer the client with this, which ends the exchange.
    fn end_with(&mut self, now: Instant, worker: &mut Worker, reply: LocalReply, edits: Vec<HeaderEdit>) {
        self.out.send(answer::reply(reply, edits));
        self.is_over = true;
        self.request.body = Pieces::default();
        self.end(now, worker);
    }

    /// Bytes of the request's body that are held.
    pub(crate) const fn body_bytes(&self) -> usize {
        self.request.body.size()
    }

    /// The worker holds as many bytes of bodies as it may.
    pub(crate) fn refuse_body(&mut self, now: Instant, worker: &mut Worker) {
        let message =
            "The endpoint picker holds as many bytes of bodies as it may: send the request again later.";
        let failure = Failure::new(503, Code::QueueFull, message).retry_after_ms(RETRY_AFTER_MS);
        self.reply(now, worker, failure.reply(Api::Unspecified, None));
    }

    /// The exchange has ended: its response is complete, or the gateway has ended the stream.
    pub(crate) fn end(&mut self, now: Instant, worker: &mut Worker) {
        if let Some(sequence) = self.sequence.take() {
            worker.handle_log(now, sequence, &self.facts);
        }
    }
}

/// A stream on which its worker acts.
struct WorkersStream<'a> {
    stream: &'a mut Stream,
    worker: &'a mut Worker,
    now: Instant,
}

impl ActedOn for WorkersStream<'_> {
    fn with_worker<T>(&mut self, f: impl FnOnce(&mut Worker, Instant) -> T) -> Option<T> {
        Some(f(self.worker, self.now))
    }

    fn rewrite(&mut self, rewrite: &Rewrite) -> bool {
        (&mut self.stream.request.body).rewrite(rewrite)
    }

    fn resume_request(&mut self, edits: Vec<HeaderEdit>) {
        self.stream.release_request(edits);
    }

    /// The gateway takes a reply at any time until the response's headers are answered.
    fn reply(&mut self, reply: LocalReply) {
        self.stream.reply(self.now, self.worker, reply);
    }

    fn resume_response(&mut self) {
        self.stream.response.open(&self.stream.out);
    }

    fn replace_response(&mut self, reply: LocalReply) {
        self.stream.end_with(self.now, self.worker, reply, Vec::new());
    }

    /// When the picker replies to a stream whose response has begun, the gateway resets the stream.
    fn reset(&mut self) {
        self.replace_response(LocalReply { status: 504, headers: Vec::new(), body: Vec::new() });
    }

    /// No part of a body is missing: the gateway passes bodies to the picker, or has said by its modes that it passes none.
    fn received_bytes(&mut self) -> u64 {
        0
    }
}

/// A part of a message that the gateway has sent, and that isn't answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owed {
    Headers,
    Body,
    Trailers,
}

/// The request, or the response.
struct Message {
    side: Side,
    mode: BodySendMode,
    /// Edits of the headers, which the next answer that can have them takes along.
    edits: Vec<HeaderEdit>,
    /// What has come of the body and isn't given on.
    body: Pieces,
    /// Bytes of a body that nobody reads.
    passed: usize,
    owed: Vec<Owed>,
    /// What comes is answered at once.
    is_open: bool,
}

impl Message {
    /// A message of which nothing has come. A gateway that doesn't name its modes is taken for one that wants bodies back.
    fn new(side: Side) -> Self {
        Self {
            side,
            mode: BodySendMode::FullDuplexStreamed,
            edits: Vec::new(),
            body: Pieces::default(),
            passed: 0,
            owed: Vec::new(),
            is_open: false,
        }
    }

    /// Takes a body, or a piece of it. `false`: nobody decides by it.
    fn take_body(&mut self, message: HttpBody) -> bool {
        let is_unseen =
            self.side == Side::Request && matches!(self.mode, BodySendMode::None | BodySendMode::Streamed);
        if is_unseen {
            self.passed = self.passed.saturating_add(message.body.len());
        } else {
            self.body.push(message.body);
        }
        // Of a body that is sent back, the end alone is owed: also without bytes.
        if self.mode != BodySendMode::FullDuplexStreamed || message.end_of_stream {
            self.owed.push(Owed::Body);
        }
        !is_unseen
    }

    /// Answers what has come, and from now on whatever comes.
    fn open(&mut self, out: &Outbox) {
        self.is_open = true;
        self.give(out);
    }

    /// Answers what has come.
    fn give(&mut self, out: &Outbox) {
        let is_sent_back = self.mode == BodySendMode::FullDuplexStreamed;
        for owed in core::mem::take(&mut self.owed) {
            match owed {
                Owed::Headers => {
                    out.send(answer::to_headers(self.side, &core::mem::take(&mut self.edits)));
                }
                Owed::Body if is_sent_back => self.give_back(out, true),
                Owed::Body => {
                    let edits = core::mem::take(&mut self.edits);
                    let is_changed = self.body.is_changed();
                    let body = self.body.take_whole();
                    out.send(answer::to_body(self.side, &edits, is_changed.then_some(body)));
                }
                Owed::Trailers => {
                    self.give_back(out, false);
                    out.send(answer::to_trailers(self.side));
                }
            }
        }
        if is_sent_back {
            self.give_back(out, false);
        }
    }

    /// Sends the body back. `end`: it ends with a piece, which may be empty.
    fn give_back(&mut self, out: &Outbox, end: bool) {
        let mut is_last_sent = false;
        while let Some(piece) = self.body.take(PIECE_BYTES) {
            is_last_sent = end && self.body.size() == 0;
            out.send(answer::piece(self.side, piece, is_last_sent));
        }
        if end && !is_last_sent {
            out.send(answer::piece(self.side, Bytes::new(), true));
        }
    }
}

#[cfg(test)]
mod tests;
