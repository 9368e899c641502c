//! Closed forms, sizing and averages for missing, zero, huge and borderline input.

use penstock_model::bootstrap::bootstrap;
use penstock_model::sizing::{Binding, Sizing, required_replicas, size};
use penstock_model::slo::inferred;
use penstock_model::workload::{Observed, aggregate};
use penstock_model::{Parameters, Targets, Traffic};

const SERVER: Parameters = Parameters { alpha_ms: 8.0, beta_ms: 0.05, gamma_ms: 0.000_5 };

const CHAT: Traffic = Traffic { rate: 0.0, input: 512.0, output: 128.0 };

fn targets(ttft_ms: f64, itl_ms: f64) -> Targets {
    Targets { ttft_ms: Some(ttft_ms), itl_ms: Some(itl_ms) }
}

fn sized(targets: &Targets, max_batch: Option<f64>) -> Sizing {
    size(&SERVER, &CHAT, targets, max_batch, 1.0)
}

#[track_caller]
fn assert_close(got: f64, expected: f64) {
    assert!((got - expected).abs() <= 1e-9 * expected.abs(), "{got}, not {expected}");
}

#[test]
fn without_any_limit_the_rate_is_where_rho_reaches_one() {
    for nothing in [Targets::default(), targets(0.0, 0.0)] {
        let sized = sized(&nothing, None);
        assert_eq!(sized.n_star, None);
        assert_eq!(sized.binding, Binding::None);
        assert!(sized.feasible);
        assert_close(sized.lambda_star, 1_000.0 / (129.0 * SERVER.delta_ms(&CHAT)));
        assert_close(sized.rho, 1.0);
    }
}

#[test]
fn max_batch_limits_if_it_is_the_tightest_constraint() {
    let alone = sized(&Targets::default(), Some(32.0));
    assert_eq!((alone.n_star, alone.binding), (Some(32.0), Binding::MaxBatch));
    let delta = SERVER.delta_ms(&CHAT);
    assert_close(alone.lambda_star, 1_000.0 * 32.0 / (129.0 * (8.0 + 32.0 * delta)));
    assert_close(alone.rho, 32.0 * delta / (8.0 + 32.0 * delta));

    let loose = sized(&targets(500.0, 50.0), Some(32.0));
    assert_eq!((loose.n_star, loose.binding), (Some(32.0), Binding::MaxBatch));
    let tight = sized(&targets(500.0, 50.0), Some(256.0));
    assert_eq!(tight.binding, Binding::Itl);
    assert_close(tight.lambda_star, sized(&targets(500.0, 50.0), None).lambda_star);
}

#[test]
fn a_single_target_constrains() {
    let first = sized(&targets(40.0, 0.0), None);
    assert_eq!(first.binding, Binding::Ttft);
    assert_close(first.n_star.expect("limited"), (40.0 - 25.856 - 8.0) / SERVER.delta_ms(&CHAT));
    let between = sized(&Targets { ttft_ms: None, itl_ms: Some(20.0) }, None);
    assert_eq!(between.binding, Binding::Itl);
}

#[test]
fn infeasible_sizing_reports_the_target_that_cannot_be_met() {
    for (targets, binding) in [
        (targets(30.0, 20.0), Binding::Ttft),
        (targets(500.0, 8.0), Binding::Itl),
        (targets(30.0, 8.0), Binding::Both),
        (targets(30.0, 0.0), Binding::Ttft),
        (targets(0.0, 8.0), Binding::Itl),
    ] {
        let sized = sized(&targets, Some(256.0));
        assert_eq!(
            sized,
            Sizing { n_star: Some(0.0), lambda_star: 0.0, rho: 0.0, binding, feasible: false },
            "{targets:?}"
        );
    }
}

#[test]
fn an_iteration_of_exactly_alpha_is_infeasible() {
    let exactly_alpha = targets(0.0, 8.0 + SERVER.own_decode_ms(&CHAT));
    assert!(!sized(&exactly_alpha, None).feasible);
    let above_alpha = targets(0.0, 8.000_1 + SERVER.own_decode_ms(&CHAT));
    assert!(sized(&above_alpha, None).feasible);
}

#[test]
fn ttft_bias_tightens_only_the_ttft_target() {
    let by_bias = |targets: &Targets, bias| size(&SERVER, &CHAT, targets, None, bias);
    let first = targets(60.0, 0.0);
    let expected = (60.0 / 1.25 - SERVER.own_prefill_ms(&CHAT) - 8.0) / SERVER.delta_ms(&CHAT);
    assert_close(by_bias(&first, 1.25).n_star.expect("limited"), expected);
    let between = targets(0.0, 20.0);
    assert_eq!(by_bias(&between, 1.25), by_bias(&between, 1.0));
    for unknown in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert_eq!(by_bias(&first, unknown), by_bias(&first, 1.0));
    }
}

#[test]
fn inferred_targets_are_feasible_for_every_multiplier_above_one() {
    for multiplier in [1.000_001, 1.01, 1.5, 2.0, 3.0, 10.0] {
        for traffic in [
            CHAT,
            Traffic { output: 1.0, ..CHAT },
            Traffic { output: 0.0, ..CHAT },
            Traffic { input: 0.0, ..CHAT },
            Traffic { input: 1_000_000.0, ..CHAT },
        ] {
            let sized = size(&SERVER, &traffic, &inferred(&SERVER, &traffic, multiplier), None, 1.0);
            let expected = (multiplier - 1.0) * 8.0 / SERVER.delta_ms(&traffic);
            let n_star = sized.n_star.expect("limited");
            assert!(sized.feasible && (n_star - expected).abs() <= 1e-3 * expected, "{traffic:?}");
            assert_eq!(sized.binding, Binding::Both);
            assert!((sized.rho - (1.0 - 1.0 / multiplier)).abs() < 1e-6);
        }
    }
}

