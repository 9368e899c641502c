//! `upstream`: TLS, HTTP/2 and credentials on the way to a pool's model servers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check_name;
use crate::compiled;
use crate::error::Violation;
use crate::name::HOST_BYTES_MAX;
use crate::upstream::{self, HEADERS_MAX, Secret, check_value, system_authorities};

/// The way to the model servers, for requests, health checks and metrics.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Upstream {
    /// TLS to the servers. Null: plain text, unless the endpoints' addresses begin with `https://`. `{}`: TLS with the authorities of the
    /// operating system.
    pub(crate) tls: Option<UpstreamTls>,
    /// Whether servers are sent HTTP/2: in plain text with prior knowledge (h2c), with TLS by ALPN.
    pub(crate) http2: bool,
    /// Headers that the gateway sets on every request to a server, by name. With `authorization`, `x-api-key`, `api-key`, or a header from
    /// a file, none of these three headers of a client reaches a server.
    pub(crate) headers: BTreeMap<String, UpstreamHeader>,
}

/// TLS to model servers.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct UpstreamTls {
    /// The PEM file with the certificates of the authorities that may have signed the servers' certificates. Null: the authorities of the operating system.
    pub(crate) ca: Option<PathBuf>,
    /// The PEM file with the gateway's own certificate, for servers that require one.
    pub(crate) cert: Option<PathBuf>,
    /// The PEM file with the key of that certificate.
    pub(crate) key: Option<PathBuf>,
    /// The name that the servers' certificates must have, also named in the handshake. Null: the name of `endpoints.dns`, or else a certificate must have the server's IP address.
    #[schemars(length(min = 1, max = 253))]
    pub(crate) server_name: Option<String>,
    /// Whether any certificate is accepted. Then anyone on the way can read and change requests.
    pub(crate) insecure: bool,
}

/// The value of a header: exactly one of these keys.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UpstreamHeader {
    /// The whole value, such as `Bearer KEY` for `authorization`. Documents that are shown have `***` in its place.
    #[serde(default)]
    pub(crate) value: Option<String>,
    /// The path of a file with the whole value. It is read again when it changes.
    #[serde(default)]
    pub(crate) file: Option<PathBuf>,
}

/// Headers that belong to the connection or to the gateway.
const RESERVED: [&str; 8] = [
    "host",
    "connection",
    "content-length",
    "content-type",
    "transfer-encoding",
    "te",
    "upgrade",
    "x-request-id",
];

/// Checks `upstream`; `path` is the pool's. `dns_name`: the name by which the servers are found. `is_https`: their addresses begin with `https://`.
pub(super) fn convert(
    raw: Upstream,
    dns_name: Option<&str>,
    is_https: bool,
    path: &str,
) -> Result<crate::Upstream, Violation> {
    let path = format!("{path}.upstream");
    let raw_tls = raw.tls.or_else(|| is_https.then(UpstreamTls::default));
    let tls = raw_tls.map(|raw| tls(raw, dns_name, &format!("{path}.tls"))).transpose()?;
    Ok(crate::Upstream { tls, http2: raw.http2, headers: headers(raw.headers, &format!("{path}.headers"))? })
}

/// Checks a `tls` mapping at `path`.
pub(super) fn tls(
    raw: UpstreamTls,
    dns_name: Option<&str>,
    path: &str,
) -> Result<crate::UpstreamTls, Violation> {
    compiled::require("tls", cfg!(feature = "tls"), path)?;
    let authorities = match (raw.ca, raw.insecure) {
        (Some(_), true) => {
            return Err(Violation::new(
                format!("{path}.insecure"),
                "with insecure, certificates aren't verified, so ca has no effect: leave one of them out",
            ));
        }
        (None, true) => None,
        (Some(ca), false) => Some(not_empty(ca, &format!("{path}.ca"))?),
        (None, false) => Some(system_authorities().map_err(|why| Violation::new(format!("{path}.ca"), why))?),
    };
    let identity = match (raw.cert, raw.key) {
        (None, None) => None,
        (Some(cert), Some(key)) => {
            Some((not_empty(cert, &format!("{path}.cert"))?, not_empty(key, &format!("{path}.key"))?))
        }
        (Some(_), None) => {
            return Err(Violation::new(format!("{path}.key"), "cert needs key, the key of the certificate"));
        }
        (None, Some(_)) => {
            return Err(Violation::new(format!("{path}.cert"), "key needs cert, the certificate of the key"));
        }
    };
    if let Some(name) = &raw.server_name
        && name.parse::<IpAddr>().is_err()
    {
        check_name(name, HOST_BYTES_MAX, "a name", &format!("{path}.server_name"))?;
    }
    let server_name = raw.server_name.or_else(|| dns_name.map(str::to_owned));
    Ok(crate::UpstreamTls { authorities, identity, server_name, digest: 0 })
}

fn not_empty(file: PathBuf, key: &str) -> Result<PathBuf, Violation> {
    if file.as_os_str().is_empty() {
        return Err(Violation::new(key, "must be the path of a file, not empty"));
    }
    Ok(file)
}

fn headers(
    raw: BTreeMap<String, UpstreamHeader>,
    path: &str,
) -> Result<Vec<crate::UpstreamHeader>, Violation> {
    if raw.len() > HEADERS_MAX {
        return Err(Violation::new(path, format!("at most {HEADERS_MAX} headers, not {}", raw.len())));
    }
    let mut seen = BTreeSet::new();
    let mut headers = Vec::with_capacity(raw.len());
    for (name, UpstreamHeader { value, file }) in raw {
        let key = format!("{path}.{name}");
        let lower = header_name(&name).map_err(|why| Violation::new(&*key, why))?;
        if !seen.insert(lower.clone()) {
            return Err(Violation::new(key, "the header is named twice; upper and lower case are the same"));
        }
        let (value, file) = match (value, file) {
            (Some(value), None) => {
                check_value(&value)
                    .map_err(|why| Violation::new(format!("{key}.value"), format!("the value {why}")))?;
                if value == upstream::MASK {
                    return Err(Violation::new(
                        format!("{key}.value"),
                        "`***` stands for a value that isn't shown; write the value, or the path of its file",
                    ));
                }
                (Some(Secret::new(&value)), None)
            }
            (None, Some(file)) => (None, Some(not_empty(file, &format!("{key}.file"))?)),
            _ => return Err(Violation::new(key, "exactly one of value and file is required")),
        };
        headers.push(crate::UpstreamHeader { name: lower, value, file });
    }
    Ok(headers)
}

/// The name in lower case, if the gateway may set this header.
fn header_name(name: &str) -> Result<String, String> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.is_empty() || name.len() > 128 || !name.bytes().all(is_token) {
        return Err(format!("`{name}`: a header's name has 1 to 128 letters, digits, `-`, `_` or `.`"));
    }
    let lower = name.to_ascii_lowercase();
    let prefixes = ["x-penstock-", "x-envoy-", "x-gateway-destination-endpoint"];
    if RESERVED.contains(&&*lower) || prefixes.iter().any(|prefix| lower.starts_with(prefix)) {
        return Err(format!("`{lower}` belongs to the connection or to the gateway; it can't be set"));
    }
    Ok(lower)
}
