//! `then: open`: while the companion is down, the filter admits requests by itself, up to a bound over all workers.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use penstock_filter_core::config::Config;
use penstock_filter_core::effect::{BodyAction, HeadersAction};
use penstock_filter_core::header_sanitizer::HeaderEdit;
use penstock_filter_core::local_reply::LocalReply;
use penstock_filter_core::shared_data::{SetIf, SharedData};
use penstock_wire::command::Kind;
use penstock_wire::filter_frame::Event;
use penstock_wire::limits::VERSION_MAX;
use penstock_wire::{Completed, Endpoints, Fallback, Hello, HelloAck, Policy, Pool, Refused, Route, Running};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::worker::credits::credit;
use crate::worker::harness::{Output, Rig, Shared, config, grant, without_retry};

const HOLD: Duration = Duration::from_secs(5);

/// A configuration whose pool `chat` fails open, with a change of that pool.
fn failing_open(change: impl FnOnce(&mut Pool)) -> Config {
    config(|config| {
        let pool = &mut config.policy.pools[0];
        pool.fallback = Fallback::Open.into();
        change(pool);
    })
}

fn endpoints(bound: Option<u64>) -> Kind {
    Kind::Endpoints(Endpoints {
        keep_ready: false,
        pool: "chat".into(),
        ready: ["a:1", "b:1", "c:1", "d:1"].map(String::from).into(),
        fallback_bound: bound,
    })
}

/// A worker whose companion has sent this bound and has just gone down.
fn lost(epoch: u64, shared: &Shared, bound: Option<u64>) -> Rig {
    let mut rig = connected(epoch, shared, bound);
    rig.closed();
    rig
}

fn connected(epoch: u64, shared: &Shared, bound: Option<u64>) -> Rig {
    let mut rig = Rig::with(epoch, &failing_open(|_| {}), shared);
    rig.open();
    rig.hello_ack(2);
    rig.command(1, [endpoints(bound)]);
    rig
}

/// A worker whose companion has been down for longer than `hold`.
pub(crate) fn open(epoch: u64, shared: &Shared, bound: Option<u64>) -> Rig {
    let mut rig = lost(epoch, shared, bound);
    rig.advance(HOLD);
    rig
}

/// Sends a request. Returns its sequence number and the action.
fn arrive(rig: &mut Rig) -> (u64, BodyAction) {
    arrive_with(rig, &[])
}

