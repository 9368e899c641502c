//! `penstock demo`, which exits with 0 only if every request is accounted for.

use penstock_tests::{Process, binary, run};
use tokio::process::Command;

#[test]
fn demo_accounts_for_every_request() {
    run(async {
        let mut command = Command::new(binary::penstock());
        command
            .args(["demo", "--for", "3s", "--seed", "7"])
            .current_dir(binary::workspace());
        let mut demo = Process::start("demo", command).await;
        let status = demo.exit().await;
        let printed = demo.log();
        assert_eq!(status.code(), Some(0), "{}", demo.tail());
        assert!(printed.contains("is accounted for"), "{printed}");
        for word in [
            "gateway http://",
            "dashboard http://",
            "metrics http://",
            "curl ",
            "greedy",
            "light",
        ] {
            assert!(printed.contains(word), "{word}: {printed}");
        }
    });
}
