//! The dispatch order with one place: criticality, then shares, then arrival.

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::{ClientRequest, Gateway, Upstream, run};
use tokio::sync::OnceCell;

struct Fixture {
    gateway: Gateway,
    bands: Upstream,
    fifo: Upstream,
    shares: Upstream,
    usage: Upstream,
    vtc: Upstream,
}

/// One gateway; every test has a pool with one place of its own.
async fn shared() -> &'static Fixture {
    static SHARED: OnceCell<Fixture> = OnceCell::const_new();
    SHARED
        .get_or_init(|| async {
            let (bands, fifo, shares, usage, vtc) = (
                Upstream::scripted().await,
                Upstream::scripted().await,
                Upstream::scripted().await,
                Upstream::scripted().await,
                Upstream::scripted().await,
            );
            let shared_3_to_1 = format!("{}  arbitration: {{flows: {{weights: {{heavy: 3}}}}}}\n", slots(1));
            let by_usage = format!("{}  arbitration: {{flows: {{discipline: usage}}}}\n", slots(1));
            let by_vtc = format!("{}  arbitration: {{flows: {{discipline: vtc}}}}\n", slots(1));
            let pools = [
                pool("bands", "bands", &[&bands], &slots(1)),
                pool("fifo", "fifo", &[&fifo], &slots(1)),
                pool("shares", "shares", &[&shares], &shared_3_to_1),
                pool("usage", "usage", &[&usage], &by_usage),
                pool("vtc", "vtc", &[&vtc], &by_vtc),
            ];
            Fixture { gateway: Gateway::start(&config("", &pools)).await, bands, fifo, shares, usage, vtc }
        })
        .await
}

#[test]
fn under_usage_what_a_tenant_used_in_one_band_counts_in_another() {
    run(async {
        let all = shared().await;
        let (gateway, server) = (&all.gateway, &all.usage);
        let ask = |tenant: &str, text: &str| ClientRequest::chat("usage", text).tenant(tenant);
        let used = gateway.spawn(ask("spread", "used").priority("critical"));
        server.next().await.answer_with(1_000, 1_000);
        assert_eq!(used.await.expect("answered").status, 200);
        gateway.stock("usage", 0).await;

        let held = gateway.spawn(ask("third", "held"));
        let call = server.next().await;
        let mut asked = Vec::new();
        for (waiting, tenant) in ["spread", "frugal"].into_iter().enumerate() {
            asked.push(gateway.spawn(ask(tenant, tenant)));
            gateway.waiting("usage", waiting as u64 + 1).await;
        }
        call.answer();
        for expected in ["frugal", "spread"] {
            let call = server.next().await;
            assert_eq!(call.text(), expected);
            call.answer();
        }
        asked.push(held);
        for answer in asked {
            assert_eq!(answer.await.expect("answered").status, 200);
        }
    });
}

#[test]
fn under_vtc_what_a_tenant_used_in_one_band_counts_in_another() {
    run(async {
        let all = shared().await;
        let (gateway, server) = (&all.gateway, &all.vtc);
        let ask = |tenant: &str, text: &str| ClientRequest::chat("vtc", text).tenant(tenant);
        let mut asked = vec![gateway.spawn(ask("third", "held"))];
        let held = server.next().await;
        let waiting =
            [ask("spread", "spread"), ask("frugal", "frugal"), ask("spread", "first").priority("critical")];
        for (count, request) in (1..).zip(waiting) {
            asked.push(gateway.spawn(request));
            gateway.waiting("vtc", count).await;
        }
        held.answer();
        for expected in ["first", "frugal", "spread"] {
            let call = server.next().await;
            assert_eq!(call.text(), expected);
            call.answer_with(1_000, 1_000);
        }
        for answer in asked {
            assert_eq!(answer.await.expect("answered").status, 200);
        }
    });
}

