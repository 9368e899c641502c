//! The window estimator on the reference sequences, and under noise, outliers, changes and missing measurements.

use penstock_model::bootstrap::DEFAULTS;
use penstock_model::kalman::{Belief, Measurement, Noise, Step, step};
use penstock_model::learner::State;
use penstock_model::sizing::size;
use penstock_model::slo::inferred;
use penstock_model::window_estimator::{Counts, Outcome, WindowEstimator};
use penstock_model::workload::Observed;
use penstock_model::{Parameters, Traffic};
use serde_json::Value;

const TRUTH: Parameters = Parameters { alpha_ms: 8.0, beta_ms: 0.05, gamma_ms: 0.000_5 };

const CHAT: Traffic = Traffic { rate: 0.0, input: 512.0, output: 128.0 };

/// A window of a server with parameters `truth`, loaded to `rho`.
fn window_at(truth: &Parameters, rho: f64, input: f64, output: f64) -> Observed {
    let mut traffic = Traffic { rate: 0.0, input, output };
    traffic.rate = rho * 1_000.0 / ((output + 1.0) * truth.delta_ms(&traffic));
    let steady = truth.solve(&traffic).steady.expect("stable");
    Observed { traffic, ttft_ms: steady.ttft_ms, itl_ms: steady.itl_ms, busy: 1 }
}

/// The reference generator, without its noise.
fn varied(truth: &Parameters, cycle: usize) -> Observed {
    window_at(
        truth,
        [0.1, 0.3, 0.5, 0.6, 0.45, 0.2][cycle % 6],
        [256.0, 1_024.0, 512.0, 2_048.0, 128.0][cycle % 5],
        [64.0, 256.0, 128.0, 32.0][cycle % 4],
    )
}

/// The reference generator's noise.
fn noisy(window: Observed, cycle: usize) -> Observed {
    let cycle = cycle as f64;
    Observed {
        ttft_ms: window.ttft_ms * (1.0 + 0.02 * (1.7 * cycle + 0.3).sin()),
        itl_ms: window.itl_ms * (1.0 + 0.02 * (2.3 * cycle).cos()),
        ..window
    }
}

fn constant(truth: &Parameters) -> Observed {
    window_at(truth, 0.35, CHAT.input, CHAT.output)
}

#[track_caller]
fn observe(windows: &mut WindowEstimator, window: &Observed) -> Outcome {
    windows.observe(window).expect("there was traffic")
}

fn relative_error(got: f64, truth: f64) -> f64 {
    (got / truth - 1.0).abs()
}

/// lambda* at the targets inferred from the true parameters.
fn lambda_star(parameters: &Parameters, truth: &Parameters) -> f64 {
    size(parameters, &CHAT, &inferred(truth, &CHAT, 3.0), None, 1.0).lambda_star
}

/// A deterministic generator of numbers from 0 to 1.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Uniform in the logarithm.
    fn between(&mut self, least: f64, most: f64) -> f64 {
        least * (most / least).powf(self.next())
    }

    /// Approximately normal around 1, with this standard deviation.
    fn around(&mut self, deviation: f64) -> f64 {
        let twelve: f64 = (0..12).map(|_| self.next()).sum();
        1.0 + deviation * (twelve - 6.0)
    }

    fn server(&mut self) -> Parameters {
        Parameters {
            alpha_ms: self.between(2.0, 40.0),
            beta_ms: self.between(0.005, 0.3),
            gamma_ms: self.between(1e-5, 2e-3),
        }
    }
}

#[test]
fn the_generator_is_the_reference_generator() {
    let vectors: Value = serde_json::from_str(include_str!("../data/model.json")).expect("vectors");
    let generator = &vectors["sequences"]["generator"];
    let numbers = |name: &str| -> Vec<f64> {
        let list = generator[name].as_array().expect("a list");
        list.iter().map(|value| value.as_f64().expect("a number")).collect()
    };
    let truth = &generator["truths"][0];
    assert_eq!(truth[0].as_f64(), Some(TRUTH.alpha_ms));
    assert_eq!(truth[1].as_f64(), Some(TRUTH.beta_ms));
    assert_eq!(truth[2].as_f64(), Some(TRUTH.gamma_ms));
    for cycle in 0..60 {
        let window = varied(&TRUTH, cycle);
        let number = |name: &str| numbers(name)[cycle % numbers(name).len()];
        assert_eq!(window.traffic.input, number("i_k"));
        assert_eq!(window.traffic.output, number("o_k"));
        assert!((TRUTH.solve(&window.traffic).rho - number("rho_k")).abs() < 1e-12);
    }
    let ids: Vec<_> = vectors["sequences"]["cases"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|value| value["id"].as_str().expect("a name"))
        .collect();
    assert_eq!(ids, ["S1", "S3", "S4", "S0"], "each case has a test below");
}

