//! A tenant whose clients leave early beside an honest one: both get their share of what the servers generate.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::{Call, ClientRequest, Gateway, Upstream, run_alone, until};
use serde_json::json;

/// Tokens of a whole answer.
const TOKENS: u64 = 60;
/// Between two tokens.
const TOKEN_TIME: Duration = Duration::from_millis(4);
/// Tokens that the server generates in one trial.
const TRIAL: u64 = 2_400;
/// Clients of each tenant. Each sends its next request when its last one has ended.
const CLIENTS: usize = 6;

/// The tokens that the server has generated: for the honest tenant, and for the other one.
#[derive(Default)]
struct Generated([AtomicU64; 2]);

impl Generated {
    fn each(&self) -> [u64; 2] {
        [0, 1].map(|tenant: usize| self.0[tenant].load(Ordering::SeqCst))
    }
}

/// Generates an answer until it is whole or the client is gone, and counts its tokens.
async fn generate(mut call: Call, generated: Arc<Generated>) {
    let count = &generated.0[usize::from(call.text() == "leaves")];
    if call.json()["stream"] == true {
        let events = call.stream();
        for _ in 0..TOKENS {
            tokio::select! {
                () = events.gone() => return,
                () = tokio::time::sleep(TOKEN_TIME) => {}
            }
            count.fetch_add(1, Ordering::SeqCst);
            events.text("word");
        }
        events.finish(8, TOKENS);
        return;
    }
    for _ in 0..TOKENS {
        tokio::select! {
            () = call.gone() => return,
            () = tokio::time::sleep(TOKEN_TIME) => {}
        }
        count.fetch_add(1, Ordering::SeqCst);
    }
    call.answer_with(8, TOKENS);
}

/// A way of leaving.
#[derive(Clone, Copy, Debug)]
enum Leaving {
    /// A stream, when so many events have arrived.
    AfterEvents(usize),
    /// A whole answer, after this time.
    Unstreamed(Duration),
}

/// Sends requests that are left, one after the other.
async fn leave(gateway: &Gateway, leaving: Leaving) {
    let request = ClientRequest::chat("m", "leaves").tenant("leaves").with("max_tokens", TOKENS);
    loop {
        match leaving {
            Leaving::AfterEvents(events) => {
                let Ok(mut response) = gateway.open(request.clone().streamed()).await else {
                    continue;
                };
                let mut seen = Vec::new();
                while let Ok(Some(chunk)) = response.chunk().await {
                    seen.extend_from_slice(&chunk);
                    if seen.windows(4).filter(|bytes| bytes == b"word").count() >= events {
                        break;
                    }
                }
            }
            Leaving::Unstreamed(time) => {
                // An error means that the time is over.
                let _left = tokio::time::timeout(time, gateway.open(request.clone())).await.map(drop);
            }
        }
    }
}

#[test]
fn honest_tenant_keeps_its_share_beside_one_that_leaves_early() {
    run_alone(async {
        for leaving in [
            Leaving::AfterEvents(1),
            Leaving::AfterEvents(20),
            Leaving::Unstreamed(Duration::from_millis(300)),
        ] {
            let server = Arc::new(Upstream::scripted().await);
            let gateway =
                Arc::new(Gateway::start(&config("", &[pool("p", "m", &[&server], &slots(2))])).await);
            let generated = Arc::<Generated>::default();
            let serving = tokio::spawn({
                let (server, generated) = (server.clone(), generated.clone());
                async move {
                    loop {
                        tokio::spawn(generate(server.next().await, generated.clone()));
                    }
                }
            });
            let mut clients = Vec::new();
            for _ in 0..CLIENTS {
                let honest = gateway.clone();
                clients.push(tokio::spawn(async move {
                    loop {
                        let request = ClientRequest::chat("m", "stays").tenant("stays");
                        honest.send(request.with("max_tokens", TOKENS).streamed()).await;
                    }
                }));
                let leaver = gateway.clone();
                clients.push(tokio::spawn(async move { leave(&leaver, leaving).await }));
            }
            until("the server has generated enough", || async {
                let each = generated.each();
                if each.iter().sum::<u64>() >= TRIAL { Ok(()) } else { Err(json!(each).to_string()) }
            })
            .await;
            let [stays, leaves] = generated.each();
            clients.iter().chain([&serving]).for_each(tokio::task::JoinHandle::abort);
            assert!(stays * 100 >= (stays + leaves) * 45, "{leaving:?}: {stays} and {leaves}");
        }
    });
}
