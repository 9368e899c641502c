//! The document of /status.

use std::time::Duration;

use penstock_control::{PoolStatus, Status};
use penstock_engine::Instant;
use penstock_engine::snapshot::EndpointSnapshot;
use serde_json::{Value, json};

use crate::metrics::{decimal, thousandths};
use crate::policy::band_name;

/// Flows shown; the rest is left out, the most loaded come first.
const FLOWS_SHOWN: usize = 1_000;

/// What of the flows' identities is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Those that came in a header, up to the limit.
    Public,
    /// All: whoever asks has the admin token.
    Everything,
}

/// Everything at one moment, `now`, as JSON.
#[must_use]
pub fn document(status: &Status, now: Instant, uptime: Duration, shown: Shown) -> Value {
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_s": uptime.as_secs(),
        "draining": status.draining,
        "sessions": status.sessions.iter().map(|session| json!({
            "id": session.id,
            "worker": session.node,
            "envoy": session.envoy,
            "open": session.open,
            "waiting": session.waiting,
            "running": session.running,
            "last_seen_ms": u64::try_from(session.last_seen.as_millis()).unwrap_or(u64::MAX),
        })).collect::<Vec<_>>(),
        "pools": status.pools.iter().map(|it| pool(it, now, shown)).collect::<Vec<_>>(),
    })
}

fn pool(pool: &PoolStatus, at: Instant, shown: Shown) -> Value {
    let now = &pool.snapshot;
    let mut flows: Vec<_> = now.flows.iter().collect();
    flows.sort_by(|a, b| (b.waiting, b.in_flight, &a.key).cmp(&(a.waiting, a.in_flight, &b.key)));
    json!({
        "name": &*pool.name,
        "saturation": thousandths(now.saturation_milli),
        "stock": now.stock,
        "draining_stock": now.draining_stock,
        "orphaned_stock": pool.orphaned_stock,
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
            "key": match shown {
                Shown::Everything if !flow.key.is_empty() => &flow.key,
                Shown::Everything | Shown::Public => pool.shown(&flow.key),
            },
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
            "why": why(endpoint, at),
            "stock": endpoint.stock,
            "bound": endpoint.bound,
            "queue": Value::Null,
            "kv": Value::Null,
        })).collect::<Vec<_>>(),
        "model": [],
        "advice": [],
    })
}

/// Why an endpoint is given requests, or isn't.
fn why(of: &EndpointSnapshot, at: Instant) -> String {
    match of.down {
        _ if of.ready => "ready".into(),
        _ if !of.listed => "it is no longer listed; what runs there may finish".into(),
        Some(until) => format!(
            "requests failed there; it is tried again in {:.1}s",
            until.since(at).as_secs_f64()
        ),
        None => "its health check fails".into(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use penstock_control::PoolStatus;
    use penstock_engine::Engine;
    use penstock_engine::input::Band;
    use penstock_engine::input::EndpointId;
    use penstock_engine::policy::{Class, ClassSet, Discipline, Policy};
    use penstock_engine::snapshot::{ClassSnapshot, FlowSnapshot};
    use penstock_engine::units::Tokens;

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
                model: None,
                servers: Vec::new(),
                orphaned_stock: 2,
                orphaned_waiting: 0,
            }],
            started: true,
            gathered: true,
            draining: false,
            handed_over: false,
            envoys: 0,
            requests: 0,
        }
    }

    #[test]
    fn classes_are_shown_with_their_deficits() {
        let status = status();
        let document = document(&status, Instant::ZERO, Duration::ZERO, Shown::Public);
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
            r#"penstock_orphaned_stock{pool="chat"} 2"#,
            r#"penstock_draining_stock{pool="chat"} 0"#,
            r#"penstock_unacked_events 0"#,
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn private_flows_are_shown_to_who_has_the_token() {
        let mut status = status();
        status.pools[0].public_flows.insert("a".into());
        let keys = |shown| {
            let document = document(&status, Instant::ZERO, Duration::ZERO, shown);
            let flows = document["pools"][0]["flows"].as_array().cloned().expect("a list");
            flows.iter().map(|it| it["key"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(keys(Shown::Public), ["a", "other"]);
        assert_eq!(keys(Shown::Everything), ["a", "b"]);
    }

    #[test]
    fn an_endpoint_says_why_it_is_left_alone() {
        let at = Instant::ZERO.after(Duration::from_secs(10));
        let endpoint = EndpointSnapshot {
            id: EndpointId(0),
            listed: true,
            ready: false,
            down: None,
            stock: 0,
            bound: 1,
            foreign: 0,
        };
        assert_eq!(why(&endpoint, at), "its health check fails");
        let down = EndpointSnapshot {
            down: Some(at.after(Duration::from_millis(1_500))),
            ..endpoint
        };
        assert_eq!(why(&down, at), "requests failed there; it is tried again in 1.5s");
        let back = EndpointSnapshot { ready: true, ..down };
        assert_eq!(why(&back, at), "ready");
        let gone = EndpointSnapshot {
            listed: false,
            ..endpoint
        };
        assert!(why(&gone, at).contains("no longer listed"));
    }
}
