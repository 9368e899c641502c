//! Envoys: processes with workers, in each a VM with a root context per plugin configuration.
//!
//! A root context is a filter's worker with the state that its host keeps for it: a stream, a timer, HTTP streams. A new
//! plugin configuration starts a second root context, and the first one drains. A trap ends all root contexts of a VM
//! and leaves their HTTP streams without a filter. A killed process ends with everything in it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use penstock_engine::Instant as CompanionTime;
use penstock_filter_core::config::Config;
use penstock_filter_core::effect::{Effect, SessionId, StreamAction};
use penstock_filter_core::failed_attempts::FailedAttempts;
use penstock_filter_core::process_identity::RandomBits;
use penstock_filter_core::session::{Epoch, SessionEffect};
use penstock_filter_core::shared_data::{SetIf, SharedData};
use penstock_filter_core::time::Instant;
use penstock_filter_core::worker::Worker;

use super::World;
use super::event::{SimEvent, ToCompanion};
use super::time::{MICRO, MILLI, Nanos, SECOND};

/// Values by key, each with its compare-and-swap number.
type Values = BTreeMap<String, (Vec<u8>, u32)>;

/// An Envoy's shared data.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared(Rc<RefCell<Values>>);

impl SharedData for Shared {
    fn get(&self, key: &str) -> Option<(Vec<u8>, u32)> {
        self.0.borrow().get(key).cloned()
    }

    fn set(&self, key: &str, value: &[u8], condition: SetIf) -> bool {
        let mut all = self.0.borrow_mut();
        let version = all.get(key).map(|(_, version)| *version);
        let holds = condition.holds(version);
        if holds {
            all.insert(key.to_owned(), (value.to_vec(), version.unwrap_or(0) + 1));
        }
        holds
    }
}

impl Shared {
    pub(super) fn len(&self) -> usize {
        self.0.borrow().len()
    }
}

/// One Envoy, whether its process runs or not.
#[derive(Debug)]
pub(super) struct Envoy {
    pub(super) alive: bool,
    /// By worker, the root context of the front listener, which takes clients' requests; `None`: its VM has trapped.
    pub(super) front_roots: Vec<Option<u64>>,
    /// By worker, the root context of the requeue listener.
    pub(super) requeue_roots: Vec<Option<u64>>,
    /// By worker, what the root contexts of its VM share.
    pub(super) failed_attempts: Vec<FailedAttempts>,
    pub(super) shared: Shared,
    /// How far the Envoy's clock is ahead of the world's.
    pub(super) clock_offset: Nanos,
    /// A host that is missing from the Envoy's cluster by fault.
    pub(super) missing_host: Option<String>,
    /// When a companion last granted one of the Envoy's requests.
    pub(super) last_grant_at: Nanos,
}

/// A root context.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) envoy: usize,
    pub(super) vm: usize,
    pub(super) worker: Worker,
    /// The stream that the worker opened.
    pub(super) stream: Option<u64>,
    pub(super) epoch: u128,
    /// The VM has trapped, so the worker is never called again.
    pub(super) dead: bool,
    /// A newer configuration has replaced this one.
    pub(super) draining: bool,
    /// HTTP streams that have not ended, by sequence number.
    pub(super) http_streams: BTreeMap<u64, u64>,
    tick_period: Nanos,
    /// Number of the current tick timer.
    tick_timer: u64,
    /// By companion, what its process knows of this root context.
    pub(super) attachments: Vec<Attachment>,
    /// The companion to which Envoy connects next if the filter names none.
    pub(super) next_companion: usize,
    /// Term of the companion whose grant the worker obeyed last.
    pub(super) term: u64,
    /// Requests that have ended, and whose end no companion has processed.
    pub(super) unreported_ends: BTreeSet<u64>,
}

/// What a companion's process knows of a root context.
#[derive(Clone, Debug, Default)]
pub(super) struct Attachment {
    /// The stream of the root context's session there.
    pub(super) session_stream: Option<u64>,
    /// When the companion lost the session's stream, by the companion's clock.
    pub(super) orphaned_since: Option<CompanionTime>,
    /// Requests whose end the companion has processed.
    pub(super) reported_ends: BTreeSet<u64>,
}

impl Envoy {
    /// An Envoy that is not running.
    pub(super) fn new(workers: usize) -> Self {
        Self {
            alive: false,
            front_roots: vec![None; workers],
            requeue_roots: vec![None; workers],
            failed_attempts: (0..workers).map(|_| FailedAttempts::default()).collect(),
            shared: Shared::default(),
            clock_offset: 0,
            missing_host: None,
            last_grant_at: 0,
        }
    }
}

