//! What became of the requests of the last minute, for whoever asks too late to see them live.
//!
//! Fed by what the driver sees, owned by the driver, so nothing here is shared. It keeps whoever came last within a
//! limit of memory: under more traffic than that it looks back less far, and takes no more.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use penstock_control::{Labels, Observation, code_of};
use penstock_engine::{Instant, Outcome};

/// For how long an end is remembered.
pub const KEPT: Duration = Duration::from_secs(60);
/// Of all that is remembered, the labels and their words included.
const BYTES_MAX: usize = 16 << 20;

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Whose it was.
    pub labels: Arc<Labels>,
    /// Its outcome.
    pub outcome: Outcome,
    /// The code of the answer, if it was one of ours; else empty.
    pub code: Box<str>,
    /// In the queue.
    pub waited: Duration,
    /// Where it was served; empty: nowhere that was seen.
    pub endpoint: Arc<str>,
    /// What the client got from there; 0: nothing.
    pub status: u16,
    /// When.
    at: Instant,
}

/// The ends of the last minute, in their order, and by the hash of their names.
#[derive(Debug, Default)]
pub struct History {
    /// Each beside the hash of its name.
    ended: VecDeque<(u64, Ended)>,
    /// The number of the first of `ended`; they count up from there.
    first: u64,
    /// The number of the last that has a name of this hash, which no client can foresee.
    by_name: HashMap<u64, u64>,
    hasher: RandomState,
    bytes: usize,
}

impl History {
    /// Something was seen.
    pub fn note(&mut self, now: Instant, observation: &Observation) {
        let ended = match observation {
            Observation::Decided {
                labels,
                outcome,
                code,
                waited,
                endpoint: _,
            } if !goes(*outcome) => Ended::of(now, labels, *outcome, code, *waited),
            Observation::Refused {
                labels,
                outcome,
                code,
            } => {
                let known = Outcome::ALL.into_iter().find(|it| it.as_str() == &**outcome);
                let outcome = known.unwrap_or(Outcome::Internal);
                Ended::of(now, labels, outcome, code, Duration::ZERO)
            }
            Observation::Dropped {
                labels,
                outcome,
                code,
                waited,
            } => Ended::of(now, labels, *outcome, code, *waited),
            Observation::Completed {
                labels,
                outcome,
                waited,
                endpoint,
                status,
                ..
            } => Ended {
                endpoint: endpoint.clone(),
                status: *status,
                ..Ended::of(now, labels, *outcome, "", *waited)
            },
            Observation::Decided { .. }
            | Observation::SessionOpened { .. }
            | Observation::SessionClosed { .. }
            | Observation::SessionOrphaned { .. }
            | Observation::EndpointDown { .. }
            | Observation::EndpointBack { .. }
            | Observation::Arrived(_)
            | Observation::BadDeadline(_)
            | Observation::PriorityLowered(_)
            | Observation::Requeued(_)
            | Observation::Misrouted { .. }
            | Observation::Learned { .. }
            | Observation::Used { .. } => return,
        };
        self.insert(ended);
    }

    /// How the request of this name ended, if that isn't too long ago; of several, the last.
    pub fn find(&mut self, now: Instant, request_id: &str) -> Option<&Ended> {
        self.expire(now);
        let number = self.by_name.get(&self.hasher.hash_one(request_id))?;
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let (_, found) = self.ended.get(at)?;
        // Another one of the same hash has taken its place.
        (&*found.labels.request_id == request_id).then_some(found)
    }

    fn insert(&mut self, ended: Ended) {
        self.expire(ended.at);
        if ended.labels.request_id.is_empty() {
            return;
        }
        self.bytes += ended.bytes();
        let number = self.first + self.ended.len() as u64;
        let name = self.hasher.hash_one(&*ended.labels.request_id);
        self.by_name.insert(name, number);
        self.ended.push_back((name, ended));
        while self.bytes > BYTES_MAX {
            self.forget_first();
        }
    }

    fn expire(&mut self, now: Instant) {
        while self.ended.front().is_some_and(|(_, it)| now.since(it.at) > KEPT) {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        let Some((name, gone)) = self.ended.pop_front() else {
            return;
        };
        self.bytes -= gone.bytes();
        if self.by_name.get(&name) == Some(&self.first) {
            self.by_name.remove(&name);
        }
        self.first += 1;
        if self.ended.is_empty() {
            // A rush leaves nothing behind.
            self.ended.shrink_to(1_024);
            self.by_name.shrink_to(1_024);
        }
    }
}

impl Ended {
    fn of(at: Instant, labels: &Arc<Labels>, outcome: Outcome, code: &str, waited: Duration) -> Self {
        Self {
            labels: labels.clone(),
            outcome,
            code: code.into(),
            waited,
            endpoint: Arc::default(),
            status: 0,
            at,
        }
    }

