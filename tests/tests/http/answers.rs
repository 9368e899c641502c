//! Token counts in the answers of model servers, wherever they are.

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::raw::{self, Raw};
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
        // The first answers of a worker are read whole, wherever their counts are.
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
        // Without counts of the server, the text counts: 8 or 9 or 10 bytes in each event.
        ask(&|events| events.raw("data: [DONE]\n\n")).await;
        let bytes: usize = (0..200).map(|word: u32| format!("\"{word}\" \u{e4}").len()).sum();
        let by_text = u32::try_from(bytes.div_ceil(4)).expect("few");
        assert_eq!(counted(&gateway).await[1], 300.0 + f64::from(by_text));
    });
}

/// One event of a stream in each API, with a piece of text.
fn piece(path: &str, text: &str) -> String {
    let event = match path {
        "/v1/messages" => {
            json!({"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}})
        }
        "/v1/responses" => json!({"type": "response.output_text.delta", "delta": text}),
        "/v1/completions" => json!({"choices": [{"index": 0, "text": text}]}),
        _ => json!({"choices": [{"index": 0, "delta": {"content": text}}]}),
    };
    format!("data: {event}\n\n")
}

/// The events of each API before its first token.
fn beginning(path: &str) -> String {
    let event = match path {
        "/v1/messages" => {
            json!({"type": "message_start", "message": {"usage": {"input_tokens": 0, "output_tokens": 0}}})
        }
        "/v1/responses" => json!({"type": "response.created", "response": {"status": "in_progress"}}),
        _ => json!({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}),
    };
    format!(": ping\n\ndata: {event}\n\n")
}

const STREAMS: [&str; 4] = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"];

fn to(path: &str) -> ClientRequest {
    let body = json!({
        "model": "m", "max_tokens": 1_000, "prompt": "x", "input": "x",
        "messages": [{"role": "user", "content": "x"}],
    });
    ClientRequest::to(path, body)
}

#[test]
fn client_that_leaves_a_stream_pays_for_what_has_arrived() {
    run(async {
        let server = Upstream::scripted().await;
        let pools = [pool("p", "m", &[&server], &slots(1))];
        let gateway = Gateway::start(&config("", &pools)).await;
        let mut expected = 0.0;
        for path in STREAMS {
            let client = gateway.client().clone();
            let body = to(path).streamed().body().to_string();
            let request =
                client.post(gateway.url(path)).header("content-type", "application/json").body(body);
            let opened = tokio::spawn(request.send());
            let events = server.next().await.stream();
            events.raw(beginning(path));
            for _ in 0..30 {
                events.raw(piece(path, "abcd"));
            }
            let mut response = opened.await.expect("no panic").expect("headers");
            let mut seen = Vec::new();
            while seen.windows(4).filter(|bytes| bytes == b"abcd").count() < 30 {
                seen.extend_from_slice(&response.chunk().await.expect("a chunk").expect("more events"));
            }
            drop(response);
            events.gone().await;
            expected += 30.0;
            assert_eq!(counted(&gateway).await[1], expected, "{path}");
        }
        let page = gateway.metrics().await;
        assert_eq!(page.sum("penstock_answers_estimated_total", &[("reason", "client_left")]), 4.0);
        assert_eq!(page.sum("penstock_ttft_seconds_count", &[]), 0.0);
    });
}

#[test]
fn several_tokens_in_one_event_are_counted_by_text() {
    run(async {
        let server = Upstream::scripted().await;
        let pools = [pool("p", "m", &[&server], &slots(1))];
        let gateway = Gateway::start(&config("", &pools)).await;
        let mut expected = 0.0;
        for path in STREAMS {
            let asked = gateway.spawn(to(path).streamed());
            let events = server.next().await.stream();
            events.raw(beginning(path));
            for _ in 0..40 {
                events.raw(piece(path, &"four".repeat(16)));
            }
            drop(events);
            assert_eq!(asked.await.expect("answered").status, 200);
            expected += 640.0;
            assert_eq!(counted(&gateway).await[1], expected, "{path}");
        }
        let page = gateway.metrics().await;
        assert_eq!(page.sum("penstock_answers_estimated_total", &[("reason", "no_usage")]), 4.0);
        assert_eq!(page.sum("penstock_ttft_seconds_count", &[]), 4.0);
    });
}

#[test]
fn impossible_counts_are_not_believed_and_zeros_hide_nothing() {
    run(async {
        let server = Upstream::scripted().await;
        let pools = [pool("p", "m", &[&server], &slots(1))];
        let gateway = Gateway::start(&config("", &pools)).await;
        let ask = async |usages: &[&str]| {
            let asked = gateway.spawn(to("/v1/chat/completions").streamed());
            let events = server.next().await.stream();
            events.text("word");
            for usage in usages {
                events.raw(format!("data: {{\"choices\":[],\"usage\":{usage}}}\n\n"));
            }
            drop(events);
            asked.await.expect("answered");
        };
        for wrong in ["1000000000000", "18446744073709551615", "4294967295"] {
            let usage = format!("{{\"prompt_tokens\":{wrong},\"completion_tokens\":{wrong}}}");
            ask(&[usage.as_str()]).await;
        }
        assert_eq!(counted(&gateway).await, [0.0, 3.0]);
        let page = gateway.metrics().await;
        assert_eq!(page.sum("penstock_answers_estimated_total", &[("reason", "implausible")]), 3.0);
        ask(&[
            "{\"prompt_tokens\":12.0,\"completion_tokens\":\"9\"}",
            "{\"prompt_tokens\":0,\"completion_tokens\":0}",
        ])
        .await;
        assert_eq!(counted(&gateway).await, [12.0, 12.0]);
    });
}

#[test]
fn client_that_leaves_a_whole_answer_pays_for_the_time_at_the_server() {
    run(async {
        let server = Upstream::scripted().await;
        let pools = [pool("p", "m", &[&server], &slots(1))];
        let gateway = Gateway::start(&config("", &pools)).await;
        let leave = async |path: &str| {
            let asked = gateway.spawn(to(path).with("max_tokens", 3));
            let mut call = server.next().await;
            // Longer than three tokens take while no answer has shown their time.
            tokio::time::sleep(std::time::Duration::from_millis(80)).await;
            asked.abort();
            call.gone().await;
        };
        for path in STREAMS {
            leave(path).await;
        }
        assert_eq!(counted(&gateway).await[1], 12.0, "the limit of each");
        leave("/v1/embeddings").await;
        assert_eq!(counted(&gateway).await[1], 12.0, "an embedding has no output");
    });
}

#[test]
fn counts_stay_hidden_when_the_first_attempt_is_refused() {
    run(async {
        let server = Upstream::scripted().await;
        let keys = format!("{}  usage: {{include: true}}\n", slots(1));
        let gateway = Gateway::start(&config("", &[pool("p", "m", &[&server], &keys)])).await;
        let asks = json!({"include_usage": true});
        let asked = gateway.spawn(to("/v1/chat/completions").streamed());
        let call = server.next().await;
        assert_eq!(call.json()["stream_options"], asks);
        call.respond(500, &[], "again");
        let call = server.next().await;
        assert_eq!(call.json()["stream_options"], asks);
        let events = call.stream();
        events.text("word");
        events.finish(8, 4);
        let answer = asked.await.expect("answered");
        assert_eq!(answer.status, 200);
        let text = answer.text();
        assert!(
            !text.contains("usage") && text.contains("word") && text.ends_with("data: [DONE]\n\n"),
            "{text}"
        );
        assert_eq!(counted(&gateway).await, [8.0, 4.0]);
    });
}

#[test]
fn counts_are_asked_for_and_hidden_from_clients_that_did_not_ask() {
    run(async {
        let server = Upstream::scripted().await;
        let keys = format!("{}  usage: {{include: true}}\n", slots(1));
        let gateway = Gateway::start(&config("", &[pool("p", "m", &[&server], &keys)])).await;
        let ask = async |request: ClientRequest| {
            let asked = gateway.spawn(request);
            let call = server.next().await;
            let body = call.json();
            let events = call.stream();
            events.text("word");
            events.finish(8, 4);
            (body["stream_options"].clone(), asked.await.expect("answered").text())
        };
        let streamed = || to("/v1/chat/completions").streamed();
        let counts = "\"usage\":{";
        let (option, answer) = ask(streamed()).await;
        assert_eq!(option, json!({"include_usage": true}));
        assert!(
            !answer.contains(counts) && answer.contains("word") && answer.ends_with("data: [DONE]\n\n"),
            "{answer}"
        );
        assert_eq!(counted(&gateway).await, [8.0, 4.0]);
        let (option, answer) = ask(streamed().with("stream_options", json!({"include_usage": true}))).await;
        assert_eq!(option, json!({"include_usage": true}));
        assert!(answer.contains(counts), "the client asked: {answer}");
        let (option, _) = ask(streamed().with("stream_options", json!({"include_usage": false}))).await;
        assert_eq!(option, json!({"include_usage": false}), "the client decided");
        // A long prompt arrives in several parts, and is edited as one.
        let long = streamed().with("messages", json!([{"role": "user", "content": "x".repeat(300_000)}]));
        let sent = long.body();
        let asked = gateway.spawn(long);
        let call = server.next().await;
        let mut received = call.json();
        call.answer();
        assert_eq!(asked.await.expect("answered").status, 200);
        let option = received.as_object_mut().expect("an object").remove("stream_options");
        assert_eq!((option, received), (Some(json!({"include_usage": true})), sent));
        let asked = gateway.spawn(to("/v1/chat/completions"));
        let call = server.next().await;
        assert_eq!(call.json().get("stream_options"), None, "whole answers have their counts");
        call.answer();
        asked.await.expect("answered");
        let page = gateway.metrics().await;
        assert_eq!(page.sum("penstock_answers_estimated_total", &[]), 0.0);
    });
}

#[test]
fn counts_are_asked_for_wherever_the_pieces_of_a_body_begin() {
    run(async {
        let server = Upstream::scripted().await;
        let keys = format!("{}  usage: {{include: true}}\n", slots(1));
        let gateway = Gateway::start(&config("", &[pool("p", "m", &[&server], &keys)])).await;
        let mut client = Raw::connect(gateway.address()).await;
        let long = "x".repeat(100_000);
        for text in ["hi", &long] {
            for space in ["", "\r\n", " \t\n "] {
                let message = json!([{"role": "user", "content": text}]);
                let body = format!(r#"{space}{{"model":"m","stream":true,"messages":{message}}}{space}"#);
                // Where the last piece begins, counted from the end: at the closing brace, after it, and before it.
                for last in [1, 2, 3, 40] {
                    let (first, last) = body.split_at(body.len() - last);
                    client.send(raw::post("/v1/chat/completions", "transfer-encoding: chunked\r\n")).await;
                    for piece in [first, last] {
                        client.send(format!("{:x}\r\n{piece}\r\n", piece.len())).await;
                    }
                    client.send("0\r\n\r\n").await;
                    let call = server.next().await;
                    let mut received = call.json();
                    call.answer();
                    assert_eq!(client.answer().await.status, 200);
                    let option = received.as_object_mut().expect("an object").remove("stream_options");
                    assert_eq!(option, Some(json!({"include_usage": true})), "{space:?}");
                    assert_eq!(received, json!({"model": "m", "stream": true, "messages": message}));
                }
            }
        }
    });
}
