//! Token counts in the answers of model servers, wherever they are.

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::{ClientRequest, Events, Gateway, Upstream, run};
use serde_json::json;

/// The tokens of the prompts and of the outputs so far.
async fn counted(gateway: &Gateway) -> [f64; 2] {
    // The companion knows how each request ended.
    gateway.stock("p", 0).await;
    let page = gateway.metrics().await;
    ["input", "output"].map(|kind| page.sum(&format!("penstock_{kind}_tokens_total"), &[]))
}

/// Has `server` answer a request with a body of 500 KB, which Envoy passes on in many pieces.
async fn answer(gateway: &Gateway, server: &Upstream, is_counted_first: bool) {
    let asked = gateway.spawn(ClientRequest::chat("m", "x"));
    let usage = json!({"prompt_tokens": 10, "completion_tokens": 1});
    let data = json!([{"embedding": vec![0.25; 100_000]}]);
    let body = if is_counted_first {
        format!(r#"{{"usage":{usage},"data":{data}}}"#)
    } else {
        format!(r#"{{"data":{data},"usage":{usage}}}"#)
    };
    let call = server.next().await;
    call.respond(200, &[("content-type", "application/json")], body.clone());
    let answer = asked.await.expect("answered");
    assert_eq!((answer.status, answer.text()), (200, body));
}

#[test]
fn counts_of_long_answers_are_found_at_the_end_and_then_everywhere() {
    run(async {
        let server = Upstream::scripted().await;
        let pools = [pool("p", "m", &[&server], &slots(1))];
        let gateway = Gateway::start(&config("", &pools)).await;
        answer(&gateway, &server, false).await;
        assert_eq!(counted(&gateway).await, [10.0, 1.0]);
        answer(&gateway, &server, false).await;
        assert_eq!(counted(&gateway).await, [20.0, 2.0]);
        // Once a worker has seen an answer without counts at its end, it reads answers whole.
        for _ in 0..20 {
            answer(&gateway, &server, true).await;
        }
        let [input, output] = counted(&gateway).await;
        answer(&gateway, &server, true).await;
        answer(&gateway, &server, false).await;
        assert_eq!(counted(&gateway).await, [input + 20.0, output + 2.0]);
    });
}

#[test]
fn counts_after_many_alike_events_are_found() {
    run(async {
        let server = Upstream::scripted().await;
        let pools = [pool("p", "m", &[&server], &slots(1))];
        let gateway = Gateway::start(&config("", &pools)).await;
        let ask = async |end: &dyn Fn(Events)| {
            let asked = gateway.spawn(ClientRequest::chat("m", "x").streamed());
            let events = server.next().await.stream();
            for word in 0..200 {
                events.text(&format!("\"{word}\" \u{e4}"));
            }
            end(events);
            let answer = asked.await.expect("answered");
            assert_eq!(answer.text().matches("\u{e4}").count(), 200);
        };
        ask(&|events| events.finish(11, 300)).await;
        assert_eq!(counted(&gateway).await, [11.0, 300.0]);
        // Without counts of the server, the events with text count.
        ask(&|events| events.raw("data: [DONE]\n\n")).await;
        assert_eq!(counted(&gateway).await[1], 500.0);
    });
}
