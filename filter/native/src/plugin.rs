//! One configuration of the filter: its sessions with the companion, which the main thread carries, and its ticks.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;

use hashbrown::HashMap;
use penstock_filter_core::config::Config;
use penstock_filter_core::effect::SessionId;
use penstock_filter_core::time::Instant;
use penstock_filter_core::worker::Worker;
use penstock_wire::names::COMPANION_HEADER;
use penstock_wire::{METHOD, SERVICE};

use crate::abi::Envoy;
use crate::desk::{self, ConfigId, Desk, Seat, SessionAction};
use crate::host::{self, MainWaker, Waker, grpc};
use crate::panics::{self, guard};
use crate::shared_data::ProcessData;

/// The event of a tick on the main thread; all others are the numbers of desks with actions on sessions.
const TICK: u64 = u64::MAX;
/// The next tick is brought forward by at least so much.
const EARLIER_MIN: Duration = Duration::from_millis(5);
/// The pause until the next tick is at least so long, and at most so long.
const TICK_MIN: Duration = Duration::from_millis(5);
const TICK_MAX: Duration = Duration::from_secs(1);

/// A configuration.
pub(crate) struct Plugin {
    pub(crate) id: ConfigId,
    /// Envoy's pointer, for the main thread.
    envoy: MainThread<Envoy>,
    /// The companion's cluster.
    companion: String,
    /// The counter of panics; `None`: Envoy makes no counters any more.
    pub(crate) panics: Option<usize>,
    main: Arc<MainWaker>,
    main_thread: ThreadId,
    desks: Vec<Arc<Desk>>,
    /// The sessions' gRPC streams, by Envoy's number.
    streams: Mutex<HashMap<u64, Stream>>,
    /// While a stream is being opened: those that have ended meanwhile. Envoy ends one that it can't connect before it says its number.
    ended: Mutex<Option<Vec<u64>>>,
    ticker: Arc<Ticker>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A value that only Envoy's main thread uses.
struct MainThread<T>(T);

// SAFETY: the hooks of the main thread alone read it.
unsafe impl<T> Send for MainThread<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for MainThread<T> {}

/// A gRPC stream to a companion.
struct Stream {
    desk: usize,
    session: SessionId,
    /// The beginning of a message.
    received: Vec<u8>,
}

/// When the next tick is due.
#[derive(Default)]
struct Ticker {
    due: Mutex<Due>,
    changed: Condvar,
}

#[derive(Default)]
struct Due {
    /// `None`: the main thread ticks, and says when it is to tick again.
    moment: Option<Instant>,
    /// A worker has asked for a tick at this moment while the main thread ticked.
    asked: Option<Instant>,
    has_ended: bool,
}

impl Plugin {
    /// Reads a configuration, on the main thread.
    pub(crate) fn new(envoy: Envoy, json: &[u8], workers: usize) -> Result<Arc<Self>, String> {
        static IDS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let config = Config::parse(json).map_err(|error| format!("plugin configuration: {error}"))?;
        let id = IDS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let desks: Vec<Arc<Desk>> = (0..workers).map(desk::desk).collect();
        let main = Arc::new(MainWaker::of(envoy));
        let new_worker = |_| {
            let random = host::random_bits().ok_or("the system provides no random bits")?;
            Ok(Worker::new(host::now(), &random, &config, Box::new(ProcessData)))
        };
        let new_workers = (0..workers).map(new_worker).collect::<Result<Vec<_>, String>>()?;
        let plugin = Arc::new(Self {
            id,
            envoy: MainThread(envoy),
            companion: config.companion,
            panics: host::new_counter(envoy, panics::COUNTER),
            main,
            main_thread: std::thread::current().id(),
            desks,
            streams: Mutex::default(),
            ended: Mutex::default(),
            ticker: Arc::default(),
            thread: Mutex::default(),
        });
        plugin.start_ticker()?;
        // Nothing can fail any more: a configuration that Envoy doesn't get leaves no seat.
        for ((number, desk), worker) in (0..).zip(&plugin.desks).zip(new_workers) {
            desk.seat(id, number, worker, Arc::clone(&plugin.main));
        }
        Ok(plugin)
    }

