//! The metrics of a running companion: all of them are present, label values stay within their limit for any number of tenants, and
//! the alert rules and the dashboard name only existing metrics.

mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::metrics::Metrics;
use penstock_tests::{Answer, ClientRequest, Gateway, Upstream, run};

/// Every metric, its type, and its labels beside `pool`, `model` and `target_model` (`r`), `pool` (`p`), `pool` and
/// `variant` (`v`), or none (`-`).
const ALL: [(&str, &str, &str); 98] = [
    ("queue_length", "gauge", "p flow band"),
    ("queue_held", "gauge", "p band limit"),
    ("queue_length_by_model", "gauge", "r"),
    ("queue_cost_tokens", "gauge", "p flow band"),
    ("queue_latency_seconds", "histogram", "r band outcome"),
    ("requests_total", "counter", "r outcome band"),
    ("refused_after_grant_total", "counter", "r outcome band"),
    ("arrivals_total", "counter", "r door"),
    ("client_retries_total", "counter", "p retry"),
    ("bypass_total", "counter", "r"),
    ("requests_expired_total", "counter", "r"),
    ("requests_cancelled_total", "counter", "r"),
    ("queue_push_errors_total", "counter", "r error_type"),
    ("preemptions_total", "counter", "r band"),
    ("requeues_total", "counter", "r"),
    ("priority_lowered_total", "counter", "r"),
    ("clock_backwards_total", "counter", "p"),
    ("stock_level", "gauge", "p endpoint"),
    ("stock_by_model", "gauge", "r"),
    ("queue_bytes", "gauge", "p"),
    ("queue_capacity", "gauge", "p"),
    ("queue_bytes_capacity", "gauge", "p"),
    ("upper_bound", "gauge", "p"),
    ("lower_bound", "gauge", "p"),
    ("watermark", "gauge", "p"),
    ("saturation", "gauge", "p"),
    ("ready_endpoints", "gauge", "p"),
    ("lease_credit", "gauge", "p"),
    ("extra_stock", "gauge", "p"),
    ("lease_admissions_total", "counter", "p"),
    ("dequeue_attempts_total", "counter", "p"),
    ("dequeue_successes_total", "counter", "p"),
    ("active_flows", "gauge", "p"),
    ("fairness_service_tokens_total", "counter", "p flow"),
    ("fairness_gap_ratio", "gauge", "p band class model"),
    ("class_deficit_tokens", "gauge", "p class"),
    ("usage_window_tokens", "gauge", "p"),
    ("usage_running_elsewhere_tokens", "gauge", "p"),
    ("budget_used", "gauge", "p flow window"),
    ("budget_limit", "gauge", "p flow window"),
    ("budget_remaining", "gauge", "p flow window"),
    ("budget_shadow_total", "counter", "p flow over"),
    ("ttft_seconds", "histogram", "r endpoint"),
    ("itl_seconds", "histogram", "r endpoint"),
    ("request_duration_seconds", "histogram", "r endpoint"),
    ("responses_total", "counter", "r endpoint code_class"),
    ("input_tokens_total", "counter", "r"),
    ("output_tokens_total", "counter", "r"),
    ("answers_estimated_total", "counter", "p reason"),
    ("model_alpha_ms", "gauge", "v"),
    ("model_beta_ms", "gauge", "v"),
    ("model_gamma_ms", "gauge", "v"),
    ("model_nis", "gauge", "v"),
    ("model_condition_number", "gauge", "v"),
    ("model_ttft_bias", "gauge", "v"),
    ("model_state", "gauge", "v state"),
    ("slo_ttft_seconds", "gauge", "p"),
    ("slo_itl_seconds", "gauge", "p"),
    ("slo_source", "gauge", "p source"),
    ("capacity_requests_per_second", "gauge", "v"),
    ("concurrency_limit", "gauge", "v"),
    ("capacity_total", "gauge", "v"),
    ("demand_total", "gauge", "v"),
    ("utilization", "gauge", "v"),
    ("desired_replicas", "gauge", "v source"),
    ("current_replicas", "gauge", "v"),
    ("pending_replicas", "gauge", "v"),
    ("draining_stock", "gauge", "p"),
    ("orphaned_stock", "gauge", "p"),
    ("disaggregated_requests_total", "counter", "p"),
    ("misrouted_total", "counter", "p"),
    ("endpoint_pushback_total", "counter", "p endpoint status"),
    ("endpoint_silent_seconds", "gauge", "p endpoint"),
    ("endpoint_state", "gauge", "p endpoint state"),
    ("resyncs_total", "counter", "-"),
    ("unacked_events", "gauge", "-"),
    ("foreign_load", "gauge", "p endpoint"),
    ("sessions", "gauge", "-"),
    ("decision_duration_seconds", "histogram", "-"),
    ("config_reload_failures_total", "counter", "-"),
    ("build_info", "gauge", "- version"),
    ("trace_spans_dropped_total", "counter", "- reason"),
    ("discovery_up", "gauge", "p"),
    ("store_up", "gauge", "p"),
    ("store_writes_total", "counter", "p"),
    ("leader", "gauge", "p"),
    ("term", "gauge", "-"),
    ("failovers_total", "counter", "-"),
    ("lease_renew_seconds", "histogram", "-"),
    ("lease_store_up", "gauge", "-"),
    // Series that follow from the types of other metrics.
    ("queue_latency_seconds_bucket", "", ""),
    ("ttft_seconds_bucket", "", ""),
    ("ttft_seconds_sum", "", ""),
    ("ttft_seconds_count", "", ""),
    ("itl_seconds_bucket", "", ""),
    ("request_duration_seconds_bucket", "", ""),
    ("decision_duration_seconds_bucket", "", ""),
    ("lease_renew_seconds_bucket", "", ""),
];

