//! Endpoint constraints of trusted clients: a pin, a subset, and tolerations. The headers never reach a server.

use penstock_tests::gateway::{config, slots};
use penstock_tests::{Answer, Call, ClientRequest, Gateway, Upstream, run};

const PIN: &str = "x-penstock-endpoint";
const SUBSET: &str = "x-gateway-destination-endpoint-subset";
const TOLERATE: &str = "x-penstock-tolerate";
const SERVED: &str = "x-gateway-destination-endpoint-served";

/// Two servers with one place each and no health checks; `second` holds more keys of the second server.
async fn gateway(head: &str, second: &str) -> (Gateway, [Upstream; 2]) {
    let servers = [Upstream::scripted().await, Upstream::scripted().await];
    let [a, b] = servers.each_ref().map(Upstream::address);
    let pool = format!(
        "- name: p\n  endpoints: {{static: ['{a}', {{address: '{b}'{second}}}]}}\n  health: {{path: null}}\n{}",
        slots(1)
    );
    (Gateway::start(&config(head, &[pool])).await, servers)
}

fn ask(constraints: &[(&str, &str)]) -> ClientRequest {
    let ask = ClientRequest::chat("m", "x");
    constraints.iter().fold(ask, |ask, (name, value)| ask.header(name, value))
}

fn unseen(call: Call) {
    for name in [PIN, SUBSET, TOLERATE] {
        assert_eq!(call.header(name), "", "{name} reaches the server");
    }
    call.answer();
}

fn refused(answer: &Answer) {
    answer.expect_error(503, "no_endpoints", "no_endpoints");
}

#[test]
fn pin_and_subset_are_obeyed() {
    run(async {
        let (gateway, [a, b]) = gateway("", "").await;
        let [at_a, at_b] = [&a, &b].map(|server| server.address().to_string());
        let nowhere = "127.0.0.1:1".to_owned();
        let both = format!(" {at_a} ,{at_b},{nowhere}");
        let last = format!("{nowhere}, {at_b}");
        for constraints in [
            &[(PIN, at_b.as_str())][..],
            &[(SUBSET, at_b.as_str())],
            &[(SUBSET, last.as_str())],
            &[(SUBSET, nowhere.as_str()), (SUBSET, at_b.as_str())],
            &[(PIN, at_b.as_str()), (SUBSET, both.as_str())],
        ] {
            // Repeated: by chance, some of them would reach the other server.
            for _ in 0..4 {
                let asked = gateway.spawn(ask(constraints));
                unseen(b.next().await);
                let answer = asked.await.expect("answered");
                assert_eq!((answer.status, answer.header(SERVED)), (200, at_b.as_str()), "{constraints:?}");
            }
        }
        for constraints in [
            &[(PIN, nowhere.as_str())][..],
            &[(PIN, "no address")],
            &[(SUBSET, nowhere.as_str())],
            &[(PIN, at_a.as_str()), (SUBSET, at_b.as_str())],
        ] {
            refused(&gateway.send(ask(constraints)).await);
        }
        let rank = format!("{at_b}@1");
        let answer = gateway.send(ask(&[(PIN, rank.as_str())])).await;
        answer.expect_error(400, "invalid_request", "rejected_invalid");
        let message = answer.message();
        assert!(message.contains(&rank) && message.contains("data-parallel rank"), "{message}");
        assert_eq!(a.total(), 0);
    });
}

#[test]
fn request_for_a_full_server_waits_without_delaying_others() {
    run(async {
        let (gateway, [a, b]) = gateway("", "").await;
        let at_b = b.address().to_string();
        let pinned = || ask(&[(PIN, at_b.as_str())]).tenant("pinned");
        let first = gateway.spawn(pinned());
        let held = b.next().await;
        let second = gateway.spawn(pinned());
        gateway.waiting("p", 1).await;
        let other = gateway.spawn(ask(&[]).tenant("other"));
        unseen(a.next().await);
        assert_eq!(other.await.expect("answered").status, 200);
        gateway.waiting("p", 1).await;
        assert_eq!(b.total(), 1);
        held.answer();
        unseen(b.next().await);
        for asked in [first, second] {
            assert_eq!(asked.await.expect("answered").status, 200);
        }
        assert_eq!(a.total(), 1);
    });
}

#[test]
fn constraints_of_untrusted_clients_are_ignored_and_removed() {
    run(async {
        let (gateway, [a, b]) = gateway("identity: {trust: none}\n", "").await;
        let at_b = b.address().to_string();
        let held = gateway.spawn(ask(&[]));
        // Either server may have the request; the other one is free.
        let (call, free) = tokio::select! {
            call = a.next() => (call, &b),
            call = b.next() => (call, &a),
        };
        for constraints in [
            &[(PIN, "127.0.0.1:1"), (TOLERATE, "any")][..],
            &[(SUBSET, "127.0.0.1:1")],
            &[(PIN, at_b.as_str())],
        ] {
            let asked = gateway.spawn(ask(constraints));
            unseen(free.next().await);
            assert_eq!(asked.await.expect("answered").status, 200, "{constraints:?}");
        }
        unseen(call);
        assert_eq!(held.await.expect("answered").status, 200);
    });
}

#[test]
fn tainted_server_serves_only_requests_that_tolerate_it() {
    run(async {
        let (gateway, [a, b]) = gateway("", ", taints: [spot, gpu-old]").await;
        let at_b = b.address().to_string();
        let held = gateway.spawn(ask(&[]));
        let call = a.next().await;
        // A request that does not tolerate every taint waits for the other server, although this one is free.
        let waits = gateway.spawn(ask(&[(TOLERATE, "spot")]).tenant("waits"));
        gateway.waiting("p", 1).await;
        for constraints in [
            &[(TOLERATE, "spot, gpu-old")][..],
            &[(TOLERATE, "gpu-old"), (TOLERATE, "spot"), (PIN, at_b.as_str())],
        ] {
            let asked = gateway.spawn(ask(constraints).tenant("goes"));
            unseen(b.next().await);
            assert_eq!(asked.await.expect("answered").header(SERVED), at_b);
        }
        refused(&gateway.send(ask(&[(PIN, at_b.as_str())])).await);
        unseen(call);
        unseen(a.next().await);
        for asked in [held, waits] {
            assert_eq!(asked.await.expect("answered").status, 200);
        }
    });
}
