//! A companion that ends as planned, or no longer leads: its requests go on by the decisions of the next leader, or by its own if there is
//! none.

use penstock_tests::certificates::Certificates;
use penstock_tests::gateway::{pool, slots};
use penstock_tests::picker::Setup;
use penstock_tests::replicas::etcd_lease;
use penstock_tests::{
    Answer, ClientRequest, Companion, Envoy, Etcd, Events, PickerGateway, Upstream, run, until,
};
use tokio::task::JoinHandle;

use crate::health::{PICKER, Replica, SERVING, becomes, gateway_of, two, two_by};

/// A running and a waiting request.
struct Pair {
    running: JoinHandle<Answer>,
    events: Events,
    waiting: JoinHandle<Answer>,
}

impl Pair {
    /// At a companion whose pool `chat` has one place.
    async fn at(companion: &Companion, gateway: &PickerGateway, server: &Upstream) -> Self {
        let running = gateway.spawn(ClientRequest::chat("m", "runs").streamed());
        let events = server.next().await.stream();
        events.text("one");
        let waiting = gateway.spawn(ClientRequest::chat("m", "waits"));
        companion.waiting("chat", 1).await;
        Self { running, events, waiting }
    }

    /// The running one ends, and the waiting one gets its place.
    async fn end(self, server: &Upstream) {
        self.events.finish(9, 1);
        assert_eq!(self.running.await.expect("no panic").status, 200);
        let call = server.next().await;
        assert_eq!(call.text(), "waits");
        call.answer();
        assert_eq!(self.waiting.await.expect("no panic").status, 200);
    }
}

#[test]
fn the_only_companion_decides_about_its_picker_s_requests_until_they_have_ended() {
    run(async {
        let server = Upstream::scripted().await;
        let pools = [pool("chat", "", &[&server], &slots(1))];
        let mut gateway = PickerGateway::with("", &pools, "", &Setup::default()).await;
        let pair = Pair::at(&gateway.companion, &gateway, &server).await;
        gateway.companion.signal(libc::SIGTERM);
        // It takes no connections any more.
        becomes(gateway.picker, PICKER, None).await;
        pair.end(&server).await;
        assert!(gateway.companion.exit().await.success());
    });
}

