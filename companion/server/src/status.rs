//! The document of /status.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_control::{PoolStatus, Status, VariantStatus};
use penstock_data_plane::policy::band_name;
use penstock_engine::Instant;
use penstock_engine::snapshot::EndpointSnapshot;
use serde_json::{Value, json};

use crate::advice::Advice;
use crate::metrics::{decimal, thousandths};
use crate::reload::InForce;

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

/// What the configuration says that no decision needs.
#[derive(Debug, Default)]
pub struct Written<'a> {
    /// Where it is from, and how its last reading went.
    about: Value,
    /// By pool and address, where there are any.
    labels: BTreeMap<(&'a str, String), &'a BTreeMap<String, String>>,
}

impl<'a> Written<'a> {
    /// Of this configuration.
    #[must_use]
    pub fn of(in_force: &'a InForce) -> Self {
        let mut labels = BTreeMap::new();
        for pool in &in_force.config.pools {
            for endpoint in pool.endpoints.iter().filter(|it| !it.labels.is_empty()) {
                labels.insert((&*pool.name, endpoint.address.to_string()), &endpoint.labels);
            }
        }
        Self {
            about: in_force.json(),
            labels,
        }
    }
}

/// Everything at one moment, `now`, as JSON.
#[must_use]
pub fn document(
    status: &Status,
    now: Instant,
    uptime: Duration,
    shown: Shown,
    written: &Written<'_>,
    advice: &Advice,
) -> Value {
    let of_pool = |at: usize| advice.pools.get(at).map_or(&[][..], Vec::as_slice);
    let pools = status.pools.iter().enumerate();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_s": uptime.as_secs(),
        "config": written.about,
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
        "pools": pools.map(|(at, it)| pool(it, now, shown, written, of_pool(at))).collect::<Vec<_>>(),
        "advice": advice.overall,
    })
}

fn pool(pool: &PoolStatus, at: Instant, shown: Shown, written: &Written<'_>, advice: &[String]) -> Value {
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
        "endpoints": now.endpoints.iter().map(|it| endpoint(pool, it, at, written)).collect::<Vec<_>>(),
        "slo": pool.model.as_ref().map(|it| json!({
            "ttft_ms": it.slo.targets.ttft_ms,
            "itl_ms": it.slo.targets.itl_ms,
            "source": it.slo.source.as_str(),
        })),
        "model": pool.model.iter().flat_map(|it| &it.variants).map(variant).collect::<Vec<_>>(),
        "advice": advice,
    })
}

/// `queue` and `kv` are the server's own words: requests that wait there, and the part of its cache in use.
fn endpoint(pool: &PoolStatus, now: &EndpointSnapshot, at: Instant, written: &Written<'_>) -> Value {
    let address = pool.address(now.id);
    let labels = written.labels.get(&(&*pool.name, address.to_owned()));
    let server = pool.server(now.id);
    let scraped = server.and_then(|it| it.scraped);
    json!({
        "address": address,
        "variant": server.map(|it| &it.variant),
        "ready": now.ready,
        "why": why(now, at),
        "stock": now.stock,
        "bound": now.bound,
        "foreign": scraped.map(|_| now.foreign),
        "queue": scraped.and_then(|it| it.waiting),
        "kv": scraped.and_then(|it| it.kv_used),
        "labels": labels.map_or_else(|| json!({}), |it| json!(it)),
    })
}

/// What isn't known is null.
fn variant(now: &VariantStatus) -> Value {
    json!({
        "variant": now.name,
        "state": now.state.as_str(),
        "alpha": now.parameters.map(|it| it.alpha_ms),
        "beta": now.parameters.map(|it| it.beta_ms),
        "gamma": now.parameters.map(|it| it.gamma_ms),
        "ttft_bias": now.ttft_bias,
        "nis": now.nis,
        "condition": now.condition,
        "n_star": now.n_star,
        "lambda_star": now.lambda_star,
        "capacity": now.capacity,
        "demand": now.demand,
        "utilization": now.utilization,
        "desired_replicas": now.desired,
        "current_replicas": now.current,
        "pending_replicas": now.pending,
    })
}

