//! Each sentence appears when its cause is present, and only then.

use std::sync::Arc;

use penstock_control::{
    AutopilotStatus, Decided, Desired, DesiredSource, Door, Labels, Observation, RequestNews, Scraped,
    ServerStatus, VariantStatus,
};
use penstock_engine::input::{EndpointId, Fault};
use penstock_engine::policy::{Discipline, Policy};
use penstock_engine::{Engine, HealthReason, HealthState, Instant, Outcome};
use penstock_model::Targets;
use penstock_model::learner::State;
use penstock_model::slo::{Slo, Source};

use super::*;

/// The facts of a test.
struct Scene {
    status: Status,
    recent: RecentStats,
    config: Config,
    uptime: Duration,
    liveness: Liveness,
}

const NOW: u64 = 10_000;

fn time(seconds: u64) -> Instant {
    Instant::ZERO.after(Duration::from_secs(seconds))
}

/// A healthy pool of two servers, with these additional keys in the pool's configuration.
fn scene(keys: &str) -> Scene {
    let text =
        format!("pools:\n- name: chat\n  endpoints: {{static: [\"127.0.0.1:1\", \"127.0.0.1:2\"]}}\n{keys}");
    let config = Config::parse(&text, "f").expect("valid");
    let mut snapshot = Engine::new(Policy::default(), 1, Instant::ZERO).snapshot();
    snapshot.dispatching = true;
    (snapshot.stock, snapshot.lower, snapshot.upper) = (2, 4, 5);
    snapshot.ready_endpoints = 2;
    snapshot.endpoints = (0..2)
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
            bound: 3,
            abandoned: 0,
            extra: 0,
            foreign: 0,
            pushback: None,
        })
        .collect();
    let server = ServerStatus {
        variant: "default".into(),
        scraped: Some(Scraped::default()),
        ..ServerStatus::default()
    };
    let pool = PoolStatus {
        name: "chat".into(),
        addresses: vec!["127.0.0.1:1".into(), "127.0.0.1:2".into()],
        public_flows: ["acme".into()].into(),
        served: Vec::new(),
        models: Vec::new(),
        other_served: 0,
        discipline: Discipline::Wfq,
        snapshot,
        model: Some(AutopilotStatus {
            gate: None,
            slo: Slo { targets: Targets::default(), source: Source::Explicit },
            variants: vec![variant()],
            capacity: 18.5,
            demand: 37.0,
        }),
        servers: vec![server.clone(), server],
        retired: false,
        orphaned_stock: 0,
        orphaned_waiting: 0,
    };
    let session = penstock_control::SessionStatus {
        pool: None,
        id: "1".into(),
        node: "envoy".into(),
        envoy: String::new(),
        door: Door::Filter,
        open: true,
        waiting: 0,
        running: 2,
        moved: 0,
        unacked: 0,
        last_seen: Duration::ZERO,
    };
    Scene {
        status: Status {
            sessions: vec![session],
            pools: vec![pool],
            started: true,
            gathered: true,
            draining: false,
            handed_over: false,
            envoys: 1,
            requests: 2,
        },
        recent: RecentStats::default(),
        config,
        uptime: Duration::from_secs(600),
        liveness: Liveness::default(),
    }
}

fn variant() -> VariantStatus {
    VariantStatus {
        name: "default".into(),
        state: State::Converged,
        parameters: None,
        ttft_bias: 1.0,
        nis: None,
        condition: None,
        n_star: Some(2.5),
        lambda_star: Some(9.0),
        capacity: 18.5,
        demand: 1.0,
        utilization: 0.1,
        desired: Some(desired(2)),
        current: 2,
        pending: 0,
    }
}

const fn desired(replicas: u64) -> Desired {
    Desired { replicas, source: DesiredSource::Model }
}

impl Scene {
    fn pool(&mut self) -> &mut PoolStatus {
        &mut self.status.pools[0]
    }

