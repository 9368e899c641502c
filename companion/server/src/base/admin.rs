//! The rules for access to the HTTP server: the allowed Host headers, and the permission to change something.
//!
//! A web page in a browser on this machine can send requests to this port. It can't choose the Host header, unless its
//! own domain resolves to this machine (DNS rebinding). So the server answers only names that it is configured for;
//! addresses are always allowed.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use penstock_config as config;
use subtle::ConstantTimeEq as _;

/// Bytes of a token, at least; a shorter one can be guessed.
const TOKEN_BYTES_MIN: usize = 8;

/// The rules for access.
pub(crate) struct Admin {
    token: Option<Vec<u8>>,
    hosts: Vec<String>,
}

/// A token that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file can't be read.
    #[error("admin.token_file: {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The content is too short, or can't be sent in a header.
    #[error(
        "admin.token_file: {}: a token has at least {TOKEN_BYTES_MIN} visible ASCII characters and no space between them",
        path.display()
    )]
    Token {
        /// The file.
        path: PathBuf,
    },
}

impl Admin {
    /// Reads the token file, if there is one.
    ///
    /// # Errors
    /// When the file can't be read, or doesn't contain a valid token.
    pub(crate) fn new(config: &config::Admin) -> Result<Self, Error> {
        Ok(Self {
            token: config.token_file.as_deref().map(read_token).transpose()?,
            hosts: config.hosts.clone(),
        })
    }

    /// Whether the request carries the token. Without a configured token, no request does.
    pub(crate) fn has_token(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(header::AUTHORIZATION).map(|value| value.as_bytes());
        let given = given.and_then(|value| {
            let (scheme, token) = value.split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
        });
        match (&self.token, given) {
            (Some(token), Some(given)) => bool::from(token.ct_eq(given)),
            (None, _) | (_, None) => false,
        }
    }

    /// Whether the request may change something: it carries the token, or no token is configured and the request comes
    /// from this machine.
    pub(crate) fn check_change(&self, headers: &HeaderMap, peer: Peer) -> Result<(), Unauthorized> {
        match (&self.token, peer) {
            (Some(_), _) if self.has_token(headers) => Ok(()),
            (Some(_), _) => Err(Unauthorized(
                "this request needs the header `Authorization: Bearer TOKEN` with the token of admin.token_file",
            )),
            (None, Peer::ThisMachine) => Ok(()),
            (None, Peer::Other) => {
                Err(Unauthorized("a request from another machine needs a token: set admin.token_file"))
            }
        }
    }

    pub(crate) fn allows_host(&self, host: &str) -> bool {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            Some(_) | None => host,
        };
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        address.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || self.hosts.iter().any(|allowed| name.eq_ignore_ascii_case(allowed))
    }
}

// Without the token, so that no log contains it.
impl std::fmt::Debug for Admin {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Admin").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

fn read_token(path: &Path) -> Result<Vec<u8>, Error> {
    let text = std::fs::read(path).map_err(|source| Error::Read { path: path.into(), source })?;
    let token = text.trim_ascii();
    if token.len() >= TOKEN_BYTES_MIN && token.iter().all(u8::is_ascii_graphic) {
        Ok(token.into())
    } else {
        Err(Error::Token { path: path.into() })
    }
}

/// The origin of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// A loopback address or a unix socket.
    ThisMachine,
    /// Any other address.
    Other,
}

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Self {
        if address.ip().to_canonical().is_loopback() { Self::ThisMachine } else { Self::Other }
    }
}

/// Status 401 with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unauthorized(&'static str);

impl IntoResponse for Unauthorized {
    fn into_response(self) -> Response {
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
        (StatusCode::UNAUTHORIZED, challenge, format!("401: {}\n", self.0)).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admin(token: Option<&str>) -> Admin {
        Admin { token: token.map(|token| token.as_bytes().to_vec()), hosts: vec!["penstock.example".into()] }
    }

    fn with(authorization: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, authorization.parse().expect("a value"));
        headers
    }

    #[test]
    fn addresses_and_configured_names_are_allowed_hosts() {
        let admin = admin(None);
        for host in [
            "localhost",
            "LOCALHOST:9191",
            "127.0.0.1:9191",
            "192.0.2.7",
            "[::1]:9191",
            "[fd00::7]",
            "Penstock.example:80",
        ] {
            assert!(admin.allows_host(host), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:9191",
            "sub.penstock.example",
            "127.0.0.1:9191@evil.example",
            "[localhost]",
            "",
        ] {
            assert!(!admin.allows_host(host), "{host}");
        }
    }

    #[test]
    fn a_configured_token_is_required_from_everywhere() {
        let none = HeaderMap::new();
        let open = admin(None);
        assert_eq!(open.check_change(&none, Peer::ThisMachine), Ok(()));
        assert!(open.check_change(&none, Peer::Other).is_err());
        assert!(open.check_change(&with("Bearer "), Peer::Other).is_err());
        assert!(!open.has_token(&with("Bearer ")));
        let closed = admin(Some("a-long-secret"));
        for peer in [Peer::ThisMachine, Peer::Other] {
            assert_eq!(closed.check_change(&with("Bearer a-long-secret"), peer), Ok(()));
            assert_eq!(closed.check_change(&with("bearer a-long-secret"), peer), Ok(()));
            for wrong in [
                "Bearer a-long-secre",
                "Bearer a-long-secret1",
                "Basic a-long-secret",
                "a-long-secret",
                "Bearer",
            ] {
                assert!(closed.check_change(&with(wrong), peer).is_err(), "{wrong}");
            }
            assert!(closed.check_change(&none, peer).is_err());
        }
        assert!(!format!("{closed:?}").contains("secret"));
    }

    #[test]
    fn loopback_addresses_are_this_machine() {
        for (address, peer) in [
            ("127.0.0.1:1", Peer::ThisMachine),
            ("[::1]:1", Peer::ThisMachine),
            ("[::ffff:127.0.0.1]:1", Peer::ThisMachine),
            ("192.0.2.1:1", Peer::Other),
        ] {
            let address: SocketAddr = address.parse().expect("an address");
            assert_eq!(Peer::from(address), peer, "{address}");
        }
    }

    #[test]
    fn a_token_is_one_word_of_at_least_eight_characters() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        let new = || Admin::new(&config::Admin { token_file: Some(path.clone()), hosts: Vec::new() });
        let message = new().expect_err("missing").to_string();
        assert!(message.contains("admin.token_file") && message.contains("token:"), "{message}");
        for wrong in ["", "\n", "short", "two secret words"] {
            std::fs::write(&path, wrong).expect("written");
            let message = new().expect_err(wrong).to_string();
            assert!(message.contains("at least 8"), "{message}");
        }
        std::fs::write(&path, "a-long-secret\n").expect("written");
        assert!(new().expect("valid").has_token(&with("Bearer a-long-secret")));
    }
}
