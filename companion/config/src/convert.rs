//! From the document to the types of the program: what fits together across keys is checked here.

mod classes;
mod gate;
mod identity;
mod policy;
mod servers;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::str::FromStr;

use penstock_engine::policy::Scorers;

pub(super) use self::gate::bounds;
pub(super) use self::servers::fixed;
use super::{
    Address, AddressError, Admin, Alias, Broken, Config, Exposed, Listen, Pool, Queued, Store, Then, Tls,
    compiled, raw,
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
        let flows = to_usize(raw.limits.flows.0);
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
        if raw.tls.is_some() {
            compiled::require("tls", cfg!(feature = "tls"), "tls")?;
        }
        let config = Self {
            listen: convert_listen(&raw.listen)?,
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
            startup_wait: raw.startup_wait.0,
            body_bytes: match raw.limits.body_bytes.0 {
                0 => {
                    return Err(Broken(
                        "limits.body_bytes".into(),
                        "a body has at least 1 byte".into(),
                    ));
                }
                bytes => bytes,
            },
            flows,
            metric_flows: to_usize(raw.metrics.flows.0),
            metric_aliases: aliases(&raw.metrics.aliases.0)?,
        };
        config
            .gateway_is_protected(trust_is_given)
            .and_then(|()| config.grpc_is_protected())
            .map_err(|Exposed { key, message }| Broken(key.into(), message))?;
        Ok(config)
    }
}

fn to_usize(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

fn aliases(raw: &[raw::Alias]) -> Result<Vec<Alias>, Broken> {
    let mut aliases = Vec::with_capacity(raw.len());
    for (at, alias) in raw.iter().enumerate() {
        let alias = match alias {
            raw::Alias::Nexus => Alias::Nexus,
        };
        if aliases.contains(&alias) {
            return Err(Broken(
                format!("metrics.aliases[{at}]"),
                "each stands here once".into(),
            ));
        }
        aliases.push(alias);
    }
    Ok(aliases)
}

fn convert_listen(raw: &raw::Listen) -> Result<Listen, Broken> {
    Ok(Listen {
        gateway: socket(&raw.gateway).map_err(|why| Broken("listen.gateway".into(), why.to_string()))?,
        envoy_admin: loopback("listen.envoy_admin", &raw.envoy_admin)?,
        grpc: address("listen.grpc", &raw.grpc)?,
        http: address("listen.http", &raw.http)?,
    })
}

fn address(key: &str, written: &str) -> Result<Address, Broken> {
    written
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
fn loopback(key: &str, text: &str) -> Result<SocketAddr, Broken> {
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
    let hosts = raw.hosts.0.into_iter().enumerate().map(|(at, host)| {
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

fn convert_store(raw: raw::Store, key: &str) -> Result<Option<Store>, Broken> {
    match raw {
        raw::Store::Memory => Ok(None),
        raw::Store::Redb(file) => {
            compiled::require("redb", cfg!(feature = "redb"), &format!("{key}.redb"))?;
            Ok(Some(Store::Redb(file)))
        }
        raw::Store::Redis(url) => {
            compiled::require("redis", cfg!(feature = "redis"), &format!("{key}.redis"))?;
            Ok(Some(Store::Redis(url)))
        }
    }
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
    if let Some(at) = raw.models.0.iter().position(String::is_empty) {
        return Err(Broken(
            format!("{path}.models[{at}]"),
            "a glob isn't empty; `*` is every model".into(),
        ));
    }
    let requeues = u32::try_from(raw.queue.requeues.0).unwrap_or(u32::MAX);
    let slo = servers::slo(&raw.slo, path)?;
    let store = convert_store(
        std::mem::take(&mut raw.usage.store),
        &format!("{path}.usage.store"),
    )?;
    let parts = policy::Parts {
        down: raw.down,
        queue: raw.queue,
        stock: raw.stock,
        arbitration: raw.arbitration,
        usage: raw.usage,
        slo: raw.slo,
        reject_unmeetable: raw.reject_unmeetable,
        scheduler: Scorers {
            stock: raw.scheduler.stock.0,
            queue: raw.scheduler.queue.0,
            kv_cache: raw.scheduler.kv_cache.0,
            prefix: raw.scheduler.prefix.0,
            lora: raw.scheduler.lora.0,
        },
    };
    let policy::Converted {
        policy,
        flow_key,
        class_globs,
    } = policy::convert(parts, flows, path)?;
    let (endpoints, discovery) = servers::endpoints(raw.endpoints, path)?;
    Ok(Pool {
        endpoints,
        discovery,
        rewrite: servers::rewrite(raw.rewrite.0, path)?,
        health: servers::health(&raw.health, path)?,
        scrape: servers::scrape(&raw.scrape, path)?,
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
        capacity_status: if raw.capacity_status.0 == 429 { 429 } else { 503 },
        name: raw.name,
        models: raw.models.0,
    })
}
