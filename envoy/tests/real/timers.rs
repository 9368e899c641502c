//! No timer cuts a long answer, a late first byte, or a pause, whoever writes Envoy's configuration.

use penstock_envoy::gateway_resources::{
    self, Gateway as GatewayResource, Listener, Pool as ResourcePool, Servers,
};

use super::*;

/// Every timer that a document may have, with the reason. None of them runs while a request waits or while its server computes.
const ALLOWED: &[(&str, &str)] = &[
    ("request_timeout", "a client must send its whole request within this time"),
    ("request_headers_timeout", "a client must send its headers within this time"),
    ("requestReceivedTimeout", "request_timeout in Envoy Gateway"),
    ("requestHeadersReceivedTimeout", "request_headers_timeout in Envoy Gateway"),
    ("transport_socket_connect_timeout", "a client must complete its TLS handshake within this time"),
    ("connect_timeout", "a server must accept a connection within this time"),
    ("connectTimeout", "connect_timeout in Envoy Gateway"),
    ("common_http_protocol_options.idle_timeout", "a connection to a server without requests is closed"),
    ("connectionIdleTimeout", "the idle_timeout of connections in Envoy Gateway"),
    ("tcpKeepalive.idleTime", "probes find a peer whose machine is gone"),
    ("tcpKeepalive.interval", "probes find a peer whose machine is gone"),
    ("connection_keepalive.interval", "pings find a peer whose machine is gone"),
    ("connection_keepalive.timeout", "pings find a peer whose machine is gone"),
    ("retry_back_off.base_interval", "the pause before a retry"),
    ("retry_back_off.max_interval", "the pause before a retry"),
    ("http_uri.timeout", "Envoy fetches the filter's module before it takes requests"),
    ("refresh_interval", "the overload manager reads the size of the heap"),
    ("dns_refresh_rate", "the time between two lookups"),
    ("dnsRefreshRate", "the time between two lookups in Envoy Gateway"),
];

/// Timers that are on by default, so that a document must switch them off, with the objects that have them.
const OFF: &[&str] =
    &["stream_idle_timeout", "streamIdleTimeout", "requestTimeout", "route.timeout", "initial_fetch_timeout"];

/// All durations of a document: the path of their keys, and the value.
fn durations(value: &Value, path: &mut Vec<String>, found: &mut Vec<(String, String)>) {
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                path.push(key.clone());
                durations(member, path, found);
                path.pop();
            }
        }
        Value::Array(items) => items.iter().for_each(|item| durations(item, path, found)),
        Value::String(text) if is_duration(text) => found.push((path.join("."), text.clone())),
        _ => {}
    }
}

/// In the notation of Envoy or of the Gateway API: numbers with units.
fn is_duration(text: &str) -> bool {
    let units = text.split(|c: char| c.is_ascii_digit() || c == '.').filter(|unit| !unit.is_empty());
    text.starts_with(|c: char| c.is_ascii_digit())
        && text.ends_with(['s', 'm', 'h'])
        && units.into_iter().all(|unit| ["h", "m", "s", "ms"].contains(&unit))
}

fn is_named(path: &str, names: impl IntoIterator<Item = &'static str>) -> bool {
    names.into_iter().any(|name| path == name || path.ends_with(&format!(".{name}")))
}

/// The documents that Penstock prints, each with its name.
fn documents(dir: &Path) -> Vec<(&'static str, Value)> {
    let addresses = vec!["127.0.0.1:8001".parse().expect("valid")];
    let mut settings = settings(dir, vec![pool("chat", addresses.clone())]);
    let listed = bootstrap::document(&settings);
    settings.certificate = Some(dir.join("certificate.json"));
    settings.folder = Some(dir.to_owned());
    let mut folder = Folder::open(dir).expect("a folder");
    folder.write(&settings.pools).expect("written");
    let clusters = std::fs::read_to_string(dir.join("clusters.json")).expect("written");
    let mut documents = vec![
        ("bootstrap", listed),
        ("bootstrap with a folder", bootstrap::document(&settings)),
        ("folder", serde_json::from_str(&clusters).expect("JSON")),
    ];
    settings.module.source = Source::Server(bootstrap::RemoteModule {
        host: "penstock.models".into(),
        port: 9191,
        path: "/penstock.wasm".into(),
        sha256: "ab".repeat(32),
    });
    let service = Servers::Service { namespace: "models".into(), name: "vllm".into(), port: 8000 };
    let dns = Servers::Dns { name: "vllm.models".into(), port: 8000, refresh: Duration::from_secs(5) };
    let pools = [Servers::Addresses(addresses), service, dns]
        .into_iter()
        .zip(["listed", "service", "dns"])
        .map(|(servers, name)| ResourcePool {
            name: name.into(),
            servers,
            upstream: bootstrap::Upstream::default(),
        });
    let pools: Vec<_> = pools.collect();
    let mut gateway = GatewayResource {
        namespace: "models".into(),
        name: "eg".into(),
        listeners: vec![Listener { name: "http".into(), port: Some(80) }],
        requeue: false,
    };
    documents.push(("Istio", gateway_resources::istio(&settings, &gateway, &pools)));
    documents.push(("Envoy Gateway", gateway_resources::envoy_gateway(&settings, &gateway, &pools).into()));
    gateway.requeue = true;
    let requeue = gateway_resources::envoy_gateway(&settings, &gateway, &pools);
    documents.push(("Envoy Gateway with requeues", requeue.into()));
    documents
}

