//! `penstock replay` through the built binary: a policy, a script, and its answers line by line.

mod disciplines;
mod gate;
mod lines;
mod script;
mod vectors;

use self::script::{enqueue, order, replay};

const CLASSES: &str = "arbitration: {classes: {policy_classes: [{name: cached, quantum: 512}, {name: uncached, quantum: 512}]}}";

#[test]
fn the_example_of_the_contract() {
    let script = r#"
        {"op":"enqueue","t":0.0,"id":"a","flow":"acme","band":"default","class":"cached","tokens":512,"cached":128,"output":64,"strict":0,"jump":0,"deadline":null}
        {"op":"dispatch","t":1.0,"blocked":["uncached"]}
        {"op":"settle","t":2.0,"id":"a","tokens":512,"output":80}
        {"op":"refund","t":2.0,"id":"a"}
        {"op":"cancel","t":2.0,"id":"b"}
        {"op":"expire","t":31.0}
    "#;
    let answered = replay(CLASSES, script).done();
    let expected = r#"{"t":1.0,"dispatch":"a","class":"cached","flow":"acme","cost":384,"flow_cost":512,"deficits":{"cached":0,"uncached":0}}"#;
    assert_eq!(answered, [expected]);
}

#[test]
fn policy_without_classes_has_one_class() {
    let script = r#"
        {"op":"dispatch","t":0}
        {"op":"enqueue","t":1,"id":"a"}
        {"op":"enqueue","t":1,"id":"b","class":"default","tokens":7}
        {"op":"dispatch","t":1.50,"blocked":["default"]}
        {"op":"dispatch","t":1.50}
        {"op":"dispatch","t":2e0}
        {"op":"dispatch","t":2e0}
    "#;
    let expected = [
        r#"{"t":0,"dispatch":null}"#,
        r#"{"t":1.50,"dispatch":null}"#,
        r#"{"t":1.50,"dispatch":"a","class":"default","flow":"f","cost":1,"flow_cost":1,"deficits":{"default":0}}"#,
        r#"{"t":2e0,"dispatch":"b","class":"default","flow":"f","cost":7,"flow_cost":7,"deficits":{"default":0}}"#,
        r#"{"t":2e0,"dispatch":null}"#,
    ];
    assert_eq!(replay("", script).done(), expected);
}

#[test]
fn request_without_a_class_takes_the_default_family_and_its_bucket() {
    let policy = "arbitration: {classes: {default_policy_family: chat, uncached_isl_buckets: [{min_tokens: 0, bucket: short}, {min_tokens: 100, bucket: long}],
        policy_classes: [{name: cs, policy_family: chat, cache_bucket: short, quantum: 10}, {name: cl, policy_family: chat, cache_bucket: long, quantum: 10},
                         {name: as, policy_family: agent, cache_bucket: short, quantum: 10}, {name: al, policy_family: agent, cache_bucket: long, quantum: 10}]}}";
    let script = r#"
        {"op":"enqueue","t":0,"id":"a","tokens":99}
        {"op":"enqueue","t":0,"id":"b","tokens":200,"cached":100}
        {"op":"enqueue","t":0,"id":"c","tokens":200,"cached":101}
        {"op":"enqueue","t":0,"id":"d","tokens":1,"class":"al"}
        {"op":"dispatch","t":0,"blocked":["cl","al"]}
        {"op":"dispatch","t":0,"blocked":["cl","al"]}
        {"op":"dispatch","t":0,"blocked":["cl","al"]}
        {"op":"dispatch","t":0,"blocked":["al"]}
        {"op":"dispatch","t":0}
    "#;
    let answered = replay(policy, script).answers();
    let classes: Vec<_> =
        answered.iter().map(|line| (line["dispatch"].as_str(), line["class"].as_str())).collect();
    let expected = [
        (Some("a"), Some("cs")),
        (Some("c"), Some("cs")),
        (None, None),
        (Some("b"), Some("cl")),
        (Some("d"), Some("al")),
    ];
    assert_eq!(classes, expected);
}

