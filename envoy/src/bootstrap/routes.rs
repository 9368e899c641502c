//! Where a request goes once the filter has decided: by the pool's header and the endpoint list.
//!
//! The filter sets both headers when a request is granted, after it has removed any that a client sent; what
//! carries no pool is answered by the last route and goes nowhere. The pool's header is the name of the cluster, so
//! the routes are the same whatever pools there are. A stream holds to the routes of the moment when it came; one that
//! waits while its pool is added would find none for it, if each pool had its own.
//!
//! A granted request is sent to the endpoints of its list, each once, in order, and to no other: Envoy's choice of
//! a host past the end of the list would break a bound, a pin or a subset. So the number of retries is the
//! length of the list less one, by a route for each length, and the cluster picks nothing for such a route
//! besides. Only what the filter lets pass ungated, with a pool and no list, is spread round robin.
//!
//! A list may lead on to this Envoy's own listener for requests that no server took ([`super::REQUEUE_HOST`]): to the
//! router it is one more host, tried by the same retries, and the body is sent there again. That list stands in a
//! header of its own, so that a server reads only servers in the one that is meant for it.

use penstock_wire::names::{ENDPOINT_HEADER, POOL_HEADER, ROUTE_HEADER, SERVED_HEADER};
use serde_json::{Value, json};

use super::{Settings, body_limit, clusters, replies, seconds};
use crate::limits;

/// A retry is for what no model server has begun to answer: the connection wasn't made, the stream was refused, or
/// it was reset before the first byte of an answer. Envoy's `reset` is the last, wherever the request's bytes were
/// by then (`reset-before-request` stops at the first byte sent). Generation has no effect but work, so doing
/// it again is safe. Once response headers are in, Envoy never sends again.
const RETRY_ON: &str = "connect-failure,refused-stream,reset";

pub(super) fn config(settings: &Settings) -> Value {
    let mut routes = granted(settings);
    routes.push(replies::no_pool());
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
    let listed = |header: &str, mut condition: Value, retries: u32| {
        condition["name"] = header.into();
        let mut route = route("listed", Some(condition), retries);
        route["route"]["metadata_match"] = clusters::listed_only();
        route
    };
    let list = |length: u32, requeued: bool| {
        let retries = length.saturating_sub(1);
        let pattern = format!("[^,]*(,[^,]*){{{retries}}}");
        let condition = json!({ "string_match": { "safe_regex": { "regex": pattern } } });
        let header = if requeued { ROUTE_HEADER } else { ENDPOINT_HEADER };
        let mut route = listed(header, condition, retries);
        if requeued {
            // While the request waits again this stream stands still, and the server's silence comes on top.
            route["route"]["idle_timeout"] = seconds(settings.stream_idle_timeout.saturating_mul(2)).into();
        }
        route
    };
    let requeued = (2..=limits::LIST_MAX.saturating_add(1)).map(|length| list(length, true));
    let plain = (1..=limits::LIST_MAX).map(|length| list(length, false));
    let longer = listed(
        ENDPOINT_HEADER,
        json!({ "present_match": true }),
        limits::LIST_MAX,
    );
    let ungated = route("ungated", None, limits::RETRIES);
    requeued.chain(plain).chain([longer, ungated]).collect()
}

fn route(name: &str, list: Option<Value>, retries: u32) -> Value {
    let mut headers = vec![json!({ "name": POOL_HEADER, "present_match": true })];
    headers.extend(list);
    json!({
        "name": name,
        "match": { "prefix": "/", "headers": headers },
        "route": {
            "cluster_header": POOL_HEADER,
            // A stream lasts as long as its generation; stream_idle_timeout ends one that stalls.
            "timeout": "0s",
            "retry_policy": {
                "retry_on": RETRY_ON,
                "num_retries": retries,
                "retry_back_off": {
                    "base_interval": seconds(limits::RETRY_PAUSE),
                    "max_interval": seconds(limits::RETRY_PAUSE * 10),
                },
            },
        },
        "request_headers_to_remove": [POOL_HEADER],
        // Which host answers, whatever it says itself: the filter reads it there, and the client is shown it.
        "response_headers_to_add": [{
            "header": { "key": SERVED_HEADER, "value": "%UPSTREAM_HOST%" },
            "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
        }],
    })
}
