//! Several candidates with one store, under lost and late messages, partitions, crashes, frozen processes and clocks of
//! different rates. At no time may two of them be allowed to grant, and terms only rise.

use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use penstock_election::{
    Answer, Candidate, Holder, Input, KnownEnvoy, Output, Pickers, Record, Report, Request, Role, RoleChange,
    Settings, View,
};
use penstock_engine::Instant;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

const DURATION_US: u64 = 3_000_000;
const NODES: usize = 3;
/// Faults end at this time, and the election must settle until the end.
const FAULTS_US: u64 = 120_000_000;
const END_US: u64 = FAULTS_US + 10 * DURATION_US;

/// How the store finds that a lease has expired.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expiry {
    /// The store's own clock, as in etcd.
    Store,
    /// Each standby's clock: the lease didn't change for its duration, as with Kubernetes.
    Standby,
}

struct Store {
    holder: Option<u64>,
    expires_us: u64,
    record: Option<Record>,
    version: u64,
}

/// What happens at a time.
enum Event {
    /// A request arrives at the store.
    Request(usize, u64, u64, Request),
    /// An answer arrives at a node.
    Answer(usize, u64, u64, Answer),
    /// A node sees the store's state.
    View(usize, u64, View),
    /// The control of a node has found out whether the filters follow.
    Takeover(usize, u64, u64),
    /// A node asks this one for the pool.
    Claim(usize, u64, usize),
    Wake(usize),
    Heal(usize),
    Restart(usize),
    Expire,
    Fault,
    Want,
}

struct Node {
    candidate: Candidate,
    /// Names the process; a restarted one has a new number.
    process: u64,
    rate: f64,
    offset_us: u64,
    connected: bool,
    dead: bool,
    frozen_until_us: u64,
    /// The number of the last request.
    sequence: u64,
    grants_until: Option<Instant>,
    term: u64,
    /// The version and the local time of the last change seen.
    seen: Option<(u64, Instant)>,
}

#[derive(Default, Debug)]
struct Counts {
    leads: u64,
    reacquired: u64,
    unfollowed: u64,
    resigned: u64,
    yielded: u64,
    lost: u64,
    unreachable: u64,
}

struct World {
    seed: u64,
    expiry: Expiry,
    rng: ChaCha8Rng,
    now_us: u64,
    queue: BinaryHeap<std::cmp::Reverse<(u64, u64)>>,
    events: BTreeMap<(u64, u64), Event>,
    next_event: u64,
    next_process: u64,
    store: Store,
    nodes: Vec<Node>,
    highest_led: u64,
    counts: Counts,
}

fn address(node: usize) -> String {
    format!("10.0.0.{node}:9190")
}

impl World {
    fn new(seed: u64, expiry: Expiry) -> Self {
        let mut world = Self {
            seed,
            expiry,
            rng: ChaCha8Rng::seed_from_u64(seed),
            now_us: 0,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            next_event: 0,
            next_process: 0,
            store: Store { holder: None, expires_us: 0, record: None, version: 1 },
            nodes: Vec::new(),
            highest_led: 0,
            counts: Counts::default(),
        };
        for node in 0..NODES {
            let rate = world.rng.random_range(0.975..1.025);
            let offset_us = world.rng.random_range(0..1_000_000_000);
            world.nodes.push(Node {
                candidate: Candidate::new(settings(node, seed), Instant::ZERO, 0),
                process: 0,
                rate,
                offset_us,
                connected: true,
                dead: true,
                frozen_until_us: 0,
                sequence: 0,
                grants_until: None,
                term: 0,
                seen: None,
            });
            world.at(node as u64 * 1_000, Event::Restart(node));
        }
        world.at(1_000_000, Event::Fault);
        world.at(500_000, Event::Want);
        world
    }

    fn at(&mut self, time_us: u64, event: Event) {
        let key = (time_us.max(self.now_us), self.next_event);
        self.next_event += 1;
        self.events.insert(key, event);
        self.queue.push(std::cmp::Reverse(key));
    }

