//! Closed forms, sizes, targets, first parameters, averages and replicas against independently computed values.

use penstock_model::bootstrap::bootstrap;
use penstock_model::sizing::{required_replicas, size};
use penstock_model::slo::{inferred, maximum, observed};
use penstock_model::workload::{Observed, together};
use penstock_model::{Parameters, Targets, Traffic};
use serde_json::Value;

fn vectors() -> Value {
    serde_json::from_str(include_str!("data/model.json")).expect("vectors")
}

fn cases(of: &Value) -> &Vec<Value> {
    let cases = of.as_array().expect("a list");
    assert!(!cases.is_empty());
    cases
}

fn number(of: &Value) -> f64 {
    of.as_f64().expect("a number")
}

fn parameters(of: &Value) -> Parameters {
    Parameters {
        alpha_ms: number(&of[0]),
        beta_ms: number(&of[1]),
        gamma_ms: number(&of[2]),
    }
}

fn traffic(of: &Value) -> Traffic {
    Traffic {
        rate: 0.0,
        input: number(&of["i"]),
        output: number(&of["o"]),
    }
}

fn targets(of: &Value) -> Targets {
    Targets {
        ttft_ms: of["slo_ttft"].as_f64(),
        itl_ms: of["slo_itl"].as_f64(),
    }
}

fn pair(of: &Value) -> Targets {
    Targets {
        ttft_ms: of[0].as_f64(),
        itl_ms: of[1].as_f64(),
    }
}

/// Within `relative` of what is expected; both absent are alike.
#[track_caller]
fn close(case: &Value, name: &str, got: Option<f64>, expected: &Value, relative: f64) {
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
        let given = |at: usize| number(&case["in"][at]);
        let parameters = Parameters {
            alpha_ms: given(3),
            beta_ms: given(4),
            gamma_ms: given(5),
        };
        let traffic = Traffic {
            rate: given(0),
            input: given(1),
            output: given(2),
        };
        let solved = parameters.solve(&traffic);
        let close = |name: &str, got| close(case, name, got, &case[name], relative);
        close("delta", Some(solved.delta_ms));
        close("rho", Some(solved.rho));
        close("T", solved.steady.map(|it| it.iteration_ms));
        close("ttft", solved.steady.map(|it| it.ttft_ms));
        close("itl", solved.steady.map(|it| it.itl_ms));
        close("n", solved.steady.map(|it| it.in_flight));
        if let Some(steady) = solved.steady {
            let again = parameters.iteration_ms(&traffic, steady.in_flight);
            assert!(
                (again - steady.iteration_ms).abs() < 1e-6 * again,
                "T(n) is the iteration it settles at"
            );
        }
    }
}

#[test]
fn sizes_agree_with_the_vectors() {
    let vectors = vectors();
    let relative = number(&vectors["tolerance"]["lambda_star_rel"]);
    for case in cases(&vectors["lambda_star"]) {
        let sized = size(
            &parameters(&case["abg"]),
            &traffic(case),
            &targets(case),
            case["max_batch"].as_f64(),
            1.0,
        );
        let close = |name: &str, got| close(case, name, got, &case[name], relative);
        close("lambda_star", Some(sized.lambda_star));
        close("n_star", sized.n_star);
        close("rho", Some(sized.rho));
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
        close(case, "slo_ttft", targets.ttft_ms, &case["slo_ttft"], relative);
        close(case, "slo_itl", targets.itl_ms, &case["slo_itl"], relative);
        let sized = size(&parameters, &traffic, &targets, None, 1.0);
        close(
            case,
            "lambda_star",
            Some(sized.lambda_star),
            &case["lambda_star"],
            relative,
        );
        close(case, "rho", Some(sized.rho), &case["rho"], relative);
        assert_eq!(
            sized.binding.as_str(),
            "both",
            "both targets allow the same iteration"
        );
    }

    let case = &vectors["inferred_slo_multi_variant"];
    let of = |name: &str| {
        inferred(
            &parameters(&case[name]["abg"]),
            &traffic(case),
            number(&case["k"]),
        )
    };
    let both = maximum(of("A"), of("B"));
    for (got, expected) in [
        (of("A"), &case["A"]["slo"]),
        (of("B"), &case["B"]["slo"]),
        (both, &case["model_slo_max"]),
    ] {
        close(case, "ttft", got.ttft_ms, &expected[0], relative);
        close(case, "itl", got.itl_ms, &expected[1], relative);
    }
}

#[test]
fn targets_of_what_was_seen_agree_with_the_vectors() {
    for case in cases(&vectors()["fallback_slo"]) {
        let got = observed(number(&case["obs"][0]), number(&case["obs"][1]));
        let expected = case["slo"].is_array().then(|| pair(&case["slo"]));
        assert_eq!(got, expected, "{case}");
    }
}

#[test]
fn first_parameters_agree_with_the_vectors() {
    for case in cases(&vectors()["bootstrap_0.9"]) {
        let got = bootstrap(&Observed {
            traffic: traffic(case),
            ttft_ms: number(&case["ttft"]),
            itl_ms: number(&case["itl"]),
            busy: 1,
        });
        let found = got.map(|it| [it.alpha_ms, it.beta_ms, it.gamma_ms]);
        for at in 0..3 {
            close(
                case,
                "a parameter",
                found.map(|it| it[at]),
                &case["abg"][at],
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
            traffic: Traffic {
                rate: number(&pod[0]),
                input: number(&pod[1]),
                output: number(&pod[2]),
            },
            ttft_ms: number(&pod[3]),
            itl_ms: number(&pod[4]),
            busy: 1,
        })
        .collect();
    let all = together(&windows);
    let expect = &case["expect"];
    close(
        case,
        "rate",
        Some(all.traffic.rate),
        &expect["lambda_total"],
        1e-9,
    );
    close(case, "input", Some(all.traffic.input), &expect["i"], 1e-9);
    close(case, "output", Some(all.traffic.output), &expect["o"], 1e-9);
    close(case, "ttft", Some(all.ttft_ms), &expect["ttft"], 1e-9);
    close(case, "itl", Some(all.itl_ms), &expect["itl"], 1e-9);
    assert_eq!(all.busy as u64, expect["busy"].as_u64().expect("a number"));
}

#[test]
fn replicas_agree_with_the_vectors() {
    for case in cases(&vectors()["replicas"]) {
        let got = required_replicas(number(&case["lambda_total"]), number(&case["lambda_star"]));
        assert_eq!(got, case["required"].as_u64(), "{case}");
    }
}
