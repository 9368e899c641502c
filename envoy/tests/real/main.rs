//! The bootstrap in a real Envoy: Envoy accepts it with any pool names, and its routes behave as documented.
//!
//! These tests run without the filter. The requests carry the headers that it would set, and these reach the router.

mod companions;
mod istio;
mod timers;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use penstock_envoy::bootstrap::{self, Address, Code, Companions, Module, Pool, Settings, Source};
use penstock_envoy::find::{Found, Search};
use penstock_envoy::folder::Folder;
use penstock_envoy::ports::Ports;
use penstock_envoy::run::{self, Envoy, Launch};
use penstock_envoy::{limits, yaml};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};

/// Plays the filter of the requeue listener: sets the next list that the test's request carries, and the pool header.
const REENTERS: &str = r#"
function envoy_on_request(handle)
  local headers = handle:headers()
  local first, rest = headers:get("x-next"):match("([^;]*);?(.*)")
  headers:replace("x-penstock-pool", "chat")
  headers:replace("x-gateway-destination-endpoint", first)
  headers:remove("x-penstock-route")
  if first:find("envoy://", 1, true) then
    headers:replace("x-penstock-route", first)
  end
  headers:replace("x-next", rest)
  headers:replace("x-envoy-retry-on", "connect-failure,refused-stream,reset")
  headers:replace("x-envoy-max-retries", tostring(select(2, first:gsub(",", ""))))
end
"#;

/// The part of the filter at the first listener that matters here: when and how often Envoy sends a request again.
const GRANTS: &str = r#"
function envoy_on_request(handle)
  local headers = handle:headers()
  if not headers:get("x-penstock-pool") or headers:get("x-token") then
    return
  end
  local list = headers:get("x-penstock-route") or headers:get("x-gateway-destination-endpoint")
  local retries = list and select(2, list:gsub(",", "")) or 2
  headers:replace("x-envoy-retry-on", "connect-failure,refused-stream,reset")
  headers:replace("x-envoy-max-retries", tostring(retries))
end
"#;

/// The smallest module that Envoy loads as a filter: a memory, an allocator, and the ABI version.
const MODULE: &[u8] = &[
    0x00, 0x61, 0x73, 0x6d, 0x01, 0x00, 0x00, 0x00, 0x01, 0x09, 0x02, 0x60, 0x00, 0x00, 0x60, 0x01, 0x7f,
    0x01, 0x7f, 0x03, 0x03, 0x02, 0x00, 0x01, 0x05, 0x03, 0x01, 0x00, 0x01, 0x07, 0x3b, 0x04, 0x06, 0x6d,
    0x65, 0x6d, 0x6f, 0x72, 0x79, 0x02, 0x00, 0x17, 0x70, 0x72, 0x6f, 0x78, 0x79, 0x5f, 0x61, 0x62, 0x69,
    0x5f, 0x76, 0x65, 0x72, 0x73, 0x69, 0x6f, 0x6e, 0x5f, 0x30, 0x5f, 0x32, 0x5f, 0x31, 0x00, 0x00, 0x06,
    0x6d, 0x61, 0x6c, 0x6c, 0x6f, 0x63, 0x00, 0x01, 0x0b, 0x5f, 0x69, 0x6e, 0x69, 0x74, 0x69, 0x61, 0x6c,
    0x69, 0x7a, 0x65, 0x00, 0x00, 0x0a, 0x09, 0x02, 0x02, 0x00, 0x0b, 0x04, 0x00, 0x41, 0x00, 0x0b,
];

fn envoy() -> Found {
    Search::here().find().expect("an Envoy")
}

