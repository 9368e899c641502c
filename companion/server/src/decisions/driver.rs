//! The task that owns the controls. It passes events to them, carries out their outputs, and sleeps until the next
//! deadline.
//!
//! It doesn't interpret events. All other code sends messages to its inbox, which has a limit: a gRPC stream that floods
//! the inbox waits there, and flow control makes its peer wait as well.

mod budgets;
mod roles;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hashbrown::HashMap;
use penstock_control::{
    ConnId, Control, Controls, Door, Event, NoBudget, Output, PoolBudgets, PoolEvent, RequestStatus, Scope,
    Settings, Status,
};
use penstock_election::{Role, RoleChange, RoleStatus};
use penstock_engine::Instant;
use penstock_engine::input::{PastUsage, RunningUsage};
use penstock_engine::snapshot::FlowBudgetSnapshot;
use penstock_wire::CompanionFrame;
use prost::Message as _;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};

use crate::base::clock::Clock;
use crate::base::essential;
use crate::decisions::ended_requests::{EndedRequest, EndedRequests};
use crate::decisions::incoming_frames::IncomingFrames;
use crate::decisions::observe::Observer;
use crate::decisions::recent_stats::RecentStats;
use crate::decisions::reports::Reporters;
use crate::decisions::utc_watch::UtcWatch;
use penstock_stores::Recorders;

/// The name of the driver's task.
pub(crate) const NAME: &str = "decisions";
/// Messages that wait in the inbox.
const INBOX: usize = 8_192;
/// Messages that are taken at a time; the decisions about them share frames.
const BATCH: usize = 256;
/// Frames that wait for a slow peer. A stream with more is closed, and the filter resyncs on its next stream.
pub(crate) const FRAMES: usize = 4_096;

/// A message to the driver. Nearly all messages are frames, and a message is moved a dozen times: large contents are
/// boxed.
enum Message {
    Open(ConnId, mpsc::Sender<Bytes>, Door),
    Frame(ConnId, Bytes),
    Event(Box<Event>),
    Leadership(Box<(Scope, RoleChange)>, oneshot::Sender<()>),
    ConfigureObserver(usize, Recorders),
    Status(oneshot::Sender<Status>),
    Overview(oneshot::Sender<Overview>),
    Budgets(oneshot::Sender<Vec<PoolBudgets>>),
    ChangeBudget(Box<budgets::Change>, oneshot::Sender<Result<FlowBudgetSnapshot, NoBudget>>),
    Request(Box<str>, oneshot::Sender<RequestLookup>),
    Idle(oneshot::Sender<()>),
    ShutDown,
    #[cfg(feature = "injected-defect")]
    Defect,
}

/// The state of all pools and sessions at one moment, and the statistics of the last minutes.
#[derive(Clone, Debug)]
pub(crate) struct Overview {
    /// The present state.
    pub(crate) status: Status,
    /// The statistics of the last minutes.
    pub(crate) recent: RecentStats,
}

/// The role of this companion in each scope.
pub(crate) type ScopeRoles = BTreeMap<Scope, RoleStatus>;

/// Whether this companion decides for the gateway's pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leads {
    /// It leads, and may grant.
    Here,
    /// Its lease has lapsed, and nobody else is known to lead.
    Lapsed,
    /// Another companion leads, or none, or this one is taking over.
    Elsewhere,
}

impl From<&Control> for Leads {
    fn from(control: &Control) -> Self {
        match control.role().role {
            Role::Standby | Role::TakingOver => Self::Elsewhere,
            Role::Alone | Role::Leader if control.leads() => Self::Here,
            Role::Alone | Role::Leader => Self::Lapsed,
        }
    }
}

/// A driver that has been started.
#[derive(Debug)]
pub(crate) struct Started {
    /// Sends messages to the driver.
    pub(crate) handle: Handle,
    /// The driver's task, which ends when the last handle is dropped. A panic in a decision ends the process.
    pub(crate) task: tokio::task::JoinHandle<()>,
    /// The companion's roles.
    pub(crate) roles: watch::Receiver<ScopeRoles>,
    pub(crate) leads: watch::Receiver<Leads>,
}