impl Root {
    /// Whether a companion has processed the end of this request.
    pub(super) fn is_end_reported(&self, sequence: u64) -> bool {
        self.attachments.iter().any(|attachment| attachment.reported_ends.contains(&sequence))
    }
}

impl World {
    pub(super) fn envoy_now(&self, envoy: usize) -> Instant {
        Instant::from_nanos(self.now + self.envoys[envoy].clock_offset)
    }

    /// Address of an Envoy's requeue listener.
    pub(super) fn requeue_address(envoy: usize) -> String {
        format!("127.0.0.1:{}", 9_000 + envoy)
    }

    /// An Envoy process starts.
    pub(super) fn start_envoy(&mut self, index: usize) {
        let workers = self.scenario.workers;
        let envoy = &mut self.envoys[index];
        envoy.alive = true;
        envoy.shared = Shared::default();
        envoy.front_roots = vec![None; workers];
        envoy.requeue_roots = vec![None; workers];
        self.note(|| format!("envoy {index} starts"));
        for vm in 0..workers {
            self.new_vm(index, vm);
        }
    }

    /// A VM starts with the root contexts of the current configuration.
    fn new_vm(&mut self, envoy: usize, vm: usize) {
        self.envoys[envoy].failed_attempts[vm] = FailedAttempts::default();
        self.new_roots(envoy, vm);
    }

    /// Starts the root contexts of the current configuration in one VM.
    fn new_roots(&mut self, envoy: usize, vm: usize) {
        let front = self.new_root(envoy, vm, false);
        self.envoys[envoy].front_roots[vm] = Some(front);
        let back = self.new_root(envoy, vm, true);
        self.envoys[envoy].requeue_roots[vm] = Some(back);
    }

    fn new_root(&mut self, envoy: usize, vm: usize, is_requeue_listener: bool) -> u64 {
        self.roots_created += 1;
        let id = self.roots_created;
        let epoch = Epoch { hi: self.rng.next(), lo: self.rng.next() };
        let random =
            RandomBits { epoch, envoy: self.rng.next(), key: u128::from(self.rng.next()).to_le_bytes() };
        let shared = self.envoys[envoy].shared.clone();
        let failed_attempts = self.envoys[envoy].failed_attempts[vm].clone();
        let config = Config {
            companion: "companion".into(),
            node: format!("envoy-{envoy}/{vm}"),
            requeue_listener: Some(Self::requeue_address(envoy)),
            is_requeue_listener,
            routes_report_endpoint: self.scenario.routes_set_served_header(),
            logs_attempts: true,
            // This Envoy reads the list and the token from headers.
            routes_requeue: false,
            restarts: false,
            keeps_alive: false,
            is_picker: false,
            policy: self.current_policy(),
        };
        let now = self.envoy_now(envoy);
        let root = Root {
            envoy,
            vm,
            worker: Worker::new(now, &random, &config, Box::new(shared)).sharing(failed_attempts),
            stream: None,
            epoch: u128::from(epoch.hi) << 64 | u128::from(epoch.lo),
            dead: false,
            draining: false,
            http_streams: BTreeMap::new(),
            tick_period: 0,
            tick_timer: 0,
            attachments: vec![Attachment::default(); self.companions.len()],
            next_companion: self.random_companion(),
            term: 0,
            unreported_ends: BTreeSet::new(),
        };
        self.note(|| format!("root {id} starts in envoy {envoy}, worker {vm}, epoch {:016x}", epoch.hi));
        self.epochs.insert(id, root.epoch);
        self.roots.insert(id, root);
        self.reschedule_tick(id);
        id
    }

    /// Calls a root context's worker, then applies the worker's effects.
    pub(super) fn call_worker<T>(
        &mut self,
        id: u64,
        call: impl FnOnce(&mut Worker, Instant) -> T,
    ) -> Option<T> {
        let root = self.roots.get_mut(&id).filter(|root| !root.dead)?;
        let now = Instant::from_nanos(self.now + self.envoys[root.envoy].clock_offset);
        let value = call(&mut root.worker, now);
        self.apply_effects(id);
        Some(value)
    }

    /// The companion whose credit has admitted a request, as tenure and term; `None`: its filter has let it go without a companion.
    pub(super) fn named(&self, root: u64, sequence: u64) -> Option<(u64, u64)> {
        let root = self.roots.get(&root)?;
        let stream = self.streams.get(&root.stream?)?;
        root.worker.is_admitted_by_credit(sequence).then_some((stream.tenure, stream.term))
    }

