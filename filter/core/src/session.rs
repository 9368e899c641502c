//! The filter's side of a session with the companion: gRPC streams, heartbeats, acknowledgements and reconnects.
//!
//! A successful send doesn't prove delivery. The session therefore keeps each terminal event until the companion
//! acknowledges it, and sends it again on the next stream, after the Hello. If frames arrive out of order, or from a
//! companion with a lower term, the session resets the stream, and the next Hello lists the current state of all requests.
//! Streams are opened and reset only from a tick, where the host allows it.
//!
//! Of several companions one leads. A standby answers with a `Role` that names the leader, and the session opens its next
//! stream there; while no leader is known, the stream stays open until the standby learns of one. From its second stream on, a session
//! first sends a probe, without its requests, so that they are listed only to the leader.

mod ending;
mod frame_window;
mod held_reports;
mod hello;
mod roles;
mod terminal_events;

use core::num::NonZeroU64;
use core::time::Duration;
use std::collections::VecDeque;

use penstock_wire::filter_frame::Event;
use penstock_wire::limits::{
    BACKOFF_LEADERLESS_MAX, BACKOFF_MAX, BACKOFF_MIN, HEARTBEAT_INTERVAL, PROBE_WAIT, VERSION_MAX,
    VERSION_MIN, VERSION_RETRY,
};
use penstock_wire::{Bye, Command, CompanionFrame, Heartbeat, HelloAck, Register, Running, command};
use prost::Message;

use self::frame_window::FrameWindow;
use self::held_reports::HeldReports;
use self::hello::HelloHeader;
use self::terminal_events::UnackedEvent;
use crate::limits::TICK_MIN;
use crate::time::Instant;

/// 128 random bits that identify a root context for its whole life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// The upper half.
    pub hi: u64,
    /// The lower half.
    pub lo: u64,
}

/// An action on the session's gRPC stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEffect {
    /// Open a stream, then call `handle_opened` or `handle_open_failed`.
    OpenStream {
        /// The companion to connect to, `ip:port`; `None`: any of the cluster.
        companion: Option<String>,
    },
    /// Reset the stream.
    ResetStream,
    /// Send this message on the stream.
    Send(Vec<u8>),
    /// Log a problem.
    LogWarning(String),
    /// Log an event that is no problem.
    LogInfo(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// There is no stream; the next one is opened at this time.
    Closed { retry_at: Instant },
    /// The host is opening a stream.
    Opening,
    /// The probe is sent, or a standby has discarded the Hello: waits for a Role, until this time.
    Probing { until: Instant },
    /// The Hello is sent, but the HelloAck hasn't arrived.
    HelloSent,
    /// The HelloAck has arrived.
    Established,
    /// The stream is unusable: the next tick resets it, and the next one is opened at this time.
    Broken { retry_at: Instant },
}

/// Why a stream of a companion with a lower term is closed.
const OLDER_COMPANION: &str = "its companion is older than the last one";

/// What all sessions of a worker share.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) epoch: Epoch,
    /// The id of the Envoy process; `None`: unknown.
    pub(crate) envoy: Option<NonZeroU64>,
    pub(crate) node: String,
    /// A request that no server took is queued again: by way of the requeue listener, or because the host restarts its stream.
    pub(crate) can_requeue: bool,
    /// The host is the endpoint picker of a companion.
    pub(crate) is_picker: bool,
}