    fn variant(&mut self) -> &mut VariantStatus {
        let model = self.pool().model.as_mut().expect("there is one");
        &mut model.variants[0]
    }

    fn labels(band: Band, private: bool) -> Arc<Labels> {
        Arc::new(Labels {
            tokens: None,
            pool: "chat".into(),
            model: "m".into(),
            flow: "acme".into(),
            private,
            band,
            class: Box::default(),
            request_id: "r".into(),
            traceparent: Box::default(),
        })
    }

    fn arrived(&mut self, seconds: u64, band: Band) {
        let labels = Self::labels(band, false);
        self.recent.record(time(seconds), &Observation::Request(labels, RequestNews::Arrived(Door::Filter)));
    }

    fn decided(&mut self, seconds: u64, band: Band, outcome: Outcome) {
        self.decided_with(seconds, Self::labels(band, false), outcome);
    }

    fn decided_with(&mut self, seconds: u64, labels: Arc<Labels>, outcome: Outcome) {
        let observation = Observation::Request(
            labels,
            RequestNews::Decided(Decided {
                outcome,
                code: None,
                waited: Duration::ZERO,
                endpoint: std::sync::Arc::default(),
                was_queued: false,
                extra: false,
                prefill: None,
            }),
        );
        self.recent.record(time(seconds), &observation);
    }

    /// A filter answers a request by itself.
    fn refused(&mut self, seconds: u64, band: Band, outcome: Outcome) {
        let refused = penstock_control::Refused {
            node: "envoy".into(),
            outcome: outcome.as_str().into(),
            code: penstock_control::code_of(outcome).expect("an answer"),
            waited: None,
            was_granted: false,
            requeues: 0,
        };
        let observation = Observation::Request(Self::labels(band, false), RequestNews::Refused(refused));
        self.recent.record(time(seconds), &observation);
    }

    fn facts(&self) -> Facts<'_> {
        Facts {
            discoveries: None,
            status: &self.status,
            recent: &self.recent,
            config: &self.config,
            config_error: None,
            roles: None,
            liveness: &self.liveness,
            now: time(NOW),
            uptime: self.uptime,
        }
    }

    fn advice(&self) -> Vec<String> {
        pool_advice(&self.facts(), &self.status.pools[0])
    }

    /// The pool has one sentence of advice, with this beginning and these parts.
    #[track_caller]
    fn has_only(&self, beginning: &str, parts: &[&str]) {
        let advice = self.advice();
        let [only] = &advice[..] else { panic!("{advice:?}") };
        assert!(only.starts_with(beginning), "{only}");
        for part in parts {
            assert!(only.contains(part), "{part} isn't in {only}");
        }
    }

    #[track_caller]
    fn has_no_advice(&self) {
        assert_eq!(self.advice(), Vec::<String>::new());
    }
}

#[test]
fn a_healthy_pool_has_no_advice() {
    let scene = scene("");
    scene.has_no_advice();
    assert_eq!(overall(&scene.facts()), Vec::<String>::new());
}

#[test]
fn overall_advice_covers_configuration_drain_and_sessions() {
    let mut scene = scene("");
    scene.status.draining = true;
    scene.status.sessions[0].open = false;
    let facts = Facts { discoveries: None, config_error: Some("f:3: ttl: above 0"), ..scene.facts() };
    let advice = overall(&facts);
    assert_eq!(advice.len(), 3);
    assert!(advice[0].contains("f:3: ttl: above 0"), "{advice:?}");
    assert!(advice[1].contains("POST /drain"), "{advice:?}");
    assert!(advice[2].contains("listen.grpc"), "{advice:?}");
    // A companion that has just started has no session yet.
    scene.uptime = Duration::from_secs(1);
    assert_eq!(overall(&scene.facts()).len(), 1);
}

