//! How the requests of the last minute ended, for lookups after the end.
//!
//! The driver records observations and owns the table; nothing is shared. The table keeps the latest requests within a
//! memory limit: with more traffic it covers less than a minute, and takes no more memory.

use std::collections::VecDeque;
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::{DefaultHashBuilder, HashMap};
use penstock_control::{Dropped, Labels, Observation, Refused, RequestNews};
use penstock_engine::{Instant, Outcome};
use penstock_wire::Code;

/// How long an ended request can be looked up.
pub(crate) const RETENTION: Duration = Duration::from_secs(60);
/// The memory limit, with the labels and their texts.
const BYTES_MAX: usize = 16 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EndedRequest {
    pub(crate) labels: Arc<Labels>,
    pub(crate) outcome: Outcome,
    /// The error code of Penstock's own response; `None`: there was none.
    pub(crate) code: Option<Code>,
    /// The time in the queue.
    pub(crate) waited: Duration,
    /// The endpoint that served the request; empty: none is known.
    pub(crate) endpoint: Arc<str>,
    /// The HTTP status of the endpoint's response; 0: the client got none.
    pub(crate) status: u16,
    /// How often the request was requeued.
    pub(crate) requeues: u32,
    /// It ran above the bound of its endpoint.
    pub(crate) extra: bool,
    ended_at: Instant,
}

/// The requests that ended in the last minute, in order, and indexed by the hash of their id.
#[derive(Debug, Default)]
pub(crate) struct EndedRequests {
    /// Each with the hash of its id.
    ended: VecDeque<(u64, EndedRequest)>,
    /// The number of the first entry of `ended`; numbers are consecutive.
    first: u64,
    /// By hash of the id: the number of the last entry. The hash is seeded, so that no client can choose ids that collide.
    by_id: HashMap<u64, u64>,
    hasher: DefaultHashBuilder,
    bytes: usize,
}

impl EndedRequests {
    /// Records an observation; only ends of requests have an effect.
    pub(crate) fn record(&mut self, now: Instant, observation: &Observation) {
        let Observation::Request(labels, news) = observation else { return };
        let ended = match news {
            RequestNews::Decided(decided) if !decided.outcome.is_grant() => {
                EndedRequest::new(now, labels, decided.outcome, decided.code, decided.waited, 0)
            }
            RequestNews::Refused(Refused { outcome, code, waited, requeues, .. }) => {
                let outcome = Outcome::from_name(outcome).unwrap_or(Outcome::Internal);
                EndedRequest::new(now, labels, outcome, Some(*code), waited.unwrap_or_default(), *requeues)
            }
            RequestNews::Dropped(Dropped { outcome, code, waited, requeues, .. }) => {
                EndedRequest::new(now, labels, *outcome, *code, *waited, *requeues)
            }
            RequestNews::Completed(ended) => EndedRequest {
                endpoint: ended.endpoint.clone(),
                status: ended.status,
                extra: ended.extra,
                ..EndedRequest::new(now, labels, ended.outcome, None, ended.waited, ended.requeues)
            },
            RequestNews::Arrived(_)
            | RequestNews::ClientRetry(_)
            | RequestNews::BadDeadline
            | RequestNews::PriorityLowered
            | RequestNews::Requeued
            | RequestNews::Decided(_)
            | RequestNews::Misrouted(_) => return,
        };
        self.insert(ended);
    }

    /// How the last request with this id ended, if it can still be looked up.
    pub(crate) fn find(&mut self, now: Instant, request_id: &str) -> Option<&EndedRequest> {
        self.expire(now);
        let number = self.by_id.get(&self.hasher.hash_one(request_id))?;
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let (_, found) = self.ended.get(index)?;
        // A collision: another id with the same hash has replaced the entry.
        (&*found.labels.request_id == request_id).then_some(found)
    }

