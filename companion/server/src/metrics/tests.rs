//! Limits on label values, and the deletion of series.

use std::sync::Arc;
use std::time::Duration;

use penstock_config::Config;
use penstock_control::{
    Completed, Control, Decided, Door, Dropped, Labels, ModelStatus, Observation, Refused, RequestNews,
    Status,
};
use penstock_election::{Role, RoleStatus};
use penstock_engine::input::Band;
use penstock_engine::{Instant, Outcome};
use penstock_wire::Code;

use super::Metrics;
use crate::base::role::Roles;
use crate::decisions::control_settings::{self, ProcessIdentity};
use crate::decisions::observe::Observer;

const ENDPOINT: &str = "127.0.0.1:8001";

fn config(pools: &[&str], more: &str) -> Config {
    let pool = |name: &&str| format!("- name: {name}\n  endpoints: {{static: ['{ENDPOINT}']}}\n");
    let pools: String = pools.iter().map(pool).collect();
    Config::parse(&format!("{more}pools:\n{pools}"), "test").expect("valid")
}

fn status(config: &Config, now: Instant) -> Status {
    let identity = ProcessIdentity::now(None, false);
    Control::new(control_settings::settings(config, &identity), now).status(now)
}

fn time(seconds: u64) -> Instant {
    Instant::ZERO.after(Duration::from_secs(seconds))
}

fn labels(pool: &str, model: &str) -> Arc<Labels> {
    Arc::new(Labels {
        tokens: None,
        pool: pool.into(),
        model: model.into(),
        class: Box::default(),
        traceparent: Box::default(),
        flow: "acme".into(),
        private: false,
        band: Band::Default,
        request_id: "r".into(),
    })
}

fn completed(labels: Arc<Labels>, endpoint: &str) -> Observation {
    Observation::Request(
        labels,
        RequestNews::Completed(Completed {
            outcome: Outcome::Bypassed,
            waited: Duration::ZERO,
            endpoint: endpoint.into(),
            status: 200,
            first_token: Some(Duration::from_millis(10)),
            ttft: Some(Duration::from_millis(10)),
            itl: None,
            duration: Duration::from_millis(20),
            prompt_tokens: Some(5),
            output_tokens: None,
            requeues: 0,
            extra: false,
        }),
    )
}

struct World {
    metrics: Arc<Metrics>,
    observer: Observer,
    config: Config,
}

impl World {
    fn new(config: Config) -> Self {
        let metrics = Arc::new(Metrics::new().expect("distinct names"));
        metrics.follow(&config);
        Self { observer: Observer::new(metrics.clone(), config.metric_flows), metrics, config }
    }

    fn observe(&mut self, seconds: u64, observation: Observation) {
        self.observer.observe(time(seconds), observation);
    }

    /// The page of a scrape.
    fn page(&mut self, seconds: u64) -> String {
        let status = status(&self.config, time(seconds));
        self.observer.retain_labels(time(seconds), &status);
        String::from_utf8(self.metrics.render(&status, &[], None).expect("text")).expect("text")
    }
}

#[track_caller]
fn has(page: &str, line: &str) {
    assert!(page.lines().any(|present| present == line), "{line} isn't in\n{page}");
}

