//! The filter's side of one session: streams, numbers, acknowledgements, and when to open the next stream.
//!
//! A send that the host took means nothing: terminal events are kept until the companion acknowledges them and are said
//! again on the next stream, after its Hello. Frames out of order, or of a companion older than the last one, break the
//! stream: a new one begins with the whole truth. Streams are opened and cut only from a tick, where the host allows it.

use core::time::Duration;
use std::collections::VecDeque;

use penstock_wire::{
    Bye, Command, CompanionFrame, FilterFrame, Heartbeat, Hello, HelloAck, Register, Running, command,
    filter_frame::Event,
    limits::{
        BACKOFF_MAX, BACKOFF_MIN, HEARTBEAT_INTERVAL, HELLO_PART_REQUESTS, UNACKED_BYTES_MAX,
        UNACKED_EVENTS_MAX, VERSION_MAX, VERSION_MIN, VERSION_RETRY,
    },
};
use prost::Message;

use crate::{limits::TICK_MIN, time::Instant};

/// 128 random bits that name a root context for its whole life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// The upper half.
    pub hi: u64,
    /// The lower half.
    pub lo: u64,
}

/// What a session asks of its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEffect {
    /// Open a stream to the companion, then say how that went.
    OpenStream,
    /// Cut the stream.
    ResetStream,
    /// Send this message on the stream.
    Send(Vec<u8>),
    /// Tell the operator what is wrong.
    LogWarning(String),
    /// Tell the operator what happens, and is in order.
    LogInfo(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// No stream; the next one is opened at this time.
    Closed { retry_at: Instant },
    /// The host was asked to open one.
    Opening,
    /// Hello is said; nothing was heard yet.
    Greeted,
    /// The companion has answered.
    Ready,
    /// Of no further use; cut at the next tick, opened again at this time.
    Broken { retry_at: Instant },
}

#[derive(Debug)]
struct Kept {
    /// Its number in this stream; none: not sent in it yet.
    seq: Option<u64>,
    event: Event,
}

/// The state of a session.
#[derive(Debug)]
pub(crate) struct Session {
    epoch: Epoch,
    /// Which Envoy this is; 0: not known.
    envoy: u64,
    node: String,
    link: Link,
    stream: u32,
    /// The last number given to a frame of this stream.
    sent: u64,
    /// The last number of the companion's that was handled.
    handled: u64,
    /// Of the frames behind the last acknowledged one.
    sizes: VecDeque<usize>,
    unacked_bytes: usize,
    kept: VecDeque<Kept>,
    term: u64,
    backoff: Duration,
    beat_at: Instant,
    /// Since when no companion answers; none: one does.
    away_since: Option<Instant>,
    /// Some went without the companion while it had heard this stream's Hello, perhaps, and hadn't answered.
    untold: bool,
    /// It was told anew because of such.
    retold: bool,
    /// The last thing the operator was told since then.
    complaint: Option<&'static str>,
    orders: VecDeque<SessionEffect>,
}

impl Session {
    pub(crate) fn new(now: Instant, epoch: Epoch, envoy: u64, node: String) -> Self {
        Self {
            epoch,
            envoy,
            node,
            link: Link::Closed { retry_at: now },
            stream: 0,
            sent: 0,
            handled: 0,
            sizes: VecDeque::new(),
            unacked_bytes: 0,
            kept: VecDeque::new(),
            term: 0,
            backoff: BACKOFF_MIN,
            beat_at: now,
            away_since: Some(now),
            untold: false,
            retold: false,
            complaint: None,
            orders: VecDeque::new(),
        }
    }

