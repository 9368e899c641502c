//! `--backend URL`: where a model server is.
//!
//! Envoy and the companion name a server by its address, so a host's name is looked up once, here, and stays what
//! it was; who wants a name followed has `endpoints: {dns: ...}` in a configuration. TLS and a path are refused: Envoy speaks plain HTTP to the server and passes the client's path on.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use tokio::net::{TcpStream, lookup_host};

/// How long a server may take to accept a connection before it is said to be away.
const PATIENCE: Duration = Duration::from_secs(1);

/// A model server as the user named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Backend {
    /// As given.
    pub url: String,
    /// Where it is.
    pub address: SocketAddr,
    /// What was looked up; `None`: it was an address already.
    pub name: Option<String>,
}

/// A backend that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not a server's address.
    #[error(
        "--backend {url}: {why}; a model server is given as http://HOST:PORT, for example http://127.0.0.1:8000"
    )]
    Url {
        /// As given.
        url: String,
        /// What is wrong.
        why: String,
    },
    /// Its name isn't known.
    #[error("--backend {url}: {host} can't be looked up: {why}")]
    Name {
        /// As given.
        url: String,
        /// The name.
        host: String,
        /// As the system says.
        why: std::io::Error,
    },
    /// Given twice.
    #[error("--backend {first} and --backend {second} are the same server, {address}: give it once")]
    Twice {
        /// The one.
        first: String,
        /// The other.
        second: String,
        /// What both are.
        address: SocketAddr,
    },
}

/// Reads and looks up all of them.
///
/// # Errors
/// At the first that can't be used.
pub(super) async fn resolve(urls: &[String]) -> Result<Vec<Backend>, Error> {
    let mut backends: Vec<Backend> = Vec::with_capacity(urls.len());
    for url in urls {
        let (host, port) = host_and_port(url)?;
        let failed = |why| Error::Name {
            url: url.clone(),
            host: host.clone(),
            why,
        };
        let found: Vec<SocketAddr> = lookup_host((host.as_str(), port))
            .await
            .map_err(failed)?
            .collect();
        // `localhost` is both; most model servers listen on IPv4 only.
        let address = found.iter().find(|at| at.is_ipv4()).or(found.first()).copied();
        let address = address.ok_or_else(|| failed(std::io::Error::other("it has no address")))?;
        if let Some(before) = backends.iter().find(|before| before.address == address) {
            return Err(Error::Twice {
                first: before.url.clone(),
                second: url.clone(),
                address,
            });
        }
        backends.push(Backend {
            url: url.clone(),
            address,
            name: host.parse::<IpAddr>().is_err().then_some(host),
        });
    }
    Ok(backends)
}

/// Says of each server that doesn't accept a connection that it doesn't. It may come later.
pub(super) async fn warn_of_absent(servers: Vec<(String, SocketAddr)>) {
    let looks = servers.into_iter().map(|(name, address)| async move {
        let why = match tokio::time::timeout(PATIENCE, TcpStream::connect(address)).await {
            Ok(Ok(_)) => return,
            Ok(Err(why)) => why.to_string(),
            Err(_) => format!("no connection within {PATIENCE:?}"),
        };
        tracing::warn!("{name} doesn't answer: {why}. Its requests wait; start it, or correct its address");
    });
    futures_util::future::join_all(looks).await;
}

fn host_and_port(url: &str) -> Result<(String, u16), Error> {
    let wrong = |why: &str| Error::Url {
        url: url.to_owned(),
        why: why.to_owned(),
    };
    let with_scheme = if url.contains("://") {
        url.to_owned()
    } else {
        format!("http://{url}")
    };
    let parsed = reqwest::Url::parse(&with_scheme).map_err(|error| wrong(&error.to_string()))?;
    match parsed.scheme() {
        "http" => {}
        "https" => return Err(wrong("TLS to model servers isn't supported")),
        _ => return Err(wrong("this isn't HTTP")),
    }
    if parsed.path() != "/" || parsed.query().is_some() {
        return Err(wrong(
            "leave out what follows the port: the client's path is passed on",
        ));
    }
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Err(wrong(
            "a password has no place here: the client's authorization is passed on",
        ));
    }
    let host = parsed.host_str().ok_or_else(|| wrong("it names no host"))?;
    let port = parsed
        .port_or_known_default()
        .ok_or_else(|| wrong("it names no port"))?;
    Ok((host.trim_matches(['[', ']']).to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_host_and_a_port() {
        for (url, host, port) in [
            ("http://127.0.0.1:8000", "127.0.0.1", 8000),
            ("http://gpu-1:8000/", "gpu-1", 8000),
            ("http://gpu-1", "gpu-1", 80),
            ("gpu-1:8000", "gpu-1", 8000),
            ("http://[::1]:8000", "::1", 8000),
        ] {
            assert_eq!(
                host_and_port(url).expect("valid"),
                (host.to_owned(), port),
                "{url}"
            );
        }
    }

    #[test]
    fn anything_else_is_refused_with_an_example() {
        for (url, word) in [
            ("https://gpu-1:8000", "TLS"),
            ("http://gpu-1:8000/v1", "path"),
            ("http://me:secret@gpu-1:8000", "password"),
            ("ftp://gpu-1", "HTTP"),
            ("http://gpu-1:99999", "port"),
            ("", "host"),
        ] {
            let message = host_and_port(url).expect_err("refused").to_string();
            assert!(
                message.contains(word) && message.contains("http://127.0.0.1:8000"),
                "{url}: {message}"
            );
        }
    }

    #[tokio::test]
    async fn one_server_given_twice_is_refused() {
        let urls = ["http://127.0.0.1:8000".to_owned(), "127.0.0.1:8000".to_owned()];
        assert!(matches!(resolve(&urls).await, Err(Error::Twice { .. })));
        let resolved = resolve(&urls[..1]).await.expect("valid");
        assert_eq!(resolved[0].address, "127.0.0.1:8000".parse().expect("valid"));
    }
}
