//! What `--kill-leader` shows: when the leader was killed, which companion took over, and how long no request was granted.

use std::time::Duration;

use tokio::time::Instant;

use super::text::duration;

/// Number of companions: the leader and a standby.
pub(super) const COMPANIONS: usize = 2;
/// The largest number of lines of [`Takeover::log`].
pub(super) const LOG_LINES: usize = 4;

/// A killed leader.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Kill {
    /// The number of the companion, from 1.
    pub(super) companion: usize,
    pub(super) requested: Instant,
    /// The process didn't exist any more, so it granted no request that was sent later.
    pub(super) dead: Instant,
}

/// The takeover as far as it has happened.
#[derive(Clone, Debug)]
pub(super) struct Takeover {
    pub(super) start: Instant,
    /// Where the leader's lease is kept.
    pub(super) lease: String,
    pub(super) kill: Option<Kill>,
    /// The number of the companion that led next.
    pub(super) next: Option<usize>,
    /// Time from the kill until the response of the first granted request that was sent after the leader's death.
    pub(super) pause: Option<Duration>,
    log: Vec<String>,
}

impl Takeover {
    pub(super) fn new(start: Instant, kill_after: Duration, lease: String) -> Self {
        let log = vec![format!(
            "{COMPANIONS} companions; the leader is killed after {}; its lease is in {lease}",
            duration(Some(kill_after))
        )];
        Self { start, lease, kill: None, next: None, pause: None, log }
    }

    /// What happened, with the time since the start.
    pub(super) fn log(&self) -> &[String] {
        &self.log
    }

    /// Records an answer that this companion leads. `asked` is when the question was sent.
    pub(super) fn leads(&mut self, companion: usize, asked: Instant) {
        if let Some(kill) = self.kill
            && asked >= kill.dead
            && self.next.is_none()
        {
            self.next = Some(companion);
            let what = if companion == kill.companion { "was restarted and leads again" } else { "leads" };
            self.push(Instant::now(), &format!("companion {companion} {what}"));
        }
    }

    /// Records the leader's death. Further deaths are ignored.
    pub(super) fn killed(&mut self, kill: Kill) {
        if self.kill.is_none() {
            self.kill = Some(kill);
            self.push(
                kill.requested,
                &format!("killed companion {}, the leader, with SIGKILL", kill.companion),
            );
        }
    }

    pub(super) fn is_killed(&self) -> bool {
        self.kill.is_some()
    }

    /// Records that the response of a granted request has begun.
    pub(super) fn granted(&mut self, sent: Instant, answered: Instant) {
        if let Some(kill) = self.kill
            && sent >= kill.dead
            && self.pause.is_none()
        {
            let pause = answered.duration_since(kill.requested);
            self.pause = Some(pause);
            self.push(
                answered,
                &format!(
                    "first answer to a request sent after the kill: {} after the kill",
                    duration(Some(pause))
                ),
            );
        }
    }

    fn push(&mut self, time: Instant, what: &str) {
        let seconds = time.duration_since(self.start).as_secs_f64();
        self.log.push(format!("{seconds:.1} s: {what}"));
    }

    /// Why the takeover failed; empty if it didn't, or if the demo ended before the kill.
    pub(super) fn failures(&self, lost: u64) -> Vec<String> {
        let mut failures = Vec::new();
        if let Some(kill) = self.kill {
            if self.next.is_none() {
                failures.push(format!(
                    "companion {}, the leader, was killed, but no companion took over",
                    kill.companion
                ));
            }
            if lost > 0 {
                failures.push(format!("{lost} requests were lost"));
            }
        }
        failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    /// A demo whose companion 1 led and was killed after 10 s.
    fn killed(start: Instant) -> Takeover {
        let mut takeover = Takeover::new(start, seconds(10), "the file /tmp/lease".to_owned());
        takeover.killed(Kill { companion: 1, requested: start + seconds(10), dead: start + seconds(11) });
        takeover
    }

    #[test]
    fn answers_and_requests_from_before_the_death_prove_no_takeover() {
        let start = Instant::now();
        let mut takeover = killed(start);
        takeover.leads(1, start + seconds(10));
        takeover.granted(start + seconds(10), start + seconds(12));
        assert_eq!(takeover.failures(0).len(), 1, "{takeover:?}");
        assert_eq!(takeover.log().len(), 2);
        takeover.leads(2, start + seconds(11));
        takeover.granted(start + seconds(11), start + seconds(13));
        assert_eq!(takeover.failures(0), Vec::<String>::new());
        assert_eq!(takeover.failures(2), ["2 requests were lost"]);
        takeover.leads(1, start + seconds(14));
        takeover.granted(start + seconds(12), start + seconds(14));
        assert_eq!(takeover.log().len(), LOG_LINES);
        assert!(takeover.log()[1].starts_with("10.0 s: killed companion 1"), "{:?}", takeover.log());
    }

    #[test]
    fn demo_that_ends_before_the_kill_is_no_failure() {
        let mut takeover = Takeover::new(Instant::now(), seconds(10), "a file".to_owned());
        takeover.leads(1, Instant::now());
        takeover.granted(Instant::now(), Instant::now());
        assert!(!takeover.is_killed());
        assert_eq!(takeover.failures(1), Vec::<String>::new());
        assert_eq!(takeover.log().len(), 1);
    }
}
