//! The task that owns a filter core and the streams that it tracks. Whatever happens reaches it as an event, so nothing is locked.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use hashbrown::HashMap;
use penstock_filter_core::config::Config;
use penstock_filter_core::effect::{Effect, SessionId};
use penstock_filter_core::process_identity::RandomBits;
use penstock_filter_core::session::{Epoch, SessionEffect};
use penstock_filter_core::time::Instant;
use penstock_filter_core::worker::Worker;
use tokio::sync::{mpsc, watch};

use crate::event::Event;
use crate::facts::Facts;
use crate::generated::ProcessingRequest;
use crate::limits::{BATCH, BODY_BYTES_MAX, STREAMS_MAX};
use crate::outbox::Outbox;
use crate::sessions::Sessions;
use crate::shared_data::WorkersData;
use crate::stream::Stream;

/// The least pause between two ticks.
const TICK_MIN: Duration = Duration::from_millis(5);

/// Reaches a worker. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Handle {
    events: mpsc::Sender<Event>,
    last_id: Arc<AtomicU32>,
    open: Arc<AtomicUsize>,
    /// Open streams of all workers.
    open_in_all: Arc<AtomicUsize>,
}

/// The worker has ended, because the companion does.
#[derive(Debug)]
pub(crate) struct Gone;

/// A stream of a worker. Its end is reported when it is [closed](Self::close).
pub(crate) struct OpenStream {
    id: u32,
    handle: Handle,
}

impl Handle {
    /// A handle whose events arrive at the other end.
    pub(crate) fn new(events: mpsc::Sender<Event>, shared: &Shared) -> Self {
        let open_in_all = shared.open_streams.clone();
        Self { events, last_id: Arc::default(), open: Arc::default(), open_in_all }
    }

    /// Opens a stream whose answers go to `out`. `None`: the worker has as many as it may have.
    pub(crate) async fn open(&self, out: Outbox, pool: Option<Arc<str>>) -> Result<Option<OpenStream>, Gone> {
        if self.open.load(Ordering::Relaxed) >= STREAMS_MAX {
            return Ok(None);
        }
        self.open.fetch_add(1, Ordering::Relaxed);
        self.open_in_all.fetch_add(1, Ordering::Relaxed);
        let id = self.last_id.fetch_add(1, Ordering::Relaxed);
        let stream = OpenStream { id, handle: self.clone() };
        self.send(Event::StreamOpened(id, out, pool)).await?;
        Ok(Some(stream))
    }

    async fn send(&self, event: Event) -> Result<(), Gone> {
        self.events.send(event).await.map_err(|_| Gone)
    }
}

impl OpenStream {
    /// Passes a message of the gateway to the worker. Returns when there is room for it.
    pub(crate) async fn receive(&self, message: ProcessingRequest) -> Result<(), Gone> {
        self.handle.send(Event::Message(self.id, Box::new(message))).await
    }

