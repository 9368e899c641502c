//! The root context: owns the worker, its session's stream and its tick.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    rc::Rc,
    time::Duration,
};

use penstock_filter_core::{
    config::Config,
    effect::{self, Effect},
    header_sanitizer::HeaderEdit,
    limits::{RESUME_INTERVAL, STREAMS_RESUMED_MAX, TICK_MIN},
    local_reply::LocalReply,
    rewrite::Rewrite,
    session::SessionEffect,
    time::Instant,
    worker::Worker,
};
use penstock_wire::{METHOD, SERVICE};
use proxy_wasm::{
    hostcalls,
    traits::{Context, HttpContext, RootContext},
    types::ContextType,
};

use crate::{
    host::{self, Buffer, Level, Map},
    http_context::Http,
};

/// What a root context and its HTTP contexts share.
pub(crate) struct Shared {
    context: u32,
    companion: String,
    worker: RefCell<Worker>,
    token: Cell<Option<u32>>,
    /// The period that the host ticks with, in milliseconds.
    tick_ms: Cell<u32>,
    /// When it ticks next.
    tick_at: Cell<Instant>,
    /// Streams that are to go on, in the order of the worker's decisions.
    moves: RefCell<VecDeque<(u32, Move)>>,
}

/// How a paused stream goes on.
enum Move {
    Resume(Vec<HeaderEdit>, Option<Rewrite>),
    Reply(LocalReply),
}

impl Shared {
    /// Runs `f` on the worker, then does what the worker asks for on the session. None: the worker is at work already,
    /// which the host rules out by never calling back from inside a host call.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut Worker) -> T) -> Option<T> {
        let value = f(&mut *self.worker.try_borrow_mut().ok()?);
        while let Some(effect) = self.next_effect() {
            match effect {
                Effect::Session(order) => self.obey(order),
                Effect::Resume {
                    context,
                    edits,
                    rewrite,
                } => self.put_off(context, Move::Resume(edits, rewrite)),
                Effect::Reply { context, answer } => self.put_off(context, Move::Reply(answer)),
            }
        }
        Some(value)
    }

    fn put_off(&self, context: u32, what: Move) {
        if let Ok(mut moves) = self.moves.try_borrow_mut() {
            moves.push_back((context, what));
        }
    }

    /// Moves the streams that wait for it, as many as one callback may; the next tick goes on. Only the root's own
    /// callbacks do: the host carries each move out when the callback is over, and calls back from inside of it.
    fn move_streams(&self) {
        for (context, what) in (0..STREAMS_RESUMED_MAX).map_while(|_| self.next_move()) {
            // A stream that has gone needs nothing.
            if host::speak_of(context) {
                match what {
                    Move::Resume(edits, rewrite) => {
                        if rewrite.is_none_or(|rewrite| rewrite.apply(&mut host::Request)) {
                            edit(Map::Request, &edits);
                            host::resume_request();
                        } else {
                            respond(&effect::unwritten());
                        }
                    }
                    Move::Reply(answer) => respond(&answer),
                }
            }
        }
        host::speak_of(self.context);
    }

    fn next_move(&self) -> Option<(u32, Move)> {
        self.moves.try_borrow_mut().ok()?.pop_front()
    }

    fn next_effect(&self) -> Option<Effect> {
        self.worker.try_borrow_mut().ok()?.poll_effect()
    }

    fn obey(&self, order: SessionEffect) {
        match order {
            SessionEffect::OpenStream => self.open(),
            SessionEffect::ResetStream => {
                if let Some(token) = self.token.take() {
                    host::cut(token);
                }
            }
            SessionEffect::Send(message) => {
                if let Some(token) = self.token.get() {
                    host::send(token, &message);
                }
            }
            SessionEffect::LogWarning(text) => host::log(Level::Warn, &text),
            SessionEffect::LogInfo(text) => host::log(Level::Info, &text),
        }
    }

    fn open(&self) {
        // The SDK must know the token, so this call is its own. It may not be called from an HTTP context; orders to open
        // come from ticks only.
        let opened = hostcalls::open_grpc_stream(&self.companion, SERVICE, METHOD, Vec::new());
        self.token.set(opened.ok());
        let now = host::now();
        if let Ok(mut worker) = self.worker.try_borrow_mut() {
            match opened {
                Ok(_) => worker.handle_opened(now),
                Err(_) => worker.handle_open_failed(now),
            }
        }
    }

    fn set_tick(&self, now: Instant) {
        let Ok(worker) = self.worker.try_borrow() else {
            return;
        };
        let all_moved = self.moves.try_borrow().is_ok_and(|moves| moves.is_empty());
        let period = if all_moved {
            worker.tick_period(now)
        } else {
            RESUME_INTERVAL
        };
        // To set it costs a timer each time: it stays as long as it doesn't tick late, or much too often.
        let (wanted, ticks) = (now.after(period), self.tick_at.get());
        if ticks.since(wanted) > RESUME_INTERVAL || wanted.since(ticks) > TICK_MIN {
            let period = u32::try_from(period.as_millis()).unwrap_or(u32::MAX);
            host::set_tick_period(period);
            self.tick_ms.set(period);
            self.tick_at.set(wanted);
        }
    }

    /// The host ticks, and goes on with its period.
    fn ticked(&self, now: Instant) {
        let period = Duration::from_millis(self.tick_ms.get().into());
        self.tick_at.set(now.after(period));
    }
}

