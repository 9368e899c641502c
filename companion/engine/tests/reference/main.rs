//! The engine beside its slow model: the same random inputs, the same effects, after every step.

mod model;

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_engine::input::{Band, ClassKey, EndpointState, Prompt, Service, Usage};
use penstock_engine::policy::{Admit, CostUnit, Flows, Gate, Overflow, Queue, StockUnit};
use penstock_engine::units::{Decimal, Tokens};
use penstock_engine::{EndpointId, Engine, Input, Instant, Policy, Request, RequestId};
use proptest::prelude::*;

use model::{Model, Said};

const START: Instant = Instant::from_nanos(1_000_000_000_000);

fn bands() -> impl Strategy<Value = Band> {
    prop_oneof![1 => Just(Band::Critical), 2 => Just(Band::Default), 2 => Just(Band::Sheddable)]
}

fn requests() -> impl Strategy<Value = Request> {
    let who = (
        0..60_u64,
        prop::sample::select(vec!["", "a", "b", "c", "d"]),
        bands(),
    );
    let cost = (1..500_u64, 0..200_u64, 0..100_u64, prop::option::of(0..100_u64));
    let eligible = prop::option::weighted(0.4, prop::collection::vec((1..6_u32).prop_map(EndpointId), 0..4));
    let when = (
        prop_oneof![4 => Just(u64::MAX), 1 => 0..40_u64],
        prop::option::weighted(0.1, 0..60_u64),
    );
    (who, cost, eligible, when, 0..2_000_u64).prop_map(|(who, cost, eligible, when, bytes)| Request {
        id: RequestId(who.0),
        // Seconds before now, made absolute when it is said.
        arrived: Instant::from_nanos(when.0),
        flow: who.1.into(),
        band: who.2,
        class: ClassKey::default(),
        class_set: 0,
        model: "m".into(),
        prompt: Prompt::Tokens(Tokens(cost.0)),
        cached: Tokens(cost.1),
        expected_output: Some(Tokens(cost.2)),
        max_output: cost.3.map(Tokens),
        body_bytes: bytes,
        strict: 0,
        jump: Duration::ZERO,
        ttft_target: None,
        deadline: when.1.map(Instant::from_nanos),
        eligible: eligible.map(Vec::into_boxed_slice),
    })
}

fn policies() -> impl Strategy<Value = Policy> {
    let quarter = |quarters: u64| Decimal::from_billionths(u128::from(quarters) * Decimal::ONE / 4);
    let gates = prop_oneof![
        1 => Just(Gate::Open),
        9 => (0..10_u64, 0..6_u64).prop_map(move |(lower, more)| Gate::Bounded {
        unit: StockUnit::Requests,
            lower: quarter(lower),
            upper: quarter(lower + more),
            watermark: quarter(lower),
        }),
    ];
    let weights = prop::collection::btree_map(
        prop::sample::select(vec!["a", "b", "anonymous"]).prop_map(Box::<str>::from),
        prop::sample::select(vec![0.25, 0.5, 2.0, 3.0]),
        0..3,
    );
    let queue = (
        0..12_u64,
        500..20_000_u64,
        1..6_u64,
        1..40_u64,
        1..40_u64,
        any::<bool>(),
        0..10_u8,
    );
    (gates, weights, queue, any::<bool>(), 0..5_u64).prop_map(|(gate, weights, queue, tokens, capacity)| {
        Policy {
            queue: Queue {
                enabled: queue.6 > 0,
                total_capacity: queue.0,
                total_bytes: queue.1,
                flow_capacity: queue.2,
                ttl: Duration::from_secs(queue.3),
                no_endpoint_ttl: Duration::from_secs(queue.4),
                overflow: if queue.5 {
                    Overflow::Displace
                } else {
                    Overflow::Reject
                },
                admit: if queue.6 == 1 {
                    Admit::CriticalOnly
                } else {
                    Admit::All
                },
                ..Queue::default()
            },
            gate,
            flows: Flows {
                cost: if tokens {
                    CostUnit::Tokens
                } else {
                    CostUnit::Requests
                },
                weights,
                capacities: BTreeMap::from([("a".into(), capacity + 1)]),
                ..Flows::default()
            },
            ..Policy::default()
        }
    })
}

fn services() -> impl Strategy<Value = Service> {
    let tokens = || prop::option::of((0..600_u64).prop_map(Tokens));
    let usage = (tokens(), tokens(), tokens());
    prop_oneof![
        1 => Just(Service::Nothing),
        3 => usage.prop_map(|(prompt, cached, output)| Service::Served(Usage { prompt, cached, output })),
    ]
}

