//! Short closed loops: learned parameters, the gate's effect, and desired replicas.

mod disaggregation;
mod floods;
mod shared_prefixes;

use std::time::Duration;

use penstock_engine::input::Role;
use penstock_engine::units::Decimal;
use penstock_model::learner::State;
use penstock_model::slo::Policy as SloPolicy;
use penstock_model::{Parameters, Sizing, Targets, Traffic, sizing, slo};
use penstock_model_server::Hardware;

use super::settings::parameters;
use super::*;

const ITL_MS: f64 = 50.0;

fn servers(count: usize, request_noise: f64) -> Vec<ServerSpec> {
    let server = ServerSpec {
        variant: "default".into(),
        hardware: Hardware::default(),
        weight: Decimal::whole(1),
        request_noise,
        role: Role::Both,
    };
    vec![server; count]
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / count
}

#[test]
fn full_server_has_the_iteration_time_of_the_closed_form() {
    let arrivals = Arrivals::steady(Mix::chat(), 20.0);
    for noise in [0.0, 0.1] {
        let scenario =
            Scenario::new(servers(1, noise), GateBy::Watermark(30.0), arrivals.clone()).until_served(3_000);
        let record = run(&scenario).unwrap();
        let itl = mean(record.finished.iter().map(Finished::itl_ms));
        let predicted = parameters(&Hardware::default()).iteration_ms(&Mix::chat().mean(), 30.0);
        assert!((itl / predicted - 1.0).abs() < 0.02, "{itl} ms, not {predicted} at {noise}");
    }
}

#[test]
fn every_arrived_request_is_served_rejected_or_under_way() {
    let arrivals = Arrivals::steady(Mix::mixed(), 20.0);
    let scenario = Scenario::new(servers(2, 0.05), GateBy::Watermark(9.0), arrivals).until_served(2_000);
    let record = run(&scenario).unwrap();
    let last = record.samples.last().unwrap();
    assert_eq!(record.served, record.finished.len());
    assert!(record.rejected > 0 && last.in_flight.iter().all(|n| *n <= 9));
    let under_way = record.arrived - record.served - record.rejected;
    assert!(under_way >= last.in_flight.iter().sum::<usize>() && under_way < 2_000);
}

#[test]
fn same_seed_gives_the_same_run() {
    let scenario = Scenario::new(servers(2, 0.1), GateBy::Learned, Arrivals::steady(Mix::chat(), 20.0))
        .until_served(1_000);
    let (one, other) = (run(&scenario).unwrap(), run(&scenario).unwrap());
    assert_eq!(one.finished, other.finished);
}

#[test]
fn request_noise_spreads_the_time_between_tokens() {
    let arrivals = Arrivals::Closed { clients: 8, mix: Mix::chat().uniform() };
    let spread = |noise| {
        let scenario =
            Scenario::new(servers(1, noise), GateBy::Unlimited, arrivals.clone()).until_served(2_000);
        let record = run(&scenario).unwrap();
        let itl = mean(record.finished.iter().map(Finished::itl_ms));
        let variance = mean(record.finished.iter().map(|finished| (finished.itl_ms() / itl - 1.0).powi(2)));
        (itl, variance.sqrt())
    };
    let predicted = parameters(&Hardware::default()).iteration_ms(&Mix::chat().mean(), 8.0);
    for sigma in [0.05, 0.1] {
        let (itl, deviation) = spread(sigma);
        assert!((deviation / sigma - 1.0).abs() < 0.1, "{deviation}, not {sigma}");
        assert!((itl / predicted - 1.0).abs() < 0.03, "{itl}, not {predicted}");
    }
}

/// A target for the time between tokens. The target for the first token is too high to matter.
fn explicit() -> SloPolicy {
    SloPolicy {
        explicit: Some(Targets { ttft_ms: Some(10_000.0), itl_ms: Some(ITL_MS) }),
        ..SloPolicy::default()
    }
}

/// n* and lambda* at the targets inferred from these parameters.
fn inferred_size(parameters: &Parameters, traffic: &Traffic) -> Sizing {
    let targets = slo::inferred(parameters, traffic, 3.0);
    sizing::size(parameters, traffic, &targets, Some(256.0), 1.0)
}

/// Arrivals at `times` the servers' capacity within inferred targets.
fn overload(mix: &Mix, servers: &[ServerSpec], times: f64) -> Arrivals {
    let capacity =
        |server: &ServerSpec| inferred_size(&parameters(&server.hardware), &mix.mean()).lambda_star;
    let sum: f64 = servers.iter().map(capacity).sum();
    Arrivals::steady(mix.clone(), times * sum)
}