#[test]
fn unready_endpoints_are_named() {
    let mut scene = scene("");
    scene.pool().snapshot.endpoints[1].ready = false;
    scene.has_only("127.0.0.1:2 isn't ready because its health check fails", &["health.path"]);
    let endpoint = &mut scene.pool().snapshot.endpoints[1];
    endpoint.down_until = Some(time(NOW + 3));
    (endpoint.state, endpoint.reason) = (HealthState::Down, HealthReason::Connections);
    scene.has_only("127.0.0.1:2 is down: requests couldn't be sent there", &["3.0s", "down.first"]);
    let endpoint = &mut scene.pool().snapshot.endpoints[1];
    let reason = HealthReason::InARow { count: 5, fault: Fault::Status(401) };
    (endpoint.state, endpoint.reason) = (HealthState::Failing, reason);
    scene.has_only(
        "127.0.0.1:2 is failing: 5 requests in a row failed there, the last one with status 401",
        &["3.0s", "endpoints.failing"],
    );
    scene.pool().snapshot.endpoints[0].ready = false;
    let advice = scene.advice();
    assert_eq!(advice.len(), 3, "{advice:?}");
    assert!(advice[0].contains("none of its 2 endpoints is ready"), "{advice:?}");
    assert!(advice[0].contains("60s (queue.no_endpoint_ttl)"), "{advice:?}");
    scene.pool().snapshot.endpoints.truncate(1);
    let advice = scene.advice();
    assert!(advice[0].starts_with("its only endpoint isn't ready: requests wait"), "{advice:?}");
    scene.pool().snapshot.endpoints.clear();
    scene.has_only("the pool has no endpoint", &["endpoints", "discovery"]);
}

#[test]
fn objects_of_the_pool_that_cannot_be_read_are_named() {
    let scene = scene("");
    let states = States::with_unread("chat", "the InferenceObjectives can't be read: forbidden");
    let facts = Facts { discoveries: Some(&states), ..scene.facts() };
    let advice = pool_advice(&facts, &scene.status.pools[0]);
    assert_eq!(advice, ["the InferenceObjectives can't be read: forbidden."]);
}

#[test]
fn a_full_queue_is_advised_on_for_some_minutes() {
    let mut scene = scene("  queue: {total_capacity: 7}\n");
    scene.arrived(NOW - 100, Band::Default);
    scene.decided(NOW - 100, Band::Default, Outcome::RejectedTooManyFlows);
    scene.arrived(NOW - 90, Band::Default);
    scene.decided(NOW - 90, Band::Default, Outcome::Displaced);
    scene.has_only("the queue was full: 2 rejected", &["queue.total_capacity (7)", "5 min"]);
    scene.recent = RecentStats::default();
    scene.arrived(NOW - 400, Band::Default);
    scene.decided(NOW - 400, Band::Default, Outcome::RejectedQueueFull);
    scene.has_no_advice();
}

#[test]
fn a_flow_at_its_capacity_is_named_if_it_is_public() {
    let mut scene = scene("  queue: {flow_capacity: 3}\n");
    let rejected = Outcome::RejectedFlowCapacity;
    scene.decided(NOW, Band::Default, rejected);
    scene.has_only("1 rejected", &["flow `acme`", "may have 3 waiting", "flows.capacities"]);
    scene.decided_with(NOW, Scene::labels(Band::Default, true), rejected);
    scene.has_only("2 rejected", &["flow `other`"]);
    scene.recent = RecentStats::default();
    scene.decided(NOW, Band::Default, Outcome::RejectedClassCapacity);
    scene.has_only("1 rejected", &["policy_classes"]);
}

#[test]
fn a_ttl_below_the_p99_of_the_wait_is_advised_on() {
    let mut scene = scene("  queue: {ttl: 1500ms}\n");
    for _ in 0..99 {
        scene.decided(NOW, Band::Default, Outcome::Dispatched);
    }
    scene.decided(NOW, Band::Default, Outcome::ExpiredTtl);
    scene.has_no_advice();
    scene.decided(NOW, Band::Default, Outcome::ExpiredTtl);
    scene.has_only(
        "queue.ttl (1500ms) is below the p99",
        &["2 of 101", "were rejected. Raise", "add servers"],
    );
}

