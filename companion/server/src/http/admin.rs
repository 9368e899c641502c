//! Who may ask the HTTP side for what: the Host that a page is asked under, the token of whoever changes something.
//!
//! A browser on this machine reaches this port too, with whatever page it shows. A foreign page can't forge the name
//! it asks for, unless its own name leads here (DNS rebinding): so names must be ours, and addresses needn't be.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::serve::IncomingStream;
use penstock_config as config;
use subtle::ConstantTimeEq as _;
use tokio::net::{TcpListener, UnixListener};

use crate::reload;

/// Bytes of a token; fewer can be guessed.
const TOKEN_BYTES_MIN: usize = 8;

/// Who may do what.
pub struct Admin {
    token: Option<Vec<u8>>,
    hosts: Vec<String>,
}

/// A token that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file can't be read.
    #[error("admin.token_file: {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It isn't what a header can carry, or too little.
    #[error(
        "admin.token_file: {}: a token has at least {TOKEN_BYTES_MIN} visible ASCII characters and no blank between them",
        path.display()
    )]
    Token {
        /// Which.
        path: PathBuf,
    },
}

impl Admin {
    /// Reads the token.
    ///
    /// # Errors
    /// When its file can't be read, or holds no token.
    pub fn new(config: &config::Admin) -> Result<Self, Error> {
        Ok(Self {
            token: config.token_file.as_deref().map(read).transpose()?,
            hosts: config.hosts.clone(),
        })
    }

    /// The request carries the token. Where there is none, nobody does.
    pub(super) fn has_token(&self, headers: &HeaderMap) -> bool {
        let said = headers.get(header::AUTHORIZATION).map(|it| it.as_bytes());
        let said = said.and_then(|it| {
            let (scheme, token) = it.split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
        });
        match (&self.token, said) {
            (Some(token), Some(said)) => bool::from(token.ct_eq(said)),
            (None, _) | (_, None) => false,
        }
    }

    /// The request may change something: it carries the token, or there is none and it comes from this machine.
    pub(super) fn may_change(&self, headers: &HeaderMap, peer: Peer) -> Result<(), Refused> {
        match (&self.token, peer) {
            (Some(_), _) if self.has_token(headers) => Ok(()),
            (Some(_), _) => Err(Refused(
                "this needs `Authorization: Bearer TOKEN`, as in admin.token_file",
            )),
            (None, Peer::ThisMachine) => Ok(()),
            (None, Peer::Other) => Err(Refused(
                "from another machine this needs a token: set admin.token_file",
            )),
        }
    }

    fn knows(&self, host: &str) -> bool {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            Some(_) | None => host,
        };
        let bare = name
            .strip_prefix('[')
            .and_then(|it| it.strip_suffix(']'))
            .unwrap_or(name);
        bare.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || self.hosts.iter().any(|ours| name.eq_ignore_ascii_case(ours))
    }
}

// The token is in no log.
impl std::fmt::Debug for Admin {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("Admin")
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let text = std::fs::read(path).map_err(|source| Error::Read {
        path: path.into(),
        source,
    })?;
    let token = text.trim_ascii();
    if token.len() >= TOKEN_BYTES_MIN && token.iter().all(u8::is_ascii_graphic) {
        Ok(token.into())
    } else {
        Err(Error::Token { path: path.into() })
    }
}

/// Where a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// Loopback or a unix socket.
    ThisMachine,
    /// Anywhere else.
    Other,
}

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Self {
        if address.ip().to_canonical().is_loopback() {
            Self::ThisMachine
        } else {
            Self::Other
        }
    }
}

impl Connected<IncomingStream<'_, TcpListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
        (*stream.remote_addr()).into()
    }
}

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(_: IncomingStream<'_, UnixListener>) -> Self {
        Self::ThisMachine
    }
}

/// 401, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused(&'static str);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
        (StatusCode::UNAUTHORIZED, challenge, format!("401: {}\n", self.0)).into_response()
    }
}

/// A page of somebody else must not read this through its visitor's browser.
pub(super) async fn host_is_ours(
    State(config): State<reload::Handle>,
    request: Request,
    next: Next,
) -> Response {
    let admin = config.in_force().admin;
    let named = request.headers().get(header::HOST);
    let named = named.map_or(Ok("localhost"), |it| it.to_str());
    let target = request.uri().authority().map_or("localhost", |it| it.as_str());
    if named.is_ok_and(|host| admin.knows(host)) && admin.knows(target) {
        next.run(request).await
    } else {
        (
            StatusCode::FORBIDDEN,
            "403: this Host isn't ours; ask for localhost or an address, or list the name in admin.hosts\n",
        )
            .into_response()
    }
}

/// What changes something: by whom it may, and in which form.
pub(super) async fn may_change(
    State(config): State<reload::Handle>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    if let Err(refused) = config.in_force().admin.may_change(request.headers(), peer) {
        return refused.into_response();
    }
    let kind = request.headers().get(header::CONTENT_TYPE);
    let kind = kind.and_then(|it| it.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("application/json") {
        next.run(request).await
    } else {
        // No form of a page can send this type by itself.
        let why = "415: this takes Content-Type: application/json\n";
        (StatusCode::UNSUPPORTED_MEDIA_TYPE, why).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admin(token: Option<&str>) -> Admin {
        Admin {
            token: token.map(|it| it.as_bytes().to_vec()),
            hosts: vec!["penstock.example".into()],
        }
    }

    fn with(authorization: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, authorization.parse().expect("a value"));
        headers
    }

    #[test]
    fn addresses_and_our_names_are_ours() {
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
            assert!(admin.knows(host), "{host}");
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
            assert!(!admin.knows(host), "{host}");
        }
    }

    #[test]
    fn a_token_is_needed_from_anywhere_once_there_is_one() {
        let none = HeaderMap::new();
        let open = admin(None);
        assert_eq!(open.may_change(&none, Peer::ThisMachine), Ok(()));
        assert!(open.may_change(&none, Peer::Other).is_err());
        assert!(open.may_change(&with("Bearer "), Peer::Other).is_err());
        assert!(!open.has_token(&with("Bearer ")));
        let closed = admin(Some("a-long-secret"));
        for peer in [Peer::ThisMachine, Peer::Other] {
            assert_eq!(closed.may_change(&with("Bearer a-long-secret"), peer), Ok(()));
            assert_eq!(closed.may_change(&with("bearer a-long-secret"), peer), Ok(()));
            for wrong in [
                "Bearer a-long-secre",
                "Bearer a-long-secret1",
                "Basic a-long-secret",
                "a-long-secret",
                "Bearer",
            ] {
                assert!(closed.may_change(&with(wrong), peer).is_err(), "{wrong}");
            }
            assert!(closed.may_change(&none, peer).is_err());
        }
        assert!(!format!("{closed:?}").contains("secret"));
    }

    #[test]
    fn peers_are_on_this_machine_or_not() {
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
    fn a_token_is_a_word() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        let new = || {
            Admin::new(&config::Admin {
                token_file: Some(path.clone()),
                hosts: Vec::new(),
            })
        };
        let message = new().expect_err("missing").to_string();
        assert!(
            message.contains("admin.token_file") && message.contains("token:"),
            "{message}"
        );
        for wrong in ["", "\n", "short", "two secret words"] {
            std::fs::write(&path, wrong).expect("written");
            let message = new().expect_err(wrong).to_string();
            assert!(message.contains("at least 8"), "{message}");
        }
        std::fs::write(&path, "a-long-secret\n").expect("written");
        assert!(new().expect("valid").has_token(&with("Bearer a-long-secret")));
    }
}
