//! Generates the Envoy bootstrap: two listeners with Penstock's filter, one cluster for each pool, and one for the companions.
//!
//! The input is [`Settings`], the output is a JSON document, which [`crate::yaml`] writes for people to read. The document is built from values,
//! not from text, so that a pool's name can't change its structure.
//!
//! The bootstrap guarantees:
//! - No request reaches a model server without the filter's decision: the routes match on a header that only the filter
//!   sets, and the last route responds 503.
//! - A path means the same to the filter and to the server: Envoy normalizes it before both see it.
//! - Envoy's limits lie outside the filter's, so that the filter's error comes first.
//! - No time limit holds for an answer, for its first byte, or for a pause inside it: a generation may take any time. The queue bounds the wait,
//!   and keep-alive probes find dead peers. The only timers are those for reading a request and for connections without one.
//! - A request that no server of its list accepted can be requeued: the second listener is internal to Envoy, has no socket,
//!   and can be reached only by the last entry of a granted list. The native filter needs no such listener ([`Settings::plugins`]).
//! - With a [`crate::folder`], the pools and their servers may change while Envoy runs. Nothing else changes, so no listener
//!   is drained, no plugin restarts, and no waiting stream keeps outdated routes.
//!
//! Settings are typed and aren't checked here; `envoy --mode validate` ([`crate::run::validate`]) checks the result.

mod access_log;
mod clusters;
mod companions;
mod cors;
mod decompression;
mod listener;
mod local_replies;
mod metadata;
mod module;
mod routes;
mod upstream;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

// What the resources for a gateway need, too.
pub(crate) use self::clusters::{
    HTTP_OPTIONS, assignment, chosen_by, dns, host, http_filters, no_fallback, requeue_host, round_robin,
    unbalanced,
};
pub(crate) use self::companions::cluster as companion_cluster;
pub(crate) use self::decompression::filters as decompressors;
pub(crate) use self::listener::{
    Place, http1, http2, http2_windows, keep_alive, plugin, requeue, router, token_keeper,
};
pub(crate) use self::local_replies::{config as local_reply_config, no_pool_body};
pub(crate) use self::module::{
    CLUSTER as MODULE_CLUSTER, NAME as PLUGIN, cluster as module_cluster, url as module_url,
};
pub(crate) use self::routes::{Destination, configuration as route_configuration, granted, no_pool};
pub(crate) use self::upstream::transport_socket;
use crate::config_source::{CLUSTERS_FILE, config_source};
use crate::limits;

/// The name of the companion's cluster, for the plugin configuration. It has a `~`, which no pool's name has, because a
/// pool's cluster has the name of the pool. It has no slash, because gRPC sends it as the authority.
pub const COMPANION_CLUSTER: &str = "penstock~companion";

/// The requeue listener, as an endpoint list names it: a request that no server accepted goes there.
///
/// This is how Envoy writes the address of that host: `envoy://`, the listener's name, `/`, and no endpoint id. Envoy looks up
/// the entries of a list by this string, and reports it as the `upstream.address` of a stream that went there.
pub const REQUEUE_HOST: &str = "envoy://penstock-requeue/";

/// The filter state of a stream that holds its requeue token, where [`token_keeper`] sets it.
pub(crate) const REQUEUE_STATE: &str = "penstock.requeue";

/// The filter state of that token where the filter sets it, as its property [`penstock_wire::names::REQUEUE_PROPERTY`].
const REQUEUE_PROPERTY_STATE: &str = "wasm.penstock.requeue";

/// The name of the requeue listener.
pub(crate) const REQUEUE_LISTENER: &str = "penstock-requeue";

/// What an operator does when Envoy's configuration is older than the companion's.
const REPLACEMENT: &str = "Print a new bootstrap with `penstock envoy-config`.";

