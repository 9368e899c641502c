//! Streams that wait for long (`queue.keep_alive`): their clients get comments with their position, and everything else is as without.

use std::time::Duration;

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::ports::free_address;
use penstock_tests::wait::soon;
use penstock_tests::{Answer, ClientRequest, Gateway, Upstream, run, until};
use serde_json::{Value, json};

const KEEP_ALIVE: &str = "  queue: {keep_alive: 200ms, ttl: 60s}\n";

async fn gateway(servers: &[&Upstream], more: &str) -> Gateway {
    Gateway::start(&config("", &[pool("chat", "", servers, &format!("{}{more}", slots(1)))])).await
}

fn stream(text: &str) -> ClientRequest {
    ClientRequest::chat("m", text).streamed()
}

/// What a client has received of a stream.
struct Client {
    response: reqwest::Response,
    text: String,
}

impl Client {
    /// Waits for the headers, which come before the answer.
    async fn open(gateway: &Gateway, ask: ClientRequest) -> Self {
        let response = gateway.open(ask).await.expect("an answer");
        assert_eq!(response.status(), 200);
        let kind = response.headers()["content-type"].to_str().expect("text");
        assert!(kind.starts_with("text/event-stream"), "{kind}");
        Self { response, text: String::new() }
    }

    /// Reads until this text has come.
    async fn until(&mut self, text: &str) {
        let reading = async {
            while !self.text.contains(text) {
                let piece = self.response.chunk().await.expect("no error");
                let piece = piece.unwrap_or_else(|| panic!("the end, after {}", self.text));
                self.text.push_str(&String::from_utf8_lossy(&piece));
            }
        };
        soon(text, reading).await;
    }

    /// Reads the rest. Returns everything but the comments.
    async fn rest(mut self) -> String {
        while let Some(piece) = self.response.chunk().await.expect("no error") {
            self.text.push_str(&String::from_utf8_lossy(&piece));
        }
        let events = self.text.split("\n\n").filter(|event| !event.starts_with(':'));
        events.collect::<Vec<_>>().join("\n\n")
    }
}

fn position(number: usize) -> String {
    format!(": waiting, position {number}, for ")
}

#[test]
fn a_stream_that_waits_gets_comments_and_keeps_its_place() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = gateway(&[&server], KEEP_ALIVE).await;
        let first = gateway.spawn(ClientRequest::chat("m", "first"));
        let running = server.next().await;
        let mut second = Client::open(&gateway, stream("second")).await;
        second.until(&position(1)).await;
        // A request that isn't a stream waits silently.
        let third = gateway.spawn(ClientRequest::chat("m", "third"));
        gateway.waiting("chat", 2).await;
        let mut fourth = Client::open(&gateway, stream("fourth").header("x-penstock-keep-alive", "1")).await;
        fourth.until(&position(3)).await;
        assert!(!third.is_finished());

        running.answer();
        assert_eq!(first.await.expect("answered").status, 200);
        let call = server.next().await;
        assert_eq!(call.text(), "second");
        for name in ["x-penstock-keep-alive", "x-penstock-companion", "x-penstock-requeue"] {
            assert_eq!(call.header(name), "", "{name}");
        }
        assert_eq!(call.json()["stream"], true);
        // Until the first byte of the answer, the client hears that a server has it.
        second.until(": at a model server").await;
        let events = call.stream();
        events.text("hello");
        second.until("hello").await;
        events.finish(8, 4);
        let text = second.rest().await;
        assert!(text.starts_with("data: ") && text.ends_with("data: [DONE]\n\n"), "{text}");

        let call = server.next().await;
        assert_eq!(call.text(), "third");
        fourth.until(&position(1)).await;
        call.answer();
        assert_eq!(third.await.expect("answered").outcome(), "dispatched");
        server.next().await.answer();
        assert!(fourth.rest().await.contains("[DONE]"));
        gateway.stock("chat", 0).await;
        let metrics = gateway.metrics().await;
        assert_eq!(metrics.sum("penstock_arrivals_total", &[]), 4.0, "each counted once");
        assert_eq!(metrics.sum("penstock_requests_total", &[("outcome", "dispatched")]), 3.0);
        assert_eq!(metrics.sum("penstock_requeues_total", &[]), 0.0);
    });
}

