//! Each sentence where its cause is there, and none where it isn't.

use std::sync::Arc;

use penstock_control::{AutopilotStatus, Labels, Observation, Scraped, ServerStatus, VariantStatus};
use penstock_engine::input::EndpointId;
use penstock_engine::policy::{Discipline, Policy};
use penstock_engine::{Engine, Outcome};
use penstock_model::Targets;
use penstock_model::learner::State;
use penstock_model::slo::{Slo, Source};

use super::*;

/// What a test changes before it asks.
struct Scene {
    status: Status,
    recent: Recent,
    config: Config,
    uptime: Duration,
}

const NOW: u64 = 10_000;

fn at(seconds: u64) -> Instant {
    Instant::ZERO.after(Duration::from_secs(seconds))
}

/// A pool of two servers, where all is well, with these keys of the pool beside its name and endpoints.
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
            stock: 1,
            bound: 3,
            foreign: 0,
        })
        .collect();
    let server = ServerStatus {
        variant: "default".into(),
        scraped: Some(Scraped::default()),
        foreign: 0,
    };
    let pool = PoolStatus {
        name: "chat".into(),
        addresses: vec!["127.0.0.1:1".into(), "127.0.0.1:2".into()],
        public_flows: ["acme".into()].into(),
        served: Vec::new(),
        other_served: 0,
        discipline: Discipline::Wfq,
        snapshot,
        model: Some(AutopilotStatus {
            slo: Slo {
                targets: Targets::default(),
                source: Source::Explicit,
            },
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
        id: "1".into(),
        node: "envoy".into(),
        envoy: String::new(),
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
        recent: Recent::default(),
        config,
        uptime: Duration::from_secs(600),
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
        desired: Some(2),
        current: 2,
        pending: 0,
    }
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
            pool: "chat".into(),
            model: "m".into(),
            target_model: "m".into(),
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
        self.recent.note(at(seconds), &Observation::Arrived(labels));
    }

    fn left(&mut self, seconds: u64, band: Band, outcome: Outcome) {
        self.left_as(seconds, Self::labels(band, false), outcome);
    }

    fn left_as(&mut self, seconds: u64, labels: Arc<Labels>, outcome: Outcome) {
        let decided = Observation::Decided {
            labels,
            outcome,
            code: "",
            waited: Duration::ZERO,
            endpoint: std::sync::Arc::default(),
        };
        self.recent.note(at(seconds), &decided);
    }

    fn facts(&self) -> Facts<'_> {
        Facts {
            status: &self.status,
            recent: &self.recent,
            config: &self.config,
            config_error: None,
            now: at(NOW),
            uptime: self.uptime,
        }
    }

    fn advice(&self) -> Vec<String> {
        of_pool(&self.facts(), &self.status.pools[0])
    }

    /// The only sentence begins with this and names these keys.
    #[track_caller]
    fn says(&self, begins: &str, names: &[&str]) {
        let advice = self.advice();
        let [only] = &advice[..] else { panic!("{advice:?}") };
        assert!(only.starts_with(begins), "{only}");
        for name in names {
            assert!(only.contains(name), "{name} isn't in {only}");
        }
    }

    #[track_caller]
    fn is_silent(&self) {
        assert_eq!(self.advice(), Vec::<String>::new());
    }
}

#[test]
fn where_all_is_well_nothing_is_said() {
    let scene = scene("");
    scene.is_silent();
    assert_eq!(overall(&scene.facts()), Vec::<String>::new());
}

