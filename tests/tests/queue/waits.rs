//! The longest wait of a real client, whatever its servers do meanwhile.

use std::time::Duration;

use penstock_tests::gateway::{config, pool};
use penstock_tests::{ClientRequest, Gateway, Upstream, run_alone};

const TTL: Duration = Duration::from_secs(3);

#[test]
fn a_lone_server_that_resets_requests_and_comes_and_goes_extends_no_wait() {
    run_alone(async {
        let server = Upstream::scripted().await;
        let more = "  health: {path: /health, interval: 100ms, unhealthy_after: 1}\n  queue: {ttl: 3s, no_endpoint_ttl: 3s, resets: 1000}\n";
        let gateway = Gateway::start(&config("", &[pool("chat", "m", &[&server], more)])).await;
        let asked = gateway.spawn(ClientRequest::chat("m", "hello"));
        let mut resets = 0;
        let mut is_healthy = true;
        let mut turns = tokio::time::interval(Duration::from_millis(400));
        while !asked.is_finished() {
            tokio::select! {
                call = server.next() => {
                    call.cut();
                    resets += 1;
                }
                _ = turns.tick() => {
                    is_healthy = !is_healthy;
                    server.set_healthy(is_healthy);
                }
            }
        }
        let answer = asked.await.expect("the client got an answer");
        assert_eq!(answer.status, 503, "{answer:?}");
        assert!(resets > 0, "the server was tried");
        let waited = answer.headers["x-penstock-queue-ms"].to_str().expect("a number");
        let waited = Duration::from_millis(waited.parse().expect("a number"));
        // For about half of the time no endpoint is ready.
        assert!(waited >= TTL && waited < TTL * 5 / 3, "{waited:?}");
    });
}
