//! SIGTERM: waiting requests are answered at once, running ones may finish, and no process is left behind.

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::process::children;
use penstock_tests::{ClientRequest, Gateway, Upstream, run};

#[test]
fn waiting_requests_are_rejected_running_ones_finish_and_all_processes_end() {
    run(ends_with_all_its_processes(""));
}

/// Envoy ends with its companion, so no waiting request can be left to another companion.
#[test]
fn up_treats_hand_over_like_reject() {
    run(ends_with_all_its_processes("shutdown: {queued: hand_over}\n"));
}

async fn ends_with_all_its_processes(head: &str) {
    let server = Upstream::scripted().await;
    let mut gateway = Gateway::start(&config(head, &[pool("p", "'*'", &[&server], &slots(1))])).await;
    let ask = ClientRequest::chat("m", "running").streamed().body();
    let opened = tokio::spawn(gateway.client().post(gateway.url("/v1/chat/completions")).json(&ask).send());
    let events = server.next().await.stream();
    events.text("one");
    let mut running = opened.await.expect("no panic").expect("headers");
    assert!(running.chunk().await.expect("an event").is_some());
    let queued: Vec<_> =
        (0..3).map(|n| gateway.spawn(ClientRequest::chat("m", &format!("queued {n}")))).collect();
    gateway.waiting("p", 3).await;
    let family = descendants(gateway.process.pid());
    assert!(family.len() >= 2, "the companion and Envoy: {family:?}");

    gateway.process.signal(libc::SIGTERM);
    for answer in queued {
        answer.await.expect("answered").expect_error(503, "shutting_down", "shutting_down");
    }
    gateway.send(ClientRequest::chat("m", "new")).await.expect_error(503, "shutting_down", "shutting_down");
    events.text("two");
    events.finish(3, 2);
    let mut rest = String::new();
    while let Some(chunk) = running.chunk().await.expect("the running answer isn't cut") {
        rest.push_str(&String::from_utf8_lossy(&chunk));
    }
    assert!(rest.contains("two") && rest.ends_with("data: [DONE]\n\n"), "{rest}");
    assert_eq!(gateway.process.exit().await.code(), Some(0), "{}", gateway.process.tail());
    assert_eq!(server.total(), 1);
    for pid in family {
        assert!(!running_process(pid), "{pid} is left behind\n{}", gateway.process.tail());
    }
}

#[test]
fn ctrl_c_ends_an_idle_gateway_with_0() {
    run(async {
        let server = Upstream::scripted().await;
        let mut gateway = Gateway::start(&config("", &[pool("p", "'*'", &[&server], "")])).await;
        gateway.process.signal(libc::SIGINT);
        assert_eq!(gateway.process.exit().await.code(), Some(0), "{}", gateway.process.tail());
        assert!(tokio::net::TcpStream::connect(gateway.address()).await.is_err());
    });
}

fn descendants(pid: i32) -> Vec<i32> {
    let mut found = Vec::new();
    let mut open = vec![pid];
    while let Some(parent) = open.pop() {
        for (child, _) in children(parent) {
            found.push(child);
            open.push(child);
        }
    }
    found
}

/// Whether a process runs; a zombie does not.
fn running_process(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}
