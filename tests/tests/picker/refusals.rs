//! Requests that the picker refuses, and those that wait.

use penstock_tests::gateway::{pool, slots};
use penstock_tests::{ClientRequest, Modes, PickerGateway, Upstream, run, until};

const MODES: [Modes; 3] = [
    Modes::FULL_DUPLEX,
    Modes { request_body: "BUFFERED", response_body: Some("STREAMED"), trailers: false },
    Modes { request_body: "STREAMED", response_body: Some("BUFFERED"), trailers: false },
];

#[test]
fn an_unknown_model_is_refused_where_the_gateway_sends_the_body() {
    run(async {
        for modes in &MODES[..2] {
            let server = Upstream::scripted().await;
            let gateway = PickerGateway::start("", &[pool("chat", "llama*", &[&server], "")], *modes).await;
            let answer = gateway.send(ClientRequest::chat("gpt", "hi")).await;
            answer.expect_error(404, "model_not_found", "rejected_invalid");
            let asked = gateway.send(ClientRequest::to("/v1/other", serde_json::json!({"a": 1}))).await;
            asked.expect_error(404, "path_not_found", "rejected_invalid");
        }
    });
}

#[test]
fn a_full_queue_refuses_in_every_mode() {
    run(async {
        for modes in MODES {
            let server = Upstream::scripted().await;
            let keys = format!("{}  queue: {{total_capacity: 1}}\n  capacity_status: 429\n", slots(1));
            let gateway = PickerGateway::start("", &[pool("chat", "", &[&server], &keys)], modes).await;
            let running = gateway.spawn(ClientRequest::chat("m", "runs"));
            let call = server.next().await;
            let waiting = gateway.spawn(ClientRequest::chat("m", "waits"));
            gateway.waiting("chat", 1).await;
            let refused = gateway.send(ClientRequest::chat("m", "too many")).await;
            refused.expect_error(429, "queue_full", "rejected_queue_full");
            call.answer();
            assert_eq!(running.await.expect("no panic").status, 200, "{modes:?}");
            server.next().await.answer();
            let waited = waiting.await.expect("no panic");
            assert_eq!((waited.status, waited.outcome()), (200, "dispatched"), "{modes:?}");
            gateway.stock("chat", 0).await;
        }
    });
}

#[test]
fn two_tenants_take_turns_at_a_bound_of_one() {
    run(async {
        let server = Upstream::scripted().await;
        let keys = format!("{}  arbitration: {{flows: {{cost: requests}}}}\n", slots(1));
        let gateway =
            PickerGateway::start("", &[pool("chat", "", &[&server], &keys)], Modes::FULL_DUPLEX).await;
        let first = gateway.spawn(ClientRequest::chat("m", "first").tenant("greedy"));
        let call = server.next().await;
        let mut answers = vec![first];
        for (count, tenant) in (1..).zip(["greedy", "greedy", "greedy", "modest", "modest"]) {
            answers.push(gateway.spawn(ClientRequest::chat("m", tenant).tenant(tenant)));
            gateway.waiting("chat", count).await;
        }
        call.answer();
        let mut order = Vec::new();
        for _ in 0..5 {
            let call = server.next().await;
            assert_eq!(server.in_flight(), 1);
            order.push(call.text());
            call.answer();
        }
        for answer in answers {
            assert_eq!(answer.await.expect("no panic").status, 200);
        }
        // Whoever comes first, nobody waits for a second request of the other.
        let modest: Vec<usize> =
            order.iter().enumerate().filter(|(_, text)| *text == "modest").map(|(place, _)| place).collect();
        assert!(modest == [0, 2] || modest == [1, 3], "{order:?}");
        gateway.stock("chat", 0).await;
    });
}

#[test]
fn requests_are_counted_by_their_door() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = PickerGateway::start("", &[pool("chat", "", &[&server], "")], Modes::FULL_DUPLEX).await;
        let answer = gateway.spawn(ClientRequest::chat("m", "hi"));
        server.next().await.answer();
        assert_eq!(answer.await.expect("no panic").status, 200);
        until("a counted arrival", || async {
            let page = gateway.metrics().await;
            let of = |door: &str| page.sum("penstock_arrivals_total", &[("door", door)]);
            match (of("picker"), of("filter")) {
                (1.0, 0.0) => Ok(()),
                seen => Err(format!("{seen:?}")),
            }
        })
        .await;
    });
}
