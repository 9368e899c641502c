//! One HTTP stream: passes Envoy's hooks on to the worker, and carries out what it decides.

use core::cell::Cell;
use std::sync::Arc;

use penstock_filter_core::effect::{BodyAction, HeadersAction, ResponseBodyAction};
use penstock_filter_core::header_sanitizer::HeaderEdit;
use penstock_filter_core::headers::Headers;
use penstock_filter_core::local_reply::{Failure, LocalReply};
use penstock_filter_core::properties::received_body_bytes;
use penstock_filter_core::rewrite::{BufferedBody as _, Rewrite};
use penstock_filter_core::stream_action::ActedOn;
use penstock_filter_core::time::Instant;
use penstock_filter_core::worker::Worker;
use penstock_wire::{Api, Code};

use crate::abi::Map;
use crate::desk::{ConfigId, Desk, Seat, Waiting};
use crate::host::{self, Filter, HostClock, Replying, StreamBody, Waker};
use crate::panics;
use crate::plugin::Plugin;

/// What Envoy does after a hook. The numbers are those of its filter statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Continue = 0,
    /// Pause, and keep the body.
    Stop = 1,
    /// Pause, and drop what has arrived of the body.
    Drop = 3,
}

/// A stream. A hook may run inside another one of the same stream, so nothing of it is borrowed mutably.
pub(crate) struct Stream {
    plugin: Arc<Plugin>,
    filter: Filter,
    worker: usize,
    /// The request's headers have come. Envoy answers without them what is no request by HTTP.
    has_begun: Cell<bool>,
    /// The worker's number of the stream, once it has paused.
    context: Cell<Option<u32>>,
    /// The worker's number of the request; `None`: the request passes through.
    sequence: Cell<Option<u64>>,
    /// A body to send in place of the response's body.
    replacement: Cell<Option<Vec<u8>>>,
    /// The request's number before its stream was restarted, until the worker has taken it; `None`: it wasn't.
    restarted: Cell<Option<u64>>,
    is_destroyed: Cell<bool>,
}

thread_local! {
    /// The request whose stream this thread is restarting, by its configuration and number, until the filter of the new stream takes it.
    static RESTARTING: Cell<Option<(ConfigId, u64)>> = const { Cell::new(None) };
    /// A stream is being restarted. Actions on other streams wait, because they may end the connection that the new stream is about to use.
    static IS_RESTARTING: Cell<bool> = const { Cell::new(false) };
}

impl Stream {
    pub(crate) fn new(plugin: Arc<Plugin>, filter: Filter) -> Self {
        let worker = filter.worker();
        let restarted = RESTARTING.get().filter(|(config, _)| *config == plugin.id);
        if restarted.is_some() {
            RESTARTING.set(None);
        }
        Self {
            restarted: Cell::new(restarted.map(|(_, sequence)| sequence)),
            is_destroyed: Cell::new(false),
            plugin,
            filter,
            worker,
            has_begun: Cell::new(false),
            context: Cell::new(None),
            sequence: Cell::new(None),
            replacement: Cell::new(None),
        }
    }

    /// The number of the worker thread.
    pub(crate) const fn worker(&self) -> usize {
        self.worker
    }

    /// Counts the panics that aren't counted yet.
    pub(crate) fn count_panics(&self) {
        panics::count(self.filter, self.plugin.panics);
    }

