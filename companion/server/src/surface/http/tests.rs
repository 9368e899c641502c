//! The role of a companion in the answers of its HTTP server.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use penstock_config::{Document, Environment};
use penstock_election::{Role, RoleStatus};
use reqwest::{Method, Response};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::FilterModules;
use super::{App, serve};
use crate::active::envoy_pools::EnvoyPools;
use crate::active::reload::{self, FlagOverrides, Loaded, Start};
use crate::base::admin::Admin;
use crate::base::clock::Clock;
use crate::base::listener::Listener;
use crate::base::phase::Phase;
use crate::base::role::Roles;
use crate::decisions::control_settings::{self, ProcessIdentity};
use crate::decisions::driver;
use crate::decisions::observe::Observer;
use crate::discovery::States;
use crate::election::Elections;
use crate::metrics::Metrics;
use crate::surface::history;
use penstock_stores::Stores;

const POOLS: &str = "pools: [{name: chat, endpoints: {static: ['127.0.0.1:8001']}}]\n";
const REPLICAS: &str =
    "replicas: {companions: ['127.0.0.1:9190', '127.0.0.1:9290'], lease: {file: /run/lease}}\n";
const OTHER: &str = "127.0.0.1:9290";

/// A companion without gRPC.
struct Companion {
    address: SocketAddr,
    client: reqwest::Client,
    /// `None` without `replicas`.
    role: Option<watch::Sender<Roles>>,
    _phase: watch::Sender<Phase>,
    file: PathBuf,
    _folder: TempDir,
}

impl Companion {
    async fn start(head: &str) -> Self {
        Self::with_variables(head, Vec::new()).await
    }

    async fn with_variables(head: &str, variables: Vec<(String, String)>) -> Self {
        Self::with_pools(head, POOLS, variables).await
    }

