//! Tenants by their API keys, through a real Envoy: refusals in both formats and on every path, the tenant that no header overrides, a
//! replaced file of keys, and an Envoy that starts without a companion.

use std::path::{Path, PathBuf};
use std::process::Command;

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::{
    Answer, ClientRequest, Companion, Envoy, Gateway, Upstream, binary, python, run, until,
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The API key of a tenant, and its line in the file, as `penstock api-key` prints them.
pub(crate) struct Key {
    pub(crate) key: String,
    line: String,
}

impl Key {
    pub(crate) fn of(tenant: &str) -> Self {
        let output = Command::new(binary::penstock()).args(["api-key", tenant]).output();
        let output = output.expect("penstock runs");
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).expect("text");
        let mut lines = text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned);
        let (key, line) = (lines.next().expect("a key"), lines.next().expect("a line"));
        Self { key, line }
    }

    /// The digits of its digest.
    fn digest(&self) -> &str {
        let (_, digest) = self.line.split_once("sha256:").expect("a digest");
        digest.trim_end_matches("\"]")
    }

    fn on(&self, ask: ClientRequest) -> ClientRequest {
        ask.header("authorization", &format!("Bearer {}", self.key))
    }
}

/// The file of the keys, in a folder of its own.
pub(crate) struct KeyFile(TempDir);

impl KeyFile {
    pub(crate) fn with(keys: &[&Key]) -> Self {
        let file = Self(tempfile::tempdir().expect("a temporary folder"));
        file.write(&keys.iter().map(|key| &*key.line).collect::<Vec<_>>().join("\n"));
        file
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("api-keys.yaml")
    }

    /// Replaces the file as an editor does.
    fn write(&self, text: &str) {
        let beside = self.0.path().join("new");
        std::fs::write(&beside, text).expect("written");
        std::fs::rename(&beside, self.path()).expect("renamed");
    }

    /// The part of the configuration that names the file.
    pub(crate) fn identity(&self, more: &str) -> String {
        format!("identity: {{api_keys: {{file: '{}'}}{more}}}\n", self.path().display())
    }
}

/// The tenants with requests that run or wait.
async fn tenants(gateway: &Gateway) -> Vec<Value> {
    let pool = gateway.pool("p").await;
    let flows = pool["flows"].as_array().cloned().unwrap_or_default();
    let busy = flows.into_iter().filter(|flow| flow["in_flight"] != 0 || flow["waiting"] != 0);
    busy.map(|flow| flow["key"].clone()).collect()
}

fn message() -> ClientRequest {
    let body = json!({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]});
    ClientRequest::to("/v1/messages", body)
}

async fn get(gateway: &Gateway, path: &str, key: Option<&str>) -> Answer {
    let mut request = gateway.client().get(gateway.url(path));
    if let Some(key) = key {
        request = request.header("x-api-key", key);
    }
    Answer::read(request.send().await.expect("an answer")).await.expect("a whole answer")
}

#[test]
fn a_key_gives_the_tenant_and_stays_at_the_gateway() {
    run(async {
        let (server, acme, other) = (Upstream::scripted().await, Key::of("acme"), Key::of("other"));
        let file = KeyFile::with(&[&acme, &other]);
        // Not even an untrusted client needs another identity than its key.
        for trust in ["", ", trust: none"] {
            let head = file.identity(trust);
            let gateway = Gateway::start(&config(&head, &[pool("p", "m", &[&server], "")])).await;
            let ask = ClientRequest::chat("m", "x").tenant("evil").with("user", "evil");
            for (ask, header, tenant) in [
                (acme.on(ask.clone()), "authorization", "acme"),
                (ask.header("api-key", &other.key), "api-key", "other"),
                (message().tenant("evil").header("x-api-key", &acme.key), "x-api-key", "acme"),
            ] {
                let asked = gateway.spawn(ask);
                let call = server.next().await;
                assert_eq!(tenants(&gateway).await, [tenant], "{trust} {header}");
                assert_eq!(call.header(header), "", "the server gets no key");
                call.answer();
                assert_eq!(asked.await.expect("answered").status, 200);
            }
        }
    });
}

