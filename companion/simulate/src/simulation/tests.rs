//! Whole runs: conservation, determinism, and results that react to load and servers as expected.

use penstock_engine::input::{Band, Role};
use penstock_engine::policy::{Discipline, Gate};
use penstock_engine::units::Decimal;
use penstock_model::Targets;
use penstock_model_server::Hardware;

use super::*;
use crate::scenarios::{self, Kind};

fn servers(count: usize) -> Vec<ServerSpec> {
    let server = ServerSpec {
        variant: "default".into(),
        hardware: Hardware::default(),
        weight: Decimal::whole(1),
        request_noise: 0.0,
        role: Role::Both,
    };
    vec![server; count]
}

fn goal() -> Goal {
    Goal::Multiple { parameters: parameters(&Hardware::default()), multiplier: 3.0 }
}

/// A bound of this many requests for each server.
fn bound(requests: u64) -> Policy {
    let whole = Decimal::whole(requests);
    Policy { gate: Gate::requests(whole), ..Policy::default() }
}

/// Ten minutes of a scenario in proportion to `base` servers.
fn simulation(kind: Kind, scale: f64, base: usize, count: usize, policy: Policy) -> Simulation {
    let capacity = |mix: &Mix| capacity(&servers(base), mix, &goal());
    let traffic =
        scenarios::traffic(kind, Duration::from_mins(10), scale, 5, capacity).expect("few requests");
    let tenants = traffic.tenants.iter().map(|name| Tenant {
        name: name.clone(),
        flow: name.clone(),
        band: Band::Default,
    });
    Simulation {
        servers: servers(count),
        policy,
        slo: SloPolicy::default(),
        transient: Duration::ZERO,
        placement: Placement::Engine,
        requests: traffic.requests.into(),
        tenants: tenants.collect(),
        warmup: Duration::ZERO,
        seed: 1,
    }
}

fn run(simulation: &Simulation) -> Results {
    simulation.run(&goal(), |_| {}).expect("valid hardware")
}

#[test]
fn every_request_is_served_or_refused() {
    for (kind, scale) in [(Kind::Greedy, 1.0), (Kind::Burst, 1.0), (Kind::Steady, 3.0)] {
        let simulation = simulation(kind, scale, 2, 2, bound(16));
        let results = run(&simulation);
        assert_eq!(results.requests, simulation.requests.len());
        assert_eq!(results.requests, results.served + results.refused, "{kind:?}");
        assert_eq!(results.refused, results.refused_by.values().sum::<usize>());
        let by_tenant: usize = results.tenants.iter().map(|t| t.served + t.refused).sum();
        assert_eq!(by_tenant, results.requests);
        assert_eq!(results.series.arrived.iter().sum::<usize>(), results.requests);
    }
}

#[test]
fn a_run_that_outlasts_its_limit_counts_unfinished_requests() {
    let mut simulation = simulation(Kind::Steady, 1.0, 1, 1, bound(16));
    for server in &mut simulation.servers {
        server.hardware.alpha_ms = 60_000.0;
    }
    let results = run(&simulation);
    assert!(results.unfinished > 0, "an answer takes two hours");
    assert_eq!(results.requests, results.served + results.refused + results.unfinished);
}

#[test]
fn the_same_seed_gives_the_same_results_and_another_one_doesnt() {
    let simulation = simulation(Kind::Greedy, 1.0, 2, 2, bound(16));
    let first = run(&simulation);
    assert_eq!(first, run(&simulation));
    assert_ne!(first, run(&Simulation { seed: 2, ..simulation }));
}

#[test]
fn twice_the_load_queues_and_more_servers_shorten_the_waits() {
    let wait = |scale: f64, count: usize| {
        let results = run(&simulation(Kind::Steady, scale, 2, count, bound(64)));
        results.queue_ms.p99.expect("served requests")
    };
    let (calm, doubled, relieved) = (wait(1.0, 2), wait(2.0, 2), wait(2.0, 5));
    assert!(doubled > 10.0 * calm.max(100.0), "{calm} ms, {doubled} ms");
    assert!(relieved < doubled / 10.0, "{doubled} ms, {relieved} ms");
}