/// Why an endpoint is given requests, or isn't.
fn why(of: &EndpointSnapshot, at: Instant) -> String {
    match of.down_until {
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

    use penstock_control::{AutopilotStatus, PoolStatus, Scraped, ServerStatus};
    use penstock_engine::Engine;
    use penstock_engine::input::Band;
    use penstock_engine::input::EndpointId;
    use penstock_engine::policy::{Class, ClassSet, Discipline, Policy};
    use penstock_engine::snapshot::{ClassSnapshot, FlowSnapshot};
    use penstock_engine::units::Tokens;

    use penstock_model::learner::State;
    use penstock_model::slo::{Slo, Source};
    use penstock_model::{Parameters, Targets};

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
                retired: false,
                name: Arc::from("chat"),
                addresses: Vec::new(),
                public_flows: Default::default(),
                served: Vec::new(),
                other_served: 0,
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

    /// The document of a moment at which nothing is advised.
    fn said(status: &Status, shown: Shown, written: &Written<'_>) -> Value {
        let advice = Advice::default();
        document(status, Instant::ZERO, Duration::ZERO, shown, written, &advice)
    }

    #[test]
    fn classes_are_shown_with_their_deficits() {
        let status = status();
        let document = said(&status, Shown::Public, &Written::default());
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

    fn h100() -> VariantStatus {
        VariantStatus {
            name: "h100".into(),
            state: State::Converged,
            parameters: Some(Parameters {
                alpha_ms: 8.0,
                beta_ms: 0.05,
                gamma_ms: 0.0005,
            }),
            ttft_bias: 1.25,
            nis: Some(1.5),
            condition: Some(40.0),
            n_star: Some(29.5),
            lambda_star: Some(9.25),
            capacity: 18.5,
            demand: 37.0,
            utilization: 2.0,
            desired: Some(4),
            current: 2,
            pending: 0,
        }
    }

    /// Of a variant that nobody has asked anything.
    fn idle() -> VariantStatus {
        VariantStatus {
            name: "l4".into(),
            state: State::NoTraffic,
            parameters: None,
            ttft_bias: 1.0,
            nis: None,
            condition: None,
            n_star: None,
            lambda_star: None,
            capacity: 0.0,
            demand: 0.0,
            utilization: 0.0,
            desired: None,
            current: 1,
            pending: 1,
        }
    }

    fn with_model(slo: Slo, variants: Vec<VariantStatus>) -> Status {
        let mut status = status();
        let pool = &mut status.pools[0];
        pool.model = Some(AutopilotStatus {
            slo,
            variants,
            capacity: 18.5,
            demand: 37.0,
        });
        pool.addresses = vec!["127.0.0.1:1".into(), "127.0.0.1:2".into()];
        pool.servers = vec![
            ServerStatus {
                variant: "h100".into(),
                scraped: Some(Scraped {
                    waiting: Some(7),
                    kv_used: Some(0.25),
                    ..Scraped::default()
                }),
                foreign: 3,
            },
            ServerStatus {
                variant: "l4".into(),
                ..ServerStatus::default()
            },
        ];
        pool.snapshot.endpoints = (0..2)
            .map(|id| EndpointSnapshot {
                id: EndpointId(id),
                listed: true,
                ready: true,
                down_until: None,
                stock: 1,
                bound: 8,
                foreign: 3 * u64::from(id == 0),
            })
            .collect();
        status
    }

    const EXPLICIT: Slo = Slo {
        targets: Targets {
            ttft_ms: Some(500.0),
            itl_ms: Some(50.0),
        },
        source: Source::Explicit,
    };

    fn page(metrics: &Metrics, status: &Status) -> String {
        String::from_utf8(metrics.render(status).expect("text")).expect("text")
    }

    #[test]
    fn the_model_is_shown_variant_by_variant() {
        let status = with_model(EXPLICIT, vec![h100(), idle()]);
        let document = said(&status, Shown::Public, &Written::default());
        let pool = &document["pools"][0];
        let known = json!({
            "variant": "h100", "state": "converged", "alpha": 8.0, "beta": 0.05, "gamma": 0.0005, "ttft_bias": 1.25,
            "nis": 1.5, "condition": 40.0, "n_star": 29.5, "lambda_star": 9.25, "capacity": 18.5, "demand": 37.0,
            "utilization": 2.0, "desired_replicas": 4, "current_replicas": 2, "pending_replicas": 0,
        });
        assert_eq!(pool["model"][0], known);
        assert_eq!(pool["model"][1]["state"], "no_traffic");
        for key in ["alpha", "n_star", "lambda_star", "desired_replicas", "nis"] {
            assert!(pool["model"][1][key].is_null(), "{key}");
        }
        let slo = json!({"ttft_ms": 500.0, "itl_ms": 50.0, "source": "explicit"});
        assert_eq!(pool["slo"], slo);
        let kinds: Vec<_> = pool["endpoints"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|it| json!([it["variant"], it["queue"], it["kv"], it["foreign"]]))
            .collect();
        let expected = [json!(["h100", 7, 0.25, 3]), json!(["l4", null, null, null])];
        assert_eq!(kinds, expected);
    }

    #[test]
    fn endpoints_have_the_labels_that_they_were_given() {
        let status = with_model(EXPLICIT, vec![h100()]);
        let given = BTreeMap::from([("rack".to_owned(), "a7".to_owned())]);
        let written = Written {
            about: Value::Null,
            labels: BTreeMap::from([
                (("chat", "127.0.0.1:1".to_owned()), &given),
                (("code", "127.0.0.1:2".to_owned()), &given),
            ]),
        };
        let document = said(&status, Shown::Public, &written);
        let endpoints = document["pools"][0]["endpoints"].as_array().expect("a list");
        let labels: Vec<_> = endpoints.iter().map(|it| it["labels"].clone()).collect();
        assert_eq!(labels, [json!({"rack": "a7"}), json!({})]);
    }

    #[test]
    fn every_metric_of_the_model_has_its_name_and_what_is_not_known_has_none() {
        let metrics = Metrics::new().expect("distinct");
        let text = page(&metrics, &with_model(EXPLICIT, vec![h100(), idle()]));
        let of = r#"{pool="chat",variant="h100"}"#;
        for (name, value) in [
            ("model_alpha_ms", "8"),
            ("model_beta_ms", "0.05"),
            ("model_gamma_ms", "0.0005"),
            ("model_nis", "1.5"),
            ("model_condition_number", "40"),
            ("model_ttft_bias", "1.25"),
            ("capacity_requests_per_second", "9.25"),
            ("concurrency_limit", "29.5"),
            ("capacity_total", "18.5"),
            ("demand_total", "37"),
            ("utilization", "2"),
            ("desired_replicas", "4"),
            ("current_replicas", "2"),
            ("pending_replicas", "0"),
        ] {
            let line = format!("penstock_{name}{of} {value}");
            assert!(text.lines().any(|it| it == line), "{line} isn't in\n{text}");
        }
        for line in [
            r#"penstock_model_state{pool="chat",state="converged",variant="h100"} 1"#,
            r#"penstock_model_state{pool="chat",state="learning",variant="h100"} 0"#,
            r#"penstock_model_state{pool="chat",state="no_traffic",variant="l4"} 1"#,
            r#"penstock_slo_ttft_seconds{pool="chat"} 0.5"#,
            r#"penstock_slo_itl_seconds{pool="chat"} 0.05"#,
            r#"penstock_slo_source{pool="chat",source="explicit"} 1"#,
            r#"penstock_slo_source{pool="chat",source="model"} 0"#,
            r#"penstock_foreign_load{endpoint="127.0.0.1:1",pool="chat"} 3"#,
            r#"penstock_capacity_total{pool="chat",variant="l4"} 0"#,
            r#"penstock_current_replicas{pool="chat",variant="l4"} 1"#,
        ] {
            assert!(text.lines().any(|it| it == line), "{line} isn't in\n{text}");
        }
        for absent in [
            r#"model_alpha_ms{pool="chat",variant="l4"}"#,
            r#"desired_replicas{pool="chat",variant="l4"}"#,
            r#"foreign_load{endpoint="127.0.0.1:2""#,
        ] {
            assert!(!text.contains(absent), "{absent} is in\n{text}");
        }
    }

    #[test]
    fn a_decision_that_is_no_longer_one_leaves_the_page() {
        let metrics = Metrics::new().expect("distinct");
        assert!(page(&metrics, &with_model(EXPLICIT, vec![h100()])).contains("penstock_desired_replicas{"));
        let none = Slo {
            targets: Targets::default(),
            source: Source::None,
        };
        let text = page(&metrics, &with_model(none, vec![idle()]));
        for absent in [
            "desired_replicas{",
            "slo_ttft_seconds{",
            "model_alpha_ms{",
            "h100",
        ] {
            assert!(!text.contains(absent), "{absent} is in\n{text}");
        }
        assert!(text.contains(r#"penstock_slo_source{pool="chat",source="none"} 1"#));
    }

    #[test]
    fn private_flows_are_shown_to_who_has_the_token() {
        let mut status = status();
        status.pools[0].public_flows.insert("a".into());
        let keys = |shown| {
            let document = said(&status, shown, &Written::default());
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
            down_until: None,
            stock: 0,
            bound: 1,
            foreign: 0,
        };
        assert_eq!(why(&endpoint, at), "its health check fails");
        let down = EndpointSnapshot {
            down_until: Some(at.after(Duration::from_millis(1_500))),
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