#[test]
fn requests_without_work_are_limited_only_by_max_batch() {
    let idle = Parameters { beta_ms: 0.0, gamma_ms: 0.0, ..SERVER };
    let unlimited = size(&idle, &CHAT, &targets(500.0, 50.0), None, 1.0);
    assert_eq!((unlimited.n_star, unlimited.binding), (None, Binding::None));
    assert_eq!((unlimited.lambda_star, unlimited.rho), (f64::INFINITY, 0.0));
    let capped = size(&idle, &CHAT, &targets(500.0, 50.0), Some(64.0), 1.0);
    assert_eq!((capped.n_star, capped.binding), (Some(64.0), Binding::MaxBatch));
    assert_close(capped.lambda_star, 1_000.0 * 64.0 / (129.0 * 8.0));
    assert!(!size(&idle, &CHAT, &targets(500.0, 5.0), None, 1.0).feasible);
}

#[test]
fn the_largest_load_meets_its_targets_exactly() {
    let sized = sized(&targets(500.0, 50.0), None);
    let solved = SERVER.solve(&Traffic { rate: sized.lambda_star, ..CHAT });
    let steady = solved.steady.expect("stable");
    assert_close(steady.itl_ms, 50.0);
    assert_close(steady.in_flight, sized.n_star.expect("limited"));
    assert_close(solved.rho, sized.rho);
}

#[test]
fn unstable_traffic_has_no_steady_state_and_rho_is_never_nan() {
    let full = 1_000.0 / (129.0 * SERVER.delta_ms(&CHAT));
    for (rate, steady) in [(0.0, true), (full * 0.999, true), (full * 1.000_1, false), (1e300, false)] {
        let solved = SERVER.solve(&Traffic { rate, ..CHAT });
        assert_eq!(solved.steady.is_some(), steady, "{rate}");
        assert!(!solved.rho.is_nan());
    }
    let endless = Traffic { rate: 1e300, output: 1e300, input: 0.0 };
    let free = Parameters { beta_ms: 0.0, gamma_ms: 0.0, ..SERVER };
    let solved = free.solve(&endless);
    assert_eq!((solved.rho, solved.steady), (f64::INFINITY, None));
}

#[test]
fn required_replicas_are_the_fewest_that_carry_the_load() {
    for (rate, lambda_star, expected) in [
        (0.9, 0.3, Some(3)),
        (2.1, 0.7, Some(3)),
        (3.000_001, 3.0, Some(2)),
        (0.001, 3.0, Some(1)),
        (1.0, f64::INFINITY, Some(1)),
        (-1.0, 3.0, None),
        (f64::NAN, 3.0, None),
        (f64::INFINITY, 3.0, None),
        (1.0, f64::NAN, None),
    ] {
        assert_eq!(required_replicas(rate, lambda_star), expected, "{rate} / {lambda_star}");
    }
}

#[test]
fn idle_endpoints_do_not_count_in_averages() {
    assert_eq!(aggregate(&[]), Observed::default());
    let idle = Observed { ttft_ms: 900.0, ..Observed::default() };
    assert_eq!(aggregate(&[idle, idle]), Observed::default());
    let busy = Observed { traffic: Traffic { rate: 2.0, ..CHAT }, ttft_ms: 40.0, itl_ms: 10.0, busy: 1 };
    assert_eq!(aggregate(&[idle, busy]), busy);
    let two = aggregate(&[busy, busy]);
    assert_eq!(aggregate(&[two, busy]).busy, 3, "an aggregate counts all its endpoints");
}

#[test]
fn unmeasured_times_do_not_count_in_averages() {
    let seen = |rate, ttft_ms, itl_ms| Observed {
        traffic: Traffic { rate, input: 100.0, output: 50.0 },
        ttft_ms,
        itl_ms,
        busy: 1,
    };
    let both = aggregate(&[seen(3.0, 0.0, 0.0), seen(1.0, 80.0, 20.0)]);
    assert_eq!((both.traffic.rate, both.ttft_ms, both.itl_ms), (4.0, 80.0, 20.0));
    assert_eq!(aggregate(&[seen(3.0, 0.0, 0.0)]).ttft_ms, 0.0);
}

#[test]
fn bootstrap_must_be_stable_under_its_own_window() {
    let window = |rate| Observed {
        traffic: Traffic { rate, input: 1_123.0, output: 487.0 },
        ttft_ms: 80.48,
        itl_ms: 15.911,
        busy: 1,
    };
    let found = bootstrap(&window(0.5)).expect("a light load has a bootstrap");
    let full = 0.5 / found.solve(&window(0.5).traffic).rho;
    assert!(bootstrap(&window(full * 0.949)).is_some());
    assert!(bootstrap(&window(full * 0.951)).is_none());
}

#[test]
fn bootstrap_fails_for_windows_without_usable_measurements() {
    for (input, output, ttft_ms, itl_ms) in [
        (0.0, 100.0, 60.0, 20.0),
        (1_000.0, 100.0, 0.0, 20.0),
        (1_000.0, 100.0, 60.0, 0.0),
        (0.5, 0.0, 60.0, 20.0),
        (1_000.0, 100.0, f64::NAN, 20.0),
        (1_000.0, 100.0, f64::INFINITY, 20.0),
        (1_000.0, 100.0, 60_000.0, 20.0),
    ] {
        let window = Observed { traffic: Traffic { rate: 1.0, input, output }, ttft_ms, itl_ms, busy: 1 };
        assert_eq!(bootstrap(&window), None, "{window:?}");
    }
}