    /// The gateway has ended the stream.
    pub(crate) async fn close(self) {
        // Fails when the worker has ended, and with it the stream.
        let _: Result<(), Gone> = self.handle.send(Event::StreamClosed(self.id)).await;
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.handle.open.fetch_sub(1, Ordering::Relaxed);
        self.handle.open_in_all.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The monotonic clock, with one zero for all workers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(std::time::Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(std::time::Instant::now())
    }

    fn now(self) -> Instant {
        Instant::from_nanos(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Draws the random bits of a worker.
///
/// # Errors
/// When the system provides none.
pub(crate) fn random_bits() -> Result<RandomBits, getrandom::Error> {
    let [hi, lo, envoy] = [getrandom::u64()?, getrandom::u64()?, getrandom::u64()?];
    let mut key = RandomBits { epoch: Epoch { hi, lo }, envoy, key: Default::default() };
    getrandom::fill(&mut key.key)?;
    Ok(key)
}

/// A worker with its streams and sessions.
pub(crate) struct Seat {
    clock: Clock,
    worker: Worker,
    streams: HashMap<u32, Stream>,
    sessions: Sessions,
    /// The companion leaves its requests to the next leader, which waits for this worker.
    leaves: watch::Receiver<bool>,
    shared: Shared,
    /// The worker has told that its sessions are open.
    is_connected: bool,
    /// The worker has told that it follows another companion.
    is_following: bool,
    /// The last session was opened with another companion.
    is_elsewhere: bool,
}

/// What the workers share.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    /// Bytes of request bodies in all streams.
    body_bytes: Arc<AtomicUsize>,
    open_streams: Arc<AtomicUsize>,
    /// Workers whose sessions are open.
    connected: watch::Sender<usize>,
    /// Workers whose sessions are open with another companion.
    following: watch::Sender<usize>,
}

impl Default for Shared {
    fn default() -> Self {
        let [connected, following] = core::array::from_fn(|_| watch::Sender::new(0));
        Self { body_bytes: Arc::default(), open_streams: Arc::default(), connected, following }
    }
}

impl Shared {
    /// The number of open streams of all workers.
    pub(crate) fn open_streams(&self) -> usize {
        self.open_streams.load(Ordering::Relaxed)
    }

    /// The number of workers whose sessions are open.
    pub(crate) fn connected(&self) -> watch::Receiver<usize> {
        self.connected.subscribe()
    }

    /// The number of workers whose sessions are open with another companion.
    pub(crate) fn following(&self) -> watch::Receiver<usize> {
        self.following.subscribe()
    }

    /// A stream's body has grown or shrunk. Returns the bytes of all.
    fn account(&self, before: usize, after: usize) -> usize {
        let grown = after.saturating_sub(before);
        let shrunk = before.saturating_sub(after);
        let all = self.body_bytes.fetch_add(grown, Ordering::Relaxed).saturating_add(grown);
        self.body_bytes.fetch_sub(shrunk, Ordering::Relaxed);
        all.saturating_sub(shrunk)
    }
}

/// What wakes a worker.
enum Woken {
    Events,
    Tick,
    End,
}

impl Seat {
    pub(crate) fn new(
        clock: Clock,
        random: &RandomBits,
        config: &Config,
        data: WorkersData,
        shared: Shared,
        sessions: Sessions,
        leaves: watch::Receiver<bool>,
    ) -> Self {
        Self {
            clock,
            worker: Worker::new(clock.now(), random, config, Box::new(data)),
            streams: HashMap::new(),
            sessions,
            leaves,
            shared,
            is_connected: false,
            is_following: false,
            is_elsewhere: false,
        }
    }

    /// Handles events, and ticks in between, until `end` returns. Then says so to the companion.
    pub(crate) async fn run(mut self, mut events: mpsc::Receiver<Event>, end: impl Future<Output = ()>) {
        let mut end = pin!(end);
        let mut batch = Vec::with_capacity(BATCH);
        let mut tick = pin!(tokio::time::sleep(Duration::ZERO));
        loop {
            let woken = tokio::select! {
                _ = events.recv_many(&mut batch, BATCH) => Woken::Events,
                () = tick.as_mut() => Woken::Tick,
                () = end.as_mut() => Woken::End,
            };
            for event in batch.drain(..) {
                let now = self.clock.now();
                self.handle(now, event);
                self.carry_out_effects(now);
            }
            let now = self.clock.now();
            match woken {
                Woken::Events => {}
                Woken::Tick => self.worker.handle_tick(now),
                Woken::End => self.worker.handle_shutdown(),
            }
            self.carry_out_effects(now);
            if matches!(woken, Woken::End) {
                return;
            }
            self.return_if_idle(now);
            self.tell_whether_connected();
            let period = self.worker.tick_period(now).max(TICK_MIN);
            let due = tokio::time::Instant::now() + period;
            // An event may bring the next tick forward; it never puts it off.
            if matches!(woken, Woken::Tick) || due < tick.deadline() {
                tick.as_mut().reset(due);
            }
        }
    }

    /// Counts this worker among those whose sessions are open, or no longer.
    fn tell_whether_connected(&mut self) {
        let is_connected = self.worker.is_connected();
        count(&mut self.is_connected, is_connected, &self.shared.connected);
        count(&mut self.is_following, is_connected && self.is_elsewhere, &self.shared.following);
    }

    /// This worker has something for a leader in another process: requests, reports of their ends, or the promise of a session. An idle
    /// worker has no session with such a leader, which would have to watch over it.
    fn needs_leader(&self) -> bool {
        !self.streams.is_empty() || self.worker.unacknowledged() > 0 || *self.leaves.borrow()
    }

    /// Ends the session with another companion when it is needed no more.
    fn return_if_idle(&mut self, now: Instant) {
        if self.is_elsewhere && !self.needs_leader() {
            self.is_elsewhere = false;
            self.worker.handle_shutdown();
            self.carry_out_effects(now);
            self.sessions.close(SessionId::MAIN);
            self.worker.handle_closed(now, SessionId::MAIN);
        }
    }

    fn handle(&mut self, now: Instant, event: Event) {
        let Self { worker, streams, sessions, shared, .. } = self;
        match event {
            Event::StreamOpened(id, out, pool) => {
                streams.insert(id, Stream::new(id, out, Facts::new(pool)));
            }
            Event::Message(id, message) => {
                if let Some(stream) = streams.get_mut(&id) {
                    let before = stream.body_bytes();
                    stream.receive(now, worker, *message);
                    let after = stream.body_bytes();
                    if shared.account(before, after) > BODY_BYTES_MAX && after > before {
                        stream.refuse_body(now, worker);
                        shared.account(after, stream.body_bytes());
                    }
                }
            }
            Event::StreamClosed(id) => {
                if let Some(mut stream) = streams.remove(&id) {
                    shared.account(stream.body_bytes(), 0);
                    stream.end(now, worker);
                }
            }
            Event::Frame(id, number, frame) => {
                if sessions.is_current(id, number) {
                    worker.handle_message(now, id, &frame);
                }
            }
            Event::SessionClosed(id, number) => {
                if sessions.is_current(id, number) {
                    sessions.close(id);
                    worker.handle_closed(now, id);
                }
            }
        }
    }

    fn carry_out_effects(&mut self, now: Instant) {
        while let Some(effect) = self.worker.poll_effect() {
            match effect {
                Effect::Session(id, effect) => self.carry_out_on_session(now, id, effect),
                Effect::Stream { context, action } => {
                    let Self { worker, streams, shared, .. } = self;
                    if let Some(stream) = streams.get_mut(&context) {
                        // A request that goes on, or is answered, gives its body away.
                        let before = stream.body_bytes();
                        stream.act(now, worker, action);
                        shared.account(before, stream.body_bytes());
                    }
                }
                Effect::LogError(text) => tracing::error!("endpoint picker: {text}"),
            }
        }
    }

    fn carry_out_on_session(&mut self, now: Instant, id: SessionId, effect: SessionEffect) {
        match effect {
            SessionEffect::OpenStream { companion } => {
                let is_elsewhere = self.sessions.is_elsewhere(companion.as_deref());
                if is_elsewhere && !self.needs_leader() {
                    return self.worker.handle_open_failed(now, id);
                }
                self.is_elsewhere = is_elsewhere;
                if self.sessions.open(id, companion.filter(|_| is_elsewhere)) {
                    self.worker.handle_opened(now, id);
                } else {
                    self.worker.handle_open_failed(now, id);
                }
            }
            SessionEffect::ResetStream => self.sessions.close(id),
            SessionEffect::Send(frame) => {
                if !self.sessions.send(id, frame) {
                    self.sessions.close(id);
                    self.worker.handle_closed(now, id);
                }
            }
            SessionEffect::LogWarning(text) => tracing::warn!("endpoint picker: {text}"),
            SessionEffect::LogInfo(text) => tracing::debug!("endpoint picker: {text}"),
        }
    }
}

/// Counts a worker of which something is true from now on, or no longer.
fn count(was: &mut bool, is: bool, workers: &watch::Sender<usize>) {
    if core::mem::replace(was, is) != is {
        workers
            .send_modify(|count| *count = if is { count.saturating_add(1) } else { count.saturating_sub(1) });
    }
}