#[test]
fn fair_queueing_keeps_a_greedy_tenant_from_the_small_ones() {
    let mut fair = bound(32);
    fair.queue.flow_capacity = fair.queue.total_capacity;
    let mut fifo = fair.clone();
    fifo.flows.discipline = Discipline::Fifo;
    let small = |policy: Policy| {
        let results = run(&simulation(Kind::Greedy, 1.0, 2, 2, policy));
        assert_eq!(&*results.tenants[0].name, "greedy", "it sends most");
        let worst = results.tenants[1..].iter().filter_map(|t| t.ttft_ms.p99);
        (worst.fold(0.0, f64::max), results.jain)
    };
    let ((fair, fair_jain), (first_come, first_come_jain)) = (small(fair), small(fifo));
    assert!(fair < first_come / 4.0, "{fair} ms, {first_come} ms");
    assert!(fair_jain > 0.98 && first_come_jain < fair_jain, "{fair_jain} {first_come_jain}");
}

#[test]
fn requests_that_no_server_can_hold_are_refused_by_the_servers() {
    let mut simulation = simulation(Kind::Steady, 1.0, 1, 1, bound(16));
    simulation.servers[0].hardware.kv_tokens = 600;
    let results = run(&simulation);
    let by_servers = results.refused_by[crate::results::REFUSED_BY_SERVER];
    assert!(0 < by_servers && by_servers < results.requests, "{results:?}");
}

#[test]
fn a_warm_up_is_simulated_and_not_counted() {
    let whole = simulation(Kind::Steady, 1.0, 2, 3, bound(64));
    let warmup = Duration::from_mins(5);
    let late = Simulation { warmup, ..whole.clone() };
    let record = late.record(|_| {}).expect("valid hardware");
    assert!(record.finished.iter().all(|finished| finished.arrived >= warmup));
    assert!(record.arrived == whole.requests.len(), "all were simulated");
    let (late, whole) = (run(&late), run(&whole));
    assert_eq!(late.requests, late.served + late.refused);
    assert!(late.requests * 3 < whole.requests * 2, "half of the time counts");
    let rates = late.goodput_requests_per_s / whole.goodput_requests_per_s;
    assert!((rates - 1.0).abs() < 0.2, "the rate is that of the counted time: {rates}");
}

#[test]
fn round_robin_gives_each_server_its_turn() {
    let mut simulation = simulation(Kind::Steady, 1.0, 3, 3, bound(16));
    simulation.policy.gate = Gate::Open;
    simulation.placement = Placement::RoundRobin;
    let record = simulation.record(|_| {}).expect("valid hardware");
    let mut finished = record.finished;
    finished.sort_by_key(|finished| finished.arrived);
    assert!(!finished.is_empty());
    for (index, finished) in finished.iter().enumerate() {
        assert_eq!(finished.server, index % 3);
    }
}

#[test]
fn tokens_outside_the_targets_are_wasted() {
    let wasted = |targets| {
        let simulation = simulation(Kind::Steady, 1.0, 2, 2, bound(16));
        let results = simulation.run(&Goal::Targets(targets), |_| {});
        results.expect("valid hardware").wasted
    };
    let targets = |ttft_ms| Targets { ttft_ms, itl_ms: None };
    assert_eq!(wasted(targets(None)), 0.0);
    assert_eq!(wasted(targets(Some(0.001))), 1.0);
    let half = wasted(targets(Some(100.0)));
    assert!(0.0 < half && half < 1.0, "{half}");
}

#[test]
fn capacity_is_that_of_all_servers() {
    let capacity_of = |count: usize| capacity(&servers(count), &Mix::chat(), &goal());
    assert!(capacity_of(1) > 1.0);
    assert!((capacity_of(3) / capacity_of(1) - 3.0).abs() < 1e-9);
    assert_eq!(capacity_of(0), 0.0);
}
