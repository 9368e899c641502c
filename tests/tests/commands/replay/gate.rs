//! `--gate`: the pool's own gate decides, and timers run between operations.

use super::script::{order, replay_gated};

/// One request at a time at each endpoint.
const ONE: &str = "stock: {watermark_per_backend: 1, lower_bound_per_backend: 1, upper_bound_per_backend: 1}";

#[test]
fn request_bypasses_with_room_and_is_dispatched_when_room_appears() {
    let script = r#"
        {"op":"enqueue","t":0.0,"id":"a","tokens":100}
        {"op":"enqueue","t":0.5,"id":"b","flow":"g","tokens":10}
        {"op":"enqueue","t":0.5,"id":"c","flow":"g"}
        {"op":"complete","t":0.5,"id":"c"}
        {"op":"cancel","t":0.5,"id":"a"}
        {"op":"complete","t":1.0,"id":"a"}
        {"op":"complete","t":1.0,"id":"a"}
        {"op":"complete","t":2.0,"id":"b"}
        {"op":"complete","t":3.0,"id":"c"}
        {"op":"enqueue","t":4.0,"id":"a"}
    "#;
    let expected = [
        r#"{"t":0.0,"dispatch":"a","class":"default","flow":"f","cost":100,"flow_cost":100,"deficits":{"default":0},"bypass":true}"#,
        r#"{"t":1.0,"dispatch":"b","class":"default","flow":"g","cost":10,"flow_cost":10,"deficits":{"default":0},"bypass":false}"#,
        r#"{"t":2.0,"dispatch":"c","class":"default","flow":"g","cost":1,"flow_cost":1,"deficits":{"default":0},"bypass":false}"#,
        r#"{"t":4.0,"dispatch":"a","class":"default","flow":"f","cost":1,"flow_cost":1,"deficits":{"default":0},"bypass":true}"#,
    ];
    assert_eq!(replay_gated(ONE, script).done(), expected);
}

#[test]
fn ready_endpoints_open_and_close_the_gate() {
    let script = r#"
        {"op":"endpoints","t":0,"ready":0}
        {"op":"enqueue","t":0,"id":"a"}
        {"op":"enqueue","t":0,"id":"b"}
        {"op":"enqueue","t":0,"id":"c"}
        {"op":"endpoints","t":0.5,"ready":2}
        {"op":"endpoints","t":0.75,"ready":3}
        {"op":"enqueue","t":0.75,"id":"d"}
    "#;
    assert_eq!(order(&replay_gated(ONE, script).done()), ["a", "b", "c"]);
}

#[test]
fn the_default_bounds_of_three_endpoints_are_6_and_7() {
    let requests: String =
        (0..9).map(|n| format!("{{\"op\":\"enqueue\",\"t\":1,\"id\":\"{n}\"}}\n")).collect();
    let completed: String =
        (0..3).map(|n| format!("{{\"op\":\"complete\",\"t\":2,\"id\":\"{n}\"}}\n")).collect();
    let script = format!("{{\"op\":\"endpoints\",\"t\":0,\"ready\":3}}\n{requests}{completed}");
    let answered = replay_gated("", &script).done();
    // Seven bypass. Two wait: the first until the stock is 5, the second until it is 5 again.
    assert_eq!(order(&answered), ["0", "1", "2", "3", "4", "5", "6", "7", "8"]);
    let bypassed = answered.iter().filter(|line| line.ends_with("\"bypass\":true}"));
    assert_eq!(bypassed.count(), 7);
    assert!(answered[7].starts_with("{\"t\":2,"), "{}", answered[7]);
}