    fn local(&self, node: usize) -> Instant {
        let Node { rate, offset_us, .. } = self.nodes[node];
        let micros = (self.now_us as f64 * rate) as u64 + offset_us;
        Instant::from_nanos(micros * 1_000)
    }

    fn true_us(&self, node: usize, local: Instant) -> u64 {
        let Node { rate, offset_us, .. } = self.nodes[node];
        let micros = (local.as_nanos() / 1_000).saturating_sub(offset_us);
        (micros as f64 / rate) as u64 + 1
    }

    /// The time of arrival of a message; `None`: it is lost.
    fn arrival(&mut self, node: usize) -> Option<u64> {
        if !self.nodes[node].connected {
            return None;
        }
        let is_faulty = self.now_us < FAULTS_US;
        if is_faulty && self.rng.random_bool(0.02) {
            self.counts.lost += 1;
            return None;
        }
        let delay = if is_faulty && self.rng.random_bool(0.05) {
            self.rng.random_range(50_000..4_000_000)
        } else {
            self.rng.random_range(500..20_000)
        };
        Some(self.now_us + delay)
    }

    fn run(&mut self) {
        while let Some(std::cmp::Reverse(key)) = self.queue.pop() {
            self.now_us = key.0;
            if self.now_us > END_US {
                break;
            }
            let event = self.events.remove(&key).expect("queued");
            self.happen(event);
            self.check();
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Request(node, process, sequence, request) => self.serve(node, process, sequence, &request),
            Event::Answer(node, process, sequence, answer) => {
                let is_last = self.nodes[node].sequence == sequence;
                if is_last && self.runs(node, process) {
                    self.input(node, Input::Answered(answer));
                } else {
                    self.retry_when_frozen(node, process, Event::Answer(node, process, sequence, answer));
                }
            }
            Event::View(node, process, view) => {
                if self.runs(node, process) {
                    self.see(node, view);
                } else {
                    self.retry_when_frozen(node, process, Event::View(node, process, view));
                }
            }
            Event::Takeover(node, process, term) => self.end_takeover(node, process, term),
            Event::Claim(node, process, from) if self.runs(node, process) => {
                let (now, to) = (self.local(node), address(from));
                self.counts.yielded += u64::from(self.nodes[node].candidate.yields_to(now, &to));
                self.input(node, Input::Yield { to });
            }
            Event::Claim(..) => {}
            Event::Wake(node) => self.wake(node),
            Event::Heal(node) => {
                self.nodes[node].connected = true;
                self.show(node);
            }
            Event::Restart(node) => self.restart(node),
            Event::Expire => self.expire(),
            Event::Fault => self.fault(),
            Event::Want => {
                for node in 0..NODES {
                    let is_wanted = self.now_us >= FAULTS_US || self.rng.random_bool(0.3);
                    let process = self.nodes[node].process;
                    if is_wanted && self.runs(node, process) {
                        self.input(node, Report::Wanted);
                    }
                }
                self.at(self.now_us + 500_000, Event::Want);
            }
        }
    }

    fn runs(&self, node: usize, process: u64) -> bool {
        let node = &self.nodes[node];
        !node.dead && node.process == process && node.frozen_until_us <= self.now_us
    }

    /// What arrives at a frozen process is read when it goes on.
    fn retry_when_frozen(&mut self, node: usize, process: u64, event: Event) {
        let Node { dead, process: present, frozen_until_us, .. } = self.nodes[node];
        if !dead && present == process && frozen_until_us > self.now_us {
            self.at(frozen_until_us, event);
        }
    }

    fn input(&mut self, node: usize, input: impl Into<Input>) {
        let now = self.local(node);
        self.nodes[node].candidate.handle(now, input.into());
        self.carry_out(node);
    }

