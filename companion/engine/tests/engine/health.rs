//! Endpoints whose answers fail: they leave beside others that serve, are probed, and come back; none leaves if all fail alike, and none
//! for the bad requests of clients.

use std::time::Duration;

use penstock_engine::input::{AnswerResult, EndpointAnswer, Fault, Kind};
use penstock_engine::policy::Failing;
use penstock_engine::{EndpointId, HealthReason, HealthState, Input, RequestId};

use crate::support::{Harness, gate, policy};

const BROKEN: AnswerResult = AnswerResult::Failed(Fault::Status(500));
const UNAUTHORIZED: AnswerResult = AnswerResult::Rejected(401);

/// A pool, its time, and the number of its next request.
struct Pool {
    harness: Harness,
    now: f64,
    next: u64,
}

impl Pool {
    fn new(endpoints: u32) -> Self {
        let mut policy = policy();
        policy.gate = gate(8, 8);
        Self { harness: Harness::new(policy, endpoints), now: 0.0, next: 1_000 }
    }

    fn answer(&mut self, endpoint: u32, flow: u64, result: AnswerResult) {
        self.now += 0.01;
        self.next += 1;
        self.harness.advance_to(self.now);
        self.harness.handle(Input::Answered(EndpointAnswer {
            request: RequestId(self.next),
            endpoint: EndpointId(endpoint),
            kind: Kind { model_and_path: 1, flow },
            sent_ago: Duration::from_millis(5),
            result,
            has_begun: false,
            is_hidden: false,
        }));
    }

    fn answers(&mut self, endpoint: u32, flow: u64, result: AnswerResult, count: u32) {
        for _ in 0..count {
            self.answer(endpoint, flow, result);
        }
    }

    fn pass(&mut self, seconds: f64) {
        self.now += seconds;
        self.harness.advance_to(self.now).handle_timeout();
    }

    fn states(&self) -> Vec<HealthState> {
        self.harness.engine.snapshot().endpoints.iter().map(|endpoint| endpoint.state).collect()
    }
}

use HealthState::{Down, Failing as FailingState, Healthy, Probing};

#[test]
fn an_endpoint_that_fails_beside_one_that_serves_leaves_and_comes_back() {
    for result in [BROKEN, UNAUTHORIZED, AnswerResult::Failed(Fault::NoAnswer)] {
        let mut pool = Pool::new(2);
        pool.answers(2, 7, AnswerResult::Served, 20);
        pool.answers(1, 7, result, 4);
        assert_eq!(pool.states(), [Healthy, Healthy]);
        pool.answer(1, 7, result);
        assert_eq!(pool.states(), [FailingState, Healthy], "{result:?}");
        assert_eq!(pool.harness.engine.snapshot().ready_endpoints, 1);
        // Answers of requests that were in flight change nothing.
        pool.answers(1, 7, AnswerResult::Served, 3);
        assert_eq!(pool.states(), [FailingState, Healthy]);
        // It is probed after the pause, once the other has answered enough.
        pool.pass(5.0);
        pool.answers(2, 7, AnswerResult::Served, 12);
        assert_eq!(pool.states(), [Probing, Healthy]);
        pool.answer(1, 7, result);
        assert_eq!(pool.states(), [FailingState, Healthy], "the probe failed");
        pool.answers(2, 7, AnswerResult::Served, 12);
        pool.pass(5.0);
        assert_eq!(pool.states(), [Probing, Healthy]);
        pool.answer(1, 7, AnswerResult::Served);
        assert_eq!(pool.states(), [Healthy, Healthy]);
    }
}

#[test]
fn a_probed_endpoint_takes_one_request_at_a_time() {
    let mut pool = Pool::new(2);
    pool.answers(2, 7, AnswerResult::Served, 20);
    pool.answers(1, 7, BROKEN, 5);
    pool.answers(2, 7, AnswerResult::Served, 12);
    pool.pass(5.0);
    assert_eq!(pool.states(), [Probing, Healthy]);
    let bounds = crate::support::bounds(&pool.harness);
    assert_eq!(bounds, [1, 8]);
}

