//! Tests of sources with several profiles: models with latency targets, and policy classes.

use penstock_config::Document;
use serde_json::json;

use super::{Source, assert_errors, assert_pool, page};

#[test]
fn wva_models_become_pools() {
    let cases = [
        "kind: ConfigMap\ndata:\n  default: |\n    sloMultiplier: 2\n  a: |\n    model_id: org/a\n    namespace: x\n  b: |\n    model_id: b\n    namespace: y\n    targetTTFT: 500.0\n    targetITL: 12.5\n",
        "data:\n  default: {slo_multiplier: 2.0}\n  a: {modelId: org/a, namespace: x}\n  b: {model_id: b, namespace: y, target_ttft: 500ms, target_itl: '12.5'}\n",
        "default: {sloMultiplier: 2}\na: \"model_id: org/a\\nnamespace: x\\n\"\nb: {modelID: b, namespace: y, targetTTFT: 0.5s, targetITL: 12.5}\n",
        "sloMultiplier: 2\n---\nmodel_id: org/a\nnamespace: x\n---\nmodel_id: b\nnamespace: y\ntargetTTFT: 500\ntargetITL: 12.5\n",
        "kind: List\nitems:\n- kind: ConfigMap\n  data:\n    default: 'sloMultiplier: 2'\n    a: \"model_id: org/a\\nnamespace: x\\n\"\n    b: \"model_id: b\\nnamespace: y\\ntargetTTFT: 500\\ntargetITL: 12.5\\n\"\n",
    ];
    for text in cases {
        let (page, values) = page(Source::Wva, text);
        assert_eq!(values["pools"].as_array().map(Vec::len), Some(2), "{page}");
        assert_eq!(values["pools"][0]["models"], json!(["org/a"]));
        assert_eq!(values["pools"][0]["name"], json!("x.org-a"));
        assert_eq!(values["pools"][1]["name"], json!("y.b"));
        assert_pool(
            &values,
            &[("stock.watermark_per_backend", json!("auto")), ("slo.slo_multiplier", json!(2))],
        );
        let document = Document::parse(&page, "page").expect("valid");
        let targets = document.config().pools[1].slo.explicit.expect("given");
        assert_eq!((targets.ttft_ms, targets.itl_ms), (Some(500.0), Some(12.5)), "{text}");
        assert_eq!(document.config().pools[0].slo.explicit, None);
    }
    // A default alone is for every model.
    let (page, values) =
        super::page(Source::Wva, "kind: ConfigMap\ndata:\n  default: |\n    tuningEnabled: true\n");
    assert_eq!(values["pools"].as_array().map(Vec::len), Some(1), "{page}");
    assert_eq!(values["pools"][0].get("models"), None);
    assert_pool(&values, &[("slo.slo_multiplier", json!(3))]);
    // 0 means the default: that of the ConfigMap, then that of WVA.
    let (page, values) = super::page(
        Source::Wva,
        "default: {sloMultiplier: 4, targetTTFT: 1, targetITL: 1, kvCacheThreshold: 0.8}\na: {model_id: m, namespace: x, sloMultiplier: 0, targetTTFT: 0, targetITL: 0}\nb: {model_id: m, namespace: y}\nc: {sloMultiplier: 2}\nd: 1\n",
    );
    assert_pool(&values, &[("slo.slo_multiplier", json!(4))]);
    assert_eq!(values["pools"].as_array().map(Vec::len), Some(2));
    for word in ["another namespace", "`c` names no model", "`d: 1` has no equivalent here", "answered 404"] {
        assert!(page.replace("\n  # ", " ").contains(word), "{word} in\n{page}");
    }
}

#[test]
fn wva_without_tuning_is_taken_over_and_says_what_is_missing() {
    for value in ["false", "\"false\""] {
        let (page, values) =
            super::page(Source::Wva, &format!("a: {{model_id: m, namespace: n, tuningEnabled: {value}}}\n"));
        assert_pool(&values, &[("stock.watermark_per_backend", json!("auto"))]);
        assert!(page.contains("tuningEnabled: false"), "{page}");
    }
}

#[test]
fn dynamo_s_weights_are_quanta_and_a_limit_may_be_zero() {
    let classes = "default_policy_family: f\nuncached_isl_buckets: [{min_tokens: 0, bucket: b}]\npolicy_classes:\n\
        - {name: c, policy_family: f, cache_bucket: b, weight: 0.5, request_queue_limit_per_worker: 0}\n";
    let (_, values) = super::page(Source::Dynamo, classes);
    assert_pool(
        &values,
        &[
            ("arbitration.classes.policy_classes.0.quantum", json!(500)),
            ("arbitration.classes.policy_classes.0.request_queue_limit_per_worker", json!(0)),
        ],
    );
}

