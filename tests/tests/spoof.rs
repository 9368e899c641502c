//! Who says what: what only the gateway may say, nobody else does, on any path; and what a client claims counts only
//! from whom `identity.trust` names. `--nocapture` prints what was sent, from whom, and what happened.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use penstock_tests::gateway::{answer, config, pool, slots};
use penstock_tests::{Ask, Call, Gateway, Upstream, run};
use serde_json::json;
use tokio::task::JoinHandle;

/// What a client might try; `{other}` is the address of a server that isn't its pool's.
const CLAIMS: [(&str, &str); 8] = [
    ("x-penstock-route", "{other}"),
    ("x-gateway-destination-endpoint", "{other}"),
    ("X-Gateway-Destination-Endpoint", "{other},{other}"),
    ("x-gateway-destination-endpoint-subset", "{other}"),
    ("x-penstock-endpoint", "{other}"),
    ("x-penstock-pool", "other"),
    ("x-penstock-requeue", "AAAA"),
    ("x-penstock-tolerate", "AAAA"),
];

/// What a server might answer.
const LIES: [(&str, &str); 5] = [
    ("x-penstock-outcome", "spoofed"),
    ("x-penstock-queue-ms", "spoofed"),
    ("x-penstock-saturation", "spoofed"),
    ("x-gateway-destination-endpoint-served", "spoofed"),
    ("x-penstock-served-again", "spoofed"),
];

/// What counts in a policy, but only from a trusted client; none of it reaches a server from anyone else.
const PRIVILEGES: [&str; 6] = [
    "x-penstock-strict-priority",
    "x-penstock-priority-jump",
    "x-penstock-class",
    "x-penstock-endpoint",
    "x-gateway-destination-endpoint-subset",
    "x-penstock-tolerate",
];

/// `identity.trust`, and whether it covers a client on this machine.
const TRUST: [(&str, bool); 4] = [
    ("all", true),
    ("['127.0.0.0/8', '::1/128']", true),
    ("['10.0.0.0/8']", false),
    ("none", false),
];

/// Two servers of one pool with a slot each, one of a pool with classes, one of a pool that nobody asks for.
struct Fixture {
    gateway: Gateway,
    first: Upstream,
    second: Upstream,
    classes: Upstream,
    other: Upstream,
    trust: &'static str,
    trusted: bool,
}

impl Fixture {
    async fn start(trust: &'static str, trusted: bool) -> Self {
        let (first, second) = (Upstream::scripted().await, Upstream::scripted().await);
        let (classes, other) = (Upstream::scripted().await, Upstream::scripted().await);
        let identity = format!(
            "identity: {{trust: {trust}, strict: [{{header: x-penstock-strict-priority}}], \
             jump: [{{header: x-penstock-priority-jump}}]}}\n"
        );
        let by_class = format!(
            "{}  arbitration:\n    classes:\n      default_policy_family: large\n\
             \x20     uncached_isl_buckets: [{{min_tokens: 0, bucket: all}}]\n\
             \x20     policy_classes:\n\
             \x20     - {{name: large, policy_family: large, cache_bucket: all, quantum: 2048}}\n\
             \x20     - {{name: small, policy_family: small, cache_bucket: all, quantum: 512}}\n",
            slots(1)
        );
        let pools = [
            pool("own", "own", &[&first, &second], &slots(1)),
            pool("other", "other", &[&other], ""),
            pool("classes", "classes", &[&classes], &by_class),
        ];
        Self {
            gateway: Gateway::start(&config(&identity, &pools)).await,
            first,
            second,
            classes,
            other,
            trust,
            trusted,
        }
    }

    /// Both slots of the pool, taken: what runs, and what is asked.
    async fn fill(&self) -> ([Call; 2], Vec<JoinHandle<penstock_tests::Answer>>) {
        let asked = (0..2)
            .map(|n| self.gateway.spawn(Ask::chat("own", &format!("held {n}"))))
            .collect();
        ([self.first.next().await, self.second.next().await], asked)
    }

    fn says(&self, what: &str, happened: &str) {
        println!("| {what} | trust {} | {happened} |", self.trust);
    }

