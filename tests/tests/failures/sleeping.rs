//! Engines that sleep, by vLLM's metrics: their health checks pass, and they answer no request until an operator wakes them up.

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::{ClientRequest, Gateway, Upstream, run, until};

/// A page of vLLM with an engine in this state.
fn page(is_awake: bool) -> String {
    let (awake, asleep) = (u8::from(is_awake), u8::from(!is_awake));
    let line = |state: &str, value: u8| {
        format!(
            "vllm:engine_sleep_state{{engine=\"0\",model_name=\"m\",sleep_state=\"{state}\"}} {value}.0\n"
        )
    };
    let states = [line("awake", awake), line("weights_offloaded", asleep), line("discard_all", 0)];
    format!("vllm:num_requests_running{{engine=\"0\",model_name=\"m\"}} 0.0\n{}", states.concat())
}

/// Waits until the status of the endpoint at `index` says that it sleeps, or is ready.
async fn until_asleep(gateway: &Gateway, index: usize, is_asleep: bool) {
    until("the state of the endpoint", || async {
        let endpoint = gateway.pool("p").await["endpoints"][index].clone();
        let why = endpoint["why"].as_str().unwrap_or_default();
        let fits = if is_asleep { why.starts_with("asleep") } else { endpoint["ready"] == true };
        if fits && endpoint["ready"] != is_asleep { Ok(()) } else { Err(endpoint.to_string()) }
    })
    .await;
}

#[test]
fn a_sleeping_engine_gets_no_request_until_it_is_awake() {
    run(async {
        let servers = [Upstream::scripted().await, Upstream::scripted().await];
        let keys = format!("{}  scrape: {{interval: 20ms, stale_after: 100ms}}\n", slots(1));
        let gateway =
            Gateway::start(&config("", &[pool("p", "m", &[&servers[0], &servers[1]], &keys)])).await;
        servers[0].set_metrics(Some(&page(false)));
        servers[1].set_metrics(Some(&page(true)));
        until_asleep(&gateway, 0, true).await;
        // Of two requests one waits, though an endpoint is idle.
        let first = gateway.spawn(ClientRequest::chat("m", "first"));
        let call = servers[1].next().await;
        let second = gateway.spawn(ClientRequest::chat("m", "second"));
        gateway.waiting("p", 1).await;
        // What runs at an engine that falls asleep is left alone, and what waits has no endpoint.
        servers[1].set_metrics(Some(&page(false)));
        until_asleep(&gateway, 1, true).await;
        call.answer();
        assert_eq!(first.await.expect("answered").status, 200);
        gateway.waiting("p", 1).await;
        // A page that can't be read changes nothing.
        servers[0].set_metrics(None);
        until("the page is too old", || async {
            let log = gateway.process.log();
            if log.contains("metrics of the endpoint can't be read") { Ok(()) } else { Err(log) }
        })
        .await;
        until_asleep(&gateway, 0, true).await;
        gateway.waiting("p", 1).await;
        servers[0].set_metrics(Some(&page(true)));
        servers[0].next().await.answer();
        assert_eq!(second.await.expect("answered").status, 200);
        until_asleep(&gateway, 0, false).await;
        assert_eq!(servers[1].total(), 1, "it still sleeps");
        let log = gateway.process.log();
        assert!(log.contains("its engine sleeps") && log.contains("is awake again"), "{log}");
    });
}
