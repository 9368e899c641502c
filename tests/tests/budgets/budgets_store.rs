//! Budgets, and changes of them by hand, that survive a companion, in a file and in Redis, and hold at all gateways that use the same Redis.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use penstock_tests::gateway::{pool, slots};
use penstock_tests::h2c::H2c;
use penstock_tests::{Answer, ClientRequest, Companion, Envoy, Redis, Upstream, run, until};
use serde_json::{Value, json};

/// Longer than any test here keeps the companion away.
const HOLD: &str = "  companion_down: {hold: 60s}\n";

fn redb(path: &Path) -> String {
    format!("{{redb: '{}'}}", path.display())
}

fn redis(redis: &Redis) -> String {
    format!("{{redis: '{}'}}", redis.url())
}

/// Between two requests that find out whether a gateway has heard of the other one. Each of them uses some of the budget.
const PROBE_INTERVAL: Duration = Duration::from_millis(50);

/// A companion behind an Envoy, in front of a server that answers by itself with a usage of 12 tokens, or as the test says.
struct Gateway {
    companion: Companion,
    envoy: Envoy,
    server: Upstream,
    client: H2c,
}

impl Gateway {
    /// A gateway on which the tenants `limited*` have a budget with this window, and are refused beyond it.
    async fn start(server: Upstream, store: &str, window: &str) -> Self {
        Self::with_budget(server, store, &format!("windows: [{window}]")).await
    }

    async fn with_budget(server: Upstream, store: &str, budget: &str) -> Self {
        let budgets = format!("[{{match: 'limited*', {budget}, over: refuse}}]");
        let keys = format!(
            "{}{HOLD}  arbitration: {{flows: {{budgets: {budgets}}}}}\n  usage: {{output_token_weight: 1, store: {store}}}\n",
            slots(50)
        );
        let companion = Companion::start("", &[pool("p", "'*'", &[&server], &keys)]).await;
        let envoy = Envoy::start(&companion, "envoy").await;
        let client = H2c::connect(envoy.gateway()).await;
        Self { companion, envoy, server, client }
    }

    async fn serving(store: &str, window: &str) -> Self {
        Self::start(Upstream::serving(Duration::from_millis(2)).await, store, window).await
    }

    async fn ask(&mut self, tenant: &str) -> Answer {
        ask(&mut self.client, tenant).await
    }

    /// Serves so many requests of the tenant.
    async fn serve(&mut self, tenant: &str, count: usize) {
        for number in 0..count {
            let answer = self.ask(tenant).await;
            assert_eq!(answer.status, 200, "{number}: {}", answer.text());
        }
    }

    /// Sends requests of the tenant until one is refused for its budget; returns the refusal, and how many were served before.
    async fn serve_until_refused(&mut self, tenant: &str) -> (Answer, usize) {
        let mut served = 0;
        loop {
            let answer = self.ask(tenant).await;
            match answer.status {
                200 => served += 1,
                429 => {
                    assert!(answer.text().contains("budget_exceeded"), "{}", answer.text());
                    return (answer, served);
                }
                status => panic!("{status}: {}", answer.text()),
            }
        }
    }

    /// Sends requests from time to time until one is refused, so that the tenant's budget lasts until the other gateway's usage arrives; returns how many were
    /// served before.
    async fn probe_until_refused(&self, tenant: &str) -> usize {
        let served = AtomicUsize::new(0);
        let address = self.envoy.gateway();
        until("a request is refused", || async {
            tokio::time::sleep(PROBE_INTERVAL).await;
            let answer = ask(&mut H2c::connect(address).await, tenant).await;
            if answer.status == 429 {
                return Ok(());
            }
            served.fetch_add(1, Ordering::Relaxed);
            Err(format!("{}: {}", answer.status, answer.text()))
        })
        .await;
        served.into_inner()
    }

    /// The first window of the tenant, of which this companion has seen a request.
    async fn window(&self, tenant: &str) -> Value {
        let rows = self.companion.get("/budgets?pool=p").await.expect("an answer");
        let rows: Vec<Value> = serde_json::from_value(rows.json()).expect("a list");
        let row = rows.into_iter().find(|row| row["flow"] == tenant);
        row.map_or(Value::Null, |row| row["windows"][0].clone())
    }