/// The result of looking up a request.
#[derive(Clone, Debug)]
pub(crate) enum RequestLookup {
    /// The request waits or runs.
    Active(Box<RequestStatus>),
    /// The request ended a short time ago.
    Ended(Box<EndedRequest>),
    /// No request has this id, or it ended too long ago.
    Unknown,
}

/// Sends messages to the driver. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    inbox: mpsc::Sender<Message>,
    /// The number of streams that were opened.
    opened: Arc<AtomicU64>,
}

/// The driver has ended, because the companion is shutting down or has a defect.
#[derive(Debug, thiserror::Error)]
#[error("the companion is ending")]
pub struct Gone;

impl Handle {
    /// A stream was opened. Its outgoing frames go to `frames`, encoded; the driver closes the stream by dropping `frames`.
    ///
    /// # Errors
    /// When the driver has ended.
    pub(crate) async fn open(&self, frames: mpsc::Sender<Bytes>, door: Door) -> Result<ConnId, Gone> {
        let conn = ConnId(self.opened.fetch_add(1, Ordering::Relaxed));
        self.message(Message::Open(conn, frames, door)).await?;
        Ok(conn)
    }

    /// A frame arrived on a stream, encoded. Returns when there is room for it in the inbox.
    ///
    /// # Errors
    /// When the driver has ended.
    pub(crate) async fn frame(&self, conn: ConnId, frame: Bytes) -> Result<(), Gone> {
        match self.inbox.try_send(Message::Frame(conn, frame)) {
            Ok(()) => Ok(()),
            Err(TrySendError::Closed(_)) => Err(Gone),
            Err(TrySendError::Full(message)) => self.message(message).await,
        }
    }

    /// Passes an event to the controls.
    ///
    /// # Errors
    /// When the driver has ended.
    pub(crate) async fn send(&self, event: Event) -> Result<(), Gone> {
        self.message(Message::Event(Box::new(event))).await
    }

    /// Passes a decision of the election of a scope's leader to that scope's control. Returns when it is carried out.
    ///
    /// # Errors
    /// When the driver has ended.
    pub(crate) async fn change_leadership(&self, scope: Scope, change: RoleChange) -> Result<(), Gone> {
        self.query(|reply| Message::Leadership(Box::new((scope, change)), reply)).await
    }

    /// Adds usage of a pool's flows from before the start, or from other companions, and what other companions run.
    ///
    /// # Errors
    /// When the driver has ended.
    pub(crate) async fn add_usage(
        &self,
        pool: Arc<str>,
        past: Vec<PastUsage>,
        running: Vec<RunningUsage>,
    ) -> Result<(), Gone> {
        self.send(Event::Pool(pool, PoolEvent::Usage { settled: past, running })).await
    }

    /// Sets how many values of a label that clients choose are exported, and the recorders of learned models and usage.
    ///
    /// # Errors
    /// When the driver has ended.
    pub(crate) async fn configure_observer(
        &self,
        values_max: usize,
        recorders: Recorders,
    ) -> Result<(), Gone> {
        self.message(Message::ConfigureObserver(values_max, recorders)).await
    }

    /// The present state, for metrics: with at most so many model names as a label may have values.
    ///
    /// # Errors
    /// When the driver has ended.
    pub(crate) async fn status(&self) -> Result<Status, Gone> {
        self.query(Message::Status).await
    }

    /// The present state and the statistics of the last minutes.
    ///
    /// # Errors
    /// When the driver has ended.
    pub(crate) async fn overview(&self) -> Result<Overview, Gone> {
        self.query(Message::Overview).await
    }

    /// Looks up the request with this `x-request-id`.
    ///
    /// # Errors
    /// When the driver has ended.
    pub(crate) async fn request(&self, request_id: &str) -> Result<RequestLookup, Gone> {
        self.query(|reply| Message::Request(request_id.into(), reply)).await
    }

    /// Returns when no request waits or runs.
    ///
    /// # Errors
    /// When the driver has ended.
    pub(crate) async fn idle(&self) -> Result<(), Gone> {
        self.query(Message::Idle).await
    }

    /// Closes every stream after the frames that are queued on it, and opens no new one.
    ///
    /// # Errors
    /// When the driver has ended.
    pub(crate) async fn shut_down(&self) -> Result<(), Gone> {
        self.message(Message::ShutDown).await
    }

