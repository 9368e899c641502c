//! The contents of a Gateway's resources, by kind of pool and by flag.

use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::bootstrap::{Address, Code, Companions, Module, RemoteModule, Source};
use crate::limits;

const POOLS_PER_ROUTE: usize = 7;

fn settings() -> Settings {
    Settings {
        node: "models/eg".into(),
        gateway: ([127, 0, 0, 1], 0).into(),
        admin: ([127, 0, 0, 1], 0).into(),
        access_log: None,
        certificate: None,
        cors: None,
        keep_alive: None,
        companions: Companions::One(Address::Tcp(([10, 0, 0, 1], 9190).into())),
        tls: None,
        pools: Vec::new(),
        folder: None,
        body_bytes_max: 1 << 20,
        heap_bytes_max: limits::HEAP_BYTES_MAX,
        connections_max: limits::CONNECTIONS_MAX,
        module: Module {
            code: Code::Wasm,
            source: Source::Server(RemoteModule {
                host: "penstock.models".into(),
                port: 9090,
                path: "/penstock.wasm".into(),
                sha256: "ab".repeat(32),
            }),
        },
        plugin: json!({ "companion": "penstock~companion" }),
        metadata: Vec::new(),
        http_filters: Vec::new(),
    }
}

fn gateway(requeue: bool) -> Gateway {
    let listener = |name: &str, port| Listener { name: name.into(), port };
    Gateway {
        namespace: "models".into(),
        name: "eg".into(),
        listeners: vec![listener("http", Some(80)), listener("llm", None)],
        requeue,
    }
}

fn listed(name: &str, servers: u16) -> Pool {
    let addresses = (1..=servers).map(|port| ([127, 0, 0, 1], port).into());
    Pool {
        name: name.into(),
        servers: Servers::Addresses(addresses.collect()),
        upstream: Upstream::default(),
    }
}

fn kinds(resources: &[Value]) -> Vec<&str> {
    let kinds = resources.iter().filter_map(|resource| resource["kind"].as_str());
    kinds.collect()
}

fn only<'a>(resources: &'a [Value], kind: &str) -> &'a Value {
    let mut found = resources.iter().filter(|resource| resource["kind"] == kind);
    let first = found.next().unwrap_or_else(|| panic!("a {kind}"));
    assert!(found.next().is_none(), "one {kind}");
    first
}

/// The patches of one resource of Envoy.
fn patches<'a>(resources: &'a [Value], name: &str) -> Vec<&'a Value> {
    let patches = only(resources, "EnvoyPatchPolicy")["spec"]["jsonPatches"].as_array();
    let patches = patches.expect("a list").iter();
    patches.filter(|patch| patch["name"] == name).collect()
}

#[test]
fn every_resource_is_in_the_namespace_of_the_gateway() {
    let resources = envoy_gateway(&settings(), &gateway(true), &[listed("chat", 2)]);
    assert_eq!(
        kinds(&resources),
        [
            "HTTPRoute",
            "HTTPRouteFilter",
            "Backend",
            "BackendTrafficPolicy",
            "ClientTrafficPolicy",
            "EnvoyPatchPolicy",
            "EnvoyProxy",
        ]
    );
    for resource in &resources {
        assert_eq!(resource["metadata"]["namespace"], "models", "{resource}");
    }
    let without = envoy_gateway(&settings(), &gateway(false), &[listed("chat", 2)]);
    assert_eq!(kinds(&without), kinds(&resources)[..6]);
}

