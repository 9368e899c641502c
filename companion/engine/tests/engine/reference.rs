//! Compares the engine with a slow, independent model: for the same random inputs, both have the same effects after
//! every step.

mod model;

use std::mem::discriminant;
use std::time::Duration;

use penstock_engine::input::{EndpointState, Service, UsageKind};
use penstock_engine::policy::{Admit, Discipline, Gate, Over, Policy};
use penstock_engine::{EndpointId, Engine, Input, Instant, RequestId};
use proptest::prelude::*;

use self::model::{EngineEffects, Model};
use crate::random::{PolicyChoices, Rng, input, next_time, policy};

const START: Instant = Instant::from_nanos(1_000_000_000_000);

/// Features that the runs of one test leave out, so that the order of changes within a step doesn't matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    /// No charge is refunded, so virtual time never goes back.
    Refunds,
    /// No request waits for particular endpoints or for a limit of its flow.
    Lanes,
}

fn policy_choices(disciplines: &[Discipline]) -> PolicyChoices {
    PolicyChoices {
        disciplines: disciplines.to_vec(),
        dynamo: false,
        identities: false,
        evictions: false,
        ..PolicyChoices::all()
    }
}

fn random_policy(rng: &mut Rng, policy_choices: &PolicyChoices, without: Without) -> Policy {
    let mut policy = policy(rng, policy_choices);
    if rng.percent(70) {
        // Long queues, because the order of dispatch matters here.
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
        policy.flows.budgets.retain(|budget| budget.over != Over::Hold);
    }
    policy
}

/// `next` with all settings of `current` whose change the model doesn't know.
fn known_change(current: &Policy, mut next: Policy) -> Policy {
    next.per_model = current.per_model;
    next.classes.clone_from(&current.classes);
    next.order = current.order;
    next.usage_window = current.usage_window;
    next.flows.budgets.clone_from(&current.flows.budgets);
    next.flows.max_in_flight = current.flows.max_in_flight;
    next.flows.max_in_flight_per_endpoint = current.flows.max_in_flight_per_endpoint;
    if current.gate == Gate::Manual || next.gate == Gate::Manual {
        next.gate = current.gate;
    }
    next
}

fn restrict_input(input: Input, policy: &Policy, without: Without) -> Option<Input> {
    Some(match (without, input) {
        // The model doesn't know when room ends by time alone, or when what other engines run fills a window.
        (_, Input::TopUp { .. }) if holds(policy) => return None,
        (_, Input::BudgetUsage { mut settled, .. }) => {
            settled.retain(|usage| usage.kind == UsageKind::Used || !holds(policy));
            Input::BudgetUsage { settled, running: Vec::new() }
        }
        (_, Input::Policy(next)) => Input::Policy(Box::new(known_change(policy, *next))),
        (Without::Refunds, Input::Requeue(_)) => return None,
        (
            Without::Refunds,
            Input::Completed { service: Service::Nothing, .. }
            | Input::Left { service: Service::Nothing, .. }
            | Input::Settle { service: Service::Nothing, .. },
        ) => return None,
        (Without::Lanes, Input::Register(mut request)) => {
            request.eligible = None;
            Input::Register(request)
        }
        (Without::Lanes, Input::Resume(mut request)) => {
            request.eligible = None;
            Input::Resume(request)
        }
        (Without::Lanes, Input::Adopt { mut request, endpoint }) => {
            // It may be requeued later.
            request.eligible = None;
            Input::Adopt { request, endpoint }
        }
        (Without::Lanes, Input::AdmittedByCredit { mut request, place, endpoint }) => {
            request.eligible = None;
            Input::AdmittedByCredit { request, place, endpoint }
        }
        (Without::Lanes, Input::Amend(_) | Input::Relist(_)) => return None,
        (_, input) => input,
    })
}

fn holds(policy: &Policy) -> bool {
    policy.flows.budgets.iter().any(|budget| budget.over == Over::Hold)
}

struct Pair {
    engine: Engine,
    twin: Engine,
    model: Model,
}

