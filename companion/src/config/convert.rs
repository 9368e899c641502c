//! From the document to the types of the program: what fits together across keys is checked here.

mod classes;
mod gate;
mod identity;
mod policy;
mod servers;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::str::FromStr;

use penstock_control::Scorers;
use penstock_engine::limits::FLOWS_MAX;

use super::{
    Address, AddressError, Admin, Broken, Config, Exposed, Health, Listen, Pool, Queued, Then, Tls, raw,
    value,
};

impl TryFrom<raw::Document> for Config {
    type Error = Broken;

    fn try_from(raw: raw::Document) -> Result<Self, Broken> {
        if raw.pools.is_empty() {
            return Err(Broken(
                "pools".into(),
                "at least one pool is needed: {name, endpoints}".into(),
            ));
        }
        let flows = raw.limits.flows.map_or(FLOWS_MAX, |it| it.0);
        let mut names = BTreeSet::new();
        let mut pools = Vec::with_capacity(raw.pools.len());
        for (at, pool) in raw.pools.into_iter().enumerate() {
            let path = format!("pools[{at}]");
            if !names.insert(pool.name.clone()) {
                return Err(Broken(
                    format!("{path}.name"),
                    format!("`{}` is the name of two pools; names are unique", pool.name),
                ));
            }
            pools.push(convert_pool(pool, flows, &path)?);
        }
        let trust_is_given = raw.identity.trust.is_some();
        let config = Self {
            listen: convert_listen(raw.listen)?,
            tls: raw.tls.map(|it| Tls {
                cert: it.cert,
                key: it.key,
                client_ca: it.client_ca,
            }),
            admin: convert_admin(raw.admin)?,
            identity: identity::convert(raw.identity)?,
            pools,
            queued: match raw.shutdown.queued {
                raw::Queued::Reject => Queued::Reject,
                raw::Queued::HandOver => Queued::HandOver,
            },
            drain: raw.shutdown.drain.0,
            startup_wait: raw
                .startup_wait
                .map_or(penstock_wire::limits::STARTUP_WAIT, |it| it.0),
            body_bytes: raw.limits.body_bytes.map_or(32 << 20, |it| it.0),
            flows,
            metric_flows: to_usize(raw.metrics.flows, 1_000),
            metric_aliases: Vec::new(),
        };
        config
            .gateway_is_protected(trust_is_given)
            .and_then(|()| config.grpc_is_protected())
            .map_err(|Exposed { key, message }| Broken(key.into(), message))?;
        Ok(config)
    }
}

fn to_usize(count: Option<value::Count>, default: usize) -> usize {
    count.map_or(default, |it| usize::try_from(it.0).unwrap_or(usize::MAX))
}

fn convert_listen(raw: raw::Listen) -> Result<Listen, Broken> {
    Ok(Listen {
        gateway: socket(raw.gateway.as_deref().unwrap_or("127.0.0.1:8080"))
            .map_err(|why| Broken("listen.gateway".into(), why.to_string()))?,
        envoy_admin: loopback("listen.envoy_admin", raw.envoy_admin.as_deref(), "127.0.0.1:9901")?,
        grpc: address("listen.grpc", raw.grpc.as_deref(), "127.0.0.1:9190")?,
        http: address("listen.http", raw.http.as_deref(), "127.0.0.1:9191")?,
    })
}

fn address(key: &str, written: Option<&str>, default: &str) -> Result<Address, Broken> {
    written
        .unwrap_or(default)
        .parse()
        .map_err(|why: AddressError| Broken(key.into(), why.to_string()))
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            Some(_) => Err(AddressError(format!(
                "`{text}`: the path of a unix socket starts with /"
            ))),
            None => socket(text).map(Self::Tcp),
        }
    }
}

/// Envoy's admin interface has no authentication.
fn loopback(key: &str, written: Option<&str>, default: &str) -> Result<SocketAddr, Broken> {
    let text = written.unwrap_or(default);
    let address = socket(text).map_err(|why| Broken(key.into(), why.to_string()))?;
    if address.ip().is_loopback() {
        Ok(address)
    } else {
        Err(Broken(
            key.into(),
            format!("`{text}` isn't a loopback address, and nothing protects Envoy's admin interface"),
        ))
    }
}

fn socket(text: &str) -> Result<SocketAddr, AddressError> {
    text.parse().map_err(|_| {
        AddressError(format!(
            "`{text}` is no address; write ip:port, like 127.0.0.1:8080"
        ))
    })
}

fn convert_admin(raw: raw::Admin) -> Result<Admin, Broken> {
    let hosts = raw.hosts.into_iter().enumerate().map(|(at, host)| {
        let named = (1..=253).contains(&host.len())
            && host
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
        if named {
            Ok(host.to_ascii_lowercase())
        } else {
            Err(Broken(
                format!("admin.hosts[{at}]"),
                format!("`{host}`: this is a host's name without a port, like penstock.example"),
            ))
        }
    });
    Ok(Admin {
        hosts: hosts.collect::<Result<_, _>>()?,
        token_file: raw.token_file,
    })
}

/// A name that stands in labels, paths and files: 1 to 63 letters, digits, `-`, `_` or `.`.
fn is_name(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// A pool's `slo` by itself.
pub(super) fn slo(raw: &raw::Slo) -> Result<penstock_model::slo::Policy, Broken> {
    servers::slo(raw, "")
}

fn convert_pool(mut raw: raw::Pool, flows: usize, path: &str) -> Result<Pool, Broken> {
    if !is_name(&raw.name) {
        return Err(Broken(
            format!("{path}.name"),
            format!(
                "`{}`: a name has 1 to 63 letters, digits, `-`, `_` or `.`",
                raw.name
            ),
        ));
    }
    let requeues = raw.queue.requeues.0;
    let slo = servers::slo(&raw.slo, path)?;
    let store = match std::mem::take(&mut raw.usage.store) {
        raw::Store::Memory => None,
        raw::Store::Redb(path) => Some(path),
    };
    let parts = policy::Parts {
        down: raw.down,
        queue: raw.queue,
        stock: raw.stock,
        arbitration: raw.arbitration,
        usage: raw.usage,
        slo: raw.slo,
        reject_unmeetable: raw.reject_unmeetable,
    };
    let policy::Converted {
        policy,
        flow_key,
        class_globs,
    } = policy::convert(parts, flows, path)?;
    Ok(Pool {
        endpoints: servers::endpoints(raw.endpoints, path)?,
        discovery: None,
        rewrite: Vec::new(),
        scheduler: Scorers::default(),
        health: raw.health.path.map(|path| Health {
            path,
            interval: raw.health.interval.0,
            unhealthy_after: raw.health.unhealthy_after.0,
        }),
        scrape: servers::scrape(raw.scrape, path)?,
        policy,
        slo,
        flow_key,
        class_globs,
        requeues,
        store,
        hold: raw.companion_down.hold.0,
        then: match raw.companion_down.then {
            raw::Then::Open => Then::Open,
            raw::Then::Closed => Then::Closed,
        },
        capacity_status: raw.capacity_status.0,
        name: raw.name,
        models: raw.models,
    })
}
