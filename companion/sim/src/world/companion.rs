//! The companion's process: a control with an inbox, a timer, a clock and a generation number.
//!
//! It works as the real driver does: it takes the events in its inbox, sometimes several at once, and then applies the
//! control's outputs. Each start is a new generation: a new control with a higher term.

mod process;

use std::collections::{BTreeMap, VecDeque};

use penstock_control::{ConnId, Control, Event, Observation, Output};
use penstock_engine::{Instant, Outcome};
use penstock_wire::command::Kind;
use penstock_wire::filter_frame::Event as FilterEvent;
use penstock_wire::limits::SESSION_GRACE;
use penstock_wire::{FilterFrame, Hello};

use super::World;
use super::envoy::Root;
use super::event::SimEvent;
use super::time::{MICRO, Nanos};

/// Events of one batch. More are left for the next batch.
const BATCH_MAX: usize = 256;

/// A root context's id and a sequence number in its session.
type Key = (u64, u64);

/// Observations of one generation about one pool.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PoolCounts {
    pub(super) arrived: u64,
    pub(super) left: u64,
    pub(super) requeued: u64,
}

/// The events of one batch that change what the companion knows. The world's own records follow only after the batch,
/// because the companion may decide on other requests before it processes these events.
#[derive(Debug, Default)]
struct Batch {
    /// With their ages in microseconds.
    registered: Vec<(Key, u64)>,
    running: Vec<Key>,
    closed: Vec<ConnId>,
    ended: Vec<Key>,
}

/// The companion.
#[derive(Debug, Default)]
pub(super) struct Companion {
    /// `None` while no process runs.
    pub(super) control: Option<Control>,
    /// Number of the process, from 1.
    pub(super) generation: u64,
    /// The term that the companion announces. Rises with each generation, except for an older companion by fault.
    pub(super) term: u64,
    /// The machine is gone: connections aren't even refused.
    pub(super) vanished: bool,
    /// New streams are refused.
    pub(super) refuses_streams: bool,
    pub(super) frozen: bool,
    pub(super) draining: bool,
    pub(super) counts: BTreeMap<String, PoolCounts>,
    inbox: VecDeque<Event>,
    inbox_scheduled: bool,
    timer: Option<(Nanos, u64)>,
    timers: u64,
    /// By root context, existing or not, the stream of its session.
    session_streams: BTreeMap<u64, u64>,
    /// The most sessions at a time.
    pub(super) sessions_max: usize,
    /// Start of the process by the companion's clock.
    pub(super) started_at: Nanos,
    /// How far the companion's clock is ahead of the world's.
    pub(super) clock_offset: Nanos,
    batches: u64,
}

impl World {
    /// The companion's clock.
    pub(super) fn companion_now(&self) -> Instant {
        Instant::from_nanos(self.now + self.companion.clock_offset)
    }

    /// Puts an event into the companion's inbox.
    pub(super) fn deliver_to_companion(&mut self, event: Event) {
        if self.companion.control.is_none() {
            return;
        }
        self.companion.inbox.push_back(event);
        if !self.companion.inbox_scheduled && !self.companion.frozen {
            self.companion.inbox_scheduled = true;
            let wait = self.rng.below(self.scenario.batch + 1);
            self.event_queue.schedule(
                self.now + wait,
                SimEvent::CompanionInbox(self.companion.generation),
            );
        }
    }

    pub(super) fn process_inbox(&mut self, generation: u64) {
        if generation != self.companion.generation
            || self.companion.control.is_none()
            || self.companion.frozen
        {
            return;
        }
        self.companion.inbox_scheduled = false;
        let mut batch = Batch::default();
        for _ in 0..BATCH_MAX {
            let Some(event) = self.companion.inbox.pop_front() else {
                break;
            };
            self.handle_companion_event(event, &mut batch);
        }
        self.apply_outputs();
        self.record_batch(batch);
        if !self.companion.inbox.is_empty() && !self.companion.inbox_scheduled {
            self.companion.inbox_scheduled = true;
            self.event_queue
                .schedule(self.now, SimEvent::CompanionInbox(generation));
        }
    }

