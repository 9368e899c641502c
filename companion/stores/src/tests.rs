//! Stores: which store keeps which pool, and what the next companion restores.

use std::path::Path;
use std::time::Duration;

use penstock_config::Config;
use penstock_engine::input::{Band, BudgetUsage, PastUsage, UsageKind, UsedAt};
use penstock_engine::policy::{BudgetPeriod, CostUnit};
use penstock_engine::units::Tokens;
use tempfile::TempDir;

use super::*;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn kept(alpha_ms: f64) -> Kept {
    super::model_from_numbers((alpha_ms, 0.05, 0.0005, 1.25)).expect("valid numbers")
}

fn config(path: &Path, second: &Path) -> Config {
    let pool = |name: &str, path: &Path| {
        format!(
            "- name: {name}\n  models: ['{name}']\n  endpoints: {{static: ['127.0.0.1:1']}}\n  usage: {{store: {{redb: '{}'}}}}\n",
            path.display()
        )
    };
    let rest = "- name: rest\n  endpoints: {static: ['127.0.0.1:1']}\n";
    let yaml = format!("pools:\n{}{}{rest}", pool("chat", path), pool("code", second));
    Config::parse(&yaml, "test").expect("valid")
}

#[tokio::test]
async fn pools_share_a_file_and_restore_their_own_models() {
    let folder = folder();
    let path = folder.path().join("kept.redb");
    let roundabout = folder.path().join(".").join("kept.redb");
    let config = config(&path, &roundabout);
    let open = async || {
        let mut stores = Stores::default();
        let kept = stores.open(&config).await?;
        Ok::<_, Error>((stores, kept.models))
    };
    let (stores, restored) = open().await.expect("new");
    assert!(restored["chat"].is_empty() && stores.matches(&config));
    let recorders = stores.recorders();
    recorders.record_model("chat", "a".into(), kept(1.0));
    recorders.record_model("chat", "a".into(), kept(8.0));
    recorders.record_model("code", "b".into(), kept(9.0));
    recorders.record_model("rest", "c".into(), kept(10.0));
    recorders.record_model("unknown", "d".into(), kept(11.0));
    stores.close(Duration::from_secs(60)).await;

    let (stores, restored) = open().await.expect("closed before");
    assert_eq!(restored["chat"], [("a".to_owned(), kept(8.0))]);
    assert_eq!(restored["code"], [("b".to_owned(), kept(9.0))]);
    assert!(!restored.contains_key("rest"), "it has no store");
    let error = open().await.expect_err("in use");
    assert!(error.to_string().contains("in use by another process"), "{error}");
    stores.close(Duration::from_secs(60)).await;
    // Recording after the close has no effect.
    recorders.record_model("chat", "a".into(), kept(12.0));
    let (stores, restored) = open().await.expect("closed");
    assert_eq!(restored["chat"], [("a".to_owned(), kept(8.0))]);
    stores.close(Duration::from_secs(60)).await;
}

#[tokio::test]
async fn a_new_configuration_opens_new_stores_and_closes_unused_ones() {
    let folder = folder();
    let (one, two) = (folder.path().join("one.redb"), folder.path().join("two.redb"));
    let mut stores = Stores::default();
    stores.open(&config(&one, &one)).await.expect("new");
    stores.recorders().record_model("code", "b".into(), kept(9.0));

    let apart = config(&one, &two);
    assert!(!stores.matches(&apart));
    let restored = stores.open(&apart).await.expect("new").models;
    assert_eq!(restored.keys().collect::<Vec<_>>(), ["code"], "chat is where it was");
    assert!(restored["code"].is_empty(), "the second file is new");
    stores.close_unused();
    stores.recorders().record_model("code", "b".into(), kept(10.0));

    // Back in the first file, which still has the earlier model; the second file is closed.
    let restored = stores.open(&config(&one, &one)).await.expect("open").models;
    assert_eq!(restored["code"], [("b".to_owned(), kept(9.0))]);
    for task in stores.close_unused() {
        task.await.expect("it ends");
    }
    let mut other = Stores::default();
    let restored = other.open(&config(&two, &two)).await.expect("closed").models;
    assert_eq!(restored["code"], [("b".to_owned(), kept(10.0))]);
    other.close(Duration::from_secs(60)).await;

    let error = Stores::default().open(&apart).await.expect_err("in use");
    assert!(error.to_string().contains("one.redb"), "{error}");
    stores.close(Duration::from_secs(60)).await;
}

/// A configuration of one pool.
fn windowed(path: &Path, discipline: &str, window: &str, store: bool) -> Config {
    let store = if store { format!(", store: {{redb: '{}'}}", path.display()) } else { String::new() };
    let yaml = format!(
        "pools:\n- name: chat\n  endpoints: {{static: ['127.0.0.1:1']}}\n  arbitration: {{flows: {{discipline: \
         {discipline}}}}}\n  usage: {{window: {window}{store}}}\n"
    );
    Config::parse(&yaml, "test").expect("valid")
}

fn used(flow: &str, cost: u64) -> PastUsage {
    PastUsage {
        band: Band::Default,
        class: "".into(),
        flow: flow.into(),
        model: "m".into(),
        cost: Tokens(cost),
        ago: Duration::ZERO,
    }
}

fn costs(restored: Restored) -> Vec<(String, u64)> {
    let past = restored.into_past_usage().into_iter().flat_map(|past| past.settled);
    let mut costs: Vec<_> = past.map(|used| (used.flow.into(), used.cost.0)).collect();
    costs.sort();
    costs
}

