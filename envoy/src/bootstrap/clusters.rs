//! Where Envoy connects to: one cluster a pool, and the companion's.
//!
//! A pool's cluster only looks up the endpoint that the grant's header names and walks its list on retry. It has
//! no health checks and no limits of its own, since readiness and bounds are the companion's decisions. Beside its
//! servers it has one more host, this Envoy's listener for requests that no server took: only a list can name it.

use std::path::Path;

use penstock_wire::names::{ENDPOINT_HEADER, ROUTE_HEADER};
use serde_json::{Value, json};

use super::{Address, COMPANION_CLUSTER, Pool, REQUEUE_LISTENER, Settings, Tls, seconds, socket};
use crate::{folder, limits};

const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

const LISTED_ONLY: &str = "penstock-listed-only";

/// What tells a pool's model servers from the listener for those that none took.
const SERVER: &str = "penstock-server";

/// A pool's cluster with its servers. It is called as the pool is: a route reads its name in the pool's header.
pub(super) fn listed(pool: &Pool) -> Value {
    let mut cluster = cluster(pool);
    cluster["type"] = "STATIC".into();
    cluster["load_assignment"] = endpoints(pool);
    cluster
}

/// A pool's cluster that reads its servers from a file, now and whenever it is replaced.
pub(super) fn watched(pool: &Pool, file: &Path) -> Value {
    let mut cluster = cluster(pool);
    cluster["type"] = "EDS".into();
    cluster["eds_cluster_config"] = json!({ "eds_config": folder::source(file) });
    cluster
}

/// A pool's servers: those that may be picked, then those that only a list may name.
pub(super) fn endpoints(pool: &Pool) -> Value {
    let mut hosts: Vec<Value> = pool.endpoints.iter().map(|&at| server(socket(at))).collect();
    hosts.extend(pool.leaving.iter().map(|&at| host(socket(at))));
    // No socket and no other worker: Envoy hands the bytes over in memory, and nothing outside can connect.
    hosts.push(host(
        json!({ "envoy_internal_address": { "server_listener_name": REQUEUE_LISTENER } }),
    ));
    assignment(&pool.name, hosts)
}

fn cluster(pool: &Pool) -> Value {
    json!({
        "name": pool.name,
        "connect_timeout": seconds(limits::CONNECT_TIMEOUT),
        "load_balancing_policy": { "policies": [{ "typed_extension_config": {
            "name": "envoy.load_balancing_policies.override_host",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost",
                "override_host_sources": [{ "header": ROUTE_HEADER }, { "header": ENDPOINT_HEADER }],
                "fallback_policy": { "policies": [fallback()] },
            },
        } }] },
        "circuit_breakers": raised(),
        "upstream_connection_options": { "tcp_keepalive": {
            "keepalive_time": limits::KEEPALIVE_AFTER_S,
            "keepalive_interval": limits::KEEPALIVE_INTERVAL_S,
            "keepalive_probes": limits::KEEPALIVE_PROBES,
        } },
        "typed_extension_protocol_options": { HTTP_OPTIONS: {
            "@type": format!("type.googleapis.com/{HTTP_OPTIONS}"),
            "common_http_protocol_options": { "idle_timeout": seconds(limits::UPSTREAM_IDLE_TIMEOUT) },
            "explicit_http_config": { "http_protocol_options": {} },
        } },
    })
}

pub(super) fn companion(settings: &Settings) -> Value {
    let address = match &settings.companion {
        Address::Tcp(at) => socket(*at),
        Address::Unix(path) => json!({ "pipe": { "path": path } }),
    };
    let mut cluster = json!({
        "name": COMPANION_CLUSTER,
        "type": "STATIC",
        "connect_timeout": seconds(limits::CONNECT_TIMEOUT),
        "load_assignment": assignment(COMPANION_CLUSTER, vec![host(address)]),
        "circuit_breakers": raised(),
        "typed_extension_protocol_options": { HTTP_OPTIONS: {
            "@type": format!("type.googleapis.com/{HTTP_OPTIONS}"),
            "explicit_http_config": { "http2_protocol_options": { "connection_keepalive": {
                "interval": seconds(limits::COMPANION_KEEPALIVE),
                "timeout": seconds(limits::COMPANION_KEEPALIVE),
            } } },
        } },
    });
    if let Some(tls) = &settings.tls {
        cluster["transport_socket"] = mutual(tls);
    }
    cluster
}

/// Both ends are ours and new, so nothing older than TLS 1.3. Any certificate of the authority will do: it signs for
/// nobody else.
fn mutual(tls: &Tls) -> Value {
    json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "common_tls_context": {
                "tls_params": {
                    "tls_minimum_protocol_version": "TLSv1_3",
                    "tls_maximum_protocol_version": "TLSv1_3",
                },
                "alpn_protocols": ["h2"],
                "tls_certificates": [{
                    "certificate_chain": { "filename": tls.cert },
                    "private_key": { "filename": tls.key },
                }],
                "validation_context": { "trusted_ca": { "filename": tls.ca } },
            },
        },
    })
}

/// The `metadata_match` of a route whose requests may only go where their list says.
pub(super) fn listed_only() -> Value {
    json!({ "filter_metadata": { "envoy.lb": { LISTED_ONLY: "true" } } })
}

/// What picks a host when the list doesn't: round robin over the model servers, but no host at all for a route that is
/// [`listed_only`]. That is a subset by a key that no host has.
fn fallback() -> Value {
    let round_robin = json!({ "typed_extension_config": {
        "name": "envoy.load_balancing_policies.round_robin",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin",
        },
    } });
    json!({ "typed_extension_config": {
        "name": "envoy.load_balancing_policies.subset",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.subset.v3.Subset",
            "fallback_policy": "DEFAULT_SUBSET",
            "default_subset": { SERVER: "true" },
            "subset_selectors": [{ "keys": [LISTED_ONLY], "fallback_policy": "NO_FALLBACK" }],
            "subset_lb_policy": { "policies": [round_robin] },
        },
    } })
}

fn host(at: Value) -> Value {
    json!({ "endpoint": { "address": at } })
}

fn server(at: Value) -> Value {
    let mut host = host(at);
    host["metadata"] = json!({ "filter_metadata": { "envoy.lb": { SERVER: "true" } } });
    host
}

fn assignment(cluster: &str, hosts: Vec<Value>) -> Value {
    json!({ "cluster_name": cluster, "endpoints": [{ "lb_endpoints": hosts }] })
}

fn raised() -> Value {
    let threshold = |priority: &str| {
        json!({
            "priority": priority,
            "max_connections": limits::CIRCUIT_BREAKER,
            "max_pending_requests": limits::CIRCUIT_BREAKER,
            "max_requests": limits::CIRCUIT_BREAKER,
            "max_retries": limits::CIRCUIT_BREAKER,
        })
    };
    json!({ "thresholds": [threshold("DEFAULT"), threshold("HIGH")] })
}
