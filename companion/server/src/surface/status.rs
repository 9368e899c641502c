//! The document of `/status`.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use penstock_config::{Config, Pool, Replicas, Rewrite};
use penstock_control::{ModelStatus, PoolStatus, Status, VariantStatus};
use penstock_engine::snapshot::{EndpointSnapshot, FlowSnapshot};
use penstock_engine::units::thousandths;
use penstock_engine::{HealthReason, HealthState, Instant};
use serde_json::{Value, json};

use crate::active::reload::ActiveConfig;
use crate::base::check_failures::{Check, CheckFailures};
use crate::base::role::Roles;
use crate::discovery::{State as DiscoveryState, States};
use crate::surface::advice::Advice;
use crate::surface::next_probe::next_probe;
use crate::surface::visibility::FlowVisibility;

/// Flows in the document; with more, those with the most waiting and running requests.
const FLOWS_MAX: usize = 1_000;

/// Models of a pool in the document; with more, those with the most waiting and running requests.
const MODELS_MAX: usize = 1_000;

/// The part of the configuration that the document shows.
#[derive(Debug, Default)]
pub(crate) struct ConfigReport<'a> {
    /// The document's origin, and the result of its last reload.
    summary: Value,
    /// The endpoints' labels by pool and address, where there are any.
    labels: BTreeMap<(&'a str, String), &'a BTreeMap<String, String>>,
    /// The roles of this companion among several; `None` without `replicas`.
    replicas: Option<(&'a Roles, &'a Replicas)>,
    /// Whether the discovery of each pool works.
    discoveries: Option<&'a States>,
    /// The active configuration, with the discovered endpoints, objectives and rewrites.
    config: Option<&'a Config>,
    /// Why checks of endpoints fail.
    check_failures: CheckFailures,
}

impl<'a> ConfigReport<'a> {
    #[must_use]
    pub(crate) fn new(active: &'a ActiveConfig) -> Self {
        let mut labels = BTreeMap::new();
        for pool in &active.config.pools {
            for endpoint in pool.endpoints.iter().filter(|endpoint| !endpoint.labels.is_empty()) {
                labels.insert((&*pool.name, endpoint.address.to_string()), &endpoint.labels);
            }
        }
        Self { summary: active.json(), labels, config: Some(&active.config), ..Self::default() }
    }

    fn pool(&self, name: &str) -> Option<(&'a Config, &'a Pool)> {
        let config = self.config?;
        config.pools.iter().find(|pool| pool.name == name).map(|pool| (config, pool))
    }

    /// `https` for a pool whose model servers get TLS, else `http`.
    fn scheme(&self, pool: &str) -> &'static str {
        let has_tls = self.pool(pool).is_some_and(|(_, pool)| pool.upstream.tls.is_some());
        if has_tls { "https" } else { "http" }
    }

    /// The bands of a pool's objectives.
    fn objectives(&self, pool: &str) -> BTreeMap<&'a str, &'static str> {
        let all = self.pool(pool).map(|(config, pool)| config.identity.objectives_of(pool));
        all.into_iter().flatten().map(|(name, band)| (name, band.as_str())).collect()
    }

    /// The rules that replace models, in the order in which they count.
    fn rewrites(&self, pool: &str) -> Vec<Value> {
        let rules = self.pool(pool).into_iter().flat_map(|(_, pool)| &pool.rewrite);
        let targets = |rule: &Rewrite| {
            let targets = rule.targets.iter();
            targets.map(|(name, weight)| json!({ "name": name, "weight": weight })).collect::<Vec<_>>()
        };
        rules.map(|rule| json!({ "model": rule.model, "targets": targets(rule) })).collect()
    }

    /// Adds the reasons why checks of endpoints fail.
    #[must_use]
    pub(crate) fn with_check_failures(mut self, failures: &CheckFailures) -> Self {
        self.check_failures = failures.clone();
        self
    }

    /// A sentence about the checks of an endpoint that fail, to follow its readiness.
    fn failed_checks(&self, pool: &str, address: &str, is_ready: bool) -> String {
        let why = |check| self.check_failures.why(pool, address, check);
        match (why(Check::Health), why(Check::Metrics)) {
            (Some(health), _) if !is_ready => format!(": {health}"),
            (_, Some(metrics)) => format!("; its metrics can't be read: {metrics}"),
            _ => String::new(),
        }
    }

    /// Adds the states of discovery.
    #[must_use]
    pub(crate) const fn with_discoveries(mut self, discoveries: &'a States) -> Self {
        self.discoveries = Some(discoveries);
        self
    }

    /// Adds the roles of this companion among `replicas`.
    #[must_use]
    pub(crate) fn with_roles(mut self, roles: Option<&'a Roles>, replicas: Option<&'a Replicas>) -> Self {
        self.replicas = roles.zip(replicas);
        self
    }
}

