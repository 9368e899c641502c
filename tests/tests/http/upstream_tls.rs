//! `upstream` of a pool: servers behind TLS, with HTTP/2, and with a credential of the gateway's own. Requests, requeued requests, health checks and
//! metrics go the same way.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use penstock_tests::certificates::Certificates;
use penstock_tests::gateway::config;
use penstock_tests::{ClientRequest, Gateway, RefusingServer, Upstream, run, until};
use serde_json::json;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// A request that a server has received.
#[derive(Clone, Debug)]
struct Seen {
    path: String,
    version: Version,
    headers: http::HeaderMap,
    name: Option<String>,
}

impl Seen {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("text"))
    }
}

/// A model server that answers everything: with TLS or without, with HTTP/1.1 or HTTP/2.
struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    task: AbortHandle,
}

impl Server {
    async fn start(tls: Option<ServerConfig>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let acceptor = tls.map(|tls| TlsAcceptor::from(Arc::new(tls)));
        let noted = seen.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(connection(stream, acceptor.clone(), noted.clone()));
            }
        });
        Self { address, seen, task: task.abort_handle() }
    }

    /// The requests to this path so far.
    fn requests(&self, path: &str) -> Vec<Seen> {
        let seen = self.seen.lock().expect("no panic");
        seen.iter().filter(|seen| seen.path == path).cloned().collect()
    }

    /// Waits until a request to this path fulfils the condition.
    async fn until(&self, path: &str, name: &str, condition: impl Fn(&Seen) -> bool) {
        until(name, || async {
            let requests = self.requests(path);
            if requests.iter().any(&condition) { Ok(()) } else { Err(format!("{:?}", requests.last())) }
        })
        .await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn connection(stream: TcpStream, acceptor: Option<TlsAcceptor>, seen: Arc<Mutex<Vec<Seen>>>) {
    let Some(acceptor) = acceptor else {
        return serve(stream, None, seen).await;
    };
    if let Ok(stream) = acceptor.accept(stream).await {
        let name = stream.get_ref().1.server_name().map(str::to_owned);
        serve(stream, name, seen).await;
    }
}

async fn serve<S>(stream: S, name: Option<String>, seen: Arc<Mutex<Vec<Seen>>>)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let (seen, name) = (seen.clone(), name.clone());
        async move {
            let (head, body) = request.into_parts();
            let _ = body.collect().await;
            let path = head.uri.path().to_owned();
            let (kind, text) = match path.as_str() {
                "/metrics" => {
                    ("text/plain", "vllm:num_requests_running 0\nvllm:num_requests_waiting 7\n".to_owned())
                }
                "/health" => ("text/plain", "ok".to_owned()),
                _ => {
                    let answer = json!({
                        "id": "1", "object": "chat.completion", "model": "m",
                        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}],
                        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
                    });
                    ("application/json", answer.to_string())
                }
            };
            let request = Seen { path, version: head.version, headers: head.headers, name };
            seen.lock().expect("no panic").push(request);
            let response =
                Response::builder().header("content-type", kind).body(Full::new(Bytes::from(text)));
            Ok::<_, Infallible>(response.expect("valid"))
        }
    });
    let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
}

/// The server's side of TLS with these files. `clients`: the authority of the certificates that clients must have.
fn tls(files: &Certificates, clients: Option<&Path>) -> ServerConfig {
    let cert = CertificateDer::from_pem_file(&files.cert).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(&files.key).expect("a key");
    let builder = ServerConfig::builder();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            roots
                .add(CertificateDer::from_pem_file(authority).expect("a certificate"))
                .expect("an authority");
            builder.with_client_cert_verifier(
                WebPkiClientVerifier::builder(Arc::new(roots)).build().expect("valid"),
            )
        }
    };
    let mut config = builder.with_single_cert(vec![cert], key).expect("they match");
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}

/// A pool of this server with these further keys, checked and read often.
fn pool(address: SocketAddr, keys: &str) -> String {
    format!(
        "- name: p\n  endpoints: {{static: ['{address}']}}\n  health: {{interval: 100ms}}\n  scrape: {{interval: 100ms}}\n{keys}"
    )
}

