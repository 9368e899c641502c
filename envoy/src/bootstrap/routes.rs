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
//! A request that no server of its list accepted may go to this Envoy's requeue listener ([`super::REQUEUE_HOST`]). For the
//! router it is one more host, reached by the same retries, to which the body is sent again. The requeue token reaches no server.
//!
//! Almost every grant names one server, may be requeued, and belongs to a pool with the default of `queue.requeue_on`. These take
//! the route `routed`: it has the conditions of the retry itself, and its host after the list is the requeue listener. Each header
//! that says so instead costs 8,000 instructions. For other grants the filter sets those headers, and a list that ends with the
//! requeue listener: in a header of its own, which the cluster removes, so that a server sees only servers in the header that it reads.
//!
//! Where the filter restarts streams ([`Settings::restarts`]), there is neither that listener nor that route.

use penstock_wire::names::{
    ENDPOINT_HEADER, KEEP_ALIVE_HEADER, POOL_HEADER, REQUEUE_HEADER, REQUEUE_PROPERTY_PREFIX, ROUTE_HEADER,
    SERVED_HEADER,
};
use serde_json::{Value, json};

use super::{
    COMPANION_CLUSTER, REQUEUE_PROPERTY_STATE, Settings, body_limit, clusters, cors, decompression, seconds,
};
use crate::limits;

/// How often another companion is tried for a stream that one should keep alive.
const KEEP_ALIVE_RETRIES: u32 = 3;

pub(super) fn config(settings: &Settings) -> Value {
    if settings.restarts() {
        return restarting(settings);
    }
    let [mut requeued, mut listed, ungated] = granted(Destination::AnyPool);
    for route in [&mut requeued, &mut listed] {
        route["route"]["metadata_match"] = clusters::listed_only();
    }
    let kept_alive = settings.keep_alive.map(|_| kept_alive());
    let granted = [requeued, routed(), listed, ungated, no_pool()];
    let routes = [compressed()].into_iter().chain(kept_alive).chain(granted);
    configuration(settings, &routes.collect::<Vec<_>>())
}

/// The routes where the native filter restarts the streams of requests that are requeued. It names the server of each response itself.
fn restarting(settings: &Settings) -> Value {
    let [_, mut listed, mut ungated] = granted(Destination::AnyPool);
    listed["route"]["metadata_match"] = clusters::listed_only();
    // A router that might follow a redirect keeps the body, which the new stream needs. It follows none. To keep the body by a condition for
    // retries costs 4,000 instructions more.
    listed["route"]["internal_redirect_policy"] = json!({ "max_internal_redirects": 0 });
    for route in [&mut listed, &mut ungated] {
        route["request_headers_to_remove"] = json!([POOL_HEADER]);
        if let Some(members) = route.as_object_mut() {
            members.remove("response_headers_to_add");
        }
    }
    let kept_alive = settings.keep_alive.map(|_| kept_alive());
    let granted = [listed, ungated, no_pool()];
    let routes = [compressed()].into_iter().chain(kept_alive).chain(granted);
    configuration(settings, &routes.collect::<Vec<_>>())
}

/// The route of a request with a compressed body when it arrives.
fn compressed() -> Value {
    let mut route = no_pool();
    decompression::switch_on(&mut route);
    route
}

/// The route of requests with one server, which are requeued after any failure that may count in `queue.requeue_on`. The filter has
/// set their token as a property.
fn routed() -> Value {
    let mut routed = route("routed", Some(ENDPOINT_HEADER), Destination::AnyPool);
    routed["match"]["filter_state"] = json!([{
        "key": REQUEUE_PROPERTY_STATE,
        "string_match": { "prefix": REQUEUE_PROPERTY_PREFIX },
    }]);
    let action = &mut routed["route"];
    action["metadata_match"] = clusters::listed_then_requeue();
    let policy = &mut action["retry_policy"];
    policy["retry_on"] = "connect-failure,refused-stream,reset,retriable-status-codes".into();
    policy["retriable_status_codes"] = json!(limits::REFUSALS);
    policy["num_retries"] = 1.into();
    // The token is in the filter state, so there is no header of it to remove.
    routed["request_headers_to_remove"] = json!([POOL_HEADER]);
    routed
}

/// The route of streams that a companion keeps alive. Any companion can. The token goes with the request, which comes back.
fn kept_alive() -> Value {
    json!({
        "name": "kept-alive",
        "match": { "prefix": "/", "headers": [{ "name": KEEP_ALIVE_HEADER, "present_match": true }] },
        "route": {
            "cluster": COMPANION_CLUSTER,
            "timeout": seconds(limits::UNLIMITED),
            "retry_policy": { "retry_on": "connect-failure,refused-stream", "num_retries": KEEP_ALIVE_RETRIES },
        },
    })
}

/// The last route, of requests on which the filter hasn't decided: no cluster has an empty name, so Envoy replies 503. Requests
/// have this route or [`compressed`] when they arrive, and Envoy's filter for pages of other origins works only on a route to a cluster.
pub(crate) fn no_pool() -> Value {
    json!({
        "name": "no-pool",
        "match": { "prefix": "/" },
        "route": { "cluster_header": POOL_HEADER, "timeout": seconds(limits::UNLIMITED) },
    })
}

/// The route configuration with these routes.
pub(crate) fn configuration(settings: &Settings, routes: &[Value]) -> Value {
    let mut host = json!({
        "name": "penstock",
        "domains": ["*"],
        "request_body_buffer_limit": body_limit(settings),
        "routes": routes,
    });
    if let Some(cors) = &settings.cors {
        cors::apply(cors, &mut host);
    }
    json!({ "name": "penstock", "virtual_hosts": [host] })
}

/// Where routes send requests.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Destination<'a> {
    /// To the cluster with the name of their pool.
    AnyPool,
    /// To clusters of any name, requests of one pool.
    Pool {
        /// The pool's name.
        pool: &'a str,
        /// The cluster of requests with a list.
        listed: &'a str,
        /// The cluster of requests that pass through.
        ungated: &'a str,
    },
}

/// The routes of requests that the filter has granted or lets pass: with a list that may end with the requeue listener, with a list of
/// servers, and without a list.
pub(crate) fn granted(destination: Destination<'_>) -> [Value; 3] {
    let requeued = route("listed", Some(ROUTE_HEADER), destination);
    let listed = route("listed", Some(ENDPOINT_HEADER), destination);
    [requeued, listed, route("ungated", None, destination)]
}

/// The filter sets in headers when and how often Envoy retries a request of such a route: while no model server has begun to respond. Repeating a
/// generation is safe, because it has no effect but work. Once Envoy has passed on response headers, it never retries.
fn route(name: &str, list: Option<&str>, destination: Destination<'_>) -> Value {
    let present = |name: &str| json!({ "name": name, "present_match": true });
    let (pool, (key, cluster)) = match destination {
        Destination::AnyPool => (present(POOL_HEADER), ("cluster_header", POOL_HEADER)),
        Destination::Pool { pool, listed, ungated } => (
            json!({ "name": POOL_HEADER, "string_match": { "exact": pool } }),
            ("cluster", if list.is_some() { listed } else { ungated }),
        ),
    };
    let headers: Vec<Value> = [pool].into_iter().chain(list.map(present)).collect();
    json!({
        "name": name,
        "match": { "prefix": "/", "headers": headers },
        "route": {
            key: cluster,
            // A generation may take any time. The default is 15 s.
            "timeout": seconds(limits::UNLIMITED),
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
