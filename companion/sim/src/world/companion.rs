//! The companion's process: a control with its inbox, its timer, its clock and its lives.
//!
//! It does what the shell's driver does: takes what is in its inbox, now and then several at once, then carries out
//! what was decided. Each life is a new control of a higher term.

use std::collections::{BTreeMap, VecDeque};

use penstock_control::{ConnId, Control, Event, Observation, Output};
use penstock_engine::{Instant, Outcome};
use penstock_wire::command::Kind;
use penstock_wire::filter_frame::Event as Said;
use penstock_wire::limits::SESSION_GRACE;

use super::World;
use super::agenda::{Due, MICRO, MILLI, Nanos, SECOND};
use super::envoy::Root;

/// What one companion's life said of one pool.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Books {
    pub(super) arrived: u64,
    pub(super) left: u64,
    pub(super) requeued: u64,
}

/// What a companion heard in one batch, by root context and sequence: it may have decided on others before that.
#[derive(Debug, Default)]
struct Heard {
    /// With their ages.
    registered: Vec<((u64, u64), u64)>,
    running: Vec<(u64, u64)>,
    closed: Vec<ConnId>,
    ended: Vec<(u64, u64)>,
}

/// A companion.
#[derive(Debug, Default)]
pub(super) struct Companion {
    pub(super) control: Option<Control>,
    /// Counts the processes.
    pub(super) life: u64,
    /// What it says it is; rises with each life, but for one that shouldn't be.
    pub(super) term: u64,
    /// Nobody answers where it was: not even a refusal.
    pub(super) vanished: bool,
    /// It takes no streams any more.
    pub(super) closed_door: bool,
    pub(super) frozen: bool,
    pub(super) draining: bool,
    pub(super) books: BTreeMap<String, Books>,
    inbox: VecDeque<Event>,
    looks: bool,
    timer: Option<(Nanos, u64)>,
    timers: u64,
    /// By root context, there or gone, the stream that speaks for it.
    speakers: BTreeMap<u64, u64>,
    /// The most filters that spoke to it at a time.
    pub(super) spoke: usize,
    /// When it started, by its clock.
    pub(super) booted: Nanos,
    /// Its clock runs ahead of the world's by so much.
    pub(super) ahead: Nanos,
    batches: u64,
}

impl World {
    /// The companion's clock.
    pub(super) fn companion_now(&self) -> Instant {
        Instant::from_nanos(self.now + self.companion.ahead)
    }

    /// A new companion starts. `elder`: one that filters have heard a later one than.
    pub(super) fn boot(&mut self, elder: bool) {
        if self.companion.control.is_some() {
            return;
        }
        self.companion = Companion {
            life: self.companion.life + 1,
            // A machine's clock survives its processes.
            ahead: self.companion.ahead,
            timers: self.companion.timers,
            booted: self.now + self.companion.ahead,
            ..Companion::default()
        };
        self.companion.term = if elder { 1 } else { self.companion.life + 1 };
        let settings = self.settings_in_force(self.companion.term);
        let now = self.companion_now();
        self.companion.control = Some(Control::new(settings, now));
        for root in self.roots.values_mut() {
            root.companion_forgot();
        }
        let life = self.companion.life;
        self.note(|| format!("companion {life} starts"));
        self.set_timer();
    }

    /// The companion's process is no more. `silently`: nor is its machine.
    pub(super) fn kill_companion(&mut self, silently: bool) {
        if self.companion.control.take().is_none() {
            return;
        }
        let life = self.companion.life;
        self.note(|| format!("companion {life} ends"));
        self.companion.vanished = silently;
        self.companion.frozen = false;
        self.companion.inbox.clear();
        self.companion_gone(silently);
    }

    pub(super) fn tell_companion(&mut self, event: Event) {
        if self.companion.control.is_none() {
            return;
        }
        self.companion.inbox.push_back(event);
        if !self.companion.looks && !self.companion.frozen {
            self.companion.looks = true;
            let wait = self.dice.below(self.setting.batch + 1);
            self.agenda.put(self.now + wait, Due::Inbox(self.companion.life));
        }
    }

    pub(super) fn companion_looks(&mut self, life: u64) {
        if life != self.companion.life || self.companion.control.is_none() || self.companion.frozen {
            return;
        }
        self.companion.looks = false;
        let mut heard = Heard::default();
        for _ in 0..256 {
            let Some(event) = self.companion.inbox.pop_front() else {
                break;
            };
            self.companion_takes(event, &mut heard);
        }
        self.carry_out();
        for conn in heard.closed {
            self.orphan(conn);
        }
        for (root, sequence) in heard.ended {
            if let Some(root) = self.roots.get_mut(&root) {
                root.owed.remove(&sequence);
                root.ended.insert(sequence);
            }
        }
        let slack = self.slack();
        for (at, age_us) in heard.registered {
            let said = self.now.saturating_sub(age_us.saturating_mul(MICRO));
            let http = self.http_of(at).and_then(|id| self.https.get_mut(&id));
            if let Some(http) = http.filter(|it| it.known != life) {
                http.known = life;
                http.unsure = said > http.arrived + slack;
            }
        }
        for at in heard.running {
            if let Some(http) = self.http_of(at).and_then(|id| self.https.get_mut(&id)) {
                http.held = life;
            }
        }
        if !self.companion.inbox.is_empty() && !self.companion.looks {
            self.companion.looks = true;
            self.agenda.put(self.now, Due::Inbox(life));
        }
    }