    pub(crate) fn poll_order(&mut self) -> Option<SessionEffect> {
        self.orders.pop_front()
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Terminal events that are still to be acknowledged.
    pub(crate) fn unacknowledged(&self) -> usize {
        self.kept.len()
    }

    /// Since when no companion answers; none: one does.
    pub(crate) fn away_since(&self) -> Option<Instant> {
        self.away_since
    }

    /// What is said now goes out on a stream, after its Hello.
    pub(crate) fn is_linked(&self) -> bool {
        match self.link {
            Link::Greeted | Link::Ready => true,
            Link::Closed { .. } | Link::Opening | Link::Broken { .. } => false,
        }
    }

    /// When `handle_tick` has something to do next.
    pub(crate) fn next_tick_at(&self, now: Instant) -> Instant {
        match self.link {
            Link::Closed { retry_at } => retry_at,
            Link::Opening | Link::Greeted | Link::Ready => self.beat_at,
            Link::Broken { .. } => now,
        }
    }

    /// Beats, reopens, cuts.
    pub(crate) fn handle_tick(&mut self, now: Instant) {
        match self.link {
            Link::Closed { retry_at } if retry_at <= now => self.open(),
            Link::Closed { .. } | Link::Opening => {}
            Link::Greeted | Link::Ready => {
                // A tick that comes a little early beats too, else it would beat every second time.
                if self.beat_at <= now.after(TICK_MIN) {
                    self.beat_at = now.after(HEARTBEAT_INTERVAL);
                    self.send(Event::Heartbeat(Heartbeat {}));
                }
            }
            Link::Broken { retry_at } => {
                self.orders.push_back(SessionEffect::ResetStream);
                self.link = Link::Closed { retry_at };
            }
        }
    }

    fn open(&mut self) {
        self.link = Link::Opening;
        self.orders.push_back(SessionEffect::OpenStream);
    }

    /// The stream is open: says Hello with these, then again what wasn't acknowledged.
    pub(crate) fn handle_opened(
        &mut self,
        now: Instant,
        digest: &str,
        waiting: Vec<Register>,
        running: Vec<Running>,
    ) {
        self.link = Link::Greeted;
        self.untold = false;
        self.stream = self.stream.saturating_add(1);
        self.sent = 0;
        self.handled = 0;
        self.sizes.clear();
        self.unacked_bytes = 0;
        self.beat_at = now.after(HEARTBEAT_INTERVAL);
        for hello in self.hello(digest, waiting, running) {
            self.send(Event::Hello(hello));
        }
        for Kept { event, .. } in core::mem::take(&mut self.kept) {
            self.send(event.clone());
            self.kept.push_back(Kept {
                seq: Some(self.sent),
                event,
            });
        }
        // However much there is to say at first, it doesn't make the companion unreachable.
        self.sizes.iter_mut().for_each(|size| *size = 0);
        self.unacked_bytes = 0;
    }

    fn hello(&self, digest: &str, waiting: Vec<Register>, running: Vec<Running>) -> Vec<Hello> {
        let part = || Hello {
            epoch_hi: self.epoch.hi,
            epoch_lo: self.epoch.lo,
            stream: self.stream,
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            policy_digest: digest.to_owned(),
            node: self.node.clone(),
            envoy: self.envoy,
            ..Hello::default()
        };
        let mut parts = Vec::new();
        let (mut waiting, mut running) = (waiting.into_iter(), running.into_iter());
        loop {
            let mut next = part();
            next.part = u32::try_from(parts.len()).unwrap_or(u32::MAX);
            next.waiting = waiting.by_ref().take(HELLO_PART_REQUESTS).collect();
            let room = HELLO_PART_REQUESTS.saturating_sub(next.waiting.len());
            next.running = running.by_ref().take(room).collect();
            next.last = waiting.len() == 0 && running.len() == 0;
            let last = next.last;
            parts.push(next);
            if last {
                return parts;
            }
        }
    }

    /// The host couldn't open a stream.
    pub(crate) fn handle_open_failed(&mut self, now: Instant) {
        self.handle_closed(now);
    }

    /// The stream has ended.
    pub(crate) fn handle_closed(&mut self, now: Instant) {
        if let Link::Broken { retry_at } = self.link {
            self.link = Link::Closed { retry_at };
            return;
        }
        let retry_at = self.lose(now);
        self.link = Link::Closed { retry_at };
    }

    /// No companion answers from now on; when to try again.
    fn lose(&mut self, now: Instant) -> Instant {
        self.away_since.get_or_insert(now);
        let retry_at = now.after(self.backoff);
        self.backoff = self.backoff.saturating_mul(2).min(BACKOFF_MAX);
        retry_at
    }

    fn break_off(&mut self, now: Instant, why: &'static str) {
        let retry_at = self.lose(now);
        self.link = Link::Broken { retry_at };
        // Once until a companion answers, however often it is tried.
        if self.complaint.replace(why) != Some(why) {
            self.orders.push_back(SessionEffect::LogWarning(format!(
                "session {}: {why}",
                self.stream
            )));
        }
    }

    /// The companion said that it ends.
    fn be_left(&mut self, now: Instant) {
        let retry_at = self.lose(now);
        self.link = Link::Broken { retry_at };
        let text = format!("session {}: the companion goes away", self.stream);
        self.orders.push_back(SessionEffect::LogInfo(text));
    }

    /// A message of the companion: what it commands. Nothing, if it doesn't count.
    pub(crate) fn handle_message(&mut self, now: Instant, message: &[u8]) -> Vec<Command> {
        if !self.is_linked() {
            return Vec::new();
        }
        let Ok(frame) = CompanionFrame::decode(message) else {
            self.break_off(now, "the companion sent what isn't a frame");
            return Vec::new();
        };
        if frame.seq != self.handled.saturating_add(1) || frame.ack > self.sent {
            self.break_off(now, "the companion's frames are out of order");
            return Vec::new();
        }
        self.handled = frame.seq;
        self.acknowledge(frame.ack);
        let mut commands = Vec::with_capacity(frame.commands.len());
        for command in frame.commands {
            match (&command.kind, self.link) {
                (Some(command::Kind::HelloAck(ack)), _) => self.handle_hello_ack(now, *ack),
                (Some(command::Kind::Bye(Bye {})), _) => {
                    self.be_left(now);
                }
                (_, Link::Ready) => commands.push(command),
                (_, Link::Greeted) => self.break_off(now, "the companion commands before it greets"),
                (_, Link::Broken { .. } | Link::Opening | Link::Closed { .. }) => {}
            }
        }
        commands
    }

    fn handle_hello_ack(&mut self, now: Instant, ack: HelloAck) {
        if !(VERSION_MIN..=VERSION_MAX).contains(&ack.version) {
            self.break_off(
                now,
                "companion and filter have no version of the protocol in common",
            );
            self.link = Link::Broken {
                retry_at: now.after(VERSION_RETRY),
            };
        } else if ack.term < self.term {
            self.break_off(now, "this companion is older than the last one");
        } else {
            self.term = ack.term;
            self.backoff = BACKOFF_MIN;
            self.complaint = None;
            self.retold = self.untold && !self.retold;
            if self.retold {
                // It answers, but to what is no longer true: the next Hello says what runs. Till then all waits again.
                self.away_since = Some(now);
                self.link = Link::Broken { retry_at: now };
            } else {
                self.away_since = None;
                self.link = Link::Ready;
            }
        }
    }

    /// A request goes without the companion. `told`: it may know of it, as one that waits.
    pub(crate) fn goes_without(&mut self, now: Instant, told: bool) {
        match self.link {
            // What it was told isn't true any more, and mustn't be acted on.
            Link::Greeted if told => {
                let retry_at = self.lose(now);
                self.link = Link::Broken { retry_at };
            }
            Link::Greeted => self.untold = true,
            // The next Hello says it.
            Link::Opening | Link::Ready | Link::Broken { .. } | Link::Closed { .. } => {}
        }
    }

    fn acknowledge(&mut self, ack: u64) {
        while self.oldest_unacked().is_some_and(|oldest| oldest <= ack) {
            let size = self.sizes.pop_front().unwrap_or(0);
            self.unacked_bytes = self.unacked_bytes.saturating_sub(size);
        }
        while self
            .kept
            .front()
            .is_some_and(|kept| kept.seq.is_some_and(|seq| seq <= ack))
        {
            self.kept.pop_front();
        }
    }

    fn oldest_unacked(&self) -> Option<u64> {
        let behind = u64::try_from(self.sizes.len())
            .ok()
            .filter(|behind| *behind > 0)?;
        Some(self.sent.saturating_sub(behind).saturating_add(1))
    }

    /// Says something that needn't be said again, and gives it back.
    pub(crate) fn tell(&mut self, now: Instant, event: Event) -> Option<Event> {
        if !self.is_linked() {
            return Some(event);
        }
        let event = self.send(event);
        self.check_reach(now);
        event
    }

    /// Says something that is said until it was heard.
    pub(crate) fn tell_terminal(&mut self, now: Instant, event: Event) {
        if self.kept.len() >= UNACKED_EVENTS_MAX {
            // The next Hello no longer names its request: the companion then settles it by its estimate.
            self.kept.pop_front();
        }
        if self.is_linked() {
            self.send_terminal(now, event);
        } else {
            self.kept.push_back(Kept { seq: None, event });
        }
    }

    fn send_terminal(&mut self, now: Instant, event: Event) {
        if let Some(event) = self.send(event) {
            self.kept.push_back(Kept {
                seq: Some(self.sent),
                event,
            });
        }
        self.check_reach(now);
    }

    fn check_reach(&mut self, now: Instant) {
        if self.unacked_bytes > UNACKED_BYTES_MAX && self.is_linked() {
            self.break_off(now, "the companion acknowledges nothing");
        }
    }

    /// Puts an event into the stream's next frame, and gives it back: some.
    fn send(&mut self, event: Event) -> Option<Event> {
        self.sent = self.sent.saturating_add(1);
        let frame = FilterFrame {
            seq: self.sent,
            ack: self.handled,
            event: Some(event),
        };
        let message = frame.encode_to_vec();
        self.sizes.push_back(message.len());
        self.unacked_bytes = self.unacked_bytes.saturating_add(message.len());
        self.orders.push_back(SessionEffect::Send(message));
        frame.event
    }

    /// The host shuts down: nobody will come back.
    pub(crate) fn leave(&mut self) {
        if self.is_linked() {
            self.send(Event::Bye(Bye {}));
        }
    }
}
