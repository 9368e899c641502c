//! The engine beside its slow model: the same random inputs, the same effects, after every step.

#[path = "../random/mod.rs"]
mod random;

mod model;

use std::mem::discriminant;
use std::time::Duration;

use penstock_engine::input::{EndpointState, Service};
use penstock_engine::policy::{Admit, Discipline, Gate, Policy};
use penstock_engine::{EndpointId, Engine, Input, Instant, RequestId};
use proptest::prelude::*;

use model::{Model, Said};
use random::{Dice, Worlds, input, later, policy};

const START: Instant = Instant::from_nanos(1_000_000_000_000);

/// What the worlds of one test leave out, so that the order of what happens within a step is nobody's to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    /// Nothing that was charged is given back: virtual time never returns.
    Refunds,
    /// Nobody waits for some endpoints only, nor for a limit of his own.
    Lanes,
}

fn worlds(disciplines: &[Discipline]) -> Worlds {
    Worlds {
        disciplines: disciplines.to_vec(),
        dynamo: false,
        identities: false,
        ..Worlds::all()
    }
}

fn drawn(dice: &mut Dice, worlds: &Worlds, without: Without) -> Policy {
    let mut policy = policy(dice, worlds);
    if dice.percent(70) {
        // Long queues: it is who goes next that matters there.
        policy.queue.enabled = true;
        policy.queue.admit = Admit::All;
        policy.queue.total_capacity = 60;
        policy.queue.total_bytes = 1 << 30;
        policy.queue.flow_capacity = 20;
        policy.queue.ttl = Duration::from_secs(10_000);
    }
    if without == Without::Lanes {
        for class in policy.classes.iter_mut().flat_map(|set| &mut set.classes) {
            class.busy_tokens = None;
            class.busy_fraction = None;
        }
        policy.flows.max_in_flight = None;
        policy.flows.max_in_flight_per_endpoint = None;
    }
    policy
}

/// One that `now` may be changed to without building the tree anew.
fn changed(now: &Policy, mut to: Policy) -> Policy {
    to.bands = now.bands.clone();
    to.per_model = now.per_model;
    to.classes.clone_from(&now.classes);
    to.order = now.order;
    to.usage_window = now.usage_window;
    to.flows.discipline = now.flows.discipline;
    to.flows.cost = now.flows.cost;
    to.flows.max_in_flight = now.flows.max_in_flight;
    to.flows.max_in_flight_per_endpoint = now.flows.max_in_flight_per_endpoint;
    if now.gate == Gate::Manual || to.gate == Gate::Manual {
        to.gate = now.gate;
    }
    to
}

fn tamed(input: Input, policy: &Policy, without: Without) -> Option<Input> {
    Some(match (without, input) {
        (_, Input::Policy(to)) => Input::Policy(Box::new(changed(policy, *to))),
        (Without::Refunds, Input::Requeue(_)) => return None,
        (
            Without::Refunds,
            Input::Completed {
                service: Service::Nothing,
                ..
            }
            | Input::Settle {
                service: Service::Nothing,
                ..
            },
        ) => return None,
        (Without::Lanes, Input::Register(mut request)) => {
            request.eligible = None;
            Input::Register(request)
        }
        (Without::Lanes, Input::Resume(mut request)) => {
            request.eligible = None;
            Input::Resume(request)
        }
        (
            Without::Lanes,
            Input::Adopt {
                mut request,
                endpoint,
            },
        ) => {
            // It may be requeued.
            request.eligible = None;
            Input::Adopt { request, endpoint }
        }
        (Without::Lanes, Input::Amend(_) | Input::Relist(_)) => return None,
        (_, input) => input,
    })
}

struct Pair {
    engine: Engine,
    twin: Engine,
    model: Model,
}