/// Metrics without a series in a new gateway: their value is unknown, their event has not happened, or there are no `replicas`.
const WITHOUT_SERIES: [&str; 29] = [
    "budget_used",
    "budget_limit",
    "budget_remaining",
    "budget_shadow_total",
    "preemptions_total",
    "refused_after_grant_total",
    "endpoint_pushback_total",
    "class_deficit_tokens",
    "usage_window_tokens",
    "usage_running_elsewhere_tokens",
    "model_alpha_ms",
    "model_beta_ms",
    "model_gamma_ms",
    "model_nis",
    "model_condition_number",
    "slo_ttft_seconds",
    "slo_itl_seconds",
    "capacity_requests_per_second",
    "concurrency_limit",
    "desired_replicas",
    "trace_spans_dropped_total",
    "discovery_up",
    "store_up",
    "store_writes_total",
    "leader",
    "term",
    "failovers_total",
    "lease_renew_seconds",
    "lease_store_up",
];

/// Metrics that may or may not have a series yet, depending on the server's speed: tokens that arrive together have no time between
/// them, and the server's metrics may already have been scraped.
const PERHAPS: [&str; 2] = ["itl_seconds", "foreign_load"];

/// Maps each name on the page to its type.
fn described(page: &Metrics) -> BTreeMap<String, String> {
    let types = page.text().lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types
        .filter_map(|line| line.split_once(' '))
        .map(|(name, kind)| (name.to_owned(), kind.to_owned()))
        .collect()
}

fn labels(description: &str) -> BTreeSet<String> {
    let mut words = description.split(' ');
    let common: &[&str] = match words.next() {
        Some("r") => &["pool", "model", "target_model"],
        Some("p") => &["pool"],
        Some("v") => &["pool", "variant"],
        _ => &[],
    };
    common.iter().copied().chain(words).map(str::to_owned).collect()
}

async fn some_traffic(gateway: &Gateway, server: &Upstream) {
    for (tenant, model) in [("acme", "m"), ("beta", "m"), ("acme", "nobodys")] {
        let ask = ClientRequest::chat(model, "hello")
            .tenant(tenant)
            .streamed()
            .header("x-stainless-retry-count", "1");
        let sent = gateway.send(ask);
        let served = async {
            if model == "m" {
                let events = server.next().await.stream();
                events.text("a");
                events.text("b");
                events.finish(5, 7);
            }
        };
        tokio::join!(sent, served);
    }
    // The companion counts the request shortly after the client has its response.
    penstock_tests::until("all have ended", || async {
        let ended = gateway.metrics().await.sum("penstock_responses_total", &[]);
        if ended == 2.0 { Ok(()) } else { Err(format!("{ended}")) }
    })
    .await;
}

