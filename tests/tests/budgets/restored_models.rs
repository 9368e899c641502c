//! Learned models that a companion stores for the next one, in the file of `usage.store`.

use std::path::Path;
use std::time::Duration;

use penstock_config::Config;
use penstock_control::Kept;
use penstock_model::Parameters;
use penstock_tests::gateway::pool;
use penstock_tests::{Companion, Upstream, binary, run, until};
use tokio::process::Command;

const KEPT: Kept =
    Kept { parameters: Parameters { alpha_ms: 8.25, beta_ms: 0.0625, gamma_ms: 0.000_5 }, ttft_bias: 1.5 };

fn store(path: &Path) -> String {
    format!("  usage: {{store: {{redb: '{}'}}}}\n", path.display())
}

/// Stores parameters as a companion that has learned them does.
async fn learned(pools: &str, pool: &str, variant: &str) {
    let config = Config::parse(&format!("pools:\n{pools}"), "test").expect("valid");
    let mut keeper = penstock_stores::Stores::default();
    keeper.open(&config).await.expect("nobody has it open");
    keeper.recorders().record_model(pool, variant.into(), KEPT);
    keeper.close(Duration::from_secs(60)).await;
}

async fn alpha(companion: &Companion) -> Option<f64> {
    let status = companion.status().await;
    status["pools"][0]["model"][0]["alpha"].as_f64()
}

#[test]
fn learned_parameters_are_restored_at_the_next_start() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let server = Upstream::serving(Duration::ZERO).await;
        let path = folder.path().join("kept.redb");
        let pools = [pool("p", "'*'", &[&server], &store(&path))];
        learned(&pools[0], "p", "default").await;
        let mut companion = Companion::start("", &pools).await;
        assert_eq!(alpha(&companion).await, Some(8.25));
        let metrics = companion.metrics().await;
        let labels = [("pool", "p"), ("variant", "default")];
        assert_eq!(metrics.sum("penstock_model_gamma_ms", &labels), 0.000_5);
        assert_eq!(metrics.sum("penstock_model_ttft_bias", &labels), 1.5);
        companion.kill().await;
        companion.restart().await;
        assert_eq!(alpha(&companion).await, Some(8.25), "a killed one loses nothing");
    });
}

#[test]
fn parameters_of_other_pools_and_variants_are_not_used() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let server = Upstream::serving(Duration::ZERO).await;
        let path = folder.path().join("kept.redb");
        let pools = [pool("p", "'*'", &[&server], &store(&path))];
        learned(&pools[0], "p", "other").await;
        let renamed = pool("q", "'*'", &[&server], &store(&path));
        learned(&renamed, "q", "default").await;
        let companion = Companion::start("", &pools).await;
        assert_eq!(alpha(&companion).await, None);
    });
}

#[test]
fn damaged_file_is_set_aside_and_logged() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let server = Upstream::serving(Duration::ZERO).await;
        let path = folder.path().join("kept.redb");
        let pools = [pool("p", "'*'", &[&server], &store(&path))];
        learned(&pools[0], "p", "default").await;
        let mut damaged = std::fs::read(&path).expect("it is there");
        damaged.truncate(5_000);
        std::fs::write(&path, &damaged).expect("written");
        let companion = Companion::start("", &pools).await;
        assert_eq!(alpha(&companion).await, None, "it is learned again");
        let aside = folder.path().join("kept.redb.damaged-1");
        assert_eq!(std::fs::read(&aside).expect("it is there"), damaged);
        until("the log says so", || async {
            let log = companion.log();
            let said = log.contains("set aside") && log.contains("kept.redb.damaged-1");
            if said { Ok(()) } else { Err(log) }
        })
        .await;
    });
}

#[test]
fn file_in_use_or_in_a_missing_folder_ends_the_start() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let server = Upstream::serving(Duration::ZERO).await;
        let path = folder.path().join("kept.redb");
        let pools = |path: &Path| [pool("p", "'*'", &[&server], &store(path))];
        let _companion = Companion::start("", &pools(&path)).await;
        let nowhere = folder.path().join("missing").join("kept.redb");
        for (path, why) in [(&path, "is in use by another process"), (&nowhere, "No such file")] {
            let file = folder.path().join("second.yaml");
            let socket = |name: &str| folder.path().join(name).display().to_string();
            let listen =
                format!("listen: {{grpc: 'unix:{}', http: 'unix:{}'}}\n", socket("grpc"), socket("http"));
            std::fs::write(&file, format!("{listen}pools:\n{}", pools(path).concat())).expect("written");
            let mut command = Command::new(binary::penstock());
            command.arg("serve").arg("--config").arg(&file).kill_on_drop(true);
            let ended = tokio::time::timeout(Duration::from_secs(60), command.output())
                .await
                .expect("it ends")
                .expect("it starts");
            let said = String::from_utf8_lossy(&ended.stderr);
            assert_eq!(ended.status.code(), Some(1), "{said}");
            let file = format!("usage.store: {}", path.display());
            assert!(said.contains(&file) && said.contains(why), "{said}");
        }
    });
}