fn arrive_with(rig: &mut Rig, headers: &[(&str, &str)]) -> (u64, BodyAction) {
    arrive_as(rig, headers, br#"{"model":"m1"}"#)
}

fn arrive_as(rig: &mut Rig, headers: &[(&str, &str)], body: &[u8]) -> (u64, BodyAction) {
    let sequence = rig.paused(headers);
    let read = |start: usize, length: usize| body.get(start..start + length).map(<[u8]>::to_vec);
    let bodied = rig.worker.handle_request_body(rig.now, sequence, body.len(), true, read);
    let bodied = match bodied {
        BodyAction::Continue(edits) => BodyAction::Continue(without_retry(edits)),
        other => other,
    };
    (sequence, bodied)
}

/// Sends a request. Returns its sequence number if it is admitted.
pub(crate) fn admitted(rig: &mut Rig) -> Option<u64> {
    match arrive(rig) {
        (sequence, BodyAction::Continue(_)) => Some(sequence),
        (_, BodyAction::Reply(_)) => None,
        (_, BodyAction::Pause) => panic!("paused"),
    }
}

fn edits_to(endpoints: &str) -> Vec<HeaderEdit> {
    vec![
        HeaderEdit::Add("x-penstock-pool", "chat".into()),
        HeaderEdit::Add("x-gateway-destination-endpoint", endpoints.into()),
    ]
}

fn code(answer: &LocalReply) -> String {
    let json: serde_json::Value = serde_json::from_slice(&answer.body).expect("JSON");
    json["error"]["code"].as_str().expect("a code").to_owned()
}

#[test]
fn waiting_requests_are_admitted_in_order_after_hold_while_there_is_room() {
    let mut rig = lost(0, &Shared::default(), Some(2));
    for _ in 0..3 {
        rig.waiting("m1");
    }
    let (patient, _) = rig.waiting("p1");
    rig.advance(HOLD - Duration::from_millis(1));
    rig.tick();
    rig.open_failed();
    rig.advance(Duration::from_millis(1));
    let outputs = rig.tick();
    let [Output::Resume(101, first), Output::Resume(102, second), Output::Reply(103, third), ..] =
        &outputs[..]
    else {
        panic!("{outputs:?}")
    };
    assert_eq!(*first, format!("{:?}", edits_to("b:1,c:1,d:1")));
    assert_eq!(*second, format!("{:?}", edits_to("c:1,d:1,a:1")));
    assert_eq!((third.status, code(third).as_str()), (503, "gateway_unavailable"));
    for header in
        [("retry-after", "1"), ("x-penstock-outcome", "gateway_unavailable"), ("x-penstock-queue-ms", "5000")]
    {
        let (name, value) = (header.0, header.1.to_owned());
        assert!(third.headers.contains(&(name, value)), "{:?}", third.headers);
    }
    // The response reports the real time in the queue.
    let responded = rig.response(1, &[(":status", "200")], true);
    for edit in [
        HeaderEdit::Add("x-penstock-outcome", "dispatched".into()),
        HeaderEdit::Add("x-penstock-queue-ms", "5000".into()),
    ] {
        assert!(responded.edits.contains(&edit), "{:?}", responded.edits);
    }
    rig.open_failed();
    assert_eq!(rig.log(patient), []);
}

#[test]
fn new_requests_are_admitted_or_refused_at_once_after_hold() {
    let mut rig = open(0, &Shared::default(), Some(2));
    assert_eq!(arrive(&mut rig).1, BodyAction::Continue(edits_to("b:1,c:1,d:1")));
    assert_eq!(arrive(&mut rig).1, BodyAction::Continue(edits_to("c:1,d:1,a:1")));
    let (_, BodyAction::Reply(answer)) = arrive(&mut rig) else { panic!("answered") };
    assert_eq!((answer.status, code(&answer).as_str()), (503, "gateway_unavailable"));
    assert_eq!(rig.outputs(), []);
    // A request that ends frees its room.
    rig.log(1);
    assert!(admitted(&mut rig).is_some());
    assert_eq!(admitted(&mut rig), None);
    // The next stream reports the ends, the refusal, and the requests that still run.
    let sent = rig.open();
    let [
        Output::Sent(1, Event::Hello(hello)),
        Output::Sent(2, Event::Refused(Refused { sequence: 3, .. })),
        Output::Sent(3, Event::Completed(Completed { sequence: 1, .. })),
        Output::Sent(4, Event::Refused(Refused { sequence: 5, .. })),
    ] = &sent[..]
    else {
        panic!("{sent:?}")
    };
    assert_eq!(hello.waiting, []);
    let running: Vec<_> = hello
        .running
        .iter()
        .map(|Running { register, pool, endpoint, .. }| {
            let sequence = register.as_ref().map(|register| register.sequence);
            (sequence, pool.as_str(), endpoint.as_str())
        })
        .collect();
    assert_eq!(running, [(Some(2), "chat", "c:1"), (Some(4), "chat", "a:1")]);
}

#[test]
fn without_a_bound_all_are_admitted_to_the_endpoints_they_allow() {
    let mut rig = open(0, &Shared::default(), None);
    for _ in 0..100 {
        assert!(admitted(&mut rig).is_some());
    }
    let pin = [("x-penstock-endpoint", "d:1")];
    assert_eq!(arrive_with(&mut rig, &pin).1, BodyAction::Continue(edits_to("d:1")));
    let elsewhere = [("x-gateway-destination-endpoint-subset", "z:1")];
    let (_, BodyAction::Reply(answer)) = arrive_with(&mut rig, &elsewhere) else { panic!("answered") };
    assert_eq!((answer.status, code(&answer).as_str()), (503, "no_endpoints"));
}

#[test]
fn bound_applies_to_all_workers_together() {
    let shared = Shared::default();
    let (mut one, mut two) = (open(1, &shared, Some(3)), open(2, &shared, Some(3)));
    let first = admitted(&mut one).expect("admitted");
    assert!(admitted(&mut two).is_some());
    assert!(admitted(&mut one).is_some());
    assert_eq!((admitted(&mut one), admitted(&mut two)), (None, None));
    one.log(first);
    assert!(admitted(&mut two).is_some());
    assert_eq!((admitted(&mut one), admitted(&mut two)), (None, None));
}

#[test]
fn requests_that_the_companion_granted_count_against_the_bound() {
    let shared = Shared::default();
    let mut busy = connected(1, &shared, Some(3));
    busy.running("m1");
    let ends = busy.running("m1");
    busy.closed();
    let mut other = open(2, &shared, Some(3));
    assert!(admitted(&mut other).is_some());
    assert_eq!(admitted(&mut other), None);
    busy.log(ends);
    assert!(admitted(&mut other).is_some());
    assert_eq!(admitted(&mut other), None);
}

#[test]
fn record_is_renewed_with_each_heartbeat_while_the_companion_is_up() {
    let shared = Shared::default();
    let mut busy = connected(1, &shared, Some(3));
    busy.running("m1");
    let mut other = open(2, &shared, Some(3));
    busy.advance(Duration::from_secs(1));
    busy.tick();
    assert!(admitted(&mut other).is_some() && admitted(&mut other).is_some());
    assert_eq!(admitted(&mut other), None);
    for _ in 0..60 {
        busy.advance(Duration::from_secs(1));
        busy.tick();
    }
    other.now = busy.now;
    other.tick();
    assert_eq!(admitted(&mut other), None);
}

#[test]
fn record_of_a_dead_worker_expires() {
    let shared = Shared::default();
    let mut dead = open(1, &shared, Some(1));
    assert!(admitted(&mut dead).is_some());
    drop(dead);
    let mut other = open(2, &shared, Some(1));
    other.advance(Duration::from_millis(9_999));
    assert_eq!(admitted(&mut other), None);
    other.advance(Duration::from_millis(1));
    assert!(admitted(&mut other).is_some());
    // A live worker renews its record for as long as the companion is down.
    let mut third = lost(3, &shared, Some(1));
    third.now = other.now;
    for _ in 0..300 {
        other.advance(Duration::from_millis(50));
        other.tick();
        other.open_failed();
    }
    third.now = other.now;
    assert_eq!(admitted(&mut third), None);
}

#[test]
fn bound_may_count_tokens() {
    let config = failing_open(|pool| {
        pool.fallback_bound = Some(700);
        pool.fallback_bound_in_tokens = true;
        pool.endpoints = vec!["s:1".into()];
    });
    let mut rig = Rig::with(1, &config, &Shared::default());
    rig.advance(HOLD);
    // Each counts 256 tokens, because its prompt is empty.
    assert_eq!(arrive(&mut rig).1, BodyAction::Continue(edits_to("s:1")));
    assert!(admitted(&mut rig).is_some());
    assert_eq!(admitted(&mut rig), None);
}

#[test]
fn bound_may_count_sequences() {
    let config = failing_open(|pool| {
        pool.fallback_bound = Some(5);
        pool.fallback_bound_in_sequences = true;
        pool.endpoints = vec!["s:1".into()];
    });
    let mut rig = Rig::with(1, &config, &Shared::default());
    rig.advance(HOLD);
    let four = br#"{"model":"m1","n":4}"#;
    assert_eq!(arrive_as(&mut rig, &[], four).1, BodyAction::Continue(edits_to("s:1")));
    assert!(matches!(arrive_as(&mut rig, &[], four).1, BodyAction::Reply(_)));
    assert!(admitted(&mut rig).is_some());
    assert_eq!(admitted(&mut rig), None);
}

#[test]
fn stored_policy_provides_endpoints_and_bound_at_a_cold_start() {
    let shared = Shared::default();
    let policy = Policy {
        digest: "d7".into(),
        body_bytes_max: 1_000,
        routes: vec![Route {
            path: "/v1/chat/completions".into(),
            api: penstock_wire::Api::ChatCompletions.into(),
            ..Route::default()
        }],
        pools: vec![Pool {
            name: "chat".into(),
            hold_ms: 1_000,
            fallback: Fallback::Open.into(),
            ttl_ms: 30_000,
            no_endpoint_ttl_ms: 60_000,
            capacity_status: 503,
            endpoints: vec!["s:1".into()],
            fallback_bound: Some(1),
            ..Pool::default()
        }],
        ..Policy::default()
    };
    let mut first = connected(1, &shared, None);
    first.command(1, [Kind::Policy(policy)]);
    let mut rig = Rig::with(2, &failing_open(|_| {}), &shared);
    rig.advance(Duration::from_millis(999));
    let (sequence, _) = rig.waiting("m1");
    rig.advance(Duration::from_millis(1));
    let outputs = rig.tick();
    let edits = format!("{:?}", edits_to("s:1"));
    assert_eq!(outputs, [Output::Resume(101, edits), Output::OpenStream]);
    assert_eq!(admitted(&mut rig), None);
    rig.open_failed();
    rig.log(sequence);
    assert!(admitted(&mut rig).is_some());
}

#[test]
fn without_known_endpoints_envoy_chooses() {
    let mut rig = Rig::with(1, &failing_open(|_| {}), &Shared::default());
    rig.advance(HOLD);
    let edits = vec![HeaderEdit::Add("x-penstock-pool", "chat".into())];
    assert_eq!(arrive(&mut rig).1, BodyAction::Continue(edits));
}

fn hello(rig: &mut Rig) -> Hello {
    match rig.open().first() {
        Some(Output::Sent(1, Event::Hello(hello))) => hello.clone(),
        sent => panic!("Hello: {sent:?}"),
    }
}

#[test]
fn admitting_a_registered_request_before_the_hello_ack_reopens_the_stream() {
    let mut rig = lost(0, &Shared::default(), None);
    rig.waiting("m1");
    rig.advance(HOLD - Duration::from_millis(1));
    assert_eq!(hello(&mut rig).waiting.len(), 1);
    rig.advance(Duration::from_millis(1));
    let outputs = rig.tick();
    assert!(matches!(&outputs[..], [Output::Resume(101, _)]), "{outputs:?}");
    assert_eq!(rig.tick(), [Output::ResetStream]);
    rig.advance(Duration::from_secs(1));
    let hello = hello(&mut rig);
    assert_eq!((hello.waiting.len(), hello.running.len()), (0, 1));
}

#[test]
fn requests_admitted_before_the_hello_ack_are_listed_in_the_next_hello() {
    let mut rig = open(0, &Shared::default(), None);
    assert_eq!(hello(&mut rig).running.len(), 0);
    // A suspended companion receives the Hello and doesn't answer.
    let (first, bodied) = arrive(&mut rig);
    assert!(matches!(bodied, BodyAction::Continue(_)));
    assert_eq!(rig.outputs(), []);
    let ack = || Kind::HelloAck(HelloAck { version: VERSION_MAX, term: 2 });
    assert_eq!(rig.command(0, [ack(), Kind::Grant(grant(first))]), []);
    // The companion resumes: no further request is admitted without it, and a new Hello lists the running ones.
    assert_eq!(rig.waiting("m1").1, []);
    assert_eq!(rig.tick(), [Output::ResetStream]);
    let again = hello(&mut rig);
    assert_eq!((again.waiting.len(), again.running.len()), (1, 1));
    assert_eq!(rig.command(0, [ack()]), []);
    let (sequence, sent) = rig.waiting("m1");
    assert!(
        matches!(&sent[..], [Output::Sent(2, Event::Register(sent))] if sent.sequence == sequence),
        "{sent:?}"
    );
}

#[test]
fn without_hold_the_stream_is_reopened_only_once() {
    let config = failing_open(|pool| pool.hold_ms = 0);
    let mut rig = Rig::with(1, &config, &Shared::default());
    let ack = || Kind::HelloAck(HelloAck { version: VERSION_MAX, term: 1 });
    for _ in 0..2 {
        rig.open();
        assert!(admitted(&mut rig).is_some());
        assert_eq!(rig.command(0, [ack()]), []);
        let cut = rig.tick();
        if cut.is_empty() {
            break;
        }
        assert_eq!(cut, [Output::ResetStream]);
    }
    // The second HelloAck establishes the session, although further requests were admitted in the meantime.
    assert_eq!(rig.waiting("m1").1.len(), 1);
}

/// Shared data that counts its calls.
#[derive(Debug)]
struct CountedSharedData(Shared, Rc<Cell<u32>>);

impl SharedData for CountedSharedData {
    fn get(&self, key: &str) -> Option<(Vec<u8>, u32)> {
        self.1.set(self.1.get() + 1);
        self.0.get(key)
    }

    fn set(&self, key: &str, value: &[u8], condition: SetIf) -> bool {
        self.1.set(self.1.get() + 1);
        self.0.set(key, value, condition)
    }
}

#[test]
fn records_cost_shared_data_calls_only_with_heartbeats_while_the_companion_is_up() {
    let closed = config(|_| {});
    for (config, per_heartbeat) in [(closed, 0), (failing_open(|_| {}), 2)] {
        let calls = Rc::new(Cell::new(0));
        let mut rig = Rig::with_shared_data(
            1,
            &config,
            Box::new(CountedSharedData(Shared::default(), Rc::clone(&calls))),
        );
        rig.open();
        rig.hello_ack(2);
        let configured = calls.replace(0);
        assert!(configured <= 4, "{configured}");
        let running: Vec<u64> = (0..50).map(|_| rig.running("m1")).collect();
        assert_eq!(calls.get(), 0);
        rig.advance(Duration::from_secs(1));
        rig.tick();
        assert_eq!(calls.replace(0), per_heartbeat);
        for sequence in running {
            rig.log(sequence);
        }
        assert_eq!(calls.get(), 0);
        // One write removes the last record; then none is needed while nothing is in flight.
        for after in [per_heartbeat, 0, 0] {
            rig.advance(Duration::from_secs(1));
            rig.tick();
            assert_eq!(calls.replace(0), after);
        }
    }
}

#[test]
fn policys_bound_applies_if_the_companion_sends_none() {
    let config = failing_open(|pool| pool.fallback_bound = Some(1));
    let mut rig = Rig::with(1, &config, &Shared::default());
    rig.open();
    rig.hello_ack(1);
    rig.command(1, [endpoints(None)]);
    rig.closed();
    rig.advance(HOLD);
    assert_eq!(arrive(&mut rig).1, BodyAction::Continue(edits_to("c:1,d:1,a:1")));
    assert_eq!(admitted(&mut rig), None);
}

#[test]
fn later_policy_can_switch_to_fail_closed() {
    let mut rig = open(0, &Shared::default(), None);
    assert!(admitted(&mut rig).is_some());
    let mut rig = connected(0, &Shared::default(), None);
    let closed = config(|_| {}).policy;
    rig.command(1, [Kind::Policy(closed)]);
    rig.closed();
    rig.advance(HOLD);
    let HeadersAction::Pause(sequence, _) = rig.headers(&[], false) else { panic!("paused") };
    let reply = rig.body(sequence, r#"{"model":"m1"}"#, true).expect("a reply");
    assert_eq!(code(&reply), "gateway_unavailable");
}

#[test]
fn client_without_room_is_advised_by_the_time_that_requests_take() {
    let mut rig = open(0, &Shared::default(), Some(2));
    assert!(admitted(&mut rig).is_some() && admitted(&mut rig).is_some());
    let advice = |rig: &mut Rig| {
        let (_, BodyAction::Reply(answer)) = arrive(rig) else { panic!("answered") };
        let advice = answer.headers.iter().find(|(name, _)| *name == "retry-after-ms");
        advice.expect("an advice").1.clone()
    };
    assert_eq!(advice(&mut rig), "1000", "none has ended yet");
    rig.advance(Duration::from_secs(24));
    rig.log(1);
    assert!(admitted(&mut rig).is_some());
    // Two requests that take 24 s each, so one ends every 12 s; and five percent of the part over a second.
    assert_eq!(advice(&mut rig), "12550");
}

#[test]
fn requests_admitted_by_credit_count_towards_the_bound() {
    let mut rig = connected(0, &Shared::default(), Some(1));
    rig.command(1, [Kind::Credit(credit(1, &[("a:1", 1)]))]);
    let leased = admitted(&mut rig).expect("a place is free");
    rig.closed();
    rig.advance(HOLD);
    assert_eq!(admitted(&mut rig), None);
    rig.log(leased);
    assert!(admitted(&mut rig).is_some());
}