    fn companion_takes(&mut self, event: Event, heard: &mut Heard) {
        let now = self.companion_now();
        self.note(|| format!("companion takes {}", shown(&event)));
        let mut bye = None;
        match &event {
            Event::Frame(conn, frame) => {
                let root = self.stream_roots.get(&conn.0).copied();
                match (&frame.event, root) {
                    (Some(Said::Hello(hello)), Some(root)) => {
                        if hello.last {
                            self.companion.speakers.insert(root, conn.0);
                            self.companion.spoke = self.companion.spoke.max(self.companion.speakers.len());
                        }
                        heard
                            .registered
                            .extend(hello.waiting.iter().map(|it| ((root, it.sequence), it.age_us)));
                        let running = hello.running.iter().filter_map(|it| it.register.as_ref());
                        heard.running.extend(running.map(|it| (root, it.sequence)));
                        let later = |it: &Root| it.spoken_for.is_none_or(|last| last < conn.0);
                        let of = self.roots.get_mut(&root);
                        if let Some(root) = of.filter(|it| hello.last && later(it)) {
                            root.spoken_for = Some(conn.0);
                            root.orphaned = None;
                        }
                    }
                    (Some(Said::Register(it)), Some(root)) => {
                        heard.registered.push(((root, it.sequence), it.age_us))
                    }
                    (Some(Said::Cancel(it)), Some(root)) => heard.ended.push((root, it.sequence)),
                    (Some(Said::Completed(it)), Some(root)) => heard.ended.push((root, it.sequence)),
                    (Some(Said::Refused(it)), Some(root)) => heard.ended.push((root, it.sequence)),
                    (Some(Said::Bye(_)), Some(root)) => {
                        // A companion that has given the stream up doesn't listen to it any more.
                        bye = (self.companion.speakers.get(&root) == Some(&conn.0)).then_some(root);
                    }
                    _ => {}
                }
            }
            Event::Closed(conn) => heard.closed.push(*conn),
            _ => {}
        }
        if let Some(control) = &mut self.companion.control {
            control.handle(now, event);
        }
        if let Some(root) = bye {
            self.excuse(root);
            self.check_released(root);
        }
    }

    /// The HTTP stream of a root context's request.
    fn http_of(&self, (root, sequence): (u64, u64)) -> Option<u64> {
        self.roots.get(&root)?.https.get(&sequence).copied()
    }

    /// The companion has lost the stream of a root context.
    fn orphan(&mut self, conn: ConnId) {
        let now = self.companion_now();
        let root = self.stream_roots.get(&conn.0);
        self.companion.speakers.retain(|_, speaker| *speaker != conn.0);
        let Some(root) = root.and_then(|root| self.roots.get_mut(root)) else {
            return;
        };
        if root.spoken_for == Some(conn.0) {
            root.spoken_for = None;
            root.orphaned = Some(now);
        }
    }

