//! Access control: certificates on gRPC, unix sockets of one user, host names and tokens on the HTTP side.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use penstock_tests::certificates::Certificates;
use penstock_tests::gateway::{LISTEN_BUT_GRPC, config, pool, slots};
use penstock_tests::{ClientRequest, Gateway, Process, Upstream, binary, run, until};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

const TOKEN: &str = "a-secret-of-the-test";

/// A client that trusts this authority and presents the certificate of `shown`.
fn client(trusted: &Certificates, shown: Option<&Certificates>) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&trusted.ca).expect("a certificate")).expect("an authority");
    let client = ClientConfig::builder().with_root_certificates(roots);
    let mut client = match shown {
        None => client.with_no_client_auth(),
        Some(shown) => client
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_file(&shown.cert).expect("a certificate")],
                PrivateKeyDer::from_pem_file(&shown.key).expect("a key"),
            )
            .expect("a pair"),
    };
    client.alpn_protocols = vec![b"h2".to_vec()];
    TlsConnector::from(Arc::new(client))
}

/// Starts HTTP/2 and returns the server's first frame.
async fn greeted(client: TlsConnector, address: SocketAddr) -> std::io::Result<[u8; 9]> {
    let plain = tokio::net::TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").expect("a name");
    let mut stream = client.connect(name, plain).await?;
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await?;
    stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await?;
    stream.flush().await?;
    let mut frame = [0; 9];
    stream.read_exact(&mut frame).await?;
    Ok(frame)
}

/// The gRPC address of a gateway's companion, from its command line.
async fn grpc(gateway: &Gateway) -> SocketAddr {
    until("a companion with an address", || async {
        let children = gateway.process.children();
        let found = children.iter().find_map(|(_, command)| {
            let mut words = command.split_whitespace().skip_while(|word| *word != "--grpc");
            words.nth(1)?.parse().ok()
        });
        found.ok_or_else(|| format!("{children:?}"))
    })
    .await
}

#[test]
fn only_a_certificate_of_the_authority_opens_a_session() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let ours = Certificates::new(folder.path(), "ours");
        let others = Certificates::new(folder.path(), "others");
        let server = Upstream::serving(Duration::ZERO).await;
        // Envoy's session needs the certificate as well; without it the gateway would not become ready.
        let gateway = Gateway::start(&config(&ours.configured(), &[pool("p", "'*'", &[&server], "")])).await;
        assert_eq!(gateway.send(ClientRequest::chat("m", "x")).await.status, 200);

        let address = grpc(&gateway).await;
        let frame = greeted(client(&ours, Some(&ours)), address).await.expect("let in");
        assert_eq!(frame[3], 4, "SETTINGS: {frame:?}");
        for shown in [None, Some(&others)] {
            let refused = greeted(client(&ours, shown), address).await.expect_err("not let in");
            // The alert, or a connection that closed before the client read it.
            let kinds = [
                ErrorKind::InvalidData,
                ErrorKind::ConnectionReset,
                ErrorKind::BrokenPipe,
                ErrorKind::UnexpectedEof,
            ];
            assert!(kinds.contains(&refused.kind()), "refused for its certificate: {refused:?}");
        }
        let mut plain = tokio::net::TcpStream::connect(address).await.expect("open");
        plain.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("sent");
        let mut answer = Vec::new();
        let _ = plain.read_to_end(&mut answer).await;
        assert_ne!(answer.get(3), Some(&4), "no HTTP/2 in the clear: {answer:?}");
    });
}

#[test]
fn unusable_certificates_are_named() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let (ours, others) =
            (Certificates::new(folder.path(), "ours"), Certificates::new(folder.path(), "others"));
        let server = Upstream::serving(Duration::ZERO).await;
        let missing = folder.path().join("missing.pem");
        let cases = [
            (&missing, &ours.key, &ours.ca, "tls.cert", "missing.pem"),
            (&ours.key, &ours.key, &ours.ca, "tls.cert", "no certificate"),
            (&ours.cert, &ours.cert, &ours.ca, "tls.key", "no private key"),
            (&ours.cert, &ours.key, &ours.key, "tls.client_ca", "no certificate"),
            (&ours.cert, &others.key, &ours.ca, "tls", "don't match"),
        ];
        for (cert, key, client_ca, named, word) in cases {
            let tls = Certificates { cert: cert.clone(), key: key.clone(), ca: client_ca.clone() };
            let file = folder.path().join("penstock.yaml");
            let text = config(&tls.configured(), &[pool("p", "", &[&server], "")]);
            std::fs::write(&file, text).expect("write a file");
            let (code, said) = serve(&file).await;
            assert_eq!(code, Some(2), "{named}: {said}");
            assert!(
                said.contains(&format!("{named}: ")) && said.contains(word) && said.contains(".pem"),
                "{named}: {said}"
            );
        }
    });
}

/// Runs `penstock serve`, which is expected to fail.
async fn serve(file: &Path) -> (Option<i32>, String) {
    serve_with(file, &[]).await
}

