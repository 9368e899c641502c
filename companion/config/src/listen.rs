//! The addresses to listen on, and what protects them.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// The addresses to listen on.
#[derive(Clone, Debug)]
pub struct Listen {
    /// Envoy's listener for clients.
    pub gateway: SocketAddr,
    /// Envoy's admin interface.
    pub envoy_admin: SocketAddr,
    /// The companion's gRPC server, for filters.
    pub grpc: Address,
    /// The companion's HTTP server.
    pub http: Address,
    /// The file of Envoy's access log. `None`: no log.
    pub access_log: Option<PathBuf>,
    /// The certificate that Envoy shows to clients. `None`: clients connect without TLS.
    pub tls: Option<ListenTls>,
}

/// TLS for clients: PEM files, which Envoy reads again when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenTls {
    /// The certificate, followed by its intermediate certificates.
    pub cert: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
}

/// A TCP address or the path of a unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `ip:port`
    Tcp(SocketAddr),
    /// `unix:/path`
    Unix(PathBuf),
}

/// Text that is no address to listen on: the reason, and the form that is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AddressError(String);

/// Mutual TLS on gRPC: PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The certificate that both ends show, followed by its intermediate certificates.
    pub cert: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
    /// The authority that must have signed a peer's certificate.
    pub client_ca: PathBuf,
}

/// Protection of the HTTP API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admin {
    /// The file with the admin token. `None`: clients on this machine may change things without a token.
    pub token_file: Option<PathBuf>,
    /// Host names that requests may address, besides localhost and IP addresses; in lower case.
    pub hosts: Vec<String>,
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(formatter),
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            Some(_) => Err(AddressError(format!("`{text}`: the path of a unix socket starts with /"))),
            None => socket_address(text).map(Self::Tcp),
        }
    }
}

pub(super) fn socket_address(text: &str) -> Result<SocketAddr, AddressError> {
    text.parse()
        .map_err(|_| AddressError(format!("`{text}` is not an address; write ip:port, like 127.0.0.1:8080")))
}
