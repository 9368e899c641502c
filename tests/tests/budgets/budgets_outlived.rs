//! Budgets that outlive the request that has used them, the companion that has counted them, and the time that one answer of Redis may take.

use std::time::{SystemTime, UNIX_EPOCH};

use penstock_tests::gateway::{pool, slots};
use penstock_tests::h2c::H2c;
use penstock_tests::{Answer, ClientRequest, Companion, Envoy, Redis, Upstream, run, until};
use serde_json::Value;

/// A companion behind an Envoy, in front of a server that answers as the test says.
struct Gateway {
    companion: Companion,
    /// Runs as long as the gateway.
    envoy: Envoy,
    server: Upstream,
    client: H2c,
}

impl Gateway {
    /// A gateway on which the tenants `limited*` have a budget with this window, and are refused beyond it.
    async fn start(store: &str, window: &str) -> Self {
        let server = Upstream::scripted().await;
        let budgets = format!("[{{match: 'limited*', windows: [{window}], over: refuse}}]");
        let keys = format!(
            "{}  companion_down: {{hold: 60s}}\n  arbitration: {{flows: {{budgets: {budgets}}}}}\n  usage: {{output_token_weight: 1, store: {store}}}\n",
            slots(50)
        );
        let companion = Companion::start("", &[pool("p", "'*'", &[&server], &keys)]).await;
        let envoy = Envoy::start(&companion, "envoy").await;
        let client = H2c::connect(envoy.gateway()).await;
        Self { companion, envoy, server, client }
    }

    /// Serves a request that uses so many tokens of the prompt and of the answer.
    async fn serve(&mut self, tenant: &str, prompt: u64, output: u64) {
        let request = ClientRequest::chat("m", tenant).tenant(tenant);
        let answer = self.client.ask(&request).await;
        self.server.next().await.answer_with(prompt, output);
        assert_eq!(H2c::answer(answer).await.expect("an answer").status, 200);
    }

    /// A request that is refused at once.
    async fn refused(&mut self, tenant: &str) -> Answer {
        let request = ClientRequest::chat("m", tenant).tenant(tenant);
        let answer = self.client.ask(&request).await;
        let answer = H2c::answer(answer).await.expect("an answer");
        assert_eq!(answer.status, 429, "{}", answer.text());
        answer
    }

    /// Waits until the first window of the tenant, of which this companion has seen a request, is as `is` says.
    async fn shows(&self, tenant: &str, what: &str, is: impl Fn(&Value) -> bool) {
        until(what, || async {
            let rows = self.companion.get("/budgets?pool=p").await.expect("an answer");
            let rows: Vec<Value> = serde_json::from_value(rows.json()).expect("a list");
            let row = rows.into_iter().find(|row| row["flow"] == tenant);
            let window = row.map_or(Value::Null, |row| row["windows"][0].clone());
            if is(&window) { Ok(()) } else { Err(window.to_string()) }
        })
        .await;
    }

    /// Serves a request of the tenant `limited` that uses 900 tokens, nearly all of its estimate, and ends when its window of 3 s is over.
    async fn outlive_the_window(&mut self) {
        // From this, the companion learns how long the answers of the model are.
        self.serve("free", 5, 1_000).await;
        let request = ClientRequest::chat("m", "long").tenant("limited");
        let answer = self.client.ask(&request).await;
        let call = self.server.next().await;
        self.shows("limited", "the estimate is reserved", |window| window["reserved"].as_u64() > Some(900))
            .await;
        self.shows("limited", "the window is over", |window| window["reserved"] == 0).await;
        call.answer_with(5, 895);
        assert_eq!(H2c::answer(answer).await.expect("an answer").status, 200);
    }
}

const WINDOW: &str = "{tokens: 100, per: 3s}";

fn is_in_debt(window: &Value) -> bool {
    window["debt"].as_u64() > Some(0)
}

