//! The pools' model servers as backends of routes.

use serde_json::{Value, json};

use super::names::Names;
use super::{GATEWAY_API, Gateway, Pool, Servers, object, resource};

/// Endpoints of one `Backend`, by its schema.
const ENDPOINTS_MAX: usize = 64;

/// The resources of all pools' servers, and for each pool the `backendRefs` of a route rule. Envoy Gateway makes one cluster of the
/// backends of a rule.
pub(super) fn backends(
    gateway: &Gateway,
    pools: &[Pool],
    names: &mut Names,
) -> (Vec<Value>, Vec<Vec<Value>>) {
    let mut resources = Vec::new();
    let mut references = Vec::new();
    for pool in pools {
        let endpoints: Vec<Value> = match &pool.servers {
            Servers::Addresses(addresses) => addresses
                .iter()
                .map(|address| json!({ "ip": { "address": address.ip().to_string(), "port": address.port() } }))
                .collect(),
            Servers::Dns { name, port, .. } => vec![json!({ "fqdn": { "hostname": name, "port": port } })],
            Servers::Service { namespace, name, port } => {
                if *namespace != gateway.namespace {
                    resources.push(grant(gateway, namespace, name, names.next(&pool.name)));
                }
                references.push(vec![
                    json!({ "kind": "Service", "namespace": namespace, "name": name, "port": port }),
                ]);
                continue;
            }
        };
        let parts = endpoints.chunks(ENDPOINTS_MAX).map(|endpoints| (names.next(&pool.name), endpoints));
        let parts: Vec<_> = parts.collect();
        references.push(
            parts
                .iter()
                .map(|(name, endpoints)| {
                    // A part's share of the requests that pass through is its share of the servers.
                    json!({ "group": "gateway.envoyproxy.io", "kind": "Backend", "name": name, "weight": endpoints.len() })
                })
                .collect(),
        );
        let backends = parts.into_iter();
        resources.extend(backends.map(|(name, endpoints)| {
            let mut spec = json!({ "endpoints": endpoints });
            if pool.upstream.http2 {
                spec["appProtocols"] = json!(["gateway.envoyproxy.io/h2c"]);
            }
            resource(gateway, "Backend", &name, spec)
        }));
    }
    (resources, references)
}

/// Lets routes of the Gateway's namespace refer to a Service of another one.
fn grant(gateway: &Gateway, namespace: &str, service: &str, name: String) -> Value {
    object(
        &format!("{GATEWAY_API}/v1beta1"),
        "ReferenceGrant",
        namespace,
        &name,
        json!({
            "from": [{ "group": GATEWAY_API, "kind": "HTTPRoute", "namespace": gateway.namespace }],
            "to": [{ "group": "", "kind": "Service", "name": service }],
        }),
    )
}