    /// Waits until the tenant's first window has these amounts: what is used, what is reserved, and what remains.
    async fn shows(&self, tenant: &str, used: u64, reserved: u64, remaining: u64) {
        let expected = json!([used, reserved, remaining]);
        until(&format!("the budget shows {expected}"), || async {
            let window = self.window(tenant).await;
            let found = json!([window["used"], window["reserved"], window["remaining"]]);
            if found == expected { Ok(()) } else { Err(window.to_string()) }
        })
        .await;
    }

    async fn shows_used(&self, tenant: &str, used: u64) {
        until(&format!("{used} are used"), || async {
            let window = self.window(tenant).await;
            if window["used"] == used { Ok(()) } else { Err(window.to_string()) }
        })
        .await;
    }

    /// Waits until everything that was served of the tenant is settled.
    async fn settled(&self, tenant: &str) {
        until("nothing is reserved", || async {
            let window = self.window(tenant).await;
            if window["reserved"] == 0 { Ok(()) } else { Err(window.to_string()) }
        })
        .await;
    }

    /// Serves requests of the tenant, each after the last one is settled, until one is refused; returns how many.
    async fn serve_all(&mut self, tenant: &str) -> usize {
        let mut served = 0;
        loop {
            let answer = self.ask(tenant).await;
            if answer.status == 429 {
                return served;
            }
            assert_eq!(answer.status, 200, "{}", answer.text());
            served += 1;
            self.settled(tenant).await;
        }
    }

    /// Changes the tenant's budget by hand; returns its windows after that.
    async fn change(&self, tenant: &str, change: Value) -> Value {
        let path = format!("/budgets/p/{tenant}");
        let answer = self.companion.change("PATCH", &path, &[], &change.to_string()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["windows"].clone()
    }

    /// Replaces the configuration while the companion runs, for the `number`th time.
    async fn activate(&self, config: &str, number: u64) {
        let beside = self.companion.config().with_extension("new");
        std::fs::write(&beside, config).expect("written");
        std::fs::rename(&beside, self.companion.config()).expect("renamed");
        until("the configuration is active", || async {
            let page = self.companion.get("/status").await.expect("an answer").json();
            if page["config"]["reloads"] == number { Ok(()) } else { Err(self.companion.log()) }
        })
        .await;
    }

    /// Ends the companion as an operator does, and starts the next one.
    async fn replace(&mut self) {
        self.companion.signal(libc::SIGTERM);
        assert!(self.companion.exit().await.success());
        self.companion.restart().await;
    }

    async fn writes(&self) -> f64 {
        let metrics = self.companion.metrics().await;
        metrics.sum("penstock_store_writes_total", &[("pool", "p")])
    }

    /// Waits until the store has been written after this call.
    async fn written(&self) {
        self.written_since(self.writes().await).await;
    }

    /// Waits until the store has been written more often than so many times.
    async fn written_since(&self, before: f64) {
        until("the store is written", || async {
            if self.writes().await > before { Ok(()) } else { Err(self.companion.log()) }
        })
        .await;
    }

    async fn logged(&self, line: &str) {
        until(&format!("the log has `{line}`"), || async {
            let log = self.companion.log();
            if log.contains(line) { Ok(()) } else { Err(log) }
        })
        .await;
    }
}

async fn ask(client: &mut H2c, tenant: &str) -> Answer {
    let request = ClientRequest::chat("m", tenant).tenant(tenant);
    let response = client.ask(&request).await;
    H2c::answer(response).await.expect("an answer")
}

/// A budget of 100 requests, of which none becomes free again while a test runs.
const HUNDRED: &str = "{requests: 100, per: 30m}";

/// The companion is killed while a tenant is served. The next one refuses it when it has used its budget, but for what the first one had
/// not written.
async fn outlives(kind: &str, store: &str) {
    let mut gateway = Gateway::serving(store, HUNDRED).await;
    gateway.serve("limited", 30).await;
    gateway.written().await;
    // Nothing of these is surely written.
    gateway.serve("limited", 20).await;
    gateway.companion.kill().await;
    gateway.companion.restart().await;
    let (_, served) = gateway.serve_until_refused("limited").await;
    let known = 100 - served;
    println!(
        "{kind}: kill -9 after 50 of 100 requests: {known} were known to the next companion, 30 at least"
    );
    assert!((30..=50).contains(&known), "what was written is known: {known}");
    // The end of a companion that is asked to end loses nothing.
    gateway.companion.signal(libc::SIGTERM);
    assert!(gateway.companion.exit().await.success());
    gateway.companion.restart().await;
    assert_eq!(gateway.serve_until_refused("limited").await.1, 0);
    gateway.serve("free", 5).await;
}

#[test]
fn file_keeps_budgets_for_the_next_companion() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        outlives("redb", &redb(&folder.path().join("kept.redb"))).await;
    });
}

