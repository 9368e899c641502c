//! What a whole gateway learns of model servers that batch, and what it shows of it: nothing before anything is known.
//!
//! The servers run in real time on a machine that may be busy, so the numbers learned are compared with one another
//! and not with the truth; `just model-live` shows them beside it.

use std::time::Duration;

use penstock_tests::gateway::config;
use penstock_tests::mock::{Hardware, Mock};
use penstock_tests::visitors::{Habit, Visitors};
use penstock_tests::wait::{PATIENCE, until};
use penstock_tests::{Gateway, run};
use serde_json::Value;

const FAST: Hardware = Hardware {
    alpha: 4.0,
    beta: 0.05,
    gamma: 0.0005,
    noise: 0.02,
};
const SLOW: Hardware = Hardware {
    alpha: 12.0,
    beta: 0.15,
    gamma: 0.0015,
    noise: 0.02,
};

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

fn visitors() -> Visitors {
    let habit = Habit {
        model: "m".into(),
        input: 16..=512,
        output: 8..=48,
    };
    Visitors::new(habit, 1)
}

fn variant(pool: &Value, name: &str) -> Value {
    let all = pool["model"].as_array().cloned().unwrap_or_default();
    all.into_iter()
        .find(|it| it["variant"] == name)
        .unwrap_or_else(|| panic!("no {name} in {pool}"))
}

#[test]
fn nothing_is_said_of_what_is_not_known() {
    run(async {
        let (fast, slow) = (Mock::start(FAST, 1).await, Mock::start(SLOW, 2).await);
        let gateway = Gateway::start(&auto(&fast, &slow)).await;
        let pool = gateway.pool("chat").await;
        for name in ["fast", "slow"] {
            let model = variant(&pool, name);
            assert_eq!(model["state"], "no_traffic", "{pool}");
            for key in [
                "alpha",
                "beta",
                "gamma",
                "n_star",
                "lambda_star",
                "desired_replicas",
            ] {
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

/// Traffic of two loads in turn, so that there is something to learn, for as long as somebody waits.
async fn traffic(visitors: &mut Visitors, gateway: &Gateway) {
    loop {
        visitors.come(gateway, 15.0, Duration::from_secs(2)).await;
        visitors.come(gateway, 60.0, Duration::from_secs(2)).await;
    }
}

/// Both variants are known, and what follows from that too; waits as long as several windows take.
async fn converged(gateway: &Gateway) -> Value {
    let look = || async {
        let pool = gateway.pool("chat").await;
        let known = |name| {
            let variant = variant(&pool, name);
            variant["state"] == "converged" && variant["desired_replicas"].is_u64()
        };
        if known("fast") && known("slow") {
            Ok(pool)
        } else {
            Err(pool["model"].to_string())
        }
    };
    for _ in 0..3 {
        if let Ok(pool) = tokio::time::timeout(PATIENCE / 2, until("both are known", look)).await {
            return pool;
        }
    }
    until("both are known", look).await
}

#[test]
fn servers_are_learned_from_what_they_serve_and_gated_by_it() {
    run(async {
        let (fast, slow) = (Mock::start(FAST, 3).await, Mock::start(SLOW, 4).await);
        let gateway = Gateway::start(&auto(&fast, &slow)).await;
        let mut visitors = visitors();
        let pool = tokio::select! {
            () = traffic(&mut visitors, &gateway) => unreachable!("it goes on"),
            pool = converged(&gateway) => pool,
        };
        let (fast, slow) = (variant(&pool, "fast"), variant(&pool, "slow"));
        let number = |of: &Value, key: &str| of[key].as_f64().unwrap_or_else(|| panic!("{key}: {of}"));
        for of in [&fast, &slow] {
            assert!(number(of, "alpha") > 0.0 && number(of, "n_star") > 0.0, "{of}");
            assert!(
                number(of, "ttft_bias") > 0.0 && number(of, "capacity") > 0.0,
                "{of}"
            );
            assert_eq!(of["current_replicas"], 1, "{of}");
        }
        assert!(
            number(&fast, "lambda_star") > number(&slow, "lambda_star"),
            "{fast} {slow}"
        );
        assert_eq!(pool["slo"]["source"], "model", "{pool}");
        // Each at its own limit, which isn't the count that both began with.
        let bounds: Vec<_> = (0..2).map(|at| pool["endpoints"][at]["bound"].as_u64()).collect();
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
        let desired = metrics.sum(
            "penstock_desired_replicas",
            &[("variant", "fast"), ("pool", "chat")],
        );
        assert!(desired >= 1.0, "{}", metrics.text());
        assert!(metrics.sum("penstock_demand_total", &[]) > 0.0);
    });
}