/// The state of a session.
#[derive(Debug)]
pub(crate) struct Session {
    settings: Settings,
    /// The only pool whose requests it carries; empty: it is the main session.
    pool: String,
    link: Link,
    /// Number of the current stream, from 1.
    stream: u32,
    /// Number of the last Hello that lists requests, from 1.
    hello: u32,
    window: FrameWindow,
    unacked_events: VecDeque<UnackedEvent>,
    held: HeldReports,
    /// The companion that leads, according to the last standby.
    leader: Option<String>,
    /// The term with which a standby has named a leader since the last established stream.
    redirected: Option<NonZeroU64>,
    /// The companion leads and waits for the Hello.
    must_greet: bool,
    /// The highest term of a companion so far.
    term: u64,
    /// Delay before the next stream is opened.
    backoff: Duration,
    heartbeat_at: Instant,
    /// When the companion went down; `None`: it is up.
    down_since: Option<Instant>,
    /// Since the Hello of this stream, the filter has admitted requests by itself that the Hello doesn't list. The companion
    /// may have handled the Hello already.
    has_unlisted: bool,
    /// This stream was opened because of such requests.
    is_relisted: bool,
    /// The last warning since the companion was up.
    last_warning: Option<&'static str>,
    effects: VecDeque<SessionEffect>,
}

impl Session {
    pub(crate) fn new(now: Instant, settings: Settings, pool: &str) -> Self {
        Self {
            settings,
            pool: pool.to_owned(),
            link: Link::Closed { retry_at: now },
            stream: 0,
            hello: 0,
            window: FrameWindow::default(),
            unacked_events: VecDeque::new(),
            held: HeldReports::default(),
            leader: None,
            redirected: None,
            must_greet: false,
            term: 0,
            backoff: BACKOFF_MIN,
            heartbeat_at: now,
            down_since: Some(now),
            has_unlisted: false,
            is_relisted: false,
            last_warning: None,
            effects: VecDeque::new(),
        }
    }

    pub(crate) fn poll_effect(&mut self) -> Option<SessionEffect> {
        self.effects.pop_front()
    }

    /// When the companion went down; `None`: it is up.
    pub(crate) fn down_since(&self) -> Option<Instant> {
        self.down_since
    }

    pub(crate) fn is_down(&self) -> bool {
        self.down_since.is_some()
    }

    /// Whether events can be sent: the Hello of the current stream is sent.
    pub(crate) fn is_linked(&self) -> bool {
        match self.link {
            Link::HelloSent | Link::Established => true,
            Link::Closed { .. } | Link::Opening | Link::Probing { .. } | Link::Broken { .. } => false,
        }
    }

    /// When `handle_tick` must be called next.
    pub(crate) fn next_tick_at(&self, now: Instant) -> Instant {
        match self.link {
            Link::Closed { retry_at } => retry_at,
            Link::Opening => self.heartbeat_at,
            Link::HelloSent | Link::Established => {
                let reports_due_at = self.held.due_at().unwrap_or(self.heartbeat_at);
                self.heartbeat_at.min(reports_due_at)
            }
            Link::Probing { until } => self.heartbeat_at.min(until),
            Link::Broken { .. } => now,
        }
    }

    /// Sends heartbeats and held reports, resets broken streams, and opens new ones.
    /// `alive`: takes the endpoints for the heartbeat.
    pub(crate) fn handle_tick(&mut self, now: Instant, alive: &mut impl FnMut() -> Vec<String>) {
        match self.link {
            Link::Closed { retry_at } if retry_at <= now => {
                self.link = Link::Opening;
                let companion = self.leader.clone();
                self.effects.push_back(SessionEffect::OpenStream { companion });
            }
            Link::Closed { .. } | Link::Opening => {}
            Link::Probing { until } if until <= now => self.try_another_companion(now),
            Link::Probing { .. } | Link::HelloSent | Link::Established => {
                // A tick may come a little early. Waiting for the next one would halve the rate of heartbeats.
                if self.heartbeat_at <= now.after(TICK_MIN) {
                    self.heartbeat_at = now.after(HEARTBEAT_INTERVAL);
                    self.send(Event::Heartbeat(Heartbeat { alive: alive() }));
                }
                if self.is_linked() {
                    self.send_held(now);
                }
            }
            Link::Broken { retry_at } => {
                self.effects.push_back(SessionEffect::ResetStream);
                self.link = Link::Closed { retry_at };
            }
        }
    }

