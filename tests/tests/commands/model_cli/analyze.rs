//! `analyze`: targets, capacity and replicas of a snapshot, and snapshots that are wrong.

use serde_json::{Value, json};

use super::run::{Ran, list, model, number, same};

fn analyze(snapshot: &Value) -> Ran {
    model("analyze s.json", &[("s.json", &snapshot.to_string())])
}

#[test]
fn analyze_reports_the_replicas_of_each_variant() {
    let pods = json!([{"rate": 2, "input": 100, "output": 50, "ttft": 200, "itl": 20},
                      {"rate": 6, "input": 300, "output": 150, "ttft": 400, "itl": 30},
                      {"rate": 0, "input": 999, "output": 999, "ttft": 999, "itl": 999}]);
    let snapshot = json!({"slo": {"target_ttft": 500, "target_itl": "50ms"}, "total_rate": null, "variants": [
        {"name": "a", "replicas": 3, "pending": 0, "max_batch": 256, "params": [8, 0.05, 0.0005], "pods": pods},
        {"name": "b", "replicas": 1, "pending": 1, "max_batch": 256, "params": null, "pods": pods},
        {"name": "c", "replicas": 2, "pending": 0, "max_batch": 256, "params": [8, 0.05, 0.0005], "pods": []},
    ]});
    let analysis = analyze(&snapshot).answer();
    assert_eq!(analysis["slo"], json!({"ttft": 500.0, "itl": 50.0, "source": "explicit"}));
    let flags = "--alpha 8 --beta .05 --gamma .0005 --input 250 --output 125 --slo-ttft 500 --slo-itl 50 --max-batch 256";
    let sized = model(&format!("size {flags} --total-rate 8"), &[]).answer();
    let [a, b, c] = list(&analysis, "variants") else {
        panic!("three variants: {analysis}");
    };
    assert_eq!((&a["name"], &a["error"]), (&json!("a"), &Value::Null));
    same(&a["lambda_star"], &sized["lambda_star"], 1e-9, "lambda*");
    same(&a["n_star"], &sized["n_star"], 1e-9, "n*");
    same(&a["demand"], &json!(8), 1e-9, "what it served");
    same(&a["capacity"], &json!(3.0 * number(&sized["lambda_star"])), 1e-9, "of three");
    assert_eq!(a["required"], sized["required_replicas"]);
    assert_eq!(b["error"], "no parameters");
    for key in ["lambda_star", "capacity", "demand", "utilization"] {
        assert_eq!(number(&b[key]), 0.0, "{key}");
        assert_eq!(number(&c[key]), 0.0, "{key}");
    }
    assert!(c["error"].is_string() && c["bootstrap"].is_null());
    assert_eq!(a["bootstrap"], b["bootstrap"], "whether or not there are parameters");
}

#[test]
fn analyze_takes_targets_from_the_available_source() {
    let variant = |name: &str, params: Value| {
        let pods = json!([{"rate": 1, "input": 1000, "output": 200, "ttft": 200, "itl": 20}]);
        json!({"name": name, "replicas": 1, "pending": 0, "max_batch": 256, "params": params, "pods": pods})
    };
    let analyzed = |slo: Value, variants: Value| {
        analyze(&json!({"slo": slo, "total_rate": 30, "variants": variants})).answer()
    };
    let both = json!([variant("A", json!([8, 0.05, 0.0005])), variant("B", json!([16, 0.04, 0.0002]))]);
    let inferred = analyzed(json!({}), both);
    assert_eq!(inferred["slo"]["source"], "model");
    same(&inferred["slo"]["ttft"], &json!(88.2), 1e-6, "the larger one");
    same(&inferred["slo"]["itl"], &json!(48.2601), 1e-6, "the larger one");
    let demand: f64 = list(&inferred, "variants").iter().map(|variant| number(&variant["demand"])).sum();
    assert!((demand - 30.0).abs() < 1e-9, "the offered load, shared");
    let unknown = analyzed(json!({"slo_multiplier": 0}), json!([variant("A", Value::Null)]));
    assert_eq!(unknown["slo"], json!({"ttft": 300.0, "itl": 30.0, "source": "observed"}));
    let nothing = analyzed(json!({}), json!([]));
    assert_eq!(nothing, json!({"slo": {"ttft": null, "itl": null, "source": "none"}, "variants": []}));
}

#[test]
fn bad_snapshot_is_rejected_with_line_and_key() {
    let rejected = |text: &str| model("analyze s.json", &[("s.json", text)]).refused();
    let cases = [
        ("", "s.json:1: "),
        ("[]", "s.json:1: "),
        ("{\"slo\":{}}", "`variants`"),
        ("{\"variants\":[]} {}", "s.json:1: trailing"),
        (
            "{\n\"slo\":{\"target_ttft\":500},\n\"variants\":[]}",
            "s.json:2: slo: give target_ttft and target_itl",
        ),
        ("{\"slo\":{\"slo_multiplier\":1},\"variants\":[]}", "slo.slo_multiplier"),
        ("{\"slo\":{\"targetTTFT\":1},\"variants\":[]}", "targetTTFT"),
        ("{\"total_rate\":-1,\"variants\":[]}", "total_rate"),
        ("{\"variants\":[\n{\"name\":\"a\",\n\"pods\":[{\"rate\":-1}]}]}", "s.json:3: variants[0].pods[0]"),
        ("{\"variants\":[{\"name\":\"a\",\"params\":[8,1]}]}", "params"),
        ("{\"variants\":[{\"name\":\"a\",\"params\":[8,1,-1]}]}", "params"),
        ("{\"variants\":[{\"name\":\"a\",\"max_batch\":0}]}", "max_batch"),
        ("{\"variants\":[{\"name\":\"a\"},{\"name\":\"a\"}]}", "`a` is listed twice"),
    ];
    for (text, why) in cases {
        let message = rejected(text);
        assert!(message.starts_with("s.json:") && message.contains(why), "{text}: {message}");
    }
}
