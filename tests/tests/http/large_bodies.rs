//! Bodies of every size up to `limits.body_bytes`, while their requests wait, over HTTP/1.1, HTTP/2 and TLS.

use bytes::Bytes;
use penstock_tests::certificates::Certificates;
use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::h2c::H2c;
use penstock_tests::{Answer, Gateway, Upstream, run};
use tokio::task::JoinHandle;

use super::client_tls::connect;

const CHAT: &str = "/v1/chat/completions";
/// Above what Envoy buffers of a stream of HTTP/2 by default, 16 MiB.
const LIMIT: usize = 20 << 20;
const HEAD: &str = r#"{"model":"m","messages":[{"role":"user","content":""#;
const TAIL: &str = r#""}]}"#;

/// A request of so many bytes.
fn body(bytes: usize) -> Bytes {
    format!("{HEAD}{}{TAIL}", "x".repeat(bytes - HEAD.len() - TAIL.len())).into()
}

/// The sizes around each buffer on the way.
fn sizes() -> [usize; 7] {
    [HEAD.len() + TAIL.len(), 1 << 10, (64 << 10) - 1, (64 << 10) + 1, 1 << 20, (16 << 20) + 1, LIMIT]
}

enum Client<'a> {
    Http1(&'a Gateway),
    Http2(H2c),
}

impl Client<'_> {
    async fn post(&mut self, body: Bytes) -> JoinHandle<Answer> {
        match self {
            Client::Http1(gateway) => {
                let sent = gateway.client().post(gateway.url(CHAT)).body(body).send();
                tokio::spawn(async {
                    Answer::read(sent.await.expect("an answer")).await.expect("a whole answer")
                })
            }
            Client::Http2(client) => {
                let asked = client.post(CHAT, &[body], None).await;
                tokio::spawn(async { H2c::answer(asked).await.expect("an answer") })
            }
        }
    }
}

/// Sends each body while the only slot is taken, so that it waits whole in Envoy, and compares what arrives.
async fn waits(gateway: &Gateway, server: &Upstream, mut client: Client<'_>) {
    for size in sizes() {
        let first = client.post(body(1 << 10)).await;
        let running = server.next().await;
        let body = body(size);
        let asked = client.post(body.clone()).await;
        gateway.waiting("p", 1).await;
        running.answer();
        let call = server.next().await;
        assert!(call.body == body, "{} bytes of {size}", call.body.len());
        call.answer();
        let answer = asked.await.expect("answered");
        assert_eq!(answer.status, 200, "{size}: {}", answer.text());
        assert_eq!(first.await.expect("answered").status, 200);
    }
}

async fn gateway(listen: &str, server: &Upstream) -> Gateway {
    let text = config("limits: {body_bytes: 20MiB}\n", &[pool("p", "", &[server], &slots(1))]);
    Gateway::start(&text.replacen("listen: {", &format!("listen: {{{listen}"), 1)).await
}

#[test]
fn bodies_up_to_the_limit_wait_and_arrive_over_http1_and_http2() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = gateway("", &server).await;
        waits(&gateway, &server, Client::Http1(&gateway)).await;
        waits(&gateway, &server, Client::Http2(H2c::connect(gateway.address()).await)).await;
        // One byte more is refused, by the filter and in its form.
        let mut client = H2c::connect(gateway.address()).await;
        let asked = client.post(CHAT, &[body(LIMIT + 1)], None).await;
        let answer = H2c::answer(asked).await.expect("an answer");
        answer.expect_error(413, "request_too_large", "rejected_invalid");
    });
}

#[test]
fn bodies_up_to_the_limit_wait_and_arrive_over_tls() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let files = Certificates::new(folder.path(), "gateway");
        let server = Upstream::scripted().await;
        let tls = format!("tls: {{cert: '{}', key: '{}'}}, ", files.cert.display(), files.key.display());
        let gateway = gateway(&tls, &server).await;
        let connection = connect(gateway.address(), &[&files.ca], "h2").await.expect("TLS");
        waits(&gateway, &server, Client::Http2(H2c::over(connection).await)).await;
    });
}