fn settings(dir: &Path, pools: Vec<Pool>) -> Settings {
    let filter = dir.join("filter.wasm");
    std::fs::write(&filter, MODULE).expect("written");
    Settings {
        node: "test".into(),
        gateway: free(),
        admin: free(),
        companions: Companions::One(Address::Tcp(free())),
        tls: None,
        pools,
        folder: None,
        body_bytes_max: 1 << 20,
        heap_bytes_max: limits::HEAP_BYTES_MAX,
        connections_max: limits::CONNECTIONS_MAX,
        module: Module::file(Code::Wasm, filter),
        plugin: json!({ "companion": bootstrap::COMPANION_CLUSTER }),
        metadata: Vec::new(),
        http_filters: Vec::new(),
        access_log: None,
        certificate: None,
        cors: None,
        keep_alive: None,
    }
}

/// The ports that this process has taken.
static RESERVED: Mutex<Ports> = Mutex::new(Ports::new());

/// A port on which nothing listens and that no other socket gets.
fn free() -> SocketAddr {
    RESERVED.lock().expect("no one panics with it").reserve_any().expect("a free port")
}

fn validated(settings: &Settings, dir: &Path) {
    let file = dir.join("envoy.yaml");
    std::fs::write(
        &file,
        yaml::text(&[bootstrap::document(settings)], "A comment,\nin two lines").expect("written"),
    )
    .expect("written");
    run::validate(&envoy().path, &file).expect("accepted");
}

#[test]
fn bootstrap_is_accepted_with_any_pool_names() {
    let dir = TempDir::new().expect("a folder");
    let names = [
        "default",
        "no",
        "1e3",
        "~",
        "a: b # c",
        "quote\"d",
        "{{x}}",
        "über",
        "- -",
        "meta-llama/Llama-3.3-70B",
    ];
    let endpoints = vec!["127.0.0.1:8001".parse().expect("valid"), "[::1]:8002".parse().expect("valid")];
    let pools = names.map(|name| Pool {
        name: name.into(),
        endpoints: endpoints.clone(),
        leaving: vec![],
        upstream: bootstrap::Upstream::default(),
    });
    let mut settings = settings(dir.path(), pools.to_vec());
    settings.plugin = json!({ "long": "word ".repeat(100), "lines": "a\nb: c\n", "number": 33_554_432 });
    validated(&settings, dir.path());
    settings.companions = Companions::One(Address::Unix(dir.path().join("companion.sock")));
    settings.pools = vec![Pool {
        name: "empty".into(),
        endpoints: vec![],
        leaving: vec![],
        upstream: bootstrap::Upstream::default(),
    }];
    validated(&settings, dir.path());
    for companions in [Companions::List(endpoints), Companions::Dns { name: "localhost".into(), port: 9190 }]
    {
        settings.companions = companions;
        validated(&settings, dir.path());
    }
}

#[test]
fn invalid_module_is_refused_with_envoys_error() {
    let dir = TempDir::new().expect("a folder");
    let settings = settings(dir.path(), vec![]);
    let Source::File(filter) = &settings.module.source else {
        panic!("a file: {:?}", settings.module);
    };
    std::fs::write(filter, "no wasm").expect("written");
    let file = dir.path().join("envoy.json");
    std::fs::write(&file, bootstrap::document(&settings).to_string()).expect("written");
    let message = run::validate(&envoy().path, &file).expect_err("refused").to_string();
    assert!(message.contains("Unable to create Wasm plugin"), "{message}");
}

#[test]
fn yaml_is_equal_to_the_json_document() {
    let dir = TempDir::new().expect("a folder");
    let mut settings = settings(
        dir.path(),
        vec![Pool {
            name: "y".into(),
            endpoints: vec![],
            leaving: vec![],
            upstream: bootstrap::Upstream::default(),
        }],
    );
    settings.plugin = json!({ "words": "many words ".repeat(50) });
    let yaml = yaml::text(&[bootstrap::document(&settings)], "note").expect("written");
    assert!(yaml.starts_with("# note\n"));
    let read: Value = serde_saphyr::from_str(&yaml).expect("YAML");
    assert_eq!(read, bootstrap::document(&settings));
}

