//! The state that a root context shares with its HTTP contexts: the worker, the sessions' gRPC streams, the tick, and the
//! paused streams that are to be resumed or answered.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::time::Duration;

use penstock_filter_core::effect::{Effect, SessionId, StreamAction};
use penstock_filter_core::header_sanitizer::HeaderEdit;
use penstock_filter_core::headers::Headers;
use penstock_filter_core::limits::{RESUME_INTERVAL, STREAMS_RESUMED_MAX, TICK_MIN};
use penstock_filter_core::local_reply::LocalReply;
use penstock_filter_core::properties::received_body_bytes;
use penstock_filter_core::rewrite::{BufferedBody as _, Rewrite};
use penstock_filter_core::session::SessionEffect;
use penstock_filter_core::stream_action::ActedOn;
use penstock_filter_core::time::Instant;
use penstock_filter_core::worker::Worker;
use penstock_wire::names::COMPANION_HEADER;
use penstock_wire::{METHOD, SERVICE};
use proxy_wasm::hostcalls;
use proxy_wasm::types::Action;

use crate::host::{self, Level, Map, StreamProperties};

/// One plugin configuration in one worker thread.
pub(crate) struct Plugin {
    /// The root context.
    context: u32,
    /// The companion's cluster.
    companion: String,
    worker: RefCell<Worker>,
    /// The host's tokens of the sessions' gRPC streams. Few: one, or one for each pool.
    tokens: RefCell<Vec<(SessionId, u32)>>,
    tick_period_ms: Cell<u32>,
    next_tick: Cell<Instant>,
    /// Actions on paused streams, in the order of the worker's decisions.
    pending: RefCell<VecDeque<(u32, StreamAction)>>,
    /// The host's queue by which the root context is called back; `None`: the host has no queues.
    queue: Option<u32>,
    /// The queue has an entry, so the root context will be called back.
    is_called_back: Cell<bool>,
}

impl Plugin {
    pub(crate) fn new(context: u32, companion: String, worker: Worker, queue: Option<u32>) -> Self {
        Self {
            context,
            companion,
            worker: RefCell::new(worker),
            tokens: RefCell::default(),
            tick_period_ms: Cell::new(0),
            next_tick: Cell::new(Instant::from_nanos(0)),
            pending: RefCell::default(),
            queue,
            is_called_back: Cell::new(false),
        }
    }

    /// Calls `f` with the worker, then carries out the worker's effects on the sessions. Effects on HTTP streams wait until
    /// `resume_streams`. `None`: the worker is borrowed, which can't happen because the host never re-enters the module
    /// during a host call.
    pub(crate) fn with_worker<T>(&self, f: impl FnOnce(&mut Worker) -> T) -> Option<T> {
        let value = f(&mut *self.worker.try_borrow_mut().ok()?);
        while let Some(effect) = self.next_effect() {
            match effect {
                Effect::Session(id, effect) => self.apply_session_effect(id, effect),
                Effect::Stream { context, action } => self.defer(context, action),
                Effect::LogError(text) => host::log(Level::Error, &text),
            }
        }
        Some(value)
    }

    fn next_effect(&self) -> Option<Effect> {
        self.worker.try_borrow_mut().ok()?.poll_effect()
    }

    fn defer(&self, context: u32, action: StreamAction) {
        if let Ok(mut pending) = self.pending.try_borrow_mut() {
            pending.push_back((context, action));
        }
    }

    /// Continues a request from the HTTP context that calls, once the host has handled the events of the event loop that are
    /// present. So streams that arrive together pass through the rest of Envoy together, one step after the other, whose
    /// instructions the processor still has in its caches. That costs Envoy a quarter less time than streams that are continued one
    /// by one (docs/bench).
    pub(crate) fn continue_request(&self, context: u32, edits: Vec<HeaderEdit>) -> Action {
        if self.queue.is_none() {
            edit_headers(Map::Request, &edits);
            return Action::Continue;
        }
        self.defer(context, StreamAction::Resume { edits, rewrite: None });
        self.request_callback();
        Action::Pause
    }

