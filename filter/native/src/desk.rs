//! What one Envoy worker thread works with: the filter core of each configuration, and the streams that wait.
//!
//! The worker thread works at its desk with the lock held, and so does the main thread, which carries the companion's messages and the
//! ticks. Each needs the lock for one event. Neither calls Envoy's filter chain with it: an action on a stream, which may call back into the
//! module, is taken off the desk first.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use penstock_filter_core::effect::{Effect, SessionId, StreamAction};
use penstock_filter_core::failed_attempts::FailedAttempts;
use penstock_filter_core::session::SessionEffect;
use penstock_filter_core::worker::Worker;

use crate::abi::Level;
use crate::host::{self, Filter, MainWaker, Waker, grpc};
use crate::panics;

/// The number of a configuration.
pub(crate) type ConfigId = u64;

/// An action on the gRPC stream of a session.
pub(crate) enum SessionAction {
    Open {
        companion: Option<String>,
    },
    Reset,
    /// Messages as gRPC writes them.
    Send(Vec<u8>),
}

/// A stream that the filter has paused at some time.
pub(crate) struct Waiting {
    pub(crate) filter: Filter,
    /// The worker's number of the request.
    pub(crate) sequence: u64,
    pub(crate) waker: Waker,
}

/// One configuration at a desk.
pub(crate) struct Seat {
    pub(crate) worker: Worker,
    /// The streams that may be acted upon, by the number that the worker knows them by.
    pub(crate) waiting: HashMap<u32, Waiting>,
    next_context: u32,
    /// Actions on streams, in the order of the worker's decisions.
    actions: VecDeque<(u32, StreamAction)>,
    /// Actions on sessions, for the main thread. What is sent before it comes is one piece, and costs Envoy one call.
    sessions: VecDeque<(SessionId, SessionAction)>,
    main: Arc<MainWaker>,
    /// The main thread has been woken, and hasn't come yet.
    is_main_woken: bool,
    /// The number of the desk's worker thread.
    number: u64,
}

/// The desk's content.
#[derive(Default)]
pub(crate) struct Content {
    seats: HashMap<ConfigId, Seat>,
    /// Of all configurations: an attempt that the gateway's filter started may end at the requeue listener's.
    failed_attempts: FailedAttempts,
}

// SAFETY: the workers and `failed_attempts` share memory without synchronization among each other, but with nothing outside of the desk,
// and every function that uses them holds the desk's lock.
unsafe impl Send for Content {}

#[derive(Default)]
pub(crate) struct Desk(Mutex<Content>);