fn inputs() -> impl Strategy<Value = Option<Input>> {
    let id = || (0..60_u64).prop_map(RequestId);
    let endpoint = || (1..6_u32).prop_map(EndpointId);
    let state = (
        prop::bool::weighted(0.7),
        prop::sample::select(vec![1_u64, 2, 4, 8]),
    );
    let state = state.prop_map(|(ready, quarters)| EndpointState {
        ready,
        weight: Decimal::from_billionths(u128::from(quarters) * Decimal::ONE / 4),
        ..EndpointState::default()
    });
    let input = prop_oneof![
        60 => requests().prop_map(Input::Register),
        40 => (id(), services()).prop_map(|(id, service)| Input::Completed { id, service }),
        10 => id().prop_map(Input::Cancel),
        8 => id().prop_map(Input::Requeue),
        8 => (id(), endpoint()).prop_map(|(id, endpoint)| Input::Sent { id, endpoint }),
        12 => (endpoint(), state).prop_map(|(id, state)| Input::Endpoint { id, state }),
        3 => endpoint().prop_map(Input::EndpointRemoved),
        3 => (endpoint(), prop::option::of(0..6_u64)).prop_map(|(id, running)| Input::Load { id, running }),
        4 => requests().prop_map(Input::Resume),
        4 => (requests(), endpoint()).prop_map(|(request, endpoint)| Input::Adopt { request, endpoint }),
        3 => policies().prop_map(|policy| Input::Policy(Box::new(policy))),
        1 => any::<bool>().prop_map(Input::Drain),
        2 => Just(Input::Drain(false)),
        3 => Just(Input::Ready),
    ];
    prop::option::weighted(0.95, input)
}

/// Milliseconds from one step to the next.
fn pauses() -> impl Strategy<Value = i64> {
    prop_oneof![6 => 0..200_i64, 3 => Just(0), 1 => 0..20_000_i64, 1 => -5_000..0_i64]
}

fn placed(mut input: Input, now: Instant) -> Input {
    if let Input::Register(request) | Input::Resume(request) | Input::Adopt { request, .. } = &mut input {
        let ago = request.arrived.as_nanos();
        request.arrived = if ago == u64::MAX {
            now
        } else {
            now.before(Duration::from_secs(ago))
        };
        let deadline = request
            .deadline
            .map(|in_s| now.after(Duration::from_secs(in_s.as_nanos())));
        request.deadline = deadline;
    }
    input
}

proptest! {
    #[test]
    fn same_inputs_same_effects(
        policy in policies(),
        seed in any::<u64>(),
        endpoints in 0..5_u32,
        ready in prop::bool::weighted(0.9),
        steps in prop::collection::vec((pauses(), inputs()), 1..150),
    ) {
        let mut engine = Engine::new(policy.clone(), seed, START);
        let mut twin = Engine::new(policy.clone(), seed, START);
        let mut model = Model::new(policy, START);
        let state = EndpointState::default();
        let first = (1..=endpoints).map(|id| (0, Some(Input::Endpoint { id: EndpointId(id), state })));
        let first = first.chain(ready.then_some((0, Some(Input::Ready))));
        let mut now = START;
        for (pause, input) in first.chain(steps) {
            now = Instant::from_nanos(now.as_nanos().saturating_add_signed(pause * 1_000_000));
            let input = input.map(|input| placed(input, now));
            let mut said = [&mut engine, &mut twin].map(|engine| {
                match input.clone() {
                    Some(input) => engine.handle(now, input),
                    None => engine.handle_timeout(now),
                }
                std::iter::from_fn(|| engine.poll_effect()).collect::<Vec<_>>()
            });
            prop_assert_eq!(&said[0], &said[1], "the same seed and inputs, but other effects");
            let mut said = Said(std::mem::take(&mut said[0]).into());
            engine.audit().expect("all invariants hold");
            model.step(now, input, &mut said);
            prop_assert_eq!(said.0.front(), None, "the engine said too much");
            prop_assert_eq!(engine.poll_timeout(), model.timeout());
            prop_assert_eq!(engine.stock(), model.stock());
            let snapshot = engine.snapshot();
            prop_assert_eq!(snapshot.bands.map(|band| band.waiting), model.waiting_by_band());
            prop_assert_eq!(snapshot.counters.arrivals, model.arrivals);
            prop_assert_eq!(snapshot.counters.outcomes_total() + snapshot.waiting, model.arrivals);
            for (&(band, outcome), &count) in &model.outcomes {
                prop_assert_eq!(snapshot.counters.outcome_in(band, outcome), count);
            }
            let served_only = |flow: &&penstock_engine::snapshot::FlowSnapshot| {
                model.flow_keys().contains(&(flow.key.clone(), flow.band))
            };
            prop_assert_eq!(snapshot.flows.iter().filter(served_only).count(), model.flow_keys().len());
        }
    }
}
