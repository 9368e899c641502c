//! The machine of one endpoint, and the comparison that it stands on.

use alloc::vec::Vec;
use core::time::Duration;

use super::kinds::{Comparison, Kinds};
use super::{Health, HealthReason, HealthState};
use crate::input::{AnswerResult, EndpointAnswer, EndpointId, Fault, Kind, RequestId};
use crate::policy::{Failing, OutlierEjection};
use crate::time::Instant;

const DOWN: OutlierEjection = OutlierEjection { first: Duration::from_secs(1), max: Duration::from_secs(30) };
const FAULT: Fault = Fault::Status(500);
const BROKEN: AnswerResult = AnswerResult::Failed(FAULT);
const UNAUTHORIZED: AnswerResult = AnswerResult::Rejected(401);
const HERE: EndpointId = EndpointId(1);
const THERE: EndpointId = EndpointId(2);

fn at(seconds: u64) -> Instant {
    Instant::from_nanos(seconds * 1_000_000_000)
}

fn kind(flow: u64) -> Kind {
    Kind { model_and_path: 7, flow }
}

/// Whether these failures, each of a request at a second, mark an endpoint down.
fn enough(failures: &[(u64, u64)]) -> bool {
    let mut endpoint = Health::new();
    let marks: Vec<bool> =
        failures.iter().map(|&(id, second)| endpoint.connection_failed(at(second), RequestId(id))).collect();
    let (last, before) = marks.split_last().expect("some failed");
    assert!(!before.contains(&true), "{failures:?} was enough earlier");
    *last
}

#[test]
fn two_different_requests_within_ten_seconds_mark_an_endpoint_down() {
    assert!(!enough(&[(1, 0)]));
    assert!(!enough(&[(1, 0), (1, 0), (1, 9)]), "always the same");
    assert!(enough(&[(1, 0), (2, 0)]));
    assert!(enough(&[(1, 0), (2, 10)]));
    assert!(!enough(&[(1, 0), (2, 11)]));
    assert!(enough(&[(1, 0), (1, 8), (2, 18)]), "it failed at 8, too");
    assert!(enough(&[(1, 0), (2, 11), (1, 12)]));
    let mut last = Health::new();
    assert!(!last.connection_failed(at(0), RequestId(1)) && last.connection_failed(at(1), RequestId(2)));
    assert!(last.connection_failed(at(10), RequestId(2)), "it wasn't marked, and 1 failed at 0");
    assert!(!last.connection_failed(at(11), RequestId(2)));
}

#[test]
fn refusals_mark_no_endpoint_down() {
    let mut endpoint = Health::new();
    for id in 1..10 {
        endpoint.note_failed(RequestId(id));
    }
    assert!(endpoint.has_failed_others(RequestId(1)));
    assert!(!endpoint.is_out());
    assert!(!endpoint.connection_failed(at(0), RequestId(20)), "the first failure");
}

#[test]
fn each_mark_lasts_twice_as_long_until_a_request_is_served() {
    let mut endpoint = Health::new();
    let mut lasts = Vec::new();
    for second in (0..80).map(|time| time * 100) {
        let now = at(second);
        lasts.push(endpoint.mark_down(now, DOWN).since(now).as_secs());
        assert_eq!(endpoint.state(), HealthState::Down);
        assert!(!endpoint.connection_failed(now, RequestId(second)), "it is down already");
        endpoint.probe(now);
        assert_eq!(endpoint.state(), HealthState::Probing);
        assert!(endpoint.connection_failed(now, RequestId(7)), "the first is enough");
    }
    assert_eq!(lasts[..7], [1, 2, 4, 8, 16, 30, 30]);
    assert!(lasts[7..].iter().all(|&seconds| seconds == 30));
    endpoint.served(at(9_000));
    assert!(endpoint.is_healthy());
    assert!(!endpoint.connection_failed(at(9_000), RequestId(8)));
    assert!(endpoint.connection_failed(at(9_000), RequestId(9)));
    assert_eq!(endpoint.mark_down(at(9_000), DOWN), at(9_001));
    endpoint.served(at(9_000));
    assert_eq!(endpoint.probe_at(), Some((at(9_001), 0)), "what ran there all the time");
    endpoint.probe(at(9_001));
    assert!(endpoint.connection_failed(at(9_002), RequestId(8)));
    assert_eq!(endpoint.mark_down(at(9_002), DOWN), at(9_003));
}

