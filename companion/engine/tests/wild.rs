//! Budgets that no sane model gives, under the auto gate: nothing panics, every invariant holds, and whatever waits, an
//! endpoint where it may go isn't idle.

#[path = "random/dice.rs"]
mod dice;
mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_engine::input::{Band, EndpointState, Prompt, Service, Usage};
use penstock_engine::policy::{Discipline, Gate};
use penstock_engine::units::{Decimal, Tokens};
use penstock_engine::{Budget, Effect, EndpointId, Engine, Input, Instant, Policy, Request, RequestId};

use dice::Dice;
use support::{gate, policy};

const ENDPOINTS: u64 = 4;
const STEPS: usize = 300;
const WORLDS: u64 = 150;

fn number(dice: &mut Dice) -> f64 {
    dice.one(&[
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

fn count(dice: &mut Dice) -> u64 {
    dice.one(&[0, 1, 2, 3, 1_000, u64::MAX - 1, u64::MAX])
}

fn wild(dice: &mut Dice) -> Budget {
    Budget {
        alpha_ms: number(dice),
        beta_ms: number(dice),
        gamma_ms: number(dice),
        iteration_ms_max: number(dice),
        first_token_ms_max: number(dice),
        ttft_bias: number(dice),
        kv_tokens_max: dice.percent(50).then(|| count(dice)),
        requests_max: dice.percent(50).then(|| count(dice)),
        typical: count(dice),
        rate: dice.percent(50).then(|| number(dice)),
    }
}

fn wild_policy(dice: &mut Dice) -> Policy {
    let initial = dice.one(&[0, 1, 2, 8, 1_000_000]);
    let mut policy = policy();
    policy.gate = if dice.percent(85) {
        Gate::Auto {
            initial: Decimal::whole(initial),
        }
    } else {
        gate(initial, initial)
    };
    policy.flows.discipline = dice.one(&Discipline::ALL);
    policy.reject_unmeetable = dice.percent(30);
    policy
}

/// All of a flow may go to the same endpoints, so that nobody waits behind one who may not go where it may.
fn request(dice: &mut Dice, id: u64, now: Instant) -> Request {
    let eligible = dice
        .percent(60)
        .then(|| members(1 + dice.below((1 << ENDPOINTS) - 1)));
    let tokens = |dice: &mut Dice| Tokens(dice.one(&[0, 1, 100, 10_000, u64::MAX]));
    Request {
        arrived: now,
        flow: format!("{eligible:?}{}", dice.below(2)).into(),
        band: dice.one(&[Band::Critical, Band::Default, Band::Sheddable]),
        model: "m".into(),
        prompt: Prompt::Tokens(tokens(dice)),
        cached: tokens(dice),
        expected_output: dice.percent(70).then(|| tokens(dice)),
        deadline: dice
            .percent(20)
            .then(|| now.after(Duration::from_millis(dice.below(100_000)))),
        eligible,
        ..Request::new(RequestId(id))
    }
}

fn members(set: u64) -> Box<[EndpointId]> {
    let all = (0..ENDPOINTS).filter(|it| set >> it & 1 == 1);
    all.map(|it| EndpointId(it as u32 + 1)).collect()
}

struct World {
    engine: Engine,
    gate: Gate,
    now: Instant,
    /// Of those that wait, where they may go; `None`: anywhere.
    waiting: BTreeMap<RequestId, Option<Box<[EndpointId]>>>,
    running: Vec<RequestId>,
}

impl World {
    fn say(&mut self, input: Input) {
        let said = format!("{input:?}");
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
                Effect::Grant { id, .. } => {
                    self.waiting.remove(&id);
                    self.running.push(id);
                }
                Effect::Reject { id, .. } | Effect::Cancelled { id, .. } => {
                    self.waiting.remove(&id);
                }
                Effect::Settled { .. } | Effect::Traced { .. } | Effect::UsageSettled { .. } => {}
            }
        }
        if !matches!(self.gate, Gate::Auto { .. }) {
            return;
        }
        for endpoint in self.engine.snapshot().endpoints {
            let waits = self.waiting.iter().find(|(_, eligible)| {
                eligible
                    .as_ref()
                    .is_none_or(|eligible| eligible.contains(&endpoint.id))
            });
            assert!(
                !endpoint.ready || endpoint.stock > 0 || waits.is_none(),
                "{waits:?} waits for {endpoint:?} after {said}"
            );
        }
    }

    fn complete(&mut self, dice: &mut Dice) {
        if self.running.is_empty() {
            return;
        }
        let at = dice.below(self.running.len() as u64) as usize;
        let id = self.running.swap_remove(at);
        let service = if dice.percent(80) {
            Service::Served(Usage::default())
        } else {
            Service::Nothing
        };
        self.say(Input::Completed { id, service });
    }
}

fn endpoint(dice: &mut Dice) -> EndpointId {
    EndpointId(1 + dice.below(ENDPOINTS) as u32)
}

fn run(seed: u64) {
    let mut dice = Dice::new(seed);
    let policy = wild_policy(&mut dice);
    let mut world = World {
        gate: policy.gate,
        engine: Engine::new(policy, seed, Instant::ZERO),
        now: Instant::ZERO,
        waiting: BTreeMap::new(),
        running: Vec::new(),
    };
    let state = |ready| EndpointState {
        ready,
        ..EndpointState::default()
    };
    for id in 1..=ENDPOINTS as u32 {
        let (id, state) = (EndpointId(id), state(true));
        world.say(Input::Endpoint { id, state });
    }
    world.say(Input::Ready);
    for step in 1..=STEPS {
        world.now = world.now.after(Duration::from_millis(dice.below(200)));
        let id = endpoint(&mut dice);
        match dice.below(100) {
            0..40 => {
                let request = request(&mut dice, step as u64, world.now);
                world.say(Input::Register(request));
            }
            40..70 => world.complete(&mut dice),
            70..85 => {
                let budget = dice.percent(90).then(|| wild(&mut dice));
                world.say(Input::Budget { id, budget });
            }
            85..90 => {
                let running = dice.percent(80).then(|| count(&mut dice));
                world.say(Input::Load { id, running });
            }
            90..94 => {
                let state = state(dice.percent(70));
                world.say(Input::Endpoint { id, state });
            }
            94..96 => world.say(Input::EndpointRemoved(id)),
            96..98 => {
                let policy = wild_policy(&mut dice);
                world.say(Input::Policy(Box::new(policy)));
            }
            _ => {
                if let Some(&of) = world.running.first() {
                    world.say(Input::Settle {
                        id: of,
                        service: Service::Served(Usage::default()),
                    });
                }
            }
        }
    }
    for id in 1..=ENDPOINTS as u32 {
        let (id, state) = (EndpointId(id), state(true));
        world.say(Input::Endpoint { id, state });
    }
    world.say(Input::Policy(Box::new(Policy {
        gate: Gate::Auto {
            initial: Decimal::whole(1),
        },
        ..support::policy()
    })));
    while !world.running.is_empty() {
        world.complete(&mut dice);
    }
    assert!(world.waiting.is_empty(), "{:?} wait for ever", world.waiting);
}

#[test]
fn whatever_the_budgets_no_endpoint_idles_while_somebody_may_go_there() {
    for number in 0..WORLDS {
        let seed = Dice::new(number).roll();
        let outcome = std::panic::catch_unwind(|| run(seed));
        assert!(outcome.is_ok(), "world {seed}");
    }
}
