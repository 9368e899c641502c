//! Short loops, in virtual time: what is learned, what gates, and what is asked for.

use std::time::Duration;

use penstock_model::learner::State;
use penstock_model::slo::Policy as SloPolicy;
use penstock_model::{Parameters, Sizing, Targets, Traffic, sizing, slo};
use penstock_model_server::Hardware;

use super::flight::parameters;
use super::*;

const ITL_MS: f64 = 50.0;

fn servers(count: usize, request_noise: f64) -> Vec<ServerSetting> {
    let server = ServerSetting {
        variant: "default",
        hardware: Hardware::default(),
        request_noise,
    };
    vec![server; count]
}

fn mean(of: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = of.fold((0.0, 0.0), |(sum, count), it| (sum + it, count + 1.0));
    sum / count
}

#[test]
fn a_full_server_takes_the_time_that_the_closed_form_says() {
    let arrivals = Arrivals::steady(Mix::chat(), 20.0);
    for noise in [0.0, 0.1] {
        let setting = Setting::new(
            servers(1, noise),
            GateBy::Watermark(30.0),
            arrivals.clone(),
            3_000,
        );
        let record = fly(&setting).unwrap();
        let itl = mean(record.finished.iter().map(Finished::itl_ms));
        let predicted = parameters(&Hardware::default()).iteration_ms(&Mix::chat().mean(), 30.0);
        assert!(
            (itl / predicted - 1.0).abs() < 0.02,
            "{itl} ms, not {predicted} at {noise}"
        );
    }
}

#[test]
fn every_request_that_came_is_accounted_for() {
    let arrivals = Arrivals::steady(Mix::mixed(), 20.0);
    let setting = Setting::new(servers(2, 0.05), GateBy::Watermark(9.0), arrivals, 2_000);
    let record = fly(&setting).unwrap();
    let last = record.samples.last().unwrap();
    assert_eq!(record.served, record.finished.len());
    assert!(record.refused > 0 && last.in_flight.iter().all(|n| *n <= 9));
    let under_way = record.arrived - record.served - record.refused;
    assert!(under_way >= last.in_flight.iter().sum::<usize>() && under_way < 2_000);
}

#[test]
fn the_same_seed_flies_the_same() {
    let setting = Setting::new(
        servers(2, 0.1),
        GateBy::Learned,
        Arrivals::steady(Mix::chat(), 20.0),
        1_000,
    );
    let (one, other) = (fly(&setting).unwrap(), fly(&setting).unwrap());
    assert_eq!(one.finished, other.finished);
}

#[test]
fn requests_have_a_pace_of_their_own() {
    let arrivals = Arrivals::Closed {
        clients: 8,
        mix: Mix::chat().uniform(),
    };
    let spread = |noise| {
        let setting = Setting::new(servers(1, noise), GateBy::Nobody, arrivals.clone(), 2_000);
        let record = fly(&setting).unwrap();
        let of = mean(record.finished.iter().map(Finished::itl_ms));
        let square = mean(record.finished.iter().map(|it| (it.itl_ms() / of - 1.0).powi(2)));
        (of, square.sqrt())
    };
    let predicted = parameters(&Hardware::default()).iteration_ms(&Mix::chat().mean(), 8.0);
    for sigma in [0.05, 0.1] {
        let (of, seen) = spread(sigma);
        assert!((seen / sigma - 1.0).abs() < 0.1, "{seen}, not {sigma}");
        assert!((of / predicted - 1.0).abs() < 0.03, "{of}, not {predicted}");
    }
}

/// The target between tokens, and one to the first token that is out of the way.
fn explicit() -> SloPolicy {
    SloPolicy {
        explicit: Some(Targets {
            ttft_ms: Some(10_000.0),
            itl_ms: Some(ITL_MS),
        }),
        ..SloPolicy::default()
    }
}

/// n* and lambda* at the targets inferred from the parameters themselves.
fn inferred_size(parameters: &Parameters, traffic: &Traffic) -> Sizing {
    let targets = slo::inferred(parameters, traffic, 3.0);
    sizing::size(parameters, traffic, &targets, Some(256.0), 1.0)
}

/// So many times what they can do within inferred targets.
fn overload(mix: &Mix, servers: &[ServerSetting], times: f64) -> Arrivals {
    let size = |it: &ServerSetting| inferred_size(&parameters(&it.hardware), &mix.mean()).lambda_star;
    let all: f64 = servers.iter().map(size).sum();
    Arrivals::steady(mix.clone(), times * all)
}

