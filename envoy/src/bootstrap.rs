//! The Envoy bootstrap: two listeners with Penstock's filter, one cluster a pool, one for the companion.
//!
//! [`Settings`] in, a JSON document out, printed as YAML for people. The document is built from values, never
//! from text, so that no name of a pool can change its shape.
//!
//! What it promises:
//! - Nothing reaches a model server without the filter's decision: the routes match on a header that only the
//!   filter sets, and the last one answers 503.
//! - A path means the same to the filter and to the server: Envoy normalises it before either sees it.
//! - Envoy's own limits lie outside the filter's, so that the filter's answer comes first.
//! - A request that no server of its list took can enter again: the second listener is inside Envoy, has no socket,
//!   and is reached by nothing but the last place of a granted list.
//! - With a [`crate::folder`], pools and their servers may change while Envoy runs: nothing else does, so that no
//!   listener is drained, no plugin starts anew, and no paused stream holds to routes that are out of date.
//!
//! It refuses nothing: settings are typed, and `envoy --mode validate` ([`crate::run::validate`]) has the last word.

mod clusters;
mod listener;
mod replies;
mod routes;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::{Value, json};

use crate::{folder, limits};

/// The name of the companion's cluster, which the plugin configuration must name. A pool's cluster is called as the pool
/// is, and no name of a pool has a `~`; gRPC says it as its authority, where a slash would be wrong.
pub const COMPANION_CLUSTER: &str = "penstock~companion";

/// The listener where a request enters again that no server took, as an endpoint list names it.
///
/// It is Envoy's own spelling of the host's address, `envoy://` + the listener's name + `/` + no endpoint id: a list's
/// entries are looked up by that string, and `upstream.address` of the stream that went there says it too.
pub const REQUEUE_HOST: &str = "envoy://penstock-requeue/";

/// The listener behind [`REQUEUE_HOST`].
const REQUEUE_LISTENER: &str = "penstock-requeue";

/// Plugin configurations in one Envoy, one a listener. Each has a root context, and so a session with the companion, on
/// every worker and on the main thread.
pub const PLUGINS: u32 = 2;

/// What differs from one gateway to another.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Names this Envoy in logs and in the companion's status.
    pub node: String,
    /// Where clients connect.
    pub gateway: SocketAddr,
    /// Envoy's admin interface. It has no authentication: loopback, unless something else protects it.
    pub admin: SocketAddr,
    /// The companion's gRPC side.
    pub companion: Address,
    /// How it is spoken to; `None`: in the clear.
    pub tls: Option<Tls>,
    /// In the order of the policy.
    pub pools: Vec<Pool>,
    /// Where Envoy reads what pools there are, as [`crate::folder`] writes it, and goes on reading; `None`: `pools` are
    /// part of the bootstrap and never change.
    pub folder: Option<PathBuf>,
    /// The filter's limit on a request's body, in bytes; Envoy's is set above it.
    pub body_bytes_max: u64,
    /// Ends a stream on which nothing moves, the paused ones too: above the longest wait in any queue.
    pub stream_idle_timeout: Duration,
    /// The heap at which Envoy begins to refuse, in bytes.
    pub heap_bytes_max: u64,
    /// Connections of clients at a time.
    pub connections_max: u64,
    /// The wasm module, a path as Envoy will see it.
    pub filter: PathBuf,
    /// The filter's configuration, handed over as JSON text. What tells one listener from the other (`requeue`,
    /// `reenters`) is put in here.
    pub plugin: Value,
    /// Filters of Envoy's own that see a client's request before Penstock's does, as a bootstrap has them. What enters again
    /// doesn't pass them a second time.
    pub http_filters: Vec<Value>,
}

/// A pool and where its model servers are.
#[derive(Clone, Debug)]
pub struct Pool {
    /// The value of the pool's header.
    pub name: String,
    /// All that may ever be granted; an address that isn't here is skipped by Envoy.
    pub endpoints: Vec<SocketAddr>,
    /// Servers that are no longer granted: what was granted before still finds them, what passes ungated doesn't.
    pub leaving: Vec<SocketAddr>,
}

