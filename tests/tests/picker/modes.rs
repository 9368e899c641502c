//! Every mode in which a gateway sends bodies gives the same result.

use bytes::Bytes;
use http::HeaderMap;
use penstock_tests::gateway::{pool, slots};
use penstock_tests::h2c::H2c;
use penstock_tests::picker::Setup;
use penstock_tests::raw::{Raw, post};
use penstock_tests::{Answer, Modes, PickerGateway, Upstream, run, until};
use serde_json::json;

const PATH: &str = "/v1/chat/completions";
const REQUEST_BODIES: [&str; 4] = ["NONE", "BUFFERED", "STREAMED", "FULL_DUPLEX_STREAMED"];
const RESPONSE_BODIES: [Option<&str>; 4] =
    [Some("NONE"), Some("BUFFERED"), Some("STREAMED"), Some("FULL_DUPLEX_STREAMED")];

fn every_mode() -> Vec<Modes> {
    let mut all = Vec::new();
    for request_body in REQUEST_BODIES {
        for response_body in RESPONSE_BODIES {
            for trailers in [true, false] {
                all.push(Modes { request_body, response_body, trailers });
            }
        }
    }
    all
}

/// A chat completion with a prompt of so many bytes.
fn chat(bytes: usize, is_streamed: bool) -> Bytes {
    let prompt = "0123456789abcdef".repeat(bytes.div_ceil(16));
    json!({"model": "m", "stream": is_streamed, "messages": [{"role": "user", "content": prompt}]})
        .to_string()
        .into()
}

async fn by_http1(gateway: &PickerGateway, modes: Modes, body: &Bytes) -> Raw {
    let mut client = Raw::connect(gateway.address(modes)).await;
    client.send(post(PATH, &format!("content-length: {}\r\n", body.len()))).await;
    client.send(body).await;
    client
}

async fn gateway(modes: Vec<Modes>) -> (PickerGateway, Upstream) {
    let server = Upstream::scripted().await;
    let pools = [pool("chat", "", &[&server], "  queue: {credits: off}\n")];
    let setup = Setup { modes, ..Setup::default() };
    (PickerGateway::with("", &pools, "", &setup).await, server)
}

/// The output tokens that servers have reported and the companion has counted.
async fn counted(gateway: &PickerGateway) -> f64 {
    gateway.metrics().await.sum("penstock_output_tokens_total", &[])
}

fn expect_served(modes: Modes, answer: &Answer) {
    let seen = format!("{modes:?}: {} {:?} {}", answer.status, answer.headers, answer.text());
    assert_eq!(answer.status, 200, "{seen}");
    assert!(answer.text().contains("hello"), "{seen}");
    assert!(["bypassed", "dispatched"].contains(&answer.outcome()), "{seen}");
}

#[test]
fn whatever_the_gateway_sends_the_server_gets_the_body_and_the_stock_falls() {
    run(async {
        let (gateway, server) = gateway(every_mode()).await;
        for modes in every_mode() {
            for (bytes, is_streamed) in [(0, false), (1_000, true), (1 << 20, false)] {
                let before = counted(&gateway).await;
                let body = chat(bytes, is_streamed);
                let mut client = by_http1(&gateway, modes, &body).await;
                let call = server.next().await;
                assert!(call.body == body, "{modes:?}: {} bytes instead of {}", call.body.len(), body.len());
                assert_eq!(call.header("x-penstock-pool"), "", "{modes:?}");
                call.answer_with(8, 4);
                expect_served(modes, &client.answer().await);
                gateway.stock("chat", 0).await;
                if modes.response_body != Some("NONE") {
                    assert_eq!(counted(&gateway).await - before, 4.0, "{modes:?} {bytes} {is_streamed}");
                }
            }
        }
    });
}

#[test]
fn clients_of_http2_and_trailers_of_requests_are_served_in_every_mode() {
    run(async {
        let (gateway, server) = gateway(every_mode()).await;
        for modes in every_mode() {
            let mut client = H2c::connect(gateway.address(modes)).await;
            for has_trailers in [false, true] {
                let body = chat(100_000, false);
                let pieces = [body.slice(..7), body.slice(7..50_000), body.slice(50_000..)];
                let trailers = has_trailers.then(|| {
                    HeaderMap::from_iter([("x-sum".parse().expect("a name"), "1".parse().expect("a value"))])
                });
                let answer = client.post(PATH, &pieces, trailers).await;
                let call = server.next().await;
                assert!(call.body == body, "{modes:?} {has_trailers}: {} bytes", call.body.len());
                call.answer();
                expect_served(modes, &H2c::answer(answer).await.expect("an answer"));
                gateway.stock("chat", 0).await;
            }
        }
    });
}