    /// Whoever claims this comes before an equal that came first.
    async fn precedes(&self, name: &str, value: &str, counts: bool) {
        let ([one, two], mut asked) = self.fill().await;
        asked.push(self.gateway.spawn(Ask::chat("own", "plain").tenant("t")));
        self.gateway.waiting("own", 1).await;
        let claims = Ask::chat("own", "claims").tenant("t").header(name, value);
        asked.push(self.gateway.spawn(claims));
        self.gateway.waiting("own", 2).await;
        one.answer();
        let before = self.first.next().await;
        two.answer();
        let after = self.second.next().await;
        let order = if counts {
            ["claims", "plain"]
        } else {
            ["plain", "claims"]
        };
        let seen = format!("{name}: {value} under trust {}", self.trust);
        assert_eq!([before.text().as_str(), &after.text()], order, "{seen}");
        for call in [&before, &after] {
            self.has_no_privilege(call);
        }
        before.answer();
        after.answer();
        all_are_200(asked).await;
        self.says(
            &format!("`{name}: {value}`"),
            if counts {
                "goes first"
            } else {
                "ignored: goes in its turn"
            },
        );
    }

    /// Whoever names a server waits for it, though another has room.
    async fn waits_for(&self, name: &str) {
        let ([one, two], mut asked) = self.fill().await;
        one.answer();
        self.gateway.stock("own", 1).await;
        let second = self.second.address().to_string();
        asked.push(
            self.gateway
                .spawn(Ask::chat("own", "claims").header(name, &second)),
        );
        let claims = if self.trusted {
            self.gateway.waiting("own", 1).await;
            assert!(self.first.arrived().await.is_none(), "{name}");
            two.answer();
            self.second.next().await
        } else {
            let claims = self.first.next().await;
            two.answer();
            claims
        };
        assert_eq!(claims.text(), "claims");
        self.has_no_privilege(&claims);
        claims.answer();
        all_are_200(asked).await;
        let happened = if self.trusted {
            "waits for that server"
        } else {
            "ignored: goes to the server with room"
        };
        self.says(&format!("`{name}`: a server that is full"), happened);
    }

    fn has_no_privilege(&self, call: &Call) {
        for name in PRIVILEGES.iter().filter(|_| !self.trusted) {
            assert_eq!(call.header(name), "", "the server got {name}");
        }
    }

    /// The class that a client asks for.
    async fn is_of_class(&self) {
        let held = self.gateway.spawn(Ask::chat("classes", "held"));
        let call = self.classes.next().await;
        let asked = Ask::chat("classes", "claims").header("x-penstock-class", "small");
        let asked = self.gateway.spawn(asked);
        self.gateway.waiting("classes", 1).await;
        let seen = self.gateway.pool("classes").await;
        let waiting = |name: &str| {
            let classes = seen["classes"].as_array().expect("classes");
            let class = classes.iter().find(|it| it["name"] == name);
            class.expect("a class")["waiting"].clone()
        };
        let class = if self.trusted { "small" } else { "large" };
        assert_eq!(waiting(class), 1, "{seen}");
        call.answer();
        let call = self.classes.next().await;
        self.has_no_privilege(&call);
        call.answer();
        all_are_200(vec![held, asked]).await;
        self.says("`x-penstock-class: small`", &format!("is of the class {class}"));
    }

    /// The tenant that a client says it is; an address that it says it comes from is nobody's.
    async fn is_tenant(&self) {
        let ([one, two], mut asked) = self.fill().await;
        let claims = Ask::chat("own", "claims")
            .tenant("acme-corp")
            .header("x-forwarded-for", "10.0.0.1");
        asked.push(self.gateway.spawn(claims));
        self.gateway.waiting("own", 1).await;
        let seen = self.gateway.pool("own").await;
        let shown = seen["flows"]
            .as_array()
            .expect("flows")
            .iter()
            .any(|flow| flow["key"] == "acme-corp");
        assert_eq!(shown, self.trusted, "{seen}");
        one.answer();
        two.answer();
        let call = tokio::select! {
            call = self.first.next() => call,
            call = self.second.next() => call,
        };
        call.answer();
        all_are_200(asked).await;
        let happened = if shown {
            "its flow is acme-corp"
        } else {
            "its flow is one of its address's 64"
        };
        self.says(
            "`x-penstock-tenant: acme-corp`, `x-forwarded-for: 10.0.0.1`",
            happened,
        );
    }

