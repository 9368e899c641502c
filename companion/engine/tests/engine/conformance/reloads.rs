//! What a change of policy does to two flows that wait: no flow goes many times in a row because of what was counted before.

use penstock_engine::input::{Band, Service};
use penstock_engine::policy::{BandMode, CostUnit, Discipline, Policy};
use penstock_engine::{Input, RequestId};

use crate::conformance::load::{Case, Job, Load, Place};
use crate::random::Rng;
use crate::support::gate;

/// Disciplines under which both flows get the same share of equal requests.
const FAIR: [Discipline; 5] =
    [Discipline::Wfq, Discipline::Usage, Discipline::Vtc, Discipline::Drr, Discipline::RoundRobin];

fn policy(discipline: Discipline, unit: CostUnit) -> Policy {
    let case =
        Case { discipline, unit, weighted_bands: false, classes: false, per_model: false, auto: false };
    let mut policy = case.policy(1);
    policy.flows.weights.clear();
    policy
}

/// A load of the flows `a` and `b`, of which many requests of these estimated and real sizes wait.
fn loaded(policy: Policy, [a, b]: [(u64, u64); 2]) -> Load {
    let mut load = Load::new(policy, 1);
    for _ in 0..4_000 {
        for (flow, (estimate, real)) in [("a", a), ("b", b)] {
            load.register(Job { place: Place::default_for(flow), estimate, real });
        }
    }
    load
}

fn complete(load: &mut Load, requests: usize) {
    for _ in 0..requests {
        load.complete();
    }
}

/// The most requests of one flow in a row among the next ones.
fn longest_run(load: &mut Load, requests: usize) -> usize {
    longest_runs(load, requests).into_iter().max().unwrap_or(0)
}

/// The most requests of a in a row, and of b, among the next ones.
fn longest_runs(load: &mut Load, requests: usize) -> [usize; 2] {
    let start = load.dispatched.len();
    complete(load, requests);
    let flows: Vec<&str> = load.dispatched[start..].iter().map(|one| one.job.place.flow).collect();
    ["a", "b"].map(|flow| {
        let runs = flows.chunk_by(|one, next| one == next).filter(|run| run[0] == flow);
        runs.map(<[&str]>::len).max().unwrap_or(0)
    })
}

#[test]
fn another_unit_of_costs_gives_no_flow_a_long_run() {
    let units = [CostUnit::Tokens, CostUnit::Requests];
    for discipline in FAIR {
        for (before, after) in units.into_iter().zip(units.into_iter().rev()) {
            // The requests of b are long, and longer than estimated: it owes when the change comes.
            let mut load = loaded(policy(discipline, before), [(10, 10), (1_000, 9_000)]);
            complete(&mut load, 1_500);
            load.handle(Input::Policy(Box::new(policy(discipline, after))));
            let longest = longest_run(&mut load, 1_000);
            // Counted in tokens, a visit of a, and what b owes while one request runs, are requests of a.
            let most = match (after, discipline) {
                (CostUnit::Requests, _) | (_, Discipline::RoundRobin) => 3,
                (CostUnit::Tokens, _) => 2 * 9_000 / 10 + 1_024 / 10,
            };
            assert!(longest <= most, "{longest} in a row: {discipline:?} from {before:?}");
        }
    }
}

#[test]
fn another_weight_gives_no_flow_a_long_run() {
    for discipline in FAIR {
        for (before, after) in [(0.001, 1.0), (1_000.0, 1.0)] {
            let with_weight = |weight: f64| {
                let mut policy = policy(discipline, CostUnit::Requests);
                policy.flows.weights.insert("a".into(), weight);
                Input::Policy(Box::new(policy))
            };
            for so_far in [700, 1_000, 1_300] {
                let mut load = loaded(policy(discipline, CostUnit::Requests), [(10, 10), (10, 10)]);
                load.handle(with_weight(before));
                complete(&mut load, so_far);
                load.handle(with_weight(after));
                let [of_a, of_b] = longest_runs(&mut load, 1_000);
                // What was used counts by the weight of its time: under a weight of 0.001 a request of a is worth 1,000 of b.
                let most_of_b = if discipline == Discipline::Usage && before < 1.0 { 1_000 } else { 3 };
                assert!(
                    of_a <= 3 && of_b <= most_of_b,
                    "{of_a} and {of_b} in a row: {discipline:?}, {before} after {so_far}"
                );
            }
        }
    }
}

/// A flow doesn't make up for the time in which it had a smaller weight, nor pay for one in which it had a larger one.
#[test]
fn usage_before_a_change_counts_by_the_weight_of_its_time() {
    for (before, after) in [(1.0, 3.0), (3.0, 1.0), (1.0, 100.0), (100.0, 1.0)] {
        let with_weight = |weight: f64| {
            let mut policy = policy(Discipline::Usage, CostUnit::Tokens);
            policy.flows.weights.insert("a".into(), weight);
            policy
        };
        let mut load = loaded(with_weight(before), [(10, 10), (10, 10)]);
        complete(&mut load, 1_010);
        load.handle(Input::Policy(Box::new(with_weight(after))));
        let start = load.dispatched.len();
        complete(&mut load, 404);
        let of_a = load.dispatched[start..].iter().filter(|one| one.job.place.flow == "a").count() as f64;
        let share = 404.0 * after / (after + 1.0);
        assert!((of_a - share).abs() <= after.max(before) + 2.0, "{of_a} of 404: {before} to {after}");
    }
}