/// A model server that records each request line and responds with its address, or closes every connection.
async fn server(cuts: bool) -> (SocketAddr, mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let (seen, requests) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let head = read_until(&mut stream, "\r\n\r\n").await;
            let line = head.lines().next().unwrap_or_default().to_owned();
            let pool = if head.contains("x-penstock-pool") { " with the pool's header" } else { "" };
            let _ = seen.send(format!("{line}{pool}"));
            if !cuts {
                let body = address.to_string();
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                );
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        }
    });
    (address, requests)
}

async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut read = Vec::new();
    let mut buffer = [0; 4096];
    while !String::from_utf8_lossy(&read).contains(end) {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(count) => read.extend_from_slice(&buffer[..count]),
        }
    }
    String::from_utf8_lossy(&read).into_owned()
}

struct Gateway {
    at: SocketAddr,
    envoy: Envoy,
    _dir: TempDir,
}

impl Gateway {
    async fn start(endpoints: Vec<SocketAddr>) -> Self {
        let dir = TempDir::new().expect("a folder");
        let settings = settings(dir.path(), vec![pool("chat", endpoints)]);
        Self::launch(dir, settings).await
    }

    async fn launch(dir: TempDir, settings: Settings) -> Self {
        Self::launch_changed(dir, settings, |_| {}).await
    }

    /// Starts an Envoy with these settings, and with further changes of the bootstrap.
    async fn launch_changed(dir: TempDir, settings: Settings, change: impl FnOnce(&mut Value)) -> Self {
        let mut document = bootstrap::document(&settings);
        change(&mut document);
        Self::run(dir, &settings, document, &[0, 1]).await
    }

    /// Starts an Envoy with this bootstrap. In these listeners, a script takes the place of the filter.
    async fn run(dir: TempDir, settings: &Settings, mut document: Value, listeners: &[usize]) -> Self {
        for &listener in listeners {
            let filters = document
                .pointer_mut(&format!(
                    "/static_resources/listeners/{listener}/filter_chains/0/filters/0/typed_config/http_filters"
                ))
                .and_then(Value::as_array_mut)
                .expect("a list of filters");
            let filter = filters.iter_mut().find(|filter| filter["name"] == "penstock").expect("the filter");
            let script = json!({
                "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
                "default_source_code": { "inline_string": if listener == 1 { REENTERS } else { GRANTS } },
            });
            *filter = json!({ "name": "envoy.filters.http.lua", "typed_config": script });
        }
        let file: PathBuf = dir.path().join("envoy.json");
        std::fs::write(&file, document.to_string()).expect("written");
        let binary = tokio::task::spawn_blocking(|| envoy().path).await.expect("no panic");
        let launch = Launch { binary, bootstrap: file, admin: settings.admin, workers: 1 };
        let mut envoy = Envoy::start(&launch).await.expect("started");
        envoy.ready(Duration::from_secs(20)).await.expect("ready");
        Self { at: settings.gateway, envoy, _dir: dir }
    }

