//! `fit`: parameters learned from recordings, and wrong lines.

use serde_json::{Value, json};

use super::recording::{requests, text, window, windows};
use super::run::{Ran, model, number, same};

fn fit(content: &str, flags: &str) -> Ran {
    model(&format!("fit obs.jsonl {flags}"), &[("obs.jsonl", content)])
}

/// Checks the parameters of a summary or an answer.
fn learned(known: &Value, tolerance: f64) {
    for (key, truth) in [("alpha", 8.0), ("beta", 0.05), ("gamma", 0.0005)] {
        same(&known[key], &json!(truth), tolerance, &format!("{key} of {known}"));
    }
}

#[test]
fn fit_learns_from_windows() {
    let recording = windows(60, |_, _| {});
    for flags in ["", "--no-bootstrap", "--init 12,.1,.001"] {
        let answers = fit(&recording, flags).answers();
        assert_eq!(answers.len(), 61);
        let mut keys: Vec<&String> = answers[7].as_object().expect("an object").keys().collect();
        keys.sort_unstable();
        let expected = ["accepted", "alpha", "beta", "condition", "gamma", "nis", "state"];
        assert_eq!(keys, expected);
        let summary = &answers[60]["summary"];
        assert_eq!(summary["state"], "converged", "{flags}");
        assert!(number(&summary["accepted"]) + number(&summary["rejected"]) >= 60.0);
        learned(summary, 0.02);
    }
}

#[test]
fn fit_reports_rejected_observations() {
    let outlier = windows(70, |k, window| window[3] *= if k == 60 { 5.0 } else { 1.0 });
    let answers = fit(&outlier, "").answers();
    assert_eq!(answers[60]["accepted"], false);
    assert!(number(&answers[60]["nis"]) > 7.378);
    assert_eq!(answers[61]["accepted"], true);
    for key in ["alpha", "beta", "gamma"] {
        same(&answers[60][key], &answers[59][key], 0.005, key);
    }
    assert_eq!(number(&answers[70]["summary"]["rejected"]), 1.0);
    let constant = windows(60, |_, observed| *observed = window(0.35, 512.0, 128.0));
    let answers = fit(&constant, "").answers();
    assert_eq!(answers[60]["summary"]["state"], "unidentifiable");
}

#[test]
fn fit_skips_idle_windows_and_accepts_partial_ones() {
    let some =
        "{\"t\":0,\"rate\":0}\n{\"t\":0,\"rate\":2,\"input\":512,\"output\":128,\"ttft\":null,\"itl\":9.6}\n";
    let answers = fit(some, "--init 8,.05,.0005").answers();
    assert_eq!((&answers[0]["state"], &answers[0]["accepted"]), (&json!("no_traffic"), &json!(false)));
    assert_eq!((&answers[0]["nis"], &answers[1]["accepted"]), (&Value::Null, &json!(true)));
    let nothing = fit("", "").answers();
    assert_eq!(nothing.len(), 1);
    let summary = &nothing[0]["summary"];
    assert_eq!((&summary["alpha"], &summary["state"]), (&Value::Null, &json!("no_traffic")));
}

#[test]
fn fit_learns_from_requests() {
    let lines = requests(400);
    let answers = fit(&text(&lines), "--plot fit.svg").answers();
    assert_eq!(answers.len(), 801);
    assert_eq!((&answers[0]["alpha"], &answers[0]["state"]), (&Value::Null, &json!("learning")));
    let summary = &answers[800]["summary"];
    assert_eq!(summary["state"], "converged", "{summary}");
    assert_eq!((number(&summary["accepted"]), number(&summary["undefined"])), (800.0, 0.0));
    learned(summary, 0.05);
    // Times may be of any clock and requests in any order; the learned parameters are the same.
    let mut later = lines.clone();
    for line in &mut later {
        for key in ["t", "dispatched", "first", "done"] {
            line[key] = json!(number(&line[key]) + 1_700_000_000.0);
        }
    }
    later.reverse();
    let later = fit(&text(&later), "").answers();
    for key in ["alpha", "beta", "gamma"] {
        same(&later[800]["summary"][key], &summary[key], 0.01, key);
    }
    same(&later[0]["alpha"], &answers[799]["alpha"], 0.01, "the last request is the first line");
}

