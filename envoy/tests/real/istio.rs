//! The `EnvoyFilter` in a real Envoy: its patches are applied to a listener of the form that Istio gives to a gateway, in the way
//! that Istio documents for each operation. Istio itself doesn't run here.

use penstock_envoy::gateway_resources::{self, Listener, Servers, istio};

use super::*;

/// A gateway's bootstrap before the patches: a listener, one virtual host and a route of another application.
fn before(settings: &Settings) -> Value {
    json!({
        "admin": { "address": socket(settings.admin) },
        "static_resources": {
            "clusters": [],
            "listeners": [{
                "name": "0.0.0.0_80",
                "address": socket(settings.gateway),
                "filter_chains": [{ "filters": [{
                    "name": "envoy.filters.network.http_connection_manager",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.\
                                  HttpConnectionManager",
                        "stat_prefix": "outbound",
                        "normalize_path": true,
                        "route_config": { "name": "http.80", "virtual_hosts": [{
                            "name": "*:80",
                            "domains": ["*"],
                            "routes": [{
                                "match": { "prefix": "/other" },
                                "direct_response": { "status": 200, "body": { "inline_string": "another application" } },
                            }],
                        }] },
                        "http_filters": [{
                            "name": "envoy.filters.http.router",
                            "typed_config": {
                                "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
                            },
                        }],
                    },
                }] }],
            }],
        },
    })
}

fn socket(address: SocketAddr) -> Value {
    json!({ "socket_address": { "address": address.ip().to_string(), "port_value": address.port() } })
}

fn merge(into: &mut Value, more: &Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (Value::Array(into), Value::Array(more)) => into.extend(more.iter().cloned()),
        (into, more) => *into = more.clone(),
    }
}

const LISTENER: &str = "/static_resources/listeners/0";
const MANAGER: &str = "/static_resources/listeners/0/filter_chains/0/filters/0";

fn apply(patch: &Value, bootstrap: &mut Value) {
    let value = &patch["patch"]["value"];
    let kind = patch["applyTo"].as_str().expect("text");
    let pointer = match kind {
        "CLUSTER" => "/static_resources/clusters".into(),
        "LISTENER" => LISTENER.into(),
        "NETWORK_FILTER" => MANAGER.into(),
        "HTTP_FILTER" => format!("{MANAGER}/typed_config/http_filters"),
        "HTTP_ROUTE" => format!("{MANAGER}/typed_config/route_config/virtual_hosts/0/routes"),
        other => panic!("{other}"),
    };
    let target = bootstrap.pointer_mut(&pointer).expect("a part of the bootstrap");
    match (patch["patch"]["operation"].as_str().expect("text"), target) {
        // The router is the last filter.
        ("MERGE", Value::Array(filters)) => merge(filters.last_mut().expect("the router"), value),
        ("MERGE", target) => merge(target, value),
        ("ADD", Value::Array(list)) => list.push(value.clone()),
        ("INSERT_FIRST", Value::Array(routes)) => routes.insert(0, value.clone()),
        ("INSERT_BEFORE", Value::Array(filters)) => filters.insert(filters.len() - 1, value.clone()),
        (other, _) => panic!("{other} of {kind}"),
    }
}

/// An Envoy with all patches.
async fn gateway(servers: Servers) -> Gateway {
    let dir = TempDir::new().expect("a folder");
    let settings = settings(dir.path(), vec![]);
    let gateway = gateway_resources::Gateway {
        namespace: "models".into(),
        name: "gateway".into(),
        listeners: Vec::<Listener>::new(),
        requeue: false,
    };
    let pool =
        gateway_resources::Pool { name: "chat".into(), servers, upstream: bootstrap::Upstream::default() };
    let resource = istio(&settings, &gateway, &[pool]);
    let mut bootstrap = before(&settings);
    let patches = resource["spec"]["configPatches"].as_array().expect("a list");
    for patch in patches {
        apply(patch, &mut bootstrap);
    }
    let file = dir.path().join("merged.json");
    std::fs::write(&file, bootstrap.to_string()).expect("written");
    run::validate(&envoy().path, &file).expect("Envoy accepts the patches");
    Gateway::run(dir, &settings, bootstrap, &[0]).await
}

#[tokio::test]
async fn granted_request_goes_to_its_list_and_others_reach_no_server() {
    let (alive, mut seen) = server(false).await;
    let (other, mut unseen) = server(false).await;
    let dead = free();
    let gateway = gateway(Servers::Addresses(vec![alive, other, dead])).await;
    let (status, answer) = gateway.granted(&[dead, alive]).await;
    assert!(status == "200" && answer.ends_with(&alive.to_string()), "{answer}");
    assert!(answer.contains("x-request-id: mine"), "{answer}");
    assert!(answer.contains(&format!("x-gateway-destination-endpoint-served: {alive}")), "{answer}");
    let (status, answer) = gateway.granted(&[free()]).await;
    assert_eq!(status, "503");
    assert!(answer.contains("no_endpoints") && answer.contains("gateway-resources"), "{answer}");
    assert_eq!((drained(&mut seen), drained(&mut unseen)), (1, 0));

    let (status, answer) = gateway.get("/v1/chat/completions", &[]).await;
    assert!(status == "503" && answer.contains("gateway_unavailable"), "{answer}");
    let (status, answer) = gateway.get("/other", &[]).await;
    assert!(status == "200" && answer.contains("another application"), "{answer}");
    assert_eq!((drained(&mut seen), drained(&mut unseen)), (0, 0));

    for _ in 0..8 {
        let (status, _) = gateway.get("/v1/models", &["x-penstock-pool: chat".into()]).await;
        assert!(["200", "503"].contains(&status.as_str()), "one of three is dead: {status}");
    }
    assert!(drained(&mut seen) > 0 && drained(&mut unseen) > 0, "round robin");
}

#[tokio::test]
async fn servers_are_found_by_dns() {
    let (alive, mut seen) = server(false).await;
    let servers =
        Servers::Dns { name: "localhost".into(), port: alive.port(), refresh: Duration::from_secs(5) };
    let gateway = gateway(servers).await;
    gateway.until("chat", alive, "200", &alive.to_string()).await;
    assert!(drained(&mut seen) > 0);
}
