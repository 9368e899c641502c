//! A leader that dies under load: what becomes of the requests in each state, and of those that come later.

use std::time::Instant;

use penstock_tests::gateway::{pool, slots};
use penstock_tests::picker::Setup;
use penstock_tests::relay::Relay;
use penstock_tests::{Answer, ClientRequest, Modes, PickerGateway, Upstream, run, until};

use crate::health::{PICKER, SERVING, becomes, two};

/// Requests in each state.
const EACH: usize = 20;

/// Whether a request was answered, by state.
#[derive(Debug, PartialEq, Eq)]
struct Answered {
    /// They waited in the queue. Without the picker, this gateway knows no server for them.
    waiting: usize,
    /// A server had them, and had not begun to respond.
    silent: usize,
    /// Their clients had a part of the answer.
    streaming: usize,
}

async fn count_whole(answers: Vec<tokio::task::JoinHandle<reqwest::Result<Answer>>>) -> usize {
    let mut whole = 0;
    for answer in answers {
        let answer = answer.await.expect("no panic");
        // A cut stream is an error of the connection, or ends without its last event.
        whole +=
            usize::from(answer.is_ok_and(|answer| answer.status == 200 && answer.text().contains("[DONE]")));
    }
    whole
}

async fn leader_dies(modes: Modes, fails_open: bool) -> Answered {
    let server = Upstream::scripted().await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let both = u32::try_from(2 * EACH).expect("few");
    let [mut leader, standby] = two(folder.path(), "", &[pool("chat", "", &[&server], &slots(both))]).await;
    // As a Service: one address, whichever companion is ready.
    let service = Relay::to(leader.listen).await;
    let setup = Setup { modes: vec![modes], picker: Some(service.address()), fails_open, ..Setup::default() };
    let gateway = PickerGateway::with("", &[pool("none", "none", &[&server], "")], "", &setup).await;
    let ask = |text: &str| {
        let response = gateway.open(ClientRequest::chat("m", text).streamed());
        tokio::spawn(async move { Answer::read(response.await.expect("no panic")?).await })
    };
    let (mut streaming, mut events) = (Vec::new(), Vec::new());
    for _ in 0..EACH {
        let response = gateway.open(ClientRequest::chat("m", "streams").streamed());
        let answer = server.next().await.stream();
        answer.text("one");
        let response = response.await.expect("no panic").expect("its headers");
        streaming.push(tokio::spawn(Answer::read(response)));
        events.push(answer);
    }
    let (mut silent, mut calls) = (Vec::new(), Vec::new());
    for _ in 0..EACH {
        silent.push(ask("silent"));
        calls.push(server.next().await);
    }
    // Where the picker sees nothing of an answer but its headers, those that stream have left the stock.
    let held = leader.companion.pool("chat").await.expect("a pool")["stock"].as_u64().expect("a number");
    let mut fill = Vec::new();
    for _ in held..u64::from(both) {
        fill.push(ask("fills"));
        server.next().await;
    }
    let waiting: Vec<_> = (0..EACH).map(|_| ask("waits")).collect();
    leader.companion.waiting("chat", u64::try_from(EACH).expect("few")).await;

    leader.companion.kill().await;
    let died = Instant::now();
    service.redirect(standby.listen);
    becomes(standby.listen, PICKER, SERVING).await;
    println!("figure: {modes:?}: the standby serves {:?} after the leader has died", died.elapsed());
    let next = until("a request is granted", || async {
        let mut next = gateway.open(ClientRequest::chat("m", "next"));
        tokio::select! {
            call = server.next() => {
                call.answer();
                Ok(next)
            }
            refused = &mut next => Err(format!("{refused:?}")),
        }
    })
    .await;
    assert_eq!(next.await.expect("no panic").expect("an answer").status(), 200);
    for call in calls {
        call.stream().finish(9, 1);
    }
    for answer in events {
        answer.text("two");
        answer.finish(9, 2);
    }
    let answered = Answered {
        waiting: count_whole(waiting).await,
        silent: count_whole(silent).await,
        streaming: count_whole(streaming).await,
    };
    println!("figure: {modes:?} {fails_open}: of {EACH} in each state were answered: {answered:?}");
    standby.companion.stock("chat", 0).await;
    answered
}

#[test]
fn a_dead_leader_takes_what_its_gateway_needs_it_for() {
    run(async {
        let modes = |response_body| Modes { request_body: "BUFFERED", response_body, trailers: false };
        let in_part = [modes(Some("STREAMED")), modes(Some("NONE")), modes(None)];
        for modes in in_part.into_iter().chain([Modes::FULL_DUPLEX]) {
            let closed = leader_dies(modes, false).await;
            assert_eq!(closed, Answered { waiting: 0, silent: 0, streaming: 0 }, "{modes:?}");
            // A response that the picker sends back can't go on without it.
            let running = if in_part.contains(&modes) { EACH } else { 0 };
            let open = leader_dies(modes, true).await;
            assert_eq!(open, Answered { waiting: 0, silent: running, streaming: running }, "{modes:?}");
        }
    });
}