#[test]
fn requests_that_filters_expired_count_as_expired() {
    let mut scene = scene("");
    for _ in 0..99 {
        scene.decided(NOW, Band::Default, Outcome::Dispatched);
    }
    scene.refused(NOW, Band::Default, Outcome::ExpiredTtl);
    scene.has_no_advice();
    scene.decided(NOW, Band::Default, Outcome::ExpiredTtl);
    scene.has_only("queue.ttl (30s) is below the p99", &["2 of 101", "of 1 of these, the filters"]);
}

/// A budget with `over: hold` or `max_in_flight` holds these requests, so no share of the band would free them.
#[test]
fn a_band_whose_requests_their_flows_hold_does_not_starve() {
    let mut scene = scene("");
    scene.pool().snapshot.waiting = 3;
    (scene.pool().snapshot.bands[2].waiting, scene.pool().snapshot.bands[2].held_by_flow) = (3, 3);
    scene.pool().snapshot.stock = 4;
    scene.arrived(NOW - 20, Band::Sheddable);
    scene.arrived(NOW - 1, Band::Critical);
    scene.decided(NOW - 1, Band::Critical, Outcome::Dispatched);
    scene.has_no_advice();
    scene.pool().snapshot.bands[2].held_by_flow = 2;
    scene.has_only("band sheddable starves: 1 wait", &["20s"]);
}

#[test]
fn a_band_starves_while_another_is_served() {
    let mut scene = scene("");
    scene.pool().snapshot.waiting = 1;
    scene.pool().snapshot.bands[2].waiting = 1;
    scene.pool().snapshot.stock = 4;
    scene.arrived(NOW - 20, Band::Sheddable);
    scene.has_no_advice();
    scene.arrived(NOW - 1, Band::Critical);
    scene.decided(NOW - 1, Band::Critical, Outcome::Dispatched);
    scene.has_only(
        "band sheddable starves: 1 wait",
        &["20s", "while critical requests were", "arbitration.bands.mode"],
    );
    // One of its requests is granted meanwhile.
    scene.arrived(NOW - 1, Band::Sheddable);
    scene.decided(NOW - 1, Band::Sheddable, Outcome::Dispatched);
    scene.has_no_advice();
}

#[test]
fn requests_stuck_under_an_open_gate_are_advised_on_after_a_while() {
    let mut scene = scene("");
    scene.pool().snapshot.waiting = 3;
    scene.arrived(NOW - 4, Band::Default);
    scene.has_no_advice();
    scene.recent = RecentStats::default();
    scene.arrived(NOW - 6, Band::Default);
    scene.has_only("3 wait though stock 2 is below its bound 4", &["6s", "max_in_flight", "/requests/"]);
    scene.pool().snapshot.stock = 4;
    scene.has_no_advice();
    scene.pool().snapshot.stock = 2;
    scene.decided(NOW - 2, Band::Critical, Outcome::Dispatched);
    scene.has_no_advice();
}

#[test]
fn orphans_are_advised_on() {
    let mut scene = scene("");
    scene.pool().orphaned_waiting = 3;
    scene.pool().orphaned_stock = 1;
    scene.has_only("3 waiting and 1 running requests belong to Envoy workers", &["listen.grpc"]);
}

#[test]
fn foreign_load_is_advised_on_where_it_matters() {
    let mut scene = scene("");
    scene.pool().snapshot.endpoints[0].foreign = 2;
    scene.has_only("127.0.0.1:1 runs 2 requests that didn't come through", &["bound"]);
    scene.pool().snapshot.endpoints[0].stock = 100;
    scene.has_no_advice();
}