#[test]
fn redis_keeps_budgets_for_the_next_companion() {
    run(async {
        let server = Redis::start().await;
        outlives("redis", &redis(&server)).await;
    });
}

/// A request of 1,000 tokens in a window of 100 is paid back for ten windows, also by the next companion.
async fn debt_outlives(store: &str) {
    let server = Upstream::scripted().await;
    let mut gateway = Gateway::start(server, store, "{tokens: 100, per: 20s}").await;
    let request = ClientRequest::chat("m", "large").tenant("limited");
    let answer = gateway.client.ask(&request).await;
    gateway.server.next().await.answer_with(999, 1);
    assert_eq!(H2c::answer(answer).await.expect("an answer").status, 200);
    gateway.companion.signal(libc::SIGTERM);
    assert!(gateway.companion.exit().await.success());
    gateway.companion.restart().await;
    let refused = gateway.serve_until_refused("limited").await.0;
    let wait: u64 = refused.header("retry-after").parse().expect("seconds");
    println!("1,000 tokens of 100 in 20 s: after a restart the tenant waits for {wait} s more");
    assert!((21..=210).contains(&wait), "more than one window: {wait}");
}

#[test]
fn what_is_owed_in_a_file_is_owed_after_a_restart() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        debt_outlives(&redb(&folder.path().join("kept.redb"))).await;
    });
}

#[test]
fn what_is_owed_in_redis_is_owed_after_a_restart() {
    run(async {
        let server = Redis::start().await;
        debt_outlives(&redis(&server)).await;
    });
}

/// A budget of 20 requests, of which none becomes free again while a test runs.
const TWENTY: &str = "{requests: 20, per: 30m}";

#[test]
fn what_runs_at_a_gateway_counts_at_the_other_one_until_the_gateway_is_killed() {
    run(async {
        let server = Redis::start().await;
        let store = redis(&server);
        let mut there = Gateway::serving(&store, TWENTY).await;
        let mut here = Gateway::start(Upstream::scripted().await, &store, TWENTY).await;
        let mut held = Vec::new();
        for number in 0..40 {
            let tenant = if number < 20 { "limited-first" } else { "limited-later" };
            let request = ClientRequest::chat("m", tenant).tenant(tenant);
            let answer = here.client.ask(&request).await;
            held.push((answer, here.server.next().await));
        }
        here.written().await;
        // What is known of the later requests is known of the first ones.
        let served = there.probe_until_refused("limited-later").await;
        assert!(served < 20, "not for what it has served itself: {served}");
        let refused = there.ask("limited-first").await;
        assert_eq!(refused.status, 429, "{}", refused.text());
        here.companion.kill().await;
        until_served(&there, "limited-first").await;
    });
}

/// Waits until a request of the tenant is served.
async fn until_served(gateway: &Gateway, tenant: &str) {
    let address = gateway.envoy.gateway();
    until("a request is served", || async {
        let answer = ask(&mut H2c::connect(address).await, tenant).await;
        if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
    })
    .await;
}

/// Redis is away while a tenant uses its budget at one gateway; `empty`: it comes back without data. Both gateways go on, and afterwards
/// the other one knows of it.
async fn redis_away(empty: bool) {
    let mut server = Redis::start().await;
    let store = redis(&server);
    let mut here = Gateway::serving(&store, HUNDRED).await;
    let mut there = Gateway::serving(&store, HUNDRED).await;
    here.serve("limited", 10).await;
    here.written().await;
    server.kill().await;
    let writes = here.writes().await;
    here.serve("limited", 85).await;
    there.serve("limited", 10).await;
    for gateway in [&here, &there] {
        gateway.logged("the companion continues from memory").await;
    }
    if empty {
        server.lose_data();
    }
    server.restart().await;
    here.written_since(writes).await;
    // The warning itself ends with the last two of these words.
    there.logged("/3 works again").await;
    let served = there.probe_until_refused("limited").await;
    let kind = if empty { "empty" } else { "with its data" };
    println!("redis away, back {kind}: 105 of 100 were used, {served} more before the other gateway knew");
    assert!(served < 80, "it would have 80 left if it had not learned of the other gateway: {served}");
}