#[test]
fn s1_and_s0_learn_the_true_parameters_with_and_without_a_bootstrap() {
    for start in [None, Some(DEFAULTS)] {
        let mut windows = WindowEstimator::new(start);
        for cycle in 0..60 {
            observe(&mut windows, &varied(&TRUTH, cycle));
        }
        let learned = windows.parameters().expect("learned");
        assert!(relative_error(learned.alpha_ms, TRUTH.alpha_ms) <= 0.02, "{learned:?}");
        assert!(relative_error(learned.beta_ms, TRUTH.beta_ms) <= 0.02, "{learned:?}");
        assert!(relative_error(learned.delta_ms(&CHAT), TRUTH.delta_ms(&CHAT)) <= 0.02, "{learned:?}");
        assert!(relative_error(lambda_star(&learned, &TRUTH), lambda_star(&TRUTH, &TRUTH)) <= 0.03);
        assert_eq!(windows.state(), State::Converged);
        assert_eq!(windows.counts().restarts, 0);
    }
}

#[test]
fn s3_one_outlier_is_rejected_and_the_next_window_accepted() {
    let mut windows = WindowEstimator::new(None);
    for cycle in 0..60 {
        observe(&mut windows, &varied(&TRUTH, cycle));
    }
    let (before, counts) = (windows.parameters(), windows.counts());
    let mut outlier = varied(&TRUTH, 60);
    outlier.ttft_ms *= 5.0;
    let outcome = observe(&mut windows, &outlier);
    assert!(!outcome.accepted && outcome.nis > Some(7.378) && !outcome.restarted);
    assert_eq!(windows.parameters(), before);
    assert_eq!(windows.counts(), Counts { rejected: counts.rejected + 1, ..counts });
    assert!(observe(&mut windows, &varied(&TRUTH, 61)).accepted);
    for cycle in 62..64 {
        observe(&mut windows, &varied(&TRUTH, cycle));
    }
    assert_eq!(windows.state(), State::Converged);
}

#[test]
fn s4_one_operating_point_predicts_itself_and_is_unidentifiable() {
    for noise in [false, true] {
        let mut windows = WindowEstimator::new(None);
        for cycle in 0..60 {
            let window = constant(&TRUTH);
            observe(&mut windows, &if noise { noisy(window, cycle) } else { window });
        }
        let learned = windows.parameters().expect("something");
        let window = constant(&TRUTH);
        let predicted = learned.solve(&window.traffic).steady.expect("stable");
        assert!(relative_error(predicted.ttft_ms, window.ttft_ms) <= 0.05);
        assert!(relative_error(predicted.itl_ms, window.itl_ms) <= 0.05);
        assert_eq!(windows.state(), State::Unidentifiable);
        assert_eq!(windows.condition(), Some(f64::INFINITY), "noise must not make parameters identifiable");
    }
}

#[test]
fn many_servers_are_learned_through_noise() {
    let mut random = Random(88_172_645_463_325_252);
    for _ in 0..200 {
        let truth = random.server();
        for start in [None, Some(DEFAULTS)] {
            let mut windows = WindowEstimator::new(start);
            for cycle in 0..60 {
                observe(&mut windows, &noisy(varied(&truth, cycle), cycle));
            }
            let learned = windows.parameters().expect("learned");
            assert!(relative_error(learned.alpha_ms, truth.alpha_ms) < 0.05, "{truth:?}: {learned:?}");
            assert!(relative_error(lambda_star(&learned, &truth), lambda_star(&truth, &truth)) < 0.03);
            assert_eq!(windows.state(), State::Converged);
        }
    }
}

#[test]
fn loads_that_differ_by_chance_alone_do_not_converge() {
    for truth in [TRUTH, Parameters { alpha_ms: 14.0, beta_ms: 0.03, gamma_ms: 0.000_2 }] {
        let mut random = Random(88_172_645_463_325_252);
        let mut windows = WindowEstimator::new(None);
        for cycle in 0..300 {
            let mut window = constant(&truth);
            window.traffic.rate *= random.around(0.005);
            window.traffic.input *= random.around(0.005);
            window.traffic.output *= random.around(0.005);
            let steady = truth.solve(&window.traffic).steady.expect("stable");
            window.ttft_ms = steady.ttft_ms * random.around(0.05);
            window.itl_ms = steady.itl_ms * random.around(0.02);
            observe(&mut windows, &window);
            assert_ne!(windows.state(), State::Converged, "window {cycle}");
        }
    }
}