#[test]
fn every_route_ends_with_the_rule_that_replies_503() {
    let pools: Vec<Pool> = (0..=POOLS_PER_ROUTE).map(|i| listed(&format!("p{i}"), 1)).collect();
    let resources = envoy_gateway(&settings(), &gateway(false), &pools);
    let routes: Vec<_> = resources.iter().filter(|resource| resource["kind"] == "HTTPRoute").collect();
    let rules = routes.iter().map(|route| route["spec"]["rules"].as_array().expect("a list"));
    let rules: Vec<_> = rules.collect();
    assert_eq!(rules.iter().map(|rules| rules.len()).collect::<Vec<_>>(), [15, 3], "16 at most");
    for rules in rules {
        let last = rules.last().expect("a rule");
        let reference = &last["filters"][0]["extensionRef"];
        assert_eq!(reference["name"], only(&resources, "HTTPRouteFilter")["metadata"]["name"]);
        assert_eq!(last["matches"], json!([{ "path": { "type": "PathPrefix", "value": "/" } }]));
    }
    for route in &routes {
        assert_eq!(route["spec"]["parentRefs"], json!([{ "name": "eg" }]), "all listeners");
    }
    let targets = only(&resources, "BackendTrafficPolicy")["spec"]["targetRefs"].as_array();
    let targets = targets.expect("a list").iter().map(|target| &target["name"]);
    assert!(targets.eq(routes.iter().map(|route| &route["metadata"]["name"])), "all routes");
    let reply = &only(&resources, "HTTPRouteFilter")["spec"]["directResponse"];
    assert_eq!(reply["statusCode"], 503);
    let body: Value = serde_json::from_str(reply["body"]["inline"].as_str().expect("text")).expect("JSON");
    assert_eq!(body["error"]["code"], "gateway_unavailable");
    let message = body["error"]["message"].as_str().expect("text");
    assert!(message.contains("gateway-resources"), "what to do: {message}");
}

#[test]
fn a_listener_is_patched_under_each_name_that_it_can_have() {
    let resources = envoy_gateway(&settings(), &gateway(false), &[listed("chat", 2)]);
    let of_name = patches(&resources, "models/eg/http");
    assert_eq!(of_name.len(), patches(&resources, "tcp-80").len());
    assert_eq!(of_name.len(), patches(&resources, "models/eg/llm").len());
    let first = &of_name[0]["operation"];
    let decoded = json!("envoy.filters.http.decompressor.gzip");
    assert_eq!((&first["op"], &first["value"]["name"]), (&json!("replace"), &decoded), "before Penstock's");
    let mut filters = of_name.iter().map(|patch| &patch["operation"]["value"]);
    let filter = filters.find(|value| value["name"] == "penstock").expect("the filter");
    let code = &filter["typed_config"]["config"]["vm_config"]["code"]["remote"];
    assert_eq!(code["http_uri"]["uri"], "http://penstock.models:9090/penstock.wasm");
    assert_eq!(code["sha256"], "ab".repeat(32));
    let module = patches(&resources, "penstock~module");
    assert_eq!(module[0]["operation"]["value"]["type"], "STRICT_DNS");
}

#[test]
fn only_the_cluster_with_lists_is_closed_and_requeues() {
    let pools = [listed("chat", 2), listed("code", 1)];
    for requeue in [false, true] {
        let resources = envoy_gateway(&settings(), &gateway(requeue), &pools);
        for (rule, count) in [(0, 1), (1, 0), (2, 1), (3, 0)] {
            let name = format!("httproute/models/penstock-eg-pools/rule/{rule}");
            let expected = if requeue { count * 3 } else { count };
            assert_eq!(patches(&resources, &name).len(), expected, "{name}");
        }
        assert_eq!(patches(&resources, "penstock-requeue").len(), usize::from(requeue));
    }
    let resources = envoy_gateway(&settings(), &gateway(true), &pools);
    let listener = &patches(&resources, "penstock-requeue")[0]["operation"]["value"];
    let routes = listener
        .pointer("/filter_chains/0/filters/0/typed_config/route_config/virtual_hosts/0/routes")
        .and_then(Value::as_array)
        .expect("routes");
    let clusters: Vec<_> = routes.iter().map(|route| route["route"]["cluster"].as_str()).collect();
    let rule = |rule: u32| format!("httproute/models/penstock-eg-pools/rule/{rule}");
    let expected = [0, 0, 1, 2, 2, 3].map(rule);
    let expected = expected.iter().map(|name| Some(name.as_str())).chain([None]);
    assert!(expected.eq(clusters.iter().copied()), "{clusters:?}");
}

