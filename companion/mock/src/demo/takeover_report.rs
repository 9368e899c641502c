//! The takeover of `--kill-leader` in sentences, for the summary.

use super::share::Shares;
use super::snapshot::Snapshot;
use super::takeover::Takeover;
use super::text::{duration, percent};

/// The takeover in sentences. `roles` has the role of each companion at the end; `None`: it doesn't answer.
pub(super) fn sentences(takeover: &Takeover, snapshot: &Snapshot, roles: &[Option<String>]) -> Vec<String> {
    let Some(kill) = takeover.kill else {
        return vec!["The demo ended before the leader was killed.".to_owned()];
    };
    let after = kill.requested.duration_since(takeover.start).as_secs_f64();
    let mut sentences = vec![
        format!("After {after:.1} s the leader, companion {}, was killed with SIGKILL.", kill.companion),
        successor(takeover.next, kill.companion),
    ];
    if let Some(pause) = takeover.pause {
        sentences.push("The first request sent after the kill was granted by the new leader.".to_owned());
        sentences.push(format!(
            "Its answer began {} after the kill, which includes the wait for a free place at a server.",
            duration(Some(pause))
        ));
    }
    sentences.push(match snapshot.lost() {
        0 => "No request was lost.".to_owned(),
        lost => format!("Requests that were lost: {lost}."),
    });
    for (when, shares) in ["before", "after"].iter().zip(snapshot.shares_around_kill().into_iter().flatten())
    {
        sentences.push(format!("Shares {when} the kill: {}.", shares_line(snapshot, shares)));
    }
    sentences.push(format!("The leader's lease is in {}.", takeover.lease));
    sentences.push(at_end(roles));
    sentences
}

fn successor(next: Option<usize>, killed: usize) -> String {
    match next {
        None => "No companion took over.".to_owned(),
        Some(next) if next == killed => {
            format!("Companion {next} was restarted and got the lease again before the standby.")
        }
        Some(next) => format!("Companion {next}, the standby, took over."),
    }
}

fn shares_line(snapshot: &Snapshot, shares: Option<Shares>) -> String {
    let Some(shares) = shares else {
        return "no tokens were served".to_owned();
    };
    let all = snapshot.tenants.iter().zip(shares);
    let shares: Vec<String> = all
        .map(|(tenant, (real, ideal))| {
            format!("{} {} (ideal {})", tenant.name, percent(Some(real)), percent(Some(ideal)))
        })
        .collect();
    shares.join(", ")
}

fn at_end(roles: &[Option<String>]) -> String {
    let role = |(index, role): (usize, &Option<String>)| {
        let number = index + 1;
        match role.as_deref() {
            Some("leader") => format!("companion {number} leads"),
            Some("standby") => format!("companion {number} is a standby"),
            Some(_) | None => format!("companion {number} doesn't answer"),
        }
    };
    let roles: Vec<String> = roles.iter().enumerate().map(role).collect();
    format!("At the end, {}.", roles.join(" and "))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;
    use crate::demo::client::Ending;
    use crate::demo::takeover::Kill;
    use crate::demo::tenants::TENANTS;

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    /// A demo whose companion 1 led and was killed after 10 s.
    fn killed(start: Instant) -> Takeover {
        let mut takeover = Takeover::new(start, seconds(10), "the file /tmp/lease".to_owned());
        takeover.killed(Kill { companion: 1, requested: start + seconds(10), dead: start + seconds(11) });
        takeover
    }

    fn roles(roles: [Option<&str>; 2]) -> Vec<Option<String>> {
        roles.iter().map(|role| role.map(str::to_owned)).collect()
    }

    #[test]
    fn takeover_by_the_standby_is_described() {
        let start = Instant::now();
        let mut takeover = killed(start);
        takeover.leads(2, start + seconds(11));
        takeover.granted(start + seconds(11), start + seconds(13));
        let sentences =
            sentences(&takeover, &Snapshot::new(&TENANTS), &roles([Some("standby"), Some("leader")]))
                .join("\n");
        for words in [
            "After 10.0 s the leader, companion 1, was killed",
            "Companion 2, the standby, took over.",
            "Its answer began 3.0 s after the kill",
            "No request was lost.",
            "in the file /tmp/lease.\nAt the end, companion 1 is a standby and companion 2 leads.",
        ] {
            assert!(sentences.contains(words), "{words}: {sentences}");
        }
    }

    #[test]
    fn restarted_companion_that_leads_again_is_named() {
        let start = Instant::now();
        let mut takeover = killed(start);
        takeover.leads(1, start + seconds(12));
        let sentences = sentences(&takeover, &Snapshot::new(&TENANTS), &roles([Some("leader"), None]));
        assert!(sentences[1].contains("Companion 1 was restarted and got the lease again"), "{sentences:?}");
        let last = sentences.last().unwrap();
        assert!(last.contains("companion 1 leads and companion 2 doesn't answer"), "{last}");
    }

    #[test]
    fn shares_before_and_after_the_kill_are_counted_apart() {
        let start = Instant::now();
        let mut snapshot = Snapshot::new(&TENANTS);
        snapshot.takeover = Some(Takeover::new(start, seconds(1), "a file".to_owned()));
        let serve = |snapshot: &mut Snapshot, tenant: usize, tokens| {
            let ending = Ending::Served {
                outcome: "dispatched".to_owned(),
                ttft: seconds(1),
                input: tokens,
                output: 0,
            };
            snapshot.tallies[tenant].ended(ending, true);
        };
        serve(&mut snapshot, 0, 10);
        serve(&mut snapshot, 1, 30);
        snapshot.leader_killed(Kill { companion: 2, requested: start, dead: start });
        serve(&mut snapshot, 0, 40);
        serve(&mut snapshot, 1, 40);
        let why = String::new();
        snapshot.tallies[2].ended(Ending::Failed { why }, true);
        let takeover = snapshot.takeover.clone().unwrap();
        let sentences = sentences(&takeover, &snapshot, &[]).join("\n");
        for words in [
            "Shares before the kill: greedy 25.0 %",
            "Shares after the kill: greedy 50.0 %",
            "Requests that were lost: 1.",
            "No companion took over.",
        ] {
            assert!(sentences.contains(words), "{words}: {sentences}");
        }
    }

    #[test]
    fn demo_that_ends_before_the_kill_has_no_takeover() {
        let takeover = Takeover::new(Instant::now(), seconds(10), "a file".to_owned());
        let sentences = sentences(&takeover, &Snapshot::new(&TENANTS), &[]);
        assert_eq!(sentences, ["The demo ended before the leader was killed."]);
    }
}