fn upstream(keys: &str) -> String {
    format!("  upstream: {{{keys}}}\n")
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display())
}

async fn endpoint(gateway: &Gateway) -> serde_json::Value {
    gateway.pool("p").await["endpoints"][0].clone()
}

/// Waits until the endpoint is not ready for a reason with this word.
async fn fails_with(gateway: &Gateway, word: &str) {
    until(word, || async {
        let endpoint = endpoint(gateway).await;
        let is_shown = endpoint["why"].as_str().is_some_and(|why| why.contains(word));
        if is_shown && endpoint["ready"] == false { Ok(()) } else { Err(endpoint.to_string()) }
    })
    .await;
}

async fn metrics_are_read(gateway: &Gateway) {
    until("metrics", || async {
        let endpoint = endpoint(gateway).await;
        if endpoint["queue"] == 7 { Ok(()) } else { Err(endpoint.to_string()) }
    })
    .await;
}

#[test]
fn requests_checks_and_metrics_reach_a_server_behind_tls() {
    run(async {
        let folder = TempDir::new().expect("a folder");
        let files = Certificates::new(folder.path(), "server");
        let server = Server::start(Some(tls(&files, None))).await;
        let keys = upstream(&format!("tls: {{ca: {}}}", quoted(&files.ca)));
        let gateway = Gateway::start(&config("", &[pool(server.address, &keys)])).await;
        let answer = gateway.send(ClientRequest::chat("m", "x")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.header("x-gateway-destination-endpoint-served"), server.address.to_string());
        metrics_are_read(&gateway).await;
        assert_eq!(endpoint(&gateway).await["scheme"], "https");
        for path in ["/v1/chat/completions", "/health", "/metrics"] {
            let seen = server.requests(path);
            assert!(
                seen.iter().all(|seen| seen.version == Version::HTTP_11 && seen.name.is_none()),
                "{seen:?}"
            );
            assert!(!seen.is_empty(), "{path}");
        }
    });
}

