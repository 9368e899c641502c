//! `solve` and `size`: the reference cases, the edges, and flags that are wrong.

use penstock_tests::binary;
use serde_json::{Value, json};

use super::run::{list, model, number, same};

fn vectors() -> Value {
    let path = binary::workspace().join("companion/model/tests/data/model.json");
    serde_json::from_slice(&std::fs::read(path).expect("the vectors")).expect("JSON")
}

/// The flags of a server and its requests.
fn case(parameters: &Value, input: &Value, output: &Value) -> String {
    let parameter = |index: usize| number(&parameters[index]);
    format!(
        "--alpha {} --beta {} --gamma {} --input {input} --output {output}",
        parameter(0),
        parameter(1),
        parameter(2)
    )
}

const CHAT: &str = "--alpha 8 --beta .05 --gamma .0005 --input 512 --output 128";

#[test]
fn solve_gives_the_closed_forms() {
    for vector in list(&vectors(), "closed_form") {
        let given = &vector["in"];
        let parameters = json!([given[3], given[4], given[5]]);
        let flags = case(&parameters, &given[1], &given[2]);
        let solved = model(&format!("solve {flags} --rate {}", given[0]), &[]).answer();
        for (key, expected) in [
            ("delta", "delta"),
            ("rho", "rho"),
            ("t_iter", "T"),
            ("ttft", "ttft"),
            ("itl", "itl"),
            ("n", "n"),
        ] {
            same(&solved[key], &vector[expected], 1e-6, &format!("{}: {key}", vector["id"]));
        }
        assert_eq!(solved["stable"], !vector["T"].is_null());
        assert_eq!(solved.as_object().expect("an object").len(), 7);
    }
}

#[test]
fn size_gives_the_capacity_of_a_server() {
    for vector in list(&vectors(), "lambda_star") {
        let mut flags = case(&vector["abg"], &vector["i"], &vector["o"]);
        flags += &format!(" --slo-ttft {} --slo-itl {}", vector["slo_ttft"], vector["slo_itl"]);
        if let Some(batch) = vector["max_batch"].as_u64() {
            flags += &format!(" --max-batch {batch}");
        }
        let sized = model(&format!("size {flags}"), &[]).answer();
        for key in ["lambda_star", "n_star", "rho"] {
            same(&sized[key], &vector[key], 1e-4, &format!("{}: {key}", vector["id"]));
        }
        assert_eq!(sized["binding"], vector["binding"], "{}", vector["id"]);
        assert_eq!(sized["feasible"], vector["feasible"], "{}", vector["id"]);
        assert_eq!(sized["required_replicas"], Value::Null);
        assert!(sized.get("slo_ttft").is_none());
    }
    for vector in list(&vectors(), "inferred_slo") {
        let flags = case(&vector["abg"], &vector["i"], &vector["o"]);
        let sized = model(&format!("size {flags} --slo-multiplier {}", vector["k"]), &[]).answer();
        for key in ["slo_ttft", "slo_itl", "lambda_star", "rho"] {
            same(&sized[key], &vector[key], 1e-4, &format!("k = {}: {key}", vector["k"]));
        }
    }
}

#[test]
fn size_handles_unlimited_and_infeasible_targets() {
    let sized = |flags: &str| model(&format!("size {CHAT} {flags}"), &[]).answer();
    let free = sized("--rate 5");
    assert_eq!((&free["n_star"], &free["binding"]), (&Value::Null, &json!("none")));
    same(&free["lambda_star"], &json!(1000.0 / (129.0 * 0.536_062_015_5)), 1e-6, "saturated");
    let absent = sized("--slo-ttft 0 --slo-itl 0");
    assert_eq!(absent, free, "a target of 0 is none");
    let batch = sized("--max-batch 10");
    assert_eq!((number(&batch["n_star"]), &batch["binding"]), (10.0, &json!("max_batch")));
    let never = sized("--slo-itl 8 --total-rate 30");
    assert_eq!(
        never,
        json!({"lambda_star": 0.0, "n_star": 0.0, "rho": 0.0, "binding": "itl", "feasible": false,
               "required_replicas": null})
    );
    let replicas =
        |rate: &str| sized(&format!("--slo-multiplier 0 --total-rate {rate}"))["required_replicas"].clone();
    // lambda* is 9.64.
    assert_eq!((replicas("9.6"), replicas("9.7"), replicas("0")), (json!(1), json!(2), Value::Null));
    let default = sized("--slo-multiplier 0");
    assert_eq!(default, sized("--slo-multiplier 3"), "0 is the default");
    let explicit = sized("--slo-multiplier 3 --slo-ttft 500 --slo-itl 50");
    assert_eq!((number(&explicit["slo_ttft"]), number(&explicit["slo_itl"])), (500.0, 50.0));
    let weightless = "size --alpha 8 --beta 0 --gamma 0 --input 1 --output 1 --slo-itl 50";
    assert_eq!(model(weightless, &[]).answer()["lambda_star"], Value::Null, "without end");
}

#[test]
fn invalid_numbers_are_rejected() {
    let bad = [
        ("solve", CHAT, "--rate"),
        ("solve", CHAT, "--rate -1"),
        ("solve", CHAT, "--rate nan"),
        ("solve", CHAT, "--rate inf"),
        ("solve", CHAT, "--rate 1e31"),
        ("solve", CHAT, "--rate 5 --rate 6"),
        ("solve", CHAT, "--rate five"),
        ("solve", CHAT, ""),
        ("solve", "--alpha 0 --beta 1 --gamma 1 --input 1 --output 1", "--rate 1"),
        ("solve", "--alpha 8 --beta -1 --gamma 1 --input 1 --output 1", "--rate 1"),
        ("size", CHAT, "--slo-ttft -1"),
        ("size", CHAT, "--slo-multiplier 1"),
        ("size", CHAT, "--slo-multiplier 0.5"),
        ("size", CHAT, "--slo-multiplier -3"),
        ("size", CHAT, "--slo-multiplier 3 --slo-ttft 500"),
        ("size", CHAT, "--max-batch 0"),
        ("size", CHAT, "--max-batch 1.5"),
        ("size", CHAT, "--total-rate -1"),
        ("guess", CHAT, ""),
        ("fit", "nowhere.jsonl", ""),
        ("fit", ".", ""),
        ("analyze", "nowhere.json", ""),
    ];
    for (command, case, flags) in bad {
        let ran = model(&format!("{command} {case} {flags}"), &[]);
        let message = ran.refused();
        assert!(!message.is_empty() && ran.output.stdout.is_empty(), "{command} {flags}: {message}");
    }
    let most = "solve --alpha 1e30 --beta 1e30 --gamma 1e30 --input 1e30 --output 1e30 --rate 1e30";
    assert_eq!(model(most, &[]).answer()["stable"], false);
}