    /// The panic that the request asks for.
    #[cfg(feature = "panics")]
    pub(crate) fn asked(&self) -> String {
        if self.is_destroyed() {
            return String::new();
        }
        let asked = |headers: Headers<'_>| {
            String::from_utf8_lossy(headers.get("x-panic").unwrap_or_default()).into_owned()
        };
        self.filter.with_headers(Map::Request, asked)
    }

    fn with_seat<T>(&self, f: impl FnOnce(&mut Seat) -> T) -> Option<T> {
        self.plugin.with_seat(self.worker, f)
    }

    pub(crate) fn on_request_headers(&self, end: bool) -> Status {
        self.has_begun.set(true);
        let restarted = self.restarted.take();
        let handled = self.filter.with_headers(Map::Request, |headers| {
            self.with_seat(|seat| {
                let (context, now) = (seat.new_context(), host::now());
                let (worker, filter) = (&mut seat.worker, &self.filter);
                let action = match restarted {
                    Some(sequence) => {
                        worker.handle_restarted_headers(now, context, headers, end, filter, sequence)
                    }
                    None => worker.handle_request_headers(now, context, headers, end, filter),
                };
                if let HeadersAction::Pause(sequence, _) = action {
                    let waker = Waker::of(self.filter);
                    seat.waiting.insert(context, Waiting { filter: self.filter, sequence, waker });
                }
                (context, action)
            })
        });
        // The configuration is being replaced, and the request must not pass unchecked.
        let Some((context, action)) = handled else {
            let failure = Failure::new(500, Code::Internal, "The filter's configuration has gone.");
            self.reply(&failure.reply(Api::Unspecified, None));
            return Status::Stop;
        };
        match action {
            HeadersAction::Pass(edits) => {
                self.filter.edit(Map::Request, &edits);
                Status::Continue
            }
            HeadersAction::Answer(answer) => {
                self.reply(&answer);
                Status::Stop
            }
            HeadersAction::Pause(sequence, edits) => {
                self.sequence.set(Some(sequence));
                self.context.set(Some(context));
                self.filter.edit(Map::Request, &edits);
                Status::Stop
            }
            HeadersAction::Reply(sequence, refusal) => {
                self.sequence.set(Some(sequence));
                self.reply(&refusal);
                Status::Stop
            }
        }
    }

    pub(crate) fn on_request_body(&self, end: bool) -> Status {
        let Some(sequence) = self.sequence.get() else {
            return Status::Continue;
        };
        let body = StreamBody::arriving(self.filter, true);
        let size = body.size();
        let action =
            self.with_seat(|seat| seat.worker.handle_request_body(HostClock, sequence, size, end, body));
        self.carry_out(action, Status::Drop)
    }

    pub(crate) fn on_request_trailers(&self) -> Status {
        let Some(sequence) = self.sequence.get() else {
            return Status::Continue;
        };
        let body = StreamBody::buffered_request(self.filter);
        let action = self.with_seat(|seat| seat.worker.handle_request_end(host::now(), sequence, body));
        self.carry_out(action, Status::Stop)
    }

    /// Replies to the request.
    fn reply(&self, reply: &LocalReply) {
        if let Some(desk) = self.plugin.desk(self.worker) {
            send(desk, self.plugin.id, self.filter, self.sequence.get(), reply);
        }
    }

    fn carry_out(&self, action: Option<BodyAction>, replied: Status) -> Status {
        match action {
            None | Some(BodyAction::Pause) => Status::Stop,
            Some(BodyAction::Reply(refusal)) => {
                self.reply(&refusal);
                replied
            }
            Some(BodyAction::Continue(edits)) => {
                self.filter.edit(Map::Request, &edits);
                Status::Continue
            }
        }
    }

    pub(crate) fn on_response_headers(&self, end: bool) -> Status {
        if !self.has_begun.get() {
            return Status::Continue;
        }
        let (sequence, now) = (self.sequence.get(), host::now());
        let (status, action) = self.filter.with_headers(Map::Response, |headers| {
            let status =
                headers.get(":status").and_then(|status| core::str::from_utf8(status).ok()?.parse().ok());
            let filter = &self.filter;
            let action = self
                .with_seat(|seat| seat.worker.handle_response_headers(now, sequence, headers, end, filter));
            (status, action.unwrap_or_default())
        });
        if action.is_restarted {
            return self.restart(status);
        }
        if status.is_some_and(|status| status < 400) {
            self.filter.note_connection();
        }
        self.filter.edit(Map::Response, &action.edits);
        self.replacement.set(action.body);
        self.plugin.advance_tick(now, self.worker);
        if action.is_held { Status::Stop } else { Status::Continue }
    }

    /// Restarts the stream. Envoy destroys its filters before it returns, this one among them.
    fn restart(&self, status: Option<u32>) -> Status {
        let Some(sequence) = self.sequence.take() else {
            return Status::Continue;
        };
        // The new stream may fail at once and be restarted as well, inside of this restart.
        let outer = (RESTARTING.replace(Some((self.plugin.id, sequence))), IS_RESTARTING.replace(true));
        let is_restarted = self.filter.restart(status.unwrap_or(503));
        let is_left = RESTARTING.replace(outer.0).is_some();
        IS_RESTARTING.set(outer.1);
        if is_left {
            // No filter of this configuration is in the new stream, or there is none.
            let reply = self.with_seat(|seat| seat.worker.abandon_restart(host::now(), sequence)).flatten();
            if let Some(reply) = reply.filter(|_| !is_restarted) {
                self.filter.reply(&reply, &[]);
            }
        }
        // What this stream was woken for is still to be done.
        if let Some(desk) = self.plugin.desk(self.worker) {
            desk.wake_worker();
        }
        Status::Stop
    }

    pub(crate) fn on_response_body(&self, end: bool) -> Status {
        let mut body = StreamBody::arriving(self.filter, false);
        if let Some(replacement) = self.replacement.take() {
            body.replace(&replacement);
            return Status::Continue;
        }
        let Some(sequence) = self.sequence.get() else {
            return Status::Continue;
        };
        let size = body.size();
        let action = self.with_seat(|seat| {
            let read = |start, length| body.read(start, length);
            seat.worker.handle_response_body(HostClock, sequence, size, end, read)
        });
        match action {
            None | Some(ResponseBodyAction::Pass) => Status::Continue,
            Some(ResponseBodyAction::Hold) => Status::Stop,
            Some(ResponseBodyAction::Edit { bytes, is_held }) => {
                body.replace(&bytes);
                if is_held { Status::Stop } else { Status::Continue }
            }
            Some(ResponseBodyAction::Replace(error)) => {
                // The response has begun, and the filter has handled its headers.
                self.filter.reply(&error, &[]);
                Status::Drop
            }
        }
    }

    pub(crate) fn on_response_trailers(&self) -> Status {
        if let Some(sequence) = self.sequence.get() {
            self.with_seat(|seat| seat.worker.handle_response_end(sequence));
        }
        Status::Continue
    }

    /// Envoy is about to write the log entry of the stream, which is the end of its exchange.
    pub(crate) fn on_complete(&self) {
        if let Some(sequence) = self.sequence.get() {
            let now = host::now();
            self.with_seat(|seat| seat.worker.handle_log(now, sequence, &self.filter));
            self.sequence.set(None);
            self.plugin.advance_tick(now, self.worker);
        }
    }

    /// Envoy destroys the stream.
    pub(crate) fn on_destroy(&self) {
        self.is_destroyed.set(true);
        if let Some(sequence) = self.restarted.take() {
            self.with_seat(|seat| seat.worker.abandon_restart(host::now(), sequence));
        }
        if let Some(sequence) = self.sequence.take() {
            // A panic has kept the worker from learning how the request ended.
            self.with_seat(|seat| seat.worker.abandon(host::now(), sequence));
        }
        if let Some(context) = self.context.take() {
            let waiting = self.with_seat(|seat| seat.waiting.remove(&context)).flatten();
            if let Some(waiting) = waiting {
                waiting.waker.delete();
            }
        }
        // The event for which this stream was woken comes no more.
        self.run_actions();
    }

    /// Envoy has destroyed the stream: its filter can't be used any more.
    pub(crate) const fn is_destroyed(&self) -> bool {
        self.is_destroyed.get()
    }

    /// Carries out the actions on all streams of this worker thread, unless one is being restarted, whose hook runs.
    pub(crate) fn run_actions(&self) {
        if IS_RESTARTING.get() {
            return;
        }
        if let Some(desk) = self.plugin.desk(self.worker) {
            run_actions(desk);
        }
    }
}

