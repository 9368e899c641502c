//! From the document to the types of the program. Rules across keys are checked here.

mod budgets;
mod classes;
mod identity;
mod policy;
mod pool;
mod replicas;
mod servers;
mod stock;

use std::collections::BTreeSet;
use std::net::SocketAddr;

pub(super) use self::pool::slo;
pub use self::servers::is_variant;
pub(super) use self::servers::{check_batched_tokens, endpoint_list};
use super::error::Violation;
use super::listen::socket_address;
use super::{Address, AddressError, Admin, Alias, BindError, Config, Listen, ListenTls, Tls, compiled, raw};

impl TryFrom<raw::Document> for Config {
    type Error = Violation;

    fn try_from(raw: raw::Document) -> Result<Self, Violation> {
        if raw.limits.body_bytes.0 == 0 {
            return Err(Violation::new("limits.body_bytes", "the limit is at least 1 byte, not 0"));
        }
        let flows = to_usize(raw.limits.flows.0);
        let trust_is_given = raw.identity.trust.is_some();
        if raw.tls.is_some() {
            compiled::require("tls", cfg!(feature = "tls"), "tls")?;
        }
        let pools = convert_pools(raw.pools, flows)?;
        let listen = convert_listen(&raw.listen)?;
        let replicas = raw.replicas.map(|raw| replicas::convert(raw, &listen.grpc));
        let config = Self {
            pools,
            listen,
            replicas: replicas.transpose()?,
            tls: raw.tls.map(|tls| Tls { cert: tls.cert, key: tls.key, client_ca: tls.client_ca }),
            admin: convert_admin(raw.admin)?,
            identity: identity::convert(raw.identity)?,
            queued: raw.shutdown.queued,
            drain: raw.shutdown.drain.0,
            startup_wait: raw.startup_wait.0,
            body_bytes: raw.limits.body_bytes.0,
            flows,
            metric_flows: to_usize(raw.metrics.flows.0),
            metric_aliases: check_aliases(raw.metrics.aliases.0)?,
        };
        config
            .check_gateway_address(trust_is_given)
            .and_then(|()| config.check_grpc_address(&config.listen.grpc))
            .map_err(|BindError { key, message }| Violation::new(key, message))?;
        config.check_replicas()?;
        Ok(config)
    }
}

fn convert_pools(raw: Vec<raw::Pool>, flows: usize) -> Result<Vec<super::Pool>, Violation> {
    if raw.is_empty() {
        return Err(Violation::new("pools", "at least one pool is required: {name, endpoints}"));
    }
    let mut names = BTreeSet::new();
    let mut pools = Vec::with_capacity(raw.len());
    for (index, pool) in raw.into_iter().enumerate() {
        let path = format!("pools[{index}]");
        if !names.insert(pool.name.clone()) {
            return Err(Violation::new(
                format!("{path}.name"),
                format!("`{}` is the name of two pools; names are unique", pool.name),
            ));
        }
        pools.push(pool::convert(pool, flows, &path)?);
    }
    Ok(pools)
}

/// A count that is larger than the machine's address space is no limit there.
fn to_usize(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

fn check_aliases(aliases: Vec<Alias>) -> Result<Vec<Alias>, Violation> {
    for (index, alias) in aliases.iter().enumerate() {
        if aliases.iter().take(index).any(|earlier| earlier == alias) {
            return Err(Violation::new(format!("metrics.aliases[{index}]"), "each alias is listed once"));
        }
    }
    Ok(aliases)
}

fn convert_listen(raw: &raw::Listen) -> Result<Listen, Violation> {
    let broken = |key: &str, error: AddressError| Violation::new(key, error.to_string());
    let address = |key: &str, text: &str| -> Result<Address, Violation> {
        text.parse().map_err(|error| broken(key, error))
    };
    Ok(Listen {
        gateway: socket_address(&raw.gateway).map_err(|error| broken("listen.gateway", error))?,
        envoy_admin: loopback_address(&raw.envoy_admin)?,
        grpc: address("listen.grpc", &raw.grpc)?,
        http: address("listen.http", &raw.http)?,
        access_log: raw.access_log.clone(),
        tls: raw.tls.as_ref().map(|tls| ListenTls { cert: tls.cert.clone(), key: tls.key.clone() }),
    })
}

/// Envoy's admin interface has no authentication, so only this machine may reach it.
fn loopback_address(text: &str) -> Result<SocketAddr, Violation> {
    let key = "listen.envoy_admin";
    let address = socket_address(text).map_err(|error| Violation::new(key, error.to_string()))?;
    if address.ip().is_loopback() {
        Ok(address)
    } else {
        Err(Violation::new(
            key,
            format!(
                "`{text}` isn't a loopback address; Envoy's admin interface has no authentication, so write one like \
                 127.0.0.1:9901"
            ),
        ))
    }
}

fn convert_admin(raw: raw::Admin) -> Result<Admin, Violation> {
    let hosts = raw.hosts.0.into_iter().enumerate().map(|(index, host)| {
        if is_name(&host, HOST_BYTES_MAX) {
            Ok(host.to_ascii_lowercase())
        } else {
            Err(Violation::new(
                format!("admin.hosts[{index}]"),
                format!("`{host}` is not a host name; write it without a port, like penstock.example"),
            ))
        }
    });
    Ok(Admin { hosts: hosts.collect::<Result<_, _>>()?, token_file: raw.token_file })
}

/// Bytes of a host name, by DNS.
const HOST_BYTES_MAX: usize = 253;
/// Bytes of the names of pools, variants and taints, which are used in labels, paths and files.
const LABEL_BYTES_MAX: usize = 63;

/// Whether a name has 1 to `max` letters, digits, `-`, `_` or `.`.
fn is_name(text: &str, max: usize) -> bool {
    (1..=max).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// Checks a name of at most `max` bytes; `noun` is its kind, with an article.
fn check_name(text: &str, max: usize, noun: &str, key: &str) -> Result<(), Violation> {
    if is_name(text, max) {
        Ok(())
    } else {
        Err(Violation::new(key, format!("`{text}`: {noun} has 1 to {max} letters, digits, `-`, `_` or `.`")))
    }
}