#[test]
fn other_token_weights_give_no_flow_a_long_run() {
    for discipline in FAIR {
        let mut dear = policy(discipline, CostUnit::Tokens);
        dear.weights.input = 1_000.0;
        let mut load = loaded(dear, [(100, 100), (100, 100)]);
        complete(&mut load, 701);
        load.handle(Input::Policy(Box::new(policy(discipline, CostUnit::Tokens))));
        let longest = longest_run(&mut load, 1_000);
        assert!(longest <= 1 + 1_024 / 100, "{longest} in a row: {discipline:?}");
    }
}

#[test]
fn what_ran_before_the_change_is_settled_and_refunded_in_the_new_unit() {
    for discipline in FAIR {
        for is_refund in [false, true] {
            let mut before = policy(discipline, CostUnit::Tokens);
            before.weights.input = 1_000.0;
            before.flows.weights.insert("a".into(), 0.01);
            let mut load = loaded(before, [(100, 100_000), (100, 100)]);
            while load.dispatched.last().is_none_or(|last| last.job.place.flow != "a") {
                load.complete();
            }
            load.handle(Input::Policy(Box::new(policy(discipline, CostUnit::Requests))));
            if is_refund {
                let id = load.dispatched.last().expect("a request was dispatched").id;
                load.refund(id);
            }
            let longest = longest_run(&mut load, 500);
            assert!(longest <= 3, "{longest} in a row: {discipline:?}, refund: {is_refund}");
        }
    }
}

/// A visit that has begun under a large quantum ends as one under a small quantum would.
#[test]
fn a_smaller_quantum_counts_in_a_visit_that_has_begun() {
    let mut wide = policy(Discipline::Drr, CostUnit::Requests);
    wide.flows.default_weight = 100_000.0;
    let mut load = loaded(wide, [(10, 10), (10, 10)]);
    complete(&mut load, 50);
    load.handle(Input::Policy(Box::new(policy(Discipline::Drr, CostUnit::Requests))));
    assert!(longest_run(&mut load, 500) <= 2);
}

/// Strict bands become weighted while requests wait and run, and all that waits is cancelled then or goes on.
#[test]
fn bands_share_by_weight_from_the_change_on() {
    const WEIGHTS: [f64; 3] = [70.0, 20.0, 10.0];
    let in_band = |band, flow| Place { band, ..Place::default_for(flow) };
    let job = |place: &Place| Job { place: place.clone(), estimate: 212, real: 212 };
    let cases = (0..60).flat_map(|seed| [(seed, false), (seed, true)]);
    for (seed, is_cancelled) in cases {
        let discipline = FAIR[seed as usize % FAIR.len()];
        let mut rng = Rng::new(seed);
        let mut strict = policy(discipline, CostUnit::Tokens);
        strict.gate = gate(4, 4);
        strict.flows.weights.insert("acme".into(), 3.0);
        let mut weighted = strict.clone();
        weighted.bands.mode = BandMode::Weighted(WEIGHTS);
        let (batch, beta, acme) = (
            in_band(Band::Sheddable, "batch"),
            in_band(Band::Default, "beta"),
            in_band(Band::Default, "acme"),
        );
        let mut load = Load::new(strict, 1);
        for _ in 0..40 {
            for place in [&batch, &beta, &acme] {
                load.register(job(place));
            }
        }
        complete(&mut load, rng.below(100) as usize);
        load.handle(Input::Policy(Box::new(weighted)));
        if is_cancelled {
            load.cancel_waiting();
        }
        complete(&mut load, rng.below(4) as usize);
        for _ in 0..80 {
            load.register(job(&batch));
        }
        for _ in 0..40 {
            load.register(job(&acme));
            load.register(job(&beta));
        }
        let start = load.dispatched.len();
        complete(&mut load, 60);
        let count_of = |flow: &str| {
            let new = load.dispatched[start..].iter();
            new.filter(|one| one.job.place.flow == flow).count()
        };
        // Of 60 requests a third is of the band with half the weight; a visit more or less is 9 requests, or 4.
        let (default, sheddable) = (count_of("acme") + count_of("beta"), count_of("batch"));
        assert!((29..=51).contains(&default), "{default} and {sheddable}: {discipline:?}, seed {seed}");
        assert!(count_of("acme") > count_of("beta"), "{discipline:?}, seed {seed}");
    }
}

/// Requests that were settled before the change, and still run, don't count again.
#[test]
fn a_settled_request_leaves_no_usage_that_nothing_settles() {
    let mut load = loaded(policy(Discipline::Wfq, CostUnit::Tokens), [(10, 10), (10, 10)]);
    let id = RequestId(load.dispatched[0].id);
    let service = Service::Served(penstock_engine::input::Usage::default());
    load.handle(Input::Settle { id, service });
    load.handle(Input::Policy(Box::new(policy(Discipline::Usage, CostUnit::Tokens))));
    while !load.running.is_empty() {
        load.complete();
    }
    let served: u64 = load.served.values().sum();
    let first = 10;
    assert_eq!(load.harness.engine.snapshot().usage.0, served - first);
}
