//! Routes events between sessions and pools: one event comes in, and the outputs that follow from it can be taken.
//!
//! A control owns no request. It knows the pool of each request, and the session to which each effect goes. Requests and
//! decisions are the pools'.

mod admission;
mod announce;
mod audit;
mod budgets;
mod credits;
mod effects;
mod frames;
mod hello;
mod leadership;
mod reload;
mod resync;
mod session_loss;
mod status;

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use penstock_engine::Instant;
use penstock_wire as wire;

use crate::aliases::Aliases;
use crate::envoys::Envoys;
use crate::event::{Event, Output};
use crate::host_clocks::HostClocks;
use crate::ids::{ConnId, Door, Epoch, PoolId, RequestKey, Route};
use crate::labels::Labels;
use crate::leadership::Leadership;
use crate::limits::{STREAMS_MAX, SUSPENDED_MIN};
use crate::observation::{Observation, RequestNews, SessionNews};
use crate::pool::PoolInput;
use crate::pools::Pools;
use crate::request_index::RequestIndex;
use crate::root_context::RootContext;
use crate::session::Session;
use crate::settings::Settings;
use crate::spent_frames::SpentFrames;
use crate::timers::{Timer, Timers};

/// The sessions and pools of one companion.
///
/// One task owns a control and runs this loop:
///
/// 1. [`Self::receive`] for a filter's frame, or [`Self::handle`] for any other event, or [`Self::handle_timeout`] when
///    [`Self::poll_timeout`] is reached. Several events of one moment may be handled before their outputs are taken: the commands for a
///    stream then share a frame.
/// 2. [`Self::poll_output`] until it returns `None`. Frames come after observations and closures of streams. An output that was taken is
///    gone: the caller sends a frame, or closes the stream that can't take it.
/// 3. [`Self::recycle`] gives a sent frame's memory back; this only saves allocations.
/// 4. [`Self::poll_timeout`] again, since every event can change it.
///
/// The methods by purpose:
///
/// - Queries, which change nothing: [`Self::status`], [`Self::request`] and [`Self::budgets`] for people; [`Self::is_idle`],
///   [`Self::role`] and [`Self::leads`] for the service.
/// - The election: the service hands every change of role in as [`Event::Leadership`], and stores what [`Self::take_known_envoys`] returns
///   in the lease's record, so that a successor knows which Envoys to wait for.
/// - Tests: [`Self::audit`] recomputes every index; [`Self::trace_costs`] and [`Self::take_cost_events`] show what budgets count.
///
/// What always holds:
///
/// - A grant goes out only while the companion may grant. The lease is checked before every event, not by a timer: a process that was
///   suspended past its lease must not grant by the first event that it reads afterwards.
/// - Nothing is granted before the filters have listed what runs, or the wait for them has ended: until then, stock would count too little.
/// - Every frame of a filter may come twice, late, or about a request that has ended, and changes nothing then.
/// - After [`Event::HandOver`] the control ignores everything and has no timeout: the requests belong to the companion that took over, and an
///   observation here would count them twice.
#[derive(Debug)]
pub struct Control {
    settings: Settings,
    pools: Pools,
    sessions: HashMap<ConnId, Session>,
    contexts: HashMap<Epoch, RootContext>,
    aliases: Aliases,
    request_index: RequestIndex,
    envoys: Envoys,
    host_clocks: HostClocks,
    timers: Timers,
    /// The number of the last request.
    last_request: u64,
    /// Requests that haven't ended.
    open_requests: usize,
    /// The time of the last event.
    last_event_at: Instant,
    /// When this process was last found to have been suspended.
    woken_at: Instant,
    /// The pool's name in the labels of a request that no pool serves.
    no_pool: Arc<str>,
    outputs: VecDeque<Output>,
    /// Streams that have a frame to send.
    ready_to_send: VecDeque<ConnId>,
    spent_frames: SpentFrames,
    /// Dispatch has begun.
    is_started: bool,
    /// All expected sessions were open at the same time once.
    is_gathered: bool,
    is_draining: bool,
    /// `None`: no server has listed its models yet.
    model_list: Option<Arc<wire::ModelList>>,
    /// The last UTC, and when it was.
    utc: Option<(Instant, Duration)>,
    /// Another companion has taken over, and this one ends.
    is_handed_over: bool,
    leadership: Leadership,
    /// Nothing is observed, because the requests concerned go on at another companion.
    is_silent: bool,
}

