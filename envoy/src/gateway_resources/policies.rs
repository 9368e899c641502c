//! Timeouts, limits and load balancing as policies of Envoy Gateway.

use std::time::Duration;

use penstock_wire::names::{ENDPOINT_HEADER, ROUTE_HEADER};
use serde_json::{Value, json};

use super::routes::Routes;
use super::{GATEWAY_API, Gateway, Pool, Servers, gateway_reference, names, resource};
use crate::bootstrap::{Settings, body_limit, http2_windows};
use crate::limits;

/// Bytes that a connection to a model server buffers: Envoy's default. Envoy Gateway's is 32 KiB.
const UPSTREAM_BUFFER: &str = "1Mi";

/// The clusters and routes of the pools. Retries aren't here, because the filter requests them by headers.
pub(super) fn backend_traffic(
    settings: &Settings,
    gateway: &Gateway,
    pools: &[Pool],
    routes: &Routes,
) -> Value {
    let is_native = settings.module.is_native();
    let lists = [ROUTE_HEADER, ENDPOINT_HEADER].into_iter().skip(usize::from(is_native));
    let targets = routes.names.iter();
    let targets = targets.map(|name| json!({ "group": GATEWAY_API, "kind": "HTTPRoute", "name": name }));
    let mut spec = json!({
        "targetRefs": targets.collect::<Vec<_>>(),
        "loadBalancer": {
            "type": "RoundRobin",
            "endpointOverride": { "extractFrom": lists.map(|header| json!({ "header": header })).collect::<Vec<_>>() },
        },
        "timeout": {
            "tcp": { "connectTimeout": duration(limits::CONNECT_TIMEOUT) },
            "http": {
                // A generation may take any time.
                "requestTimeout": duration(limits::UNLIMITED),
                "streamIdleTimeout": duration(limits::UNLIMITED),
                "connectionIdleTimeout": duration(limits::UPSTREAM_IDLE_TIMEOUT),
            },
        },
        "connection": { "bufferLimit": UPSTREAM_BUFFER },
        "tcpKeepalive": tcp_keep_alive(),
        "circuitBreaker": {
            "maxConnections": limits::CIRCUIT_BREAKER,
            "maxPendingRequests": limits::CIRCUIT_BREAKER,
            "maxParallelRequests": limits::CIRCUIT_BREAKER,
            "maxParallelRetries": limits::CIRCUIT_BREAKER,
        },
    });
    let lookups = pools.iter().filter_map(|pool| match &pool.servers {
        Servers::Dns { refresh, .. } => Some(*refresh),
        Servers::Addresses(_) | Servers::Service { .. } => None,
    });
    if let Some(refresh) = lookups.min() {
        spec["dns"] = json!({
            "dnsRefreshRate": duration(refresh),
            "respectDnsTtl": false,
            "lookupFamily": "IPv4AndIPv6",
        });
    }
    if is_native {
        // An Envoy that might retry keeps the body, which a restarted stream needs. No model server sends this gRPC status.
        spec["retry"] = json!({ "numRetries": 1, "retryOn": { "triggers": ["cancelled"] } });
    }
    resource(gateway, "BackendTrafficPolicy", &names::first(&gateway.name), spec)
}

/// The listeners, as clients see them.
pub(super) fn client_traffic(settings: &Settings, gateway: &Gateway) -> Value {
    let (stream_window, connection_window) = http2_windows(settings);
    let mut spec = json!({
        "targetRefs": [gateway_reference(gateway)],
        // The limit of a waiting stream's body.
        "connection": { "bufferLimit": body_limit(settings).to_string() },
        "headers": { "requestID": "PreserveOrGenerate" },
        "http1": { "http10": {} },
        "http2": {
            "initialStreamWindowSize": stream_window.to_string(),
            "initialConnectionWindowSize": connection_window.to_string(),
        },
        // Otherwise `/v1%2Fchat/completions` would pass the filter unqueued, and the server would accept it as a completion.
        "path": { "escapedSlashesAction": "UnescapeAndForward" },
        "timeout": { "http": {
            "requestReceivedTimeout": duration(limits::REQUEST_TIMEOUT),
            "requestHeadersReceivedTimeout": duration(limits::HEADERS_TIMEOUT),
            "streamIdleTimeout": duration(limits::UNLIMITED),
        } },
        "tcpKeepalive": tcp_keep_alive(),
    });
    if settings.module.is_native() {
        // By WebAssembly's patches, Envoy does so itself.
        spec["headers"]["lateResponseHeaders"] =
            json!({ "set": [{ "name": "x-request-id", "value": "%REQ(X-REQUEST-ID)%" }] });
    }
    resource(gateway, "ClientTrafficPolicy", &names::first(&gateway.name), spec)
}

fn tcp_keep_alive() -> Value {
    json!({
        "probes": limits::KEEPALIVE_PROBES,
        "idleTime": duration(Duration::from_secs(limits::KEEPALIVE_AFTER_S.into())),
        "interval": duration(Duration::from_secs(limits::KEEPALIVE_INTERVAL_S.into())),
    })
}

/// A duration in the notation of the Gateway API (GEP-2257), to the millisecond: `1h2m3s4ms`.
fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let parts = [
        ((seconds / 3600).min(99_999), "h"),
        (seconds / 60 % 60, "m"),
        (seconds % 60, "s"),
        (duration.subsec_millis().into(), "ms"),
    ];
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    let text: String = parts.map(|(count, unit)| format!("{count}{unit}")).collect();
    if text.is_empty() { "0s".into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_the_gateway_api() {
        for (millis, text) in [
            (0, "0s"),
            (155_500, "2m35s500ms"),
            (4_000, "4s"),
            (7_200_000, "2h"),
            (900_000, "15m"),
            (360_000_000_000, "99999h"),
        ] {
            assert_eq!(duration(Duration::from_millis(millis)), text);
        }
    }
}