#[test]
fn a_server_is_asked_by_its_name_with_http_2() {
    run(async {
        let folder = TempDir::new().expect("a folder");
        let files = Certificates::new(folder.path(), "server");
        let server = Server::start(Some(tls(&files, None))).await;
        let keys =
            upstream(&format!("http2: true, tls: {{ca: {}, server_name: localhost}}", quoted(&files.ca)));
        let gateway = Gateway::start(&config("", &[pool(server.address, &keys)])).await;
        let answer = gateway.send(ClientRequest::chat("m", "x")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        metrics_are_read(&gateway).await;
        for path in ["/v1/chat/completions", "/health", "/metrics"] {
            let seen = server.requests(path);
            let is_right =
                |seen: &Seen| seen.version == Version::HTTP_2 && seen.name.as_deref() == Some("localhost");
            assert!(!seen.is_empty() && seen.iter().all(is_right), "{path}: {seen:?}");
        }
    });
}

#[test]
fn an_untrusted_or_misnamed_server_gets_no_request() {
    run(async {
        let folder = TempDir::new().expect("a folder");
        let (files, other) =
            (Certificates::new(folder.path(), "server"), Certificates::new(folder.path(), "other"));
        let server = Server::start(Some(tls(&files, None))).await;
        for (keys, word) in [
            (format!("tls: {{ca: {}}}", quoted(&other.ca)), "isn't signed by an authority"),
            (format!("tls: {{ca: {}, server_name: vllm.example}}", quoted(&files.ca)), "for another name"),
        ] {
            let queue = "  queue: {no_endpoint_ttl: 100ms, ttl: 100ms}\n";
            let pool = pool(server.address, &(upstream(&keys) + queue));
            let gateway = Gateway::start(&config("", &[pool])).await;
            fails_with(&gateway, word).await;
            assert_eq!(gateway.send(ClientRequest::chat("m", "x")).await.status, 503, "{word}");
            // Envoy refuses too, with no health check that keeps requests away.
            let text = std::fs::read_to_string(gateway.config())
                .expect("there")
                .replace("{interval: 100ms}\n  scrape", "{path: null}\n  scrape");
            std::fs::write(gateway.config(), text).expect("written");
            until("ready", || async {
                let endpoint = endpoint(&gateway).await;
                if endpoint["ready"] == true { Ok(()) } else { Err(endpoint.to_string()) }
            })
            .await;
            assert_ne!(gateway.send(ClientRequest::chat("m", "x")).await.status, 200, "{word}");
        }
        assert!(server.requests("/v1/chat/completions").is_empty());
        let keys = upstream("tls: {insecure: true}");
        let gateway = Gateway::start(&config("", &[pool(server.address, &keys)])).await;
        assert_eq!(gateway.send(ClientRequest::chat("m", "x")).await.status, 200, "accepts any certificate");
    });
}

#[test]
fn a_server_may_require_a_certificate_of_the_gateway() {
    run(async {
        let folder = TempDir::new().expect("a folder");
        let (files, own) =
            (Certificates::new(folder.path(), "server"), Certificates::new(folder.path(), "gateway"));
        let server = Server::start(Some(tls(&files, Some(&own.ca)))).await;
        let ca = quoted(&files.ca);
        let without = upstream(&format!("tls: {{ca: {ca}}}"));
        let gateway = Gateway::start(&config("", &[pool(server.address, &without)])).await;
        fails_with(&gateway, "requires a certificate").await;
        let (cert, key) = (quoted(&own.cert), quoted(&own.key));
        let with = upstream(&format!("tls: {{ca: {ca}, cert: {cert}, key: {key}}}"));
        let text = std::fs::read_to_string(gateway.config()).expect("there").replace(&without, &with);
        std::fs::write(gateway.config(), text).expect("written");
        metrics_are_read(&gateway).await;
        until("an answer", || async {
            let answer = gateway.send(ClientRequest::chat("m", "x")).await;
            if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
        })
        .await;
    });
}

#[test]
fn credential_replaces_the_clients_and_follows_its_file() {
    run(async {
        let folder = TempDir::new().expect("a folder");
        let file = folder.path().join("key");
        std::fs::write(&file, "Bearer first (1)%\"\\\n").expect("written");
        let server = Server::start(None).await;
        let keys = upstream(&format!(
            "http2: true, headers: {{authorization: {{file: {}}}, x-team: {{value: 'hush a'}}}}",
            quoted(&file)
        ));
        let gateway = Gateway::with_log(&config("", &[pool(server.address, &keys)]), "debug").await;
        let ask = || {
            ClientRequest::chat("m", "x")
                .header("authorization", "Bearer of-client")
                .header("x-api-key", "of-client")
                .header("x-team", "of-client")
        };
        assert_eq!(gateway.send(ask()).await.status, 200);
        let passing = gateway.client().get(gateway.url("/v1/models")).bearer_auth("of-client").send().await;
        assert_eq!(passing.expect("an answer").status(), 200);
        metrics_are_read(&gateway).await;
        for path in ["/v1/chat/completions", "/v1/models", "/health", "/metrics"] {
            let seen = server.requests(path);
            assert!(!seen.is_empty(), "{path}");
            for seen in seen {
                assert_eq!(seen.version, Version::HTTP_2, "{path}");
                assert_eq!(seen.header("authorization"), Some("Bearer first (1)%\"\\"), "{path}");
                assert_eq!(
                    (seen.header("x-team"), seen.header("x-api-key")),
                    (Some("hush a"), None),
                    "{path}"
                );
            }
        }
        std::fs::write(&file, "Bearer second").expect("written");
        for path in ["/health", "/metrics"] {
            server
                .until(path, "the new credential", |seen| {
                    seen.header("authorization") == Some("Bearer second")
                })
                .await;
        }
        until("requests with the new credential", || async {
            assert_eq!(gateway.send(ask()).await.status, 200, "no request is lost by the change");
            let seen = server.requests("/v1/chat/completions");
            let last = seen.last().expect("a request");
            if last.header("authorization") == Some("Bearer second") {
                Ok(())
            } else {
                Err(format!("{last:?}"))
            }
        })
        .await;
        let shown = gateway.get("/config").await.expect("an answer").text();
        let shown = shown + &gateway.status().await.to_string() + gateway.metrics().await.text();
        assert!(!shown.contains("hush") && !shown.contains("Bearer"), "{shown}");
        let log = gateway.process.log();
        assert!(!log.contains("hush") && !log.contains("Bearer"), "{log}");
    });
}

#[test]
fn a_requeued_request_goes_on_to_a_server_behind_tls_with_its_tenant() {
    run(async {
        let folder = TempDir::new().expect("a folder");
        let files = Certificates::new(folder.path(), "server");
        let refusing = RefusingServer::new();
        let dead = refusing.address();
        let server = Server::start(Some(tls(&files, None))).await;
        for http2 in [false, true] {
            let ca = quoted(&files.ca);
            let keys = upstream(&format!(
                "http2: {http2}, tls: {{ca: {ca}}}, headers: {{authorization: {{value: Bearer of-gateway}}}}"
            ));
            let pool = format!(
                "- name: p\n  endpoints: {{static: ['{dead}', '{}']}}\n  health: {{path: null}}\n  scrape: {{path: null}}\n  \
                 scheduler: {{prefix: 0}}\n{keys}",
                server.address
            );
            let identity = "identity: {fairness_id: [{header: authorization}]}\n";
            let gateway = Gateway::start(&config(identity, &[pool])).await;
            let large = "x".repeat(300_000);
            let ask = || ClientRequest::chat("m", &large).header("authorization", "tenant-key");
            // Until the dead server gets one.
            until("a requeue", || async {
                let asked: Vec<_> = std::iter::repeat_with(|| gateway.spawn(ask())).take(8).collect();
                for asked in asked {
                    let answer = asked.await.expect("answered");
                    assert_eq!(answer.status, 200, "{}", answer.text());
                }
                let page = gateway.metrics().await;
                if page.sum("penstock_requeues_total", &[]) >= 1.0 {
                    Ok(())
                } else {
                    Err(page.text().to_owned())
                }
            })
            .await;
            let flows = gateway.pool("p").await["flows"].to_string();
            assert!(!flows.contains("of-gateway"), "the credential is no identity: {flows}");
        }
        let seen = server.requests("/v1/chat/completions");
        assert!(
            seen.iter().all(|seen| seen.header("authorization") == Some("Bearer of-gateway")),
            "{seen:?}"
        );
    });
}

#[test]
fn metrics_may_be_on_another_port_with_a_token() {
    run(async {
        let folder = TempDir::new().expect("a folder");
        let token = folder.path().join("token");
        std::fs::write(&token, "one\n").expect("written");
        let files = Certificates::new(folder.path(), "exporter");
        let (model_server, exporter) = (
            Upstream::serving(std::time::Duration::ZERO).await,
            Server::start(Some(tls(&files, None))).await,
        );
        let pool = format!(
            "- name: p\n  endpoints: {{static: ['{}']}}\n  upstream: {{headers: {{authorization: {{value: Bearer of-requests}}}}}}\n  \
             scrape: {{interval: 100ms, port: {}, token_file: {}, tls: {{ca: {}}}}}\n",
            model_server.address(),
            exporter.address.port(),
            quoted(&token),
            quoted(&files.ca),
        );
        let gateway = Gateway::start(&config("", &[pool])).await;
        metrics_are_read(&gateway).await;
        std::fs::write(&token, "two").expect("written");
        exporter
            .until("/metrics", "the new token", |seen| seen.header("authorization") == Some("Bearer two"))
            .await;
        let seen = exporter.requests("/metrics");
        assert_eq!(seen[0].header("authorization"), Some("Bearer one"));
    });
}

#[test]
fn an_unknown_metrics_page_is_named_at_its_endpoint() {
    run(async {
        let server = Server::start(None).await;
        let keys = "  scrape: {path: /health, interval: 100ms}\n";
        let pool = format!("- name: p\n  endpoints: {{static: ['{}']}}\n{keys}", server.address);
        let gateway = Gateway::start(&config("", &[pool])).await;
        until("the reason", || async {
            let endpoint = endpoint(&gateway).await;
            let why = endpoint["why"].as_str().unwrap_or_default();
            let is_named = why.starts_with("ready") && why.contains("none of the series");
            if is_named { Ok(()) } else { Err(endpoint.to_string()) }
        })
        .await;
    });
}