/// The document of the state at `now`.
#[must_use]
pub(crate) fn document(
    status: &Status,
    now: Instant,
    uptime: Duration,
    visibility: FlowVisibility,
    config: &ConfigReport<'_>,
    advice: &Advice,
) -> Value {
    let pool_advice = |index: usize| advice.pools.get(index).map_or(&[][..], Vec::as_slice);
    let pools = status.pools.iter().enumerate();
    let pools = pools.map(|(index, status)| pool(status, now, visibility, config, pool_advice(index)));
    let mut document = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_s": uptime.as_secs(),
        "config": config.summary,
        "draining": status.draining,
        "sessions": status.sessions.iter().map(|session| json!({
            "id": session.id,
            "pool": session.pool.as_deref(),
            "worker": session.node,
            "envoy": session.envoy,
            "open": session.open,
            "waiting": session.waiting,
            "running": session.running,
            "last_seen_ms": u64::try_from(session.last_seen.as_millis()).unwrap_or(u64::MAX),
        })).collect::<Vec<_>>(),
        "pools": pools.collect::<Vec<_>>(),
        "advice": advice.overall,
    });
    if let Some((roles, replicas)) = config.replicas {
        document["replicas"] = roles.status(replicas);
    }
    document
}

fn pool(
    status: &PoolStatus,
    now: Instant,
    visibility: FlowVisibility,
    config: &ConfigReport<'_>,
    advice: &[String],
) -> Value {
    let snapshot = &status.snapshot;
    let flows = busiest_flows(&snapshot.flows);
    let endpoints = snapshot.endpoints.iter();
    let endpoints = endpoints.map(|snapshot| endpoint(status, snapshot, now, config));
    let variants = status.model.iter().flat_map(|model| &model.variants);
    let mut document = json!({
        "name": &*status.name,
        "saturation": thousandths(snapshot.saturation_milli),
        "stock": snapshot.stock,
        "credit": snapshot.credit,
        "draining_stock": snapshot.draining_stock,
        "orphaned_stock": status.orphaned_stock,
        "lower": snapshot.lower,
        "upper": snapshot.upper,
        "watermark": snapshot.watermark.to_f64(),
        "gate": gate(status),
        "waiting": snapshot.waiting,
        "bands": snapshot.bands.iter().map(|band| json!({
            "name": band.band.as_str(),
            "waiting": band.waiting,
        })).collect::<Vec<_>>(),
        "classes": snapshot.classes.iter().map(|class| json!({
            "name": class.name,
            "quantum": class.quantum,
            "deficit": class.deficit,
            "waiting": class.waiting,
        })).collect::<Vec<_>>(),
        "models": busiest_models(&status.models).map(of_model).collect::<Vec<_>>(),
        "flows": flows.map(|flow| json!({
            "key": match visibility {
                FlowVisibility::All if !flow.key.is_empty() => &flow.key,
                FlowVisibility::All | FlowVisibility::Public => status.shown(&flow.key),
            },
            "band": flow.band.as_str(),
            "waiting": flow.waiting,
            "in_flight": flow.in_flight,
            "served_tokens": flow.served_tokens.0,
            "weight": flow.weight,
            "finish": flow.finish,
        })).collect::<Vec<_>>(),
        "endpoints": endpoints.collect::<Vec<_>>(),
        "slo": status.model.as_ref().map(|model| json!({
            "ttft_ms": model.slo.targets.ttft_ms,
            "itl_ms": model.slo.targets.itl_ms,
            "source": model.slo.source.as_str(),
        })),
        "objectives": config.objectives(&status.name),
        "rewrites": config.rewrites(&status.name),
        "pending_replicas": variants.clone().map(|variant| variant.pending).sum::<u64>(),
        "model": variants.map(variant).collect::<Vec<_>>(),
        "advice": advice,
    });
    if let Some(state) = config.discoveries.and_then(|states| states.get(&status.name)) {
        document["discovery"] = discovery(state);
    }
    let role = config.replicas.and_then(|(roles, _)| roles.pool_status(&status.name));
    if let Some(role) = role {
        document["replicas"] = role;
    }
    document
}

