//! The resource for Istio: an `EnvoyFilter`. A `WasmPlugin` can't set `allow_on_headers_stop_iteration`, without which the filter can't
//! pause a request.
//!
//! A pool has two clusters with the same servers, as under Envoy Gateway: the one with the pool's name uses only the servers of a
//! request's list, and the other one is for requests that pass through.

use std::collections::BTreeSet;

use penstock_wire::names::ENDPOINT_HEADER;
use serde_json::{Value, json};

use super::{Gateway, Pool, REPLACEMENT, Servers, gateway_reference, names, object};
use crate::bootstrap::{self, Destination, Place, Settings, granted, plugin, router, seconds, socket};
use crate::limits;

const MANAGER: &str = "envoy.filters.network.http_connection_manager";
const MANAGER_TYPE: &str =
    "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
const ROUTER: &str = "envoy.filters.http.router";

/// The resource for Istio. It has no requeue listener. Of a listener only the port counts: Istio's configuration doesn't have the
/// name. Without ports the filter is in all listeners of the Gateway.
#[must_use]
pub fn istio(settings: &Settings, gateway: &Gateway, pools: &[Pool]) -> Value {
    let mut patches = vec![cluster_patch(bootstrap::companion_cluster(settings))];
    patches.extend(bootstrap::module_cluster(&settings.module).map(cluster_patch));
    for pool in pools {
        patches.extend(pool_clusters(pool).map(cluster_patch));
    }
    let ports: Vec<u16> = gateway.listeners.iter().filter_map(|listener| listener.port).collect();
    if ports.is_empty() {
        patches.extend(listener_patches(settings, None));
    }
    for port in ports {
        patches.extend(listener_patches(settings, Some(port)));
    }
    patches.extend(routes(pools));
    let spec = json!({ "targetRefs": [gateway_reference(gateway)], "configPatches": patches });
    object(
        "networking.istio.io/v1alpha3",
        "EnvoyFilter",
        &gateway.namespace,
        &names::first(&gateway.name),
        spec,
    )
}

fn cluster_patch(cluster: Value) -> Value {
    json!({
        "applyTo": "CLUSTER",
        "match": { "context": "GATEWAY" },
        "patch": { "operation": "ADD", "value": cluster },
    })
}

/// The cluster of requests that pass through. No pool's name has a `~`.
fn ungated(pool: &Pool) -> String {
    format!("{}~ungated", pool.name)
}

fn pool_clusters(pool: &Pool) -> [Value; 2] {
    let mut listed = cluster(pool, &pool.name);
    listed["load_balancing_policy"] = bootstrap::chosen_by(&[ENDPOINT_HEADER], bootstrap::no_fallback());
    let mut ungated = cluster(pool, &ungated(pool));
    ungated["load_balancing_policy"] = json!({ "policies": [bootstrap::round_robin()] });
    [listed, ungated]
}

fn cluster(pool: &Pool, name: &str) -> Value {
    let mut cluster = bootstrap::unbalanced(name, &pool.upstream);
    if let Some(tls) = &pool.upstream.tls {
        let addresses = match &pool.servers {
            Servers::Addresses(addresses) => addresses.iter().map(|address| address.ip()).collect(),
            Servers::Dns { .. } | Servers::Service { .. } => BTreeSet::new(),
        };
        cluster["transport_socket"] = bootstrap::transport_socket(tls, pool.upstream.http2, &addresses);
        cluster["connect_timeout"] = seconds(limits::CONNECT_TIMEOUT_TLS).into();
    }
    match &pool.servers {
        Servers::Addresses(addresses) => {
            let hosts = addresses.iter().map(|&address| bootstrap::host(socket(address)));
            cluster["type"] = "STATIC".into();
            cluster["load_assignment"] = bootstrap::assignment(name, hosts.collect());
        }
        Servers::Dns { name: host, port, refresh } => {
            let address = json!({ "socket_address": { "address": host, "port_value": port } });
            cluster["load_assignment"] = bootstrap::assignment(name, vec![bootstrap::host(address)]);
            cluster["cluster_type"] = bootstrap::dns(*refresh);
        }
        // The name under which Istio knows the endpoints of a Service's port.
        Servers::Service { namespace, name, port } => {
            cluster["type"] = "EDS".into();
            cluster["eds_cluster_config"] = json!({
                "service_name": format!("outbound|{port}||{name}.{namespace}.svc.cluster.local"),
                "eds_config": { "ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s" },
            });
        }
    }
    cluster
}

