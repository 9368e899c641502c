//! Budgets of tenants through a real gateway: what clients get when one is used up, what operators see, and what they may change.

use std::time::Duration;

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::{Answer, ClientRequest, Gateway, Upstream, run, until};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// What every answer here costs: 20 tokens of prompt at 1, and 10 of output at 2.
const COST: u64 = 40;

struct Fixture {
    gateway: Gateway,
    refuse: Upstream,
    requests: Upstream,
    demote: Upstream,
    hold: Upstream,
    reset: Upstream,
    shadow: Upstream,
    users: Upstream,
    slash: Upstream,
}

/// The part of a pool with one budget, for flows that begin with `t`.
fn budget(flows: &str, windows: &str, over: &str) -> String {
    format!(
        "{}  arbitration: {{flows: {{{flows}budgets: [{{match: 't*', windows: [{windows}], {over}}}]}}}}\n",
        slots(1)
    )
}

/// One gateway; every test has a pool of its own.
async fn shared() -> &'static Fixture {
    static SHARED: OnceCell<Fixture> = OnceCell::const_new();
    SHARED
        .get_or_init(|| async {
            let servers = [(); 8].map(|()| Upstream::scripted());
            let [refuse, requests, demote, hold, reset, shadow, users, slash] = servers;
            let (refuse, requests, demote, hold) = (refuse.await, requests.await, demote.await, hold.await);
            let (reset, shadow, users, slash) = (reset.await, shadow.await, users.await, slash.await);
            let hour = "{tokens: 100, per: 1h}";
            let refusing = budget("", hour, "over: refuse");
            let counting = budget("", "{requests: 2, per: 1h}", "over: refuse");
            let demoting = budget("", "{tokens: 10, per: 1h}", "over: demote");
            let holding = budget("", "{requests: 1, per: 3s}", "over: hold").replace(&slots(1), &slots(2));
            let patient = budget("", "{requests: 1, per: 1h}", "over: hold");
            let shadowing = budget("", "{requests: 1, per: month}", "over: refuse, shadow: true");
            let of_users = budget("key: user, ", hour, "over: refuse");
            let joined = budget("key: [fairness_id, model], ", hour, "over: refuse");
            let pools = [
                pool("refuse", "refuse", &[&refuse], &refusing),
                pool("requests", "requests", &[&requests], &counting),
                pool("demote", "demote", &[&demote], &demoting),
                pool("hold", "hold", &[&hold], &holding),
                pool("reset", "reset", &[&reset], &patient),
                pool("shadow", "shadow", &[&shadow], &shadowing),
                pool("users", "users", &[&users], &of_users),
                pool("slash", "slash", &[&slash], &joined),
            ];
            Fixture {
                gateway: Gateway::start(&config("", &pools)).await,
                refuse,
                requests,
                demote,
                hold,
                reset,
                shadow,
                users,
                slash,
            }
        })
        .await
}

fn ask(pool: &str, tenant: &str) -> ClientRequest {
    ClientRequest::chat(pool, tenant).tenant(tenant).with("max_tokens", 10)
}

/// Sends a request that the server answers, and waits until its cost is settled.
async fn serve(gateway: &Gateway, server: &Upstream, ask: ClientRequest) -> Answer {
    let pool = ask.body()["model"].as_str().unwrap_or_default().to_owned();
    let sent = gateway.spawn(ask);
    server.next().await.answer_with(20, 10);
    let answer = sent.await.expect("answered");
    assert_eq!(answer.status, 200, "{}", answer.text());
    gateway.stock(&pool, 0).await;
    answer
}

/// The rows of `/budgets` for a pool.
async fn rows(gateway: &Gateway, pool: &str) -> Vec<Value> {
    let page = gateway.get(&format!("/budgets?pool={pool}")).await.expect("an answer");
    assert_eq!(page.status, 200, "{}", page.text());
    page.json().as_array().cloned().expect("a list")
}

/// The only window of the only flow of a pool.
async fn window(gateway: &Gateway, pool: &str) -> Value {
    let rows = rows(gateway, pool).await;
    assert_eq!(rows.len(), 1, "{rows:?}");
    rows[0]["windows"][0].clone()
}