#[test]
fn model_names_are_limited_and_idle_ones_make_room() {
    let mut world = World::new(config(&["chat"], "metrics: {flows: 2}\n"));
    for (second, model) in [(100, "a"), (200, "b"), (300, "c"), (300, "d"), (650, "a")] {
        world
            .observe(second, Observation::Request(labels("chat", model), RequestNews::Arrived(Door::Filter)));
        if ["a", "b"].contains(&model) {
            world.observe(second, completed(labels("chat", model), "10.0.0.1:80"));
        }
    }
    let page = world.page(650);
    let arrived = |model: &str, count: u32| {
        format!(
            r#"penstock_arrivals_total{{door="filter",model="{model}",pool="chat",target_model="{model}"}} {count}"#
        )
    };
    has(&page, &arrived("a", 2));
    has(&page, &arrived("b", 1));
    has(&page, &arrived("other", 2));
    // b is idle for ten minutes, and a isn't.
    world.observe(800, Observation::Request(labels("chat", "d"), RequestNews::Arrived(Door::Filter)));
    let page = world.page(800);
    has(&page, &arrived("a", 2));
    has(&page, &arrived("d", 1));
    assert!(!page.contains(r#"model="b""#), "{page}");
    assert!(!page.contains(r#"model="c""#), "{page}");
}

#[test]
fn names_that_were_never_served_leave_places_to_others_and_go_soon() {
    let mut world = World::new(config(&["chat"], "metrics: {flows: 8}\n"));
    for number in 0..20 {
        let wrong = labels("chat", &format!("wrong-{number}"));
        world.observe(100, Observation::Request(wrong, RequestNews::Arrived(Door::Filter)));
    }
    for second in [101, 102] {
        world.observe(
            second,
            Observation::Request(labels("chat", "right"), RequestNews::Arrived(Door::Filter)),
        );
        world.observe(second, completed(labels("chat", "right"), "10.0.0.1:80"));
    }
    let page = world.page(102);
    let arrived = |model: &str, count: u32| {
        format!(
            r#"penstock_arrivals_total{{door="filter",model="{model}",pool="chat",target_model="{model}"}} {count}"#
        )
    };
    has(&page, &arrived("wrong-5", 1));
    // The first one came before any was served.
    has(&page, &arrived("other", 15));
    has(&page, &arrived("right", 1));
    // A minute later a new name takes the place of one that was never served.
    world.observe(200, Observation::Request(labels("chat", "late"), RequestNews::Arrived(Door::Filter)));
    let page = world.page(200);
    has(&page, &arrived("late", 1));
    has(&page, &arrived("right", 1));
    assert!(!page.contains("wrong"), "{page}");
}

#[test]
fn gauges_and_counters_of_models_have_the_same_names() {
    let mut world = World::new(config(&["chat"], "metrics: {flows: 2}\n"));
    world.observe(1, Observation::Request(labels("chat", "m2"), RequestNews::Arrived(Door::Filter)));
    let mut status = status(&world.config, time(2));
    status.pools[0].models = ["m0", "m1", "m2", "m3"]
        .map(|name| ModelStatus { model: name.into(), waiting: 3, running: 2 })
        .into();
    world.observer.limit_models(&mut status);
    let page = world.metrics.render(&status, &[], None).expect("text");
    let page = String::from_utf8(page).expect("text");
    for (name, count) in [("queue_length_by_model", 3), ("stock_by_model", 2)] {
        // m2 was counted before, m0 takes the second place, and m1 and m3 are the others.
        for (model, models) in [("m0", 1), ("m2", 1), ("other", 2)] {
            let labels = format!(r#"model="{model}",pool="chat",target_model="{model}""#);
            has(&page, &format!("penstock_{name}{{{labels}}} {}", count * models));
        }
    }
    assert!(!page.contains("m1") && !page.contains("m3"), "{page}");
}

#[test]
fn a_pool_without_a_gate_has_no_series_of_bounds() {
    let endpoints = format!("endpoints: {{static: ['{ENDPOINT}']}}");
    let pools = format!(
        "pools: [{{name: bounded, models: [a], {endpoints}}}, {{name: unbounded, {endpoints}, stock: \
         {{watermark_per_backend: none}}}}]"
    );
    let mut world = World::new(Config::parse(&pools, "test").expect("valid"));
    let page = world.page(1);
    for name in ["upper_bound", "lower_bound", "watermark"] {
        let series = |pool: &str| page.contains(&format!("penstock_{name}{{pool=\"{pool}\"}} "));
        assert!(series("bounded") && !series("unbounded"), "{name}\n{page}");
    }
    assert!(page.contains(r#"penstock_saturation{pool="unbounded"} "#), "{page}");
}

#[test]
fn models_without_a_pool_use_at_most_half_of_the_limit() {
    let mut world = World::new(config(&["chat"], "metrics: {flows: 4}\n"));
    for model in ["a", "b", "c", "d"] {
        world.observe(1, Observation::Request(labels("none", model), RequestNews::Arrived(Door::Filter)));
    }
    world.observe(1, Observation::Request(labels("chat", "llama"), RequestNews::Arrived(Door::Filter)));
    let page = world.page(1);
    let arrived = |pool: &str, model: &str, count: u32| {
        format!(
            r#"penstock_arrivals_total{{door="filter",model="{model}",pool="{pool}",target_model="{model}"}} {count}"#
        )
    };
    has(&page, &arrived("none", "a", 1));
    has(&page, &arrived("none", "b", 1));
    has(&page, &arrived("none", "other", 2));
    has(&page, &arrived("chat", "llama", 1));
}

#[test]
fn the_series_of_a_removed_pool_are_deleted() {
    let mut world = World::new(config(&["chat", "embed"], ""));
    for pool in ["chat", "embed", "none"] {
        world.observe(1, Observation::Request(labels(pool, "m"), RequestNews::Arrived(Door::Filter)));
        world.observe(
            1,
            Observation::Request(
                labels(pool, "m"),
                RequestNews::Decided(Decided {
                    outcome: Outcome::RejectedQueueFull,
                    code: Some(Code::QueueFull),
                    waited: Duration::ZERO,
                    endpoint: "".into(),
                    was_queued: false,
                    extra: false,
                    prefill: None,
                }),
            ),
        );
        world.observe(1, completed(labels(pool, "m"), ENDPOINT));
    }
    assert!(world.page(1).contains(r#"pool="embed""#));
    world.config = config(&["chat"], "");
    let page = world.page(2);
    assert!(!page.contains(r#"pool="embed""#), "{page}");
    assert!(page.contains(r#"pool="chat""#) && page.contains(r#"pool="none""#));
    // A request of the removed pool ends.
    world.observe(3, completed(labels("embed", "m"), ENDPOINT));
    assert!(!world.page(3).contains(r#"pool="embed""#));
    // The pool is added again, and its counters start at 0.
    world.config = config(&["chat", "embed"], "");
    world.observe(4, Observation::Request(labels("embed", "m"), RequestNews::Arrived(Door::Filter)));
    let page = world.page(4);
    has(&page, r#"penstock_arrivals_total{door="filter",model="m",pool="embed",target_model="m"} 1"#);
    has(&page, r#"penstock_arrivals_total{door="filter",model="m",pool="chat",target_model="m"} 1"#);
}

#[test]
fn the_series_of_a_removed_endpoint_are_deleted_once_idle() {
    let mut world = World::new(config(&["chat"], ""));
    for endpoint in [ENDPOINT, "10.0.0.9:1"] {
        world.observe(1, completed(labels("chat", "m"), endpoint));
    }
    assert!(world.page(590).contains("10.0.0.9:1"));
    let page = world.page(611);
    assert!(!page.contains("10.0.0.9:1"), "{page}");
    assert!(page.contains(ENDPOINT), "a listed endpoint keeps its series however long it is idle");
    world.observe(700, completed(labels("chat", "m"), "10.0.0.9:1"));
    has(
        &world.page(700),
        r#"penstock_responses_total{code_class="2xx",endpoint="10.0.0.9:1",model="m",pool="chat",target_model="m"} 1"#,
    );
}

#[test]
fn unknown_outcomes_of_a_filter_are_no_labels() {
    let mut world = World::new(config(&["chat"], ""));
    let refused = Observation::Request(
        labels("none", "m"),
        RequestNews::Refused(Refused {
            node: "envoy".into(),
            outcome: "made_up".into(),
            code: Code::Internal,
            waited: None,
            was_granted: false,
            requeues: 0,
        }),
    );
    world.observe(1, refused);
    let page = world.page(1);
    assert!(!page.contains("made_up"), "{page}");
    let labels = r#"model="m",outcome="internal",pool="none",target_model="m""#;
    has(&page, &format!(r#"penstock_requests_total{{band="default",{labels}}} 1"#));
}

#[test]
fn a_second_outcome_is_counted_as_such() {
    let mut world = World::new(config(&["chat"], ""));
    let granted = |outcome| {
        Observation::Request(
            labels("chat", "m"),
            RequestNews::Decided(Decided {
                outcome,
                code: None,
                waited: Duration::ZERO,
                endpoint: ENDPOINT.into(),
                was_queued: false,
                extra: false,
                prefill: None,
            }),
        )
    };
    let dropped = |outcome, status, code| {
        Observation::Request(
            labels("chat", "m"),
            RequestNews::Dropped(Dropped {
                outcome,
                requeues: 1,
                status,
                code,
                waited: Duration::from_secs(3),
            }),
        )
    };
    let refused = Observation::Request(
        labels("chat", "m"),
        RequestNews::Refused(Refused {
            node: "envoy".into(),
            outcome: "gateway_unavailable".into(),
            code: Code::GatewayUnavailable,
            waited: None,
            was_granted: true,
            requeues: 1,
        }),
    );
    for observation in [
        granted(Outcome::Bypassed),
        dropped(Outcome::ExpiredTtl, Some(503), Some(Code::QueueTimeout)),
        granted(Outcome::Bypassed),
        // Nothing is known of its end.
        dropped(Outcome::Bypassed, None, None),
        granted(Outcome::Dispatched),
        refused,
    ] {
        world.observe(1, observation);
    }
    let page = world.page(1);
    let series = |name: &str, outcome: &str, count: u32| {
        format!(
            r#"penstock_{name}{{band="default",model="m",outcome="{outcome}",pool="chat",target_model="m"}} {count}"#
        )
    };
    for (outcome, first, second) in
        [("bypassed", 2, 0), ("dispatched", 1, 0), ("expired_ttl", 1, 1), ("gateway_unavailable", 1, 1)]
    {
        has(&page, &series("requests_total", outcome, first));
        if second > 0 {
            has(&page, &series("refused_after_grant_total", outcome, second));
        }
    }
    has(&page, r#"penstock_requests_expired_total{model="m",pool="chat",target_model="m"} 1"#);
    assert!(!page.contains(r#"error_type="gateway_unavailable",model="m""#), "it was no arrival: {page}");
}

#[test]
fn the_nexus_alias_is_exported_when_configured() {
    let mut world = World::new(config(&["chat"], ""));
    assert!(!world.page(1).contains("nexus_queue_depth"));
    let mut config = world.config.clone();
    config.metric_aliases.push(penstock_config::Alias::Nexus);
    world.metrics.follow(&config);
    has(&world.page(1), "nexus_queue_depth 0");
}

#[test]
fn metrics_of_replicas_have_series_only_with_several_companions() {
    const NAMES: [&str; 5] = [
        "penstock_leader",
        "penstock_term",
        "penstock_failovers_total",
        "penstock_lease_renew_seconds",
        "penstock_lease_store_up",
    ];
    let mut world = World::new(config(&["chat"], ""));
    let page = world.page(1);
    for name in NAMES {
        let series = page.lines().filter(|line| line.starts_with(name));
        assert_eq!(series.count(), 0, "{name}\n{page}");
    }
    let replicas = "replicas: {companions: ['127.0.0.1:9190'], lease: {file: l}}\n";
    let world = World::new(config(&["chat"], replicas));
    world.metrics.set_lease_store_up(false);
    world.metrics.record_lease_renewal(Duration::from_millis(3));
    let page = |role| {
        let role = Roles::Gateway(RoleStatus { role, term: 12, leader: None });
        let status = status(&world.config, time(1));
        let page = world.metrics.render(&status, &[], Some(&role)).expect("text");
        String::from_utf8(page).expect("text")
    };
    for (role, is_leader) in [(Role::Leader, true), (Role::Standby, false)] {
        let page = page(role);
        has(&page, &format!("penstock_leader{{pool=\"chat\"}} {}", u8::from(is_leader)));
        for line in [
            "penstock_term 12",
            "penstock_failovers_total 0",
            "penstock_lease_renew_seconds_count 1",
            "penstock_lease_store_up 0",
        ] {
            has(&page, line);
        }
        let pool_gauge = r#"penstock_ready_endpoints{pool="chat"} "#;
        assert_eq!(page.contains(pool_gauge), is_leader, "{page}");
    }
}

#[test]
fn series_exist_before_their_first_event() {
    let mut world = World::new(config(&["chat"], ""));
    let page = world.page(1);
    for line in [
        r#"penstock_bypass_total{model="",pool="chat",target_model=""} 0"#,
        r#"penstock_fairness_gap_ratio{band="default",class="",model="",pool="chat"} 0"#,
        r#"penstock_fairness_service_tokens_total{flow="other",pool="chat"} 0"#,
        "penstock_config_reload_failures_total 0",
    ] {
        has(&page, line);
    }
    world.metrics.reload_failures.inc();
    has(&world.page(1), "penstock_config_reload_failures_total 1");
}

#[test]
fn room_of_the_queue_is_shown_beside_its_length() {
    let room = |queue: &str| {
        let text =
            format!("pools:\n- name: chat\n  endpoints: {{static: ['{ENDPOINT}']}}\n  queue: {{{queue}}}\n");
        let page = World::new(Config::parse(&text, "test").expect("valid")).page(1);
        let value = |name: &str| {
            let start = format!("penstock_{name}{{pool=\"chat\"}} ");
            let line = page.lines().find_map(|line| line.strip_prefix(&start));
            line.unwrap_or_else(|| panic!("no {start} in\n{page}")).to_owned()
        };
        (value("queue_capacity"), value("queue_bytes_capacity"))
    };
    assert_eq!(room("total_capacity: 7, total_bytes: 1000"), ("7".to_owned(), "1000".to_owned()));
    for none_may_wait in ["enabled: false", "total_capacity: 0"] {
        assert_eq!(room(none_may_wait), ("0".to_owned(), "0".to_owned()));
    }
}
