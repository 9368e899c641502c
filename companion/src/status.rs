//! The document of /status.

use std::time::Duration;

use penstock_control::{PoolStatus, Status};
use serde_json::{Value, json};

use crate::metrics::{decimal, thousandths};
use crate::policy::band_name;

/// Flows shown; the rest is left out, the most loaded come first.
const FLOWS_SHOWN: usize = 1_000;

/// Everything at one moment, as JSON.
#[must_use]
pub fn document(status: &Status, uptime: Duration) -> Value {
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_s": uptime.as_secs(),
        "draining": status.draining,
        "sessions": status.sessions.iter().map(|session| json!({
            "id": session.id,
            "worker": session.node,
            "open": session.open,
            "waiting": session.waiting,
            "running": session.running,
            "last_seen_ms": u64::try_from(session.last_seen.as_millis()).unwrap_or(u64::MAX),
        })).collect::<Vec<_>>(),
        "pools": status.pools.iter().map(pool).collect::<Vec<_>>(),
    })
}

fn pool(pool: &PoolStatus) -> Value {
    let now = &pool.snapshot;
    let mut flows: Vec<_> = now.flows.iter().collect();
    flows.sort_by(|a, b| (b.waiting, b.in_flight, &a.key).cmp(&(a.waiting, a.in_flight, &b.key)));
    json!({
        "name": &*pool.name,
        "saturation": thousandths(now.saturation_milli),
        "stock": now.stock,
        "draining_stock": now.draining_stock,
        "lower": now.lower,
        "upper": now.upper,
        "watermark": decimal(now.watermark),
        "waiting": now.waiting,
        "bands": now.bands.iter().map(|band| json!({
            "name": band_name(band.band),
            "waiting": band.waiting,
        })).collect::<Vec<_>>(),
        "classes": now.classes.iter().map(|class| json!({
            "name": class.name,
            "quantum": class.quantum,
            "deficit": class.deficit,
            "waiting": class.waiting,
        })).collect::<Vec<_>>(),
        "flows": flows.into_iter().take(FLOWS_SHOWN).map(|flow| json!({
            "key": pool.shown(&flow.key),
            "band": band_name(flow.band),
            "waiting": flow.waiting,
            "in_flight": flow.in_flight,
            "served_tokens": flow.served_tokens.0,
            "weight": flow.weight,
            "finish": flow.finish,
        })).collect::<Vec<_>>(),
        "endpoints": now.endpoints.iter().map(|endpoint| json!({
            "address": pool.address(endpoint.id),
            "variant": Value::Null,
            "ready": endpoint.ready,
            "why": if endpoint.ready { "ready" } else { "its health check fails" },
            "stock": endpoint.stock,
            "bound": endpoint.bound,
            "queue": Value::Null,
            "kv": Value::Null,
        })).collect::<Vec<_>>(),
        "model": [],
        "advice": [],
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use penstock_control::PoolStatus;
    use penstock_engine::input::Band;
    use penstock_engine::policy::{Class, ClassSet, Discipline, Policy};
    use penstock_engine::snapshot::{ClassSnapshot, FlowSnapshot};
    use penstock_engine::units::Tokens;
    use penstock_engine::{Engine, Instant};

    use crate::metrics::Metrics;

    use super::*;

    /// A pool with a class that has a deficit, as its engine would show it.
    fn status() -> Status {
        let classes = vec![ClassSet {
            classes: vec![Class::new("cached", 2_048)],
            ..ClassSet::default()
        }];
        let policy = Policy {
            classes,
            ..Policy::default()
        };
        let mut snapshot = Engine::new(policy, 1, Instant::ZERO).snapshot();
        snapshot.classes = vec![ClassSnapshot {
            name: "cached".into(),
            quantum: 2_048,
            deficit: 512,
            waiting: 3,
        }];
        let used = |key: &str, weight, finish, waiting| FlowSnapshot {
            key: key.into(),
            band: Band::Default,
            waiting,
            waiting_cost: Tokens(0),
            in_flight: 0,
            served_tokens: Tokens(0),
            weight,
            finish,
        };
        snapshot.flows = vec![used("a", 2.0, 150.0, 1), used("b", 1.0, 40.0, 0)];
        Status {
            sessions: Vec::new(),
            pools: vec![PoolStatus {
                name: Arc::from("chat"),
                addresses: Vec::new(),
                public_flows: Default::default(),
                discipline: Discipline::Usage,
                snapshot,
                orphaned_stock: 0,
                orphaned_waiting: 0,
            }],
            started: true,
            draining: false,
            handed_over: false,
            envoys: 0,
            requests: 0,
        }
    }

    #[test]
    fn classes_are_shown_with_their_deficits() {
        let status = status();
        let document = document(&status, Duration::ZERO);
        let class = json!([{"name": "cached", "quantum": 2_048, "deficit": 512, "waiting": 3}]);
        assert_eq!(document["pools"][0]["classes"], class);
        assert_eq!(document["pools"][0]["watermark"], json!(0.0));
        let text = Metrics::new().expect("distinct").render(&status).expect("text");
        let text = String::from_utf8(text).expect("text");
        let line = r#"penstock_class_deficit_tokens{class="cached",pool="chat"} 512"#;
        assert!(text.contains(line), "{text}");
        for line in [
            r#"penstock_active_flows{pool="chat"} 1"#,
            r#"penstock_usage_window_tokens{pool="chat"} 340"#,
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