/// The settings of a gateway.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The name of this Envoy in logs and in the companion's status.
    pub node: String,
    /// The address for clients.
    pub gateway: SocketAddr,
    /// The listener of streams that a companion keeps alive while they wait; `None`: none is kept alive.
    pub keep_alive: Option<SocketAddr>,
    /// The web pages whose scripts may read answers; `None`: none.
    pub cors: Option<Cors>,
    /// The file of [`crate::certificate`] with the certificate for clients; `None`: clients connect without TLS.
    pub certificate: Option<PathBuf>,
    /// The address of Envoy's admin interface. It has no authentication, so use loopback unless it is protected otherwise.
    pub admin: SocketAddr,
    /// The file of the access log; `None`: no log.
    pub access_log: Option<PathBuf>,
    /// The gRPC addresses of the companions.
    pub companions: Companions,
    /// TLS to the companion; `None`: plaintext.
    pub tls: Option<Tls>,
    /// The pools, in the order of the policy.
    pub pools: Vec<Pool>,
    /// The folder of [`crate::folder`] from which Envoy reads the pools; `None`: `pools` are part of the bootstrap and don't
    /// change.
    pub folder: Option<PathBuf>,
    /// The filter's limit on a request body, in bytes. Envoy's limit is set above it.
    pub body_bytes_max: u64,
    /// The heap size at which Envoy sheds load, in bytes.
    pub heap_bytes_max: u64,
    /// Limit of concurrent client connections.
    pub connections_max: u64,
    /// The filter's module.
    pub module: Module,
    /// The filter's configuration. The keys that describe the listeners (`requeue`, `reenters`, `restarts`, `routes_tell`,
    /// `routes_requeue`, `attempts_logged`) are added here.
    pub plugin: Value,
    /// The dynamic metadata from which the filter takes identities, `NAMESPACE/KEY/...`.
    pub metadata: Vec<String>,
    /// Further HTTP filters, which handle a client's request before Penstock's filter. A requeued request doesn't pass them
    /// again.
    pub http_filters: Vec<Value>,
}

/// The web pages whose scripts may read answers (cross-origin resource sharing).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cors {
    /// The pages' origins, `scheme://host[:port]` in lower case, with `*` for any text in host and port; `*` alone is every page.
    pub origins: Vec<String>,
    /// Headers that a page may send, in lower case, besides those of the usual libraries; empty: any.
    pub headers: Vec<String>,
    /// How long a browser may keep the answer to a preflight.
    pub max_age: Duration,
}

/// The filter's module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// What it is.
    pub code: Code,
    /// Where it is.
    pub source: Source,
}

/// What the filter is compiled to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// WebAssembly, which Envoy runs in a sandbox.
    Wasm,
    /// Native code, a dynamic module of Envoy.
    Native,
}

/// Where Envoy gets the filter's module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file, by its path as Envoy sees it. Envoy takes only an absolute one for native code.
    File(PathBuf),
    /// An HTTP server. Envoy asks it until it has the module.
    Server(RemoteModule),
}

impl Module {
    /// A module in a file.
    #[must_use]
    pub fn file(code: Code, path: impl Into<PathBuf>) -> Self {
        Self { code, source: Source::File(path.into()) }
    }

    /// The module is native code.
    #[must_use]
    pub const fn is_native(&self) -> bool {
        matches!(self.code, Code::Native)
    }
}

/// The filter's module on an HTTP server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteModule {
    /// The server's IP address or DNS name.
    pub host: String,
    /// The server's port.
    pub port: u16,
    /// The path and query.
    pub path: String,
    /// The SHA-256 of the module in hex: Envoy refuses anything else.
    pub sha256: String,
}

/// A pool and the addresses of its model servers.
#[derive(Clone, Debug)]
pub struct Pool {
    /// The pool's name, which is the value of the pool header.
    pub name: String,
    /// The servers that may be granted. Envoy skips an address that isn't listed here.
    pub endpoints: Vec<SocketAddr>,
    /// Servers that are no longer granted. Earlier grants can still use them, requests that pass through can't.
    pub leaving: Vec<SocketAddr>,
    /// The way to the servers.
    pub upstream: Upstream,
}

/// How Envoy connects to the servers of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upstream {
    /// `None`: plain text.
    pub tls: Option<UpstreamTls>,
    /// Servers are sent HTTP/2.
    pub http2: bool,
    /// Headers of each request that reaches a server, by lower-case name, with their values.
    pub headers: Vec<(String, String)>,
    /// Headers of clients that reach no server.
    pub removed_headers: Vec<String>,
}

/// TLS to model servers: paths of PEM files, as Envoy sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamTls {
    /// The authorities; `None`: servers are not verified.
    pub authorities: Option<PathBuf>,
    /// Envoy's certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name in the handshake and in the servers' certificates; `None`: the certificates have the servers' addresses.
    pub server_name: Option<String>,
    /// Changes when a file does. Envoy reads the files when it gets a changed cluster.
    pub digest: u64,
}

/// The gRPC addresses of the companions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Companions {
    /// One companion.
    One(Address),
    /// Several companions. The filter chooses one for each stream by [`penstock_wire::names::COMPANION_HEADER`].
    List(Vec<SocketAddr>),
    /// Companions at all addresses of a DNS name. The filter chooses one for each stream.
    Dns {
        /// The name.
        name: String,
        /// The port of every companion.
        port: u16,
    },
}

