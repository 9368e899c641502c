//! Clients that leave, at whatever point, and answers that are streamed.

use std::time::Duration;

use penstock_tests::gateway::{pool, slots};
use penstock_tests::{ClientRequest, Modes, PickerGateway, Upstream, run};

async fn one_place() -> (PickerGateway, Upstream) {
    let server = Upstream::scripted().await;
    let pools = [pool("chat", "", &[&server], &slots(1))];
    (PickerGateway::start("", &pools, Modes::FULL_DUPLEX).await, server)
}

#[test]
fn a_client_that_leaves_while_it_waits_leaves_the_queue() {
    run(async {
        let (gateway, server) = one_place().await;
        let running = gateway.spawn(ClientRequest::chat("m", "runs"));
        let call = server.next().await;
        let waiting = gateway.spawn(ClientRequest::chat("m", "leaves"));
        gateway.waiting("chat", 1).await;
        waiting.abort();
        gateway.waiting("chat", 0).await;
        call.answer();
        assert_eq!(running.await.expect("no panic").status, 200);
        gateway.stock("chat", 0).await;
        assert!(server.arrived().await.is_none());
    });
}

#[test]
fn a_client_that_leaves_while_it_runs_frees_its_place() {
    run(async {
        let (gateway, server) = one_place().await;
        for begins_answer in [false, true] {
            let running = gateway.spawn(ClientRequest::chat("m", "leaves").streamed());
            let mut call = server.next().await;
            let next = gateway.spawn(ClientRequest::chat("m", "next"));
            gateway.waiting("chat", 1).await;
            if begins_answer {
                let events = call.stream();
                events.text("hel");
                running.abort();
                events.gone().await;
            } else {
                running.abort();
                call.gone().await;
            }
            server.next().await.answer();
            assert_eq!(next.await.expect("no panic").status, 200);
            gateway.stock("chat", 0).await;
        }
    });
}

#[test]
fn a_streamed_answer_passes_as_it_comes_and_is_counted() {
    run(async {
        for response_body in ["FULL_DUPLEX_STREAMED", "STREAMED"] {
            let server = Upstream::scripted().await;
            let modes = Modes { response_body: Some(response_body), ..Modes::FULL_DUPLEX };
            let gateway = PickerGateway::start("", &[pool("chat", "", &[&server], "")], modes).await;
            let mut response = gateway.open(ClientRequest::chat("m", "hi").streamed());
            let events = server.next().await.stream();
            events.text("one");
            let mut response = {
                let head = (&mut response).await.expect("no panic");
                head.expect("an answer")
            };
            let first = response.chunk().await.expect("a piece").expect("a piece");
            assert!(String::from_utf8_lossy(&first).contains("one"), "{response_body}");
            events.text("two");
            events.finish(9, 2);
            let mut rest = Vec::new();
            while let Some(piece) = response.chunk().await.expect("a piece") {
                rest.extend_from_slice(&piece);
            }
            let rest = String::from_utf8_lossy(&rest);
            assert!(rest.contains("two") && rest.ends_with("data: [DONE]\n\n"), "{response_body}: {rest}");
            gateway.stock("chat", 0).await;
            let page = gateway.metrics().await;
            assert_eq!(page.sum("penstock_output_tokens_total", &[]), 2.0, "{response_body}");
            assert_eq!(page.sum("penstock_input_tokens_total", &[]), 9.0, "{response_body}");
        }
    });
}

#[test]
fn many_requests_of_which_some_leave_hold_the_bound_and_leave_nothing_behind() {
    run(async {
        let server = Upstream::serving(Duration::from_millis(2)).await;
        let pools = [pool("chat", "", &[&server], &slots(4))];
        let gateway = PickerGateway::start("", &pools, Modes::FULL_DUPLEX).await;
        let ask = |number: usize| {
            ClientRequest::chat("m", &number.to_string()).tenant(&format!("tenant-{}", number % 10))
        };
        let requests: Vec<_> = (0..400).map(|number| gateway.spawn(ask(number))).collect();
        gateway.stock("chat", 4).await;
        let mut left = 0;
        for (number, request) in requests.into_iter().enumerate() {
            if number % 3 == 0 {
                request.abort();
                left += usize::from(request.await.is_err());
            } else {
                let answer = request.await.expect("no panic");
                assert_eq!(answer.status, 200, "{number}: {}", answer.text());
            }
        }
        assert!(left > 0, "nobody has left");
        gateway.stock("chat", 0).await;
        gateway.waiting("chat", 0).await;
        assert!(server.peak() <= 4, "{}", server.peak());
    });
}

#[test]
fn an_error_in_an_answer_of_success_becomes_an_error() {
    run(async {
        let (gateway, server) = one_place().await;
        let answer = gateway.spawn(ClientRequest::chat("m", "hi").streamed());
        let events = server.next().await.stream();
        events.raw("data: {\"error\": {\"message\": \"out of memory\", \"code\": 503}}\n\n");
        drop(events);
        let answer = answer.await.expect("no panic");
        assert_eq!(answer.status, 503, "{}", answer.text());
        assert!(answer.message().contains("out of memory"), "{}", answer.text());
        gateway.stock("chat", 0).await;
    });
}
