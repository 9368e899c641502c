//! The listeners. Clients connect to the gateway listener, with HTTP/1.1 or h2c on one port. The requeue listener is
//! internal to Envoy, for requests that no server of their list accepted; an Envoy whose filter restarts streams has none. Both have
//! Penstock's filter and the router; the gateway listener has the user's further filters first.

use std::net::SocketAddr;
use std::path::Path;

use penstock_wire::names::REQUEUE_HEADER;
use serde_json::{Value, json};

use super::module::Plugin;
use super::{
    REPLACEMENT, REQUEUE_HOST, REQUEUE_LISTENER, REQUEUE_PROPERTY_STATE, REQUEUE_STATE, Settings, Upstream,
    access_log, body_limit, clusters, cors, decompression, local_replies, metadata, routes, seconds, socket,
};
use crate::config_source::config_source;
use crate::{certificate, limits};

/// The least window of HTTP/2.
const HTTP2_WINDOW_MIN: u32 = 65_535;
/// The window of a connection whose streams have small bodies: Envoy's default.
const HTTP2_CONNECTION_WINDOW_MIN: u32 = 24 << 20;
/// The largest window of HTTP/2, and the most streams.
const HTTP2_MAX: u32 = 0x7fff_ffff;

/// What distinguishes the filters of one Envoy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Envoy has a requeue listener.
    pub(crate) requeue: bool,
    /// The filter is in the requeue listener.
    pub(crate) reenters: bool,
    /// The routes requeue by themselves, and read the token from the filter's property.
    pub(crate) routes_requeue: bool,
}

/// The filter at a listener for clients. [`plugin`] leaves out what a filter that restarts streams doesn't need.
const ENTRY: Place = Place { requeue: true, reenters: false, routes_requeue: true };

pub(super) fn gateway(settings: &Settings) -> Value {
    let routes = routes::config(settings);
    let mut manager = manager(settings, "penstock", ENTRY, routes, REPLACEMENT);
    let entry = json!({
        "codec_type": "AUTO",
        "http_protocol_options": http1(),
        "http2_protocol_options": http2(settings),
        // Guards against slow requests. Neither counts the wait in the queue or the answer.
        "request_timeout": seconds(limits::REQUEST_TIMEOUT),
        "request_headers_timeout": seconds(limits::HEADERS_TIMEOUT),
        "use_remote_address": true,
        // Otherwise `/v1%2Fchat/completions` would pass the filter unqueued, and the server would accept it as a completion.
        "normalize_path": true,
        "merge_slashes": true,
        "path_with_escaped_slashes_action": "UNESCAPE_AND_FORWARD",
    });
    merge(&mut manager, entry);
    if let Some(file) = &settings.access_log {
        manager["access_log"] = access_log::config(file);
    }
    if let Some(Value::Array(filters)) = manager.get_mut("http_filters") {
        let cors = settings.cors.as_ref().map(|_| cors::filter());
        let further = settings.http_filters.iter().cloned();
        let before = cors.into_iter().chain(further).chain(metadata::copier(settings));
        filters.splice(..0, before.chain(decompression::switched_filters()));
    }
    let mut listener = listener(settings, "penstock-gateway", manager);
    listener["address"] = socket(settings.gateway);
    listener["tcp_backlog_size"] = limits::BACKLOG.into();
    listener["socket_options"] = keep_alive();
    if let (Some(file), Some(chain)) = (&settings.certificate, listener.pointer_mut("/filter_chains/0")) {
        chain["transport_socket"] = tls(file);
        chain["transport_socket_connect_timeout"] = seconds(limits::HANDSHAKE_TIMEOUT).into();
    }
    listener
}

/// HTTP/1.0 is what some probes and small clients speak. It needs no `host`, without which Envoy has to have one.
pub(crate) fn http1() -> Value {
    json!({ "accept_http_10": true, "default_host_for_http_10": "localhost" })
}

/// Envoy refuses a body that fills a stream's window while the stream waits in the queue, so the window is as large as a body may be.
pub(crate) fn http2(settings: &Settings) -> Value {
    let (stream, connection) = http2_windows(settings);
    json!({ "initial_stream_window_size": stream, "initial_connection_window_size": connection })
}

/// The windows of HTTP/2, of a stream and of a connection.
pub(crate) fn http2_windows(settings: &Settings) -> (u32, u32) {
    let body = u32::try_from(body_limit(settings)).unwrap_or(u32::MAX);
    (body.clamp(HTTP2_WINDOW_MIN, HTTP2_MAX), body.clamp(HTTP2_CONNECTION_WINDOW_MIN, HTTP2_MAX))
}