async fn serve_with(file: &Path, flags: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(binary::penstock());
    command.arg("serve").arg("--config").arg(file).args(flags);
    command.kill_on_drop(true);
    let output =
        penstock_tests::wait::soon("penstock ends", command.output()).await.expect("penstock starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), said)
}

#[test]
fn unprotected_address_off_loopback_is_rejected_with_its_line() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("penstock.yaml");
        let pools = "pools:\n- name: p\n  endpoints: {static: ['127.0.0.1:9']}\n";
        for (head, line, word) in [
            ("listen: {gateway: '0.0.0.0:0'}\n", 1, "identity.trust"),
            ("# one\nlisten:\n  grpc: 0.0.0.0:0\n", 3, "client_ca"),
            ("identity:\n  trust: [10.0.0.0/8, 10.0.0.0]\n", 2, "10.0.0.0/8"),
            ("identity:\n  trust: some\n", 2, "all, none"),
            ("admin:\n  hosts: ['http://a']\n", 2, "admin.hosts[0]"),
        ] {
            std::fs::write(&file, format!("{head}{pools}")).expect("write a file");
            let (code, said) = serve(&file).await;
            assert_eq!(code, Some(2), "{head}: {said}");
            assert!(
                said.contains(&format!("penstock.yaml:{line}: ")) && said.contains(word),
                "{head}: {said}"
            );
        }
        std::fs::write(&file, pools).expect("write a file");
        let (code, said) = serve_with(&file, &["--grpc", "0.0.0.0:0"]).await;
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("listen.grpc") && said.contains("client_ca"), "{said}");
        std::fs::write(&file, format!("admin: {{token_file: no/such/token}}\n{pools}"))
            .expect("write a file");
        let (code, said) = serve(&file).await;
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("admin.token_file: no/such/token"), "{said}");
    });
}

#[test]
fn envoy_reaches_the_companion_on_a_private_unix_socket() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("grpc.sock");
        let server = Upstream::serving(Duration::ZERO).await;
        let text = format!(
            "{LISTEN_BUT_GRPC}, grpc: 'unix:{}'}}\npools:\n{}",
            socket.display(),
            pool("p", "'*'", &[&server], "  companion_down: {hold: 30s}\n")
        );
        let gateway = Gateway::start(&text).await;
        assert_eq!(gateway.send(ClientRequest::chat("m", "x")).await.status, 200);
        let mode = std::fs::metadata(&socket).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // A killed companion leaves its socket behind; the next one replaces it.
        let first = gateway.child("serve").await;
        penstock_tests::process::send(first, libc::SIGKILL);
        assert_eq!(gateway.send(ClientRequest::chat("m", "x")).await.status, 200);
        gateway.ready().await;
        let second = gateway.child("serve").await;
        assert_ne!(first, second);
    });
}

#[test]
fn pages_are_served_on_a_unix_socket() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("http.sock");
        let file = folder.path().join("penstock.yaml");
        let text = format!(
            "listen: {{grpc: 'unix:{}', http: 'unix:{}'}}\npools:\n- name: p\n  endpoints: {{static: ['127.0.0.1:9']}}\n",
            folder.path().join("grpc.sock").display(),
            socket.display()
        );
        std::fs::write(&file, text).expect("write a file");
        let mut command = Command::new(binary::penstock());
        command.arg("serve").arg("--config").arg(&file);
        let mut companion = Process::start("serve", command).await;
        let client =
            reqwest::Client::builder().no_proxy().unix_socket(socket.as_path()).build().expect("a client");
        until("pages", || async {
            match client.get("http://localhost/livez").send().await {
                Ok(response) if response.status() == 200 => Ok(()),
                Ok(response) => Err(response.status().to_string()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await;
        let mode = std::fs::metadata(&socket).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // Only processes of this machine can open the socket, so changes need no token if none is configured.
        let drained = client.post("http://localhost/drain").json(&json!({})).send().await;
        assert_eq!(drained.expect("answered").status(), 200);
        let foreign = client.get("http://evil.example/status").send().await;
        assert_eq!(foreign.expect("answered").status(), 403);
        companion.signal(libc::SIGTERM);
        assert_eq!(companion.exit().await.code(), Some(0), "{}", companion.tail());
        assert!(!socket.exists());
    });
}

/// A gateway whose companion has a token.
async fn guarded(folder: &Path, servers: &[&Upstream]) -> Gateway {
    let file = folder.join("token");
    std::fs::write(&file, format!("{TOKEN}\n")).expect("write a file");
    let head = format!("admin: {{token_file: '{}', hosts: [penstock.example]}}\n", file.display());
    Gateway::start(&config(&head, &[pool("p", "'*'", servers, &slots(1))])).await
}

#[test]
fn drain_needs_the_token_and_can_be_undone() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let server = Upstream::serving(Duration::ZERO).await;
        let gateway = guarded(folder.path(), &[&server]).await;
        let bearer = format!("Bearer {TOKEN}");
        let url = format!("{}/drain", gateway.companion());
        let post = |authorization: &str, kind: &str, host: &str, body: &'static str| {
            gateway
                .client()
                .post(&url)
                .header("authorization", authorization)
                .header("content-type", kind)
                .header("host", host)
                .body(body)
                .send()
        };
        let json = "application/json";
        let own = "localhost";
        for (authorization, kind, host, body, status) in [
            ("", json, own, "{}", 401),
            ("Bearer wrong", json, own, "{}", 401),
            ("Basic wrong", json, own, "{}", 401),
            (&bearer, "text/plain", own, "{}", 415),
            (&bearer, json, "evil.example", "{}", 403),
            (&bearer, json, own, "{\"of\": true}", 400),
            (&bearer, json, own, "[", 400),
        ] {
            let answer = post(authorization, kind, host, body).await.expect("answered");
            assert_eq!(answer.status(), status, "{authorization} {kind} {host} {body}");
        }
        assert_eq!(gateway.send(ClientRequest::chat("m", "x")).await.status, 200);

        let drained = post(&bearer, "application/json; charset=utf-8", "penstock.example", "").await;
        let drained: Value = drained.expect("answered").json().await.expect("JSON");
        assert_eq!(drained, json!({"draining": true}));
        gateway.send(ClientRequest::chat("m", "x")).await.expect_error(503, "shutting_down", "shutting_down");
        let ready = gateway.get("/readyz").await.expect("answered");
        assert_eq!(ready.status, 503, "{}", ready.text());

        let back = post(&bearer, json, own, "{\"off\": true}").await.expect("answered");
        assert_eq!(back.status(), 200);
        assert_eq!(gateway.send(ClientRequest::chat("m", "x")).await.status, 200);
        gateway.ready().await;
        assert!(!gateway.process.log().contains(TOKEN), "the token is in the log");
    });
}

