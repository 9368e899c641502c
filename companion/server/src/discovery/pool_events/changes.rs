//! Which changes of a pool's state are worth an Event.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use penstock_model::Parameters;

/// How long a pool must be without a ready endpoint. A companion starts without one.
const UNREADY: Duration = Duration::from_secs(10);
/// How long a queue must be full.
const FULL: Duration = Duration::from_secs(60);

/// The state of a pool at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// Ready endpoints.
    pub(super) ready: u64,
    /// Waiting requests.
    pub(super) waiting: u64,
    /// The most requests that may wait.
    pub(super) capacity: u64,
    /// How long a request waits for an endpoint.
    pub(super) longest_wait: Duration,
    /// Requests that were rejected or displaced because the queue was full, since the start.
    pub(super) refused: u64,
    /// Variants whose model has converged.
    pub(super) learned: BTreeMap<String, Variant>,
}

/// The model of a variant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Variant {
    pub(super) parameters: Parameters,
    /// The requests in flight at which an endpoint meets its targets; `None` without targets.
    pub(super) n_star: Option<f64>,
}

/// The content of an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Notice {
    /// A problem; otherwise a piece of news.
    pub(super) is_warning: bool,
    /// In `PascalCase`.
    pub(super) reason: &'static str,
    /// A sentence.
    pub(super) note: String,
}

/// A pool's last state, and what was said about it.
#[derive(Clone, Debug, Default)]
pub(super) struct Changes {
    unready_since: Option<Instant>,
    said_unready: bool,
    full_since: Option<Instant>,
    said_full: bool,
    /// `None` before the first state.
    last: Option<Facts>,
}

impl Changes {
    /// The notices about the change from the last state to this one.
    pub(super) fn update(&mut self, now: Instant, facts: Facts) -> Vec<Notice> {
        let mut notices = Vec::new();
        notices.extend(self.readiness(now, &facts));
        notices.extend(self.fullness(now, &facts));
        if let Some(last) = &self.last {
            let new = facts.learned.iter().filter(|(name, _)| !last.learned.contains_key(*name));
            notices.extend(new.map(|(name, variant)| learned(name, variant)));
        }
        self.last = Some(facts);
        notices
    }

    fn readiness(&mut self, now: Instant, facts: &Facts) -> Option<Notice> {
        if facts.ready > 0 {
            self.unready_since = None;
            return std::mem::take(&mut self.said_unready).then(|| Notice {
                is_warning: false,
                reason: "EndpointsReady",
                note: format!("{} ready again", endpoints_are(facts.ready)),
            });
        }
        let since = *self.unready_since.get_or_insert(now);
        if self.said_unready || now.duration_since(since) < UNREADY {
            return None;
        }
        self.said_unready = true;
        Some(Notice {
            is_warning: true,
            reason: "NoReadyEndpoint",
            note: format!(
                "no endpoint is ready, so requests wait for {} s at most (queue.no_endpoint_ttl); waiting now: {}",
                facts.longest_wait.as_secs(),
                facts.waiting
            ),
        })
    }

    /// A full queue refuses requests, or would refuse the next one.
    fn fullness(&mut self, now: Instant, facts: &Facts) -> Option<Notice> {
        let refused = self.last.as_ref().map_or(facts.refused, |last| last.refused);
        if facts.refused <= refused && facts.waiting < facts.capacity {
            (self.full_since, self.said_full) = (None, false);
            return None;
        }
        let since = *self.full_since.get_or_insert(now);
        if self.said_full || now.duration_since(since) < FULL {
            return None;
        }
        self.said_full = true;
        Some(Notice {
            is_warning: true,
            reason: "QueueFull",
            note: format!(
                "the queue has been full for {} s: {} requests wait, and others are refused; add servers or raise \
                 queue.total_capacity ({})",
                FULL.as_secs(),
                facts.waiting,
                facts.capacity
            ),
        })
    }
}

fn endpoints_are(count: u64) -> String {
    match count {
        1 => "1 endpoint is".into(),
        more => format!("{more} endpoints are"),
    }
}

