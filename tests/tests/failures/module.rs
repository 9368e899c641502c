//! The companion serves the filter's module, and Envoy fetches it there.

use penstock_tests::gateway::pool;
use penstock_tests::variant::is_native;
use penstock_tests::{ClientGroup, Companion, Envoy, Upstream, binary, run};
use tokio::process::Command;

async fn sha256(file: &std::path::Path) -> String {
    let output = Command::new("sha256sum").arg(file).output().await.expect("coreutils");
    let text = String::from_utf8(output.stdout).expect("text");
    text.split_whitespace().next().expect("a digest").to_owned()
}

#[test]
fn envoy_fetches_the_module_from_the_companion() {
    run(async {
        let server = Upstream::scripted().await;
        let companion =
            Companion::start("", &[pool("chat", "m", &[&server], "  health: {path: null}\n")]).await;
        let folder = tempfile::tempdir().expect("a folder");
        let (name, kind) = if is_native() {
            ("penstock.so", "application/octet-stream")
        } else {
            ("penstock.wasm", "application/wasm")
        };
        let file = folder.path().join(name);
        let mut command = Command::new(binary::penstock());
        command.args(["filter", "--out"]).arg(&file).args(is_native().then_some("--native"));
        assert!(command.status().await.expect("penstock runs").success());
        let served = companion.get(&format!("/{name}")).await.expect("the module");
        assert_eq!(served.header("content-type"), kind);
        assert!(served.body == std::fs::read(&file).expect("written"), "the same bytes");

        let envoy = Envoy::fetching(&companion, "far", &sha256(&file).await).await;
        let mut crowd = ClientGroup::default();
        crowd.join(&envoy, 1).await;
        crowd.ask(0, "m", "a", "a 0").await;
        server.next().await.answer();
        assert_eq!(crowd.answers().await[0].1.status, 200);
    });
}
