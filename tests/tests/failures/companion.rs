//! The companion dies while requests wait, killed or by a defect: the requests live in Envoy and survive, within limits.

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::h2c::H2c;
use penstock_tests::process::{freeze, send};
use penstock_tests::{ClientRequest, Gateway, Upstream, run, until};

/// Ends a companion by a signal while one request runs and five wait. All of them are answered, in their old order.
/// Returns the gateway's log.
fn requests_survive(signal: i32) -> String {
    run(async {
        let server = Upstream::scripted().await;
        let more = format!("{}  companion_down: {{hold: 30s}}\n", slots(1));
        let gateway = Gateway::start(&config("", &[pool("p", "'*'", &[&server], &more)])).await;
        let running = gateway.spawn(ClientRequest::chat("m", "held"));
        let held = server.next().await;
        // One connection, so one worker: between workers the order is as exact as the distance of their clocks.
        let mut client = H2c::connect(gateway.address()).await;
        let mut asked = Vec::new();
        for waiting in 1..=5 {
            let body = ClientRequest::chat("m", &format!("waits {waiting}")).body().to_string();
            asked.push(client.post("/v1/chat/completions", &[body.into()], None).await);
            gateway.waiting("p", waiting).await;
        }
        let first = gateway.child("serve").await;
        send(first, signal);
        // The next companion knows all requests: five that wait and one that runs.
        until("a new companion with the old requests", || async {
            let children = gateway.process.children();
            let new = children.iter().any(|(pid, command)| command.contains(" serve ") && *pid != first);
            let page = gateway.get("/status").await?;
            if page.status != 200 {
                return Err(page.text());
            }
            let status = page.json();
            let pool = &status["pools"][0];
            if new && pool["waiting"] == 5 && pool["stock"] == 1 { Ok(()) } else { Err(status.to_string()) }
        })
        .await;
        held.answer();
        for waiting in 1..=5 {
            let call = server.next().await;
            assert_eq!(call.text(), format!("waits {waiting}"), "the old order holds");
            assert_eq!(server.in_flight(), 1);
            call.answer();
        }
        assert_eq!(running.await.expect("answered").status, 200);
        for answer in asked {
            assert_eq!(H2c::status(answer).await.0, 200);
        }
        gateway.stock("p", 0).await;
        gateway.waiting("p", 0).await;
        assert_eq!(server.peak(), 1);
        gateway.process.log()
    })
}

#[test]
fn waiting_requests_survive_a_killed_companion() {
    let log = requests_survive(libc::SIGKILL);
    assert!(log.contains("companion died: signal: 9"), "{log}");
}

/// The tests' build panics in a decision at SIGUSR1.
#[test]
fn a_defect_in_a_decision_ends_the_companion_and_loses_no_request() {
    let log = requests_survive(libc::SIGUSR1);
    let line = |parts: &[&str]| log.lines().any(|line| parts.iter().all(|part| line.contains(part)));
    for parts in [
        &["ERROR", "a defect ended an essential task", "decisions", "injected defect"][..],
        &["penstock: a defect ended the task for decisions"],
        &["companion died: exit status: 1"],
    ] {
        assert!(line(parts), "{parts:?}\n{log}");
    }
}

#[test]
fn without_a_companion_the_pool_closes_after_hold_and_reopens_with_one() {
    run(async {
        let server = Upstream::serving(std::time::Duration::ZERO).await;
        let more = "  companion_down: {hold: 250ms, then: closed}\n";
        let gateway = Gateway::start(&config("", &[pool("p", "'*'", &[&server], more)])).await;
        assert_eq!(gateway.send(ClientRequest::chat("m", "x")).await.status, 200);

        let companion = gateway.child("serve").await;
        freeze(companion).await;
        let refused = gateway.send(ClientRequest::chat("m", "x")).await;
        refused.expect_error(503, "gateway_unavailable", "gateway_unavailable");
        let message = serde_json::json!({"model": "m", "max_tokens": 1, "messages": []});
        let refused = gateway.send(ClientRequest::to("/v1/messages", message)).await;
        assert_eq!((refused.status, refused.outcome()), (503, "gateway_unavailable"));
        assert_eq!(refused.json()["type"], "error", "{}", refused.text());
        assert_eq!(server.total(), 1);
        until("an advice as long as the companion is away", || async {
            let refused = gateway.send(ClientRequest::chat("m", "x")).await;
            let advised = refused.header("retry-after-ms").to_owned();
            match advised.parse::<u64>() {
                Ok(ms) if ms > 1_000 => Ok(()),
                _ => Err(advised),
            }
        })
        .await;

        send(companion, libc::SIGCONT);
        until("served again", || async {
            let answer = gateway.send(ClientRequest::chat("m", "x")).await;
            if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
        })
        .await;
        gateway.stock("p", 0).await;
    });
}