#[test]
fn a_refusal_is_an_event_in_the_form_of_the_api() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = gateway(&[&server], "  queue: {keep_alive: 200ms, ttl: 1s}\n").await;
        let first = gateway.spawn(ClientRequest::chat("m", "first"));
        let running = server.next().await;
        let message = json!([{"role": "user", "content": "x"}]);
        let ask = |path: &str, body: Value| ClientRequest::to(path, body).streamed();
        let asks = [
            ask("/v1/chat/completions", json!({"model": "m", "messages": message})),
            ask("/v1/messages", json!({"model": "m", "max_tokens": 9, "messages": message})),
            ask("/v1/responses", json!({"model": "m", "input": "x"})),
        ];
        let answers = asks.map(|ask| async { Client::open(&gateway, ask).await.rest().await });
        let [chat, messages, responses] =
            futures_util::future::join_all(answers).await.try_into().expect("three");
        let data = |text: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix("data: ")).expect("data");
            serde_json::from_str::<Value>(line).expect("JSON")
        };
        assert_eq!(data(&chat)["error"]["code"], "queue_timeout");
        assert!(chat.ends_with("data: [DONE]\n\n"), "{chat}");
        assert!(messages.starts_with("event: error\n"), "{messages}");
        assert_eq!(data(&messages)["type"], "error");
        assert!(data(&messages)["error"]["message"].is_string(), "{messages}");
        assert!(responses.starts_with("event: error\n"), "{responses}");
        assert_eq!(
            (&data(&responses)["type"], &data(&responses)["code"]),
            (&json!("error"), &json!("queue_timeout"))
        );
        let failed = responses.split_once("\n\nevent: response.failed\n").expect("another event").1;
        assert_eq!(data(failed)["response"]["error"]["code"], "queue_timeout");
        running.answer();
        first.await.expect("answered");
    });
}

#[test]
fn an_answer_that_is_no_stream_becomes_an_event() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = gateway(&[&server], KEEP_ALIVE).await;
        let first = gateway.spawn(ClientRequest::chat("m", "first"));
        let running = server.next().await;
        let mut second = Client::open(&gateway, stream("second")).await;
        second.until(&position(1)).await;
        running.answer();
        first.await.expect("answered");
        server.next().await.respond(200, &[("content-type", "application/json")], "{\"id\":\n1}");
        assert_eq!(second.rest().await, "data: {\"id\":\ndata: 1}\n\ndata: [DONE]\n\n");
    });
}

#[test]
fn a_client_that_leaves_leaves_the_queue_and_the_server() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = gateway(&[&server], KEEP_ALIVE).await;
        let first = gateway.spawn(ClientRequest::chat("m", "first"));
        let running = server.next().await;
        let mut second = Client::open(&gateway, stream("second")).await;
        second.until(&position(1)).await;
        drop(second);
        gateway.waiting("chat", 0).await;
        let mut third = Client::open(&gateway, stream("third")).await;
        third.until(&position(1)).await;
        running.answer();
        first.await.expect("answered");
        let events = server.next().await.stream();
        events.text("hello");
        third.until("hello").await;
        drop(third);
        events.gone().await;
        gateway.stock("chat", 0).await;
        assert_eq!(server.total(), 2);
    });
}

