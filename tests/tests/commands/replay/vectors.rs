//! The reference vectors of deficit round robin: each a whole script.

use std::fmt::Write as _;
use std::path::PathBuf;

use penstock_tests::binary;
use serde_json::Value;

use super::script::{Replayed, policy, run_bytes};

fn cases(file: &str) -> Vec<Value> {
    let path: PathBuf = binary::workspace().join("companion/engine/tests/vectors").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let read = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
    text.lines().map(read).collect()
}

fn list<'a>(case: &'a Value, key: &str) -> &'a Vec<Value> {
    case[key].as_array().unwrap_or_else(|| panic!("{key} is a list"))
}

fn run(case: &Value, mode: &str) -> Replayed {
    let classes: Vec<String> = list(case, "classes").iter().map(Value::to_string).collect();
    let keys = format!(
        "queue: {{total_capacity: 100000, flow_capacity: 100000}}, arbitration: {{classes: {{mode: {mode}, policy_classes: [{}]}}}}",
        classes.join(", ")
    );
    let mut script = String::new();
    for op in list(case, "ops") {
        writeln!(script, "{op}").expect("memory takes it");
    }
    run_bytes(&policy(&keys), script.as_bytes(), &[])
}

/// Checks the cases that expect something of `mode`; returns how many.
fn check(file: &str, mode: &str) -> usize {
    let mut checked = 0;
    for case in cases(file) {
        let expect = &case["expect"];
        if expect.get(mode).is_none() {
            continue;
        }
        let answers = run(&case, mode).answers();
        let order: Vec<&Value> = answers.iter().map(|line| &line["dispatch"]).collect();
        let expected: Vec<&Value> = list(expect, mode).iter().collect();
        assert_eq!(order, expected, "{mode} {}", case["name"]);
        if let Some(deficits) = expect.get("deficits").and_then(Value::as_array) {
            for (index, (line, expected)) in answers.iter().zip(deficits).enumerate() {
                let nothing = line["dispatch"].is_null();
                assert!(nothing || line["deficits"] == *expected, "{} at {index}: {line}", case["name"]);
            }
        }
        checked += 1;
    }
    checked
}

#[test]
fn dynamo_mode_reproduces_the_released_router() {
    assert_eq!(check("drr.jsonl", "dynamo"), 160);
}

#[test]
fn exact_mode_matches_the_reference() {
    assert_eq!(check("drr.jsonl", "exact"), 40);
}

#[test]
fn visits_are_exact_in_order_and_deficits() {
    assert_eq!(check("drr-visits.jsonl", "exact"), 60);
}