#[test]
fn timers_fire_at_their_own_time() {
    let script = r#"
        {"op":"enqueue","t":0.25,"id":"a"}
        {"op":"enqueue","t":0.5,"id":"b"}
        {"op":"enqueue","t":0.75,"id":"c","deadline":12.125}
        {"op":"enqueue","t":30.5,"id":"d"}
        {"op":"expire","t":100}
    "#;
    let answered = replay_gated(ONE, script).done();
    let expected =
        [r#"{"t":12.125,"expired":"c"}"#, r#"{"t":30.5,"expired":"b"}"#, r#"{"t":60.5,"expired":"d"}"#];
    assert_eq!(answered[1..], expected);
}

#[test]
fn max_rate_sets_a_timer() {
    let script = r#"
        {"op":"enqueue","t":0,"id":"a"}
        {"op":"enqueue","t":0,"id":"b"}
        {"op":"enqueue","t":0,"id":"c"}
        {"op":"expire","t":0.75}
        {"op":"expire","t":10}
    "#;
    let answered = replay_gated("queue: {max_rate: 2}, stock: {watermark_per_backend: 9}", script).done();
    assert_eq!(order(&answered), ["a", "b", "c"]);
    assert!(answered[2].starts_with("{\"t\":0.5,") && answered[2].ends_with("\"bypass\":false}"));
}

#[test]
fn without_endpoints_no_endpoint_ttl_applies() {
    let script = r#"
        {"op":"endpoints","t":10,"ready":0}
        {"op":"enqueue","t":15,"id":"a"}
        {"op":"enqueue","t":100,"id":"b"}
    "#;
    assert_eq!(replay_gated("", script).done(), [r#"{"t":75.0,"expired":"a"}"#]);
}

#[test]
fn an_outage_extends_no_wait_beyond_its_end() {
    // w takes the only place. The pool has no endpoint from 5 to 40 s.
    let script = r#"
        {"op":"enqueue","t":0,"id":"w"}
        {"op":"enqueue","t":1,"id":"a"}
        {"op":"endpoints","t":5,"ready":0}
        {"op":"enqueue","t":12,"id":"b"}
        {"op":"endpoints","t":40,"ready":1}
        {"op":"complete","t":41,"id":"w"}
    "#;
    let answered = replay_gated(ONE, script).done();
    assert_eq!(answered[1], r#"{"t":40,"expired":"a"}"#);
    assert!(answered[2].contains("\"b\""), "{answered:?}");
}

#[test]
fn costs_settle_before_or_at_the_end() {
    // f and g have two requests each; f1 cost more than estimated. A settle before its completion charges f and keeps
    // f1 in the stock; a settle after the completion has no effect.
    let script = r#"
        {"op":"enqueue","t":0,"id":"f1","flow":"f","tokens":100}
        {"op":"enqueue","t":0,"id":"f2","flow":"f","tokens":100}
        {"op":"enqueue","t":0,"id":"g1","flow":"g","tokens":60}
        {"op":"enqueue","t":0,"id":"g2","flow":"g","tokens":60}
        {"op":"settle","t":1,"id":"f1","tokens":1000,"output":0}
        {"op":"complete","t":2,"id":"f1"}
        {"op":"settle","t":2,"id":"f1","tokens":1,"output":0}
        {"op":"complete","t":3,"id":"g1"}
        {"op":"complete","t":4,"id":"g2"}
    "#;
    let answered = replay_gated(ONE, script).done();
    assert_eq!(order(&answered), ["f1", "g1", "g2", "f2"]);
    let unsettled: Vec<&str> = script.lines().filter(|line| !line.contains("settle")).collect();
    let answered = replay_gated(ONE, &unsettled.join("\n")).done();
    assert_eq!(order(&answered), ["f1", "g1", "f2"]);
}

#[test]
fn dispatch_is_an_error_with_the_gate() {
    let gated = replay_gated(ONE, "{\"op\":\"enqueue\",\"t\":0,\"id\":\"a\"}\n{\"op\":\"dispatch\",\"t\":1}");
    assert_eq!(gated.code(), Some(2));
    assert!(gated.stderr().starts_with("ops.jsonl:2: op: `dispatch`"), "{}", gated.stderr());
    assert_eq!(order(&gated.lines()), ["a"]);
}