    /// Has the host call the root context back. If that fails, the next tick resumes the streams.
    fn request_callback(&self) {
        if let Some(queue) = self.queue
            && !self.is_called_back.get()
        {
            self.is_called_back.set(host::enqueue(queue));
        }
    }

    /// Has the host call the root context back, if streams are to be resumed.
    pub(crate) fn request_resumes(&self) {
        if self.has_pending() {
            self.request_callback();
        }
    }

    /// The host calls the root context back.
    pub(crate) fn handle_callback(&self) {
        if let Some(queue) = self.queue {
            host::dequeue(queue);
        }
        self.is_called_back.set(false);
        self.resume_streams();
    }

    fn has_pending(&self) -> bool {
        self.pending.try_borrow().is_ok_and(|pending| !pending.is_empty())
    }

    /// Resumes or answers paused streams, as many as one callback may; the next callback continues, or the next tick. Call it only
    /// from the root context's callbacks: the host carries out each action when the callback returns, and calls back from there.
    /// The current context of the rest of the callback is the last stream's.
    pub(crate) fn resume_streams(&self) {
        for (context, action) in (0..STREAMS_RESUMED_MAX).map_while(|_| self.next_action()) {
            // A stream that no longer exists needs no action.
            if host::set_current_context(context) {
                action.carry_out(&mut CurrentStream(self));
            }
        }
        self.request_resumes();
    }

    fn next_action(&self) -> Option<(u32, StreamAction)> {
        self.pending.try_borrow_mut().ok()?.pop_front()
    }

    fn apply_session_effect(&self, id: SessionId, effect: SessionEffect) {
        match effect {
            SessionEffect::OpenStream { companion } => self.open_stream(id, companion.as_deref()),
            SessionEffect::ResetStream => {
                if let Some(token) = self.remove_token(|(session, _)| session == id) {
                    host::reset_grpc(token);
                }
            }
            SessionEffect::Send(message) => {
                if let Some((_, token)) = self.find_token(|(session, _)| session == id) {
                    host::send_grpc(token, &message);
                }
            }
            SessionEffect::LogWarning(text) => host::log(Level::Warn, &text),
            SessionEffect::LogInfo(text) => host::log(Level::Info, &text),
        }
    }

    /// Opens a session's stream to `companion`, or to any of the cluster.
    fn open_stream(&self, id: SessionId, companion: Option<&str>) {
        let metadata: Vec<(&str, &[u8])> =
            companion.map(|address| (COMPANION_HEADER, address.as_bytes())).into_iter().collect();
        // The SDK must know the token, so this call goes through the SDK. The SDK panics if it is called from an HTTP
        // context; the worker opens streams only from ticks.
        let opened = hostcalls::open_grpc_stream(&self.companion, SERVICE, METHOD, metadata);
        if let (Ok(token), Ok(mut tokens)) = (&opened, self.tokens.try_borrow_mut()) {
            tokens.retain(|(session, _)| *session != id);
            tokens.push((id, *token));
        }
        let now = host::now();
        if let Ok(mut worker) = self.worker.try_borrow_mut() {
            match opened {
                Ok(_) => worker.handle_opened(now, id),
                Err(_) => worker.handle_open_failed(now, id),
            }
        }
    }

    fn find_token(&self, is_it: impl Fn((SessionId, u32)) -> bool) -> Option<(SessionId, u32)> {
        let tokens = self.tokens.try_borrow().ok()?;
        tokens.iter().copied().find(|entry| is_it(*entry))
    }

    fn remove_token(&self, is_it: impl Fn((SessionId, u32)) -> bool) -> Option<u32> {
        let mut tokens = self.tokens.try_borrow_mut().ok()?;
        let index = tokens.iter().position(|entry| is_it(*entry))?;
        Some(tokens.swap_remove(index).1)
    }

    /// The session whose present gRPC stream has this token.
    pub(crate) fn session_of(&self, token: u32) -> Option<SessionId> {
        self.find_token(|(_, present)| present == token).map(|(session, _)| session)
    }

    /// Forgets the token of a stream that has ended. Returns its session.
    pub(crate) fn forget_token(&self, token: u32) -> Option<SessionId> {
        let session = self.session_of(token)?;
        self.remove_token(|(_, present)| present == token);
        Some(session)
    }