    /// The stream is open. Sends a probe, unless no companion has led so far: then the filter has few requests to list, and a probe would
    /// only cost time. `true`: call [`Self::greet`] instead.
    pub(crate) fn handle_opened(&mut self, now: Instant, policy_digest: &str) -> bool {
        self.has_unlisted = false;
        self.stream = self.stream.saturating_add(1);
        self.window.reset();
        self.keep_held();
        self.heartbeat_at = now.after(HEARTBEAT_INTERVAL);
        if self.term == 0 {
            return true;
        }
        let until = now.after(PROBE_WAIT);
        self.link = Link::Probing { until };
        let probe = self.hello_header(policy_digest).probe();
        self.send(Event::Hello(probe));
        false
    }

    /// Sends the Hello with these requests, then all unacknowledged terminal events.
    pub(crate) fn greet(
        &mut self,
        now: Instant,
        policy_digest: &str,
        endpoints_digest: u64,
        waiting: Vec<Register>,
        running: Vec<Running>,
    ) {
        self.link = Link::HelloSent;
        self.hello = self.next_hello();
        self.must_greet = false;
        self.has_unlisted = false;
        for mut hello in self.hello_header(policy_digest).parts(waiting, running) {
            hello.endpoints_digest = endpoints_digest;
            hello.clock_us = now.as_nanos() / 1_000;
            self.send(Event::Hello(hello));
        }
        self.repeat_unacked(now);
    }

    /// Number of the Hello that [`Self::greet`] will send.
    pub(crate) const fn next_hello(&self) -> u32 {
        self.hello.saturating_add(1)
    }

    /// Number of the Hello that the companion has acknowledged on the current stream; `None`: there is no such stream.
    pub(crate) fn established_hello(&self) -> Option<u32> {
        (self.link == Link::Established).then_some(self.hello)
    }

    /// Whether the companion waits for [`Self::greet`].
    pub(crate) const fn must_greet(&self) -> bool {
        self.must_greet
    }

    fn hello_header<'a>(&'a self, policy_digest: &'a str) -> HelloHeader<'a> {
        HelloHeader {
            settings: &self.settings,
            pool: &self.pool,
            stream: self.stream,
            policy_digest,
            term: self.term,
            unreachable_term: self.redirected,
        }
    }

    /// The host failed to open a stream.
    pub(crate) fn handle_open_failed(&mut self, now: Instant) {
        self.handle_closed(now);
    }

    /// The stream has ended.
    pub(crate) fn handle_closed(&mut self, now: Instant) {
        if let Link::Broken { retry_at } = self.link {
            self.link = Link::Closed { retry_at };
            return;
        }
        let retry_at = self.mark_down(now);
        self.link = Link::Closed { retry_at };
    }

    /// Notes that the companion is down. Returns when to try again: any companion, because the leader may have changed.
    fn mark_down(&mut self, now: Instant) -> Instant {
        self.down_since.get_or_insert(now);
        self.leader = None;
        self.must_greet = false;
        let retry_at = now.after(self.backoff);
        // A standby is there, and the next leader waits for all filters.
        let longest = if self.redirected.is_some() { BACKOFF_LEADERLESS_MAX } else { BACKOFF_MAX };
        self.backoff = self.backoff.saturating_mul(2).min(longest);
        retry_at
    }

    /// The session in log lines.
    fn title(&self) -> String {
        if self.pool.is_empty() {
            format!("companion session {}", self.stream)
        } else {
            format!("companion session {} of pool {}", self.stream, self.pool)
        }
    }

    /// Gives up the stream because of a fault of the companion.
    fn abort(&mut self, now: Instant, reason: &'static str) {
        let retry_at = self.mark_down(now);
        self.link = Link::Broken { retry_at };
        // Logs each reason once until the companion is up again, not at every attempt.
        if self.last_warning.replace(reason) != Some(reason) {
            let text = format!("{} closed: {reason}", self.title());
            self.effects.push_back(SessionEffect::LogWarning(text));
        }
    }

    fn handle_bye(&mut self, now: Instant) {
        let retry_at = self.mark_down(now);
        self.link = Link::Broken { retry_at };
        let text = format!("{} closed: the companion ends, or stands by", self.title());
        self.effects.push_back(SessionEffect::LogInfo(text));
    }