    async fn with_pools(head: &str, pools: &str, variables: Vec<(String, String)>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("penstock.yaml");
        // No session comes, so readiness doesn't wait for one.
        let text = format!("{head}startup_wait: 1ns\n{pools}");
        std::fs::write(&file, &text).expect("written");
        let (environment, alone) = (Environment::default().with(variables), Document::parse(&text, "f.yaml"));
        let document = Document::parse_with(&text, "f.yaml", &environment).expect("valid");
        let config = document.config().clone();
        let (clock, metrics) = (Clock::start(), Arc::new(Metrics::new().expect("distinct")));
        let identity = ProcessIdentity::now(None, false);
        let mut settings = control_settings::settings(&config, &identity);
        // Each test sets the role that the HTTP API shows; there is no election.
        settings.is_replicated = false;
        let observer = Observer::new(metrics.clone(), config.metric_flows);
        let started =
            driver::spawn(settings, clock, observer, crate::decisions::reports::Reporters::default());
        let driver = started.handle;
        let (role, roles) = match config.replicas {
            None => (None, None),
            Some(_) => {
                let (sender, receiver) = watch::channel(Roles::unknown(penstock_config::Per::Gateway));
                (Some(sender), Some(receiver))
            }
        };
        let start = Start {
            loaded: Loaded {
                file: file.clone(),
                file_bytes: text.into_bytes(),
                file_document: document.json().clone(),
                saved_document: alone.expect("valid").json().clone(),
                config: document.config().clone(),
                document,
                flags: FlagOverrides::new(None, None, None),
            },
            admin: Admin::new(&config.admin).expect("no token"),
            environment,
            identity,
            driver: driver.clone(),
            metrics: metrics.clone(),
            stores: Stores::with_metrics(metrics.stores()),
            envoy: EnvoyPools::open(None, None, &config, None).expect("no folder"),
            elections: Elections::none(),
            roles: roles.clone(),
        };
        let (phase, phases) = watch::channel(Phase::Serving);
        let active = reload::spawn(start).await;
        let history = history::spawn(&driver, &metrics, &active, &roles);
        let app = App {
            driver,
            history,
            discoveries: States::new(&config, metrics.clone()),
            filter: FilterModules { wasm: || b"module", native: || b"code" },
            metrics,
            clock,
            sessions_expected: None,
            gateway: None,
            config: active,
            phase: phases,
            roles,
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(serve(Listener::Tcp(listener), app, std::future::pending()));
        Self {
            address,
            client: reqwest::Client::builder().no_proxy().build().expect("a client"),
            role,
            _phase: phase,
            file,
            _folder: folder,
        }
    }

    fn leads(&self) {
        let role = RoleStatus { role: Role::Leader, term: 5, leader: Some("127.0.0.1:9190".into()) };
        self.role.as_ref().expect("replicas").send_replace(Roles::Gateway(role));
    }

    fn stands_by(&self, leader: Option<&str>) {
        let role = RoleStatus { role: Role::Standby, term: 4, leader: leader.map(str::to_owned) };
        self.role.as_ref().expect("replicas").send_replace(Roles::Gateway(role));
    }

    async fn get(&self, path: &str) -> Response {
        let url = format!("http://{}{path}", self.address);
        self.client.get(url).send().await.expect("an answer")
    }

    async fn json(&self, path: &str) -> Value {
        self.get(path).await.json().await.expect("JSON")
    }

    async fn change(&self, method: Method, path: &str, body: &Value) -> Response {
        let url = format!("http://{}{path}", self.address);
        let request = self.client.request(method, url).json(body);
        request.send().await.expect("an answer")
    }

    /// Waits until the control has stopped waiting for sessions.
    async fn ready(&self) {
        let ready = async {
            while self.get("/readyz").await.status() != 200 {
                tokio::task::yield_now().await;
            }
        };
        let waited = tokio::time::timeout(std::time::Duration::from_secs(20), ready).await;
        waited.expect("ready in time");
    }
}

#[tokio::test]
async fn a_single_companion_has_no_role() {
    let companion = Companion::start("").await;
    companion.ready().await;
    assert_eq!(companion.get("/readyz").await.text().await.expect("text"), "ready\n");
    assert_eq!(companion.json("/status").await.get("replicas"), None);
    let answer = companion.change(Method::PATCH, "/config", &json!({"metrics": {"flows": 7}})).await;
    assert_eq!((answer.status().as_u16(), answer.headers().get("warning")), (200, None));
}

#[tokio::test]
async fn leader_and_standby_are_ready_and_name_the_leader() {
    let companion = Companion::start(REPLICAS).await;
    companion.leads();
    companion.ready().await;
    let ready = companion.json("/readyz").await;
    assert_eq!(ready, json!({"ready": true, "role": "leader", "leader": "127.0.0.1:9190"}));
    for leader in [Some(OTHER), None] {
        companion.stands_by(leader);
        let answer = companion.get("/readyz").await;
        assert_eq!(answer.status(), 200);
        let ready: Value = answer.json().await.expect("JSON");
        assert_eq!(ready, json!({"ready": true, "role": "standby", "leader": leader}));
    }
}

/// Two pools with a leader of their own; this companion leads the first.
async fn leader_of_chat() -> Companion {
    let head = REPLICAS.replace("replicas: {", "replicas: {per: pool, ");
    let pools = "pools: [{name: chat, models: [a], endpoints: {static: ['127.0.0.1:8001']}}, \
                 {name: code, models: [b], endpoints: {static: ['127.0.0.1:8002']}}]\n";
    let companion = Companion::with_pools(&head, pools, Vec::new()).await;
    let role = |role, leader: &str| RoleStatus { role, term: 5, leader: Some(leader.into()) };
    let roles = Roles::Pools(BTreeMap::from([
        ("chat".into(), role(Role::Leader, "127.0.0.1:9190")),
        ("code".into(), role(Role::Standby, OTHER)),
    ]));
    companion.role.as_ref().expect("replicas").send_replace(roles);
    companion
}

#[tokio::test]
async fn where_each_pool_has_a_leader_status_and_metrics_have_the_role_of_each() {
    let companion = leader_of_chat().await;
    let ready = companion.json("/readyz").await;
    assert_eq!((&ready["role"], &ready["leader"]), (&json!("leader"), &json!("127.0.0.1:9190")));
    let status = companion.json("/status").await;
    assert_eq!(status["replicas"], json!({"per": "pool", "companions": ["127.0.0.1:9190", OTHER]}));
    let roles: Vec<_> = (status["pools"].as_array().expect("a list").iter())
        .map(|pool| (&pool["name"], &pool["replicas"]["role"], &pool["replicas"]["leader"]))
        .collect();
    assert_eq!(
        roles,
        [
            (&json!("chat"), &json!("leader"), &json!("127.0.0.1:9190")),
            (&json!("code"), &json!("standby"), &json!(OTHER)),
        ]
    );
    let metrics = companion.get("/metrics").await.text().await.expect("text");
    for line in [
        "penstock_leader{pool=\"chat\"} 1\n",
        "penstock_leader{pool=\"code\"} 0\n",
        "penstock_term{pool=\"code\"} 5\n",
        "penstock_upper_bound{pool=\"chat\"}",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    assert!(!metrics.contains("penstock_upper_bound{pool=\"code\"}"), "{metrics}");
}

#[tokio::test]
async fn where_each_pool_has_a_leader_only_its_leader_changes_it() {
    let companion = leader_of_chat().await;
    let patch = async |body: Value| {
        let answer = companion.change(Method::PATCH, "/config", &body).await;
        let code = answer.status().as_u16();
        (code, answer.json::<Value>().await.expect("JSON"))
    };
    let change_of = |name: &str| json!({"pools": [{"name": name, "queue": {"ttl": "7s"}}]});
    assert_eq!(patch(change_of("chat")).await.0, 200);
    let (code, answer) = patch(change_of("code")).await;
    assert_eq!((code, &answer["leader"]), (421, &json!(OTHER)), "{answer}");
    let (code, answer) = patch(json!({"metrics": {"flows": 7}})).await;
    let message = answer["error"]["message"].as_str().unwrap_or_default();
    assert_eq!(code, 422, "{answer}");
    assert!(message.starts_with("metrics.flows: "), "{message}");
    let (code, answer) =
        patch(json!({"pools": [{"name": "new", "endpoints": {"static": ["127.0.0.1:3"]}}]})).await;
    assert_eq!(code, 422, "{answer}");
    let config = companion.json("/config").await;
    assert_eq!(config["pools"][0]["queue"]["ttl"], json!("7s"));
    assert_eq!(config["pools"][1]["queue"]["ttl"], json!("30s"));
}

#[tokio::test]
async fn a_draining_leader_is_not_ready_and_gives_the_reason() {
    let companion = Companion::start(REPLICAS).await;
    companion.leads();
    companion.ready().await;
    let answer = companion.change(Method::POST, "/drain", &json!({})).await;
    assert_eq!(answer.status(), 200);
    let answer = companion.get("/readyz").await;
    assert_eq!(answer.status(), 503);
    let ready: Value = answer.json().await.expect("JSON");
    assert_eq!((&ready["ready"], &ready["why"]), (&json!(false), &json!("shutting down")));
}

#[tokio::test]
async fn status_has_the_role_and_a_standby_no_advice_on_sessions() {
    let companion = Companion::start(REPLICAS).await;
    companion.stands_by(Some(OTHER));
    let status = companion.json("/status").await;
    assert_eq!(
        status["replicas"],
        json!({"role": "standby", "term": 4, "leader": OTHER, "companions": ["127.0.0.1:9190", OTHER]})
    );
    assert_eq!(status["advice"], json!([]));
    companion.leads();
    let status = companion.json("/status").await;
    assert_eq!((&status["replicas"]["role"], &status["replicas"]["term"]), (&json!("leader"), &json!(5)));
    let metrics = companion.get("/metrics").await.text().await.expect("text");
    assert!(metrics.contains("penstock_leader{pool=\"chat\"} 1\n"), "{metrics}");
}

#[tokio::test]
async fn changes_at_a_standby_are_answered_with_the_leader() {
    let companion = Companion::start(REPLICAS).await;
    companion.leads();
    companion.ready().await;
    let document = companion.json("/config").await;
    let changes = [
        (Method::PATCH, "/config", json!({"metrics": {"flows": 7}})),
        (Method::PUT, "/config", document.clone()),
        (Method::POST, "/drain", json!({})),
    ];
    for leader in [Some(OTHER), None] {
        companion.stands_by(leader);
        for (method, path, body) in &changes {
            let answer = companion.change(method.clone(), path, body).await;
            assert_eq!(answer.status(), 421, "{method} {path}");
            let answer: Value = answer.json().await.expect("JSON");
            assert_eq!(answer["leader"], json!(leader), "{method} {path}");
            assert_eq!(answer["error"]["code"], "not_the_leader");
        }
    }
    assert_eq!(companion.json("/config").await, document, "nothing has changed");
    assert_eq!(companion.json("/status").await["draining"], false);
    companion.leads();
    for (method, path, body) in changes {
        let answer = companion.change(method, path, &body).await;
        assert_eq!(answer.status(), 200, "{path}");
    }
}

#[tokio::test]
async fn budgets_are_changed_only_by_the_pool_s_leader() {
    let companion = leader_of_chat().await;
    let change = async |path: &str| {
        let answer = companion.change(Method::PATCH, path, &json!({"reset": true})).await;
        let code = answer.status().as_u16();
        (code, answer.json::<Value>().await.expect("JSON"))
    };
    let (code, answer) = change("/budgets/code/acme").await;
    assert_eq!((code, &answer["leader"]), (421, &json!(OTHER)), "{answer}");
    let (code, answer) = change("/budgets/chat/acme").await;
    assert_eq!((code, &answer["error"]["code"]), (404, &json!("no_budget")), "{answer}");

    let companion = Companion::start(REPLICAS).await;
    companion.stands_by(None);
    let answer = companion.change(Method::PATCH, "/budgets/chat/acme", &json!({"reset": true})).await;
    assert_eq!(answer.status(), 421);
}

#[tokio::test]
async fn a_change_that_is_not_persisted_warns_of_a_failover() {
    let companion = Companion::start(REPLICAS).await;
    companion.leads();
    let patch = json!({"metrics": {"flows": 7}});
    let answer = companion.change(Method::PATCH, "/config", &patch).await;
    let warning = answer.headers().get("warning").expect("a warning");
    assert!(warning.to_str().expect("text").contains("lost at a failover"), "{warning:?}");
    let answer = companion.change(Method::PATCH, "/config?persist=true", &patch).await;
    assert_eq!((answer.status().as_u16(), answer.headers().get("warning")), (200, None));
    let saved = std::fs::read_to_string(&companion.file).expect("the file");
    assert!(saved.contains("flows: 7"), "{saved}");
}

#[tokio::test]
async fn a_persisted_change_leaves_replicas_of_variables_out_of_the_file() {
    let variables = [
        ("PENSTOCK_REPLICAS__COMPANIONS", "['127.0.0.1:9190']"),
        ("PENSTOCK_REPLICAS__LEASE", "{file: /run/lease}"),
    ];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let companion = Companion::with_variables("", variables.to_vec()).await;
    companion.leads();
    let patch = json!({"metrics": {"flows": 7}});
    let answer = companion.change(Method::PATCH, "/config?persist=true", &patch).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(companion.json("/config").await["replicas"]["lease"]["file"], "/run/lease");
    let saved = std::fs::read_to_string(&companion.file).expect("the file");
    assert!(saved.contains("flows: 7") && !saved.contains("/run/lease"), "{saved}");
}

#[tokio::test]
async fn replicas_can_not_change_at_run_time() {
    let companion = Companion::start(REPLICAS).await;
    companion.leads();
    for patch in [json!({"replicas": {"duration": "5s"}}), json!({"replicas": null})] {
        let answer = companion.change(Method::PATCH, "/config", &patch).await;
        assert_eq!(answer.status(), 422, "{patch}");
        let answer: Value = answer.json().await.expect("JSON");
        let message = answer["error"]["message"].as_str().expect("a message");
        assert!(
            message.starts_with("replicas: this key can't change") && message.contains("restart"),
            "{message}"
        );
    }
}

#[tokio::test]
async fn the_history_has_a_sample_from_the_start() {
    let companion = Companion::start("").await;
    companion.ready().await;
    let history = async {
        loop {
            let history = companion.json("/history").await;
            if history["last"] == 1 {
                return history;
            }
            tokio::task::yield_now().await;
        }
    };
    let history = tokio::time::timeout(std::time::Duration::from_secs(20), history).await;
    let history = history.expect("a sample in time");
    assert_eq!(history["samples"][0]["pools"][0]["name"], "chat");
    let wrong = companion.get("/history?since=yesterday").await;
    assert_eq!(wrong.status(), 400);
}

#[tokio::test]
async fn an_unknown_path_is_404_with_a_token_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let token = folder.path().join("token");
    std::fs::write(&token, "a-long-secret").expect("written");
    let companion = Companion::start(&format!("admin: {{token_file: '{}'}}\n", token.display())).await;
    assert_eq!(companion.get("/nothing").await.status(), 404);
    let refused = companion.change(Method::POST, "/drain", &json!({})).await;
    assert_eq!(refused.status(), 401);
}

#[tokio::test]
async fn every_file_of_the_dashboard_is_served_and_may_ask_its_own_origin_only() {
    let companion = Companion::start("").await;
    let page = companion.get("/").await;
    let policy = page.headers()["content-security-policy"].to_str().expect("text");
    assert!(policy.contains("default-src 'none'") && policy.contains("connect-src 'self'"), "{policy}");
    assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
    let mut texts = vec![page.text().await.expect("text")];
    let mut names: Vec<String> = vec!["style.css".into(), "main.js".into()];
    let mut next = 0;
    while let Some(name) = names.get(next).cloned() {
        next += 1;
        let file = companion.get(&format!("/dashboard/{name}")).await;
        assert_eq!(file.status(), 200, "{name}");
        let kind = file.headers()["content-type"].to_str().expect("text").to_owned();
        assert!(kind.starts_with("text/javascript") || name == "style.css", "{name}: {kind}");
        let text = file.text().await.expect("text");
        for import in text.split("from \"./").skip(1) {
            let import = import.split('"').next().unwrap_or_default().to_owned();
            if !names.contains(&import) {
                names.push(import);
            }
        }
        texts.push(text);
    }
    assert_eq!(names.len(), 9, "{names:?}");
    for text in texts {
        // The names of namespaces aren't requested.
        let text = text.replace("http://www.w3.org/2000/svg", "");
        assert!(!text.contains("http://") && !text.contains("https://"), "{text}");
        assert!(!text.contains("innerHTML") && !text.contains("\"/"), "{text}");
    }
    assert_eq!(companion.get("/dashboard/other.js").await.status(), 404);
    assert_eq!(companion.get("/favicon.ico").await.status(), 204);
}