    /// Starts the thread that wakes the main thread for ticks: Envoy gives a filter's configuration no timer.
    fn start_ticker(self: &Arc<Self>) -> Result<(), String> {
        // The first tick opens the sessions.
        self.ticker.set(host::now());
        let ticker = Arc::clone(&self.ticker);
        let plugin = Arc::downgrade(self);
        let ticks = move || {
            while ticker.wait() {
                if let Some(plugin) = plugin.upgrade() {
                    plugin.main.wake(TICK);
                }
            }
        };
        let thread = std::thread::Builder::new().name("penstock-ticks".to_owned()).spawn(ticks);
        let thread = thread.map_err(|error| format!("no thread for ticks: {error}"))?;
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(())
    }

    pub(crate) fn desk(&self, worker: usize) -> Option<&Arc<Desk>> {
        self.desks.get(worker)
    }

    /// Calls `f` with the seat at a desk on the desk's own thread. The main thread carries out what the sessions are to do.
    pub(crate) fn with_seat<T>(&self, worker: usize, f: impl FnOnce(&mut Seat) -> T) -> Option<T> {
        let desk = self.desk(worker)?;
        let (value, has_actions) = desk.with(self.id, f)?;
        if has_actions {
            // Not in this hook, which may be one of the stream that waits.
            desk.wake_worker();
        }
        Some(value)
    }

    /// Brings the next tick forward, if it would come too late for the worker.
    pub(crate) fn advance_tick(&self, now: Instant, worker: usize) {
        let period =
            self.desk(worker).and_then(|desk| desk.on_main(self.id, |seat| seat.worker.tick_period(now)));
        if let Some(period) = period {
            self.ticker.advance(now.after(period.max(TICK_MIN)));
        }
    }

    /// An event of [`MainWaker`] arrives at the main thread.
    pub(crate) fn handle_event(&self, event: u64) {
        if event == TICK {
            self.tick();
        } else if let Ok(worker) = usize::try_from(event) {
            self.carry_out(worker);
        }
    }

    fn tick(&self) {
        let now = host::now();
        let mut period = TICK_MAX;
        for worker in 0..self.desks.len() {
            // A defect at one desk costs one tick of that desk.
            let own = guard(|| {
                self.handle(worker, |seat| {
                    panics::asked::main("tick");
                    seat.worker.handle_tick(now);
                });
                self.desk(worker)?.on_main(self.id, |seat| seat.worker.tick_period(host::now()))
            });
            period = own.flatten().map_or(period, |own| own.min(period));
        }
        self.ticker.set(host::now().after(period.max(TICK_MIN)));
    }

    /// Calls `f` with the seat at a desk on the main thread, then carries out what follows from it.
    fn handle(&self, worker: usize, f: impl FnOnce(&mut Seat)) {
        if let Some(desk) = self.desk(worker) {
            desk.on_main(self.id, f);
            self.carry_out(worker);
        }
    }

    /// Carries out what the sessions of a desk are to do, and wakes the desk's thread for its streams.
    fn carry_out(&self, worker: usize) {
        let Some(desk) = self.desk(worker) else {
            return;
        };
        while let Some((session, action)) = desk.next_session_action(self.id) {
            self.apply(worker, session, action);
        }
        desk.wake_worker();
    }

    fn apply(&self, worker: usize, session: SessionId, action: SessionAction) {
        match action {
            SessionAction::Open { companion } => self.open_stream(worker, session, companion.as_deref()),
            SessionAction::Reset => {
                if let Some(stream) = self.forget(|stream| stream.desk == worker && stream.session == session)
                {
                    grpc::reset(self.envoy.0, stream);
                }
            }
            SessionAction::Send(messages) => {
                if let Some(stream) = self.find(|stream| stream.desk == worker && stream.session == session) {
                    grpc::send(self.envoy.0, stream, &messages);
                }
            }
        }
    }

    /// Opens a session's stream to `companion`, or to any of the cluster.
    fn open_stream(&self, worker: usize, session: SessionId, companion: Option<&str>) {
        let path = format!("/{SERVICE}/{METHOD}");
        let companion = companion.map(|address| (COMPANION_HEADER, address));
        *self.lock_ended() = Some(Vec::new());
        let opened = grpc::open(self.envoy.0, &self.companion, &path, companion);
        let ended = self.lock_ended().take().unwrap_or_default();
        let opened = opened.filter(|number| !ended.contains(number));
        let now = host::now();
        let Some(desk) = self.desk(worker) else {
            return;
        };
        if let Some(number) = opened {
            self.lock_streams().insert(number, Stream { desk: worker, session, received: Vec::new() });
            desk.on_main(self.id, |seat| seat.worker.handle_opened(now, session));
        } else {
            desk.on_main(self.id, |seat| seat.worker.handle_open_failed(now, session));
        }
    }