impl Control {
    /// A control without sessions. Dispatch begins when the expected sessions are open, or after `startup_wait`; of several companions, the
    /// leader's.
    #[must_use]
    pub fn new(settings: Settings, now: Instant) -> Self {
        let mut timers = Timers::default();
        if !settings.is_replicated {
            timers
                .set(now.after(settings.opens_within.saturating_add(settings.startup_wait)), Timer::Startup);
        }
        let mut control = Self {
            pools: Pools::new(),
            sessions: HashMap::new(),
            contexts: HashMap::new(),
            aliases: Aliases::default(),
            request_index: RequestIndex::default(),
            envoys: Envoys::default(),
            host_clocks: HostClocks::default(),
            timers,
            last_request: 0,
            open_requests: 0,
            last_event_at: now,
            woken_at: now,
            leadership: Leadership::new(settings.is_replicated, settings.term),
            is_silent: false,
            settings,
            no_pool: "none".into(),
            outputs: VecDeque::new(),
            ready_to_send: VecDeque::new(),
            spent_frames: SpentFrames::default(),
            is_started: false,
            is_gathered: false,
            is_draining: false,
            model_list: None,
            utc: None,
            is_handed_over: false,
        };
        control.configure_pools(now);
        control.finish_event();
        control
    }

    fn set_utc(&mut self, now: Instant, utc: Duration) {
        self.utc = Some((now, utc));
        for pool in self.pools.ids() {
            self.drive_pool(now, pool, PoolInput::Utc(utc));
        }
    }

    fn set_draining(&mut self, now: Instant, drains: bool) {
        self.is_draining = drains;
        for pool in self.pools.ids() {
            self.drive_pool(now, pool, PoolInput::Drain(drains));
        }
    }

    /// Handles a frame of a stream as [`Event::Frame`]. The caller keeps the frame and may use its memory again.
    pub fn receive(&mut self, now: Instant, conn: ConnId, frame: &mut wire::FilterFrame) {
        if self.is_handed_over {
            return;
        }
        self.check_lease(now);
        self.notice_suspend(now);
        self.receive_frame(now, conn, frame);
        self.finish_event();
    }

    /// Handles one event.
    pub fn handle(&mut self, now: Instant, event: Event) {
        if self.is_handed_over {
            // The filters' messages are for the other companion.
            if let Event::Opened(conn, _) = event {
                self.outputs.push_back(Output::Close(conn, "this companion ends"));
            }
            return;
        }
        self.check_lease(now);
        self.notice_suspend(now);
        match event {
            Event::Opened(conn, door) => self.open(now, conn, door),
            Event::Frame(conn, mut frame) => self.receive_frame(now, conn, &mut frame),
            Event::Closed(conn) => self.disconnect(now, conn, "the stream ended"),
            Event::Leadership(change) => self.change_leadership(now, change),
            Event::HandOver => self.hand_over(),
            Event::Settings(settings) => self.reload(now, *settings),
            Event::Utc(utc) => self.set_utc(now, utc),
            Event::Drain(drains) => self.set_draining(now, drains),
            Event::Serving if self.settings.is_replicated => {}
            Event::Serving => self.timers.set(now.after(self.settings.startup_wait), Timer::Startup),
            Event::ModelList(list) => self.announce_models(list),
            Event::Pool(pool, event) => self.drive_named_pool(now, &pool, PoolInput::Event(event)),
        }
        self.finish_event();
    }