    fn wake(&mut self, node: usize) {
        let now = self.local(node);
        let process = self.nodes[node].process;
        if !self.runs(node, process) {
            return;
        }
        if let (Expiry::Standby, Some((version, changed))) = (self.expiry, self.nodes[node].seen)
            && now >= changed.after(Duration::from_micros(DURATION_US))
            && self.nodes[node].candidate.status().role == Role::Standby
        {
            let record = self.store.record.clone();
            self.nodes[node].seen = None;
            // What the node saw last; if that isn't the present state, its requests are refused.
            if self.store.version == version && self.store.holder != Some(process) {
                let holder = Holder::None;
                self.input(node, Input::Observed(View { holder, record, version }));
            }
        }
        if self.nodes[node].candidate.poll_timeout().is_some_and(|due| due <= now) {
            self.nodes[node].candidate.handle_timeout(now);
            self.carry_out(node);
        }
    }

    fn carry_out(&mut self, node: usize) {
        let process = self.nodes[node].process;
        while let Some(output) = self.nodes[node].candidate.poll_output() {
            match output {
                Output::Request(request) => {
                    self.nodes[node].sequence += 1;
                    let sequence = self.nodes[node].sequence;
                    if let Some(arrival) = self.arrival(node) {
                        self.at(arrival, Event::Request(node, process, sequence, request));
                    } else if self.rng.random_bool(0.5) {
                        let fails_at = self.now_us + 1_000;
                        self.at(fails_at, Event::Answer(node, process, sequence, Answer::Failed));
                    }
                }
                Output::Role(change) => self.change(node, change),
                Output::Claim { leader } => {
                    let leader = (0..NODES).find(|node| address(*node) == leader);
                    let leader = leader.expect("a leader is a node");
                    let arrival = self.now_us + self.rng.random_range(100..50_000);
                    let process = self.nodes[leader].process;
                    self.at(arrival, Event::Claim(leader, process, node));
                }
            }
        }
        if let Some(due) = self.nodes[node].candidate.poll_timeout() {
            let due = self.true_us(node, due);
            self.at(due, Event::Wake(node));
        }
    }

    fn change(&mut self, node: usize, change: RoleChange) {
        let process = self.nodes[node].process;
        match change {
            RoleChange::Lead { term, grants_until, .. } => {
                assert!(term > self.highest_led, "terms rise: {term}");
                self.highest_led = term;
                self.counts.leads += 1;
                self.nodes[node].term = term;
                self.nodes[node].grants_until = Some(grants_until);
                let end = self.now_us + self.rng.random_range(10_000..1_000_000);
                self.at(end, Event::Takeover(node, process, term));
            }
            RoleChange::Renewed { term, grants_until } => {
                if term != self.nodes[node].term {
                    assert!(term > self.highest_led, "terms rise: {term}");
                    self.highest_led = term;
                    self.counts.reacquired += 1;
                    self.nodes[node].term = term;
                }
                self.nodes[node].grants_until = Some(grants_until);
            }
            RoleChange::StoreUnreachable { .. } => self.counts.unreachable += 1,
            RoleChange::StandBy { leader, .. } => {
                assert_ne!(leader, Some(address(node)), "no filter is sent to the standby it asks");
                self.nodes[node].grants_until = None;
            }
        }
    }

    fn end_takeover(&mut self, node: usize, process: u64, term: u64) {
        if !self.runs(node, process) {
            return;
        }
        if self.now_us < FAULTS_US && self.rng.random_bool(0.3) {
            self.counts.unfollowed += 1;
            self.input(node, Report::Unfollowed { term });
        } else {
            let envoy = self.rng.random();
            let envoys = vec![KnownEnvoy { envoy, contexts: 1, digest: 7 }];
            self.input(node, Report::Known { term, envoys, pickers: Pickers::default() });
        }
    }

