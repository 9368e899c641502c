//! Envoy's settings for a configuration: addresses, TLS, pools and limits.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use penstock_config::{self as config, Config};
use penstock_envoy::bootstrap::{self, Address, Companions, Module, Pool, Settings, Tls, UpstreamTls};
use penstock_envoy::certificate::Certificate;
use penstock_envoy::folder::Folder;
use penstock_envoy::limits;

use crate::filter_policy;

/// Envoy's settings for this configuration, with the pools in the bootstrap. Ports are used as they are, including 0. With
/// `tracing`, filters report what spans need from their start.
#[must_use]
pub fn settings(config: &Config, node: &str, module: Module, tracing: bool) -> Settings {
    Settings {
        node: node.to_owned(),
        gateway: config.listen.gateway,
        admin: config.listen.envoy_admin,
        cors: cors(&config.listen.cors),
        keep_alive: config.listen.keep_alive.filter(|_| config.keeps_alive()),
        certificate: None,
        access_log: config.listen.access_log.as_deref().map(absolute),
        companions: companions(config),
        tls: config.tls.as_ref().map(|tls| Tls {
            cert: absolute(&tls.cert),
            key: absolute(&tls.key),
            ca: absolute(&tls.client_ca),
        }),
        pools: pools(config),
        folder: None,
        body_bytes_max: config.body_bytes,
        heap_bytes_max: limits::HEAP_BYTES_MAX,
        connections_max: limits::connections_max(limits::FILES_ASSUMED, limits::WORKERS_ASSUMED),
        module,
        plugin: filter_policy::plugin_configuration(config, node, tracing),
        metadata: metadata(&config.identity),
        http_filters: Vec::new(),
    }
}

/// The dynamic metadata that an identity may come from, each once.
fn metadata(identity: &config::Identity) -> Vec<String> {
    let config::Identity { fairness_id, user, priority, class, strict, jump, .. } = identity;
    let sources = [fairness_id, user, priority, class, strict, jump].into_iter().flat_map(|list| list.iter());
    let paths: BTreeSet<&String> = sources
        .filter_map(|source| match source {
            config::Source::Metadata(path) => Some(path),
            config::Source::Header(_) | config::Source::Body(_) | config::Source::Model(_) => None,
        })
        .collect();
    paths.into_iter().cloned().collect()
}

/// Without an origin no page may read answers, and Envoy needs no filter for them.
fn cors(config: &config::Cors) -> Option<bootstrap::Cors> {
    let is_on = !config.origins.is_empty();
    is_on.then(|| bootstrap::Cors {
        origins: config.origins.clone(),
        headers: config.headers.clone(),
        max_age: config.max_age(),
    })
}

/// Without `replicas` the companion is at `listen.grpc`.
fn companions(config: &Config) -> Companions {
    match config.replicas.as_ref().map(|replicas| &replicas.companions) {
        Some(config::Companions::List(addresses)) => Companions::List(addresses.clone()),
        Some(config::Companions::Dns { name, port }) => Companions::Dns { name: name.clone(), port: *port },
        None => Companions::One(match &config.listen.grpc {
            config::Address::Tcp(address) => Address::Tcp(*address),
            config::Address::Unix(path) => Address::Unix(path.clone()),
        }),
    }
}

/// The certificate for clients, if the configuration has one.
#[must_use]
pub fn certificate(config: &Config) -> Option<Certificate> {
    config.listen.tls.as_ref().map(|tls| Certificate { cert: absolute(&tls.cert), key: absolute(&tls.key) })
}

/// The configured pools and their endpoints.
#[must_use]
pub fn pools(config: &Config) -> Vec<Pool> {
    let pools = config.pools.iter().map(|pool| Pool {
        name: pool.name.clone(),
        endpoints: pool.endpoints.iter().map(|endpoint| endpoint.address).collect(),
        leaving: Vec::new(),
        upstream: upstream(&pool.upstream),
    });
    pools.collect()
}

