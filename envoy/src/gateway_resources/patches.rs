//! What Envoy Gateway's resources can't say, as patches of the configuration that it makes for Envoy.
//!
//! A patch names a resource of that configuration. A listener has one of two names, by Envoy Gateway's naming scheme, and the policy has
//! the listener's patches under both. Envoy Gateway applies the patches whose resource exists and reports the others in the policy's status.

use serde_json::{Value, json};

use super::routes::{Clusters, Routes};
use super::{Gateway, Listener, Pool, REPLACEMENT, gateway_reference, names, resource};
use crate::bootstrap::{
    self, COMPANION_CLUSTER, Destination, MODULE_CLUSTER, Place, REQUEUE_LISTENER, Settings, Upstream,
    granted, plugin, requeue, router, token_keeper,
};

/// A type of Envoy's resources.
#[derive(Clone, Copy)]
enum Kind {
    Cluster,
    Endpoints,
    Listener,
}

impl Kind {
    const fn url(self) -> &'static str {
        match self {
            Self::Cluster => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            Self::Endpoints => "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            Self::Listener => "type.googleapis.com/envoy.config.listener.v3.Listener",
        }
    }
}

/// All patches.
pub(super) fn policy(settings: &Settings, gateway: &Gateway, pools: &[Pool], routes: &Routes) -> Value {
    let mut patches = vec![whole(Kind::Cluster, COMPANION_CLUSTER, bootstrap::companion_cluster(settings))];
    if let Some(cluster) = bootstrap::module_cluster(&settings.module) {
        patches.push(whole(Kind::Cluster, MODULE_CLUSTER, cluster));
    }
    for listener in &gateway.listeners {
        for name in xds_names(gateway, listener) {
            patches.extend(filters(settings, gateway, &name));
        }
    }
    for clusters in &routes.clusters {
        patches.extend(listed_cluster(gateway, &clusters.listed));
    }
    if gateway.requeue {
        let routes = requeue_routes(settings, pools, &routes.clusters);
        let listener = requeue(settings, routes, false, REPLACEMENT);
        patches.push(whole(Kind::Listener, REQUEUE_LISTENER, listener));
    }
    let spec = json!({
        "targetRef": gateway_reference(gateway),
        "type": "JSONPatch",
        "jsonPatches": patches,
    });
    resource(gateway, "EnvoyPatchPolicy", &names::first(&gateway.name), spec)
}

/// The names that a listener can have in Envoy's configuration: the Gateway and the listener, or protocol and port.
fn xds_names(gateway: &Gateway, listener: &Listener) -> Vec<String> {
    let Listener { name, port } = listener;
    let first = format!("{}/{}/{name}", gateway.namespace, gateway.name);
    let second = port.map(|port| format!("tcp-{port}"));
    std::iter::once(first).chain(second).collect()
}

/// Puts Penstock's filter directly before the router, so that a request that another filter rejects, for example because of its token,
/// never waits in a queue.
fn filters(settings: &Settings, gateway: &Gateway, listener: &str) -> Vec<Value> {
    const ROUTER: &str = r#"..http_filters[?(@.name=="envoy.filters.http.router")]"#;
    const MANAGER: &str =
        r#"..filters[?(@.name=="envoy.filters.network.http_connection_manager")].typed_config"#;
    let place = Place { requeue: gateway.requeue, reenters: false, routes_requeue: false };
    let plugin = plugin(settings, place);
    let part = |op: &str, json_path: &str, path: &str, value: Value| {
        patch(
            Kind::Listener,
            listener,
            json!({ "op": op, "jsonPath": json_path, "path": path, "value": value }),
        )
    };
    let last = |filter: Value| part("add", "..http_filters", "/-", filter);
    // A patch can't insert a filter before the last one of a list of unknown length, so it takes the place of Envoy Gateway's router,
    // and an equal router follows.
    let mut filters = bootstrap::decompressors().chain([plugin.http_filter()]);
    let mut patches: Vec<Value> =
        filters.next().map(|first| part("replace", ROUTER, "", first)).into_iter().collect();
    patches.extend(filters.map(last));
    if gateway.requeue {
        patches.push(last(token_keeper()));
    }
    patches.push(last(router(&plugin)));
    patches.push(part("add", MANAGER, "/always_set_request_id_in_response", true.into()));
    patches.push(part("add", MANAGER, "/local_reply_config", bootstrap::local_reply_config(REPLACEMENT)));
    patches
}

/// Sends requests with a list to no other server. With a requeue listener, this is one more host, which only a list can name: its
/// priority is lower than that of the servers.
fn listed_cluster(gateway: &Gateway, name: &str) -> Vec<Value> {
    let at_path = |kind: Kind, op: &str, path: &str, value: Value| {
        patch(kind, name, json!({ "op": op, "path": path, "value": value }))
    };
    let mut patches = vec![at_path(
        Kind::Cluster,
        "replace",
        "/load_balancing_policy/policies/0/typed_extension_config/typed_config/fallback_policy",
        json!({ "policies": [bootstrap::no_fallback()] }),
    )];
    if gateway.requeue {
        let options = format!("/typed_extension_protocol_options/{}/http_filters", bootstrap::HTTP_OPTIONS);
        let hosts = json!({ "priority": 1, "lb_endpoints": [bootstrap::requeue_host()] });
        patches.push(at_path(
            Kind::Cluster,
            "add",
            &options,
            bootstrap::http_filters(&Upstream::default(), bootstrap::REQUEUE_STATE),
        ));
        patches.push(at_path(Kind::Endpoints, "add", "/endpoints/-", hosts));
    }
    patches
}

/// The routes of the requeue listener. It is Penstock's own, so its routes name Envoy Gateway's clusters.
fn requeue_routes(settings: &Settings, pools: &[Pool], clusters: &[Clusters]) -> Value {
    let mut routes = Vec::new();
    for (pool, clusters) in pools.iter().zip(clusters) {
        let destination =
            Destination::Pool { pool: &pool.name, listed: &clusters.listed, ungated: &clusters.ungated };
        routes.extend(granted(destination));
    }
    routes.push(bootstrap::no_pool());
    bootstrap::route_configuration(settings, &routes)
}

/// Adds a resource.
fn whole(kind: Kind, name: &str, value: Value) -> Value {
    patch(kind, name, json!({ "op": "add", "path": "", "value": value }))
}

fn patch(kind: Kind, name: &str, operation: Value) -> Value {
    json!({ "type": kind.url(), "name": name, "operation": operation })
}

/// Internal listeners, which the requeue listener needs, in Envoy's bootstrap.
pub(super) fn proxy(gateway: &Gateway) -> Value {
    let bootstrap = json!({ "bootstrap_extensions": [bootstrap::internal_listeners()] });
    let spec = json!({ "bootstrap": { "type": "Merge", "value": bootstrap.to_string() } });
    resource(gateway, "EnvoyProxy", &names::first(&gateway.name), spec)
}
