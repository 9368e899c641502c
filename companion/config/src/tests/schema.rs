//! Tests of the JSON Schema: it accepts every valid document, rejects wrong ones, and names every key.

use serde_json::Value;

use super::check::check;
use crate::{Document, schema};

/// A document with every key, in most of the forms of its values.
const ALL: &str = include_str!("everything.yaml");
/// The pages with examples of documents.
const PAGES: [&str; 2] =
    [include_str!("../../../../docs/configuration.md"), include_str!("../../../../docs/model.md")];
const SMALL: &str = "pools: [{name: a, endpoints: {static: ['127.0.0.1:8001']}}]";
/// Other forms of values that exclude some of [`ALL`].
const OTHERS: [&str; 3] = [
    "listen: {grpc: 'unix:/run/p.sock'}\npools: [{name: a, endpoints: {file: f}, usage: {store: {redb: kept.redb}}}]",
    "replicas: {companions: {dns: {name: companions, port: 9190}}, lease: {kubernetes: {namespace: n, name: l}}}\n\
     pools: [{name: a, endpoints: {file: f}}]",
    "replicas: {companions: ['127.0.0.1:9190'], lease: {file: /run/lease}}\npools: [{name: a, endpoints: {file: f}}]",
];

/// The values of a text, as an editor reads them.
fn values(text: &str) -> Value {
    let options = serde_saphyr::options! {strict_booleans: true};
    serde_saphyr::from_str_with_options(text, options).expect("YAML")
}

fn fits(document: &Value) -> Result<(), String> {
    let schema = schema();
    check(document, &schema, &schema, "document")
}

#[test]
fn schema_accepts_valid_documents_as_written_and_as_shown() {
    let examples = PAGES
        .iter()
        .flat_map(|page| page.split("```").filter_map(|block| block.strip_prefix("yaml\n")))
        .filter(|block| block.contains("endpoints:"));
    let mut count = 0;
    for text in [ALL, SMALL].into_iter().chain(OTHERS).chain(examples) {
        let document = Document::parse(text, "f.yaml").unwrap_or_else(|error| panic!("{error}\n{text}"));
        fits(&values(text)).unwrap_or_else(|error| panic!("as written: {error}\n{text}"));
        fits(document.json()).unwrap_or_else(|error| panic!("as shown: {error}\n{text}"));
        count += 1;
    }
    assert!(count >= 9, "{count}");
}

#[test]
fn a_shown_document_parses_to_itself() {
    for text in [ALL, SMALL].into_iter().chain(OTHERS) {
        let document = Document::parse(text, "f.yaml").expect("valid");
        let json = Document::parse(&document.json().to_string(), "json").expect("valid as JSON");
        let yaml = document.yaml().expect("YAML");
        let yaml = Document::parse(&yaml, "yaml").unwrap_or_else(|error| panic!("{error}\n{yaml}"));
        for again in [json, yaml] {
            assert_eq!(again.json(), document.json());
            assert_eq!(again.digest(), document.digest());
            assert_eq!(format!("{:?}", again.config()), format!("{:?}", document.config()));
        }
    }
}

