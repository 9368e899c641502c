//! Forged headers: headers reserved for the gateway are removed from clients and servers on every path, and a client's claims count only
//! if `identity.trust` covers the client. `--nocapture` prints each header, its sender and the effect.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::{Answer, Call, ClientRequest, Gateway, Upstream, run};
use serde_json::json;
use tokio::task::JoinHandle;

/// Headers that a client may try; `{other}` is the address of another pool's server.
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

/// Headers that a server may send.
const LIES: [(&str, &str); 5] = [
    ("x-penstock-outcome", "spoofed"),
    ("x-penstock-queue-ms", "spoofed"),
    ("x-penstock-saturation", "spoofed"),
    ("x-gateway-destination-endpoint-served", "spoofed"),
    ("x-penstock-served-again", "spoofed"),
];

/// Headers that count only from a trusted client; from other clients they never reach a server.
const PRIVILEGES: [&str; 6] = [
    "x-penstock-strict-priority",
    "x-penstock-priority-jump",
    "x-penstock-class",
    "x-penstock-endpoint",
    "x-gateway-destination-endpoint-subset",
    "x-penstock-tolerate",
];

/// `identity.trust`, and whether it covers a client on this machine.
const TRUST: [(&str, bool); 4] =
    [("all", true), ("['127.0.0.0/8', '::1/128']", true), ("['10.0.0.0/8']", false), ("none", false)];