async fn change(gateway: &Gateway, path: &str, body: &Value) -> Answer {
    let path = format!("/budgets/{path}");
    let body = body.to_string();
    gateway.pages().change("PATCH", &path, &[], &body).await
}

fn number(answer: &Answer, header: &str) -> u64 {
    let value = answer.header(header);
    value.parse().unwrap_or_else(|error| panic!("{header}: {value}: {error}"))
}

#[test]
fn a_used_up_budget_refuses_until_it_is_topped_up_or_reset() {
    run(async {
        let all = shared().await;
        let (gateway, server) = (&all.gateway, &all.refuse);
        let mut left = Vec::new();
        for _ in 0..3 {
            let answer = serve(gateway, server, ask("refuse", "t-ann")).await;
            assert_eq!(number(&answer, "x-ratelimit-limit-tokens"), 100);
            left.push(number(&answer, "x-ratelimit-remaining-tokens"));
            let reset = answer.header("x-ratelimit-reset-tokens");
            assert!(reset.ends_with('s') && reset.contains('m'), "{reset}");
        }
        assert!(left[0] < 100 && left.is_sorted_by(|a, b| a > b || *a == 0), "{left:?}");
        let seen = window(gateway, "refuse").await;
        let amounts =
            ["unit", "per", "limit", "used", "reserved", "remaining", "debt"].map(|key| seen[key].clone());
        assert_eq!(json!(amounts), json!(["tokens", "1h", 100, 3 * COST, 0, 0, 20]));

        let refused = gateway.send(ask("refuse", "t-ann")).await;
        refused.expect_error(429, "budget_exceeded", "rejected_budget");
        let wait = number(&refused, "retry-after");
        // The room of an hour returns one to two minutes late; some seconds of it have passed.
        assert!((3_601..=3_720).contains(&wait), "{wait}");
        assert_eq!(number(&refused, "x-ratelimit-limit-tokens"), 100);
        assert_eq!(number(&refused, "x-ratelimit-remaining-tokens"), 0);
        assert_eq!(refused.json()["error"]["type"], "rate_limit_error");
        // Codex would sleep for all that time without this type.
        let body = json!({"model": "refuse", "input": "hi", "stream": true});
        let refused = gateway.send(ClientRequest::to("/v1/responses", body).tenant("t-ann")).await;
        assert_eq!((refused.status, refused.outcome()), (429, "rejected_budget"));
        let error = refused.json()["error"].clone();
        assert_eq!(
            (&error["code"], &error["type"]),
            (&json!("budget_exceeded"), &json!("usage_limit_reached"))
        );
        assert_eq!(error["resets_in_seconds"], number(&refused, "retry-after"), "{error}");
        serve(gateway, server, ask("refuse", "bob")).await;

        let topped_up = change(gateway, "refuse/t-ann", &json!({"add_tokens": 50})).await;
        assert_eq!(topped_up.status, 200, "{}", topped_up.text());
        let row = topped_up.json();
        assert_eq!(row["windows"][0]["remaining"], 30, "20 pay the debt: {row}");
        assert_eq!((&row["flow"], &row["has_room"]), (&json!("t-ann"), &json!(true)));
        serve(gateway, server, ask("refuse", "t-ann")).await;
        assert_eq!(gateway.send(ask("refuse", "t-ann")).await.code(), "budget_exceeded");

        let reset = change(gateway, "refuse/t-ann", &json!({"reset": true})).await;
        assert_eq!((reset.status, &reset.json()["windows"][0]["used"]), (200, &json!(0)));
        let answer = serve(gateway, server, ask("refuse", "t-ann")).await;
        assert_eq!(number(&answer, "x-ratelimit-remaining-tokens"), left[0]);
    });
}