/// What the listener of this port, or each listener, gets.
fn listener_patches(settings: &Settings, port: Option<u16>) -> Vec<Value> {
    let place = Place { requeue: false, reenters: false, routes_requeue: false };
    let plugin = plugin(settings, place);
    let patch = |kind: &str, operation: &str, filter: Option<Value>, value: Value| {
        let mut listener = json!({});
        if let Some(port) = port {
            listener["portNumber"] = port.into();
        }
        if let Some(filter) = filter {
            listener["filterChain"] = json!({ "filter": filter });
        }
        json!({
            "applyTo": kind,
            "match": { "context": "GATEWAY", "listener": listener },
            "patch": { "operation": operation, "value": value },
        })
    };
    let in_manager = Some(json!({ "name": MANAGER }));
    let in_router = Some(json!({ "name": MANAGER, "subFilter": { "name": ROUTER } }));
    let mut patches = vec![
        patch(
            "LISTENER",
            "MERGE",
            None,
            json!({
                "per_connection_buffer_limit_bytes": u32::try_from(bootstrap::body_limit(settings)).unwrap_or(u32::MAX),
                "socket_options": bootstrap::keep_alive(),
            }),
        ),
        patch(
            "NETWORK_FILTER",
            "MERGE",
            in_manager,
            json!({ "name": MANAGER, "typed_config": manager(settings) }),
        ),
        patch("HTTP_FILTER", "MERGE", in_router.clone(), router(&plugin)),
    ];
    let filters = bootstrap::decompressors().chain([plugin.http_filter()]);
    patches.extend(filters.map(|filter| patch("HTTP_FILTER", "INSERT_BEFORE", in_router.clone(), filter)));
    patches
}

/// The values of the connection manager that differ from Istio's.
fn manager(settings: &Settings) -> Value {
    json!({
        "@type": MANAGER_TYPE,
        "stream_idle_timeout": seconds(limits::UNLIMITED),
        "request_timeout": seconds(limits::REQUEST_TIMEOUT),
        "request_headers_timeout": seconds(limits::HEADERS_TIMEOUT),
        "preserve_external_request_id": true,
        "always_set_request_id_in_response": true,
        "http_protocol_options": bootstrap::http1(),
        "http2_protocol_options": bootstrap::http2(settings),
        "normalize_path": true,
        "merge_slashes": true,
        "path_with_escaped_slashes_action": "UNESCAPE_AND_FORWARD",
        "local_reply_config": bootstrap::local_reply_config(REPLACEMENT),
    })
}

/// Adds the changes of the headers of requests to the pool's servers.
fn add_headers(route: &mut Value, pool: &Pool) {
    let (set, removed) = pool.headers();
    if let Some(names) = route["request_headers_to_remove"].as_array_mut() {
        names.extend(removed.into_iter().map(Value::from));
    }
    if !set.is_empty() {
        // A percent sign begins a command in Envoy's values.
        let header = |(name, value): &(String, String)| {
            json!({
                "header": { "key": name, "value": value.replace('%', "%%") },
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
            })
        };
        route["request_headers_to_add"] = set.iter().map(header).collect();
    }
}

/// The routes of the pools come first and the one without a pool last, in every virtual host. Istio inserts each of several routes
/// before those that it has inserted already, so they are in reverse order.
fn routes(pools: &[Pool]) -> Vec<Value> {
    let patch = |operation: &str, route: Value| {
        json!({
            "applyTo": "HTTP_ROUTE",
            "match": { "context": "GATEWAY" },
            "patch": { "operation": operation, "value": route },
        })
    };
    let mut patches = Vec::new();
    for pool in pools {
        let [_, listed, passing] =
            granted(Destination::Pool { pool: &pool.name, listed: &pool.name, ungated: &ungated(pool) });
        patches.extend([passing, listed].map(|mut route| {
            add_headers(&mut route, pool);
            patch("INSERT_FIRST", route)
        }));
    }
    patches.push(patch("ADD", bootstrap::no_pool()));
    patches
}