/// What sets the bounds of the servers, and why.
fn gate(status: &PoolStatus) -> Value {
    match status.model.as_ref().and_then(|model| model.gate.as_ref()) {
        Some(gate) => json!({"source": gate.source.as_str(), "reason": gate.reason}),
        None => json!({"source": "fixed", "reason": "stock sets the bounds"}),
    }
}

fn of_model(status: &ModelStatus) -> Value {
    json!({
        "model": &*status.model.requested,
        "target_model": &*status.model.target,
        "waiting": status.waiting,
        "running": status.running,
    })
}

/// `since` is in UTC, as RFC 3339 has it.
fn discovery(state: DiscoveryState) -> Value {
    json!({
        "up": state.is_up,
        "since": humantime::format_rfc3339_seconds(state.since).to_string(),
        "reason": (!state.reason.is_empty()).then_some(state.reason),
        "unread": state.unread,
    })
}

/// The flows with the most waiting and running requests, in this order.
fn busiest_flows(flows: &[FlowSnapshot]) -> impl Iterator<Item = &FlowSnapshot> {
    let mut flows: Vec<_> = flows.iter().collect();
    flows.sort_by(|a, b| (b.waiting, b.in_flight, &a.key).cmp(&(a.waiting, a.in_flight, &b.key)));
    flows.into_iter().take(FLOWS_MAX)
}

/// The models with the most waiting and running requests, in this order.
fn busiest_models(models: &[ModelStatus]) -> impl Iterator<Item = &ModelStatus> {
    let mut models: Vec<_> = models.iter().collect();
    // Stable: models with the same counts stay in the order of their names.
    models.sort_by_key(|model| std::cmp::Reverse((model.waiting, model.running)));
    models.into_iter().take(MODELS_MAX)
}

/// `queue` and `kv` are from the server's own metrics: requests in its queue, and the used part of its cache.
fn endpoint(
    pool: &PoolStatus,
    snapshot: &EndpointSnapshot,
    now: Instant,
    config: &ConfigReport<'_>,
) -> Value {
    let address = pool.address(snapshot.id);
    let labels = config.labels.get(&(&*pool.name, address.to_owned()));
    let server = pool.server(snapshot.id);
    let scraped = server.and_then(|server| server.scraped);
    json!({
        "address": address,
        "variant": server.map(|server| &server.variant),
        "role": server.map(|server| server.role.as_str()),
        "ready": snapshot.ready,
        "scheme": config.scheme(&pool.name),
        "state": snapshot.state.as_str(),
        "reason": reason(snapshot, server.is_some_and(|server| server.is_asleep)),
        "since": since(snapshot.since, now),
        "why": readiness(snapshot, server.is_some_and(|server| server.is_asleep), now)
            + &config.failed_checks(&pool.name, address, snapshot.ready),
        "stock": snapshot.stock,
        "abandoned": snapshot.abandoned,
        "extra": snapshot.extra,
        "credit": snapshot.credit,
        "bound": snapshot.bound,
        "pushback": snapshot.pushback,
        "foreign": scraped.map(|_| snapshot.foreign),
        "queue": scraped.and_then(|scraped| scraped.waiting),
        "kv": scraped.and_then(|scraped| scraped.kv_used),
        "labels": labels.map_or_else(|| json!({}), |labels| json!(labels)),
    })
}

