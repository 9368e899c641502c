//! The one task that owns the control: it feeds events in, carries outputs out, and sleeps until the next deadline.
//!
//! It doesn't know what an event means. Everything else talks to it by its inbox, which has a limit: a gRPC stream
//! that floods waits there, and so does its peer.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use penstock_control::{ConnId, Control, Event, Output, RequestStatus, Settings, Status};
use penstock_engine::input::PastUsage;
use penstock_wire::{CompanionFrame, FilterFrame};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use crate::clock::Clock;
use crate::history::{Ended, History};
use crate::observe::Observer;
use crate::recent::Recent;
use crate::store::Writers;

/// Messages in the inbox.
const INBOX: usize = 8_192;
/// Messages taken at a time; what is decided on them shares its frames.
const BATCH: usize = 256;
/// Frames that wait for a slow peer; past it the stream is closed and a resync mends what was lost.
pub const FRAMES: usize = 4_096;

/// What the driver is asked. Frames are nearly all of it, and a message is moved a dozen times: what is large is boxed.
enum Message {
    Open(ConnId, mpsc::Sender<CompanionFrame>),
    Frame(ConnId, Box<FilterFrame>),
    Event(Box<Event>),
    Observe(usize, Writers),
    Status(oneshot::Sender<Status>),
    Look(oneshot::Sender<Look>),
    Request(Box<str>, oneshot::Sender<Found>),
    Idle(oneshot::Sender<()>),
    End,
}

/// The whole at one moment, and what came before it.
#[derive(Clone, Debug)]
pub struct Look {
    /// As it is.
    pub status: Status,
    /// What happened in the last minutes.
    pub recent: Recent,
}

/// What is known of a request.
#[derive(Clone, Debug)]
pub enum Found {
    /// It hasn't ended.
    Lives(Box<RequestStatus>),
    /// It has, a short time ago.
    Ended(Box<Ended>),
    /// Nobody of that name, or long ago.
    Unknown,
}

/// Talks to the driver. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle(mpsc::Sender<Message>);

/// The driver has ended, as it does when the program ends.
#[derive(Debug, thiserror::Error)]
#[error("the companion is shutting down")]
pub struct Gone;

impl Handle {
    /// A stream was opened; its frames go to `frames`, whose end closes it.
    ///
    /// # Errors
    /// When the driver has ended.
    pub async fn open(&self, conn: ConnId, frames: mpsc::Sender<CompanionFrame>) -> Result<(), Gone> {
        self.0.send(Message::Open(conn, frames)).await.map_err(|_| Gone)
    }

    /// A frame came on a stream. Returns when there is room for it in the inbox.
    ///
    /// # Errors
    /// When the driver has ended.
    pub async fn frame(&self, conn: ConnId, frame: Box<FilterFrame>) -> Result<(), Gone> {
        match self.0.try_send(Message::Frame(conn, frame)) {
            Ok(()) => Ok(()),
            Err(TrySendError::Closed(_)) => Err(Gone),
            Err(TrySendError::Full(message)) => self.0.send(message).await.map_err(|_| Gone),
        }
    }

    /// Something else happened.
    ///
    /// # Errors
    /// When the driver has ended.
    pub async fn tell(&self, event: Event) -> Result<(), Gone> {
        let message = Message::Event(Box::new(event));
        self.0.send(message).await.map_err(|_| Gone)
    }

    /// Flows of this pool used this before, or elsewhere.
    ///
    /// # Errors
    /// When the driver has ended.
    pub async fn used(&self, pool: Arc<str>, past: Vec<PastUsage>) -> Result<(), Gone> {
        self.tell(Event::Used { pool, past }).await
    }

    /// From now on at most `values_max` values of a label that clients choose are shown, and what is learned is kept by
    /// `kept`.
    ///
    /// # Errors
    /// When the driver has ended.
    pub async fn observe_as(&self, values_max: usize, kept: Writers) -> Result<(), Gone> {
        let sent = self.0.send(Message::Observe(values_max, kept)).await;
        sent.map_err(|_| Gone)
    }

    /// A look at the whole.
    ///
    /// # Errors
    /// When the driver has ended.
    pub async fn status(&self) -> Result<Status, Gone> {
        let (reply, answer) = oneshot::channel();
        self.0.send(Message::Status(reply)).await.map_err(|_| Gone)?;
        answer.await.map_err(|_| Gone)
    }

    /// The same, with what happened in the last minutes.
    ///
    /// # Errors
    /// When the driver has ended.
    pub async fn look(&self) -> Result<Look, Gone> {
        let (reply, answer) = oneshot::channel();
        self.0.send(Message::Look(reply)).await.map_err(|_| Gone)?;
        answer.await.map_err(|_| Gone)
    }

    /// What is known of the request with this `x-request-id`.
    ///
    /// # Errors
    /// When the driver has ended.
    pub async fn request(&self, request_id: &str) -> Result<Found, Gone> {
        let (reply, answer) = oneshot::channel();
        let message = Message::Request(request_id.into(), reply);
        self.0.send(message).await.map_err(|_| Gone)?;
        answer.await.map_err(|_| Gone)
    }

    /// Returns when nothing waits and nothing runs.
    ///
    /// # Errors
    /// When the driver has ended.
    pub async fn idle(&self) -> Result<(), Gone> {
        let (reply, answer) = oneshot::channel();
        self.0.send(Message::Idle(reply)).await.map_err(|_| Gone)?;
        answer.await.map_err(|_| Gone)
    }