#[test]
fn a_longest_mark_below_the_first_bounds_it() {
    let short = OutlierEjection { max: Duration::from_millis(500), ..DOWN };
    let mut endpoint = Health::new();
    assert_eq!(endpoint.mark_down(at(0), short), Instant::from_nanos(500_000_000));
}

fn answer(endpoint: EndpointId, id: u64, flow: u64, result: AnswerResult) -> EndpointAnswer {
    EndpointAnswer {
        request: RequestId(id),
        endpoint,
        kind: kind(flow),
        sent_ago: Duration::from_millis(10),
        result,
        has_begun: false,
        is_hidden: false,
    }
}

/// One endpoint beside another, and the requests that both answer.
struct Pair {
    kinds: Kinds,
    here: Health,
    now: Instant,
    next: u64,
}

impl Pair {
    fn new() -> Self {
        Self { kinds: Kinds::default(), here: Health::new(), now: at(0), next: 0 }
    }

    fn there(&mut self, flow: u64, result: AnswerResult) {
        self.now = self.now.after(Duration::from_millis(50));
        let answer = answer(THERE, 0, flow, result);
        self.kinds.record(self.now, &answer);
    }

    fn answer(&mut self, id: u64, flow: u64, result: AnswerResult) -> EndpointAnswer {
        self.now = self.now.after(Duration::from_millis(50));
        let answer = answer(HERE, id, flow, result);
        self.kinds.record(self.now, &answer);
        answer
    }

    fn comparison<'a>(&'a self, is_measure: &'a dyn Fn(EndpointId) -> bool) -> Comparison<'a> {
        Comparison {
            kinds: &self.kinds,
            endpoint: HERE,
            now: self.now,
            memory: Duration::from_secs(300),
            is_measure,
        }
    }

    /// A new request of this flow ends here in this way. Returns whether the endpoint should leave; then it does.
    fn here(&mut self, flow: u64, result: AnswerResult) -> bool {
        self.next += 1;
        self.same_here(self.next, flow, result)
    }

    fn same_here(&mut self, id: u64, flow: u64, result: AnswerResult) -> bool {
        let answer = self.answer(id, flow, result);
        let mut here = self.here.clone();
        let verdict = here.answered(self.now, &answer, &Failing::default(), &self.comparison(&|_| true));
        if let Some(verdict) = verdict {
            here.mark_failing(self.now, verdict, &Failing::default(), 100);
            self.kinds.forget(HERE);
        }
        self.here = here;
        verdict.is_some()
    }

    /// How many such requests it takes until the endpoint leaves; `None`: not within 200.
    fn until_it_leaves(&mut self, flow: impl Fn(u64) -> u64, result: AnswerResult) -> Option<u64> {
        (1..=200).find(|&count| self.here(flow(count), result))
    }

    fn served_there(&mut self, flow: u64, count: u32) {
        for _ in 0..count {
            self.there(flow, AnswerResult::Served);
        }
    }
}

#[test]
fn an_endpoint_fails_after_a_handful_of_failures_beside_one_that_serves() {
    for result in [BROKEN, UNAUTHORIZED, AnswerResult::Failed(Fault::NoAnswer)] {
        let mut pair = Pair::new();
        pair.served_there(1, 20);
        assert_eq!(pair.until_it_leaves(|_| 1, result), Some(5), "{result:?}");
        assert_eq!(pair.here.state(), HealthState::Failing);
        // With little known of the other endpoint, a few more are needed.
        let mut young = Pair::new();
        young.served_there(1, 3);
        let count = young.until_it_leaves(|_| 1, result);
        assert!(count.is_some_and(|count| count <= 8), "{count:?}");
    }
}

#[test]
fn running_streams_of_another_endpoint_are_a_measure() {
    let mut pair = Pair::new();
    for _ in 0..8 {
        pair.there(1, AnswerResult::Begun);
    }
    assert_eq!(pair.until_it_leaves(|_| 1, UNAUTHORIZED), Some(5));
}