    /// Handles a message of the companion. Returns its commands for the worker; none, if the message is invalid.
    pub(crate) fn handle_message(&mut self, now: Instant, message: &[u8]) -> Vec<Command> {
        if !self.is_linked() && !matches!(self.link, Link::Probing { .. }) {
            return Vec::new();
        }
        let Ok(frame) = CompanionFrame::decode(message) else {
            self.abort(now, "the companion sent a malformed frame");
            return Vec::new();
        };
        if !self.window.receive(frame.seq, frame.ack) {
            self.abort(now, "the companion's frames are out of order");
            return Vec::new();
        }
        let mut commands = Vec::with_capacity(frame.commands.len());
        for command in frame.commands {
            match (command.kind, self.link) {
                (_, Link::Broken { .. } | Link::Opening | Link::Closed { .. }) => {}
                (Some(command::Kind::HelloAck(ack)), Link::HelloSent | Link::Established) => {
                    self.handle_hello_ack(now, ack);
                }
                (Some(command::Kind::Bye(Bye {})), _) => self.handle_bye(now),
                (Some(command::Kind::Role(role)), _) => self.handle_role(now, role),
                (kind, Link::Established) => commands.push(Command { kind }),
                (_, Link::HelloSent | Link::Probing { .. }) => {
                    self.abort(now, "the companion sent a command before its HelloAck");
                }
            }
        }
        // A standby acknowledges frames that it discards.
        if self.link == Link::Established {
            self.remove_acknowledged(frame.ack);
        }
        commands
    }

    fn handle_hello_ack(&mut self, now: Instant, ack: HelloAck) {
        if !(VERSION_MIN..=VERSION_MAX).contains(&ack.version) {
            self.abort(now, "companion and filter have no protocol version in common: update the older one");
            self.link = Link::Broken { retry_at: now.after(VERSION_RETRY) };
        } else if self.is_outdated(ack.term) {
            self.abort(now, OLDER_COMPANION);
        } else {
            self.term = self.term.max(ack.term);
            self.backoff = BACKOFF_MIN;
            self.redirected = None;
            self.last_warning = None;
            self.is_relisted = self.has_unlisted && !self.is_relisted;
            if self.is_relisted {
                // The companion acts on an outdated Hello. Reconnect so that the next Hello lists the requests that run;
                // until then the companion counts as down.
                self.down_since = Some(now);
                self.link = Link::Broken { retry_at: now };
            } else {
                self.down_since = None;
                self.link = Link::Established;
            }
        }
    }

    /// A companion with this term has been replaced. 0: it has no term, because it doesn't lead.
    fn is_outdated(&self, term: u64) -> bool {
        term != 0 && term < self.term
    }

    /// Notes that the filter admitted a request by itself. `registered`: the companion may know it as waiting.
    pub(crate) fn note_admitted(&mut self, now: Instant, registered: bool) {
        match self.link {
            // The companion must not act on a registration that no longer holds.
            Link::HelloSent if registered => {
                let retry_at = self.mark_down(now);
                self.link = Link::Broken { retry_at };
            }
            Link::HelloSent => self.has_unlisted = true,
            // The next Hello lists the request.
            Link::Opening
            | Link::Probing { .. }
            | Link::Established
            | Link::Broken { .. }
            | Link::Closed { .. } => {}
        }
    }

    /// Sends an event once, and gives it back.
    pub(crate) fn send_once(&mut self, now: Instant, event: Event) -> Option<Event> {
        if !self.is_linked() {
            return Some(event);
        }
        let event = self.send(event);
        self.check_window(now);
        event
    }

    fn check_window(&mut self, now: Instant) {
        if self.window.is_full() && self.is_linked() {
            self.abort(now, "the companion acknowledges nothing");
        }
    }

    /// Sends an event in the next frame, and gives it back.
    fn send(&mut self, event: Event) -> Option<Event> {
        self.send_frame(Some(event))
    }
}
