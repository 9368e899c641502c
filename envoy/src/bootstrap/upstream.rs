//! How Envoy connects to a pool's model servers: TLS, HTTP/2 and credentials, as parts of the pool's cluster.
//!
//! A pool's cluster has one more host, the requeue listener. It is in this Envoy, so it gets no TLS, and the client's headers, not the servers' credential: the
//! filter reads the client's headers again there.
//!
//! Credentials are in the cluster, and not in a route or in the filter's policy: a cluster may change while Envoy runs, its filters run for each attempt, and
//! no other part of Penstock needs them. So they are in no log, and on no page of the companion. Envoy's admin interface shows them to its users.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::IpAddr;

use serde_json::{Value, json};

use super::{Pool, REQUEUE_HOST, Upstream, UpstreamTls, seconds};
use crate::limits;

/// The metadata key of hosts that get TLS.
const TLS: &str = "penstock-tls";

/// The protocol to servers.
pub(crate) fn http_config(http2: bool) -> Value {
    if http2 {
        json!({ "http2_protocol_options": { "connection_keepalive": {
            "interval": seconds(limits::PING_INTERVAL),
            "timeout": seconds(limits::PING_TIMEOUT),
        } } })
    } else {
        json!({ "http_protocol_options": {} })
    }
}

/// Adds TLS to the cluster of a pool.
pub(super) fn add_tls(cluster: &mut Value, pool: &Pool) {
    let Some(tls) = &pool.upstream.tls else {
        return;
    };
    cluster["connect_timeout"] = seconds(limits::CONNECT_TIMEOUT_TLS).into();
    let addresses = pool.endpoints.iter().chain(&pool.leaving).map(|address| address.ip()).collect();
    cluster["transport_socket_matches"] = json!([{
        "name": "servers",
        "match": { TLS: "true" },
        "transport_socket": transport_socket(tls, pool.upstream.http2, &addresses),
    }]);
    // Envoy reads certificates again only for a cluster that differs.
    cluster["metadata"] =
        json!({ "filter_metadata": { "penstock": { "files": format!("{:016x}", tls.digest) } } });
}

/// Marks a host of the pool's cluster for its transport socket.
pub(super) fn mark(host: &mut Value, upstream: &Upstream) {
    if upstream.tls.is_some() {
        host["metadata"]["filter_metadata"]["envoy.transport_socket_match"] = json!({ TLS: "true" });
    }
}

/// The transport socket for TLS to servers at these addresses.
pub(crate) fn transport_socket(tls: &UpstreamTls, http2: bool, addresses: &BTreeSet<IpAddr>) -> Value {
    let mut common = json!({
        "tls_params": { "tls_minimum_protocol_version": "TLSv1_2" },
        "alpn_protocols": [if http2 { "h2" } else { "http/1.1" }],
    });
    if let Some((cert, key)) = &tls.identity {
        common["tls_certificates"] =
            json!([{ "certificate_chain": { "filename": cert }, "private_key": { "filename": key } }]);
    }
    if let Some(authorities) = &tls.authorities {
        common["validation_context"] = json!({
            "trusted_ca": { "filename": authorities },
            "match_typed_subject_alt_names": names(tls, addresses),
        });
    }
    let mut context = json!({
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        "common_tls_context": common,
    });
    if let Some(name) = tls.server_name.as_ref().filter(|name| name.parse::<IpAddr>().is_err()) {
        context["sni"] = name.as_str().into();
    }
    json!({ "name": "envoy.transport_sockets.tls", "typed_config": context })
}

/// The names of which a server's certificate must have one.
fn names(tls: &UpstreamTls, addresses: &BTreeSet<IpAddr>) -> Vec<Value> {
    let matcher = |kind: &str, name: &str| json!({ "san_type": kind, "matcher": { "exact": name } });
    match &tls.server_name {
        Some(name) if name.parse::<IpAddr>().is_ok() => vec![matcher("IP_ADDRESS", name)],
        Some(name) => vec![matcher("DNS", name)],
        None => addresses.iter().map(|address| matcher("IP_ADDRESS", &address.to_string())).collect(),
    }
}

/// The filter that sets the headers of requests to servers; `None`: there are none. It runs for each attempt.
pub(crate) fn headers(upstream: &Upstream) -> Option<Value> {
    if upstream.headers.is_empty() {
        return None;
    }
    let removed =
        upstream.removed_headers.iter().filter(|name| upstream.headers.iter().all(|(set, _)| set != *name));
    let mut mutations: Vec<Value> = removed.map(|name| json!({ "remove": name })).collect();
    mutations.extend(upstream.headers.iter().map(|(name, value)| {
        // Without a value, which the requeue listener's is, the header isn't changed.
        let value = format!("%CEL(upstream.address == \"{REQUEUE_HOST}\" ? \"\" : \"{}\")%", escaped(value));
        json!({ "append": {
            "header": { "key": name, "value": value },
            "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
        } })
    }));
    Some(json!({
        "name": "envoy.filters.http.header_mutation",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
            "mutations": { "request_mutations": mutations },
        },
    }))
}

/// A text inside quotes of CEL inside a command of Envoy's format strings, in which brackets and percent signs have a meaning too.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b" -_.".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            // Writing to a String can't fail.
            let _ = write!(escaped, "\\x{byte:02x}");
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_no_character_with_a_meaning_for_envoy() {
        assert_eq!(escaped("Bearer sk-a_b.1"), "Bearer sk-a_b.1");
        assert_eq!(escaped("a\")%\\/="), "a\\x22\\x29\\x25\\x5c\\x2f\\x3d");
    }

    #[test]
    fn a_certificate_has_the_name_or_one_of_the_addresses() {
        let mut tls =
            UpstreamTls { authorities: Some("/ca.pem".into()), identity: None, server_name: None, digest: 0 };
        let addresses = ["10.0.0.1", "::1"].map(|address| address.parse().expect("an address")).into();
        let names = |tls: &UpstreamTls| -> Vec<String> {
            let socket = transport_socket(tls, false, &addresses);
            let context = &socket["typed_config"]["common_tls_context"]["validation_context"];
            let names = context["match_typed_subject_alt_names"].as_array().cloned().unwrap_or_default();
            names.iter().map(|name| format!("{} {}", name["san_type"], name["matcher"]["exact"])).collect()
        };
        assert_eq!(names(&tls), [r#""IP_ADDRESS" "10.0.0.1""#, r#""IP_ADDRESS" "::1""#]);
        tls.server_name = Some("vllm.models".into());
        assert_eq!(names(&tls), [r#""DNS" "vllm.models""#]);
        assert_eq!(transport_socket(&tls, false, &addresses)["typed_config"]["sni"], "vllm.models");
        tls.authorities = None;
        assert!(names(&tls).is_empty());
    }
}