    fn apply_effects(&mut self, root: u64) {
        while let Some(effect) = self.roots.get_mut(&root).and_then(|root| root.worker.poll_effect()) {
            match effect {
                Effect::Session(_, effect) => self.apply_session_effect(root, effect),
                Effect::Stream { context, action } => self.act(root, u64::from(context), action),
                Effect::LogError(text) => self.fail(|| format!("root {root} logs: {text}")),
            }
        }
    }

    fn act(&mut self, root: u64, context: u64, action: StreamAction) {
        match action {
            StreamAction::Resume { edits, rewrite } => self.resume(root, context, &edits, rewrite.as_ref()),
            StreamAction::Reply(reply) => self.answer(root, context, &reply),
            // These Envoys hold no response, and these servers may be silent for ever.
            StreamAction::ResumeResponse { .. } | StreamAction::EndSilentResponse { .. } => {}
            StreamAction::Evict { sequence, reply } => self.evict(root, context, sequence, &reply),
            // These Envoys pass every part of a body at once, so they have received no more.
            StreamAction::CountReceived { sequence } => {
                let reply = self.call_worker(root, |worker, now| worker.handle_received(now, sequence, 0));
                assert!(reply.flatten().is_none());
            }
        }
    }

    fn apply_session_effect(&mut self, id: u64, effect: SessionEffect) {
        match effect {
            SessionEffect::OpenStream { companion } => {
                let stream = self.open_stream(id, companion.as_deref());
                self.note(|| format!("root {id} opens stream {stream:?}"));
                let Some(root) = self.roots.get_mut(&id) else {
                    return;
                };
                root.stream = stream;
                let now = Instant::from_nanos(self.now + self.envoys[root.envoy].clock_offset);
                match stream {
                    Some(_) => root.worker.handle_opened(now, SessionId::MAIN),
                    None => root.worker.handle_open_failed(now, SessionId::MAIN),
                }
            }
            SessionEffect::ResetStream => {
                let stream = self.roots.get_mut(&id).and_then(|root| root.stream.take());
                self.note(|| format!("root {id} resets stream {stream:?}"));
                if let Some(stream) = stream {
                    self.close_at_filter(stream, true);
                }
            }
            SessionEffect::Send(message) => {
                if let Some(stream) = self.roots.get(&id).and_then(|root| root.stream) {
                    self.send_to_companion(stream, ToCompanion::Frame(message));
                }
            }
            SessionEffect::LogWarning(text) | SessionEffect::LogInfo(text) => {
                self.note(|| format!("root {id} logs: {text}"));
            }
        }
    }

    /// Restarts a root context's tick timer if its worker wants another period.
    pub(super) fn reschedule_tick(&mut self, id: u64) {
        let Some(root) = self.roots.get_mut(&id).filter(|root| !root.dead) else {
            return;
        };
        let now = Instant::from_nanos(self.now + self.envoys[root.envoy].clock_offset);
        let millis = u64::try_from(root.worker.tick_period(now).as_millis()).unwrap_or(u64::MAX);
        let period = millis.max(1) * MILLI;
        if root.tick_period != period {
            root.tick_period = period;
            root.tick_timer += 1;
            self.event_queue.schedule(self.now + period, SimEvent::Tick(id, root.tick_timer));
        }
    }

    pub(super) fn handle_tick_event(&mut self, id: u64, timer: u64) {
        let current = |root: &&Root| !root.dead && root.tick_timer == timer;
        let Some(root) = self.roots.get(&id).filter(current) else {
            return;
        };
        let period = root.tick_period;
        self.call_worker(id, Worker::handle_tick);
        // A busy worker's timer fires late.
        let delay = self.rng.below(300 * MICRO);
        let before = self.roots.get(&id).map(|root| root.tick_period);
        self.reschedule_tick(id);
        if self.roots.get(&id).map(|root| root.tick_period) == before {
            self.event_queue.schedule(self.now + period + delay, SimEvent::Tick(id, timer));
        }
    }

    pub(super) fn root_receives(&mut self, id: u64, stream: u64, message: &[u8]) {
        if self.roots.get(&id).is_some_and(|root| root.stream == Some(stream)) {
            let sender = self.streams.get(&stream);
            self.message_source = sender.map(|stream| (stream.tenure, stream.term));
            self.call_worker(id, |worker, now| worker.handle_message(now, SessionId::MAIN, message));
            self.message_source = None;
            self.reschedule_tick(id);
        }
    }

    pub(super) fn root_stream_closed(&mut self, id: u64, stream: u64) {
        let Some(root) = self.roots.get_mut(&id) else {
            return;
        };
        if root.stream == Some(stream) {
            root.stream = None;
            self.note(|| format!("root {id} loses stream {stream}"));
            self.call_worker(id, |worker, now| worker.handle_closed(now, SessionId::MAIN));
            self.reschedule_tick(id);
        }
    }

