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

use serde_json::{Value, json};

/// The HTTP filters that decode the bodies of requests. Envoy has no library for `deflate`.
pub(crate) fn filters() -> impl Iterator<Item = Value> {
    let gzip =
        json!({ "@type": "type.googleapis.com/envoy.extensions.compression.gzip.decompressor.v3.Gzip" });
    let brotli =
        json!({ "@type": "type.googleapis.com/envoy.extensions.compression.brotli.decompressor.v3.Brotli" });
    let zstd =
        json!({ "@type": "type.googleapis.com/envoy.extensions.compression.zstd.decompressor.v3.Zstd" });
    [("gzip", gzip), ("brotli", brotli), ("zstd", zstd)].into_iter().map(|(name, library)| {
        let name = format!("envoy.filters.http.decompressor.{name}");
        let config = json!({
            "@type": "type.googleapis.com/envoy.extensions.filters.http.decompressor.v3.Decompressor",
            "decompressor_library": { "name": name, "typed_config": library },
            "request_direction_config": { "advertise_accept_encoding": false },
            "response_direction_config": { "common_config": {
                "enabled": { "default_value": false, "runtime_key": "penstock.decompress_answers" },
            } },
        });
        json!({ "name": name, "typed_config": for_json(&name, &config) })
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
