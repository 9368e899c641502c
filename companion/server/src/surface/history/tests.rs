//! Samples equal the values of `/metrics`, and keep within their limits.

use std::sync::Arc;
use std::time::Duration;

use penstock_config::Config;
use penstock_control::{Completed, Control, Decided, Labels, Observation, RequestNews, Status};
use penstock_engine::input::Band;
use penstock_engine::snapshot::FlowSnapshot;
use penstock_engine::units::Tokens;
use penstock_engine::{Instant, Outcome};
use serde_json::{Value, json};

use super::limits::{BYTES_MAX, ENDPOINTS_MAX, INTERVAL, POOLS_MAX, Room, SAMPLES_MAX, TENANTS_MAX};
use super::sample::{REASONS, Sample, Use};
use super::sampler::Sampler;
use super::{History, HistoryQuery, pause};
use crate::decisions::control_settings::{self, ProcessIdentity};
use crate::decisions::observe::Observer;
use crate::metrics::Metrics;
use crate::surface::visibility::FlowVisibility;

const ENDPOINT: &str = "127.0.0.1:8001";

/// A pool whose status and observations the test makes.
struct World {
    history: History,
    sampler: Sampler,
    metrics: Arc<Metrics>,
    observer: Observer,
    config: Config,
    status: Status,
    samples: u64,
}

impl World {
    fn new(pools: &[&str]) -> Self {
        let pool = |name: &&str| format!("- name: {name}\n  endpoints: {{static: ['{ENDPOINT}']}}\n");
        let pools: String = pools.iter().map(pool).collect();
        let config = Config::parse(&format!("pools:\n{pools}"), "test").expect("valid");
        let metrics = Arc::new(Metrics::new().expect("distinct names"));
        metrics.follow(&config);
        let settings = control_settings::settings(&config, &ProcessIdentity::now(None, false));
        Self {
            history: History::default(),
            sampler: Sampler::default(),
            observer: Observer::new(metrics.clone(), config.metric_flows),
            metrics,
            status: Control::new(settings, Instant::ZERO).status(Instant::ZERO),
            config,
            samples: 0,
        }
    }

    fn observe(&mut self, observation: Observation) {
        self.observer.observe(Instant::ZERO, observation);
    }

    fn decide(&mut self, pool: &str, outcome: Outcome, waited_ms: u64) {
        self.observe(Observation::Request(
            labels(pool),
            RequestNews::Decided(Decided {
                outcome,
                code: None,
                waited: Duration::from_millis(waited_ms),
                endpoint: Arc::default(),
                was_queued: true,
                extra: false,
                prefill: None,
            }),
        ));
    }

    fn complete(&mut self, ttft_ms: u64, itl_ms: u64) {
        self.observe(Observation::Request(
            labels("chat"),
            RequestNews::Completed(Completed {
                outcome: Outcome::Dispatched,
                waited: Duration::ZERO,
                endpoint: ENDPOINT.into(),
                status: 200,
                first_token: Some(Duration::from_millis(ttft_ms)),
                ttft: Some(Duration::from_millis(ttft_ms)),
                itl: Some(Duration::from_millis(itl_ms)),
                duration: Duration::from_millis(ttft_ms),
                prompt_tokens: Some(100),
                output_tokens: Some(10),
                requeues: 0,
                extra: false,
            }),
        ));
    }

    /// The use of the first pool by a flow: public or private.
    fn serve(&mut self, flow: &str, is_public: bool, served: u64, waiting: u64) {
        let pool = &mut self.status.pools[0];
        let flows = &mut pool.snapshot.flows;
        flows.retain(|known| &*known.key != flow);
        flows.push(FlowSnapshot {
            key: flow.into(),
            band: Band::Default,
            waiting,
            waiting_cost: Tokens(waiting * 100),
            in_flight: 1,
            served_tokens: Tokens(served),
            weight: 2.0,
            finish: 0.0,
        });
        if is_public {
            pool.public_flows.insert(flow.into());
            pool.served.retain(|(known, _)| &**known != flow);
            pool.served.push((flow.into(), served));
        }
    }