#[test]
fn a_budget_of_requests_counts_requests_and_has_gauges() {
    run(async {
        let all = shared().await;
        let (gateway, server) = (&all.gateway, &all.requests);
        for left in [1, 0] {
            let answer = serve(gateway, server, ask("requests", "t-ann")).await;
            assert_eq!(number(&answer, "x-ratelimit-limit-requests"), 2);
            assert_eq!(number(&answer, "x-ratelimit-remaining-requests"), left);
            assert_eq!(answer.header("x-ratelimit-limit-tokens"), "");
        }
        let refused = gateway.send(ask("requests", "t-ann")).await;
        refused.expect_error(429, "budget_exceeded", "rejected_budget");
        assert_eq!(number(&refused, "x-ratelimit-remaining-requests"), 0);

        let metrics = gateway.metrics().await;
        let labels = [("pool", "requests"), ("flow", "t-ann"), ("window", "1h requests")];
        let gauges = ["used", "limit", "remaining"]
            .map(|name| metrics.sum(&format!("penstock_budget_{name}"), &labels));
        assert_eq!(gauges, [2.0, 2.0, 0.0], "{}", metrics.text());
        let budgets = gateway.pool("requests").await["budgets"].clone();
        assert_eq!((&budgets[0]["flow"], &budgets[0]["has_room"]), (&json!("t-ann"), &json!(false)));

        let no_tokens = change(gateway, "requests/t-ann", &json!({"add_tokens": 5})).await;
        assert_eq!((no_tokens.status, no_tokens.code()), (422, "invalid_budget_change".into()));
        assert!(no_tokens.message().contains("counts requests only"), "{}", no_tokens.message());
        assert_eq!(change(gateway, "requests/t-ann", &json!({"reset": true})).await.status, 200);
        serve(gateway, server, ask("requests", "t-ann")).await;
    });
}

#[test]
fn a_demoted_tenant_is_served_while_others_leave_room_and_never_before_them() {
    run(async {
        let all = shared().await;
        let (gateway, server) = (&all.gateway, &all.demote);
        serve(gateway, server, ask("demote", "t-over")).await;
        assert_eq!(rows(gateway, "demote").await[0]["has_room"], false);
        serve(gateway, server, ask("demote", "t-over")).await;

        let mut asked = vec![gateway.spawn(ask("demote", "holder"))];
        let call = server.next().await;
        for (waiting, tenant) in ["t-over", "within", "t-fresh"].into_iter().enumerate() {
            // A sheddable priority would go after a default one anyway: what is demoted goes after it, too.
            asked.push(gateway.spawn(ask("demote", tenant).priority("sheddable")));
            gateway.waiting("demote", waiting as u64 + 1).await;
        }
        call.answer_with(20, 10);
        for expected in ["within", "t-fresh", "t-over"] {
            let call = server.next().await;
            assert_eq!(call.text(), expected);
            call.answer_with(20, 10);
        }
        for answer in asked {
            assert_eq!(answer.await.expect("answered").status, 200);
        }
    });
}

#[test]
fn a_held_request_goes_when_the_window_has_room() {
    run(async {
        let all = shared().await;
        let (gateway, server) = (&all.gateway, &all.hold);
        let asked = [(); 2].map(|()| gateway.spawn(ask("hold", "t-ann")));
        for _ in &asked {
            server.next().await.answer_with(20, 10);
        }
        let mut outcomes = Vec::new();
        for answer in asked {
            let answer = answer.await.expect("answered");
            assert_eq!(answer.status, 200, "{}", answer.text());
            outcomes.push(answer.outcome().to_owned());
        }
        outcomes.sort();
        assert_eq!(outcomes, ["bypassed", "dispatched"]);
        assert_eq!(server.peak(), 1);
    });
}

#[test]
fn a_held_request_goes_at_once_when_the_budget_is_reset() {
    run(async {
        let all = shared().await;
        let (gateway, server) = (&all.gateway, &all.reset);
        serve(gateway, server, ask("reset", "t-ann")).await;
        let held = gateway.spawn(ask("reset", "t-ann"));
        gateway.waiting("reset", 1).await;
        serve(gateway, server, ask("reset", "bob")).await;
        gateway.waiting("reset", 1).await;
        let reset = change(gateway, "reset/t-ann", &json!({"reset": true})).await;
        assert_eq!(reset.status, 200);
        server.next().await.answer_with(20, 10);
        let answer = held.await.expect("answered");
        assert_eq!((answer.status, answer.outcome()), (200, "dispatched"));
    });
}

