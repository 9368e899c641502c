//! Usage windows that survive a companion, in a file and in Redis; companions that use the same Redis share them, and what
//! they run.

use std::path::Path;

use penstock_tests::gateway::{pool, slots};
use penstock_tests::{Call, ClientGroup, Companion, Envoy, Redis, Upstream, run, until};
use serde_json::json;

/// Longer than any test here keeps the companion away.
const HOLD: &str = "  companion_down: {hold: 60s}\n";
const PASSWORD: &str = "correct-horse-battery-staple";

fn redb(path: &Path) -> String {
    format!("{{redb: '{}'}}", path.display())
}

fn redis(url: &str) -> String {
    format!("{{redis: '{url}'}}")
}

/// One pool with `places` requests at a time and the discipline `usage`.
fn pools(server: &Upstream, store: &str, places: u32) -> Vec<String> {
    let keys = format!(
        "{}{HOLD}  arbitration: {{flows: {{discipline: usage}}}}\n  usage: {{window: 10m, store: {store}}}\n",
        slots(places)
    );
    vec![pool("p", "'*'", &[server], &keys)]
}

/// A companion behind an Envoy in front of a server.
struct Scene {
    companion: Companion,
    _envoy: Envoy,
    server: Upstream,
    crowd: ClientGroup,
}

impl Scene {
    async fn set(store: &str) -> Self {
        Self::with_places(store, 1).await
    }

    async fn with_places(store: &str, places: u32) -> Self {
        let server = Upstream::scripted().await;
        let companion = Companion::start("", &pools(&server, store, places)).await;
        let envoy = Envoy::start(&companion, "envoy").await;
        let mut crowd = ClientGroup::default();
        crowd.join(&envoy, 1).await;
        Self { companion, _envoy: envoy, server, crowd }
    }

    /// Serves a request for the tenant that costs `tokens` tokens: one of output counts twice.
    async fn serve(&mut self, tenant: &str, tokens: u64) {
        self.crowd.ask(0, "p", tenant, tenant).await;
        self.server.next().await.answer_with(tokens - 2, 1);
        assert_eq!(self.crowd.answers().await[0].1.status, 200);
        self.companion.stock("p", 0).await;
    }

    /// Two tenants send a request, in this order, while a third is served; returns the tenant that goes first.
    async fn first_of(&mut self, tenants: [&str; 2]) -> String {
        self.crowd.ask(0, "p", "third", "third").await;
        let third = self.server.next().await;
        for (waiting, tenant) in (1..).zip(tenants) {
            self.crowd.ask(0, "p", tenant, tenant).await;
            self.companion.waiting("p", waiting).await;
        }
        third.answer_with(1, 1);
        let first = self.server.next().await;
        let name = first.text();
        first.answer_with(1, 1);
        self.server.next().await.answer_with(1, 1);
        for (tenant, answer) in self.crowd.answers().await {
            assert_eq!(answer.status, 200, "{tenant}: {}", answer.text());
        }
        name
    }

    /// Waits until the windows hold so many tokens.
    async fn window(&self, tokens: f64) {
        until(&format!("{tokens} tokens in the windows"), || async {
            let metrics = self.companion.metrics().await;
            let found = metrics.sum("penstock_usage_window_tokens", &[("pool", "p")]);
            if found >= tokens { Ok(()) } else { Err(format!("{found}\n{}", self.companion.log())) }
        })
        .await;
    }

    async fn gauge(&self, name: &str) -> f64 {
        self.companion.metrics().await.sum(name, &[("pool", "p")])
    }

    /// Waits until the metric is at most `value`.
    async fn falls(&self, name: &str, value: f64) {
        until(&format!("{name} falls to {value}"), || async {
            let found = self.gauge(name).await;
            if found <= value { Ok(()) } else { Err(format!("{found}\n{}", self.companion.log())) }
        })
        .await;
    }

    /// Waits until the metric is at least `value`.
    async fn reaches(&self, name: &str, value: f64) {
        until(&format!("{name} {value}"), || async {
            let found = self.gauge(name).await;
            if found >= value { Ok(()) } else { Err(format!("{found}\n{}", self.companion.log())) }
        })
        .await;
    }
}