#[test]
fn a_server_that_refuses_or_cuts_is_as_without() {
    run(async {
        let (one, other) = (Upstream::scripted().await, Upstream::scripted().await);
        let more = format!(
            "{KEEP_ALIVE}  rewrite: [{{model: m, targets: [{{name: real}}]}}]\n  usage: {{include: true}}\n"
        );
        let gateway = gateway(&[&one, &other], &more).await;
        let full = [0, 1].map(|_| gateway.spawn(ClientRequest::chat("m", "full")));
        let (running, others) = (one.next().await, other.next().await);
        let mut client = Client::open(&gateway, stream("kept")).await;
        client.until(&position(1)).await;
        running.answer();
        let call = one.next().await;
        assert_eq!((call.text().as_str(), call.json()["model"].as_str()), ("kept", Some("real")));
        others.answer();
        call.respond(503, &[], "{}");
        let call = other.next().await;
        assert_eq!((call.text().as_str(), call.json()["model"].as_str()), ("kept", Some("real")));
        assert_eq!(call.json()["stream_options"]["include_usage"], true);
        let events = call.stream();
        events.text("hello");
        client.until("hello").await;
        events.raw("data: {\"id\":\"1\",\"object\":\"chat.completion.chunk\",\"choices\":[],\"usage\":{\"prompt_tokens\":8,\"completion_tokens\":4}}\n\n");
        events.text("more");
        client.until("more").await;
        // The client didn't ask for the counts.
        assert!(!client.text.contains("completion_tokens"), "{}", client.text);
        events.cut();
        let end = async {
            while client.response.chunk().await?.is_some() {}
            Ok::<_, reqwest::Error>(())
        };
        assert!(end.await.is_err(), "a cut is a cut");
        for full in full {
            full.await.expect("answered");
        }
        gateway.stock("chat", 0).await;
    });
}

#[test]
fn the_way_back_takes_only_requests_of_this_envoy() {
    run(async {
        let server = Upstream::scripted().await;
        let free = free_address();
        let text = config("", &[pool("chat", "", &[&server], &format!("{}{KEEP_ALIVE}", slots(1)))]);
        let text = text.replacen("listen: {", &format!("listen: {{keep_alive: '{free}', "), 1);
        let gateway = Gateway::start(&text).await;
        for token in [None, Some("00"), Some("token=00")] {
            let mut ask = gateway.client().post(format!("http://{free}/v1/chat/completions"));
            ask = ask.body(r#"{"model":"m","messages":[]}"#).header("x-penstock-keep-alive", "200");
            if let Some(token) = token {
                ask = ask.header("x-penstock-requeue", token);
            }
            let answer = Answer::read(ask.send().await.expect("an answer")).await.expect("whole");
            assert_eq!(answer.status, 403, "{}", answer.text());
        }
        assert_eq!(server.total(), 0);
    });
}

#[test]
fn at_the_end_of_the_gateway_waiting_streams_get_an_event_and_running_ones_finish() {
    run(async {
        let server = Upstream::scripted().await;
        let mut gateway = gateway(&[&server], KEEP_ALIVE).await;
        let first = gateway.spawn(ClientRequest::chat("m", "first"));
        let running = server.next().await;
        let mut second = Client::open(&gateway, stream("second")).await;
        second.until(&position(1)).await;
        running.answer();
        first.await.expect("answered");
        let call = server.next().await;
        let mut third = Client::open(&gateway, stream("third")).await;
        third.until(&position(1)).await;
        gateway.process.signal(libc::SIGTERM);
        assert!(third.rest().await.contains("shutting_down"));
        call.answer();
        assert!(second.rest().await.contains("[DONE]"));
        let ended = gateway.process.exit_within(Duration::from_secs(20)).await;
        assert!(ended.success(), "{ended}");
    });
}

#[test]
fn without_a_companion_in_charge_a_stream_waits_silently_and_is_kept_alive_later() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = gateway(&[&server], &format!("{KEEP_ALIVE}  companion_down: {{hold: 60s}}\n")).await;
        let first = gateway.spawn(ClientRequest::chat("m", "first"));
        let running = server.next().await;
        let companion = gateway.child("serve").await;
        penstock_tests::process::send(companion, libc::SIGKILL);
        let mut second = Client::open(&gateway, stream("second")).await;
        second.until(&position(1)).await;
        running.answer();
        first.await.expect("answered");
        server.next().await.answer();
        assert!(second.rest().await.contains("[DONE]"));
        until("nothing waits or runs", || async {
            let pool = gateway.pool("chat").await;
            if pool["waiting"] == 0 && pool["stock"] == 0 { Ok(()) } else { Err(pool.to_string()) }
        })
        .await;
    });
}
