//! Bootstraps of the Envoys that Penstock is compared with: one listener, one model server cluster, and the compared filter.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use penstock_live_studies::peers;
use penstock_tests::binary;
use penstock_tests::ports::free_address;
use serde_json::{Value, json};

/// The cluster of the model servers.
const SERVER: &str = "server";
/// The cluster of the server that a filter calls beside the model server. The filter example `unary.rs` uses the same name.
const SIDE: &str = "side";
/// Larger than the bodies that are sent, so that a filter can buffer a whole one.
const BODY_BYTES_MAX: u32 = 1 << 20;

/// A bootstrap and its addresses.
pub(crate) struct Bootstrap {
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) document: Value,
}

/// An Envoy with this filter, if given, in front of a model server; the filter may call `side`.
pub(crate) fn before(server: SocketAddr, filter: Option<Value>, side: Option<SocketAddr>) -> Bootstrap {
    with(cluster(SERVER, server), filter, side)
}

/// An Envoy that asks an endpoint picker for the model server of each request.
pub(crate) fn before_picker(picker: SocketAddr) -> Bootstrap {
    let filter = peers::external_processor(SIDE);
    with(peers::picked_servers(SERVER), Some(filter), Some(picker))
}

fn with(servers: Value, filter: Option<Value>, side: Option<SocketAddr>) -> Bootstrap {
    let (address, admin) = (free_address(), free_address());
    let mut filters: Vec<_> = filter.into_iter().collect();
    filters.push(json!({
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
    }));
    let route = json!({"match": {"prefix": "/"}, "route": {"cluster": SERVER, "timeout": "0s"}});
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bench",
        "codec_type": "AUTO",
        "use_remote_address": true,
        "http_filters": filters,
        "route_config": {"name": "bench", "virtual_hosts": [{"name": "bench", "domains": ["*"], "routes": [route]}]},
    });
    let mut clusters = vec![servers];
    if let Some(side) = side {
        clusters.push(over_http2(cluster(SIDE, side)));
    }
    let document = json!({
        "admin": {"address": socket(admin)},
        "static_resources": {
            "listeners": [{
                "name": "bench",
                "address": socket(address),
                "per_connection_buffer_limit_bytes": BODY_BYTES_MAX,
                "filter_chains": [{"filters": [{
                    "name": "envoy.filters.network.http_connection_manager",
                    "typed_config": manager,
                }]}],
            }],
            "clusters": clusters,
        },
    });
    Bootstrap { address, admin, document }
}

/// A wasm filter.
pub(crate) fn wasm(module: &Path) -> Value {
    json!({
        "name": "bench",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
            "config": {
                "name": "bench",
                "root_id": "bench",
                "allow_on_headers_stop_iteration": true,
                "vm_config": {
                    "vm_id": "bench",
                    "runtime": "envoy.wasm.runtime.v8",
                    "code": {"local": {"filename": module}},
                },
            },
        },
    })
}

/// Envoy's external processor configured like an endpoint picker: it receives the request's headers, then its whole body, and nothing
/// of the response.
pub(crate) fn external_processor() -> Value {
    json!({
        "name": "envoy.filters.http.ext_proc",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": SIDE}},
            "message_timeout": "10s",
            "processing_mode": {
                "request_header_mode": "SEND",
                "request_body_mode": "BUFFERED",
                "request_trailer_mode": "SKIP",
                "response_header_mode": "SKIP",
                "response_body_mode": "NONE",
                "response_trailer_mode": "SKIP",
            },
        },
    })
}

fn cluster(name: &str, address: SocketAddr) -> Value {
    json!({
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [
            {"endpoint": {"address": socket(address)}},
        ]}]},
    })
}

fn over_http2(mut cluster: Value) -> Value {
    const OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    cluster["typed_extension_protocol_options"] = json!({OPTIONS: {
        "@type": format!("type.googleapis.com/{OPTIONS}"),
        "explicit_http_config": {"http2_protocol_options": {}},
    }});
    cluster
}

fn socket(address: SocketAddr) -> Value {
    json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}})
}

/// Builds one of the filters that the benchmark measures beside Penstock's.
///
/// # Panics
/// With the compiler's message, if it does not compile.
pub(crate) fn module(example: &str) -> PathBuf {
    let target = binary::target_folder().join("filter-wasm");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = std::process::Command::new(cargo)
        .args(["build", "--quiet", "--locked", "--package", "penstock-filter-studies"])
        .args(["--example", example, "--profile", "wasm"])
        .args(["--target", "wasm32-unknown-unknown", "--target-dir"])
        .arg(&target)
        .env_remove("RUSTFLAGS")
        .current_dir(binary::workspace().join("tests/studies"))
        .output()
        .expect("cargo runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    target.join(format!("wasm32-unknown-unknown/wasm/examples/{example}.wasm"))
}
