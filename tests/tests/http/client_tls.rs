//! TLS for clients (`listen.tls`): HTTP/2 and HTTP/1.1 by ALPN, and a certificate that is replaced while requests run.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use penstock_tests::certificates::Certificates;
use penstock_tests::gateway::{config, pool};
use penstock_tests::h2c::H2c;
use penstock_tests::{ClientRequest, Gateway, Upstream, run, until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

const SERVICE: Duration = Duration::from_millis(5);

/// Connects with TLS, trusts these authorities and offers this protocol.
pub(crate) async fn connect(
    address: SocketAddr,
    authorities: &[&Path],
    protocol: &str,
) -> Result<TlsStream<TcpStream>, String> {
    let mut roots = RootCertStore::empty();
    for file in authorities {
        let authority = CertificateDer::from_pem_file(file).expect("a certificate");
        roots.add(authority).expect("an authority");
    }
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![protocol.into()];
    let name = ServerName::try_from("localhost").expect("a name");
    let socket = TcpStream::connect(address).await.map_err(|why| why.to_string())?;
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(name, socket).await.map_err(|why| why.to_string())
}

/// The certificate that the server has shown.
fn certificate(connection: &TlsStream<TcpStream>) -> CertificateDer<'static> {
    let shown = connection.get_ref().1.peer_certificates().expect("a certificate");
    shown[0].clone().into_owned()
}

/// Files of a certificate, replaced one after the other, atomically.
fn replace(files: &Certificates, new: &Certificates) {
    for (file, new) in [(&files.key, &new.key), (&files.cert, &new.cert)] {
        let next = file.with_extension("next");
        std::fs::copy(new, &next).expect("copied");
        std::fs::rename(next, file).expect("renamed");
    }
}

async fn gateway(server: &Upstream, files: &Certificates) -> Gateway {
    let text = config("", &[pool("a", "", &[server], "")]);
    let tls = format!("tls: {{cert: '{}', key: '{}'}}", files.cert.display(), files.key.display());
    Gateway::start(&text.replacen("listen: {", &format!("listen: {{{tls}, "), 1)).await
}

#[test]
fn clients_choose_the_protocol_by_alpn() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let files = Certificates::new(folder.path(), "gateway");
        let server = Upstream::serving(SERVICE).await;
        let gateway = gateway(&server, &files).await;

        let connection = connect(gateway.address(), &[&files.ca], "h2").await.expect("TLS");
        assert_eq!(connection.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let mut client = H2c::over(connection).await;
        let answer = client.ask(&ClientRequest::chat("m", "hello")).await;
        let answer = H2c::answer(answer).await.expect("an answer");
        assert_eq!((answer.status, answer.outcome()), (200, "bypassed"), "{}", answer.text());

        let mut connection = connect(gateway.address(), &[&files.ca], "http/1.1").await.expect("TLS");
        assert_eq!(connection.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
        let body = ClientRequest::chat("m", "hello").body().to_string();
        let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json";
        let request = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        connection.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");

        let mut plain = TcpStream::connect(gateway.address()).await.expect("it listens");
        plain.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = Vec::new();
        // The connection may be reset.
        let _ = plain.read_to_end(&mut answer).await;
        assert!(!answer.starts_with(b"HTTP/"), "{}", String::from_utf8_lossy(&answer));
        assert_eq!(server.total(), 2, "nothing without TLS");
    });
}

#[test]
fn a_replaced_certificate_is_shown_to_new_connections() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let files = Certificates::new(folder.path(), "gateway");
        let elsewhere = tempfile::tempdir().expect("a folder");
        let new = Certificates::new(elsewhere.path(), "new");
        let server = Upstream::scripted().await;
        let gateway = gateway(&server, &files).await;

        let authorities: [&Path; 2] = [&files.ca, &new.ca];
        let connection = connect(gateway.address(), &authorities, "h2").await.expect("TLS");
        let before = certificate(&connection);
        let mut client = H2c::over(connection).await;
        let running = client.ask(&ClientRequest::chat("m", "long")).await;
        let call = server.next().await;
        replace(&files, &new);
        let shown = until("the new certificate", || async {
            let connection = connect(gateway.address(), &authorities, "h2").await?;
            let shown = certificate(&connection);
            if shown == before { Err("the old one".to_owned()) } else { Ok(shown) }
        })
        .await;
        let expected = CertificateDer::from_pem_file(&new.cert).expect("a certificate");
        assert_eq!(shown, expected);
        call.answer();
        let answer = H2c::answer(running).await.expect("an answer on the old connection");
        assert_eq!(answer.status, 200, "{}", answer.text());

        // A file that is no certificate changes nothing.
        let next = files.cert.with_extension("next");
        std::fs::write(&next, "broken").expect("written");
        std::fs::rename(next, &files.cert).expect("renamed");
        until("Envoy refuses the file", || async {
            let log = gateway.process.tail();
            match log.contains("Failed to reload certificates") {
                true => Ok(()),
                false => Err(log),
            }
        })
        .await;
        let connection = connect(gateway.address(), &authorities, "h2").await.expect("TLS");
        assert_eq!(certificate(&connection), expected);
    });
}

#[test]
fn up_names_a_certificate_file_that_cannot_be_used() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let files = Certificates::new(folder.path(), "gateway");
        let file = folder.path().join("penstock.yaml");
        let (cert, key) = (files.cert.display(), files.key.display());
        for (tls, message) in [
            (format!("{{cert: '{cert}', key: '{cert}'}}"), "contains no private key in PEM form"),
            (format!("{{cert: /nowhere.pem, key: '{key}'}}"), "listen.tls.cert: /nowhere.pem: No such file"),
        ] {
            let text = config("", &["- name: a\n  endpoints: {static: ['127.0.0.1:1']}\n".to_owned()]);
            let text = text.replacen("listen: {", &format!("listen: {{tls: {tls}, "), 1);
            std::fs::write(&file, text).expect("written");
            let ended = Gateway::command(&file).output().await.expect("it runs");
            let said = String::from_utf8_lossy(&ended.stderr).into_owned();
            assert_eq!(ended.status.code(), Some(2), "{said}");
            assert!(said.contains(message), "{said}");
        }
    });
}