/// A companion's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// TCP.
    Tcp(SocketAddr),
    /// The path of a unix socket.
    Unix(PathBuf),
}

/// Mutual TLS to the companion: paths of PEM files, as Envoy sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// Envoy's certificate.
    pub cert: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// The authority that must have signed the companion's certificate.
    pub ca: PathBuf,
}

impl Settings {
    /// A request that is queued again comes in again as a new stream, which the native filter can start: through all HTTP filters. A further one
    /// may have removed what it needs to see, for example a credential, so with further ones such a request goes through the requeue listener.
    fn restarts(&self) -> bool {
        self.module.is_native() && self.http_filters.is_empty()
    }

    /// Number of plugins in this Envoy: of the gateway listener, of the requeue listener, and of that of streams that are kept alive. As
    /// WebAssembly the last two, whose configuration is the same, share one. Each has a session with the companion on every worker, and as
    /// WebAssembly on the main thread.
    #[must_use]
    pub fn plugins(&self) -> u32 {
        let requeues = u32::from(!self.restarts());
        let keeps_alive = u32::from(self.keep_alive.is_some());
        1 + if self.module.is_native() { requeues + keeps_alive } else { requeues.max(keeps_alive) }
    }
}

/// The bootstrap as a JSON document.
pub fn document(settings: &Settings) -> Value {
    let mut listeners = vec![listener::gateway(settings)];
    if !settings.restarts() {
        listeners.push(listener::requeue(settings, routes::config(settings), true, REPLACEMENT));
    }
    listeners.extend(settings.keep_alive.map(|address| listener::kept_alive(settings, address)));
    let mut clusters: Vec<Value> = match &settings.folder {
        None => settings.pools.iter().map(clusters::listed).collect(),
        Some(_) => Vec::new(),
    };
    clusters.push(companions::cluster(settings));
    clusters.extend(module::cluster(&settings.module));
    let mut document = json!({
        "node": { "id": settings.node, "cluster": "penstock" },
        "admin": { "address": socket(settings.admin) },
        "bootstrap_extensions": [internal_listeners()],
        "static_resources": {
            "listeners": listeners,
            "clusters": clusters,
        },
        "overload_manager": overload(settings),
    });
    if let Some(folder) = &settings.folder {
        document["dynamic_resources"] = json!({ "cds_config": config_source(&folder.join(CLUSTERS_FILE)) });
    }
    document
}

/// The bootstrap extension that internal listeners require.
pub(crate) fn internal_listeners() -> Value {
    json!({
        "name": "envoy.bootstrap.internal_listener",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.bootstrap.internal_listener.v3.InternalListener",
        },
    })
}

/// The cluster of a pool, which reads its servers from the file `endpoints`.
pub(crate) fn watched_cluster(pool: &Pool, endpoints: &Path) -> Value {
    clusters::watched(pool, endpoints)
}

/// The servers of a pool, as the resource of a file.
pub(crate) fn endpoints(pool: &Pool) -> Value {
    clusters::endpoints(pool)
}

/// The address of a server in such a list; `None`: the host isn't a server, or no longer one.
pub(crate) fn server_address(host: &Value) -> Option<SocketAddr> {
    clusters::server_address(host)
}

/// Envoy's limit on a request body, in bytes.
pub(crate) fn body_limit(settings: &Settings) -> u64 {
    settings.body_bytes_max.saturating_add(limits::BODY_SLACK_BYTES)
}

/// The overload manager. The heap has a limit because it holds the bodies of waiting requests. Mild measures come first.
fn overload(settings: &Settings) -> Value {
    let heap = "envoy.resource_monitors.fixed_heap";
    let action = |name: &str, above: f64| {
        json!({
            "name": format!("envoy.overload_actions.{name}"),
            "triggers": [{ "name": heap, "threshold": { "value": above } }],
        })
    };
    json!({
        "refresh_interval": "0.25s",
        "resource_monitors": [
            {
                "name": heap,
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig",
                    "max_heap_size_bytes": settings.heap_bytes_max,
                },
            },
            {
                "name": "envoy.resource_monitors.global_downstream_max_connections",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.resource_monitors.\
                              downstream_connections.v3.DownstreamConnectionsConfig",
                    "max_active_downstream_connections": settings.connections_max,
                },
            },
        ],
        "actions": [
            action("shrink_heap", limits::HEAP_SHRINK),
            action("disable_http_keepalive", limits::HEAP_KEEPALIVE_OFF),
            action("stop_accepting_requests", limits::HEAP_REFUSE),
        ],
    })
}

pub(crate) fn socket(address: SocketAddr) -> Value {
    json!({ "socket_address": { "address": address.ip().to_string(), "port_value": address.port() } })
}