/// A tenant served much by the first companion goes last at the next companion, however the first one ended.
async fn outlives(store: &str) {
    let mut scene = Scene::set(store).await;
    scene.serve("heavy", 5_000).await;
    // No wait for the write: the companion writes the rest when it ends.
    scene.companion.signal(libc::SIGTERM);
    assert!(scene.companion.exit().await.success());
    scene.companion.restart().await;
    scene.window(5_000.0).await;
    scene.serve("light", 100).await;
    assert_eq!(scene.first_of(["heavy", "light"]).await, "light");

    scene.serve("light", 20_000).await;
    let written = scene.gauge("penstock_store_writes_total").await;
    scene.reaches("penstock_store_writes_total", written + 1.0).await;
    scene.companion.kill().await;
    scene.companion.restart().await;
    scene.window(25_000.0).await;
    assert_eq!(scene.first_of(["light", "heavy"]).await, "heavy");
}

#[test]
fn file_keeps_windows_for_the_next_companion() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        outlives(&redb(&folder.path().join("kept.redb"))).await;
    });
}

#[test]
fn redis_keeps_windows_for_the_next_companion() {
    run(async {
        let redis = Redis::start().await;
        outlives(&self::redis(&redis.url())).await;
    });
}

#[test]
fn usage_settled_by_one_companion_counts_at_all_companions_of_a_redis() {
    run(async {
        let redis = Redis::start().await;
        let store = self::redis(&redis.url());
        let mut here = Scene::set(&store).await;
        let mut there = Scene::set(&store).await;
        here.serve("heavy", 5_000).await;
        there.window(5_000.0).await;
        there.serve("light", 100).await;
        assert_eq!(there.first_of(["heavy", "light"]).await, "light");
        // 5,000, 100, and 3 for each of the three.
        here.window(5_109.0).await;
        let twice = here.gauge("penstock_usage_window_tokens").await;
        assert!(twice < 6_000.0, "its own is counted once: {twice}");
        assert_eq!(here.first_of(["heavy", "light"]).await, "light");
    });
}

const ELSEWHERE: &str = "penstock_usage_running_elsewhere_tokens";

/// Two companions of a Redis; the first runs three requests of the tenant "heavy".
async fn busy_and_idle(redis: &Redis) -> (Scene, Vec<Call>, Scene) {
    let store = self::redis(&redis.url());
    let mut busy = Scene::with_places(&store, 3).await;
    let idle = Scene::set(&store).await;
    let mut calls = Vec::new();
    for number in 0..3 {
        busy.crowd.ask(0, "p", "heavy", &number.to_string()).await;
        calls.push(busy.server.next().await);
    }
    busy.companion.stock("p", 3).await;
    let estimate = busy.gauge("penstock_usage_window_tokens").await;
    assert!(estimate > 0.0);
    idle.reaches(ELSEWHERE, estimate).await;
    assert_eq!(idle.gauge(ELSEWHERE).await, estimate, "all three, once");
    assert_eq!(busy.gauge(ELSEWHERE).await, 0.0, "its own don't count twice");
    (busy, calls, idle)
}

#[test]
fn what_a_companion_runs_counts_at_all_companions_of_a_redis_until_it_ends() {
    run(async {
        let redis = Redis::start().await;
        let (mut busy, calls, mut idle) = busy_and_idle(&redis).await;
        assert_eq!(idle.first_of(["heavy", "light"]).await, "light");
        for call in calls {
            call.answer_with(998, 1);
        }
        for (text, answer) in busy.crowd.answers().await {
            assert_eq!(answer.status, 200, "{text}: {}", answer.text());
        }
        idle.falls(ELSEWHERE, 0.0).await;
        // Three times 1,000, and 3 for each of the three that were served there.
        idle.window(3_009.0).await;
        assert_eq!(idle.gauge("penstock_usage_window_tokens").await, 3_009.0);
        assert_eq!(idle.first_of(["heavy", "light"]).await, "light");
    });
}

#[test]
fn what_a_killed_companion_ran_stops_counting() {
    run(async {
        let redis = Redis::start().await;
        let (mut busy, _calls, mut idle) = busy_and_idle(&redis).await;
        busy.companion.kill().await;
        idle.falls(ELSEWHERE, 0.0).await;
        assert_eq!(idle.first_of(["heavy", "light"]).await, "heavy", "by arrival");
    });
}

#[test]
fn what_runs_elsewhere_stops_counting_without_redis_and_counts_again_with_it() {
    run(async {
        let mut redis = Redis::start().await;
        let (busy, _calls, mut idle) = busy_and_idle(&redis).await;
        redis.kill().await;
        idle.falls(ELSEWHERE, 0.0).await;
        assert_eq!(idle.first_of(["heavy", "light"]).await, "heavy", "by arrival");
        redis.restart().await;
        idle.reaches(ELSEWHERE, 1.0).await;
        assert_eq!(idle.first_of(["heavy", "light"]).await, "light");
        drop(busy);
    });
}