    fn insert(&mut self, ended: EndedRequest) {
        self.expire(ended.ended_at);
        if ended.labels.request_id.is_empty() {
            return;
        }
        self.bytes += ended.bytes();
        let number = self.first + self.ended.len() as u64;
        let hash = self.hasher.hash_one(&*ended.labels.request_id);
        self.by_id.insert(hash, number);
        self.ended.push_back((hash, ended));
        while self.bytes > BYTES_MAX {
            self.remove_first();
        }
    }

    fn expire(&mut self, now: Instant) {
        while self.ended.front().is_some_and(|(_, request)| now.since(request.ended_at) > RETENTION) {
            self.remove_first();
        }
    }

    fn remove_first(&mut self) {
        let Some((hash, removed)) = self.ended.pop_front() else {
            return;
        };
        self.bytes -= removed.bytes();
        if self.by_id.get(&hash) == Some(&self.first) {
            self.by_id.remove(&hash);
        }
        self.first += 1;
        if self.ended.is_empty() {
            // Returns the memory of a burst.
            self.ended.shrink_to(1_024);
            self.by_id.shrink_to(1_024);
        }
    }
}

impl EndedRequest {
    fn new(
        ended_at: Instant,
        labels: &Arc<Labels>,
        outcome: Outcome,
        code: Option<Code>,
        waited: Duration,
        requeues: u32,
    ) -> Self {
        Self {
            labels: labels.clone(),
            outcome,
            code,
            waited,
            endpoint: Arc::default(),
            status: 0,
            requeues,
            extra: false,
            ended_at,
        }
    }

    /// The memory of the entry, including its share of the index.
    fn bytes(&self) -> usize {
        /// The overhead of an allocation, and the entry's place in the two tables with their unused part.
        const OVERHEAD: usize = 16 + 2 * (size_of::<EndedRequest>() + 3 * size_of::<u64>());
        let labels = &self.labels;
        let texts = [
            labels.model.requested.len(),
            if labels.model.is_rewritten() { labels.model.target.len() } else { 0 },
            labels.flow.len(),
            labels.request_id.len(),
            labels.traceparent.len(),
            labels.class.len(),
            self.endpoint.len(),
        ];
        let allocations = texts.iter().filter(|len| **len > 0).count();
        OVERHEAD + size_of::<Labels>() + 16 * allocations + texts.iter().sum::<usize>()
    }

    /// Why the request ended as it did: a sentence for people.
    #[must_use]
    pub(crate) fn reason(&self) -> String {
        let mut reason = self.last_reason();
        if self.requeues > 0 {
            let times = self.requeues;
            reason
                .push_str(&format!("; it was requeued before, because no server accepted it: {times} times"));
        }
        reason
    }

    fn last_reason(&self) -> String {
        let waited = format!("{:.3} s", self.waited.as_secs_f64());
        if !self.outcome.is_grant() {
            return format!("{} after {waited}", rejection(self.outcome));
        }
        if !self.endpoint.is_empty() {
            let granted = match self.outcome {
                Outcome::Bypassed => "it was granted at once".to_owned(),
                _ => format!("it was granted after {waited}"),
            };
            return match self.status {
                0 => format!("{granted}; endpoint {} gave no answer", self.endpoint),
                status => format!("{granted} and was answered {status} by {}", self.endpoint),
            };
        }
        let Some(code) = self.code else {
            return "it was granted, and no endpoint reported its end: its client or its Envoy was gone before".into();
        };
        format!("it was granted, no endpoint accepted it, and it was answered {}", code.as_str())
    }
}

