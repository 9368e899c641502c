//! Envoys: processes with workers, in each a VM with a root context per plugin configuration.
//!
//! A root context is a filter's worker with what its host keeps for it: a stream, a timer, the HTTP streams. A new
//! configuration puts a second root context beside the first, which drains; a trap takes a whole VM at once, and its
//! HTTP streams are left without anybody; a killed process takes all of it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use penstock_engine::Instant as CompanionTime;
use penstock_filter_core::config::Config;
use penstock_filter_core::effect::Effect;
use penstock_filter_core::process_identity::RandomBits;
use penstock_filter_core::session::{Epoch, SessionEffect};
use penstock_filter_core::shared_data::{SetIf, SharedData};
use penstock_filter_core::time::Instant;
use penstock_filter_core::worker::Worker;

use super::World;
use super::agenda::{Due, MICRO, MILLI, Nanos, SECOND};
use super::network::Up;

/// Values by key, each with its number.
type Values = BTreeMap<String, (Vec<u8>, u32)>;

/// Shared data of an Envoy.
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

/// One Envoy process, or its place while there is none.
#[derive(Debug)]
pub(super) struct Envoy {
    pub(super) alive: bool,
    /// Of its plugin configuration.
    pub(super) version: u64,
    /// The root context that takes new requests, by worker; none: its VM has trapped.
    pub(super) fronts: Vec<Option<u64>>,
    /// The same of the listener where requests enter again.
    pub(super) backs: Vec<Option<u64>>,
    pub(super) shared: Shared,
    /// Its clock runs ahead of the world's by so much.
    pub(super) ahead: Nanos,
    /// A host that isn't in its clusters, though it should be.
    pub(super) blind: Option<String>,
    /// When a companion last let something of it go.
    pub(super) granted_at: Nanos,
    /// Times that it lit up.
    pub(super) lives: u64,
}

/// A root context.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) envoy: usize,
    pub(super) vm: usize,
    pub(super) worker: Worker,
    /// The stream that its host has for it.
    pub(super) stream: Option<u64>,
    pub(super) epoch: u128,
    /// Its VM has trapped: nothing of it moves any more.
    pub(super) dead: bool,
    /// A newer configuration took its place.
    pub(super) draining: bool,
    /// HTTP streams that aren't over, by the worker's number.
    pub(super) https: BTreeMap<u64, u64>,
    tick: Nanos,
    timer: u64,
    /// The stream by which the companion's life knows it.
    pub(super) spoken_for: Option<u64>,
    /// Since when, by the companion's clock, it knows none.
    pub(super) orphaned: Option<CompanionTime>,
    /// Of the latest companion whose word it took.
    pub(super) term: u64,
    /// Requests that are over, of whose end no companion has heard.
    pub(super) owed: BTreeSet<u64>,
    /// Requests whose end the companion has heard.
    pub(super) ended: BTreeSet<u64>,
}

impl Envoy {
    /// A place for one.
    pub(super) fn new(workers: usize) -> Self {
        Self {
            alive: false,
            version: 0,
            fronts: vec![None; workers],
            backs: vec![None; workers],
            shared: Shared::default(),
            ahead: 0,
            blind: None,
            granted_at: 0,
            lives: 0,
        }
    }
}

impl Root {
    /// A new companion knows nothing.
    pub(super) fn companion_forgot(&mut self) {
        self.spoken_for = None;
        self.orphaned = None;
        self.ended.clear();
    }
}

impl World {
    pub(super) fn envoy_now(&self, envoy: usize) -> Instant {
        Instant::from_nanos(self.now + self.envoys[envoy].ahead)
    }

    /// Where an Envoy's requests enter again.
    pub(super) fn reentry(envoy: usize) -> String {
        format!("127.0.0.1:{}", 9_000 + envoy)
    }

    /// An Envoy process starts.
    pub(super) fn light(&mut self, envoy: usize) {
        let workers = self.setting.workers;
        let at = &mut self.envoys[envoy];
        at.alive = true;
        at.lives += 1;
        at.shared = Shared::default();
        at.fronts = vec![None; workers];
        at.backs = vec![None; workers];
        self.note(|| format!("envoy {envoy} starts"));
        for vm in 0..workers {
            self.new_roots(envoy, vm);
        }
    }

    /// The root contexts of the configuration in force begin in one VM.
    fn new_roots(&mut self, envoy: usize, vm: usize) {
        let front = self.new_root(envoy, vm, false);
        self.envoys[envoy].fronts[vm] = Some(front);
        let back = self.new_root(envoy, vm, true);
        self.envoys[envoy].backs[vm] = Some(back);
    }

