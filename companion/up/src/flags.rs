//! The values of flags that name addresses and Kubernetes objects.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use penstock_envoy::bootstrap::{Address, Code, Companions, Module};
use penstock_envoy::gateway_resources::Listener;
use penstock_filter_module::Kind;

/// The longest namespace, by Kubernetes.
const NAMESPACE_MAX: usize = 63;
/// The longest name of a resource, by Kubernetes.
const NAME_MAX: usize = 253;

/// The filter's module: one of this binary's, or a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// A module of this binary.
    Own(Kind),
    /// The path of a file, as Envoy sees it.
    File(PathBuf),
}

impl FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "" => return Err("must be wasm, native, or a path".to_owned()),
            "wasm" => Self::Own(Kind::Wasm),
            "native" => Self::Own(Kind::Native),
            path => Self::File(path.into()),
        })
    }
}

/// What Envoy does with a module of this kind.
pub(crate) const fn code(kind: Kind) -> Code {
    match kind {
        Kind::Wasm => Code::Wasm,
        Kind::Native => Code::Native,
    }
}

/// A module's file, whose name tells its kind: the name of a native module ends with `.so`.
pub(crate) fn named_module(path: &Path) -> Module {
    let is_native = path.extension().is_some_and(|extension| extension == "so");
    Module::file(if is_native { Code::Native } else { Code::Wasm }, path)
}

/// `NAMESPACE/NAME` of a Gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayName {
    /// The Gateway's namespace.
    pub namespace: String,
    /// The Gateway's name.
    pub name: String,
}

impl FromStr for GatewayName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (namespace, name) =
            text.split_once('/').ok_or("must be the Gateway's namespace and name, for example models/eg")?;
        Ok(Self { namespace: label(namespace)?, name: resource_name(name)? })
    }
}

/// `POOL=[NAMESPACE/]NAME:PORT`: the Service with a pool's model servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolService {
    /// The pool's name.
    pub pool: String,
    /// The Service's namespace, if it is given.
    pub namespace: Option<String>,
    /// The Service's name.
    pub name: String,
    /// The number of its port.
    pub port: u16,
}

impl FromStr for PoolService {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = "must be a pool and the Service of its model servers, for example chat=models/vllm:8000";
        let (pool, service) = text.rsplit_once('=').ok_or(form)?;
        let (service, number) = service.rsplit_once(':').ok_or(form)?;
        let (namespace, name) = match service.split_once('/') {
            Some((namespace, name)) => (Some(label(namespace)?), name),
            None => (None, service),
        };
        Ok(Self { pool: pool.to_owned(), namespace, name: resource_name(name)?, port: port(number)? })
    }
}

/// `HOST:PORT`
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPort {
    /// The host is an IP address.
    Address(SocketAddr),
    /// The host is a DNS name.
    Dns {
        /// The name.
        name: String,
        /// The port.
        port: u16,
    },
}

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            if address.ip().is_unspecified() {
                return Err(format!("{} is no address to connect to", address.ip()));
            }
            port(&address.port().to_string())?;
            return Ok(Self::Address(address));
        }
        let (name, number) =
            text.rsplit_once(':').ok_or("must be HOST:PORT, for example penstock.models:9190")?;
        if name.contains(':') {
            return Err("an IPv6 address must be in brackets, for example [::1]:9190".into());
        }
        Ok(Self::Dns { name: resource_name(&name.to_ascii_lowercase())?, port: port(number)? })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Dns { name, port } => write!(f, "{name}:{port}"),
        }
    }
}

impl HostPort {
    /// The host is this machine.
    pub(crate) fn is_loopback(&self) -> bool {
        match self {
            Self::Address(address) => address.ip().is_loopback(),
            Self::Dns { name, .. } => name == "localhost",
        }
    }

    /// The companions at this address. With `has_replicas`, filters choose among them by address.
    pub(crate) fn companions(&self, has_replicas: bool) -> Companions {
        match self {
            Self::Address(address) if has_replicas => Companions::List(vec![*address]),
            Self::Address(address) => Companions::One(Address::Tcp(*address)),
            Self::Dns { name, port } => Companions::Dns { name: name.clone(), port: *port },
        }
    }
}