#[test]
fn deficits_are_those_of_every_class_after_the_dispatch() {
    // A visit grants 512: 400 are spent and 112 remain, because the next head costs more. The other class spends its whole deficit.
    let script = r#"
        {"op":"enqueue","t":0,"id":"a","class":"cached","tokens":400}
        {"op":"enqueue","t":0,"id":"b","class":"cached","tokens":200}
        {"op":"enqueue","t":0,"id":"c","class":"uncached","tokens":512}
        {"op":"enqueue","t":0,"id":"d","class":"uncached","tokens":100}
        {"op":"dispatch","t":0}
        {"op":"dispatch","t":0}
        {"op":"dispatch","t":0}
        {"op":"dispatch","t":0}
    "#;
    let answered = replay(CLASSES, script).done();
    let deficits: Vec<_> =
        answered.iter().map(|line| &line[line.find("\"deficits\"").expect("deficits")..]).collect();
    let expected = [
        r#""deficits":{"cached":112,"uncached":0}}"#,
        r#""deficits":{"cached":112,"uncached":0}}"#,
        r#""deficits":{"cached":0,"uncached":0}}"#,
        r#""deficits":{"cached":0,"uncached":0}}"#,
    ];
    assert_eq!(deficits, expected);
    assert_eq!(order(&answered), ["a", "c", "b", "d"]);
}

