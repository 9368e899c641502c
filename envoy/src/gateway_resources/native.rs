//! The filter as native code, in Envoy Gateway's own resources.

use serde_json::{Value, json};

use super::routes::Routes;
use super::{GATEWAY_API, Gateway, names, resource};
use crate::bootstrap::{self, Place, Settings, Source, plugin};

/// A listener for clients, in an Envoy whose filter restarts streams.
const PLACE: Place = Place { requeue: false, reenters: false, routes_requeue: false };

/// Puts the filter on the routes. Envoy Gateway runs it after its own filters that may reject a request, so that such a request never waits.
pub(super) fn extension(settings: &Settings, gateway: &Gateway, routes: &Routes) -> Value {
    let targets = routes.names.iter();
    let targets = targets.map(|name| json!({ "group": GATEWAY_API, "kind": "HTTPRoute", "name": name }));
    let spec = json!({
        "targetRefs": targets.collect::<Vec<_>>(),
        "dynamicModule": [{
            "name": bootstrap::PLUGIN,
            "filterName": bootstrap::PLUGIN,
            "config": plugin(settings, PLACE).keys(),
        }],
    });
    resource(gateway, "EnvoyExtensionPolicy", &names::first(&gateway.name), spec)
}

/// The module, and the cluster of the companions in Envoy's bootstrap.
pub(super) fn proxy(settings: &Settings, gateway: &Gateway) -> Value {
    let source = match &settings.module.source {
        Source::Server(module) => json!({
            "type": "Remote",
            "remote": { "url": bootstrap::module_url(module), "sha256": module.sha256 },
        }),
        Source::File(path) => json!({ "type": "Local", "local": { "path": path } }),
    };
    let clusters = json!({ "static_resources": { "clusters": [bootstrap::companion_cluster(settings)] } });
    let spec = json!({
        "bootstrap": { "type": "Merge", "value": clusters.to_string() },
        "dynamicModules": [{ "name": bootstrap::PLUGIN, "source": source, "doNotClose": true }],
    });
    resource(gateway, "EnvoyProxy", &names::first(&gateway.name), spec)
}