    /// What only the gateway says isn't heard from a client, and not from a server.
    async fn only_the_gateway_says(&self, path: &str, queued: bool) {
        let other = self.other.address().to_string();
        let (name, model) = if queued {
            ("queued", "own")
        } else {
            ("passed through", "own")
        };
        let mut request = self.gateway.client().post(self.gateway.url(path));
        // A pin or a subset without a server of the pool is a wish that can't be met, where it counts.
        let unmeetable = ["x-gateway-destination-endpoint-subset", "x-penstock-endpoint"];
        for (name, value) in CLAIMS {
            if !(queued && self.trusted && unmeetable.contains(&name)) {
                request = request.header(name, value.replace("{other}", &other));
            }
        }
        let asked = tokio::spawn(request.json(&json!({"model": model})).send());
        let (call, own) = tokio::select! {
            call = self.first.next() => (call, self.first.address().to_string()),
            call = self.second.next() => (call, self.second.address().to_string()),
        };
        assert!(
            self.other.arrived().await.is_none(),
            "{path} went where the client wanted"
        );
        for (name, _) in CLAIMS {
            for value in call.headers.get_all(name) {
                let value = value.to_str().unwrap_or_default();
                let spoofed = value.contains(&other) || ["other", "AAAA"].contains(&value);
                assert!(!spoofed, "{path}: the server got {name}: {value}");
            }
        }
        if queued {
            let lists: Vec<_> = call
                .headers
                .get_all("x-gateway-destination-endpoint")
                .iter()
                .collect();
            assert_eq!(lists.len(), 1, "{path}: {lists:?}");
            assert!(
                lists[0]
                    .to_str()
                    .is_ok_and(|list| list.split(',').any(|it| it == own) && !list.contains("envoy")),
                "{path}: {lists:?} without {own}"
            );
        }
        call.respond(200, &LIES, "{}");
        let answer = answer(asked.await.expect("no panic").expect("an answer"))
            .await
            .expect("whole");
        assert_eq!(answer.status, 200);
        for (name, _) in LIES {
            for value in answer.headers.get_all(name) {
                assert_ne!(value, "spoofed", "{path}: the client got {name} of the server");
            }
        }
        if queued {
            assert_eq!(answer.outcome(), "bypassed", "{path}: {:?}", answer.headers);
            let served = answer.header("x-gateway-destination-endpoint-served");
            assert_eq!(served, own, "{path}");
        }
        self.says(
            &format!("endpoint, pool, re-queue token, {name} ({path})"),
            "removed; none reaches a server, and it goes where the gateway says",
        );
    }

    /// A request that is refused says nothing of what it claimed, and reaches nobody.
    async fn refused_in_silence(&self) {
        let other = self.other.address().to_string();
        let before = self.reached();
        let mut ask = Ask::to("/v1/chat/completions", json!({"messages": []}));
        for (name, value) in CLAIMS {
            ask = ask.header(name, &value.replace("{other}", &other));
        }
        let answer = self
            .gateway
            .send(ask.header("x-penstock-outcome", "bypassed"))
            .await;
        answer.expect_error(400, "invalid_request", "rejected_invalid");
        let all = format!("{:?}{}", answer.headers, answer.text());
        assert!(!all.contains(&other) && !all.contains("AAAA"), "{all}");
        assert_eq!(self.reached(), before);
        self.says(
            "the same and an outcome, on a request that is refused",
            "400, no server is reached",
        );
    }

    fn reached(&self) -> usize {
        [&self.first, &self.second, &self.classes, &self.other]
            .iter()
            .map(|server| server.total())
            .sum()
    }

    /// A pin or a subset that names no server of the pool.
    async fn names_no_server(&self, name: &str) {
        let stranger = self.other.address().to_string();
        let asked = self
            .gateway
            .spawn(Ask::chat("own", "claims").header(name, &stranger));
        if self.trusted {
            let answer = asked.await.expect("answered");
            answer.expect_error(503, "no_endpoints", "no_endpoints");
        } else {
            let call = tokio::select! {
                call = self.first.next() => call,
                call = self.second.next() => call,
            };
            call.answer();
            assert_eq!(asked.await.expect("answered").status, 200);
        }
        assert!(
            self.other.arrived().await.is_none(),
            "{name} reached another pool's server"
        );
        self.says(
            &format!("`{name}`: a server of another pool"),
            if self.trusted {
                "503 no_endpoints at once"
            } else {
                "ignored"
            },
        );
    }
}