/// Socket options of a listener, which the connections of its clients inherit: the kernel probes a silent client, so that the request of a client
/// whose machine is gone ends. HTTP/2 pings wouldn't do: a client that is busy between two reads answers none.
pub(crate) fn keep_alive() -> Value {
    const SOL_SOCKET: u32 = 1;
    const SO_KEEPALIVE: u32 = 9;
    const IPPROTO_TCP: u32 = 6;
    const TCP_KEEPIDLE: u32 = 4;
    const TCP_KEEPINTVL: u32 = 5;
    const TCP_KEEPCNT: u32 = 6;
    [
        (SOL_SOCKET, SO_KEEPALIVE, 1),
        (IPPROTO_TCP, TCP_KEEPIDLE, limits::KEEPALIVE_AFTER_S),
        (IPPROTO_TCP, TCP_KEEPINTVL, limits::KEEPALIVE_INTERVAL_S),
        (IPPROTO_TCP, TCP_KEEPCNT, limits::KEEPALIVE_PROBES),
    ]
    .into_iter()
    .map(|(level, name, value)| json!({ "level": level, "name": name, "int_value": value, "state": "STATE_PREBIND" }))
    .collect()
}

/// The transport socket for clients, with the certificate of this file.
fn tls(file: &Path) -> Value {
    json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "common_tls_context": {
                "alpn_protocols": ["h2", "http/1.1"],
                "tls_params": { "tls_minimum_protocol_version": "TLSv1_2" },
                "tls_certificate_sds_secret_configs": [{
                    "name": certificate::NAME,
                    "sds_config": config_source(file),
                }],
            },
        },
    })
}

/// The requeue listener, which receives a request as the first listener has sent it. The path is normalized already, and
/// normalizing it again could change it; the request id is kept; and the client's address is the last one in
/// x-forwarded-for. For a client on loopback Envoy writes the machine's address there, so the filter takes the address from
/// the requeue token.
///
/// The first stream keeps its copy of the body until the response begins, so a request holds its body once for each pass.
/// This listener needs no guards against slow requests: the first stream has read the whole request.
///
/// `routes_requeue`: as in [`Place`].
pub(crate) fn requeue(settings: &Settings, routes: Value, routes_requeue: bool, replacement: &str) -> Value {
    let place = Place { reenters: true, routes_requeue, ..ENTRY };
    let mut manager = manager(settings, "penstock_requeue", place, routes, replacement);
    let (window, _) = http2_windows(settings);
    // A pool with HTTP/2 servers speaks HTTP/2 to this listener too. All requests of a worker share one connection then.
    let codec = json!({
        "codec_type": "AUTO",
        "use_remote_address": false,
        "http2_protocol_options": {
            "initial_stream_window_size": window,
            "initial_connection_window_size": HTTP2_MAX,
            "max_concurrent_streams": HTTP2_MAX,
        },
    });
    merge(&mut manager, codec);
    let mut listener = listener(settings, REQUEUE_LISTENER, manager);
    listener["internal_listener"] = json!({});
    listener
}

/// The listener to which a companion sends back the streams that it keeps alive. It is the requeue listener with a socket: its filter takes
/// requests with a token of this Envoy alone. The plugin is the same too, and so is its root context.
pub(super) fn kept_alive(settings: &Settings, address: SocketAddr) -> Value {
    let mut listener = requeue(settings, routes::config(settings), true, REPLACEMENT);
    if let Some(members) = listener.as_object_mut() {
        members.remove("internal_listener");
    }
    listener["name"] = "penstock-keep-alive".into();
    listener["address"] = socket(address);
    listener["tcp_backlog_size"] = limits::BACKLOG.into();
    // The client's connection has been counted, and its request accepted.
    listener["ignore_global_conn_limit"] = true.into();
    listener["bypass_overload_manager"] = true.into();
    listener
}

fn listener(settings: &Settings, name: &str, manager: Value) -> Value {
    json!({
        "name": name,
        // The limit of a waiting stream's body. A route's limit applies only after the filter.
        "per_connection_buffer_limit_bytes": u32::try_from(body_limit(settings)).unwrap_or(u32::MAX),
        "filter_chains": [{ "filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": manager,
        }] }],
    })
}