    /// What it takes in memory, its place in the table of names included.
    fn bytes(&self) -> usize {
        /// Of a block of memory, and what isn't filled of the two tables.
        const EACH: usize = 16 + 2 * (size_of::<Ended>() + 3 * size_of::<u64>());
        let of = &self.labels;
        let words = [
            of.model.len(),
            of.target_model.len(),
            of.flow.len(),
            of.request_id.len(),
            of.traceparent.len(),
            of.class.len(),
            self.code.len(),
            self.endpoint.len(),
        ];
        let blocks = words.iter().filter(|len| **len > 0).count();
        EACH + size_of::<Labels>() + 16 * blocks + words.iter().sum::<usize>()
    }

    /// Why it ended so; a sentence for people.
    #[must_use]
    pub fn why(&self) -> String {
        let waited = format!("{:.3} s", self.waited.as_secs_f64());
        if !goes(self.outcome) {
            return format!("{} after {waited}", refusal(self.outcome));
        }
        if !self.endpoint.is_empty() {
            let went = match self.outcome {
                Outcome::Bypassed => "it went at once".to_owned(),
                _ => format!("it went when its turn came, after {waited}"),
            };
            return match self.status {
                0 => format!("{went}; its server {} gave no answer", self.endpoint),
                status => format!("{went}, and was answered {status} by {}", self.endpoint),
            };
        }
        if self.code.is_empty() {
            return "it was let go, and nobody saw a server end it: its client left before, or its Envoy has gone".into();
        }
        format!("no server took it, and it was answered {}", self.code)
    }
}

/// It is let go by this outcome.
const fn goes(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Bypassed | Outcome::Leased | Outcome::Dispatched)
}

/// What a refusal means, in words; the key that would change it where there is one.
const fn refusal(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Bypassed | Outcome::Leased | Outcome::Dispatched => "it went",
        Outcome::RejectedTooManyFlows | Outcome::RejectedQueueFull => {
            "it was refused, the queue was full (queue.total_capacity, queue.total_bytes)"
        }
        Outcome::RejectedFlowCapacity => {
            "it was refused, its flow had as many waiting as one may have (queue.flow_capacity, flows.capacities)"
        }
        Outcome::RejectedClassCapacity => "it was refused, its class's queue limit was reached",
        Outcome::RejectedPolicy => {
            "it was refused, it may not wait (queue.enabled, queue.total_capacity, queue.admit)"
        }
        Outcome::RejectedUnmeetable => {
            "it was refused, it was predicted to miss its deadline (reject_unmeetable)"
        }
        Outcome::RejectedInvalid => "it was refused as invalid, or no pool serves its model (pools[].models)",
        Outcome::Displaced => "a more critical request took its place in the full queue (queue.overflow)",
        Outcome::ExpiredTtl => "it waited longer than it may (queue.ttl)",
        Outcome::DeadlineExceeded => "its client's deadline passed while it waited",
        Outcome::Cancelled => "its client left, or its Envoy with it, while it waited",
        Outcome::NoEndpoints => {
            "no endpoint of its pool was ready for it for longer than it may wait (queue.no_endpoint_ttl), or none fits its constraints"
        }
        Outcome::ShuttingDown => "it was refused, the gateway was shutting down or draining",
        Outcome::GatewayUnavailable => "it was refused by the filter, no companion answered (companion_down)",
        Outcome::Internal => "it couldn't be decided on; the log says why",
    }
}