#[test]
fn a_shadow_refuses_nothing_and_counts_what_it_would_have_refused() {
    run(async {
        let all = shared().await;
        let (gateway, server) = (&all.gateway, &all.shadow);
        for _ in 0..3 {
            let answer = serve(gateway, server, ask("shadow", "t-ann")).await;
            assert_eq!(answer.header("x-ratelimit-limit-requests"), "");
        }
        let labels = [("pool", "shadow"), ("flow", "t-ann"), ("over", "refuse")];
        let shadowed = gateway.metrics().await.sum("penstock_budget_shadow_total", &labels);
        assert!((shadowed - 2.0).abs() < f64::EPSILON, "{shadowed}");
        let row = &rows(gateway, "shadow").await[0];
        assert_eq!((&row["shadow"], &row["windows"][0]["used"]), (&json!(true), &json!(3)));
    });
}

#[test]
fn flows_named_by_a_body_are_other_in_metrics_and_not_listed() {
    run(async {
        let all = shared().await;
        let (gateway, server) = (&all.gateway, &all.users);
        serve(gateway, server, ask("users", "any").with("user", "t-secret")).await;
        assert_eq!(rows(gateway, "users").await, Vec::<Value>::new());
        assert_eq!(gateway.pool("users").await["budgets"], json!([]));
        let metrics = gateway.metrics().await;
        let used = metrics.sum("penstock_budget_used", &[("pool", "users"), ("flow", "other")]);
        assert!((used - 40.0).abs() < f64::EPSILON, "{}", metrics.text());
        assert!(!metrics.text().contains("t-secret"));
    });
}

#[test]
fn a_flow_of_several_keys_is_named_with_its_slash() {
    run(async {
        let all = shared().await;
        let (gateway, server) = (&all.gateway, &all.slash);
        serve(gateway, server, ask("slash", "t-ann")).await;
        for path in ["slash/t-ann%2Fslash", "slash/t-ann/slash"] {
            let changed = change(gateway, path, &json!({"add_tokens": 1})).await;
            assert_eq!((changed.status, &changed.json()["flow"]), (200, &json!("t-ann/slash")), "{path}");
        }
        assert_eq!(window(gateway, "slash").await["remaining"], 100 - COST + 2);
    });
}

#[test]
fn wrong_changes_are_refused_with_what_is_allowed() {
    run(async {
        let gateway = &shared().await.gateway;
        let reset = json!({"reset": true});
        for (path, code, word) in
            [("nowhere/t-ann", "unknown_pool", "nowhere"), ("refuse/nobody", "no_budget", "nobody")]
        {
            let answer = change(gateway, path, &reset).await;
            assert_eq!((answer.status, answer.code()), (404, code.into()), "{path}");
            assert!(answer.message().contains(word), "{}", answer.message());
        }
        for body in [json!({}), json!({"add_tokens": 0}), json!({"reset": false}), json!({"limit": 5})] {
            let answer = change(gateway, "refuse/t-ann", &body).await;
            assert_eq!((answer.status, answer.code()), (422, "invalid_budget_change".into()), "{body}");
            let message = answer.message();
            assert!(message.contains("add_tokens") && message.contains("reset"), "{message}");
        }
        let patch = async |headers: &[(&str, &str)]| {
            let answer = gateway.pages().change("PATCH", "/budgets/refuse/t-ann", headers, "{}").await;
            answer.status
        };
        assert_eq!(patch(&[("content-type", "text/plain")]).await, 415);
        assert_eq!(patch(&[("host", "evil.example")]).await, 403);
    });
}