/// `NAME` or `NAME:PORT` of a Gateway's listener. The ports of `http` and `https` are known.
///
/// # Errors
/// The name or the port isn't valid.
pub(crate) fn listener(text: &str) -> Result<Listener, String> {
    let (name, number) = match text.rsplit_once(':') {
        Some((name, number)) => (name, Some(port(number)?)),
        None => (text, None),
    };
    let name = resource_name(name)?;
    let known = match name.as_str() {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    };
    Ok(Listener { port: number.or(known), name })
}

fn port(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("`{text}` is no port; ports are 1 to 65535")),
    }
}

/// A DNS label (RFC 1123), as of a namespace.
fn label(text: &str) -> Result<String, String> {
    if text.len() > NAMESPACE_MAX || !is_label(text) {
        return Err(format!(
            "`{text}` is no namespace: up to {NAMESPACE_MAX} lower case letters, digits and hyphens"
        ));
    }
    Ok(text.to_owned())
}

/// DNS labels with dots, as of most resources.
fn resource_name(text: &str) -> Result<String, String> {
    if text.len() > NAME_MAX || !text.split('.').all(is_label) {
        return Err(format!(
            "`{text}` is no name: up to {NAME_MAX} lower case letters, digits, hyphens and dots"
        ));
    }
    Ok(text.to_owned())
}

fn is_label(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !text.is_empty() && text.chars().all(allowed) && !text.starts_with('-') && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read() {
        let gateway: GatewayName = "models/eg".parse().expect("valid");
        assert_eq!((gateway.namespace.as_str(), gateway.name.as_str()), ("models", "eg"));
        let service: PoolService = "chat=vllm:8000".parse().expect("valid");
        assert_eq!((service.namespace, service.name.as_str(), service.port), (None, "vllm", 8000));
        let service: PoolService = "a=b=models/vllm:8000".parse().expect("valid");
        assert_eq!((service.pool.as_str(), service.namespace.as_deref()), ("a=b", Some("models")));
        let names =
            ["http", "https", "web", "web:8080", "http:8888"].map(|text| listener(text).expect("valid").port);
        assert_eq!(names, [Some(80), Some(443), None, Some(8080), Some(8888)]);
        assert_eq!("[::1]:9190".parse(), Ok(HostPort::Address(([0, 0, 0, 0, 0, 0, 0, 1], 9190).into())));
        let name = "Penstock.models".to_ascii_lowercase();
        assert_eq!("Penstock.models:9190".parse(), Ok(HostPort::Dns { name, port: 9190 }));
    }

    #[test]
    fn wrong_values_are_explained() {
        let wrong = |text: &str, part: &str, why: Option<String>| {
            let why = why.unwrap_or_else(|| panic!("`{text}` is wrong"));
            assert!(why.contains(part), "`{text}`: {why}");
        };
        for (text, part) in [
            ("eg", "models/eg"),
            ("Models/eg", "no namespace"),
            ("models/", "no name"),
            ("models/a/b", "no name"),
            ("models/-a", "no name"),
        ] {
            wrong(text, part, text.parse::<GatewayName>().err());
        }
        for (text, part) in [
            ("vllm:80", "a pool and the Service"),
            ("chat=vllm", "a pool and the Service"),
            ("chat=vllm:0", "no port"),
            ("chat=A/b:1", "no namespace"),
        ] {
            wrong(text, part, text.parse::<PoolService>().err());
        }
        for (text, part) in [
            ("penstock", "HOST:PORT"),
            ("0.0.0.0:9190", "no address to connect to"),
            ("[::]:9190", "no address to connect to"),
            ("::1:9190", "brackets"),
            ("10.0.0.1:0", "no port"),
            ("a b:1", "no name"),
            ("penstock:99999", "no port"),
        ] {
            wrong(text, part, text.parse::<HostPort>().err());
        }
        for (text, part) in [("a:", "no port"), ("A", "no name"), (":80", "no name")] {
            wrong(text, part, listener(text).err());
        }
    }
}
