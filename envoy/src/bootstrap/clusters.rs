//! The clusters: one for each pool, and one for the companion.
//!
//! A pool's cluster uses the endpoint list of the grant's header, in order, one entry for each attempt. It has no health
//! checks and no effective limits, because the companion decides on readiness and bounds. Beside its servers, the cluster has
//! this Envoy's requeue listener as a host, which only an endpoint list can name.

use std::path::Path;

use penstock_wire::names::{ENDPOINT_HEADER, REFUSED_HEADER, REQUEUE_HEADER, ROUTE_HEADER};
use serde_json::{Value, json};

use super::{
    Address, COMPANION_CLUSTER, Pool, REQUEUE_HOST, REQUEUE_LISTENER, REQUEUE_STATE, Settings, Tls, seconds,
    socket,
};
use crate::{config_source::config_source, limits};

const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

/// A metadata key that no host has: a route that requires it can use only the hosts of its list.
const LISTED_ONLY: &str = "penstock-listed-only";

/// The metadata key of model servers, which the requeue listener doesn't have.
const SERVER: &str = "penstock-server";

/// The cluster of a pool with its servers. It has the pool's name, because the routes take the cluster's name from the pool
/// header.
pub(super) fn listed(pool: &Pool) -> Value {
    let mut cluster = cluster(pool);
    cluster["type"] = "STATIC".into();
    cluster["load_assignment"] = endpoints(pool);
    cluster
}

/// The cluster of a pool that reads its servers from a file, again whenever the file is replaced.
pub(super) fn watched(pool: &Pool, file: &Path) -> Value {
    let mut cluster = cluster(pool);
    cluster["type"] = "EDS".into();
    cluster["eds_cluster_config"] = json!({ "eds_config": config_source(file) });
    cluster
}

/// The servers of a pool: first those that load balancing may choose, then those that only a list may name.
pub(super) fn endpoints(pool: &Pool) -> Value {
    let mut hosts: Vec<Value> = pool
        .endpoints
        .iter()
        .map(|&address| server(socket(address)))
        .collect();
    hosts.extend(pool.leaving.iter().map(|&address| host(socket(address))));
    // An internal listener has no socket: Envoy passes the bytes in memory, on the same worker, and no client can connect.
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
        "circuit_breakers": circuit_breakers(),
        "upstream_connection_options": { "tcp_keepalive": {
            "keepalive_time": limits::KEEPALIVE_AFTER_S,
            "keepalive_interval": limits::KEEPALIVE_INTERVAL_S,
            "keepalive_probes": limits::KEEPALIVE_PROBES,
        } },
        "typed_extension_protocol_options": { HTTP_OPTIONS: {
            "@type": format!("type.googleapis.com/{HTTP_OPTIONS}"),
            "common_http_protocol_options": { "idle_timeout": seconds(limits::UPSTREAM_IDLE_TIMEOUT) },
            "explicit_http_config": { "http_protocol_options": {} },
            "http_filters": [internal_headers(), {
                "name": "envoy.filters.http.upstream_codec",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.upstream_codec.v3.UpstreamCodec",
                },
            }],
        } },
    })
}

/// Removes the list from a request once Envoy has chosen a host. If the host is the requeue listener, it restores the requeue
/// token, and notes whether the server before refused the request by a response: then Envoy has set the details of the
/// response code already. It runs for each attempt. The load balancer keeps the list for the later attempts.
fn internal_headers() -> Value {
    let token =
        format!("%CEL(upstream.address == \"{REQUEUE_HOST}\" ? filter_state[\"{REQUEUE_STATE}\"] : \"\")%");
    // Without details the expression has no value, and the header isn't added.
    let refused = format!(
        "%CEL(upstream.address == \"{REQUEUE_HOST}\" && response.code_details == \"via_upstream\" ? \"1\" : \"\")%"
    );
    let set = |header: &str, value: &str| {
        json!({ "append": {
            "header": { "key": header, "value": value },
            "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
        } })
    };
    json!({
        "name": "envoy.filters.http.header_mutation",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
            "mutations": { "request_mutations": [
                { "remove": ROUTE_HEADER },
                set(REQUEUE_HEADER, &token),
                set(REFUSED_HEADER, &refused),
            ] },
        },
    })
}

pub(super) fn companion(settings: &Settings) -> Value {
    let address = match &settings.companion {
        Address::Tcp(address) => socket(*address),
        Address::Unix(path) => json!({ "pipe": { "path": path } }),
    };
    let mut cluster = json!({
        "name": COMPANION_CLUSTER,
        "type": "STATIC",
        "connect_timeout": seconds(limits::CONNECT_TIMEOUT),
        "load_assignment": assignment(COMPANION_CLUSTER, vec![host(address)]),
        "circuit_breakers": circuit_breakers(),
        "typed_extension_protocol_options": { HTTP_OPTIONS: {
            "@type": format!("type.googleapis.com/{HTTP_OPTIONS}"),
            "explicit_http_config": { "http2_protocol_options": { "connection_keepalive": {
                "interval": seconds(limits::COMPANION_KEEPALIVE),
                "timeout": seconds(limits::COMPANION_KEEPALIVE),
            } } },
        } },
    });
    if let Some(tls) = &settings.tls {
        cluster["transport_socket"] = mutual_tls(tls);
    }
    cluster
}

/// The transport socket for mutual TLS. Both ends belong to Penstock, so it requires TLS 1.3. It accepts any certificate of
/// the authority, which signs only for Penstock.
fn mutual_tls(tls: &Tls) -> Value {
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

/// The `metadata_match` of a route whose requests may use only the hosts of their list.
pub(super) fn listed_only() -> Value {
    json!({ "filter_metadata": { "envoy.lb": { LISTED_ONLY: "true" } } })
}

/// The load balancing for requests without a list: round robin over the model servers. For a route that is [`listed_only`]
/// it finds no host, because the route's subset is empty.
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

fn host(address: Value) -> Value {
    json!({ "endpoint": { "address": address } })
}

fn server(address: Value) -> Value {
    let mut host = host(address);
    host["metadata"] = json!({ "filter_metadata": { "envoy.lb": { SERVER: "true" } } });
    host
}

fn assignment(cluster: &str, hosts: Vec<Value>) -> Value {
    json!({ "cluster_name": cluster, "endpoints": [{ "lb_endpoints": hosts }] })
}

fn circuit_breakers() -> Value {
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
