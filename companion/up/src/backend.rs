//! `--backend URL`: the address of a model server.
//!
//! Envoy and the companion name a server by its IP address, so a host name is resolved once, here. A configuration with
//! `endpoints: {dns: ...}` follows changes of a name. TLS and a path are rejected, because Envoy uses plain HTTP to
//! the server and forwards the client's path.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};

/// A server that accepts no connection within this time is reported as unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A model server from --backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Backend {
    /// The URL as given.
    pub url: String,
    /// The server's address.
    pub address: SocketAddr,
    /// The host name that was resolved; `None` if the URL contains an IP address.
    pub name: Option<String>,
}

/// Why a backend can't be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The URL is invalid.
    #[error(
        "--backend {url}: {why}; give a model server as http://HOST:PORT, for example http://127.0.0.1:8000"
    )]
    Url {
        /// The URL as given.
        url: String,
        /// The reason.
        why: String,
    },
    /// The host name can't be resolved.
    #[error("--backend {url}: can't resolve {host}: {why}")]
    Name {
        /// The URL as given.
        url: String,
        /// The host name.
        host: String,
        /// The system's error.
        why: std::io::Error,
    },
    /// Two URLs have the same address.
    #[error("--backend {first} and --backend {second} are the same server, {address}: give the server once")]
    Twice {
        /// The first URL.
        first: String,
        /// The second URL.
        second: String,
        /// The address of both.
        address: SocketAddr,
    },
}

/// Parses the URLs and resolves their host names.
///
/// # Errors
/// The first URL that can't be used.
pub(super) async fn resolve(urls: &[String]) -> Result<Vec<Backend>, Error> {
    let mut backends: Vec<Backend> = Vec::with_capacity(urls.len());
    for url in urls {
        let (host, port) = host_and_port(url)?;
        let failed = |why| Error::Name { url: url.clone(), host: host.clone(), why };
        let found: Vec<SocketAddr> = lookup_host((host.as_str(), port)).await.map_err(failed)?.collect();
        // `localhost` has addresses of both families, but most model servers listen on IPv4 only.
        let address = found.iter().find(|address| address.is_ipv4());
        let address = address.or(found.first()).copied();
        let address = address.ok_or_else(|| failed(std::io::Error::other("the name has no address")))?;
        if let Some(before) = backends.iter().find(|before| before.address == address) {
            return Err(Error::Twice { first: before.url.clone(), second: url.clone(), address });
        }
        backends.push(Backend {
            url: url.clone(),
            address,
            name: host.parse::<IpAddr>().is_err().then_some(host),
        });
    }
    Ok(backends)
}

/// Logs a warning for each server that doesn't accept a connection. The server may start later.
pub(super) async fn warn_of_unreachable(servers: Vec<(String, SocketAddr)>) {
    let checks = servers.into_iter().map(|(name, address)| async move {
        let why = match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(_)) => return,
            Ok(Err(why)) => why.to_string(),
            Err(_) => format!("no connection within {CONNECT_TIMEOUT:?}"),
        };
        tracing::warn!("model server {name} is unreachable: {why}; its requests wait until it is started or its address is corrected");
    });
    futures_util::future::join_all(checks).await;
}

fn host_and_port(url: &str) -> Result<(String, u16), Error> {
    let invalid = |why: &str| Error::Url { url: url.to_owned(), why: why.to_owned() };
    let with_scheme = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    let parsed = reqwest::Url::parse(&with_scheme).map_err(|error| invalid(&error.to_string()))?;
    match parsed.scheme() {
        "http" => {}
        "https" => {
            return Err(invalid(
                "servers behind TLS need a configuration with `upstream: {tls: {}}` in place of --backend",
            ));
        }
        _ => return Err(invalid("the scheme isn't HTTP")),
    }
    if parsed.path() != "/" || parsed.query().is_some() {
        return Err(invalid("remove the path after the port, because the client's path is forwarded"));
    }
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Err(invalid("remove user and password, because the client's authorization is forwarded"));
    }
    let host = parsed.host_str().ok_or_else(|| invalid("the URL has no host"))?;
    let port = parsed.port_or_known_default().ok_or_else(|| invalid("the URL has no port"))?;
    Ok((host.trim_matches(['[', ']']).to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_is_a_host_and_a_port() {
        for (url, host, port) in [
            ("http://127.0.0.1:8000", "127.0.0.1", 8000),
            ("http://gpu-1:8000/", "gpu-1", 8000),
            ("http://gpu-1", "gpu-1", 80),
            ("gpu-1:8000", "gpu-1", 8000),
            ("http://[::1]:8000", "::1", 8000),
        ] {
            assert_eq!(host_and_port(url).expect("valid"), (host.to_owned(), port), "{url}");
        }
    }

    #[test]
    fn other_urls_are_rejected_with_an_example() {
        for (url, word) in [
            ("https://gpu-1:8000", "TLS"),
            ("http://gpu-1:8000/v1", "path"),
            ("http://me:secret@gpu-1:8000", "password"),
            ("ftp://gpu-1", "HTTP"),
            ("http://gpu-1:99999", "port"),
            ("", "host"),
        ] {
            let message = host_and_port(url).expect_err("refused").to_string();
            assert!(message.contains(word) && message.contains("http://127.0.0.1:8000"), "{url}: {message}");
        }
    }

    #[tokio::test]
    async fn same_server_given_twice_is_rejected() {
        let urls = ["http://127.0.0.1:8000".to_owned(), "127.0.0.1:8000".to_owned()];
        assert!(matches!(resolve(&urls).await, Err(Error::Twice { .. })));
        let resolved = resolve(&urls[..1]).await.expect("valid");
        assert_eq!(resolved[0].address, "127.0.0.1:8000".parse().expect("valid"));
    }
}
