//! Parameters learned behind a gate that uses them, compared with the true ones: closed loops in virtual time.

use penstock_model::closed_form::Traffic;
use penstock_model::learner::{Learner, State};
use penstock_model::observation::{Decode, Observation};
use penstock_model::{Parameters, Targets, learner};

use crate::world::{CHAT, CODE, EVEN, LONG, MIXED, Mix, Settings, World, sizing};

const fn hardware(alpha_ms: f64, beta_ms: f64, gamma_ms: f64) -> Parameters {
    Parameters { alpha_ms, beta_ms, gamma_ms }
}

const HARDWARE: [(&str, Parameters); 3] = [
    ("mid", hardware(8.0, 0.05, 0.0005)),
    ("fast", hardware(5.0, 0.02, 0.0001)),
    ("slow", hardware(25.0, 0.12, 0.0008)),
];

fn settings(truth: Parameters, mix: Mix, noise: f64, seed: u64) -> Settings {
    Settings {
        truth,
        mix,
        noise,
        endpoints: 3,
        load: 0.9,
        probes: true,
        seed,
        initial: 8,
        constant: None,
        outliers: 0.0,
    }
}

/// Relative errors of n* and lambda* with these parameters.
fn errors(world: &World, learned: &Parameters) -> (f64, f64) {
    let traffic = world.settings.mix.traffic();
    let (truth, learned) = (sizing(&world.settings.truth, &traffic), sizing(learned, &traffic));
    (learned.0 / truth.0 - 1.0, learned.1 / truth.1 - 1.0)
}

#[test]
fn every_mix_is_learned_to_within_five_percent_of_lambda_star() {
    for mix in [CHAT, LONG, CODE, MIXED] {
        let mut world = World::new(settings(HARDWARE[0].1, mix, 0.05, 3));
        world.serve(1_500);
        let (n, lambda) = errors(&world, &world.learner.parameters().expect("it converged"));
        assert!(n.abs() < 0.1 && lambda.abs() < 0.05, "{}: {n} {lambda}", mix.name);
        assert_eq!(world.learner.state(), State::Converged);
        // The closed form underestimates the time to the first token.
        assert!(world.learner.ttft_bias() > 1.0);
    }
}

#[test]
fn outliers_change_the_result_little() {
    let outliers = 0.05;
    let mut world = World::new(Settings { outliers, ..settings(HARDWARE[0].1, CODE, 0.05, 5) });
    world.serve(1_500);
    let (n, lambda) = errors(&world, &world.learner.parameters().expect("it converged"));
    assert!(n.abs() < 0.15 && lambda.abs() < 0.07, "{n} {lambda}");
}

#[test]
fn a_doubled_alpha_is_detected_and_relearned() {
    let mut world = World::new(settings(HARDWARE[0].1, MIXED, 0.05, 2));
    world.serve(1_800);
    assert_eq!(world.learner.state(), State::Converged);
    world.settings.truth.alpha_ms *= 2.0;
    let before = world.learner.parameters().expect("it converged");
    assert!(errors(&world, &before).0 < -0.4);
    world.serve(1_500);
    let (n, lambda) = errors(&world, &world.learner.parameters().expect("it had converged"));
    assert!(n.abs() < 0.1 && lambda.abs() < 0.05, "{n} {lambda}");
    assert_eq!(world.learner.state(), State::Converged);
}

#[test]
fn a_constant_load_is_unidentifiable() {
    for noise in [0.0, 0.05, 0.1] {
        let mut world = World::new(Settings {
            constant: Some(16),
            probes: false,
            ..settings(HARDWARE[0].1, EVEN, noise, 4)
        });
        world.serve(3_000);
        assert_eq!(world.learner.state(), State::Unidentifiable, "{noise}");
        assert_eq!(world.learner.parameters(), None);
    }
}

fn observation(at_ms: f64, itl_ms: f64, batch: f64, resident: f64) -> Observation {
    Observation {
        at_ms,
        input: 512.0,
        output: 128.0,
        ttft_ms: 60.0,
        ttft_predicted_ms: Some(40.0),
        decode: Some(Decode { itl_ms, batch, prompts: 0.0, resident, neighbor_covariance: [0.0; 3] }),
    }
}

const TRAFFIC: Traffic = Traffic { rate: 1.0, input: 512.0, output: 128.0 };

/// Observes requests of a server with these parameters under varying loads.
fn feed(learner: &mut Learner, truth: &Parameters, count: u32) {
    for number in 0..count {
        let batch = 1.0 + f64::from(number % 40);
        let resident = 500.0 * f64::from(1 + number % 23);
        let itl_ms = truth.alpha_ms + truth.beta_ms * batch + truth.gamma_ms * resident;
        learner.observe(&observation(f64::from(number) * 100.0, itl_ms, batch, resident));
    }
}

#[test]
fn states_follow_observations_and_targets() {
    let mut learner = Learner::new(None);
    let targets = Targets::default();
    assert_eq!(learner.state(), State::NoTraffic);
    assert!(learner.fit(0.0, &TRAFFIC, &targets).is_none());
    assert_eq!(learner.state(), State::NoTraffic);
    let truth = HARDWARE[0].1;
    feed(&mut learner, &truth, 10);
    assert!(learner.fit(10_000.0, &TRAFFIC, &targets).is_none());
    assert_eq!(learner.state(), State::Learning);
    feed(&mut learner, &truth, 200);
    let fit: learner::Fit = learner.fit(20_000.0, &TRAFFIC, &targets).expect("there is enough");
    assert_eq!(learner.state(), State::Converged);
    assert_eq!((fit.observations, learner.parameters()), (210, Some(fit.parameters)));
    assert!((fit.parameters.alpha_ms / truth.alpha_ms - 1.0).abs() < 1e-3);
    assert!((learner.ttft_bias() - 1.5).abs() < 1e-9);
    // Without new requests the state is `NoTraffic` and the parameters are kept.
    assert!(learner.fit(30_000.0, &TRAFFIC, &targets).is_none());
    assert_eq!((learner.state(), learner.parameters()), (State::NoTraffic, Some(fit.parameters)));
    feed(&mut learner, &truth, 1);
    let impossible = Targets { ttft_ms: None, itl_ms: Some(truth.alpha_ms / 2.0) };
    assert!(learner.fit(40_000.0, &TRAFFIC, &impossible).is_some());
    assert_eq!(learner.state(), State::Infeasible);
}

#[test]
fn restored_parameters_are_used_at_once() {
    let restored = HARDWARE[1].1;
    let learner = Learner::new(Some((restored, 1.7)));
    assert_eq!((learner.parameters(), learner.ttft_bias()), (Some(restored), 1.7));
    assert_eq!(learner.state(), State::NoTraffic);
}