#[test]
fn an_interrupt_answers_what_waits_and_lets_what_runs_finish() {
    run(async {
        let server = Upstream::scripted().await;
        let pools = [pool("chat", "", &[&server], &slots(1))];
        let mut gateway = PickerGateway::with("", &pools, "", &Setup::default()).await;
        let pair = Pair::at(&gateway.companion, &gateway, &server).await;
        gateway.companion.signal(libc::SIGINT);
        pair.waiting.await.expect("no panic").expect_error(503, "shutting_down", "shutting_down");
        pair.events.finish(9, 1);
        let answer = pair.running.await.expect("no panic");
        assert!(answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
        assert!(gateway.companion.exit().await.success());
    });
}

#[test]
fn the_only_companion_serves_filters_as_long_and_leaves_them_to_the_next_one() {
    run(async {
        let server = Upstream::scripted().await;
        let pools = [pool("chat", "", &[&server], &slots(1))];
        let mut gateway = PickerGateway::with("", &pools, "", &Setup::default()).await;
        let envoy = Envoy::alone(&gateway.companion, "filters", None, |_| ()).await;
        let client = reqwest::Client::builder().no_proxy().build().expect("a client can be built");
        let ask = |text| {
            let ask = ClientRequest::chat("m", text);
            tokio::spawn(client.post(envoy.url(ask.path())).json(&ask.body()).send())
        };
        let first = gateway.spawn(ClientRequest::chat("m", "picker"));
        let call = server.next().await;
        let second = ask("filter");
        gateway.companion.waiting("chat", 1).await;
        let third = gateway.spawn(ClientRequest::chat("m", "picker"));
        gateway.companion.waiting("chat", 2).await;
        gateway.companion.signal(libc::SIGTERM);
        until("it says what it waits for", || async {
            let log = gateway.companion.log();
            let says =
                |line: &str| line.contains("waits for those that it has") && line.contains("requests=2");
            if log.lines().any(says) { Ok(()) } else { Err(log) }
        })
        .await;
        call.answer();
        for text in ["filter", "picker"] {
            let call = server.next().await;
            assert_eq!(call.text(), text);
            call.answer();
        }
        assert_eq!(first.await.expect("no panic").status, 200);
        assert_eq!(second.await.expect("no panic").expect("an answer").status(), 200);
        assert_eq!(third.await.expect("no panic").status, 200);
        assert!(gateway.companion.exit().await.success());
        let later = ask("later");
        gateway.companion.restart().await;
        server.next().await.answer();
        assert_eq!(later.await.expect("no panic").expect("an answer").status(), 200);
    });
}

#[test]
fn requests_of_a_leader_that_has_lost_its_lease_are_its_successor_s() {
    run(async {
        let LostLease { leader: _leader, standby, pair, server, _gateway, _etcd } = lost_lease().await;
        pair.end(&server).await;
        standby.companion.stock("chat", 0).await;
        // The other picker has no requests left, so it isn't one of the filters any more.
        standby.companion.picker_sessions().await;
    });
}

#[test]
fn an_interrupted_companion_waits_for_its_picker_s_requests_of_another_leader() {
    run(async {
        let LostLease { mut leader, standby, pair, server, _gateway, _etcd } = lost_lease().await;
        leader.companion.signal(libc::SIGINT);
        becomes(leader.listen, PICKER, None).await;
        pair.end(&server).await;
        assert!(leader.companion.exit().await.success());
        standby.companion.stock("chat", 0).await;
    });
}

/// A former leader with a running and a waiting request, of which its successor knows.
struct LostLease {
    leader: Replica,
    standby: Replica,
    pair: Pair,
    server: Upstream,
    _gateway: PickerGateway,
    _etcd: Etcd,
}

async fn lost_lease() -> LostLease {
    let server = Upstream::scripted().await;
    let etcd = Etcd::start().await;
    let pools = [pool("chat", "", &[&server], &slots(1))];
    let [leader, standby] = two_by(&etcd_lease(&etcd.url()), "", &pools).await;
    let gateway = gateway_of(leader.listen, &server).await;
    let pair = Pair::at(&leader.companion, &gateway, &server).await;
    leader.companion.freeze().await;
    becomes(standby.listen, PICKER, SERVING).await;
    leader.companion.signal(libc::SIGCONT);
    // Its workers tell one after the other what they have: the waiting request may be granted before the running one is known.
    until("the successor knows both", || async {
        let pool = standby.companion.pool("chat").await?;
        let known = [&pool["stock"], &pool["waiting"]].map(|count| count.as_u64().unwrap_or_default());
        if known.iter().sum::<u64>() == 2 { Ok(()) } else { Err(pool.to_string()) }
    })
    .await;
    LostLease { leader, standby, pair, server, _gateway: gateway, _etcd: etcd }
}

#[test]
fn companions_that_show_each_other_certificates_hand_over_too() {
    run(async {
        let server = Upstream::scripted().await;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let certificates = Certificates::new(folder.path(), "companions");
        let pools = [pool("chat", "", &[&server], &slots(1))];
        let [mut leader, standby] = two(folder.path(), &certificates.configured(), &pools).await;
        let gateway = gateway_of(leader.listen, &server).await;
        let pair = Pair::at(&leader.companion, &gateway, &server).await;
        leader.companion.signal(libc::SIGTERM);
        standby.companion.waiting("chat", 1).await;
        standby.companion.stock("chat", 1).await;
        pair.end(&server).await;
        assert!(leader.companion.exit().await.success());
    });
}

#[test]
fn without_a_next_leader_the_policy_for_companions_that_are_down_decides() {
    run(async {
        let server = Upstream::scripted().await;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let keys = format!("{}  companion_down: {{hold: 1s}}\n", slots(1));
        let pools = [pool("chat", "", &[&server], &keys)];
        let [mut leader, mut standby] = two(folder.path(), "", &pools).await;
        let gateway = gateway_of(leader.listen, &server).await;
        let pair = Pair::at(&leader.companion, &gateway, &server).await;
        standby.companion.kill().await;
        leader.companion.signal(libc::SIGTERM);
        pair.waiting.await.expect("no panic").expect_error(503, "gateway_unavailable", "gateway_unavailable");
        pair.events.finish(9, 1);
        assert_eq!(pair.running.await.expect("no panic").status, 200);
        assert!(leader.companion.exit().await.success());
    });
}

#[test]
fn what_has_not_ended_when_the_time_is_over_is_cut_off() {
    run(async {
        let server = Upstream::scripted().await;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let pools = [pool("chat", "", &[&server], &slots(1))];
        let keys = "shutdown: {drain: 1s}\n";
        let [mut leader, standby] = two(folder.path(), keys, &pools).await;
        let gateway = gateway_of(leader.listen, &server).await;
        let ran = gateway.open(ClientRequest::chat("m", "runs").streamed());
        let events = server.next().await.stream();
        events.text("one");
        let ran = ran.await.expect("no panic").expect("its headers");
        let waiting = gateway.spawn(ClientRequest::chat("m", "waits"));
        leader.companion.waiting("chat", 1).await;
        leader.companion.signal(libc::SIGTERM);
        standby.companion.stock("chat", 1).await;
        assert!(leader.companion.exit().await.success());
        assert_eq!(waiting.await.expect("no panic").status, 500, "its failure mode decides");
        assert!(Answer::read(ran).await.is_err(), "the answer is cut");
        standby.companion.stock("chat", 0).await;
        standby.companion.waiting("chat", 0).await;
    });
}