    pub(super) fn companion_timer(&mut self, life: u64, number: u64) {
        if life != self.companion.life || self.companion.timer.is_none_or(|(_, set)| set != number) {
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
        let over: Vec<u64> = self
            .roots
            .iter()
            .filter(|(_, it)| it.orphaned.is_some_and(|since| since.after(SESSION_GRACE) <= now))
            .map(|(id, _)| *id)
            .collect();
        self.carry_out();
        for root in over {
            if let Some(root) = self.roots.get_mut(&root) {
                root.orphaned = None;
            }
            self.excuse(root);
        }
    }

    /// What this companion granted to that root context it has released: it may run beside what is granted next.
    fn excuse(&mut self, root: u64) {
        let life = self.companion.life;
        for client in self.clients.iter_mut().filter(|it| it.roots.contains(&root)) {
            client.released = life;
        }
        for http in self.https.values_mut().filter(|it| it.root == root) {
            // Its grant may still be on its way.
            http.excused |= http.resumed || http.held == life;
            http.held = 0;
            http.known = 0;
        }
    }

    fn carry_out(&mut self) {
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
                    self.note(|| format!("companion says on {}: {:?}", conn.0, frame));
                    self.send_frame(conn.0, &frame);
                }
                Output::Close(conn, why) => {
                    self.note(|| format!("companion closes {}: {why}", conn.0));
                    self.orphan(conn);
                    self.close_at_companion(conn.0);
                }
                Output::Observe(observation) => self.observe(&observation),
            }
        }
        for (root, sequence) in granted {
            let late = self
                .roots
                .get(&root)
                .is_some_and(|it| it.ended.contains(&sequence));
            if late {
                self.broken(|| {
                    format!("request {sequence} of root {root} was granted after its end was heard")
                });
            }
            if let Some(id) = self.http_of((root, sequence)) {
                self.check_order(id);
                self.check_bound(id);
                if let Some(http) = self.https.get_mut(&id) {
                    http.held = self.companion.life;
                }
            }
        }
        self.companion.batches += 1;
        if self.traced || self.companion.batches.is_multiple_of(16) {
            self.audit_companion();
        }
        self.set_timer();
    }

    fn observe(&mut self, observation: &Observation) {
        if let Observation::Decided {
            labels,
            outcome: Outcome::Bypassed | Outcome::Dispatched,
            ..
        } = observation
        {
            self.check_let_go(&labels.request_id);
        }
        let (labels, arrived, left, requeued) = match observation {
            Observation::Arrived(labels) => (labels, 1, 0, 0),
            Observation::Decided { labels, .. } | Observation::Refused { labels, .. } => (labels, 0, 1, 0),
            Observation::Requeued(labels) => (labels, 0, 0, 1),
            _ => return,
        };
        self.note(|| format!("companion observes {observation:?}"));
        self.check_once(&labels.request_id, arrived > 0, left > 0);
        let books = self.companion.books.entry(labels.pool.to_string()).or_default();
        books.arrived += arrived;
        books.left += left;
        books.requeued += requeued;
        if books.left > books.arrived {
            let pool = labels.pool.clone();
            self.broken(|| format!("pool {pool} has more outcomes than arrivals"));
        }
        self.tally.requeues += requeued;
    }

    fn set_timer(&mut self) {
        let Some(due) = self.companion.control.as_ref().and_then(Control::poll_timeout) else {
            return;
        };
        let at = due.as_nanos().saturating_sub(self.companion.ahead).max(self.now);
        if self.companion.timer.is_some_and(|(set, _)| set <= at) {
            return;
        }
        self.companion.timers += 1;
        let number = self.companion.timers;
        self.companion.timer = Some((at, number));
        self.agenda.put(at, Due::Timer(self.companion.life, number));
    }

    /// For a while the companion does nothing, though it lives.
    pub(super) fn freeze_companion(&mut self, by: Nanos) {
        if self.companion.control.is_some() && !self.companion.frozen {
            self.companion.frozen = true;
            self.agenda.put(self.now + by, Due::Thaw(self.companion.life));
        }
    }

    pub(super) fn thaw_companion(&mut self, life: u64) {
        if life != self.companion.life || !self.companion.frozen {
            return;
        }
        self.companion.frozen = false;
        self.companion.looks = true;
        self.companion.timer = None;
        // A frozen process finds its inbox and its timer at once: either may win.
        if self.dice.percent(50) {
            self.agenda.put(self.now, Due::Inbox(life));
            self.set_timer();
        } else {
            self.set_timer();
            self.agenda.put(self.now, Due::Inbox(life));
        }
    }

    /// Its clock jumps.
    pub(super) fn jump_companion(&mut self, ahead: bool, by: Nanos) {
        let companion = &mut self.companion;
        companion.ahead = if ahead {
            companion.ahead + by
        } else {
            companion.ahead.saturating_sub(by)
        };
        companion.timer = None;
        self.set_timer();
    }

    /// SIGTERM with `reject`.
    pub(super) fn drain_companion(&mut self) {
        if self.companion.control.is_some() && !self.companion.draining {
            self.companion.draining = true;
            self.tell_companion(Event::Drain(true));
            self.agenda
                .put(self.now + 100 * MILLI, Due::Quit(self.companion.life));
        }
    }

    /// SIGTERM with `hand_over`.
    pub(super) fn hand_over(&mut self) {
        if self.companion.control.is_some() && !self.companion.draining {
            self.companion.draining = true;
            self.companion.closed_door = true;
            self.tell_companion(Event::HandOver);
            self.agenda
                .put(self.now + 200 * MILLI, Due::Quit(self.companion.life));
        }
    }

    /// A companion that was told to go ends when nothing runs, or after a while.
    pub(super) fn quit_companion(&mut self, life: u64) {
        if life != self.companion.life || self.companion.control.is_none() {
            return;
        }
        let idle = self.companion.control.as_ref().is_some_and(Control::is_idle);
        if idle || self.companion.closed_door || self.dice.percent(5) {
            self.kill_companion(false);
            let away = self.dice.around(SECOND);
            self.agenda.put(self.now + away, Due::Boot);
        } else {
            self.agenda.put(self.now + 100 * MILLI, Due::Quit(life));
        }
    }
}

/// Short enough for a line.
fn shown(event: &Event) -> String {
    match event {
        Event::Frame(conn, frame) => format!("on {}: {:?}", conn.0, frame.event),
        other => format!("{other:?}"),
    }
}
