//! Allowances that no real model computes, under the `auto` gate: the engine doesn't panic, every invariant holds, and
//! no endpoint is idle while a request that may go there waits.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_engine::effect::{Grant, Reject};
use penstock_engine::input::{Band, Prompt, Service, Usage};
use penstock_engine::policy::{Discipline, Gate};
use penstock_engine::units::{Decimal, Tokens};
use penstock_engine::{Allowance, Effect, EndpointId, Engine, Input, Instant, Policy, Request, RequestId};

use crate::random::Rng;
use crate::support::{endpoint_input, gate, policy};

const ENDPOINTS: u64 = 4;
const STEPS: usize = 300;
const WORLDS: u64 = 150;

fn number(rng: &mut Rng) -> f64 {
    rng.choose(&[
        0.0,
        -0.0,
        -1.0,
        f64::MIN_POSITIVE,
        1e-9,
        0.5,
        8.0,
        1e300,
        f64::MAX,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
    ])
}

fn count(rng: &mut Rng) -> u64 {
    rng.choose(&[0, 1, 2, 3, 1_000, u64::MAX - 1, u64::MAX])
}

fn extreme_allowance(rng: &mut Rng) -> Allowance {
    Allowance {
        alpha_ms: number(rng),
        beta_ms: number(rng),
        gamma_ms: number(rng),
        iteration_ms_max: number(rng),
        first_token_ms_max: number(rng),
        ttft_bias: number(rng),
        kv_tokens_max: rng.percent(50).then(|| count(rng)),
        requests_max: rng.percent(50).then(|| count(rng)),
        sequences_max: rng.percent(50).then(|| count(rng)),
        typical: count(rng),
        rate: rng.percent(50).then(|| number(rng)),
    }
}

fn random_policy(rng: &mut Rng) -> Policy {
    let initial = rng.choose(&[0, 1, 2, 8, 1_000_000]);
    let mut policy = policy();
    policy.gate = if rng.percent(85) {
        Gate::Auto { initial: Decimal::whole(initial) }
    } else {
        gate(initial, initial)
    };
    policy.flows.discipline = rng.choose(&Discipline::ALL);
    policy.reject_unmeetable = rng.percent(30);
    policy
}

/// A request that may go wherever the other requests of its flow may, so that no request waits behind one with fewer
/// endpoints.
fn request(rng: &mut Rng, id: u64, now: Instant) -> Request {
    let eligible = rng.percent(60).then(|| members(1 + rng.below((1 << ENDPOINTS) - 1)));
    let tokens = |rng: &mut Rng| Tokens(rng.choose(&[0, 1, 100, 10_000, u64::MAX]));
    Request {
        arrived: now,
        flow: format!("{eligible:?}{}", rng.below(2)).into(),
        band: rng.choose(&[Band::Critical, Band::Default, Band::Sheddable]),
        model: "m".into(),
        prompt: Prompt::Tokens(tokens(rng)),
        cached: tokens(rng),
        expected_output: rng.percent(70).then(|| tokens(rng)),
        deadline: rng.percent(20).then(|| now.after(Duration::from_millis(rng.below(100_000)))),
        eligible,
        ..Request::new(RequestId(id))
    }
}

fn members(set: u64) -> Box<[EndpointId]> {
    let all = (0..ENDPOINTS).filter(|index| set >> index & 1 == 1);
    all.map(|index| EndpointId(index as u32 + 1)).collect()
}

struct World {
    engine: Engine,
    gate: Gate,
    now: Instant,
    /// The waiting requests with their eligible endpoints; `None`: any.
    waiting: BTreeMap<RequestId, Option<Box<[EndpointId]>>>,
    running: Vec<RequestId>,
}

