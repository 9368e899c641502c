//! Compares closed forms, sizing, targets, bootstrap, averages and replicas with independently computed values.

use penstock_model::bootstrap::bootstrap;
use penstock_model::sizing::{required_replicas, size};
use penstock_model::slo::{inferred, maximum, observed};
use penstock_model::workload::{Observed, aggregate};
use penstock_model::{Parameters, Targets, Traffic};
use serde_json::Value;

fn vectors() -> Value {
    serde_json::from_str(include_str!("../data/model.json")).expect("vectors")
}

fn cases(value: &Value) -> &Vec<Value> {
    let cases = value.as_array().expect("a list");
    assert!(!cases.is_empty());
    cases
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

fn parameters(value: &Value) -> Parameters {
    Parameters { alpha_ms: number(&value[0]), beta_ms: number(&value[1]), gamma_ms: number(&value[2]) }
}

fn traffic(value: &Value) -> Traffic {
    Traffic { rate: 0.0, input: number(&value["i"]), output: number(&value["o"]) }
}

fn targets(value: &Value) -> Targets {
    Targets { ttft_ms: value["slo_ttft"].as_f64(), itl_ms: value["slo_itl"].as_f64() }
}

fn pair(value: &Value) -> Targets {
    Targets { ttft_ms: value[0].as_f64(), itl_ms: value[1].as_f64() }
}

/// Asserts that `got` is within the relative tolerance of `expected`, or that both are absent.
#[track_caller]
fn assert_close(case: &Value, name: &str, got: Option<f64>, expected: &Value, relative: f64) {
    match (expected.as_f64(), got) {
        (None, None) => {}
        (Some(expected), Some(got)) if (got - expected).abs() <= relative * expected.abs().max(1e-9) => {}
        (expected, got) => panic!("{}: {name} is {got:?}, not {expected:?}", case["id"]),
    }
}

#[test]
fn closed_forms_agree_with_the_vectors() {
    let vectors = vectors();
    let relative = number(&vectors["tolerance"]["closed_form_rel"]);
    for case in cases(&vectors["closed_form"]) {
        let given = |index: usize| number(&case["in"][index]);
        let parameters = Parameters { alpha_ms: given(3), beta_ms: given(4), gamma_ms: given(5) };
        let traffic = Traffic { rate: given(0), input: given(1), output: given(2) };
        let solved = parameters.solve(&traffic);
        let assert_close = |name: &str, got| assert_close(case, name, got, &case[name], relative);
        assert_close("delta", Some(solved.delta_ms));
        assert_close("rho", Some(solved.rho));
        assert_close("T", solved.steady.map(|steady| steady.iteration_ms));
        assert_close("ttft", solved.steady.map(|steady| steady.ttft_ms));
        assert_close("itl", solved.steady.map(|steady| steady.itl_ms));
        assert_close("n", solved.steady.map(|steady| steady.in_flight));
        if let Some(steady) = solved.steady {
            let again = parameters.iteration_ms(&traffic, steady.in_flight);
            assert!(
                (again - steady.iteration_ms).abs() < 1e-6 * again,
                "T(n) is the iteration of the steady state"
            );
        }
    }
}

#[test]
fn sizing_agrees_with_the_vectors() {
    let vectors = vectors();
    let relative = number(&vectors["tolerance"]["lambda_star_rel"]);
    for case in cases(&vectors["lambda_star"]) {
        let sized =
            size(&parameters(&case["abg"]), &traffic(case), &targets(case), case["max_batch"].as_f64(), 1.0);
        let assert_close = |name: &str, got| assert_close(case, name, got, &case[name], relative);
        assert_close("lambda_star", Some(sized.lambda_star));
        assert_close("n_star", sized.n_star);
        assert_close("rho", Some(sized.rho));
        assert_eq!(sized.binding.as_str(), case["binding"], "{}", case["id"]);
        assert_eq!(sized.feasible, case["feasible"], "{}", case["id"]);
    }
}

#[test]
fn inferred_targets_agree_with_the_vectors() {
    let vectors = vectors();
    let relative = number(&vectors["tolerance"]["lambda_star_rel"]);
    for case in cases(&vectors["inferred_slo"]) {
        let (parameters, traffic) = (parameters(&case["abg"]), traffic(case));
        let targets = inferred(&parameters, &traffic, number(&case["k"]));
        assert_close(case, "slo_ttft", targets.ttft_ms, &case["slo_ttft"], relative);
        assert_close(case, "slo_itl", targets.itl_ms, &case["slo_itl"], relative);
        let sized = size(&parameters, &traffic, &targets, None, 1.0);
        assert_close(case, "lambda_star", Some(sized.lambda_star), &case["lambda_star"], relative);
        assert_close(case, "rho", Some(sized.rho), &case["rho"], relative);
        assert_eq!(sized.binding.as_str(), "both", "both targets allow the same iteration");
    }

    let case = &vectors["inferred_slo_multi_variant"];
    let target_of =
        |name: &str| inferred(&parameters(&case[name]["abg"]), &traffic(case), number(&case["k"]));
    let both = maximum(target_of("A"), target_of("B"));
    for (got, expected) in [
        (target_of("A"), &case["A"]["slo"]),
        (target_of("B"), &case["B"]["slo"]),
        (both, &case["model_slo_max"]),
    ] {
        assert_close(case, "ttft", got.ttft_ms, &expected[0], relative);
        assert_close(case, "itl", got.itl_ms, &expected[1], relative);
    }
}

#[test]
fn targets_from_measured_latencies_agree_with_the_vectors() {
    for case in cases(&vectors()["fallback_slo"]) {
        let got = observed(number(&case["obs"][0]), number(&case["obs"][1]));
        let expected = case["slo"].is_array().then(|| pair(&case["slo"]));
        assert_eq!(got, expected, "{case}");
    }
}

#[test]
fn bootstrap_agrees_with_the_vectors() {
    for case in cases(&vectors()["bootstrap_0.9"]) {
        let got = bootstrap(&Observed {
            traffic: traffic(case),
            ttft_ms: number(&case["ttft"]),
            itl_ms: number(&case["itl"]),
            busy: 1,
        });
        let found = got.map(|parameters| [parameters.alpha_ms, parameters.beta_ms, parameters.gamma_ms]);
        for index in 0..3 {
            assert_close(
                case,
                "a parameter",
                found.map(|parameters| parameters[index]),
                &case["abg"][index],
                1e-6,
            );
        }
    }
}

#[test]
fn averages_agree_with_the_vectors() {
    let vectors = vectors();
    let case = &vectors["aggregation"];
    let windows: Vec<Observed> = cases(&case["pods"])
        .iter()
        .map(|pod| Observed {
            traffic: Traffic { rate: number(&pod[0]), input: number(&pod[1]), output: number(&pod[2]) },
            ttft_ms: number(&pod[3]),
            itl_ms: number(&pod[4]),
            busy: 1,
        })
        .collect();
    let all = aggregate(&windows);
    let expect = &case["expect"];
    assert_close(case, "rate", Some(all.traffic.rate), &expect["lambda_total"], 1e-9);
    assert_close(case, "input", Some(all.traffic.input), &expect["i"], 1e-9);
    assert_close(case, "output", Some(all.traffic.output), &expect["o"], 1e-9);
    assert_close(case, "ttft", Some(all.ttft_ms), &expect["ttft"], 1e-9);
    assert_close(case, "itl", Some(all.itl_ms), &expect["itl"], 1e-9);
    assert_eq!(all.busy as u64, expect["busy"].as_u64().expect("a number"));
}

#[test]
fn replicas_agree_with_the_vectors() {
    for case in cases(&vectors()["replicas"]) {
        let got = required_replicas(number(&case["lambda_total"]), number(&case["lambda_star"]));
        assert_eq!(got, case["required"].as_u64(), "{case}");
    }
}