    /// Repeats a granted request to a pool until the response has this status and contains this word.
    async fn until(&self, pool: &str, list: SocketAddr, status: &str, word: &str) {
        let headers = [format!("x-penstock-pool: {pool}"), format!("x-gateway-destination-endpoint: {list}")];
        let answers = async {
            loop {
                let (answered, answer) = self.get("/v1/chat/completions", &headers).await;
                if answered == status && answer.contains(word) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(20), answers).await;
        assert!(waited.is_ok(), "{pool} never answers {status} {word}");
    }

    /// Sends a request with these header lines. Returns the status and the rest of the response.
    async fn get(&self, path: &str, headers: &[String]) -> (String, String) {
        let mut stream = TcpStream::connect(self.at).await.expect("connected");
        let lines: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
        let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n{lines}\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("answered");
        (answer.split(' ').nth(1).expect("a status").to_owned(), answer)
    }

    async fn granted(&self, list: &[SocketAddr]) -> (String, String) {
        let list: Vec<String> = list.iter().map(SocketAddr::to_string).collect();
        self.listed(&list.join(","), "").await
    }

    /// Sends a request with the lists that it gets after each requeue, separated by `;`.
    async fn listed(&self, list: &str, next: &str) -> (String, String) {
        let mut headers = vec![
            "x-penstock-pool: chat".into(),
            "x-request-id: mine".into(),
            format!("x-gateway-destination-endpoint: {list}"),
            format!("x-next: {next}"),
        ];
        if list.contains("envoy://") {
            headers.push(format!("x-penstock-route: {list}"));
        }
        self.get("/v1/chat/completions", &headers).await
    }
}

fn pool(name: &str, endpoints: Vec<SocketAddr>) -> Pool {
    Pool { name: name.into(), endpoints, leaving: vec![], upstream: bootstrap::Upstream::default() }
}

fn drained(requests: &mut mpsc::UnboundedReceiver<String>) -> usize {
    std::iter::from_fn(|| requests.try_recv().ok()).count()
}

#[tokio::test]
async fn granted_request_tries_its_list_and_no_other_server() {
    let dead = free();
    let (cuts, mut cut) = server(true).await;
    let (serves, mut served) = server(false).await;
    let gateway = Gateway::start(vec![dead, cuts, serves]).await;

    let (status, answer) = gateway.granted(&[dead, cuts, serves]).await;
    assert_eq!((status.as_str(), drained(&mut cut), drained(&mut served)), ("200", 1, 1));
    assert!(answer.ends_with(&serves.to_string()));

    // Whatever is wrong with the list, the server that isn't on it receives no request.
    for (list, status, code) in [
        (vec![dead], "503", "upstream_unavailable"),
        (vec![cuts], "502", "upstream_reset"),
        (vec![dead, cuts], "502", "upstream_reset"),
        (vec![cuts, dead], "503", "upstream_unavailable"),
        (vec![free()], "503", "no_endpoints"),
    ] {
        let (answered, answer) = gateway.granted(&list).await;
        assert_eq!(answered, status, "{answer}");
        assert!(answer.contains(&format!("\"code\":\"{code}\"")), "{answer}");
        assert!(answer.contains("content-type: application/json"), "{answer}");
        assert_eq!(answer.contains("retry-after-ms: 1000"), status == "503", "{answer}");
    }
    assert_eq!((drained(&mut cut), drained(&mut served)), (3, 0));
    gateway.envoy.stop(Duration::from_secs(10)).await;
}

#[tokio::test]
async fn list_may_end_with_the_requeue_listener() {
    let again = bootstrap::REQUEUE_HOST;
    let dead = free();
    let (cuts, mut cut) = server(true).await;
    let (serves, mut served) = server(false).await;
    let gateway = Gateway::start(vec![dead, cuts, serves]).await;

    // For each list: the status, the attempts at the server that closes connections, and the requests at the one that serves.
    for (list, next, expected) in [
        (format!("{dead},{again}"), format!("{serves}"), ("200", 0, 1)),
        (format!("{dead},{cuts},{cuts},{again}"), format!("{serves}"), ("200", 2, 1)),
        (format!("{cuts},{again}"), format!("{dead},{again};{cuts},{dead},{again};{serves}"), ("200", 2, 1)),
        (format!("{cuts},{again}"), format!("{cuts},{cuts}"), ("502", 3, 0)),
        (format!("{cuts},{again}"), format!("{dead}"), ("503", 1, 0)),
        // After a response, the rest of the list isn't tried.
        (format!("{serves},{again}"), String::new(), ("200", 0, 1)),
    ] {
        let (status, answer) = gateway.listed(&list, &next).await;
        assert_eq!(
            (status.as_str(), drained(&mut cut), drained(&mut served)),
            expected,
            "{list} then {next}: {answer}"
        );
        assert_eq!(answer.matches("x-request-id: mine\r\n").count(), 1, "{answer}");
    }
    // The response is that of the last pass, the same as without a requeue.
    let (_, answer) = gateway.listed(&format!("{dead},{again}"), &format!("{cuts}")).await;
    assert!(answer.contains("\"code\":\"upstream_reset\""), "{answer}");
    drained(&mut cut);

    // A request that passes through is spread over the servers, of which one is down, and never goes to the requeue listener.
    for _ in 0..12 {
        let (status, answer) = gateway.get("/v1/models", &["x-penstock-pool: chat".into()]).await;
        assert_eq!(status, "200", "{answer}");
        assert!(answer.ends_with(&serves.to_string()), "{answer}");
    }
    assert_eq!(drained(&mut served), 12);
}

/// Plays the filter's property with the requeue token.
fn with_token(document: &mut Value) {
    let keeper = json!({
        "name": "envoy.filters.http.set_filter_state",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.set_filter_state.v3.Config",
            "on_request_headers": [{
                "object_key": "wasm.penstock.requeue",
                "factory_key": "envoy.string",
                "format_string": { "text_format_source": { "inline_string": "%REQ(x-token)%" } },
                "skip_if_empty": true,
            }],
            "clear_route_cache": true,
        },
    });
    document
        .pointer_mut("/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/http_filters")
        .and_then(Value::as_array_mut)
        .expect("a list of filters")
        .insert(1, keeper);
}

