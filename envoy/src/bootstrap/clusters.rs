//! The clusters of the pools.
//!
//! A pool's cluster uses the endpoint list of the grant's header, in order, one entry for each attempt. It has no health
//! checks and no effective limits, because the companion decides on readiness and bounds. Beside its servers, the cluster has
//! this Envoy's requeue listener as a host, which only an endpoint list can name.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use penstock_wire::names::{ENDPOINT_HEADER, REFUSED_HEADER, REQUEUE_HEADER, ROUTE_HEADER};
use serde_json::{Value, json};

use super::{Pool, REQUEUE_LISTENER, REQUEUE_PROPERTY_STATE, Upstream, seconds, socket, upstream};
use crate::config_source::config_source;
use crate::limits;

pub(crate) const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

/// A metadata key that no server has: a route that requires it can use only the hosts of its list.
const LISTED_ONLY: &str = "penstock-listed-only";
/// The requeue listener's value of that key: a route that requires it can use the hosts of its list and then that listener. A
/// cluster whose requeue listener lacks it has no host for such a route beyond the list.
const THEN_REQUEUE: &str = "requeue";

/// The metadata of the requeue listener by which an attempt's filters know it, a namespace and a key.
const IS_REQUEUE: (&str, &str) = ("penstock", "requeue");

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
    let mut hosts: Vec<Value> = pool.endpoints.iter().map(|&address| server(socket(address))).collect();
    hosts.extend(pool.leaving.iter().map(|&address| host(socket(address))));
    for host in &mut hosts {
        upstream::mark(host, &pool.upstream);
    }
    hosts.push(requeue_host());
    assignment(&pool.name, hosts)
}

/// The requeue listener as a host. An internal listener has no socket: Envoy passes the bytes in memory, on the same worker, and no
/// client can connect.
pub(crate) fn requeue_host() -> Value {
    let mut host = host(json!({ "envoy_internal_address": { "server_listener_name": REQUEUE_LISTENER } }));
    let (namespace, key) = IS_REQUEUE;
    host["metadata"] = json!({ "filter_metadata": {
        "envoy.lb": { LISTED_ONLY: THEN_REQUEUE },
        namespace: { key: "true" },
    } });
    host
}

fn cluster(pool: &Pool) -> Value {
    let mut cluster = unbalanced(&pool.name, &pool.upstream);
    cluster["load_balancing_policy"] = chosen_by(&[ROUTE_HEADER, ENDPOINT_HEADER], fallback());
    // Otherwise the router's own filters run. A cluster's take their place.
    if !pool.upstream.headers.is_empty() {
        cluster["typed_extension_protocol_options"][HTTP_OPTIONS]["http_filters"] =
            http_filters(&pool.upstream, REQUEUE_PROPERTY_STATE);
    }
    upstream::add_tls(&mut cluster, pool);
    cluster
}

/// A cluster of model servers, without the servers and without a policy that chooses one.
pub(crate) fn unbalanced(name: &str, upstream: &Upstream) -> Value {
    json!({
        "name": name,
        "connect_timeout": seconds(limits::CONNECT_TIMEOUT),
        "circuit_breakers": circuit_breakers(),
        "upstream_connection_options": { "tcp_keepalive": {
            "keepalive_time": limits::KEEPALIVE_AFTER_S,
            "keepalive_interval": limits::KEEPALIVE_INTERVAL_S,
            "keepalive_probes": limits::KEEPALIVE_PROBES,
        } },
        "typed_extension_protocol_options": { HTTP_OPTIONS: {
            "@type": format!("type.googleapis.com/{HTTP_OPTIONS}"),
            "common_http_protocol_options": { "idle_timeout": seconds(limits::UPSTREAM_IDLE_TIMEOUT) },
            "explicit_http_config": upstream::http_config(upstream.http2),
        } },
    })
}

/// The HTTP filters of an attempt to send a request to a pool with this upstream. `token`: the filter state that keeps the requeue token.
pub(crate) fn http_filters(upstream: &Upstream, token: &str) -> Value {
    let codec = json!({
        "name": "envoy.filters.http.upstream_codec",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.upstream_codec.v3.UpstreamCodec",
        },
    });
    std::iter::once(internal_headers(token)).chain(upstream::headers(upstream)).chain([codec]).collect()
}