/// The way to a pool's servers, for Envoy. A header whose file wasn't read is left out.
#[must_use]
pub fn upstream(config: &config::Upstream) -> bootstrap::Upstream {
    let removed = if config.has_credential() { &config::CREDENTIAL_HEADERS[..] } else { &[] };
    let headers = config
        .headers
        .iter()
        .filter_map(|header| Some((header.name.clone(), header.value.as_ref()?.reveal().to_owned())));
    bootstrap::Upstream {
        tls: config.tls.as_ref().map(|tls| UpstreamTls {
            authorities: tls.authorities.as_deref().map(absolute),
            identity: tls.identity.as_ref().map(|(cert, key)| (absolute(cert), absolute(key))),
            server_name: tls.server_name.clone(),
            digest: tls.digest,
        }),
        http2: config.http2,
        headers: headers.collect(),
        removed_headers: removed.iter().map(|name| (*name).to_owned()).collect(),
    }
}

/// The servers that the folder lists for pools with discovery, without those that are configured, by pool. Until discovery has
/// answered they are the pools' endpoints: an empty list would take them from a running Envoy.
#[must_use]
pub fn remembered(config: &Config, folder: &Folder) -> BTreeMap<String, Vec<SocketAddr>> {
    let discovering = config.pools.iter().filter(|pool| pool.discovery.is_some());
    let remembered = discovering.map(|pool| {
        let mut servers = folder.servers(&pool.name);
        servers.retain(|server| pool.endpoints.iter().all(|endpoint| endpoint.address != *server));
        (pool.name.clone(), servers)
    });
    remembered.collect()
}

/// Adds remembered servers to the pools.
pub fn add_remembered(pools: &mut [Pool], remembered: &BTreeMap<String, Vec<SocketAddr>>) {
    for pool in pools {
        pool.endpoints.extend(remembered.get(&pool.name).into_iter().flatten());
    }
}

/// An absolute path, because Envoy may run in another folder.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use penstock_envoy::bootstrap::Code;

    use super::*;

    const TWO: &str = "
limits: {body_bytes: 1MiB}
listen: {grpc: 'unix:/run/penstock.sock'}
tls: {cert: /etc/c.pem, key: /etc/k.pem, client_ca: a.pem}
pools:
- {name: a, models: ['a*'], endpoints: {static: ['127.0.0.1:1', '[::1]:2']}}
- {name: b, endpoints: {static: ['127.0.0.1:3']}}
";

    #[test]
    fn settings_follow_the_configuration() {
        let config = Config::parse(TWO, "f.yaml").expect("valid");
        let settings = settings(&config, "n", Module::file(Code::Wasm, "/f.wasm"), false);
        assert_eq!(settings.companions, Companions::One(Address::Unix("/run/penstock.sock".into())));
        let tls = settings.tls.expect("given");
        assert_eq!((tls.cert, tls.key), ("/etc/c.pem".into(), PathBuf::from("/etc/k.pem")));
        assert!(tls.ca.is_absolute() && tls.ca.ends_with("a.pem"), "{:?}", tls.ca);
        assert_eq!(settings.body_bytes_max, 1 << 20);
        let pools: Vec<_> =
            settings.pools.iter().map(|pool| (pool.name.as_str(), pool.endpoints.len())).collect();
        assert_eq!(pools, [("a", 2), ("b", 1)]);
        assert_eq!(settings.plugin["companion"], bootstrap::COMPANION_CLUSTER);
    }

    #[test]
    fn envoy_has_all_companions_of_replicas() {
        let companions = |keys: &str| {
            let text = format!(
                "replicas: {{companions: {keys}, lease: {{file: l}}}}\n\
                 pools: [{{name: a, endpoints: {{static: ['127.0.0.1:1']}}}}]"
            );
            let config = Config::parse(&text, "f.yaml").expect("valid");
            settings(&config, "n", Module::file(Code::Wasm, "/f.wasm"), false).companions
        };
        let both = ["127.0.0.1:9190", "127.0.0.1:9290"].map(|address| address.parse().expect("an address"));
        assert_eq!(companions("['127.0.0.1:9190', '127.0.0.1:9290']"), Companions::List(both.to_vec()));
        assert_eq!(
            companions("{dns: {name: companions.models, port: 9190}}"),
            Companions::Dns { name: "companions.models".into(), port: 9190 }
        );
    }
}
