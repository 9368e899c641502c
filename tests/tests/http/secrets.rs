//! No log contains any part of a prompt, a response, a credential or a private identity, for any outcome of a request, with Penstock's
//! log level at debug.

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::raw::{Raw, post};
use penstock_tests::{ClientRequest, Gateway, Upstream, run};
use serde_json::json;

/// A word that occurs in every secret and nowhere else.
const SECRET: &str = "hush-hush";

/// A request whose every part except the model is secret.
fn secretive(model: &str) -> ClientRequest {
    let body = json!({
        "model": model,
        "user": format!("{SECRET}-user"),
        "stream": true,
        "messages": [{"role": "user", "content": format!("{SECRET} prompt")}],
        "metadata": {"session": format!("{SECRET}-session")},
    });
    ClientRequest::to(&format!("/v1/chat/completions?api_key={SECRET}-key"), body)
        .header("authorization", &format!("Bearer {SECRET}-token"))
        .header("x-api-key", &format!("{SECRET}-key"))
        .header("cookie", &format!("session={SECRET}"))
        .header("x-penstock-user", &format!("{SECRET}-somebody"))
        .header("x-penstock-requeue", &format!("{SECRET}-requeue"))
}

#[test]
fn no_log_contains_a_secret() {
    run(async {
        let (server, shy) = (Upstream::scripted().await, Upstream::scripted().await);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let token = folder.path().join("token");
        std::fs::write(&token, format!("{SECRET}-admin\n")).expect("write the token");
        let queue = "  queue: {flow_capacity: 1, total_capacity: 2, ttl: 1s}\n";
        let by_user = "  arbitration: {flows: {key: [fairness_id, user]}}\n";
        let pools = [
            pool("p", "m", &[&server], &format!("{}{queue}{by_user}", slots(1))),
            pool("shy", "shy", &[&shy], ""),
        ];
        let head = format!(
            "identity: {{fairness_id: [{{body: user}}], user: [{{header: x-penstock-user}}]}}\n\
             admin: {{token_file: '{}'}}\nlimits: {{body_bytes: 1MiB}}\n",
            token.display()
        );
        let mut gateway = Gateway::with_log(&config(&head, &pools), "debug").await;

        // One request runs, one waits until its ttl, one finds no room.
        let running = gateway.spawn(secretive("m"));
        let call = server.next().await;
        assert!(call.header("authorization").contains(SECRET), "what a server needs is passed on");
        let waiting = gateway.spawn(secretive("m"));
        gateway.waiting("p", 1).await;
        let seen = gateway.status().await.to_string() + gateway.metrics().await.text();
        assert!(!seen.contains(SECRET), "{seen}");
        let refused = gateway.send(secretive("m")).await;
        assert_eq!(refused.status, 503, "{}", refused.text());
        assert_eq!(waiting.await.expect("answered").code(), "queue_timeout");
        // A response is as secret as its prompt, even one that is cut.
        let events = call.stream();
        events.text(&format!("{SECRET} answer"));
        events.finish(3, 2);
        assert!(running.await.expect("answered").text().contains(SECRET));
        let cut = gateway.spawn(secretive("m"));
        let events = server.next().await.stream();
        events.text(&format!("{SECRET} answer"));
        events.cut();
        cut.abort();
        gateway.stock("p", 0).await;
        // Servers that refuse, reset and fail, and clients that disconnect.
        let failing = gateway.spawn(secretive("shy"));
        // A server's own error is asked for twice.
        for _ in 0..2 {
            shy.next().await.respond(500, &[], format!("{SECRET} trace"));
        }
        assert_eq!(failing.await.expect("answered").status, 500);
        let held = gateway.spawn(secretive("m"));
        let mut call = server.next().await;
        held.abort();
        call.gone().await;
        // An unknown model, a body that is not JSON, a body over the limit, a malformed head.
        assert_eq!(gateway.send(secretive("nobody's")).await.status, 404);
        for body in [
            format!("{{\"model\":\"m\",\"messages\":\"{SECRET}"),
            format!("{{\"model\":\"{SECRET}\",\"model\":\"{SECRET}\"}}"),
            format!("{{\"model\":\"m\",\"p\":\"{SECRET}{}\"}}", "x".repeat(2 << 20)),
        ] {
            let request = gateway.client().post(gateway.url("/v1/chat/completions"));
            let request = request.header("authorization", format!("Bearer {SECRET}")).body(body);
            let answer = request.send().await.expect("an answer");
            assert!(matches!(answer.status().as_u16(), 400 | 413), "{}", answer.status());
        }
        let mut raw = Raw::connect(gateway.address()).await;
        raw.send(post("/v1/chat/completions", &format!("authorization: Bearer {SECRET}\x01\r\n"))).await;
        assert_eq!(raw.answer().await.status, 400);
        // A change without permission and one with permission.
        for token in [format!("{SECRET}-guess"), format!("{SECRET}-admin")] {
            let drain = format!("{}/drain?token={SECRET}", gateway.companion());
            let request = gateway.client().post(drain).bearer_auth(token);
            let _answered = request.json(&json!({"off": true})).send().await.expect("an answer");
        }
        gateway.process.signal(libc::SIGTERM);
        gateway.process.exit().await;
        let log = gateway.process.log();
        assert!(log.contains("DEBUG"), "nothing was logged at debug:\n{log}");
        let told: Vec<_> = log.lines().filter(|line| line.contains(SECRET)).collect();
        assert!(told.is_empty(), "{told:#?}");
    });
}
