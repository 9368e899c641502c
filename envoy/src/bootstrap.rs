//! The Envoy bootstrap: one listener with Penstock's filter, one cluster a pool, one for the companion.
//!
//! [`Settings`] in, a JSON document out, printed as YAML for people. The document is built from values, never
//! from text, so that no name of a pool can change its shape.
//!
//! What it promises:
//! - Nothing reaches a model server without the filter's decision: the routes match on a header that only the
//!   filter sets, and the last one answers 503.
//! - A path means the same to the filter and to the server: Envoy normalises it before either sees it.
//! - Envoy's own limits lie outside the filter's, so that the filter's answer comes first.
//!
//! It refuses nothing: settings are typed, and `envoy --mode validate` ([`crate::run::validate`]) has the last word.

mod clusters;
mod listener;
mod replies;
mod routes;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use serde_json::{Value, json};

use crate::limits;

/// The name of the companion's cluster, which the plugin configuration must name.
pub const COMPANION_CLUSTER: &str = "penstock_companion";

/// What differs from one gateway to another.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Names this Envoy in logs and in the companion's status.
    pub node: String,
    /// Where clients connect.
    pub gateway: SocketAddr,
    /// Envoy's admin interface. It has no authentication: loopback, unless something else protects it.
    pub admin: SocketAddr,
    /// The companion's gRPC side.
    pub companion: Address,
    /// In the order of the policy.
    pub pools: Vec<Pool>,
    /// The filter's limit on a request's body, in bytes; Envoy's is set above it.
    pub body_bytes_max: u64,
    /// Ends a stream on which nothing moves, the paused ones too: above the longest wait in any queue.
    pub stream_idle_timeout: Duration,
    /// The heap at which Envoy begins to refuse, in bytes.
    pub heap_bytes_max: u64,
    /// Connections of clients at a time.
    pub connections_max: u64,
    /// The wasm module, a path as Envoy will see it.
    pub filter: PathBuf,
    /// The filter's configuration, handed over as JSON text.
    pub plugin: Value,
}

/// A pool and where its model servers are.
#[derive(Clone, Debug)]
pub struct Pool {
    /// The value of the pool's header.
    pub name: String,
    /// All that may ever be granted; an address that isn't here is skipped by Envoy.
    pub endpoints: Vec<SocketAddr>,
}

/// Where the companion listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// TCP.
    Tcp(SocketAddr),
    /// A unix socket's path.
    Unix(PathBuf),
}

/// How long a stream may stand still: `wait_max`, the longest `max(ttl, no_endpoint_ttl)` of any pool, then
/// `hold`, the longest time it waits for an absent companion, then a minute of grace.
pub fn stream_idle_timeout(wait_max: Duration, hold: Duration) -> Duration {
    wait_max
        .saturating_add(hold)
        .saturating_add(Duration::from_secs(60))
}

/// The bootstrap as Envoy's JSON.
pub fn document(settings: &Settings) -> Value {
    let mut clusters: Vec<Value> = settings.pools.iter().map(clusters::pool).collect();
    clusters.push(clusters::companion(&settings.companion));
    json!({
        "node": { "id": settings.node, "cluster": "penstock" },
        "admin": { "address": socket(settings.admin) },
        "static_resources": {
            "listeners": [listener::gateway(settings)],
            "clusters": clusters,
        },
        "overload_manager": overload(settings),
    })
}

/// The bootstrap as YAML, with `note` (any number of lines) as a comment on top.
///
/// # Errors
/// When the document has no YAML form, which no settings lead to.
pub fn yaml(settings: &Settings, note: &str) -> Result<String, Error> {
    let mut text = String::new();
    for line in note.lines() {
        text.push_str(format!("# {line}").trim_end());
        text.push('\n');
    }
    // Quoted, not folded: a long string stays one line, and byte for byte what it was.
    let mut options = serde_saphyr::SerializerOptions::default();
    options.prefer_block_scalars = false;
    text.push_str(&serde_saphyr::to_string_with_options(
        &document(settings),
        options,
    )?);
    Ok(text)
}

/// A bootstrap couldn't be written down.
#[derive(Debug, thiserror::Error)]
#[error("the Envoy bootstrap can't be written as YAML: {0}")]
pub struct Error(#[from] serde_saphyr::SerializeError);

/// Paused bodies live in Envoy's heap, so the heap has a limit; gentle measures come first.
fn overload(settings: &Settings) -> Value {
    let heap = "envoy.resource_monitors.fixed_heap";
    let action = |name: &str, above: f64| {
        json!({
            "name": format!("envoy.overload_actions.{name}"),
            "triggers": [{ "name": heap, "threshold": { "value": above } }],
        })
    };
    json!({
        "refresh_interval": "0.25s",
        "resource_monitors": [
            {
                "name": heap,
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig",
                    "max_heap_size_bytes": settings.heap_bytes_max,
                },
            },
            {
                "name": "envoy.resource_monitors.global_downstream_max_connections",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.resource_monitors.\
                              downstream_connections.v3.DownstreamConnectionsConfig",
                    "max_active_downstream_connections": settings.connections_max,
                },
            },
        ],
        "actions": [
            action("shrink_heap", limits::HEAP_SHRINK),
            action("disable_http_keepalive", limits::HEAP_KEEPALIVE_OFF),
            action("stop_accepting_requests", limits::HEAP_REFUSE),
        ],
    })
}

fn socket(address: SocketAddr) -> Value {
    json!({ "socket_address": { "address": address.ip().to_string(), "port_value": address.port() } })
}

/// Envoy's notation: decimal seconds with an `s`.
fn seconds(duration: Duration) -> String {
    format!("{}s", duration.as_secs_f64())
}
