//! Random messages in any order, and streams that break anywhere: all invariants hold after every event, every request has one
//! outcome or waits, and in the end nothing is left.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_control::{CreditSettings, EndpointSettings, Event, Kept, PoolEvent, Rewrite, Settings};
use penstock_engine::Outcome;
use penstock_engine::input::Band;
use penstock_engine::policy::{Discipline, FlowKey, Gate};
use penstock_engine::units::Decimal;
use penstock_model::Parameters;
use penstock_wire as wire;
use wire::filter_frame::Event as Message;

use crate::harness::*;

/// Few sequence numbers, so that they collide.
const SEQUENCES: u64 = 12;
const EPOCHS: u64 = 4;
const EVENTS: usize = 400;
const RUNS: u64 = 300;
/// A server at which two of the requests fit, and a third doesn't.
const KEPT: Kept =
    Kept { parameters: Parameters { alpha_ms: 5.0, beta_ms: 1.0, gamma_ms: 0.03 }, ttft_bias: 1.0 };

/// Numbers that follow from a seed.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % bound
    }

    fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }

    fn address(&mut self) -> String {
        [SERVER, SECOND, THIRD, AGAIN, "", "10.0.0.1:1"][usize::try_from(self.below(6)).expect("small")]
            .into()
    }

    fn register(&mut self) -> wire::Register {
        let sequence = 1 + self.below(SEQUENCES);
        let mut register = if self.one_in(3) {
            let (epoch, before) = (self.below(EPOCHS), 1 + self.below(SEQUENCES));
            again(sequence, epoch, before)
        } else {
            register(sequence)
        };
        if self.one_in(2) {
            register.requeues = u32::try_from(self.below(5)).expect("small");
        }
        register.age_us = self.below(2_000_000);
        if self.one_in(3) {
            register.credit_endpoint = self.address();
        }
        register.untrusted = self.one_in(5);
        if self.one_in(5) {
            register.priority = "critical".into();
        }
        if self.one_in(8) {
            register.pin = self.address();
        }
        if self.one_in(8) {
            register.subset = vec![self.address(), self.address()];
        }
        if self.one_in(8) {
            register.deadline_ms = Some(1 + self.below(5_000));
        }
        if self.one_in(10) {
            register.model = "gpt-9".into();
        }
        if self.one_in(8) {
            register.tolerations = vec!["gpu".into()];
        }
        if self.one_in(8) {
            register.target_model = "a".into();
        }
        register
    }

    /// As it was, but for what the rng say.
    fn settings(&mut self, base: &Settings) -> Settings {
        let mut settings = base.clone();
        settings.policy.digest = format!("d{}", self.below(3));
        settings.pools[0].objectives = vec![("gold".into(), Band::Critical)];
        if self.one_in(3) {
            settings.max_priority.default = Some(Band::Default);
        }
        let rules = &mut settings.pools[0].policy;
        let discipline = usize::try_from(self.below(6)).expect("small");
        rules.flows.discipline = Discipline::ALL[discipline];
        rules.per_model = self.one_in(3);
        rules.queue.total_capacity = self.below(10);
        if self.one_in(4) {
            rules.gate = Gate::Auto { initial: Decimal::whole(1) };
        }
        settings.pools[0].endpoints = self.endpoints();
        if self.one_in(4) {
            settings.pools[0].models = vec!["gpt-*".into()];
        }
        if self.one_in(4) {
            settings.pools[0].rewrite =
                vec![Rewrite { model: "*".into(), targets: vec![("a".into(), 1.0), ("b".into(), 2.0)] }];
            settings.pools[0].flow_key = vec![FlowKey::TargetModel];
            settings.pools[0].class_globs = vec!["llama-*".into()];
        }
        let mut other = base.pools[0].clone();
        other.name = "other".into();
        match self.below(4) {
            0 => settings.pools = vec![other],
            1 => settings.pools.push(other),
            2 => settings.pools.insert(0, other),
            _ => {}
        }
        settings
    }

    fn endpoints(&mut self) -> Vec<EndpointSettings> {
        let mut all = settings_of(&[SERVER, SECOND, THIRD]).pools.remove(0).endpoints;
        all.retain(|_| !self.one_in(3));
        for endpoint in &mut all {
            endpoint.ready = !self.one_in(4);
            if self.one_in(5) {
                endpoint.taints = vec!["gpu".into()];
            }
            if self.one_in(3) {
                endpoint.variant = "other".into();
            }
        }
        all
    }

    fn hello(&mut self, filter: Filter) -> wire::Hello {
        let waiting = (0..self.below(5)).map(|_| self.register()).collect();
        let running = (0..self.below(5)).map(|_| {
            let register = self.register();
            let address = self.address();
            runs_as(register, &address)
        });
        let running = running.collect();
        hello(filter, waiting, running)
    }

    /// A report of a request admitted by credit, with a credit that its filter holds or not.
    fn admitted(&mut self) -> wire::Admitted {
        let register = self.register();
        let sequence = register.sequence;
        let address = self.address();
        let completed = self.one_in(2).then(|| wire::Completed {
            sequence,
            endpoint: self.address(),
            status: 200,
            attempts: 1,
            end: i32::try_from(self.below(6)).expect("small"),
            ..Default::default()
        });
        wire::Admitted { running: Some(runs_as(register, &address)), credit: 1 + self.below(3), completed }
    }

    /// The reports that go before a message: none, one, or several.
    fn reports(&mut self) -> Vec<wire::Admitted> {
        let count = self.below(6).saturating_sub(3);
        (0..count).map(|_| self.admitted()).collect()
    }

    fn message(&mut self) -> Message {
        let sequence = 1 + self.below(SEQUENCES);
        let attempts = u32::try_from(self.below(4)).expect("small");
        match self.below(14) {
            0..=3 => Message::Register(self.register()),
            12 => Message::CreditReturned(wire::CreditReturned {
                pool: ["chat", "other"][usize::from(self.one_in(4))].into(),
                credit: 1 + self.below(3),
            }),
            4 => Message::Cancel(wire::Cancel { sequence }),
            5 => started(sequence, &self.address(), attempts),
            6..=8 => Message::Completed(wire::Completed {
                sequence,
                endpoint: self.address(),
                status: 200,
                attempts,
                end: i32::try_from(self.below(6)).expect("small"),
                ..Default::default()
            }),
            9 => refused(sequence, self.one_in(2)),
            _ => Message::Heartbeat(wire::Heartbeat::default()),
        }
    }
}