    fn record_batch(&mut self, batch: Batch) {
        let generation = self.companion.generation;
        for conn in batch.closed {
            self.orphan(conn);
        }
        for (root, sequence) in batch.ended {
            if let Some(root) = self.roots.get_mut(&root) {
                root.unreported_ends.remove(&sequence);
                root.reported_ends.insert(sequence);
            }
        }
        let delay = self.notification_delay_max();
        for (key, age_us) in batch.registered {
            let reported_arrival = self.now.saturating_sub(age_us.saturating_mul(MICRO));
            let http = self.http_of(key).and_then(|id| self.http_streams.get_mut(&id));
            if let Some(http) = http.filter(|http| http.registered_with != Some(generation)) {
                http.registered_with = Some(generation);
                http.age_uncertain = reported_arrival > http.arrived_at + delay;
            }
        }
        for key in batch.running {
            if let Some(http) = self.http_of(key).and_then(|id| self.http_streams.get_mut(&id)) {
                http.counted_by = Some(generation);
            }
        }
    }

    fn handle_companion_event(&mut self, event: Event, batch: &mut Batch) {
        let now = self.companion_now();
        self.note(|| format!("companion processes {}", summarized(&event)));
        let mut bye = None;
        match &event {
            Event::Frame(conn, frame) => {
                if let Some(root) = self.stream_roots.get(&conn.0).copied() {
                    bye = self.record_frame(root, *conn, frame, batch);
                }
            }
            Event::Closed(conn) => batch.closed.push(*conn),
            _ => {}
        }
        if let Some(control) = &mut self.companion.control {
            control.handle(now, event);
        }
        if let Some(root) = bye {
            self.release(root);
            self.check_released(root);
        }
    }

    /// Records a frame of a root context. Returns the root context if the frame ends its session.
    fn record_frame(
        &mut self,
        root: u64,
        conn: ConnId,
        frame: &FilterFrame,
        batch: &mut Batch,
    ) -> Option<u64> {
        match frame.event.as_ref()? {
            FilterEvent::Hello(hello) => self.record_hello(root, conn, hello, batch),
            FilterEvent::Register(register) => {
                batch
                    .registered
                    .push(((root, register.sequence), register.age_us));
            }
            FilterEvent::Cancel(cancel) => batch.ended.push((root, cancel.sequence)),
            FilterEvent::Completed(completed) => batch.ended.push((root, completed.sequence)),
            FilterEvent::Refused(refused) => batch.ended.push((root, refused.sequence)),
            FilterEvent::Bye(_) => {
                // A companion ignores a Bye on a stream that another stream of the session has replaced.
                return (self.companion.session_streams.get(&root) == Some(&conn.0)).then_some(root);
            }
            _ => {}
        }
        None
    }

    fn record_hello(&mut self, root: u64, conn: ConnId, hello: &Hello, batch: &mut Batch) {
        if hello.last {
            let sessions = &mut self.companion.session_streams;
            sessions.insert(root, conn.0);
            self.companion.sessions_max = self.companion.sessions_max.max(sessions.len());
        }
        let waiting = hello.waiting.iter();
        batch
            .registered
            .extend(waiting.map(|register| ((root, register.sequence), register.age_us)));
        let running = hello
            .running
            .iter()
            .filter_map(|running| running.register.as_ref());
        batch
            .running
            .extend(running.map(|register| (root, register.sequence)));
        let is_newer = |root: &Root| root.session_stream.is_none_or(|last| last < conn.0);
        let root = self.roots.get_mut(&root);
        if let Some(root) = root.filter(|root| hello.last && is_newer(root)) {
            root.session_stream = Some(conn.0);
            root.orphaned_since = None;
        }
    }

    /// The HTTP stream of a root context's request.
    fn http_of(&self, (root, sequence): Key) -> Option<u64> {
        self.roots.get(&root)?.http_streams.get(&sequence).copied()
    }

    /// The companion has lost a session's stream.
    fn orphan(&mut self, conn: ConnId) {
        let now = self.companion_now();
        let root = self.stream_roots.get(&conn.0);
        self.companion
            .session_streams
            .retain(|_, stream| *stream != conn.0);
        let Some(root) = root.and_then(|root| self.roots.get_mut(root)) else {
            return;
        };
        if root.session_stream == Some(conn.0) {
            root.session_stream = None;
            root.orphaned_since = Some(now);
        }
    }

    pub(super) fn handle_companion_timer(&mut self, generation: u64, number: u64) {
        if generation != self.companion.generation
            || self.companion.timer.is_none_or(|(_, current)| current != number)
        {
            return;
        }
        self.companion.timer = None;
        if self.companion.frozen {
            return;
        }
        let now = self.companion_now();
        if let Some(control) = &mut self.companion.control {
            control.handle_timeout(now);
        }
        let expired = |root: &Root| {
            root.orphaned_since
                .is_some_and(|since| since.after(SESSION_GRACE) <= now)
        };
        let lost: Vec<u64> = self
            .roots
            .iter()
            .filter(|(_, root)| expired(root))
            .map(|(id, _)| *id)
            .collect();
        self.apply_outputs();
        for id in lost {
            if let Some(root) = self.roots.get_mut(&id) {
                root.orphaned_since = None;
            }
            self.release(id);
        }
    }