/// Unknown values are null.
fn variant(variant: &VariantStatus) -> Value {
    json!({
        "variant": variant.name,
        "state": variant.state.as_str(),
        "alpha": variant.parameters.map(|parameters| parameters.alpha_ms),
        "beta": variant.parameters.map(|parameters| parameters.beta_ms),
        "gamma": variant.parameters.map(|parameters| parameters.gamma_ms),
        "ttft_bias": variant.ttft_bias,
        "nis": variant.nis,
        "condition": variant.condition,
        "n_star": variant.n_star,
        "lambda_star": variant.lambda_star,
        "capacity": variant.capacity,
        "demand": variant.demand,
        "utilization": variant.utilization,
        "desired_replicas": variant.desired.map(|desired| desired.replicas),
        "desired_replicas_source": variant.desired.map(|desired| desired.source.as_str()),
        "current_replicas": variant.current,
        "pending_replicas": variant.pending,
    })
}

/// A time in UTC, as RFC 3339 has it.
fn since(instant: Instant, now: Instant) -> Option<String> {
    let time = SystemTime::now().checked_sub(now.since(instant))?;
    Some(humantime::format_rfc3339_seconds(time).to_string())
}

/// Why an endpoint is in its state.
fn reason(endpoint: &EndpointSnapshot, is_asleep: bool) -> String {
    match endpoint.reason {
        HealthReason::HealthCheck if is_asleep => "its engine sleeps".into(),
        reason => reason.to_string(),
    }
}