#[test]
fn the_whole_is_told_of_its_configuration_its_drain_and_its_sessions() {
    let mut scene = scene("");
    scene.status.draining = true;
    scene.status.sessions[0].open = false;
    let facts = Facts {
        config_error: Some("f:3: ttl: above 0"),
        ..scene.facts()
    };
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
fn endpoints_that_are_not_ready_are_named() {
    let mut scene = scene("");
    scene.pool().snapshot.endpoints[1].ready = false;
    scene.says(
        "127.0.0.1:2 isn't ready, its health check fails",
        &["health.path"],
    );
    scene.pool().snapshot.endpoints[1].down_until = Some(at(NOW + 3));
    scene.says("127.0.0.1:2 is marked down", &["3.0s", "down.first"]);
    scene.pool().snapshot.endpoints[0].ready = false;
    let advice = scene.advice();
    assert_eq!(advice.len(), 3, "{advice:?}");
    assert!(
        advice[0].contains("none of its 2 endpoints is ready"),
        "{advice:?}"
    );
    assert!(advice[0].contains("60s (queue.no_endpoint_ttl)"), "{advice:?}");
    scene.pool().snapshot.endpoints.clear();
    scene.says("the pool has no endpoint", &["endpoints", "discovery"]);
}

#[test]
fn a_full_queue_is_said_for_some_minutes() {
    let mut scene = scene("  queue: {total_capacity: 7}\n");
    scene.arrived(NOW - 100, Band::Default);
    scene.left(NOW - 100, Band::Default, Outcome::RejectedTooManyFlows);
    scene.arrived(NOW - 90, Band::Default);
    scene.left(NOW - 90, Band::Default, Outcome::Displaced);
    scene.says(
        "the queue was full: 2 refused",
        &["queue.total_capacity (7)", "5 min"],
    );
    scene.recent = Recent::default();
    scene.arrived(NOW - 400, Band::Default);
    scene.left(NOW - 400, Band::Default, Outcome::RejectedQueueFull);
    scene.is_silent();
}

#[test]
fn a_flow_at_its_capacity_is_named_if_it_may_be() {
    let mut scene = scene("  queue: {flow_capacity: 3}\n");
    let over = Outcome::RejectedFlowCapacity;
    scene.left(NOW, Band::Default, over);
    scene.says(
        "1 refused",
        &["flow `acme`", "may have 3 waiting", "flows.capacities"],
    );
    scene.left_as(NOW, Scene::labels(Band::Default, true), over);
    scene.says("2 refused", &["flow `other`"]);
    scene.recent = Recent::default();
    scene.left(NOW, Band::Default, Outcome::RejectedClassCapacity);
    scene.says("1 refused", &["policy_classes"]);
}

#[test]
fn a_ttl_below_the_p99_of_the_wait_is_said() {
    let mut scene = scene("  queue: {ttl: 1500ms}\n");
    for _ in 0..99 {
        scene.left(NOW, Band::Default, Outcome::Dispatched);
    }
    scene.left(NOW, Band::Default, Outcome::ExpiredTtl);
    scene.is_silent();
    scene.left(NOW, Band::Default, Outcome::ExpiredTtl);
    scene.says(
        "queue.ttl (1500ms) is below the p99",
        &["2 of 101", "add servers"],
    );
}

#[test]
fn a_band_starves_while_another_goes() {
    let mut scene = scene("");
    scene.pool().snapshot.waiting = 1;
    scene.pool().snapshot.bands[2].waiting = 1;
    scene.pool().snapshot.stock = 4;
    scene.arrived(NOW - 20, Band::Sheddable);
    scene.is_silent();
    scene.arrived(NOW - 1, Band::Critical);
    scene.left(NOW - 1, Band::Critical, Outcome::Dispatched);
    scene.says(
        "band sheddable starves: 1 wait",
        &["20s", "critical did", "arbitration.bands.mode"],
    );
    // Something of it went meanwhile.
    scene.arrived(NOW - 1, Band::Sheddable);
    scene.left(NOW - 1, Band::Sheddable, Outcome::Dispatched);
    scene.is_silent();
}

#[test]
fn what_waits_under_an_open_gate_is_said_after_a_while() {
    let mut scene = scene("");
    scene.pool().snapshot.waiting = 3;
    scene.arrived(NOW - 4, Band::Default);
    scene.is_silent();
    scene.recent = Recent::default();
    scene.arrived(NOW - 6, Band::Default);
    scene.says(
        "3 wait though stock 2 is below its bound 4",
        &["6s", "max_in_flight", "/requests/"],
    );
    scene.pool().snapshot.stock = 4;
    scene.is_silent();
    scene.pool().snapshot.stock = 2;
    scene.left(NOW - 2, Band::Critical, Outcome::Dispatched);
    scene.is_silent();
}

#[test]
fn orphans_are_said() {
    let mut scene = scene("");
    scene.pool().orphaned_waiting = 3;
    scene.pool().orphaned_stock = 1;
    scene.says(
        "3 that wait and 1 that run are of Envoy workers",
        &["listen.grpc"],
    );
}

#[test]
fn load_that_is_not_ours_is_said_where_it_matters() {
    let mut scene = scene("");
    scene.pool().snapshot.endpoints[0].foreign = 2;
    scene.says("127.0.0.1:1 runs 2 requests that didn't come through", &["bound"]);
    scene.pool().snapshot.endpoints[0].stock = 100;
    scene.is_silent();
}

#[test]
fn metrics_that_are_not_read_are_said_unless_nobody_asks_for_them() {
    let silent = |keys: &str| {
        let mut scene = scene(keys);
        scene.pool().servers[1].scraped = None;
        scene
    };
    let mut scene = silent("");
    scene.says(
        "nothing that is understood is read from /metrics of 127.0.0.1:2",
        &["scrape.path"],
    );
    scene.uptime = Duration::from_secs(3);
    scene.is_silent();
    silent("  scrape: {path: null}\n").is_silent();
}

#[test]
fn a_fixed_bound_far_from_n_star_is_said_both_ways() {
    let mut scene = scene("");
    scene.variant().n_star = Some(29.5);
    scene.says(
        "stock.watermark_per_backend (2) is far below n* 29.5",
        &["idle", "auto"],
    );
    scene.variant().state = State::Learning;
    scene.is_silent();
    let mut wide = super::tests::scene("  stock: {watermark_per_backend: 64}\n");
    wide.says(
        "stock.watermark_per_backend (64) is far above n* 2.5",
        &["targets"],
    );
    wide.variant().n_star = Some(40.0);
    wide.is_silent();
}

#[test]
fn an_auto_gate_without_a_model_or_a_target_is_said() {
    let mut scene =
        scene("  stock: {watermark_per_backend: auto}\n  slo: {target_ttft: 500, target_itl: 50}\n");
    scene.is_silent();
    for (state, word) in [
        (State::Learning, "still being learnt"),
        (State::Unidentifiable, "one operating point"),
        (State::Error, "contradicts"),
        (State::NoTraffic, "served nothing"),
    ] {
        scene.variant().state = state;
        scene.says("the gate is auto", &[word, "8 requests each (auto_initial)"]);
    }
    scene.variant().state = State::Infeasible;
    scene.says(
        "no load on a server of variant default meets the targets",
        &["slo.target_ttft"],
    );
    scene.variant().state = State::Converged;
    scene.pool().model.as_mut().expect("one").slo.source = Source::None;
    scene.says(
        "stock.watermark_per_backend is auto and there is no target",
        &["slo.target_itl"],
    );
}

#[test]
fn too_few_servers_are_said_with_how_many_more() {
    let mut scene = scene("");
    scene.variant().desired = Some(5);
    scene.variant().pending = 1;
    scene.says(
        "37.0 requests per second are offered",
        &["needs 5 servers and has 2 and 1 not ready", "Add 2"],
    );
}

#[test]
fn a_pool_that_left_the_configuration_says_so() {
    let mut scene = scene("");
    scene.pool().retired = true;
    scene.says("this pool is no longer configured", &[]);
    scene.pool().retired = false;
    scene.config.pools[0].name = "other".into();
    scene.says("this pool is no longer configured", &[]);
}
