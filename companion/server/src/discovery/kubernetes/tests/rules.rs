//! Objectives and model rewrites of an InferencePool: followed, and named where they can't be read.

use penstock_engine::input::Band;

use super::*;

/// Waits until so many kinds of objects can't be read, and returns why.
async fn until_unread(states: &States, count: usize) -> Vec<String> {
    let wait = async {
        loop {
            let unread = states.get("chat").expect("it discovers").unread;
            if unread.len() == count {
                return unread;
            }
            tokio::time::sleep(SOON).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), wait).await;
    waited.unwrap_or_else(|_| panic!("{:?}", states.get("chat")))
}

#[tokio::test]
async fn the_objectives_of_the_pool_are_followed() {
    let (server, client) = Server::start(NEW).await;
    server.pool(&json!({"selector": {"matchLabels": {"app": "llama"}}, "targetPorts": [{"number": 8000}]}));
    let objective = |name: &str, pool: &str, priority: i32| {
        let spec = json!({"priority": priority, "poolRef": {"name": pool}});
        server.put("inferenceobjectives", &json!({"metadata": {"name": name}, "spec": spec}));
    };
    objective("gold", "llama", 10);
    objective("elsewhere", "qwen", 10);
    let mut found = start_with(client, PodLabels::default(), states("chat"));
    let bands = |found: &Discovered, expected: &[(&str, Band)]| {
        found.objectives.iter().map(|(name, band)| (name.as_str(), *band)).eq(expected.iter().copied())
    };
    until_found(&mut found, |found| bands(found, &[("gold", Band::Critical)])).await;
    objective("nightly", "llama", -1);
    until_found(&mut found, |found| bands(found, &[("gold", Band::Critical), ("nightly", Band::Sheddable)]))
        .await;
    objective("gold", "llama", 0);
    until_found(&mut found, |found| bands(found, &[("gold", Band::Default), ("nightly", Band::Sheddable)]))
        .await;
    // What is known stays while the API server is away.
    server.down(true);
    server.pod("p1", "llama", "10.0.0.1", true);
    server.down(false);
    until_found(&mut found, |found| found.endpoints.len() == 1 && found.objectives.len() == 2).await;
    server.remove("inferenceobjectives", "nightly");
    until_found(&mut found, |found| bands(found, &[("gold", Band::Default)])).await;
}

#[tokio::test]
async fn the_model_rewrites_of_the_pool_are_followed() {
    let (server, client) = Server::start(NEW).await;
    server.pool(&json!({"selector": {"matchLabels": {"app": "llama"}}, "targetPorts": [{"number": 8000}]}));
    let rewrite = |name: &str, pool: &str, second: u8, rules: Value| {
        let metadata = json!({"name": name, "creationTimestamp": format!("2026-01-01T00:00:{second:02}Z")});
        let spec = json!({"poolRef": {"name": pool}, "rules": rules});
        server.put("inferencemodelrewrites", &json!({"metadata": metadata, "spec": spec}));
    };
    let exact = |model: &str, target: &str| json!({"matches": [{"model": {"type": "Exact", "value": model}}], "targets": [{"modelRewrite": target}]});
    let generic = |target: &str| json!({"targets": [{"modelRewrite": target}]});
    rewrite("all", "llama", 1, json!([generic("base")]));
    rewrite("young", "llama", 3, json!([exact("chat", "young")]));
    rewrite("elsewhere", "qwen", 0, json!([exact("chat", "qwen")]));
    let mut found = start_with(client, PodLabels::default(), states("chat"));
    let rules = |found: &Discovered, expected: &[(&str, &str)]| {
        let rules = found.rewrites.iter().map(|rule| (rule.model.as_str(), rule.targets[0].0.as_str()));
        rules.eq(expected.iter().copied())
    };
    until_found(&mut found, |found| rules(found, &[("chat", "young"), ("*", "base")])).await;
    rewrite("old", "llama", 2, json!([exact("chat", "old"), exact("code", "old")]));
    until_found(&mut found, |found| rules(found, &[("chat", "old"), ("code", "old"), ("*", "base")])).await;
    server.remove("inferencemodelrewrites", "all");
    rewrite("old", "llama", 2, json!([exact("code", "older")]));
    until_found(&mut found, |found| rules(found, &[("code", "older"), ("chat", "young")])).await;
}

#[tokio::test]
async fn objects_that_may_not_be_listed_are_named_and_hold_no_endpoints_back() {
    let (server, client) = Server::start(NEW).await;
    server.change(|store| store.forbidden = Some("inferenceobjectives"));
    server.pod("p1", "llama", "10.0.0.1", true);
    server.pool(&json!({"selector": {"matchLabels": {"app": "llama"}}, "targetPorts": [{"number": 8000}]}));
    let spec = json!({"priority": 10, "poolRef": {"name": "llama"}});
    server.put("inferenceobjectives", &json!({"metadata": {"name": "gold"}, "spec": spec}));
    let states = states("chat");
    let mut found = start_with(client, PodLabels::default(), states.clone());
    until(&mut found, &[("10.0.0.1:8000", "p1")]).await;
    let unread = until_unread(&states, 1).await;
    for part in ["InferenceObjectives of llm-d.ai in namespace ml", "list and watch inferenceobjectives"] {
        assert!(unread[0].contains(part), "{part} isn't in {unread:?}");
    }
    server.change(|store| store.forbidden = None);
    until_found(&mut found, |found| found.objectives.contains_key("gold")).await;
    until_unread(&states, 0).await;
}
