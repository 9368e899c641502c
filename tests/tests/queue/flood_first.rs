//! A tenant that fills the server before another one comes, through a real Envoy: what it runs counts.

use std::collections::VecDeque;

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::{ClientRequest, Gateway, Upstream, run};

const PLACES: u32 = 8;

/// The tenants of the next `count` requests that the server gets, as the oldest ones that run are answered, after a tenant has filled the
/// server and another one has come.
async fn order(discipline: &str, count: usize) -> Vec<String> {
    let server = Upstream::scripted().await;
    let keys =
        format!("{}  arbitration: {{flows: {{discipline: {discipline}, cost: requests}}}}\n", slots(PLACES));
    let gateway = Gateway::start(&config("", &[pool("chat", "m", &[&server], &keys)])).await;
    let ask = |tenant: &str| ClientRequest::chat("m", tenant).tenant(tenant);
    let mut asked: Vec<_> = (0..3 * PLACES).map(|_| gateway.spawn(ask("flood"))).collect();
    let mut running = VecDeque::new();
    while running.len() < PLACES as usize {
        running.push_back(server.next().await);
    }
    gateway.waiting("chat", u64::from(2 * PLACES)).await;
    asked.extend((0..2 * PLACES).map(|_| gateway.spawn(ask("late"))));
    gateway.waiting("chat", u64::from(4 * PLACES)).await;
    let mut order = Vec::new();
    while order.len() < count {
        running.pop_front().expect("requests run").answer();
        let next = server.next().await;
        order.push(next.text());
        running.push_back(next);
    }
    order
}

#[test]
fn who_comes_later_is_served_until_it_has_as_much_then_they_take_turns() {
    run(async {
        for discipline in ["wfq", "round_robin"] {
            let order = order(discipline, PLACES as usize + 5).await;
            let (first, rest) = order.split_at(PLACES as usize - 1);
            assert!(first.iter().all(|tenant| tenant == "late"), "{discipline}: {order:?}");
            let late = rest.iter().filter(|tenant| **tenant == "late").count();
            assert_eq!((late, rest.len()), (3, 6), "{discipline}: {order:?}");
        }
    });
}

#[test]
fn under_fifo_the_flood_is_served_first() {
    run(async {
        let order = order("fifo", PLACES as usize).await;
        assert!(order.iter().all(|tenant| tenant == "flood"), "{order:?}");
    });
}