    fn take(&mut self) -> Sample {
        self.samples += 1;
        let time = INTERVAL * u32::try_from(self.samples).expect("few");
        let totals = self.metrics.totals();
        let sample = self.sampler.sample(time, &self.status, &self.config, &totals);
        self.history.push(sample.clone());
        sample
    }

    fn document(&self, query: &str, visibility: FlowVisibility) -> Value {
        let uri: axum::http::Uri = format!("/history?{query}").parse().expect("a URI");
        let query = axum::extract::Query::<HistoryQuery>::try_from_uri(&uri).expect("a query");
        let json = self.history.document(&query, visibility).expect("JSON");
        serde_json::from_slice(&json).expect("JSON")
    }
}

fn labels(pool: &str) -> Arc<Labels> {
    Arc::new(Labels {
        tokens: None,
        pool: pool.into(),
        model: "m".into(),
        class: Box::default(),
        traceparent: Box::default(),
        flow: "acme".into(),
        private: false,
        band: Band::Default,
        request_id: "r".into(),
    })
}

fn numbers(document: &Value) -> Vec<u64> {
    let samples = document["samples"].as_array().expect("samples");
    samples.iter().filter_map(|sample| sample["number"].as_u64()).collect()
}

#[test]
fn counters_are_increases_since_the_sample_before() {
    let mut world = World::new(&["chat"]);
    world.decide("chat", Outcome::Dispatched, 40);
    world.decide("chat", Outcome::Bypassed, 0);
    world.decide("chat", Outcome::ExpiredTtl, 30_000);
    world.decide("chat", Outcome::Cancelled, 10);
    world.decide("none", Outcome::RejectedInvalid, 0);
    world.take();
    let first = world.document("", FlowVisibility::Public)["samples"][0].clone();
    assert_eq!(first["unrouted"], json!({"rejected_invalid": 1}));
    let pool = &first["pools"][0];
    assert_eq!(pool["granted"], 2);
    assert_eq!(pool["refused"], json!({"expired_ttl": 1}), "a cancelled request isn't refused");

    world.decide("chat", Outcome::ExpiredTtl, 30_000);
    world.take();
    let second = world.document("since=1", FlowVisibility::Public)["samples"][0].clone();
    assert_eq!(second["unrouted"], json!({}));
    assert_eq!(second["pools"][0]["granted"], 0);
    assert_eq!(second["pools"][0]["refused"], json!({"expired_ttl": 1}));
}

#[test]
fn dashboard_names_every_reason_for_which_a_request_is_not_served() {
    let charts = include_str!("../dashboard/charts.js");
    assert_eq!(REASONS.len(), Outcome::ALL.len() - 4, "all but grants and cancelled");
    for reason in REASONS.map(Outcome::as_str) {
        assert!(charts.contains(&format!(" {reason}: \"")), "{reason}");
    }
}

#[test]
fn queue_times_are_those_of_granted_requests_of_the_last_minute() {
    let mut world = World::new(&["chat"]);
    for _ in 0..10 {
        world.decide("chat", Outcome::Dispatched, 40);
        world.decide("chat", Outcome::ExpiredTtl, 30_000);
    }
    let queue = world.take().pools[0].queue.expect("grants");
    assert!((0.025..=0.05).contains(&queue.p50), "{queue:?}");
    assert!((0.025..=0.05).contains(&queue.p99), "{queue:?}");
    for _ in 1..12 {
        assert!(world.take().pools[0].queue.is_some());
    }
    assert_eq!(world.take().pools[0].queue, None);
}