    fn lock_streams(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Stream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_ended(&self) -> std::sync::MutexGuard<'_, Option<Vec<u64>>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, is_it: impl Fn(&Stream) -> bool) -> Option<u64> {
        self.lock_streams().iter().find(|(_, stream)| is_it(stream)).map(|(number, _)| *number)
    }

    fn forget(&self, is_it: impl Fn(&Stream) -> bool) -> Option<u64> {
        let number = self.find(is_it)?;
        self.lock_streams().remove(&number);
        Some(number)
    }

    /// The headers of a companion's response have arrived.
    pub(crate) fn handle_stream_headers(&self, number: u64, status: &[u8]) {
        if status != b"200" {
            let is_open = self.lock_streams().contains_key(&number);
            self.handle_stream_end(number);
            if is_open {
                grpc::reset(self.envoy.0, number);
            }
        }
    }

    /// Bytes of a companion have arrived.
    pub(crate) fn handle_stream_data<'a>(&self, number: u64, chunks: impl Iterator<Item = &'a [u8]>) {
        let Some((desk, session, messages)) = self.messages(number, chunks) else {
            return;
        };
        for message in messages {
            let now = host::now();
            self.handle(desk, |seat| {
                panics::asked::main("message");
                seat.worker.handle_message(now, session, &message);
            });
        }
    }

    /// Adds bytes to a stream, and takes the messages that are whole.
    fn messages<'a>(
        &self,
        number: u64,
        chunks: impl Iterator<Item = &'a [u8]>,
    ) -> Option<(usize, SessionId, Vec<Vec<u8>>)> {
        let mut streams = self.lock_streams();
        let stream = streams.get_mut(&number)?;
        chunks.for_each(|chunk| stream.received.extend_from_slice(chunk));
        let mut messages = Vec::new();
        let mut rest = stream.received.as_slice();
        while let Some(([_, length @ ..], after)) = rest.split_first_chunk::<{ grpc::PREFIX }>() {
            let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
            let Some((message, after)) = after.split_at_checked(length) else {
                break;
            };
            messages.push(message.to_vec());
            rest = after;
        }
        stream.received = rest.to_vec();
        Some((stream.desk, stream.session, messages))
    }

    /// A stream to a companion has ended.
    pub(crate) fn handle_stream_end(&self, number: u64) {
        let ended = self.lock_streams().remove(&number);
        if let Some(Stream { desk, session, .. }) = ended {
            let now = host::now();
            self.handle(desk, |seat| seat.worker.handle_closed(now, session));
        } else if let Some(ended) = &mut *self.lock_ended() {
            ended.push(number);
        }
    }

    /// Envoy destroys the configuration.
    pub(crate) fn end(&self) {
        self.ticker.end();
        // The last stream of an old configuration may destroy it on a worker's thread. Envoy resets the sessions' streams then.
        if std::thread::current().id() == self.main_thread {
            for worker in 0..self.desks.len() {
                guard(|| self.handle(worker, |seat| seat.worker.handle_shutdown()));
            }
            let numbers: Vec<u64> = self.lock_streams().drain().map(|(number, _)| number).collect();
            for number in numbers {
                grpc::close(self.envoy.0, number);
            }
        }
        for desk in &self.desks {
            desk.unseat(self.id).into_iter().for_each(Waker::delete);
        }
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // It has ended, or ends at once.
            let _: Result<(), _> = thread.join();
        }
    }
}

impl Ticker {
    fn change(&self, f: impl FnOnce(&mut Due)) {
        f(&mut self.due.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_one();
    }

    fn set(&self, moment: Instant) {
        self.change(|due| due.moment = Some(due.asked.take().map_or(moment, |asked| asked.min(moment))));
    }

    /// Brings the tick forward, if it would come too late.
    fn advance(&self, moment: Instant) {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        match due.moment {
            Some(present) if present.since(moment) > EARLIER_MIN => due.moment = Some(moment),
            Some(_) => return,
            None => {
                due.asked = Some(due.asked.map_or(moment, |asked| asked.min(moment)));
                return;
            }
        }
        drop(due);
        self.changed.notify_one();
    }

    fn end(&self) {
        self.change(|due| due.has_ended = true);
    }

    /// Waits for the next tick. Returns `false` at the end.
    fn wait(&self) -> bool {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if due.has_ended {
                return false;
            }
            let now = host::now();
            due = match due.moment {
                Some(moment) if moment <= now => {
                    due.moment = None;
                    return true;
                }
                Some(moment) => {
                    let left = moment.since(now);
                    self.changed.wait_timeout(due, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(due).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}
