//! Limits on names, and what gives up its series.

use std::sync::Arc;
use std::time::Duration;

use penstock_config::Config;
use penstock_control::{Control, Labels, Observation, Status};
use penstock_engine::input::Band;
use penstock_engine::{Instant, Outcome};

use super::Metrics;
use crate::observe::Observer;

const ENDPOINT: &str = "127.0.0.1:8001";

fn config(pools: &[&str], more: &str) -> Config {
    let pool = |name: &&str| format!("- name: {name}\n  endpoints: {{static: ['{ENDPOINT}']}}\n");
    let pools: String = pools.iter().map(pool).collect();
    Config::parse(&format!("{more}pools:\n{pools}"), "test").expect("valid")
}

fn status(config: &Config, now: Instant) -> Status {
    Control::new(
        crate::serve::settings(config, &crate::serve::Birth::now(None)),
        now,
    )
    .status(now)
}

fn at(seconds: u64) -> Instant {
    Instant::ZERO.after(Duration::from_secs(seconds))
}

fn labels(pool: &str, model: &str) -> Arc<Labels> {
    Arc::new(Labels {
        pool: pool.into(),
        model: model.into(),
        target_model: model.into(),
        class: Box::default(),
        traceparent: Box::default(),
        flow: "acme".into(),
        private: false,
        band: Band::Default,
        request_id: "r".into(),
    })
}

fn completed(labels: Arc<Labels>, endpoint: &str) -> Observation {
    Observation::Completed {
        labels,
        outcome: Outcome::Bypassed,
        waited: Duration::ZERO,
        endpoint: endpoint.into(),
        status: 200,
        ttft: Some(Duration::from_millis(10)),
        itl: None,
        duration: Duration::from_millis(20),
        prompt_tokens: Some(5),
        output_tokens: None,
    }
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
        Self {
            observer: Observer::new(metrics.clone(), config.metric_flows),
            metrics,
            config,
        }
    }

    fn sees(&mut self, seconds: u64, observation: Observation) {
        self.observer.observe(at(seconds), observation);
    }

    /// What a scrape finds.
    fn page(&mut self, seconds: u64) -> String {
        let status = status(&self.config, at(seconds));
        self.observer.tidy(at(seconds), &status);
        String::from_utf8(self.metrics.render(&status).expect("text")).expect("text")
    }
}

#[track_caller]
fn has(page: &str, line: &str) {
    assert!(page.lines().any(|it| it == line), "{line} isn't in\n{page}");
}