#[test]
fn true_allowances_keep_the_target_with_every_mix() {
    for mix in [Mix::chat(), Mix::long(), Mix::mixed()] {
        let mut scenario = Scenario::new(servers(1, 0.0), GateBy::Truth, Arrivals::steady(mix.clone(), 20.0))
            .until_served(1_000);
        scenario.slo = explicit();
        let itl = mean(run(&scenario).unwrap().finished.iter().map(Finished::itl_ms));
        assert!(0.75 * ITL_MS < itl && itl < ITL_MS, "{itl} ms of {}", mix.name);
    }
}

#[test]
fn parameters_learned_behind_their_own_gate_are_accurate() {
    for mix in [Mix::chat(), Mix::long()] {
        let servers = servers(2, 0.05);
        let arrivals = overload(&mix, &servers, 1.2);
        let record = run(&Scenario::new(servers, GateBy::Learned, arrivals).until_served(2_000)).unwrap();
        let last = &record.samples.last().unwrap().status.variants[0];
        let (found, truth) = (
            inferred_size(&last.parameters.unwrap(), &mix.mean()),
            inferred_size(&parameters(&Hardware::default()), &mix.mean()),
        );
        let off = |found: f64, truth: f64| (found / truth - 1.0).abs();
        assert!(off(found.n_star.unwrap(), truth.n_star.unwrap()) < 0.1, "{found:?} of {truth:?}");
        assert!(off(found.lambda_star, truth.lambda_star) < 0.1, "{found:?} of {truth:?}");
    }
}

#[test]
fn single_operating_point_is_unidentifiable() {
    let arrivals = Arrivals::Closed { clients: 8, mix: Mix::chat().uniform() };
    let record =
        run(&Scenario::new(servers(1, 0.05), GateBy::Unlimited, arrivals).until_served(3_000)).unwrap();
    let last = &record.samples.last().unwrap().status.variants[0];
    assert_eq!((last.state, last.parameters), (State::Unidentifiable, None));
}

#[test]
fn each_server_runs_at_its_own_limit() {
    let fast = Hardware::default();
    let slow = ServerSpec {
        variant: "slow".into(),
        hardware: Hardware {
            alpha_ms: 2.0 * fast.alpha_ms,
            beta_ms: 2.0 * fast.beta_ms,
            gamma_ms: 2.0 * fast.gamma_ms,
            ..fast
        },
        weight: Decimal::whole(1),
        request_noise: 0.05,
        role: Role::Both,
    };
    let mut servers = servers(1, 0.05);
    servers.push(slow);
    let mut scenario = Scenario::new(servers, GateBy::Learned, Arrivals::steady(Mix::chat(), 25.0));
    scenario.slo = explicit();
    (scenario.warmup, scenario.duration) = (Duration::from_secs(200), Some(Duration::from_secs(300)));
    let record = run(&scenario).unwrap();
    for server in 0..2 {
        let finished = || record.finished.iter().filter(|finished| finished.server == server);
        let itl = mean(finished().map(Finished::itl_ms));
        let over = finished().filter(|finished| finished.itl_ms() > ITL_MS).count() as f64
            / finished().count() as f64;
        assert!(itl > 0.75 * ITL_MS && over < 0.05, "{itl} ms, {over} over at {server}");
    }
}

#[test]
fn desired_replicas_follow_the_load() {
    let servers = servers(2, 0.05);
    let phase = |times, seconds| {
        let Arrivals::Poisson(phases) = overload(&Mix::chat(), &servers, times) else {
            unreachable!("overload is a Poisson process")
        };
        let mut phase = phases.into_iter().next().unwrap();
        phase.duration = Duration::from_secs(seconds);
        phase
    };
    let phases = vec![phase(0.4, 200), phase(2.0, 200), phase(0.4, 200), phase(0.0, 200)];
    let mut scenario = Scenario::new(servers.clone(), GateBy::Learned, Arrivals::Poisson(phases));
    scenario.duration = Some(Duration::from_secs(800));
    let record = run(&scenario).unwrap();
    let desired = |seconds: u64| {
        let sample = record.samples.iter().find(|sample| sample.time.as_secs() >= seconds).unwrap();
        sample.status.variants[0].desired.map(|desired| desired.replicas)
    };
    assert_eq!(desired(10), None, "no window is over yet");
    assert!(matches!(desired(190), Some(1 | 2)), "{:?}", desired(190));
    assert!(matches!(desired(390), Some(4..=6)), "{:?}", desired(390));
    assert!(matches!(desired(590), Some(1 | 2)), "{:?}", desired(590));
    assert_eq!(desired(790), None, "there is no traffic");
}