/// What the outcome of a request without a grant means, with the configuration keys that affect it.
const fn rejection(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Bypassed | Outcome::Leased | Outcome::Dispatched => "it was granted",
        Outcome::RejectedTooManyFlows | Outcome::RejectedQueueFull => {
            "rejected: the queue was full (queue.total_capacity, queue.total_bytes)"
        }
        Outcome::RejectedFlowCapacity => {
            "rejected: its flow had as many waiting requests as allowed (queue.flow_capacity, flows.capacities)"
        }
        Outcome::RejectedClassCapacity => "rejected: the queue limit of its class was reached",
        Outcome::RejectedPolicy => {
            "rejected: it may not wait (queue.enabled, queue.total_capacity, queue.admit)"
        }
        Outcome::RejectedUnmeetable => "rejected: it was predicted to miss its deadline (reject_unmeetable)",
        Outcome::RejectedBudget => "rejected: its flow had used up its budget (flows.budgets)",
        Outcome::RejectedInvalid => "rejected: it was invalid, or no pool serves its model (pools[].models)",
        Outcome::Displaced => {
            "rejected: a more critical request took its place in the full queue (queue.overflow)"
        }
        Outcome::Evicted => "evicted: a critical request waited for its place (eviction); it was granted",
        Outcome::ExpiredTtl => "expired: it waited longer than queue.ttl,",
        Outcome::DeadlineExceeded => "expired: its client's deadline passed while it waited,",
        Outcome::Cancelled => "cancelled: its client or its Envoy was gone while it waited,",
        Outcome::NoEndpoints => {
            "rejected: no endpoint of its pool was ready within queue.no_endpoint_ttl, or none fits its constraints,"
        }
        Outcome::ShuttingDown => "rejected: the gateway was shutting down or draining",
        Outcome::GatewayUnavailable => "rejected by its filter: no companion answered (companion_down)",
        Outcome::Internal => "failed: it couldn't be decided on, for a reason in the log,",
    }
}

#[cfg(test)]
mod tests {
    use penstock_control::{Completed, Decided, code_of};
    use penstock_engine::input::Band;

    use super::*;

    fn labels(request_id: &str) -> Arc<Labels> {
        Arc::new(Labels {
            tokens: None,
            pool: "chat".into(),
            model: "m".into(),
            flow: "acme".into(),
            private: false,
            band: Band::Default,
            class: Box::default(),
            request_id: request_id.into(),
            traceparent: Box::default(),
        })
    }

    fn time(seconds: u64) -> Instant {
        Instant::ZERO.after(Duration::from_secs(seconds))
    }

    fn decided(request_id: &str, outcome: Outcome) -> Observation {
        Observation::Request(
            labels(request_id),
            RequestNews::Decided(Decided {
                outcome,
                code: code_of(outcome),
                waited: Duration::from_millis(1_500),
                endpoint: "127.0.0.1:1".into(),
                was_queued: true,
                extra: false,
                prefill: None,
            }),
        )
    }

    #[test]
    fn an_ended_request_can_be_looked_up_for_a_minute() {
        let mut requests = EndedRequests::default();
        requests.record(time(0), &decided("a", Outcome::ExpiredTtl));
        requests.record(time(0), &decided("b", Outcome::Dispatched));
        assert_eq!(requests.find(time(0), "b"), None, "it still runs");
        let found = requests.find(time(60), "a").expect("it is remembered");
        assert_eq!((found.outcome, found.code), (Outcome::ExpiredTtl, Some(Code::QueueTimeout)));
        assert_eq!(found.reason(), "expired: it waited longer than queue.ttl, after 1.500 s");
        assert_eq!(requests.find(time(61), "a"), None);
        assert_eq!((requests.bytes, requests.by_id.len()), (0, 0));
    }

    #[test]
    fn of_requests_with_one_id_the_last_is_found() {
        let mut requests = EndedRequests::default();
        requests.record(time(0), &decided("a", Outcome::ExpiredTtl));
        requests.record(time(30), &decided("a", Outcome::RejectedQueueFull));
        for second in [31, 61, 90] {
            let found = requests.find(time(second), "a").map(|request| request.outcome);
            assert_eq!(found, Some(Outcome::RejectedQueueFull));
        }
        assert_eq!(requests.find(time(91), "a"), None);
    }