/// A duration in Envoy's notation: decimal seconds with an `s`.
pub(crate) fn seconds(duration: Duration) -> String {
    format!("{}s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("valid")
    }

    fn settings() -> Settings {
        Settings {
            node: "n".into(),
            gateway: address("127.0.0.1:8080"),
            admin: address("127.0.0.1:9901"),
            companions: Companions::One(Address::Tcp(address("127.0.0.1:9190"))),
            tls: None,
            pools: vec![
                Pool {
                    name: "a".into(),
                    endpoints: vec![address("127.0.0.1:1"), address("[::1]:2")],
                    leaving: vec![],
                    upstream: Upstream::default(),
                },
                Pool { name: "b".into(), endpoints: vec![], leaving: vec![], upstream: Upstream::default() },
            ],
            folder: None,
            body_bytes_max: 32 << 20,
            heap_bytes_max: limits::HEAP_BYTES_MAX,
            connections_max: limits::CONNECTIONS_MAX,
            module: Module::file(Code::Wasm, "/f.wasm"),
            plugin: json!({ "companion": COMPANION_CLUSTER }),
            metadata: Vec::new(),
            http_filters: Vec::new(),
            access_log: None,
            certificate: None,
            cors: None,
            keep_alive: None,
        }
    }

    fn value<'a>(document: &'a Value, pointer: &str) -> &'a Value {
        document.pointer(pointer).unwrap_or_else(|| panic!("{pointer} isn't in {document:#}"))
    }

    const MANAGER: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";

    #[test]
    fn body_limits_hold_before_and_after_the_route_is_chosen() {
        let document = document(&settings());
        // The listener's limit applies to a waiting stream, the route's limit to the body that the router keeps for a retry.
        for pointer in [
            "/static_resources/listeners/0/per_connection_buffer_limit_bytes".to_owned(),
            format!("{MANAGER}/route_config/virtual_hosts/0/request_body_buffer_limit"),
        ] {
            assert_eq!(
                value(&document, &pointer),
                &json!((32 << 20) + limits::BODY_SLACK_BYTES),
                "{pointer}"
            );
        }
        let huge = super::document(&Settings { body_bytes_max: u64::MAX, ..settings() });
        assert_eq!(value(&huge, "/static_resources/listeners/0/per_connection_buffer_limit_bytes"), u32::MAX);
    }

    #[test]
    fn each_pool_has_a_cluster_and_the_companions_sends_pings() {
        let document = document(&settings());
        let clusters = value(&document, "/static_resources/clusters").as_array().expect("a list");
        let names: Vec<_> = clusters.iter().filter_map(|cluster| cluster["name"].as_str()).collect();
        assert_eq!(names, ["a", "b", COMPANION_CLUSTER]);
        let hosts = value(&document, "/static_resources/clusters/0/load_assignment/endpoints/0/lb_endpoints");
        assert_eq!(
            hosts[1]["endpoint"]["address"],
            json!({ "socket_address": { "address": "::1", "port_value": 2 } })
        );
        let keepalive = "/static_resources/clusters/2/typed_extension_protocol_options/\
                         envoy.extensions.upstreams.http.v3.HttpProtocolOptions/\
                         explicit_http_config/http2_protocol_options/connection_keepalive";
        assert_eq!(value(&document, keepalive), &json!({ "interval": "2s", "timeout": "2s" }));
    }

    #[test]
    fn requeue_listener_is_internal_and_has_the_same_routes() {
        let document = document(&settings());
        let listener = value(&document, "/static_resources/listeners/1");
        assert_eq!(listener["internal_listener"], json!({}));
        assert_eq!(REQUEUE_HOST, format!("envoy://{}/", listener["name"].as_str().expect("named")));
        assert!(listener.get("address").is_none(), "no socket: {listener}");
        let manager = value(listener, "/filter_chains/0/filters/0/typed_config");
        assert_eq!(
            manager["use_remote_address"], false,
            "the client's address is the last of x-forwarded-for"
        );
        let plugin = value(manager, "/http_filters/0/typed_config/config/configuration/value");
        let plugin: Value = serde_json::from_str(plugin.as_str().expect("text")).expect("JSON");
        assert_eq!(
            plugin,
            json!({
                "companion": COMPANION_CLUSTER, "requeue": REQUEUE_HOST, "routes_tell": true, "attempts_logged": true,
                "routes_requeue": true, "reenters": true,
            })
        );
        let gateway = value(&document, &format!("{MANAGER}/route_config"));
        assert_eq!(&manager["route_config"], gateway, "the same routes, for the same grants");
    }

    #[test]
    fn companion_cluster_has_tls_only_with_certificates() {
        const CLUSTER: &str = "/static_resources/clusters/2";
        assert_eq!(document(&settings()).pointer(&format!("{CLUSTER}/transport_socket")), None);
        let tls = Tls { cert: "/c.pem".into(), key: "/k.pem".into(), ca: "/a.pem".into() };
        let document = document(&Settings { tls: Some(tls), ..settings() });
        let context =
            value(&document, &format!("{CLUSTER}/transport_socket/typed_config/common_tls_context"));
        let certificate = &context["tls_certificates"][0];
        assert_eq!(certificate["certificate_chain"]["filename"], "/c.pem");
        assert_eq!(certificate["private_key"]["filename"], "/k.pem");
        assert_eq!(context["validation_context"]["trusted_ca"]["filename"], "/a.pem");
    }

    #[test]
    fn further_filters_come_before_decoded_bodies_and_only_in_the_gateway_listener() {
        const OWN: &[&str] = &["penstock", "envoy.filters.http.router"];
        const DECODED: [&str; 3] = ["gzip", "brotli", "zstd"];
        let names = |document: &Value, listener: usize| -> Vec<String> {
            let filters = format!(
                "/static_resources/listeners/{listener}/filter_chains/0/filters/0/typed_config/http_filters"
            );
            let filters = value(document, &filters).as_array().expect("a list").iter();
            filters.filter_map(|filter| filter["name"].as_str().map(str::to_owned)).collect()
        };
        let decoded = DECODED.map(|coding| format!("envoy.filters.http.decompressor.{coding}"));
        let decoded: Vec<&str> = decoded.iter().map(String::as_str).collect();
        let further = || vec![json!({ "name": "a" }), json!({ "name": "b" })];
        let document = super::document(&Settings { http_filters: further(), ..settings() });
        assert_eq!(names(&document, 0), [&["a", "b"][..], &decoded, OWN].concat());
        assert_eq!(names(&document, 1), OWN);
        // A browser's preflight has no key that such a filter could ask for.
        let cors = Cors { origins: vec!["*".into()], headers: vec![], max_age: Duration::from_secs(1) };
        let document = super::document(&Settings { http_filters: further(), cors: Some(cors), ..settings() });
        assert_eq!(names(&document, 0)[..2], ["envoy.filters.http.cors", "a"]);
        assert_eq!(names(&document, 1), OWN);
    }

    #[test]
    fn the_filter_pauses_streams_and_the_last_route_has_no_cluster() {
        let document = document(&settings());
        let filters = value(&document, &format!("{MANAGER}/http_filters")).as_array().expect("a list");
        let filter = filters.iter().find(|filter| filter["name"] == "penstock").expect("the filter");
        let filter = &filter["typed_config"]["config"];
        assert_eq!(filter["allow_on_headers_stop_iteration"], true);
        let configuration = filter["configuration"]["value"].as_str().expect("a string");
        assert_eq!(
            serde_json::from_str::<Value>(configuration).expect("JSON"),
            json!({
                "companion": COMPANION_CLUSTER, "requeue": REQUEUE_HOST, "routes_tell": true, "attempts_logged": true,
                "routes_requeue": true,
            })
        );
        let routes = value(&document, &format!("{MANAGER}/route_config/virtual_hosts/0/routes"));
        let routes = routes.as_array().expect("a list");
        let [compressed, pools @ .., last] = routes.as_slice() else { panic!("routes: {routes:?}") };
        assert_eq!((compressed["name"].as_str(), pools.len()), (Some("compressed"), 4));
        assert!(pools.iter().all(|route| route["match"]["headers"][0]["name"] == "x-penstock-pool"));
        assert!(last["match"]["headers"].is_null() && last["route"]["cluster_header"] == "x-penstock-pool");
    }

    #[test]
    fn with_a_folder_only_the_companions_cluster_is_static() {
        let document = document(&Settings { folder: Some("/run/penstock".into()), ..settings() });
        let source = value(&document, "/dynamic_resources/cds_config/path_config_source");
        assert_eq!(source, &json!({ "path": "/run/penstock/clusters.json" }));
        let clusters = value(&document, "/static_resources/clusters").as_array();
        let names: Vec<_> = clusters.expect("a list").iter().map(|cluster| &cluster["name"]).collect();
        assert_eq!(names, [COMPANION_CLUSTER]);
        let routes = format!("{MANAGER}/route_config");
        assert_eq!(
            value(&document, &routes),
            value(&super::document(&settings()), &routes),
            "the same routes whatever pools there are"
        );
    }
}