    fn new_root(&mut self, envoy: usize, vm: usize, reenters: bool) -> u64 {
        self.roots_begun += 1;
        let id = self.roots_begun;
        let epoch = Epoch {
            hi: self.dice.roll(),
            lo: self.dice.roll(),
        };
        let draw = RandomBits {
            epoch,
            envoy: self.dice.roll(),
            key: u128::from(self.dice.roll()).to_le_bytes(),
        };
        let shared = self.envoys[envoy].shared.clone();
        let config = Config {
            companion: "companion".into(),
            node: format!("envoy-{envoy}/{vm}"),
            requeue_listener: Some(Self::reentry(envoy)),
            is_requeue_listener: reenters,
            routes_report_endpoint: self.setting.routes_tell(),
            policy: self.policy_in_force(),
        };
        let now = self.envoy_now(envoy);
        let root = Root {
            envoy,
            vm,
            worker: Worker::new(now, &draw, &config, Box::new(shared)),
            stream: None,
            epoch: u128::from(epoch.hi) << 64 | u128::from(epoch.lo),
            dead: false,
            draining: false,
            https: BTreeMap::new(),
            tick: 0,
            timer: 0,
            spoken_for: None,
            orphaned: None,
            term: 0,
            owed: BTreeSet::new(),
            ended: BTreeSet::new(),
        };
        self.note(|| {
            format!(
                "root {id} begins in envoy {envoy}, worker {vm}, epoch {:016x}",
                epoch.hi
            )
        });
        self.epochs.insert(id, root.epoch);
        self.roots.insert(id, root);
        self.settle_root(id);
        id
    }

    /// Calls a root context's worker, then does what it asks for.
    pub(super) fn with<T>(&mut self, root: u64, call: impl FnOnce(&mut Worker, Instant) -> T) -> Option<T> {
        let of = self.roots.get_mut(&root).filter(|it| !it.dead)?;
        let now = Instant::from_nanos(self.now + self.envoys[of.envoy].ahead);
        let value = call(&mut of.worker, now);
        self.obey(root);
        Some(value)
    }

    fn obey(&mut self, root: u64) {
        while let Some(effect) = self.roots.get_mut(&root).and_then(|it| it.worker.poll_effect()) {
            match effect {
                Effect::Session(order) => self.obey_order(root, order),
                Effect::Resume {
                    context,
                    edits,
                    rewrite,
                } => self.resumed(root, u64::from(context), &edits, rewrite.as_ref()),
                Effect::Reply { context, reply } => {
                    self.answered(root, u64::from(context), &reply);
                }
            }
        }
    }

    fn obey_order(&mut self, root: u64, order: SessionEffect) {
        match order {
            SessionEffect::OpenStream => {
                let stream = self.open_stream(root);
                self.note(|| format!("root {root} opens stream {stream:?}"));
                let Some(of) = self.roots.get_mut(&root) else {
                    return;
                };
                of.stream = stream;
                let now = Instant::from_nanos(self.now + self.envoys[of.envoy].ahead);
                match stream {
                    Some(_) => of.worker.handle_opened(now),
                    None => of.worker.handle_open_failed(now),
                }
            }
            SessionEffect::ResetStream => {
                let stream = self.roots.get_mut(&root).and_then(|it| it.stream.take());
                self.note(|| format!("root {root} cuts stream {stream:?}"));
                if let Some(stream) = stream {
                    self.close_at_filter(stream, false);
                }
            }
            SessionEffect::Send(message) => {
                if let Some(stream) = self.roots.get(&root).and_then(|it| it.stream) {
                    self.send_up(stream, Up::Frame(message));
                }
            }
            SessionEffect::LogWarning(text) | SessionEffect::LogInfo(text) => {
                self.note(|| format!("root {root} logs: {text}"))
            }
        }
    }

    /// After a root's own callback: its timer follows what the worker wants.
    fn settle_root(&mut self, root: u64) {
        let Some(of) = self.roots.get_mut(&root).filter(|it| !it.dead) else {
            return;
        };
        let now = Instant::from_nanos(self.now + self.envoys[of.envoy].ahead);
        let millis = u64::try_from(of.worker.tick_period(now).as_millis()).unwrap_or(u64::MAX);
        let period = millis.max(1) * MILLI;
        if of.tick != period {
            of.tick = period;
            of.timer += 1;
            self.agenda.put(self.now + period, Due::Tick(root, of.timer));
        }
    }

    pub(super) fn ticked(&mut self, root: u64, timer: u64) {
        let Some(of) = self.roots.get(&root).filter(|it| !it.dead && it.timer == timer) else {
            return;
        };
        let period = of.tick;
        self.with(root, Worker::handle_tick);
        // A busy worker's timer comes late.
        let late = self.dice.below(300 * MICRO);
        let before = self.roots.get(&root).map(|it| it.tick);
        self.settle_root(root);
        if self.roots.get(&root).map(|it| it.tick) == before {
            self.agenda.put(self.now + period + late, Due::Tick(root, timer));
        }
    }