fn run_actions(desk: &Desk) {
    thread_local! {
        /// An action may end another stream, whose hook comes here again.
        static RUNS: Cell<bool> = const { Cell::new(false) };
    }
    /// Ends with the function, also by a panic.
    struct Run;
    impl Drop for Run {
        fn drop(&mut self) {
            RUNS.set(false);
        }
    }
    if RUNS.replace(true) {
        return;
    }
    let _run = Run;
    while let Some((config, stream, action)) = desk.next_action() {
        let (filter, sequence) = stream;
        let applied = panics::guard(|| {
            action.carry_out(&mut PausedStream { desk, config, filter, sequence });
        });
        if applied.is_none() && desk.has(config, filter) {
            panics::fail(filter);
        }
    }
}

/// A stream that the filter has paused at some time. The event that acts on it is none of its own.
struct PausedStream<'a> {
    desk: &'a Desk,
    config: ConfigId,
    filter: Filter,
    /// The worker's number of the request.
    sequence: u64,
}

impl ActedOn for PausedStream<'_> {
    fn with_worker<T>(&mut self, f: impl FnOnce(&mut Worker, Instant) -> T) -> Option<T> {
        with(self.desk, self.config, |seat| f(&mut seat.worker, host::now()))
    }

    fn rewrite(&mut self, rewrite: &Rewrite) -> bool {
        StreamBody::buffered_request(self.filter).rewrite(rewrite)
    }

    fn resume_request(&mut self, edits: Vec<HeaderEdit>) {
        self.filter.edit(Map::Request, &edits);
        self.filter.resume_request();
    }

    fn reply(&mut self, reply: LocalReply) {
        send(self.desk, self.config, self.filter, Some(self.sequence), &reply);
    }

    fn resume_response(&mut self) {
        self.filter.resume_response();
    }

    fn replace_response(&mut self, reply: LocalReply) {
        // The response has begun, and the filter has handled its headers.
        self.filter.reply(&reply, &[]);
    }

    fn reset(&mut self) {
        self.filter.reset();
    }

    fn received_bytes(&mut self) -> u64 {
        let bytes =
            self.filter.with_headers(Map::Request, |headers| received_body_bytes(&self.filter, headers));
        bytes.unwrap_or(0)
    }
}

/// Calls `f` with a seat. The caller carries out the actions on streams.
fn with<T>(desk: &Desk, config: ConfigId, f: impl FnOnce(&mut Seat) -> T) -> Option<T> {
    desk.with(config, f).map(|(value, _)| value)
}

/// Replies to a request that no server has answered. The worker handles the reply's headers as those of any response.
fn send(desk: &Desk, config: ConfigId, filter: Filter, sequence: Option<u64>, reply: &LocalReply) {
    let map = reply.header_map();
    let (headers, end) = (Headers::new(&map), reply.body.is_empty());
    let action = with(desk, config, |seat| {
        seat.worker.handle_response_headers(host::now(), sequence, headers, end, &Replying(filter))
    });
    filter.reply(reply, &action.unwrap_or_default().edits);
}