/// The code of an outcome's answer.
#[must_use]
pub fn code(of: Outcome) -> &'static str {
    code_of(of).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use penstock_engine::input::Band;

    use super::*;

    fn labels(request_id: &str) -> Arc<Labels> {
        Arc::new(Labels {
            pool: "chat".into(),
            model: "m".into(),
            target_model: "m".into(),
            flow: "acme".into(),
            private: false,
            band: Band::Default,
            class: Box::default(),
            request_id: request_id.into(),
            traceparent: Box::default(),
        })
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO.after(Duration::from_secs(seconds))
    }

    fn decided(request_id: &str, outcome: Outcome) -> Observation {
        Observation::Decided {
            labels: labels(request_id),
            outcome,
            code: code(outcome),
            waited: Duration::from_millis(1_500),
            endpoint: "127.0.0.1:1".into(),
        }
    }

    #[test]
    fn an_end_is_known_for_a_minute() {
        let mut history = History::default();
        history.note(at(0), &decided("a", Outcome::ExpiredTtl));
        history.note(at(0), &decided("b", Outcome::Dispatched));
        assert_eq!(history.find(at(0), "b"), None, "it runs");
        let found = history.find(at(60), "a").expect("it is remembered");
        assert_eq!(
            (found.outcome, &*found.code),
            (Outcome::ExpiredTtl, "queue_timeout")
        );
        assert_eq!(
            found.why(),
            "it waited longer than it may (queue.ttl) after 1.500 s"
        );
        assert_eq!(history.find(at(61), "a"), None);
        assert_eq!((history.bytes, history.by_name.len()), (0, 0));
    }

    #[test]
    fn of_one_name_the_last_counts() {
        let mut history = History::default();
        history.note(at(0), &decided("a", Outcome::ExpiredTtl));
        history.note(at(30), &decided("a", Outcome::RejectedQueueFull));
        for second in [31, 61, 90] {
            let found = history.find(at(second), "a").map(|it| it.outcome);
            assert_eq!(found, Some(Outcome::RejectedQueueFull));
        }
        assert_eq!(history.find(at(91), "a"), None);
    }

    #[test]
    fn what_went_ends_where_it_was_served() {
        let mut history = History::default();
        let completed = |status, endpoint: &str| Observation::Completed {
            labels: labels("a"),
            outcome: Outcome::Dispatched,
            waited: Duration::from_millis(20),
            endpoint: endpoint.into(),
            status,
            ttft: None,
            itl: None,
            duration: Duration::from_secs(1),
            prompt_tokens: None,
            output_tokens: None,
        };
        let why = |history: &mut History| history.find(at(0), "a").map(Ended::why).unwrap_or_default();
        history.note(at(0), &completed(200, "127.0.0.1:1"));
        assert_eq!(
            why(&mut history),
            "it went when its turn came, after 0.020 s, and was answered 200 by 127.0.0.1:1"
        );
        history.note(at(0), &completed(0, "127.0.0.1:1"));
        assert!(why(&mut history).ends_with("its server 127.0.0.1:1 gave no answer"));
        let dropped = |code| Observation::Dropped {
            labels: labels("a"),
            outcome: Outcome::Dispatched,
            code,
            waited: Duration::ZERO,
        };
        history.note(at(0), &dropped("queue_timeout"));
        assert_eq!(
            why(&mut history),
            "no server took it, and it was answered queue_timeout"
        );
        history.note(at(0), &dropped(""));
        assert!(why(&mut history).contains("its Envoy has gone"));
    }

    #[test]
    fn a_rush_takes_no_more_than_its_memory() {
        let mut history = History::default();
        for number in 0..200_000 {
            history.note(at(1), &decided(&format!("{number:036}"), Outcome::Cancelled));
            assert!(history.bytes <= BYTES_MAX);
        }
        let kept = history.ended.len();
        assert!((20_000..100_000).contains(&kept), "{kept}");
        assert_eq!(history.by_name.len(), kept);
        assert!(history.find(at(1), &format!("{:036}", 199_999)).is_some());
        assert!(history.find(at(1), &format!("{:036}", 0)).is_none());
        history.expire(at(100));
        assert_eq!(
            (history.bytes, history.ended.len(), history.by_name.len()),
            (0, 0, 0)
        );
        assert!(history.ended.capacity() <= 1_024, "a rush leaves nothing behind");
    }

    #[test]
    fn who_has_no_name_is_not_kept() {
        let mut history = History::default();
        history.note(at(0), &decided("", Outcome::Cancelled));
        assert!(history.ended.is_empty());
    }

    #[test]
    fn every_refusal_is_a_sentence() {
        for outcome in Outcome::ALL.into_iter().filter(|it| !goes(*it)) {
            assert!(
                refusal(outcome).starts_with(|it: char| it.is_lowercase()),
                "{outcome:?}"
            );
            assert!(refusal(outcome).contains(' '), "{outcome:?}");
        }
    }
}