    /// Panics in the driver, as a defect in a decision would.
    ///
    /// # Errors
    /// When the driver has ended.
    #[cfg(feature = "injected-defect")]
    pub(crate) async fn inject_defect(&self) -> Result<(), Gone> {
        self.message(Message::Defect).await
    }

    async fn message(&self, message: Message) -> Result<(), Gone> {
        self.inbox.send(message).await.map_err(|_| Gone)
    }

    async fn query<T>(&self, message: impl FnOnce(oneshot::Sender<T>) -> Message) -> Result<T, Gone> {
        let (reply, answer) = oneshot::channel();
        self.message(message(reply)).await?;
        answer.await.map_err(|_| Gone)
    }
}

struct Driver {
    controls: Controls,
    clock: Clock,
    observer: Observer,
    ended: EndedRequests,
    recent: RecentStats,
    conns: HashMap<ConnId, mpsc::Sender<Bytes>>,
    incoming: IncomingFrames,
    /// Callers of [`Handle::idle`].
    idle_waiters: Vec<oneshot::Sender<()>>,
    shutting_down: bool,
    roles: watch::Sender<ScopeRoles>,
    leads: watch::Sender<Leads>,
    elections: Reporters,
    utc: UtcWatch,
}

/// Starts the driver. What the elections of leaders must know goes to `elections`.
#[must_use]
pub(crate) fn spawn(settings: Settings, clock: Clock, observer: Observer, elections: Reporters) -> Started {
    let (inbox, messages) = mpsc::channel(INBOX);
    let controls = Controls::new(settings, clock.now());
    let roles = controls.iter().map(|(scope, control)| (scope.clone(), control.role().clone()));
    let (roles, role_receiver) = watch::channel(roles.collect());
    let of_gateway = controls.control(&Scope::Gateway);
    let (leads, lead_receiver) = watch::channel(of_gateway.map_or(Leads::Elsewhere, Leads::from));
    let driver = Driver {
        controls,
        roles,
        leads,
        elections,
        clock,
        observer,
        ended: EndedRequests::default(),
        recent: RecentStats::default(),
        conns: HashMap::new(),
        incoming: IncomingFrames::default(),
        idle_waiters: Vec::new(),
        shutting_down: false,
        utc: UtcWatch::default(),
    };
    let handle = Handle { inbox, opened: Arc::default() };
    let task = essential::spawn(NAME, driver.run(messages));
    Started { handle, task, roles: role_receiver, leads: lead_receiver }
}

impl Driver {
    async fn run(mut self, mut messages: mpsc::Receiver<Message>) {
        let mut batch = Vec::with_capacity(BATCH);
        let mut timer = pin!(tokio::time::sleep(Duration::ZERO));
        // The deadline to which the timer is set. Most batches leave it unchanged.
        let mut timer_deadline = None;
        loop {
            let deadline =
                self.controls.poll_timeout().and_then(|instant| self.clock.runtime_instant(instant));
            if let Some(instant) = deadline
                && timer_deadline != deadline
            {
                timer.as_mut().reset(instant);
                timer_deadline = deadline;
            }
            tokio::select! {
                received = messages.recv_many(&mut batch, BATCH) => {
                    if received == 0 {
                        return;
                    }
                    let started = std::time::Instant::now();
                    let now = self.clock.now();
                    self.send_utc(now);
                    for message in batch.drain(..) {
                        self.handle(now, message);
                    }
                    self.observer.record_batch(started.elapsed(), received);
                }
                () = timer.as_mut(), if deadline.is_some() => {
                    let now = self.clock.now();
                    self.send_utc(now);
                    self.controls.handle_timeout(now);
                    timer_deadline = None;
                }
            }
            self.carry_out_outputs();
        }
    }

    /// Before anything is decided: UTC, if it isn't what the controls take it for.
    fn send_utc(&mut self, now: Instant) {
        if let Some(utc) = self.utc.changed(now) {
            self.controls.handle(now, Event::Utc(utc));
        }
    }

