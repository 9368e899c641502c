//! The performance model of a whole gateway in front of servers that batch: learned, gated by, and hidden while unknown.
//!
//! The servers run in real time on a machine that may be busy, so the test compares the learned numbers with each other and not with
//! the true values; `just model-live` shows both.

use std::time::Duration;

use penstock_tests::gateway::config;
use penstock_tests::mock::{Hardware, Mock};
use penstock_tests::poisson_clients::{PoissonClients, RequestShape};
use penstock_tests::wait::{WAIT_MAX, until};
use penstock_tests::{Gateway, run};
use serde_json::Value;

// Iterations are long beside the pauses that a busy machine makes.
const FAST: Hardware = Hardware { alpha: 8.0, beta: 0.1, gamma: 0.001, noise: 0.02 };
const SLOW: Hardware = Hardware { alpha: 24.0, beta: 0.3, gamma: 0.003, noise: 0.02 };

/// How often the test waits for the model until it gives up.
const PATIENCE: u32 = 12;

/// A pool of one fast server and one slow one, gated by their model.
fn auto(fast: &Mock, slow: &Mock) -> String {
    let pool = format!(
        "- name: chat\n  endpoints:\n    static:\n    - {{address: '{}', variant: fast}}\n    - {{address: '{}', variant: slow, max_batch: 64}}\n  \
         stock: {{watermark_per_backend: auto, auto_initial: 5}}\n",
        fast.address(),
        slow.address()
    );
    config("", &[pool])
}

fn clients() -> PoissonClients {
    let shape = RequestShape { model: "m".into(), input: 16..=512, output: 8..=48 };
    PoissonClients::new(shape, 1)
}

fn variant(pool: &Value, name: &str) -> Value {
    let all = pool["model"].as_array().cloned().unwrap_or_default();
    all.into_iter()
        .find(|variant| variant["variant"] == name)
        .unwrap_or_else(|| panic!("no {name} in {pool}"))
}

#[test]
fn unknown_parameters_have_no_series() {
    run(async {
        let (fast, slow) = (Mock::start(FAST, 1).await, Mock::start(SLOW, 2).await);
        let gateway = Gateway::start(&auto(&fast, &slow)).await;
        let pool = gateway.pool("chat").await;
        for name in ["fast", "slow"] {
            let model = variant(&pool, name);
            assert_eq!(model["state"], "no_traffic", "{pool}");
            for key in ["alpha", "beta", "gamma", "n_star", "lambda_star", "desired_replicas"] {
                assert!(model[key].is_null(), "{key}: {pool}");
            }
            assert_eq!(model["current_replicas"], 1, "{pool}");
        }
        assert_eq!(pool["slo"]["source"], "none", "{pool}");
        assert_eq!(pool["upper"], 10, "5 requests for each of 2 servers: {pool}");
        assert_eq!(pool["endpoints"][1]["variant"], "slow", "{pool}");
        let metrics = gateway.metrics().await;
        for absent in [
            "penstock_desired_replicas",
            "penstock_model_alpha_ms",
            "penstock_capacity_requests_per_second",
            "penstock_slo_ttft_seconds",
        ] {
            assert!(!metrics.has(absent), "{absent}: {}", metrics.text());
        }
        let state = [("variant", "slow"), ("state", "no_traffic"), ("pool", "chat")];
        assert_eq!(metrics.sum("penstock_model_state", &state), 1.0);
        assert_eq!(metrics.sum("penstock_model_state", &[("variant", "slow")]), 1.0);
        let current = [("variant", "slow"), ("pool", "chat")];
        assert_eq!(metrics.sum("penstock_current_replicas", &current), 1.0);
        assert_eq!(metrics.sum("penstock_capacity_total", &current), 0.0);
    });
}

/// Traffic that alternates between two loads, so that the parameters can be identified; runs until dropped.
async fn traffic(clients: &mut PoissonClients, gateway: &Gateway) {
    loop {
        clients.arrive(gateway, 8.0, Duration::from_secs(3)).await;
        clients.arrive(gateway, 30.0, Duration::from_secs(3)).await;
    }
}

/// Waits until both variants are learned and their derived values are present; this takes several windows. A variant that was learned
/// keeps its parameters, also while newer requests leave the fit uncertain.
async fn learned(gateway: &Gateway) -> Value {
    let look = || async {
        let pool = gateway.pool("chat").await;
        let known = |name| {
            let variant = variant(&pool, name);
            variant["n_star"].is_number() && variant["desired_replicas_source"] == "model"
        };
        if known("fast") && known("slow") { Ok(pool) } else { Err(pool["model"].to_string()) }
    };
    for _ in 0..PATIENCE {
        if let Ok(pool) = tokio::time::timeout(WAIT_MAX / 2, until("both are known", look)).await {
            return pool;
        }
    }
    until("both are known", look).await
}

#[test]
fn servers_are_learned_from_their_requests_and_gated_by_the_model() {
    run(async {
        let (fast, slow) = (Mock::start(FAST, 3).await, Mock::start(SLOW, 4).await);
        let gateway = Gateway::start(&auto(&fast, &slow)).await;
        let mut clients = clients();
        let pool = tokio::select! {
            () = traffic(&mut clients, &gateway) => unreachable!("it goes on"),
            pool = learned(&gateway) => pool,
        };
        let (fast, slow) = (variant(&pool, "fast"), variant(&pool, "slow"));
        let number =
            |value: &Value, key: &str| value[key].as_f64().unwrap_or_else(|| panic!("{key}: {value}"));
        for of in [&fast, &slow] {
            assert!(number(of, "alpha") > 0.0 && number(of, "n_star") > 0.0, "{of}");
            assert!(number(of, "ttft_bias") > 0.0 && number(of, "capacity") > 0.0, "{of}");
            assert_eq!(of["current_replicas"], 1, "{of}");
        }
        assert!(number(&fast, "lambda_star") > number(&slow, "lambda_star"), "{fast} {slow}");
        assert_eq!(pool["slo"]["source"], "model", "{pool}");
        // Each endpoint has a bound of its variant, different from the initial one.
        let bounds: Vec<_> = (0..2).map(|index| pool["endpoints"][index]["bound"].as_u64()).collect();
        assert_ne!(bounds, [Some(5), Some(5)], "{pool}");

        let metrics = gateway.metrics().await;
        for name in [
            "penstock_model_alpha_ms",
            "penstock_model_beta_ms",
            "penstock_model_gamma_ms",
            "penstock_model_condition_number",
            "penstock_model_ttft_bias",
            "penstock_slo_ttft_seconds",
            "penstock_slo_itl_seconds",
            "penstock_capacity_requests_per_second",
            "penstock_concurrency_limit",
            "penstock_utilization",
        ] {
            assert!(metrics.has(name), "{name}: {}", metrics.text());
        }
        assert_eq!(metrics.sum("penstock_slo_source", &[("source", "model")]), 1.0);
        let desired = metrics.sum("penstock_desired_replicas", &[("variant", "fast"), ("pool", "chat")]);
        assert!(desired >= 1.0, "{}", metrics.text());
        assert!(metrics.sum("penstock_demand_total", &[]) > 0.0);
    });
}
