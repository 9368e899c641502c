//! Evictions, through a real Envoy: a critical request takes the place of a sheddable one whose server is silent.

use std::time::Duration;

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::{ClientRequest, Gateway, Upstream, run, until};

/// A gateway in front of a server with so many places.
async fn start(places: u32, eviction: &str) -> (Gateway, Upstream) {
    let server = Upstream::scripted().await;
    let keys = format!("{}  queue: {{credits: 'off'}}\n  eviction: {{{eviction}}}\n", slots(places));
    let gateway = Gateway::start(&config("", &[pool("chat", "m", &[&server], &keys)])).await;
    (gateway, server)
}

fn sheddable(text: &str) -> ClientRequest {
    ClientRequest::chat("m", text).tenant("batch").priority("sheddable")
}

fn critical(text: &str) -> ClientRequest {
    ClientRequest::chat("m", text).tenant("chat").priority("critical")
}

#[test]
fn a_silent_sheddable_request_gives_up_its_place() {
    run(async {
        let (gateway, server) = start(1, "sheddable: true, after: 100ms").await;
        for ask in [sheddable("shed"), sheddable("shed").streamed()] {
            let shed = gateway.spawn(ask);
            let mut call = server.next().await;
            let urgent = gateway.spawn(critical("urgent"));
            shed.await.expect("answered").expect_error(429, "evicted", "evicted");
            call.gone().await;
            drop(call);
            let next = server.next().await;
            assert_eq!(next.text(), "urgent");
            next.answer();
            let answer = urgent.await.expect("answered");
            assert_eq!((answer.status, answer.outcome()), (200, "dispatched"));
        }
        gateway.stock("chat", 0).await;
        until("evictions are counted", || async {
            let page = gateway.metrics().await;
            let outcome = [("outcome", "evicted")];
            let counts = ["penstock_requests_total", "penstock_refused_after_grant_total"]
                .map(|name| page.sum(name, &outcome));
            if counts == [2.0, 2.0] { Ok(()) } else { Err(format!("{counts:?}")) }
        })
        .await;
    });
}

#[test]
fn a_request_whose_answer_has_begun_stays() {
    run(async {
        let (gateway, server) = start(2, "sheddable: true, after: 100ms").await;
        let silent = gateway.spawn(sheddable("silent"));
        let call = server.next().await;
        // The last to be granted, and so the first to go if it were silent, too.
        let (response, events) = tokio::join!(gateway.open(sheddable("answers").streamed()), async {
            let events = server.next().await.stream();
            events.text("one");
            events
        });
        let mut response = response.expect("an answer");
        let urgent = gateway.spawn(critical("urgent"));
        silent.await.expect("answered").expect_error(429, "evicted", "evicted");
        drop(call);
        server.next().await.answer();
        assert_eq!(urgent.await.expect("answered").status, 200);
        events.text("two");
        events.finish(8, 2);
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.expect("a piece") {
            body.extend_from_slice(&piece);
        }
        let body = String::from_utf8_lossy(&body);
        assert!(body.contains("one") && body.ends_with("data: [DONE]\n\n"), "{body}");
        gateway.stock("chat", 0).await;
    });
}

#[test]
fn requests_of_other_bands_stay() {
    run(async {
        let (gateway, server) = start(2, "sheddable: true, after: 100ms").await;
        let usual = gateway.spawn(ClientRequest::chat("m", "usual"));
        let usual_call = server.next().await;
        let shed = gateway.spawn(sheddable("shed"));
        let shed_call = server.next().await;
        // Both have waited for too long, and only one request is sheddable.
        let urgent = [gateway.spawn(critical("urgent")), gateway.spawn(critical("urgent"))];
        shed.await.expect("answered").expect_error(429, "evicted", "evicted");
        drop(shed_call);
        let first = server.next().await;
        gateway.waiting("chat", 1).await;
        first.answer();
        server.next().await.answer();
        for asked in urgent {
            assert_eq!(asked.await.expect("answered").status, 200);
        }
        usual_call.answer();
        assert_eq!(usual.await.expect("answered").status, 200);
    });
}

