//! Fair shares: flows get shares in proportion to their weights, within the bound, at every moment and in the long
//! run.

use std::collections::VecDeque;

use penstock_engine::effect::Grant;
use penstock_engine::input::{Band, Prompt, Service, Usage};
use penstock_engine::limits::{FLOWS_MAX, OVERFLOW_FLOWS};
use penstock_engine::policy::{CostUnit, Discipline};
use penstock_engine::units::Tokens;
use penstock_engine::{Effect, Input, RequestId};
use proptest::prelude::*;

use crate::support::*;

/// Estimated and real cost of each request.
type Costs = Vec<(u64, u64)>;

fn costs() -> impl Strategy<Value = Costs> {
    prop::collection::vec((1..2_000_u64, 1..2_000_u64), 40..120)
}

fn backlog(harness: &mut Harness, flow: &str, from: u64, costs: &Costs) {
    for (id, &(estimate, _)) in (from..).zip(costs) {
        let mut request = request(id, flow, Band::Default);
        request.prompt = Prompt::Tokens(Tokens(estimate));
        request.expected_output = Some(Tokens(0));
        harness.effects(Input::Register(request));
    }
}

proptest! {
    /// |W_f/r_f - W_g/r_g| <= (D+1) (L_f/r_f + L_g/r_g) on settled cost, while both flows are backlogged.
    #[test]
    fn shares_stay_within_the_bound(light in costs(), heavy in costs(), slots in 1..8_u64) {
        let mut policy = policy();
        policy.gate = gate(slots, slots);
        policy.flows.cost = CostUnit::Tokens;
        policy.flows.weights.insert("heavy".into(), 3.0);
        policy.queue.flow_capacity = 1_000;
        let mut harness = Harness::new(policy, 1);
        let mut running: VecDeque<u64> = (0..slots).collect();
        for id in 0..slots {
            harness.register(id, "warm", Band::Critical);
        }
        backlog(&mut harness, "light", 1_000, &light);
        backlog(&mut harness, "heavy", 2_000, &heavy);
        let largest = |costs: &Costs| costs.iter().map(|&(a, b)| a.max(b)).max().unwrap_or(0) as f64;
        let bound = (slots as f64 + 1.0) * (largest(&light) + largest(&heavy) / 3.0);
        let (mut left, mut served) = ([light.len(), heavy.len()], [0_u64; 2]);
        while let Some(id) = running.pop_front() {
            let flow = usize::try_from(id / 1_000).expect("small");
            let real = match flow {
                0 => 1,
                1 => light[(id - 1_000) as usize].1,
                _ => heavy[(id - 2_000) as usize].1,
            };
            let usage = Usage { prompt: Some(Tokens(real)), cached: None, output: Some(Tokens(0)) };
            for effect in harness.effects(Input::Completed { id: RequestId(id), service: Service::Served(usage) }) {
                match effect {
                    Effect::Grant(Grant { id, .. }) => {
                        running.push_back(id.0);
                        left[(id.0 / 1_000 - 1) as usize] -= 1;
                    }
                    Effect::Settled { id, cost, .. } if id.0 >= 1_000 => served[(id.0 / 1_000 - 1) as usize] += cost.0,
                    Effect::Settled { .. } | Effect::Evict(_) | Effect::Traced(_) | Effect::UsageSettled(_) | Effect::UsageRunning(_) | Effect::Budget(_) | Effect::Reject(_) | Effect::Cancelled { .. } => {}
                }
            }
            if left.contains(&0) {
                break;
            }
            let gap = (served[0] as f64 - served[1] as f64 / 3.0).abs();
            prop_assert!(gap <= bound, "{gap} > {bound} with {served:?}");
        }
        prop_assert!(left.contains(&0), "the queue stalled with {left:?} left");
    }
}