#[test]
fn bodies_up_to_the_limit_pass_and_longer_ones_are_refused() {
    const LIMIT: usize = 32 << 20;
    run(async {
        let modes = Modes { request_body: "FULL_DUPLEX_STREAMED", ..Modes::FULL_DUPLEX };
        let (gateway, server) = gateway(vec![modes]).await;
        let body = chat(LIMIT - 200, false);
        assert!(body.len() <= LIMIT, "{}", body.len());
        let mut client = by_http1(&gateway, modes, &body).await;
        let call = server.next().await;
        assert!(call.body == body, "{} bytes instead of {}", call.body.len(), body.len());
        call.answer();
        expect_served(modes, &client.answer().await);
        let mut announced = Raw::connect(gateway.address(modes)).await;
        announced.send(post(PATH, &format!("content-length: {}\r\n", LIMIT + 1))).await;
        announced.answer().await.expect_error(413, "request_too_large", "rejected_invalid");
        let mut chunked = Raw::connect(gateway.address(modes)).await;
        chunked.send(post(PATH, "transfer-encoding: chunked\r\n")).await;
        let chunk = "x".repeat(1 << 20);
        for _ in 0..33 {
            chunked.send(format!("100000\r\n{chunk}\r\n")).await;
        }
        let refused = chunked.answer().await;
        assert!([400, 413].contains(&refused.status), "{} {}", refused.status, refused.text());
        gateway.stock("chat", 0).await;
    });
}

#[test]
fn a_body_that_nobody_reads_has_the_same_limit() {
    run(async {
        let modes = Modes { request_body: "STREAMED", ..Modes::FULL_DUPLEX };
        let server = Upstream::scripted().await;
        let gateway =
            PickerGateway::start("limits: {body_bytes: 4096}\n", &[pool("chat", "", &[&server], "")], modes)
                .await;
        let mut client = Raw::connect(gateway.address(modes)).await;
        client.send(post(PATH, "transfer-encoding: chunked\r\n")).await;
        let chunk = "x".repeat(0x1000);
        client.send(format!("1000\r\n{chunk}\r\n")).await;
        gateway.stock("chat", 1).await;
        client.send("1\r\nx\r\n").await;
        client.answer().await.expect_error(413, "request_too_large", "dispatched");
        gateway.stock("chat", 0).await;
    });
}

#[test]
fn a_request_without_a_body_is_refused_and_one_that_passes_is_sent_on() {
    run(async {
        for modes in [Modes::FULL_DUPLEX, Modes { request_body: "BUFFERED", ..Modes::FULL_DUPLEX }] {
            let (gateway, server) = gateway(vec![modes]).await;
            let mut empty = Raw::connect(gateway.address(modes)).await;
            empty.send(post(PATH, "content-length: 0\r\n")).await;
            empty.answer().await.expect_error(400, "invalid_request", "rejected_invalid");
            let mut passing = Raw::connect(gateway.address(modes)).await;
            passing.send(post("/tokenize", "content-length: 11\r\n")).await;
            passing.send(r#"{"prompt":1}"#.get(..11).unwrap_or_default()).await;
            let call = server.next().await;
            assert_eq!((call.path.as_str(), call.body.len()), ("/tokenize", 11), "{modes:?}");
            call.respond(200, &[("content-type", "application/json")], "{}");
            assert_eq!(passing.answer().await.status, 200, "{modes:?}");
        }
    });
}

#[test]
fn without_responses_the_mode_of_the_request_decides_when_its_place_is_free() {
    run(async {
        let modes = |request_body| Modes { request_body, response_body: None, trailers: false };
        let kept = ["BUFFERED", "STREAMED"].map(modes);
        let freed = ["FULL_DUPLEX_STREAMED", "NONE"].map(modes);
        let server = Upstream::scripted().await;
        let pools = [pool("chat", "", &[&server], &format!("{}  queue: {{credits: off}}\n", slots(4)))];
        let setup = Setup { modes: [kept, freed].concat(), ..Setup::default() };
        let gateway = PickerGateway::with("", &pools, "", &setup).await;
        // The picker can't tell a whole answer from a client that left.
        let ended = async |count: u32| {
            until(&format!("Envoy has ended {count} streams with the picker"), || async {
                let page = gateway.metrics().await;
                let seen = page.sum("penstock_answers_estimated_total", &[("reason", "client_left")]);
                if seen == f64::from(count) { Ok(()) } else { Err(seen.to_string()) }
            })
            .await;
        };
        let (mut clients, mut calls) = (Vec::new(), Vec::new());
        for modes in kept {
            clients.push(by_http1(&gateway, modes, &chat(1_000, false)).await);
            calls.push(server.next().await);
        }
        for (count, modes) in (1..).zip(freed) {
            clients.push(by_http1(&gateway, modes, &chat(1_000, false)).await);
            calls.push(server.next().await);
            // While the server still has the request.
            ended(count).await;
        }
        // None of those that came first has ended, or there would be more.
        for call in calls {
            call.answer_with(8, 4);
        }
        for client in &mut clients {
            assert_eq!(client.answer().await.status, 200);
        }
        ended(4).await;
        gateway.stock("chat", 0).await;
    });
}