async fn all_are_200(asked: Vec<JoinHandle<penstock_tests::Answer>>) {
    for one in asked {
        let answer = one.await.expect("answered");
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

async fn judge(trust: &'static str, trusted: bool) {
    let fixture = Fixture::start(trust, trusted).await;
    for path in ["/v1/chat/completions", "/v1/messages", "/v1/embeddings"] {
        fixture.only_the_gateway_says(path, true).await;
    }
    for path in ["/v1/models", "/tokenize"] {
        fixture.only_the_gateway_says(path, false).await;
    }
    fixture.refused_in_silence().await;
    fixture.precedes("x-penstock-priority", "critical", trusted).await;
    fixture.precedes("x-penstock-strict-priority", "9", trusted).await;
    fixture
        .precedes("x-penstock-priority-jump", "3600", trusted)
        .await;
    fixture.is_of_class().await;
    fixture.is_tenant().await;
    for name in ["x-penstock-endpoint", "x-gateway-destination-endpoint-subset"] {
        fixture.waits_for(name).await;
        fixture.names_no_server(name).await;
    }
    lowers(&fixture).await;
    fixture.gateway.stock("own", 0).await;
    let lowered = fixture
        .gateway
        .metrics()
        .await
        .sum("penstock_priority_lowered_total", &[]);
    assert_eq!(lowered > 0.0, !trusted, "{lowered} lowered under trust {trust}");
}

/// Anyone may say that it matters less.
async fn lowers(fixture: &Fixture) {
    let ([one, two], mut asked) = fixture.fill().await;
    let claims = Ask::chat("own", "claims").priority("sheddable");
    asked.push(fixture.gateway.spawn(claims));
    fixture.gateway.waiting("own", 1).await;
    asked.push(fixture.gateway.spawn(Ask::chat("own", "plain")));
    fixture.gateway.waiting("own", 2).await;
    one.answer();
    let before = fixture.first.next().await;
    assert_eq!(before.text(), "plain");
    two.answer();
    fixture.second.next().await.answer();
    before.answer();
    all_are_200(asked).await;
    fixture.says("`x-penstock-priority: sheddable`", "goes after what came later");
}

#[test]
fn claims_count_from_everybody_by_default() {
    run(judge(TRUST[0].0, TRUST[0].1));
}

#[test]
fn claims_count_from_the_networks_that_are_named() {
    run(judge(TRUST[1].0, TRUST[1].1));
}

#[test]
fn claims_from_elsewhere_are_ignored_and_never_reach_a_server() {
    run(judge(TRUST[2].0, TRUST[2].1));
}

#[test]
fn nobodys_claims_count_where_nobody_is_trusted() {
    run(judge(TRUST[3].0, TRUST[3].1));
}

#[test]
fn five_thousand_names_of_one_client_are_64_flows() {
    run(async {
        let server = Upstream::serving(Duration::ZERO).await;
        let pools = [pool("p", "'*'", &[&server], "")];
        let gateway = Gateway::start(&config("identity: {trust: none}\n", &pools)).await;
        let mut names: Vec<String> = (0..5_000).map(|n| format!("tenant-{n}")).collect();
        // One as long as Envoy lets in.
        names.push("n".repeat(50_000));
        let asked = names
            .iter()
            .map(|name| gateway.send(Ask::chat("m", "x").tenant(name)));
        let answers: Vec<_> = stream::iter(asked).buffer_unordered(32).collect().await;
        assert!(answers.iter().all(|answer| answer.status == 200));
        let seen = gateway.pool("p").await;
        let flows = seen["flows"].as_array().expect("flows").len();
        assert!((2..=64).contains(&flows), "{flows} flows");
        let metrics = gateway.metrics().await;
        for said in [seen.to_string(), metrics.text().to_owned()] {
            assert!(!said.contains("tenant-") && !said.contains("nnnn"), "{said}");
        }
        println!("| 5,001 names of one client | trust none | {flows} flows |");
    });
}
