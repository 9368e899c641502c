//! Small cases of every discipline, band mode and order, worked out by hand.

use super::script::{dispatches, enqueue, order, replay};

fn flows(discipline: &str, more: &str) -> String {
    format!("arbitration: {{flows: {{discipline: {discipline}{more}}}}}")
}

/// Queues requests, given by id and tokens, and dispatches all of them; returns their ids in order.
fn all(policy: &str, requests: &[(&str, u32)]) -> Vec<String> {
    let mut script: Vec<String> =
        requests.iter().map(|(id, tokens)| enqueue(id, &id[..1], &format!(r#""tokens":{tokens}"#))).collect();
    script.push(dispatches(0, requests.len()));
    order(&replay(policy, &script.join("\n")).done())
}

#[test]
fn wfq_dispatches_the_least_tag() {
    let policy = flows("wfq", ", weights: {a: 2}");
    let each_100 = ["a1", "a2", "a3", "a4", "b1", "b2"].map(|id| (id, 100));
    // Tags 50 100 150 200 and 100 200, ties by arrival.
    assert_eq!(all(&policy, &each_100), ["a1", "a2", "b1", "a3", "a4", "b2"]);
}

#[test]
fn wfq_settles_and_refunds() {
    let requests = ["a1", "a2", "b1", "b2", "b3", "b4"];
    let waiting: Vec<String> = requests.iter().map(|id| enqueue(id, &id[..1], r#""tokens":100"#)).collect();
    let told = |what: &str| {
        let script = format!("{}\n{}\n{what}\n{}", waiting.join("\n"), dispatches(1, 1), dispatches(2, 5));
        order(&replay("", &script).done())
    };
    // Its virtual finish is 100; the next tags are 200 against 100 200 300 400.
    assert_eq!(told(""), ["a1", "b1", "a2", "b2", "b3", "b4"]);
    // At 400: 500 against them.
    let dear = r#"{"op":"settle","t":2,"id":"a1","tokens":200,"output":100}"#;
    assert_eq!(told(dear), ["a1", "b1", "b2", "b3", "b4", "a2"]);
    // At 0: 100 against 100, and it came earlier.
    assert_eq!(told(r#"{"op":"refund","t":2,"id":"a1"}"#), ["a1", "a2", "b1", "b2", "b3", "b4"]);
}

#[test]
fn wfq_counts_the_output_twice() {
    let script = [
        enqueue("a", "x", r#""tokens":100,"cached":50,"output":100"#),
        enqueue("b", "y", r#""tokens":249"#),
        dispatches(0, 2),
    ];
    let answered = replay("", &script.join("\n")).done();
    assert_eq!(order(&answered), ["b", "a"]);
    assert!(answered[1].contains(r#""cost":50,"flow_cost":250,"#), "{}", answered[1]);
    let by_requests = flows("wfq", ", cost: requests");
    let answered = replay(&by_requests, &script.join("\n")).done();
    assert_eq!(order(&answered), ["a", "b"]);
    assert!(answered[0].contains(r#""cost":50,"flow_cost":1,"#), "{}", answered[0]);
}

#[test]
fn usage_counts_its_window() {
    let script = r#"
        {"op":"enqueue","t":0,"id":"x1","flow":"x","tokens":1000}
        {"op":"enqueue","t":0,"id":"x2","flow":"x","tokens":10}
        {"op":"enqueue","t":0,"id":"y1","flow":"y","tokens":10}
        {"op":"enqueue","t":0,"id":"y2","flow":"y","tokens":10}
        {"op":"dispatch","t":0}
        {"op":"dispatch","t":0}
        {"op":"dispatch","t":0}
        {"op":"dispatch","t":0}
        {"op":"settle","t":1,"id":"x1","tokens":1000,"output":0}
        {"op":"settle","t":1,"id":"x2","tokens":10,"output":0}
        {"op":"settle","t":1,"id":"y1","tokens":10,"output":0}
        {"op":"settle","t":1,"id":"y2","tokens":10,"output":0}
        {"op":"enqueue","t":10,"id":"n1","flow":""}
        {"op":"enqueue","t":10,"id":"x3","flow":"x"}
        {"op":"enqueue","t":10,"id":"y3","flow":"y"}
        {"op":"dispatch","t":10}
        {"op":"dispatch","t":10}
        {"op":"dispatch","t":10}
        {"op":"refund","t":10,"id":"n1"}
        {"op":"refund","t":10,"id":"x3"}
        {"op":"refund","t":10,"id":"y3"}
        {"op":"enqueue","t":400,"id":"x4","flow":"x"}
        {"op":"enqueue","t":400,"id":"y4","flow":"y"}
        {"op":"dispatch","t":400}
        {"op":"dispatch","t":400}
    "#;
    let answered = replay(&flows("usage", ""), script).done();
    let expected = [
        // No flow used anything; then 1,000 tokens in flight against 0 and 10.
        "x1", "y1", "y2", "x2", // 20 against 1,010; the anonymous flow last.
        "y3", "x3", "n1", // The window is empty: by arrival.
        "x4", "y4",
    ];
    assert_eq!(order(&answered), expected);
    assert!(answered[6].contains(r#""flow":"anonymous""#), "{}", answered[6]);
}

#[test]
fn vtc_lifts_a_newly_backlogged_flow() {
    let first = ["a1", "a2", "a3"].map(|id| enqueue(id, "a", r#""tokens":100"#));
    let then = ["b1", "b2", "b3"].map(|id| enqueue(id, "b", r#""tokens":100"#));
    let script =
        format!("{}\n{}\n{}\n{}", first.join("\n"), dispatches(0, 2), then.join("\n"), dispatches(0, 4));
    // The least backlogged counter is 200, so the newcomer is lifted to 200; with its total usage it would go first.
    let answered = replay(&flows("vtc", ""), &script).done();
    assert_eq!(order(&answered), ["a1", "a2", "a3", "b1", "b2", "b3"]);
    let answered = replay(&flows("usage", ""), &script).done();
    assert_eq!(order(&answered), ["a1", "a2", "b1", "b2", "a3", "b3"]);
}

#[test]
fn drr_spends_a_quantum_of_1024_in_a_visit() {
    let requests = [("a1", 512), ("a2", 512), ("a3", 512), ("a4", 512), ("b1", 1024), ("b2", 1024)];
    let expected = ["a1", "a2", "b1", "a3", "a4", "b2"];
    assert_eq!(all(&flows("drr", ""), &requests), expected);
    let heavy = ["a1", "a2", "a3", "a4", "b1", "b2"];
    assert_eq!(all(&flows("drr", ", weights: {a: 2}"), &requests), heavy);
}

#[test]
fn round_robin_counts_requests_and_fifo_nothing() {
    let requests = [("a1", 1000), ("a2", 1000), ("a3", 1000), ("b1", 10), ("b2", 10)];
    let turns = ["a1", "b1", "a2", "b2", "a3"];
    assert_eq!(all(&flows("round_robin", ""), &requests), turns);
    let arrivals = ["a1", "a2", "a3", "b1", "b2"];
    assert_eq!(all(&flows("fifo", ""), &requests), arrivals);
}

#[test]
fn without_a_key_all_requests_share_one_flow() {
    let requests = [("a1", 1000), ("a2", 1000), ("b1", 10)];
    let policy = flows("wfq", ", key: none");
    assert_eq!(all(&policy, &requests), ["a1", "a2", "b1"]);
    assert_eq!(all("", &requests), ["b1", "a1", "a2"]);
}

#[test]
fn bands_go_by_rank_or_by_weight() {
    let band = |id: &str, band: &str| enqueue(id, "f", &format!(r#""band":"{band}""#));
    let script = [
        band("s1", "sheddable"),
        band("s2", "sheddable"),
        band("d1", "default"),
        band("d2", "default"),
        band("c1", "critical"),
        band("c2", "critical"),
        band("c3", "critical"),
        band("c4", "critical"),
        dispatches(0, 8),
    ]
    .join("\n");
    let strict = ["c1", "c2", "c3", "c4", "d1", "d2", "s1", "s2"];
    assert_eq!(order(&replay("", &script).done()), strict);
    let weighted = "arbitration: {bands: {mode: weighted, weights: {critical: 2, default: 1, sheddable: 1}}, flows: {cost: requests}}";
    let shares = ["c1", "c2", "d1", "s1", "c3", "c4", "d2", "s2"];
    assert_eq!(order(&replay(weighted, &script).done()), shares);
}

#[test]
fn order_decides_inside_a_flow() {
    let script = r#"
        {"op":"enqueue","t":0,"id":"a","tokens":100,"deadline":30}
        {"op":"enqueue","t":1,"id":"b","tokens":10,"jump":-2.5,"deadline":10.5}
        {"op":"enqueue","t":2,"id":"c","tokens":100,"jump":2.5}
        {"op":"enqueue","t":3,"id":"d","tokens":1000,"strict":1}
        {"op":"enqueue","t":4,"id":"e","tokens":1000,"strict":2}
        {"op":"enqueue","t":5,"id":"f","tokens":20,"jump":1,"deadline":10.25}
        {"op":"dispatch","t":5}
        {"op":"dispatch","t":5}
        {"op":"dispatch","t":5}
        {"op":"dispatch","t":5}
        {"op":"dispatch","t":5}
        {"op":"dispatch","t":5}
    "#;
    let ordered = |name: &str| order(&replay(&format!("arbitration: {{order: {name}}}"), script).done());
    // Arrival minus head start: 0, 1, -0.5, 4.
    assert_eq!(ordered("fcfs"), ["e", "d", "c", "a", "b", "f"]);
    // 1/100, 1/10, 3.5/100, 2/20, ties by arrival.
    assert_eq!(ordered("wspt"), ["e", "d", "b", "f", "c", "a"]);
    assert_eq!(ordered("edf"), ["e", "d", "f", "b", "a", "c"]);
}