#[test]
fn an_endpoint_has_its_stock_bound_and_times() {
    let mut world = World::new(&["chat"]);
    world.complete(200, 20);
    world.complete(200, 40);
    let sample = world.take();
    let endpoint = &sample.pools[0].endpoints[0];
    assert_eq!(&*endpoint.address, ENDPOINT);
    let snapshot = &world.status.pools[0].snapshot.endpoints[0];
    assert_eq!((endpoint.stock, endpoint.bound), (0, Some(snapshot.bound)));
    let itl_ms = endpoint.itl_ms.expect("responses");
    assert!((29.9..30.1).contains(&itl_ms), "{itl_ms}");
    let ttft = endpoint.ttft.expect("responses");
    assert!((0.1..=0.25).contains(&ttft.p50), "{ttft:?}");
    assert_eq!(sample.pools[0].ttft, endpoint.ttft, "it is the only one");
}

#[test]
fn served_tokens_of_a_tenant_add_up_to_its_total() {
    let mut world = World::new(&["chat"]);
    let mut sum = 0;
    for served in [100, 100, 250, 1_000] {
        world.serve("acme", true, served, 3);
        let sample = world.take();
        let tenant = &sample.pools[0].tenants[0];
        assert_eq!((&*tenant.name, tenant.weight), ("acme", Some(2.0)));
        assert_eq!((tenant.used.waiting, tenant.used.in_flight), ([0, 3, 0], [0, 1, 0]));
        sum += tenant.used.served;
    }
    assert_eq!(sum, 1_000);
    // After ten idle minutes it is forgotten, and begins again at 0.
    world.serve("acme", true, 40, 0);
    assert_eq!(world.take().pools[0].tenants[0].used.served, 40);
}

#[test]
fn a_private_tenant_is_shown_to_the_administrator_only() {
    let mut world = World::new(&["chat"]);
    world.serve("acme", true, 100, 0);
    world.serve("secret@example", false, 70, 2);
    world.status.pools[0].other_served = 70;
    world.take();
    world.serve("secret@example", false, 100, 2);
    world.status.pools[0].other_served = 105;
    world.take();
    let pool = |visibility| world.document("since=1", visibility)["samples"][0]["pools"][0].clone();
    let public = pool(FlowVisibility::Public);
    assert!(!public.to_string().contains("secret"), "{public}");
    assert_eq!(public["tenants"].as_array().map(Vec::len), Some(1));
    let other = json!({"waiting": [0, 2, 0], "in_flight": [0, 1, 0], "served": 35});
    assert_eq!(public["other"], other);

    let all = pool(FlowVisibility::All);
    let secret = json!({"name": "secret@example", "weight": 2.0, "waiting": [0, 2, 0], "in_flight": [0, 1, 0], "served": 30});
    assert_eq!(all["tenants"][1], secret);
    assert_eq!(all["other"]["served"], 5);
}

#[test]
fn tenants_beyond_the_limit_are_one_and_the_busiest_keep_their_names() {
    let mut world = World::new(&["chat"]);
    let tenants = u64::try_from(TENANTS_MAX).expect("few") + 10;
    for tenant in 0..tenants {
        world.serve(&format!("tenant-{tenant}"), true, tenant * 10, 0);
    }
    world.take();
    // A tenant that waits is among the busiest before it is served.
    world.serve("tenant-0", true, 0, 100_000);
    let sample = world.take();
    let pool = &sample.pools[0];
    assert_eq!(pool.tenants.len(), TENANTS_MAX);
    assert_eq!(&*pool.tenants[0].name, "tenant-0");
    assert_eq!(&*pool.tenants[1].name, format!("tenant-{}", tenants - 1));
    assert_eq!(pool.other.in_flight, [0, 10, 0]);
}

#[test]
fn an_idle_tenant_takes_no_room() {
    let mut world = World::new(&["chat"]);
    world.serve("acme", true, 100, 0);
    world.status.pools[0].snapshot.flows[0].in_flight = 0;
    assert_eq!(world.take().pools[0].tenants.len(), 1, "it was served");
    let sample = world.take();
    assert!(sample.pools[0].tenants.is_empty());
    assert_eq!(sample.pools[0].other, Use::default());
}

