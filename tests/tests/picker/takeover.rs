//! A leader that dies, and one that leaves, under load: what becomes of the requests in each state, and of those that come later.

use std::collections::BTreeSet;
use std::time::Instant;

use futures_util::future::join_all;
use penstock_tests::gateway::{pool, slots};
use penstock_tests::picker::Setup;
use penstock_tests::relay::Relay;
use penstock_tests::{Answer, Call, ClientRequest, Events, Modes, PickerGateway, Upstream, run, until};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::health::{PICKER, Replica, SERVING, becomes, two};

/// Requests in each state.
const EACH: usize = 20;

type Answers = Vec<JoinHandle<reqwest::Result<Answer>>>;

/// What became of the requests, by their state when the leader ended.
#[derive(Debug, PartialEq, Eq)]
struct Ends {
    /// The statuses of requests that waited in the queue.
    waiting: BTreeSet<u16>,
    /// The answered ones of requests to which the server hadn't begun to respond.
    silent: usize,
    /// The answered ones of requests whose clients had a part of the answer.
    streaming: usize,
}

async fn statuses(answers: Answers) -> BTreeSet<u16> {
    let answers = join_all(answers).await.into_iter();
    answers.map(|answer| answer.expect("no panic").expect("an answer").status).collect()
}

/// The number of whole answers. A stream that was cut is an error of the connection, or ends without its last event.
async fn count_whole(answers: Answers) -> usize {
    let answers = join_all(answers).await.into_iter();
    let whole = answers.filter_map(|answer| answer.expect("no panic").ok());
    whole.filter(|answer| answer.status == 200 && answer.text().contains("[DONE]")).count()
}

fn count(number: usize) -> u64 {
    u64::try_from(number).expect("few")
}

/// A leader and a standby behind one address, as of a Service, and requests in each state.
struct Scene {
    server: Upstream,
    leader: Replica,
    standby: Replica,
    service: Relay,
    gateway: PickerGateway,
    streaming: Answers,
    events: Vec<Events>,
    silent: Answers,
    calls: Vec<Call>,
    waiting: Answers,
    _folder: TempDir,
}

impl Scene {
    /// `keys`: of the companions.
    async fn set(keys: &str, modes: Modes, fails_open: bool) -> Self {
        let server = Upstream::scripted().await;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let bound = u32::try_from(2 * EACH).expect("few");
        let [leader, standby] =
            two(folder.path(), keys, &[pool("chat", "", &[&server], &slots(bound))]).await;
        let service = Relay::to(leader.listen).await;
        let setup =
            Setup { modes: vec![modes], picker: Some(service.address()), fails_open, ..Setup::default() };
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
        leader.companion.stock("chat", bound.into()).await;
        let waiting: Vec<_> = (0..EACH).map(|_| ask("waits")).collect();
        leader.companion.waiting("chat", count(EACH)).await;
        Self {
            server,
            leader,
            standby,
            service,
            gateway,
            streaming,
            events,
            silent,
            calls,
            waiting,
            _folder: folder,
        }
    }
}

async fn leader_dies(modes: Modes, fails_open: bool) -> Ends {
    let mut scene = Scene::set("", modes, fails_open).await;
    scene.leader.companion.kill().await;
    let died = Instant::now();
    scene.service.redirect(scene.standby.listen);
    becomes(scene.standby.listen, PICKER, SERVING).await;
    println!("figure: {modes:?}: the standby serves {:?} after the leader has died", died.elapsed());
    let next = until("a request is granted", || async {
        let mut next = scene.gateway.open(ClientRequest::chat("m", "next"));
        tokio::select! {
            call = scene.server.next() => {
                call.answer();
                Ok(next)
            }
            refused = &mut next => Err(format!("{refused:?}")),
        }
    })
    .await;
    assert_eq!(next.await.expect("no panic").expect("an answer").status(), 200);
    for call in scene.calls {
        call.stream().finish(9, 1);
    }
    for answer in scene.events {
        answer.text("two");
        answer.finish(9, 2);
    }
    let ends = Ends {
        waiting: statuses(scene.waiting).await,
        silent: count_whole(scene.silent).await,
        streaming: count_whole(scene.streaming).await,
    };
    println!("figure: {modes:?}, fails open: {fails_open}, {EACH} in each state: {ends:?}");
    scene.standby.companion.stock("chat", 0).await;
    ends
}

/// The ways in which responses come in parts, with whole bodies of requests.
fn in_part() -> [Modes; 3] {
    let modes = |response_body| Modes { request_body: "BUFFERED", response_body, trailers: false };
    [modes(Some("STREAMED")), modes(Some("NONE")), modes(None)]
}

#[test]
fn a_dead_leader_takes_what_its_gateway_needs_it_for() {
    run(async {
        for modes in in_part().into_iter().chain([Modes::FULL_DUPLEX]) {
            let closed = leader_dies(modes, false).await;
            assert_eq!(closed, Ends { waiting: [500].into(), silent: 0, streaming: 0 }, "{modes:?}");
            // This gateway knows no server for a request that waited. A body that the picker sends back can't go on without it.
            let (status, running) = if in_part().contains(&modes) { (503, EACH) } else { (500, 0) };
            let open = leader_dies(modes, true).await;
            let expected = Ends { waiting: [status].into(), silent: running, streaming: running };
            assert_eq!(open, expected, "{modes:?}");
        }
    });
}

/// The leader gets SIGTERM, with requests in each state. All are answered, and none past the bound.
async fn leader_leaves(modes: Modes) {
    let mut scene = Scene::set("", modes, false).await;
    scene.service.redirect(scene.standby.listen);
    let left = Instant::now();
    scene.leader.companion.signal(libc::SIGTERM);
    scene.standby.companion.waiting("chat", count(EACH)).await;
    println!("figure: {modes:?}: the standby has the waiting requests {:?} after SIGTERM", left.elapsed());
    scene.standby.companion.stock("chat", count(2 * EACH)).await;
    becomes(scene.standby.listen, PICKER, SERVING).await;
    let next = scene.gateway.spawn(ClientRequest::chat("m", "next"));
    scene.standby.companion.waiting("chat", count(EACH) + 1).await;
    assert!(scene.server.arrived().await.is_none(), "{modes:?}: no place is free");
    for call in scene.calls {
        call.stream().finish(9, 1);
    }
    for answer in scene.events {
        answer.text("two");
        answer.finish(9, 2);
    }
    for _ in 0..=EACH {
        let call = scene.server.next().await;
        if call.text() == "next" { call.answer() } else { call.stream().finish(9, 1) }
    }
    let ends = Ends {
        waiting: statuses(scene.waiting).await,
        silent: count_whole(scene.silent).await,
        streaming: count_whole(scene.streaming).await,
    };
    assert_eq!(ends, Ends { waiting: [200].into(), silent: EACH, streaming: EACH }, "{modes:?}");
    assert_eq!(next.await.expect("no panic").status, 200);
    assert!(scene.server.peak() <= 2 * EACH, "{modes:?}: {} at once", scene.server.peak());
    assert!(scene.leader.companion.exit().await.success());
    scene.standby.companion.stock("chat", 0).await;
}

#[test]
fn a_leader_that_leaves_loses_no_request() {
    run(async {
        for modes in in_part().into_iter().chain([Modes::FULL_DUPLEX]) {
            leader_leaves(modes).await;
        }
    });
}
