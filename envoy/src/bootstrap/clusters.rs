//! Where Envoy connects to: one cluster a pool, and the companion's.
//!
//! A pool's cluster only looks up the endpoint that the grant's header names and walks its list on retry. It has
//! no health checks and no limits of its own, since readiness and bounds are the companion's decisions.

use penstock_wire::names::ENDPOINT_HEADER;
use serde_json::{Value, json};

use super::{Address, COMPANION_CLUSTER, Pool, seconds, socket};
use crate::limits;

const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

const LISTED_ONLY: &str = "penstock-listed-only";

/// The name of a pool's cluster.
pub(super) fn name(pool: &Pool) -> String {
    format!("penstock_pool_{}", pool.name)
}

pub(super) fn pool(pool: &Pool) -> Value {
    json!({
        "name": name(pool),
        "type": "STATIC",
        "connect_timeout": seconds(limits::CONNECT_TIMEOUT),
        "load_assignment": assignment(&name(pool), pool.endpoints.iter().map(|&at| socket(at)).collect()),
        "load_balancing_policy": { "policies": [{ "typed_extension_config": {
            "name": "envoy.load_balancing_policies.override_host",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost",
                "override_host_sources": [{ "header": ENDPOINT_HEADER }],
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

pub(super) fn companion(at: &Address) -> Value {
    let address = match at {
        Address::Tcp(at) => socket(*at),
        Address::Unix(path) => json!({ "pipe": { "path": path } }),
    };
    json!({
        "name": COMPANION_CLUSTER,
        "type": "STATIC",
        "connect_timeout": seconds(limits::CONNECT_TIMEOUT),
        "load_assignment": assignment(COMPANION_CLUSTER, vec![address]),
        "circuit_breakers": raised(),
        "typed_extension_protocol_options": { HTTP_OPTIONS: {
            "@type": format!("type.googleapis.com/{HTTP_OPTIONS}"),
            "explicit_http_config": { "http2_protocol_options": { "connection_keepalive": {
                "interval": seconds(limits::COMPANION_KEEPALIVE),
                "timeout": seconds(limits::COMPANION_KEEPALIVE),
            } } },
        } },
    })
}

/// The `metadata_match` of a route whose requests may only go where their list says.
pub(super) fn listed_only() -> Value {
    json!({ "filter_metadata": { "envoy.lb": { LISTED_ONLY: "true" } } })
}

/// What picks a host when the list doesn't: round robin, but no host at all for a route that is
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
            "fallback_policy": "ANY_ENDPOINT",
            "subset_selectors": [{ "keys": [LISTED_ONLY], "fallback_policy": "NO_FALLBACK" }],
            "subset_lb_policy": { "policies": [round_robin] },
        },
    } })
}

fn assignment(cluster: &str, addresses: Vec<Value>) -> Value {
    let endpoints: Vec<Value> = addresses
        .into_iter()
        .map(|at| json!({ "endpoint": { "address": at } }))
        .collect();
    json!({ "cluster_name": cluster, "endpoints": [{ "lb_endpoints": endpoints }] })
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