#[test]
fn a_doubled_alpha_is_accepted_in_the_third_window_and_learned_soon() {
    let mut windows = WindowEstimator::new(None);
    for cycle in 0..60 {
        observe(&mut windows, &noisy(varied(&TRUTH, cycle), cycle));
    }
    let doubled = Parameters { alpha_ms: 2.0 * TRUTH.alpha_ms, ..TRUTH };
    let missed = (60..63)
        .filter(|cycle| !observe(&mut windows, &noisy(varied(&doubled, *cycle), *cycle)).accepted)
        .count();
    assert!((1..3).contains(&missed), "{missed} windows were not accepted");
    for (until, within) in [(66, 0.1), (72, 0.03)] {
        for cycle in until - 6..until {
            if cycle >= 63 {
                assert!(observe(&mut windows, &noisy(varied(&doubled, cycle), cycle)).accepted);
            }
        }
        let alpha_ms = windows.parameters().expect("learned").alpha_ms;
        assert!(relative_error(alpha_ms, doubled.alpha_ms) < within, "{alpha_ms} after {until}");
    }
}

/// The filter recovers from any start and any change of the server, with constant and with varying load.
#[test]
fn no_sequence_locks_the_filter_out() {
    let mut random = Random(1_234_567);
    let random_parameters = |random: &mut Random| Parameters {
        alpha_ms: random.between(1.0, 80.0),
        beta_ms: random.between(0.002, 0.5),
        gamma_ms: random.between(1e-6, 5e-3),
    };
    for round in 0..1_000 {
        let mut truth = random_parameters(&mut random);
        let start = (round % 3 > 0).then(|| random_parameters(&mut random));
        let mut windows = WindowEstimator::new(start);
        let mut missed = 0;
        for cycle in 0..120 {
            if cycle == 60 {
                truth = random_parameters(&mut random);
            }
            let window = if round % 2 == 0 { constant(&truth) } else { varied(&truth, cycle) };
            let outcome = observe(&mut windows, &noisy(window, cycle));
            missed = if outcome.accepted { 0 } else { missed + 1 };
            assert!(missed <= 12, "round {round}, cycle {cycle}: {truth:?}, from {start:?}");
        }
        let counts = windows.counts();
        assert_eq!(counts.accepted + counts.rejected, 120);
        let learned = windows.parameters().expect("learned");
        assert!(learned.is_valid(), "{learned:?}");
    }
}

#[test]
fn a_load_that_is_unstable_under_the_belief_is_learned_from() {
    let heavy = Parameters { alpha_ms: 8.0, beta_ms: 0.5, gamma_ms: 0.005 };
    let mut windows = WindowEstimator::new(Some(heavy));
    let window = varied(&TRUTH, 3);
    assert!(heavy.solve(&window.traffic).steady.is_none());
    observe(&mut windows, &window);
    assert_eq!(windows.counts().undefined, 1);
    for cycle in 4..40 {
        observe(&mut windows, &varied(&TRUTH, cycle));
    }
    assert!(relative_error(windows.parameters().expect("learned").alpha_ms, 8.0) < 0.02);
}

#[test]
fn windows_without_traffic_or_measurements_are_ignored() {
    let mut windows = WindowEstimator::new(None);
    assert_eq!(windows.state(), State::NoTraffic);
    let good = varied(&TRUTH, 0);
    let mut bad = vec![Observed::default()];
    for (rate, input, ttft_ms, itl_ms) in [
        (0.0, 512.0, 40.0, 10.0),
        (-1.0, 512.0, 40.0, 10.0),
        (f64::NAN, 512.0, 40.0, 10.0),
        (1.0, f64::NAN, 40.0, 10.0),
        (1.0, 512.0, 0.0, 0.0),
        (1.0, 512.0, f64::NAN, f64::INFINITY),
    ] {
        bad.push(Observed { traffic: Traffic { rate, input, output: 128.0 }, ttft_ms, itl_ms, busy: 1 });
    }
    for window in &bad {
        assert_eq!(windows.observe(window), None, "{window:?}");
    }
    assert_eq!(windows.parameters(), None);
    assert_eq!(windows.counts(), Counts::default());

    observe(&mut windows, &good);
    assert_eq!(windows.state(), State::Learning);
    let learned = windows.parameters();
    assert_eq!(windows.observe(&bad[1]), None);
    assert_eq!((windows.state(), windows.parameters()), (State::NoTraffic, learned));
}

