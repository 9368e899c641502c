//! The closed forms against independently computed values.

use penstock_model::{Parameters, Traffic};
use serde_json::Value;

#[test]
fn closed_forms_agree_with_the_vectors() {
    let cases: Value = serde_json::from_str(include_str!("closed_form.json")).expect("vectors");
    let cases = cases.as_array().expect("a list");
    assert_eq!(cases.len(), 6);
    for case in cases {
        let given = |at: usize| case["in"][at].as_f64().expect("a number");
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
        let close = |name: &str, got: Option<f64>| match (case[name].as_f64(), got) {
            (None, None) => {}
            (Some(expected), Some(got)) if (got - expected).abs() <= 1e-6 * expected.abs().max(1e-9) => {}
            (expected, got) => panic!("{}: {name} is {got:?}, not {expected:?}", case["id"]),
        };
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