#[test]
fn failures_of_requests_that_fail_everywhere_are_the_clients() {
    for result in [BROKEN, UNAUTHORIZED] {
        let mut pair = Pair::new();
        // An honest flow is served at both, and a bad one nowhere.
        for _ in 0..500 {
            pair.there(1, AnswerResult::Served);
            pair.there(9, result);
            assert!(!pair.here(1, AnswerResult::Served));
            assert!(!pair.here(9, result));
        }
        // All bad requests go to one endpoint, and nothing else does.
        assert_eq!(pair.until_it_leaves(|_| 9, result), None);
    }
}

#[test]
fn a_flow_whose_every_request_is_bad_and_pinned_ejects_nothing() {
    for result in [BROKEN, UNAUTHORIZED] {
        let mut pair = Pair::new();
        pair.served_there(1, 30);
        assert_eq!(pair.until_it_leaves(|_| 9, result), None, "one flow of bad requests");
        assert_eq!(pair.until_it_leaves(|count| 9 + count % 3, result), None, "three");
    }
}

#[test]
fn bad_requests_of_the_same_flow_as_good_ones_eject_nothing() {
    // Half of the requests are bad, at both endpoints alike, and the coin decides which.
    let mut coin = 0x2545_f491_4f6c_dd1d_u64;
    let mut toss = || {
        coin ^= coin << 13;
        coin ^= coin >> 7;
        coin ^= coin << 17;
        if coin & 1 == 0 { AnswerResult::Served } else { UNAUTHORIZED }
    };
    let mut pair = Pair::new();
    for _ in 0..20_000 {
        let (there, here) = (toss(), toss());
        pair.there(1, there);
        assert!(!pair.here(1, here));
    }
}

#[test]
fn failures_of_many_flows_with_one_request_each_are_compared_by_model_and_path() {
    let mut pair = Pair::new();
    for flow in 1_000..1_030 {
        pair.there(flow, AnswerResult::Served);
    }
    assert_eq!(pair.until_it_leaves(|count| count, UNAUTHORIZED), Some(5));
}

#[test]
fn one_request_that_fails_again_and_again_counts_once() {
    let mut pair = Pair::new();
    pair.served_there(1, 30);
    for _ in 0..50 {
        assert!(!pair.same_here(77, 1, BROKEN));
    }
    assert_eq!(pair.here.failures_in_a_row(), 1);
}

#[test]
fn without_another_endpoint_that_succeeds_none_fails() {
    let mut pair = Pair::new();
    assert_eq!(pair.until_it_leaves(|_| 1, BROKEN), None, "nothing is known of the other one");
    for _ in 0..20 {
        pair.there(1, BROKEN);
    }
    assert_eq!(pair.until_it_leaves(|_| 1, BROKEN), None, "it fails, too");
}

#[test]
fn a_share_of_server_errors_is_enough() {
    let mut pair = Pair::new();
    pair.served_there(1, 30);
    let left =
        (1..=60).find(|count| pair.here(1, if count % 4 == 0 { AnswerResult::Served } else { BROKEN }));
    assert!(left.is_some_and(|left| left <= 24), "{left:?}");
    assert!(
        matches!(pair.here.reason(), HealthReason::Share { fault: FAULT, .. }),
        "{:?}",
        pair.here.reason()
    );
    // A tenth is none.
    let mut seldom = Pair::new();
    seldom.served_there(1, 30);
    for count in 1..=1_000 {
        assert!(!seldom.here(1, if count % 10 == 0 { BROKEN } else { AnswerResult::Served }));
    }
}

#[test]
fn a_probe_decides_and_a_relapse_doubles_the_pause() {
    let mut pair = Pair::new();
    pair.served_there(1, 30);
    pair.until_it_leaves(|_| 1, UNAUTHORIZED);
    let pause =
        |pair: &Pair| pair.here.probe_at().map(|(until, answers)| (until.since(pair.now).as_secs(), answers));
    assert_eq!(pause(&pair), Some((5, 112)), "twelve answers between two probes, because clients see them");
    assert!(!pair.here(1, AnswerResult::Served), "an answer from before");
    assert_eq!(pair.here.state(), HealthState::Failing);
    for _ in 0..3 {
        pair.here.probe(pair.now);
        assert!(pair.here.is_single());
        assert!(pair.here(1, UNAUTHORIZED), "the probe fails");
        assert_eq!(pause(&pair), Some((5, 112)), "the pause stays");
    }
    for seconds in [10, 20, 40, 80, 80] {
        pair.here.probe(pair.now);
        assert!(!pair.here(1, AnswerResult::Served));
        assert!(pair.here.is_healthy() && !pair.here.is_single());
        assert!(pair.here(1, UNAUTHORIZED), "one more is enough so soon");
        assert_eq!(pause(&pair).map(|(seconds, _)| seconds), Some(seconds));
    }
    pair.here.probe(pair.now);
    for _ in 0..10 {
        assert!(!pair.here(1, AnswerResult::Served));
    }
    pair.served_there(1, 30);
    let count = pair.until_it_leaves(|_| 1, UNAUTHORIZED);
    assert!(count.is_some_and(|count| count >= 5), "it is trusted again: {count:?}");
    assert_eq!(pause(&pair).map(|(seconds, _)| seconds), Some(5));
}

