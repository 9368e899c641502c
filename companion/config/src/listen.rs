//! `listen`, `tls` and `admin`: the addresses to listen on, and what protects them.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::cors::Cors;
use crate::error::Violation;
use crate::name::{HOST_BYTES_MAX, is_name};
use crate::value::{self, List, inline_schema};

/// The addresses to listen on.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Listen {
    /// Envoy's listener for clients, `ip:port`. An address off loopback requires `identity.trust`.
    #[serde(deserialize_with = "read_gateway")]
    #[schemars(with = "String")]
    pub gateway: SocketAddr,
    /// Envoy's admin interface, `ip:port`. It has no authentication, so only loopback addresses are allowed.
    #[serde(deserialize_with = "read_loopback")]
    #[schemars(with = "String")]
    pub envoy_admin: SocketAddr,
    /// The companion's gRPC server, which the filter connects to: `ip:port` or `unix:/path`.
    pub grpc: Address,
    /// The companion's HTTP server, with the API, the dashboard and the metrics: `ip:port` or `unix:/path`.
    pub http: Address,
    /// Envoy's listener for streams that a companion keeps alive (`queue.keep_alive`), `ip:port` on loopback, on which the companions reach this Envoy.
    /// `null`: `penstock up` takes a free port.
    #[serde(deserialize_with = "read_optional_loopback")]
    #[schemars(with = "Option<String>")]
    pub keep_alive: Option<SocketAddr>,
    /// The file of Envoy's access log, one line of JSON for each request; `/dev/stdout` for Envoy's output. `null`: no log.
    pub access_log: Option<PathBuf>,
    /// TLS for clients: HTTP/2 and HTTP/1.1, by ALPN. `null`: clients connect without TLS.
    pub tls: Option<ListenTls>,
    /// The web pages whose scripts may read answers.
    pub cors: Cors,
}

/// The PEM files of the certificate that Envoy shows to clients. Envoy reads them again when a file in the folder of `cert` is replaced.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListenTls {
    /// The certificate, followed by its intermediate certificates.
    pub cert: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
}

impl Default for Listen {
    fn default() -> Self {
        let loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Self {
            gateway: loopback(8080),
            envoy_admin: loopback(9901),
            grpc: Address::Tcp(loopback(9190)),
            http: Address::Tcp(loopback(9191)),
            keep_alive: None,
            access_log: None,
            tls: None,
            cors: Cors::default(),
        }
    }
}

/// The PEM files of mutual TLS. All three are required.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The certificate that both ends show, followed by its intermediate certificates.
    pub cert: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
    /// The authority that must have signed a peer's certificate.
    pub client_ca: PathBuf,
}

/// Protection of the HTTP API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Admin {
    /// A file with a token of at least 8 visible characters. With a token, every request that changes something needs
    /// `Authorization: Bearer TOKEN`, and may come from anywhere. Without a token, such requests are accepted from loopback
    /// and unix sockets only.
    pub token_file: Option<PathBuf>,
    /// Host names that HTTP requests may address, besides `localhost` and IP addresses.
    #[serde(deserialize_with = "value::list")]
    #[schemars(with = "List<String>")]
    pub hosts: Vec<String>,
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

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

inline_schema!(Address, |generator| String::json_schema(generator));

fn read_gateway<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    socket_address(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

/// Prompts pass the connection in plain text, so it stays on this machine.
fn read_optional_loopback<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<SocketAddr>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else {
        return Ok(None);
    };
    let address = socket_address(&text).map_err(D::Error::custom)?;
    if address.ip().is_loopback() {
        return Ok(Some(address));
    }
    Err(D::Error::custom(format!(
        "`{text}` isn't a loopback address; companions and Envoy are on one machine where streams are kept alive, so write one like \
         127.0.0.1:9195"
    )))
}

/// Envoy's admin interface has no authentication, so only this machine may reach it.
fn read_loopback<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(deserializer)?;
    let address = socket_address(&text).map_err(D::Error::custom)?;
    if address.ip().is_loopback() {
        return Ok(address);
    }
    Err(D::Error::custom(format!(
        "`{text}` isn't a loopback address; Envoy's admin interface has no authentication, so write one like \
         127.0.0.1:9901"
    )))
}

impl Listen {
    /// Checks the pages of other origins.
    pub(crate) fn checked(self) -> Result<Self, Violation> {
        Ok(Self { cors: self.cors.checked()?, ..self })
    }
}

impl Admin {
    /// Checks the names of hosts, and writes them in lower case.
    pub(crate) fn checked(mut self) -> Result<Self, Violation> {
        for (index, host) in self.hosts.iter_mut().enumerate() {
            if !is_name(host, HOST_BYTES_MAX) {
                return Err(Violation::new(
                    format!("admin.hosts[{index}]"),
                    format!("`{host}` is not a host name; write it without a port, like penstock.example"),
                ));
            }
            host.make_ascii_lowercase();
        }
        Ok(self)
    }
}
