//! docs/alerts.yaml and docs/grafana.json: both parse, every metric in them exists, and lists of outcomes are those of the engine. Checking
//! the rules with promtool is a step of `.ci/run`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use penstock_control::code_of;
use penstock_engine::Outcome;
use penstock_engine::outcome::Meaning;
use penstock_tests::binary::workspace;
use penstock_wire::Code;
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
            rules.push((name.as_str().expect("text").to_owned(), expr.to_owned(), rule.clone()));
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
        let is_metric = ALL.iter().any(|(known, _, _)| name == format!("penstock_{known}"));
        assert!(is_metric || recorded.contains(&name) || name == cluster, "{what}: there is no {name}");
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
        assert!(runbook.contains(&format!("\n### {name}\n")), "{name} isn't explained");
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
    let variables: Vec<&str> = variables.iter().filter_map(|variable| variable["name"].as_str()).collect();
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
        assert!(shown.contains(&name) || name == "penstock_build_info", "nobody sees {name}");
    }
}

/// The names of all outcomes with one of these meanings, as a matcher of Prometheus lists them.
fn outcomes(meanings: &[Meaning]) -> String {
    let with = |meaning: Meaning| {
        let all = Outcome::ALL.into_iter();
        all.filter(move |outcome| outcome.meaning() == meaning)
    };
    let names: Vec<&str> = meanings.iter().copied().flat_map(with).map(Outcome::as_str).collect();
    names.join("|")
}

/// The matchers of the label `outcome` in an expression, each with its operator and quotes.
fn outcome_matchers(expr: &str) -> Vec<&str> {
    let after_name = expr.split("outcome").skip(1);
    after_name
        .filter(|rest| rest.starts_with(['=', '!']))
        .filter_map(|rest| {
            let (end, _) = rest.match_indices('"').nth(1)?;
            rest.get(..=end)
        })
        .collect()
}

#[test]
fn lists_of_outcomes_in_rules_and_dashboard_are_complete() {
    let served = format!("=~\"{}\"", outcomes(&[Meaning::Served]));
    let failed = format!("=~\"{}\"", outcomes(&[Meaning::Failed]));
    let both = format!("=~\"{}\"", outcomes(&[Meaning::Served, Meaning::Failed]));
    let mut lists = 0;
    let dashboard = read(&docs().join("grafana.json")).replace("\\\"", "\"");
    let rules = rules().into_iter().map(|(name, expr, _)| (name, expr));
    for (name, expr) in rules.chain([("grafana.json".to_owned(), dashboard)]) {
        for matcher in outcome_matchers(&expr) {
            lists += 1;
            assert!(
                [&*served, &failed, &both].contains(&matcher),
                "{name}: outcome{matcher} is not the list of a meaning (Outcome::meaning): {served}, {failed} or {both}"
            );
        }
    }
    assert!(lists >= 10, "{lists}");
}

/// The values of the label `error_type` in an expression.
fn error_types(expr: &str) -> BTreeSet<&str> {
    let matchers = expr.split("error_type=").skip(1);
    let values = matchers.filter_map(|rest| rest.split('"').nth(1));
    values.flat_map(|value| value.split('|')).collect()
}

#[test]
fn alert_of_a_full_queue_lists_every_limit_of_the_queue() {
    let by_limit = Outcome::ALL.into_iter().filter(|outcome| outcome.is_by_queue_limit());
    // `preemptions_total` counts these.
    let at_arrival = by_limit.filter(|outcome| *outcome != Outcome::Displaced);
    let codes: BTreeSet<&str> = at_arrival.filter_map(code_of).map(Code::as_str).collect();
    let rules = rules();
    let full = rules.iter().find(|(name, _, _)| name == "PenstockQueueFull").expect("a rule");
    assert_eq!(error_types(&full.1), codes);
    assert!(full.1.contains("penstock_preemptions_total"), "{}", full.1);
    let mut tried = 0;
    for (name, expr, _) in &rules {
        for code in error_types(expr) {
            tried += 1;
            assert!(Code::parse(code).is_some(), "{name}: there is no code {code}");
        }
    }
    assert!(tried > codes.len(), "{tried}");
}

#[test]
fn every_outcome_is_tried_on_the_alerts_and_those_that_fail_page() {
    let text = read(&docs().join("alerts_test.yaml"));
    let document: Value = serde_saphyr::from_str(&text).expect("YAML");
    let tests = document["tests"].as_array().expect("tests");
    let test = tests.iter().find(|test| test["name"] == "every outcome");
    let test = test.expect("a test of every outcome");
    let series: Vec<&str> = test["input_series"]
        .as_array()
        .expect("series")
        .iter()
        .filter_map(|series| series["series"].as_str())
        .collect();
    for name in Outcome::ALL.map(Outcome::as_str) {
        let labels = format!("{{pool=\"{name}\",outcome=\"{name}\",");
        assert!(series.iter().any(|series| series.contains(&labels)), "{name} isn't tried");
    }
    let mut paging = BTreeSet::new();
    for rule in test["alert_rule_test"].as_array().expect("alerts") {
        let alerts = rule["exp_alerts"].as_array().expect("a list").iter();
        let pools = alerts.filter_map(|alert| alert["exp_labels"]["pool"].as_str());
        let pools: BTreeSet<&str> = pools.collect();
        let failed = outcomes(&[Meaning::Failed]);
        assert_eq!(pools, failed.split('|').collect(), "{}", rule["alertname"]);
        paging.insert(rule["alertname"].as_str().expect("a name"));
    }
    assert_eq!(paging, BTreeSet::from(["PenstockFailedFastBurn", "PenstockFailedSlowBurn"]));
}

#[test]
fn page_of_alerts_lists_every_outcome_with_its_meaning() {
    let page = read(&docs().join("alerts.md"));
    let (_, section) = page.split_once("\n## Outcomes\n").expect("a section");
    let (section, _) = section.split_once("\n## ").expect("another section");
    let rows: Vec<(&str, &str)> = section
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|row| row.split_once("` | "))
        .filter_map(|(name, rest)| Some((name, rest.split_once(" |")?.0)))
        .collect();
    let all = Outcome::ALL.map(|outcome| (outcome.as_str(), outcome.meaning().as_str()));
    assert_eq!(rows, all);
}

#[test]
fn page_of_failures_names_the_outcome_of_every_code() {
    let page = read(&docs().join("what-happens-when.md"));
    let (_, table) = page.split_once("\n| code | outcome |\n").expect("a table");
    let (table, _) = table.split_once("\n\n").expect("an end");
    let rows: Vec<(&str, &str)> =
        table.lines().filter_map(|row| row.trim_matches(['|', ' ']).split_once(" | ")).collect();
    for outcome in Outcome::ALL {
        let Some(code) = penstock_control::code_of(outcome).map(|code| code.as_str()) else {
            continue;
        };
        let row = rows.iter().find(|(codes, _)| codes.contains(&format!("`{code}`")));
        let named = match row {
            None => code.to_owned(),
            Some((_, "`rejected_` and the code")) => format!("rejected_{code}"),
            Some((_, name)) => name.trim_matches('`').to_owned(),
        };
        assert_eq!(named, outcome.as_str(), "{code}");
    }
}
