//! Compressed request bodies: Envoy's filters decode them before Penstock's filter reads them. Some clients compress every body.
//!
//! `limits.body_bytes` holds for the decoded body, because Penstock's filter counts it. Answers aren't decoded: Penstock's filter asks
//! servers for plain ones.
//!
//! Only bodies whose type is JSON are decoded. Envoy passes on what it could decode of a broken or cut one, and a server, like Penstock's filter,
//! notices that in JSON; of a file it would keep a part.
//!
//! A body that is over 100 times larger when it is decoded is cut by Envoy, whose limit that is: it decodes what arrives at a time at once, and a
//! body of gzip can grow a thousandfold. Penstock's filter answers such a request 413.

//!
//! In our own bootstrap the filters are off but for requests whose route switches them on when they arrive ([`switch_on`]): the others pay nothing. In a
//! gateway whose routes others write, each filter has a matcher, which costs each request 6,000 instructions.

use penstock_wire::names::POOL_HEADER;
use serde_json::{Value, json};

/// Envoy's libraries, by package and message. It has none for `deflate`.
const LIBRARIES: [(&str, &str); 3] = [("gzip", "Gzip"), ("brotli", "Brotli"), ("zstd", "Zstd")];

/// The HTTP filters for our own routes.
pub(super) fn switched_filters() -> impl Iterator<Item = Value> {
    LIBRARIES
        .into_iter()
        .map(|library| json!({ "name": name(library), "disabled": true, "typed_config": config(library) }))
}

/// Makes `route` one that compressed JSON has when it arrives, before Penstock's filter has decided, and that decodes it. A body that isn't decoded
/// all the same, because its request has `cache-control: no-transform`, has the route of any other request when it goes on; so has one whose
/// client sends the header that only the filter sets, and is refused.
pub(super) fn switch_on(route: &mut Value) {
    route["name"] = "compressed".into();
    route["match"]["headers"] = json!([
        { "name": POOL_HEADER, "present_match": true, "invert_match": true },
        { "name": "content-encoding", "string_match": { "safe_regex": { "regex": "(?i)(gzip|br|zstd)" } } },
        { "name": "content-type", "string_match": { "contains": "json", "ignore_case": true } },
    ]);
    let switch = json!({ "@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "config": {} });
    route["typed_per_filter_config"] =
        LIBRARIES.into_iter().map(|library| (name(library), switch.clone())).collect();
}

/// The HTTP filters for the routes of others.
pub(crate) fn filters() -> impl Iterator<Item = Value> {
    LIBRARIES.into_iter().map(|library| {
        json!({ "name": name(library), "typed_config": for_json(&name(library), &config(library)) })
    })
}

fn name((package, _): (&str, &str)) -> String {
    format!("envoy.filters.http.decompressor.{package}")
}

fn config(library: (&str, &str)) -> Value {
    let (package, message) = library;
    let url = format!("type.googleapis.com/envoy.extensions.compression.{package}.decompressor.v3.{message}");
    json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.http.decompressor.v3.Decompressor",
        "decompressor_library": { "name": name(library), "typed_config": { "@type": url } },
        "request_direction_config": { "advertise_accept_encoding": false },
        "response_direction_config": { "common_config": {
            "enabled": { "default_value": false, "runtime_key": "penstock.decompress_answers" },
        } },
    })
}

/// A filter that is skipped for bodies that aren't JSON.
fn for_json(name: &str, config: &Value) -> Value {
    let is_json = json!({
        "input": {
            "name": "content-type",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput",
                "header_name": "content-type",
            },
        },
        "value_match": { "contains": "json", "ignore_case": true },
    });
    json!({
        "@type": "type.googleapis.com/envoy.extensions.common.matching.v3.ExtensionWithMatcher",
        "extension_config": { "name": name, "typed_config": config },
        "xds_matcher": { "matcher_list": { "matchers": [{
            "predicate": { "not_matcher": { "single_predicate": is_json } },
            "on_match": { "action": {
                "name": "skip",
                "typed_config": { "@type": "type.googleapis.com/envoy.extensions.filters.common.matcher.action.v3.SkipFilter" },
            } },
        }] } },
    })
}