#[test]
fn tenants_take_turns() {
    run(async {
        let (gateway, server) = start(3, "sheddable: true, after: 100ms").await;
        let shed = |tenant: &str| {
            gateway.spawn(ClientRequest::chat("m", "shed").tenant(tenant).priority("sheddable"))
        };
        let patient = shed("patient");
        let patient_call = server.next().await;
        let first = shed("eager");
        let first_call = server.next().await;
        let second = shed("eager");
        let second_call = server.next().await;
        let (mut kept, mut kept_calls) = (Vec::new(), Vec::new());
        for (evicted, call) in [(second, second_call), (patient, patient_call)] {
            let urgent = gateway.spawn(critical("urgent"));
            evicted.await.expect("answered").expect_error(429, "evicted", "evicted");
            drop(call);
            server.next().await.answer();
            assert_eq!(urgent.await.expect("answered").status, 200);
            // Its place is taken again, by a request that can't be evicted.
            kept.push(gateway.spawn(ClientRequest::chat("m", "usual")));
            kept_calls.push(server.next().await);
        }
        first_call.answer();
        assert_eq!(first.await.expect("answered").status, 200);
    });
}

#[test]
fn a_server_that_hangs_gets_no_further_critical_request() {
    run(async {
        let servers = [Upstream::scripted().await, Upstream::scripted().await];
        let keys = format!(
            "{}  queue: {{credits: 'off'}}\n  eviction: {{sheddable: true, after: 100ms}}\n",
            slots(2)
        );
        let [healthy, hangs] = &servers;
        let gateway = Gateway::start(&config("", &[pool("chat", "m", &[healthy, hangs], &keys)])).await;
        let sent_to = |server: &Upstream, ask: ClientRequest| {
            ask.header("x-gateway-destination-endpoint-subset", &server.address().to_string())
        };
        let older = gateway.spawn(sent_to(healthy, sheddable("shed")));
        let older_call = healthy.next().await;
        let stays = gateway.spawn(sent_to(hangs, sheddable("shed")));
        let _silent = hangs.next().await;
        let usual = gateway.spawn(sent_to(healthy, ClientRequest::chat("m", "usual")));
        let usual_call = healthy.next().await;
        let first = gateway.spawn(sent_to(hangs, sheddable("shed")));
        let first_call = hangs.next().await;
        // It can't be known yet that the server hangs: the first critical request is lost there.
        let lost = gateway.spawn(critical("lost"));
        first.await.expect("answered").expect_error(429, "evicted", "evicted");
        drop(first_call);
        let mut lost_call = hangs.next().await;
        usual_call.answer();
        assert_eq!(usual.await.expect("answered").status, 200);
        for _ in 0..8 {
            let usual = gateway.spawn(sent_to(healthy, ClientRequest::chat("m", "usual")));
            healthy.next().await.answer();
            assert_eq!(usual.await.expect("answered").status, 200);
        }
        // A client that gives up shows nothing of the server.
        lost.abort();
        lost_call.gone().await;
        let last = gateway.spawn(sent_to(hangs, sheddable("shed")));
        let _last_call = hangs.next().await;
        let _full = gateway.spawn(sent_to(healthy, ClientRequest::chat("m", "usual")));
        let _full_call = healthy.next().await;
        let urgent = gateway.spawn(critical("urgent"));
        older.await.expect("answered").expect_error(429, "evicted", "evicted");
        drop(older_call);
        healthy.next().await.answer();
        assert_eq!(urgent.await.expect("answered").status, 200);
        assert!(!stays.is_finished() && !last.is_finished(), "what is at the other server stays there");
    });
}

#[test]
fn requests_by_credit_give_up_their_places_too() {
    run(async {
        const BOUND: u32 = 8;
        let (servers, gate) = Upstream::gated(1, Duration::ZERO).await;
        let keys = format!("{}  eviction: {{sheddable: true, after: 100ms}}\n", slots(BOUND));
        let gateway = Gateway::start(&config("", &[pool("chat", "m", &[&servers[0]], &keys)])).await;
        let by_credit = async || gateway.metrics().await.sum("penstock_lease_admissions_total", &[]);
        until("the filter admits some by itself", || async {
            gate.open();
            for _ in 0..50 {
                assert_eq!(gateway.send(critical("warm")).await.status, 200);
            }
            gateway.stock("chat", 0).await;
            let before = by_credit().await;
            gate.close();
            let shed: Vec<_> = (0..BOUND).map(|_| gateway.spawn(sheddable("shed"))).collect();
            until("all places are taken", || async {
                let running = servers[0].in_flight();
                if running == BOUND as usize { Ok(()) } else { Err(running.to_string()) }
            })
            .await;
            let urgent: Vec<_> = (0..BOUND).map(|_| gateway.spawn(critical("urgent"))).collect();
            for answer in shed {
                answer.await.expect("answered").expect_error(429, "evicted", "evicted");
            }
            let admitted = by_credit().await - before;
            gate.open();
            for answer in urgent {
                assert_eq!(answer.await.expect("answered").status, 200);
            }
            gateway.stock("chat", 0).await;
            if admitted > 0.0 { Ok(()) } else { Err("all were asked for".to_owned()) }
        })
        .await;
    });
}