#[test]
fn critical_before_default_before_sheddable() {
    run(async {
        let all = shared().await;
        let (gateway, server) = (&all.gateway, &all.bands);
        let held = gateway.spawn(ClientRequest::chat("bands", "held"));
        let call = server.next().await;

        let queue = ["sheddable 1", "default 1", "low 2", "critical 1", "normal 2", "HIGH 2", "whatever 3"];
        let mut asked = Vec::new();
        for (waiting, name) in queue.iter().enumerate() {
            let priority = name.split(' ').next().unwrap_or_default();
            asked.push(gateway.spawn(ClientRequest::chat("bands", name).priority(priority)));
            gateway.waiting("bands", waiting as u64 + 1).await;
        }
        call.answer();
        let mut order = Vec::new();
        for _ in &queue {
            let call = server.next().await;
            assert_eq!(server.in_flight(), 1);
            order.push(call.text());
            call.answer();
        }
        let expected =
            ["critical 1", "HIGH 2", "default 1", "normal 2", "whatever 3", "sheddable 1", "low 2"];
        assert_eq!(order, expected);
        assert_eq!(held.await.expect("answered").outcome(), "bypassed");
        for answer in asked {
            let answer = answer.await.expect("answered");
            assert_eq!((answer.status, answer.outcome()), (200, "dispatched"), "{}", answer.text());
        }
        assert_eq!(server.peak(), 1);
    });
}

#[test]
fn first_come_first_served_in_a_flow() {
    run(async {
        let all = shared().await;
        let (gateway, server) = (&all.gateway, &all.fifo);
        let held = gateway.spawn(ClientRequest::chat("fifo", "held").tenant("a"));
        let call = server.next().await;
        let mut asked = Vec::new();
        for number in 0..12_usize {
            // Later requests are shorter: an order by size would reverse them.
            let text = format!("{number} {}", "word ".repeat(100 - number * 8));
            asked.push(gateway.spawn(ClientRequest::chat("fifo", &text).tenant("a")));
            gateway.waiting("fifo", number as u64 + 1).await;
        }
        call.answer();
        for number in 0..12 {
            let call = server.next().await;
            assert_eq!(call.text().split(' ').next(), Some(number.to_string().as_str()));
            call.answer();
        }
        assert_eq!(held.await.expect("answered").status, 200);
        for answer in asked {
            assert_eq!(answer.await.expect("answered").status, 200);
        }
    });
}

#[test]
fn shares_follow_the_weights_within_the_bound() {
    run(async {
        const EACH: usize = 40;
        // Estimate and real cost: a prompt of 32 bytes is 8 tokens; 4 output tokens weigh twice.
        const COST: f64 = 16.0;
        let all = shared().await;
        let (gateway, server) = (&all.gateway, &all.shares);
        let held = gateway.spawn(ClientRequest::chat("shares", "held").with("max_tokens", 4).tenant("heavy"));
        let call = server.next().await;
        let mut asked = Vec::new();
        for number in 0..EACH {
            for tenant in ["heavy", "light"] {
                let text = format!("{tenant} {number:0>26}");
                asked.push(
                    gateway.spawn(ClientRequest::chat("shares", &text).with("max_tokens", 4).tenant(tenant)),
                );
            }
        }
        gateway.waiting("shares", 2 * EACH as u64).await;
        call.answer();

        let (mut heavy, mut light) = (0_u32, 0_u32);
        // With one request in flight, the bound is twice one largest request of each flow.
        let bound = 2.0 * (COST / 3.0 + COST);
        for _ in 0..EACH {
            let call = server.next().await;
            if call.text().starts_with("heavy") {
                heavy += 1
            } else {
                light += 1
            }
            let gap = (COST * f64::from(heavy) / 3.0 - COST * f64::from(light)).abs();
            assert!(gap <= bound, "{heavy} : {light} is {gap} apart, {bound} are allowed");
            call.answer();
        }
        assert!((29..=31).contains(&heavy), "{heavy} : {light} isn't 3 : 1");
        for _ in 0..EACH {
            server.next().await.answer();
        }
        assert_eq!(held.await.expect("answered").status, 200);
        for answer in asked {
            assert_eq!(answer.await.expect("answered").status, 200);
        }
    });
}