impl Pair {
    fn say(&mut self, now: Instant, input: Option<Input>) -> Result<(), TestCaseError> {
        let mut said = [&mut self.engine, &mut self.twin].map(|engine| {
            match input.clone() {
                Some(input) => engine.handle(now, input),
                None => engine.handle_timeout(now),
            }
            std::iter::from_fn(|| engine.poll_effect()).collect::<Vec<_>>()
        });
        prop_assert_eq!(&said[0], &said[1], "the same seed and inputs, but other effects");
        let mut said = Said(std::mem::take(&mut said[0]).into());
        self.engine.audit().expect("all invariants hold");
        let (engine, model) = (&self.engine, &mut self.model);
        model.step(now, input, &mut said);
        prop_assert_eq!(said.0.front(), None, "the engine said too much");
        prop_assert_eq!(engine.poll_timeout(), model.timeout());
        prop_assert_eq!(engine.stock(), model.stock());
        let snapshot = engine.snapshot();
        prop_assert_eq!(
            snapshot.waiting - snapshot.suspended,
            model.active().count() as u64
        );
        prop_assert_eq!(engine.full_bound(), model.full_bound());
        prop_assert_eq!(snapshot.bands.map(|band| band.waiting), model.waiting_by_band());
        prop_assert_eq!(snapshot.counters.arrivals, model.arrivals);
        prop_assert_eq!(
            snapshot.counters.outcomes_total() + snapshot.waiting,
            model.arrivals
        );
        for (&(band, outcome), &count) in &model.outcomes {
            prop_assert_eq!(snapshot.counters.outcome_in(band, outcome), count);
        }
        let deficits: Vec<u64> = snapshot.classes.iter().map(|class| class.deficit).collect();
        prop_assert_eq!(deficits, model.deficits());
        Ok(())
    }
}

/// Steps are drawn each from a seed of its own, so that a failing run can be cut short.
fn run(disciplines: &[Discipline], without: Without, seed: u64, steps: &[u64]) -> Result<(), TestCaseError> {
    let mut dice = Dice::new(seed);
    let worlds = worlds(disciplines);
    let policy = drawn(&mut dice, &worlds, without);
    let mut pair = Pair {
        engine: Engine::new(policy.clone(), seed, START),
        twin: Engine::new(policy.clone(), seed, START),
        model: Model::new(policy, START),
    };
    for id in 1..=dice.below(5) as u32 {
        let (id, state) = (EndpointId(id), EndpointState::default());
        pair.say(START, Some(Input::Endpoint { id, state }))?;
    }
    if dice.percent(90) {
        pair.say(START, Some(Input::Ready))?;
    }
    let mut now = START;
    for &step in steps {
        let mut dice = Dice::new(step);
        now = later(&mut dice, now);
        let live: Vec<RequestId> = pair.model.items.iter().map(|item| item.id).collect();
        let next = input(&mut dice, now, &worlds, |dice, new| {
            if new || live.is_empty() || dice.percent(10) {
                RequestId(dice.below(1_000))
            } else {
                dice.one(&live)
            }
        });
        let next = next.and_then(|input| tamed(input, &pair.model.policy, without));
        pair.say(now, next)?;
    }
    Ok(())
}

fn steps() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(any::<u64>().no_shrink(), 1..200)
}

/// Those whose virtual time, or none, depends on nothing but the order of steps.
const EXACT: [Discipline; 5] = [
    Discipline::Wfq,
    Discipline::Usage,
    Discipline::Drr,
    Discipline::RoundRobin,
    Discipline::Fifo,
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn same_inputs_same_effects(seed in any::<u64>().no_shrink(), steps in steps()) {
        run(&EXACT, Without::Refunds, seed, &steps)?;
    }

    #[test]
    fn same_inputs_same_effects_with_refunds(seed in any::<u64>().no_shrink(), steps in steps()) {
        run(&Discipline::ALL, Without::Lanes, seed, &steps)?;
    }
}

#[test]
fn a_change_keeps_what_makes_the_tree() {
    let mut dice = Dice::new(1);
    let worlds = worlds(&Discipline::ALL);
    let (from, to) = (policy(&mut dice, &worlds), policy(&mut dice, &worlds));
    let kept = changed(&from, to);
    assert_eq!(
        discriminant(&kept.flows.discipline),
        discriminant(&from.flows.discipline)
    );
    assert_eq!(kept.classes, from.classes);
}