/// Two servers of one pool with a place each, one server of a pool with classes, one of a pool that receives no requests.
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

    /// Takes both places of the pool; returns the running calls and the clients' tasks.
    async fn fill(&self) -> ([Call; 2], Vec<JoinHandle<Answer>>) {
        let asked =
            (0..2).map(|n| self.gateway.spawn(ClientRequest::chat("own", &format!("held {n}")))).collect();
        ([self.first.next().await, self.second.next().await], asked)
    }

    fn report(&self, what: &str, happened: &str) {
        println!("| {what} | trust {} | {happened} |", self.trust);
    }

    /// A request with this claim goes before an equal, earlier one, if the claim counts.
    async fn precedes(&self, name: &str, value: &str, counts: bool) {
        let ([one, two], mut asked) = self.fill().await;
        asked.push(self.gateway.spawn(ClientRequest::chat("own", "plain").tenant("t")));
        self.gateway.waiting("own", 1).await;
        let claims = ClientRequest::chat("own", "claims").tenant("t").header(name, value);
        asked.push(self.gateway.spawn(claims));
        self.gateway.waiting("own", 2).await;
        one.answer();
        let before = self.first.next().await;
        two.answer();
        let after = self.second.next().await;
        let order = if counts { ["claims", "plain"] } else { ["plain", "claims"] };
        let seen = format!("{name}: {value} under trust {}", self.trust);
        assert_eq!([before.text().as_str(), &after.text()], order, "{seen}");
        for call in [&before, &after] {
            self.has_no_privilege(call);
        }
        before.answer();
        after.answer();
        all_are_200(asked).await;
        self.report(
            &format!("`{name}: {value}`"),
            if counts { "goes first" } else { "ignored: goes in its turn" },
        );
    }

    /// A request that names a server waits for it, although another server has room.
    async fn waits_for(&self, name: &str) {
        let ([one, two], mut asked) = self.fill().await;
        one.answer();
        self.gateway.stock("own", 1).await;
        let second = self.second.address().to_string();
        asked.push(self.gateway.spawn(ClientRequest::chat("own", "claims").header(name, &second)));
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
        let happened =
            if self.trusted { "waits for that server" } else { "ignored: goes to the server with room" };
        self.report(&format!("`{name}`: a server that is full"), happened);
    }

    fn has_no_privilege(&self, call: &Call) {
        for name in PRIVILEGES.iter().filter(|_| !self.trusted) {
            assert_eq!(call.header(name), "", "the server got {name}");
        }
    }

    /// The class that a client asks for counts, if the client is trusted.
    async fn is_of_class(&self) {
        let held = self.gateway.spawn(ClientRequest::chat("classes", "held"));
        let call = self.classes.next().await;
        let asked = ClientRequest::chat("classes", "claims").header("x-penstock-class", "small");
        let asked = self.gateway.spawn(asked);
        self.gateway.waiting("classes", 1).await;
        let seen = self.gateway.pool("classes").await;
        let waiting = |name: &str| {
            let classes = seen["classes"].as_array().expect("classes");
            let class = classes.iter().find(|class| class["name"] == name);
            class.expect("a class")["waiting"].clone()
        };
        let class = if self.trusted { "small" } else { "large" };
        assert_eq!(waiting(class), 1, "{seen}");
        call.answer();
        let call = self.classes.next().await;
        self.has_no_privilege(&call);
        call.answer();
        all_are_200(vec![held, asked]).await;
        self.report("`x-penstock-class: small`", &format!("is of the class {class}"));
    }

    /// The tenant that a client claims counts; a forwarded address that it claims does not.
    async fn is_tenant(&self) {
        let ([one, two], mut asked) = self.fill().await;
        let claims =
            ClientRequest::chat("own", "claims").tenant("acme-corp").header("x-forwarded-for", "10.0.0.1");
        asked.push(self.gateway.spawn(claims));
        self.gateway.waiting("own", 1).await;
        let seen = self.gateway.pool("own").await;
        let shown = seen["flows"].as_array().expect("flows").iter().any(|flow| flow["key"] == "acme-corp");
        assert_eq!(shown, self.trusted, "{seen}");
        one.answer();
        two.answer();
        let call = tokio::select! {
            call = self.first.next() => call,
            call = self.second.next() => call,
        };
        call.answer();
        all_are_200(asked).await;
        let happened = if shown { "its flow is acme-corp" } else { "its flow is one of its address's 64" };
        self.report("`x-penstock-tenant: acme-corp`, `x-forwarded-for: 10.0.0.1`", happened);
    }

    /// Headers reserved for the gateway are removed from clients and servers.
    async fn reserved_headers_are_removed(&self, path: &str, queued: bool) {
        let other = self.other.address().to_string();
        let (name, model) = if queued { ("queued", "own") } else { ("passed through", "own") };
        let mut request = self.gateway.client().post(self.gateway.url(path));
        // Where it counts, a pin or a subset without an endpoint of the pool cannot be satisfied.
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
        assert!(self.other.arrived().await.is_none(), "{path} went where the client wanted");
        for (name, _) in CLAIMS {
            for value in call.headers.get_all(name) {
                let value = value.to_str().unwrap_or_default();
                let spoofed = value.contains(&other) || ["other", "AAAA"].contains(&value);
                assert!(!spoofed, "{path}: the server got {name}: {value}");
            }
        }
        if queued {
            let lists: Vec<_> = call.headers.get_all("x-gateway-destination-endpoint").iter().collect();
            assert_eq!(lists.len(), 1, "{path}: {lists:?}");
            assert!(
                lists[0].to_str().is_ok_and(
                    |list| list.split(',').any(|address| address == own) && !list.contains("envoy")
                ),
                "{path}: {lists:?} without {own}"
            );
        }
        call.respond(200, &LIES, "{}");
        let answer = Answer::read(asked.await.expect("no panic").expect("an answer")).await.expect("whole");
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
        self.report(
            &format!("endpoint, pool, re-queue token, {name} ({path})"),
            "removed; none reaches a server, and it goes where the gateway says",
        );
    }

    /// A rejected request reaches no server, and its response repeats none of its claims.
    async fn rejection_repeats_no_claims(&self) {
        let other = self.other.address().to_string();
        let before = self.reached();
        let mut ask = ClientRequest::to("/v1/chat/completions", json!({"messages": []}));
        for (name, value) in CLAIMS {
            ask = ask.header(name, &value.replace("{other}", &other));
        }
        let answer = self.gateway.send(ask.header("x-penstock-outcome", "bypassed")).await;
        answer.expect_error(400, "invalid_request", "rejected_invalid");
        let all = format!("{:?}{}", answer.headers, answer.text());
        assert!(!all.contains(&other) && !all.contains("AAAA"), "{all}");
        assert_eq!(self.reached(), before);
        self.report("the same and an outcome, on a request that is refused", "400, no server is reached");
    }

    fn reached(&self) -> usize {
        [&self.first, &self.second, &self.classes, &self.other].iter().map(|server| server.total()).sum()
    }

    /// A pin or a subset without an endpoint of the pool.
    async fn names_no_server(&self, name: &str) {
        let stranger = self.other.address().to_string();
        let asked = self.gateway.spawn(ClientRequest::chat("own", "claims").header(name, &stranger));
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
        assert!(self.other.arrived().await.is_none(), "{name} reached another pool's server");
        self.report(
            &format!("`{name}`: a server of another pool"),
            if self.trusted { "503 no_endpoints at once" } else { "ignored" },
        );
    }
}