#[test]
fn redis_that_comes_back_is_caught_up_with() {
    run(redis_away(false));
}

#[test]
fn redis_that_comes_back_empty_is_caught_up_with() {
    run(redis_away(true));
}

/// Seconds since 1970 began, as the pages of a companion write a time.
fn shown(seconds: u64) -> String {
    humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + Duration::from_secs(seconds)).to_string()
}

/// Weeks in Tokyo that begin on Sunday end there at midnight, and their usage is kept by a companion that is killed.
async fn a_week_in_tokyo(store: &str) {
    let windows = "windows: [{requests: 3, per: week}, {requests: 9, per: day}, {requests: 9, per: month}]";
    let budget = format!("{windows}, timezone: Asia/Tokyo, starts: {{weekday: sunday, day: 15}}");
    let server = Upstream::serving(Duration::from_millis(2)).await;
    let mut gateway = Gateway::with_budget(server, store, &budget).await;
    gateway.serve("limited", 3).await;
    gateway.written().await;
    gateway.companion.kill().await;
    gateway.companion.restart().await;
    let refused = gateway.ask("limited").await;
    assert_eq!(refused.status, 429, "{}", refused.text());

    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs();
    // Tokyo is nine hours ahead, always. Day 0 was a Thursday, so the first Sunday was day 3.
    let (ahead, day) = (9 * 3_600, 86_400);
    let today = (now + ahead) / day;
    let weeks = (today - 3) / 7 + 1;
    let page = gateway.companion.get("/budgets?pool=p").await.expect("an answer").json();
    let windows = page[0]["windows"].clone();
    let of_week = json!([windows[0]["per"], windows[0]["used"], windows[0]["resets_at"]]);
    assert_eq!(of_week, json!(["week", 3, shown((weeks * 7 + 3) * day - ahead)]), "{page}");
    assert_eq!(windows[1]["resets_at"], shown((today + 1) * day - ahead), "{page}");
    let month = windows[2]["resets_at"].as_str().expect("a time");
    assert!(month.ends_with("-14T15:00:00Z"), "{month}");
    let wait: u64 = refused.header("retry-after").parse().expect("seconds");
    let until_sunday = (weeks * 7 + 3) * day - ahead - now;
    assert!((until_sunday..=until_sunday + 60).contains(&wait), "{wait} s, not {until_sunday} s");
}

#[test]
fn a_week_in_another_time_zone_is_kept_in_a_file() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        a_week_in_tokyo(&redb(&folder.path().join("usage.redb"))).await;
    });
}

#[test]
fn a_week_in_another_time_zone_is_kept_in_redis() {
    run(async {
        let server = Redis::start().await;
        a_week_in_tokyo(&redis(&server)).await;
    });
}

/// A budget of ten requests' tokens, of which none becomes free again while a test runs.
const TEN: &str = "{tokens: 120, per: 30m}";

/// A top-up and a reset are known to the next companion, although each is followed by a crash.
async fn changes_outlive(store: &str) {
    let mut gateway = Gateway::serving(store, TEN).await;
    assert_eq!(gateway.serve_all("limited").await, 10);
    // From here on nothing is written but the change.
    gateway.replace().await;
    let writes = gateway.writes().await;
    gateway.change("limited", json!({"add_tokens": 60})).await;
    gateway.written_since(writes).await;
    gateway.companion.kill().await;
    gateway.companion.restart().await;
    assert_eq!(gateway.serve_all("limited").await, 5, "60 tokens");
    gateway.replace().await;
    assert_eq!(gateway.serve_all("limited").await, 0, "the top-up is used up");

    let writes = gateway.writes().await;
    gateway.change("limited", json!({"reset": true})).await;
    gateway.written_since(writes).await;
    gateway.companion.kill().await;
    gateway.companion.restart().await;
    assert_eq!(gateway.serve_all("limited").await, 10, "neither usage nor top-up");
}

#[test]
fn changes_of_a_budget_in_a_file_outlive_a_crash() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        changes_outlive(&redb(&folder.path().join("kept.redb"))).await;
    });
}

#[test]
fn changes_of_a_budget_in_redis_outlive_a_crash() {
    run(async {
        let server = Redis::start().await;
        changes_outlive(&redis(&server)).await;
    });
}