#[test]
fn a_request_without_a_valid_key_is_answered_401_on_every_path_and_counted() {
    run(async {
        let (server, acme) = (Upstream::scripted().await, Key::of("acme"));
        let file = KeyFile::with(&[&acme]);
        let gateway = Gateway::start(&config(&file.identity(""), &[pool("p", "m", &[&server], "")])).await;
        let wrong = Key::of("acme");
        let refusals = [
            gateway.send(ClientRequest::chat("m", "x").tenant("acme")).await,
            gateway.send(wrong.on(ClientRequest::chat("m", "x"))).await,
            get(&gateway, "/v1/models", None).await,
            get(&gateway, "/v1/models", Some(&wrong.key)).await,
            get(&gateway, "/anything", None).await,
        ];
        for refused in &refusals {
            refused.expect_error(401, "invalid_api_key", "rejected_invalid");
            assert_eq!(refused.header("www-authenticate"), "Bearer");
            let message = refused.message();
            assert!(message.contains("API key") && !message.contains(&wrong.key), "{message}");
        }
        let count_tokens = ClientRequest::to("/v1/messages/count_tokens", message().body());
        for ask in [message(), message().header("x-api-key", &wrong.key), count_tokens] {
            let refused = gateway.send(ask).await;
            assert_eq!((refused.status, refused.outcome()), (401, "rejected_invalid"));
            let body = refused.json();
            assert_eq!(
                (&body["type"], &body["error"]["type"]),
                (&json!("error"), &json!("authentication_error"))
            );
        }
        let asked = tokio::spawn({
            let (client, url) = (gateway.client().clone(), gateway.url("/v1/models"));
            let request = client.get(url).header("x-api-key", &acme.key);
            async move { request.send().await.expect("an answer").status().as_u16() }
        });
        let call = server.next().await;
        assert_eq!((call.path.as_str(), call.header("x-api-key")), ("/v1/models", ""));
        call.answer();
        assert_eq!(asked.await.expect("answered"), 200);
        assert_eq!(server.total(), 1, "no refused request came to the server");
        let labels = [("outcome", "rejected_invalid")];
        until("eight refusals are counted", || async {
            let counted = gateway.metrics().await.sum("penstock_requests_total", &labels);
            if counted == 8.0 { Ok(()) } else { Err(counted.to_string()) }
        })
        .await;
    });
}

#[test]
fn without_a_required_key_only_a_wrong_one_is_refused() {
    run(async {
        let (server, acme) = (Upstream::scripted().await, Key::of("acme"));
        let file = KeyFile::with(&[&acme]);
        let keys = format!("{{file: '{}', required: false, forward: true}}", file.path().display());
        let head = format!("identity: {{api_keys: {keys}}}\n");
        let gateway = Gateway::start(&config(&head, &[pool("p", "m", &[&server], "")])).await;
        let wrong = Key::of("acme").on(ClientRequest::chat("m", "x"));
        assert_eq!(gateway.send(wrong).await.status, 401);
        let bearer = format!("Bearer {}", acme.key);
        for (ask, tenant, forwarded) in [
            (ClientRequest::chat("m", "x").tenant("said"), "said", ""),
            (acme.on(ClientRequest::chat("m", "x").tenant("said")), "acme", &bearer),
        ] {
            let asked = gateway.spawn(ask);
            let call = server.next().await;
            assert_eq!(tenants(&gateway).await, [tenant]);
            assert_eq!(call.header("authorization"), forwarded);
            call.answer();
            assert_eq!(asked.await.expect("answered").status, 200);
        }
    });
}

#[test]
fn a_requeued_request_keeps_the_tenant_of_its_key() {
    run(async {
        let (server, acme) = (Upstream::scripted().await, Key::of("acme"));
        let file = KeyFile::with(&[&acme]);
        let more = format!("{}  health: {{path: null}}\n", slots(1));
        let gateway =
            Gateway::start(&config(&file.identity(", trust: none"), &[pool("p", "m", &[&server], &more)]))
                .await;
        let asked = gateway.spawn(acme.on(ClientRequest::chat("m", "x").tenant("evil")));
        server.next().await.cut();
        let call = server.next().await;
        assert_eq!(tenants(&gateway).await, ["acme"]);
        assert_eq!(call.header("authorization"), "");
        call.answer();
        assert_eq!(asked.await.expect("answered").status, 200);
        let requeues = gateway.metrics().await.sum("penstock_requeues_total", &[]);
        assert_eq!(requeues, 1.0, "the request came through the requeue listener");
    });
}

