//! The two listeners: clients connect to the gateway's, HTTP/1.1 and h2c on one port; the other is inside Envoy, for
//! requests that no server of their list took. Both have the filter, then the router; where clients come, a user's own
//! filters stand before.

use serde_json::{Value, json};

use super::{REQUEUE_HOST, REQUEUE_LISTENER, Settings, body_limit, replies, routes, seconds, socket};
use crate::limits;

pub(super) fn gateway(settings: &Settings) -> Value {
    let mut manager = manager(settings, "penstock", json!({}));
    let entry = json!({
        "codec_type": "AUTO",
        "use_remote_address": true,
        // Else `/v1%2Fchat/completions` would pass the filter ungated and be a completion to the server.
        "normalize_path": true,
        "merge_slashes": true,
        "path_with_escaped_slashes_action": "UNESCAPE_AND_FORWARD",
    });
    merge(&mut manager, entry);
    if let Some(Value::Array(filters)) = manager.get_mut("http_filters") {
        filters.splice(..0, settings.http_filters.iter().cloned());
    }
    let mut listener = listener(settings, "penstock-gateway", manager);
    listener["address"] = socket(settings.gateway);
    listener["tcp_backlog_size"] = limits::BACKLOG.into();
    listener
}

/// Where a request enters again, by the last place of its list. What arrives is what the first listener sent: its path
/// has its one spelling already (another round could change it), its id is kept, and the client's address is the last
/// of x-forwarded-for. For a client on loopback Envoy writes its machine's address there, so the filter judges by
/// the address in its own token.
///
/// The first stream keeps its copy of the body until the answer begins, so a request holds its body once for each time it
/// entered; and it stands still while the second waits, which its route's `idle_timeout` allows for.
pub(super) fn requeue(settings: &Settings) -> Value {
    let mut manager = manager(settings, "penstock_requeue", json!({ "reenters": true }));
    merge(
        &mut manager,
        json!({ "codec_type": "HTTP1", "use_remote_address": false }),
    );
    let mut listener = listener(settings, REQUEUE_LISTENER, manager);
    listener["internal_listener"] = json!({});
    listener
}

fn listener(settings: &Settings, name: &str, manager: Value) -> Value {
    json!({
        "name": name,
        // What a paused stream may hold: routes, with limits of their own, come after the filter.
        "per_connection_buffer_limit_bytes": u32::try_from(body_limit(settings)).unwrap_or(u32::MAX),
        "filter_chains": [{ "filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": manager,
        }] }],
    })
}

fn manager(settings: &Settings, stats: &str, plugin: Value) -> Value {
    json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.\
                  HttpConnectionManager",
        "stat_prefix": stats,
        "stream_idle_timeout": seconds(settings.stream_idle_timeout),
        "request_timeout": seconds(limits::REQUEST_TIMEOUT),
        "request_headers_timeout": seconds(limits::HEADERS_TIMEOUT),
        "generate_request_id": true,
        "preserve_external_request_id": true,
        "always_set_request_id_in_response": true,
        "server_header_transformation": "PASS_THROUGH",
        "http_filters": [filter(settings, plugin), router()],
        "route_config": routes::config(settings),
        "local_reply_config": replies::config(),
    })
}

fn filter(settings: &Settings, plugin: Value) -> Value {
    let mut configuration = settings.plugin.clone();
    merge(
        &mut configuration,
        json!({ "requeue": REQUEUE_HOST, "routes_tell": true }),
    );
    merge(&mut configuration, plugin);
    json!({
        "name": "penstock",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
            "config": {
                "name": "penstock",
                "root_id": "penstock",
                "failure_policy": "FAIL_RELOAD",
                // Without it a paused stream hangs.
                "allow_on_headers_stop_iteration": true,
                // The same for both listeners: one VM a worker, with a root context for each configuration.
                "vm_config": {
                    "vm_id": "penstock",
                    "runtime": "envoy.wasm.runtime.v8",
                    "code": { "local": { "filename": settings.filter } },
                },
                "configuration": {
                    "@type": "type.googleapis.com/google.protobuf.StringValue",
                    "value": configuration.to_string(),
                },
            },
        },
    })
}

/// Adds the keys of `more`, both objects.
fn merge(into: &mut Value, more: Value) {
    if let (Value::Object(into), Value::Object(more)) = (into, more) {
        into.extend(more);
    }
}

fn router() -> Value {
    json!({
        "name": "envoy.filters.http.router",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
            "suppress_envoy_headers": true,
        },
    })
}
