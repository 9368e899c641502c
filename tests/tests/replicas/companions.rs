//! `penstock up --companions 2`: one companion leads, the other takes over, and both follow signals and changes.

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::pages::Pages;
use penstock_tests::process::{self, children};
use penstock_tests::{ClientRequest, Gateway, Upstream, run, until};
use serde_json::Value;

/// The companions of each gateway.
const COMPANIONS: usize = 2;

/// A gateway with two companions, and the pages of both.
struct Pair {
    gateway: Gateway,
    pages: [Pages; COMPANIONS],
}

impl Pair {
    async fn start(server: &Upstream) -> Self {
        let config = config("", &[pool("p", "'*'", &[server], &slots(8))]);
        let mut gateway = Gateway::with_companions(&config, COMPANIONS).await;
        let first = Pages::at(gateway.companion().to_owned());
        let second = gateway.process.line("companion 2 http://").await;
        let second = Pages::at(format!("http://{}", second.trim().trim_end_matches('/')));
        Self { gateway, pages: [first, second] }
    }

    /// Waits until one companion leads and the other is its standby. Returns the index of the leader.
    async fn leader(&self) -> usize {
        until("a leader and a standby", || async {
            let [first, second] = [self.role(0).await?, self.role(1).await?];
            let same_leader = first["leader"] == second["leader"] && first["leader"].is_string();
            match (first["role"].as_str(), second["role"].as_str()) {
                (Some("leader"), Some("standby")) if same_leader => Ok(0),
                (Some("standby"), Some("leader")) if same_leader => Ok(1),
                _ => Err(format!("{first} {second}")),
            }
        })
        .await
    }

    async fn role(&self, index: usize) -> Result<Value, String> {
        let answer = self.pages[index].get("/readyz").await?;
        match answer.status {
            200 => Ok(answer.json()),
            status => Err(format!("{status} {}", answer.text())),
        }
    }

    /// The process of the companion with these pages.
    fn pid(&self, index: usize) -> i32 {
        let address = self.pages[index].base().trim_start_matches("http://");
        let flag = format!("--http {address} ");
        let all = self.gateway.process.children();
        let found = all.iter().find(|(_, command)| command.contains(&flag));
        found.unwrap_or_else(|| panic!("{flag}: {all:?}")).0
    }
}

#[test]
fn a_killed_leader_is_started_again_and_requests_wait_for_the_next_leader() {
    run(async {
        let server = Upstream::several(1, std::time::Duration::ZERO, 0).await;
        let pair = Pair::start(&server[0]).await;
        let leader = pair.leader().await;
        let answer = pair.gateway.send(ClientRequest::chat("m", "before")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let killed = pair.pid(leader);
        process::send(killed, libc::SIGKILL);
        let answer = pair.gateway.send(ClientRequest::chat("m", "meanwhile")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        // Either companion may lead now: the killed one is back before its lease has expired.
        pair.leader().await;
        assert_ne!(pair.pid(leader), killed, "started again");
    });
}

#[test]
fn sigterm_ends_every_companion_and_the_store_of_the_lease() {
    run(async {
        let server = Upstream::several(1, std::time::Duration::ZERO, 0).await;
        let mut pair = Pair::start(&server[0]).await;
        let family = children(pair.gateway.process.pid());
        let companions = family.iter().filter(|(_, command)| command.contains(" serve "));
        assert_eq!(companions.count(), COMPANIONS, "{family:?}");
        pair.gateway.process.signal(libc::SIGTERM);
        let code = pair.gateway.process.exit().await.code();
        assert_eq!(code, Some(0), "{}", pair.gateway.process.tail());
        for (pid, command) in family {
            let gone = std::fs::metadata(format!("/proc/{pid}")).is_err();
            assert!(gone, "left behind: {pid} {command}");
        }
    });
}

#[test]
fn sighup_reaches_every_companion_and_changes_over_http_only_the_leader() {
    run(async {
        let server = Upstream::several(1, std::time::Duration::ZERO, 0).await;
        let pair = Pair::start(&server[0]).await;
        let leader = pair.leader().await;
        let standby = 1 - leader;
        let patch = r#"{"metrics": {"flows": 7}}"#;
        let answer = pair.pages[standby].change("PATCH", "/config", &[], patch).await;
        assert_eq!(answer.status, 421, "{}", answer.text());
        assert_eq!(answer.json()["leader"], pair.role(leader).await.expect("ready")["leader"]);
        let answer = pair.pages[leader].change("PATCH", "/config", &[], patch).await;
        assert_eq!(answer.status, 200, "{}", answer.text());

        // The file has not changed, so only the signal makes the companions read it.
        let reloads = [pair.pages[0].status().await, pair.pages[1].status().await]
            .map(|status| status["config"]["source"].clone());
        assert_ne!(reloads[leader], reloads[standby], "the leader has the patch");
        pair.gateway.process.signal(libc::SIGHUP);
        let file = pair.gateway.config().display().to_string();
        until("both read the file", || async {
            for pages in &pair.pages {
                let source = pages.get("/status").await?.json()["config"]["source"].clone();
                if source != *file {
                    return Err(source.to_string());
                }
            }
            Ok(())
        })
        .await;
    });
}