#[test]
fn each_kind_of_servers_becomes_backends() {
    let service = Pool {
        name: "embed".into(),
        servers: Servers::Service { namespace: "others".into(), name: "vllm".into(), port: 8000 },
        upstream: Upstream::default(),
    };
    let dns = Pool {
        name: "code".into(),
        servers: Servers::Dns {
            name: "vllm.example".into(),
            port: 8000,
            refresh: Duration::from_millis(1_500),
        },
        upstream: Upstream::default(),
    };
    let resources = envoy_gateway(&settings(), &gateway(false), &[listed("chat", 65), service, dns]);
    let backends: Vec<_> = resources.iter().filter(|resource| resource["kind"] == "Backend").collect();
    let counts = backends.iter().map(|backend| backend["spec"]["endpoints"].as_array().map(Vec::len));
    assert_eq!(counts.collect::<Vec<_>>(), [Some(64), Some(1), Some(1)]);
    let rules = &only(&resources, "HTTPRoute")["spec"]["rules"];
    let weights = rules[0]["backendRefs"].as_array().expect("a list").iter();
    assert!(weights.map(|reference| &reference["weight"]).eq([&json!(64), &json!(1)]));
    assert_eq!(
        rules[2]["backendRefs"],
        json!([{ "kind": "Service", "namespace": "others", "name": "vllm", "port": 8000 }])
    );
    assert_eq!(only(&resources, "ReferenceGrant")["metadata"]["namespace"], "others");
    let dns = &only(&resources, "BackendTrafficPolicy")["spec"]["dns"];
    assert_eq!((&dns["dnsRefreshRate"], &dns["respectDnsTtl"]), (&json!("1s500ms"), &json!(false)));
}

#[test]
fn istio_has_one_resource_whose_routes_are_in_reverse() {
    let pools = [listed("chat", 2), listed("code", 1)];
    let resource = istio(&settings(), &gateway(false), &pools);
    assert_eq!(resource["kind"], "EnvoyFilter");
    let patches = resource["spec"]["configPatches"].as_array().expect("a list");
    let applied = |kind: &str| patches.iter().filter(|patch| patch["applyTo"] == kind).collect::<Vec<_>>();
    let names = |kind: &str| {
        let values = applied(kind).into_iter().map(|patch| patch["patch"]["value"]["name"].clone());
        values.collect::<Vec<_>>()
    };
    assert_eq!(
        names("CLUSTER"),
        ["penstock~companion", "penstock~module", "chat", "chat~ungated", "code", "code~ungated"]
    );
    let routes = applied("HTTP_ROUTE");
    let routes = routes.iter().map(|route| {
        let operation = route["patch"]["operation"].as_str().expect("text");
        (operation, route["patch"]["value"]["route"]["cluster"].as_str())
    });
    assert_eq!(
        routes.collect::<Vec<_>>(),
        [
            ("INSERT_FIRST", Some("chat~ungated")),
            ("INSERT_FIRST", Some("chat")),
            ("INSERT_FIRST", Some("code~ungated")),
            ("INSERT_FIRST", Some("code")),
            ("ADD", None),
        ]
    );
    let ports = applied("HTTP_FILTER");
    let ports: Vec<_> = ports.iter().map(|patch| patch["match"]["listener"]["portNumber"].as_u64()).collect();
    assert_eq!(ports, [Some(80); 5], "of the listener with a port");
    assert_eq!(names("HTTP_FILTER").last(), Some(&json!("penstock")), "next to the router");
}

