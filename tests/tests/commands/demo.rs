//! `penstock demo`, which exits with 0 only if every request is accounted for.

use penstock_tests::{Process, binary, run};
use tokio::process::Command;

#[test]
fn demo_accounts_for_every_request() {
    run(async {
        let mut command = Command::new(binary::penstock());
        command.args(["demo", "--for", "3s", "--seed", "7"]).current_dir(binary::workspace());
        let mut demo = Process::start("demo", command).await;
        let status = demo.exit().await;
        let printed = demo.log();
        assert_eq!(status.code(), Some(0), "{}", demo.tail());
        assert!(printed.contains("is accounted for"), "{printed}");
        for word in ["gateway http://", "dashboard http://", "metrics http://", "curl ", "greedy", "light"] {
            assert!(printed.contains(word), "{word}: {printed}");
        }
    });
}

#[test]
fn demo_loses_no_request_when_the_leader_is_killed() {
    run(async {
        let mut command = Command::new(binary::penstock());
        command
            .args(["demo", "--kill-leader", "--for", "6s", "--seed", "7"])
            .current_dir(binary::workspace());
        let mut demo = Process::start("demo", command).await;
        let status = demo.exit().await;
        let printed = demo.log();
        assert_eq!(status.code(), Some(0), "{}", demo.tail());
        for words in [
            "companion 2 http://",
            "the leader is killed after 2.0 s; its lease is in ",
            ", the leader, with SIGKILL",
            "first answer to a request sent after the kill: ",
            "was killed with SIGKILL.",
            "Its answer began ",
            "No request was lost.",
            "Shares before the kill: greedy ",
            "Shares after the kill: greedy ",
            "is accounted for",
        ] {
            assert!(printed.contains(words), "{words}: {printed}");
        }
        let roles = printed.split("At the end, ").nth(1).expect("the roles");
        assert!(roles.contains(" leads") && roles.contains(" is a standby"), "{roles}");
    });
}