    fn see(&mut self, node: usize, view: View) {
        let now = self.local(node);
        let seen = &mut self.nodes[node].seen;
        if self.expiry == Expiry::Standby && seen.is_none_or(|(version, _)| version < view.version) {
            *seen = Some((view.version, now));
            let due = self.true_us(node, now.after(Duration::from_micros(DURATION_US)));
            self.at(due, Event::Wake(node));
        }
        self.input(node, Input::Observed(view));
    }

    fn serve(&mut self, node: usize, process: u64, sequence: u64, request: &Request) {
        let version = request.version();
        let is_holder = self.store.holder == Some(process);
        let is_current = self.store.version == version;
        let has_expired = self.expiry == Expiry::Store && self.now_us >= self.store.expires_us;
        let is_free = match self.expiry {
            Expiry::Store => self.store.holder.is_none() || has_expired,
            // The standby's clock decides, and the version.
            Expiry::Standby => true,
        };
        let (done, holder, record) = match request {
            Request::Acquire { record, .. } => (is_current && is_free, Some(process), Some(record)),
            Request::Renew { .. } => (is_holder && !has_expired, Some(process), None),
            Request::Write { record, .. } => (is_current && is_holder, Some(process), Some(record)),
            Request::Release { record, .. } => (is_current && is_holder, None, Some(record)),
        };
        // The lease object of Kubernetes changes with each renewal.
        let done = done && (self.expiry == Expiry::Store || is_current);
        if done {
            let extends = !matches!(request, Request::Write { .. });
            self.store.holder = holder;
            if extends {
                self.store.expires_us = self.now_us + DURATION_US;
                self.at(self.store.expires_us, Event::Expire);
            }
            if let Some(record) = record {
                let last = self.store.record.as_ref().map_or(0, |record| record.term);
                assert!(record.term >= last, "terms in the store rise: {} after {last}", record.term);
                self.store.record = Some(record.clone());
            }
            if record.is_some() || self.expiry == Expiry::Standby {
                self.store.version += 1;
                self.show_all();
            }
        }
        let version = self.store.version;
        let answer = if done { Answer::Done { version } } else { Answer::Refused };
        if let Some(arrival) = self.arrival(node) {
            self.at(arrival, Event::Answer(node, process, sequence, answer));
            if !done {
                self.show(node);
            }
        }
    }

    fn expire(&mut self) {
        let has_expired = self.store.holder.is_some() && self.now_us >= self.store.expires_us;
        if self.expiry == Expiry::Store && has_expired {
            self.store.holder = None;
            self.store.version += 1;
            self.show_all();
        }
    }

    fn show_all(&mut self) {
        for node in 0..NODES {
            self.show(node);
        }
    }

    fn show(&mut self, node: usize) {
        let process = self.nodes[node].process;
        let view = View {
            holder: match self.store.holder {
                None => Holder::None,
                Some(holder) if holder == process => Holder::Me,
                Some(_) => Holder::Other,
            },
            record: self.store.record.clone(),
            version: self.store.version,
        };
        match self.arrival(node) {
            Some(arrival) => self.at(arrival, Event::View(node, process, view)),
            // A broken watch connects again and reads the state.
            None if self.nodes[node].connected => self.at(self.now_us + 100_000, Event::Heal(node)),
            None => {}
        }
    }

    fn restart(&mut self, node: usize) {
        let now = self.local(node);
        self.next_process += 1;
        let fresh = &mut self.nodes[node];
        fresh.process = self.next_process;
        fresh.candidate = Candidate::new(settings(node, self.seed), now, self.now_us / 1_000);
        fresh.dead = false;
        fresh.frozen_until_us = 0;
        fresh.seen = None;
        self.show(node);
    }

