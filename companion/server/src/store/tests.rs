//! Keepers: who is kept where, and what is known of it at the next start.

use std::path::Path;
use std::time::Duration;

use penstock_config::Config;
use penstock_engine::input::{Band, PastUsage};
use penstock_engine::units::Tokens;
use tempfile::TempDir;

use super::*;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn kept(alpha_ms: f64) -> Kept {
    super::kept((alpha_ms, 0.05, 0.0005, 1.25)).expect("it can be")
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
async fn pools_share_a_file_and_each_finds_its_own() {
    let folder = folder();
    let path = folder.path().join("kept.redb");
    let roundabout = folder.path().join(".").join("kept.redb");
    let config = config(&path, &roundabout);
    let open = async || {
        let mut keeper = Keeper::default();
        let kept = keeper.open(&config).await?;
        Ok::<_, Error>((keeper, kept.models))
    };
    let (keeper, kept_before) = open().await.expect("new");
    assert!(kept_before["chat"].is_empty() && keeper.is_of(&config));
    let writers = keeper.writers();
    writers.learned("chat", "a".into(), kept(1.0));
    writers.learned("chat", "a".into(), kept(8.0));
    writers.learned("code", "b".into(), kept(9.0));
    writers.learned("rest", "c".into(), kept(10.0));
    writers.learned("nobody", "d".into(), kept(11.0));
    keeper.close(Duration::from_secs(60)).await;

    let (keeper, kept_before) = open().await.expect("closed before");
    assert_eq!(kept_before["chat"], [("a".to_owned(), kept(8.0))]);
    assert_eq!(kept_before["code"], [("b".to_owned(), kept(9.0))]);
    assert!(!kept_before.contains_key("rest"), "it has no store");
    let error = open().await.expect_err("in use");
    assert!(error.to_string().contains("in use by another process"), "{error}");
    keeper.close(Duration::from_secs(60)).await;
    // What comes too late is nobody's trouble.
    writers.learned("chat", "a".into(), kept(12.0));
    let (keeper, kept_before) = open().await.expect("closed");
    assert_eq!(kept_before["chat"], [("a".to_owned(), kept(8.0))]);
    keeper.close(Duration::from_secs(60)).await;
}

#[tokio::test]
async fn another_configuration_opens_what_it_adds_and_closes_what_it_leaves() {
    let folder = folder();
    let (one, two) = (folder.path().join("one.redb"), folder.path().join("two.redb"));
    let mut keeper = Keeper::default();
    keeper.open(&config(&one, &one)).await.expect("new");
    keeper.writers().learned("code", "b".into(), kept(9.0));

    let apart = config(&one, &two);
    assert!(!keeper.is_of(&apart));
    let kept_before = keeper.open(&apart).await.expect("new").models;
    assert_eq!(
        kept_before.keys().collect::<Vec<_>>(),
        ["code"],
        "chat is where it was"
    );
    assert!(kept_before["code"].is_empty(), "nothing is kept of it there");
    keeper.let_go();
    keeper.writers().learned("code", "b".into(), kept(10.0));

    // Back again: what the first file kept of it, and nobody has the second one open any more.
    let kept_before = keeper.open(&config(&one, &one)).await.expect("open").models;
    assert_eq!(kept_before["code"], [("b".to_owned(), kept(9.0))]);
    for task in keeper.let_go() {
        task.await.expect("it ends");
    }
    let mut other = Keeper::default();
    let kept_before = other.open(&config(&two, &two)).await.expect("closed").models;
    assert_eq!(kept_before["code"], [("b".to_owned(), kept(10.0))]);
    other.close(Duration::from_secs(60)).await;

    let error = Keeper::default().open(&apart).await.expect_err("in use");
    assert!(error.to_string().contains("one.redb"), "{error}");
    keeper.close(Duration::from_secs(60)).await;
}

/// One pool; `more` is of its arbitration and usage.
fn windowed(path: &Path, discipline: &str, window: &str, store: bool) -> Config {
    let store = if store {
        format!(", store: {{redb: '{}'}}", path.display())
    } else {
        String::new()
    };
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

/// By flow, and what of it was found.
fn costs(found: Found) -> Vec<(String, u64)> {
    let past = found.into_past().into_iter().flat_map(|(_, past)| past);
    let mut costs: Vec<_> = past.map(|it| (it.flow.into(), it.cost.0)).collect();
    costs.sort();
    costs
}

async fn life(config: &Config, flow: &str, cost: u64) -> Vec<(String, u64)> {
    let mut keeper = Keeper::default();
    let found = keeper.open(config).await.expect("nobody has it open");
    keeper.writers().used("chat", used(flow, cost));
    keeper.close(Duration::from_secs(60)).await;
    costs(found)
}

#[tokio::test]
async fn what_was_used_is_told_to_the_next_life_that_has_windows() {
    let folder = folder();
    let path = folder.path().join("kept.redb");
    let usage = windowed(&path, "usage", "5m", true);
    assert_eq!(life(&usage, "a", 5).await, []);
    assert_eq!(life(&usage, "b", 6).await, [("a".into(), 5)]);
    let fair = windowed(&path, "wfq", "5m", true);
    assert_eq!(life(&fair, "c", 7).await, [], "it has none");
    assert_eq!(life(&usage, "d", 8).await, [("a".into(), 5), ("b".into(), 6)]);
}

#[tokio::test]
async fn windows_that_go_on_are_told_of_nothing_twice() {
    let folder = folder();
    let path = folder.path().join("kept.redb");
    let usage = |window| windowed(&path, "usage", window, true);
    life(&usage("5m"), "a", 5).await;
    let mut keeper = Keeper::default();
    let mut open = async |config: &Config, flow: &str| {
        let found = keeper.open(config).await.expect("nobody has it open");
        for task in keeper.let_go() {
            task.await.expect("it ends");
        }
        keeper.writers().used("chat", used(flow, 1));
        costs(found)
    };
    let a = ("a".to_owned(), 5);
    assert_eq!(open(&usage("5m"), "b").await, std::slice::from_ref(&a));
    assert_eq!(open(&usage("10m"), "c").await, [], "only the window is longer");
    let memory = windowed(&path, "usage", "10m", false);
    assert_eq!(open(&memory, "lost").await, []);
    assert_eq!(open(&usage("10m"), "d").await, [], "they went on in memory");
    assert_eq!(open(&windowed(&path, "fifo", "10m", true), "lost").await, []);
    let one = |flow: &str| (flow.to_owned(), 1);
    assert_eq!(
        open(&usage("10m"), "e").await,
        [a, one("b"), one("c"), one("d")],
        "they begin anew"
    );
}