fn manager(settings: &Settings, stats: &str, place: Place, routes: Value, replacement: &str) -> Value {
    let plugin = plugin(settings, place);
    let keeper = (!place.routes_requeue && !settings.restarts()).then(token_keeper);
    let mut router = if settings.restarts() { plain_router() } else { router(&plugin) };
    if place.routes_requeue && !settings.restarts() {
        router["typed_config"]["upstream_http_filters"] =
            clusters::http_filters(&Upstream::default(), REQUEUE_PROPERTY_STATE);
    }
    let filters: Vec<Value> = std::iter::once(plugin.http_filter()).chain(keeper).chain([router]).collect();
    json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.\
                  HttpConnectionManager",
        "stat_prefix": stats,
        "max_request_headers_kb": limits::HEADERS_KIB_MAX,
        "common_http_protocol_options": { "max_headers_count": limits::HEADERS_MAX },
        // The default is five minutes.
        "stream_idle_timeout": seconds(limits::UNLIMITED),
        "generate_request_id": true,
        "preserve_external_request_id": true,
        "always_set_request_id_in_response": true,
        "server_header_transformation": "PASS_THROUGH",
        // The filter refuses a WebSocket, in the form that clients expect. Other upgrades are refused by Envoy, with an empty 403.
        "upgrade_configs": [{ "upgrade_type": "websocket" }],
        "http_filters": filters,
        "route_config": routes,
        "local_reply_config": local_replies::config(replacement),
    })
}

/// The filter's plugin in one listener.
pub(crate) fn plugin(settings: &Settings, place: Place) -> Plugin<'_> {
    let mut configuration = settings.plugin.clone();
    if settings.restarts() {
        merge(&mut configuration, json!({ "restarts": true }));
    } else {
        if place.requeue {
            merge(&mut configuration, json!({ "requeue": REQUEUE_HOST }));
        }
        merge(&mut configuration, json!({ "routes_tell": true, "attempts_logged": true }));
        if place.routes_requeue {
            merge(&mut configuration, json!({ "routes_requeue": true }));
        }
    }
    if place.reenters {
        merge(&mut configuration, json!({ "reenters": true }));
    } else if place.routes_requeue && settings.keep_alive.is_some() {
        merge(&mut configuration, json!({ "keeps_alive": true }));
    }
    Plugin { module: &settings.module, configuration }
}

/// Adds the members of the object `more` to the object `into`.
fn merge(into: &mut Value, more: Value) {
    if let (Value::Object(into), Value::Object(more)) = (into, more) {
        into.extend(more);
    }
}

/// Keeps the requeue token of a granted request in the stream's filter state. The route removes its header, and the pool's
/// cluster restores it only for the requeue listener, so that no server sees the token.
pub(crate) fn token_keeper() -> Value {
    json!({
        "name": "envoy.filters.http.set_filter_state",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.set_filter_state.v3.Config",
            "on_request_headers": [{
                "object_key": REQUEUE_STATE,
                "factory_key": "envoy.string",
                "format_string": { "text_format_source": { "inline_string": format!("%REQ({REQUEUE_HEADER})%") } },
                "skip_if_empty": true,
            }],
        },
    })
}

/// The router. It reports each attempt that a server answers with an error that may send the request elsewhere, and each whose connection
/// fails or is cut, to the filter: the access log
/// has the configuration of the filter's plugin, by which the module finds the filter. Other attempts cost nothing.
pub(crate) fn router(plugin: &Plugin<'_>) -> Value {
    let status = |code: u32| {
        json!({ "status_code_filter": { "comparison": {
            "op": "EQ",
            "value": { "default_value": code, "runtime_key": format!("penstock.refused.{code}") },
        } } })
    };
    let mut reported = limits::REFUSALS.map(status).to_vec();
    reported.push(status(limits::NOT_FOUND));
    // UF, an upstream connection failed: the filter asks whether that was for want of a socket. UC, UR: the server cut it. UT: it was
    // silent for too long.
    reported.push(json!({ "response_flag_filter": { "flags": ["UF", "UC", "UR", "UT"] } }));
    let mut log = plugin.access_log();
    merge(&mut log, json!({ "filter": { "or_filter": { "filters": reported } } }));
    let mut router = plain_router();
    router["typed_config"]["upstream_log"] = json!([log]);
    router
}

/// The router alone. The native filter that restarts streams sees each attempt's end itself.
pub(crate) fn plain_router() -> Value {
    json!({
        "name": "envoy.filters.http.router",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
            "suppress_envoy_headers": true,
        },
    })
}