    /// The companion ends: every stream is closed behind what was said on it, and none is opened any more.
    ///
    /// # Errors
    /// When the driver has ended.
    pub async fn end(&self) -> Result<(), Gone> {
        self.0.send(Message::End).await.map_err(|_| Gone)
    }
}

struct Driver {
    control: Control,
    clock: Clock,
    observer: Observer,
    history: History,
    recent: Recent,
    conns: HashMap<ConnId, mpsc::Sender<CompanionFrame>>,
    idle: Vec<oneshot::Sender<()>>,
    ending: bool,
}

/// Starts the driver. It ends when the last handle is dropped.
#[must_use]
pub fn spawn(settings: Settings, clock: Clock, observer: Observer) -> (Handle, tokio::task::JoinHandle<()>) {
    let (inbox, messages) = mpsc::channel(INBOX);
    let driver = Driver {
        control: Control::new(settings, clock.now()),
        clock,
        observer,
        history: History::default(),
        recent: Recent::default(),
        conns: HashMap::new(),
        idle: Vec::new(),
        ending: false,
    };
    (Handle(inbox), tokio::spawn(driver.run(messages)))
}

impl Driver {
    async fn run(mut self, mut messages: mpsc::Receiver<Message>) {
        let mut batch = Vec::with_capacity(BATCH);
        let mut timer = pin!(tokio::time::sleep(Duration::ZERO));
        // What the timer is set to; mostly a batch changes nothing about that.
        let mut set = None;
        loop {
            let deadline = self.control.poll_timeout().and_then(|at| self.clock.at(at));
            if let Some(at) = deadline
                && set != deadline
            {
                timer.as_mut().reset(at);
                set = deadline;
            }
            tokio::select! {
                received = messages.recv_many(&mut batch, BATCH) => {
                    if received == 0 {
                        return;
                    }
                    let started = std::time::Instant::now();
                    for message in batch.drain(..) {
                        self.take(message);
                    }
                    self.observer.decided(started.elapsed(), received);
                }
                () = timer.as_mut(), if deadline.is_some() => {
                    self.control.handle_timeout(self.clock.now());
                    set = None;
                }
            }
            self.carry_out();
        }
    }

    fn take(&mut self, message: Message) {
        let now = self.clock.now();
        match message {
            // The end of `frames` closes it.
            Message::Open(_, _) if self.ending => {}
            Message::Open(conn, frames) => {
                self.conns.insert(conn, frames);
                self.control.handle(now, Event::Opened(conn));
            }
            Message::Frame(conn, frame) => self.control.handle(now, Event::Frame(conn, frame)),
            Message::Event(event) => {
                if let Event::Closed(conn) = &*event {
                    self.conns.remove(conn);
                }
                self.control.handle(now, *event);
            }
            Message::Observe(values_max, kept) => self.observer.hold_to(values_max, kept),
            // Nobody listens any more when these fail: the asker has gone.
            Message::Status(reply) => {
                let status = self.control.status(now);
                self.observer.tidy(now, &status);
                let _ = reply.send(status);
            }
            Message::Look(reply) => {
                let _ = reply.send(self.look());
            }
            Message::Request(request_id, reply) => {
                let _ = reply.send(self.request(&request_id));
            }
            Message::Idle(reply) => self.idle.push(reply),
            Message::End => {
                self.control.handle(now, Event::HandOver);
                self.ending = true;
            }
        }
    }

    fn look(&mut self) -> Look {
        let status = self.control.status(self.clock.now());
        let is_there = |name: &str| status.pools.iter().any(|pool| &*pool.name == name);
        self.recent.keep(is_there);
        Look {
            recent: self.recent.clone(),
            status,
        }
    }

    fn request(&mut self, request_id: &str) -> Found {
        let now = self.clock.now();
        if let Some(lives) = self.control.request(now, request_id) {
            return Found::Lives(Box::new(lives));
        }
        let ended = self.history.find(now, request_id).cloned();
        ended.map_or(Found::Unknown, |it| Found::Ended(Box::new(it)))
    }

    fn carry_out(&mut self) {
        let now = self.clock.now();
        while let Some(output) = self.control.poll_output() {
            match output {
                Output::Send(conn, frame) => self.send(conn, *frame),
                Output::Close(conn, why) => {
                    tracing::debug!(conn = conn.0, why, "stream closed");
                    self.conns.remove(&conn);
                }
                Output::Observe(observation) => {
                    self.history.note(now, &observation);
                    self.recent.note(now, &observation);
                    self.observer.observe(now, observation);
                }
            }
        }
        if self.ending {
            self.conns.clear();
        }
        if !self.idle.is_empty() && self.control.is_idle() {
            for reply in self.idle.drain(..) {
                // As above.
                let _ = reply.send(());
            }
        }
    }

    fn send(&mut self, conn: ConnId, frame: CompanionFrame) {
        let Some(frames) = self.conns.get(&conn) else {
            return;
        };
        if let Err(error) = frames.try_send(frame) {
            let why = match error {
                TrySendError::Full(_) => "its peer doesn't read",
                TrySendError::Closed(_) => "its peer has gone",
            };
            tracing::warn!(conn = conn.0, why, "session closed");
            self.conns.remove(&conn);
            self.control.handle(self.clock.now(), Event::Closed(conn));
        }
    }
}