/// How many of the next `count` requests each of `light` and `greedy` is granted, as the oldest that run end.
fn grants(harness: &mut Harness, running: &mut VecDeque<u64>, count: usize) -> [usize; 2] {
    let mut granted = [0, 0];
    for _ in 0..count {
        let id = running.pop_front().expect("requests run");
        let effects = harness.complete(id);
        let Some(ShortEffect::Dispatched(next, _)) = effects.last() else { panic!("{effects:?}") };
        granted[usize::from(*next >= 1_000)] += 1;
        running.push_back(*next);
    }
    granted
}

/// Room for 16 requests; the weight of `light` is 3.
fn three_to_one(discipline: Discipline) -> Harness {
    let mut policy = policy();
    policy.gate = gate(16, 16);
    policy.flows.discipline = discipline;
    policy.flows.weights.insert("light".into(), 3.0);
    policy.queue.flow_capacity = 1_000;
    Harness::new(policy, 1)
}

#[test]
fn a_flood_that_fills_the_servers_before_others_come_counts() {
    for discipline in [Discipline::Wfq, Discipline::RoundRobin] {
        let mut harness = three_to_one(discipline);
        for id in 1_000..1_100 {
            harness.register(id, "greedy", Band::Default);
        }
        for id in 0..100 {
            harness.register(id, "light", Band::Default);
        }
        let mut running: VecDeque<u64> = (1_000..1_016).collect();
        let granted = grants(&mut harness, &mut running, 48);
        assert!(granted[0] >= 46, "of the 64 so far, 16 are of the greedy one: {granted:?}");
        let [light, greedy] = grants(&mut harness, &mut running, 40);
        assert!((29..=31).contains(&light), "{light} to {greedy}");
    }
}

#[test]
fn what_ended_before_others_came_does_not_count() {
    let mut harness = three_to_one(Discipline::Wfq);
    let mut running = VecDeque::new();
    for id in 1_000..1_200 {
        harness.register(id, "greedy", Band::Default);
        running.push_back(id);
        if running.len() > 2 {
            harness.complete(running.pop_front().expect("three run"));
        }
    }
    for id in 0..100 {
        harness.register(id, "light", Band::Default);
    }
    for id in 1_200..1_300 {
        harness.register(id, "greedy", Band::Default);
    }
    running.extend(0..14);
    // The greedy one runs one more than virtual time has counted, the light one 13: a third of that by its weight.
    let [light, greedy] = grants(&mut harness, &mut running, 40);
    assert!((26..=31).contains(&light), "{light} to {greedy}");
}

#[test]
fn a_flood_that_waits_alone_is_behind_by_what_still_runs_of_it() {
    let mut harness = three_to_one(Discipline::Wfq);
    for id in 1_000..1_200 {
        harness.register(id, "greedy", Band::Default);
    }
    let mut running: VecDeque<u64> = (1_000..1_016).collect();
    assert_eq!(grants(&mut harness, &mut running, 8), [0, 8]);
    for id in 0..100 {
        harness.register(id, "light", Band::Default);
    }
    // Eight of the first sixteen still run, and virtual time has counted one of them.
    let [light, greedy] = grants(&mut harness, &mut running, 24);
    assert!((20..=24).contains(&light), "{light} to {greedy}");
}

#[test]
fn a_refunded_flood_counts_no_more() {
    let mut harness = three_to_one(Discipline::Wfq);
    for id in 1_000..1_016 {
        harness.register(id, "greedy", Band::Default);
    }
    for id in 1_001..1_016 {
        harness.handle(Input::Completed { id: RequestId(id), service: Service::Nothing });
    }
    harness.register(2_000, "other", Band::Default);
    for id in 2_001..2_015 {
        harness.register(id, "other", Band::Critical);
    }
    for id in 1_100..1_140 {
        harness.register(id, "greedy", Band::Default);
    }
    for id in 0..100 {
        harness.register(id, "light", Band::Default);
    }
    let mut running: VecDeque<u64> = (2_000..2_015).collect();
    let [light, greedy] = grants(&mut harness, &mut running, 40);
    assert!((29..=31).contains(&light), "{light} to {greedy}");
}