#[test]
fn a_single_measurement_is_learned_from() {
    for hidden in ["ttft", "itl"] {
        let mut windows = WindowEstimator::new(Some(DEFAULTS));
        for cycle in 0..120 {
            let mut window = varied(&TRUTH, cycle);
            match hidden {
                "ttft" => window.ttft_ms = 0.0,
                _ => window.itl_ms = 0.0,
            }
            observe(&mut windows, &window);
        }
        let learned = windows.parameters().expect("learned");
        assert!(relative_error(learned.alpha_ms, 8.0) < 0.05, "without {hidden}: {learned:?}");
        assert!(relative_error(lambda_star(&learned, &TRUTH), lambda_star(&TRUTH, &TRUTH)) < 0.05);
    }
}

#[test]
fn an_aggregate_of_endpoints_counts_as_one_endpoint() {
    let (mut one, mut three) = (WindowEstimator::new(None), WindowEstimator::new(None));
    for cycle in 0..30 {
        let window = varied(&TRUTH, cycle);
        let mut all = window;
        all.traffic.rate *= 3.0;
        all.busy = 3;
        let (one, three) = (observe(&mut one, &window), observe(&mut three, &all));
        assert_eq!(one.accepted, three.accepted);
    }
    let alpha_ms = |windows: &WindowEstimator| windows.parameters().expect("learned").alpha_ms;
    assert!(relative_error(alpha_ms(&three), alpha_ms(&one)) < 1e-6);
}

#[test]
fn contradictory_windows_are_an_error_that_recovers() {
    let mut windows = WindowEstimator::new(None);
    for cycle in 0..40 {
        // Alternates impossibly short and extremely long latencies.
        let mut window = varied(&TRUTH, cycle);
        window.ttft_ms = if cycle % 2 == 0 { 1e-3 } else { 1e6 };
        window.itl_ms = if cycle % 2 == 0 { 1e5 } else { 1e-3 };
        observe(&mut windows, &window);
        assert!(windows.parameters().expect("some").is_valid());
    }
    assert_eq!(windows.state(), State::Error);
    for cycle in 0..60 {
        observe(&mut windows, &varied(&TRUTH, cycle));
    }
    assert_eq!(windows.state(), State::Converged);
}

#[test]
fn a_step_is_a_pure_function() {
    let before = Belief::new(&DEFAULTS);
    let window = varied(&TRUTH, 0);
    let measurement =
        Measurement { traffic: window.traffic, ttft_ms: Some(window.ttft_ms), itl_ms: Some(window.itl_ms) };
    let stepped = step(&before, &measurement, &Noise::default());
    assert_eq!(stepped, step(&before, &measurement, &Noise::default()));
    let Step::Accepted { posterior, nis, .. } = stepped else { panic!("{stepped:?}") };
    assert!(nis > 0.0 && nis < 7.378);
    let error = |belief: &Belief| {
        let steady = belief.parameters().solve(&window.traffic).steady.expect("stable");
        relative_error(steady.ttft_ms, window.ttft_ms) + relative_error(steady.itl_ms, window.itl_ms)
    };
    assert!(error(&posterior) < 0.2 * error(&before));

    let impossible = Measurement { traffic: Traffic { rate: 1e6, ..window.traffic }, ..measurement };
    assert_eq!(step(&before, &impossible, &Noise::default()), Step::Undefined);
}

#[test]
fn the_gate_is_narrower_for_a_single_measurement() {
    let before = Belief::new(&TRUTH);
    let window = varied(&TRUTH, 0);
    // Both measurements are off by the same factor, which is likelier with two degrees of freedom.
    let measurement = |factor: f64, both: bool| Measurement {
        traffic: window.traffic,
        ttft_ms: both.then_some(window.ttft_ms * factor),
        itl_ms: Some(window.itl_ms * factor),
    };
    let nis = |factor: f64, both: bool| match step(&before, &measurement(factor, both), &Noise::default()) {
        Step::Accepted { nis, .. } => (nis, true),
        Step::Rejected { nis } => (nis, false),
        Step::Undefined => panic!("stable"),
    };
    let limit = |both: bool| {
        let factors = (0..4_000).map(|step| 1.0 + f64::from(step) * 1e-3);
        let last = factors.map(|factor| nis(factor, both)).take_while(|(_, accepted)| *accepted).last();
        last.expect("an exact measurement is accepted").0
    };
    assert!((limit(true) - 7.378).abs() < 0.1, "{}", limit(true));
    assert!((limit(false) - 5.024).abs() < 0.1, "{}", limit(false));
}