/// Where the companion listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// TCP.
    Tcp(SocketAddr),
    /// A unix socket's path.
    Unix(PathBuf),
}

/// Mutual TLS to the companion: PEM files, as Envoy will see them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// What Envoy shows.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Who must have signed what the companion shows.
    pub ca: PathBuf,
}

/// How long a stream may stand still: `wait_max`, the longest `max(ttl, no_endpoint_ttl)` of any pool, then
/// `hold`, the longest time it waits for an absent companion, then a minute of grace.
pub fn stream_idle_timeout(wait_max: Duration, hold: Duration) -> Duration {
    wait_max
        .saturating_add(hold)
        .saturating_add(Duration::from_secs(60))
}

/// The bootstrap as Envoy's JSON.
pub fn document(settings: &Settings) -> Value {
    let mut clusters: Vec<Value> = match &settings.folder {
        None => settings.pools.iter().map(clusters::listed).collect(),
        Some(_) => Vec::new(),
    };
    clusters.push(clusters::companion(settings));
    let mut document = json!({
        "node": { "id": settings.node, "cluster": "penstock" },
        "admin": { "address": socket(settings.admin) },
        // Without it no internal listener is opened.
        "bootstrap_extensions": [{
            "name": "envoy.bootstrap.internal_listener",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.bootstrap.internal_listener.v3.InternalListener",
            },
        }],
        "static_resources": {
            "listeners": [listener::gateway(settings), listener::requeue(settings)],
            "clusters": clusters,
        },
        "overload_manager": overload(settings),
    });
    if let Some(folder) = &settings.folder {
        document["dynamic_resources"] =
            json!({ "cds_config": folder::source(&folder.join(folder::CLUSTERS)) });
    }
    document
}

/// A pool's cluster, which reads its servers from `endpoints`.
pub(crate) fn watched_cluster(pool: &Pool, endpoints: &Path) -> Value {
    clusters::watched(pool, endpoints)
}

/// A pool's servers, as the resource of a file.
pub(crate) fn endpoints(pool: &Pool) -> Value {
    clusters::endpoints(pool)
}

/// The bootstrap as YAML, with `note` (any number of lines) as a comment on top.
///
/// # Errors
/// When the document has no YAML form, which no settings lead to.
pub fn yaml(settings: &Settings, note: &str) -> Result<String, Error> {
    let mut text = String::new();
    for line in note.lines() {
        text.push_str(format!("# {line}").trim_end());
        text.push('\n');
    }
    // Quoted, not folded: a long string stays one line, and byte for byte what it was.
    let mut options = serde_saphyr::SerializerOptions::default();
    options.prefer_block_scalars = false;
    text.push_str(&serde_saphyr::to_string_with_options(
        &document(settings),
        options,
    )?);
    Ok(text)
}

