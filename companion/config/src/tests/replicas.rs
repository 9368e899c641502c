//! Tests of `replicas`: the typed values of each form.

use std::time::Duration;

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