#[test]
fn the_way_to_the_servers_is_in_the_resources() {
    let mut pool = listed("chat", 1);
    pool.upstream.http2 = true;
    pool.upstream.headers = vec![("authorization".into(), "Bearer 100%".into())];
    pool.upstream.removed_headers = vec!["authorization".into(), "x-api-key".into()];
    let resources = envoy_gateway(&settings(), &gateway(false), std::slice::from_ref(&pool));
    assert_eq!(only(&resources, "Backend")["spec"]["appProtocols"], json!(["gateway.envoyproxy.io/h2c"]));
    for rule in [0, 1] {
        let modifier =
            &only(&resources, "HTTPRoute")["spec"]["rules"][rule]["filters"][0]["requestHeaderModifier"];
        assert_eq!(modifier["set"], json!([{ "name": "authorization", "value": "Bearer 100%" }]));
        assert!(modifier["remove"].as_array().expect("a list").contains(&json!("x-api-key")), "{modifier}");
    }
    pool.upstream.tls = Some(crate::bootstrap::UpstreamTls {
        authorities: Some("/ca.pem".into()),
        identity: None,
        server_name: None,
        digest: 0,
    });
    let resource = istio(&settings(), &gateway(false), &[pool]).to_string();
    for part in ["UpstreamTlsContext", "IP_ADDRESS", "Bearer 100%%", "http2_protocol_options"] {
        assert!(resource.contains(part), "{part}: {resource}");
    }
}

fn native_settings() -> Settings {
    let Source::Server(mut module) = settings().module.source else { panic!("a module by HTTP") };
    module.path = "/penstock.so".into();
    Settings { module: Module { code: Code::Native, source: Source::Server(module) }, ..settings() }
}

#[test]
fn the_native_filter_needs_no_patch() {
    let pools: Vec<Pool> = (0..=POOLS_PER_ROUTE).map(|i| listed(&format!("p{i}"), 1)).collect();
    let resources = envoy_gateway(&native_settings(), &gateway(false), &pools);
    let kinds = kinds(&resources);
    assert_eq!(kinds[kinds.len() - 2..], ["EnvoyExtensionPolicy", "EnvoyProxy"]);
    assert!(!kinds.contains(&"EnvoyPatchPolicy"), "{kinds:?}");
    let extension = &only(&resources, "EnvoyExtensionPolicy")["spec"];
    let routes = resources.iter().filter(|resource| resource["kind"] == "HTTPRoute");
    let routes: Vec<_> = routes.map(|route| &route["metadata"]["name"]).collect();
    let targets = extension["targetRefs"].as_array().expect("a list");
    assert!(
        targets.iter().map(|target| &target["name"]).eq(routes.iter().copied()),
        "on Penstock's own routes"
    );
    let module = &extension["dynamicModule"][0];
    assert_eq!(module["config"], json!({ "companion": "penstock~companion", "restarts": true }));
    let proxy = &only(&resources, "EnvoyProxy")["spec"];
    let registered = &proxy["dynamicModules"][0];
    assert_eq!((&registered["name"], &registered["doNotClose"]), (&module["name"], &json!(true)));
    let remote = json!({ "url": "http://penstock.models:9090/penstock.so", "sha256": "ab".repeat(32) });
    assert_eq!(registered["source"], json!({ "type": "Remote", "remote": remote }));
    let bootstrap: Value =
        serde_json::from_str(proxy["bootstrap"]["value"].as_str().expect("text")).expect("JSON");
    assert_eq!(bootstrap["static_resources"]["clusters"][0]["name"], "penstock~companion");
    let policy = &only(&resources, "BackendTrafficPolicy")["spec"];
    assert_eq!(policy["loadBalancer"]["endpointOverride"]["extractFrom"].as_array().map(Vec::len), Some(1));
    assert_eq!(policy["retry"]["retryOn"]["triggers"], json!(["cancelled"]), "a router that keeps the body");

    let file = Settings { module: Module::file(Code::Native, "/lib/penstock.so"), ..settings() };
    let resources = envoy_gateway(&file, &gateway(false), &pools);
    let source = &only(&resources, "EnvoyProxy")["spec"]["dynamicModules"][0]["source"];
    assert_eq!(*source, json!({ "type": "Local", "local": { "path": "/lib/penstock.so" } }));
}