#[test]
fn a_debt_of_a_request_that_outlives_its_window_is_owed_at_every_gateway() {
    run(async {
        let server = Redis::start().await;
        let store = format!("{{redis: '{}'}}", server.url());
        let mut here = Gateway::start(&store, WINDOW).await;
        let mut there = Gateway::start(&store, WINDOW).await;
        there.serve("limited", 5, 5).await;
        here.outlive_the_window().await;
        there.shows("limited", "the debt is known there", is_in_debt).await;
        there.refused("limited").await;
    });
}

/// The next companion refuses the tenant for longer than a window.
async fn outlives_a_restart(store: &str) {
    let mut gateway = Gateway::start(store, WINDOW).await;
    gateway.outlive_the_window().await;
    gateway.shows("limited", "the request is settled", is_in_debt).await;
    gateway.companion.signal(libc::SIGTERM);
    assert!(gateway.companion.exit().await.success());
    gateway.companion.restart().await;
    let refused = gateway.refused("limited").await;
    let wait: u64 = refused.header("retry-after").parse().expect("seconds");
    assert!(wait > 3, "the debt of several windows: {wait} s");
}

#[test]
fn a_debt_of_a_request_that_outlives_its_window_is_owed_after_a_restart_with_a_file() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("kept.redb");
        outlives_a_restart(&format!("{{redb: '{}'}}", path.display())).await;
    });
}

#[test]
fn a_debt_of_a_request_that_outlives_its_window_is_owed_after_a_restart_with_redis() {
    run(async {
        let server = Redis::start().await;
        outlives_a_restart(&format!("{{redis: '{}'}}", server.url())).await;
    });
}

/// Adds 1,600 fields of 100,000 tokens to a bucket.
const FILL: &str = "
for first = 0, 1500, 100 do
  local fields = {}
  for flow = first, first + 99 do
    fields[#fields + 1] = 'tlimited-' .. flow
    fields[#fields + 1] = 100000
  end
  redis.call('HSET', KEYS[1], unpack(fields))
end
redis.call('PEXPIREAT', KEYS[1], ARGV[2])
return redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
";

#[test]
fn nearly_a_million_rows_in_redis_are_restored_while_usage_is_written_and_counted() {
    run(async {
        let server = Redis::start().await;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        let minute = u64::try_from(now.as_millis()).expect("small") / 60_000;
        for number in 0..600 {
            let bucket = (minute - number) * 60_000;
            let name = format!("3600000:{bucket}");
            let key = format!("penstock:1:budget:p:{name}");
            let expires = (bucket + 36_010_000).to_string();
            let words = ["EVAL", FILL, "2", &key, "penstock:1:budgets:p", &name, &expires];
            server.command(&words).await;
        }
        let store = format!("{{redis: '{}'}}", server.url());
        let mut gateway = Gateway::start(&store, "{tokens: 1000000, per: 1h}").await;
        for _ in 0..3 {
            gateway.serve("limited-own", 7, 5).await;
        }
        until("the rows are restored", || async {
            let log = gateway.companion.log();
            if log.contains("budgets restored") { Ok(()) } else { Err(log) }
        })
        .await;
        gateway.serve("limited-own", 7, 5).await;
        gateway.shows("limited-own", "its own usage counts once", |window| window["used"] == 48).await;
        until("a tenant of the past is refused", || async {
            let mut client = H2c::connect(gateway.envoy.gateway()).await;
            let request = ClientRequest::chat("m", "past").tenant("limited-77");
            let answer = client.ask(&request).await;
            let answered = tokio::select! {
                answer = H2c::answer(answer) => answer.expect("an answer"),
                call = gateway.server.next() => {
                    call.answer_with(0, 1);
                    return Err("served".to_owned());
                }
            };
            if answered.status == 429 { Ok(()) } else { Err(answered.text()) }
        })
        .await;
        let log = gateway.companion.log();
        assert!(!log.contains("failed"), "{log}");
    });
}