#[test]
fn a_top_up_at_one_gateway_is_used_once_at_both_together() {
    run(async {
        let server = Redis::start().await;
        let store = redis(&server);
        let mut here = Gateway::serving(&store, TEN).await;
        let mut there = Gateway::serving(&store, TEN).await;
        there.serve("limited", 1).await;
        here.serve("limited", 1).await;
        here.shows("limited", 24, 0, 96).await;
        assert_eq!(here.serve_all("limited").await, 8);
        there.shows("limited", 120, 0, 0).await;

        let topped_up = here.change("limited", json!({"add_tokens": 60})).await;
        assert_eq!(topped_up[0]["remaining"], 60);
        there.shows("limited", 120, 0, 60).await;
        there.serve("limited", 2).await;
        here.shows("limited", 144, 0, 36).await;
        let rest = here.serve_all("limited").await;
        there.shows("limited", 180, 0, 0).await;
        println!(
            "60 tokens added at one gateway: 2 requests of 12 served at the other, then {rest} at the one"
        );
        assert_eq!(rest, 3);
        for gateway in [&mut here, &mut there] {
            assert_eq!(gateway.ask("limited").await.status, 429);
        }
    });
}

#[test]
fn a_reset_at_one_gateway_forgets_what_the_other_one_has_not_written_and_what_it_runs() {
    run(async {
        let server = Redis::start().await;
        let store = redis(&server);
        let windows = "{tokens: 1000, per: 30m}, {tokens: 1000, per: month}";
        let mut here = Gateway::serving(&store, windows).await;
        let mut there = Gateway::start(Upstream::scripted().await, &store, windows).await;
        here.serve("limited", 1).await;
        here.settled("limited").await;
        let request = ClientRequest::chat("m", "limited").tenant("limited").with("max_tokens", 10);
        let ask_there = async |there: &mut Gateway, tokens: u64| {
            let answer = there.client.ask(&request).await;
            there.server.next().await.answer_with(tokens - 1, 1);
            assert_eq!(H2c::answer(answer).await.expect("an answer").status, 200);
        };
        let long = there.client.ask(&request).await;
        let call = there.server.next().await;
        there.shows_used("limited", 12).await;
        ask_there(&mut there, 90).await;
        there.shows_used("limited", 102).await;

        // The 90 are written within a second, so mostly they aren't yet.
        here.change("limited", json!({"reset": true})).await;
        there.shows("limited", 0, 0, 1_000).await;
        call.answer_with(49, 1);
        assert_eq!(H2c::answer(long).await.expect("an answer").status, 200);
        ask_there(&mut there, 7).await;
        there.shows("limited", 7, 0, 993).await;
        here.shows("limited", 7, 0, 993).await;

        // The same is in the hashes that the next companions read.
        for gateway in [&mut here, &mut there] {
            gateway.companion.kill().await;
            gateway.companion.restart().await;
            let windows = gateway.change("limited", json!({"add_tokens": 1})).await;
            let used = [0, 1].map(|number| windows[number]["used"].clone());
            assert_eq!(used, [7, 7], "{windows}");
        }
    });
}

#[test]
fn a_pool_that_gets_budgets_after_a_reset_shares_what_it_uses() {
    run(async {
        let server = Redis::start().await;
        let store = redis(&server);
        let mut here = Gateway::serving(&store, TEN).await;
        here.serve("limited", 1).await;
        let mut there = Gateway::serving(&store, TEN).await;
        let with_budgets = std::fs::read_to_string(there.companion.config()).expect("a configuration");
        let without = with_budgets.replace("match: 'limited*'", "match: 'nobody'");
        there.activate(&without.replace(&store, "memory"), 1).await;
        let writes = here.writes().await;
        here.change("limited", json!({"reset": true})).await;
        here.written_since(writes).await;
        there.activate(&with_budgets, 2).await;
        there.serve("limited", 2).await;
        there.shows_used("limited", 24).await;
        here.shows_used("limited", 24).await;
        here.serve("limited", 1).await;
        there.shows_used("limited", 36).await;
    });
}

