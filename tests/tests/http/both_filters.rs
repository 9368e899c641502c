//! The filter as WebAssembly and as native code: the same requests have the same answers.

use penstock_tests::gateway::{config, pool};
use penstock_tests::{Answer, ClientRequest, Gateway, RefusingServer, Upstream, run, until};
use serde_json::json;

/// What a client sees.
#[derive(Debug, PartialEq)]
struct Seen {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

impl Seen {
    /// An answer, without what differs in each one. `server`: the address of the server that answers.
    fn new(answer: &Answer, server: &str) -> Self {
        let differs = [
            "date",
            "x-request-id",
            "x-penstock-queue-ms",
            "x-penstock-saturation",
            "retry-after",
            "retry-after-ms",
        ];
        let headers = answer.headers.iter().filter(|(name, _)| !differs.contains(&name.as_str()));
        let mut headers: Vec<(String, String)> = headers
            .map(|(name, value)| {
                let value = String::from_utf8_lossy(value.as_bytes());
                (name.to_string(), value.replace(server, "SERVER"))
            })
            .collect();
        headers.sort();
        Self { status: answer.status, headers, body: answer.text() }
    }
}

/// The answers of a gateway with this filter, and the tokens that it counts for them.
async fn answers(filter: &str) -> (Vec<Seen>, [f64; 2]) {
    let (server, dead) = (Upstream::scripted().await, RefusingServer::new());
    let gone = format!(
        "- name: gone\n  models: [gone]\n  endpoints: {{static: ['{}']}}\n  health: {{path: null}}\n  queue: {{requeues: 0, ttl: 1s}}\n",
        dead.address()
    );
    let pools = [pool("p", "m, again", &[&server], ""), gone];
    let gateway = Gateway::with_filter(&config("", &pools), filter).await;
    until("the server is ready", || async {
        let pool = gateway.pool("p").await;
        if pool["endpoints"][0]["ready"] == true { Ok(()) } else { Err(pool.to_string()) }
    })
    .await;
    let mut answers = Vec::new();
    for (ask, calls) in [
        (ClientRequest::chat("m", "x"), 1),
        (ClientRequest::chat("m", "x").streamed(), 1),
        (ClientRequest::chat("m", &"long ".repeat(60_000)), 1),
        // The server fails once, and the request comes back from the requeue listener.
        (ClientRequest::chat("again", "x"), 2),
        (ClientRequest::chat("none", "x"), 0),
        (ClientRequest::chat("gone", "x"), 0),
        (ClientRequest::to("/v1/chat/completions", json!([])), 0),
        (ClientRequest::to("/no/such/path", json!({})), 0),
    ] {
        let asked = gateway.spawn(ask);
        for call in 1..=calls {
            let arrived = server.next().await;
            if call < calls {
                arrived.respond(500, &[], "again");
            } else {
                arrived.answer_with(7, 3);
            }
        }
        answers.push(Seen::new(&asked.await.expect("answered"), &server.address().to_string()));
    }
    gateway.stock("p", 0).await;
    let page = gateway.metrics().await;
    (answers, ["input", "output"].map(|kind| page.sum(&format!("penstock_{kind}_tokens_total"), &[])))
}

#[test]
fn both_filters_answer_alike() {
    run(async {
        let (wasm, native) = (answers("wasm").await, answers("native").await);
        let statuses: Vec<u16> = wasm.0.iter().map(|seen| seen.status).collect();
        assert_eq!(statuses, [200, 200, 200, 200, 404, 503, 400, 404]);
        for (wasm, native) in wasm.0.iter().zip(&native.0) {
            assert_eq!(wasm, native);
        }
        assert_eq!(wasm.1, native.1, "tokens");
    });
}