/// A bootstrap couldn't be written down.
#[derive(Debug, thiserror::Error)]
#[error("the Envoy bootstrap can't be written as YAML: {0}")]
pub struct Error(#[from] serde_saphyr::SerializeError);

/// Envoy's own limit on a body, in bytes.
fn body_limit(settings: &Settings) -> u64 {
    settings.body_bytes_max.saturating_add(limits::BODY_SLACK_BYTES)
}

/// Paused bodies live in Envoy's heap, so the heap has a limit; gentle measures come first.
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

fn socket(address: SocketAddr) -> Value {
    json!({ "socket_address": { "address": address.ip().to_string(), "port_value": address.port() } })
}

/// Envoy's notation: decimal seconds with an `s`.
fn seconds(duration: Duration) -> String {
    format!("{}s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("valid")
    }

    fn settings() -> Settings {
        Settings {
            node: "n".into(),
            gateway: at("127.0.0.1:8080"),
            admin: at("127.0.0.1:9901"),
            companion: Address::Tcp(at("127.0.0.1:9190")),
            tls: None,
            pools: vec![
                Pool {
                    name: "a".into(),
                    endpoints: vec![at("127.0.0.1:1"), at("[::1]:2")],
                    leaving: vec![],
                },
                Pool {
                    name: "b".into(),
                    endpoints: vec![],
                    leaving: vec![],
                },
            ],
            folder: None,
            body_bytes_max: 32 << 20,
            stream_idle_timeout: stream_idle_timeout(Duration::from_millis(90_500), Duration::from_secs(5)),
            heap_bytes_max: limits::HEAP_BYTES_MAX,
            connections_max: limits::CONNECTIONS_MAX,
            filter: "/f.wasm".into(),
            plugin: json!({ "companion": COMPANION_CLUSTER }),
            http_filters: Vec::new(),
        }
    }

    fn look<'a>(document: &'a Value, pointer: &str) -> &'a Value {
        document
            .pointer(pointer)
            .unwrap_or_else(|| panic!("{pointer} isn't in {document:#}"))
    }

    const MANAGER: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";

    #[test]
    fn a_body_may_wait_before_any_route_is_chosen_and_be_sent_twice_after() {
        let document = document(&settings());
        // A paused stream has only the listener's limit; the router keeps a body for a retry within the route's.
        for pointer in [
            "/static_resources/listeners/0/per_connection_buffer_limit_bytes".to_owned(),
            format!("{MANAGER}/route_config/virtual_hosts/0/request_body_buffer_limit"),
        ] {
            assert_eq!(
                look(&document, &pointer),
                &json!((32 << 20) + limits::BODY_SLACK_BYTES),
                "{pointer}"
            );
        }
        let huge = super::document(&Settings {
            body_bytes_max: u64::MAX,
            ..settings()
        });
        assert_eq!(
            look(
                &huge,
                "/static_resources/listeners/0/per_connection_buffer_limit_bytes"
            ),
            u32::MAX
        );
    }

    #[test]
    fn streams_end_by_standing_still_and_not_by_lasting_long() {
        let document = document(&settings());
        assert_eq!(
            look(&document, &format!("{MANAGER}/stream_idle_timeout")),
            "155.5s"
        );
        assert_eq!(
            look(
                &document,
                &format!("{MANAGER}/route_config/virtual_hosts/0/routes/0/route/timeout")
            ),
            "0s"
        );
    }

    #[test]
    fn each_pool_has_a_cluster_and_the_companion_one_that_is_probed() {
        let document = document(&settings());
        let clusters = look(&document, "/static_resources/clusters")
            .as_array()
            .expect("a list");
        let names: Vec<_> = clusters
            .iter()
            .filter_map(|cluster| cluster["name"].as_str())
            .collect();
        assert_eq!(names, ["a", "b", COMPANION_CLUSTER]);
        let hosts = look(
            &document,
            "/static_resources/clusters/0/load_assignment/endpoints/0/lb_endpoints",
        );
        assert_eq!(
            hosts[1]["endpoint"]["address"],
            json!({ "socket_address": { "address": "::1", "port_value": 2 } })
        );
        let keepalive = "/static_resources/clusters/2/typed_extension_protocol_options/\
                         envoy.extensions.upstreams.http.v3.HttpProtocolOptions/\
                         explicit_http_config/http2_protocol_options/connection_keepalive";
        assert_eq!(
            look(&document, keepalive),
            &json!({ "interval": "2s", "timeout": "2s" })
        );
    }

    #[test]
    fn who_enters_again_comes_from_inside_and_may_wait_as_long_again() {
        let document = document(&settings());
        let listener = look(&document, "/static_resources/listeners/1");
        assert_eq!(listener["internal_listener"], json!({}));
        assert_eq!(
            REQUEUE_HOST,
            format!("envoy://{}/", listener["name"].as_str().expect("named"))
        );
        assert!(listener.get("address").is_none(), "no socket: {listener}");
        let manager = look(listener, "/filter_chains/0/filters/0/typed_config");
        assert_eq!(
            manager["use_remote_address"], false,
            "the client's address is the last of x-forwarded-for"
        );
        let plugin = look(manager, "/http_filters/0/typed_config/config/configuration/value");
        let plugin: Value = serde_json::from_str(plugin.as_str().expect("text")).expect("JSON");
        assert_eq!(
            plugin,
            json!({ "companion": COMPANION_CLUSTER, "requeue": REQUEUE_HOST, "routes_tell": true, "reenters": true })
        );
        let gateway = look(&document, &format!("{MANAGER}/route_config"));
        assert_eq!(
            &manager["route_config"], gateway,
            "the same routes, for the same grants"
        );
        let idle: Vec<_> = gateway["virtual_hosts"][0]["routes"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|route| route["route"]["idle_timeout"].as_str())
            .collect();
        assert_eq!(idle, ["311s"; 3], "lists of one to three servers");
    }

    #[test]
    fn the_companion_is_spoken_to_in_the_clear_unless_there_are_certificates() {
        const CLUSTER: &str = "/static_resources/clusters/2";
        assert_eq!(
            document(&settings()).pointer(&format!("{CLUSTER}/transport_socket")),
            None
        );
        let tls = Tls {
            cert: "/c.pem".into(),
            key: "/k.pem".into(),
            ca: "/a.pem".into(),
        };
        let document = document(&Settings {
            tls: Some(tls),
            ..settings()
        });
        let context = look(
            &document,
            &format!("{CLUSTER}/transport_socket/typed_config/common_tls_context"),
        );
        let shown = &context["tls_certificates"][0];
        assert_eq!(shown["certificate_chain"]["filename"], "/c.pem");
        assert_eq!(shown["private_key"]["filename"], "/k.pem");
        assert_eq!(context["validation_context"]["trusted_ca"]["filename"], "/a.pem");
    }

    #[test]
    fn filters_of_a_user_come_before_ours_and_only_where_clients_do() {
        let names = |document: &Value, listener: usize| -> Vec<String> {
            let filters = format!(
                "/static_resources/listeners/{listener}/filter_chains/0/filters/0/typed_config/http_filters"
            );
            let filters = look(document, &filters).as_array().expect("a list").iter();
            filters
                .filter_map(|filter| filter["name"].as_str().map(str::to_owned))
                .collect()
        };
        let document = document(&Settings {
            http_filters: vec![json!({ "name": "a" }), json!({ "name": "b" })],
            ..settings()
        });
        assert_eq!(
            names(&document, 0),
            ["a", "b", "penstock", "envoy.filters.http.router"]
        );
        assert_eq!(names(&document, 1), ["penstock", "envoy.filters.http.router"]);
    }

    #[test]
    fn the_filter_comes_first_and_the_last_route_leads_nowhere() {
        let document = document(&settings());
        let filter = look(
            &document,
            &format!("{MANAGER}/http_filters/0/typed_config/config"),
        );
        assert_eq!(filter["allow_on_headers_stop_iteration"], true);
        assert_eq!(
            filter["configuration"]["value"],
            r#"{"companion":"penstock~companion","requeue":"envoy://penstock-requeue/","routes_tell":true}"#
        );
        let routes = look(
            &document,
            &format!("{MANAGER}/route_config/virtual_hosts/0/routes"),
        );
        let routes = routes.as_array().expect("a list");
        assert_eq!(routes.len(), 8 + 1);
        let (last, pools) = routes.split_last().expect("not empty");
        assert!(
            pools
                .iter()
                .all(|route| route["match"]["headers"][0]["name"] == "x-penstock-pool")
        );
        assert!(last.get("route").is_none() && last["direct_response"]["status"] == 503);
    }

    #[test]
    fn with_a_folder_pools_are_read_from_there_and_the_companion_is_known_from_the_start() {
        let document = document(&Settings {
            folder: Some("/run/penstock".into()),
            ..settings()
        });
        let source = look(&document, "/dynamic_resources/cds_config/path_config_source");
        assert_eq!(source, &json!({ "path": "/run/penstock/clusters.json" }));
        let clusters = look(&document, "/static_resources/clusters").as_array();
        let names: Vec<_> = clusters.expect("a list").iter().map(|it| &it["name"]).collect();
        assert_eq!(names, [COMPANION_CLUSTER]);
        let routes = format!("{MANAGER}/route_config");
        assert_eq!(
            look(&document, &routes),
            look(&super::document(&settings()), &routes),
            "the same routes whatever pools there are"
        );
    }
}