#[test]
fn names_of_models_have_a_limit_and_idle_ones_make_room() {
    let mut world = World::new(config(&["chat"], "metrics: {flows: 2}\n"));
    for (second, model) in [(100, "a"), (200, "b"), (300, "c"), (300, "d"), (650, "a")] {
        world.sees(second, Observation::Arrived(labels("chat", model)));
    }
    let page = world.page(650);
    let arrived = |model: &str, count: u32| {
        format!(r#"penstock_arrivals_total{{model="{model}",pool="chat",target_model="{model}"}} {count}"#)
    };
    has(&page, &arrived("a", 2));
    has(&page, &arrived("b", 1));
    has(&page, &arrived("other", 2));
    // b is idle for ten minutes, a isn't.
    world.sees(800, Observation::Arrived(labels("chat", "d")));
    let page = world.page(800);
    has(&page, &arrived("a", 2));
    has(&page, &arrived("d", 1));
    assert!(!page.contains(r#"model="b""#), "{page}");
    assert!(!page.contains(r#"model="c""#), "{page}");
}

#[test]
fn who_asks_for_no_pools_model_takes_half_of_the_room_at_most() {
    let mut world = World::new(config(&["chat"], "metrics: {flows: 4}\n"));
    for model in ["a", "b", "c", "d"] {
        world.sees(1, Observation::Arrived(labels("none", model)));
    }
    world.sees(1, Observation::Arrived(labels("chat", "llama")));
    let page = world.page(1);
    let arrived = |pool: &str, model: &str, count: u32| {
        format!(r#"penstock_arrivals_total{{model="{model}",pool="{pool}",target_model="{model}"}} {count}"#)
    };
    has(&page, &arrived("none", "a", 1));
    has(&page, &arrived("none", "b", 1));
    has(&page, &arrived("none", "other", 2));
    has(&page, &arrived("chat", "llama", 1));
}

#[test]
fn a_pool_that_is_gone_gives_up_every_series() {
    let mut world = World::new(config(&["chat", "embed"], ""));
    for pool in ["chat", "embed", "none"] {
        world.sees(1, Observation::Arrived(labels(pool, "m")));
        world.sees(
            1,
            Observation::Decided {
                labels: labels(pool, "m"),
                outcome: Outcome::RejectedQueueFull,
                code: "queue_full",
                waited: Duration::ZERO,
                endpoint: "".into(),
            },
        );
        world.sees(1, completed(labels(pool, "m"), ENDPOINT));
    }
    assert!(world.page(1).contains(r#"pool="embed""#));
    world.config = config(&["chat"], "");
    let page = world.page(2);
    assert!(!page.contains(r#"pool="embed""#), "{page}");
    assert!(page.contains(r#"pool="chat""#) && page.contains(r#"pool="none""#));
    // What ran there ends.
    world.sees(3, completed(labels("embed", "m"), ENDPOINT));
    assert!(!world.page(3).contains(r#"pool="embed""#));
    // It comes back, and begins at nothing.
    world.config = config(&["chat", "embed"], "");
    world.sees(4, Observation::Arrived(labels("embed", "m")));
    let page = world.page(4);
    has(
        &page,
        r#"penstock_arrivals_total{model="m",pool="embed",target_model="m"} 1"#,
    );
    has(
        &page,
        r#"penstock_arrivals_total{model="m",pool="chat",target_model="m"} 1"#,
    );
}

#[test]
fn an_endpoint_that_is_not_listed_gives_up_its_series_once_it_is_idle() {
    let mut world = World::new(config(&["chat"], ""));
    for endpoint in [ENDPOINT, "10.0.0.9:1"] {
        world.sees(1, completed(labels("chat", "m"), endpoint));
    }
    assert!(world.page(590).contains("10.0.0.9:1"));
    let page = world.page(611);
    assert!(!page.contains("10.0.0.9:1"), "{page}");
    assert!(
        page.contains(ENDPOINT),
        "it is listed, however long nothing ends there"
    );
    world.sees(700, completed(labels("chat", "m"), "10.0.0.9:1"));
    has(
        &world.page(700),
        r#"penstock_responses_total{code_class="2xx",endpoint="10.0.0.9:1",model="m",pool="chat",target_model="m"} 1"#,
    );
}

#[test]
fn what_a_filter_makes_up_is_no_label() {
    let mut world = World::new(config(&["chat"], ""));
    let refused = Observation::Refused {
        labels: labels("none", "m"),
        outcome: "made_up".into(),
        code: "made_up_too".into(),
    };
    world.sees(1, refused);
    let page = world.page(1);
    assert!(!page.contains("made_up"), "{page}");
    let of = r#"model="m",outcome="internal",pool="none",target_model="m""#;
    has(
        &page,
        &format!(r#"penstock_requests_total{{band="default",{of}}} 1"#),
    );
}

#[test]
fn nexus_name_is_there_when_it_is_asked_for() {
    let mut world = World::new(config(&["chat"], ""));
    assert!(!world.page(1).contains("nexus_queue_depth"));
    let mut config = world.config.clone();
    config.metric_aliases.push(penstock_config::Alias::Nexus);
    world.metrics.follow(&config);
    has(&world.page(1), "nexus_queue_depth 0");
}

#[test]
fn what_nothing_happened_to_is_shown_at_nothing() {
    let mut world = World::new(config(&["chat"], ""));
    let page = world.page(1);
    for line in [
        r#"penstock_lease_admissions_total{model="",pool="chat",target_model=""} 0"#,
        r#"penstock_lease_credit{pool="chat"} 0"#,
        r#"penstock_fairness_gap_ratio{band="default",class="",model="",pool="chat"} 0"#,
        r#"penstock_fairness_service_tokens_total{flow="other",pool="chat"} 0"#,
        "penstock_config_reload_failures_total 0",
    ] {
        has(&page, line);
    }
    world.metrics.reload_failures.inc();
    has(&world.page(1), "penstock_config_reload_failures_total 1");
}
