//! The cluster of the companions.
//!
//! One companion is its only host. Of several companions one leads, and the filter connects to that one: it names the host in
//! the metadata of its gRPC stream. Envoy then chooses this host, whatever it knows about its state, and no other host if it
//! can't connect. A stream that names no host of the cluster goes to any companion, which knows the leader.
//!
//! The cluster has no health checks and no outlier detection, because the leader is the only companion that is of use.

use std::net::SocketAddr;

use penstock_wire::names::COMPANION_HEADER;
use serde_json::{Value, json};

use super::clusters::{HTTP_OPTIONS, assignment, chosen_by, circuit_breakers, dns, host, round_robin};
use super::{Address, COMPANION_CLUSTER, Companions, Settings, Tls, seconds, socket};
use crate::limits;

/// The cluster of the companions of these settings.
pub(crate) fn cluster(settings: &Settings) -> Value {
    let mut cluster = match &settings.companions {
        Companions::One(Address::Tcp(address)) => fixed(vec![host(socket(*address))]),
        Companions::One(Address::Unix(path)) => fixed(vec![host(json!({ "pipe": { "path": path } }))]),
        Companions::List(addresses) => listed(addresses),
        Companions::Dns { name, port } => named(name, *port),
    };
    if let Some(tls) = &settings.tls {
        cluster["transport_socket"] = mutual_tls(tls);
    }
    cluster
}

/// A cluster with these hosts.
fn fixed(hosts: Vec<Value>) -> Value {
    json!({
        "name": COMPANION_CLUSTER,
        "type": "STATIC",
        "connect_timeout": seconds(limits::CONNECT_TIMEOUT),
        "load_assignment": assignment(COMPANION_CLUSTER, hosts),
        "circuit_breakers": circuit_breakers(),
        "typed_extension_protocol_options": { HTTP_OPTIONS: {
            "@type": format!("type.googleapis.com/{HTTP_OPTIONS}"),
            "explicit_http_config": { "http2_protocol_options": { "connection_keepalive": {
                "interval": seconds(limits::COMPANION_KEEPALIVE),
                "timeout": seconds(limits::COMPANION_KEEPALIVE),
            } } },
        } },
    })
}

/// A cluster of which the filter chooses the host.
fn chosen(hosts: Vec<Value>) -> Value {
    let mut cluster = fixed(hosts);
    cluster["load_balancing_policy"] = chosen_by(&[COMPANION_HEADER], round_robin());
    cluster
}

fn listed(addresses: &[SocketAddr]) -> Value {
    chosen(addresses.iter().map(|&address| host(socket(address))).collect())
}

/// Each address of the name is a host, in both families, because the filter names the address that a companion advertises. The
/// time to live of the answers doesn't count, because an address can become wrong at any time.
fn named(name: &str, port: u16) -> Value {
    let address = json!({ "socket_address": { "address": name, "port_value": port } });
    let mut cluster = chosen(vec![host(address)]);
    if let Some(cluster) = cluster.as_object_mut() {
        cluster.remove("type");
    }
    cluster["cluster_type"] = dns(limits::COMPANION_LOOKUP);
    cluster
}

/// The transport socket for mutual TLS. Both ends belong to Penstock, so it requires TLS 1.3. It accepts any certificate of
/// the authority, which signs only for Penstock.
fn mutual_tls(tls: &Tls) -> Value {
    json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "common_tls_context": {
                "tls_params": {
                    "tls_minimum_protocol_version": "TLSv1_3",
                    "tls_maximum_protocol_version": "TLSv1_3",
                },
                "alpn_protocols": ["h2"],
                "tls_certificates": [{
                    "certificate_chain": { "filename": tls.cert },
                    "private_key": { "filename": tls.key },
                }],
                "validation_context": { "trusted_ca": { "filename": tls.ca } },
            },
        },
    })
}