#[test]
fn none_leaves_if_all_fail_alike() {
    for result in [BROKEN, UNAUTHORIZED] {
        for endpoints in [1, 2, 3] {
            let mut pool = Pool::new(endpoints);
            for round in 0..200 {
                let result = if round < 20 { AnswerResult::Served } else { result };
                for endpoint in 1..=endpoints {
                    pool.answer(endpoint, 7, result);
                }
            }
            assert!(pool.states().iter().all(|state| *state == Healthy), "{:?}", pool.states());
        }
    }
}

#[test]
fn an_endpoint_returns_when_the_rest_begins_to_fail() {
    for result in [BROKEN, UNAUTHORIZED] {
        let mut pool = Pool::new(3);
        for endpoint in [1, 2, 3] {
            pool.answers(endpoint, 7, AnswerResult::Served, 20);
        }
        pool.answers(1, 7, result, 5);
        assert_eq!(pool.states(), [FailingState, Healthy, Healthy]);
        pool.answers(2, 7, result, 5);
        assert_eq!(pool.states(), [FailingState, FailingState, Healthy]);
        pool.answers(3, 7, result, 5);
        assert_eq!(pool.states(), [Healthy, Healthy, Healthy], "{result:?}");
        let reason = pool.harness.engine.snapshot().endpoints[0].reason;
        assert_eq!(reason, HealthReason::AllAlike);
        for endpoint in [1, 2, 3] {
            pool.answers(endpoint, 7, AnswerResult::Served, 20);
        }
        assert_eq!(pool.states(), [Healthy, Healthy, Healthy]);
    }
}

#[test]
fn bad_requests_of_a_client_eject_nothing_wherever_they_go() {
    for result in [BROKEN, UNAUTHORIZED] {
        let mut pool = Pool::new(2);
        for round in 0..1_000_u32 {
            pool.answer(1 + round % 2, 7, AnswerResult::Served);
            pool.answer(1, 9, result);
        }
        pool.answers(1, 9, result, 500);
        assert_eq!(pool.states(), [Healthy, Healthy]);
        // An endpoint that fails the others' requests, too, still leaves.
        pool.answers(1, 7, result, 30);
        assert_eq!(pool.states(), [FailingState, Healthy]);
        // What the bad client meets at the rest doesn't bring it back.
        pool.answers(2, 9, result, 100);
        assert_eq!(pool.states(), [FailingState, Healthy]);
    }
}

#[test]
fn an_endpoint_of_a_pool_whose_rest_goes_is_probed_at_once() {
    let mut pool = Pool::new(2);
    pool.answers(2, 7, AnswerResult::Served, 20);
    pool.answers(1, 7, UNAUTHORIZED, 5);
    assert_eq!(pool.states(), [FailingState, Healthy]);
    pool.harness.endpoint(2, false);
    assert_eq!(pool.states(), [Probing, Down]);
}

#[test]
fn a_policy_without_the_rule_keeps_none_away() {
    let mut pool = Pool::new(2);
    pool.answers(2, 7, AnswerResult::Served, 20);
    pool.answers(1, 7, BROKEN, 5);
    assert_eq!(pool.states(), [FailingState, Healthy]);
    let mut without = policy();
    without.failing = None;
    pool.harness.handle(Input::Policy(Box::new(without)));
    assert_eq!(pool.states(), [Healthy, Healthy]);
    pool.answers(1, 7, BROKEN, 50);
    assert_eq!(pool.states(), [Healthy, Healthy]);
    let mut strict = policy();
    strict.failing = Some(Failing { consecutive: 2, ..Failing::default() });
    pool.harness.handle(Input::Policy(Box::new(strict)));
    pool.answer(1, 7, AnswerResult::Served);
    pool.answers(2, 7, AnswerResult::Served, 20);
    pool.answers(1, 7, AnswerResult::Served, 30);
    pool.answers(1, 7, BROKEN, 2);
    assert_eq!(pool.states(), [FailingState, Healthy]);
}
