//! Tests of `replicas`: the typed values of each form, and the error of each wrong one.

use std::time::Duration;

use super::assert_error;
use crate::{Companions, Config, Document, Environment, Lease, Per, Replicas};

const POOLS: &str = "pools: [{name: a, endpoints: {static: ['127.0.0.1:8001']}}]\n";
const TLS: &str = "tls: {cert: c, key: k, client_ca: a}\n";

fn replicas(head: &str) -> Replicas {
    let config =
        Config::parse(&format!("{head}\n{POOLS}"), "f.yaml").unwrap_or_else(|error| panic!("{error}"));
    config.replicas.expect("the document has the key")
}

fn address(text: &str) -> std::net::SocketAddr {
    text.parse().expect("an address")
}

#[test]
fn a_document_without_the_key_has_one_companion() {
    assert_eq!(Config::parse(POOLS, "f.yaml").expect("valid").replicas, None);
}

#[test]
fn advertise_prefix_and_duration_have_defaults() {
    let replicas = replicas(
        "replicas: {companions: ['127.0.0.1:9190', '127.0.0.1:9290'], lease: {etcd: {endpoints: ['http://127.0.0.1:2379']}}}",
    );
    assert_eq!(replicas.advertise, address("127.0.0.1:9190"));
    assert_eq!((replicas.duration, replicas.per), (Duration::from_secs(3), Per::Gateway));
    assert_eq!(
        replicas.companions,
        Companions::List(vec![address("127.0.0.1:9190"), address("127.0.0.1:9290")])
    );
    assert_eq!(
        replicas.lease,
        Lease::Etcd { endpoints: vec!["http://127.0.0.1:2379".into()], prefix: "/penstock".into() }
    );
}

#[test]
fn every_form_of_companions_and_lease_is_read() {
    let by_name = replicas(&format!(
        "{TLS}listen: {{grpc: '0.0.0.0:9190'}}\n\
         replicas: {{companions: {{dns: {{name: companions.models, port: 9190}}}}, advertise: '10.1.2.3:9190', \
         lease: {{kubernetes: {{namespace: models, name: penstock}}}}, duration: 15s, per: pool}}"
    ));
    assert_eq!(
        by_name,
        Replicas {
            companions: Companions::Dns { name: "companions.models".into(), port: 9190 },
            advertise: address("10.1.2.3:9190"),
            lease: Lease::Kubernetes { namespace: "models".into(), name: "penstock".into() },
            per: Per::Pool,
            duration: Duration::from_secs(15),
        }
    );
    let file = replicas("replicas: {companions: ['127.0.0.1:9190'], lease: {file: /run/penstock/lease}}");
    assert_eq!(file.lease, Lease::File("/run/penstock/lease".into()));
    let slash = replicas(
        "replicas: {companions: ['127.0.0.1:9190'], lease: {etcd: {endpoints: ['https://e/'], prefix: /a/b/}}}",
    );
    assert!(matches!(slash.lease, Lease::Etcd { prefix, .. } if prefix == "/a/b"));
}

#[test]
fn companions_that_share_a_file_differ_by_environment_variables() {
    let text = format!("replicas: {{lease: {{file: l}}}}\n{POOLS}");
    let parse = |variables: &[(&str, &str)]| {
        let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
        Document::parse_with(&text, "f.yaml", &Environment::new(variables)).map_err(|error| error.to_string())
    };
    let companions = ("PENSTOCK_REPLICAS__COMPANIONS", "['127.0.0.1:9190', '127.0.0.1:9290']");
    let document = parse(&[companions, ("PENSTOCK_REPLICAS__ADVERTISE", "127.0.0.1:9290")]).expect("valid");
    let replicas = document.config().replicas.clone().expect("given");
    assert_eq!(replicas.advertise, address("127.0.0.1:9290"));
    let message =
        parse(&[companions, ("PENSTOCK_REPLICAS__ADVERTISE", "127.0.0.1:9390")]).expect_err("unlisted");
    assert!(
        message.starts_with("environment: PENSTOCK_REPLICAS__ADVERTISE: replicas.advertise: "),
        "{message}"
    );
    let whole = "{companions: ['127.0.0.1:9190'], lease: {file: other}}";
    let document = parse(&[("PENSTOCK_REPLICAS", whole)]).expect("valid");
    assert_eq!(document.json()["replicas"]["lease"]["file"], "other");
}