#[test]
fn beyond_the_limit_new_flows_share_and_are_not_rejected() {
    let mut policy = policy();
    policy.gate = gate(1, 1);
    policy.queue.total_capacity = u64::MAX;
    let mut harness = Harness::new(policy, 1);
    harness.register(0, "x", Band::Critical);
    for id in 1..=FLOWS_MAX as u64 + 1_000 {
        let request = request(id, &format!("flow {id}"), Band::Default);
        harness.engine.handle(harness.now, Input::Register(request));
        assert_eq!(harness.engine.poll_effect(), None);
    }
    harness.engine.audit().expect("all invariants hold");
    let flows = harness.engine.snapshot().flows;
    let shared: Vec<_> = flows.iter().filter(|flow| flow.key.starts_with("overflow-")).collect();
    assert_eq!(flows.len(), FLOWS_MAX + shared.len());
    assert!((32..=OVERFLOW_FLOWS).contains(&shared.len()));
    assert_eq!(shared.iter().map(|flow| flow.waiting).sum::<u64>(), 1_001);
}

#[test]
fn idle_flows_leave_no_state() {
    let mut harness = Harness::new(policy(), 1);
    for id in 0..1_000 {
        let flow = format!("flow {id}");
        assert_eq!(harness.register(id, &flow, Band::Default), [ShortEffect::Bypassed(id, 1)]);
        harness.complete(id);
    }
    let present = |flow: &&penstock_engine::snapshot::FlowSnapshot| flow.finish > 0.0;
    assert_eq!(harness.engine.snapshot().flows.iter().filter(present).count(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The snapshot's lag is never above 1 times the bound, for every discipline with a bound, while flows join and
    /// leave.
    #[test]
    fn the_reported_lag_stays_within_the_bound(
        costs in costs(),
        waits in prop::collection::vec(1..30_usize, 40),
        slots in 1..6_u64,
        discipline in prop::sample::select(vec![Discipline::Wfq, Discipline::RoundRobin, Discipline::Drr]),
    ) {
        let mut policy = policy();
        policy.gate = gate(slots, slots);
        policy.flows.cost = CostUnit::Tokens;
        policy.flows.discipline = discipline;
        policy.flows.weights.insert("b".into(), 3.0);
        policy.queue.flow_capacity = 1_000;
        let mut harness = Harness::new(policy, 1);
        let mut running: VecDeque<u64> = VecDeque::new();
        let (mut next, mut largest) = (0_u64, 0.0_f64);
        for count in waits {
            for _ in 0..count {
                let (estimate, _) = costs[next as usize % costs.len()];
                let flow = ["a", "b", "c"][(next % 7 % 3) as usize];
                let mut request = request(next, flow, Band::Default);
                request.prompt = Prompt::Tokens(Tokens(estimate));
                request.expected_output = Some(Tokens(0));
                for effect in harness.effects(Input::Register(request)) {
                    if let Effect::Grant(Grant { id, .. }) = effect {
                        running.push_back(id.0);
                    }
                }
                next += 1;
            }
            for _ in 0..12 {
                let Some(id) = running.pop_front() else { break };
                let (_, real) = costs[id as usize % costs.len()];
                let usage = Usage { prompt: Some(Tokens(real)), cached: None, output: Some(Tokens(0)) };
                let completed = Input::Completed { id: RequestId(id), service: Service::Served(usage) };
                for effect in harness.effects(completed) {
                    if let Effect::Grant(Grant { id, .. }) = effect {
                        running.push_back(id.0);
                    }
                }
                let gaps = harness.engine.snapshot().fairness_lags;
                prop_assert_eq!(gaps.len(), 3);
                prop_assert_eq!(gaps[0].ratio, 0.0, "no request is critical");
                prop_assert!(gaps[1].ratio <= 1.0, "{:?}", gaps[1]);
                largest = largest.max(gaps[1].ratio);
            }
        }
        prop_assert!(largest > 0.0, "nothing was measured");
    }
}