    /// When [`Control::handle_timeout`] is due; `None` if time alone changes nothing.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.is_handed_over {
            return None;
        }
        let deadlines = [self.pools.next_deadline(), self.timers.next()];
        deadlines.into_iter().flatten().min()
    }

    /// Does everything that is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.is_handed_over {
            return;
        }
        self.check_lease(now);
        self.notice_suspend(now);
        while let Some(timer) = self.timers.pop(now) {
            match timer {
                Timer::Startup => self.end_startup_wait(now),
                Timer::Takeover => self.check_takeover(now),
                // The check is done for every event.
                Timer::Lease => {}
                Timer::Silence(conn) => self.check_silence(now, conn),
                Timer::Grace(epoch) => self.check_grace(now, epoch),
                Timer::Recall(conn, pool, credit) => self.check_recall(now, conn, pool, credit),
            }
        }
        for pool in self.pools.take_due(now) {
            self.pools.handle_timeout(now, pool);
            self.apply_effects(pool);
            self.announce_changes();
        }
        self.finish_event();
    }

    /// The next output. Frames come last, so that all commands of an event share one.
    pub fn poll_output(&mut self) -> Option<Output> {
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        while let Some(conn) = self.ready_to_send.pop_front() {
            if let Some(frame) = self.next_frame(conn) {
                return Some(Output::Send(conn, Box::new(frame)));
            }
        }
        None
    }

    /// Takes back a frame that was sent, to use its memory again.
    pub fn recycle(&mut self, frame: wire::CompanionFrame) {
        self.spent_frames.keep(frame);
    }

    /// No request waits or runs, and no filter may run one without asking.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.open_requests == 0 && !self.pools.has_credit_out()
    }

    fn open(&mut self, now: Instant, conn: ConnId, door: Door) {
        if self.sessions.len() >= STREAMS_MAX {
            self.outputs.push_back(Output::Close(conn, "there are more streams than a companion may have"));
            return;
        }
        self.sessions.insert(conn, Session::new(now, door));
        self.timers.set(now.after(wire::limits::SILENCE), Timer::Silence(conn));
    }

    /// Dispatch begins.
    fn start(&mut self, now: Instant) {
        if core::mem::replace(&mut self.is_started, true) {
            return;
        }
        if !self.leadership.may_grant() {
            return;
        }
        for pool in self.pools.ids() {
            self.drive_pool(now, pool, PoolInput::Ready);
        }
    }

    /// Detects that the process was suspended: a timer is late. Messages of that time may still wait to be read, so it does
    /// not count as silence.
    fn notice_suspend(&mut self, now: Instant) {
        let last_event_at = self.last_event_at;
        self.last_event_at = last_event_at.max(now);
        if self.timers.next().is_some_and(|due| now.since(due) >= SUSPENDED_MIN) {
            self.woken_at = now;
            self.compensate_suspend(now.since(last_event_at));
        }
    }

    /// Hands an input to a pool and carries out its effects.
    fn drive_pool(&mut self, now: Instant, pool: PoolId, input: PoolInput<'_>) {
        self.pools.handle(now, pool, input);
        self.apply_effects(pool);
    }

    fn drive_named_pool(&mut self, now: Instant, name: &str, input: PoolInput<'_>) {
        if let Some(pool) = self.pools.by_name(name) {
            self.drive_pool(now, pool, input);
        }
        self.announce_changes();
    }

    /// A request that hasn't ended.
    fn find(&self, key: RequestKey) -> Option<Route> {
        let context = self.contexts.get(&key.epoch)?;
        context.requests.get(&key.sequence).copied()
    }

    fn is_waiting(&self, route: Route) -> bool {
        self.pools.get(route.pool).is_some_and(|pool| pool.is_waiting(route.id))
    }

    fn observe(&mut self, observation: Observation) {
        if !self.is_silent {
            self.outputs.push_back(Output::Observe(observation));
        }
    }

    fn observe_request(&mut self, labels: Arc<Labels>, news: RequestNews) {
        self.observe(Observation::Request(labels, news));
    }

    fn observe_session(&mut self, conn: ConnId, news: SessionNews) {
        self.observe(Observation::Session(conn, news));
    }
}