#[test]
fn resets_at_two_gateways_without_redis_leave_the_same_usage_at_both() {
    run(async {
        let mut server = Redis::start().await;
        let store = redis(&server);
        let mut here = Gateway::serving(&store, TEN).await;
        let mut there = Gateway::serving(&store, TEN).await;
        here.serve("limited", 1).await;
        there.serve("limited", 1).await;
        here.shows_used("limited", 24).await;
        server.kill().await;
        for gateway in [&mut here, &mut there] {
            gateway.serve("limited", 1).await;
            gateway.change("limited", json!({"reset": true})).await;
            gateway.serve("limited", 1).await;
            gateway.change("limited", json!({"reset": true})).await;
            gateway.serve("limited", 1).await;
            gateway.settled("limited").await;
        }
        server.restart().await;
        // Whichever comes to redis last, what its gateway has used since then counts, and nothing of the other one's.
        here.shows("limited", 12, 0, 108).await;
        there.shows("limited", 12, 0, 108).await;
        there.serve("limited", 1).await;
        here.shows("limited", 24, 0, 96).await;
        there.shows("limited", 24, 0, 96).await;
    });
}

/// When the answers came, in seconds.
type Served = Vec<f64>;

/// The most answers of a gateway within so many seconds.
fn peak(served: &Served, seconds: f64) -> usize {
    let within =
        |first: &f64| served.iter().filter(|time| **time >= *first && **time < first + seconds).count();
    served.iter().map(within).max().unwrap_or(0)
}

/// Sends requests of the tenant, one after the other, until `end`; returns when each was served.
async fn flood(address: std::net::SocketAddr, begin: Instant, end: Duration) -> Served {
    let mut client = H2c::connect(address).await;
    let mut served = Vec::new();
    while begin.elapsed() < end {
        let answer = ask(&mut client, "limited").await;
        match answer.status {
            200 => served.push(begin.elapsed().as_secs_f64()),
            429 => tokio::time::sleep(Duration::from_millis(20)).await,
            status => panic!("{status}: {}", answer.text()),
        }
    }
    served
}

/// Sends requests of a tenant without a budget until `end`; returns how many were served.
async fn trickle(address: std::net::SocketAddr, begin: Instant, end: Duration) -> usize {
    let mut client = H2c::connect(address).await;
    let mut served = 0;
    while begin.elapsed() < end {
        let answer = ask(&mut client, "free").await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        served += 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    served
}

/// A request's tokens, as the server answers.
const TOKENS: usize = 12;
const LIMIT: usize = 360;
const WINDOWS: usize = 10;
const WINDOW: Duration = Duration::from_secs(3);

#[test]
fn a_tenant_that_floods_two_gateways_has_one_budget() {
    run(async {
        let server = Redis::start().await;
        let store = redis(&server);
        let window = format!("{{tokens: {LIMIT}, per: {}s}}", WINDOW.as_secs());
        let one = Gateway::serving(&store, &window).await;
        let two = Gateway::serving(&store, &window).await;
        let (begin, end) = (Instant::now(), WINDOW * u32::try_from(WINDOWS).expect("few"));
        let gateways = [one.envoy.gateway(), two.envoy.gateway()];
        let floods = async {
            let both = gateways.map(|address| async move {
                let (mut first, second, third) = tokio::join!(
                    flood(address, begin, end),
                    flood(address, begin, end),
                    flood(address, begin, end)
                );
                first.extend(second);
                first.extend(third);
                first
            });
            let [first, second] = both;
            tokio::join!(first, second)
        };
        let ((first, second), free_one, free_two) =
            tokio::join!(floods, trickle(gateways[0], begin, end), trickle(gateways[1], begin, end));
        let used = TOKENS * (first.len() + second.len());
        let texts = [one.server.texts_together(), two.server.texts_together()].concat();
        let limited = texts.iter().filter(|text| *text == "limited").count();
        assert_eq!(used, TOKENS * limited, "the servers have counted the same");
        // What one gateway dispatches until it hears of the other: a second until the exchange, and as much for a busy machine.
        let unknown = TOKENS * peak(&first, 2.0).max(peak(&second, 2.0));
        // The window that had begun before, and the requests that ran when the last one was refused.
        let bound = LIMIT * (WINDOWS + 1) + unknown + 6 * TOKENS;
        let together = [first, second].concat();
        let most = TOKENS * peak(&together, WINDOW.as_secs_f64());
        println!(
            "{WINDOWS} windows of {LIMIT} tokens at two gateways: {used} used, {most} at most in one window; bound {bound}, without \
             a shared budget {}; {} requests without a budget served",
            2 * LIMIT * WINDOWS,
            free_one + free_two
        );
        assert!(used <= bound, "{used} of at most {bound}");
        assert!(used >= LIMIT * WINDOWS / 2, "the budget is there to be used: {used}");
        assert!(free_one > 0 && free_two > 0);
    });
}
