//! The routes of the pools as `HTTPRoute`s.
//!
//! A pool has two rules, and so two clusters with the same servers. Requests with an endpoint list go to the first, which uses only the
//! servers of the list. Requests without one, which pass through, go to the second, round robin. The last rule replies 503 to a request
//! on which the filter hasn't decided: without it, a filter that isn't in force would let every request through.

use penstock_wire::names::{ENDPOINT_HEADER, POOL_HEADER, REQUEUE_HEADER, SERVED_HEADER};
use serde_json::{Value, json};

use super::names::Names;
use super::{GATEWAY_API, Gateway, Pool, REPLACEMENT, names, object, resource};
use crate::bootstrap::{self, Settings};

/// Pools of one `HTTPRoute`, which by its schema has at most 16 rules.
const POOLS_MAX: usize = 7;

/// The clusters that Envoy Gateway makes for one pool.
#[derive(Clone, Debug)]
pub(super) struct Clusters {
    /// The cluster of requests with a list.
    pub(super) listed: String,
    /// The cluster of requests that pass through.
    pub(super) ungated: String,
}

/// The routes of all pools.
pub(super) struct Routes {
    pub(super) resources: Vec<Value>,
    /// The names of the `HTTPRoute`s.
    pub(super) names: Vec<String>,
    /// In the order of the pools.
    pub(super) clusters: Vec<Clusters>,
}

impl Routes {
    /// `references`: the `backendRefs` of each pool.
    pub(super) fn new(
        settings: &Settings,
        gateway: &Gateway,
        pools: &[Pool],
        references: &[Vec<Value>],
        names: &mut Names,
    ) -> Self {
        let mut routes = Self { resources: Vec::new(), names: Vec::new(), clusters: Vec::new() };
        for (pools, references) in pools.chunks(POOLS_MAX).zip(references.chunks(POOLS_MAX)) {
            routes.add(settings, gateway, pools, references, names.next("pools"));
        }
        routes
    }

    fn add(
        &mut self,
        settings: &Settings,
        gateway: &Gateway,
        pools: &[Pool],
        references: &[Vec<Value>],
        name: String,
    ) {
        let mut rules = Vec::new();
        for (pool, references) in pools.iter().zip(references) {
            let cluster = |rule: usize| format!("httproute/{}/{name}/rule/{rule}", gateway.namespace);
            self.clusters.push(Clusters { listed: cluster(rules.len()), ungated: cluster(rules.len() + 1) });
            let header = json!({ "name": POOL_HEADER, "value": pool.name });
            let list = json!({ "type": "RegularExpression", "name": ENDPOINT_HEADER, "value": ".+" });
            rules.push(rule(settings, &[header.clone(), list], references, pool));
            rules.push(rule(settings, &[header], references, pool));
        }
        rules.push(json!({
            "matches": [{ "path": { "type": "PathPrefix", "value": "/" } }],
            "filters": [{ "type": "ExtensionRef", "extensionRef": {
                "group": "gateway.envoyproxy.io",
                "kind": "HTTPRouteFilter",
                "name": names::first(&gateway.name),
            } }],
        }));
        self.resources.push(object(
            &format!("{GATEWAY_API}/v1"),
            "HTTPRoute",
            &gateway.namespace,
            &name,
            json!({
                // Of all listeners: one that doesn't get the filter replies 503.
                "parentRefs": [{ "name": gateway.name }],
                "rules": rules,
            }),
        ));
        self.names.push(name);
    }
}

fn rule(settings: &Settings, headers: &[Value], references: &[Value], pool: &Pool) -> Value {
    let (set, removed) = pool.headers();
    let removed: Vec<&str> = [POOL_HEADER, REQUEUE_HEADER].into_iter().chain(removed).collect();
    let mut modifier = json!({ "remove": removed });
    if !set.is_empty() {
        modifier["set"] = set.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
    }
    let mut filters = vec![json!({ "type": "RequestHeaderModifier", "requestHeaderModifier": modifier })];
    // The native filter names the server itself.
    if !settings.module.is_native() {
        filters.push(json!({ "type": "ResponseHeaderModifier", "responseHeaderModifier": {
            "set": [{ "name": SERVED_HEADER, "value": "%UPSTREAM_HOST%" }],
        } }));
    }
    json!({
        "matches": [{ "path": { "type": "PathPrefix", "value": "/" }, "headers": headers }],
        "filters": filters,
        "backendRefs": references,
    })
}

/// The response of the last rule.
pub(super) fn no_pool(gateway: &Gateway) -> Value {
    let spec = json!({ "directResponse": {
        "statusCode": 503,
        "contentType": "application/json",
        "body": { "type": "Inline", "inline": bootstrap::no_pool_body(REPLACEMENT) },
        "header": { "set": [{ "name": "retry-after", "value": "1" }] },
    } });
    resource(gateway, "HTTPRouteFilter", &names::first(&gateway.name), spec)
}