#[test]
fn every_key_of_the_schema_is_shown_and_in_everything_yaml() {
    let schema = schema();
    let small = Document::parse(SMALL, "f.yaml").expect("valid");
    let everything = values(ALL);
    for (part, name) in [
        ("", ""),
        ("/listen", "Listen"),
        ("/admin", "Admin"),
        ("/identity", "Identity"),
        ("/identity/max_priority", "MaxPriority"),
        ("/shutdown", "Shutdown"),
        ("/limits", "Limits"),
        ("/metrics", "Metrics"),
        ("/pools/0", "Pool"),
        ("/pools/0/endpoints", "Endpoints"),
        ("/pools/0/endpoints/static/0", "Endpoint"),
        ("/pools/0/endpoints/defaults", "EndpointDefaults"),
        ("/pools/0/health", "Health"),
        ("/pools/0/down", "Down"),
        ("/pools/0/scrape", "Scrape"),
        ("/pools/0/queue", "Queue"),
        ("/pools/0/stock", "Stock"),
        ("/pools/0/arbitration", "Arbitration"),
        ("/pools/0/arbitration/bands", "Bands"),
        ("/pools/0/arbitration/bands/weights", "BandWeights"),
        ("/pools/0/arbitration/flows", "Flows"),
        ("/pools/0/usage", "Usage"),
        ("/pools/0/slo", "Slo"),
        ("/pools/0/model", "Model"),
        ("/pools/0/scheduler", "Scheduler"),
        ("/pools/0/companion_down", "CompanionDown"),
    ] {
        let keys = if name.is_empty() { &schema["properties"] } else { &schema["$defs"][name]["properties"] };
        for key in keys.as_object().unwrap_or_else(|| panic!("{name}")).keys() {
            let shown = small.json().pointer(&format!("{part}/{key}"));
            assert!(shown.is_some(), "{part}/{key} isn't shown");
            let one_of_four = name == "Endpoints";
            let is_present = one_of_four || everything.pointer(&format!("{part}/{key}")).is_some();
            assert!(is_present, "{part}/{key} isn't in everything.yaml");
        }
    }
    // Mappings that a document leaves out as a whole.
    for (part, name) in [("/tls", "Tls"), ("/replicas", "Replicas"), ("/replicas/lease/etcd", "EtcdLease")] {
        let keys = schema["$defs"][name]["properties"].as_object();
        for key in keys.unwrap_or_else(|| panic!("{name}")).keys() {
            let is_present = everything.pointer(&format!("{part}/{key}")).is_some();
            assert!(is_present, "{part}/{key} isn't in everything.yaml");
        }
    }
}

#[test]
fn schema_rejects_wrong_documents() {
    for wrong in [
        "{}",
        "{pools: []}",
        "{pools: [{name: a}]}",
        "{pools: [{name: 'a b', endpoints: {file: f}}]}",
        "{pools: [{name: a, endpoints: {}}]}",
        "{pools: [{name: a, endpoints: {file: f, static: ['127.0.0.1:1']}}]}",
        "{pools: [{name: a, endpoints: {file: f}, colour: red}]}",
        "{pools: [{name: a, endpoints: {file: f}, queue: {ttl: soon}}]}",
        "{pools: [{name: a, endpoints: {file: f}, queue: {ttl: 30}}]}",
        "{pools: [{name: a, endpoints: {file: f}, queue: {flow_capacity: 0}}]}",
        "{pools: [{name: a, endpoints: {file: f}, queue: {total_bytes: 5 apples}}]}",
        "{pools: [{name: a, endpoints: {file: f}, stock: {deviation: 1}}]}",
        "{pools: [{name: a, endpoints: {file: f}, stock: {watermark_per_backend: 0}}]}",
        "{pools: [{name: a, endpoints: {file: f}, slo: {slo_multiplier: 1}}]}",
        "{pools: [{name: a, endpoints: {file: f}, capacity_status: 500}]}",
        "{pools: [{name: a, endpoints: {file: f}, arbitration: {flows: {discipline: fair}}}]}",
        "{pools: [{name: a, endpoints: {file: f}}], identity: {user: [{header: x, body: y}]}}",
        "{pools: [{name: a, endpoints: {file: f}}], identity: {trust: some}}",
        "{pools: [{name: a, endpoints: {file: f}}], limits: {flows: 100001}}",
        "{pools: [{name: a, endpoints: {file: f}}], replicas: {companions: ['127.0.0.1:9190']}}",
        "{pools: [{name: a, endpoints: {file: f}}], replicas: {companions: [], lease: {file: l}}}",
        "{pools: [{name: a, endpoints: {file: f}}], replicas: {companions: {dns: {name: a}}, lease: {file: l}}}",
        "{pools: [{name: a, endpoints: {file: f}}], replicas: {companions: ['127.0.0.1:9190'], lease: {}}}",
    ] {
        let document: Value = values(wrong);
        assert!(fits(&document).is_err(), "the schema accepts {wrong}");
    }
}