fn learned(name: &str, variant: &Variant) -> Notice {
    let Parameters { alpha_ms: alpha, beta_ms: beta, gamma_ms: gamma } = variant.parameters;
    let most = variant.n_star.map_or_else(String::new, |n_star| {
        format!("; an endpoint meets its targets with up to {n_star:.1} requests")
    });
    Notice {
        is_warning: false,
        reason: "ModelLearned",
        note: format!(
            "the performance model of variant {name} has converged: alpha {alpha:.3} ms, beta {beta:.5} ms a token, gamma \
             {gamma:.6} ms a cached token{most}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(changes: &mut Changes, now: Instant, facts: Facts) -> Vec<&'static str> {
        let notices = changes.update(now, facts);
        notices.into_iter().map(|notice| notice.reason).collect()
    }

    fn facts(ready: u64) -> Facts {
        Facts { ready, capacity: 10, ..Facts::default() }
    }

    #[test]
    fn a_pool_without_a_ready_endpoint_is_reported_once_and_so_is_the_end() {
        let (mut changes, start) = (Changes::default(), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert_eq!(reasons(&mut changes, at(0), facts(0)), [""; 0]);
        assert_eq!(reasons(&mut changes, at(5), facts(1)), [""; 0], "it had just started");
        assert_eq!(reasons(&mut changes, at(10), facts(0)), [""; 0]);
        assert_eq!(reasons(&mut changes, at(19), facts(0)), [""; 0]);
        assert_eq!(reasons(&mut changes, at(20), facts(0)), ["NoReadyEndpoint"]);
        assert_eq!(reasons(&mut changes, at(90), facts(0)), [""; 0]);
        assert_eq!(reasons(&mut changes, at(95), facts(2)), ["EndpointsReady"]);
        assert_eq!(reasons(&mut changes, at(100), facts(2)), [""; 0]);
    }

    #[test]
    fn a_queue_that_is_full_for_a_minute_is_reported() {
        let (mut changes, start) = (Changes::default(), Instant::now());
        let mut refused = 7;
        let mut after = |seconds: u64, waiting: u64, more: u64| {
            refused += more;
            let facts = Facts { waiting, refused, ..facts(1) };
            reasons(&mut changes, start + Duration::from_secs(seconds), facts)
        };
        assert_eq!(after(0, 9, 0), [""; 0], "refusals of the past don't count");
        assert_eq!(after(5, 10, 0), [""; 0]);
        assert_eq!(after(30, 9, 3), [""; 0], "requests were refused since");
        assert_eq!(after(64, 10, 0), [""; 0]);
        assert_eq!(after(65, 9, 1), ["QueueFull"]);
        assert_eq!(after(200, 10, 0), [""; 0], "once");
        assert_eq!(after(205, 3, 0), [""; 0]);
        assert_eq!(after(210, 10, 0), [""; 0]);
        assert_eq!(after(270, 10, 0), ["QueueFull"], "full again");
    }

    #[test]
    fn a_model_that_converges_is_reported_unless_it_was_known_at_the_start() {
        let variant = Variant {
            parameters: Parameters { alpha_ms: 8.0, beta_ms: 0.05, gamma_ms: 0.0005 },
            n_star: Some(77.7),
        };
        let with = |names: &[&str]| Facts {
            learned: names.iter().map(|name| ((*name).to_owned(), variant)).collect(),
            ..facts(1)
        };
        let (mut changes, now) = (Changes::default(), Instant::now());
        assert_eq!(changes.update(now, with(&["a100"])), []);
        let notices = changes.update(now, with(&["a100", "h100"]));
        let [notice] = notices.as_slice() else { panic!("{notices:?}") };
        assert_eq!((notice.is_warning, notice.reason), (false, "ModelLearned"));
        assert!(notice.note.contains("h100") && notice.note.contains("77.7"), "{}", notice.note);
        assert_eq!(changes.update(now, with(&["a100", "h100"])), []);
    }
}
