//! The routes, which send a request by its pool header and its endpoint list.
//!
//! The filter sets both headers when a request is granted, after it has removed those of the client. The last route replies
//! to a request without a pool. The pool header is the name of the cluster, so the routes don't depend on the pools. This
//! matters because a stream keeps the routes of its arrival: with one route for each pool, a request that waits while its
//! pool is added would find no route.
//!
//! Envoy sends a granted request to the endpoints of its list, each once, in order, and to no other: a host beyond the list
//! could violate a bound, a pin or a subset. So the filter sets the number of retries, and the cluster offers no other host to
//! these routes. Only a request that passes through, with a pool and without a list, is spread round robin.
//!
//! The last entry of a list may be this Envoy's requeue listener ([`super::REQUEUE_HOST`]). For the router it is one more
//! host, reached by the same retries, to which the body is sent again. That list is in a separate header, which the cluster
//! removes, so that a server sees only servers in the header that it reads. The requeue token reaches no server either.

use penstock_wire::names::{ENDPOINT_HEADER, POOL_HEADER, REQUEUE_HEADER, ROUTE_HEADER, SERVED_HEADER};
use serde_json::{Value, json};

use super::{Settings, body_limit, clusters, local_replies, seconds};
use crate::limits;

pub(super) fn config(settings: &Settings) -> Value {
    let mut routes = granted(settings);
    routes.push(local_replies::no_pool());
    json!({
        "name": "penstock",
        "virtual_hosts": [{
            "name": "penstock",
            "domains": ["*"],
            "request_body_buffer_limit": body_limit(settings),
            "routes": routes,
        }],
    })
}

fn granted(settings: &Settings) -> Vec<Value> {
    let listed = |header: &str| {
        let mut route = route("listed", Some(header));
        route["route"]["metadata_match"] = clusters::listed_only();
        route
    };
    let mut requeued = listed(ROUTE_HEADER);
    // This stream is idle while the requeued request waits and then while its server is silent.
    requeued["route"]["idle_timeout"] = seconds(settings.stream_idle_timeout.saturating_mul(2)).into();
    let unlisted = route("ungated", None);
    vec![requeued, listed(ENDPOINT_HEADER), unlisted]
}

/// The filter sets in headers when and how often Envoy retries a request: while no model server has begun to respond. Repeating a
/// generation is safe, because it has no effect but work. Once Envoy has passed on response headers, it never retries.
fn route(name: &str, list: Option<&str>) -> Value {
    let headers: Vec<Value> = [Some(POOL_HEADER), list]
        .into_iter()
        .flatten()
        .map(|name| json!({ "name": name, "present_match": true }))
        .collect();
    json!({
        "name": name,
        "match": { "prefix": "/", "headers": headers },
        "route": {
            "cluster_header": POOL_HEADER,
            // A generation may take any time; stream_idle_timeout ends a stream that stalls.
            "timeout": "0s",
            "retry_policy": {
                "retry_back_off": {
                    "base_interval": seconds(limits::RETRY_PAUSE),
                    "max_interval": seconds(limits::RETRY_PAUSE * 10),
                },
            },
        },
        "request_headers_to_remove": [POOL_HEADER, REQUEUE_HEADER],
        // The host that responds, whatever the response has in this header. The filter reads it, and the client receives it.
        "response_headers_to_add": [{
            "header": { "key": SERVED_HEADER, "value": "%UPSTREAM_HOST%" },
            "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
        }],
    })
}