/// Removes the list from a request once Envoy has chosen a host. If the host is the requeue listener, it restores the requeue
/// token, which the filter state `token` keeps. Each host after the first learns how the attempt before ended. The load balancer keeps the list
/// for the later attempts.
fn internal_headers(token: &str) -> Value {
    let set = |header: &str, action: &str, value: &str| json!({ "append": { "header": { "key": header, "value": value }, "append_action": action } });
    let (namespace, key) = IS_REQUEUE;
    json!({
        "name": "envoy.filters.http.header_mutation",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
            "mutations": { "request_mutations": [
                { "remove": ROUTE_HEADER },
                // A header without a value isn't added, so only the requeue listener gets one, and then the token in its place: the mark of
                // `requeue_host` and this belong together. Without a token the listener would see the mark, which is no token, and refuse.
                // An expression for all this would cost each request 3,000 instructions more.
                set(REQUEUE_HEADER, "OVERWRITE_IF_EXISTS_OR_ADD", &format!("%UPSTREAM_METADATA({namespace}:{key})%")),
                set(REQUEUE_HEADER, "OVERWRITE_IF_EXISTS", &format!("%FILTER_STATE({token}:PLAIN)%")),
                // Before the first attempt has ended it has no value.
                set(REFUSED_HEADER, "OVERWRITE_IF_EXISTS_OR_ADD", "%RESPONSE_CODE_DETAILS%"),
            ] },
        },
    })
}

/// The `metadata_match` of a route whose requests may use only the hosts of their list.
pub(super) fn listed_only() -> Value {
    json!({ "filter_metadata": { "envoy.lb": { LISTED_ONLY: "true" } } })
}

/// The `metadata_match` of a route whose requests may use the hosts of their list and then the requeue listener.
pub(super) fn listed_then_requeue() -> Value {
    json!({ "filter_metadata": { "envoy.lb": { LISTED_ONLY: THEN_REQUEUE } } })
}

/// The load balancing for requests without a list: round robin over the model servers. For a route that is [`listed_only`]
/// it finds no host, because the route's subset is empty; for one that is [`listed_then_requeue`] the requeue listener.
fn fallback() -> Value {
    json!({ "typed_extension_config": {
        "name": "envoy.load_balancing_policies.subset",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.subset.v3.Subset",
            "fallback_policy": "DEFAULT_SUBSET",
            "default_subset": { SERVER: "true" },
            "subset_selectors": [{ "keys": [LISTED_ONLY], "fallback_policy": "NO_FALLBACK" }],
            "subset_lb_policy": { "policies": [round_robin()] },
        },
    } })
}

/// The load balancing for requests without a list in a cluster of requests with one: none.
pub(crate) fn no_fallback() -> Value {
    json!({ "typed_extension_config": {
        "name": "envoy.load_balancing_policies.subset",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.subset.v3.Subset",
            "fallback_policy": "NO_FALLBACK",
            "subset_selectors": [{ "keys": [LISTED_ONLY] }],
            "subset_lb_policy": { "policies": [round_robin()] },
        },
    } })
}

/// The load balancing by the host that the first present header of `headers` names, and by `fallback` if there is none.
pub(crate) fn chosen_by(headers: &[&str], fallback: Value) -> Value {
    let sources: Vec<_> = headers.iter().map(|header| json!({ "header": header })).collect();
    json!({ "policies": [{ "typed_extension_config": {
        "name": "envoy.load_balancing_policies.override_host",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost",
            "override_host_sources": sources,
            "fallback_policy": { "policies": [fallback] },
        },
    } }] })
}

pub(crate) fn round_robin() -> Value {
    json!({ "typed_extension_config": {
        "name": "envoy.load_balancing_policies.round_robin",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin",
        },
    } })
}

pub(crate) fn host(address: Value) -> Value {
    json!({ "endpoint": { "address": address } })
}

fn server(address: Value) -> Value {
    let mut host = host(address);
    host["metadata"] = json!({ "filter_metadata": { "envoy.lb": { SERVER: "true" } } });
    host
}

/// The address of a host that [`server`] has made; `None`: it is another one.
pub(super) fn server_address(host: &Value) -> Option<SocketAddr> {
    host.pointer("/metadata/filter_metadata/envoy.lb")?;
    let address = &host["endpoint"]["address"]["socket_address"];
    let ip: IpAddr = address["address"].as_str()?.parse().ok()?;
    let port = u16::try_from(address["port_value"].as_u64()?).ok()?;
    Some(SocketAddr::new(ip, port))
}

pub(crate) fn assignment(cluster: &str, hosts: Vec<Value>) -> Value {
    json!({ "cluster_name": cluster, "endpoints": [{ "lb_endpoints": hosts }] })
}

/// The `cluster_type` of a cluster of all addresses of its names, in both families. The time to live of the answers doesn't count.
pub(crate) fn dns(refresh: Duration) -> Value {
    json!({
        "name": "envoy.clusters.dns",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.clusters.dns.v3.DnsCluster",
            "dns_refresh_rate": seconds(refresh),
            "respect_dns_ttl": false,
            "dns_lookup_family": "ALL",
        },
    })
}

pub(super) fn circuit_breakers() -> Value {
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