#[test]
fn with_a_token_only_its_holder_changes_budgets_and_sees_private_flows() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let token = folder.path().join("token");
        std::fs::write(&token, "a-long-secret\n").expect("written");
        let server = Upstream::scripted().await;
        let of_users = budget("key: user, ", "{tokens: 100, per: 1h}", "over: refuse");
        let head = format!("admin: {{token_file: '{}'}}\n", token.display());
        let gateway = Gateway::start(&config(&head, &[pool("users", "users", &[&server], &of_users)])).await;
        serve(&gateway, &server, ask("users", "any").with("user", "t-secret")).await;
        assert_eq!(rows(&gateway, "users").await, Vec::<Value>::new());
        let bearer = [("authorization", "Bearer a-long-secret")];
        let listed = gateway.pages().get_with("/budgets", &bearer).await.json();
        assert_eq!(listed[0]["flow"], "t-secret", "{listed}");

        let patch = async |headers: &[(&str, &str)]| {
            let body = r#"{"add_tokens": 7}"#;
            gateway.pages().change("PATCH", "/budgets/users/t-secret", headers, body).await.status
        };
        assert_eq!(patch(&[]).await, 401);
        assert_eq!(patch(&[("authorization", "Bearer another-secret")]).await, 401);
        assert_eq!(patch(&bearer).await, 200);
        let logged = until("the change is logged", || async {
            let log = gateway.process.log();
            let line = log.lines().find(|line| line.contains("budget topped up"));
            line.map(str::to_owned).ok_or(log.clone())
        })
        .await;
        for part in ["127.0.0.1:", "users", "t-secret", "7"] {
            assert!(logged.contains(part), "{part}: {logged}");
        }
        assert!(!gateway.process.log().contains("a-long-secret"));
    });
}

/// What a stream sends before its client leaves.
const EVENTS: usize = 100;

/// A client that leaves when it has read so many events. The server counts nothing.
async fn leave_stream(gateway: &Gateway, server: &Upstream, ask: ClientRequest, event: &str) {
    let reading = async {
        let mut response = gateway.open(ask.streamed()).await.expect("headers");
        let mut read = String::new();
        while read.matches("word").count() < EVENTS {
            let chunk = response.chunk().await.expect("a part").expect("more");
            read.push_str(&String::from_utf8_lossy(&chunk));
        }
    };
    let serving = async {
        let events = server.next().await.stream();
        for _ in 0..EVENTS {
            events.raw(event.to_owned());
        }
        events.gone().await;
    };
    tokio::join!(reading, serving);
}

#[test]
fn a_tenant_that_leaves_early_uses_up_its_budget() {
    run(async {
        let server = Upstream::scripted().await;
        let keys = budget("", "{tokens: 300, per: 1h}", "over: refuse");
        let gateway = Gateway::start(&config("", &[pool("leave", "leave", &[&server], &keys)])).await;
        let chat = "data: {\"choices\": [{\"index\": 0, \"delta\": {\"content\": \"word\"}}]}\n\n";
        let messages = "event: content_block_delta\ndata: {\"type\": \"content_block_delta\", \"index\": 0, \
                        \"delta\": {\"type\": \"text_delta\", \"text\": \"word\"}}\n\n";
        let responses = "event: response.output_text.delta\ndata: {\"type\": \"response.output_text.delta\", \
                         \"delta\": \"word\"}\n\n";
        let body = ask("leave", "t").with("max_tokens", 1_000).body();
        let asked = json!({"model": "leave", "input": "t", "max_output_tokens": 1_000});
        for (path, body, event) in [
            ("/v1/chat/completions", &body, chat),
            ("/v1/messages", &body, messages),
            ("/v1/responses", &asked, responses),
        ] {
            let tenant = format!("t{}", path.len());
            let ask = || ClientRequest::to(path, body.clone()).tenant(&tenant);
            let mut streams = 0;
            loop {
                leave_stream(&gateway, &server, ask(), event).await;
                gateway.stock("leave", 0).await;
                streams += 1;
                let rows = rows(&gateway, "leave").await;
                let row = rows.iter().find(|row| row["flow"] == *tenant).expect("a row");
                let used = row["windows"][0]["used"].as_u64().expect("a number");
                assert!(used >= 100 * streams, "{path}: {row}");
                if used >= 300 {
                    break;
                }
            }
            let refused = gateway.send(ask()).await;
            assert_eq!((refused.status, refused.outcome()), (429, "rejected_budget"), "{path}");
        }
        // Who leaves before a whole document comes pays for the time.
        let waiting = gateway.spawn(ClientRequest::to("/v1/chat/completions", body.clone()).tenant("t"));
        let mut call = server.next().await;
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        waiting.abort();
        call.gone().await;
        gateway.stock("leave", 0).await;
        let rows = rows(&gateway, "leave").await;
        let row = rows.iter().find(|row| row["flow"] == "t").expect("a row");
        assert!(row["windows"][0]["used"].as_u64().is_some_and(|used| used >= 30), "{row}");
    });
}