impl World {
    fn handle(&mut self, input: Input) {
        let description = format!("{input:?}");
        match &input {
            Input::Register(request) => {
                self.waiting.insert(request.id, request.eligible.clone());
            }
            Input::Policy(policy) => self.gate = policy.gate,
            _ => {}
        }
        self.engine.handle(self.now, input);
        self.engine.audit().expect("all invariants hold");
        while let Some(effect) = self.engine.poll_effect() {
            match effect {
                Effect::Grant(Grant { id, .. }) => {
                    self.waiting.remove(&id);
                    self.running.push(id);
                }
                Effect::Reject(Reject { id, .. }) | Effect::Cancelled { id, .. } => {
                    self.waiting.remove(&id);
                }
                Effect::Settled { .. }
                | Effect::Evict(_)
                | Effect::Traced(_)
                | Effect::UsageSettled(_)
                | Effect::UsageRunning(_)
                | Effect::Budget(_) => {}
            }
        }
        if !matches!(self.gate, Gate::Auto { .. }) {
            return;
        }
        for endpoint in self.engine.snapshot().endpoints {
            let waits = self.waiting.iter().find(|(_, eligible)| {
                eligible.as_ref().is_none_or(|eligible| eligible.contains(&endpoint.id))
            });
            assert!(
                !endpoint.ready || endpoint.stock > 0 || waits.is_none(),
                "{waits:?} waits for {endpoint:?} after {description}"
            );
        }
    }

    fn complete(&mut self, rng: &mut Rng) {
        if self.running.is_empty() {
            return;
        }
        let index = rng.below(self.running.len() as u64) as usize;
        let id = self.running.swap_remove(index);
        let service = if rng.percent(80) { Service::Served(Usage::default()) } else { Service::Nothing };
        self.handle(Input::Completed { id, service });
    }
}

fn endpoint(rng: &mut Rng) -> EndpointId {
    EndpointId(1 + rng.below(ENDPOINTS) as u32)
}

impl World {
    fn list_all_endpoints(&mut self) {
        for id in 1..=ENDPOINTS as u32 {
            self.handle(endpoint_input(id, true));
        }
    }

    fn step(&mut self, rng: &mut Rng, number: u64) {
        self.now = self.now.after(Duration::from_millis(rng.below(200)));
        let id = endpoint(rng);
        match rng.below(100) {
            0..40 => {
                let request = request(rng, number, self.now);
                self.handle(Input::Register(request));
            }
            40..70 => self.complete(rng),
            70..85 => {
                let allowance = rng.percent(90).then(|| extreme_allowance(rng));
                self.handle(Input::Allowance { id, allowance });
            }
            85..90 => {
                let running = rng.percent(80).then(|| count(rng));
                self.handle(Input::Load { id, running });
            }
            90..94 => {
                let ready = rng.percent(70);
                self.handle(endpoint_input(id.0, ready));
            }
            94..96 => self.handle(Input::EndpointRemoved(id)),
            96..98 => {
                let policy = random_policy(rng);
                self.handle(Input::Policy(Box::new(policy)));
            }
            _ => {
                if let Some(&id) = self.running.first() {
                    let service = Service::Served(Usage::default());
                    self.handle(Input::Settle { id, service });
                }
            }
        }
    }
}

fn run(seed: u64) {
    let mut rng = Rng::new(seed);
    let policy = random_policy(&mut rng);
    let mut world = World {
        gate: policy.gate,
        engine: Engine::new(policy, seed, Instant::ZERO),
        now: Instant::ZERO,
        waiting: BTreeMap::new(),
        running: Vec::new(),
    };
    world.list_all_endpoints();
    world.handle(Input::Ready);
    for number in 1..=STEPS {
        world.step(&mut rng, number as u64);
    }
    world.list_all_endpoints();
    world.handle(Input::Policy(Box::new(Policy {
        gate: Gate::Auto { initial: Decimal::whole(1) },
        ..crate::support::policy()
    })));
    while !world.running.is_empty() {
        world.complete(&mut rng);
    }
    let waiting = &world.waiting;
    assert!(waiting.is_empty(), "{waiting:?} still wait at the end");
}

#[test]
fn no_endpoint_idles_while_an_eligible_request_waits() {
    for number in 0..WORLDS {
        let seed = Rng::new(number).next_u64();
        let outcome = std::panic::catch_unwind(|| run(seed));
        assert!(outcome.is_ok(), "world {seed}");
    }
}