#[test]
fn a_bad_request_of_an_unknown_flow_ends_no_probe() {
    let mut pair = Pair::new();
    pair.served_there(1, 30);
    pair.until_it_leaves(|_| 1, UNAUTHORIZED);
    pair.here.probe(pair.now);
    for _ in 0..10 {
        assert!(!pair.here(9, UNAUTHORIZED));
    }
    assert_eq!(pair.here.state(), HealthState::Probing);
    assert!(!pair.here(1, AnswerResult::Served));
    assert!(pair.here.is_healthy());
}

#[test]
fn an_endpoint_that_refuses_everything_for_a_window_is_failing() {
    let refused = AnswerResult::Refused(503);
    let mut pair = Pair::new();
    pair.served_there(1, 30);
    for _ in 0..100 {
        assert!(!pair.here(1, refused), "overload passes");
    }
    pair.now = pair.now.after(Duration::from_secs(30));
    pair.served_there(1, 1);
    assert!(pair.here(1, refused));
    assert_eq!(pair.here.reason(), HealthReason::Refusals { status: 503 });
    // One that serves now and then is busy.
    let mut busy = Pair::new();
    busy.served_there(1, 30);
    for count in 0..40 {
        busy.now = busy.now.after(Duration::from_secs(2));
        assert!(!busy.here(1, if count % 10 == 9 { AnswerResult::Served } else { refused }));
    }
}

#[test]
fn answers_of_endpoints_that_are_no_measure_do_not_count() {
    let mut pair = Pair::new();
    pair.served_there(1, 30);
    let answer = pair.answer(1, 1, BROKEN);
    assert!(pair.comparison(&|_| true).surprise(answer.kind, true, &[]) > 2.8);
    let none = |id| id != THERE;
    assert!(pair.comparison(&none).surprise(answer.kind, true, &[]) <= 0.0);
}

#[test]
fn an_endpoint_that_fails_what_it_served_says_so() {
    let mut pair = Pair::new();
    for _ in 0..10 {
        pair.here(1, AnswerResult::Served);
    }
    for _ in 0..5 {
        pair.here(9, BROKEN);
    }
    let policy = Failing::default();
    assert!(
        !pair.here.fails_what_it_served(&policy, &pair.comparison(&|_| true)),
        "it never served that flow"
    );
    pair.here(1, AnswerResult::Served);
    for _ in 0..5 {
        pair.here(1, BROKEN);
    }
    assert!(pair.here.fails_what_it_served(&policy, &pair.comparison(&|_| true)));
}

#[test]
fn in_a_large_pool_every_endpoint_is_known_that_serves_a_model() {
    let mut kinds = Kinds::default();
    let endpoints: Vec<EndpointId> = (0..100).map(EndpointId).collect();
    for &endpoint in &endpoints {
        kinds.record(at(0), &answer(endpoint, 0, 1, AnswerResult::Served));
    }
    assert!(endpoints.iter().all(|&endpoint| kinds.has_served(endpoint, kind(2))));
    for _ in 0..3 {
        kinds.record(at(0), &answer(EndpointId(7), 0, 1, AnswerResult::Rejected(404)));
    }
    assert!(kinds.has_served(EndpointId(7), kind(1)));
    kinds.record(at(0), &answer(EndpointId(7), 0, 1, AnswerResult::Rejected(404)));
    assert!(!kinds.has_served(EndpointId(7), kind(1)), "it has lost the model");
    assert!(kinds.is_served(kind(1)));
    kinds.forget(EndpointId(8));
    assert!(!kinds.has_served(EndpointId(8), kind(1)));
}