#[test]
fn fit_counts_uninformative_requests_separately() {
    let mut lines = requests(200);
    for line in lines.iter_mut().step_by(4) {
        line["first"] = Value::Null;
    }
    let answers = fit(&text(&lines), "").answers();
    let summary = &answers[400]["summary"];
    // And requests for which it is unknown whether such a prompt was computed while they decoded.
    assert!((100.0..=150.0).contains(&number(&summary["undefined"])), "{summary}");
    assert!(number(&summary["alpha"]) > 6.0 && number(&summary["alpha"]) < 10.0, "{summary}");
    let at_first: Vec<&Value> = answers[..400].iter().step_by(4).map(|answer| &answer["accepted"]).collect();
    assert!(at_first.iter().all(|accepted| **accepted == json!(false)));
}

#[test]
fn bad_line_is_rejected_with_its_number() {
    let window = r#"{"t":1,"rate":2,"input":512,"output":128,"ttft":35,"itl":9.6}"#;
    let request = r#"{"t":1,"input":5,"output":2,"dispatched":1,"first":1.5,"done":2,"endpoint":"a"}"#;
    let cases = [
        (window, "", "not a JSON object"),
        (window, "[1]", "not a JSON object"),
        (window, "{\"t\":2,\"rate\":", "column"),
        (window, "{}", "distinguishes the formats"),
        (window, request, "same format"),
        (request, window, "same format"),
        (window, r#"{"t":2,"rate":1,"done":3}"#, "both formats"),
        (window, r#"{"t":0.5,"rate":0}"#, "t: 0.5 is before 1"),
        (window, r#"{"t":2,"rate":-1,"input":1,"output":1}"#, "rate"),
        (window, r#"{"t":2,"rate":1e31,"input":1,"output":1}"#, "rate"),
        (window, r#"{"t":2,"rate":1e999}"#, "column"),
        (window, r#"{"t":2,"rate":NaN}"#, "column"),
        (window, r#"{"t":2,"rate":"2"}"#, "rate"),
        (window, r#"{"t":2,"rate":1,"input":1}"#, "output"),
        (window, r#"{"t":2,"rate":0,"speed":1}"#, "`speed`"),
        (window, r#"{"t":2,"t":2,"rate":0}"#, "duplicate"),
        (request, r#"{"t":1,"input":5,"output":2,"dispatched":3,"done":2}"#, "done: 2 is before"),
        (request, r#"{"t":1,"input":5,"output":2,"dispatched":1,"first":3,"done":2}"#, "first: 3 is after"),
        (request, r#"{"t":1,"input":5,"output":2,"dispatched":1,"first":0,"done":2}"#, "first: 0 is before"),
        (request, r#"{"t":1,"input":5,"output":2,"dispatched":1}"#, "`done`"),
        (request, r#"{"t":1,"input":5,"output":-2,"dispatched":1,"done":2}"#, "output"),
        (request, r#"{"t":1,"input":5,"output":2,"dispatched":1,"done":2,"endpoint":{}}"#, "endpoint"),
    ];
    for (first, second, why) in cases {
        let ran = fit(&format!("{first}\n{second}\n{first}\n"), "");
        let message = ran.refused();
        assert!(message.starts_with("obs.jsonl:2: ") && message.contains(why), "{second}: {message}");
        // Windows are answered as they arrive; requests when the whole file is read.
        let answered = String::from_utf8_lossy(&ran.output.stdout).lines().count();
        assert_eq!(answered, usize::from(first == window), "{second}");
    }
    let window_lines = format!("{window}\n");
    for flags in
        ["--init 0,1,1", "--init 8,1", "--init 8,1,x", "--init 8,1,1 --no-bootstrap", "--plot no/such.svg"]
    {
        fit(&window_lines, flags).refused();
    }
    let long = format!("{{\"t\":1,\"endpoint\":\"{}\"}}", "a".repeat(1 << 20));
    assert!(fit(&long, "").refused().starts_with("obs.jsonl:1: a line must have fewer"));
}

#[test]
fn fit_draws_observed_against_fitted() {
    let folder = tempfile::tempdir().expect("a folder");
    let to = folder.path().join("fit.svg");
    let flags = format!("--plot {}", to.display());
    for (recording, panels) in [(windows(60, |_, _| {}), 2), (text(&requests(50)), 1)] {
        fit(&recording, &flags).answers();
        let svg = std::fs::read_to_string(&to).expect("a picture");
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert_eq!(svg.matches("observed, ms").count(), panels);
        assert!(svg.matches("<circle").count() >= 50);
    }
}