impl Pair {
    fn handle(&mut self, now: Instant, input: Option<Input>) -> Result<(), TestCaseError> {
        let mut effects = [&mut self.engine, &mut self.twin].map(|engine| {
            match input.clone() {
                Some(input) => engine.handle(now, input),
                None => engine.handle_timeout(now),
            }
            std::iter::from_fn(|| engine.poll_effect()).collect::<Vec<_>>()
        });
        prop_assert_eq!(&effects[0], &effects[1], "the same seed and inputs gave different effects");
        let mut effects = EngineEffects(std::mem::take(&mut effects[0]).into());
        self.engine.audit().expect("all invariants hold");
        let (engine, model) = (&self.engine, &mut self.model);
        model.step(now, input, &mut effects);
        prop_assert_eq!(effects.0.front(), None, "the engine has effects that the model doesn't expect");
        prop_assert_eq!(engine.poll_timeout(), model.timeout());
        prop_assert_eq!(engine.stock(), model.stock());
        prop_assert_eq!(engine.credit(), model.credit());
        let snapshot = engine.snapshot();
        prop_assert_eq!(snapshot.waiting - snapshot.suspended, model.active().count() as u64);
        prop_assert_eq!(engine.full_bound(), model.full_bound());
        prop_assert_eq!(snapshot.bands.map(|band| band.waiting), model.waiting_by_band());
        prop_assert_eq!(snapshot.counters.arrivals, model.arrivals);
        prop_assert_eq!(snapshot.counters.outcomes_total() + snapshot.waiting, model.arrivals);
        for (&(band, outcome), &count) in &model.outcomes {
            prop_assert_eq!(snapshot.counters.outcome_in(band, outcome), count);
        }
        for flow in &snapshot.flows {
            let finish = model.finish(flow.band, &flow.key);
            prop_assert_eq!(Some(flow.finish), finish.or(Some(flow.finish)), "flow {}", flow.key);
        }
        let deficits: Vec<u64> = snapshot.classes.iter().map(|class| class.deficit).collect();
        prop_assert_eq!(deficits, model.deficits());
        Ok(())
    }
}

/// Each step has a separate seed, so that a failing run can be shortened.
fn run(disciplines: &[Discipline], without: Without, seed: u64, steps: &[u64]) -> Result<(), TestCaseError> {
    let mut rng = Rng::new(seed);
    let policy_choices = policy_choices(disciplines);
    let policy = random_policy(&mut rng, &policy_choices, without);
    let mut pair = Pair {
        engine: Engine::new(policy.clone(), seed, START),
        twin: Engine::new(policy.clone(), seed, START),
        model: Model::new(policy, START),
    };
    for id in 1..=rng.below(5) as u32 {
        let (id, state) = (EndpointId(id), EndpointState::default());
        pair.handle(START, Some(Input::Endpoint { id, state }))?;
    }
    if rng.percent(90) {
        pair.handle(START, Some(Input::Ready))?;
    }
    let mut now = START;
    for &step in steps {
        let mut rng = Rng::new(step);
        now = next_time(&mut rng, now);
        let live: Vec<RequestId> = pair.model.items.iter().map(|item| item.id).collect();
        let next = input(&mut rng, now, &policy_choices, |rng, new| {
            if new || live.is_empty() || rng.percent(10) {
                RequestId(rng.below(1_000))
            } else {
                rng.choose(&live)
            }
        });
        let next = next.and_then(|input| restrict_input(input, &pair.model.policy, without));
        pair.handle(now, next)?;
    }
    Ok(())
}

fn steps() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(any::<u64>().no_shrink(), 1..200)
}

/// Disciplines without virtual time, and those in which it depends only on the order of steps.
const EXACT: [Discipline; 5] =
    [Discipline::Wfq, Discipline::Usage, Discipline::Drr, Discipline::RoundRobin, Discipline::Fifo];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn engine_and_model_have_the_same_effects(seed in any::<u64>().no_shrink(), steps in steps()) {
        run(&EXACT, Without::Refunds, seed, &steps)?;
    }

    #[test]
    fn engine_and_model_have_the_same_effects_with_refunds(seed in any::<u64>().no_shrink(), steps in steps()) {
        run(&Discipline::ALL, Without::Lanes, seed, &steps)?;
    }
}

/// The quantum of a band falls from 70 to 1 during its visit.
#[test]
fn a_smaller_quantum_counts_in_a_present_visit_in_engine_and_model() {
    let steps = [
        11_603_933_073_418_246_173,
        995_906_621_243_524_586,
        3_771_881_295_010_053_800,
        13_435_367_383_960_261_512,
        17_571_401_936_958_096_288,
    ];
    run(&EXACT, Without::Refunds, 12_185_254_663_493_224_170, &steps).unwrap();
}

#[test]
fn a_policy_change_keeps_classes_and_changes_the_discipline() {
    let mut rng = Rng::new(1);
    let policy_choices = policy_choices(&Discipline::ALL);
    let disciplines = (0..20).map(|_| {
        let (first, second) = (policy(&mut rng, &policy_choices), policy(&mut rng, &policy_choices));
        let known = known_change(&first, second);
        assert_eq!(known.classes, first.classes);
        discriminant(&known.flows.discipline) != discriminant(&first.flows.discipline)
    });
    assert!(disciplines.filter(|changed| *changed).count() > 5);
}