#[test]
fn documents_have_no_timers_but_those_with_a_reason() {
    let dir = TempDir::new().expect("a folder");
    for (name, document) in documents(dir.path()) {
        let mut found = Vec::new();
        durations(&document, &mut Vec::new(), &mut found);
        assert!(!found.is_empty(), "{name}");
        for (path, value) in found {
            let is_allowed = is_named(&path, ALLOWED.iter().map(|(key, _)| *key));
            let is_off = value == "0s" && is_named(&path, OFF.iter().copied());
            assert!(is_allowed || is_off, "{name}: {path}: {value}");
        }
    }
}

#[test]
fn timers_that_are_on_by_default_are_off() {
    let dir = TempDir::new().expect("a folder");
    for (name, document) in documents(dir.path()) {
        let mut managers = 0;
        let mut routes = 0;
        let mut pending = vec![&document];
        while let Some(value) = pending.pop() {
            match value {
                Value::Array(items) => pending.extend(items),
                Value::Object(members) => {
                    pending.extend(members.values());
                    if members
                        .get("@type")
                        .and_then(Value::as_str)
                        .is_some_and(|kind| kind.ends_with("HttpConnectionManager"))
                    {
                        managers += 1;
                        assert_eq!(value["stream_idle_timeout"], "0s", "{name}: {value}");
                    }
                    if members.contains_key("match") && members.contains_key("route") {
                        routes += 1;
                        assert_eq!(value["route"]["timeout"], "0s", "{name}: {value}");
                    }
                    if value["kind"] == "ClientTrafficPolicy" {
                        managers += 1;
                        assert_eq!(
                            value["spec"]["timeout"]["http"]["streamIdleTimeout"], "0s",
                            "{name}: {value}"
                        );
                        assert!(value["spec"]["tcpKeepalive"]["probes"].is_number(), "{name}: {value}");
                    }
                    if value["kind"] == "BackendTrafficPolicy" {
                        routes += 1;
                        let timeouts = &value["spec"]["timeout"]["http"];
                        assert_eq!(timeouts["streamIdleTimeout"], "0s", "{name}: {value}");
                        assert_eq!(timeouts["requestTimeout"], "0s", "{name}: {value}");
                    }
                }
                _ => {}
            }
        }
        let has_listeners = name != "folder";
        assert_eq!(managers > 0 && routes > 0, has_listeners, "{name}");
    }
}

/// A server that is silent before its first byte and again inside its answer, and the text of that answer.
async fn slow(pause: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                read_until(&mut stream, "\r\n\r\n").await;
                tokio::time::sleep(pause).await;
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\none").await;
                tokio::time::sleep(pause).await;
                let _ = stream.write_all(b"two").await;
            });
        }
    });
    address
}

/// Makes every timer of the document shorter than `SHORT`, but for the time to connect, which a loaded machine needs.
fn shorten(document: &mut Value) {
    match document {
        Value::Object(members) => {
            for (key, member) in members {
                match member {
                    Value::String(text) if is_duration(text) && key != "connect_timeout" && text != "0s" => {
                        *text = "0.5s".into();
                    }
                    _ => shorten(member),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(shorten),
        _ => {}
    }
}

/// The answer of a slow server to a request that waits in the requeue listener's filter first.
async fn answer_of_slow(change: impl FnOnce(&mut Value)) -> String {
    let (dead, slow) = (free(), slow(Duration::from_secs(2)).await);
    let dir = TempDir::new().expect("a folder");
    let settings = settings(dir.path(), vec![pool("chat", vec![dead, slow])]);
    let gateway = Gateway::launch_changed(dir, settings, change).await;
    let (_, answer) = gateway.listed(&format!("{dead},{}", bootstrap::REQUEUE_HOST), &slow.to_string()).await;
    gateway.envoy.stop(Duration::from_secs(10)).await;
    answer
}

/// Each timer of the bootstrap is shortened to a fraction of the server's pauses. None of them ends the request, so that in their
/// full length none ends a longer one.
#[tokio::test]
async fn answer_takes_any_time_and_pauses_for_any_time() {
    let answer = answer_of_slow(shorten).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("onetwo"), "{answer}");
}

/// Shows that the test above would find a timer.
#[tokio::test]
async fn a_timer_for_silent_streams_would_end_that_answer() {
    let answer = answer_of_slow(|document| {
        let manager =
            "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/stream_idle_timeout";
        *document.pointer_mut(manager).expect("present") = "0.5s".into();
    });
    let answer = answer.await;
    assert!(!answer.ends_with("onetwo"), "{answer}");
}
