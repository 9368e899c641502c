//! The schema: it takes whatever is valid, marks what is wrong, and names every key that is shown.

use serde_json::Value;

use super::check::check;
use crate::{Document, schema};

/// Everything that can be said, in most of its forms.
const ALL: &str = include_str!("everything.yaml");
/// The pages that show documents.
const PAGES: [&str; 2] = [
    include_str!("../../../../docs/configuration.md"),
    include_str!("../../../../docs/model.md"),
];
const SMALL: &str = "pools: [{name: a, endpoints: {static: ['127.0.0.1:8001']}}]";

/// As an editor reads it.
fn written(text: &str) -> Value {
    let options = serde_saphyr::options! {strict_booleans: true};
    serde_saphyr::from_str_with_options(text, options).expect("YAML")
}

fn fits(document: &Value) -> Result<(), String> {
    let schema = schema();
    check(document, &schema, &schema, "document")
}

#[test]
fn what_is_valid_is_valid_by_the_schema_as_it_is_written_and_as_it_is_shown() {
    let shown = PAGES
        .iter()
        .flat_map(|page| page.split("```").filter_map(|it| it.strip_prefix("yaml\n")))
        .filter(|it| it.contains("endpoints:"));
    let mut seen = 0;
    for text in [ALL, SMALL].into_iter().chain(shown) {
        let document = Document::parse(text, "f.yaml").unwrap_or_else(|why| panic!("{why}\n{text}"));
        fits(&written(text)).unwrap_or_else(|why| panic!("as written: {why}\n{text}"));
        fits(document.json()).unwrap_or_else(|why| panic!("as shown: {why}\n{text}"));
        seen += 1;
    }
    assert!(seen >= 6, "{seen}");
}

#[test]
fn what_is_shown_is_the_same_document_again() {
    for text in [ALL, SMALL] {
        let document = Document::parse(text, "f.yaml").expect("valid");
        let json = Document::parse(&document.json().to_string(), "json").expect("valid as JSON");
        let yaml = document.yaml().expect("YAML");
        let yaml = Document::parse(&yaml, "yaml").unwrap_or_else(|why| panic!("{why}\n{yaml}"));
        for again in [json, yaml] {
            assert_eq!(again.json(), document.json());
            assert_eq!(again.digest(), document.digest());
            assert_eq!(
                format!("{:?}", again.config()),
                format!("{:?}", document.config())
            );
        }
    }
}

#[test]
fn every_key_of_the_schema_is_shown_and_everything_says_every_key() {
    let schema = schema();
    let small = Document::parse(SMALL, "f.yaml").expect("valid");
    let said = written(ALL);
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
        ("/pools/0/scheduler", "Scheduler"),
        ("/pools/0/companion_down", "CompanionDown"),
    ] {
        let keys = if name.is_empty() {
            &schema["properties"]
        } else {
            &schema["$defs"][name]["properties"]
        };
        for key in keys.as_object().unwrap_or_else(|| panic!("{name}")).keys() {
            let shown = small.json().pointer(&format!("{part}/{key}"));
            assert!(shown.is_some(), "{part}/{key} isn't shown");
            let one_of_four = name == "Endpoints";
            let is_said = one_of_four || said.pointer(&format!("{part}/{key}")).is_some();
            assert!(is_said, "{part}/{key} isn't in everything.yaml");
        }
    }
}

#[test]
fn editors_mark_what_is_wrong() {
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
    ] {
        let document: Value = written(wrong);
        assert!(fits(&document).is_err(), "the schema takes {wrong}");
    }
}