#[tokio::test]
async fn route_requeues_a_request_with_a_token_after_its_one_server() {
    let dead = free();
    let (cuts, mut cut) = server(true).await;
    let (serves, mut served) = server(false).await;
    let dir = TempDir::new().expect("a folder");
    let settings = settings(dir.path(), vec![pool("chat", vec![dead, cuts, serves])]);
    let gateway = Gateway::launch_changed(dir, settings, with_token).await;
    let elsewhere = free();
    let ask = async |first: SocketAddr, next: String, token: &str| {
        let headers = [
            "x-penstock-pool: chat".into(),
            format!("x-gateway-destination-endpoint: {first}"),
            format!("x-token: {token}"),
            format!("x-next: {next}"),
        ];
        gateway.get("/v1/chat/completions", &headers).await
    };
    // The first server, then the list of the requeued request; the status, and the attempts at both servers.
    for (first, next, expected) in [
        (serves, String::new(), ("200", 0, 1)),
        (dead, format!("{serves}"), ("200", 0, 1)),
        (cuts, format!("{serves}"), ("200", 1, 1)),
        (cuts, format!("{cuts}"), ("502", 2, 0)),
        // Envoy skips a server that it doesn't know.
        (elsewhere, format!("{serves}"), ("200", 0, 1)),
    ] {
        let (status, answer) = ask(first, next.clone(), "token=1").await;
        assert_eq!(
            (status.as_str(), drained(&mut cut), drained(&mut served)),
            expected,
            "{first} then {next}: {answer}"
        );
    }
    // Without a token the request isn't sent again.
    let (status, answer) = ask(dead, format!("{serves}"), "").await;
    assert_eq!((status.as_str(), drained(&mut served)), ("503", 0), "{answer}");
}

#[tokio::test]
async fn request_without_a_decision_reaches_no_server() {
    let (serves, mut served) = server(false).await;
    let gateway = Gateway::start(vec![serves]).await;
    for headers in [
        vec![],
        vec!["x-penstock-pool: other".into()],
        vec![format!("x-gateway-destination-endpoint: {serves}")],
    ] {
        let (status, answer) = gateway.get("/v1/chat/completions", &headers).await;
        assert_eq!(status, "503");
        assert!(
            answer.contains("\"code\":\"gateway_unavailable\"") && answer.contains("retry-after: 1"),
            "{answer}"
        );
    }
    assert_eq!(drained(&mut served), 0);
    // A request that passes through has only a pool, and may reach any of its servers.
    let (status, _) = gateway.get("/v1/models", &["x-penstock-pool: chat".into()]).await;
    assert_eq!((status.as_str(), served.recv().await.as_deref()), ("200", Some("GET /v1/models HTTP/1.1")));
}

