//! Places above the bound for tenants with nothing running (`stock.extra_for_idle_flows`), through a real Envoy.

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::{Call, ClientRequest, Gateway, Upstream, run, until};
use serde_json::Value;

/// A server that takes two requests, and so many above that.
async fn start(server: &Upstream, extra: &str) -> Gateway {
    let keys = slots(2).replace("extra_for_idle_flows: 0", &format!("extra_for_idle_flows: {extra}"));
    Gateway::with_log(&config("", &[pool("chat", "m", &[server], &keys)]), "debug").await
}

fn ask(tenant: &str) -> ClientRequest {
    ClientRequest::chat("m", tenant).tenant(tenant).header("x-request-id", tenant)
}

/// Two requests of a tenant run, and two more wait. Returns those that run.
async fn flood(gateway: &Gateway, server: &Upstream) -> [Call; 2] {
    for _ in 0..4 {
        let _asked = gateway.spawn(ClientRequest::chat("m", "flood").tenant("flood"));
    }
    let running = [server.next().await, server.next().await];
    gateway.waiting("chat", 2).await;
    running
}

async fn extra_stock(gateway: &Gateway) -> f64 {
    gateway.metrics().await.sum("penstock_extra_stock", &[("pool", "chat")])
}

#[test]
fn a_tenant_with_nothing_running_need_not_wait_and_its_request_says_so() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = start(&server, "10%").await;
        let [first, _second] = flood(&gateway, &server).await;
        let small = gateway.spawn(ask("small"));
        let call = server.next().await;
        assert_eq!(call.text(), "small");
        let shown = gateway.request("small").await;
        assert_eq!((&shown["extra"], &shown["outcome"]), (&Value::Bool(true), &"bypassed".into()), "{shown}");
        assert!(shown["why"].to_string().contains("stock.extra_for_idle_flows"), "{shown}");
        assert!((extra_stock(&gateway).await - 1.0).abs() < 1e-9);
        let status = gateway.pool("chat").await;
        let endpoint = &status["endpoints"][0];
        assert_eq!(
            (&endpoint["stock"], &endpoint["extra"], &endpoint["bound"]),
            (&3.into(), &1.into(), &2.into())
        );
        // The only place is taken, whatever name comes next.
        let names = ["a", "b", "c"].map(|name| gateway.spawn(ask(name)));
        gateway.waiting("chat", 5).await;
        assert!(server.arrived().await.is_none());
        // Room within the bound is for whose turn it is.
        first.answer();
        let next = server.next().await;
        assert_eq!(extra_stock(&gateway).await.to_string(), "1");
        // Room above it is for those who have nothing running.
        call.answer();
        assert_eq!(small.await.expect("answered").status, 200);
        let above = server.next().await;
        assert!(["a", "b", "c"].contains(&&*above.text()), "{}", above.text());
        let log = gateway.process.log();
        let line = log.lines().find(|line| line.contains("request decided") && line.contains("small"));
        assert!(line.is_some_and(|line| line.contains("extra=true")), "{line:?}");
        let ended = gateway.ended_request("small").await;
        assert_eq!((&ended["state"], &ended["extra"]), (&"ended".into(), &Value::Bool(true)), "{ended}");
        drop((next, above, names));
    });
}

#[test]
fn without_such_places_it_waits_for_its_turn() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = start(&server, "0").await;
        let [first, second] = flood(&gateway, &server).await;
        let small = gateway.spawn(ask("small"));
        gateway.waiting("chat", 3).await;
        assert!(server.arrived().await.is_none());
        assert!(extra_stock(&gateway).await.abs() < 1e-9);
        for call in [first, second] {
            call.answer();
            server.next().await.answer();
        }
        until("the small tenant is served", || async {
            if small.is_finished() {
                return Ok(());
            }
            if let Some(call) = server.arrived().await {
                call.answer();
            }
            Err("it waits".to_owned())
        })
        .await;
    });
}

#[test]
fn a_place_is_free_again_when_its_client_leaves() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = start(&server, "1").await;
        let _running = flood(&gateway, &server).await;
        let leaving = gateway.spawn(ask("leaving"));
        let _left = server.next().await;
        leaving.abort();
        until("the place is free", || async {
            let extra = extra_stock(&gateway).await;
            if extra.abs() < 1e-9 { Ok(()) } else { Err(format!("{extra}")) }
        })
        .await;
        let _asked = gateway.spawn(ask("second"));
        let second = server.next().await;
        assert_eq!(second.text(), "second");
    });
}