    /// The companion has released a root context's session. Requests that it granted to this root context may run in
    /// addition to the ones that it grants from now on.
    fn release(&mut self, root: u64) {
        let generation = Some(self.companion.generation);
        for client in self
            .clients
            .iter_mut()
            .filter(|client| client.roots.contains(&root))
        {
            client.released_by = generation;
        }
        for http in self.http_streams.values_mut().filter(|http| http.root == root) {
            // The request's grant may still be in transit.
            http.released_while_running |= http.resumed || http.counted_by == generation;
            http.counted_by = None;
            http.registered_with = None;
        }
    }

    fn apply_outputs(&mut self) {
        let mut granted = Vec::new();
        while let Some(output) = self.companion.control.as_mut().and_then(Control::poll_output) {
            match output {
                Output::Send(conn, frame) => {
                    let root = self.stream_roots.get(&conn.0).copied();
                    for command in &frame.commands {
                        if let (Some(Kind::Grant(grant)), Some(root)) = (&command.kind, root) {
                            granted.push((root, grant.sequence));
                        }
                    }
                    self.note(|| format!("companion sends on {}: {frame:?}", conn.0));
                    self.send_frame(conn.0, &frame);
                }
                Output::Close(conn, reason) => {
                    self.note(|| format!("companion closes {}: {reason}", conn.0));
                    self.orphan(conn);
                    self.close_at_companion(conn.0);
                }
                Output::Observe(observation) => self.observe(&observation),
                // The world has one companion.
                Output::Election(_) => {}
            }
        }
        for key in granted {
            self.record_grant(key);
        }
        self.companion.batches += 1;
        if self.traced || self.companion.batches.is_multiple_of(16) {
            self.audit_companion();
        }
        self.set_timer();
    }

    fn record_grant(&mut self, key: Key) {
        let (root, sequence) = key;
        let ended = self
            .roots
            .get(&root)
            .is_some_and(|root| root.reported_ends.contains(&sequence));
        if ended {
            self.fail(|| format!("request {sequence} of root {root} is granted after its reported end"));
        }
        if let Some(id) = self.http_of(key) {
            self.check_flow_order(id);
            self.check_bound(id);
            if let Some(http) = self.http_streams.get_mut(&id) {
                http.counted_by = Some(self.companion.generation);
            }
        }
    }

    fn observe(&mut self, observation: &Observation) {
        if let Observation::Decided {
            labels,
            outcome: Outcome::Bypassed | Outcome::Dispatched,
            ..
        } = observation
        {
            self.check_grant_allowed(&labels.request_id);
        }
        let (labels, arrived, left, requeued) = match observation {
            Observation::Arrived(labels) => (labels, 1, 0, 0),
            Observation::Decided { labels, .. } | Observation::Refused { labels, .. } => (labels, 0, 1, 0),
            Observation::Requeued(labels) => (labels, 0, 0, 1),
            _ => return,
        };
        self.note(|| format!("companion observes {observation:?}"));
        self.check_counted_once(&labels.request_id, arrived > 0, left > 0);
        let counts = self.companion.counts.entry(labels.pool.to_string()).or_default();
        counts.arrived += arrived;
        counts.left += left;
        counts.requeued += requeued;
        if counts.left > counts.arrived {
            let pool = labels.pool.clone();
            self.fail(|| format!("pool {pool} has more outcomes than arrivals"));
        }
        self.summary.requeues += requeued;
    }

    fn set_timer(&mut self) {
        let Some(deadline) = self.companion.control.as_ref().and_then(Control::poll_timeout) else {
            return;
        };
        let time = deadline
            .as_nanos()
            .saturating_sub(self.companion.clock_offset)
            .max(self.now);
        if self.companion.timer.is_some_and(|(current, _)| current <= time) {
            return;
        }
        self.companion.timers += 1;
        let number = self.companion.timers;
        self.companion.timer = Some((time, number));
        self.event_queue
            .schedule(time, SimEvent::CompanionTimer(self.companion.generation, number));
    }
}

/// The event in one line of a trace.
fn summarized(event: &Event) -> String {
    match event {
        Event::Frame(conn, frame) => format!("on {}: {:?}", conn.0, frame.event),
        other => format!("{other:?}"),
    }
}