    #[test]
    fn a_granted_request_has_the_reason_with_its_endpoint() {
        let mut requests = EndedRequests::default();
        let completed = |status, endpoint: &str| {
            Observation::Request(
                labels("a"),
                RequestNews::Completed(Completed {
                    outcome: Outcome::Dispatched,
                    waited: Duration::from_millis(20),
                    endpoint: endpoint.into(),
                    status,
                    first_token: None,
                    ttft: None,
                    itl: None,
                    duration: Duration::from_secs(1),
                    prompt_tokens: None,
                    output_tokens: None,
                    requeues: 0,
                    extra: false,
                }),
            )
        };
        let reason = |requests: &mut EndedRequests| {
            let found = requests.find(time(0), "a");
            found.map(EndedRequest::reason).unwrap_or_default()
        };
        requests.record(time(0), &completed(200, "127.0.0.1:1"));
        assert_eq!(reason(&mut requests), "it was granted after 0.020 s and was answered 200 by 127.0.0.1:1");
        requests.record(time(0), &completed(0, "127.0.0.1:1"));
        assert!(reason(&mut requests).ends_with("endpoint 127.0.0.1:1 gave no answer"));
        let dropped = |code| {
            Observation::Request(
                labels("a"),
                RequestNews::Dropped(Dropped {
                    outcome: Outcome::Dispatched,
                    requeues: 0,
                    status: None,
                    code,
                    waited: Duration::ZERO,
                }),
            )
        };
        requests.record(time(0), &dropped(Some(Code::QueueTimeout)));
        assert_eq!(
            reason(&mut requests),
            "it was granted, no endpoint accepted it, and it was answered queue_timeout"
        );
        requests.record(time(0), &dropped(None));
        assert!(reason(&mut requests).contains("its Envoy was gone"));
    }

    #[test]
    fn a_requeued_request_that_expired_has_that_reason_and_shows_its_requeues() {
        let mut requests = EndedRequests::default();
        let expired = Observation::Request(
            labels("a"),
            RequestNews::Dropped(Dropped {
                outcome: Outcome::ExpiredTtl,
                requeues: 3,
                status: Some(503),
                code: Some(Code::QueueTimeout),
                waited: Duration::from_secs(30),
            }),
        );
        requests.record(time(0), &expired);
        let found = requests.find(time(0), "a").expect("it is remembered");
        assert_eq!((found.outcome, found.requeues), (Outcome::ExpiredTtl, 3));
        assert_eq!(
            found.reason(),
            "expired: it waited longer than queue.ttl, after 30.000 s; it was requeued before, because no server accepted it: 3 times"
        );
    }

    #[test]
    fn a_burst_stays_within_the_memory_limit() {
        let mut requests = EndedRequests::default();
        for number in 0..200_000 {
            requests.record(time(1), &decided(&format!("{number:036}"), Outcome::Cancelled));
            assert!(requests.bytes <= BYTES_MAX);
        }
        let kept = requests.ended.len();
        assert!((20_000..100_000).contains(&kept), "{kept}");
        assert_eq!(requests.by_id.len(), kept);
        assert!(requests.find(time(1), &format!("{:036}", 199_999)).is_some());
        assert!(requests.find(time(1), &format!("{:036}", 0)).is_none());
        requests.expire(time(100));
        assert_eq!((requests.bytes, requests.ended.len(), requests.by_id.len()), (0, 0, 0));
        assert!(requests.ended.capacity() <= 1_024, "memory is returned");
    }

    #[test]
    fn a_request_without_an_id_is_not_kept() {
        let mut requests = EndedRequests::default();
        requests.record(time(0), &decided("", Outcome::Cancelled));
        assert!(requests.ended.is_empty());
    }

    #[test]
    fn every_rejection_has_a_reason() {
        for outcome in Outcome::ALL.into_iter().filter(|outcome| !outcome.is_grant()) {
            assert!(rejection(outcome).starts_with(|letter: char| letter.is_lowercase()), "{outcome:?}");
            assert!(rejection(outcome).contains(' '), "{outcome:?}");
        }
    }
}