impl Desk {
    fn lock(&self) -> MutexGuard<'_, Content> {
        self.0.lock().unwrap_or_else(|poisoned| {
            // A panic has left an event unfinished. Should this panic too, the next event tries again.
            let mut content = poisoned.into_inner();
            for seat in content.seats.values_mut() {
                let Seat { worker, waiting, .. } = seat;
                worker.recover(host::now(), |context| waiting.contains_key(&context));
            }
            self.0.clear_poison();
            content
        })
    }

    /// Gives a configuration a seat at the desk with this number.
    pub(crate) fn seat(&self, config: ConfigId, number: u64, worker: Worker, main: Arc<MainWaker>) {
        let mut content = self.lock();
        let worker = worker.sharing(content.failed_attempts.clone());
        content.seats.insert(
            config,
            Seat {
                worker,
                waiting: HashMap::new(),
                next_context: 0,
                actions: VecDeque::new(),
                sessions: VecDeque::new(),
                main,
                is_main_woken: false,
                number,
            },
        );
    }

    /// Takes a configuration's seat away. Its streams' wakers are to be deleted.
    pub(crate) fn unseat(&self, config: ConfigId) -> Vec<Waker> {
        let mut content = self.lock();
        // The worker, which shares memory with the others of the desk, ends under the lock.
        let seat = content.seats.remove(&config);
        seat.into_iter().flat_map(|seat| seat.waiting.into_values()).map(|waiting| waiting.waker).collect()
    }

    /// Calls `f` with a seat on the worker's thread, and has the main thread carry out what the sessions are to do. Returns also whether there
    /// are actions on streams. `None`: the configuration has no seat any more.
    pub(crate) fn with<T>(&self, config: ConfigId, f: impl FnOnce(&mut Seat) -> T) -> Option<(T, bool)> {
        self.at_seat(config, |seat| {
            let value = f(seat);
            panics::asked::inside();
            seat.sort_effects();
            if !seat.sessions.is_empty() && !seat.is_main_woken {
                seat.is_main_woken = true;
                seat.main.wake(seat.number);
            }
            (value, !seat.actions.is_empty())
        })
    }

    /// Calls `f` with a seat on the main thread.
    pub(crate) fn on_main<T>(&self, config: ConfigId, f: impl FnOnce(&mut Seat) -> T) -> Option<T> {
        self.at_seat(config, |seat| {
            let value = f(seat);
            seat.sort_effects();
            value
        })
    }

    fn at_seat<T>(&self, config: ConfigId, f: impl FnOnce(&mut Seat) -> T) -> Option<T> {
        self.lock().seats.get_mut(&config).map(f)
    }

    /// A stream is still there.
    pub(crate) fn has(&self, config: ConfigId, filter: Filter) -> bool {
        let has = |seat: &mut Seat| seat.waiting.values().any(|waiting| waiting.filter == filter);
        self.at_seat(config, has).unwrap_or(false)
    }

    /// The next action on a stream of any configuration, to be carried out on the worker's thread.
    pub(crate) fn next_action(&self) -> Option<(ConfigId, (Filter, u64), StreamAction)> {
        let mut content = self.lock();
        content.seats.iter_mut().find_map(|(config, seat)| {
            loop {
                let (context, action) = seat.actions.pop_front()?;
                // A stream that no longer exists needs no action.
                if let Some(waiting) = seat.waiting.get(&context) {
                    return Some((*config, (waiting.filter, waiting.sequence), action));
                }
            }
        })
    }

    /// The next action on a session of a configuration, to be carried out on the main thread.
    pub(crate) fn next_session_action(&self, config: ConfigId) -> Option<(SessionId, SessionAction)> {
        self.at_seat(config, |seat| {
            seat.is_main_woken = false;
            seat.sessions.pop_front()
        })?
    }

    /// Has the worker's thread carry out the actions on streams.
    pub(crate) fn wake_worker(&self) {
        let content = self.lock();
        for seat in content.seats.values() {
            // The stream's hook, or the one for its end, carries out all that there is.
            let waiting = seat.actions.iter().find_map(|(context, _)| seat.waiting.get(context));
            if let Some(waiting) = waiting {
                waiting.waker.wake();
                return;
            }
        }
    }
}

impl Seat {
    /// A number for a new stream.
    pub(crate) const fn new_context(&mut self) -> u32 {
        self.next_context = self.next_context.wrapping_add(1);
        self.next_context
    }

    fn add_session_effect(&mut self, id: SessionId, effect: SessionEffect) {
        let action = match effect {
            SessionEffect::Send(message) => {
                if let Some((last, SessionAction::Send(messages))) = self.sessions.back_mut()
                    && *last == id
                {
                    return grpc::append(messages, &message);
                }
                let mut messages = Vec::with_capacity(message.len().saturating_add(grpc::PREFIX));
                grpc::append(&mut messages, &message);
                SessionAction::Send(messages)
            }
            SessionEffect::OpenStream { companion } => SessionAction::Open { companion },
            SessionEffect::ResetStream => SessionAction::Reset,
            SessionEffect::LogWarning(text) => return host::log(Level::Warn, &text),
            SessionEffect::LogInfo(text) => return host::log(Level::Info, &text),
        };
        self.sessions.push_back((id, action));
    }

    /// After any call of the worker.
    fn sort_effects(&mut self) {
        while let Some(effect) = self.worker.poll_effect() {
            match effect {
                Effect::Session(id, effect) => self.add_session_effect(id, effect),
                Effect::Stream { context, action } => self.actions.push_back((context, action)),
                Effect::LogError(text) => host::log(Level::Error, &text),
            }
        }
    }
}

/// The desks of this Envoy's worker threads, by the thread's number.
pub(crate) fn desk(worker: usize) -> Arc<Desk> {
    static DESKS: Mutex<Vec<Arc<Desk>>> = Mutex::new(Vec::new());
    let mut desks = DESKS.lock().unwrap_or_else(PoisonError::into_inner);
    while desks.len() <= worker {
        desks.push(Arc::default());
    }
    desks.get(worker).map(Arc::clone).unwrap_or_default()
}