/// Counts over all outputs.
#[derive(Default)]
struct Totals {
    arrived: usize,
    ended: usize,
    granted: usize,
    requeued: usize,
    given: usize,
    leased: usize,
}

impl Totals {
    fn take(&mut self, world: &mut World) {
        let taken = world.take();
        let (arrived, decided, refused) = taken.counts();
        self.arrived += arrived;
        self.ended += decided + refused;
        self.granted += taken.granted().len();
        self.requeued += taken.requeued;
        self.given += taken.given();
        let outcomes = taken.outcomes.iter();
        self.leased += outcomes.filter(|outcome| **outcome == Outcome::Leased).count();
    }
}

/// One run: a world, its open streams, and the settings from which reloads start.
struct Run {
    rng: Rng,
    settings: Settings,
    world: World,
    last_conn: u64,
    /// The last stream number of each epoch.
    streams: BTreeMap<u64, u32>,
    open: Vec<u64>,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut settings = Settings { sessions_expected: Some(2), ..settings_of(&[SERVER, SECOND, THIRD]) };
        if seed.is_multiple_of(3) {
            let pool = &mut settings.pools[0];
            pool.policy.gate = Gate::Auto { initial: Decimal::whole(1) };
            if seed.is_multiple_of(2) {
                pool.kept = vec![("default".into(), KEPT)];
            }
        } else if seed.is_multiple_of(2) {
            let pool = &mut settings.pools[0];
            let bound = Decimal::whole(100);
            pool.policy.gate = Gate::requests(bound);
            pool.credit = Some(CreditSettings { busy_min: 1, ..CreditSettings::default() });
        }
        Self {
            rng: Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            world: World::with(settings.clone()),
            settings,
            last_conn: 0,
            streams: BTreeMap::new(),
            open: Vec::new(),
        }
    }

    /// One random event.
    fn step(&mut self) {
        let Self { rng, world, open, .. } = self;
        match rng.below(20) {
            0..=2 => self.open_session(),
            3 if !open.is_empty() => {
                let index = usize::try_from(rng.below(open.len() as u64)).expect("small");
                world.close(open.swap_remove(index));
            }
            4 => world.pass(Duration::from_millis(rng.below(3_000))),
            // No credit is given soon after a request has waited.
            10 | 11 if self.settings.pools[0].credit.is_some() => {
                world.pass(Duration::from_millis(500 + rng.below(1_000)));
            }
            5 => {
                let address = rng.address();
                let ready = rng.one_in(2);
                world.handle(Event::Pool("chat".into(), PoolEvent::EndpointReady { address, ready }));
            }
            8 if rng.one_in(2) => {
                let other = rng.settings(&self.settings);
                world.handle(Event::Settings(Box::new(other)));
            }
            9 if rng.one_in(2) => {
                let endpoints = rng.endpoints();
                world.handle(Event::Pool(
                    "chat".into(),
                    PoolEvent::Endpoints { endpoints, pending: Vec::new() },
                ));
            }
            6 if rng.one_in(5) => world.handle(Event::Drain(rng.one_in(3))),
            7 if rng.one_in(5) && !open.is_empty() => world.send(open[0], Message::Bye(wire::Bye {})),
            _ if !open.is_empty() => {
                let index = usize::try_from(rng.below(open.len() as u64)).expect("small");
                let (reports, message) = (rng.reports(), rng.message());
                world.send_frame(open[index], reports, Some(message));
            }
            _ => {}
        }
    }

    fn open_session(&mut self) {
        self.last_conn += 1;
        let epoch = self.rng.below(EPOCHS);
        let stream = self.streams.entry(epoch).or_default();
        *stream += u32::try_from(self.rng.below(3)).expect("small");
        let filter =
            Filter { epoch, stream: *stream, envoy: self.rng.below(2), can_requeue: self.rng.below(4) > 0 };
        self.world.open(self.last_conn);
        self.world.send(self.last_conn, Message::Hello(self.rng.hello(filter)));
        self.open.push(self.last_conn);
    }

    /// Closes all streams, and checks that nothing is left after the grace period.
    fn finish(&mut self, seed: u64, totals: &mut Totals) {
        for conn in core::mem::take(&mut self.open) {
            self.world.close(conn);
        }
        self.world.pass(Duration::from_secs(20));
        totals.take(&mut self.world);
        let status = self.world.control.status(self.world.now);
        assert!(self.world.control.is_idle(), "seed {seed}: {} requests are left", status.requests);
        assert!(status.sessions.is_empty() && status.envoys == 0, "seed {seed}");
        for pool in &status.pools {
            let snapshot = &pool.snapshot;
            assert_eq!(
                (snapshot.stock, snapshot.draining_stock, snapshot.credit, snapshot.waiting),
                (0, 0, 0, 0),
                "seed {seed}"
            );
            assert!(!pool.retired, "seed {seed}: nothing is left of a retired pool");
        }
        assert_eq!(totals.arrived, totals.ended, "seed {seed}: arrivals and outcomes");
    }
}

fn run(seed: u64) -> Totals {
    let mut run = Run::new(seed);
    let mut totals = Totals::default();
    for _ in 0..EVENTS {
        run.step();
        if run.rng.one_in(3) {
            totals.take(&mut run.world);
        }
    }
    run.finish(seed, &mut totals);
    totals
}

#[test]
fn random_messages_keep_all_invariants_and_leave_nothing() {
    let mut all = Totals::default();
    for seed in 1..=RUNS {
        let totals = run(seed);
        all.arrived += totals.arrived;
        all.granted += totals.granted;
        all.requeued += totals.requeued;
        all.given += totals.given;
        all.leased += totals.leased;
    }
    // The runs must have covered enough.
    assert!(
        all.arrived > 10_000
            && all.granted > 1_000
            && all.requeued > 100
            && all.given > 15
            && all.leased > 300,
        "{} arrived, {} granted, {} requeued, {} credits, {} leased",
        all.arrived,
        all.granted,
        all.requeued,
        all.given,
        all.leased
    );
}
