//! docs/alerts.yaml and docs/grafana.json: both parse, and every metric in them exists. Checking the rules with promtool is a step of
//! `.ci/run`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use penstock_tests::binary::workspace;
use serde_json::Value;

use super::ALL;

fn docs() -> PathBuf {
    workspace().join("docs")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The rules of the document, after checking that Prometheus knows every key.
fn rules() -> Vec<(String, String, Value)> {
    let text = read(&docs().join("alerts.yaml"));
    let document: Value = serde_saphyr::from_str(&text).expect("YAML");
    let only = |value: &Value, keys: &[&str]| {
        let map = value.as_object().unwrap_or_else(|| panic!("no mapping: {value}"));
        for key in map.keys() {
            assert!(keys.contains(&&**key), "`{key}` is none of {keys:?}");
        }
    };
    only(&document, &["groups"]);
    let mut rules = Vec::new();
    for group in document["groups"].as_array().expect("groups") {
        only(group, &["name", "interval", "rules"]);
        for rule in group["rules"].as_array().expect("rules") {
            only(rule, &["record", "alert", "expr", "for", "labels", "annotations"]);
            let name = rule.get("record").or(rule.get("alert")).expect("a name");
            let expr = rule["expr"].as_str().expect("an expression");
            rules.push((
                name.as_str().expect("text").to_owned(),
                expr.to_owned(),
                rule.clone(),
            ));
        }
    }
    rules
}

/// The names of Penstock's metrics in a text, including recorded ones (`penstock:`).
fn named(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    text.split(|c: char| !is_part(c))
        .map(|word| word.trim_end_matches(':'))
        .filter(|word| word.starts_with("penstock_") || word.starts_with("penstock:"))
        .filter(|word| word.len() > "penstock_".len())
        .map(str::to_owned)
        .collect()
}

#[track_caller]
fn are_there(what: &str, text: &str) {
    let recorded: Vec<String> = rules().into_iter().map(|(name, _, _)| name).collect();
    // The name of the companion's cluster in Envoy.
    let cluster = penstock_envoy::bootstrap::COMPANION_CLUSTER;
    for name in named(text) {
        let is_metric = ALL
            .iter()
            .any(|(known, _, _)| name == format!("penstock_{known}"));
        assert!(
            is_metric || recorded.contains(&name) || name == cluster,
            "{what}: there is no {name}"
        );
    }
}

#[test]
fn rules_name_only_existing_metrics_and_link_to_their_runbook() {
    let runbook = read(&docs().join("alerts.md"));
    let mut alerts = 0;
    for (name, expr, rule) in rules() {
        are_there(&name, &expr);
        assert!(!named(&expr).is_empty(), "{name} looks at nothing");
        if rule.get("alert").is_none() {
            continue;
        }
        alerts += 1;
        for key in ["summary", "description"] {
            assert!(rule["annotations"][key].is_string(), "{name} has no {key}");
        }
        let link = format!("docs/alerts.md#{}", name.to_lowercase());
        assert_eq!(rule["annotations"]["runbook_url"], link, "{name}");
        assert!(
            runbook.contains(&format!("\n### {name}\n")),
            "{name} isn't explained"
        );
        assert!(rule["labels"]["severity"].is_string(), "{name}");
    }
    assert!(alerts >= 15, "{alerts}");
}

#[test]
fn pages_name_only_existing_metrics() {
    for page in ["alerts.md", "alerts_test.yaml"] {
        are_there(page, &read(&docs().join(page)));
    }
}

#[test]
fn dashboard_names_only_existing_metrics_and_shows_all_of_them() {
    let text = read(&docs().join("grafana.json"));
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    let variables: Vec<&str> = variables
        .iter()
        .filter_map(|variable| variable["name"].as_str())
        .collect();
    assert_eq!(variables, ["datasource", "pool", "flow"]);
    let mut shown = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        assert!(ids.insert(panel["id"].as_u64()), "two panels of one id");
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expr = target["expr"].as_str().expect("an expression");
            are_there("grafana.json", expr);
            shown.extend(named(expr));
        }
    }
    for (name, kind, _) in ALL.iter().filter(|(_, kind, _)| !kind.is_empty()) {
        let name = match *kind {
            "histogram" => format!("penstock_{name}_bucket"),
            _ => format!("penstock_{name}"),
        };
        assert!(
            shown.contains(&name) || name == "penstock_build_info",
            "nobody sees {name}"
        );
    }
}