#[test]
fn pages_are_served_only_under_known_host_names() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let server = Upstream::serving(Duration::ZERO).await;
        let gateway = guarded(folder.path(), &[&server]).await;
        for (host, status) in [
            ("localhost", 200),
            ("127.0.0.1", 200),
            ("192.0.2.1:80", 200),
            ("penstock.example", 200),
            ("evil.example", 403),
            ("127.0.0.1.evil.example", 403),
        ] {
            for page in ["/", "/livez", "/readyz", "/status", "/metrics"] {
                let asked = gateway.client().get(format!("{}{page}", gateway.companion()));
                let answer = asked.header("host", host).send().await.expect("answered");
                assert_eq!(answer.status(), status, "{page} of {host}");
            }
        }
    });
}

#[test]
fn identities_from_bodies_are_shown_only_with_the_token() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let server = Upstream::scripted().await;
        let gateway = guarded(folder.path(), &[&server]).await;
        let private = "person-4711";
        let asked = gateway.spawn(ClientRequest::chat("m", "x").with("user", private));
        let call = server.next().await;
        gateway.stock("p", 1).await;
        let look = |authorization: String| async {
            let asked = gateway.client().get(format!("{}/status", gateway.companion()));
            let answer = asked.header("authorization", authorization).send().await;
            let status: Value = answer.expect("answered").json().await.expect("JSON");
            status["pools"][0]["flows"].to_string()
        };
        for wrong in ["", "Bearer wrong"] {
            let flows = look(wrong.into()).await;
            assert!(!flows.contains(private) && flows.contains("other"), "{flows}");
        }
        let flows = look(format!("Bearer {TOKEN}")).await;
        assert!(flows.contains(private), "{flows}");
        let metrics = gateway.get("/metrics").await.expect("answered").text();
        assert!(!metrics.contains(private), "{metrics}");
        call.answer();
        assert_eq!(asked.await.expect("answered").status, 200);
        assert!(!gateway.process.log().contains(private), "{}", gateway.process.tail());
    });
}

#[test]
fn untrusted_priority_is_lowered_to_default_and_counted() {
    run(async {
        for (trust, band, lowered) in [("none", "default", 1), ("[127.0.0.0/8]", "critical", 0)] {
            let server = Upstream::scripted().await;
            let head = format!("identity: {{trust: {trust}}}\n");
            let gateway = Gateway::start(&config(&head, &[pool("p", "'*'", &[&server], &slots(1))])).await;
            let page = gateway.get("/metrics").await.expect("answered").text();
            for name in [
                "requeues_total",
                "priority_lowered_total",
                "resyncs_total",
                "unacked_events",
                "orphaned_stock",
                "draining_stock",
                "misrouted_total",
                "sessions",
            ] {
                assert!(page.contains(&format!("# HELP penstock_{name} ")), "{name}:\n{page}");
            }
            let ask = ClientRequest::chat("m", "x").header("x-penstock-priority", "critical");
            let asked = gateway.spawn(ask);
            let call = server.next().await;
            gateway.stock("p", 1).await;
            let flows = gateway.pool("p").await["flows"].clone();
            assert_eq!(flows[0]["band"], band, "{trust}: {flows}");
            let counted = gateway.metrics().await.sum("penstock_priority_lowered_total", &[]);
            assert_eq!(counted, f64::from(lowered), "{trust}");
            call.answer();
            assert_eq!(asked.await.expect("answered").status, 200);
        }
    });
}