/// Waits until a number in the configuration part of `/status` has a value.
async fn config_has(gateway: &Gateway, key: &str, value: u64) {
    until(&format!("{key} {value}"), || async {
        let config = gateway.status().await["config"].clone();
        if config[key] == value { Ok(()) } else { Err(config.to_string()) }
    })
    .await;
}

/// Waits until a request with this key has this status.
async fn answers(gateway: &Gateway, key: &Key, status: u16) {
    until(&format!("{status} for the key"), || async {
        let answer = gateway.send(key.on(ClientRequest::chat("m", "x"))).await;
        if answer.status == status { Ok(()) } else { Err(answer.text()) }
    })
    .await;
}

#[test]
fn a_changed_file_replaces_the_keys_and_a_bad_one_does_not() {
    run(async {
        let server = Upstream::serving(std::time::Duration::ZERO).await;
        let (old, new) = (Key::of("acme"), Key::of("acme"));
        let file = KeyFile::with(&[&old]);
        let gateway = Gateway::start(&config(&file.identity(""), &[pool("p", "m", &[&server], "")])).await;
        answers(&gateway, &old, 200).await;

        // A person has written the key where its digest belongs.
        file.write(&format!("acme: [\"{}\"]\n", new.key));
        config_has(&gateway, "failures", 1).await;
        let failures = gateway.metrics().await.sum("penstock_config_reload_failures_total", &[]);
        assert_eq!(failures, 1.0);
        let why = gateway.status().await["config"]["last_error"].to_string();
        assert!(why.contains("api-keys.yaml:1: acme[0]: must be `sha256:`"), "{why}");
        answers(&gateway, &old, 200).await;

        file.write(&new.line);
        config_has(&gateway, "reloads", 1).await;
        answers(&gateway, &new, 200).await;
        answers(&gateway, &old, 401).await;
        assert_eq!(gateway.status().await["config"]["last_error"], Value::Null);

        // SIGHUP and a changed configuration read the file, too; a configuration with a bad file isn't activated.
        file.write(&format!("{}\n# the same keys\n", new.line));
        gateway.process.signal(libc::SIGHUP);
        let text = std::fs::read_to_string(gateway.config()).expect("read");
        std::fs::write(gateway.config(), text.replace("api-keys.yaml", "none.yaml")).expect("written");
        config_has(&gateway, "failures", 2).await;
        answers(&gateway, &new, 200).await;
        let log = gateway.process.log();
        assert!(!log.contains(&new.key) && !log.contains(new.digest()), "{log}");
        assert!(log.contains("API keys changed"), "{log}");
    });
}

#[test]
fn keys_and_digests_are_in_no_log_and_on_no_page() {
    run(async {
        let (server, acme, wrong) = (Upstream::scripted().await, Key::of("acme"), Key::of("acme"));
        let file = KeyFile::with(&[&acme]);
        let document = config(&file.identity(""), &[pool("p", "m", &[&server], &slots(1))]);
        let mut gateway = Gateway::with_log(&document, "debug").await;
        let asked = gateway.spawn(acme.on(ClientRequest::chat("m", "x")));
        let call = server.next().await;
        let waits = gateway.spawn(acme.on(ClientRequest::chat("m", "x")));
        gateway.waiting("p", 1).await;
        assert_eq!(gateway.send(wrong.on(ClientRequest::chat("m", "x"))).await.status, 401);
        file.write(&format!("{}\nmore: []\n# changed\n", acme.line));
        file.write(&format!("acme: [\"{}\"]\n", acme.key));
        config_has(&gateway, "failures", 1).await;
        let mut seen = String::new();
        for path in ["/config", "/status", "/metrics", "/requests", "/"] {
            seen += &gateway.get(path).await.expect("a page").text();
        }
        assert!(seen.contains(&file.path().display().to_string()), "/config names the file");
        call.answer();
        server.next().await.answer();
        for asked in [asked, waits] {
            assert_eq!(asked.await.expect("answered").status, 200);
        }
        gateway.process.signal(libc::SIGTERM);
        gateway.process.exit().await;
        seen += &gateway.process.log();
        assert!(seen.contains("DEBUG"), "nothing was logged at debug:\n{seen}");
        for secret in [&*acme.key, acme.digest(), &wrong.key, wrong.digest()] {
            let lines: Vec<_> = seen.lines().filter(|line| line.contains(secret)).collect();
            assert!(lines.is_empty(), "{lines:#?}");
        }
    });
}