    /// A new plugin configuration: new root contexts take new requests, the old ones drain.
    pub(super) fn reconfigure(&mut self, envoy: usize) {
        self.note(|| format!("envoy {envoy} gets a new plugin configuration"));
        for vm in 0..self.scenario.workers {
            let old = [self.envoys[envoy].front_roots[vm], self.envoys[envoy].requeue_roots[vm]];
            if old.contains(&None) {
                // The VM has trapped. It starts with the new configuration when it is loaded again.
                continue;
            }
            self.new_roots(envoy, vm);
            for id in old.into_iter().flatten() {
                if let Some(root) = self.roots.get_mut(&id) {
                    root.draining = true;
                }
                // The old requeue listener still serves the streams of the old front listener.
                let drain_time = self.rng.below(2 * SECOND);
                self.event_queue.schedule(self.now + drain_time, SimEvent::RootRetires(id));
            }
        }
    }

    /// A draining root context ends as soon as it has no HTTP stream.
    pub(super) fn retire_root(&mut self, id: u64) {
        let Some(root) = self.roots.get(&id).filter(|root| root.draining && !root.dead) else {
            return;
        };
        if !root.http_streams.is_empty() {
            return self.event_queue.schedule(self.now + 200 * MILLI, SimEvent::RootRetires(id));
        }
        self.note(|| format!("root {id} ends"));
        self.call_worker(id, |worker, _| worker.handle_shutdown());
        if let Some(stream) = self.roots.get_mut(&id).and_then(|root| root.stream.take()) {
            self.close_at_filter(stream, false);
        }
        self.roots.remove(&id);
    }

    /// A VM traps: its root contexts and their HTTP streams make no progress any more.
    pub(super) fn trap(&mut self, envoy: usize, vm: usize) {
        if self.envoys[envoy].front_roots[vm].is_none() {
            return;
        }
        self.note(|| format!("envoy {envoy}, worker {vm} traps"));
        self.envoys[envoy].front_roots[vm] = None;
        self.envoys[envoy].requeue_roots[vm] = None;
        for id in self.root_ids(|root| root.envoy == envoy && root.vm == vm) {
            if let Some(root) = self.roots.get_mut(&id) {
                root.dead = true;
            }
            self.abandon_http_streams(id);
            self.remove_trapped_root(id);
        }
        self.event_queue.schedule(self.now + 1_200 * MILLI, SimEvent::VmReloads(envoy as u64, vm));
    }

    fn root_ids(&self, selects: impl Fn(&Root) -> bool) -> Vec<u64> {
        self.roots.iter().filter(|(_, root)| selects(root)).map(|(id, _)| *id).collect()
    }

    /// A trapped root context is removed with its last HTTP stream; then the stream of its session is closed.
    pub(super) fn remove_trapped_root(&mut self, id: u64) {
        let is_done = |root: &Root| root.dead && root.http_streams.is_empty();
        if self.roots.get(&id).is_some_and(is_done) {
            if let Some(stream) = self.roots.get_mut(&id).and_then(|root| root.stream.take()) {
                self.close_at_filter(stream, false);
            }
            self.roots.remove(&id);
        }
    }

    pub(super) fn reload_vm(&mut self, envoy: usize, vm: usize) {
        if self.envoys[envoy].alive && self.envoys[envoy].front_roots[vm].is_none() {
            self.new_vm(envoy, vm);
        }
    }

    /// An Envoy process ends with everything in it; with `silently` its machine does.
    pub(super) fn kill_envoy(&mut self, envoy: usize, silently: bool) {
        if !self.envoys[envoy].alive {
            return;
        }
        self.note(|| format!("envoy {envoy} is killed"));
        self.envoys[envoy].alive = false;
        self.envoys[envoy].front_roots.fill(None);
        self.envoys[envoy].requeue_roots.fill(None);
        self.drop_http_streams(envoy);
        for id in self.root_ids(|root| root.envoy == envoy) {
            self.drop_root_streams(id, silently);
            self.roots.remove(&id);
        }
        let downtime = self.rng.exponential(SECOND);
        self.event_queue.schedule(self.now + downtime, SimEvent::EnvoyRestarts(envoy as u64));
    }

    /// An Envoy's clock jumps.
    pub(super) fn jump_envoy(&mut self, envoy: usize, ahead: bool, distance: Nanos) {
        let offset = &mut self.envoys[envoy].clock_offset;
        *offset = if ahead { *offset + distance } else { offset.saturating_sub(distance) };
    }
}