    fn fault(&mut self) {
        if self.now_us >= FAULTS_US {
            return;
        }
        let node = self.rng.random_range(0..NODES);
        let process = self.nodes[node].process;
        let length = self.rng.random_range(50_000..12_000_000);
        let end = (self.now_us + length).min(FAULTS_US);
        match self.rng.random_range(0..6) {
            0 if !self.nodes[node].dead => {
                self.nodes[node].dead = true;
                self.nodes[node].grants_until = None;
                self.at(end, Event::Restart(node));
            }
            1 => {
                self.nodes[node].connected = false;
                self.at(end, Event::Heal(node));
            }
            2 => {
                self.nodes[node].frozen_until_us = end;
                self.at(end, Event::Wake(node));
            }
            3 if self.runs(node, process) => {
                let term = self.highest_led;
                self.input(node, Report::Superseded { term });
            }
            4 if self.runs(node, process) => {
                self.counts.resigned += 1;
                self.input(node, Input::Resign);
                self.at(self.now_us + 5_000_000, Event::Restart(node));
            }
            _ => {
                let term = self.nodes[node].term;
                let envoy = self.rng.random();
                let envoys = vec![KnownEnvoy { envoy, contexts: 1, digest: 7 }];
                if self.runs(node, process) {
                    self.input(node, Report::Known { term, envoys, pickers: Pickers::default() });
                }
            }
        }
        let next = self.now_us + self.rng.random_range(100_000..5_000_000);
        self.at(next, Event::Fault);
    }

    /// At most one companion is allowed to grant. A frozen one counts: its control would go on at any moment.
    fn check(&self) {
        let grants = |node: &usize| {
            let until = self.nodes[*node].grants_until;
            until.is_some_and(|until| self.local(*node) < until)
        };
        let granting: Vec<_> = (0..NODES).filter(grants).collect();
        assert!(granting.len() <= 1, "{granting:?} may grant at {} us", self.now_us);
    }

    /// The faults are over: one companion leads, and the others know where.
    fn check_settled(&self) {
        let roles: Vec<_> = self.nodes.iter().map(|node| node.candidate.status()).collect();
        let leaders: Vec<_> = (0..NODES).filter(|node| roles[*node].role == Role::Leader).collect();
        let [leader] = leaders[..] else {
            panic!("{roles:?}");
        };
        assert_eq!(self.store.holder, Some(self.nodes[leader].process));
        let until = self.nodes[leader].grants_until.expect("it leads");
        assert!(self.local(leader) < until);
        for role in &roles {
            assert_eq!(role.leader, Some(address(leader)), "{roles:?}");
            assert_eq!(role.term, self.nodes[leader].term);
        }
        let record = self.store.record.as_ref().expect("a leader's");
        assert_eq!((record.term, &record.taking_over_from), (self.nodes[leader].term, &None));
    }
}

/// In half of the worlds the lease is that of a pool.
fn settings(node: usize, seed: u64) -> Settings {
    Settings {
        address: address(node),
        duration: Duration::from_micros(DURATION_US),
        pool: (!seed.is_multiple_of(2)).then(|| format!("pool-{seed}")),
    }
}

fn run_worlds(expiry: Expiry) {
    let mut total = Counts::default();
    for seed in 0..150 {
        let run = std::panic::catch_unwind(|| {
            let mut world = World::new(seed, expiry);
            world.run();
            world.check_settled();
            world.counts
        });
        let counts = run.unwrap_or_else(|_| panic!("seed {seed}"));
        total.leads += counts.leads;
        total.reacquired += counts.reacquired;
        total.unfollowed += counts.unfollowed;
        total.resigned += counts.resigned;
        total.yielded += counts.yielded;
        total.lost += counts.lost;
        total.unreachable += counts.unreachable;
    }
    let happened =
        [total.leads / 10, total.unfollowed, total.resigned, total.yielded, total.lost, total.unreachable];
    assert!(happened.iter().all(|count| *count > 100), "{total:?}");
}

#[test]
fn two_companions_never_grant_at_once_with_a_store_that_expires_leases() {
    run_worlds(Expiry::Store);
}

#[test]
fn two_companions_never_grant_at_once_with_a_store_whose_standbys_expire_leases() {
    run_worlds(Expiry::Standby);
}