async fn all_are_200(asked: Vec<JoinHandle<Answer>>) {
    for one in asked {
        let answer = one.await.expect("answered");
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

async fn judge(trust: &'static str, trusted: bool) {
    let fixture = Fixture::start(trust, trusted).await;
    for path in ["/v1/chat/completions", "/v1/messages", "/v1/embeddings"] {
        fixture.reserved_headers_are_removed(path, true).await;
    }
    for path in ["/v1/models", "/tokenize"] {
        fixture.reserved_headers_are_removed(path, false).await;
    }
    fixture.rejection_repeats_no_claims().await;
    fixture.precedes("x-penstock-priority", "critical", trusted).await;
    fixture.precedes("x-penstock-strict-priority", "9", trusted).await;
    fixture.precedes("x-penstock-priority-jump", "3600", trusted).await;
    fixture.is_of_class().await;
    fixture.is_tenant().await;
    for name in ["x-penstock-endpoint", "x-gateway-destination-endpoint-subset"] {
        fixture.waits_for(name).await;
        fixture.names_no_server(name).await;
    }
    lowers(&fixture).await;
    fixture.gateway.stock("own", 0).await;
    let lowered = fixture.gateway.metrics().await.sum("penstock_priority_lowered_total", &[]);
    assert_eq!(lowered > 0.0, !trusted, "{lowered} lowered under trust {trust}");
}

/// Every client may lower its priority.
async fn lowers(fixture: &Fixture) {
    let ([one, two], mut asked) = fixture.fill().await;
    let claims = ClientRequest::chat("own", "claims").priority("sheddable");
    asked.push(fixture.gateway.spawn(claims));
    fixture.gateway.waiting("own", 1).await;
    asked.push(fixture.gateway.spawn(ClientRequest::chat("own", "plain")));
    fixture.gateway.waiting("own", 2).await;
    one.answer();
    let before = fixture.first.next().await;
    assert_eq!(before.text(), "plain");
    two.answer();
    fixture.second.next().await.answer();
    before.answer();
    all_are_200(asked).await;
    fixture.report("`x-penstock-priority: sheddable`", "goes after what came later");
}

#[test]
fn claims_of_every_client_count_by_default() {
    run(judge(TRUST[0].0, TRUST[0].1));
}

#[test]
fn claims_of_clients_in_listed_networks_count() {
    run(judge(TRUST[1].0, TRUST[1].1));
}

#[test]
fn claims_of_clients_outside_listed_networks_are_removed() {
    run(judge(TRUST[2].0, TRUST[2].1));
}

#[test]
fn no_claims_count_with_trust_none() {
    run(judge(TRUST[3].0, TRUST[3].1));
}

#[test]
fn five_thousand_identities_of_one_untrusted_client_are_64_flows() {
    run(async {
        let server = Upstream::serving(Duration::ZERO).await;
        let pools = [pool("p", "'*'", &[&server], "")];
        let gateway = Gateway::start(&config("identity: {trust: none}\n", &pools)).await;
        let mut names: Vec<String> = (0..5_000).map(|n| format!("tenant-{n}")).collect();
        // An identity of the greatest length that Envoy accepts.
        names.push("n".repeat(50_000));
        let asked = names.iter().map(|name| gateway.send(ClientRequest::chat("m", "x").tenant(name)));
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