#[test]
fn rejection_names_its_code() {
    let small = "queue: {total_capacity: 2, flow_capacity: 1}";
    let script = [
        enqueue("a", "f", ""),
        enqueue("b", "f", ""),
        enqueue("c", "g", ""),
        enqueue("d", "h", ""),
        r#"{"op":"enqueue","t":5.5,"id":"g","flow":"new","deadline":5.5}"#.into(),
    ];
    let expected = [
        r#"{"t":0,"reject":"b","code":"flow_capacity"}"#,
        r#"{"t":0,"reject":"d","code":"too_many_flows"}"#,
        r#"{"t":5.5,"reject":"g","code":"deadline_exceeded"}"#,
    ];
    assert_eq!(replay(small, &script.join("\n")).done(), expected);

    let flow = "queue: {total_capacity: 1}";
    let script = [enqueue("a", "f", ""), enqueue("b", "f", ""), enqueue("b", "f", "")];
    let refused = r#"{"t":0,"reject":"b","code":"queue_full"}"#;
    assert_eq!(replay(flow, &script.join("\n")).done(), [refused; 2]);

    for nobody in ["queue: {enabled: false}", "queue: {total_capacity: 0}"] {
        let refused = r#"{"t":0,"reject":"a","code":"not_queued"}"#;
        assert_eq!(replay(nobody, &enqueue("a", "f", "")).done(), [refused]);
    }

    // The request that crosses the limit is accepted.
    let class = "arbitration: {classes: {policy_classes: [{name: c, quantum: 1, raw_isl_token_queue_limit_per_worker: 100}]}}";
    let script =
        [enqueue("a", "f", r#""tokens":99"#), enqueue("b", "f", r#""tokens":500"#), enqueue("c", "f", "")];
    let refused = r#"{"t":0,"reject":"c","code":"class_capacity"}"#;
    assert_eq!(replay(class, &script.join("\n")).done(), [refused]);
}

#[test]
fn less_critical_request_is_displaced() {
    let script = [
        enqueue("a", "f", r#""band":"sheddable""#),
        enqueue("b", "f", r#""band":"sheddable""#),
        enqueue("c", "h", r#""band":"critical""#),
        enqueue("d", "g", ""),
        enqueue("e", "i", r#""band":"sheddable""#),
        r#"{"op":"enqueue","t":0,"id":"b","band":"critical"}"#.into(),
    ];
    // The youngest is displaced first; an id that has left may be used again.
    let expected = [
        r#"{"t":0,"displaced":"b"}"#,
        r#"{"t":0,"displaced":"a"}"#,
        r#"{"t":0,"reject":"e","code":"too_many_flows"}"#,
        r#"{"t":0,"displaced":"d"}"#,
    ];
    let answered = replay("queue: {total_capacity: 2}", &script.join("\n")).done();
    assert_eq!(answered, expected);
    let refused = replay("queue: {total_capacity: 2, overflow: reject}", &script[..3].join("\n")).done();
    assert_eq!(refused, [r#"{"t":0,"reject":"c","code":"too_many_flows"}"#]);
}

#[test]
fn requests_expire_only_at_an_expire_operation() {
    let script = r#"
        {"op":"enqueue","t":0.0,"id":"a"}
        {"op":"enqueue","t":1.0,"id":"b"}
        {"op":"enqueue","t":2.0,"id":"c","deadline":3.5}
        {"op":"enqueue","t":50.0,"id":"d"}
        {"op":"dispatch","t":60.0}
        {"op":"expire","t":60.0}
        {"op":"expire","t":79.999999999}
        {"op":"expire","t":80.0}
        {"op":"dispatch","t":80.0}
    "#;
    let answered = replay("", script).done();
    assert_eq!(order(&answered[..1]), ["a"]);
    let expected = [
        r#"{"t":60.0,"expired":"c"}"#,
        r#"{"t":60.0,"expired":"b"}"#,
        r#"{"t":80.0,"expired":"d"}"#,
        r#"{"t":80.0,"dispatch":null}"#,
    ];
    assert_eq!(answered[1..], expected);
}

#[test]
fn cancelled_request_is_not_dispatched() {
    let script = r#"
        {"op":"enqueue","t":0,"id":"a"}
        {"op":"enqueue","t":0,"id":"b"}
        {"op":"cancel","t":0,"id":"a"}
        {"op":"cancel","t":0,"id":"a"}
        {"op":"settle","t":0,"id":"b","tokens":1,"output":1}
        {"op":"refund","t":0,"id":"b"}
        {"op":"enqueue","t":0,"id":"a"}
        {"op":"dispatch","t":1}
        {"op":"cancel","t":1,"id":"b"}
        {"op":"dispatch","t":1}
        {"op":"dispatch","t":1}
    "#;
    assert_eq!(order(&replay("", script).done()), ["b", "a", "null"]);
}

#[test]
fn flow_limit_holds_a_flow_and_busy_thresholds_have_no_effect() {
    let policy = "arbitration: {flows: {max_in_flight: 1}, classes: {policy_classes: [{name: c, quantum: 1, prefill_busy_threshold: 10}]}}";
    let script = r#"
        {"op":"enqueue","t":0,"id":"a1","flow":"a","tokens":100}
        {"op":"enqueue","t":0,"id":"a2","flow":"a","tokens":100}
        {"op":"enqueue","t":0,"id":"b1","flow":"b","tokens":500}
        {"op":"dispatch","t":0}
        {"op":"dispatch","t":0}
        {"op":"dispatch","t":0}
        {"op":"settle","t":1,"id":"a1","tokens":100,"output":1}
        {"op":"dispatch","t":1}
    "#;
    assert_eq!(order(&replay(policy, script).done()), ["a1", "b1", "null", "a2"]);
}

#[test]
fn class_of_a_model_glob_is_reached_by_its_name() {
    let policy = "arbitration: {classes: {models: {'x*': {policy_classes: [{name: c, quantum: 5}]}}}}";
    let script = r#"
        {"op":"enqueue","t":0,"id":"a"}
        {"op":"enqueue","t":0,"id":"b","class":"c"}
        {"op":"enqueue","t":0,"id":"d","class":"default"}
        {"op":"dispatch","t":0}
        {"op":"dispatch","t":0,"blocked":["c"]}
        {"op":"dispatch","t":0,"blocked":["c"]}
        {"op":"dispatch","t":0}
    "#;
    let answered = replay(policy, script).done();
    assert_eq!(order(&answered), ["a", "d", "null", "b"]);
    assert!(answered[3].contains(r#""class":"c""#), "{}", answered[3]);
}