    pub(super) fn root_hears(&mut self, root: u64, stream: u64, message: &[u8]) {
        if self.roots.get(&root).is_some_and(|it| it.stream == Some(stream)) {
            let from = self.streams.get(&stream);
            self.by_companion = from.map(|it| (it.life, it.term));
            self.with(root, |worker, now| worker.handle_message(now, message));
            self.by_companion = None;
            self.settle_root(root);
        }
    }

    pub(super) fn root_closed(&mut self, root: u64, stream: u64) {
        let Some(of) = self.roots.get_mut(&root) else {
            return;
        };
        if of.stream == Some(stream) {
            of.stream = None;
            self.note(|| format!("root {root} loses stream {stream}"));
            self.with(root, Worker::handle_closed);
            self.settle_root(root);
        }
    }

    /// A new plugin configuration: new root contexts take what comes, the old ones drain.
    pub(super) fn reconfigure(&mut self, envoy: usize) {
        self.envoys[envoy].version += 1;
        self.note(|| format!("envoy {envoy} is configured anew"));
        for vm in 0..self.setting.workers {
            let old = [self.envoys[envoy].fronts[vm], self.envoys[envoy].backs[vm]];
            if old.contains(&None) {
                // Its VM isn't there; when it is, it has the new configuration.
                continue;
            }
            self.new_roots(envoy, vm);
            for id in old.into_iter().flatten() {
                if let Some(root) = self.roots.get_mut(&id) {
                    root.draining = true;
                }
                // The back listener of the old configuration still serves the streams of the old front ones.
                let least = self.dice.below(2 * SECOND);
                self.agenda.put(self.now + least, Due::Retire(id));
            }
        }
    }

    /// A root context that drains ends with its last HTTP stream.
    pub(super) fn retire(&mut self, root: u64) {
        let Some(of) = self.roots.get(&root).filter(|it| it.draining && !it.dead) else {
            return;
        };
        if !of.https.is_empty() {
            self.agenda.put(self.now + 200 * MILLI, Due::Retire(root));
            return;
        }
        self.note(|| format!("root {root} is done"));
        self.with(root, |worker, _| worker.handle_shutdown());
        if let Some(stream) = self.roots.get_mut(&root).and_then(|it| it.stream.take()) {
            self.close_at_filter(stream, true);
        }
        self.roots.remove(&root);
    }

    /// A VM traps: its root contexts and everything in them stand still.
    pub(super) fn trap(&mut self, envoy: usize, vm: usize) {
        if self.envoys[envoy].fronts[vm].is_none() {
            return;
        }
        self.note(|| format!("envoy {envoy}, worker {vm} traps"));
        self.envoys[envoy].fronts[vm] = None;
        self.envoys[envoy].backs[vm] = None;
        let here: Vec<u64> = self
            .roots
            .iter()
            .filter(|(_, it)| it.envoy == envoy && it.vm == vm)
            .map(|(id, _)| *id)
            .collect();
        for id in here {
            if let Some(root) = self.roots.get_mut(&id) {
                root.dead = true;
            }
            self.orphan_https(id);
            self.bury(id);
        }
        self.agenda
            .put(self.now + 1_200 * MILLI, Due::Revive(envoy as u64, vm));
    }

    /// A trapped root context goes with its last HTTP stream, and then its session's stream is closed.
    pub(super) fn bury(&mut self, root: u64) {
        let over = |it: &Root| it.dead && it.https.is_empty();
        if self.roots.get(&root).is_some_and(over) {
            if let Some(stream) = self.roots.get_mut(&root).and_then(|it| it.stream.take()) {
                self.close_at_filter(stream, true);
            }
            self.roots.remove(&root);
        }
    }

    pub(super) fn revive(&mut self, envoy: usize, vm: usize) {
        if self.envoys[envoy].alive && self.envoys[envoy].fronts[vm].is_none() {
            self.new_roots(envoy, vm);
        }
    }

    /// An Envoy process dies with everything in it. `silently`: its machine does.
    pub(super) fn kill_envoy(&mut self, envoy: usize, silently: bool) {
        if !self.envoys[envoy].alive {
            return;
        }
        self.note(|| format!("envoy {envoy} dies"));
        self.envoys[envoy].alive = false;
        self.envoys[envoy].fronts.fill(None);
        self.envoys[envoy].backs.fill(None);
        self.drop_https(envoy);
        let here: Vec<u64> = self
            .roots
            .iter()
            .filter(|(_, it)| it.envoy == envoy)
            .map(|(id, _)| *id)
            .collect();
        for id in here {
            self.root_gone(id, silently);
            self.roots.remove(&id);
        }
        let away = self.dice.around(SECOND);
        self.agenda.put(self.now + away, Due::Relight(envoy as u64));
    }

    /// Its clock jumps.
    pub(super) fn jump_envoy(&mut self, envoy: usize, ahead: bool, by: Nanos) {
        let of = &mut self.envoys[envoy];
        of.ahead = if ahead {
            of.ahead + by
        } else {
            of.ahead.saturating_sub(by)
        };
    }
}