#[test]
fn every_metric_has_its_type_help_and_labels() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = Gateway::start(&config("", &[pool("p", "m", &[&server], &slots(1))])).await;
        some_traffic(&gateway, &server).await;
        let page = gateway.metrics().await;
        let kinds = described(&page);
        let all: BTreeSet<String> = ALL
            .iter()
            .filter(|(_, kind, _)| !kind.is_empty())
            .map(|(name, _, _)| format!("penstock_{name}"))
            .collect();
        let shown: BTreeSet<String> = kinds.keys().cloned().collect();
        assert_eq!(shown, all);
        for (name, kind, said) in ALL.iter().filter(|(_, kind, _)| !kind.is_empty()) {
            let full = format!("penstock_{name}");
            assert_eq!(kinds[&full], *kind, "{name}");
            assert!(page.text().contains(&format!("# HELP {full} ")), "{name} has no help");
            let sample_name = if *kind == "histogram" { format!("{full}_count") } else { full.clone() };
            let samples: Vec<_> = page.samples.iter().filter(|sample| sample.name == sample_name).collect();
            assert!(
                PERHAPS.contains(name) || samples.is_empty() == WITHOUT_SERIES.contains(name),
                "{name}: {samples:?}"
            );
            for sample in samples {
                let have: BTreeSet<String> = sample.labels.keys().cloned().collect();
                assert_eq!(have, labels(said), "{name}");
            }
        }
        // Requests without a pool, and the tokens charged to each flow.
        for (labels, expected) in [
            (&[("pool", "none"), ("outcome", "rejected_invalid")][..], 1.0),
            (&[("pool", "p"), ("outcome", "bypassed"), ("model", "m"), ("target_model", "m")], 2.0),
        ] {
            assert_eq!(page.sum("penstock_requests_total", labels), expected, "{labels:?}");
        }
        assert_eq!(page.sum("penstock_arrivals_total", &[("pool", "none")]), 1.0);
        for flow in ["acme", "beta"] {
            let served = page.sum("penstock_fairness_service_tokens_total", &[("flow", flow)]);
            assert_eq!(served, 19.0, "5 of prompt and twice 7 of output for {flow}");
        }
    });
}

const TENANTS: usize = 5_000;
const SHOWN: usize = 1_000;

#[test]
fn five_thousand_tenants_stay_within_the_label_limit() {
    run(async {
        let servers = Upstream::several(2, Duration::ZERO, 0).await;
        let servers: Vec<&Upstream> = servers.iter().collect();
        let gateway = Gateway::start(&config("", &[pool("p", "", &servers, &slots(8))])).await;
        let next = Arc::new(AtomicUsize::new(0));
        let mut clients = Vec::new();
        for _ in 0..32 {
            let (next, client, url) =
                (next.clone(), gateway.client().clone(), gateway.url("/v1/chat/completions"));
            clients.push(tokio::spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= TENANTS {
                        return;
                    }
                    let request = client.post(&url).json(&ClientRequest::chat("m", "hello").body());
                    let request = request.header("x-penstock-tenant", format!("tenant-{number}"));
                    let answer = Answer::read(request.send().await.expect("an answer")).await.expect("whole");
                    assert_eq!(answer.status, 200, "{}", answer.text());
                }
            }));
        }
        for client in clients {
            client.await.expect("no panic");
        }
        penstock_tests::until("all have ended", || async {
            let ended = gateway.metrics().await.sum("penstock_responses_total", &[]);
            if ended >= TENANTS as f64 { Ok(()) } else { Err(format!("{ended}")) }
        })
        .await;
        let started = Instant::now();
        let page = gateway.metrics().await;
        let took = started.elapsed();
        for name in
            ["penstock_queue_length", "penstock_queue_cost_tokens", "penstock_fairness_service_tokens_total"]
        {
            let samples = page.samples.iter().filter(|sample| sample.name == name);
            let flows: BTreeSet<&str> = samples.map(|sample| &*sample.labels["flow"]).collect();
            // An idle, forgotten flow has no gauge; its served tokens are kept longer.
            assert!(flows.len() <= SHOWN + 1, "{name}: {}", flows.len());
            if name == "penstock_fairness_service_tokens_total" {
                assert_eq!(flows.len(), SHOWN + 1, "{name}");
                assert!(flows.contains("other"), "{name}");
            }
        }
        let served = page.sum("penstock_fairness_service_tokens_total", &[]);
        let others = page.sum("penstock_fairness_service_tokens_total", &[("flow", "other")]);
        assert!(others > 0.0 && served > others, "{others} of {served}");
        assert_eq!(page.sum("penstock_active_flows", &[]), 0.0);
        println!(
            "{TENANTS} tenants: {} series, {} bytes, {} ms from the request to the page read",
            page.samples.len(),
            page.text().len(),
            took.as_millis(),
        );
    });
}
