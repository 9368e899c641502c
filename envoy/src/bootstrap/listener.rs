//! The gateway's listener: HTTP/1.1 and h2c on one port, the filter, then the router.

use serde_json::{Value, json};

use super::{Settings, body_limit, replies, routes, seconds, socket};
use crate::limits;

pub(super) fn gateway(settings: &Settings) -> Value {
    json!({
        "name": "penstock-gateway",
        "address": socket(settings.gateway),
        // What a paused stream may hold: routes, with limits of their own, come after the filter.
        "per_connection_buffer_limit_bytes": u32::try_from(body_limit(settings)).unwrap_or(u32::MAX),
        "tcp_backlog_size": limits::BACKLOG,
        "filter_chains": [{ "filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": manager(settings),
        }] }],
    })
}

fn manager(settings: &Settings) -> Value {
    json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.\
                  HttpConnectionManager",
        "stat_prefix": "penstock",
        "codec_type": "AUTO",
        "stream_idle_timeout": seconds(settings.stream_idle_timeout),
        "request_timeout": seconds(limits::REQUEST_TIMEOUT),
        "request_headers_timeout": seconds(limits::HEADERS_TIMEOUT),
        "use_remote_address": true,
        "generate_request_id": true,
        "preserve_external_request_id": true,
        "always_set_request_id_in_response": true,
        "server_header_transformation": "PASS_THROUGH",
        // Else `/v1%2Fchat/completions` would pass the filter ungated and be a completion to the server.
        "normalize_path": true,
        "merge_slashes": true,
        "path_with_escaped_slashes_action": "UNESCAPE_AND_FORWARD",
        "http_filters": [filter(settings), router()],
        "route_config": routes::config(settings),
        "local_reply_config": replies::config(),
    })
}

fn filter(settings: &Settings) -> Value {
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
                "vm_config": {
                    "vm_id": "penstock",
                    "runtime": "envoy.wasm.runtime.v8",
                    "code": { "local": { "filename": settings.filter } },
                },
                "configuration": {
                    "@type": "type.googleapis.com/google.protobuf.StringValue",
                    "value": settings.plugin.to_string(),
                },
            },
        },
    })
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
