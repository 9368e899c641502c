//! Generates the resources that put Penstock into the Envoys of a Kubernetes Gateway, for Envoy Gateway and for Istio.
//!
//! The bootstrap of [`crate::bootstrap`] is for an Envoy of Penstock's own. A gateway's control plane writes the configuration of its
//! Envoys itself. These resources make it write an equivalent one, with the same filter, the same response where there is no pool, and
//! the same clusters of the companions. [`envoy_gateway`] uses the resources of the Gateway API and of Envoy Gateway as far as these have
//! the settings, and one `EnvoyPatchPolicy` for the rest. [`istio()`] needs an `EnvoyFilter` for everything.
//!
//! Nothing here runs Envoy or reads a cluster.

mod backends;
mod istio;
mod names;
mod native;
mod patches;
mod policies;
mod routes;

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};

pub use self::istio::istio;
use crate::bootstrap::{Settings, Upstream};

/// What an operator does when a gateway's configuration is older than the companion's.
const REPLACEMENT: &str = "Apply the output of `penstock gateway-resources` again.";

/// A Gateway, the resource of the Gateway API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// The Gateway's namespace, which is also that of the resources.
    pub namespace: String,
    /// The Gateway's name.
    pub name: String,
    /// The Gateway's listeners that get the filter.
    pub listeners: Vec<Listener>,
    /// A request that no server of its list accepted is queued again: adds an internal listener to Envoy.
    pub requeue: bool,
}

/// A listener of a Gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The listener's name.
    pub name: String,
    /// The listener's port, which names it under Envoy Gateway's newer naming scheme. `None`: unknown.
    pub port: Option<u16>,
}

/// A pool, and how the gateway finds its model servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// The pool's name, which is the value of the pool header.
    pub name: String,
    /// The pool's model servers.
    pub servers: Servers,
    /// The way to the servers.
    pub upstream: Upstream,
}

impl Pool {
    /// The headers that requests to the servers get, and those that they lose.
    fn headers(&self) -> (&[(String, String)], Vec<&str>) {
        let Upstream { headers, removed_headers, .. } = &self.upstream;
        let removed = removed_headers.iter().filter(|name| headers.iter().all(|(set, _)| set != *name));
        (headers, removed.map(String::as_str).collect())
    }
}

/// How a gateway finds model servers. It must find every server that the companion finds, because Envoy sends a request only to a
/// server that it knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Servers {
    /// Servers at these addresses.
    Addresses(Vec<SocketAddr>),
    /// All addresses of a DNS name.
    Dns {
        /// The name.
        name: String,
        /// The port of every server.
        port: u16,
        /// The time between two lookups.
        refresh: Duration,
    },
    /// The endpoints of a Service.
    Service {
        /// The Service's namespace.
        namespace: String,
        /// The Service's name.
        name: String,
        /// One of its ports, by number.
        port: u16,
    },
}

/// The resources for Envoy Gateway, in the order in which they refer to each other. With a native module they are all kinds of the Gateway API
/// and of Envoy Gateway; WebAssembly needs an `EnvoyPatchPolicy`, as Envoy Gateway lacks a setting of it. Of `settings`, the addresses, the pools, the
/// folder and the limits of Envoy's process aren't used: these are the gateway's own.
#[must_use]
pub fn envoy_gateway(settings: &Settings, gateway: &Gateway, pools: &[Pool]) -> Vec<Value> {
    let mut names = names::Names::new(&gateway.name);
    let (backends, references) = backends::backends(gateway, pools, &mut names);
    let routes = routes::Routes::new(settings, gateway, pools, &references, &mut names);
    let mut resources = routes.resources.clone();
    resources.push(routes::no_pool(gateway));
    resources.extend(backends);
    resources.push(policies::backend_traffic(settings, gateway, pools, &routes));
    resources.push(policies::client_traffic(settings, gateway));
    if settings.module.is_native() {
        resources.push(native::extension(settings, gateway, &routes));
        resources.push(native::proxy(settings, gateway));
        return resources;
    }
    resources.push(patches::policy(settings, gateway, pools, &routes));
    if gateway.requeue {
        resources.push(patches::proxy(gateway));
    }
    resources
}

/// A resource of Envoy Gateway.
fn resource(gateway: &Gateway, kind: &str, name: &str, spec: Value) -> Value {
    object("gateway.envoyproxy.io/v1alpha1", kind, &gateway.namespace, name, spec)
}

fn object(api_version: &str, kind: &str, namespace: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": api_version,
        "kind": kind,
        "metadata": { "name": name, "namespace": namespace },
        "spec": spec,
    })
}

/// The reference of a policy to the Gateway.
fn gateway_reference(gateway: &Gateway) -> Value {
    json!({ "group": GATEWAY_API, "kind": "Gateway", "name": gateway.name })
}

const GATEWAY_API: &str = "gateway.networking.k8s.io";

#[cfg(test)]
mod tests;