#[test]
fn only_the_last_samples_are_kept() {
    let mut world = World::new(&["chat"]);
    let all = u64::try_from(SAMPLES_MAX).expect("few") + 20;
    for _ in 0..all {
        world.take();
    }
    let document = world.document("", FlowVisibility::Public);
    assert_eq!(numbers(&document), (21..=all).collect::<Vec<_>>());
    assert_eq!(document["last"], all);
    assert_eq!(document["samples"][0]["time_ms"], 21 * 5_000);
}

#[test]
fn long_names_shorten_the_history_instead_of_taking_more_memory() {
    let mut world = World::new(&["chat"]);
    let mut sample = world.take();
    let mut pool = sample.pools[0].clone();
    let endpoint = pool.endpoints[0].clone();
    let name: Arc<str> = "n".repeat(65_536).into();
    pool.endpoints = vec![super::sample::EndpointSample { address: name, ..endpoint }; 16].into();
    sample.pools = vec![pool].into();
    let mut ring = super::ring::Ring::default();
    for _ in 0..SAMPLES_MAX {
        ring.push(sample.clone());
    }
    assert!(ring.bytes() <= BYTES_MAX, "{}", ring.bytes());
    let kept = ring.after(0).len();
    assert!((10..SAMPLES_MAX).contains(&kept), "{kept}");
    for _ in 0..SAMPLES_MAX {
        ring.push(Sample { pools: Box::default(), ..sample.clone() });
    }
    assert_eq!(ring.after(0).len(), SAMPLES_MAX, "the memory of dropped samples is free");
}

#[test]
fn a_page_gets_newer_samples_only_unless_another_companion_numbered_its_own() {
    let mut world = World::new(&["chat"]);
    for _ in 0..5 {
        world.take();
    }
    let document = world.document("since=3", FlowVisibility::Public);
    let instance = document["instance"].as_str().expect("a name");
    assert_eq!(numbers(&document), [4, 5]);
    let again = world.document(&format!("since=5&instance={instance}"), FlowVisibility::Public);
    assert_eq!((numbers(&again).len(), &again["last"]), (0, &json!(5)));
    let earlier = world.document("since=900&instance=another", FlowVisibility::Public);
    assert_eq!(numbers(&earlier), [1, 2, 3, 4, 5]);
    assert_ne!(World::new(&["chat"]).history.instance, world.history.instance);
}

#[test]
fn one_pool_can_be_asked_for() {
    let mut world = World::new(&["chat", "code"]);
    world.decide("code", Outcome::Bypassed, 0);
    world.take();
    let document = world.document("pool=code", FlowVisibility::Public);
    let pools = document["samples"][0]["pools"].as_array().expect("pools");
    assert_eq!(pools.len(), 1);
    assert_eq!((&pools[0]["name"], &pools[0]["granted"]), (&json!("code"), &json!(1)));
}

#[test]
fn a_pool_that_is_led_again_counts_only_what_is_new() {
    let mut world = World::new(&["chat"]);
    world.decide("chat", Outcome::Bypassed, 0);
    assert_eq!(world.take().pools[0].granted, 1);
    let led = std::mem::take(&mut world.status.pools);
    assert_eq!(world.take().pools.len(), 0);
    world.status.pools = led;
    assert_eq!(world.take().pools[0].granted, 0);
}

#[test]
fn every_number_of_pools_keeps_within_the_rows_of_a_sample() {
    assert_eq!(Room::of(1), Room { endpoints: ENDPOINTS_MAX, tenants: TENANTS_MAX });
    for pools in 1..=POOLS_MAX {
        let room = Room::of(pools);
        assert!(room.endpoints >= 10 && room.tenants >= 2, "{pools}: {room:?}");
        assert!(pools * (room.endpoints + 2 * room.tenants) <= 768, "{pools}: {room:?}");
    }
}

#[test]
fn slow_samples_are_taken_less_often() {
    assert_eq!(pause(Duration::from_millis(1)), INTERVAL);
    assert_eq!(pause(Duration::from_millis(200)), Duration::from_secs(20));
}