/// Why an endpoint gets requests, or doesn't.
fn readiness(endpoint: &EndpointSnapshot, is_asleep: bool, now: Instant) -> String {
    match endpoint.down_until {
        _ if endpoint.ready => match endpoint.pushback {
            None if endpoint.state == HealthState::Probing => {
                format!("ready for one request at a time, which probes it: {}", endpoint.reason)
            }
            None => "ready".into(),
            Some(bound) => format!("ready; takes {bound} requests at a time, because it answered 429 or 503"),
        },
        _ if !endpoint.listed => "no longer listed; running requests may finish".into(),
        Some(until) => {
            format!("{}: {}; {}", endpoint.state.as_str(), endpoint.reason, next_probe(until, now))
        }
        None if is_asleep => "asleep: its engine sleeps and gets no request until it is woken up".into(),
        None => "its health check fails".into(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use penstock_config::Discovered;
    use penstock_control::{AutopilotStatus, Desired, DesiredSource, PoolStatus, Scraped, ServerStatus};
    use penstock_engine::Engine;
    use penstock_engine::input::{Band, EndpointId, Role};
    use penstock_engine::policy::{Class, ClassSet, Discipline, Policy};
    use penstock_engine::snapshot::ClassSnapshot;
    use penstock_engine::units::Tokens;
    use penstock_model::learner::State;
    use penstock_model::slo::{Slo, Source};
    use penstock_model::{Parameters, Targets};

    use super::*;
    use crate::metrics::Metrics;

    /// A pool with a class that has a deficit.
    fn status() -> Status {
        let classes = vec![ClassSet { classes: vec![Class::new("cached", 2_048)], ..ClassSet::default() }];
        let policy = Policy { classes, ..Policy::default() };
        let mut snapshot = Engine::new(policy, 1, Instant::ZERO).snapshot();
        snapshot.classes =
            vec![ClassSnapshot { name: "cached".into(), quantum: 2_048, deficit: 512, waiting: 3 }];
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
        snapshot.usage = Tokens(340);
        snapshot.flows = vec![used("a", 2.0, 150.0, 1), used("b", 1.0, 40.0, 0)];
        Status {
            sessions: Vec::new(),
            pools: vec![PoolStatus {
                retired: false,
                name: Arc::from("chat"),
                addresses: Vec::new(),
                public_flows: Default::default(),
                served: Vec::new(),
                models: Vec::new(),
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

    /// The document without advice.
    fn document_of(status: &Status, visibility: FlowVisibility, config: &ConfigReport<'_>) -> Value {
        let advice = Advice::default();
        document(status, Instant::ZERO, Duration::ZERO, visibility, config, &advice)
    }

    #[test]
    fn classes_are_shown_with_their_deficits() {
        let status = status();
        let document = document_of(&status, FlowVisibility::Public, &ConfigReport::default());
        let class = json!([{"name": "cached", "quantum": 2_048, "deficit": 512, "waiting": 3}]);
        assert_eq!(document["pools"][0]["classes"], class);
        assert_eq!(document["pools"][0]["watermark"], json!(0.0));
        let text = Metrics::new().expect("distinct").render(&status, &[], None).expect("text");
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
            parameters: Some(Parameters { alpha_ms: 8.0, beta_ms: 0.05, gamma_ms: 0.0005 }),
            ttft_bias: 1.25,
            nis: Some(1.5),
            condition: Some(40.0),
            n_star: Some(29.5),
            lambda_star: Some(9.25),
            capacity: 18.5,
            demand: 37.0,
            utilization: 2.0,
            desired: Some(Desired { replicas: 4, source: DesiredSource::Model }),
            current: 2,
            pending: 0,
        }
    }

    /// A variant without traffic.
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
        pool.model = Some(AutopilotStatus { gate: None, slo, variants, capacity: 18.5, demand: 37.0 });
        pool.addresses = vec!["127.0.0.1:1".into(), "127.0.0.1:2".into()];
        pool.servers = vec![
            ServerStatus {
                variant: "h100".into(),
                scraped: Some(Scraped { waiting: Some(7), kv_used: Some(0.25), ..Scraped::default() }),
                foreign: 3,
                is_asleep: false,
                oldest_running: None,
                role: Role::Decode,
            },
            ServerStatus { variant: "l4".into(), ..ServerStatus::default() },
        ];
        pool.snapshot.endpoints = (0..2)
            .map(|id| EndpointSnapshot {
                id: EndpointId(id),
                listed: true,
                ready: true,
                down_until: None,
                state: HealthState::Healthy,
                reason: HealthReason::Serves,
                since: Instant::ZERO,
                stock: 1,
                credit: 0,
                bound: 8,
                abandoned: 0,
                extra: 0,
                foreign: 3 * u64::from(id == 0),
                pushback: None,
            })
            .collect();
        status
    }

    const EXPLICIT: Slo =
        Slo { targets: Targets { ttft_ms: Some(500.0), itl_ms: Some(50.0) }, source: Source::Explicit };

    fn page(metrics: &Metrics, status: &Status) -> String {
        String::from_utf8(metrics.render(status, &[], None).expect("text")).expect("text")
    }

    #[test]
    fn the_model_is_shown_by_variant() {
        let status = with_model(EXPLICIT, vec![h100(), idle()]);
        let document = document_of(&status, FlowVisibility::Public, &ConfigReport::default());
        let pool = &document["pools"][0];
        let known = json!({
            "variant": "h100", "state": "converged", "alpha": 8.0, "beta": 0.05, "gamma": 0.0005, "ttft_bias": 1.25,
            "nis": 1.5, "condition": 40.0, "n_star": 29.5, "lambda_star": 9.25, "capacity": 18.5, "demand": 37.0,
            "utilization": 2.0, "desired_replicas": 4, "desired_replicas_source": "model", "current_replicas": 2, "pending_replicas": 0,
        });
        assert_eq!(pool["model"][0], known);
        assert_eq!(pool["model"][1]["state"], "no_traffic");
        assert_eq!(pool["pending_replicas"], 1, "of the variant that is idle");
        for key in ["alpha", "n_star", "lambda_star", "desired_replicas", "desired_replicas_source", "nis"] {
            assert!(pool["model"][1][key].is_null(), "{key}");
        }
        let slo = json!({"ttft_ms": 500.0, "itl_ms": 50.0, "source": "explicit"});
        assert_eq!(pool["slo"], slo);
        let kinds: Vec<_> = pool["endpoints"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|endpoint| {
                json!([endpoint["variant"], endpoint["queue"], endpoint["kv"], endpoint["foreign"]])
            })
            .collect();
        let expected = [json!(["h100", 7, 0.25, 3]), json!(["l4", null, null, null])];
        assert_eq!(kinds, expected);
    }

    #[test]
    fn endpoints_show_their_configured_labels() {
        let status = with_model(EXPLICIT, vec![h100()]);
        let given = BTreeMap::from([("rack".to_owned(), "a7".to_owned())]);
        let config = ConfigReport {
            labels: BTreeMap::from([
                (("chat", "127.0.0.1:1".to_owned()), &given),
                (("code", "127.0.0.1:2".to_owned()), &given),
            ]),
            ..ConfigReport::default()
        };
        let document = document_of(&status, FlowVisibility::Public, &config);
        let endpoints = document["pools"][0]["endpoints"].as_array().expect("a list");
        let labels: Vec<_> = endpoints.iter().map(|endpoint| endpoint["labels"].clone()).collect();
        assert_eq!(labels, [json!({"rack": "a7"}), json!({})]);
    }

    #[test]
    fn a_pool_shows_its_objectives_and_rewrites_with_those_that_were_discovered() {
        let text = "identity: {objectives: {gold: critical, both: sheddable}}\n\
                    pools: [{name: chat, endpoints: {file: f}, rewrite: [{model: chat, targets: [{name: a, weight: 2}]}]}]";
        let mut active = Config::parse(text, "f.yaml").expect("valid");
        let objectives = [("both", Band::Critical), ("night", Band::Sheddable)];
        active.pools[0].add_discovered(&Discovered {
            objectives: objectives.map(|(name, band)| (name.to_owned(), band)).into(),
            rewrites: vec![Rewrite { model: "code".into(), targets: vec![("b".into(), 1.0)] }],
            ..Discovered::default()
        });
        let config = ConfigReport { config: Some(&active), ..ConfigReport::default() };
        let document = document_of(&status(), FlowVisibility::Public, &config);
        let pool = &document["pools"][0];
        let bands = json!({"both": "sheddable", "gold": "critical", "night": "sheddable"});
        assert_eq!(pool["objectives"], bands, "the document comes before what was discovered");
        let rule = |model: &str, target: &str, weight: f64| json!({"model": model, "targets": [{"name": target, "weight": weight}]});
        assert_eq!(pool["rewrites"], json!([rule("chat", "a", 2.0), rule("code", "b", 1.0)]));
    }

    #[test]
    fn model_metrics_have_fixed_names_and_unknown_values_no_series() {
        let metrics = Metrics::new().expect("distinct");
        let text = page(&metrics, &with_model(EXPLICIT, vec![h100(), idle()]));
        let labels = r#"{pool="chat",variant="h100"}"#;
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
            ("current_replicas", "2"),
            ("pending_replicas", "0"),
        ] {
            let line = format!("penstock_{name}{labels} {value}");
            assert!(text.lines().any(|present| present == line), "{line} isn't in\n{text}");
        }
        for line in [
            r#"penstock_model_state{pool="chat",state="converged",variant="h100"} 1"#,
            r#"penstock_model_state{pool="chat",state="learning",variant="h100"} 0"#,
            r#"penstock_model_state{pool="chat",state="no_traffic",variant="l4"} 1"#,
            r#"penstock_desired_replicas{pool="chat",source="model",variant="h100"} 4"#,
            r#"penstock_slo_ttft_seconds{pool="chat"} 0.5"#,
            r#"penstock_slo_itl_seconds{pool="chat"} 0.05"#,
            r#"penstock_slo_source{pool="chat",source="explicit"} 1"#,
            r#"penstock_slo_source{pool="chat",source="model"} 0"#,
            r#"penstock_foreign_load{endpoint="127.0.0.1:1",pool="chat"} 3"#,
            r#"penstock_capacity_total{pool="chat",variant="l4"} 0"#,
            r#"penstock_current_replicas{pool="chat",variant="l4"} 1"#,
        ] {
            assert!(text.lines().any(|present| present == line), "{line} isn't in\n{text}");
        }
        for absent in [
            r#"model_alpha_ms{pool="chat",variant="l4"}"#,
            r#"desired_replicas{pool="chat",source="model",variant="l4"}"#,
            r#"foreign_load{endpoint="127.0.0.1:2""#,
        ] {
            assert!(!text.contains(absent), "{absent} is in\n{text}");
        }
    }

    #[test]
    fn series_without_a_value_leave_the_page() {
        let metrics = Metrics::new().expect("distinct");
        assert!(page(&metrics, &with_model(EXPLICIT, vec![h100()])).contains("penstock_desired_replicas{"));
        let none = Slo { targets: Targets::default(), source: Source::None };
        let text = page(&metrics, &with_model(none, vec![idle()]));
        for absent in ["desired_replicas{", "slo_ttft_seconds{", "model_alpha_ms{", "h100"] {
            assert!(!text.contains(absent), "{absent} is in\n{text}");
        }
        assert!(text.contains(r#"penstock_slo_source{pool="chat",source="none"} 1"#));
    }

    #[test]
    fn private_flows_are_visible_only_with_the_token() {
        let mut status = status();
        status.pools[0].public_flows.insert("a".into());
        let keys = |visibility| {
            let document = document_of(&status, visibility, &ConfigReport::default());
            let flows = document["pools"][0]["flows"].as_array().cloned().expect("a list");
            flows.iter().map(|flow| flow["key"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(keys(FlowVisibility::Public), ["a", "other"]);
        assert_eq!(keys(FlowVisibility::All), ["a", "b"]);
    }

    #[test]
    fn an_endpoint_shows_why_it_gets_no_requests() {
        let now = Instant::ZERO.after(Duration::from_secs(10));
        let endpoint = EndpointSnapshot {
            id: EndpointId(0),
            listed: true,
            ready: false,
            down_until: None,
            state: HealthState::Down,
            reason: HealthReason::HealthCheck,
            since: Instant::ZERO,
            stock: 0,
            credit: 0,
            bound: 1,
            abandoned: 0,
            extra: 0,
            foreign: 0,
            pushback: None,
        };
        assert_eq!(readiness(&endpoint, false, now), "its health check fails");
        assert!(readiness(&endpoint, true, now).starts_with("asleep"));
        let down = EndpointSnapshot {
            down_until: Some(now.after(Duration::from_millis(1_500))),
            reason: HealthReason::Connections,
            ..endpoint
        };
        assert_eq!(readiness(&down, false, now), "down: requests couldn't be sent there; next probe in 1.5s");
        let back = EndpointSnapshot { ready: true, state: HealthState::Healthy, ..down };
        assert_eq!(readiness(&back, false, now), "ready");
        let pushed_back = EndpointSnapshot { pushback: Some(3), ..back };
        assert_eq!(
            readiness(&pushed_back, false, now),
            "ready; takes 3 requests at a time, because it answered 429 or 503"
        );
        let gone = EndpointSnapshot { listed: false, ..endpoint };
        assert!(readiness(&gone, false, now).contains("no longer listed"));
    }
}