#[test]
fn redis_that_starts_late_is_used_from_then_on() {
    run(async {
        let mut redis = Redis::absent(Some(PASSWORD)).await;
        let mut scene = Scene::set(&self::redis(&redis.url())).await;
        assert_eq!(scene.gauge("penstock_store_up").await, 0.0);
        scene.serve("heavy", 5_000).await;
        until("it is said once", || async {
            let log = scene.companion.log();
            let said = log.lines().filter(|line| line.contains("usage.store: redis://:***@")).count();
            if said == 1 { Ok(()) } else { Err(log) }
        })
        .await;
        redis.restart().await;
        scene.reaches("penstock_store_up", 1.0).await;
        scene.reaches("penstock_store_writes_total", 1.0).await;
        scene.companion.kill().await;
        scene.companion.restart().await;
        scene.window(5_000.0).await;
        scene.serve("light", 100).await;
        assert_eq!(scene.first_of(["heavy", "light"]).await, "light");
    });
}

#[test]
fn redis_restart_under_load_affects_no_client() {
    run(async {
        let mut redis = Redis::start().await;
        let servers = Upstream::several(1, std::time::Duration::from_millis(2), 1).await;
        let store = self::redis(&redis.url());
        let companion = Companion::start("", &pools(&servers[0], &store, 1)).await;
        let envoy = Envoy::start(&companion, "envoy").await;
        let mut crowd = ClientGroup::default();
        crowd.join(&envoy, 2).await;
        for round in 0..3 {
            for number in 0..100 {
                let tenant = format!("tenant-{}", number % 7);
                crowd.ask(number % 2, "p", &tenant, &format!("{round} {number}")).await;
            }
            match round {
                0 => redis.kill().await,
                1 => redis.restart().await,
                _ => {}
            }
        }
        for (text, answer) in crowd.answers().await {
            assert_eq!(answer.status, 200, "{text}: {}", answer.text());
        }
        until("all of it is written", || async {
            let up = companion.metrics().await.sum("penstock_store_up", &[("pool", "p")]);
            if up == 1.0 { Ok(()) } else { Err(companion.log()) }
        })
        .await;
    });
}

#[test]
fn redis_password_is_on_no_page_and_in_no_log() {
    run(async {
        let mut redis = Redis::absent(Some(PASSWORD)).await;
        redis.restart().await;
        let mut scene = Scene::set(&self::redis(&redis.url())).await;
        scene.reaches("penstock_store_up", 1.0).await;
        let shown = scene.companion.get("/config").await.expect("a page");
        let mut document = shown.json();
        let url = document["pools"][0]["usage"]["store"]["redis"].clone();
        assert_eq!(url, redis.url().replace(PASSWORD, "***"));

        // The masked URL may be sent back; a masked URL of another server is rejected.
        document["startup_wait"] = json!("3s");
        let json = [("content-type", "application/json")];
        let answer = scene.companion.change("PUT", "/config", &json, &document.to_string()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let patch = json!({"pools": {"p": {"queue": {"ttl": "70s"}}}}).to_string();
        let answer = scene.companion.change("PATCH", "/config", &json, &patch).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        document["pools"][0]["usage"]["store"]["redis"] = json!("redis://:***@127.0.0.2:1/3");
        let answer = scene.companion.change("PUT", "/config", &json, &document.to_string()).await;
        assert_eq!(answer.status, 422, "{}", answer.text());
        assert!(answer.text().contains("not the URL of a redis server"), "{}", answer.text());
        scene.serve("heavy", 5_000).await;
        scene.reaches("penstock_store_writes_total", 1.0).await;

        for page in ["/config", "/status", "/metrics"] {
            let text = scene.companion.get(page).await.expect("a page").text();
            assert!(!text.contains(PASSWORD), "{page}: {text}");
        }
        // The server's own message explains a rejected login.
        let wrong = redis.url().replace(PASSWORD, "wrong-password");
        let patch = json!({"pools": {"p": {"usage": {"store": {"redis": wrong}}}}}).to_string();
        let answer = scene.companion.change("PATCH", "/config", &json, &patch).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        until("it says that it isn't let in", || async {
            let log = scene.companion.log();
            if log.contains("the companion continues from memory") { Ok(()) } else { Err(log) }
        })
        .await;
        let log = scene.companion.log();
        assert!(!log.contains(PASSWORD) && !log.contains("wrong-password"), "{log}");
    });
}