    /// Handles a message. The messages of a batch have the same time: each reading of the clock costs as much as a table lookup.
    fn handle(&mut self, now: Instant, message: Message) {
        match message {
            // Dropping `frames` closes the stream.
            Message::Open(..) if self.shutting_down => {}
            Message::Open(conn, frames, door) => {
                self.conns.insert(conn, frames);
                self.controls.handle(now, Event::Opened(conn, door));
            }
            Message::Frame(conn, frame) => self.receive(now, conn, &frame),
            Message::Event(event) => {
                if let Event::Closed(conn) = &*event {
                    self.conns.remove(conn);
                }
                self.controls.handle(now, *event);
            }
            Message::Leadership(change, done) => {
                let (scope, change) = *change;
                self.controls.change_leadership(now, &scope, change);
                // Fails when the caller no longer waits.
                let _ = done.send(());
            }
            Message::ConfigureObserver(values_max, recorders) => {
                self.observer.configure(values_max, recorders);
            }
            // A reply fails when the caller no longer waits.
            Message::Status(reply) => {
                let mut status = self.controls.status(now);
                self.observer.retain_labels(now, &status);
                self.observer.limit_models(&mut status);
                let _ = reply.send(status);
            }
            Message::Overview(reply) => {
                let _ = reply.send(self.overview());
            }
            Message::Budgets(reply) => {
                let _ = reply.send(self.controls.budgets(now));
            }
            Message::ChangeBudget(change, reply) => {
                let budgets::Change { pool, flow, change } = *change;
                let _ = reply.send(self.controls.change_budget(now, &pool, &flow, change));
            }
            Message::Request(request_id, reply) => {
                let _ = reply.send(self.look_up(&request_id));
            }
            Message::Idle(reply) => self.idle_waiters.push(reply),
            Message::ShutDown => {
                self.controls.handle(now, Event::HandOver);
                self.shutting_down = true;
            }
            #[cfg(feature = "injected-defect")]
            Message::Defect => panic!("injected defect"),
        }
    }

    fn receive(&mut self, now: Instant, conn: ConnId, frame: &[u8]) {
        match self.incoming.decode(frame) {
            Ok(frame) => self.controls.receive(now, conn, frame),
            Err(error) => {
                tracing::debug!(conn = conn.0, %error, "stream closed: a frame can't be decoded");
                self.conns.remove(&conn);
                self.controls.handle(now, Event::Closed(conn));
            }
        }
    }

    fn overview(&mut self) -> Overview {
        let status = self.controls.status(self.clock.now());
        let exists = |name: &str| status.pools.iter().any(|pool| &*pool.name == name);
        self.recent.retain_pools(exists);
        Overview { recent: self.recent.clone(), status }
    }

    fn look_up(&mut self, request_id: &str) -> RequestLookup {
        let now = self.clock.now();
        if let Some(request) = self.controls.request(now, request_id) {
            return RequestLookup::Active(Box::new(request));
        }
        match self.ended.find(now, request_id) {
            Some(request) => RequestLookup::Ended(Box::new(request.clone())),
            None => RequestLookup::Unknown,
        }
    }

    fn carry_out_outputs(&mut self) {
        let now = self.clock.now();
        while let Some((scope, output)) = self.controls.poll_output() {
            match output {
                Output::Send(conn, frame) => {
                    self.send(conn, &frame);
                    self.controls.recycle(&scope, *frame);
                }
                Output::Close(conn, why) => {
                    tracing::debug!(conn = conn.0, why, "stream closed");
                    self.conns.remove(&conn);
                }
                Output::Observe(observation) => {
                    self.ended.record(now, &observation);
                    self.recent.record(now, &observation);
                    self.observer.observe(now, observation);
                }
                Output::Election(report) => self.elections.of(&scope).report(report),
            }
        }
        self.report_leadership();
        if self.shutting_down {
            self.conns.clear();
        }
        if !self.idle_waiters.is_empty() && self.controls.is_idle() {
            for reply in self.idle_waiters.drain(..) {
                // Fails when the caller no longer waits.
                let _ = reply.send(());
            }
        }
    }

    fn send(&mut self, conn: ConnId, frame: &CompanionFrame) {
        let Some(frames) = self.conns.get(&conn) else {
            return;
        };
        if let Err(error) = frames.try_send(frame.encode_to_vec().into()) {
            let why = match error {
                TrySendError::Full(_) => "the filter does not read its frames",
                TrySendError::Closed(_) => "the filter has closed the stream",
            };
            tracing::warn!(conn = conn.0, why, "session closed");
            self.conns.remove(&conn);
            self.controls.handle(self.clock.now(), Event::Closed(conn));
        }
    }
}