#[test]
fn known_budgets_keep_the_target_whatever_comes() {
    for mix in [Mix::chat(), Mix::long(), Mix::mixed()] {
        let mut setting = Setting::new(
            servers(1, 0.0),
            GateBy::Truth,
            Arrivals::steady(mix.clone(), 20.0),
            1_000,
        );
        setting.slo = explicit();
        let itl = mean(fly(&setting).unwrap().finished.iter().map(Finished::itl_ms));
        assert!(0.75 * ITL_MS < itl && itl < ITL_MS, "{itl} ms of {}", mix.name);
    }
}

#[test]
fn what_is_learned_behind_its_own_gate_is_true() {
    for mix in [Mix::chat(), Mix::long()] {
        let servers = servers(2, 0.05);
        let arrivals = overload(&mix, &servers, 1.2);
        let record = fly(&Setting::new(servers, GateBy::Learned, arrivals, 2_000)).unwrap();
        let last = &record.samples.last().unwrap().status.variants[0];
        let (found, truth) = (
            inferred_size(&last.parameters.unwrap(), &mix.mean()),
            inferred_size(&parameters(&Hardware::default()), &mix.mean()),
        );
        let off = |found: f64, truth: f64| (found / truth - 1.0).abs();
        assert!(
            off(found.n_star.unwrap(), truth.n_star.unwrap()) < 0.1,
            "{found:?} of {truth:?}"
        );
        assert!(
            off(found.lambda_star, truth.lambda_star) < 0.1,
            "{found:?} of {truth:?}"
        );
    }
}

#[test]
fn one_operating_point_says_that_it_can_not_tell() {
    let arrivals = Arrivals::Closed {
        clients: 8,
        mix: Mix::chat().uniform(),
    };
    let record = fly(&Setting::new(servers(1, 0.05), GateBy::Nobody, arrivals, 3_000)).unwrap();
    let last = &record.samples.last().unwrap().status.variants[0];
    assert_eq!((last.state, last.parameters), (State::Unidentifiable, None));
}

#[test]
fn each_server_runs_at_its_own_limit() {
    let fast = Hardware::default();
    let slow = ServerSetting {
        variant: "slow",
        hardware: Hardware {
            alpha_ms: 2.0 * fast.alpha_ms,
            beta_ms: 2.0 * fast.beta_ms,
            gamma_ms: 2.0 * fast.gamma_ms,
            ..fast
        },
        request_noise: 0.05,
    };
    let mut servers = servers(1, 0.05);
    servers.push(slow);
    let mut setting = Setting::new(
        servers,
        GateBy::Learned,
        Arrivals::steady(Mix::chat(), 25.0),
        usize::MAX,
    );
    setting.slo = explicit();
    (setting.settles, setting.lasts) = (Duration::from_secs(200), Duration::from_secs(300));
    let record = fly(&setting).unwrap();
    for server in 0..2 {
        let own = || record.finished.iter().filter(|it| it.server == server);
        let itl = mean(own().map(Finished::itl_ms));
        let over = own().filter(|it| it.itl_ms() > ITL_MS).count() as f64 / own().count() as f64;
        assert!(
            itl > 0.75 * ITL_MS && over < 0.05,
            "{itl} ms, {over} over at {server}"
        );
    }
}

#[test]
fn replicas_are_asked_for_as_they_are_needed() {
    let servers = servers(2, 0.05);
    let phase = |times, seconds| {
        let Arrivals::Poisson(phases) = overload(&Mix::chat(), &servers, times) else {
            unreachable!("it comes by chance")
        };
        let lasts = Duration::from_secs(seconds);
        let mut phase = phases.into_iter().next().unwrap();
        phase.lasts = lasts;
        phase
    };
    let phases = vec![phase(0.4, 200), phase(2.0, 200), phase(0.4, 200), phase(0.0, 200)];
    let mut setting = Setting::new(
        servers.clone(),
        GateBy::Learned,
        Arrivals::Poisson(phases),
        usize::MAX,
    );
    setting.lasts = Duration::from_secs(800);
    let record = fly(&setting).unwrap();
    let desired = |at: u64| {
        let sample = record.samples.iter().find(|it| it.at.as_secs() >= at).unwrap();
        sample.status.variants[0].desired
    };
    assert_eq!(desired(10), None, "nothing is known yet");
    assert!(matches!(desired(190), Some(1 | 2)), "{:?}", desired(190));
    assert!(matches!(desired(390), Some(4..=6)), "{:?}", desired(390));
    assert!(matches!(desired(590), Some(1 | 2)), "{:?}", desired(590));
    assert_eq!(desired(790), None, "nothing is asked of them");
}