#[test]
fn unread_metrics_are_advised_on_unless_scraping_is_off() {
    let without_metrics = |keys: &str| {
        let mut scene = scene(keys);
        scene.pool().servers[1].scraped = None;
        scene
    };
    let mut scene = without_metrics("");
    scene.has_only("no known metrics are read from /metrics of 127.0.0.1:2", &["scrape.path"]);
    scene.uptime = Duration::from_secs(3);
    scene.has_no_advice();
    without_metrics("  scrape: {path: null}\n").has_no_advice();
}

#[test]
fn a_fixed_bound_far_from_n_star_is_advised_on_both_ways() {
    let mut scene = scene("");
    scene.variant().n_star = Some(29.5);
    scene.has_only("stock.watermark_per_backend (2) is far below n* 29.5", &["idle", "auto"]);
    scene.variant().state = State::Learning;
    scene.has_no_advice();
    let mut wide = super::tests::scene("  stock: {watermark_per_backend: 64}\n");
    wide.has_only("stock.watermark_per_backend (64) is far above n* 2.5", &["targets"]);
    wide.variant().n_star = Some(40.0);
    wide.has_no_advice();
}

#[test]
fn an_auto_gate_needs_neither_a_model_nor_targets() {
    for targets in ["", "  slo: {target_ttft: 500, target_itl: 50}\n"] {
        let mut scene = scene(&format!("  stock: {{watermark_per_backend: auto}}\n{targets}"));
        for state in
            [State::Learning, State::Unidentifiable, State::Error, State::NoTraffic, State::Converged]
        {
            scene.variant().state = state;
            scene.has_no_advice();
        }
        scene.variant().state = State::Infeasible;
        if targets.is_empty() {
            scene.has_no_advice();
        } else {
            scene.has_only("no load on a server of variant default meets the targets", &["stock.targets"]);
        }
    }
}

#[test]
fn too_few_servers_are_advised_on_with_the_missing_number() {
    let mut scene = scene("");
    scene.variant().desired = Some(desired(5));
    scene.variant().pending = 1;
    scene.has_only(
        "demand is 37.0 requests per second",
        &["needs 5 servers and has 2 and 1 not ready", "Add 2"],
    );
}

#[test]
fn figures_of_a_model_that_has_not_converged_are_no_advice() {
    for source in [DesiredSource::Bootstrap, DesiredSource::Saturation] {
        let mut scene = scene("");
        scene.variant().desired = Some(Desired { replicas: 4, source });
        scene.has_no_advice();
    }
    for state in [State::Learning, State::Unidentifiable, State::Error, State::NoTraffic] {
        let mut scene = scene("");
        scene.variant().desired = Some(desired(4));
        scene.variant().state = state;
        scene.has_no_advice();
    }
    let mut unknown = scene("");
    unknown.variant().desired = Some(desired(4));
    unknown.pool().model.as_mut().expect("one").capacity = 0.0;
    unknown.has_no_advice();
}

#[test]
fn a_retired_pool_has_its_own_sentence() {
    let mut scene = scene("");
    scene.pool().retired = true;
    scene.has_only("this pool is no longer configured", &[]);
    scene.pool().retired = false;
    scene.config.pools[0].name = "other".into();
    scene.has_only("this pool is no longer configured", &[]);
}

#[test]
fn endpoint_with_requests_that_has_been_silent_for_a_minute_is_named_while_others_send() {
    let mut scene = scene("");
    let minute = Some(Duration::from_secs(60));
    for server in &mut scene.status.pools[0].servers {
        server.oldest_running = minute;
    }
    assert!(scene.advice().is_empty(), "nobody sends anything");
    scene.liveness.record(&["127.0.0.1:2".into()]);
    scene.has_only("127.0.0.1:1 has sent no byte of any answer for 60s", &["timeouts.first_byte"]);
    scene.status.pools[0].servers[0].oldest_running = Some(Duration::from_secs(59));
    assert!(scene.advice().is_empty());
    scene.status.pools[0].servers[0].oldest_running = minute;
    scene.liveness.record(&["127.0.0.1:1".into()]);
    assert!(scene.advice().is_empty(), "it has sent a byte");
}