fn respond(answer: &LocalReply) {
    host::respond(answer.status, &answer.headers, &answer.body);
}

/// Applies changes to a header map of the HTTP stream that is spoken of.
pub(crate) fn edit(map: Map, edits: &[HeaderEdit]) {
    for edit in edits {
        match edit {
            HeaderEdit::Remove(name) => host::remove_header(map, name),
            HeaderEdit::Set(name, value) => host::set_header(map, name, value),
        }
    }
}

/// One plugin configuration in one worker.
pub(crate) struct Root {
    context: u32,
    shared: Option<Rc<Shared>>,
}

impl Root {
    pub(crate) fn new(context: u32) -> Self {
        Self {
            context,
            shared: None,
        }
    }

    fn configure(&self, size: usize) -> Result<Shared, String> {
        let json = host::buffer(Buffer::PluginConfiguration, 0, size).unwrap_or_default();
        let config = Config::parse(&json).map_err(|error| format!("plugin configuration: {error}"))?;
        let draw = host::draw().ok_or("the host gives no random bits")?;
        Ok(Shared {
            context: self.context,
            worker: RefCell::new(Worker::new(
                host::now(),
                &draw,
                &config,
                Box::new(host::HostSharedData),
            )),
            companion: config.companion,
            token: Cell::new(None),
            tick_ms: Cell::new(0),
            tick_at: Cell::new(Instant::from_nanos(0)),
            moves: RefCell::default(),
        })
    }

    fn tell(&self, f: impl FnOnce(&mut Worker, Instant)) {
        if let Some(shared) = &self.shared {
            let now = host::now();
            shared.with(|worker| f(worker, now));
            shared.move_streams();
            shared.set_tick(now);
        }
    }

    fn is_current(&self, token: u32) -> bool {
        self.shared
            .as_ref()
            .is_some_and(|shared| shared.token.get() == Some(token))
    }
}

impl Context for Root {
    fn on_grpc_stream_message(&mut self, token: u32, size: usize) {
        if self.is_current(token) {
            let message = host::buffer(Buffer::GrpcMessage, 0, size).unwrap_or_default();
            self.tell(|worker, now| worker.handle_message(now, &message));
        }
    }

    fn on_grpc_stream_close(&mut self, token: u32, _status: u32) {
        if self.is_current(token) {
            // The host has forgotten the token: nothing may be sent on it any more.
            if let Some(shared) = &self.shared {
                shared.token.set(None);
            }
            self.tell(Worker::handle_closed);
        }
    }

    fn on_done(&mut self) -> bool {
        self.tell(|worker, _| worker.handle_shutdown());
        if let Some(token) = self.shared.as_ref().and_then(|shared| shared.token.take()) {
            host::close(token);
        }
        true
    }
}

impl RootContext for Root {
    fn on_configure(&mut self, size: usize) -> bool {
        match self.configure(size) {
            Ok(shared) => {
                self.shared = Some(Rc::new(shared));
                // The first tick opens the session.
                self.tell(|_, _| {});
                true
            }
            Err(error) => {
                host::log(Level::Error, &error);
                false
            }
        }
    }

    fn on_tick(&mut self) {
        if let Some(shared) = &self.shared {
            shared.ticked(host::now());
        }
        self.tell(Worker::handle_tick);
    }

    fn create_http_context(&self, context: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Http::new(context, self.shared.clone())))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}