/// Opens the store, records usage and closes it. Returns the restored costs.
async fn run_once(config: &Config, flow: &str, cost: u64) -> Vec<(String, u64)> {
    let mut stores = Stores::default();
    let restored = stores.open(config).await.expect("it is closed");
    stores.recorders().record_usage("chat", used(flow, cost));
    stores.close(Duration::from_secs(60)).await;
    costs(restored)
}

#[tokio::test]
async fn usage_is_restored_when_windows_begin() {
    let folder = folder();
    let path = folder.path().join("kept.redb");
    let usage = windowed(&path, "usage", "5m", true);
    assert_eq!(run_once(&usage, "a", 5).await, []);
    assert_eq!(run_once(&usage, "b", 6).await, [("a".into(), 5)]);
    let fair = windowed(&path, "wfq", "5m", true);
    assert_eq!(run_once(&fair, "c", 7).await, [], "no usage windows");
    assert_eq!(run_once(&usage, "d", 8).await, [("a".into(), 5), ("b".into(), 6)]);
}

#[tokio::test]
async fn continued_windows_restore_nothing() {
    let folder = folder();
    let path = folder.path().join("kept.redb");
    let usage = |window| windowed(&path, "usage", window, true);
    run_once(&usage("5m"), "a", 5).await;
    let mut stores = Stores::default();
    let mut open = async |config: &Config, flow: &str| {
        let restored = stores.open(config).await.expect("it is closed");
        for task in stores.close_unused() {
            task.await.expect("it ends");
        }
        stores.recorders().record_usage("chat", used(flow, 1));
        costs(restored)
    };
    let a = ("a".to_owned(), 5);
    assert_eq!(open(&usage("5m"), "b").await, std::slice::from_ref(&a));
    assert_eq!(open(&usage("10m"), "c").await, [], "only the window is longer");
    let memory = windowed(&path, "usage", "10m", false);
    assert_eq!(open(&memory, "lost").await, []);
    assert_eq!(open(&usage("10m"), "d").await, [], "the windows continued in memory");
    assert_eq!(open(&windowed(&path, "fifo", "10m", true), "lost").await, []);
    let one = |flow: &str| (flow.to_owned(), 1);
    assert_eq!(open(&usage("10m"), "e").await, [a, one("b"), one("c"), one("d")], "the windows begin again");
}

/// A configuration of one pool with budgets.
fn budgeted(path: &Path, discipline: &str, budgets: bool) -> Config {
    let budgets = if budgets { ", budgets: [{match: '*', windows: [{tokens: 10, per: 1h}]}]" } else { "" };
    let yaml = format!(
        "pools:\n- name: chat\n  endpoints: {{static: ['127.0.0.1:1']}}\n  arbitration: {{flows: {{discipline: \
         {discipline}{budgets}}}}}\n  usage: {{window: 5m, store: {{redb: '{}'}}}}\n",
        path.display()
    );
    Config::parse(&yaml, "test").expect("valid")
}

fn of_budget(flow: &str, amount: u64) -> BudgetUsage {
    BudgetUsage {
        flow: flow.into(),
        unit: CostUnit::Tokens,
        period: BudgetPeriod::Sliding(Duration::from_secs(3_600)),
        kind: UsageKind::Used,
        used_at: UsedAt::Ago(Duration::ZERO),
        amount,
    }
}

/// What was restored: usage of budgets, and costs, by flow.
fn restored_of(restored: Restored) -> [Vec<(String, u64)>; 2] {
    let mut found = [Vec::new(), Vec::new()];
    for past in restored.into_past_usage() {
        let budgets = past.past_budgets.into_iter();
        found[0].extend(budgets.map(|usage| (usage.flow.into(), usage.amount)));
        let costs = past.settled.into_iter();
        found[1].extend(costs.map(|used| (used.flow.into(), used.cost.0)));
    }
    found.iter_mut().for_each(|found| found.sort());
    found
}

#[tokio::test]
async fn budgets_and_usage_windows_begin_each_by_itself() {
    let folder = folder();
    let path = folder.path().join("kept.redb");
    let mut stores = Stores::default();
    let mut number = 0;
    let mut open = async |config: &Config| {
        let restored = stores.open(config).await.expect("it is open");
        number += 1;
        let recorders = stores.recorders();
        recorders.record_budget_used("chat", of_budget(&number.to_string(), 5));
        recorders.record_usage("chat", used(&number.to_string(), 7));
        restored_of(restored)
    };
    let pairs = |numbers: &[u64], amount: u64| -> Vec<(String, u64)> {
        numbers.iter().map(|number| (number.to_string(), amount)).collect()
    };
    assert_eq!(open(&budgeted(&path, "wfq", true)).await, [vec![], vec![]]);
    // Both are counted now. The budgets go on, and the first recorded what it was asked to.
    let usage_began = open(&budgeted(&path, "usage", true)).await;
    assert_eq!(usage_began, [vec![], vec![]]);
    assert_eq!(open(&budgeted(&path, "usage", true)).await, [vec![], vec![]]);
    assert_eq!(open(&budgeted(&path, "usage", false)).await, [vec![], vec![]]);
    let budgets_began = open(&budgeted(&path, "usage", true)).await;
    assert_eq!(budgets_began, [pairs(&[1, 2, 3, 4], 5), vec![]]);
    stores.close(Duration::from_secs(60)).await;

    let mut next = Stores::default();
    let restored = next.open(&budgeted(&path, "usage", true)).await.expect("closed");
    assert_eq!(restored_of(restored), [pairs(&[1, 2, 3, 4, 5], 5), pairs(&[2, 3, 4, 5], 7)]);
    next.close(Duration::from_secs(60)).await;
}