#[test]
fn wrong_companions_and_addresses_are_errors() {
    for (keys, key, word) in [
        ("{lease: {file: l}}", "replicas.companions", "missing"),
        ("{companions: [], lease: {file: l}}", "replicas.companions", "at least one"),
        ("{companions: 5, lease: {file: l}}", "replicas.companions", "{dns: {name: NAME"),
        ("{companions: [companion-1:9190], lease: {file: l}}", "replicas.companions[0]", "write ip:port"),
        (
            "{companions: ['127.0.0.1:9190', '127.0.0.1:9190'], lease: {file: l}}",
            "replicas.companions[1]",
            "listed twice",
        ),
        (
            "{companions: ['127.0.0.1:9190', '127.0.0.1:0'], lease: {file: l}}",
            "replicas.companions[1]",
            "1 to 65535",
        ),
        ("{companions: ['0.0.0.0:9190'], lease: {file: l}}", "replicas.companions[0]", "can't connect"),
        (
            "{companions: ['127.0.0.1:9190', '10.0.0.6:9190'], lease: {file: l}}",
            "replicas.companions[1]",
            "needs tls",
        ),
        (
            "{companions: ['127.0.0.1:9290'], lease: {file: l}}",
            "replicas.advertise",
            "PENSTOCK_REPLICAS__ADVERTISE",
        ),
        (
            "{companions: ['127.0.0.1:9190'], advertise: '127.0.0.1:0', lease: {file: l}}",
            "replicas.advertise",
            "1 to 65535",
        ),
        (
            "{companions: {dns: {name: c, port: 9190}}, advertise: '10.0.0.5:9190', lease: {file: l}}",
            "replicas.advertise",
            "needs tls",
        ),
        (
            "{companions: {dns: {name: 10.0.0.5, port: 9190}}, lease: {file: l}}",
            "replicas.companions.dns.name",
            "list of addresses",
        ),
        (
            "{companions: {dns: {name: c, port: 0}}, lease: {file: l}}",
            "replicas.companions.dns.port",
            "65535",
        ),
        ("{companions: {dns: {name: c}}, lease: {file: l}}", "replicas.companions.dns.port", "missing"),
        (
            "{companions: ['127.0.0.1:9190'], advertize: '127.0.0.1:9190', lease: {file: l}}",
            "replicas.advertize",
            "did you mean `advertise`?",
        ),
    ] {
        assert_error(&format!("# one\nreplicas: {keys}\n{POOLS}"), 2, key, word);
    }
}

#[test]
fn wrong_leases_and_durations_are_errors() {
    let document =
        |keys: &str| format!("# one\nreplicas: {{companions: ['127.0.0.1:9190'], {keys}}}\n{POOLS}");
    for (keys, key, word) in [
        ("duration: 3s", "replicas.lease", "missing"),
        ("lease: {}", "replicas.lease", "exactly one"),
        ("lease: {file: l, kubernetes: {namespace: n, name: l}}", "replicas.lease", "exactly one"),
        ("lease: {file: ''}", "replicas.lease.file", "not empty"),
        ("lease: {etcd: {endpoints: []}}", "replicas.lease.etcd.endpoints", "at least one"),
        (
            "lease: {etcd: {endpoints: ['127.0.0.1:2379']}}",
            "replicas.lease.etcd.endpoints[0]",
            "like http://127.0.0.1:2379",
        ),
        (
            "lease: {etcd: {endpoints: ['http://a', 'http://me:secret@b']}}",
            "replicas.lease.etcd.endpoints[1]",
            "without user",
        ),
        (
            "lease: {etcd: {endpoints: ['http://a'], prefix: penstock}}",
            "replicas.lease.etcd.prefix",
            "starts with /",
        ),
        (
            "lease: {etcd: {endpoints: ['http://a'], prefix: /}}",
            "replicas.lease.etcd.prefix",
            "like /penstock",
        ),
        ("lease: {kubernetes: {namespace: a b, name: l}}", "replicas.lease.kubernetes.namespace", "1 to 63"),
        ("lease: {kubernetes: {namespace: n}}", "replicas.lease.kubernetes.name", "missing"),
        ("lease: {file: l}, duration: 999ms", "replicas.duration", "1s to 60s"),
        ("lease: {file: l}, duration: 61s", "replicas.duration", "1s to 60s"),
        ("lease: {file: l}, per: node", "replicas.per", "gateway or pool"),
    ] {
        assert_error(&document(keys), 2, key, word);
    }
    let long = format!("lease: {{kubernetes: {{namespace: a, name: {}}}}}", "n".repeat(181));
    assert_error(
        &document(&format!("{long}, per: pool")),
        2,
        "replicas.lease.kubernetes.name",
        "at most 180",
    );
    Config::parse(&document(&long), "f.yaml").expect("long enough for one lease");
    let secret = document("lease: {etcd: {endpoints: ['http://me:hunter2@b']}}");
    let message = Config::parse(&secret, "f.yaml").expect_err("a password").to_string();
    assert!(!message.contains("hunter2"), "{message}");
}

#[test]
fn keys_that_only_one_companion_can_use_are_errors() {
    const REPLICAS: &str = "replicas: {companions: ['127.0.0.1:9190'], lease: {file: l}}";
    for (listen, word) in [("unix:/run/p.sock", "write ip:port"), ("127.0.0.1:0", "1 to 65535")] {
        let text = format!("listen: {{grpc: '{listen}'}}\n{REPLICAS}\n{POOLS}");
        assert_error(&text, 1, "listen.grpc", word);
    }
    let text = format!("{TLS}listen: {{grpc: '0.0.0.0:9190'}}\n{REPLICAS}\n{POOLS}");
    assert_error(&text, 3, "replicas.advertise", "PENSTOCK_REPLICAS__ADVERTISE");
    let text = format!(
        "{REPLICAS}\npools:\n- name: a\n  endpoints: {{static: ['127.0.0.1:8001']}}\n  usage: {{store: {{redb: f}}}}\n"
    );
    assert_error(&text, 5, "pools[0].usage.store", "one process");
    Config::parse(&text.replace("redb: f", "redis: 'redis://h'"), "f.yaml").expect("companions share redis");
}