#[test]
fn an_envoy_that_starts_without_a_companion_checks_keys() {
    run(async {
        let (server, acme) = (Upstream::serving(std::time::Duration::ZERO).await, Key::of("acme"));
        let file = KeyFile::with(&[&acme]);
        let mut companion = Companion::start(&file.identity(""), &[pool("p", "m", &[&server], "")]).await;
        companion.kill().await;
        let envoy = Envoy::alone(&companion, "cold", None, |_| ()).await;
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        for (key, status) in [(None, 401), (Some("pk-wrong"), 401), (Some(&*acme.key), 200)] {
            let mut request = client.get(envoy.url("/v1/models"));
            if let Some(key) = key {
                request = request.bearer_auth(key);
            }
            let answer = request.send().await.expect("an answer");
            assert_eq!(answer.status().as_u16(), status, "{key:?}");
        }
    });
}

#[test]
fn openai_client_raises_an_authentication_error() {
    run(async {
        let (server, acme) = (Upstream::serving(std::time::Duration::ZERO).await, Key::of("acme"));
        let file = KeyFile::with(&[&acme]);
        let gateway = Gateway::start(&config(&file.identity(""), &[pool("p", "m", &[&server], "")])).await;
        let script = format!(
            "import json, openai
seen = []
for key in ['pk-wrong', '{}']:
    client = openai.OpenAI(base_url='{}', api_key=key, http_client=openai.DefaultHttpxClient(trust_env=False))
    try:
        answer = client.chat.completions.create(model='m', messages=[{{'role': 'user', 'content': 'x'}}])
        seen.append(answer.object)
    except openai.AuthenticationError as e:
        seen.append([e.status_code, e.code, e.type])
print(json.dumps(seen))
",
            acme.key,
            gateway.url("/v1")
        );
        let mut command = python::script(&python::package(python::OPENAI), &script);
        let output = command.output().await.expect("python3 runs");
        let text = String::from_utf8_lossy(&output.stdout);
        let seen: Value = serde_json::from_str(text.trim()).unwrap_or_else(|e| panic!("{e}: {output:?}"));
        let refused = json!([401, "invalid_api_key", "invalid_request_error"]);
        assert_eq!(seen, json!([refused, "chat.completion"]));
        assert_eq!(server.total(), 1, "the client didn't try a wrong key again");
    });
}

#[test]
fn validate_checks_the_file_and_names_what_is_wrong() {
    let file = KeyFile::with(&[]);
    let document = file.0.path().join("penstock.yaml");
    let pools = "pools: [{name: p, endpoints: {static: ['127.0.0.1:1']}}]\n";
    let validate = |identity: &str| {
        std::fs::write(&document, format!("{identity}{pools}")).expect("written");
        let output = Command::new(binary::penstock())
            .args(["validate".as_ref(), "--config".as_ref(), document.as_os_str()])
            .output()
            .expect("penstock runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(validate(&file.identity("")).0, Some(0));
    file.write("acme:\n- pk-0123456789abcdef\n");
    let (code, message) = validate(&file.identity(""));
    assert_eq!(code, Some(2));
    assert!(message.contains("api-keys.yaml:2: acme[0]: must be `sha256:` and 64"), "{message}");
    assert!(!message.contains("0123456789"), "{message}");
    let missing = Path::new("no/such/keys.yaml");
    let (code, message) = validate(&format!("identity: {{api_keys: {}}}\n", missing.display()));
    assert_eq!(code, Some(2));
    assert!(message.contains("identity.api_keys.file: no/such/keys.yaml"), "{message}");
}