#[test]
fn wva_errors_name_the_line() {
    let entry = "kind: ConfigMap\ndata:\n  a: |\n    model_id: m\n    namespace: x\n";
    let with = |more: &str| format!("{entry}    {more}\n");
    let cases = [
        (with("tuningEnabled: perhaps"), 6, "true or false"),
        (with("sloMultiplier: 1"), 6, "above 1"),
        (with("sloMultiplier: 0.5"), 6, "above 1"),
        (with("sloMultiplier: -2"), 6, "at least 0"),
        (with("targetTTFT: 500"), 6, "both, or neither"),
        (with("targetITL: 50\n    targetTTFT: 0"), 6, "both, or neither"),
        (with("targetTTFT: -1\n    targetITL: 5"), 6, "milliseconds"),
        (with("targetTTFT: fast\n    targetITL: 5"), 6, "milliseconds"),
        ("kind: ConfigMap\ndata:\n  a: |\n    model_id: m\n".into(), 4, "model_id and namespace"),
        ("a: {namespace: m}\n".into(), 1, "model_id and namespace"),
        ("default: {}\n---\ndata:\n  default: {}\n".into(), 4, "twice"),
        ("x: 1\n".into(), 1, "no entry"),
        ("[1, 2]\n".into(), 1, "ConfigMap"),
    ];
    for (text, line, word) in &cases {
        assert_errors(Source::Wva, &[(text, *line, word)]);
    }
}

const ONE: &str = "default_policy_family: f\nuncached_isl_buckets: [{min_tokens: 0, bucket: b}]\npolicy_classes:\n- {name: c, policy_family: f, cache_bucket: b, quantum: 7}\n";

#[test]
fn dynamos_classes_become_the_same_classes() {
    let nested =
        |key: &str| format!("{key}:\n{}", ONE.lines().map(|line| format!("  {line}\n")).collect::<String>());
    let held = format!(
        "kind: ConfigMap\ndata:\n  policy.yaml: |\n{}",
        ONE.lines().map(|line| format!("    {line}\n")).collect::<String>()
    );
    for text in [ONE.to_owned(), nested("router_policy_config"), held] {
        let (_, values) = page(Source::Dynamo, &text);
        assert_pool(
            &values,
            &[
                ("arbitration.classes.default_policy_family", json!("f")),
                ("arbitration.classes.uncached_isl_buckets", json!([{"min_tokens": 0, "bucket": "b"}])),
                (
                    "arbitration.classes.policy_classes",
                    json!([{"name": "c", "policy_family": "f", "cache_bucket": "b", "quantum": 7}]),
                ),
                ("arbitration.flows.key", json!("none")),
                ("stock.watermark_per_backend", json!("none")),
                ("endpoints.defaults", json!({"max_batched_tokens": 8_192})),
            ],
        );
    }
    // Names that YAML would read as other types, and the name of a model with dots.
    let (page, values) = page(
        Source::Dynamo,
        "models:\n  org/m-1.5:\n    default_policy_family: \"on\"\n    uncached_isl_buckets: [{min_tokens: 0, bucket: \"1\"}]\n    policy_classes: [{name: \"null\", policy_family: \"on\", cache_bucket: \"1\", quantum: 1, colour: red}]\nrequest_classifier: {type: thunderagent}\n",
    );
    let classes = &values["pools"][0]["arbitration"]["classes"];
    assert_eq!(classes["models"]["org/m-1.5"]["policy_classes"][0]["name"], json!("null"));
    for word in [
        "`colour: red` has no equivalent here",
        "`request_classifier: {type: thunderagent}` has no equivalent here",
    ] {
        assert!(page.contains(word), "{word} in\n{page}");
    }
    let (page, values) = super::page(Source::Dynamo, "worker_selection: {aggregated: default}\n");
    assert_eq!(values["pools"][0]["arbitration"]["classes"].get("policy_classes"), None);
    assert!(page.contains("see `pools[].scheduler`"), "{page}");
}

#[test]
fn dynamo_errors_name_the_line() {
    let class = |more: &str| format!("{ONE}  # one more\n- {{name: d, {more}}}\n");
    let cases = [
        (class("quantum: 0"), 6, "at least 1"),
        (class("policy_family: f"), 6, "quantum is required"),
        (class("quantum: 1, queue_policy: lcfs"), 6, "fcfs or wspt"),
        (class("quantum: 1, prefill_busy_threshold: -1"), 6, "at least 0"),
        (class("quantum: 1, prefill_busy_threshold_frac: -0.5"), 6, "at least 0"),
        (class("quantum: 1, busy_worker_ratio: 16, prefill_busy_threshold: 1"), 6, "at most 1"),
        (class("quantum: 1, busy_worker_ratio: 0.5"), 6, "this needs"),
        // Rules across keys are checked by Penstock; the error has the line of the source.
        (class("quantum: 1, policy_family: g"), 6, "or neither"),
        (class("quantum: 1, policy_family: f, cache_bucket: nowhere"), 6, "none of uncached"),
        (ONE.replace("name: c", "name: 'c d'"), 4, "letters, digits"),
        (ONE.replace("family: f\nun", "family: g\nun"), 1, "not a family"),
        (ONE.replace("min_tokens: 0", "min_tokens: 1"), 2, "begins at 0"),
        (ONE.replace("[{min_tokens: 0, bucket: b}]", "3"), 2, "list"),
        (ONE.replace("- {", "- x\n- {"), 4, "mapping"),
        (
            format!(
                "models:\n  a.b:\n{}",
                ONE.replace("min_tokens: 0", "min_tokens: 1")
                    .lines()
                    .map(|line| format!("    {line}\n"))
                    .collect::<String>()
            ),
            4,
            "begins at 0",
        ),
        ("models: {m: 1}\n".into(), 1, "mapping"),
        ("models: 3\n".into(), 1, "mapping"),
        ("router_mode: kv\n".into(), 1, "policy_classes"),
    ];
    for (text, line, word) in &cases {
        assert_errors(Source::Dynamo, &[(text, *line, word)]);
    }
}