#[tokio::test]
async fn paths_are_normalized_behind_the_gateway() {
    let (serves, mut served) = server(false).await;
    let gateway = Gateway::start(vec![serves]).await;
    for path in [
        "/v1%2Fchat/completions",
        "//v1//chat/./completions",
        "/v1/%63hat/completions",
        "/v1/x/../chat/completions",
        "/v1/chat%5Ccompletions",
    ] {
        let (status, _) = gateway.get(path, &["x-penstock-pool: chat".into()]).await;
        assert_eq!(status, "200", "{path}");
        assert_eq!(served.recv().await.as_deref(), Some("GET /v1/chat/completions HTTP/1.1"), "{path}");
    }
}

#[tokio::test]
async fn port_in_use_is_named() {
    let dir = TempDir::new().expect("a folder");
    let taken = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let mut settings = settings(dir.path(), vec![]);
    settings.gateway = taken.local_addr().expect("bound");
    let bootstrap = dir.path().join("envoy.json");
    std::fs::write(&bootstrap, bootstrap::document(&settings).to_string()).expect("written");
    let binary = tokio::task::spawn_blocking(|| envoy().path).await.expect("no panic");
    let launch = Launch { binary, bootstrap, admin: settings.admin, workers: 1 };
    let mut envoy = Envoy::start(&launch).await.expect("started");
    let message = envoy.ready(Duration::from_secs(20)).await.expect_err("refused").to_string();
    assert!(message.contains(&format!("can't listen on {}", settings.gateway)), "{message}");
}

/// A model server that responds to one request, and ends the response on a signal.
async fn slow() -> (SocketAddr, mpsc::UnboundedReceiver<()>, oneshot::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let (seen, requests) = mpsc::unbounded_channel();
    let (end, ends) = oneshot::channel();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        read_until(&mut stream, "\r\n\r\n").await;
        let begun = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nbegun";
        stream.write_all(begun).await.expect("written");
        seen.send(()).expect("awaited");
        ends.await.expect("signalled");
        stream.write_all(b"ended").await.expect("written");
        // Reads until Envoy closes the connection.
        read_until(&mut stream, "never").await;
    });
    (address, requests, end)
}

#[tokio::test]
async fn pools_and_servers_change_while_requests_run() {
    let (leaves, mut begun, end) = slow().await;
    let (serves, _seen) = server(false).await;
    let dir = TempDir::new().expect("a folder");
    let mut pools = Folder::open(&dir.path().join("pools")).expect("made");
    pools.write(&[pool("chat", vec![leaves])]).expect("written");
    let mut settings = settings(dir.path(), vec![]);
    settings.folder = Some(pools.path().to_owned());
    let gateway = Gateway::launch(dir, settings).await;

    let runs = async { gateway.granted(&[leaves]).await };
    let changes = async {
        begun.recv().await.expect("it runs");
        let mut chat = pool("chat", vec![serves]);
        pools.write(std::slice::from_ref(&chat)).expect("written");
        gateway.until("chat", serves, "200", &serves.to_string()).await;
        gateway.until("chat", leaves, "503", "no_endpoints").await;
        gateway.until("other", serves, "503", "gateway_unavailable").await;
        // A leaving server can be reached by a list, and not by requests that pass through.
        chat.leaving = vec![chat.endpoints.remove(0)];
        pools.write(&[chat, pool("other", vec![serves])]).expect("written");
        gateway.until("other", serves, "200", &serves.to_string()).await;
        gateway.until("chat", serves, "200", &serves.to_string()).await;
        let ungated = async {
            loop {
                let (status, answer) = gateway.get("/v1/models", &["x-penstock-pool: chat".into()]).await;
                if status == "503" {
                    return answer;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let answer = tokio::time::timeout(Duration::from_secs(20), ungated).await;
        assert!(answer.expect("in time").contains("no_endpoints"));
        pools.write(&[]).expect("written");
        gateway.until("chat", serves, "503", "gateway_unavailable").await;
        end.send(()).expect("it runs");
    };
    let ((status, answer), ()) = tokio::join!(runs, changes);
    assert_eq!(status, "200");
    assert!(answer.ends_with("begunended"), "{answer}");
    gateway.envoy.stop(Duration::from_secs(10)).await;
}