    /// Forgets and returns the tokens of all streams.
    pub(crate) fn take_tokens(&self) -> Vec<u32> {
        let mut taken = Vec::new();
        while let Some(token) = self.remove_token(|_| true) {
            taken.push(token);
        }
        taken
    }

    /// Sets the host's tick period, if the next tick would come too late or much too early. Each change costs a timer.
    pub(crate) fn set_tick(&self, now: Instant) {
        let Ok(worker) = self.worker.try_borrow() else {
            return;
        };
        let period = if self.has_pending() && !self.is_called_back.get() {
            RESUME_INTERVAL
        } else {
            worker.tick_period(now)
        };
        let (wanted, next) = (now.after(period), self.next_tick.get());
        if next.since(wanted) > RESUME_INTERVAL || wanted.since(next) > TICK_MIN {
            // The current context may be the last resumed stream's, and ticks are the root context's.
            host::set_current_context(self.context);
            self.set_tick_period(period);
            self.next_tick.set(wanted);
        }
    }

    /// Brings the next tick forward, if it would come too late. `context`: the HTTP context that calls.
    pub(crate) fn advance_tick(&self, now: Instant, context: u32) {
        let Ok(period) = self.worker.try_borrow().map(|worker| worker.tick_period(now)) else {
            return;
        };
        let wanted = now.after(period);
        if self.next_tick.get().since(wanted) > RESUME_INTERVAL {
            // The timer belongs to the root context.
            host::set_current_context(self.context);
            self.set_tick_period(period);
            host::set_current_context(context);
            self.next_tick.set(wanted);
        }
    }

    fn set_tick_period(&self, period: Duration) {
        let period = u32::try_from(period.as_millis()).unwrap_or(u32::MAX);
        host::set_tick_period(period);
        self.tick_period_ms.set(period);
    }

    /// Notes a tick: the host's next one follows after the same period.
    pub(crate) fn note_tick(&self, now: Instant) {
        let period = Duration::from_millis(self.tick_period_ms.get().into());
        self.next_tick.set(now.after(period));
    }
}

/// Sends a local reply on the current HTTP stream.
pub(crate) fn send_local_reply(reply: &LocalReply) {
    host::send_local_reply(reply.status, &reply.headers, &reply.body);
}

/// Edits a header map of the current HTTP stream, and sets its properties.
pub(crate) fn edit_headers(map: Map, edits: &[HeaderEdit]) {
    for edit in edits {
        match edit {
            HeaderEdit::Remove(name) => host::remove_header(map, name),
            HeaderEdit::Add(name, value) => host::add_header(map, name, value),
            HeaderEdit::Set(name, value) => host::set_header(map, name, value),
            HeaderEdit::SetStatic(name, value) => host::set_header(map, name, value),
            HeaderEdit::SetProperty(name, value) => host::set_property(name, value),
        }
    }
}

/// The current HTTP stream.
struct CurrentStream<'a>(&'a Plugin);

impl ActedOn for CurrentStream<'_> {
    fn with_worker<T>(&mut self, f: impl FnOnce(&mut Worker, Instant) -> T) -> Option<T> {
        self.0.with_worker(|worker| f(worker, host::now()))
    }

    fn rewrite(&mut self, rewrite: &Rewrite) -> bool {
        host::RequestBody.rewrite(rewrite)
    }

    fn resume_request(&mut self, edits: Vec<HeaderEdit>) {
        edit_headers(Map::Request, &edits);
        host::resume_request();
    }

    fn reply(&mut self, reply: LocalReply) {
        send_local_reply(&reply);
    }

    fn resume_response(&mut self) {
        host::resume_response();
    }

    fn replace_response(&mut self, reply: LocalReply) {
        send_local_reply(&reply);
    }

    fn reset(&mut self) {
        host::reset_stream();
    }

    fn received_bytes(&mut self) -> u64 {
        let headers = host::headers(Map::Request);
        received_body_bytes(&StreamProperties, Headers::new(&headers)).unwrap_or(0)
    }
}
